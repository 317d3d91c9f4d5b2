"""Worker processes: how questions reach them and answers come back, in order; and what they do with a block of text.
"""

from __future__ import annotations

import enum
import hashlib
import math
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

import numpy as np

from common.children import start_process
from common.errors import Exit, UserError
from common.signals import Signals
from pretokenization.blocks import Findings, Reading, TextBlock, last_place, parts_of
from pretokenization.engines import encoder_for
from pretokenization.files import Source
from pretokenization.sources import documents_of
from pretokenization.store import DOCUMENT, SPLITS
from tokens.stream import DTYPES
from tokens.tokenizer import Vocabulary

ON_THE_WAY = 4  # questions for each worker
LOAD = 2  # of one worker; a heavy question weighs as much, another one half of it
SEPARATOR = b"\xff"  # after each text of a sample: no UTF-8 holds this byte
LONGEST_RUN = 1000
IS_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


# ---------------------------------------------------------------- processes that answer questions


def context() -> Any:
    """How processes are started: forked where that is safe, which spares them their imports."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


class Workers:
    """Processes that answer questions; a single one is this process itself, unless it is fresh. A context manager.

    A fresh process is not forked: a fork has the locks of a library's threads, but not the threads.
    """

    def __init__(self, number: int, make: Callable[[Any], Any], setup: Any, signals: Signals, is_fresh: bool = False):
        self.make = make
        self.setup = setup
        self.signals = signals
        self.context = multiprocessing.get_context("spawn") if is_fresh else context()
        self.processes: dict[Any, Any] = {}  # by the pipe where its answers come out
        self.to: dict[Any, Any] = {}  # where the questions for the worker that answers there go in
        try:
            for _ in range(number if number > 1 or is_fresh else 0):
                self._start()
        except BaseException:
            self.__exit__()
            raise

    def _start(self) -> None:
        their_questions, questions = self.context.Pipe(duplex=False)
        answers, their_answers = self.context.Pipe(duplex=False)  # two pipes are faster than one that goes both ways
        not_theirs = [*self.processes, *self.to.values(), questions, answers]
        self.processes[answers] = start_process(self.context, _serve, their_questions, their_answers, self.make,
                                                self.setup, not_theirs)
        self.to[answers] = questions
        their_questions.close()
        their_answers.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (*self.processes, *self.to.values()):
            pipe.close()
        for process in self.processes.values():
            process.terminate()
            process.join()

    def answers(self, questions: Iterable[Any], is_heavy: Callable[[Any], bool],
                seconds: float = math.inf) -> Iterator[tuple[Any, Any]]:
        """The questions with their answers, in order; at most four for each worker are on their way.

        A heavy question goes to an idle worker only: if both ends of a pipe wrote at once, both would wait for ever.
        Ends after so many seconds. Raises Stopped after a signal, UserError (exit 5) when a worker dies.
        """
        if not self.processes:
            worker = self.make(self.setup)
            for question in questions:
                self.signals.look()
                yield question, worker.answer(question)
            return

        until = time.monotonic() + seconds
        waiting: dict[int, Any] = {}
        ready: dict[int, Any] = {}
        load = dict.fromkeys(self.processes, 0)
        source, sent, done = iter(questions), 0, 0
        question = next(source, None)
        while (question is not None or waiting) and time.monotonic() < until:
            pipe = None
            try:
                # send
                while question is not None and sent - done < ON_THE_WAY * len(load):
                    pipe, weight = min(load, key=lambda pipe: load[pipe]), LOAD if is_heavy(question) else 1
                    if load[pipe] + weight > LOAD:
                        break
                    waiting[sent] = question
                    self.to[pipe].send((sent, question))
                    load[pipe] += weight
                    sent, question = sent + 1, next(source, None)

                # receive
                for pipe in connection.wait([pipe for pipe in load if load[pipe]], 0.1):
                    number, answer, error = pipe.recv()  # type: ignore[union-attr]
                    if error is not None:
                        raise UserError(*error) if error[0] else RuntimeError(error[1])
                    load[pipe] -= LOAD if is_heavy(waiting[number]) else 1
                    ready[number] = answer
            except (EOFError, OSError) as cause:
                self.processes[pipe].join(5)
                raise UserError(Exit.MACHINE, f"a worker process died (exit {self.processes[pipe].exitcode}); -9 means "
                                              "that the system ended it for lack of memory. Run the command again with "
                                              "fewer --num_workers or a smaller --train_sample_bytes; it continues "
                                              "where it was.") from cause

            # hand out in order
            self.signals.look()
            while done in ready:
                yield waiting.pop(done), ready.pop(done)
                done += 1


def _serve(questions: Any, answers: Any, make: Callable[[Any], Any], setup: Any, not_ours: Sequence[Any]) -> None:
    """A worker process: answers questions until their pipe is closed. Signals are the parent's, which ends it."""
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in not_ours:  # if this process held them open it would not end with the parent
        other.close()
    worker = None
    try:
        while True:
            number, question = questions.recv()
            try:
                worker = worker or make(setup)
                reply = number, worker.answer(question), None
            except BaseException as error:  # a panic of a Rust library is no Exception
                reply = number, None, _sendable(error)
            answers.send(reply)
    except (EOFError, OSError):
        pass


def _sendable(error: BaseException) -> tuple[Exit | None, str]:
    """An error as it goes through a pipe: the code and message of a UserError, the traceback of a bug."""
    if isinstance(error, UserError):
        return error.code, str(error)
    if isinstance(error, OSError):
        return Exit.MACHINE, f"{error}. Run the command again; it continues where it was."
    if isinstance(error, MemoryError):
        return Exit.MACHINE, "out of memory on the host. Use fewer --num_workers, or a smaller --train_sample_bytes."
    text = "".join(traceback.format_exception(error))
    return None, f"in another process: {text.strip().splitlines()[-1]}\n{text}"


class _Caller:
    """A worker whose questions are functions with their arguments."""

    def __init__(self, setup: None):
        pass

    def answer(self, question: tuple[Callable[..., Any], Sequence[Any]]) -> Any:
        return question[0](*question[1])


def in_child(signals: Signals, work: Callable[..., Any], *arguments: Any, seconds: float = math.inf) -> Any:
    """Runs work that cannot look for signals itself in a process, which can be ended and whose memory ends with it.

    Returns what the work returns; None if it takes longer than these seconds. Raises Stopped after a signal.
    """
    with Workers(1, _Caller, None, signals, is_fresh=True) as workers:
        return next((answer for _, answer in workers.answers([(work, arguments)], lambda _: True, seconds)), None)


# ---------------------------------------------------------------- what a worker does with a block


class Task(enum.Enum):
    """What is asked about each block in a pass over the text."""

    SURVEY = "survey"  # the documents' hashes and sizes
    SAMPLE = "sample"  # a share of the training text, for the tokenizer
    ENCODE = "encode"  # the ids


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker must know to answer for a block."""

    sources: Sequence[Source]
    reading: Reading
    task: Task
    threshold: int = 0  # documents whose hash is below it are for validation
    share: float = 1.0  # of the training text, for SAMPLE
    vocabulary: Vocabulary | None = None  # for ENCODE, as are the following
    engine: str = "tokenizers"
    fence: tuple[tuple[int, int], ...] = ()
    dtype: str = "int16"


@dataclass
class WorkerAnswer:
    """What a block holds: DOCUMENT records by split, and what the task asks for."""

    found: Findings
    documents: dict[str, np.ndarray] = field(default_factory=dict)
    text: bytes = b""  # for SAMPLE
    ids: dict[str, np.ndarray] = field(default_factory=dict)  # for ENCODE, by split, as are the ends of the documents
    ends: dict[str, np.ndarray] = field(default_factory=dict)
    difference: str = ""  # text for which the engine gave other ids than tokenizers


class Reader:
    """What each worker process does: it reads a block, and does with its documents what the task says."""

    def __init__(self, setup: WorkerSetup):
        self.setup = setup
        self.encoder = None
        if setup.vocabulary is not None:
            self.encoder = encoder_for(setup.vocabulary, setup.engine, setup.fence)

    def answer(self, block: TextBlock) -> WorkerAnswer:
        """Reads a block and does the task."""
        setup, answer = self.setup, WorkerAnswer(Findings())
        texts, contents = documents_of(block, setup.sources, setup.reading, answer.found)
        least = max(1, setup.reading.min_chars)
        is_text = [not text.isspace() and len(text) >= least for text in texts]
        if not block.is_part:
            contents = [content for content, is_kept in zip(contents, is_text, strict=True) if is_kept]
            answer.found.short_documents = len(texts) - len(contents)
        answer.found.has_text = any(is_text)

        documents = np.zeros(len(contents), DOCUMENT)
        documents["bytes"] = [len(content) for content in contents]
        in_val = np.full(len(contents), bool(block.in_val))
        if not block.is_part:
            documents["hash"] = [int.from_bytes(hashlib.sha256(content).digest()[:8], "big") for content in contents]
            in_val = documents["hash"] < np.uint64(setup.threshold)
        answer.documents = {"train": documents[~in_val], "val": documents[in_val]}

        if setup.task == Task.SAMPLE:
            training = [content for content, is_val in zip(contents, in_val, strict=True) if not is_val]
            answer.text = sample_of(training, setup.share, setup.reading)
        elif setup.task == Task.ENCODE:
            self._encode(block, contents, in_val, answer)
        return answer

    def _encode(self, block: TextBlock, contents: list[bytes], in_val: np.ndarray, answer: WorkerAnswer) -> None:
        """Encodes the documents and sorts their ids by split."""
        assert self.encoder is not None
        pieces, lasts = [], []  # of at most limits.part_bytes, and which of them end a document
        for content in contents:
            parts = parts_of(content, self.setup.reading)
            pieces += parts
            lasts += [False] * (len(parts) - 1) + [True]
        lasts[-1:] = [block.last] * len(lasts[-1:])
        ids, ends, answer.difference = self.encoder.encode(pieces, lasts)
        ids = ids.astype(DTYPES[self.setup.dtype])
        if not in_val.any() or in_val.all():
            split = SPLITS[int(in_val.any())]
            answer.ids, answer.ends = {split: ids}, {split: ends}
            return

        lengths, starts = np.diff(ends, prepend=0), np.concatenate([[0], ends[:-1]])
        for split, mine in (("train", ~in_val), ("val", in_val)):
            edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]])))  # of runs of documents
            runs = zip(starts[edges[::2]], ends[edges[1::2] - 1], strict=True)
            answer.ids[split] = np.concatenate([ids[start:end] for start, end in runs])
            answer.ends[split] = np.cumsum(lengths[mine])


def sample_of(contents: list[bytes], share: float, reading: Reading) -> bytes:
    """The first share of a block's training text: as blocks are small, all samples together are evenly spread.

    Of a document that is a block of its own, the first share of each part.
    """
    if len(contents) == 1 and len(parts := parts_of(contents[0], reading)) > 1:
        return b"".join(sample_of([part], share, reading) for part in parts)
    owed, chosen = sum(map(len, contents)) * share, []
    for content in contents:
        if len(content) > owed:
            chosen.append(content[:last_place(content[:int(owed)], reading.places)])
            break
        chosen.append(content)
        owed -= len(content)
    return b"".join(short_runs(content) for content in chosen if content)


def short_runs(content: bytes) -> bytes:
    """A text and a SEPARATOR; a text with a very long run in slices, with a SEPARATOR after each.

    A trainer's time grows with the square of a run without blanks, or of blanks. A run is noticed if it covers
    LONGEST_RUN bytes counted from the front: from twice that length on it always does.
    """
    aligned = len(content) // LONGEST_RUN * LONGEST_RUN
    blank = IS_BLANK[np.frombuffer(content, np.uint8, aligned)].reshape(-1, LONGEST_RUN)
    if (blank.any(1) & ~blank.all(1)).all():
        return content + SEPARATOR
    text = content.decode()
    slices = [text[at:at + LONGEST_RUN] for at in range(0, len(text), LONGEST_RUN)]
    return b"".join(piece.encode() + SEPARATOR for piece in slices)


def is_heavy(block: TextBlock) -> bool:
    """True for a block that carries its rows with it."""
    return block.rows is not None
