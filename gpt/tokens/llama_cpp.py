"""Converts a tokenizer to llama.cpp's fields of a GGUF file: tokens with their types, merges, the pre-tokenizer.

llama.cpp has its own pre-tokenizers, and a file only names one. Here a file names one only if it splits
text exactly as the tokenizer does; any other tokenizer is refused.
"""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from gpt.common.errors import Exit, UserError, warn
from gpt.tokens.tokenizer import end_of_text_id, is_byte_level_bpe, opening_ids, vocab_size_of

# The pre-tokenizers in the tokenizer.json of GPT-2, SmolLM, Qwen and Llama 3, by llama.cpp's names.
CASED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(digits: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": rf"{CASED}|{digits}|{REST}"}, "behavior": "Isolated",
            "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}


STEPS = {
    "gpt-2": [_byte_level(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
    "qwen2": [_split(r"\p{N}"), _byte_level(False)],
    "llama-bpe": [_split(r"\p{N}{1,3}"), _byte_level(False)],
}


def gguf_vocabulary(tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...] = ()) -> dict[str, Any]:
    """The tokenizer's values by the names of gguf.GGUFWriter's add_ methods; token types are names of gguf.TokenType.

    As convert_hf_to_gguf.py does, unused tokens fill the vocabulary up to the model's vocab_size. Special
    tokens beyond it are left out. end_ids are the ids that end a text by the model's folder; llama.cpp has
    fields for three. Warns of a tokenizer that converts text to NFC. Raises UserError (exit 3) for others that
    llama.cpp cannot imitate exactly.
    """
    fields = json.loads(tokenizer.to_str())
    name = pre_tokenizer_name(fields)
    end_of_text, opening = end_of_text_id(tokenizer), opening_ids(tokenizer)
    if name is None or len(opening) > 1:
        raise UserError(Exit.DATA, "the tokenizer is not a byte-level BPE that splits text as GPT-2's, Qwen's, Llama "
                                   "3's or SmolLM's does, with one opening id at most, so llama.cpp would make other "
                                   "ids. Give --format huggingface, and --output with a folder's name.")
    end_id = end_ids[0] if end_ids else end_of_text
    if end_id is None:
        raise UserError(Exit.DATA, "the tokenizer has no end-of-text token, so llama.cpp would never end a "
                                   "text. Give --format huggingface, and --output with a folder's name.")

    tokens = [f"[PAD{index}]" for index in range(max(vocab_size, vocab_size_of(tokenizer)))]
    kinds = ["UNUSED"] * len(tokens)
    for token, index in fields["model"]["vocab"].items():
        tokens[index], kinds[index] = token, "NORMAL"
    for token in fields["added_tokens"]:
        tokens[token["id"]] = token["content"]
        kinds[token["id"]] = "CONTROL" if token["special"] else "USER_DEFINED"
    if fields["normalizer"] is not None:
        warn("this tokenizer converts text to Unicode's form NFC, llama.cpp does not: text in another form "
             "gets other ids there.")
    return {"tokenizer_model": "gpt2", "tokenizer_pre": name, "token_list": tokens[:vocab_size],
            "token_types": kinds[:vocab_size],
            "token_merges": [" ".join(merge) for merge in fields["model"]["merges"]],
            "bos_token_id": opening[0] if opening else end_id if end_of_text is None else end_of_text,
            "eos_token_id": end_id, "add_bos_token": bool(opening),
            **dict(zip(("eot_token_id", "eom_token_id"), end_ids[1:], strict=False))}


def pre_tokenizer_name(fields: Mapping[str, Any]) -> str | None:
    """llama.cpp's name for the pre-tokenizer in a tokenizer.json; None if llama.cpp lacks it."""
    model = fields["model"]
    strips = any(token[name] for token in fields["added_tokens"]
                 for name in ("single_word", "lstrip", "rstrip"))
    if strips or not is_byte_level_bpe(model):
        return None
    pre = fields["pre_tokenizer"] or {}
    steps = [{key: value for key, value in step.items() if key != "trim_offsets"}  # changes no split
             for step in pre.get("pretokenizers", [pre])]
    name = next((name for name, known in STEPS.items() if known == steps), None)
    # With this pre-tokenizer alone, llama.cpp does not merge a word that is a token by itself.
    if bool(model.get("ignore_merges")) != (name == "llama-bpe"):
        return None
    allowed = (None, {"type": "NFC"}) if name == "qwen2" else (None,)
    return name if fields["normalizer"] in allowed else None
