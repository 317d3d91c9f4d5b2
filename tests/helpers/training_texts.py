"""Text to train tokenizers on, and training as the program does it: in a process of its own."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from gpt.common.signals import Signals
from gpt.pretokenization import workers
from gpt.pretokenization.block_task import PART_SEPARATOR
from gpt.pretokenization.vocabulary import SPECIAL_TOKENS


def language(num_bytes: int, seed: int = 0) -> str:
    """Text that looks like language: common words are common, and new ones keep coming."""
    rng, words, chosen, length = random.Random(seed), ["the"], [], 0
    letters = "etaoinshrdlcumwfgypbvkjxqz\u00e9\u0438\u0430\u043d\u4e00\u4eba"
    weights = [1 / rank for rank in range(1, len(letters) + 1)]
    while length < num_bytes:
        if rng.random() < 0.02 * (1 - min(0.9, len(words) / 50_000)):
            words.append("".join(rng.choices(letters, weights, k=rng.randint(1, 12))))
            words[-1] = words[-1].capitalize() if rng.random() < 0.2 else words[-1]
        word = words[int(len(words) * rng.random() ** 3)]
        chosen.append(word + rng.choice("        ,.\n") + rng.choice(["", "", "", " ", "12 ", "'s "]))
        length += len(chosen[-1].encode())
    return "".join(chosen)


def sample(*texts: str | bytes, name: str = "sample") -> Path:
    """A file as the trainers read it."""
    path = Path(name)
    contents = (part.encode() if isinstance(part, str) else part for part in texts)
    path.write_bytes(b"".join(content + PART_SEPARATOR for content in contents))
    return path


def in_child(work: Callable[..., Any], *arguments: Any) -> Any:
    """As the program trains: a process that has trained has threads, for which its later children would wait."""
    return workers.in_child(Signals(), work, *arguments)


def tokenizer_json(*merges: tuple[str, str]) -> str:
    """A tokenizer.json as pretokenize.py writes it: its special tokens, the 256 bytes, and these merges."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [*merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer.to_str(pretty=True)


def sentencepiece_tokenizer(*merges: tuple[str, str], letters: str = "") -> Tokenizer:
    """A tokenizer as transformers makes it of SentencePiece's: a blank is a mark, with which a text begins."""
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "<unk>", "\u2581", *letters, *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [*merges],
                                     byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(  # type: ignore[assignment]
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer
