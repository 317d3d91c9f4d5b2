"""gpt/generation/streaming.py: whole characters, samples in their order."""

import errno
import io
import json
import random
import sys
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest

from gpt.common.errors import Exit
from gpt.generation.streaming import SEPARATOR, Sample, show, write_started
from gpt.tokens.tokenizer import vocab_size_of
from tests.helpers.refusals import refused
from tests.helpers.training_texts import sentencepiece_tokenizer


@pytest.fixture
def sample_of(tokenizer):
    """A function: a sample by its number, of the prompt "p0" or "p1" and so on."""

    def make(number: int) -> Sample:
        sample = Sample(number, f"p{number}", [1], 99, 7, tokenizer)
        sample.prepend_prompt()
        return sample

    return make


@pytest.fixture
def pieces_of(sample_of):
    """A function: the pieces of text that a sample prints, id by id and at its end."""

    def pieces(ids: list[int]) -> list[str]:
        sample, found = sample_of(0), []
        for take in (*(lambda new_id=new_id: sample.add(new_id, -1.0) for new_id in ids), sample.end):
            sample.pending = ""
            take()
            found.append(sample.pending)
        assert sample.text == "".join(found)
        return found

    return pieces


# ---------------------------------------------------------------- one text


def test_no_piece_holds_a_part_of_a_character(pieces_of, tokenizer, texts):
    for text in texts:
        pieces = pieces_of(tokenizer.encode(text).ids)
        assert "".join(pieces).encode() == text.encode()
        assert not any("\ufffd" in piece for piece in pieces)
        assert sum(map(bool, pieces)) > 3, "it waited for the end"


def test_what_is_written_is_what_the_tokenizer_decodes_whatever_the_ids(pieces_of, tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(vocab_size_of(tokenizer)) for _ in range(rng.randint(0, 40))]
        assert "".join(pieces_of(ids)) == tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(tokenizer.encode("ab\U0001f44d").ids[:-1])) == "ab\ufffd"


def test_a_blank_at_the_beginning_is_kept_behind_a_prompt_alone():
    found = sentencepiece_tokenizer(("\u2581", "t"), letters="at")
    ids = found.encode("t at").ids
    for prompt, is_shown, expected in (("a", True, "a t at"), ("a", False, "t at"), ("", True, "t at")):
        sample = Sample(0, prompt, [257], 99, 7, found)
        if is_shown:
            sample.prepend_prompt()
        for new_id in ids:
            sample.add(new_id, -1.0)
        assert sample.pending == expected
        sample.end()
        assert sample.pending == expected == (prompt if is_shown else "") + sample.text


def test_bytes_that_end_in_an_invalid_one_are_marked_and_the_text_goes_on():
    found = sentencepiece_tokenizer(letters="a")
    for bad in ([0xc3], [0xff], [0xff, 0xc3, 0xa9]):
        sample, ids = Sample(0, "a", [1], 99, 7, found), [258, 0xc3, 0xa9, *bad, 258, 257, 258]
        for new_id in ids:
            sample.add(new_id, -1.0)
        assert sample.text == f"a\u00e9{found.decode(ids)[2:]}"
        sample.end()
        assert sample.text.endswith("\ufffda a")


@pytest.mark.parametrize(("is_terminal", "expected"), [(False, "a\x1b[31mb\tc\x07\n\x9b2J"),
                                                       (True, "a\\x1b[31mb\tc\\x07\n\\x9b2J")])
def test_control_bytes_are_escaped_on_a_terminal_alone(monkeypatch, is_terminal, expected):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    show("a\x1b[31mb\tc\x07\n\x9b2J")
    assert stream.getvalue() == expected


def test_a_full_disk_behind_stdout_is_said(monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    stream = io.StringIO()
    monkeypatch.setattr(stream, "flush", full)
    monkeypatch.setattr(sys, "stdout", stream)
    with refused("standard output: No space left on device. Free some space", Exit.MACHINE):
        show("a")


# ---------------------------------------------------------------- several texts


def say(write: Callable[[], None], sample: Sample, tokenizer, text: str) -> None:
    """Lets a sample get the ids of a text."""
    for new_id in tokenizer.encode(text).ids:
        sample.add(new_id, -1.0)
        write()


def test_samples_are_written_in_their_order_the_current_one_as_it_comes(sample_of, tokenizer, capsys):
    begun: deque[Sample] = deque()
    write = partial(write_started, begun, False)
    samples = [sample_of(number) for number in range(3)]
    for sample in samples:
        begun.append(sample)
        write()
    assert capsys.readouterr().out == "p0"
    say(write, samples[1], tokenizer, "the dog")
    say(write, samples[0], tokenizer, "the cat")
    assert capsys.readouterr().out == "the cat"
    samples[1].finish_reason = "length"
    write()
    assert capsys.readouterr().out == ""
    samples[0].finish_reason = "length"
    write()
    assert capsys.readouterr().out == f"\n{SEPARATOR}p1the dog\n{SEPARATOR}p2"
    say(write, samples[2], tokenizer, "sea")
    begun.append(sample_of(3))
    write()
    write(interrupted=True)
    assert capsys.readouterr().out == "sea\n"


def test_samples_that_are_interrupted_are_each_a_line_of_json(sample_of, tokenizer, capsys):
    begun: deque[Sample] = deque()
    write = partial(write_started, begun, True)
    samples = [sample_of(number) for number in range(2)]
    for sample in samples:
        begun.append(sample)
        write()
        say(write, sample, tokenizer, "the cat")
    samples[1].finish_reason = "length"
    write()
    assert capsys.readouterr().out == ""
    write(interrupted=True)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["finish_reason"] for record in records] == ["interrupted", "length"]
    assert [record["text"] for record in records] == ["the cat", "the cat"]
