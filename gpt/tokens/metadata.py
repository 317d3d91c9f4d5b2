"""What a metadata.json records of token files, checked field by field: ours, or one that another program wrote."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpt.common.errors import Exit, UserError
from gpt.common.files import read_text
from gpt.common.words import printable
from gpt.tokens.layouts import DTYPES, LAYOUTS, Layout
from gpt.tokens.tokenizer import MAX_VOCAB_SIZE

METADATA_FORMAT = "gpt-tokens"
METADATA_VERSION = 1
SPLITS = ("train", "val")
MOST_TOKENS = 2**62

# The names of a field: ours first, then those that other programs use.
VOCAB_SIZES = ("vocab_size", "vocabulary_size", "n_vocab")
END_OF_TEXT_IDS = ("end_of_text_id", "eot_token_id", "eos_token_id", "eot_id", "eos_id")
TOKEN_COUNTS = ("tokens", "num_tokens", "total_tokens", "n_tokens", "token_count")

Fields = dict[str, Any]  # an object of JSON: its values are checked where they are read


class FileRecord(NamedTuple):
    """What is recorded of a token file; None for what is not."""

    num_tokens: int | None = None
    sha256: str | None = None
    modified_ns: int | None = None


@dataclass(frozen=True)
class Metadata:
    """What a metadata.json records. Without one nothing is, and path is that of the token files.

    files holds the records of each split's files by their names in their order, where pretokenize.py wrote them.
    """

    path: Path
    is_ours: bool = False
    vocab_size: int | None = None
    end_of_text_id: int | None = None
    dtype: str | None = None  # a key of DTYPES
    layout: Layout | None = None  # of the files that are named
    tokenizer_sha256: str | None = None
    origins: tuple[str, ...] = ()  # the datasets of the hub that the text came from, each with its commit
    num_tokens: int | None = None  # of all files together, in another program's
    files: dict[str, dict[str, FileRecord]] = field(default_factory=dict)

def read_metadata(path: Path) -> Fields:
    """The fields of a metadata.json, ours or another program's. Raises UserError (exit 3)."""
    name = printable(path)
    try:
        fields = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"it is not JSON ({printable(error)[:120]})"
        raise UserError(Exit.DATA, f"metadata {name}: {why}. Run: python pretokenize.py corpus.txt") from error
    if not isinstance(fields, dict):
        raise UserError(Exit.DATA, f"metadata {name} holds no JSON object. Run pretokenize.py again.")
    if fields.get("format") == METADATA_FORMAT:
        _check(path, "version", fields.get("version"), fields.get("version") == METADATA_VERSION,
               f"{METADATA_VERSION}, which this program reads")
    return fields


def metadata_of(path: Path) -> Metadata:
    """What a metadata.json records. Raises UserError (exit 3) for a field that is not what it should be."""
    fields = read_metadata(path)
    vocab_size = _whole_number(path, fields, VOCAB_SIZES, 1, MAX_VOCAB_SIZE)
    end_of_text_id = _whole_number(path, fields, END_OF_TEXT_IDS, 0, (vocab_size or MAX_VOCAB_SIZE) - 1)
    dtype = fields.get("dtype")
    if dtype is not None:
        dtype = _one_of(path, "dtype", str(dtype).split(".")[-1], DTYPES)  # numpy.uint16, say
    if fields.get("format") != METADATA_FORMAT:
        num_tokens = _whole_number(path, fields, TOKEN_COUNTS, 0, MOST_TOKENS)
        return Metadata(path, False, vocab_size, end_of_text_id, dtype, num_tokens=num_tokens)

    layout = LAYOUTS[_one_of(path, "layout", fields.get("layout", "native"), LAYOUTS)]
    tokenizer, origins = fields.get("tokenizer"), fields.get("origins")
    splits = _check(path, "splits", fields.get("splits"), isinstance(fields.get("splits"), dict), "an object")
    return Metadata(
        path, True, vocab_size, end_of_text_id, dtype, layout,
        _sha256(path, tokenizer) if isinstance(tokenizer, dict) else None,
        tuple(each for each in origins if isinstance(each, str)) if isinstance(origins, list) else (),
        files={name: _files_of(path, name, splits[name]) for name in SPLITS if name in splits})


def _files_of(path: Path, split: str, fields: Any) -> dict[str, FileRecord]:
    """What our metadata records of each file of a split, by name in their order.

    A name is never followed as a path: it must be one that pretokenize.py gives.
    """
    _check(path, f"splits.{split}", fields, isinstance(fields, dict), "an object")
    files = fields.get("files", [{**fields, "name": f"{split}.bin"}])
    _check(path, f"splits.{split}.files", files, isinstance(files, list) and files, "a list of files")
    records: dict[str, FileRecord] = {}
    for at, record in enumerate(files):
        name = record.get("name") if isinstance(record, dict) else None
        is_name = re.fullmatch(rf"(tokens_)?{split}(_[0-9]{{6}})?\.bin", str(name))
        _check(path, f"splits.{split}.files[{at}].name", name, is_name and name not in records,
               f"a name like {split}_000000.bin, which stands there once")
        records[str(name)] = FileRecord(_whole_number(path, record, TOKEN_COUNTS, 0, MOST_TOKENS),
                                        _sha256(path, record), record.get("modified_ns"))
    return records


def _sha256(path: Path, record: Fields) -> str | None:
    found = record.get("sha256")
    is_one = found is None or re.fullmatch("[0-9a-f]{64}", str(found))
    return _check(path, "sha256", found, is_one, "64 hexadecimal digits")


def _whole_number(path: Path, fields: Mapping[str, Any], keys: tuple[str, ...], low: int, high: int) -> int | None:
    """The value of the first key that is there, a whole number from low to high; None if there is none."""
    key = next((key for key in keys if fields.get(key) is not None), None)
    if key is None:
        return None
    value = fields[key]
    is_valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return _check(path, key, value, is_valid, f"a whole number from {low:,} to {high:,}")


def _one_of(path: Path, name: str, value: Any, names: Collection[str]) -> str:
    return _check(path, name, value, isinstance(value, str) and value in names, f"one of {', '.join(names)}")


def _check(path: Path, name: str, value: Any, is_valid: object, expected: str) -> Any:
    """The value. Raises UserError (exit 3) unless it is valid."""
    if not is_valid:
        raise UserError(Exit.DATA, f"metadata {printable(path)}: {name} is {printable(repr(value))[:60]}, not "
                                   f"{expected}. Run pretokenize.py again.")
    return value
