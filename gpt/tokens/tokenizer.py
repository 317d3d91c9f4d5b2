"""Opens tokenizers so that text can never become a special id, and answers questions about them."""

import contextlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers

from gpt.common.errors import Exit, UserError
from gpt.common.files import read_bytes, read_text, split_checkpoint_name
from gpt.common.names import METADATA, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from gpt.common.words import printable, shell_word

END_OF_TEXT = "<|endoftext|>"
START, END = "<|im_start|>", "<|im_end|>"  # of a turn of a conversation
USUAL_ENDS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>")  # tokenizers' names for the end of a document
# The files beside a tokenizer.json that name its end of a text, and their fields.
ENDS_IN_FILES = {METADATA: "end_of_text", TOKENIZER_CONFIG: "eos_token", "special_tokens_map.json": "eos_token"}
MAX_VOCAB_SIZE = 2**24  # checkpoints have the same bound
MAX_TOKENIZER_BYTES = 256 * 2**20


def tokenizer_of(folder: Path, given: str | None, vocab_size: int) -> Tokenizer:
    """Opens the given tokenizer, or without one the tokenizer in a model's folder.

    A special token that no text gets, such as padding, may lie beyond the model's ids. Raises UserError
    (exit 3), also for a tokenizer with more ids than the model, or other ids than its own one.
    """
    tokenizer, num_ids = load_with_size(Path(given or folder))
    if num_ids > vocab_size:
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        special -= {START, END, *map(tokenizer.id_to_token, opening_ids(tokenizer))}
        end_ids = end_of_text_id(tokenizer), end_of_text_id(tokenizer, Path(given or folder))
        num_ids = 1 + max(index for token, index in tokenizer.get_vocab().items()
                          if token not in special or index in end_ids)
    if num_ids > vocab_size:
        cure = "Give the model's own --tokenizer_file." if given else f"Copy the model's own to {shell_word(folder)}."
        raise UserError(Exit.DATA, f"the tokenizer has {num_ids:,} ids, the model {vocab_size:,}. {cure}")
    own = folder / TOKENIZER
    if given and own.is_file() and load_tokenizer(own).get_vocab() != tokenizer.get_vocab():
        raise UserError(Exit.DATA, f"--tokenizer_file {printable(given)} has other ids than the model's own tokenizer. "
                                   "Drop --tokenizer_file.")
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Opens a tokenizer.json, or a folder's, so that text never becomes a special id. Raises UserError (exit 3)."""
    return load_with_size(Path(path))[0]


def tokenizer_file_of(path: Path) -> Path:
    """The tokenizer.json that a path means: itself, or the one in a model's or a run's folder."""
    path = split_checkpoint_name(path)[0]
    if not path.is_dir():
        return path
    own, of_checkpoints = path / TOKENIZER, sorted(path.glob(f"checkpoint-*/{TOKENIZER}"))
    return of_checkpoints[0] if of_checkpoints and not own.exists() else own  # all of a run have the same


def load_with_size(path: Path) -> tuple[Tokenizer, int]:
    """Opens a tokenizer, so that text never becomes a special id; returns its vocabulary size too.

    Counting the ids of GPT-2's takes 20 ms. path is one that tokenizer_file_of
    takes. Raises UserError (exit 3).
    """
    folder, path = split_checkpoint_name(path)[0], tokenizer_file_of(path)
    name = f"tokenizer {printable(path)}"
    try:
        tokenizer = _for_text(Tokenizer.from_buffer(read_bytes(path, MAX_TOKENIZER_BYTES)))
        # Some broken files panic at their first use. A text that the vocabulary cannot encode is no such panic.
        with contextlib.suppress(Exception):
            tokenizer.decode(tokenizer.encode("a \u00e9\n").ids)
    except OSError as error:
        if isinstance(error, PermissionError):
            cure = "The file may not be read: change its permissions, or give a copy."
        elif any((folder / name).is_file() for name in ("merges.txt", "tokenizer.model")):  # GPT-2's, Llama's
            cure = ("The folder has its tokenizer in an older form. Save it in this one, with transformers:\n"
                    "python -c 'import sys, transformers; transformers.AutoTokenizer"
                    f".from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' {shell_word(folder)}")
        elif folder.is_dir():
            cure = f"Copy there the one of the model's tokens: cp DATA/{TOKENIZER} {shell_word(folder)}"
        else:
            cure = (f"Give another --tokenizer_file. hf download OWNER/NAME {TOKENIZER} fetches a model's, and prints "
                    "its path.")
        raise UserError(Exit.DATA, f"{name}: {error.strerror}. {cure}") from error
    except BaseException as error:  # a panic of the Rust library is not an Exception
        cure = ("Give --vocab_size alone, or make a tokenizer.json as docs/export.md does from nanoGPT's meta.pkl."
                if path.suffix == ".pkl" else
                "Give one of pretokenize.py, or one that transformers saves with AutoTokenizer.")
        raise UserError(Exit.DATA, f"{name} is not a tokenizer.json of the tokenizers library "
                                   f"({printable(error)[:120]}). {cure}") from error
    num_ids = vocab_size_of(tokenizer)
    if not 1 <= num_ids <= MAX_VOCAB_SIZE:
        raise UserError(Exit.DATA, f"{name} has {num_ids:,} ids, not 1 to {MAX_VOCAB_SIZE:,}. Give another "
                                   "tokenizer.")
    return tokenizer, num_ids


def parse(content: str) -> Tokenizer:
    """Parses the content of a tokenizer.json of ours, so that text never becomes a special id."""
    return _for_text(Tokenizer.from_str(content))


def _for_text(tokenizer: Tokenizer) -> Tokenizer:
    """Makes a tokenizer encode every text whole, without special ids."""
    tokenizer.no_truncation()  # some tokenizer.json cut or pad every text to a fixed length
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # <|endoftext|> in a text means these characters, not the token
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """One more than the tokenizer's largest id (there may be gaps between its ids)."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_of_text_id(tokenizer: Tokenizer, path: Path | None = None) -> int | None:
    """The id of the special token that ends a document; None if it is not certain.

    The files beside the tokenizer name the token. If they name none, or if the model converses, so that its
    eos_token may end an answer instead, the token is the only one of USUAL_ENDS that the tokenizer has. path is
    one that tokenizer_file_of takes. Raises UserError (exit 3).
    """
    special = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    usual = [name for name in USUAL_ENDS if name in special]
    named, converses = _named_end(path) if path else (None, False)
    if len(usual) == 1 and (named is None or converses):
        named = usual[0]
    return special.get(str(named))


def _named_end(path: Path) -> tuple[str | None, bool]:
    """The end of a text by the files beside a tokenizer, and whether its model converses. Raises UserError (exit 3)."""
    folder = tokenizer_file_of(path).parent
    for name, key in ENDS_IN_FILES.items():
        if (folder / name).is_file():
            try:
                fields = json.loads(read_text(folder / name))
                token = fields.get(key)
            except (OSError, ValueError, AttributeError, RecursionError) as error:
                raise UserError(Exit.DATA, f"{printable(folder / name)} is not an object of JSON "
                                           f"({printable(error)[:120]}). Restore or delete it.") from error
            if token is not None:
                converses = "chat_template" in fields or (folder / TEMPLATE).is_file()
                return str(token.get("content") if isinstance(token, dict) else token), converses
    return None, False


def opening_ids(tokenizer: Tokenizer) -> list[int]:
    """The special ids that the tokenizer puts before every text: <|begin_of_text|> for Llama 3, none for GPT-2."""
    with contextlib.suppress(Exception):  # a vocabulary of words may have no token for unknown words
        encoding = tokenizer.encode("a")
        return encoding.ids[:encoding.special_tokens_mask.index(0)]
    return []


def letter_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of a letter. Decoders that strip the first blank of a text keep a word's blank behind them."""
    with contextlib.suppress(Exception):  # a vocabulary of words may have no token for unknown words
        return tokenizer.encode("a", add_special_tokens=False).ids
    return []


def text_after(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Decodes ids as they stand behind others, without special tokens and without the text of the others."""
    return tokenizer.decode([*before, *ids])[len(tokenizer.decode([*before])):]


def bytes_per_id(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray | None:
    """The bytes of text for each id, int64 [V], 0 for special ids; None unless the tokenizer is byte-level.

    V is vocab_size; the tokenizer may have special tokens beyond it.
    """
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        return None  # only in a byte-level tokenizer does each character of a token stand for one byte
    lengths = np.zeros(max(vocab_size, vocab_size_of(tokenizer)), np.int64)
    for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
        lengths[index] = len(token)
    for index, token in tokenizer.get_added_tokens_decoder().items():
        lengths[index] = 0 if token.special else len(token.content.encode())
    return lengths[:vocab_size]


def is_byte_level_bpe(model: Mapping[str, Any]) -> bool:
    """True if the model of a tokenizer.json is a plain BPE over the 256 bytes."""
    unusual = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    return (model["type"] == "BPE" and not any(model.get(name) for name in unusual)
            and {*pre_tokenizers.ByteLevel.alphabet()} <= model["vocab"].keys())


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the facts that encoding documents depends on."""

    content: str  # of its tokenizer.json
    size: int  # one more than the largest id
    end_id: int  # the id that ends a document
    end: str  # the token of end_id
    opening_ids: tuple[int, ...]  # they begin a document; none for end_id, which is before it anyway
    splits_as_gpt2: bool  # no normalizer, no added words, ByteLevel with GPT-2's pattern
    is_known_kind: bool  # GPT-2's kind of byte-level BPE: all encoding engines give the same ids
    tokenizer: Tokenizer = field(compare=False, repr=False)


def vocabulary_of(tokenizer: Tokenizer, end_id: int | None) -> Vocabulary:
    """Collects the facts about a tokenizer. Raises UserError (exit 3) if end_id, which ends a document, is None."""
    if end_id is None:
        special = ", ".join(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
        cure = (f"special are {printable(special)[:80]}. Set \"special\": true for one in tokenizer.json, and name it "
                f'in tokenizer_config.json beside it: {{"eos_token": "{END_OF_TEXT}"}}' if special else
                f'it has none at all. Add one by the package tokenizers: add_special_tokens(["{END_OF_TEXT}"]), save')
        raise UserError(Exit.DATA, f"the tokenizer has no special token that certainly ends a document; {cure}")
    content = tokenizer.to_str(pretty=True)
    fields = json.loads(content)
    pre = fields["pre_tokenizer"] or {}
    openings = tuple(index for index in opening_ids(tokenizer) if index != end_id)
    splits_as_gpt2 = (fields["normalizer"] is None and pre.get("type") == "ByteLevel" and not pre["add_prefix_space"]
                      and pre.get("use_regex", True) and all(token["special"] for token in fields["added_tokens"]))
    return Vocabulary(content=content, size=vocab_size_of(tokenizer), end_id=end_id,
                      end=str(tokenizer.id_to_token(end_id)), opening_ids=openings, splits_as_gpt2=splits_as_gpt2,
                      is_known_kind=splits_as_gpt2 and _merges_as_gpt2(fields["model"]), tokenizer=tokenizer)


def _merges_as_gpt2(model: dict[str, Any]) -> bool:
    """True for a plain BPE over the 256 bytes with its merges in the order of their ids."""
    if not is_byte_level_bpe(model) or model.get("ignore_merges"):
        return False
    results = [model["vocab"].get(left + right, -1) for left, right in model["merges"]]
    return all(map(operator.lt, results, results[1:]))
