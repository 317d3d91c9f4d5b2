"""gpt/evaluation/documents.py: perplexity and bits per byte agree with transformers, in every form of document."""

import errno
import gzip
import json
import math
import os
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models

from gpt.common.errors import Exit, UserError
from gpt.evaluation import documents as texts
from gpt.evaluation.documents import texts_of
from tests.helpers.scoring import T, log_probabilities


@pytest.fixture
def measure(scorer):
    """A function: the fields of all results for these files."""
    return lambda *files: [scorer.measure(documents, name)
                           for name, documents in texts_of(list(map(str, files)), scorer)]


def test_perplexity_is_that_of_transformers_on_the_same_windows(measure, theirs, tokenizer, texts, tmp_path):
    content = " ".join(texts)[:240]
    (tmp_path / "a.txt").write_bytes(content.encode())
    ids = [0, *tokenizer.encode(content).ids]
    assert len(ids) > 5 * T
    ends = [min(T + max(0, math.ceil((at - T) / (T // 2))) * (T // 2), len(ids) - 1) for at in range(1, len(ids))]
    of_window = {end: log_probabilities(theirs, ids[max(0, end - T):end + 1]) for end in set(ends)}
    nats = -sum(of_window[end][at - max(0, end - T) - 1] for at, end in enumerate(ends, 1))
    found, = measure(tmp_path / "a.txt")
    assert found["tokens"] == len(ids) - 1
    assert found["bytes"] == len(content.encode())
    assert found["nats_per_token"] == pytest.approx(nats / (len(ids) - 1), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(content.encode()), rel=1e-6)


def test_bytes_that_the_tokenizer_drops_are_told(scorer, tmp_path, capsys):
    letters = Tokenizer(models.BPE({letter: at for at, letter in enumerate("abcdefgh ")}, []))
    letters.decoder = decoders.Fuse()  # type: ignore[misc]
    (tmp_path / "a.txt").write_text("a bad cafe\u0301 \u0416\u0416")
    scorer = replace(scorer, tokenizer=letters, end_of_text_id=None)
    (_, documents), = texts_of([str(tmp_path / "a.txt")], scorer)
    assert len([*documents]) == 1
    assert "no ids for 6 bytes" in capsys.readouterr().err


def test_texts_of_the_hub_and_conversations_for_a_model_without_turns_lead_to_other_commands(scorer, tmp_path):
    with pytest.raises(UserError, match=r"hf://datasets/a/b is on the hub.*\npython pretokenize\.py hf://"):
        next(texts_of(["hf://datasets/a/b"], scorer))
    (tmp_path / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(UserError, match=r"no tokens for their turns\. Train it on conversations"):
        next(texts_of([str(tmp_path / "chats.jsonl")], scorer))


def test_documents_count_alike_in_whatever_form_they_come(measure, texts, tmp_path):
    names = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for name, content in zip(names, texts, strict=True):
        name.write_bytes(content.encode())
    lines = "".join(json.dumps({"text": content}) + "\n" for content in texts)
    (tmp_path / "all.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    single, (found,) = measure(*names), measure(tmp_path / "all.jsonl.gz")
    assert [found[name] for name in ("documents", "tokens", "bytes")] == [
        sum(one[name] for one in single) for name in ("documents", "tokens", "bytes")]
    nats = sum(one["nats_per_token"] * one["tokens"] for one in single)
    assert found["nats_per_token"] == pytest.approx(nats / found["tokens"], rel=1e-6)


@pytest.mark.parametrize("content", ["the cat sat", "\u4e00"])
def test_without_an_end_of_text_id_the_first_token_is_context_alone(scorer, tokenizer, tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content.encode())
    scorer = replace(scorer, end_of_text_id=None)
    (_, documents), = texts_of([str(tmp_path / "a.txt")], scorer)
    found = scorer.measure(documents, "x")
    assert found["tokens"] == len(tokenizer.encode(content).ids) - 1
    assert found["bytes"] == len(content.encode()) - 1


def test_what_is_not_text_is_replaced_or_skipped_and_said(measure, tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"the cat \xff sat")
    (tmp_path / "b.jsonl").write_text('{"text": "the cat"}\n{"text": 3}\n{"text": "a dog"}\n{"text": " "}\nno\n')
    a, b = measure(tmp_path / "a.txt", tmp_path / "b.jsonl")
    assert a["documents"] == 1
    assert b["documents"] == 2
    said = capsys.readouterr().err
    assert "replaced by U+FFFD: 1 place, the first: byte 8, line 1 of" in said
    assert "skipped: 2 records without a document, the first: line 2 of" in said
    assert "has no text in field 'text'" in said


def test_records_without_a_text_lead_to_the_command_that_takes_their_field(measure, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "the cat"}\n')
    with pytest.raises(UserError, match=r"its fields are body\. Give .*--text_field.*\npython pretokenize\.py /"):
        measure(tmp_path / "a.jsonl")


def test_line_ends_of_windows_and_tables_are_warned_of(measure, tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"the cat\r\nsat")
    (tmp_path / "b.csv").write_bytes(b"id,text\r\n1,the cat")
    measure(tmp_path / "a.txt", tmp_path / "b.csv")
    said = capsys.readouterr().err
    assert "a.txt has Windows' line ends" in said
    assert "To train on text alone, make JSON lines" in said


def test_the_bytes_of_a_packed_table_are_not_taken_for_columns(measure, tmp_path, capsys):
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"id,text\n1,the cat\n"))
    measure(tmp_path / "b.csv.gz")
    assert "names the columns" not in capsys.readouterr().err


def test_a_text_that_is_too_long_leads_to_the_command_that_makes_tokens_of_it(measure, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat\n" * 1000)
    os.truncate(tmp_path / "a.txt", 2**30 + 1)  # zeros that take no room on the disk
    with pytest.raises(UserError, match=r"longer than 1.0 GiB.*--tokens to_score:\npython pretokenize\.py /"):
        measure(tmp_path / "a.txt")


def test_a_full_temporary_disk_is_named(measure, monkeypatch, tmp_path):
    def unpacked(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(texts, "unpacked", unpacked)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"the cat"))
    with pytest.raises(UserError, match=r"temporary folder \S+ \(the variable TMPDIR .* No space left") as caught:
        measure(tmp_path / "a.txt.gz")
    assert caught.value.code == Exit.MACHINE


def test_a_text_that_changes_while_it_is_read_is_refused(measure, monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat")

    def parts_of(content, reading):
        with (tmp_path / "a.txt").open("a") as file:
            file.write(" on the mat")
        return [content]

    monkeypatch.setattr(texts, "parts_of", parts_of)
    with pytest.raises(UserError, match=r"a\.txt changed while it was read: it had 11 bytes and now has 22"):
        measure(tmp_path / "a.txt")
