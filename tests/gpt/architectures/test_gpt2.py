"""architectures/gpt2.py: config, tensors and names against the network itself; misfits are refused by their field."""

from dataclasses import replace

import pytest
import torch

from gpt.architectures.gpt2 import GPT2
from gpt.common.errors import InvalidCheckpoint
from model import GPTConfig

gpt2, CONFIG = GPT2(), GPTConfig(400, 16, 2, 2, 32)


# ---------------------------------------------------------------- config.json


def test_the_config_comes_back_as_it_was():
    config = replace(CONFIG, tie_weights=False, activation="gelu", layer_norm_epsilon=1e-6)
    assert gpt2.from_hf_config(gpt2.to_hf_config(config, 7)) == config


def test_dropout_is_where_transformers_would_drop_and_none_in_a_model_that_is_read():
    fields = gpt2.to_hf_config(replace(CONFIG, dropout=0.1), 7)
    assert [fields[key] for key in ("embd_pdrop", "attn_pdrop", "resid_pdrop")] == [0.1, 0.0, 0.1]
    assert gpt2.from_hf_config(fields) == CONFIG


def test_absent_fields_are_those_of_transformers():
    assert gpt2.from_hf_config({"vocab_size": 50257, "n_positions": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768,
                                }) == GPTConfig(50257, 1024, 12, 12, 768)


@pytest.mark.parametrize(("fields", "reason"), [
    ({"n_layer": 10**9}, "n_layer is 1,000,000,000, not a whole number from 1 to 1,024"),
    ({"n_layer": 0}, "n_layer is 0"), ({"n_head": -1}, "n_head is -1"), ({"n_embd": "32"}, "n_embd is '32'"),
    ({"vocab_size": 400.0}, "vocab_size is 400.0"), ({"vocab_size": 10**400}, "vocab_size is 10,000"),
    ({"n_positions": True}, "n_positions is True"), ({"n_positions": [16]}, r"n_positions is \[16\]"),
    ({"n_embd": 33}, "n_embd is 33, not a multiple of n_head 2"), ({"n_inner": 64}, "n_inner is 64, not 128"),
    ({"activation_function": "relu"}, "activation_function is 'relu'"),
    ({"activation_function": ["gelu"]}, r"activation_function is \['gelu'\]"),
    ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
    ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True, not False"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
    ({"add_cross_attention": True}, "add_cross_attention is True")], ids=lambda value: str(value)[:60])
def test_a_config_that_is_not_computed_exactly_is_refused_by_its_field(fields, reason):
    with pytest.raises(InvalidCheckpoint, match=reason) as caught:
        gpt2.from_hf_config({**gpt2.to_hf_config(CONFIG, 0), **fields})
    assert len(str(caught.value)) < 300


# ---------------------------------------------------------------- tensors


def test_biases_that_are_not_zero_stay_among_the_tensors_of_a_model_without_biases(make_model):
    stored = {"transformer.ln_f.bias": torch.ones(32), "transformer.h.0.ln_1.bias": torch.zeros(32)}
    assert list(gpt2.from_hf_tensors(replace(CONFIG, bias=False), stored)) == ["transformer.ln_f.bias"]


def test_a_shorter_model_takes_the_first_positions(make_model):
    model = make_model()
    found = gpt2.from_hf_tensors(replace(model.config, seq_length=8), gpt2.to_hf_tensors(model.config,
                                                                                         model.state_dict()))
    assert torch.equal(found["transformer.wpe.weight"][0], model.get_parameter("transformer.wpe.weight")[:8])
