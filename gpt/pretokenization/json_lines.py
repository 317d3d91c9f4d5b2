"""JSON lines as input: each line is an object, and its field --text_field is a document."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpt.common.words import printable, shell_word, short
from gpt.pretokenization.blocks import (
    Findings,
    Kind,
    Reading,
    Record,
    TextBlock,
    find_end,
    refuse_over_limit,
    text_start,
)
from gpt.pretokenization.files import BYTE_ORDER_MARK, STDIN, Source
from gpt.tokens.chat import is_conversation

JSON_ENDINGS = (".jsonl", ".ndjson")
TABLE_CHARACTERS = 2**20  # of a table: they show which column has most text
CELL_SEPARATORS = ",;\t|"  # between the cells
NO_TABLE: list[list[str]] = [[]]


def is_json_lines(source: Source, name: str, head: bytes) -> bool:
    """True for the names of JSON lines, and for standard input that begins with an object.

    Raises UserError (exit 3) for an array of objects.
    """
    is_array = re.match(rb"\s*\[\s*{", head.removeprefix(BYTE_ORDER_MARK)) and not re.search(rb"\]\s*\n\s*\[", head)
    if is_array and name.endswith((*JSON_ENDINGS, ".json", STDIN)):
        array = f'json.load(open(0, encoding="{_encoding(source)}"))'
        raise source.error("is one array of JSON. Make a line of each record" + lines_by(
            f"import json; [print(json.dumps(record)) for record in {array}]", source))
    return name.endswith((*JSON_ENDINGS, ".json")) or (
        name == STDIN and re.match(rb'\s*{\s*["}]', head.removeprefix(BYTE_ORDER_MARK)) is not None)


def _encoding(source: Source) -> str:
    """Python's name of a source's encoding; for UTF-8 the one that reads it with or without a mark."""
    return source.encoding or "utf-8-sig"


def lines_by(program: str, source: Source) -> str:
    """The end of a sentence: the name of the JSON lines, and the command that makes them."""
    lines = shell_word(f"lines-{source.path.name.partition('.')[0]}.jsonl")
    without = " without --encoding" if source.encoding else ""  # Python writes the lines in ASCII
    return f", and give {lines}{without}:\n{command_to_read(source)} | python -c '{program}' > {lines}"


def command_to_read(source: Source) -> str:
    """The shell command that prints a file, unpacked; of standard input, the user names the FILE."""
    program = f"{source.packing} -dc" if source.packing else "cat"
    return f"{program} {'FILE' if source.path.name == STDIN else shell_word(source.path)}"


def lines_of_widest_column(source: Source) -> str:
    """The cure for a table: its columns, and the command that makes JSON lines of the one with most text.

    Names stand in the first line. The separator is the one that cuts the beginning of the table into most
    columns, into as many in each row.
    """
    with source.text_path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        head = file.read(TABLE_CHARACTERS)
    tables = {(mark, quoting): _equal_rows(head, mark, quoting)
              for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) for mark in CELL_SEPARATORS}
    mark, quoting = max(tables, key=lambda form: len(tables[form][0]))
    rows = tables[mark, quoting]
    if rows == NO_TABLE:
        return "Its rows differ in their number of cells: to train on one column, save that alone as a text."
    names, *cells = rows
    widest = max(range(len(names)), key=lambda column: sum(len(row[column]) for row in cells))
    is_chat = is_conversation(names)
    record = "dict(zip(names, row))" if is_chat else f'{{"text": row[{widest}]}}'
    program = (
        "import csv, json, sys; csv.field_size_limit(10**9); "
        f'rows = csv.reader(open(0, encoding="{_encoding(source)}", newline=""), '
        f"delimiter={json.dumps(mark)}, quoting={quoting:d}, skipinitialspace=True, strict=True); "
        f'names = next(rows); [print(json.dumps({record})) for row in rows if len(row) == {len(names)} or '
        'row and sys.exit(f"error: line {rows.line_num} has {len(row)} cells")]')
    part = "its conversations" if is_chat else f"{short(names[widest])} alone"
    return (f"Its first line names the columns {short(', '.join(names))}. To train on {part}, "
            f"make JSON lines{lines_by(program, source)}")


def _equal_rows(head: str, mark: str, quoting: Any) -> list[list[str]]:
    """The rows of a table's beginning, or NO_TABLE unless there are two and all have as many cells."""
    rows: list[list[str]] = []
    is_cut = len(head) == TABLE_CHARACTERS  # then the last row may be in error; those before it are kept
    csv.field_size_limit(TABLE_CHARACTERS)
    try:
        rows += filter(None, csv.reader(io.StringIO(head, newline=""), delimiter=mark, quoting=quoting,
                                        skipinitialspace=True, strict=True))
    except csv.Error:
        if not is_cut:
            return NO_TABLE
    rows = rows[:-1] if is_cut else rows
    if len(rows) < 2 or len({len(row) for row in rows}) > 1:
        return NO_TABLE
    return NO_TABLE if len(rows[0]) == 1 and set(rows[0][0]).intersection(CELL_SEPARATORS) else rows


def line_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Cuts a file into blocks of whole lines. Raises UserError (exit 3) for a line too long to be held."""
    limits = reading.limits
    start = text_start(source)
    with source.text_path.open("rb") as file:
        while start < source.text_bytes:
            target = start + limits.block_bytes - 1
            end = min(source.text_bytes, find_end(file, b"\n", target, target + limits.document_bytes,
                                                limits.window_bytes))
            refuse_over_limit(source, start, end - target, limits)
            yield TextBlock(start, end - start)
            start = end


def lines_of(block: TextBlock, content: bytes, findings: Findings) -> Iterator[Record]:
    """Yields whole lines without the blank ones; counts in findings the lines that are not JSON."""
    decode = json.JSONDecoder().decode
    findings.newlines = content.count(b"\n")
    end = block.offset
    for number, encoded in enumerate(content.split(b"\n")):
        start, end = end, end + len(encoded) + 1
        line = findings.decode(encoded, start, number)
        if not line or line.isspace():
            continue
        findings.records += 1
        try:
            yield Record(number, decode(line), start, b"\\u" in encoded)
        except (ValueError, RecursionError):
            findings.count_bad_record(number, "is not JSON")


def encodable(text: str, line: Record, findings: Findings) -> str:
    """Returns text of a line that UTF-8 can encode: JSON can spell lone surrogates; they are replaced and counted."""
    if not line.has_escapes:
        return text
    text, num_replaced = re.subn("[\ud800-\udfff]", "\ufffd", text)
    if num_replaced:
        findings.replaced += num_replaced
        findings.first_replaced = findings.first_replaced or (line.start, line.number, "a lone surrogate")
    return text


def record_texts(records: Iterable[Record], reading: Reading, findings: Findings) -> list[str]:
    """Returns the texts in the field of records; counts in findings the records without one."""
    texts = []
    name = reading.text_field
    for record in records:
        fields = record.value if isinstance(record.value, dict) else {}
        text = fields.get(name)
        if isinstance(text, str):
            texts.append(encodable(text, record, findings))
        else:
            what = f"it is {text!r}" if name in fields else f"its fields are {', '.join(list(fields)[:8]) or 'none'}"
            findings.count_bad_record(record.number, printable(f"has no text in field {name!r}: {what}")[:200])
    return texts


JSON_LINES = Kind(is_json_lines, line_blocks, lines_of, record_texts, JSON_ENDINGS)
