"""The architectures by config.json's model_type; a new one is a class in a file like llama.py."""

from dataclasses import fields
from typing import Any, TypeAlias

import torch

from gpt.architectures.architecture import Architecture
from gpt.architectures.fields import check_field
from gpt.architectures.gpt2 import GPT2
from gpt.architectures.llama import Llama, Qwen3
from gpt.architectures.rotary import RotaryConfig
from model import INIT_STD, Config, GPTConfig, LanguageModel, Options

ModelConfig: TypeAlias = GPTConfig | RotaryConfig

ARCHITECTURES: dict[str, Architecture] = {"gpt2": GPT2(), "qwen3": Qwen3(), "llama": Llama()}
DEFAULT = "gpt2"


def by_model_type(model_type: Any) -> Architecture:
    """The architecture that a config.json names. Raises InvalidCheckpoint for any other value."""
    check_field(isinstance(model_type, str) and model_type in ARCHITECTURES, "model_type", model_type,
                f"one of {', '.join(map(repr, ARCHITECTURES))}")
    return ARCHITECTURES[model_type]


def architecture_of(config: ModelConfig) -> Architecture:
    """The architecture of a model's config."""
    return ARCHITECTURES[name_of(config)]


def fields_with_flags(config: ModelConfig, flags: dict[str, Any]) -> tuple[str, ...]:
    """The fields of a config that have a flag of the same name; the corpus decides vocab_size."""
    return ("n_layer", "n_head", "n_embd", "seq_length", *own_fields_with_flags(type(config), flags))


def own_fields_with_flags(config: type[ModelConfig], flags: dict[str, Any]) -> list[str]:
    """The fields of a config that have a flag of the same name; the fields of model.Config are left out."""
    names = {field.name for field in fields(config)} - {field.name for field in fields(Config)}
    return [name for name in flags if name in names]


def name_of(config: ModelConfig) -> str:
    """The name of a config's architecture: config.json's model_type and the value of --arch."""
    return next(name for name, each in ARCHITECTURES.items() if type(config) is each.Config)


def create(config: ModelConfig, device: torch.device | str, options: Options, std: float = INIT_STD) -> LanguageModel:
    """A network on the device with initial weights, the same for a seed of torch's on every device.

    std is the standard deviation of the matrices; residual projections are then scaled down by the depth.
    """
    return architecture_of(config).build(config, options).init_weights(std).to(device)
