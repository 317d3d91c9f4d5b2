"""The commands as forks of one process that has imported them: a tenth of a second each, where a start takes three.

A fork runs the very lines that stand under the command's `if __name__ == "__main__":`, with its own arguments,
environment, folder and streams. Where there is a C compiler, faulty.c is preloaded, so that a job can make its disk
fail.
"""

import ast
import builtins
import concurrent.futures.thread
import contextlib
import functools
import gc
import importlib
import json
import math
import os
import pkgutil
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from gpt.common import ranks

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "system" / "faulty.c"
MODULES = {"bench": "gpt.benchmarks.bench"}  # of commands that are not a script at the top
GRACE_SECONDS = 30  # as torchrun has it
MONITOR_SECONDS = 0.3  # which torchrun may take to see that a process has ended
MOST_SECONDS = 300  # of several processes, before those are killed that have lost the one that started them


@dataclass(frozen=True)
class Raised:
    """What befalls a process in its call number `call` of "module:function".

    It gets a signal, `delay` seconds after the call began, or the call fails, or returns a tensor that is not finite.
    With `returns`, the call does nothing and returns that.
    """

    function: str
    call: int  # 0: every call
    number: int = 0  # of the signal; 0: none
    delay: float = 0.0
    rank: int | None = None  # of several processes the one that it befalls; None: each
    error: str = ""  # name of a builtin exception
    spoils: bool = False  # the result becomes NaN
    returns: Any = None


@dataclass(frozen=True)
class Job:
    """One run of a command: everything the serving process needs to know."""

    words: list[str]
    cwd: str
    stdout: str
    stderr: str
    env: dict[str, str] = field(default_factory=dict)
    kill_after: float = 1e6  # seconds
    alarm: int = 0  # seconds after which SIGALRM ends it; 0: never
    raised: list[dict[str, Any]] = field(default_factory=list)  # fields of Raised
    world_size: int = 1  # processes that run it together, as torchrun starts them
    num_machines: int = 1  # that these are said to be on
    victim: int | None = None  # of these the one that is killed then; None: the one that started them
    own_words: dict[str, list[str]] = field(default_factory=dict)  # by rank: what its command line has besides
    stdin: str = ""  # what is piped into it, less than a pipe holds; empty: the null device


@dataclass(frozen=True)
class Ended:
    """What a user sees of a command: its exit code (negative: the signal that ended it), both streams, its cost."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int


# ---------------------------------------------------------------- the serving process


def serve() -> None:
    """Runs a command for each line of stdin, a Job in JSON, and answers with its exit code, seconds and memory."""
    import torch
    import torch._dynamo  # torch itself imports it late, in each child again

    torch.set_num_threads(1)  # a pool of threads does not outlive fork
    torch.optim.AdamW([torch.zeros(1)], fused=True)  # imports what each child would
    commands: dict[str, tuple[ModuleType, CodeType]] = {}
    for line in sys.stdin:
        job = Job(**json.loads(line))
        name = job.words[0].removesuffix(".py")
        if name not in commands:
            commands[name] = load(name)
            gc.freeze()  # else each child's collector would copy all of it
        started = time.monotonic()
        child = os.fork()
        if not child:
            run_job(job, *commands[name])
        with killed_later([child] if job.victim is None else [], job.kill_after):
            _, status, usage = os.wait4(child, 0)
        with contextlib.suppress(OSError):
            while job.world_size > 1 and time.monotonic() < started + MOST_SECONDS:
                os.killpg(child, 0)  # until all processes of the group have ended
                time.sleep(0.002)
            os.killpg(child, signal.SIGKILL)  # what it started and left behind
        answer = {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - started,
                  "peak_bytes": usage.ru_maxrss * 1024}
        print(json.dumps(answer), flush=True)


def load(name: str) -> tuple[ModuleType, CodeType]:
    """A command's module, and as code all that it does when it is started as a program."""
    module = importlib.import_module(MODULES.get(name, name))
    assert module.__file__
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    lines = [line for node in tree.body
             if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
             for line in node.body]
    return module, compile(ast.Module(lines, []), module.__file__, "exec")


def run_job(job: Job, module: ModuleType, code: CodeType) -> NoReturn:
    """Becomes the command, in a child of fork."""
    os.setsid()
    signal.alarm(job.alarm)
    os.environ.update(job.env)
    os.chdir(job.cwd)
    for stream, path in enumerate((os.devnull, job.stdout, job.stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), stream)
    if job.stdin:
        reading, writing = os.pipe()
        os.write(writing, job.stdin.encode())
        os.close(writing)
        os.dup2(reading, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if job.world_size > 1:
        become_one_of(job)
    for wanted in (Raised(**fields) for fields in job.raised):
        if wanted.rank is None or os.environ.get("RANK") == str(wanted.rank):
            raise_in(wanted)
    sys.argv = job.words
    main = functools.partial(exec, code, vars(module))
    if "--compile" in job.words:  # the compiler's threads end with the interpreter alone
        main()
        raise SystemExit
    leave(main)


def become_one_of(job: Job) -> None:
    """Returns in each of so many children, which can meet; this process does as torchrun's agent does.

    When a child fails, the others are asked to end, and killed after a while; the exit code is that of the first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children: dict[int, int] = {}
    each = job.world_size // job.num_machines
    for rank in range(job.world_size):
        child = os.fork()
        if not child:
            os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank % each), "WORLD_SIZE": str(job.world_size),
                               "LOCAL_WORLD_SIZE": str(each), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
            ranks.STARTED_BY = os.getppid()  # a process that torchrun starts has imported nothing yet
            job.words.extend(job.own_words.get(str(rank), []))
            return
        children[child] = rank
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: end_all(children, number))
    first = 0
    with killed_later([] if job.victim is None else [[*children][job.victim]], job.kill_after):
        while children:
            child, status = os.wait()
            children.pop(child)
            code = os.waitstatus_to_exitcode(status)
            if code and not first:
                first = code if code > 0 else 128 - code
                time.sleep(MONITOR_SECONDS)
                end_all(children, signal.SIGTERM)
                threading.Timer(GRACE_SECONDS, end_all, [children, signal.SIGKILL]).start()
    os._exit(first)


def end_all(children: Iterable[int], number: int) -> None:
    for child in [*children]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


@contextlib.contextmanager
def killed_later(children: list[int], seconds: float) -> Iterator[None]:
    """Kills the children when that many seconds have passed, if this has not ended before."""
    timer = threading.Timer(seconds, end_all, [children, signal.SIGKILL])
    timer.start()
    yield
    timer.cancel()
    timer.join()


def leave(main: Callable[[], None]) -> NoReturn:
    """Runs main and ends this process with its exit code, without the second that taking an interpreter apart takes."""
    code = 99
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        concurrent.futures.thread._python_exit()  # as the interpreter does: idle workers end
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def raise_in(wanted: Raised) -> None:
    """Wraps a function so that the wanted thing happens in one of its calls."""
    module, _, path = wanted.function.partition(":")
    *outer, name = path.split(".")
    holder = pkgutil.resolve_name(f"{module}:{'.'.join(outer)}" if outer else module)
    real, calls = getattr(holder, name), []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if wanted.call not in (0, len(calls)):
            return real(*args, **kwargs)
        if wanted.error:
            raise getattr(builtins, wanted.error)
        if wanted.returns is not None:
            return wanted.returns
        if wanted.delay:
            timer = threading.Timer(wanted.delay, os.kill, (os.getpid(), wanted.number))
            timer.daemon = True
            timer.start()
        elif wanted.number:
            os.kill(os.getpid(), wanted.number)
        result = real(*args, **kwargs)
        return result * math.nan if wanted.spoils else result

    setattr(holder, name, wrapped)


# ---------------------------------------------------------------- the test's side


class Forks:
    """Two serving processes, started when first needed; may be used from two threads."""

    def __init__(self, folder: Path):
        """folder is for what the commands print, their temporary files and their cache."""
        self.folder = folder
        self.idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        self.count = 0
        self.shim = compiled_shim(folder)
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TMPDIR": str(folder),
                    "XDG_CACHE_HOME": str(folder / "cache"), **({"LD_PRELOAD": str(self.shim)} if self.shim else {})}
        self.started: list[subprocess.Popen] = []
        self.lock = threading.Lock()

    def run(self, line: str | list[str], *, cwd: Path | None = None, merged: bool = False,
            printed_to: Path | None = None, raised: Iterable[Raised] = (), **more: Any) -> Ended:
        """Runs a command line ("train.py --max_steps 2"; a list of words where they hold spaces) and waits for its end.

        merged puts both streams, in the order written, into the result's stdout; printed_to is the file that holds it.
        more are fields of Job.
        """
        with self.lock:
            self.count += 1
            streams = self.folder / str(self.count)
            if self.idle.empty() and len(self.started) < 2:
                self.started.append(subprocess.Popen(
                    [sys.executable, "-m", "tests.helpers.forks"], cwd=ROOT, env=self.env, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                self.idle.put(self.started[-1])
        stdout = printed_to or streams.with_suffix(".out")
        stderr = stdout if merged else streams.with_suffix(".err")
        for path in (stdout, stderr):
            path.write_bytes(b"")
        job = Job(shlex.split(line) if isinstance(line, str) else line, str(cwd or self.folder), str(stdout),
                  str(stderr), raised=[asdict(wanted) for wanted in raised], **more)
        server = self.idle.get()
        try:
            assert server.stdin and server.stdout  # noqa: PT018
            print(json.dumps(asdict(job)), file=server.stdin, flush=True)
            answer = json.loads(server.stdout.readline())
        finally:
            self.idle.put(server)
        printed = [path.read_text(errors="replace") for path in (stdout, stderr)]
        return Ended(stdout=printed[0], stderr="" if merged else printed[1], **answer)

    def close(self) -> None:
        """Ends the serving processes."""
        for server in self.started:
            server.communicate()


def compiled_shim(folder: Path) -> Path | None:
    """The library that makes a disk fail; None where there is no Linux or no C compiler."""
    compiler, shim = shutil.which("cc"), folder / "faulty.so"
    if compiler is None or sys.platform != "linux":
        return None
    subprocess.run([compiler, "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(shim), str(FAULTY), "-ldl",
                    "-lpthread"], check=True)
    return shim


if __name__ == "__main__":
    serve()
