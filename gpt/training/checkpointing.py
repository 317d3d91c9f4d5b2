"""Decides when a run saves, and saves it. gpt/checkpoint/ writes the files.

Training waits only while the state is copied to the RAM; a thread writes the copy. Where the RAM has no room
for a copy, training waits for the disk.
"""

import contextlib
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gpt.checkpoint import contents, find, load, save
from gpt.checkpoint.folder import Retention, prune
from gpt.checkpoint.mirror import Mirror, yield_the_cores
from gpt.checkpoint.steps import steps_in
from gpt.common.files import free_of, sync, why_not_written
from gpt.common.names import METRICS
from gpt.common.ranks import trains_first_of_two
from gpt.common.words import printable, several, shell_line, shell_word, size
from gpt.hub.names import DATASET, MODEL, is_on_hub, repo_of
from gpt.planning.decided import Setup, flags_of_run, settings_of
from gpt.tokens.chat import can_converse, template_of
from gpt.tokens.mixture import mixture_in_words, weight_percent
from gpt.tokens.tokenizer import END, START
from gpt.training.run import Run


class Checkpointer:
    """Saves a run, one checkpoint at a time, and knows the checkpoints on the disk.

    Every process has one and calls start, save and finish together with the others; the main process alone
    writes. start comes before the first save; after close nothing can be saved.
    """

    def __init__(self, run: Run, tokenizer: Tokenizer | None):
        self._run = run
        self._args, self._runtime = run.setup.args, run.setup.runtime
        self.output_dir = Path(self._args.output_dir)
        is_main = self._runtime.processes.is_main
        self.best_step = 0  # the best by validation that is on the disk
        self.save_seconds = 0.0  # of the last save, until it was on the disk
        self.begun_step = 0  # of the save in flight, or of the last save
        self._failed_step = -1  # of the last save that a full disk ended
        self.validation_curve: list[tuple[int, float, float | None]] = []  # step, nats, bits per byte
        self._written_step: int | None = None  # of the last save, or of the checkpoint resumed in this folder
        self._first_step = run.state.step
        self._tokenizer_json = tokenizer.to_str() if tokenizer else None
        self._chat_template = _choose_chat_template(run.setup, tokenizer)
        self._thread = ThreadPoolExecutor(1, "saver", yield_the_cores)
        self._pending = None
        self._snapshot = save.Snapshot() if is_main and run.setup.memory.saves_through_copy else None
        self.mirror = Mirror(self._args, self._runtime.out) if is_main and self._args.mirror_to else None

    # ---- when

    def start(self, resumed: Path | None) -> None:
        """Prepares for the first save: starts the clock, finds the best saved, allocates the copy's memory.

        resumed is the checkpoint from which the run continues; if it is in output_dir, a thread brings the
        mirror up to date. Raises RuntimeError for too little memory.
        """
        self._begun_at = time.monotonic()
        if self._run.state.best_step in steps_in(self.output_dir):
            self.best_step = self._run.state.best_step
        if resumed is not None and find.is_inside(resumed, self.output_dir):
            self._written_step = self._run.state.step
            if self.mirror is not None:  # a killed run may have ended before its copy
                self.mirror.update(self._retention(self._written_step, self.best_step))
        if self._snapshot is not None:  # the first save would wait longer for new pages than for its copy
            self._snapshot.reserve(self._run.setup.checkpoint_bytes, self._runtime.machine.backend.runs_ahead)

    def is_save_due(self) -> bool:
        """True if --checkpoint_every_minutes are over since the last save, or if a signal requested one.

        Only the main process looks at the clock.
        """
        minutes = self._args.checkpoint_every_minutes if self._runtime.processes.is_main else 0
        is_late = minutes and time.monotonic() - self._begun_at >= 60 * minutes
        return bool(is_late or self._runtime.signals.asks_to_save)

    def is_permanent(self) -> bool:
        """True if a checkpoint of the latest step is never deleted.

        These are every --checkpoint_interval epochs, the end of the learning rate's plateau, and the last step.
        """
        recipe, state = self._run.recipe, self._run.state
        windows = recipe.windows_per_epoch * recipe.checkpoint_interval(self._args.checkpoint_interval)
        return (state.samples_seen // windows > (state.samples_seen - recipe.samples_per_step) // windows
                or state.step in (recipe.plateau_end, recipe.total_steps))

    # ---- saving

    def save(self, permanent: bool) -> None:
        """Waits for the previous save, copies the state, and starts to write the copy; settle notes the end.

        Without room for the copy it returns when the checkpoint is on the disk. The clock of rolling
        checkpoints starts again. Older rolling checkpoints are deleted once this one is on the disk. Raises
        FloatingPointError as settle.
        """
        self.settle_all()
        self._runtime.signals.asks_to_save = False
        self._begun_at = time.monotonic()
        started = time.perf_counter()
        self.begun_step = step = self._run.state.step
        fields = self._fields(permanent)
        card = self._card()
        setup, config = self._run.setup, self._run.model.config
        # Decided before the write: a slow disk must not change the choice. The best stays
        # until a better one is saved.
        best = step if self._run.state.best_step == step else self.best_step

        with self._runtime.out.phase("copying the state"), self._runtime.clock.pause():
            tensors = contents.Tensors.of(self._run.model, self._run.optimizer)
            if self._runtime.processes.is_main:
                tensors = self._snapshot.take(tensors) if self._snapshot else tensors.gathered()
            else:
                tensors.join_gather()
        waited = time.perf_counter() - started

        def write() -> float:
            with contextlib.suppress(OSError):  # after a power cut the rows that led here must be there
                sync(self.output_dir / METRICS)
            texts = contents.text_files(step, config, fields, self._tokenizer_json, setup.corpus.end_of_text_id,
                                        card, self._chat_template)
            save.save(self.output_dir, step, contents.tensor_files(config, tensors), texts)
            self._written_step, self.best_step = step, best
            retention = self._retention(step, best)
            prune(self.output_dir, retention)
            seconds = time.perf_counter() - started
            if not self.save_seconds:  # the first save of this start
                num_bytes = sum(path.stat().st_size for path in (self.output_dir / f"checkpoint-{step}").iterdir())
                self._runtime.out.say(
                    f"saved checkpoint-{step}: {size(num_bytes)} in {seconds:.2f} s, "
                    f"of which training waited {waited if self._snapshot else seconds:.2f} s")
            if self.mirror is not None:
                self.mirror.update(retention)
            return seconds

        if self._runtime.processes.is_main:
            self._pending = self._thread.submit(write)
        if not setup.memory.saves_through_copy:
            self.settle_all()

    def _retention(self, step: int, best: int) -> Retention:
        """The checkpoints that stay after a save: the last ones, the best, the plateau's end, the mirror's copy.

        The best of the run may be in the mirror alone.
        """
        copying_step = self.mirror.copying_step if self.mirror else 0
        return Retention(step, self._args.keep_checkpoints, protected=frozenset(
            (best, self._run.state.best_step, self._run.recipe.plateau_end or 0, copying_step)))

    def settle(self, wait: bool) -> None:
        """Notes the end of a save in flight, and warns if it failed, as on a full disk.

        With wait the call waits for that end. Raises FloatingPointError, with the name of the tensor, if the
        save found weights or optimizer state that are not finite; it has left no checkpoint then.
        """
        if self._pending is None or not (wait or self._pending.done()):
            return
        out = self._runtime.out
        if wait:
            with self._runtime.clock.pause(), out.phase("saving"):
                self._pending.exception()  # waits for its end
        ended, self._pending = self._pending, None
        try:
            self.save_seconds = ended.result()
        except OSError as error:
            goes_on = (self._run.state.step < self._run.recipe.total_steps and
                       self._runtime.signals.number is None)
            if self._failed_step != self.begun_step:
                out.warn(f"checkpoint-{self.begun_step} could not be saved: {why_not_written(error)} It needs about "
                         f"{size(self._run.setup.checkpoint_bytes)}{free_of(self.output_dir)}."
                         f"{' Training goes on and the next save tries again.' if goes_on else ''}")
            self._failed_step = self.begun_step

    def settle_all(self) -> None:
        """Makes all processes wait for the end of the main process's save."""
        self._runtime.processes.from_main(lambda: self.settle(wait=True))

    # ---- the texts of a checkpoint

    def _fields(self, permanent: bool) -> dict[str, Any]:
        """The fields of trainer_state.json, except format, version, arch and model."""
        corpus = self._run.setup.corpus
        return {**asdict(self._run.state), **settings_of(self._run.setup), "stays": permanent,
                "scaler": self._run.scaler.state_dict(),
                "data": {"train_sha256": corpus.identity, "train_tokens": corpus.train.length,
                         "val_sha256": corpus.val_identity,
                         "tokenizer_sha256": corpus.tokenizer_sha256,
                         **({"mixture": mixture_in_words(corpus.components)} if corpus.components else {})}}

    def _card(self) -> str:
        """The model card, README.md."""
        corpus, state = self._run.setup.corpus, self._run.state
        facts = {
            "steps": f"{state.step:,} of {self._run.recipe.total_steps:,}",
            "tokens seen": f"{state.samples_seen * self._run.model.config.seq_length:,}",
            "best validation loss in nats": state.best,
            **({"weights at the start": printable(_without_folder(state.init_from))} if state.init_from else {}),
            "training tokens": f"{corpus.train.length:,}, sha256 {corpus.identity}",
            **({"text": printable(", ".join(corpus.origins))} if corpus.origins else {}),
            **{f"{weight_percent(component.weight)} from {component.name}":
               f"{component.corpus.train.length:,} training tokens, sha256 {component.corpus.identity}"
               for component in corpus.components}}
        given = flags_of_run(self._run.setup).given
        if self._runtime.processes.world_size > 1:  # one process would take smaller steps by default
            given = {**given, "gradient_accumulation_steps": self._run.recipe.accumulation}
        command = command_for_card(given)
        on_hub = {"base_model": [repo_of(state.init_from, MODEL)],
                  "datasets": [repo_of(origin, DATASET) for origin in corpus.origins]}
        return contents.model_card(self._run.model.config, facts, self.validation_curve, command, on_hub)

    # ---- the checkpoints on the disk

    @property
    def is_on_disk(self) -> bool:
        """True if this step has a sound checkpoint: the resumed one, or one saved by this run."""
        return self._run.state.step == self._written_step and self._written_step in steps_in(self.output_dir)

    def at_risk(self) -> tuple[str, str]:
        """In words: the steps lost if the process ends now, and the safe checkpoint. Any thread may call this."""
        step, saved = self._run.state.step, self._written_step
        lost = step - (self._first_step if saved is None else saved)
        since = "of this run, which has saved nothing yet" if saved is None else f"since checkpoint-{saved}"
        safe = ("" if saved is None else
                f"checkpoint-{saved}, from which --resume_from {shell_word(self.output_dir)} goes on")
        return f"the {several(lost, 'step')} {since}" if lost else "", safe

    def how_to_resume(self) -> str:
        """The beginning of an error's cure: the newest checkpoint, then "Resume (...)" or "Start again".

        Waits for the save in flight, and ignores its failure.
        """
        with contextlib.suppress(FloatingPointError):
            self.settle(wait=True)
        steps = steps_in(self.output_dir)
        if steps:
            # The first of two models resumes by the command of both.
            folder = "auto" if trains_first_of_two() else shell_word(self.output_dir)
            return f"The last good checkpoint is checkpoint-{max(steps)}. Resume (--resume_from {folder})"
        return "There is no checkpoint yet. Start again"

    def finish(self) -> bool:
        """Saves the last state unless it is saved, waits for disk and mirror; True if it is on the disk.

        All processes take part. False at step 0, and after a full disk, with a warning. Raises
        FloatingPointError as settle.
        """
        from_main = self._runtime.processes.from_main
        self.settle_all()
        if self._run.state.step and not from_main(lambda: self.is_on_disk):
            self.save(self.is_permanent())
            self.settle_all()
        from_main(lambda: self.mirror and self.mirror.finish())
        return from_main(lambda: self.is_on_disk)

    def close(self) -> None:
        """Waits for the save in flight and its mirror, and frees the copy's memory. A failed save raises nothing."""
        self._thread.shutdown(wait=True)
        if self.mirror is not None:
            self.mirror.finish()
        if self._snapshot is not None:
            self._snapshot.close()


def _choose_chat_template(setup: Setup, tokenizer: Tokenizer | None) -> str:
    """The template of a model that answers: ours after conversations, else its first weights' own, or ''."""
    if tokenizer and setup.corpus.converses:
        return template_of(tokenizer)
    start = setup.resumed.folder if setup.resumed else None
    if setup.args.init_from and not start:
        start = find.resolve(Path(setup.args.init_from))
    template = load.chat_template(start) if start else None
    if not template or (tokenizer and can_converse(tokenizer) and isinstance(template, str)):
        return template or ""
    setup.runtime.out.warn(f"the chat template of {printable(start)} is left out, as its turns are not marked by "
                           f"{START} and {END}. Copy it and generation_config.json to the model afterwards.")
    return ""


def command_for_card(given: Mapping[str, Any]) -> str:
    """The command of a run for its model card, with the flags given at any of its starts.

    A file is shown by its name alone, because folders reveal the user of a machine;
    a name on the hub is public.
    """
    words = ["python", "train.py"]
    for name, value in given.items():
        words.append(f"--no-{name}" if value is False else f"--{name}")
        if not isinstance(value, bool):
            texts = map(str, value if isinstance(value, list) else [value])
            words += texts if name == "sample_prompt" else map(_without_folder, texts)
    return shell_line(words)


def _without_folder(text: str) -> str:
    """The last part of a path, with the weight behind it; a name on the hub as it is."""
    path, *weight = re.split(r":(?=[\d./e+-]+$)", text, maxsplit=1)
    return text if is_on_hub(text) else ":".join([Path(path).name or path, *weight])
