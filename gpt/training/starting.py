"""Where a run starts: at random weights, at the weights of --init_from, or at a checkpoint; and its output folder."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpt.architectures.fields import is_number
from gpt.architectures.table import by_flags, name_of
from gpt.checkpoint import load
from gpt.checkpoint.folder import delete_other_runs
from gpt.common.config import Layer, write_toml
from gpt.common.errors import Exit, UserError
from gpt.common.names import LOG, RUN_CONFIG
from gpt.common.words import printable, shell_line, shell_word
from gpt.hub.names import as_recorded
from gpt.machine.device import name_of_dtype
from gpt.optimizers.build import expected_state
from gpt.planning.inputs import tokenizer_in
from gpt.planning.relations import flags_of_scope
from gpt.planning.schedules import schedule_of
from gpt.tokens.tokenizer import load_tokenizer
from gpt.training.state import Run, Settings, Setup
from gpt.watching.monitor import Monitor
from gpt.watching.recorder import Recorder
from gpt.watching.starts import recorded_start
from model import SIZES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from gpt.training.checkpointing import Checkpointer


# ---------------------------------------------------------------- what a run records of the decisions


def flags_of_run(setup: Setup) -> Layer:
    """The flags of the run as they were decided: those that somebody gave, and those that the program chose."""
    args, config, corpus = setup.args, setup.config, setup.corpus
    left_out = {*flags_of_scope("call"), "config"}
    values = {name: value for name, value in vars(args).items() if value is not None and name not in left_out}
    shape = {"arch": name_of(config), **{name: getattr(config, name) for name in by_flags(config)}}
    decided = {**values, **shape, **setup.recipe.flags()}
    if args.max_minutes and not args.epochs:
        decided.pop("epochs", None)  # they follow from the last step, which may move
    if args.init_from:
        values["init_from"] = decided["init_from"] = as_recorded(args.init_from)
        for name in ("model_size", "init_std"):
            decided.pop(name, None)
        # Maybe the weights' own, which a resumed run needs too.
        path = corpus.tokenizer_path
        decided.update({"vocab_size": corpus.vocab_size} if path is None else {"tokenizer_file": str(path)})
    elif SIZES.get(args.model_size) != (config.n_layer, config.n_head, config.n_embd):
        decided.pop("model_size", None)

    given = {name: value for name, value in values.items() if name in args.config.given
             and decided.get(name, value) == value}
    left_out = {*given, *flags_of_scope("machine")}
    return Layer("", given, {name: value for name, value in decided.items() if name not in left_out})


def settings_of(setup: Setup) -> Settings:
    """The settings of a run, the environment that the last digits of its losses depend on besides them, its flags."""
    args, machine, options = setup.args, setup.machine, setup.plan.options
    flags = flags_of_run(setup)
    # What losses depend on besides the Recipe: a resume names a change, and processes compare it.
    chosen = {"dropout": setup.config.dropout,
              **{name: getattr(args, name) for name in ("beta1", "teacher", "seed", "max_minutes")}}
    threads = {} if machine.on_gpu else {"threads": torch.get_num_threads()}
    environment = {"torch": torch.__version__, "device": machine.name, **threads,
                   "processes": setup.processes.world_size, "precision": machine.precision, "compile": machine.compile,
                   "residual": name_of_dtype(options.residual_dtype), "loss_chunk": options.loss_chunk}
    return {"settings": {**setup.recipe.settings(), **chosen}, "environment": environment,
            "flags": {"given": flags.given, "decided": flags.decided}}


def in_common(setup: Setup) -> dict[str, Any]:
    """What must be the same in all processes that train one model, by names."""
    found = settings_of(setup)
    environment = {name: value for name, value in found["environment"].items() if name not in ("device", "threads")}
    return {**environment, "training tokens": setup.corpus.identity, **asdict(setup.config), **found["settings"]}


# ---------------------------------------------------------------- the weights


def start(run: Run, settings: Settings, tokenizer: Tokenizer | None) -> None:
    """Gives a run the weights of --init_from, or weights, optimizer, loss scale and random numbers of its checkpoint.

    Raises UserError: exit 4 if they do not fit, exit 3 if they were trained with another tokenizer than the corpus's.
    """
    setup, out = run.setup, run.setup.out
    if teacher := setup.args.teacher:
        _check_tokenizer("--teacher", run, Path(teacher), tokenizer)
        out.say(f"teacher     {printable(teacher)}: half of each target is what it expects")
    if setup.resumed:
        resume(run, settings)
    elif setup.args.init_from:
        with out.phase("loading the weights"):
            folder, config = load.starting_config(setup.args.init_from, out.warn)
            load.start_from(folder, run.model)
        out.say(f"start       from the weights of {printable(as_recorded(str(folder)))}; T is "
                f"{setup.config.seq_length:,} of {config.seq_length:,}")
        _check_tokenizer("--init_from", run, folder, tokenizer)
        run.state.init_from = as_recorded(setup.args.init_from)


def _check_tokenizer(flag: str, run: Run, folder: Path, tokenizer: Tokenizer | None) -> None:
    theirs = tokenizer_in(folder)
    if theirs is None or tokenizer is None:
        run.setup.out.warn(f"{flag}: there is no tokenizer to compare that of the corpus with. By another one the ids "
                           "mean other text.")
    elif load_tokenizer(theirs).get_vocab() != tokenizer.get_vocab():
        raise UserError(Exit.DATA, f"the corpus was made with another tokenizer than the weights of {flag}, so its ids "
                                   f"mean other text. Run pretokenize.py with --tokenizer_file {shell_word(theirs)}")


def resume(run: Run, settings: Settings) -> None:
    """Restores weights, optimizer, loss scale and random-number generators, and says what differs from before."""
    setup, stored, say = run.setup, run.setup.stored, run.setup.out.say
    assert setup.resumed
    folder, optimizer = setup.resumed[0], run.optimizer
    notes = load.load_training(folder, run.model, optimizer, partial(expected_state, optimizer))
    if run.scaler.is_enabled() and stored.get("scaler"):
        run.scaler.load_state_dict(stored["scaler"])
    before, step, total = stored.get("settings", {}), stored["step"], setup.recipe.total_steps
    planned = before.get("total_steps", total)
    of = f"{total:,}" if planned == total else f"{total:,}; before, of {planned:,}"
    say(f"resume      from {folder.name}, step {step:,} of {of}")
    with contextlib.suppress(KeyError, TypeError, ArithmeticError):  # somebody has edited the state
        if planned != total:
            was = schedule_of(before).learning_rate_at(step)
            now, end = map(setup.recipe.learning_rate_at, (step + 1, total))
            say(f"resume      the learning rate was {was:.2e}, is now {now:.2e}, ends at {end:.2e}")
    for note in notes:
        say(f"resume      {note}")
    for kind, what in (("settings", "changed"), ("environment", "losses will differ in the last digits")):
        before = stored.get(kind, {})
        changed = [f"{name} {printable(before[name])[:60]} -> {value}" for name, value in settings[kind].items()
                   if before.get(name, value) != value and name not in ("epochs", "total_steps", "max_minutes")]
        if changed:
            say(f"resume      {what}: {', '.join(changed)}")


def forget_best_on_other_tokens(run: Run) -> None:
    """Forgets the best validation loss, and says so, if the resumed run measures other tokens."""
    setup, state, corpus, recipe = run.setup, run.state, run.setup.corpus, run.setup.recipe
    settings, hashes = setup.stored.get("settings", {}), setup.stored.get("data", {})
    is_same = (settings.get("eval_tokens", recipe.eval_tokens) == recipe.eval_tokens
               and hashes.get("val_sha256", corpus.val_identity) == corpus.val_identity)
    if corpus.val is not None and state.best_val_loss is not None and not is_same:
        setup.out.say(f"resume      validation measures other tokens than before: the best so far, {state.best}, does "
                      "not count any more")
        state.best_val_loss, state.best_step, state.validations_without_gain = None, 0, 0


# ---------------------------------------------------------------- the output folder


@contextlib.contextmanager
def open_output(run: Run, argv: Sequence[str], settings: Settings, checkpointer: Checkpointer) -> Iterator[Monitor]:
    """Takes over the output folder: log.txt, config.toml, the mirror, metrics.jsonl; yields the Monitor that logs.

    From here on there is something to save, and a signal waits for it.
    """
    setup, state = run.setup, run.state
    args, recipe, out, is_first = setup.args, setup.recipe, setup.out, setup.processes.is_first
    folder, output_dir = setup.resumed[0] if setup.resumed else None, Path(args.output_dir)
    flags_now = Layer("", settings["flags"]["given"], settings["flags"]["decided"])
    out.write_log(output_dir / LOG, shell_line(["python", "train.py", *argv]), state.step,
                  appends=bool(state.step or args.resume_from))
    setup.runtime.signals.on_stop(lambda: f"stopping; the state is saved first (now: {out.doing})",
                                  checkpointer.at_risk)
    if is_first:
        if args.overwrite:
            delete_other_runs(output_dir, folder, state.step, out)
        with contextlib.suppress(OSError):  # the checkpoints hold the flags too
            write_toml(output_dir / RUN_CONFIG, flags_now, "The flags of the run in this folder. To continue it:\n"
                       f"    python train.py --resume_from {shell_word(output_dir)}", recipe.reasons)
    checkpointer.start(folder)

    told = {**flags_now.values, **settings["environment"], "parameters": setup.config.num_parameters}
    recorder = Recorder(args, output_dir, state, out, told, is_silent=not is_first)
    checkpointer.validations += [(row["step"], row["val_loss"], row.get("bits_per_byte")) for row in recorder.rows
                                 if is_number(row.get("val_loss"))]
    if recipe.cooldown and not checkpointer.is_on_disk:
        checkpointer.save(stays=False)  # in another folder it has no checkpoint yet that --resume_from would find
    gc.freeze()  # so that the collector does not look through all there is again and again
    with Monitor(run, recorder) as monitor, recorded_start(run):
        yield monitor
