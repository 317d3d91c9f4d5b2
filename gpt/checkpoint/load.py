"""Loads a checkpoint or a Hugging Face folder: its config, weights, model, or the state of a run.

The folder's architecture (gpt/architectures/) decides which fields and tensors it must hold.
"""

import contextlib
import re
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from gpt.architectures.fields import check_whole, shown
from gpt.architectures.table import ModelConfig, architecture_of, by_model_type
from gpt.checkpoint.commands import transformers_command
from gpt.checkpoint.contents import StateSchema
from gpt.checkpoint.find import resolve
from gpt.checkpoint.stored import MAX_COUNT, read_json
from gpt.common.errors import Exit, InvalidCheckpoint, UserError
from gpt.common.names import CONFIG, GENERATION, INDEX, OPTIMIZER, TEMPLATE, TOKENIZER_CONFIG, WEIGHTS
from gpt.common.words import printable, several
from gpt.ops.shards import fill, like, local
from model import LanguageModel, Options

FILE_NAME = re.compile(r"[^/\\\0]+\.safetensors")
COPY_WHOLE = "Download the model again, or copy all of its files."
HEAD = "lm_head.weight"


def read_config(folder: Path) -> ModelConfig:
    """The model's config from config.json.

    Raises InvalidCheckpoint for a missing or damaged file, and, with the field's name, for a model that
    this program does not compute exactly.
    """
    fields = read_json(folder / CONFIG)
    return by_model_type(fields.get("model_type")).from_hf_config(fields)


def end_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The end-of-text ids, from generation_config.json, else config.json, as in transformers; () if none.

    Models that were tuned to converse have several. An id beyond the vocabulary, as GPT2Config's own is in a
    small one, never occurs and is left out. Raises UserError (exit 4), also for a value that is no id.
    """
    with opening(f"checkpoint {printable(folder)}"):
        for name in (GENERATION, CONFIG):
            value = read_json(folder / name).get("eos_token_id") if (folder / name).exists() else None
            if value is not None:
                ids = value if isinstance(value, list) else [value]
                for index in ids:
                    check_whole(name, "eos_token_id", index, 0, MAX_COUNT)
                return tuple(index for index in ids if index < vocab_size)
    return ()


def chat_template(folder: Path) -> Any:
    """The folder's template of conversations in Jinja; None if none, and any value where it is damaged.

    As in transformers a file of its own comes before tokenizer_config.json. Older folders have several by name;
    of them the default is taken. Raises UserError (exit 4).
    """
    with opening(f"checkpoint {printable(folder)}"):
        if (folder / TEMPLATE).is_file():
            return (folder / TEMPLATE).read_text("utf-8", "replace")
        if (folder / TOKENIZER_CONFIG).is_file():
            found = read_json(folder / TOKENIZER_CONFIG).get("chat_template")
            named = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
            return next((each.get("template") for each in named if each.get("name") == "default"), found)
    return None


# ---------------------------------------------------------------- weights


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's weights by their names in the files, as views of the mapped files.

    An index beside model.safetensors is ignored, as in transformers. Of several files each tensor comes from
    the one that the index names. Raises InvalidCheckpoint for missing weights, and for a damaged file or index.
    """
    if (folder / WEIGHTS).is_file():
        return mapped(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise InvalidCheckpoint(f"{WEIGHTS} is missing, and {INDEX} too (pickles can run code and are never "
                                "opened)", transformers_command(folder) or COPY_WHOLE)
    file_of = read_json(folder / INDEX).get("weight_map")
    if not isinstance(file_of, dict) or not file_of or not all(
            isinstance(file, str) and FILE_NAME.fullmatch(file) for file in file_of.values()):
        raise InvalidCheckpoint(f"{INDEX}: weight_map is {shown(file_of)}, not an object with the safetensors "
                                "file of each tensor in the same folder", COPY_WHOLE)
    return {name: tensor for file in sorted({*file_of.values()}) for name, tensor in mapped(folder / file).items()
            if file_of.get(name, file) == file}


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of one file, those in float8 as bf16. Raises InvalidCheckpoint."""
    try:
        # torch has hardly any operation for float8, whose values bf16 holds.
        return {name: tensor.bfloat16() if str(tensor.dtype).startswith("torch.float8") else tensor
                for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError, ValueError) as error:  # a name that is not UTF-8 is a ValueError
        why = printable(getattr(error, "strerror", None) or error)[:100]
        raise InvalidCheckpoint(f"{path.name} cannot be read ({why})", COPY_WHOLE) from error


class Weights(UserDict[str, Any]):
    """The weights of a folder by the names and shapes of the model's state_dict(), without padding.

    Most are views of a mapped file. A stacked matrix is concatenated at each access, so reading the weights
    one by one takes the memory of one.
    """

    def __getitem__(self, name: str) -> torch.Tensor:
        parts = self.data[name]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def weights_of(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> Weights:
    """The weights of a model from the tensors of a folder.

    A model without biases leaves out biases of zeros, and a shorter seq_length takes the first positions. Of
    a tied model the folder may hold the embedding, the output layer, or both if they are equal. Raises
    InvalidCheckpoint for two that differ, and with the first three tensors that are missing, unknown, or of
    another shape or type.
    """
    architecture = architecture_of(config)
    expected = architecture.shapes(config)
    stored = architecture.from_hf_tensors(config, tensors)
    if config.tie_weights and HEAD in stored:
        embedding = f"{architecture.Network.EMBEDDING}.weight"
        head = stored.pop(HEAD)
        of_embedding = stored.setdefault(embedding, head)
        if head[0].dtype != of_embedding[0].dtype or not torch.equal(head[0], of_embedding[0]):
            raise InvalidCheckpoint(f"{CONFIG} ties {HEAD} to {embedding}, but the two differ",
                                    f"Set \"tie_word_embeddings\": false in {CONFIG}, which keeps both.")
    reasons = (_why_unfit(name, stored.get(name), expected.get(name)) for name in {**expected, **stored})
    problems = [*filter(None, reasons)]
    if problems:
        raise InvalidCheckpoint(f"{several(len(problems), 'tensor')} unfit: {'; '.join(problems[:3])}")
    return Weights({name: stored[name] for name in expected})


def _why_unfit(name: str, parts: Sequence[torch.Tensor] | None, expected: list[int] | None) -> str:
    """The reason why stacked parts are not this tensor of the model; '' if they are. expected is its shape."""
    if parts is None:
        return f"{name} is missing"
    if expected is None:
        return f"{printable(name)[:100]} is not part of this model"
    shape = list(parts[0].shape)
    if len(parts) > 1:
        shape[0] = sum(map(len, parts))
    if shape != expected:
        return f"{name} has shape {shape}, the config asks for {expected}"
    others = [str(part.dtype)[6:] for part in parts if not part.is_floating_point()]
    return f"{name} holds {others[0]}, not floating-point numbers" if others else ""


@torch.no_grad()
def load_weights(weights: Weights, model: LanguageModel) -> None:
    """Copies weights into the model that they fit, as weights_of has checked."""
    for name, target in model.state_dict().items():
        fill(target, weights[name])  # the vocabulary's padding becomes zero


def open_model(folder: Path, what: str = "") -> tuple[ModelConfig, Weights]:
    """The config and weights of a checkpoint or a Hugging Face folder.

    Raises UserError (exit 4), whose message begins with what, or with the folder.
    """
    with opening(what or f"checkpoint {printable(folder)}"):
        config = read_config(folder)
        return config, weights_of(config, stored_tensors(folder))


@contextlib.contextmanager
def opening(what: str) -> Iterator[None]:
    """Turns an InvalidCheckpoint inside into a UserError (exit 4) that begins with this name."""
    try:
        yield
    except InvalidCheckpoint as error:
        cure = error.cure or ("Give a checkpoint of train.py or a Hugging Face folder of GPT-2, Qwen3 or Llama with "
                              "safetensors.")
        raise UserError(Exit.CHECKPOINT, f"{what}: {error}. {cure}") from error


def load_model(folder: Path, device: torch.device, options: Options | None = None, what: str = "") -> LanguageModel:
    """The model of a checkpoint or a Hugging Face folder on a device, in fp32 and in training mode.

    Raises UserError (exit 4) like open_model().
    """
    config, weights = open_model(folder, what)
    model = architecture_of(config).build(config, options or Options())
    load_weights(weights, model)
    return model.to(device)


# ---------------------------------------------------------------- --init_from


def starting_config(requested: str, warn: Callable[[str], None] = lambda _: None) -> tuple[Path, ModelConfig]:
    """The folder that --init_from means, with its config; checks the weights too. Raises UserError (exit 4)."""
    folder = resolve(Path(requested), warn)
    config, _ = open_model(folder, f"--init_from {printable(requested)}")
    return folder, config


def start_from(folder: Path, model: LanguageModel) -> None:
    """Copies the weights of --init_from into the model. Raises UserError (exit 4), also for NaN or infinity.

    Ids that the folder's model lacks get the mean of its rows.
    """
    with opening(f"--init_from {printable(folder)}"):
        vocab_size = read_config(folder).vocab_size
        weights = weights_of(replace(model.config, vocab_size=vocab_size), stored_tensors(folder))
        for name in weights:
            if architecture_of(model.config).has_vocabulary_rows(name) and vocab_size < model.config.vocab_size:
                rows = weights[name]
                mean = rows.float().mean(0, keepdim=True).to(rows.dtype)
                weights[name] = [rows, mean.expand(model.config.vocab_size - vocab_size, -1)]
        load_weights(weights, model)
    _check_finite(folder / WEIGHTS, model.named_parameters())


def _check_finite(place: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises UserError (exit 4) for a file with NaN or infinity, with the name of its first such tensor.

    Training could neither use such a tensor nor save it, and would fail only at its first checkpoint.
    """
    for name, tensor in tensors:
        tensor = local(tensor)
        # A sum is one pass over the tensor, but can overflow.
        bad = 0 if tensor.sum().isfinite() else int((~tensor.isfinite()).sum())
        if bad:
            raise UserError(Exit.CHECKPOINT, f"{printable(place)} cannot be trained on: {bad:,} of "
                                             f"{tensor.numel():,} values of {name} are NaN or infinite. Give an "
                                             "older checkpoint or other weights.")


# ---------------------------------------------------------------- --resume_from


def load_training(folder: Path, model: LanguageModel, optimizer: torch.optim.Optimizer, schema: StateSchema,
                  ) -> None:
    """Restores weights and optimizer state from a verified checkpoint.

    schema gives the tensors that the optimizer keeps for a parameter, with shapes and types. All are
    finite, as no others are saved. Raises UserError (exit 4) for the state of another model or optimizer;
    the model may then have changed.
    """
    try:
        load_weights(weights_of(model.config, stored_tensors(folder)), model)
        with safe_open(folder / OPTIMIZER, framework="pt") as file:
            states: dict[torch.Tensor, dict[str, torch.Tensor]] = {
                parameter: {key: like(file.get_tensor(f"{key}.{name}"), parameter) for key in schema(parameter)}
                for name, parameter in model.named_parameters()}
            optimizer.state.update(states)
    except (InvalidCheckpoint, SafetensorError, OSError) as error:
        raise UserError(Exit.CHECKPOINT, f"checkpoint {printable(folder)}: {error}. It cannot be resumed with "
                                         "these flags; start a new run in another --output_dir.") from error
