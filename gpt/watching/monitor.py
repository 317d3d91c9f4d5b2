"""Prints and records a run while it trains: the logged steps, warnings, validations, the closing block."""

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.architectures.table import architecture_of
from gpt.checkpoint.commands import flags_of_another_run, more_text_commands
from gpt.checkpoint.history import BITS_OF, VAL_LOSS_OF, Row
from gpt.checkpoint.steps import steps_in
from gpt.common.names import FIRST_MODEL, TOKENIZER, TRAINS_NEXT
from gpt.common.ranks import launcher
from gpt.common.words import duration, percent, printable, several, shell_word
from gpt.machine.backends import to_host
from gpt.machine.runtime import Mark
from gpt.planning.defaults import has_teacher_or_noise, times_too_short
from gpt.planning.first_model import lowest_loss
from gpt.planning.forecast import bits_after_twice, forecast_of
from gpt.planning.plan import MIN_VAL_TOKENS
from gpt.training.pacing import mfu
from gpt.training.recovery import TooManySkipped
from gpt.training.run import Figures, Run
from gpt.training.validation import ValidationLoss
from gpt.watching.curve import LossCurve, OverfittingWatch
from gpt.watching.improvement import FRESH, LONGER, MORE_TEXT, best_improvement
from gpt.watching.recorder import Recorder
from model import SIZES

SHORT_MICRO_BATCH_SECONDS = 0.005  # after a shorter one a GPU is likely to wait for the host
TRACKER_SECONDS = 20.0  # the longest wait for trackers at the end of a run
TRACKER_SECONDS_AFTER_SIGNAL = 5.0
NEARLY_ALL = 0.99  # of the planned steps: a run that made fewer was cut off
MOST_SKIPPED_IN_A_ROW = 10  # fp16's loss scale is found within a few steps
WATCHED_SECONDS = 10  # of training, or of waiting for data, before a warning
# The parts of a step's line; a narrow terminal leaves out the last ones.
BY_IMPORTANCE = ("step", "left", "loss", "skipped", "speed", "mfu", "gpu", "memory", "epoch", "lr", "norm", "time")


@dataclass(frozen=True)
class _Enqueued:
    """The figures of some steps, [steps, names]; the host can read them once the device reaches the mark."""

    names: list[str]
    figures: torch.Tensor
    num_counted: int  # of these steps, from the first on, those that state.skipped_steps counts already
    step: int  # the last of them
    samples_seen: int
    end: Mark


class Monitor:
    """Prints and records a run while it trains; each kind of warning once."""

    def __init__(self, run: Run, recorder: Recorder):
        setup, runtime = run.setup, run.setup.runtime
        self.state, self._run = run.state, run
        self._args, self._config = setup.args, setup.config
        self._recorder, self._runtime = recorder, runtime
        self._out = runtime.out
        self._gpu = runtime.machine.name if runtime.machine.on_gpu else None
        self._curve = LossCurve(math.log(setup.config.vocab_size), setup.recipe.lower_rate_argument)
        self._overfitting = OverfittingWatch()
        self._first_step = run.state.step
        self._last_loss, self._step_of_loss = math.nan, 0
        self._loss_before = math.inf  # the validation loss of the weights of --init_from
        self._bits_per_byte: float | None = None  # of the last validation
        self._results: list[Figures] = []  # of the steps since the last logged one
        self._num_counted = 0  # how many of the first of these steps catch_up has already counted
        self._skipped_in_a_row = 0
        self._enqueued: deque[_Enqueued] = deque()  # oldest first
        self._warned: set[str] = set()  # the kinds of the printed warnings
        self._recall(recorder.rows)

    def close_trackers(self) -> None:
        """Tells the trackers that the run has ended, and waits for them, after a signal for a shorter time.

        A second call does nothing. Later records are in metrics.jsonl alone.
        """
        self._recorder.close(
            TRACKER_SECONDS if self._runtime.signals.number is None else TRACKER_SECONDS_AFTER_SIGNAL)

    # ---- steps

    def add(self, result: Figures) -> None:
        """Takes the figures of the step just enqueued, which the state counts already; log() prints them.

        At a logged step it enqueues the copy to the host of all figures since the last one, without a wait.
        loss, grad_norm and skipped are always among them; all steps have the same names in the same order.
        """
        self._results.append(result)
        step, recipe = self.state.step, self._run.recipe
        # The logged steps do not depend on where a run was resumed.
        if step % recipe.log_interval == 0 or step in (1, recipe.total_steps):
            on_host = to_host(torch.stack([
                figure for each in self._results for figure in each.values()]).view(len(self._results), -1))
            self._enqueued.append(_Enqueued(list(result), on_host, self._num_counted, step,
                                            self.state.samples_seen, self._runtime.clock.mark()))
            self._results = []
            self._num_counted = 0

    def catch_up(self) -> None:
        """Logs the waiting steps, and counts the skipped ones of all steps, before a save or a measurement.

        Waits for the device. Raises TooManySkipped like log().
        """
        self.log(includes_latest=True)
        self.state.skipped_steps += int(sum(
            result["skipped"].item() for result in self._results[self._num_counted:]))
        self._num_counted = len(self._results)

    def log(self, includes_latest: bool = False) -> None:
        """Prints and records the logged steps, the latest one only with includes_latest.

        A device that runs ahead works on the latest step while the host reads. On other devices every call
        includes it. Warns of spikes, a bad curve, and a loader or host that is too slow. Raises TooManySkipped
        after MOST_SKIPPED_IN_A_ROW steps that were not finite.
        """
        is_for_all = includes_latest or not self._runtime.machine.backend.runs_ahead
        while self._enqueued and (is_for_all or self._enqueued[0].step < self.state.step):
            logged = self._enqueued.popleft()
            with self._runtime.gauge.waiting("device"):
                logged.end.wait()
            seconds = self._runtime.clock.lap(logged.end)
            figures = dict(zip(logged.names, logged.figures.T.tolist(), strict=True))
            skipped = figures.pop("skipped")
            self.state.skipped_steps += int(sum(skipped[logged.num_counted:]))
            for is_skipped in skipped:
                self._skipped_in_a_row = self._skipped_in_a_row + 1 if is_skipped else 0
            step_seconds = seconds / len(skipped)
            self._log_step(logged, {name: values[-1] for name, values in figures.items()}, step_seconds)
            self._watch(seconds, step_seconds)
            self._read_curve([loss if self._has_targets(loss) else math.nan for loss in figures["loss"]], logged.step)
            if self._skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
                raise TooManySkipped(f"loss or gradient not finite in {self._skipped_in_a_row} steps in a row up to "
                                     f"step {logged.step:,}; none was applied")

    def _has_targets(self, loss: float) -> bool:
        """False for a loss of 0: no token of the step's conversations counts."""
        return loss != 0 or not self._run.setup.corpus.converses

    def _log_step(self, logged: _Enqueued, figures: dict[str, float], step_seconds: float) -> None:
        """Prints and records one logged step."""
        step, recipe = logged.step, self._run.recipe
        lr = recipe.learning_rate_at(step)
        loss = figures["loss"] if self._has_targets(figures["loss"]) else None
        if loss is not None:
            self._last_loss, self._step_of_loss = loss, step
        tokens_per_second = self._run.setup.tokens_per_step / step_seconds
        utilization = mfu(tokens_per_second, self._config, self._runtime)
        backend = self._runtime.machine.backend
        memory_bytes = backend.peak_memory()
        busy = backend.utilization()
        self._recorder.log(step, time=time.time(), lr=lr, **{**figures, "loss": loss},
                           tokens=logged.samples_seen * self._config.seq_length, seconds=step_seconds,
                           tokens_per_second=tokens_per_second, mfu=utilization, memory_bytes=memory_bytes,
                           gpu=self._gpu, gpu_utilization=busy)

        epochs = min(recipe.epochs, math.ceil(recipe.passes))
        epoch = min(epochs, (logged.samples_seen - recipe.samples_of_others - 1) // recipe.windows_per_epoch + 1)
        wall_seconds = self.seconds / (step - self._first_step)  # of a step, everything included
        more = {name: f"{name} {value:.4g}" for name, value in figures.items()
                if name not in ("loss", "grad_norm") and "/" not in name}  # norm/h.0, of a layer, is only recorded
        parts = {"step": f"step {step:,}/{recipe.total_steps:,}", "epoch": f"epoch {epoch}/{epochs}",
                 "loss": "loss n/a" if loss is None else f"loss {loss:.4f}",
                 "lr": f"lr {lr:.2e}", "norm": f"norm {figures['grad_norm']:.2f}", **more,
                 "time": f"{step_seconds * 1000:.1f} ms", "speed": f"{tokens_per_second:,.0f} tok/s",
                 "mfu": f"mfu {percent(utilization)}" if self._gpu or utilization else "",
                 "gpu": "" if busy is None else f"gpu {busy:.0%}",
                 "memory": f"{memory_bytes / 2**30:.1f} GiB",
                 "left": f"{duration(wall_seconds * (recipe.total_steps - step))} left",
                 "skipped": f"{self.state.skipped_steps} skipped" if self.state.skipped_steps else ""}
        by_importance = [parts[name] for name in (*BY_IMPORTANCE, *more) if parts[name]]
        self._out.move_to(step, " | ".join(filter(None, parts.values())), by_importance)

    # ---- warnings and advice

    def warn_once(self, kind: str, message: str) -> None:
        """Prints a warning, unless one of its kind was printed before."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._out.warn(message)

    def _watch(self, seconds: float, step_seconds: float) -> None:
        """Warns of a device that waits for data or for the host; seconds is the training since the last call."""
        gauge = self._runtime.gauge
        gauge.trained += seconds
        data_wait = gauge.waited["data"] / gauge.trained
        if gauge.host_is_late and data_wait > 0.05 and gauge.waited["data"] > WATCHED_SECONDS:
            self.warn_once("loader", f"the loader holds the device back: {data_wait:.0%} of the time is spent waiting "
                                     "for data. Give --preload ram, or put the tokens on a faster disk.")

        if (self._runtime.machine.backend.runs_ahead and gauge.host_is_late and gauge.trained > WATCHED_SECONDS
                and step_seconds / self._run.num_micro_batches < SHORT_MICRO_BATCH_SECONDS):
            self.warn_once("batch", "the GPU waits for the host: its micro-batches are too small. Give a "
                                    f"larger --batch_size than {self._run.micro_batch}, or --batch_size auto.")

    def _recall(self, rows: Sequence[Row]) -> None:
        """Reads the recorded losses of earlier starts; a warning that they led to is not printed again."""
        for row in rows:
            loss, val_loss = row.get("loss"), row.get("val_loss")
            if isinstance(loss, float):
                self._overfitting.add_losses([loss])
            if isinstance(val_loss, float) and row["step"] == 0:
                self._loss_before = val_loss
            elif isinstance(val_loss, float) and self._overfitting.add_validation(row["step"], val_loss):
                self._warned.add("overfitting")

    def _read_curve(self, losses: Sequence[float], last_step: int) -> None:
        """Warns of spikes and of a bad shape of the loss curve, by the losses since the last logged step."""
        self._overfitting.add_losses(losses)
        for step, loss in enumerate(losses, last_step - len(losses) + 1):
            if spike := self._curve.add(step, loss):
                self._out.warn(spike)
        recipe = self._run.recipe
        higher_rate_argument = recipe.rate_argument(max(2 * recipe.learning_rate, recipe.usual_learning_rate))
        peak_fraction = recipe.learning_rate_at(last_step) / recipe.learning_rate
        if advice := self._curve.advice(higher_rate_argument, peak_fraction):
            # The kind is the advice up to its colon, for example 'the loss explodes'.
            self.warn_once(advice.partition(":")[0], f"advice at step {last_step:,}: {advice}")

    # ---- between steps

    def say_loss_before(self, nats: float) -> None:
        """Prints and records the loss of the weights of --init_from; the closing lines compare the best with it."""
        self._loss_before = nats
        self._recorder.log(0, time=time.time(), val_loss=nats)
        self._out.say(f"validation before the first step | loss {nats:.4f}")

    def log_validation(self, loss: ValidationLoss, is_best: bool) -> None:
        """Prints and records a validation of the latest step; warns once if the model overfits.

        is_best adds 'best' to the printed line.
        """
        step, sets = self.state.step, loss.by_name.items()
        bits = self._bits_per_byte = loss.bits_per_byte
        self._recorder.log(step, time=time.time(), val_loss=loss.nats, perplexity=loss.perplexity,
                           bits_per_byte=bits,
                           **{f"{VAL_LOSS_OF}{name}": each.nats for name, each in sets},
                           **{f"{BITS_OF}{name}": each.bits_per_byte for name, each in sets})
        perplexity = f"{loss.perplexity:,.2f}" if loss.nats < 20 else f"{loss.perplexity:.3g}"
        parts = [f"step {step:,}", f"val loss {loss.nats:.4f}", f"perplexity {perplexity}",
                 f"bits per byte {'n/a' if bits is None else f'{bits:.4f}'}",
                 *(f"{name} {each.nats:.4f}" for name, each in sets), "best" if is_best else ""]
        self._out.say(" | ".join(filter(None, parts)))
        if warning := self._overfitting.add_validation(step, loss.nats):
            self.warn_once("overfitting", warning)

    def show_sample(self, text: str | None) -> None:
        """Prints and records a sample of the model's text, if there is one."""
        if text is not None:
            self._recorder.log(self.state.step, time=time.time(), sample=text)
            self._out.say(f"sample at step {self.state.step:,}\n{text}".replace("\n", "\n  | "))

    # ---- the end

    @property
    def seconds(self) -> float:
        """The seconds since the first step of this start began, everything included."""
        return time.perf_counter() - self._runtime.clock.began

    def close(self, is_saved: bool) -> None:
        """Ends the bar, the trackers and the heartbeat, and prints the closing block.

        is_saved says whether the last state is on the disk. It may wait 20 seconds for each tracker.
        """
        state = self.state
        self._out.end_bar()
        self.close_trackers()
        self._out.close()
        if advice := self._curve.worse_than_guessing(self._last_loss):
            self._out.warn(advice)
        forecast = None if self._is_cut_off else forecast_of(self._run.setup)
        closing = {
            "trained": f"{several(state.step, 'step')}, {state.samples_seen * self._config.seq_length:,} tokens; "
                       f"{duration(self.seconds)} since this start",
            "loss": "" if math.isnan(self._last_loss)
                    else f"{self._last_loss:.4f} at step {self._step_of_loss:,}",
            "val loss": "" if state.best_val_loss is None else f"{state.best}, the best",
            "forecast": f"{forecast.low:.2f} to {forecast.high:.2f} bits per byte nine times in ten; it is "
                        f"{self._bits_per_byte:.2f}" if forecast and self._bits_per_byte else "",
            "skipped": several(state.skipped_steps, "step") if state.skipped_steps else "",
            "checkpoint": f"{printable(self._args.output_dir)}/checkpoint-{state.step}" if is_saved
                          else f"none of step {state.step:,}"}
        self._out.say("\n".join(f"{name:<12}{value}" for name, value in closing.items() if value))

    @property
    def _is_cut_off(self) -> bool:
        """True if the run made fewer than NEARLY_ALL of its planned steps."""
        return self.state.step < NEARLY_ALL * self._run.recipe.total_steps

    def say_what_next(self, best_step: int) -> None:
        """Prints the next command: to generate, and how to improve; after a signal the one to continue, alone.

        best_step is the step of the best checkpoint on the disk, or 0. A first model, which a second one
        follows, has no next command.
        """
        signals, folder = self._runtime.signals, shell_word(self._args.output_dir)
        second = os.environ.get(TRAINS_NEXT, "")
        if signals.number is not None and (second or self.state.step < self._run.recipe.total_steps):
            resume = second or f"train.py --resume_from {folder}"
            if "--resume_from" not in resume:
                resume += " --resume_from auto"
            self._out.say(f"stopped by {signals.name}; to continue: {launcher()} {resume}")
        if second or signals.number is not None:
            return
        best, note, named_step = folder, "", self.state.step
        corpus = self._run.setup.corpus
        # A few conversations are answered better by the last checkpoint (LOG.md, 2026-11-30, A few conversations).
        is_chance = (corpus.converses and not self._args.patience
                     and corpus.val is not None and corpus.val.length < MIN_VAL_TOKENS)
        if best_step not in (0, self.state.step) and not is_chance:
            best, named_step = f"{folder}/best", best_step
            note = f"\n      the best by validation, step {best_step:,}; {folder} alone is the last one"
        chat = " --chat" if corpus.converses else ""
        first = ("" if corpus.tokenizer_path else
                 "\nBut first copy the tokens' tokenizer, which this run does not have:\n"
                 f"cp TOKENIZER {folder}/checkpoint-{named_step}/{TOKENIZER}")
        self._out.say(f"next: python generate.py --ckpt {best}{chat}{note}{first}")
        lowest = lowest_loss(self._args)
        if (self.state.best_val_loss or 0.0) > lowest:
            self._out.say(f"the first of the two models ended lower, at {lowest:.4f}:\n"
                          f"python generate.py --ckpt {folder}/{FIRST_MODEL}/best{chat}")
        if self.state.best_val_loss is not None and self.state.best_val_loss > self._loss_before:
            self._out.say(f"To improve: no validation loss fell below {self._loss_before:.4f}, that of the weights it "
                          f"began from. Change them less:\n{launcher()} train.py --config {folder}/config.toml \\\n    "
                          f"--learning_rate {self._run.recipe.lower_rate_argument} "
                          f"{flags_of_another_run(self._args.output_dir, 'slower', self._args.mirror_to)}")
        elif self._overfitting.train_losses and not self._curve.worse_than_guessing(self._last_loss):
            self._say_how_to_improve(folder, best)

    def _say_how_to_improve(self, folder: str, best: str) -> None:
        """Prints what leads to a better model, and the command, if the run's figures show it."""
        args, recipe = self._args, self._run.recipe
        corpus = self._run.setup.corpus
        how, why = self._improvement()
        if not how or not corpus.tokenizer_path:
            return
        if how == LONGER:
            forecast = forecast_of(self._run.setup)
            if forecast and self._bits_per_byte:
                bits = bits_after_twice(forecast, self._bits_per_byte)
                why += f"; twice the time should reach {bits:.2f} bits per byte"
            command = self._command_for_longer(folder)
        elif how == MORE_TEXT:
            if recipe.is_regularized and recipe.passes > FRESH and not has_teacher_or_noise(args):
                why += (f". Give more text, or teach a second model:\n{launcher()} train.py --config {folder} \\\n"
                        f"    --teacher {best} {flags_of_another_run(args.output_dir, 'taught', args.mirror_to)}\n"
                        "To add text:")
            command = more_text_commands(args.output_dir, corpus.tokenizer_path, self.state,
                                         {**vars(args), "cooldown_from": recipe.cooldown and recipe.cooldown.source})
        else:
            machine = self._runtime.machine  # on a CPU a named size would be in fp32
            in_bf16 = " --use_amp" if machine.precision == "bf16" and not machine.on_gpu else ""
            command = (f"{launcher()} train.py --config {folder}/config.toml \\\n"
                       f"    --model_size {how}{in_bf16} {flags_of_another_run(args.output_dir, how, args.mirror_to)}")
        self._out.say(f"To improve: {why}\n{command}")

    def _improvement(self) -> tuple[str, str]:
        """What leads to a better model, with the reason; LONGER, too, for a run that ran out of minutes."""
        config, recipe = self._config, self._run.recipe
        if self._is_cut_off and self._has_patience:
            return LONGER, (f"{self._args.max_minutes:g} min were over at step {self.state.step:,} of "
                            f"{recipe.total_steps:,}, as steps took longer than measured")
        sizes = {name: architecture_of(config).sized(shape, config.vocab_size, config.seq_length).num_parameters
                 for name, shape in SIZES.items() if not self._learned_before}
        return best_improvement(self._overfitting.validations, self._overfitting.train_losses, self._tokens_seen,
                         self._run.setup.corpus.train.length, config.num_parameters, sizes)

    def _command_for_longer(self, folder: str) -> str:
        """The command for a longer run, in the flags that limit this one.

        It is for twice the length, or for as long as random weights need.
        """
        args, state = self._args, self.state
        recipe = self._run.recipe
        # Without more patience the run ended before its limits.
        whole = 1.0 if self._has_patience else recipe.total_steps / max(1, state.step)
        times = 2 if self._learned_before else max(2, math.ceil(times_too_short(
            round(whole * state.step), round(whole * self._tokens_seen), self._run.setup.corpus.train.length,
            self._config.num_parameters)))
        if recipe.cooldown or recipe.plateau_end in steps_in(Path(args.output_dir)):
            return recipe.command_from_plateau(args, 2 if recipe.cooldown else times)
        limits = {name: getattr(args, name) for name in ("max_minutes", "max_steps", "epochs")
                  if name in args.origin.given and getattr(args, name)}
        limits = limits or ({"epochs": recipe.epochs} if state.init_from else
                            {"max_minutes": math.ceil(whole * state.seconds / 60)})
        longer = "".join(f" --{name} {times * length:.12g}" for name, length in limits.items())
        patience = "" if self._has_patience else f" --patience {state.validations_without_gain + args.patience}"
        return f"{launcher()} train.py --resume_from {folder}{longer}{patience}"

    @property
    def _learned_before(self) -> bool:
        """True if the weights were trained on other tokens before: pretrained, or before --allow_new_data."""
        return bool(self.state.init_from or self._run.recipe.samples_of_others)

    @property
    def _has_patience(self) -> bool:
        return self.state.validations_without_gain < (self._args.patience or math.inf)

    @property
    def _tokens_seen(self) -> int:
        """The tokens of the run's text that it has read.

        A pass counts as the whole text, though its windows leave out up to 2 T - 2 tokens.
        """
        recipe = self._run.recipe
        samples = self.state.samples_seen - recipe.samples_of_others
        return round(samples / recipe.windows_per_epoch * self._run.setup.corpus.train.length)
