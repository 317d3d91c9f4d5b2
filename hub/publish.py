"""A folder of ours in a repository of the hub: looked at before any work, said, uploaded."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from common.errors import Exit, UserError
from common.progress import Progress
from common.words import printable, several, size
from hub.library import TOKEN_CURE, Request, explaining, library, server
from hub.names import MODEL, HubName

PLACE_IN_CARD = '"path of this folder"'  # in a checkpoint's README.md, where a repository has its own name


class Repository(NamedTuple):
    """Where a folder is uploaded to: whether the repository exists already, and what it will be."""

    request: Request
    exists: bool
    is_private: bool


def look_at(name: str, public: bool, overwrite: bool, out: Progress) -> Repository:
    """The repository to upload to, before there is anything to upload.

    Raises UserError: exit 5 without a token that the hub takes, or without a network; exit 2 for a repository that
    holds a model already, without overwrite, and for one that everybody can read, without public.
    """
    request = Request(f"--push {printable(name)}", HubName(MODEL, name))
    hub, owner = library(request.flag), name.partition("/")[0]
    if hub.get_token() is None:
        raise UserError(Exit.MACHINE, f"{request.flag}: needs your token with the right to write: {TOKEN_CURE}. It is "
                                      "made on https://huggingface.co/settings/tokens.")
    with out.phase(f"asking the hub for {printable(name)}"), explaining(request):
        user = hub.HfApi().whoami()
        mine = [user.get("name"), *(org.get("name") for org in user.get("orgs") or ())]
        if owner not in mine:
            me = printable(str(mine[0]))
            raise UserError(Exit.FLAGS, f"{request.flag}: your token is that of {me}, who has no right to write to "
                                        f"{owner}. Give {me}/{name.partition('/')[2]}.")
        if not hub.HfApi().repo_exists(name):
            return Repository(request, False, not public)
        about = hub.HfApi().repo_info(name, expand=["private", "siblings"])
    if not about.private and not public:
        raise UserError(Exit.FLAGS, f"{request.flag}: everybody can read this repository. Give --public if that is "
                                    "right, or another name.")
    weights = [file.rfilename for file in about.siblings or () if file.rfilename.endswith(".safetensors")]
    if weights and not overwrite:
        raise UserError(Exit.FLAGS, f"{request.flag}: the repository holds {printable(weights[0])} already. Give "
                                    "--overwrite, which leaves it in the history, or another name.")
    return Repository(request, True, about.private)


def push(folder: Path, repository: Repository, source: str, out: Progress) -> None:
    """Uploads the files of a folder in one commit, once they have been said. Raises UserError (exit 5)."""
    request, name, card = repository.request, repository.request.name.repo, folder / "README.md"
    if card.is_file():  # its lines that open the model name the repository
        card.write_text(card.read_text(encoding="utf-8").replace(PLACE_IN_CARD, f'"{name}"'), encoding="utf-8")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    num_bytes = sum(path.stat().st_size for path in files)
    state = "private" if repository.is_private else "public: everybody can read it"
    out.say(f"hub         to https://{server()}/{name} ({'' if repository.exists else 'new, '}{state})")
    out.say(f"hub         {several(len(files), 'file')}, {size(num_bytes)}: {', '.join(path.name for path in files)}; "
            "no state of training")
    api = library(request.flag).HfApi()
    with out.phase(f"uploading {size(num_bytes)}"), explaining(request):
        if not repository.exists:
            api.create_repo(name, private=repository.is_private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Model of {Path(source).name}",
                                   allow_patterns=[path.name for path in files])
    out.say(f"hub         uploaded: hf://{name}@{commit.oid}")
