"""generation/weights.py: every layout of the weights computes the model's own products."""

import pytest
import torch

from architectures.table import ARCHITECTURES
from checkpoint.load import open_model
from generation.decoder import Decoder
from ops.products import Dense, Int8
from tests.helpers.decoding import KINDS, decoder_of, skip_unless_possible


def test_eight_bits_take_half_of_sixteen(make_model):
    model = make_model(n_embd=256, n_head=4)
    whole, small = (decoder_of(model, 1, torch.bfloat16, kind).bytes_per_step for kind in (Dense, Int8))
    assert small < 0.51 * whole


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_decoding_lays_out_every_parameter_of_the_network_once(make_any, arch, tied):
    model, asked = make_any(arch, tie_weights=tied), []

    class Recorded(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    weights = model.state_dict()
    Decoder(model.config, Recorded(weights), 1)
    assert sorted(asked) == sorted(weights)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_a_step_reads_are_the_blocks_matrices_and_the_output_layer(make_any, arch):
    model = make_any(arch, vocab_size=384)
    matrices = model.config.num_block_weights + 384 * model.config.n_embd
    assert decoder_of(model, 1).bytes_per_step == 4 * matrices


def test_a_step_reads_every_matrix_of_the_model_once(make_model):
    for tied in (True, False):
        model = make_model(n_embd=64, tie_weights=tied)
        matrices = 12 * model.config.n_layer * 64**2 + model.config.padded_vocab_size * 64
        assert decoder_of(model, 1).bytes_per_step == 4 * matrices


@pytest.mark.parametrize(("dtype", "kind"), KINDS)
def test_weights_mapped_from_a_file_give_the_bits_of_those_in_memory(make_checkpoint, tmp_path, dtype, kind):
    skip_unless_possible(dtype, kind)
    path, model, _ = make_checkpoint(tmp_path, vocab_size=300, seq_length=32)
    _, weights = open_model(path)
    assert len(weights["transformer.wte.weight"]) == 300 < len(model.head_weight)
    found, expected = (Decoder(model.config, each, 2, "cpu", dtype, kind) for each in (weights, model.state_dict()))
    for decoder in (found, expected):
        decoder.fill(0, [1, 2, 3])
    for _ in range(5):
        assert torch.equal(found.step([3, 4]), expected.step([3, 4]))
