"""Names of what lies on the hub: hf://OWNER/NAME, hf://datasets/OWNER/NAME, each with @REVISION; datasets with a path.

Only the standard library is needed, so that a wrong name is answered as fast as any other wrong flag.
"""

import re
from pathlib import Path
from typing import NamedTuple, TypeGuard

from gpt.common.errors import optional
from gpt.common.words import printable

SCHEME = "hf://"
MODEL, DATASET = "model", "dataset"
PART = r"[A-Za-z0-9][\w.-]*"
# Some revisions of the hub hold slashes: those that it makes itself, and pull requests.
NAME = re.compile(rf"{SCHEME}(?P<datasets>datasets/)?(?P<repo>{PART}/{PART})"
                  r"(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[\w.-]+))?(?:/(?P<path>.+))?")
SNAPSHOT = re.compile(r".*/(?P<kind>model|dataset)s--(?P<owner>[^/]+?)--(?P<name>[^/]+)"
                      r"/snapshots/(?P<commit>[0-9a-f]{40})")
BAD = ("..", "--", "//")  # within a name
FORMS = {MODEL: "hf://OWNER/NAME or hf://OWNER/NAME@REVISION",
         DATASET: "hf://datasets/OWNER/NAME, with @REVISION or /PATH behind it"}
# The help of --ckpt, and what other programs call that flag.
ANY_MODEL = ("a checkpoint, a folder of them (newest) or out/best, a Hugging Face folder of GPT-2, Qwen3 or Llama, or "
             "such a model on the hub: hf://OWNER/NAME")
ALSO_CKPT = "checkpoint checkpoint_dir out_dir model model_path ckpt_path"


class HubName(NamedTuple):  # a dataclass would cost every --help 10 ms
    """A repository of the hub at a revision. path is what is meant of a dataset: a file, folder or glob."""

    kind: str
    repo: str
    revision: str = "main"
    path: str = ""

    def __str__(self) -> str:
        """As it is typed."""
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{SCHEME}{'datasets/' * (self.kind == DATASET)}{self.repo}{at}{'/' * bool(self.path)}{self.path}"


def is_on_hub(word: str | None) -> TypeGuard[str]:
    """True for what begins with hf://, right or wrong."""
    return word is not None and word.startswith(SCHEME)


def parse_name(word: str, kind: str) -> HubName:
    """What a word that is on the hub names. Raises ValueError, as the end of a sentence, for what is no such name."""
    found = NAME.fullmatch(word.rstrip("/"))
    is_form = found and bool(found["datasets"]) == (kind == DATASET) and (kind == DATASET or not found["path"])
    if not found or not is_form or any(bad in word.removeprefix(SCHEME) for bad in BAD):
        raise ValueError(f"must be {FORMS[kind]}")
    return HubName(kind, found["repo"], found["revision"] or "main", found["path"] or "")


def problems_with_name(flag: str, word: str | None, kind: str = MODEL) -> list[str]:
    """What is wrong with the value of a flag that may name something on the hub; nothing for a path."""
    if is_on_hub(word):
        try:
            parse_name(word, kind)
        except ValueError as error:
            return [f"{flag} {printable(word)[:80]}: {error}"]
    return []


def repo_of(recorded: str, kind: str) -> str | None:
    """OWNER/NAME of what a run recorded, if that is of the hub and of this kind."""
    try:
        return parse_name(recorded, kind).repo
    except ValueError:
        return None


def check_package(*words: str | None) -> None:
    """Raises UserError (exit 5) if one of these words is on the hub and the library is not installed."""
    for word in words:
        if is_on_hub(word):
            optional("huggingface_hub", printable(word))


def as_recorded(folder: str) -> str:
    """A folder as a run records it: a snapshot in the library's cache by name and commit, so that any machine finds it.
    """
    found = SNAPSHOT.fullmatch(Path(folder).as_posix())
    return str(HubName(found["kind"], f"{found['owner']}/{found['name']}", found["commit"])) if found else folder
