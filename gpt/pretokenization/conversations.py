"""Conversations as input: a line of JSON or a row of a table holds the turns; their answers alone count in the loss."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpt.common.errors import optional
from gpt.common.words import printable
from gpt.pretokenization.blocks import Findings, Kind, Reading, TextBlock
from gpt.pretokenization.engines import Encoder
from gpt.pretokenization.files import Source, pieces_of
from gpt.pretokenization.json_lines import encodable, is_json_lines, line_blocks, lines_of
from gpt.pretokenization.parquet import is_parquet, table_blocks
from gpt.tokens.chat import FIELDS, Turn, segments_of, special_names, turns_of

# The lines that tell what a file holds, and the longest of them.
FIRST_RECORDS, FIRST_LINE_BYTES = 100, 2**24

Conversation = tuple[Turn, ...]


# ---------------------------------------------------------------- which files hold conversations


def is_chat_lines(source: Source, name: str, head: bytes) -> bool:
    """True for JSON lines in which the first record that has turns or a text has turns."""
    if not is_json_lines(source, name, head):
        return False
    content = b""
    for piece in pieces_of(source):
        content = (content + piece).lstrip()
        if b"\n" in content or len(content) > FIRST_LINE_BYTES:
            break
    found = [_has_turns(line) for line in content.split(b"\n")[:FIRST_RECORDS]]
    return next((has_turns for has_turns in found if has_turns is not None), False)


def _has_turns(line: bytes) -> bool | None:
    """True for a record with a list of turns, False for one with a text, None for any other line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    return False if "text" in record else any(isinstance(record.get(field), list) for field in FIELDS) or None


def is_chat_table(source: Source, name: str, head: bytes) -> bool:
    """True for a table with a column of turns, and none of text. Raises UserError as is_parquet does, and exit 5."""
    return is_parquet(source, name, head) and column_of(source) != ""


def column_of(source: Source) -> str:
    """The table's column of turns, '' if there is none or the table is damaged. Raises UserError (exit 5)."""
    parquet = optional("pyarrow.parquet", source.shown)
    try:
        schema = parquet.read_schema(source.path)
    except (OSError, ValueError):  # table_blocks reports it
        return ""
    lists = [name for name, kind in zip(schema.names, schema.types, strict=True) if "list<" in str(kind)]
    return "" if "text" in schema.names else next((field for field in FIELDS if field in lists), "")


# ---------------------------------------------------------------- the conversations of a block


def chat_lines(block: TextBlock, content: bytes, reading: Reading, findings: Findings) -> list[Conversation]:
    """Returns the conversations of whole lines; counts in findings the lines without one, except blank lines."""
    conversations = []
    for line in lines_of(block, content, findings):
        for turns in _readable(line.number, line.value, findings):
            conversations.append(tuple(Turn(role, encodable(said, line, findings)) for role, said in turns))
    return conversations


def chat_table_blocks(source: Source, reading: Reading) -> Iterator[TextBlock]:
    """Yields the rows of the column of turns, as table_blocks does."""
    return table_blocks(source, replace(reading, text_field=column_of(source)))


def chat_rows(block: TextBlock, content: list[Any], reading: Reading, findings: Findings) -> list[Conversation]:
    """Returns the conversations of rows; counts in findings the rows without one."""
    findings.newlines = len(content)
    findings.records += len(content)
    return [turns for number, value in enumerate(content)
            for turns in _readable(number, {FIELDS[0]: value}, findings)]


def _readable(number: int, record: Any, findings: Findings) -> list[Conversation]:
    """Returns the record's conversation, or nothing and counts the record."""
    try:
        return [turns_of(record)]
    except ValueError as error:
        findings.count_bad_line(number, printable(error)[:200])
        return []


CHAT_TABLES = Kind(is_chat_table, chat_table_blocks, chat_rows, is_text=False, is_chat=True)
CHAT_LINES = Kind(is_chat_lines, line_blocks, chat_lines, is_chat=True)


# ---------------------------------------------------------------- encoding


def plain_text(turns: Conversation) -> str:
    """The words of a conversation, each turn after its role; the hash, the size and the sample are taken from it."""
    return "\n".join(f"{role}\n{content}" for role, content in turns)


def encode_conversations(conversations: Sequence[Conversation], encoder: Encoder,
                         ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes conversations by the template, each with the end-of-text id after it.

    Returns the ids, uint32 [N], the index after each conversation, int64, and for each id if it is of an
    answer, bool [N].
    """
    vocabulary = encoder.vocabulary
    names = special_names(vocabulary.tokenizer)
    segments, ends_here = [], []
    for turns in conversations:
        *others, last = segments_of(turns, names)
        segments += [*others, last._replace(special=vocabulary.end)]
        ends_here += [False] * len(others) + [True]

    # The encoder puts the end-of-text id after each segment; the segment's own special token takes its place.
    ids, ends = encoder.encode([segment.text.encode() for segment in segments], [True] * len(segments))
    nothing = vocabulary.size
    special_ids = {name: vocabulary.tokenizer.token_to_id(name) for name in (*names, vocabulary.end)} | {"": nothing}
    ids = ids.copy()
    ids[ends - 1] = [special_ids[segment.special] for segment in segments]
    is_answer = np.repeat([segment.is_answer for segment in segments], np.diff(ends, prepend=0))
    kept = ids != nothing
    return ids[kept], np.cumsum(kept)[ends[ends_here] - 1], is_answer[kept]
