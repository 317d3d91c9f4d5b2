"""generation/graphs.py: what a graph repeats is right for every step, row and length."""

import pytest
import torch

from generation.continuation import Continuation, Sampling
from generation.decoder import Decoder
from generation.graphs import LEAST_SLOTS, GraphDecoder
from generation.sampling import decode
from ops.products import Dense, Int8
from tests.helpers.decoding import GREEDY, decoder_of
from tests.helpers.graphs import FakeGraph, graph_decoder_of, pretend_graphs


def test_there_is_a_graph_for_each_doubling_of_the_length_and_no_more(make_model, monkeypatch):
    pretend_graphs(monkeypatch)
    made: list[FakeGraph] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made.append(FakeGraph()) or made[-1])
    model = make_model(seq_length=5 * LEAST_SLOTS // 2)
    decoder = graph_decoder_of(model, 2)
    for num_graphs, temperature in ((3, 1.0), (3, 1.0), (6, 0.7)):
        sampling = Sampling(temperature, 20)
        jobs = [([seed] * length, 3, seed) for seed, length in enumerate((9, 127, 128, 250, 255, 319))]
        plain, ahead = ([Continuation(*job) for job in jobs] for _ in range(2))
        for _ in decode(decoder_of(model, 2), plain, sampling, ()):
            pass
        decoder.prepare(sampling)
        for _ in decode(decoder, ahead, sampling, ()):
            pass
        assert [text.ids for text in ahead] == [text.ids for text in plain]
        assert len(made) == num_graphs


def test_recording_leaves_what_the_rows_hold(make_model, monkeypatch):
    pretend_graphs(monkeypatch)
    model = make_model()
    decoder, plain = graph_decoder_of(model, 2), decoder_of(model, 2)
    decoder.prepare(Sampling(0.0, 5))
    for each in (decoder, plain):
        each.fill(0, [1, 2, 3])
    decoder.place(0, [1, 2, 3, 4], 3)
    decoder.widen()  # the next launch records again
    expected = int(plain.step([4]).argmax())
    assert decoder.read(decoder.launch([0]))[0].new_id == expected
    assert decoder.lengths[0] == 4


def test_the_ids_of_a_text_are_remembered_when_another_needs_more_room(make_model, monkeypatch):
    pretend_graphs(monkeypatch)
    model = make_model()
    decoder, plain = graph_decoder_of(model, 2), decoder_of(model, 2)
    decoder.prepare(Sampling(0.0, 0, no_repeat_ngram_size=1))
    for each in (decoder, plain):
        each.fill(0, [1, 2, 3])
    logits_V = plain.step([4])[0].clone()
    likeliest = int(logits_V.argmax())
    decoder.place(0, [likeliest, 1, 2, 3, 4], 3)
    decoder.place(1, [5] * 100, 0)
    logits_V[[likeliest, 1, 2, 3, 4]] = -torch.inf
    assert decoder.read(decoder.launch([0, 1]))[0].new_id == int(logits_V.argmax())


def test_a_decoder_that_is_not_prepared_makes_its_texts_step_by_step(make_model):
    model, text = make_model(), Continuation([1, 2], 5, 0)
    for _ in decode(graph_decoder_of(model, 1), [text], GREEDY, ()):
        pass
    plain = Continuation([1, 2], 5, 0)
    for _ in decode(decoder_of(model, 1), [plain], GREEDY, ()):
        pass
    assert text.ids == plain.ids


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, Dense), (torch.bfloat16, Dense), (torch.bfloat16, Int8)])
def test_on_a_gpu_graphs_make_the_texts_and_log_probabilities_of_the_plain_loop(make_model, dtype, kind, compiled):
    model = make_model(seq_length=160)
    sampling = Sampling(1.0, 20, 0.95, repetition_penalty=1.1)
    jobs = [([1 + seed] * (5 + 40 * seed), 120, seed) for seed in range(5)]

    def made_by(decoder) -> list[Continuation]:
        if compiled:
            decoder.compile()
        if isinstance(decoder, GraphDecoder):
            decoder.prepare(sampling)
        texts = [Continuation(*job) for job in jobs]
        for _ in decode(decoder, texts, sampling, (7,)):
            pass
        return texts

    plain, ahead = (made_by(make(model.config, model.state_dict(), 3, "cuda", dtype, kind))
                    for make in (Decoder, GraphDecoder))
    num_same = 0
    for found, expected in zip(ahead, plain, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(found.ids, expected.ids, strict=False)) if a != b),
                    len(expected.ids)) - len(jobs[found.ids[0] - 1][0])
        num_same += same
        assert found.log_probabilities[:same] == pytest.approx(expected.log_probabilities[:same], abs=0.1)
        if dtype == torch.float32:
            assert found.ids == expected.ids
    assert num_same > 50  # then a close call falls the other way: attention sums over another number of slots
