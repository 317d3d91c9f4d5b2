"""Models and datasets of the hub as files in the library's cache, downloaded by the library.

Of a model config, tokenizer and safetensors alone, never a pickle; of a dataset the files that a path means.
"""

from __future__ import annotations

import glob
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from common.flags import Args, having
from common.names import CONFIG, INDEX, WEIGHTS
from common.progress import Progress
from common.waiting import in_thread
from common.words import printable, several
from hub.library import Request, explaining, library
from hub.names import DATASET, MODEL, is_on_hub, parse_name

TOKENIZERS = ("tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe")
OF_A_MODEL = (CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", *TOKENIZERS, "generation_config.json",
              "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
              "README.md", "LICENSE")
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
MOST_NAMED = 8  # files or folders in a message


@dataclass(frozen=True)
class Fetched:
    """A file of a dataset: where it lies, its path in the repository, and the repository with its commit."""

    path: Path
    shown: str
    origin: str


def fetch(request: Request, patterns: Sequence[str], out: Progress, look: Callable[[], None] = lambda: None) -> Path:
    """The folder of the commit in the library's cache, with the files that match. Raises UserError.

    look is called meanwhile, and may raise to stop. Where the hub cannot be reached it is what the cache has.
    """
    hub, name = library(request.flag), request.name
    if not out.on_terminal:  # where the heartbeat speaks
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    with explaining(request), out.phase(f"fetching {name.shown}"):
        folder = in_thread(lambda: hub.snapshot_download(name.repo, repo_type=name.kind, revision=name.revision,
                                                         allow_patterns=list(patterns)), look)
    out.say(f"hub         {name.shown}, in {printable(folder)}")
    return Path(folder)


# ---------------------------------------------------------------- models


def with_models_here(args: Args, flags: Sequence[str], out: Progress,
                     look: Callable[[], None] = lambda: None) -> Args:
    """The flags, with a folder of the library's cache for each hf:// that one of these flags names.

    Raises UserError: exit 4 for a name without a model, exit 5 for what keeps it from being fetched.
    """
    fetched = {flag: str(fetch_model(f"--{flag}", vars(args)[flag], out, look))
               for flag in flags if is_on_hub(vars(args)[flag])}
    return having(args, **fetched) if fetched else args


def with_tokenizer_here(args: Namespace, out: Progress, look: Callable[[], None]) -> Namespace:
    """The flags, with a file of the library's cache for a --tokenizer_file that is hf://. Raises UserError."""
    if not is_on_hub(args.tokenizer_file):
        return args
    name = parse_name(args.tokenizer_file, MODEL)
    request = Request(f"--tokenizer_file {name.shown}", name)
    folder = fetch(request, TOKENIZERS, out, look)
    found = next((folder / name for name in TOKENIZERS if (folder / name).is_file()), None)
    if found is None:
        raise request.refusal(f"{request.name.repo} has no {TOKENIZERS[0]}", "Give a model that has one.")
    return having(args, tokenizer_file=str(found))


def fetch_model(flag: str, word: str, out: Progress, look: Callable[[], None] = lambda: None) -> Path:
    """The folder of a model, which is downloaded unless the cache has it. What is in its files is looked at later."""
    name = parse_name(word, MODEL)
    request = Request(f"{flag} {name.shown}", name)
    folder = fetch(request, OF_A_MODEL, out, look)
    if not (folder / CONFIG).is_file() or not ((folder / WEIGHTS).is_file() or (folder / INDEX).is_file()):
        raise request.refusal(f"it has no {CONFIG} and {WEIGHTS} (pickles can run code and are never opened)",
                              f"Give a model with {CONFIG} and {WEIGHTS}.")
    return folder


# ---------------------------------------------------------------- datasets


def fetch_dataset(word: str, out: Progress, look: Callable[[], None] = lambda: None) -> list[Fetched]:
    """The files of a dataset that a path means: a file, folder, glob or split; else all for training.

    Raises UserError: exit 3 for a name or path without text, exit 5 for what keeps it from being fetched.
    """
    name = parse_name(word, DATASET)
    request = Request(name.shown, name)
    with out.phase(f"asking the hub for {name.shown}"), explaining(request):
        api = library(request.flag).HfApi()
        about = in_thread(lambda: api.repo_info(name.repo, repo_type=DATASET, revision=name.revision), look)
        there = [each.rfilename for each in about.siblings or ()]
        request_at = Request(name.shown, name.at(about.sha))
    kind, chosen = choose_files(request, there)
    left = len([path for path in there if not path.startswith(".")]) - len(chosen)
    out.say(f"hub         {kind} of {printable(name.repo)}: {printable(', '.join(chosen[:3]))}"
            + ", ..." * (len(chosen) > 3) + f"; {several(left, 'other file')} left out" * bool(left))
    folder = fetch(request_at, [glob.escape(path) for path in chosen], out, look)
    return [Fetched(folder / path, printable(path), str(request_at.name)) for path in chosen]


def choose_files(request: Request, there: Sequence[str]) -> tuple[str, list[str]]:
    """The kind of the chosen files, and the files by name. Raises UserError (exit 3)."""
    path = request.name.path
    if path in there:
        return next((kind for kind, ending in KINDS.items() if ending.search(path.lower())), "text"), [path]
    inside, split = [each for each in there if not path or each.startswith(f"{path}/") or fnmatch(each, path)], ""
    if not inside:
        folder, _, split = path.rpartition("/")
        inside = [each for each in there if not folder or each.startswith(f"{folder}/")]
    for kind, ending in KINDS.items():
        of_kind = sorted(each for each in inside if ending.search(each.lower()))
        if not of_kind:
            continue
        folders = sorted({each.partition("/")[0] for each in of_kind})
        if not path and len(folders) > 1 and all("/" in each for each in of_kind):
            shown = ", ".join(folders[:MOST_NAMED]) + ", ..." * (len(folders) > MOST_NAMED)
            raise request.refusal(f"has {several(len(folders), 'folder')}: {printable(shown)}",
                                  f"Name one: {request.name}/{printable(folders[0])}")
        chosen = [each for each in of_kind if _is_of_split(each, split or "train")]
        if chosen or not split:
            return kind, chosen or of_kind
    shown = ", ".join(sorted(inside or there)[:MOST_NAMED])
    raise request.refusal(f"no Parquet, JSON lines or text file{' of this path' * bool(path)} among {printable(shown)}",
                          "Name a file or folder behind the dataset's name.")


def _is_of_split(path: str, split: str) -> bool:
    """True if a path names a split, as a word of its own in a folder or in the file's name: data/train-00000.parquet"""
    words = {word.lower() for word in re.split(r"[^A-Za-z0-9]+", path)}
    return bool(words & set(SPLITS.get(split, (split.lower(),))))
