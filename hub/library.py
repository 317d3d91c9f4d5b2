"""The package huggingface_hub, which downloads and uploads; its errors as one line each, with the cure.

Its settings are those that every program of the hub has: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.errors import Exit, UserError, optional
from common.signals import Stopped
from common.words import printable
from hub.names import DATASET, HubName

TOKEN_CURE = "hf auth login, or HF_TOKEN in the environment"


def library(purpose: str) -> Any:
    """The package. Raises UserError (exit 5) where it is missing."""
    return optional("huggingface_hub", purpose)


def server() -> str:
    """The hub that is asked, as messages call it: huggingface.co."""
    from huggingface_hub import constants

    return constants.ENDPOINT.rpartition("://")[2].partition("/")[0]


@dataclass(frozen=True)
class Request:
    """What is requested of the hub; flag has its value, as a message begins."""

    flag: str
    name: HubName

    def refusal(self, what: str, cure: str = "Check the name.") -> UserError:
        """The error of something that the hub does not have, or does not give: exit 3 for datasets, 4 for models."""
        return UserError(Exit.DATA if self.name.kind == DATASET else Exit.CHECKPOINT, f"{self.flag}: {what}. {cure}")

    def failure(self, what: str) -> UserError:
        """The error of network, rights or disk: exit 5."""
        return UserError(Exit.MACHINE, f"{self.flag}: {what}")


@contextlib.contextmanager
def explaining(request: Request) -> Iterator[None]:
    """While inside, every error of the library becomes a UserError: exit 3 or 4 for names, exit 5 for the rest."""
    try:
        yield
    except (UserError, Stopped):
        raise
    except Exception as error:
        raise _explained(request, error) from error


def _explained(request: Request, error: BaseException) -> UserError:
    """What an error of the library means, by its class and by those that it was raised from."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    kinds = {kind.__name__ for each in chain for kind in type(each).__mro__}
    statuses = [getattr(getattr(each, "response", None), "status_code", None) for each in chain]
    status = next(filter(None, statuses), None)
    name, repo = request.name, printable(request.name.repo)
    if "GatedRepoError" in kinds:
        page = f"https://{server()}/{'datasets/' * (name.kind == DATASET)}{repo}"
        return request.refusal(f"{repo} is gated", f"Accept its terms on {page}, and give your token: {TOKEN_CURE}.")
    if "RevisionNotFoundError" in kinds:
        return request.refusal(f"{repo} has no revision {printable(name.revision)}",
                               "Give a branch, a tag or a commit of it.")
    if "RepositoryNotFoundError" in kinds:
        return request.refusal(f"{server()} has no {name.kind} {repo}, or it is private",
                               f"Check the name; a private one needs your token: {TOKEN_CURE}.")
    if status in (401, 403):
        return request.failure(f"{server()} refuses your token ({status}). Give another: {TOKEN_CURE}.")
    if "OfflineModeIsEnabled" in kinds:
        return request.failure(f"HF_HUB_OFFLINE is set. Unset it, or do it elsewhere: hf download, hf upload {repo}")
    if any(getattr(each, "errno", None) == errno.ENOSPC for each in chain):
        return request.failure("No space left on device in the hub's cache. Free some space, or set HF_HOME to a "
                               "folder on a larger disk.")
    last = getattr(chain[-1], "strerror", None) or str(chain[-1]) or type(chain[-1]).__name__
    why = f"it answers {status}" if status else printable(last.splitlines()[0])[:80].rstrip(".")
    return request.failure(f"{server()} cannot be reached, or does not answer as a hub does ({why}). Run it again when "
                           f"there is a network, or do it elsewhere: hf download, hf upload {repo}")
