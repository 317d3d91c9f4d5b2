"""What a metadata.json records of token files, checked field by field: ours, or one that another program wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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
        raise _invalid(path, "version", fields.get("version"), f"{METADATA_VERSION}, which this program reads")
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
        return self._checked("dtype", recorded, name in ITEM_BYTES, f"one of {', '.join(ITEM_BYTES)}") and name

    @property
    def layout(self) -> Layout | None:
        """The layout of the files that our metadata describes; None if it is another program's."""
        if not self.is_ours:
            return None
        name = self.fields.get("layout", "native")
        is_known = isinstance(name, str) and name in LAYOUTS
        return LAYOUTS[self._checked("layout", name, is_known, f"one of {', '.join(LAYOUTS)}")]

    @property
    def splits(self) -> dict[str, Fields]:
        """What our metadata records of each split that has files, by its name; nothing in another program's."""
        if not self.is_ours:
            return {}
        splits = self.fields.get("splits")
        self._checked("splits", splits, isinstance(splits, dict), "an object")
        assert isinstance(splits, dict)
        for name in SPLITS:
            self._checked(f"splits.{name}", splits.get(name), isinstance(splits.get(name, {}), dict), "an object")
        return splits

    def num_tokens(self, record: Fields) -> int | None:
        """The number of tokens in a record of a split or a file, or in another program's fields; None if missing."""
        return self._whole_number(record, TOKEN_COUNTS, 0, 2**62)

    def sha256(self, record: Fields) -> str | None:
        """The sha256 in a record of a split or a file; None if it is missing."""
        found = record.get("sha256")
        is_one = found is None or (isinstance(found, str) and bool(re.fullmatch("[0-9a-f]{64}", found)))
        return self._checked("sha256", found, is_one, "64 hexadecimal digits")

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
        self._checked(f"splits.{split}.files", files, isinstance(files, list) and bool(files), "a list of files")
        records: dict[str, Fields] = {}
        for at, record in enumerate(files):
            name = record.get("name") if isinstance(record, dict) else None
            is_name = isinstance(name, str) and re.fullmatch(rf"(tokens_)?{split}(_[0-9]{{6}})?\.bin", name)
            self._checked(f"splits.{split}.files[{at}].name", name, bool(is_name) and name not in records,
                          f"a name like {split}_000000.bin, which stands there once")
            records[str(name)] = record
        return records

    def _whole_number(self, fields: Mapping[str, Any], keys: tuple[str, ...], low: int, high: int) -> int | None:
        """The value of the first key that is there, a whole number from low to high; None if there is none."""
        key = next((key for key in keys if fields.get(key) is not None), None)
        if key is None:
            return None
        value = fields[key]
        is_valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return self._checked(key, value, is_valid, f"a whole number from {low:,} to {high:,}")

    def _checked(self, name: str, value: Any, is_valid: bool, expected: str) -> Any:
        """The value. Raises UserError (exit 3) unless it is valid."""
        if not is_valid:
            raise _invalid(self.path, name, value, expected)
        return value


def _invalid(path: Path, name: str, value: object, expected: str) -> UserError:
    return UserError(Exit.DATA, f"metadata {printable(str(path))}: {name} is {printable(repr(value))[:60]}, not "
                                f"{expected}. Run pretokenize.py again.")
