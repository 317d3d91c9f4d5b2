"""parquet.py: the rows of a column are documents; a damaged table is named."""

import random
from pathlib import Path

import pytest

from gpt.common.errors import Exit
from gpt.pretokenization.blocks import Limits, Reading
from tests.helpers.refusals import refused
from tests.helpers.texts import random_texts, read, words_of_first, write


def table(name: str, values: list, column: str = "text") -> str:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"number": range(len(values)), column: values}), name, row_group_size=70)
    return name


@pytest.mark.parametrize("block_bytes", [1, 100, 2**22])
def test_a_tables_rows_are_its_documents(block_bytes):
    limits = Limits(block_bytes=block_bytes)
    texts: list = random_texts(random.Random(8), 300)
    texts[100] = None
    table("a.parquet", texts)
    found, report = read("a.parquet", limits=limits)
    assert found == texts[:100] + texts[101:]
    assert words_of_first(report.total.first_bad_record).startswith("row 101 of a.parquet ")


def test_a_column_of_bytes_is_text_where_it_is_utf8():
    texts = random_texts(random.Random(8), 9)
    table("a.parquet", [*(text.encode() for text in texts), b"caf\xe9"])
    found, report = read("a.parquet")
    assert found == texts
    assert words_of_first(report.total.first_bad_record).startswith("row 10 of a.parquet ")
    assert r"b'caf\xe9'" in words_of_first(report.total.first_bad_record)


def test_a_table_without_the_column_or_damaged_is_named():
    table("a.parquet", ["x"] * 1000)
    with refused(r"'body'.*number, text.*--text_field", Exit.DATA):
        read("a.parquet", reading=Reading(text_field="body"))
    content = Path("a.parquet").read_bytes()
    for damaged in (content[:4], content[:100], content[:-1], content[:-200],
                    content[:300] + b"\0" * 300 + content[600:]):
        write("a.parquet", damaged)
        with refused(r"a\.parquet ", Exit.DATA):
            read("a.parquet")


def test_a_table_that_pyarrow_does_not_know_is_no_bug(monkeypatch):
    table("a.parquet", ["x"] * 10)
    arrow = pytest.importorskip("pyarrow")

    def unknown(*_, **__):
        raise arrow.ArrowNotImplementedError("Support for codec 'lzo' not built")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", unknown)
    with refused(r"a\.parquet cannot be read by this pyarrow: Support for codec 'lzo' not built", Exit.DATA):
        read("a.parquet")
