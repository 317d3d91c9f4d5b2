"""Names of what lies on the hub: hf://OWNER/NAME, hf://datasets/OWNER/NAME, each with @REVISION; datasets with a path.

Only the standard library is needed, so that a wrong name is answered as fast as any other wrong flag.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from common.errors import optional
from common.words import printable

SCHEME = "hf://"
MODEL, DATASET = "model", "dataset"
PART = r"[A-Za-z0-9][\w.-]*"
# Some revisions of the hub hold slashes: those that it makes itself, and pull requests.
NAME = re.compile(rf"(?P<repo>{PART}/{PART})(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[\w.-]+))?(?:/(?P<path>.+))?")
SNAPSHOT = re.compile(r".*/(?P<kind>model|dataset)s--(?P<owner>[^/]+?)--(?P<name>[^/]+)"
                      r"/snapshots/(?P<commit>[0-9a-f]{40})")
SHOWN_COMMIT = 12  # characters of a commit in messages
# Models that are better known without their owner.
OWNERS = {"gpt2": "openai-community", "gpt2-medium": "openai-community", "gpt2-large": "openai-community",
          "gpt2-xl": "openai-community", "distilgpt2": "distilbert"}


class HubName(NamedTuple):  # a dataclass would cost every --help 10 ms
    """A repository of the hub at a revision. path is what is meant of a dataset: a file, folder, glob or split."""

    kind: str
    repo: str
    revision: str = "main"
    path: str = ""

    def __str__(self) -> str:
        """As it is typed."""
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.prefix}{self.repo}{at}{'/' * bool(self.path)}{self.path}"

    @property
    def prefix(self) -> str:
        return SCHEME + "datasets/" * (self.kind == DATASET)

    @property
    def shown(self) -> str:
        """As messages say it: a commit is cut short."""
        is_commit = re.fullmatch(r"[0-9a-f]{40}", self.revision)
        return printable(str(self._replace(revision=self.revision[:SHOWN_COMMIT]) if is_commit else self))

    def at(self, commit: str) -> HubName:
        """The repository at a commit, which nothing changes any more."""
        return self._replace(revision=commit, path="")


def is_on_hub(word: str | None) -> bool:
    """True for what begins with hf://, right or wrong."""
    return word is not None and word.startswith(SCHEME)


def parse_name(word: str, kind: str) -> HubName:
    """The name behind hf://. Raises ValueError, with the form that is expected, for anything else."""
    text, is_dataset = word.removeprefix(SCHEME), word.startswith(f"{SCHEME}datasets/")
    text = text.removeprefix("datasets/" if is_dataset else "models/").rstrip("/")
    if is_dataset and kind == MODEL:
        raise ValueError("is a dataset; a model is hf://OWNER/NAME")
    if not is_dataset and kind == DATASET:
        raise ValueError(f"is a model; a dataset is hf://datasets/{printable(text)[:60]}")
    found = NAME.fullmatch(text)
    if not found or any(bad in text for bad in ("..", "--", "//")):
        if text in OWNERS:
            raise ValueError(f"has no owner. Give {SCHEME}{OWNERS[text]}/{text}")
        example = "hf://datasets/OWNER/NAME, with @REVISION or /PATH behind it" if is_dataset else (
            "hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
        raise ValueError(f"must be {example}")
    if found["path"] and kind == MODEL:
        raise ValueError("names a file in a repository; a model is the whole of it, hf://OWNER/NAME")
    return HubName(kind, found["repo"], found["revision"] or "main", found["path"] or "")


def problems_with_name(flag: str, word: str | None, kind: str = MODEL) -> list[str]:
    """What is wrong with the value of a flag that may name something on the hub; nothing for a path."""
    if word is None or not is_on_hub(word):
        return []
    try:
        parse_name(word, kind)
    except ValueError as error:
        return [f"{flag} {printable(word)[:80]}: {error}"]
    return []


def problems_with_push(name: str) -> list[str]:
    """What is wrong with the repository that a folder is to be uploaded to."""
    if re.fullmatch(rf"{PART}/{PART}", name) and not any(bad in name for bad in ("..", "--")):
        return []
    return [f"--push {printable(name)[:80]}: must be OWNER/NAME, your name on the hub and that of a repository"]


def repo_of(recorded: str, kind: str) -> str | None:
    """OWNER/NAME of what a run recorded, if that is of the hub and of this kind."""
    try:
        return parse_name(recorded, kind).repo if is_on_hub(recorded) else None
    except ValueError:
        return None


def check_package(*words: str | None) -> None:
    """Raises UserError (exit 5) if one of these words is on the hub and the library is not installed."""
    for word in words:
        if word is not None and is_on_hub(word):
            optional("huggingface_hub", printable(word))


def name_of_folder(folder: str) -> HubName | None:
    """The repository and commit whose snapshot in the library's cache a folder is; None for any other."""
    found = SNAPSHOT.fullmatch(Path(folder).as_posix())
    if not found:
        return None
    return HubName(found["kind"], f"{found['owner']}/{found['name']}", found["commit"])


def as_recorded(folder: str) -> str:
    """A folder as a run records it: what came from the hub by name and commit, so that any machine finds it."""
    return str(name_of_folder(folder) or folder)
