"""Starts a run from random weights, from pretrained weights (--init_from), or from a checkpoint (--resume_from)."""

import contextlib
from functools import partial

from gpt.checkpoint import load
from gpt.common.words import printable, several, short
from gpt.hub.names import as_recorded
from gpt.optimizers.build import state_schema
from gpt.planning.decided import measures_same_tokens, settings_of
from gpt.planning.schedules import schedule_of
from gpt.training.run import Run


def load_start(run: Run) -> None:
    """Loads the pretrained weights, or the whole state of the resumed checkpoint; random weights stay.

    Prints where the run starts, and records --init_from in the state. Raises UserError (exit 4) for weights of
    another shape, a damaged file, NaN or infinity.
    """
    setup, out = run.setup, run.setup.runtime.out
    if setup.resumed:
        resume(run)
    elif setup.args.init_from:
        with out.phase("loading the weights"):
            processes = setup.runtime.processes
            # A value that is not finite may lie in one process's shard, a damaged file on one machine.
            is_apart = setup.memory.is_sharded or processes.num_machines > 1
            with processes.errors_of_this_rank() if is_apart else contextlib.nullcontext():
                folder, config = load.starting_config(setup.args.init_from, out.warn)
                load.start_from(folder, run.model)
        num_new = setup.config.vocab_size - config.vocab_size
        if num_new:
            out.say(f"start       {several(num_new, 'id')} that the model lacks begin as the mean of the others")
        out.say(f"start       from the weights of {printable(as_recorded(str(folder)))}, in sequences of "
                f"{setup.config.seq_length:,} tokens; it can read {config.seq_length:,}")
        run.state.init_from = as_recorded(setup.args.init_from)


def resume(run: Run) -> None:
    """Restores weights, optimizer and loss scale, and prints the changes of the settings.

    The counters are in run.state already; the best validation loss is forgotten if other tokens are measured
    now. Raises UserError (exit 4) for the state of another model, NaN or infinity.
    """
    setup, say = run.setup, run.setup.runtime.out.say
    assert setup.resumed
    folder, stored = setup.resumed
    load.load_training(folder, run.model, run.optimizer, partial(state_schema, run.optimizer))
    if run.scaler.is_enabled() and stored.scaler:
        run.scaler.load_state_dict(dict(stored.scaler))
    step, total = stored.state.step, setup.recipe.total_steps
    planned = stored.settings.get("total_steps", total)
    length = f"{total:,}" if planned == total else f"{total:,} (planned before: {planned:,})"
    say(f"resume      from {folder.resolve().name}, step {step:,} of {length}")
    if planned != total:
        rate_before = schedule_of(stored.settings).learning_rate_at(step)
        rate_now, end = map(setup.recipe.learning_rate_at, (step + 1, total))
        rises = ": the loss rises first, then falls again" if rate_now > rate_before and end < rate_now else ""
        say(f"resume      the learning rate was {rate_before:.2e}, is now {rate_now:.2e}, ends at {end:.2e}{rises}")
    recorded = settings_of(setup)
    for kind, before, what in (("settings", stored.settings, "changed"),
                               ("environment", stored.environment, "losses will differ in the last digits")):
        changed = [f"{name} {short(before[name])} -> {short(value)}" for name, value in recorded[kind].items()
                   if before.get(name, value) != value
                   and name not in ("epochs", "total_steps", "max_minutes", "limits", "teacher_sha256")]
        if changed:
            say(f"resume      {what}: {', '.join(changed)}")
    forget_best_on_other_tokens(run)


def forget_best_on_other_tokens(run: Run) -> None:
    """Forgets the best validation loss and the used patience if the resumed run measures other tokens; says so.

    Other tokens are another validation text, or another number of its tokens.
    """
    stored, corpus = run.setup.stored, run.setup.corpus
    state = run.state
    is_same = measures_same_tokens(stored, corpus, run.recipe.eval_tokens)
    if corpus.val is not None and state.best_val_loss is not None and not is_same:
        run.setup.runtime.out.say("resume      validation measures other tokens than before: the best so far, "
                                  f"{state.best}, does not count any more")
        state.best_val_loss, state.best_step = None, 0
        state.validations_without_gain = 0
        state.measured_from = state.validated_step or state.step
