"""Downloads models and datasets of the hub into the cache of huggingface_hub.

A model's config, tokenizer and safetensors are downloaded, never a pickle; from a dataset,
the files of the given path. The package reads its usual settings: HF_ENDPOINT, HF_TOKEN, HF_HOME,
HF_HUB_CACHE, HF_HUB_OFFLINE.
"""

import contextlib
import glob
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from gpt.common.ending import in_thread
from gpt.common.errors import Exit, UserError, optional
from gpt.common.flags import with_values
from gpt.common.names import CONFIG, GENERATION, INDEX, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from gpt.common.progress import Progress
from gpt.common.signals import Stopped
from gpt.common.words import first_line, first_of, printable, several, shell_word
from gpt.hub.names import DATASET, MODEL, HubName, is_on_hub, parse_name

# Beside tokenizer.json: files that name the end-of-text token.
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, "special_tokens_map.json")
MODEL_FILES = (CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", GENERATION, *TOKENIZER_FILES, "added_tokens.json",
               "README.md", "LICENSE")
# In the order of preference: Parquet, JSON lines, text; a README.md does not count as text.
FORMATS = (r"\.parquet$", r"\.(jsonl|ndjson)(\.(gz|zst|bz2|xz))?$|\.json\.(gz|zst|bz2|xz)$",
         r"\.(txt|text)(\.(gz|zst|bz2|xz))?$")
MAX_NAMES = 8  # files or sets in a message
# Group 1 names the set: train_100M of train_100M/a.txt, data/train_sft of data/train_sft-00000-of-00002.parquet.
OF_TRAIN = re.compile(r"(.*?(?<![a-z0-9])train(?![a-z0-9])(?:[^/]*(?=/)|(?:[-_.]?[a-z]+)*)).*", re.IGNORECASE)
# The whole name of a file that is not for training, though its folder is.
HELD_OUT = re.compile(r"(test|val|valid|validation|dev|eval)([-_.]?\d+)?(-of-\d+)?\.", re.IGNORECASE)


@dataclass(frozen=True)
class InputFile:
    """A file that pretokenize.py reads: one of a downloaded dataset, or the user's own.

    shown is its name in messages.
    """

    path: Path
    shown: str
    origin: str  # the hf:// name of its repository with the commit; '' for the user's own file


def download(flag: str, name: HubName, patterns: Sequence[str], out: Progress,
             raise_if_stopped: Callable[[], None]) -> Path:
    """Downloads the files that match a pattern; returns the commit's folder in the cache, and prints it.

    flag begins messages. raise_if_stopped is called meanwhile. If the hub cannot be reached, the
    folder holds the cached files; a file may be missing from it. Raises UserError: exit 3 (a dataset) or 4
    (a model) for a wrong repository, exit 5 for other failures.
    """
    hub = optional("huggingface_hub", flag)
    if not out.on_terminal:  # the heartbeat of Progress replaces the bars
        optional("huggingface_hub.utils", flag).disable_progress_bars()
    with explained_errors(flag, name), out.phase(f"downloading {printable(name)}"):
        folder = in_thread(lambda: hub.snapshot_download(
            name.repo, repo_type=name.kind, revision=name.revision, allow_patterns=list(patterns)), raise_if_stopped)
    out.say(f"hub         {printable(name)}, in {printable(folder)}")
    return Path(folder)


# ---------------------------------------------------------------- models


def download_flag(args: Namespace, name: str, out: Progress,
                  raise_if_stopped: Callable[[], None] = lambda: None) -> Namespace:
    """Downloads the model or tokenizer that a flag gives as hf://; returns the flags with its local path instead.

    name is the flag's. The path is in the cache. args stays unchanged, and is returned itself if the flag does
    not name the hub. raise_if_stopped is called meanwhile. Raises UserError: exit 4 for a repository without a
    model or without tokenizer.json, exit 5 if the download fails.
    """
    word = vars(args)[name]
    if not is_on_hub(word):
        return args
    download_it = download_tokenizer if name == "tokenizer_file" else download_model
    return with_values(args, **{name: str(download_it(f"--{name} {printable(word)}", word, out, raise_if_stopped))})


def download_tokenizer(flag: str, word: str, out: Progress, raise_if_stopped: Callable[[], None]) -> Path:
    """Downloads the tokenizer of a model unless the cache has it; returns its file.

    word is an hf:// name, flag begins messages. Raises UserError: exit 4 for a repository without
    tokenizer.json, exit 5 if the download fails.
    """
    name = parse_name(word, MODEL)
    path = download(flag, name, TOKENIZER_FILES, out, raise_if_stopped) / TOKENIZER
    if not path.is_file():
        raise hub_error(flag, name, f"{name.repo} has no {TOKENIZER}. Give a model that has one")
    return path


def download_model(flag: str, word: str, out: Progress, raise_if_stopped: Callable[[], None] = lambda: None) -> Path:
    """Downloads a model unless the cache has it; returns its folder. The files' contents are checked later.

    word is an hf:// name, flag begins messages. Raises UserError: exit 4 for a repository without
    config.json and weights, exit 5 if the download fails.
    """
    name = parse_name(word, MODEL)
    folder = download(flag, name, MODEL_FILES, out, raise_if_stopped)
    if not (folder / CONFIG).is_file() or not ((folder / WEIGHTS).is_file() or (folder / INDEX).is_file()):
        raise hub_error(flag, name, f"it has no {CONFIG} and {WEIGHTS}. Give a model that has them")
    return folder


# ---------------------------------------------------------------- datasets


def download_dataset(word: str, out: Progress,
                     raise_if_stopped: Callable[[], None] = lambda: None) -> list[InputFile]:
    """Downloads the files of a dataset's path: a file, folder or glob; without a path, the files for training.

    Raises UserError: exit 3 for a name or path without text, exit 5 if the download fails.
    """
    name = parse_name(word, DATASET)
    flag = printable(word)
    with out.phase(f"asking the hub for {flag}"), explained_errors(flag, name):
        api = optional("huggingface_hub", flag).HfApi()
        info = in_thread(lambda: api.repo_info(name.repo, repo_type=DATASET, revision=name.revision), raise_if_stopped)
        files = [str(sibling.rfilename) for sibling in info.siblings]
        at_commit = HubName(DATASET, name.repo, bytes.fromhex(info.sha).hex())
    chosen = choose_files(name, files)
    out.say(f"hub         of {printable(name.repo)}: {printable(first_of(chosen))}; "
            f"{several(len(files) - len(chosen), 'other file')} left out")
    folder = download(flag, at_commit, [glob.escape(path) for path in chosen], out, raise_if_stopped)
    return [InputFile(folder / path, printable(path), str(at_commit)) for path in chosen]


def choose_files(name: HubName, files: Sequence[str]) -> list[str]:
    """Chooses the files of a name's path (a file, folder, glob, or all) among the files of its repository.

    A file is taken as it is. Otherwise one kind is taken: Parquet, else JSON lines, else text; of it the
    files with the word train in their path, else all, sorted. Raises UserError (exit 3) if no file fits, or
    if a name without a path has several sets of files.
    """
    path = name.path
    if path in files:
        return [path]
    inside = [each for each in files
              if not path or each.startswith(f"{path}/") or fnmatch(each, path) or _set_of(each) == path]
    for pattern in FORMATS:
        of_format = sorted(each for each in inside if re.search(pattern, each.lower()))
        of_train = [each for each in of_format if OF_TRAIN.match(each)]
        of_train = [each for each in of_train if not HELD_OUT.match(each.rpartition("/")[2])] or of_train
        sets = sorted({*map(_set_of, of_train)}
                      or {each.rpartition("/")[0].partition("/")[0] for each in of_format})  # the outermost folders
        if not path and len(sets) > 1 and "" not in sets:
            raise hub_error(str(name), name, f"has {several(len(sets), 'set')} of files: "
                                             f"{', '.join(sets[:MAX_NAMES])}. Name one: "
                                             f"{shell_word(f'{name}/{sets[0]}')}")
        if of_format:
            return of_train or of_format
    raise hub_error(str(name), name, f"no Parquet, JSON lines or text file among "
                                     f"{', '.join(sorted(inside or files)[:MAX_NAMES])}. Name a file, "
                                     "folder or glob after the dataset's name")


def _set_of(path: str) -> str:
    """The name of the set for training that a file is of; a number of its own before the word numbers a shard."""
    name = OF_TRAIN.sub(r"\1", path)
    folder, slash, file = name.rpartition("/")
    in_folder = "/" in path[len(name):]
    return name if in_folder else folder + slash + re.sub(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", "*", file)


# ---------------------------------------------------------------- the errors of the package, in one line each

TOKEN = "give your token: hf auth login, or HF_TOKEN in the environment"
REPOSITORY_ERRORS = {  # the package's errors about a repository, and their meaning
    "GatedRepoError": f"is gated. Accept its terms on its page, and {TOKEN}",
    "RevisionNotFoundError": "has no such revision. Give a branch, a tag or a commit of it",
    "RepositoryNotFoundError": f"does not exist, or it is private. Check the name, or {TOKEN}",
}
# The package raises these if the answer is not a hub's, but for example the login page of a network.
BAD_ANSWER = (ValueError, LookupError, TypeError, AttributeError, AssertionError)


def hub_error(flag: str, name: HubName, problem: str) -> UserError:
    """The error for a missing or forbidden file or repository.

    flag is a flag with its value, or the word that the user typed. problem is a sentence without the full
    stop at its end. name only decides the exit code: 3 for datasets, 4 for models.
    """
    return UserError(Exit.DATA if name.kind == DATASET else Exit.CHECKPOINT, f"{flag}: {printable(problem)}.")


@contextlib.contextmanager
def explained_errors(flag: str, name: HubName) -> Iterator[None]:
    """Turns every error inside into a UserError: exit 3 or 4 for a wrong repository, exit 5 for the rest.

    A UserError and Stopped pass. Messages begin with flag, which is a flag with its value.
    """
    try:
        yield
    except (UserError, Stopped):
        raise
    except Exception as error:
        chain: list[BaseException] = [error]
        while cause := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(cause)
        kinds = {kind.__name__ for each in chain for kind in type(each).__mro__}
        for kind, problem in REPOSITORY_ERRORS.items():
            if kind in kinds:
                raise hub_error(flag, name, f"{name.repo} {problem}") from error
        why = first_line(chain[-1]).rstrip(".")
        given = "files for training (FOLDER/data/train-*)" if name.kind == DATASET else "folder"
        cure = (f"Check the network and the disk, and {TOKEN}; or download on another machine and give the "
                f"{given}: hf download {printable(name.repo)} --repo-type {name.kind} --local-dir FOLDER")
        if (kinds & {"JSONDecodeError", "FileMetadataError"}
                or (isinstance(error, BAD_ANSWER) and not isinstance(error, OSError))):
            why = f"the answer is not from a hub ({first_line(error)})"
            cure = "Open a page in a browser, to log in to the network, or check HF_ENDPOINT."
        raise UserError(Exit.MACHINE, f"{flag}: {why}. {cure}") from error
