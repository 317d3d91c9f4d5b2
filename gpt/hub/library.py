"""Turns the errors of the package huggingface_hub into one line each, with the cure.

The package reads its usual settings: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
"""

import contextlib
from collections.abc import Iterator

from gpt.common.errors import Exit, UserError
from gpt.common.signals import Stopped
from gpt.common.words import first_line, printable
from gpt.hub.names import DATASET, HubName

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
        for each in chain:  # which grows meanwhile
            chain.extend(filter(None, [each.__cause__ or each.__context__]))
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
