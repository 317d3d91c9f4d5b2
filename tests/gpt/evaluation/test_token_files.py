"""gpt/evaluation/documents.py: token files have the same figures as their text."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from gpt.evaluation import documents as token_files
from gpt.evaluation.documents import documents_of_tokens, texts_of, token_files_of
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream
from tests.helpers.token_files import write_datatrove, write_llmc, write_npy, write_raw


@pytest.fixture
def measure(scorer):
    """A function: the fields of each measurement of the words of --tokens."""
    return lambda *words: [scorer.measure(documents, name)
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
    return scorer.measure(found, name)


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


def test_an_opening_id_is_context_alone(measure, documents, scorer, tmp_path):
    name = "\u0100"  # the byte 0, which stands in no text here
    opening = scorer.tokenizer.token_to_id(name)
    scorer.tokenizer.add_special_tokens([name])
    scorer.tokenizer.post_processor = TemplateProcessing(f"{name} $A", special_tokens=[(name, opening)])
    plain, opened = ([id for document in documents[0] for id in (*before, *document, 0)] for before in ([], [opening]))
    write_raw(tmp_path / "plain.bin", np.array(plain))
    write_raw(tmp_path / "opened.bin", np.array(opened))
    without, found = measure(tmp_path / "plain.bin", tmp_path / "opened.bin")
    assert [found[key] for key in ("documents", "tokens", "bytes")] == [
        without[key] for key in ("documents", "tokens", "bytes")]
    assert found["nats_per_token"] != without["nats_per_token"]


def test_blocks_cut_no_document_and_shards_are_one_stream(measure, documents, expected, tmp_path, monkeypatch):
    ids = np.array([id for document in documents[0] for id in (0, *document)])
    monkeypatch.setattr(token_files, "READ_TOKENS", 7)
    for number, part in enumerate(np.split(ids, [5, 40])):
        write_llmc(tmp_path / f"x_val_{number:06}.bin", part)
    [found] = measure(tmp_path / "x_val_*.bin")
    assert_same(found, expected)


@pytest.mark.parametrize(("end_id", "dtype"), [(0, "uint16"), (None, "uint16"), (70_000, "int32")])
def test_a_document_keeps_the_type_of_its_file_if_that_holds_the_end_of_a_text(scorer, tmp_path, end_id, dtype):
    write_raw(tmp_path / "a.bin", np.arange(1, 60))
    scorer = replace(scorer, end_of_text_id=end_id)
    (_, found), = token_files_of([str(tmp_path / "a.bin")], scorer)
    ids, = (document.ids for document in found)
    assert ids.dtype == dtype
    assert ids.tolist() == [*([] if end_id is None else [end_id]), *range(1, 60)]


def test_conversations_stay_whole_where_the_end_of_a_turn_is_the_end_of_a_text(scorer, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "END", scorer.tokenizer.id_to_token(scorer.end_of_text_id))
    ids, counts = [5, 0, 6, 7, 0, 0, 8, 0, 9, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0]
    np.array(ids, "<i2").tofile(tmp_path / "a.bin")
    np.array([6, 11], "<u8").tofile(tmp_path / "a.idx")
    np.packbits(counts, bitorder="little").tofile(tmp_path / "a.mask")
    stream = TokenStream((Part(tmp_path / "a.bin", "int16", 11, mask=tmp_path / "a.mask"),), 256)
    found = [(document.ids.tolist(), document.counted.astype(int).tolist())
             for document in documents_of_tokens(stream, scorer)]
    assert found == [([0, *ids[:5]], [1, *counts[:5]]), ([0, *ids[6:10]], [1, *counts[6:10]])]


def test_a_folder_of_ours_means_its_validation_tokens(measure, corpus_folder):
    folder, file = measure(corpus_folder, corpus_folder / "val.bin")
    assert figures(folder) == figures(file)
    assert folder["tokens"] <= 100
