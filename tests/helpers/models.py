"""Tiny models whose every weight matters, and the folders they are saved in."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from gpt.architectures.rotary import RotaryTransformer
from gpt.architectures.table import ARCHITECTURES, ModelConfig, architecture_of, create
from gpt.checkpoint.contents import Tensors, model_card, tensor_files, text_files
from gpt.checkpoint.save import save
from gpt.tokens.chat import END, START, template_of
from gpt.tokens.tokenizer import vocab_size_of
from model import GPT, GPTConfig, LanguageModel, Options

T = TypeVar("T", bound=LanguageModel)
EMBEDDINGS = ("transformer.wte", "model.embed_tokens", "lm_head")


def _randomized(model: T) -> T:
    """Changes every weight but those of ids beyond the vocabulary."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
        for name, parameter in model.named_parameters():
            if name.startswith(EMBEDDINGS):
                parameter[model.config.vocab_size:] = 0.0
    return model


def make_model(seed: int = 0, **changes) -> GPT:
    """A tiny model with every weight, norm and bias random: nothing can hide behind a one or a zero."""
    torch.manual_seed(seed)
    config = replace(GPTConfig(400, 16, 2, 2, 32), **changes)
    return _randomized(GPT(config).init_weights().eval())


def make_rotary(arch: str, seed: int = 0, **changes) -> RotaryTransformer:
    """A tiny qwen3 or llama, as make_model's; the heads of keys and values are a third of the queries'."""
    torch.manual_seed(seed)
    config = replace(ARCHITECTURES[arch].sized((2, 6, 96), 400, 32), **changes)
    model = create(config, "cpu", Options()).eval()
    assert isinstance(model, RotaryTransformer)
    return _randomized(model)


def kept_by_autograd(config: ModelConfig, batch_size: int, dtype: torch.dtype) -> int:
    """Bytes of all tensors, other than parameters, that the backward of an eager forward on the CPU will need."""
    model = create(config, "cpu", Options()).train()
    ids = torch.randint(0, config.vocab_size, (batch_size, config.seq_length))
    parameters = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept, alive = {}, []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no other tensor gets its address
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16),
    ):
        model(ids, ids)
    return sum(kept.values())


def trained_checkpoint(folder: Path, step: int, tokenizer_json: str, chat_template: str = "", **changes,
                       ) -> tuple[Path, GPT, torch.optim.Optimizer]:
    """Trains a tiny model for one step and saves it as folder/checkpoint-STEP."""
    model = make_model(step, **changes).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    ids = torch.randint(0, model.config.vocab_size, (2, model.config.seq_length))
    model(ids, ids).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"stays": False, "data": {"train_sha256": "a", "tokenizer_sha256": "b"}}
    card = model_card(model.config, {"steps": str(step)})
    path = save(folder, step, tensor_files(model.config, Tensors.of(model, optimizer)),
                text_files(step, model.config, state, tokenizer_json, 0, card, chat_template))
    return path, model.eval(), optimizer


def replaced_meanwhile(load: Callable, folder: Path, make_checkpoint: Callable) -> Callable:
    """A loader like load; at the end of its first call the folder's checkpoint-1 is replaced by checkpoint-2."""
    older = make_checkpoint(folder, 1)[0]

    def load_and_replace(*given: object) -> object:
        loaded = load(*given)
        if older.exists():
            make_checkpoint(folder, 2)
            shutil.rmtree(older)
        return loaded

    return load_and_replace


def conversing_checkpoint(folder: Path, tokenizer: Tokenizer, **changes) -> Path:
    """A tiny checkpoint as of a run on conversations: with their template, and ids for its special tokens."""
    tokenizer.add_special_tokens([START, END])
    template = template_of(tokenizer)
    changes = {"vocab_size": vocab_size_of(tokenizer), "seq_length": 64, **changes}
    return trained_checkpoint(folder, 1, tokenizer.to_str(), template, **changes)[0]


def write_hugging_face_folder(folder: Path, model: LanguageModel, tokenizer_file: Path) -> Path:
    """Writes a model as a folder without training state, also weights that are not finite."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture = architecture_of(model.config)
    tensors = architecture.to_hf_tensors(model.config, model.state_dict())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(architecture.to_hf_config(model.config, 0)))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    return folder
