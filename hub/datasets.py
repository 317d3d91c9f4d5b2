"""The text of a dataset on the hub: which of its files are meant, and those files in the library's cache.

What follows the name is a subset of the dataset's card, a split, both, or a file, folder or glob of the repository. A
repository often holds the same text twice, as a table and as a text file: then the tables are taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.progress import Progress
from common.words import printable, several, shell_word
from hub.files import fetch
from hub.library import Listing, RemoteFile, Wish, list_files
from hub.names import DATASET, HubName, parse_name

PACKED = r"(\.(gz|zst|bz2|xz))?"
# In the order of preference; a README.md is no text of the dataset.
KINDS = {
    "Parquet": re.compile(r"\.parquet$"),
    "JSON lines": re.compile(rf"\.(jsonl|ndjson){PACKED}$|\.json\.(gz|zst|bz2|xz)$"),
    "text": re.compile(rf"\.(txt|text){PACKED}$"),
}
SPLITS = {  # the words by which the library datasets knows a split in the name of a file or folder
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
MOST_NAMED = 8  # subsets or files in a message
Subsets = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Fetched:
    """A file of a dataset: where it lies, its path in the repository, and the repository with its commit."""

    path: Path
    shown: str
    origin: str


def fetch_dataset(word: str, out: Progress, look: Callable[[], None] = lambda: None) -> list[Fetched]:
    """The files of a dataset that are meant, said and downloaded unless the cache has them.

    Raises UserError: exit 3 for a name or path without text, exit 5 for what keeps it from being fetched.
    """
    name = parse_name(word, DATASET)
    wish = Wish(name.shown, name, commands_for_dataset(name))
    with out.phase(f"asking the hub for {name.shown}"):
        listing = list_files(wish, lambda subsets: shared_folder(patterns_of(name.path, subsets)[0]))
    kind, files = choose_files(wish, listing)
    num_others = len([file for file in listing.files if not file.path.startswith(".")]) - len(files)
    names = ", ".join(file.path for file in files[:3]) + ", ..." * (len(files) > 3)
    left = f"; {several(num_others, 'other file')} left out" * bool(num_others)
    out.say(f"hub         {kind} of {printable(name.repo)}: {printable(names)}{left}")
    snapshot = fetch(wish, listing, files, out, look)
    return [Fetched(snapshot / file.path, printable(file.path), str(listing.name)) for file in files]


def commands_for_dataset(name: HubName) -> str:
    """The commands that do without us what a name in the place of a file does."""
    folder = name.repo.partition("/")[2]
    at = "" if name.revision == "main" else f" --revision {name.revision}"
    include = f" --include {shell_word(name.path)}" if re.search(r"[*?.]", name.path) else ""
    return (f"hf download {name.repo} --repo-type dataset{at}{include} --local-dir {folder}; then python "
            f"pretokenize.py {folder}")


# ---------------------------------------------------------------- which files


def choose_files(wish: Wish, listing: Listing) -> tuple[str, list[RemoteFile]]:
    """The kind of the chosen files, and the files by name. Raises UserError (exit 3)."""
    path = wish.name.path
    patterns, split = patterns_of(path, listing.subsets)
    names = [str(subset["config_name"]) for subset in listing.subsets]
    if not path and not patterns and len(names) > 1:
        raise wish.refusal(f"has {several(len(names), 'subset')}: {printable(', '.join(names[:MOST_NAMED]))}"
                           + ", ..." * (len(names) > MOST_NAMED), f"Name one: {wish.name}/{printable(names[0])}")
    files = matching(listing.files, patterns) if patterns else list(listing.files)
    if path and not patterns:
        files, split = below(files, path)
    is_one_file = [file.path for file in files] == [path]
    for kind, ending in KINDS.items():
        of_kind = sorted((file for file in files if ending.search(file.path.lower())), key=lambda file: file.path)
        if of_kind:
            return kind, of_kind if is_one_file else of_split(wish, of_kind, split)
    if is_one_file:
        return "text", files
    there = ", ".join(sorted(file.path for file in files or listing.files)[:MOST_NAMED])
    known = f"; its subsets are {printable(', '.join(names[:MOST_NAMED]))}" * bool(names)
    raise wish.refusal(f"no Parquet, JSON lines or text file{' of this path' * bool(path)} among {printable(there)}"
                       f"{known}", "Name a file, folder or subset behind the dataset's name.")


def patterns_of(path: str, subsets: Subsets) -> tuple[list[str], str]:
    """The globs of the card's subset that a path names, and the split that it names after it; none for no subset.

    Without a path it is the subset that the card calls the default, or its only one.
    """
    first, _, rest = path.partition("/")
    for subset in subsets:
        is_default = subset.get("default") is True or subset["config_name"] == "default" or len(subsets) == 1
        is_meant = first == subset["config_name"] and (not rest or rest in split_names(subset))
        if is_meant or (is_default and (not path or path in split_names(subset))):
            wanted = (rest if is_meant else path) or "train"
            globs = globs_of(subset)
            chosen = globs.get(wanted) or [glob for each in globs.values() for glob in each]
            return chosen, "" if wanted in globs else wanted
    return [], ""


def globs_of(subset: dict[str, Any]) -> dict[str, list[str]]:
    """The globs of each split of a subset, as a card has them: a glob, a list of them, or splits with either."""
    files, folder = subset.get("data_files"), subset.get("data_dir")
    if files is None:
        return {"": [f"{str(folder).strip('/')}/**"]} if folder else {}
    found: dict[str, list[str]] = {}
    for entry in files if isinstance(files, list) else [files]:
        is_named = isinstance(entry, dict)
        paths = entry.get("path", []) if is_named else entry
        split = str(entry.get("split", "train")) if is_named else "train"
        found.setdefault(split, []).extend(str(each) for each in (paths if isinstance(paths, list) else [paths]))
    return found


def split_names(subset: dict[str, Any]) -> set[str]:
    return {*globs_of(subset), *SPLITS}


def matching(files: Iterable[RemoteFile], globs: Sequence[str]) -> list[RemoteFile]:
    """The files that one of the globs matches: * stays within a folder, ** does not."""
    expressions = [glob_to_regex(glob) for glob in globs]
    return [file for file in files if any(each.fullmatch(file.path) for each in expressions)]


def glob_to_regex(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression for whole paths."""
    parts = {"**/": r"(?:[^/]+/)*", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    words = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(parts.get(word, re.escape(word)) for word in words))


def shared_folder(globs: Sequence[str]) -> str:
    """The folder that holds all that globs can match, as far as their texts tell; '' for the whole repository."""
    heads = [re.split(r"[*?\[]", glob)[0].rpartition("/")[0].split("/") for glob in globs]
    shared: list[str] = []
    for parts in zip(*heads, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


def below(files: Sequence[RemoteFile], path: str) -> tuple[list[RemoteFile], str]:
    """The files that a path means as a file, folder or glob, and the split that it names or ends with, if any."""
    if exact := [file for file in files if file.path == path]:
        return exact, ""
    inside = [file for file in files if file.path.startswith(f"{path}/")] or matching(files, [path])
    if inside:
        return inside, ""
    folder, _, last = path.rpartition("/")
    inside = [file for file in files if not folder or file.path.startswith(f"{folder}/")]
    return (inside, last) if any(split_of(file.path, last) for file in inside) else ([], "")


def of_split(wish: Wish, files: Sequence[RemoteFile], split: str) -> list[RemoteFile]:
    """The files of a split; of no particular one those for training, if names tell splits apart at all."""
    chosen = [file for file in files if split_of(file.path, split or "train")]
    if chosen or not split:
        return chosen or list(files)
    raise wish.refusal(f"no file of split {printable(split)}", "Name a file or folder of the repository.")


def split_of(path: str, split: str) -> bool:
    """True if a path names a split, as a word of its own in a folder or in the file's name: data/train-00000.parquet"""
    words = {word.lower() for word in re.split(r"[^A-Za-z0-9]+", path)}
    return bool(words & set(SPLITS.get(split, (split.lower(),))))
