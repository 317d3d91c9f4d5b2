"""A folder of ours in a repository of the hub: looked at before any work, said, uploaded."""

from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.common.words import printable, several, size
from gpt.hub.library import TOKEN, explaining, library
from gpt.hub.names import MODEL, HubName

PLACE_IN_CARD = '"path of this folder"'  # in a checkpoint's README.md, where a repository has its own name


def prepare(name: str, public: bool, overwrite: bool, out: Progress) -> None:
    """Makes the repository to upload to, unless it is there, before there is anything to upload.

    Raises UserError: exit 5 without a token that the hub takes, or without a network; exit 2 for a repository that
    holds a model already, without overwrite, and for one that everybody can read, without public.
    """
    asked = f"--push {printable(name)}"
    hub = library(asked)
    if hub.get_token() is None:
        raise UserError(Exit.MACHINE, f"{asked}: needs the right to write; {TOKEN}.")
    with out.phase(f"asking the hub for {printable(name)}"), explaining(asked, HubName(MODEL, name)):
        hub.HfApi().create_repo(name, private=not public, exist_ok=True)
        about = hub.HfApi().repo_info(name, expand=["private", "siblings"])
        assert isinstance(about.private, bool)
    if not about.private and not public:
        raise UserError(Exit.FLAGS, f"{asked}: everybody can read this repository. Give --public if that is right, or "
                                    "another name.")
    if not overwrite and any(str(file.rfilename).endswith(".safetensors") for file in about.siblings or ()):
        raise UserError(Exit.FLAGS, f"{asked}: the repository holds a model already. Give --overwrite, which leaves it "
                                    "in the history, or another name.")
    out.say(f"hub         to {name}, {'private' if about.private else 'public: everybody can read it'}")


def push(folder: Path, name: str, source: str, out: Progress) -> None:
    """Uploads the files of a folder in one commit, once they have been said. Raises UserError (exit 5)."""
    card = folder / "README.md"
    if card.is_file():  # its lines that open the model name the repository
        card.write_text(card.read_text(encoding="utf-8").replace(PLACE_IN_CARD, f'"{name}"'), encoding="utf-8")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    num_bytes = sum(path.stat().st_size for path in files)
    out.say(f"hub         {several(len(files), 'file')}, {size(num_bytes)}: {', '.join(path.name for path in files)}; "
            "no state of training")
    asked = f"--push {printable(name)}"
    with out.phase(f"uploading {size(num_bytes)}"), explaining(asked, HubName(MODEL, name)):
        commit = library(asked).HfApi().upload_folder(
            repo_id=name, folder_path=folder, commit_message=f"Model of {Path(source).name}",
            allow_patterns=[path.name for path in files])
        oid = bytes.fromhex(commit.oid).hex()
    out.say(f"hub         uploaded: hf://{name}@{oid}")
