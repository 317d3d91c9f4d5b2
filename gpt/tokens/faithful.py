"""Checks that a tokenizer decodes every text to itself: a model can never learn characters that the tokenizer loses."""

import contextlib
import json
import re
import unicodedata
from collections.abc import Sequence

from tokenizers import Tokenizer

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable

SENTENCEPIECE_BLANK = "\u2581"  # stands for a blank in SentencePiece
PROBES = (
    "Hello World, it's the SAME text: don't change it!",
    " two  blanks\tand a tab\n\n\nlines\r\nand a blank at the end ",
    "".join(map(chr, range(1, 128))),
    "caf\u00e9 na\u00efve \u00bd \ufb01ne \u2460 \uff21 \u00a0 \u201cquoted\u201d \u2026",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u0101\u0161 \u0391\u03b8\u03ae\u03bd\u03b1",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "\u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \U00020000 \u200f\u202e",
    "cafe\u0301 \u212b \u1100\u1161",  # not in the form NFC
)
PATTERN = re.compile(r'"pattern": {"String": ("(?:[^"\\]|\\.)*")}')  # in a rule that replaces a fixed text
MAX_ADDED_TOKENS = 500  # that are tried
SHOWN_CHARACTERS = 16


def probes_of(tokenizer: Tokenizer) -> list[str]:
    """Texts that a tokenizer may change: common ones, and ones made from its own rules and added tokens."""
    fields = json.loads(tokenizer.to_str())
    rules = json.dumps([fields["normalizer"], fields["pre_tokenizer"], fields["decoder"]])
    patterns = sorted({json.loads(text) for text in PATTERN.findall(rules)})
    added = [token["content"] for token in fields["added_tokens"] if not token["special"]]
    return [*PROBES, *(f"a{pattern}b {pattern} c" for pattern in patterns),
            *(f"a  {token}  b" for token in added[:MAX_ADDED_TOKENS])]


def special_ids_in_text(tokenizer: Tokenizer) -> list[str]:
    """The special tokens whose names in a text the model itself encodes as their ids, as Unigram models do."""
    special = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    found = []
    for name, index in special.items():
        with contextlib.suppress(Exception):  # of a model of words or pieces, without an id for unknown ones
            ids = tokenizer.encode(f"{name} a{name}b a {name} b", add_special_tokens=False).ids
            found += [name] if index in ids else []
    return found


def refuse_changes(tokenizer: Tokenizer, name: str, texts: Sequence[str]) -> str:
    """Encodes and decodes texts; describes a harmless change, '' without any. name stands for it in messages.

    Raises UserError (exit 3) for a text that decodes to another one.
    """
    change = ""
    for text in texts:
        back = ""
        with contextlib.suppress(Exception):  # of a model of words or pieces, without an id for unknown ones
            back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        if back == text:
            continue
        composed = unicodedata.normalize("NFC", text)
        if back == composed:
            change = ("composes characters as Unicode's NFC does: e and an accent, two characters, come back as "
                      "one")
        elif back in (f" {text}", f" {composed}"):
            change = "adds a blank before each document"
        elif back.removeprefix(" ") == text.replace(SENTENCEPIECE_BLANK, " ").removeprefix(" "):
            change = change or "gives the character U+2581 back as a blank, as SentencePiece does"
        else:
            same = [before == after for before, after in zip(text, back, strict=False)]
            start = max(0, [*same, False].index(False) - 4)
            raise UserError(Exit.DATA, f"{name}: the tokenizer changes text, {_shown(text[start:])} comes "
                                       f"back as {_shown(back[start:])}. Give a byte-level tokenizer, or "
                                       "leave out --tokenizer_file.")
    return change


def decodes_to_itself(tokenizer: Tokenizer) -> bool:
    """True if the tokenizer changes none of the common texts, or harmlessly."""
    try:
        refuse_changes(tokenizer, "", PROBES)
    except UserError:
        return False
    return True


def _shown(text: str) -> str:
    return printable(repr(text[:SHOWN_CHARACTERS]))
