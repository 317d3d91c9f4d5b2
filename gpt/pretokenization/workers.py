"""Worker processes: how questions reach them and answers come back, in order; and what they do with a block of text.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import multiprocessing
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any, NamedTuple

import numpy as np

from gpt.common.children import start_process
from gpt.common.errors import Exit, UserError
from gpt.common.signals import Signals
from gpt.common.words import first_line
from gpt.pretokenization.blocks import Findings, Reading, TextBlock, last_place, parts_of
from gpt.pretokenization.engines import encoder_for
from gpt.pretokenization.files import Source
from gpt.pretokenization.sources import documents_of
from gpt.tokens.stream import DTYPES
from gpt.tokens.tokenizer import Vocabulary

ON_THE_WAY = 4  # questions for each worker
MOST_AT_ONCE = 2  # questions that one worker has: it begins with the next while its answer is read
SEPARATOR = b"\xff"  # after each text of a sample: no UTF-8 holds this byte
LONGEST_RUN = 1000
ADVICE = "Run the command again with fewer --num_workers, or a smaller --train_sample_bytes."
START_METHOD = "fork" if sys.platform == "linux" else "spawn"  # a fork is spared its imports; elsewhere it is not safe
IS_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


# ---------------------------------------------------------------- processes that answer questions


class Workers:
    """Processes that answer questions; a single one is this process itself, unless it is fresh. A context manager.

    A fresh process is not forked: a fork has the locks of a library's threads, but not the threads.
    """

    def __init__(self, number: int, make: Callable[[], Callable[[Any], Any]], signals: Signals, is_fresh: bool = False):
        self.make = make  # called in each process: what answers there
        self.signals = signals
        context = multiprocessing.get_context("spawn" if is_fresh else START_METHOD)
        self.processes: dict[Any, Any] = {}  # by the pipe where its answers come out
        self.to: dict[Any, Any] = {}  # where the questions for the worker that answers there go in
        for _ in range(number if number > 1 or is_fresh else 0):
            their_questions, questions = context.Pipe(duplex=False)
            answers, their_answers = context.Pipe(duplex=False)  # two pipes are faster than one that goes both ways
            not_theirs = [*self.processes, *self.to.values(), questions, answers]
            self.processes[answers] = start_process(context, _serve, their_questions, their_answers, make, not_theirs)
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
            answer = self.make()
            for question in questions:
                self.signals.look()
                yield question, answer(question)
            return

        until = time.monotonic() + seconds
        order: deque[list[Any]] = deque()  # a question alone, and later its answer
        asked: dict[Any, deque[list[Any]]] = {pipe: deque() for pipe in self.processes}  # what each has yet to answer
        source = iter(questions)
        question = next(source, None)
        while (question is not None or order) and time.monotonic() < until:
            pipe = None
            try:
                # send
                while question is not None and len(order) < ON_THE_WAY * len(asked):
                    pipe = min(asked, key=lambda pipe: len(asked[pipe]))
                    if len(asked[pipe]) >= (1 if is_heavy(question) else MOST_AT_ONCE):
                        break
                    order.append([question])
                    asked[pipe].append(order[-1])
                    self.to[pipe].send(question)
                    question = next(source, None)

                # receive
                for pipe in connection.wait([pipe for pipe in asked if asked[pipe]], 0.1):
                    answer, error = pipe.recv()  # type: ignore[union-attr]
                    if error:
                        raise UserError(*error) if error[0] else RuntimeError(error[1])
                    asked[pipe].popleft().append(answer)
            except (EOFError, OSError) as cause:
                self.processes[pipe].join(5)
                raise UserError(Exit.MACHINE, f"a worker process died (exit {self.processes[pipe].exitcode}); -9 means "
                                              f"that the system ended it for lack of memory. {ADVICE}") from cause

            # hand out in order
            self.signals.look()
            while order and len(order[0]) == 2:
                first, answer = order.popleft()
                yield first, answer


def _serve(questions: Any, answers: Any, make: Callable[[], Callable[[Any], Any]], not_ours: Sequence[Any]) -> None:
    """A worker process: answers questions until their pipe is closed. Signals are the parent's, which ends it."""
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in not_ours:  # if this process held them open it would not end with the parent
        other.close()
    answer = None
    try:
        while True:
            question = questions.recv()
            try:
                answer = answer or make()
                reply = answer(question), None
            except BaseException as error:  # a panic of a Rust library is no Exception
                reply = None, _sendable(error)
            answers.send(reply)
    except (EOFError, OSError):
        pass


def _sendable(error: BaseException) -> tuple[Exit | None, str]:
    """An error as it goes through a pipe: the code and message of a UserError, the traceback of a bug."""
    if isinstance(error, UserError):
        return error.code, str(error)
    if isinstance(error, OSError | MemoryError):
        return Exit.MACHINE, f"{first_line(error)} in a worker process. {ADVICE}"
    text = "".join(traceback.format_exception(error))
    return None, f"in another process: {text.strip().splitlines()[-1]}\n{text}"


def _caller() -> Callable[[Any], Any]:
    return lambda question: question[0](*question[1])


def in_child(signals: Signals, work: Callable[..., Any], *arguments: Any, seconds: float = math.inf) -> Any:
    """Runs work that cannot look for signals itself in a process, which can be ended and whose memory ends with it.

    Returns what the work returns; None if it takes longer than these seconds. Raises Stopped after a signal.
    """
    with Workers(1, _caller, signals, is_fresh=True) as workers:
        return next((answer for _, answer in workers.answers([(work, arguments)], lambda _: True, seconds)), None)


# ---------------------------------------------------------------- what a worker does with a block


class SplitAnswer(NamedTuple):
    """What one split has of a block: its documents' bytes and hashes (uint64), their ids and where they end there."""

    sizes: list[int]
    hashes: np.ndarray
    ids: np.ndarray
    ends: np.ndarray


@dataclass
class WorkerAnswer:
    """The findings of a block, and what was asked for."""

    found: Findings
    splits: dict[str, SplitAnswer] = field(default_factory=dict)
    sample: bytes = b""
    difference: str = ""  # text for which the engine gave other ids than tokenizers


@dataclass
class Reader:
    """What each worker process does with a block: it reads it, and samples or encodes its documents."""

    sources: Sequence[Source]
    reading: Reading
    threshold: int = 0  # documents whose hash is below it are for validation
    share: float = 0.0  # of the training text, for a sample
    vocabulary: Vocabulary | None = None  # to encode with
    engine: str = "tokenizers"
    dtype: str = "uint16"

    def __post_init__(self) -> None:
        self.encoder = self.vocabulary and encoder_for(self.vocabulary, self.engine)

    def __call__(self, block: TextBlock) -> WorkerAnswer:
        answer = WorkerAnswer(Findings())
        texts = documents_of(block, self.sources, self.reading, answer.found)
        with_text = [text for text in texts if text and not text.isspace()]
        answer.found.has_text = bool(with_text)
        if block.in_val is not None:  # a part of a document, which may be blank
            contents = [texts[0].encode()]
            hashes, in_val = np.zeros(1, np.uint64), np.full(1, block.in_val)
        else:
            contents = [text.encode() for text in with_text]
            digests = b"".join([hashlib.sha256(content).digest()[:8] for content in contents])
            hashes = np.frombuffer(digests, ">u8").astype(np.uint64)
            in_val = hashes < np.uint64(self.threshold)

        for split, is_mine in (("train", ~in_val), ("val", in_val)):
            mine = list(itertools.compress(contents, is_mine))
            ids = ends = np.zeros(0, np.int64)
            if self.encoder and mine:
                pieces, lasts = [], []  # of at most limits.part_bytes, and which of them end a document
                for content in mine:
                    parts = parts_of(content, self.reading)
                    pieces += parts
                    lasts += [False] * (len(parts) - 1) + [True]
                lasts[-1] = block.last
                ids, ends, difference = self.encoder.encode(pieces, lasts)
                answer.difference = answer.difference or difference
            answer.splits[split] = SplitAnswer(list(map(len, mine)), hashes[is_mine], ids.astype(DTYPES[self.dtype]),
                                               ends)
            if self.share and split == "train":
                answer.sample = sample_of(mine, self.share, self.reading)
        return answer


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
    return b"".join(text[at:at + LONGEST_RUN].encode() + SEPARATOR for at in range(0, len(text), LONGEST_RUN))
