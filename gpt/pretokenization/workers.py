"""Worker processes: questions go to them and answers come back, in order; each reads, samples or encodes blocks."""

import contextlib
import hashlib
import itertools
import multiprocessing.connection
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpt.common.children import start_process
from gpt.common.errors import PANIC, Exit, UserError, is_panic
from gpt.common.files import IS_WINDOWS
from gpt.common.signals import Signals
from gpt.common.words import first_line
from gpt.pretokenization.blocks import Findings, Reading, TextBlock, last_cut, parts_of
from gpt.pretokenization.conversations import encode_conversations, plain_text
from gpt.pretokenization.engines import encoder_for
from gpt.pretokenization.files import Source
from gpt.pretokenization.sources import KINDS, documents_of
from gpt.pretokenization.split import Split
from gpt.tokens.layouts import DTYPES, native_dtype
from gpt.tokens.tokenizer import Vocabulary

MAX_UNREAD = 4  # questions and answers on the way, for each worker
MAX_PROCESSES = 60 if IS_WINDOWS else 1024  # Windows waits for 63 pipes at most
MAX_QUEUED = 2  # questions of one worker: it begins the second while this process reads its first answer
SEPARATOR = b"\xff"  # ends each text of a sample; UTF-8 never holds this byte
RUN_BYTES = 1000
ADVICE = "Run the command again with fewer --num_workers, or a smaller --train_sample_bytes."
START_METHOD = "fork" if sys.platform == "linux" else "spawn"  # a fork needs no imports, but is safe only here
IS_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))


# ---------------------------------------------------------------- processes that answer questions


@contextlib.contextmanager
def _started(number: int, answer: Callable[[Any], Any],
             start_method: str) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Starts this many processes, and ends them at the end of the with statement.

    Yields the processes, and the pipes of their questions; the keys of both are the pipes of their answers.
    """
    context = multiprocessing.get_context(start_method)
    processes: dict[Any, Any] = {}
    pipes: dict[Any, Any] = {}
    try:
        for _ in range(number):
            their_questions, questions = context.Pipe(duplex=False)
            answers, their_answers = context.Pipe(duplex=False)  # two pipes are faster than a duplex one
            not_theirs = [*processes, *pipes.values(), questions, answers]
            processes[answers] = start_process(context, _serve, their_questions, their_answers, answer,
                                               not_theirs)
            pipes[answers] = questions
            their_questions.close()
            their_answers.close()
        yield processes, pipes
    finally:
        for pipe in (*processes, *pipes.values()):
            pipe.close()
        for process in processes.values():
            process.terminate()
            process.join()


def answers_of(number: int, answer: Callable[[Any], Any], questions: Iterable[Any], signals: Signals,
               is_heavy: Callable[[Any], bool] = lambda _: False) -> Generator[tuple[Any, Any], None, None]:
    """Yields the questions with their answers, in order; a single worker is this process itself.

    A heavy question goes only to an idle worker: if both ends of a pipe wrote at once, both would wait
    forever. Workers end with the generator: close it, or read it to its end. Raises Stopped after a signal,
    UserError (exit 5) when a worker dies, and the UserError of an answer; its bug becomes a RuntimeError.
    """
    if number > 1:
        yield from _answers_of_processes(min(number, MAX_PROCESSES), answer, questions, signals, is_heavy)
    else:
        for question in questions:
            signals.raise_if_stopped()
            yield question, answer(question)


def _answers_of_processes(number: int, answer: Callable[[Any], Any], questions: Iterable[Any], signals: Signals,
                          is_heavy: Callable[[Any], bool] = lambda _: False, start_method: str = START_METHOD,
                          ) -> Generator[tuple[Any, Any], None, None]:
    """Does the work of answers_of in child processes."""
    unread: deque[list[Any]] = deque()  # entries of a question, and later its answer
    source = iter(questions)
    with _started(number, answer, start_method) as (processes, pipes):
        # Each worker's open entries.
        queues: dict[Any, deque[list[Any]]] = {pipe: deque() for pipe in processes}
        question = next(source, None)
        while question is not None or unread:
            pipe = None
            try:
                while question is not None and len(unread) < MAX_UNREAD * len(queues):
                    pipe = min(queues, key=lambda pipe: len(queues[pipe]))
                    if len(queues[pipe]) >= (1 if is_heavy(question) else MAX_QUEUED):
                        break
                    unread.append([question])
                    queues[pipe].append(unread[-1])
                    pipes[pipe].send(question)
                    question = next(source, None)

                for pipe in multiprocessing.connection.wait([pipe for pipe in queues if queues[pipe]], 0.1):
                    reply, error = pipe.recv()  # type: ignore[union-attr]
                    if error:
                        raise error
                    queues[pipe].popleft().append(reply)
            except (EOFError, OSError) as cause:
                processes[pipe].join(5)
                signals.raise_if_stopped()  # a signal to the whole group ended it
                raise UserError(Exit.MACHINE, f"a worker process died (exit {processes[pipe].exitcode}; -9 means "
                                              f"that memory ran out). {ADVICE}") from cause

            signals.raise_if_stopped()
            while unread and len(unread[0]) == 2:
                yield tuple(unread.popleft())


def _serve(questions: Any, answers: Any, answer: Callable[[Any], Any], not_ours: Sequence[Any]) -> None:
    """The worker process: answers questions until their pipe is closed. The parent handles signals and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for Windows; elsewhere start_process has blocked it
    for other in not_ours:  # an open end here would keep this process alive after the parent's death
        other.close()
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = questions.recv()
            try:
                reply = answer(question), None
            except BaseException as error:  # a panic of a Rust library is not an Exception
                reply = None, _sendable(error)
            answers.send(reply)


def _sendable(error: BaseException) -> Exception:
    """Converts an error for the pipe: to a UserError, or, for a bug, to a RuntimeError with its traceback."""
    if isinstance(error, UserError):
        return error
    if is_panic(error):
        return UserError(Exit.DATA, PANIC.format(first_line(error)))
    if isinstance(error, OSError | MemoryError):
        return UserError(Exit.MACHINE, f"{first_line(error)} in a worker process. {ADVICE}")
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"in another process: {text.strip().splitlines()[-1]}\n{text}")


def in_child(signals: Signals, work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a fresh process, so that a signal can end it and its memory is freed afterwards.

    The process is spawned, not forked: a fork inherits the locks of a library's threads, but not the threads.
    Returns its result. Raises Stopped after a signal, and otherwise as answers_of does.
    """
    with contextlib.closing(_answers_of_processes(1, _call, [(work, arguments)], signals,
                                                  start_method="spawn")) as answers:
        return next(answer for _, answer in answers)


def _call(question: tuple[Callable[..., Any], Sequence[Any]]) -> Any:
    return question[0](*question[1])


# ---------------------------------------------------------------- reading a block


class SplitAnswer(NamedTuple):
    """The documents of a block that belong to one split."""

    sizes: list[int]  # bytes of each document
    hashes: np.ndarray  # uint64
    ids: np.ndarray
    ends: np.ndarray  # of the documents, in these ids
    is_answer: np.ndarray | None  # of conversations: bool for each id, if it counts in the loss


@dataclass
class WorkerAnswer:
    """The answer of a worker about one block: findings, the documents of each split, and a sample if requested.

    The keys of splits are "train" and "val". sample is b"" where none was requested. difference is a text to
    which the engine gave other ids than tokenizers; then the ids must not be used. '' means that none was
    found.
    """

    findings: Findings
    splits: dict[str, SplitAnswer] = field(default_factory=dict)
    sample: bytes = b""
    difference: str = ""


def read_block(block: TextBlock, sources: Sequence[Source], reading: Reading, split: Split,
               sample_fraction: float = 0.0, vocabulary: Vocabulary | None = None,
               engine: str = "tokenizers") -> WorkerAnswer:
    """Reads a block in a worker process, and samples or encodes its documents.

    split tells which documents are for validation. sample_fraction is the part of the training
    text to sample. With a vocabulary, the documents are encoded by the engine.
    """
    answer = WorkerAnswer(Findings())
    documents = documents_of(block, sources, reading, answer.findings)
    is_chat = KINDS[sources[block.source].kind].is_chat
    texts = [plain_text(turns) for turns in documents] if is_chat else documents
    with_text = [text for text in texts if text and not text.isspace()]
    answer.findings.has_text = bool(with_text)
    if block.in_val is not None:  # a part of a document, which may be blank
        contents = [texts[0].encode()]
        hashes, in_val = np.zeros(1, np.uint64), np.full(1, block.in_val)
    else:
        contents = [text.encode() for text in with_text]
        digests = b"".join([hashlib.sha256(content).digest()[:8] for content in contents])
        hashes = np.frombuffer(digests, ">u8").astype(np.uint64)
        in_val = split.in_val(hashes, np.array([len(content) for content in contents], dtype=np.int64))

    for part, is_mine in (("train", ~in_val), ("val", in_val)):
        mine = list(itertools.compress(contents, is_mine))
        ids = ends = np.zeros(0, np.int64)
        is_answer = np.zeros(0, bool) if is_chat else None
        if vocabulary and mine:
            encoder = encoder_for(vocabulary, engine)
            pieces, lasts = [], []  # parts of at most limits.part_bytes, and whether each ends its document
            for content in mine:
                parts = parts_of(content, reading)
                pieces += parts
                lasts += [False] * (len(parts) - 1) + [True]
            lasts[-1] = block.last
            if is_chat:
                ids, ends, is_answer = encode_conversations(list(itertools.compress(documents, is_mine)), encoder)
            else:
                ids, ends = encoder.encode(pieces, lasts)
            ids = ids.astype(DTYPES[native_dtype(vocabulary.size)])
            answer.difference = answer.difference or encoder.difference_in(pieces)
        answer.splits[part] = SplitAnswer(list(map(len, mine)), hashes[is_mine], ids, ends, is_answer)
        if sample_fraction and part == "train":
            answer.sample = sample_of(mine, sample_fraction, reading)
    return answer


def sample_of(contents: list[bytes], fraction: float, reading: Reading) -> bytes:
    """Samples the first fraction of a block's training text; a document that fills a block is sampled in each part.

    Blocks and parts are small, so all samples together are spread evenly.
    """
    parts = parts_of(contents[0], reading) if len(contents) == 1 else []
    if len(parts) > 1:
        return b"".join(sample_of([part], fraction, reading) for part in parts)
    budget, chosen = sum(map(len, contents)) * fraction, []
    for content in contents:
        if len(content) > budget:
            chosen.append(content[:last_cut(content[:int(budget)], reading.cut_pattern)])
            break
        chosen.append(content)
        budget -= len(content)
    return b"".join(without_long_runs(content) for content in chosen if content)


def without_long_runs(content: bytes) -> bytes:
    """Returns a text and a SEPARATOR; a very long run is sliced, a SEPARATOR after each slice.

    A trainer's time grows with the square of a run of whitespace, or of a run without it. A run is found if
    it fills RUN_BYTES counted in multiples from the front, as each run of twice that length does.
    """
    aligned = len(content) // RUN_BYTES * RUN_BYTES
    blank = IS_BLANK[np.frombuffer(content, np.uint8, aligned)].reshape(-1, RUN_BYTES)
    if (blank.any(1) & ~blank.all(1)).all():
        return content + SEPARATOR
    text = content.decode()
    slices = [text[start:start + RUN_BYTES] for start in range(0, len(text), RUN_BYTES)]
    return b"".join(piece.encode() + SEPARATOR for piece in slices)
