"""Files of a repository in the library's cache: continued where they were cut off, and what the hub says they are.

The library's newest releases begin a file again when its download was interrupted. So a file is fetched here, by the
library's own request with a range, into blobs/ETAG.partial. It gets its name in the cache, blobs/ETAG, once its hash is
the one that the hub states; then the library links it into the snapshot, and finds it as if it had fetched it itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, BinaryIO, cast

from common.errors import Exit, UserError
from common.files import rename, sha256_of, sync
from common.progress import Progress
from common.words import duration, printable, several, size
from hub.library import Listing, RemoteFile, Unreachable, Wish, cache_of, explaining, is_of_network, library
from hub.names import HubName

MOST_ATTEMPTS = 5  # in a row that bring nothing
PAUSE_SECONDS = 1.0  # before the second attempt, then twice as long each
SAY_SECONDS = 5.0
AT_ONCE = 4  # files: small ones wait for answers, and a server may give each connection a part of the line
SPARE_BYTES = 2**26
READ_BYTES = 2**20
SHA256_LENGTH = 64  # of an etag; the sha1 of git is shorter


# ---------------------------------------------------------------- all files of a wish


def fetch(wish: Wish, listing: Listing, files: Sequence[RemoteFile], out: Progress,
          look: Callable[[], None] = lambda: None) -> Path:
    """The folder of the commit in the library's cache, with these files in it, each verified.

    look is called after each piece, and may raise to stop; what was fetched by then stays. Raises UserError (exit 3 or
    4 for what the hub does not have, exit 5 for network, disk and rights).
    """
    hub, name = library(wish.flag), listing.name
    snapshot = cache_of(name) / "snapshots" / name.revision
    missing = [file for file in files if not _is_there(snapshot / file.path, file)]
    total = several(len(files), "file")
    say = f"hub         {name.shown}: {total}, {size(sum(file.num_bytes for file in files))}"
    if not missing:
        how = ", as last seen: the hub cannot be reached" if listing.is_from_cache else ", in the cache"
        out.say(say + how)
    elif listing.is_from_cache:
        raise Unreachable(Exit.MACHINE, f"{wish.flag}: the hub cannot be reached, and the cache lacks "
                                        f"{printable(missing[0].path)}. Run it again when there is a network, or "
                                        f"download it elsewhere: {wish.by_hand}")
    else:
        out.say(f"{say}, to {printable(str(cache_of(name)))}")

    with _writing(name):
        _check_room(name, missing)
        meter = FetchMeter(out, look, sum(file.num_bytes for file in missing),
                           sum(_bytes_in(_partial(name, file)) for file in missing))

        def bring(file: RemoteFile) -> None:
            if file in missing:
                _fetch_one(hub, wish, name, file, meter)
            else:
                _check_again(hub, wish, name, file, snapshot / file.path, meter)

        doing = "fetching" if missing else "verifying"
        try:
            with out.phase(f"{doing} {several(len(missing or files), 'file')}"):
                _all_at_once(bring, files, meter)
        finally:
            out.end_bar()
    return snapshot


def _all_at_once(bring: Callable[[RemoteFile], None], files: Sequence[RemoteFile], meter: FetchMeter) -> None:
    """Brings several files at a time; the first that fails ends the others at their next piece."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = [pool.submit(bring, file) for file in files]
        try:
            for result in as_completed(results):
                result.result()
        except BaseException:
            meter.is_over = True
            for result in results:
                result.cancel()
            raise


def _is_there(path: Path, file: RemoteFile) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size == file.num_bytes
    return False


def _check_room(name: HubName, missing: Sequence[RemoteFile]) -> None:
    """Raises UserError (exit 5) before a download that cannot fit."""
    folder = cache_of(name)
    if not missing:
        return
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    needed = sum(file.num_bytes - _bytes_in(_partial(name, file)) for file in missing)
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise UserError(Exit.MACHINE, f"{printable(str(folder))}: {size(free)} are free, {size(needed)} are to come. "
                                      "Free some space, or set HF_HOME to a folder on a larger disk.")


@contextlib.contextmanager
def _writing(name: HubName) -> Iterator[None]:
    """While inside, a full disk and similar errors of the system become a UserError (exit 5)."""
    try:
        yield
    except OSError as error:
        if error.errno is None or is_of_network(error):
            raise
        folder = cache_of(name)
        near = next(each for each in (folder, *folder.parents) if each.exists())
        free = f", {size(shutil.disk_usage(near).free)} free" if error.errno == errno.ENOSPC else ""
        raise UserError(Exit.MACHINE, f"the hub's cache {printable(str(folder))}: {error.strerror}{free}. What was "
                                      "fetched stays. Free some space, or set HF_HOME to a folder that can be "
                                      "written.") from error


class FetchMeter:
    """Bytes fetched of all that are missing: moves the bar, or prints a line every few seconds. Of several threads."""

    def __init__(self, out: Progress, look: Callable[[], None], total: int, there: int):
        """there are the bytes that earlier runs have fetched."""
        self.out, self._look, self.total = out, look, total
        self.is_over = False  # another file has failed
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()
        self._began, self._there = time.monotonic(), there
        self._next = self._began + SAY_SECONDS
        if total:
            out.bar(total, there, "B", scale=True)

    def at(self, file: RemoteFile, done: int) -> None:
        """So many bytes of a file are there. Raises what look raises, and CancelledError after another file failed."""
        if self.is_over:
            raise CancelledError
        self._look()
        with self._lock:
            self._done[file.path] = done
            fetched, now = sum(self._done.values()), time.monotonic()
            if self.out.on_terminal:
                self.out.at(max(fetched, self._there))
            elif now >= self._next:
                self._next = now + SAY_SECONDS
                rate = max(1.0, (fetched - self._there) / (now - self._began))
                self.out.at(fetched, f"fetched {fetched / 1e6:,.1f} of {self.total / 1e6:,.1f} MB | {rate / 1e6:.1f} "
                                     f"MB/s | {duration((self.total - fetched) / rate)} left")


# ---------------------------------------------------------------- one file


def _fetch_one(hub: Any, wish: Wish, name: HubName, file: RemoteFile, meter: FetchMeter) -> None:
    """Brings one file into the cache, verified. Raises UserError, OSError."""
    from filelock import FileLock  # the library needs it too, and locks its own downloads by the same files

    blob, partial = cache_of(name) / "blobs" / file.etag, _partial(name, file)
    lock = cache_of(name).parent / ".locks" / name.folder / f"{file.etag}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(lock)):
        for is_last in (False, True):
            if not blob.exists():  # another process may have fetched it
                _fill(hub, wish, name, file, partial, meter)
                if etag_of(partial, file.etag) != file.etag:
                    partial.unlink()
                    if is_last:
                        raise _wrong_bytes(wish, file)
                    meter.out.warn(f"{printable(file.path)} is not what the hub states, and is fetched again.")
                    continue
                sync(partial)
                rename(partial, blob)
            break
    _link(hub, wish, name, file)


def _fill(hub: Any, wish: Wish, name: HubName, file: RemoteFile, partial: Path, meter: FetchMeter) -> None:
    """Fetches what is missing of a file, over connections that may be cut. Raises UserError, OSError."""
    from huggingface_hub.utils import build_hf_headers

    if _bytes_in(partial) > file.num_bytes:
        partial.unlink()
    url = hub.hf_hub_url(name.repo, file.path, repo_type=name.kind, revision=name.revision)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    num_vain, before = 0, _bytes_in(partial)
    with Piece(partial, file, meter) as piece, explaining(wish):
        while piece.length < file.num_bytes or not file.num_bytes:
            try:
                _request(hub, url, piece, headers, file)
                return
            except Exception as error:
                is_short = isinstance(error, OSError) and error.errno is None and "onsistency" in str(error)
                if not (is_of_network(error) or is_short) or isinstance(error, UserError):
                    raise
                num_vain = 0 if piece.length > before else num_vain + 1
                before = piece.length
                if num_vain == MOST_ATTEMPTS:
                    raise
                meter.out.note(f"the connection was cut after {size(piece.length)} of {size(file.num_bytes)} of "
                               f"{printable(file.path)}: going on from there")
                time.sleep(PAUSE_SECONDS * 2**num_vain)


def _request(hub: Any, url: str, piece: Piece, headers: dict[str, str], file: RemoteFile) -> None:
    """One request for what is missing, by the library: its proxies, certificates, redirects and retries."""
    from huggingface_hub.file_download import http_get

    http_get(url, cast(BinaryIO, piece), resume_size=piece.length, headers=headers, expected_size=file.num_bytes,
             displayed_filename=file.path)


class Piece(io.RawIOBase):
    """The file that a download is appended to. Each piece is on its way to the disk at once: a kill loses none."""

    def __init__(self, path: Path, remote: RemoteFile, meter: FetchMeter):
        super().__init__()
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.seek(0, os.SEEK_END)
        self._remote, self._meter = remote, meter
        meter.at(remote, self.length)

    @property
    def length(self) -> int:
        return self._file.tell()

    def write(self, content: Any) -> int:
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest):]
        self._meter.at(self._remote, self.length)
        return len(content)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)

    def close(self) -> None:
        self._file.close()
        super().close()


def _link(hub: Any, wish: Wish, name: HubName, file: RemoteFile) -> None:
    """Lets the library link a file of the cache into the snapshot of its commit."""
    with explaining(wish):
        hub.hf_hub_download(name.repo, file.path, repo_type=name.kind, revision=name.revision)


def _check_again(hub: Any, wish: Wish, name: HubName, file: RemoteFile, path: Path, meter: FetchMeter) -> None:
    """Compares a file that lay in the cache with what the hub states; a damaged one is fetched again."""
    meter.at(file, 0)
    if etag_of(path, file.etag) == file.etag:
        return
    meter.out.warn(f"{printable(file.path)} in the cache is not what the hub states, and is fetched again.")
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    _fetch_one(hub, wish, name, file, meter)


def _wrong_bytes(wish: Wish, file: RemoteFile) -> UserError:
    kind = "sha256" if len(file.etag) == SHA256_LENGTH else "git hash"
    return UserError(wish.code, f"{wish.flag}: {printable(file.path)} came twice with another {kind} than the hub "
                                f"states ({file.etag[:12]}). Report it to the owner of the repository.")


def _partial(name: HubName, file: RemoteFile) -> Path:
    return cache_of(name) / "blobs" / f"{file.etag}.partial"


def _bytes_in(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def etag_of(path: Path, etag: str) -> str:
    """The hash of a file, of the kind that an etag is: sha256, or git's sha1 of a blob."""
    if len(etag) == SHA256_LENGTH:
        return sha256_of(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while content := file.read(READ_BYTES):
            digest.update(content)
    return digest.hexdigest()
