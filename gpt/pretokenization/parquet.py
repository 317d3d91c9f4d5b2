"""Parquet tables as input: each row of the column --text_field is a document. Needs the package pyarrow."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from gpt.common.errors import optional
from gpt.common.words import printable
from gpt.pretokenization.blocks import Findings, Kind, Reading, Record, TextBlock
from gpt.pretokenization.files import Source
from gpt.pretokenization.json_lines import record_texts
from gpt.tokens.chat import is_conversation

MAGIC = b"PAR1"


def is_parquet(source: Source, name: str, head: bytes) -> bool:
    """True for a file that begins as a table. Raises UserError (exit 3) if only its name says so."""
    if name.endswith(".parquet") and not head.startswith(MAGIC):
        raise source.error("is not a Parquet file: its first bytes are not PAR1. Give a complete one.")
    return head.startswith(MAGIC)


def table_blocks(source: Source, reading: Reading, columns: Sequence[str] = ()) -> Iterator[TextBlock]:
    """Yields a table's rows as dicts, in blocks of about block_bytes of text.

    Without columns it is the column reading.text_field, whose values may be no text. The last block may be
    empty. Raises UserError: exit 3 for a damaged file or a missing column, exit 5 without pyarrow.
    """
    pyarrow, parquet = (optional(name, source.shown) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        # Not memory-mapped: truncating the file would kill this process. A buffer before each column would hold
        # the bytes of all rows that were read.
        file = parquet.ParquetFile(source.text_path, pre_buffer=False, buffer_size=2**20)
        names = list(file.schema_arrow.names)
        chosen = [name for name in columns or (reading.text_field,) if name in names]
        if not chosen:
            is_packed_chat = source.packing and is_conversation(names)
            unpack = ", or unpack it: its conversations can be read" if is_packed_chat else ""
            raise source.error(f"has no column {reading.text_field!r}, it has "
                               f"{printable(', '.join(names))[:200]}. Give --text_field{unpack}.")
        row_bytes = source.text_bytes / max(1, file.metadata.num_rows)
        batches = file.iter_batches(64, columns=chosen)
        rows, num_bytes = [], 0
        for num_rows, row in enumerate((row for batch in batches for row in batch.to_pylist()), 1):
            rows.append(row)
            num_bytes += sum(len(value if isinstance(value, str | bytes) else str(value)) for value in row.values())
            if num_bytes >= reading.limits.block_bytes:
                yield TextBlock(int(num_rows * row_bytes), 0, rows)
                rows, num_bytes = [], 0
        yield TextBlock(source.text_bytes, 0, rows)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        what, cure = (("is damaged", "Give a complete copy.") if isinstance(error, OSError | ValueError) else
                      ("cannot be read by this pyarrow", "Save it with the codec zstd, and text in plain columns."))
        raise source.error(f"{what}: {printable(error)[:120].rstrip('.')}. {cure}") from error


def rows_of(block: TextBlock, content: list[Any], findings: Findings) -> list[Record]:
    """Returns the rows of a block, and counts them in findings."""
    findings.newlines = len(content)
    findings.records += len(content)
    return [Record(number, {name: _as_text(value) for name, value in row.items()})
            for number, row in enumerate(content)]


def _as_text(value: Any) -> Any:
    """Decodes bytes in UTF-8: Impala and others do not mark their columns as text."""
    with contextlib.suppress(UnicodeDecodeError):
        return value.decode() if isinstance(value, bytes) else value
    return value


PARQUET = Kind(is_parquet, table_blocks, rows_of, record_texts, (".parquet",), is_text=False)
