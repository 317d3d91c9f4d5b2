"""Takes over the output folder before the first step: log.txt, config.toml, mirror, metrics.jsonl and starts.jsonl."""

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpt.architectures.fields import is_number
from gpt.checkpoint.find import checkpoints_of_other_runs, is_inside
from gpt.checkpoint.folder import delete_checkpoints
from gpt.checkpoint.steps import steps_in
from gpt.common.config import Layer, write_toml
from gpt.common.files import why_not_written
from gpt.common.names import FIRST_MODEL, LOG, RUN_CONFIG, RUN_CONFIG_TITLE, STARTS
from gpt.common.ranks import launcher
from gpt.common.words import first_line, shell_line, shell_word
from gpt.planning.decided import flags_of_run, settings_of
from gpt.tokens.stream import TokensChanged
from gpt.training.checkpointing import Checkpointer
from gpt.training.run import Run
from gpt.watching.monitor import Monitor
from gpt.watching.recorder import Recorder, append_row


@contextlib.contextmanager
def open_output(run: Run, argv: Sequence[str], checkpointer: Checkpointer) -> Iterator[Monitor]:
    """Takes over the output folder and yields the Monitor that logs into it; records how the run ended.

    argv is the command line that log.txt shows. Writes log.txt and config.toml, cuts metrics.jsonl back to the
    step, starts trackers and checkpointer. With --overwrite it deletes the checkpoints of other runs. From here
    on a signal waits until the state is saved, and every warning is recorded. A run that goes on in another
    folder saves its first checkpoint here.
    """
    setup, state = run.setup, run.state
    args, runtime = setup.args, setup.runtime
    out = runtime.out
    is_main = runtime.processes.is_main
    resumed = setup.resumed.folder if setup.resumed else None
    output_dir = Path(args.output_dir)
    flags = flags_of_run(setup)
    replaces = bool(resumed and not is_inside(resumed, output_dir))
    if is_main and args.overwrite:
        others = checkpoints_of_other_runs(output_dir, resumed, state.step)
        first = output_dir / FIRST_MODEL
        used = filter(None, (args.teacher, args.init_from, resumed))
        if not any(is_inside(Path(path), first) for path in used):
            others += steps_in(first).values()  # of another run
        delete_checkpoints(others, out)
    out.write_log(output_dir / LOG, f"{launcher()} {shell_line(['train.py', *argv])}", state.step,
                  appends=bool(state.step or args.resume_from) and not replaces)
    runtime.signals.on_stop(
        lambda: f"stopping; the state is saved first (now: {out.doing})", checkpointer.at_risk)
    checkpointer.start(resumed)

    recorder = Recorder(args, output_dir, state, out, replaces=replaces, config={
        **flags.values, **settings_of(setup)["environment"], "parameters": setup.config.num_parameters})
    for row in recorder.rows:
        if is_number(row.get("val_loss")):
            bits = row.get("bits_per_byte")
            checkpointer.validation_curve.append((row["step"], row["val_loss"], bits if is_number(bits) else None))
    if state.step and not runtime.processes.from_main(lambda: checkpointer.is_on_disk):
        checkpointer.save(permanent=False)  # in another folder --resume_from would begin a new run without it
        checkpointer.settle_all()
    if is_main:
        _write_config(run, flags)
    gc.freeze()  # the collector need not look through all these objects again and again
    monitor = Monitor(run, recorder)
    out.on_warning = lambda message: recorder.log(state.step, time=time.time(), advice=message)
    runtime.resources.callback(monitor.close_trackers)
    with recorded_start(run) if is_main else contextlib.nullcontext():
        try:
            yield monitor
        except TokensChanged:
            monitor.catch_up()  # the state that is saved then counts all steps
            raise


def _write_config(run: Run, flags: Layer) -> None:
    """Writes config.toml, with the command that continues the run; a full disk costs a warning."""
    output_dir = Path(run.setup.args.output_dir)
    introduction = (f"{RUN_CONFIG_TITLE}. To continue it:\n"
                    f"    {launcher()} train.py --resume_from {shell_word(output_dir)}")
    try:
        write_toml(output_dir / RUN_CONFIG, flags, introduction, run.recipe.reasons)
    except OSError as error:
        run.setup.runtime.out.warn(
            f"{RUN_CONFIG} may have the flags of an earlier start: {why_not_written(error)}")


@contextlib.contextmanager
def recorded_start(run: Run) -> Iterator[None]:
    """Records in starts.jsonl when a run starts, and how it ends; a script reads the last line.

    A start at step 0, or from a checkpoint of another folder, empties the file. A start without an end was
    killed. A full disk costs the line, not the run.
    """
    setup, signals = run.setup, run.setup.runtime.signals
    output_dir = Path(setup.args.output_dir)

    def append(event: str, **fields: str) -> None:
        append_row(output_dir / STARTS, {"time": time.time(), "event": event, "step": run.state.step, **fields},
                   f"this {event}")

    if not (setup.resumed and run.state.step > 0 and is_inside(setup.resumed.folder, output_dir)):
        with contextlib.suppress(OSError):
            (output_dir / STARTS).unlink(missing_ok=True)
    append("start")
    try:
        yield
    except BaseException as error:
        append("end", how=first_line(error))
        raise
    append("end", how="finished" if signals.number is None else f"stopped by {signals.name}")
