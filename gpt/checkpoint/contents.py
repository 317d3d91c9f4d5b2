"""The files of a checkpoint and their content, decided here alone.

    config.json  model.safetensors  generation_config.json  tokenizer.json  tokenizer_config.json    published
    optimizer.safetensors  trainer_state.json                                                        for resuming
    model.safetensors.index.json         names the model's tensors, for loaders that take every *.safetensors
    chat_template.jinja                                                          published, if it learned to answer
    README.md  manifest.json                                 the model card; sizes and sha256, written last

No file is a pickle: tensors are in safetensors files, the rest is JSON or Markdown.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch

from gpt.architectures.table import ModelConfig, architecture_of, name_of
from gpt.common.names import (
    CARD,
    CONFIG,
    GENERATION,
    INDEX,
    OPTIMIZER,
    STATE,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
)
from gpt.machine.environment import available_ram
from gpt.ops.shards import full_tensor, is_sharded
from gpt.tokens.tokenizer import END, START, opening_ids, parse
from model import LanguageModel

NEEDED = (WEIGHTS, OPTIMIZER, STATE)  # in the manifest of every checkpoint
# Files that are published with a model's weights.
PUBLISHED = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, "vocab.json", "merges.txt",
             "special_tokens_map.json", "added_tokens.json", CARD, "LICENSE")

MOST_ROWS = 20  # of a model card's table
STATE_FORMAT = "gpt-trainer"
STATE_VERSION = 1
# The types that are written, by safetensors' names.
SAFETENSORS_TYPES = {torch.float32: "F32", torch.int8: "I8", torch.uint8: "U8"}
ALIGNMENT = 64  # bytes, of each tensor in a snapshot


@dataclass(frozen=True)
class StateTensor:
    """Shape and type of a tensor that an optimizer keeps for a parameter."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


# Maps a parameter to the tensors that the optimizer keeps for it, by name.
StateSchema: TypeAlias = Callable[[torch.Tensor], dict[str, StateTensor]]


@dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint, by name.

    model is the network's state dict. training holds the optimizer's state, such as
    'exp_avg.transformer.wte.weight'.
    """

    model: dict[str, torch.Tensor]
    training: dict[str, torch.Tensor]

    @staticmethod
    def of(model: LanguageModel, optimizer: torch.optim.Optimizer) -> "Tensors":
        """The tensors on their device, without copies."""
        training = {f"{key}.{name}": value.detach() for name, parameter in model.named_parameters()
                    for key, value in optimizer.state[parameter].items()}
        return Tensors({name: tensor.detach() for name, tensor in model.state_dict().items()}, training)

    def join_gather(self) -> None:
        """Takes part in the all-gathers of sharded tensors, which every process but the saving one must do.

        The saving process calls gathered() or Snapshot.take() meanwhile.
        """
        for tensor in (*self.model.values(), *self.training.values()):
            full_tensor(tensor)

    def gathered(self) -> "Tensors":
        """The same tensors, sharded ones whole, in RAM if they fit there: a GPU may have no room for all.

        The other processes must call join_gather() meanwhile.
        """
        fits_ram = available_ram() > self.num_bytes

        def whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: full_tensor(tensor).cpu() if fits_ram and is_sharded(tensor) else full_tensor(tensor)
                    for name, tensor in tensors.items()}

        return Tensors(whole(self.model), whole(self.training))

    @property
    def num_bytes(self) -> int:
        """Bytes that a Snapshot of the whole tensors takes, each aligned."""
        return sum(aligned(tensor.nbytes) for part in (self.model, self.training) for tensor in part.values())


def aligned(num_bytes: int) -> int:
    """The bytes rounded up to a multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def tensor_files(config: ModelConfig, tensors: Tensors) -> dict[str, dict[str, torch.Tensor]]:
    """The safetensors files by name: the weights by Hugging Face's names, and what resuming needs."""
    return {
        WEIGHTS: architecture_of(config).to_hf_tensors(config, tensors.model),
        OPTIMIZER: tensors.training,
    }


def text_files(step: int, config: ModelConfig, state: Mapping[str, Any], tokenizer_json: str | None,
               end_of_text_id: int | None, card: str, chat_template: str = "") -> dict[str, str]:
    """The text of all other files except the manifest, by name.

    state holds the other fields of trainer_state.json, as JSON values: all but format, version, arch and model.
    Without tokenizer_json (None) the tokenizer's two files are left out; end_of_text_id None is null in the
    configs. Texts begin with the tokenizer's opening id, or else with the end-of-text id. A model that learns
    to answer has a chat_template, in Jinja; then the end of an answer ends a text too.
    """
    names = {token["id"]: token["content"] for token in json.loads(tokenizer_json or "{}").get("added_tokens", [])}
    end_of_answer = [index for index, name in names.items() if name == END and chat_template]
    opening = opening_ids(parse(tokenizer_json)) if tokenizer_json is not None else []
    begin_of_text_id = opening[0] if opening else end_of_text_id
    architecture = architecture_of(config)
    # The index of the weights in their one file, by Hugging Face's names, follows from the shapes alone.
    empty = {name: torch.empty(shape, device="meta") for name, shape in architecture.shapes(config).items()}
    tensors = architecture.to_hf_tensors(config, empty)
    files = {
        CONFIG: json_text({**architecture.to_hf_config(config, end_of_text_id), "bos_token_id": begin_of_text_id}),
        # Without max_length a model of few positions runs beyond them, an IndexError. A default of
        # max_new_tokens would overrule the max_length of a caller.
        GENERATION: json_text({
            "bos_token_id": begin_of_text_id,
            "eos_token_id": [*end_of_answer, end_of_text_id] if end_of_answer else end_of_text_id,
            "max_length": config.seq_length}),
        STATE: json_text({"format": STATE_FORMAT, "version": STATE_VERSION, "step": step,
                          "arch": name_of(config), "model": asdict(config), **state}),
        CARD: card,
        INDEX: json_text({"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
                          "weight_map": dict.fromkeys(sorted(tensors), WEIGHTS)}),
    }
    if tokenizer_json is not None:
        files[TOKENIZER] = tokenizer_json
        special = {}
        if end_of_text_id in names:
            special = {**dict.fromkeys(("eos_token", "unk_token", "pad_token"), names[end_of_text_id]),
                       "bos_token": names.get(begin_of_text_id)}
        # A collator leaves padding out of the loss: padded with the end of text, a
        # model would not learn to end.
        padding = {"pad_token": START} if special and START in names.values() and not chat_template else {}
        # What AutoTokenizer of transformers 4 and 5 needs besides tokenizer.json.
        fields = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.seq_length,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],  # else transformers 4 adds token_type_ids
            **special,
            **padding,
        }
        if chat_template:
            files[TEMPLATE] = fields["chat_template"] = chat_template
        files[TOKENIZER_CONFIG] = json_text(fields)
    return files


def json_text(fields: Mapping[str, Any]) -> str:
    """The text of a JSON file."""
    return json.dumps(fields, indent=1)


def model_card(config: ModelConfig, facts: Mapping[str, str],
               curve: Sequence[tuple[int, float, float | None]] = (), command: str = "",
               on_hub: Mapping[str, Sequence[str | None]] | None = None) -> str:
    """The text of README.md: the model's shape, facts about its training, its validation curve, how to open it.

    A point of the curve is (step, loss in nats, bits per byte or None); of more than MOST_ROWS points every
    second, third and so on is shown, with the last one. command is shown as code. on_hub maps a field of the
    hub's metadata to the repositories from which the model was made; None among them is left out.
    """
    shared = f" ({config.n_kv_head} of keys and values)" if config.n_kv_head != config.n_head else ""
    named = {field: list(dict.fromkeys(filter(None, repos))) for field, repos in (on_hub or {}).items()}
    every = max(1, -(-len(curve) // MOST_ROWS))
    rows = [f"| {step:,} | {loss:.4f} | {'n/a' if bits is None else f'{bits:.4f}'} |"
            for step, loss, bits in curve[(len(curve) - 1) % every::every]]
    head = ["", "| step | validation loss in nats | bits per byte |", "| --- | --- | --- |"] if rows else []
    return "\n".join([
        "---", "library_name: transformers", "pipeline_tag: text-generation",
        *(line for field, repos in named.items() if repos
          for line in (f"{field}:", *(f"- {repo}" for repo in repos))),
        "---", "",
        f"# {architecture_of(config).NAME}, {config.num_parameters:,} parameters", "",
        f"- layers {config.n_layer}, heads {config.n_head}{shared}, width {config.n_embd}, context "
        f"{config.seq_length}, vocabulary {config.vocab_size:,}",
        *(f"- {name}: {value}" for name, value in facts.items()),
        *head, *rows,
        *(["", f"    {command}"] if command else []), "",
        "    from transformers import AutoModelForCausalLM, AutoTokenizer",
        "    model = AutoModelForCausalLM.from_pretrained(\"path of this folder\")",
        "    tokenizer = AutoTokenizer.from_pretrained(\"path of this folder\")", ""])
