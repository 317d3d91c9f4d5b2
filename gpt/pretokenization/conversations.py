"""Conversations as input: a record holds the turns; their answers alone count in the loss."""

import contextlib
import itertools
import json
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from gpt.common.errors import optional
from gpt.common.words import printable
from gpt.pretokenization.blocks import Findings, Kind, Reading, Record
from gpt.pretokenization.engines import Encoder
from gpt.pretokenization.files import Source, pieces_of
from gpt.pretokenization.json_lines import encodable, is_json_lines, line_blocks, lines_of
from gpt.pretokenization.parquet import is_parquet, rows_of, table_blocks
from gpt.tokens.chat import (
    ABOUT,
    ANSWERED,
    ASKED,
    FIELDS,
    RATING,
    SYSTEM,
    Turn,
    is_conversation,
    num_reasoned,
    segments_of,
    special_names,
    turns_of,
)

FORM = 'records of the form {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
COLUMNS = (*FIELDS, *SYSTEM, RATING, *ASKED, *ABOUT, "history", *ANSWERED)  # of a table


# ---------------------------------------------------------------- which files hold conversations


def is_chat_lines(source: Source, name: str, head: bytes) -> bool:
    """True for JSON lines whose first conversation or text is a conversation. Looks at a hundred lines."""
    if not is_json_lines(source, name, head):
        return False
    content = next(filter(None, pieces_of(source)), b"").lstrip()
    if b"\n" not in content:  # a long line, or a short piece of a packed file
        content = b"".join(itertools.islice(pieces_of(source), 16)).lstrip()
    for line in content.split(b"\n", 100)[:100]:
        with contextlib.suppress(ValueError, RecursionError):
            fields = json.loads(line)
            if isinstance(fields, dict) and ("text" in fields or is_conversation(fields)):
                return is_conversation(fields)
    return False


def is_chat_table(source: Source, name: str, head: bytes) -> bool:
    """True for a table of conversations, without texts. Raises UserError like is_parquet(), and exit 5."""
    with contextlib.suppress(OSError, ValueError):  # table_blocks reports a damaged table
        return is_parquet(source, name, head) and is_conversation(
            optional("pyarrow.parquet", source.shown).read_schema(source.path).names)
    return False


# ---------------------------------------------------------------- the conversations of a block


def conversations_of(records: Iterable[Record], reading: Reading, findings: Findings) -> list[tuple[Turn, ...]]:
    """Returns the conversations of records; counts in findings the records without one."""
    conversations = []
    for record in records:
        try:
            conversations.append(tuple(turn._replace(content=encodable(turn.content, record, findings))
                                       for turn in turns_of(record.value)))
            findings.reasoned += num_reasoned(record.value)
        except ValueError as error:
            findings.count_bad_record(record.number, printable(error)[:200])
    return conversations


CHAT_TABLES = Kind(is_chat_table, partial(table_blocks, columns=COLUMNS), rows_of, conversations_of,
                   is_text=False, is_chat=True, form=FORM)
CHAT_LINES = Kind(is_chat_lines, line_blocks, lines_of, conversations_of, is_chat=True, form=FORM)


# ---------------------------------------------------------------- encoding


def plain_text(turns: tuple[Turn, ...]) -> str:
    """The words of a conversation, each turn after its role, for its hash, its size and the sample."""
    return "\n".join(f"{turn.role}\n{turn.content}" for turn in turns)


def encode_conversations(conversations: Sequence[tuple[Turn, ...]], encoder: Encoder,
                         ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes conversations by the template, each with the end-of-text id after it.

    Returns the ids, uint32 [N], the index after each conversation, int64, and for each id if it is of an
    answer, bool [N].
    """
    vocabulary = encoder.vocabulary
    names = special_names(vocabulary.tokenizer)
    segments, ends_one = [], []
    for turns in conversations:
        *others, last = segments_of(turns, names)
        segments += [*others, last._replace(special=vocabulary.end)]
        ends_one += [False] * len(others) + [True]

    # The encoder puts the end-of-text id after each segment; the segment's own special token takes its place.
    ids, ends = encoder.encode([segment.text.encode() for segment in segments], [True] * len(segments))
    special_ids = {name: vocabulary.tokenizer.token_to_id(name) for name in (*names, vocabulary.end)}
    special_ids[""] = vocabulary.size  # beyond all ids: removed below
    ids = ids.copy()
    ids[ends - 1] = [special_ids[segment.special] for segment in segments]
    counted = np.repeat([segment.counts for segment in segments], np.diff(ends, prepend=0))
    kept = ids != vocabulary.size
    return ids[kept], np.cumsum(kept)[ends[ends_one] - 1], counted[kept]
