"""The package huggingface_hub: what a repository holds at a revision, and its errors as one line each.

Its settings are those that every program of the hub has: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import Exit, UserError, optional, version_of
from common.files import read_text, write_whole
from common.words import printable
from hub.names import DATASET, HubName

PACKAGE = "huggingface_hub"
OLDEST = "0.30"  # of which the tests have run; before it a download comes in pieces of 10 MB
NETWORK_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")  # of its several versions
LISTINGS = "listings"  # our folder beside the library's blobs, refs and snapshots: what repositories hold
PIECE_BYTES = 2**18  # of a file, fetched at a time: its 10 MB may be more than a bad line brings before it is cut
MOST_LISTING_BYTES = 2**28
DOWNLOAD = "download it"
TOKEN_CURE = "hf auth login, or HF_TOKEN in the environment"


def library(purpose: str) -> Any:
    """The package, silenced. Raises UserError (exit 5) where it is missing or too old."""
    found = optional(PACKAGE, purpose)
    if version_of(found.__version__) < version_of(OLDEST):
        raise UserError(Exit.MACHINE, f"{purpose} needs {PACKAGE} {OLDEST} or newer, {found.__version__} is "
                                      f"installed. Run: python -m pip install --upgrade {PACKAGE}")
    from huggingface_hub import constants, utils

    constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES
    utils.disable_progress_bars()  # ours say the same, in whole lines where there is no terminal
    utils.logging.set_verbosity_error()
    return found


def cache_of(name: HubName) -> Path:
    """The folder of a repository in the library's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / name.folder


def server() -> str:
    """The hub that is asked, as messages call it: huggingface.co."""
    from huggingface_hub import constants

    return constants.ENDPOINT.rpartition("://")[2].partition("/")[0]


# ---------------------------------------------------------------- errors


@dataclass(frozen=True)
class Wish:
    """What is requested of the hub, and how one does it by hand where it fails."""

    flag: str  # with its value, as a message begins
    name: HubName
    by_hand: str  # a command, or several

    @property
    def code(self) -> Exit:
        """The exit code where the hub has no such thing."""
        return Exit.DATA if self.name.kind == DATASET else Exit.CHECKPOINT

    def refusal(self, what: str, cure: str = "") -> UserError:
        """The error of something that the hub does not have, or does not give."""
        return UserError(self.code, f"{self.flag}: {what}. {cure or 'Check the name.'}")


class Unreachable(UserError):
    """The hub could not be asked: there is no network, the hub is down, or HF_HUB_OFFLINE is set."""


@contextlib.contextmanager
def explaining(wish: Wish, doing: str = DOWNLOAD) -> Iterator[None]:
    """While inside, errors of the library become a UserError: exit 3 or 4 for names, exit 5 for network and rights."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (found := _explained(wish, doing, error)) is None:
            raise
        raise found from error


def _explained(wish: Wish, doing: str, error: Exception) -> UserError | None:
    """What an error of the library means; None for one that is not about the hub."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    repo, revision = printable(wish.name.repo), printable(wish.name.revision)
    if "GatedRepoError" in kinds:
        cure = f"Accept its terms on https://{server()}/{_page(wish.name)}, and give your token: {TOKEN_CURE}."
        return wish.refusal(f"{repo} is gated", cure)
    if "RevisionNotFoundError" in kinds:
        return wish.refusal(f"{repo} has no revision {revision}", "Give a branch, a tag or a commit of it.")
    if "RepositoryNotFoundError" in kinds:
        return wish.refusal(f"{server()} has no {wish.name.kind} {repo}, or it is private",
                            f"Check the name; a private one needs your token: {TOKEN_CURE}.")
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return wish.refusal(f"{repo} has no {printable(wish.name.path) or 'such file'}")
    if status in (401, 403):
        return UserError(Exit.MACHINE, f"{wish.flag}: {server()} refuses your token ({status}). Give another: "
                                       f"{TOKEN_CURE}.")
    if "OfflineModeIsEnabled" in kinds:
        lacks = ", and the cache has no whole copy" * (doing == DOWNLOAD)
        return Unreachable(Exit.MACHINE, f"{wish.flag}: HF_HUB_OFFLINE is set{lacks}. Unset it, or {doing} elsewhere: "
                                         f"{wish.by_hand}")
    if is_of_network(error) or status in (408, 429) or (status or 0) >= 500:
        why = f"it answers {status}" if status else _reason(error)
        return Unreachable(Exit.MACHINE, f"{wish.flag}: {server()} cannot be reached ({why}). Run it again when there "
                                         f"is a network, or {doing} elsewhere: {wish.by_hand}")
    if status is not None:
        return wish.refusal(f"{server()} answers {status} ({printable(str(error))[:100]})")
    return None


def is_of_network(error: BaseException) -> bool:
    """True for an error of a connection, whichever package of the library raised it."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(packages & set(NETWORK_PACKAGES)) and getattr(error, "response", None) is None


def _reason(error: BaseException) -> str:
    """The last words of the innermost cause: 'Connection refused'."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(text.splitlines()[0])[:80].rstrip(".")


def _page(name: HubName) -> str:
    return f"{'datasets/' * (name.kind == DATASET)}{name.repo}"


# ---------------------------------------------------------------- what a repository holds


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. etag is its sha256, or for a small file the sha1 by which git knows it."""

    path: str
    num_bytes: int
    etag: str


@dataclass(frozen=True)
class Listing:
    """The files of a repository, or of a folder in it, at a commit. subsets is what a dataset's card says of them."""

    name: HubName  # its revision is the commit
    files: tuple[RemoteFile, ...]
    subsets: tuple[dict[str, Any], ...] = ()
    is_from_cache: bool = False


def list_files(wish: Wish, folder_in: Callable[[tuple[dict[str, Any], ...]], str] = lambda subsets: "") -> Listing:
    """The files of a repository; of a large one those of the folder that folder_in chooses from the card's subsets.

    Where the hub cannot be asked it is the listing of an earlier call. Raises UserError.
    """
    hub = library(wish.flag)
    try:
        with explaining(wish):
            return _ask(hub, wish.name, folder_in)
    except Unreachable:
        if (known := _remembered(wish.name, folder_in)) is None:
            raise
        return known


def _ask(hub: Any, name: HubName, folder_in: Callable[[tuple[dict[str, Any], ...]], str]) -> Listing:
    api, is_dataset = hub.HfApi(), name.kind == DATASET
    about = api.repo_info(name.repo, repo_type=name.kind, revision=name.revision,
                          expand=["sha", "cardData"] if is_dataset else ["sha"])
    subsets = _subsets_of(about) if is_dataset else ()
    folder = folder_in(subsets)
    entries = api.list_repo_tree(name.repo, folder or None, recursive=is_dataset, repo_type=name.kind,
                                 revision=about.sha)
    files = tuple(_remote(entry) for entry in entries if hasattr(entry, "blob_id"))
    listing = Listing(name.at(about.sha), files, subsets)
    _remember(name, listing, folder)
    return listing


def _remote(entry: Any) -> RemoteFile:
    return RemoteFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)


def _subsets_of(about: Any) -> tuple[dict[str, Any], ...]:
    """The subsets that a dataset's card names, as the library datasets would find them."""
    found = getattr(getattr(about, "card_data", None), "configs", None)
    found = found if isinstance(found, list) else []
    return tuple(subset for subset in found if isinstance(subset, dict) and subset.get("config_name"))


def _place(name: HubName, commit: str, folder: str) -> Path:
    """Where the listing of a folder is kept."""
    return cache_of(name) / LISTINGS / commit / f"{folder.replace('/', '-') or 'all'}.json"


def _place_of_subsets(name: HubName, commit: str) -> Path:
    return cache_of(name) / LISTINGS / f"{commit}.json"


def _remember(name: HubName, listing: Listing, folder: str) -> None:
    """Keeps a listing beside the files, and which commit a branch is at, for when the hub cannot be asked.

    A cache that cannot be written is no error here: files that lie in it already can still be used.
    """
    commit = listing.name.revision
    rows = [[file.path, file.num_bytes, file.etag] for file in listing.files]
    kept = {_place(name, commit, folder): json.dumps(rows),
            _place_of_subsets(name, commit): json.dumps(listing.subsets)}
    if name.revision != commit:
        kept[cache_of(name) / "refs" / name.revision] = commit
    with contextlib.suppress(OSError):
        for place, text in kept.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, text)


def _remembered(name: HubName, folder_in: Callable[[tuple[dict[str, Any], ...]], str]) -> Listing | None:
    """What an earlier call found, None if there was none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        reference = cache_of(name) / "refs" / name.revision
        commit = read_text(reference).strip() if reference.is_file() else name.revision
        subsets = tuple(json.loads(read_text(_place_of_subsets(name, commit))))
        rows = json.loads(read_text(_place(name, commit, folder_in(subsets)), MOST_LISTING_BYTES))
        files = tuple(RemoteFile(path, num_bytes, etag) for path, num_bytes, etag in rows)
        return Listing(name.at(commit), files, subsets, is_from_cache=True)
    return None

