"""gpt/architectures/table.py: the architecture is found by model_type and by config, an unknown one is named."""

import pytest

from gpt.architectures.table import ARCHITECTURES, architecture_of, by_model_type
from gpt.common.errors import InvalidCheckpoint
from model import GPTConfig


def test_an_architecture_is_found_by_the_model_type_that_it_writes():
    for model_type, architecture in ARCHITECTURES.items():
        assert by_model_type(model_type) is architecture
        config = architecture.sized((2, 6, 96), 300, 64)
        assert architecture_of(config) is architecture
        assert architecture.to_hf_config(config, 0)["model_type"] == model_type
    assert architecture_of(GPTConfig(50257, 1024, 12, 12, 768)) is ARCHITECTURES["gpt2"]


@pytest.mark.parametrize("model_type", ["mamba", None, 7, ["gpt2"]])
def test_an_unknown_model_type_is_refused_by_its_name(model_type):
    with pytest.raises(InvalidCheckpoint) as caught:
        by_model_type(model_type)
    assert str(caught.value) == f"config.json: model_type is {model_type!r}, not one of 'gpt2', 'qwen3', 'llama'"
