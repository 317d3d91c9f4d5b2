"""Runs pretokenize.py in this process, and reads back what it wrote."""

import hashlib
import json
import multiprocessing
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import pretokenize
from gpt.common.errors import Exit, UserError
from gpt.pretokenization.blocks import LIMITS, Limits
from gpt.pretokenization.vocabulary import train_tokenizer
from gpt.tokens.stream import DTYPES
from gpt.tokens.tokenizer import load_tokenizer
from tests.helpers.texts import STRINGS, words
from tests.helpers.training_texts import in_child, sample


class Killed(BaseException):
    """As kill -9 would, as far as a test can."""


def die_at(last: int, functions: Iterable[tuple[Any, str]], patch: pytest.MonkeyPatch) -> None:
    """Of all calls of these functions together, owner and name each, the last-th and those after it raise Killed."""
    calls = 0

    def counted(inner):
        def call(*args, **named):
            nonlocal calls
            calls += 1
            if calls >= last:
                raise Killed
            return inner(*args, **named)

        return call

    for owner, name in functions:
        patch.setattr(owner, name, counted(getattr(owner, name)))


def in_an_empty_folder(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a fixture of tests that call pretokenize.main yields from: no process and no variable is left behind."""
    patch.chdir(folder)
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
        patch.setenv(name, "1")  # main sets them; this restores them
    yield
    assert multiprocessing.active_children() == []


TOKEN_FILES = ("train.bin", "val.bin", "train.idx", "val.idx", "tokenizer.json")


def run(*argv: str, output_dir: str = "data", limits: Limits = LIMITS) -> dict:
    """Runs the command with one worker unless --num_workers is given; returns its metadata."""
    more = () if "--num_workers" in argv else ("--num_workers", "1")
    assert pretokenize.main([*argv, *more, "--overwrite", "--output_dir", output_dir], limits) == 0
    return metadata_of(output_dir)


def refused(*argv: str, code: Exit = Exit.DATA, match: str = "", limits: Limits = LIMITS) -> str:
    """Runs the command, which must refuse with this exit code; returns its message."""
    more = () if "--num_workers" in argv else ("--num_workers", "1")
    with pytest.raises(UserError, match=match or None) as caught:
        pretokenize.main([*argv, *more], limits)
    assert caught.value.code == code
    return str(caught.value)


def metadata_of(output_dir: str = "data") -> dict:
    """metadata.json of a finished folder."""
    return json.loads(Path(output_dir, "metadata.json").read_text())


def written(output_dir: str = "data") -> dict[str, bytes]:
    """All files of a finished folder but metadata.json."""
    found = {path.name: path.read_bytes() for path in Path(output_dir).iterdir() if path.is_file()}
    assert found.pop("metadata.json")
    return {name: content for name, content in found.items() if not name.startswith(".")}


def documents(part: str, output_dir: str = "data") -> list[str]:
    """What a split holds, decoded, document by document."""
    metadata = metadata_of(output_dir)
    ids = np.fromfile(f"{output_dir}/{part}.bin", DTYPES[metadata["dtype"]]).tolist()
    ends = np.fromfile(f"{output_dir}/{part}.idx", "<u8").tolist()
    assert ends[-1] == len(ids) == metadata["splits"][part]["tokens"]
    assert len(ends) == metadata["splits"][part]["documents"]
    tokenizer = load_tokenizer(Path(output_dir, "tokenizer.json"))
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        assert ids[end - 1] == metadata["end_of_text_id"]
        assert metadata["end_of_text_id"] not in ids[start:end - 1]
        found.append(tokenizer.decode(ids[start:end - 1], skip_special_tokens=False))
    return found


def hash_share(content: str) -> float:
    """Where in the range from 0 to 1 a document's hash lies."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big") / 2**64


def corpus(number: int = 60, seed: int = 0) -> list[str]:
    """Documents of several sizes and scripts; one is much longer than the others."""
    rng = random.Random(seed)
    texts = [words(rng.randint(5, 400), number) + rng.choice(STRINGS) for number in range(number)]
    return [*texts[:7], words(5000, 99), *texts[7:]]


def trained(texts: list[str], vocab_size: int = 600) -> str:
    """A tokenizer trained on texts, as JSON."""
    return in_child(train_tokenizer, sample(*texts), vocab_size, 2)


def with_opening_ids(tokenizer_file: Path, *names: str) -> Path:
    """Writes a tokenizer with these special tokens before every text, as Llama 3's has one; returns its path."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_special_tokens(list(names))
    tokenizer.post_processor = TemplateProcessing(  # type: ignore[assignment]
        " ".join([*names, "$A"]), special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])
    path = Path("opening.json")
    tokenizer.save(str(path))
    return path
