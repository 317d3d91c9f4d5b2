"""Parquet tables as input: each row of the column --text_field is a document. Needs the package pyarrow."""

from collections.abc import Iterator
from typing import Any

from gpt.common.errors import optional
from gpt.common.words import printable
from gpt.pretokenization.blocks import Findings, Kind, Reading, TextBlock
from gpt.pretokenization.files import Source

MAGIC = b"PAR1"
ROWS_AT_ONCE = 64


def is_parquet(source: Source, name: str, head: bytes) -> bool:
    """True for a file that begins as a table. Raises UserError (exit 3) if only its name says so."""
    if name.endswith(".parquet") and not head.startswith(MAGIC):
        raise source.error("is not a Parquet file: its first bytes are not PAR1. Give a complete one.")
    return head.startswith(MAGIC)


def table_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Yields the values of a table's column reading.text_field, in blocks of about block_bytes of text.

    A value may be no text, such as None; row_documents counts those. The last block may be empty. Raises
    UserError: exit 3 for a damaged file or a missing column, exit 5 without pyarrow.
    """
    parquet = optional("pyarrow.parquet", source.shown)
    try:
        # Not memory-mapped: truncating the file would kill this process.
        file = parquet.ParquetFile(source.text_path)
        names = list(file.schema_arrow.names)
        if reading.text_field not in names:
            raise source.error(f"has no column {reading.text_field!r}, it has "
                               f"{printable(', '.join(names))[:200]}. Give --text_field.")
        row_bytes = source.text_bytes / max(1, file.metadata.num_rows)
        batches = file.iter_batches(ROWS_AT_ONCE, columns=[reading.text_field])
        values = (value for batch in batches for value in batch.column(0).to_pylist())
        rows, num_bytes = [], 0
        for num_rows, value in enumerate(values, 1):
            rows.append(value)
            num_bytes += len(value if isinstance(value, str) else str(value))
            if num_bytes >= reading.limits.block_bytes:
                yield TextBlock(int(num_rows * row_bytes), 0, rows)
                rows, num_bytes = [], 0
        yield TextBlock(source.text_bytes, 0, rows)
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses of these
        raise source.error(f"is damaged: {printable(error)[:120].rstrip('.')}. Give a complete copy.") from error


def row_documents(block: TextBlock, content: list[Any], reading: Reading, findings: Findings) -> list[str]:
    """Returns the texts of rows; counts in findings the rows without one."""
    findings.newlines = len(content)
    findings.records += len(content)
    texts = []
    for number, value in enumerate(content):
        if isinstance(value, str):
            texts.append(value)
        else:
            what = "null" if value is None else type(value).__name__
            findings.count_bad_line(number, f"has no text in column {reading.text_field!r}: it is {what}")
    return texts


PARQUET = Kind(is_parquet, table_blocks, row_documents, (".parquet",), is_text=False)
