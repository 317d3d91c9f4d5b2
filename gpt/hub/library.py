"""The package huggingface_hub, which downloads; its errors as one line each, with the cure.

Its settings are those that every program of the hub has: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from gpt.common.errors import Exit, UserError, optional
from gpt.common.signals import Stopped
from gpt.common.words import first_line, printable
from gpt.hub.names import DATASET, HubName

TOKEN = "give your token: hf auth login, or HF_TOKEN in the environment"
WRONG = {  # what the library's errors about a repository mean
    "GatedRepoError": f"is gated. Accept its terms on its page, and {TOKEN}",
    "RevisionNotFoundError": "has no such revision. Give a branch, a tag or a commit of it",
    "RepositoryNotFoundError": f"is not there, or it is private. Check the name, or {TOKEN}",
}
# How the library fails at what no hub answers, such as a network's page for its login.
NO_ANSWER = (ValueError, LookupError, TypeError, AttributeError, AssertionError)
LOG_IN = "Open a page in a browser, to log in to the network, or check HF_ENDPOINT."


def library(purpose: str) -> Any:
    """The package. Raises UserError (exit 5) where it is missing."""
    return optional("huggingface_hub", purpose)


def refusal(asked: str, name: HubName, what: str) -> UserError:
    """The error of something that the hub does not have, or does not give: exit 3 for datasets, 4 for models."""
    return UserError(Exit.DATA if name.kind == DATASET else Exit.CHECKPOINT, f"{asked}: {printable(what)}.")


@contextlib.contextmanager
def explaining(asked: str, name: HubName) -> Iterator[None]:
    """While inside, every error of the library becomes a UserError: exit 3 or 4 for names, exit 5 for the rest.

    asked is the flag with its value, with which a message begins.
    """
    try:
        yield
    except (UserError, Stopped):
        raise
    except Exception as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        kinds = {kind.__name__ for each in chain for kind in type(each).__mro__}
        for kind, what in WRONG.items():
            if kind in kinds:
                raise refusal(asked, name, f"{name.repo} {what}") from error
        why = first_line(chain[-1]).rstrip(".")
        cure = (f"Check the network and the disk, and {TOKEN}; or download on another machine and give the folder: "
                f"hf download {printable(name.repo)} --repo-type {name.kind} --local-dir FOLDER")
        is_odd = isinstance(error, NO_ANSWER) and not isinstance(error, OSError)
        if is_odd or kinds & {"JSONDecodeError", "FileMetadataError"}:
            why, cure = f"what answered is no hub ({first_line(error)})", LOG_IN
        raise UserError(Exit.MACHINE, f"{asked}: {why}. {cure}") from error
