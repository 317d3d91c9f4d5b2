"""generation/weights.py: every layout of the weights computes the model's own products."""

import pytest
import torch

from checkpoint.huggingface import weights_in
from generation.decoder import Decoder
from generation.weights import Dense, Int8, Packed, fastest_kind, quantize
from tests.helpers.decoding import KINDS, decoder_of, skip_unless_possible


def test_eight_bits_are_within_half_a_step_and_take_a_quarter(make_model):
    torch.manual_seed(0)
    weight = torch.randn(300, 64) * torch.logspace(-6, 3, 300)[:, None]
    weight[7] = 0.0
    integers, scale = quantize(weight)
    assert integers.abs().max() == 127
    assert ((integers * scale.float()[:, None] - weight).abs() <= 0.502 * scale.float()[:, None]).all()
    model = make_model(n_embd=256, n_head=4)
    whole, small = (decoder_of(model, 1, torch.bfloat16, kind).bytes_per_step for kind in (Dense, Int8))
    assert small < 0.51 * whole


def test_a_step_reads_every_matrix_of_the_model_once(make_model):
    for tied in (True, False):
        model = make_model(n_embd=64, tie_weights=tied)
        matrices = 12 * model.config.n_layer * 64**2 + model.config.padded_vocab_size * 64
        assert decoder_of(model, 1).bytes_per_step == 4 * matrices


@pytest.mark.parametrize(("dtype", "kind"), KINDS)
def test_weights_mapped_from_a_file_give_the_bits_of_those_in_memory(make_checkpoint, tmp_path, dtype, kind):
    skip_unless_possible(dtype, kind)
    path, model, _ = make_checkpoint(tmp_path, vocab_size=300, seq_length=32)
    weights = weights_in(path, model.config)
    assert len(weights["transformer.wte.weight"]) == 300 < len(model.head_weight)
    found, expected = (Decoder(model.config, each, 2, "cpu", dtype, kind) for each in (weights, model.state_dict()))
    for decoder in (found, expected):
        decoder.fill(0, [1, 2, 3])
    for _ in range(5):
        assert torch.equal(found.step([3, 4]), expected.step([3, 4]))


def test_a_cpu_takes_packed_matrices_where_it_can():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    packed = Packed if torch.backends.mkldnn.is_available() else Dense
    assert fastest_kind(cpu, torch.float32, quantized=False, compiled=False) is packed
    assert fastest_kind(cpu, torch.float32, quantized=False, compiled=True) is Dense
    assert fastest_kind(gpu, torch.bfloat16, quantized=False, compiled=False) is Dense
    assert fastest_kind(cpu, torch.bfloat16, quantized=True, compiled=True) is Int8
