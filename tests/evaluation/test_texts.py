"""evaluation/texts.py: perplexity and bits per byte are those of transformers, in whatever form documents come."""

import gzip
import json
import math

import pytest

from common.errors import UserError
from evaluation import texts
from evaluation.scoring import TextEncoder
from evaluation.texts import measure_texts
from pretokenization.blocks import Reading
from tests.helpers.scoring import T, log_probabilities
from tests.helpers.texts import in_language
from tokens.tokenizer import END_OF_TEXT


@pytest.fixture
def measure(scorer, encoder):
    """A function: the fields of all results for these files."""

    def measure(*files, stride: int = T // 2, **reading) -> list[dict]:
        results = measure_texts(scorer, encoder, list(map(str, files)), stride, Reading(**reading))
        return [result.fields for result in results]

    return measure


@pytest.mark.parametrize("stride", [5, 8, 16])
def test_perplexity_is_that_of_transformers_on_the_same_windows(measure, theirs, tokenizer, texts, tmp_path, stride):
    content = " ".join(texts)[:240]
    (tmp_path / "a.txt").write_bytes(content.encode())
    ids = [0, *tokenizer.encode(content).ids]
    assert len(ids) > 5 * T
    ends = [min(T + max(0, math.ceil((at - T) / stride)) * stride, len(ids) - 1) for at in range(1, len(ids))]
    of_window = {end: log_probabilities(theirs, ids[max(0, end - T):end + 1]) for end in set(ends)}
    nats = -sum(of_window[end][at - max(0, end - T) - 1] for at, end in enumerate(ends, 1))
    found, = measure(tmp_path / "a.txt", stride=stride)
    assert found["tokens"] == len(ids) - 1
    assert found["bytes"] == len(content.encode())
    assert found["nats_per_token"] == pytest.approx(nats / (len(ids) - 1), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(content.encode()), rel=1e-6)


def test_documents_count_alike_in_whatever_form_they_come(measure, texts, tmp_path):
    names = []
    for number, content in enumerate(texts):
        names.append(tmp_path / f"{number}.txt")
        names[-1].write_bytes(content.encode())
    lines = "".join(json.dumps({"text": content}) + "\n" for content in texts)
    (tmp_path / "all.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "all.txt").write_bytes("\n##\n".join(texts).encode())
    *single, whole = measure(*names)
    assert whole["documents"] == len(texts)
    assert whole["tokens"] == sum(found["tokens"] for found in single)
    for found in (*measure(tmp_path / "all.jsonl.gz"), *measure(tmp_path / "all.txt", separator="\n##\n")):
        for name in ("documents", "tokens", "bytes"):
            assert found[name] == whole[name]
        assert found["nats_per_token"] == pytest.approx(whole["nats_per_token"], rel=1e-6)
        assert found["bits_per_byte"] == pytest.approx(whole["bits_per_byte"], rel=1e-6)


def test_without_an_end_of_text_id_the_first_token_is_context_alone(scorer, tokenizer, tmp_path):
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = []
    fields["model"]["vocab"]["other"] = fields["model"]["vocab"].pop(END_OF_TEXT)
    encoder = TextEncoder(tokenizer.from_str(json.dumps(fields)), None)
    (tmp_path / "a.txt").write_text("the cat sat")
    result, = measure_texts(scorer, encoder, [str(tmp_path / "a.txt")], 8)
    ids = tokenizer.encode("the cat sat").ids
    assert result.fields["tokens"] == len(ids) - 1
    assert result.fields["bytes"] == len("the cat sat") - len(tokenizer.decode(ids[:1]))


def test_what_is_not_text_is_replaced_or_skipped_and_said(measure, tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"the cat \xff sat")
    (tmp_path / "b.jsonl").write_text('{"text": "the cat"}\n{"text": 3}\n{"text": "a dog"}\nno\n')
    a, b, _ = measure(tmp_path / "a.txt", tmp_path / "b.jsonl")
    assert (a["documents"], b["documents"]) == (1, 2)
    said = capsys.readouterr().err
    assert "a.txt is not UTF-8 everywhere: 1 invalid character replaced by U+FFFD." in said
    assert "b.jsonl: skipped 2 lines without a document; the first one has no text in field 'text'" in said


def test_text_in_another_encoding_is_refused(measure, tmp_path):
    content = in_language("Russian", 300)
    (tmp_path / "a.txt").write_bytes(content.encode("cp1251"))
    with pytest.raises(UserError, match=r"a\.txt is not UTF-8: .* cannot be decoded, from byte 0 on"):
        measure(tmp_path / "a.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode("cp1251")))
    with pytest.raises(UserError, match=r"a\.txt\.gz is not UTF-8"):
        measure(tmp_path / "a.txt.gz")


def test_a_text_that_changes_while_it_is_read_is_refused(measure, monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat")

    def parts_of(content, reading):
        with (tmp_path / "a.txt").open("a") as file:
            file.write(" on the mat")
        return [content]

    monkeypatch.setattr(texts, "parts_of", parts_of)
    with pytest.raises(UserError, match=r"a\.txt changed while it was read: it had 11 bytes and now has 22"):
        measure(tmp_path / "a.txt")


def test_files_without_a_token_are_refused(measure, tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="no token to score"):
        measure(tmp_path / "a.txt")
