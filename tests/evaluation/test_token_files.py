"""evaluation/token_files.py: the figures of token files are those of the text that they were made from."""

import json
from dataclasses import replace

import numpy as np
import pytest

from common.errors import Exit, UserError
from evaluation import token_files
from evaluation.texts import texts_of
from evaluation.token_files import token_files_of
from tests.helpers.token_files import write_datatrove, write_llmc, write_npy, write_raw


@pytest.fixture
def measure(scorer):
    """A function: the fields of each measurement of the words of --tokens."""
    return lambda *words: [scorer.measure(documents, name).fields()
                           for name, documents in token_files_of([str(word) for word in words], scorer)]


@pytest.fixture
def documents(texts, tokenizer):
    """The ids of each text, and the bytes of all."""
    return [tokenizer.encode(text).ids for text in texts], sum(len(text.encode()) for text in texts)


@pytest.fixture
def expected(scorer, texts, tmp_path):
    """The figures of the same documents as text."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    [(name, found)] = texts_of([str(tmp_path / "a.jsonl")], scorer)
    return scorer.measure(found, name).fields()


def figures(found: dict) -> list:
    return [found["documents"], found["tokens"], found["bytes"], pytest.approx(found["nats_per_token"], rel=1e-6),
            pytest.approx(found["bits_per_byte"], rel=1e-6)]


def assert_same(found: dict, expected: dict) -> None:
    assert [found[key] for key in ("documents", "tokens", "bytes", "nats_per_token", "bits_per_byte")] == figures(
        expected)


@pytest.mark.parametrize(("write", "name"), [(write_raw, "a.bin"), (write_llmc, "a.bin"), (write_npy, "a.npy"),
                                             (write_datatrove, "a.ds")])
def test_tokens_in_every_layout_have_the_figures_of_their_text(measure, documents, expected, tmp_path, write, name):
    ids = np.array([id for document in documents[0] for id in (*document, 0)])
    more = {"ends": np.array([len(ids)])} if write is write_datatrove else {}
    write(tmp_path / name, ids, **more)
    [found] = measure(tmp_path / name)
    assert found["bytes"] == documents[1]
    assert_same(found, expected)


def test_blocks_cut_no_document_and_shards_are_one_stream(measure, documents, expected, tmp_path, monkeypatch):
    ids = np.array([id for document in documents[0] for id in (0, *document)])
    monkeypatch.setattr(token_files, "BLOCK_TOKENS", 7)
    for number, part in enumerate(np.split(ids, [5, 40])):
        write_llmc(tmp_path / f"x_val_{number:06}.bin", part)
    [found] = measure(tmp_path / "x_val_*.bin")
    assert_same(found, expected)


def test_a_folder_of_ours_means_its_validation_tokens(measure, corpus_folder):
    folder, file = measure(corpus_folder, corpus_folder / "val.bin")
    assert figures(folder) == figures(file)
    assert folder["tokens"] <= 100


def test_a_tokenizer_without_an_end_of_text_scores_all_but_the_first_token(scorer, tmp_path):
    write_raw(tmp_path / "a.bin", np.array([5, 0, 7, 8] * 20))
    scorer = replace(scorer, end_of_text_id=None)
    [(name, documents)] = token_files_of([str(tmp_path / "a.bin")], scorer)
    found = scorer.measure(documents, name)
    assert (found.num_documents, found.num_tokens) == (1, 79)


def swap(path) -> None:
    fields = json.loads(path.read_text())
    vocab = fields["model"]["vocab"]
    vocab["t"], vocab["a"] = vocab["a"], vocab["t"]
    path.write_text(json.dumps(fields))


@pytest.mark.parametrize(("spoil", "why"), [
    (lambda folder: swap(folder / "tokenizer.json"), r"tokenizer.json is another tokenizer than the model's"),
    (lambda folder: np.full(100, 400, "<i2").tofile(folder / "val.bin"), "id 400 at position 0 is outside the vocabul"),
    (lambda folder: np.full(100, 4, "<i2").tofile(folder / "val.bin"), "its sha256 is not the one in")])
def test_tokens_of_another_vocabulary_are_refused(measure, make_corpus, tmp_path, spoil, why):
    spoil(make_corpus(tmp_path / "corpus"))
    with pytest.raises(UserError, match=why) as caught:
        measure(tmp_path / "corpus")
    assert caught.value.code == Exit.DATA
