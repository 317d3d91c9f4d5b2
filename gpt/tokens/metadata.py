"""Reads metadata.json, ours or one that another program wrote, and checks it field by field."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpt.common.errors import Exit, UserError
from gpt.common.files import read_text
from gpt.common.words import printable, shell_word
from gpt.tokens.layouts import DTYPES
from gpt.tokens.tokenizer import MAX_VOCAB_SIZE

METADATA_FORMAT = "gpt-tokens"
METADATA_VERSION = 1
SPLITS = ("train", "val")
MAX_TOKENS = 2**62

# The names of a field: ours first, then the names that other programs use.
VOCAB_SIZES = ("vocab_size", "vocabulary_size", "n_vocab")
END_OF_TEXT_IDS = ("end_of_text_id", "eot_token_id", "eos_token_id", "eot_id", "eos_id")
TOKEN_COUNTS = ("tokens", "num_tokens", "total_tokens", "n_tokens", "token_count")

Fields = dict[str, Any]  # an object of JSON, whose values are checked where they are read


class FileRecord(NamedTuple):
    """The facts that our metadata.json records of a token file; None where it lacks one."""

    num_tokens: int | None = None
    sha256: str | None = None
    modified_ns: int | None = None
    mask_sha256: str | None = None  # of the file that says which tokens count in the loss
    num_counted: int | None = None  # tokens that count
    copied: float | None = None  # the fraction of the validation tokens that stand in the training text


@dataclass(frozen=True)
class Metadata:
    """The checked fields of a metadata.json. Without such a file all are empty, and path is the token files' path."""

    path: Path
    vocab_size: int | None = None
    end_of_text_id: int | None = None
    dtype: str | None = None  # a key of DTYPES
    tokenizer_sha256: str | None = None
    origins: tuple[str, ...] = ()  # datasets of the Hugging Face hub, each with its commit
    # Of the training files or of all files together, if another program wrote the metadata.
    num_tokens: int | None = None
    # Of train.bin and val.bin, if the metadata is ours.
    splits: dict[str, FileRecord] = field(default_factory=dict)


def read_metadata(path: Path) -> Fields:
    """Reads the fields of a metadata.json, ours or another program's. Raises UserError (exit 3)."""
    name = printable(path)
    try:
        fields = json.loads(read_text(path))
    except PermissionError:
        raise  # exit 5
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"it is not JSON ({printable(error)[:120]})"
        cure = ("Give a folder that pretokenize.py has made" if isinstance(error, OSError) else
                f"Make the tokens again: python pretokenize.py TEXT --output_dir {shell_word(path.parent)} --overwrite")
        raise UserError(Exit.DATA, f"metadata {name}: {why}. {cure}") from error
    if not isinstance(fields, dict):
        raise UserError(Exit.DATA, f"metadata {name} holds no JSON object. Run pretokenize.py again.")
    if fields.get("format") == METADATA_FORMAT:
        _check(path, "version", fields.get("version"), fields.get("version") == METADATA_VERSION,
               f"{METADATA_VERSION}, which this program reads")
    return fields


def metadata_of(path: Path) -> Metadata:
    """Reads and checks a metadata.json. Raises UserError (exit 3) and names the first invalid field."""
    fields = read_metadata(path)
    is_ours = fields.get("format") == METADATA_FORMAT
    vocab_size = _integer(path, fields, VOCAB_SIZES, 1, MAX_VOCAB_SIZE)
    end_of_text_id = _integer(path, fields, END_OF_TEXT_IDS, 0, (vocab_size or MAX_VOCAB_SIZE) - 1)
    dtype = fields.get("dtype")
    if is_ours or dtype is not None:
        dtype = str(dtype).split(".")[-1]  # other programs write numpy.uint16
        _check(path, "dtype", dtype, dtype in DTYPES, f"one of {', '.join(DTYPES)}")
    if not is_ours:
        return Metadata(path, vocab_size, end_of_text_id, dtype,
                        num_tokens=_integer(path, fields, TOKEN_COUNTS, 0, MAX_TOKENS))

    tokenizer, origins = fields.get("tokenizer"), fields.get("origins")
    splits: Any = fields.get("splits")
    _check(path, "splits", splits, isinstance(splits, dict) and {*splits} & {*SPLITS}, "an object with a split")
    return Metadata(
        path, vocab_size, end_of_text_id, dtype,
        tokenizer_sha256=_sha256(path, tokenizer) if isinstance(tokenizer, dict) else None,
        origins=tuple(each for each in origins if isinstance(each, str)) if isinstance(origins, list) else (),
        splits={split: _record(path, split, splits[split]) for split in SPLITS if split in splits})


def _record(path: Path, split: str, fields: Any) -> FileRecord:
    _check(path, f"splits.{split}", fields, isinstance(fields, dict), "an object")
    return FileRecord(num_tokens=_integer(path, fields, TOKEN_COUNTS, 0, MAX_TOKENS), sha256=_sha256(path, fields),
                      modified_ns=fields.get("modified_ns"), mask_sha256=_sha256(path, fields, "mask_sha256"),
                      num_counted=_integer(path, fields, ("counted",), 0, MAX_TOKENS), copied=fields.get("copied"))


def _sha256(path: Path, record: Fields, name: str = "sha256") -> str | None:
    sha256 = record.get(name)
    return _check(path, name, sha256, sha256 is None or re.fullmatch("[0-9a-f]{64}", str(sha256)),
                  "64 hexadecimal digits")


def _integer(path: Path, fields: Mapping[str, Any], names: tuple[str, ...], low: int, high: int) -> int | None:
    """The integer of the first of these names that has one; None if all are missing."""
    name = next((name for name in names if fields.get(name) is not None), None)
    if name is None:
        return None
    value = fields[name]
    is_valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return _check(path, name, value, is_valid, f"a whole number from {low:,} to {high:,}")


def _check(path: Path, name: str, value: Any, is_valid: object, expected: str) -> Any:
    """Returns the value. Raises UserError (exit 3) unless it is valid."""
    if not is_valid:
        raise UserError(Exit.DATA, f"metadata {printable(path)}: {name} is {printable(repr(value))[:60]}, not "
                                   f"{expected}. Run pretokenize.py again.")
    return value
