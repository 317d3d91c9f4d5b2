"""What a metadata.json records of token files, checked field by field: ours, or one that another program wrote."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError
from common.files import read_text
from common.words import printable
from tokens.layouts import ITEM_BYTES, LAYOUTS, Layout
from tokens.tokenizer import MAX_VOCAB_SIZE

METADATA_FORMAT = "gpt-tokens"
METADATA_VERSION = 1
SPLITS = ("train", "val")

# The names of a field: ours first, then those that other programs use.
VOCAB_SIZES = ("vocab_size", "vocabulary_size", "n_vocab")
END_OF_TEXT_IDS = ("end_of_text_id", "eot_token_id", "eos_token_id", "eot_id", "eos_id")
TOKEN_COUNTS = ("tokens", "num_tokens", "total_tokens", "n_tokens", "token_count")

Fields = dict[str, Any]  # an object of JSON: its values are checked where they are read


def read_metadata(path: Path) -> Fields:
    """The fields of a metadata.json, ours or another program's. Raises UserError (exit 3)."""
    name = printable(str(path))
    try:
        fields = json.loads(read_text(path))
    except OSError as error:
        raise UserError(Exit.DATA, f"metadata {name}: {error.strerror}. "
                                   "Run: python pretokenize.py corpus.txt") from error
    except (ValueError, RecursionError) as error:
        raise UserError(Exit.DATA, f"metadata {name} is not JSON ({printable(str(error))[:120]}). "
                                   "Run pretokenize.py again.") from error
    if not isinstance(fields, dict):
        raise UserError(Exit.DATA, f"metadata {name} holds no JSON object. Run pretokenize.py again.")
    if fields.get("format") == METADATA_FORMAT and fields.get("version") != METADATA_VERSION:
        raise _invalid(path, f"version {_shown(fields.get('version'))} is unknown, this program reads "
                             f"{METADATA_VERSION}")
    return fields


@dataclass(frozen=True)
class Metadata:
    """The fields of a metadata.json and where they come from. What is read from them raises UserError (exit 3).

    Without a metadata.json there are no fields, and path is that of the token files.
    """

    fields: Fields
    path: Path

    @property
    def is_ours(self) -> bool:
        """True if pretokenize.py wrote it."""
        return self.fields.get("format") == METADATA_FORMAT

    @property
    def is_of_tokens(self) -> bool:
        """True if it is ours, or records anything that is read from it."""
        known = (*VOCAB_SIZES, *END_OF_TEXT_IDS, *TOKEN_COUNTS, "dtype")
        return self.is_ours or any(self.fields.get(name) is not None for name in known)

    @property
    def origins(self) -> tuple[str, ...]:
        """The datasets of the hub that the text came from, each with its commit; none for other text."""
        found = self.fields.get("origins") if self.is_ours else None
        return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()

    @property
    def vocab_size(self) -> int | None:
        return self._whole_number(self.fields, VOCAB_SIZES, 1, MAX_VOCAB_SIZE)

    @property
    def end_of_text_id(self) -> int | None:
        return self._whole_number(self.fields, END_OF_TEXT_IDS, 0, MAX_VOCAB_SIZE)

    @property
    def dtype(self) -> str | None:
        """The type of the tokens, a key of DTYPES; None if it is not recorded."""
        recorded = self.fields.get("dtype")
        if recorded is None:
            return None
        name = recorded.split(".")[-1] if isinstance(recorded, str) else ""  # numpy.uint16, say
        if name not in ITEM_BYTES:
            raise _invalid(self.path, f"dtype is {_shown(recorded)}, not one of {', '.join(ITEM_BYTES)}")
        return name

    @property
    def layout(self) -> Layout | None:
        """The layout of the files that our metadata describes; None if it is another program's."""
        if not self.is_ours:
            return None
        name = self.fields.get("layout", "native")
        if not isinstance(name, str) or name not in LAYOUTS:
            raise _invalid(self.path, f"layout is {_shown(name)}, not one of {', '.join(LAYOUTS)}")
        return LAYOUTS[name]

    @property
    def splits(self) -> dict[str, Fields]:
        """What our metadata records of each split that has files, by its name; nothing in another program's."""
        if not self.is_ours:
            return {}
        splits = self.fields.get("splits")
        if not isinstance(splits, dict):
            raise _invalid(self.path, f"splits is {_shown(splits)}, not an object")
        for name in SPLITS:
            if not isinstance(splits.get(name, {}), dict):
                raise _invalid(self.path, f"splits.{name} is {_shown(splits[name])}, not an object")
        return splits

    def num_tokens(self, record: Fields) -> int | None:
        """The number of tokens in a record of a split or a file, or in another program's fields; None if missing."""
        return self._whole_number(record, TOKEN_COUNTS, 0, 2**62)

    def sha256(self, record: Fields) -> str | None:
        """The sha256 in a record of a split or a file; None if it is missing."""
        recorded = record.get("sha256")
        if recorded is not None and not (isinstance(recorded, str) and re.fullmatch("[0-9a-f]{64}", recorded)):
            raise _invalid(self.path, f"sha256 is {_shown(recorded)}, not 64 hexadecimal digits")
        return recorded

    @property
    def tokenizer_sha256(self) -> str | None:
        """The sha256 of the tokenizer.json that our tokens were made with; None if it is not recorded."""
        record = self.fields.get("tokenizer") if self.is_ours else None
        return self.sha256(record) if isinstance(record, dict) else None

    def files_of(self, split: str) -> dict[str, Fields]:
        """What our metadata records of each file of a split, by name in their order; empty if there is only one file.

        A name is never followed as a path: it must be one that pretokenize.py gives.
        """
        files = self.splits.get(split, {}).get("files")
        if files is None:
            return {}
        if not isinstance(files, list) or not files:
            raise _invalid(self.path, f"splits.{split}.files is {_shown(files)}, not a list of files")
        records: dict[str, Fields] = {}
        for at, record in enumerate(files):
            name = record.get("name") if isinstance(record, dict) else None
            if not isinstance(name, str) or not re.fullmatch(rf"(tokens_)?{split}(_[0-9]{{6}})?\.bin", name):
                raise _invalid(self.path, f"splits.{split}.files[{at}].name is {_shown(name)}, not a name like "
                                          f"{split}_000000.bin")
            if name in records:
                raise _invalid(self.path, f"splits.{split}.files names {name} twice")
            records[name] = record
        return records

    def _whole_number(self, fields: Fields, keys: tuple[str, ...], low: int, high: int) -> int | None:
        """The value of the first key that is there, a whole number from low to high; None if there is none."""
        key = next((key for key in keys if fields.get(key) is not None), None)
        if key is None:
            return None
        value = fields[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _invalid(self.path, f"{key} is {_shown(value)}, not a whole number from {low:,} to {high:,}")
        return value


def _shown(value: object) -> str:
    """A value from a file as it may be printed: not long, and without control characters."""
    return printable(repr(value))[:60]


def _invalid(path: Path, why: str) -> UserError:
    return UserError(Exit.DATA, f"metadata {printable(str(path))}: {why}. Run pretokenize.py again.")
