"""A folder of ours in a repository of the hub: looked at before any work, said, uploaded, and compared afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from common.errors import Exit, UserError
from common.progress import Progress
from common.words import printable, several, size
from hub.files import etag_of
from hub.library import TOKEN_CURE, Wish, explaining, library, server
from hub.names import MODEL, HubName

CARD = "README.md"
ATTRIBUTES = ".gitattributes"
PLACE_IN_CARD = '"path of this folder"'  # in a checkpoint's README.md, where a repository has its own name


class Repository(NamedTuple):
    """Where a folder is uploaded to: whether the repository exists already, and what it will be."""

    wish: Wish
    exists: bool
    is_private: bool

    @property
    def name(self) -> str:
        return self.wish.name.repo


def look_at(name: str, public: bool, overwrite: bool, out: Progress) -> Repository:
    """The repository to upload to, before there is anything to upload.

    Raises UserError: exit 5 without a token that the hub takes, or without a network; exit 2 for a repository that
    holds a model already, without overwrite, and for one that everybody can read, without public.
    """
    wish = Wish(f"--push {printable(name)}", HubName(MODEL, name), f"hf upload {name} FOLDER .")
    hub = library(wish.flag)
    api = hub.HfApi()
    if hub.get_token() is None:
        raise UserError(Exit.MACHINE, f"{wish.flag}: needs your token with the right to write: {TOKEN_CURE}. It is "
                                      "made on https://huggingface.co/settings/tokens.")
    with out.phase(f"asking the hub for {printable(name)}"), explaining(wish, "upload a folder"):
        user = api.whoami()
        _check_owner(wish, user, name)
        if not api.repo_exists(name):
            return Repository(wish, False, not public)
        about = api.repo_info(name, expand=["private", "siblings"])
    if not about.private and not public:
        raise UserError(Exit.FLAGS, f"{wish.flag}: everybody can read this repository. Give --public if that is right, "
                                    "or another name.")
    weights = [file.rfilename for file in about.siblings or () if file.rfilename.endswith(".safetensors")]
    if weights and not overwrite:
        raise UserError(Exit.FLAGS, f"{wish.flag}: the repository holds {printable(weights[0])} already. Give "
                                    "--overwrite, which leaves it in the history, or another name.")
    return Repository(wish, True, about.private)


def _check_owner(wish: Wish, user: Any, name: str) -> None:
    """Raises UserError (exit 2) for a repository under a name that is neither the user's nor an organization's."""
    owner = name.partition("/")[0]
    mine = [user.get("name"), *(org.get("name") for org in user.get("orgs") or ())]
    if owner not in mine:
        raise UserError(Exit.FLAGS, f"{wish.flag}: your token is that of {printable(str(mine[0]))}, who has no right "
                                    f"to write to {owner}. Give {printable(str(mine[0]))}/{name.partition('/')[2]}.")


def push(folder: Path, repository: Repository, source: str, out: Progress) -> None:
    """Uploads the files of a folder in one commit, once they have been said, and compares what the hub has then.

    Raises UserError: exit 5 for network and rights, and where the hub has other bytes than the folder.
    """
    wish, name = repository.wish, repository.name
    _name_in_card(folder / CARD, name)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    num_bytes = sum(path.stat().st_size for path in files)
    state = "private" if repository.is_private else "public: everybody can read it"
    out.say(f"hub         to https://{server()}/{name} ({'' if repository.exists else 'new, '}{state})")
    out.say(f"hub         {several(len(files), 'file')}, {size(num_bytes)}: {', '.join(path.name for path in files)}; "
            "no state of training")
    api = library(wish.flag).HfApi()
    with out.phase(f"uploading {size(num_bytes)}"), explaining(wish, "upload a folder"):
        if not repository.exists:
            api.create_repo(name, private=repository.is_private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Model of {Path(source).name}",
                                   allow_patterns=[path.name for path in files])
    with out.phase("comparing what the hub has"), explaining(wish, "upload a folder"):
        _compare(api, wish, name, commit.oid, files)
    out.say(f"hub         uploaded and compared: hf://{name}@{commit.oid}")


def _name_in_card(card: Path, name: str) -> None:
    """Lets the lines of the card that open the model name the repository."""
    if card.is_file():
        text = card.read_text(encoding="utf-8")
        card.write_text(text.replace(PLACE_IN_CARD, f'"{name}"'), encoding="utf-8")


def _compare(api: Any, wish: Wish, name: str, commit: str, files: list[Path]) -> None:
    """Raises UserError (exit 5) unless the hub has each file with the size and hash that it has here."""
    there = {entry.path: entry for entry in api.list_repo_tree(name, revision=commit)}
    for path in files:
        entry = there.get(path.name)
        etag = (entry.lfs.sha256 if entry.lfs else entry.blob_id) if entry is not None else ""
        if entry is None or entry.size != path.stat().st_size or etag_of(path, etag) != etag:
            raise UserError(Exit.MACHINE, f"{wish.flag}: the hub has not the {path.name} that was uploaded. Run the "
                                          "same command again with --overwrite.")
