"""The decisions before the first step (Setup), and their records in config.toml and each checkpoint."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gpt.architectures.table import fields_with_flags, name_of
from gpt.checkpoint.stored import StoredState
from gpt.common.config import Layer
from gpt.hub.names import as_recorded
from gpt.machine.device import name_of_dtype
from gpt.machine.runtime import Runtime
from gpt.planning.evidence import NgramStatistics
from gpt.planning.inputs import Inputs
from gpt.planning.kernels import Kernels
from gpt.planning.memory import MemorySetting
from gpt.planning.recipe import Recipe
from gpt.planning.relations import flags_of_scope
from gpt.tokens.corpus import Corpus
from model import SIZES, Options


@dataclass(frozen=True)
class Setup(Inputs):
    """The inputs of a run and every decision about it, each made once. config has the decided dropout.

    micro_batch is the planned number of sequences in a forward pass of each process. token_place is 'gpu',
    'ram' or 'mmap'. recipe_for makes the recipe for another last step, or for the last step that flags and text
    allow (None). shows_samples is False for a run without samples of text. memory decides the bytes of a step,
    which memory_parts predicts; checkpoint_bytes is the size of one checkpoint. why_strategy is '' for a single
    process. ngrams holds the text's n-gram statistics in the main process, where a forecast is possible.
    """

    runtime: Runtime
    options: Options
    kernels: Kernels
    recipe: Recipe
    memory: MemorySetting
    checkpoint_bytes: int
    token_place: str
    why_token_place: str
    micro_batch: int
    why_strategy: str
    recipe_for: Callable[[int | None], Recipe]
    shows_samples: bool
    ngrams: NgramStatistics | None = None

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.samples_per_step * self.config.seq_length


# ---------------------------------------------------------------- what a run records of its decisions


def measures_same_tokens(stored: StoredState, corpus: Corpus, eval_tokens: int) -> bool:
    """True if a resumed run measures the validation tokens that its checkpoint measured, and as many of them."""
    return (stored.settings.get("eval_tokens", eval_tokens) == eval_tokens
            and stored.data.get("val_sha256", corpus.val_identity) == corpus.val_identity)


def flags_of_run(setup: Setup) -> Layer:
    """The flags of a run for config.toml: given by the user, or decided by the program.

    Flags of a single call, such as --dry_run, are left out, and flags of the machine with their defaults.
    """
    args, config = setup.args, setup.config
    unrecorded = {*flags_of_scope("call"), "origin"}
    values = {name: value for name, value in vars(args).items() if value is not None and name not in unrecorded}
    if args.mirror_to:
        values["mirror_to"] = os.path.abspath(args.mirror_to)  # links stay: the mirror's disk may be mounted elsewhere
    shape = {"arch": name_of(config), **{name: getattr(config, name) for name in fields_with_flags(config, vars(args))}}
    decided = {**values, **shape, **setup.recipe.flags()}
    if args.epochs:
        decided["epochs"] = args.epochs  # not those until the end that the minutes allow
    elif args.max_minutes or args.max_steps:
        decided.pop("epochs", None)  # they follow from the last step, which may move
    origin = args.init_from or setup.stored.state.init_from  # a resumed run has no flag for it
    if origin:
        values["init_from"] = decided["init_from"] = as_recorded(origin)
        for name in ("model_size", "init_std"):
            decided.pop(name, None)
        # A resumed run needs the vocabulary again, which the pretrained weights may have brought.
        path = setup.corpus.tokenizer_path
        decided.update({"vocab_size": setup.corpus.vocab_size} if path is None else {"tokenizer_file": str(path)})
    elif SIZES.get(args.model_size) != (config.n_layer, config.n_head, config.n_embd):
        decided.pop("model_size", None)

    given = {name: value for name, value in values.items()
             if name in {*args.origin.given, "init_from"} - flags_of_scope("resume")
             and decided.get(name, value) == value}
    left_out = {*given, *flags_of_scope("machine")}
    return Layer("", given, {name: value for name, value in decided.items() if name not in left_out})


def settings_of(setup: Setup) -> dict[str, dict[str, Any]]:
    """Returns three dicts by name: "settings", the "environment" that decides a loss's last digits, and "flags".

    A checkpoint records them, so the path of the mirror on this machine is left out: config.toml alone has it.
    """
    args, machine = setup.args, setup.runtime.machine
    layer = flags_of_run(setup)
    decided = {name: value for name, value in layer.decided.items() if name != "mirror_to"}
    # The settings besides the recipe that change the losses: a resume reports a
    # change, and processes compare them.
    chosen = {"dropout": setup.config.dropout, "input_noise": args.input_noise,
              "label_smoothing": args.label_smoothing or 0.0, "beta1": args.beta1, "teacher": args.teacher,
              "teacher_sha256": setup.teacher_sha256, "seed": args.seed, "max_minutes": args.max_minutes,
              "limits": [args.epochs, args.max_steps]}
    threads = {} if machine.on_gpu else {"threads": torch.get_num_threads()}
    attention = {"attention": setup.kernels.attention} if setup.kernels.attention else {}
    environment = {"torch": torch.__version__, "device": machine.name, **threads, **attention,
                   "processes": setup.runtime.processes.world_size, "precision": machine.precision,
                   "compile": machine.compile, "residual": name_of_dtype(setup.options.residual_dtype),
                   "loss_chunk": setup.options.loss_chunk}
    return {"settings": {**setup.recipe.settings(), **chosen}, "environment": environment,
            "flags": {"given": layer.given, "decided": decided}}


def same_everywhere(setup: Setup) -> dict[str, Any]:
    """The facts that all processes of a run must share, by name."""
    recorded = settings_of(setup)
    environment = {name: value for name, value in recorded["environment"].items() if name not in ("device", "threads")}
    corpus = setup.corpus  # the rest of a training file may be validation text, where a validation file is missing
    return {**environment, "training tokens": (corpus.identity, corpus.train.length),
            "validation tokens": corpus.val_identity, **asdict(setup.config), **recorded["settings"]}
