"""Scaled rotary frequencies and tables: those of transformers."""

import pytest
import torch

from gpt.ops.rotary import RotaryScaling, rotary_frequencies, rotary_tables


@pytest.mark.parametrize(("head_dim", "theta", "scaling"), [
    (64, 5e5, RotaryScaling(32.0, 1.0, 4.0, 8192)),  # Llama 3.2 1B
    (128, 5e5, RotaryScaling(8.0, 1.0, 4.0, 8192)),  # Llama 3.1 8B
    (16, 1e4, RotaryScaling(4.0, 1.5, 3.0, 100))], ids=str)
def test_scaled_frequencies_have_the_bits_of_transformers(head_dim, theta, scaling):
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    parameters = {"rope_type": "llama3", "rope_theta": theta, "factor": scaling.factor,
                  "low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor,
                  "original_max_position_embeddings": scaling.original_seq_length}
    config = transformers.LlamaConfig(head_dim=head_dim, rope_parameters=parameters)
    theirs = modeling.LlamaRotaryEmbedding(config)
    found, plain = rotary_frequencies(head_dim, theta, scaling), rotary_frequencies(head_dim, theta)
    assert torch.equal(found, theirs.inv_freq)
    shares = plain / found
    assert shares[0] == 1
    assert shares[-1] == pytest.approx(scaling.factor)
    assert ((shares > 1.001) & (shares < scaling.factor - 0.001)).any()
    cos, sin = theirs(torch.zeros(1), torch.arange(2000)[None])
    for table, reference in zip(rotary_tables(2000, head_dim, theta, scaling), (cos, sin), strict=True):
        torch.testing.assert_close(table, reference[0, :, :head_dim // 2], rtol=0, atol=1e-6)
