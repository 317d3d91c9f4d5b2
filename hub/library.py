"""The package huggingface_hub, which downloads and uploads; its errors as one line each, with the cure.

Its settings are those that every program of the hub has: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from common.errors import Exit, UserError, optional
from common.signals import Stopped
from common.words import first_line, printable
from hub.names import DATASET, HubName

TOKEN = "give your token: hf auth login, or HF_TOKEN in the environment"
WRONG = {  # what the library's errors about a repository mean
    "GatedRepoError": f"is gated. Accept its terms on its page, and {TOKEN}",
    "RevisionNotFoundError": "has no such revision. Give a branch, a tag or a commit of it",
    "RepositoryNotFoundError": f"is not there, or it is private. Check the name, or {TOKEN}",
}


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
        raise UserError(Exit.MACHINE, f"{asked}: {first_line(chain[-1]).rstrip('.')}. Check the network and the disk, "
                                      f"and {TOKEN}; or do it elsewhere: hf download, hf upload "
                                      f"{printable(name.repo)}") from error
