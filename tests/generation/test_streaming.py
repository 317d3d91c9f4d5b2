"""generation/streaming.py: whole characters, samples in their order."""

import io
import json
import random
import sys

import pytest

from generation.streaming import SEPARATOR, OrderedOutput, Sample, StreamedText, show
from tokens.tokenizer import vocab_size_of

# ---------------------------------------------------------------- one text


class Terminal(io.StringIO):
    """Remembers each write."""

    def __init__(self, is_terminal: bool):
        super().__init__()
        self.pieces: list[str] = []
        self.isatty = lambda: is_terminal

    def write(self, piece: str) -> int:
        self.pieces.append(piece)
        return len(piece)


def pieces_of(tokenizer, ids: list[int]) -> list[str]:
    """What a text gives, id by id."""
    text = StreamedText(tokenizer)
    pieces = [*map(text.add, ids), text.end()]
    assert text.given == "".join(pieces)
    return pieces


def test_no_piece_holds_a_part_of_a_character(tokenizer, texts):
    for text in texts:
        pieces = pieces_of(tokenizer, tokenizer.encode(text).ids)
        assert "".join(pieces).encode() == text.encode()
        assert not any("\ufffd" in piece for piece in pieces)
        assert sum(map(bool, pieces)) > 3, "it waited for the end"


def test_what_is_written_is_what_the_tokenizer_decodes_whatever_the_ids(tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(vocab_size_of(tokenizer)) for _ in range(rng.randint(0, 40))]
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_cut_off_by_the_end_is_shown_as_such(tokenizer):
    assert "".join(pieces_of(tokenizer, tokenizer.encode("ab\U0001f44d").ids[:-1])) == "ab\ufffd"


def test_control_bytes_are_escaped_on_a_terminal_alone(monkeypatch):
    for is_terminal, expected in ((False, "a\x1b[31mb\tc\x07\n\x9b2J"), (True, "a\\x1b[31mb\tc\\x07\n\\x9b2J")):
        stream = Terminal(is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        show("a\x1b[31mb\tc\x07\n\x9b2J")
        assert stream.pieces == [expected]


# ---------------------------------------------------------------- several texts


@pytest.fixture
def sample_of(tokenizer):
    """A function: a sample by its number, of the prompt "p0" or "p1" and so on, with a text of its own."""

    def make(number: int) -> Sample:
        return Sample(number, f"p{number}", [1], 99, 7, StreamedText(tokenizer))

    return make


def say(output: OrderedOutput, sample: Sample, tokenizer, text: str) -> None:
    """Lets a sample get the ids of a text."""
    for new_id in tokenizer.encode(text).ids:
        sample.add(new_id, -1.0)
        output.add(sample, sample.text.add(new_id))


def test_samples_are_written_in_their_order_the_current_one_as_it_comes(sample_of, tokenizer, capsys):
    output = OrderedOutput(as_json=False)
    samples = [sample_of(number) for number in range(3)]
    for sample in samples:
        output.begin(sample)
    say(output, samples[1], tokenizer, "the dog")
    say(output, samples[0], tokenizer, "the cat")
    assert capsys.readouterr().out == "p0the cat"
    samples[1].finish = "length"
    output.write_finished()
    assert capsys.readouterr().out == ""
    samples[0].finish = "length"
    output.write_finished()
    assert capsys.readouterr().out == f"\n{SEPARATOR}p1the dog\n{SEPARATOR}p2"
    say(output, samples[2], tokenizer, "sea")
    output.interrupt()
    assert capsys.readouterr().out == "sea\n"


def test_samples_that_are_interrupted_are_each_a_line_of_json(sample_of, tokenizer, capsys):
    output = OrderedOutput(as_json=True)
    samples = [sample_of(number) for number in range(2)]
    for sample in samples:
        output.begin(sample)
        say(output, sample, tokenizer, "the cat")
    samples[1].finish = "length"
    output.write_finished()
    assert capsys.readouterr().out == ""
    output.interrupt()
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["finish_reason"] for record in records] == ["interrupted", "length"]
    assert [record["text"] for record in records] == ["the cat", "the cat"]
