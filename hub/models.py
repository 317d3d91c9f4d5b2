"""A model of the hub as a folder: config, tokenizer and safetensors alone, never a pickle."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from common.files import read_text
from common.flags import having
from common.progress import Progress
from common.words import printable
from hub.files import fetch
from hub.library import Listing, RemoteFile, Wish, list_files
from hub.names import MODEL, HubName, is_on_hub, parse_name

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe")
BESIDE = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
          "chat_template.jinja", "README.md", "LICENSE")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


def with_models_here(args: Namespace, flags: Sequence[str], out: Progress,
                     look: Callable[[], None] = lambda: None) -> Namespace:
    """The flags, with a folder of the library's cache for each hf:// that one of these flags names.

    Raises UserError: exit 4 for a name without a model, exit 5 for what keeps it from being fetched.
    """
    fetched = {flag: str(fetch_model(f"--{flag}", vars(args)[flag], out, look))
               for flag in flags if is_on_hub(vars(args)[flag])}
    return having(args, **fetched) if fetched else args


def with_tokenizer_here(args: Namespace, out: Progress, look: Callable[[], None]) -> Namespace:
    """The flags, with a file of the library's cache for a --tokenizer_file that is hf://. Raises UserError."""
    if not is_on_hub(args.tokenizer_file):
        return args
    path = fetch_tokenizer("--tokenizer_file", args.tokenizer_file, out, look)
    return having(args, tokenizer_file=str(path))


def fetch_model(flag: str, word: str, out: Progress, look: Callable[[], None] = lambda: None) -> Path:
    """The folder of a model, which is downloaded unless the cache has it."""
    name = parse_name(word, MODEL)
    wish = Wish(f"{flag} {name.shown}", name, commands_for_model(flag, name))
    with out.phase(f"asking the hub for {name.shown}"):
        listing = list_files(wish)
    files = files_of_model(wish, listing)
    if (index := next((file for file in files if file.path == INDEX), None)) is not None:
        snapshot = fetch(wish, listing, [index], out, look)
        files += shards_of(wish, listing, snapshot / INDEX)
    return fetch(wish, listing, files, out, look)


def fetch_tokenizer(flag: str, word: str, out: Progress, look: Callable[[], None] = lambda: None) -> Path:
    """The file of a model's tokenizer, without its weights; what belongs to it lies beside it."""
    name = parse_name(word, MODEL)
    wish = Wish(f"{flag} {name.shown}", name, f"hf download {name.repo} {TOKENIZERS[0]} --local-dir "
                                                   f"{_local(name)}; then give {flag} {_local(name)}/{TOKENIZERS[0]}")
    with out.phase(f"asking the hub for {name.shown}"):
        listing = list_files(wish)
    files = _named(listing, TOKENIZERS)
    if not files:
        raise wish.refusal(f"{name.repo} has no {TOKENIZERS[0]}", "Give a model that has one.")
    if files[0].path == TOKENIZERS[0]:
        files = files[:1]
    return fetch(wish, listing, files, out, look) / files[0].path


def commands_for_model(flag: str, name: HubName) -> str:
    """The commands that do without us what a flag does."""
    at = "" if name.revision == "main" else f" --revision {name.revision}"
    return (f"hf download {name.repo}{at} '*.json' 'model*.safetensors' --local-dir {_local(name)}; then give {flag} "
            f"{_local(name)}")


def _local(name: HubName) -> str:
    return name.repo.partition("/")[2]


# ---------------------------------------------------------------- which files


def files_of_model(wish: Wish, listing: Listing) -> list[RemoteFile]:
    """The files of a model, or its index instead of the weights. Raises UserError (exit 4) where there is no model."""
    weights = _named(listing, (WEIGHTS,)) or _named(listing, (INDEX,))
    config = _named(listing, (CONFIG,))
    if weights and config:
        return [*config, *_named(listing, TOKENIZERS), *_named(listing, BESIDE), *weights]
    there = [file.path for file in listing.files]
    what = f"{CONFIG}" if weights else WEIGHTS
    pickles = [path for path in there if path.endswith(PICKLES)]
    if not weights and pickles:
        raise wish.refusal(f"its weights are {printable(pickles[0])}, which can run code and is never opened",
                           f"Give a model with {WEIGHTS}.")
    raise wish.refusal(f"it has no {what}", f"Give a model with {CONFIG} and {WEIGHTS}.")


def shards_of(wish: Wish, listing: Listing, index: Path) -> list[RemoteFile]:
    """The files of weights that an index names. Raises UserError (exit 4) where the repository lacks one."""
    try:
        names = sorted(set(json.loads(read_text(index))["weight_map"].values()))
        shards = _named(listing, names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise wish.refusal(f"{INDEX} has no weight_map", "Give another model.") from error
    if lacking := set(names) - {file.path for file in shards}:
        raise wish.refusal(f"it lacks {printable(min(lacking))}, which {INDEX} names", "Give another revision.")
    if any(not name.endswith(".safetensors") for name in names):
        raise wish.refusal(f"{INDEX} names {printable(names[0])}, no safetensors file", "Give another model.")
    return shards


def _named(listing: Listing, names: Sequence[str]) -> list[RemoteFile]:
    """The files of these names at the top of a repository, in this order."""
    by_path = {file.path: file for file in listing.files}
    return [by_path[name] for name in names if name in by_path]
