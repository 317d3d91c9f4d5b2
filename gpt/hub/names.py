"""Names of models and datasets on the hub: hf://OWNER/NAME[@REVISION], hf://datasets/OWNER/NAME[@REVISION][/PATH].

This file needs the standard library alone, so that a wrong name is reported as fast as any other wrong flag.
"""

import re
from pathlib import Path
from typing import NamedTuple, TypeGuard

from gpt.common.errors import optional
from gpt.common.words import printable

SCHEME = "hf://"
MODEL, DATASET = "model", "dataset"
PART = r"[A-Za-z0-9][\w.-]*"
# The hub's own revisions and pull requests have slashes in their names.
NAME = re.compile(rf"{SCHEME}(?P<datasets>datasets/)?(?P<repo>{PART}/{PART})"
                  r"(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[\w.-]+))?(?:/(?P<path>.+))?")
SNAPSHOT = re.compile(r".*/(?P<kind>model|dataset)s--(?P<owner>[^/]+?)--(?P<name>[^/]+)"
                      r"/snapshots/(?P<commit>[0-9a-f]{40})")
BAD = ("..", "--")  # not allowed in a repository's name
FORMS = {MODEL: "hf://OWNER/NAME or hf://OWNER/NAME@REVISION",
         DATASET: "hf://datasets/OWNER/NAME, with @REVISION or /PATH after it"}


class HubName(NamedTuple):  # a dataclass would cost every --help 10 ms
    """A repository of the hub at a revision. path is a file, folder or glob of a dataset, or empty."""

    kind: str
    repo: str
    revision: str = "main"
    path: str = ""

    def __str__(self) -> str:
        """The name as a user types it."""
        folder = "datasets/" if self.kind == DATASET else ""
        revision = "" if self.revision == "main" else f"@{self.revision}"
        path = f"/{self.path}" if self.path else ""
        return f"{SCHEME}{folder}{self.repo}{revision}{path}"


def is_on_hub(word: str | None) -> TypeGuard[str]:
    """True for a name that begins with hf://, valid or not."""
    return word is not None and word.startswith(SCHEME)


def parse_name(word: str, kind: str) -> HubName:
    """Parses a name with hf:// of the given kind. Raises ValueError with the end of a sentence if it is invalid."""
    match = NAME.fullmatch(word.rstrip("/"))
    if (not match or bool(match["datasets"]) != (kind == DATASET) or (match["path"] and kind == MODEL)
            or any(bad in match["repo"] for bad in BAD)):
        raise ValueError(f"must be {FORMS[kind]}")
    return HubName(kind, match["repo"], match["revision"] or "main", match["path"] or "")


def problems_with_name(flag: str, word: str | None, kind: str = MODEL) -> list[str]:
    """The problem with a flag's value if it is an invalid hf:// name, in a list; an empty list otherwise."""
    if is_on_hub(word):
        try:
            parse_name(word, kind)
        except ValueError as error:
            return [f"{flag} {printable(word)[:80]}: {error}"]
    return []


def repo_of(recorded: str, kind: str) -> str | None:
    """OWNER/NAME of a recorded name if it is on the hub and of this kind, else None."""
    try:
        return parse_name(recorded, kind).repo
    except ValueError:
        return None


def check_package(*words: str | None) -> None:
    """Raises UserError (exit 5) if one of the words is an hf:// name and huggingface_hub is not installed."""
    for word in words:
        if is_on_hub(word):
            optional("huggingface_hub", printable(word))


def as_recorded(folder: str) -> str:
    """The name of a folder in records: the hf:// name with the commit for a snapshot of the hub's cache.

    Any other folder is returned as it is.
    """
    match = SNAPSHOT.fullmatch(Path(folder).as_posix())
    if not match:
        return folder
    return str(HubName(match["kind"], f"{match['owner']}/{match['name']}", match["commit"]))
