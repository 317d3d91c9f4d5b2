"""Opening a tokenizer so that text never becomes a special id, and what is often asked of it."""

from __future__ import annotations

import contextlib
import json
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import Exit, UserError
from common.files import read_bytes
from common.words import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "encoder.json")  # in the order of preference
ENDS_OF_TEXT = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>")  # what tokenizers call the end of a document
MAX_VOCAB_SIZE = 2**24  # as in checkpoint.py: what is trained can be opened
MAX_TOKENIZER_BYTES = 256 * 2**20


# ---------------------------------------------------------------- the tokenizer



def tokenizer_of(folder: Path, given: str | None, vocab_size: int, all_ids: bool = True) -> Tokenizer:
    """The tokenizer given, or the one in a model's folder. Raises UserError (exit 3), for one of more ids too.

    Without all_ids an id beyond the model's may be overlooked, as _load_tokenizer says.
    """
    path = given or next((folder / name for name in TOKENIZER_FILES if (folder / name).exists()), None)
    if path is None:
        raise UserError(Exit.DATA, f"{printable(str(folder))} has no tokenizer.json. Give the model's "
                                   "--tokenizer_file.")
    tokenizer, num_ids = _load_tokenizer(Path(path), all_ids)
    if num_ids > vocab_size:
        raise UserError(Exit.DATA, f"the tokenizer has {num_ids:,} ids, the model {vocab_size:,}. "
                                   "Give the model's own --tokenizer_file.")
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Reads a tokenizer.json, or GPT-2's encoder.json with vocab.bpe (or merges.txt) beside it.

    Text can never become a special id through it. Raises UserError (exit 3) for what is not a tokenizer.
    """
    return _load_tokenizer(Path(path))[0]


def _load_tokenizer(path: Path, all_ids: bool = True) -> tuple[Tokenizer, int]:
    """load_tokenizer's, and vocab_size_of it, which takes 20 ms for GPT-2's.

    Without all_ids it is the number of tokens if the last of so many ids is there: one beyond a gap may be overlooked.
    """
    tokenizer = _read_tokenizer(path)
    num_ids = tokenizer.get_vocab_size(with_added_tokens=True)
    if all_ids or num_ids == 0 or tokenizer.id_to_token(num_ids - 1) is None:
        num_ids = vocab_size_of(tokenizer)
    if not 1 <= num_ids <= MAX_VOCAB_SIZE:
        raise UserError(Exit.DATA, f"tokenizer {printable(str(path))} has {num_ids:,} ids, not 1 to "
                                   f"{MAX_VOCAB_SIZE:,}. Give another.")
    return tokenizer, num_ids


def _read_tokenizer(path: Path) -> Tokenizer:
    """load_tokenizer's, whatever ids it has."""
    from tokenizers import Tokenizer

    if path.is_dir():
        path = path / "tokenizer.json"
    name = printable(str(path))
    try:
        content = read_bytes(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise UserError(Exit.DATA, f"tokenizer {name}: {error.strerror}. Give --tokenizer_file.") from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        with contextlib.suppress(Exception):  # a text it has no ids for; but some panics come with the first use alone
            tokenizer.decode(tokenizer.encode("a \u00e9\n").ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        return _from_other_json(path, content, error)
    return tokenizer


def _from_other_json(path: Path, content: bytes, error: BaseException) -> Tokenizer:
    """GPT-2's encoder.json as a tokenizer, where tokenizers found no tokenizer.json. Raises UserError (exit 3)."""
    name = printable(str(path))
    try:
        fields = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as why:
        raise UserError(Exit.DATA, f"tokenizer {name} is not JSON ({printable(str(why))[:120]}). "
                                   "Give a tokenizer.json, or GPT-2's encoder.json.") from why
    # A bare vocabulary: no tokenizer.json has so many keys, and GPT-2's has a token "model".
    if isinstance(fields, dict) and len(fields) > 256 and not isinstance(fields.get("model"), dict):
        return _from_vocab_and_merges(path, fields)
    raise UserError(Exit.DATA, f"tokenizer {name} is not a tokenizer.json of the tokenizers library "
                               f"({printable(str(error))[:120]}). Give one of pretokenize.py or "
                               "transformers.") from error


def _from_vocab_and_merges(path: Path, vocab: dict[str, Any]) -> Tokenizer:
    """GPT-2's original pair of files as a tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges_path = next((p for p in (path.with_name("vocab.bpe"), path.with_name("merges.txt")) if p.exists()), None)
    if merges_path is None:
        raise UserError(Exit.DATA, f"{printable(str(path))} is a vocabulary without merges. Put vocab.bpe or "
                                   "merges.txt beside it.")
    try:
        lines = merges_path.read_text(encoding="utf-8").splitlines()
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))  # type: ignore[arg-type]
    except Exception as error:
        raise UserError(Exit.DATA, f"{printable(str(path))} and {merges_path.name} do not fit together "
                                   f"({printable(str(error))[:120]}). Take both from one model.") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    if END_OF_TEXT in vocab:
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """One more than the tokenizer's largest id (ids may have gaps)."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_of_text_id(tokenizer: Tokenizer) -> int | None:
    """The id that ends a document, by the names tokenizers use for it; None if there is none."""
    for name in ENDS_OF_TEXT:
        if (found := tokenizer.token_to_id(name)) is not None:
            return found
    return None


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """True if each character of a token stands for one byte, as in GPT-2's vocabulary."""
    from tokenizers import decoders

    return isinstance(tokenizer.decoder, decoders.ByteLevel)


def bytes_per_id(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray | None:
    """How many bytes of text each id stands for, int64 [V], special ids 0; None if the tokenizer is not byte-level."""
    if not is_byte_level(tokenizer):
        return None
    lengths = np.zeros(vocab_size, np.int64)
    for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
        lengths[index] = len(token)
    for index, token in tokenizer.get_added_tokens_decoder().items():
        lengths[index] = 0 if token.special else len(token.content.encode())
    return lengths


def parse(content: str) -> Tokenizer:
    """A tokenizer from its JSON, whose special tokens are never found in text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_truncation()  # some tokenizer.json cut or fill up every text to a length
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer.json, and what is often asked of it."""

    content: str
    size: int  # one more than the largest id
    end_id: int  # the end of a document
    end: str
    splits_as_gpt2: bool  # no normalizer, ByteLevel with its pattern, no added words
    is_known_kind: bool  # GPT-2's, merges in the order of their ids: what both engines were compared on
    tokenizer: Tokenizer = field(compare=False, repr=False)


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """What a tokenizer is. Raises UserError (exit 3) for one without an end of text."""
    content = tokenizer.to_str(pretty=True)
    fields = json.loads(content)
    model, pre, added = fields["model"], fields["pre_tokenizer"] or {}, fields["added_tokens"]
    vocab = model["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {token: number for number, (token, _) in enumerate(vocab)}
    ids |= {token["content"]: token["id"] for token in added}
    end = next((name for name in ENDS_OF_TEXT if name in ids), None)
    if end is None:
        raise UserError(Exit.DATA, "the tokenizer has no end-of-text token. Documents could not be told apart. Add "
                                   f"{END_OF_TEXT} to it, or leave out --tokenizer_file.")
    as_gpt2 = (fields["normalizer"] is None and pre.get("type") == "ByteLevel" and not pre["add_prefix_space"]
               and pre.get("use_regex", True) and all(token["special"] for token in added))
    unusual = ("dropout", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
    is_known = as_gpt2 and model["type"] == "BPE" and not any(model.get(name) for name in unusual)
    if is_known:
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        results = [vocab.get(left + right, -1) for left, right in merges]
        is_known = all(map(operator.lt, results, results[1:])) and all(char in vocab for char in byte_alphabet())
    return Vocabulary(content, max(ids.values()) + 1, ids[end], end, as_gpt2, is_known, tokenizer)


def byte_alphabet() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in GPT-2's vocabulary (openai/gpt-2, encoder.py)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
