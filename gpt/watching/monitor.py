"""What a run prints and records while it trains: the line of a logged step, advice, the closing block."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpt.architectures.table import ModelConfig, architecture_of
from gpt.checkpoint.find import with_more_text
from gpt.common.words import duration, percent, printable, several, shell_word
from gpt.machine.pinned import to_host
from gpt.machine.timing import Mark
from gpt.planning.forecast import forecast_of
from gpt.planning.recipe import Recipe
from gpt.training.state import Run, Runtime, StepResult
from gpt.training.validation import ValidationLoss
from gpt.watching.curve import LossCurve
from gpt.watching.history import BITS_OF, VAL_LOSS_OF
from gpt.watching.overfitting import OverfittingWatch
from gpt.watching.recorder import Fields, Recorder
from gpt.watching.verdict import FRESH, verdict
from model import SIZES

SHORT_MICRO_BATCH = 0.005  # seconds; a GPU is then likely to wait for the host
PATIENCE_SECONDS, PATIENCE_AFTER_SIGNAL = 20.0, 5.0  # for trackers, at the end of a run
MOST_SKIPPED_IN_A_ROW = 10  # fp16's loss scale finds its place within a few steps
WATCHED_SECONDS = 10  # of training, before anything is said about who waits for whom
# The parts of a step's line for where there is no room for all of them.
BY_IMPORTANCE = ("step", "left", "loss", "skipped", "speed", "mfu", "memory", "epoch", "lr", "norm", "time")


def mfu(tokens_per_second: float, config: ModelConfig, runtime: Runtime) -> float | None:
    """The model FLOPs utilization of all devices together (Chowdhery et al. 2022, PaLM, section 4.1).

    None where the peak is unknown.
    """
    peak = runtime.machine.peak_flops
    return tokens_per_second * config.flops_per_token / (peak * runtime.processes.world_size) if peak else None


class TooManySkipped(Exception):
    """So many steps in a row were not finite that nothing is learned any more."""


@dataclass(frozen=True)
class _Noted:
    """Figures of steps, [steps, names], which are on the host once the device has reached the mark."""

    names: list[str]
    numbers: torch.Tensor
    num_counted: int  # of the steps, whose skipped ones were counted before
    step: int  # the last one
    samples_seen: int
    batch_size: int
    end: Mark


class Monitor:
    """Prints and records a run, every warning and piece of advice once; counts its skipped steps."""

    def __init__(self, run: Run, recorder: Recorder):
        setup, runtime = run.setup, run.setup.runtime
        self.state, self._run = run.state, run
        self._args, self._config = setup.args, setup.config
        self._recorder, self._runtime = recorder, runtime
        self._machine, self._out, self._clock, self._gauge = runtime.machine, runtime.out, runtime.clock, runtime.gauge
        self._gpu = runtime.machine.name if runtime.machine.on_gpu else None
        self._curve = LossCurve(math.log(setup.config.vocab_size))
        self._overfitting = OverfittingWatch()
        self._first_step = self._last_logged = run.state.step
        self._last_loss, self._bits_per_byte = math.nan, None
        self._results: list[StepResult] = []  # since the last logged step
        self._num_counted = 0  # of them, by count_skipped
        self._skipped_in_a_row = 0
        self._on_the_way: deque[_Noted] = deque()  # oldest first
        self._said: set[str] = set()
        if run.state.best_val_loss is not None:  # else they are of another validation text
            self._recall(recorder.rows)

    @property
    def _recipe(self) -> Recipe:
        return self._run.setup.recipe

    def __enter__(self) -> Monitor:
        self._out.on_warning = lambda message: self._recorder.log(self.state.step, time=time.time(), advice=message)
        return self

    def __exit__(self, *_: object) -> None:
        self._close_trackers()
        self._out.on_warning = None

    def _close_trackers(self) -> None:
        """Ends the run for all trackers, with less patience after a signal."""
        self._recorder.close(PATIENCE_SECONDS if self._runtime.signals.number is None else PATIENCE_AFTER_SIGNAL)

    # ---- steps

    def show_bar(self) -> None:
        """Shows the bar, on a terminal."""
        self._out.bar(self._recipe.total_steps, self.state.step)

    def add(self, result: StepResult) -> None:
        """Takes the figures of the step just done, for log() to record; nobody waits for the device."""
        self._results.append(result)
        step, recipe = self.state.step, self._recipe
        if step % recipe.log_interval == 0 or step in (1, recipe.total_steps):  # the same ones in a resumed run
            figures = [figure for each in self._results for figure in each.by_name().values()]
            numbers = to_host(torch.stack(figures).view(len(self._results), -1))
            self._on_the_way.append(_Noted(list(result.by_name()), numbers, self._num_counted, step,
                                           self.state.samples_seen, self._run.batch_size, self._clock.mark()))
            self._results, self._num_counted = [], 0

    def count_skipped(self) -> None:
        """Adds the skipped steps since the last logged one to the state's, before it is saved; waits for the device."""
        new, self._num_counted = self._results[self._num_counted:], len(self._results)
        self.state.skipped_steps += int(sum(result.skipped.item() for result in new))

    def log(self, at_once: bool = False) -> None:
        """Prints and records what has arrived. Raises TooManySkipped after MOST_SKIPPED_IN_A_ROW steps not finite.

        That is all, but on a device that runs ahead the steps before the last one: then it has the next step to do
        while the host reads. at_once waits for all of them. Of what every step calls, only this waits for the device.
        """
        is_late = at_once or not self._machine.backend.runs_ahead
        while self._on_the_way and (is_late or self._on_the_way[0].step < self.state.step):
            noted = self._on_the_way.popleft()
            with self._gauge.waiting("device"):
                noted.end.wait()
            seconds = self._clock.lap(noted.end)
            figures = dict(zip(noted.names, noted.numbers.T.tolist(), strict=True))
            skipped = figures.pop("skipped")
            self.state.skipped_steps += int(sum(skipped[noted.num_counted:]))
            for is_skipped in skipped:
                self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_skipped else 0
            step_seconds = seconds / len(skipped)
            self._log(noted, {name: values[-1] for name, values in figures.items()}, step_seconds)
            self._watch(seconds, step_seconds, noted.batch_size)
            self._read_curve(figures["loss"], noted.step)
            self._last_logged = noted.step
            if self._skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
                raise TooManySkipped(f"loss or gradient not finite in {self._skipped_in_a_row} steps in a row up to "
                                     f"step {noted.step:,}; none was applied")

    def _log(self, noted: _Noted, figures: dict[str, float], seconds: float) -> None:
        """Prints the line of a logged step and records it; seconds are those of one step."""
        step, recipe, T = noted.step, self._recipe, self._config.seq_length
        lr, self._last_loss = recipe.learning_rate_at(step), figures["loss"]
        tokens_per_second = recipe.samples_per_step * T / seconds
        share, held = mfu(tokens_per_second, self._config, self._runtime), self._machine.backend.peak_memory()
        self._recorder.log(step, time=time.time(), lr=lr, **figures, tokens=noted.samples_seen * T, seconds=seconds,
                           tokens_per_second=tokens_per_second, mfu=share, memory_bytes=held, gpu=self._gpu)

        epochs = min(recipe.epochs, math.ceil(recipe.passes))
        epoch = min(epochs, (noted.samples_seen - 1) // recipe.windows_per_epoch + 1)
        per_step = (time.perf_counter() - self._clock.began) / (step - self._first_step)
        said = {"step": f"step {step:,}/{recipe.total_steps:,}", "epoch": f"epoch {epoch}/{epochs}",
                "loss": f"loss {figures.pop('loss'):.4f}", "lr": f"lr {lr:.2e}",
                "norm": f"norm {figures.pop('grad_norm'):.2f}",
                **{name: f"{name} {value:.4g}" for name, value in figures.items()},
                "time": f"{seconds * 1000:.1f} ms", "speed": f"{tokens_per_second:,.0f} tok/s",
                **({"mfu": f"mfu {percent(share)}"} if self._gpu or share else {}), "memory": f"{held / 2**30:.1f} GiB",
                "left": f"{duration(per_step * (recipe.total_steps - step))} left"}
        if self.state.skipped_steps:
            said["skipped"] = f"{self.state.skipped_steps} skipped"
        by_importance = [said[name] for name in (*BY_IMPORTANCE, *figures) if name in said]
        self._out.at(step, " | ".join(said.values()), by_importance)

    # ---- warnings and advice

    def warn_once(self, kind: str, message: str) -> None:
        """Prints a warning unless one of its kind was printed before."""
        if kind not in self._said:
            self._said.add(kind)
            self._out.warn(message)

    def _watch(self, seconds: float, step_seconds: float, batch_size: int) -> None:
        """Says what holds the device back, after `seconds` more of training."""
        gauge = self._gauge
        gauge.lap(seconds)
        if gauge.host_is_late and gauge.data_wait_fraction > 0.05 and gauge.waited["data"] > WATCHED_SECONDS:
            self.warn_once("loader", f"the loader holds the device back: {gauge.data_wait_fraction:.0%} of the time is "
                                     "spent waiting for data. Give --preload ram, or put the tokens on a faster disk.")

        is_short = step_seconds * batch_size / self._recipe.samples_per_step < SHORT_MICRO_BATCH
        is_idle = is_short and gauge.trained > WATCHED_SECONDS and gauge.host_is_late
        if is_idle and self._machine.backend.runs_ahead:
            self.warn_once("batch", "the GPU waits for the host: its micro-batches are too small. Give more than "
                                    f"--batch_size {batch_size}, or --batch_size auto.")

    def _recall(self, rows: Sequence[Fields]) -> None:
        """Takes in what a resumed run has recorded; what was said of it then is not said again."""
        for row in rows:
            loss, val_loss = row.get("loss"), row.get("val_loss")
            if isinstance(loss, float):
                self._overfitting.add_losses([loss])
            if isinstance(val_loss, float) and self._overfitting.add_validation(row["step"], val_loss):
                self._said.add("overfitting")

    def _read_curve(self, losses: Sequence[float], last_step: int) -> None:
        """Says what the losses of the steps since the last logged one show."""
        self._overfitting.add_losses(losses)
        for step, loss in enumerate(losses, self._last_logged + 1):
            if spike := self._curve.add(step, loss):
                self._out.warn(spike)
        peak = self._recipe.learning_rate
        if advice := self._curve.advice(peak, self._recipe.learning_rate_at(last_step) / peak):
            kind = advice.partition(":")[0]  # 'the loss explodes', for example
            self.warn_once(kind, f"advice at step {last_step:,}: {advice}")

    # ---- between steps

    def log_validation(self, loss: ValidationLoss, is_best: bool) -> None:
        """Prints and records a validation."""
        step, bits = self.state.step, loss.bits_per_byte
        self._bits_per_byte = bits
        shares = {f"{VAL_LOSS_OF}{name}": share.nats for name, share in loss.shares.items()}
        shares |= {f"{BITS_OF}{name}": share.bits_per_byte for name, share in loss.shares.items()}
        self._recorder.log(step, time=time.time(), val_loss=loss.nats, perplexity=loss.perplexity, bits_per_byte=bits,
                           **shares)
        self._out.say(f"validation at step {step:,} | loss {loss.nats:.4f} | perplexity {loss.perplexity:,.2f} | bits "
                      f"per byte {'n/a' if bits is None else f'{bits:.4f}'}"
                      + "".join(f" | {name} {share.nats:.4f}" for name, share in loss.shares.items())
                      + " | best so far" * is_best)
        if advice := self._overfitting.add_validation(step, loss.nats):
            self.warn_once("overfitting", advice)

    def show_sample(self, text: str | None) -> None:
        """Prints and records a sample of the model's text, if there is one."""
        if text is not None:
            self._recorder.log(self.state.step, time=time.time(), sample=text)
            lines = text.replace("\n", "\n  | ")
            self._out.say(f"sample at step {self.state.step:,}\n  | {lines}")

    # ---- the end

    @property
    def seconds(self) -> float:
        """Since the first step began, everything included."""
        return time.perf_counter() - self._clock.began

    def close(self, seconds: float, is_saved: bool) -> None:
        """Ends the bar and prints the closing block."""
        state = self.state
        self._out.end_bar()
        self._close_trackers()
        self._out.close()
        if advice := self._curve.verdict(self._last_loss, self._recipe.learning_rate):
            self._out.warn(advice)
        forecast = forecast_of(self._run.setup) if self._runtime.signals.number is None else None
        closing = {
            "trained": f"{several(state.step, 'step')}, {state.samples_seen * self._config.seq_length:,} tokens; "
                       f"{duration(seconds)} since this start",
            "loss": "" if math.isnan(self._last_loss) else f"{self._last_loss:.4f} at step {self._last_logged:,}",
            "val loss": "" if state.best_val_loss is None else f"{state.best}, the best",
            "forecast": f"{forecast}; it is {self._bits_per_byte:.2f}" if forecast and self._bits_per_byte else "",
            "skipped": several(state.skipped_steps, "step") if state.skipped_steps else "",
            "checkpoint": f"{printable(self._args.output_dir)}/checkpoint-{state.step}" if is_saved else "none"}
        self._out.say("\n".join(f"{key:<12}{value}" for key, value in closing.items() if value))

    def say_what_next(self, best_step: int) -> None:
        """Prints the command to type next: to generate, and what leads to a better model; after a signal to continue.

        best_step is that of the best checkpoint by validation on the disk, 0 where there is none.
        """
        signals, folder = self._runtime.signals, shell_word(self._args.output_dir)
        if signals.number is not None:
            self._out.say(f"stopped by {signals.name}; to continue: python train.py --resume_from {folder}")
            return
        best = "" if best_step in (0, self.state.step) else (
            f"/best\n      the best by validation, step {best_step:,}; {folder} alone is the last one")
        self._out.say(f"next: python generate.py --ckpt {folder}{best}")
        if self._overfitting.validations:
            self._say_what_pays(folder, f"{folder}/best" if best else folder)

    def _say_what_pays(self, folder: str, teacher: str) -> None:
        """Prints whether a longer run, a larger model, more text or a teacher pays, why, and the commands; if the
        figures tell.
        """
        state, config, watch, corpus = self.state, self._config, self._overfitting, self._run.setup.corpus
        sizes = {name: architecture_of(config).sized(shape, config.vocab_size, config.seq_length).num_parameters
                 for name, shape in SIZES.items() if not state.init_from}
        found = verdict(watch.validations, watch.losses[-1][0], state.samples_seen * config.seq_length,
                        corpus.train.length, config.num_parameters, sizes)
        if found and corpus.tokenizer_path:
            what, why = found
            roads = {"longer": f"python train.py --resume_from {folder} --max_steps {2 * state.step}",
                     "more text": with_more_text(folder, corpus.tokenizer_path, state.seconds)}
            command = roads.get(what, f"python train.py --config {folder}/config.toml \\\n"
                                      f"    --model_size {what} --output_dir {folder}-{what}")
            self._out.say(f"{what} pays: {why}\n{command}")
            if what == "more text" and self._recipe.overfits and self._recipe.passes > FRESH and not self._args.teacher:
                self._out.say("a teacher pays: another model learns more from the text and this one\n"
                              f"python train.py --config {folder}/config.toml --teacher {teacher} \\\n"
                              f"    --seed {self._args.seed + 1} --output_dir {folder}-taught")
