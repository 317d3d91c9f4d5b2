"""Models and datasets of the hub as files in the library's cache, downloaded by the library.

Of a model config, tokenizer and safetensors alone, never a pickle; of a dataset the files that a path means.
"""

import glob
import re
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.flags import Args, having
from gpt.common.names import CONFIG, GENERATION, INDEX, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from gpt.common.progress import Progress
from gpt.common.waiting import in_thread
from gpt.common.words import printable, several
from gpt.hub.library import LOG_IN, explaining, library, refusal
from gpt.hub.names import DATASET, MODEL, HubName, is_on_hub, parse_name

OF_A_MODEL = (CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", TOKENIZER, GENERATION,
              TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "README.md", "LICENSE")
# In the order of preference: Parquet, JSON lines, text; a README.md is no text of the dataset.
FORMATS = (r"\.parquet$", r"\.(jsonl|ndjson)(\.(gz|zst|bz2|xz))?$|\.json\.(gz|zst|bz2|xz)$",
         r"\.(txt|text)(\.(gz|zst|bz2|xz))?$")
MOST_NAMED = 8  # files or folders in a message
LISTING_SECONDS = 600


@dataclass(frozen=True)
class Fetched:
    """A file of a dataset: where it lies, its path in the repository, and the repository with its commit."""

    path: Path
    shown: str
    origin: str


def fetch(asked: str, name: HubName, patterns: Sequence[str], out: Progress, look: Callable[[], None]) -> Path:
    """The folder of the commit in the library's cache, with the files that match. Raises UserError.

    look is called meanwhile, and may raise to stop. Where the hub cannot be reached it is what the cache has.
    """
    hub, shown, latest = library(asked), printable(name), [time.monotonic() + LISTING_SECONDS]
    from huggingface_hub.utils import disable_progress_bars, tqdm

    if not out.on_terminal:  # where the heartbeat speaks
        disable_progress_bars()

    class Bar(tqdm):  # which the library makes once it has the list
        def __init__(self, *values, **named):
            latest.clear()
            super().__init__(*values, **named)

    def look_at_list() -> None:
        look()
        if latest and time.monotonic() > latest[0]:
            raise UserError(Exit.MACHINE, f"{asked}: no end of its list of files in {LISTING_SECONDS} s. {LOG_IN}")

    with explaining(asked, name), out.phase(f"fetching {shown}"):
        folder = in_thread(lambda: hub.snapshot_download(
            name.repo, repo_type=name.kind, revision=name.revision, allow_patterns=list(patterns), tqdm_class=Bar),
            look_at_list)
    out.say(f"hub         {shown}, in {printable(folder)}")
    return Path(folder)


# ---------------------------------------------------------------- models


def with_models_here(args: Args, flags: Sequence[str], out: Progress, look: Callable[[], None] = lambda: None) -> Args:
    """The flags, with a folder of the library's cache for each hf:// that one of these flags names.

    Raises UserError: exit 4 for a name without a model, exit 5 for what keeps it from being fetched.
    """
    fetched = {flag: str(fetch_model(f"--{flag} {printable(vars(args)[flag])}", vars(args)[flag], out, look))
               for flag in flags if is_on_hub(vars(args)[flag])}
    return having(args, **fetched) if fetched else args


def with_tokenizer_here(args: Namespace, out: Progress, look: Callable[[], None]) -> Namespace:
    """The flags, with a file of the library's cache for a --tokenizer_file that is hf://. Raises UserError."""
    if not is_on_hub(args.tokenizer_file):
        return args
    asked, name = f"--tokenizer_file {printable(args.tokenizer_file)}", parse_name(args.tokenizer_file, MODEL)
    path = fetch(asked, name, [TOKENIZER], out, look) / TOKENIZER
    if not path.is_file():
        raise refusal(asked, name, f"{name.repo} has no {TOKENIZER}. Give a model that has one")
    return having(args, tokenizer_file=str(path))


def fetch_model(asked: str, word: str, out: Progress, look: Callable[[], None] = lambda: None) -> Path:
    """The folder of a model, which is downloaded unless the cache has it. What is in its files is looked at later."""
    name = parse_name(word, MODEL)
    folder = fetch(asked, name, OF_A_MODEL, out, look)
    if not (folder / CONFIG).is_file() or not ((folder / WEIGHTS).is_file() or (folder / INDEX).is_file()):
        raise refusal(asked, name, f"it has no {CONFIG} and {WEIGHTS}. Give a model that has them")
    return folder


# ---------------------------------------------------------------- datasets


def fetch_dataset(word: str, out: Progress, look: Callable[[], None] = lambda: None) -> list[Fetched]:
    """The files of a dataset that a path means: a file, folder or glob; else all for training.

    Raises UserError: exit 3 for a name or path without text, exit 5 for what keeps it from being fetched.
    """
    name, asked = parse_name(word, DATASET), printable(word)
    with out.phase(f"asking the hub for {asked}"), explaining(asked, name):
        api = library(asked).HfApi()
        about = in_thread(lambda: api.repo_info(name.repo, repo_type=DATASET, revision=name.revision), look)
        there = [str(each.rfilename) for each in about.siblings]
        at_commit = HubName(DATASET, name.repo, bytes.fromhex(about.sha).hex())
    chosen = choose_files(name, there)
    out.say(f"hub         of {printable(name.repo)}: {printable(', '.join(chosen[:3]))}" + ", ..." * (len(chosen) > 3)
            + f"; {several(len(there) - len(chosen), 'other file')} left out")
    folder = fetch(asked, at_commit, [glob.escape(path) for path in chosen], out, look)
    return [Fetched(folder / path, printable(path), str(at_commit)) for path in chosen]


def choose_files(name: HubName, there: Sequence[str]) -> list[str]:
    """The files that a name means, by name. Raises UserError (exit 3)."""
    path = name.path
    if path in there:
        return [path]
    inside = [each for each in there if not path or each.startswith(f"{path}/") or fnmatch(each, path)]
    for kind in FORMATS:
        of_kind = sorted(each for each in inside if re.search(kind, each.lower()))
        folders = sorted({each.partition("/")[0] for each in of_kind})
        if not path and len(folders) > 1 and all("/" in each for each in of_kind):
            raise refusal(str(name), name, f"has {several(len(folders), 'folder')}: {', '.join(folders[:MOST_NAMED])}. "
                                           f"Name one: {name}/{folders[0]}")
        if of_kind:  # those for training have the word in the name of a folder or file: data/train-00000.parquet
            return [each for each in of_kind if "train" in re.split(r"[^a-z0-9]+", each.lower())] or of_kind
    raise refusal(str(name), name, f"no Parquet, JSON lines or text file among "
                                   f"{', '.join(sorted(inside or there)[:MOST_NAMED])}. Name a file, folder or glob "
                                   "behind the dataset's name")
