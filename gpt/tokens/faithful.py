"""Does a tokenizer give back every text it encodes? What it loses, the model can never learn."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NOT_NFC = "composes characters as Unicode's NFC does: e and an accent, two characters, come back as one"
ADDS_BLANK = "adds a blank before each document"
MARK = "\u2581"  # by which SentencePiece writes a blank
TAKES_MARK_FOR_BLANK = "gives the character U+2581 back as a blank, as SentencePiece does"
PROBES = (
    "Hello World, it's the SAME text: don't change it!",
    " two  blanks\tand a tab\n\n\nlines\r\nand a blank at the end ",
    "".join(map(chr, range(1, 128))),
    "caf\u00e9 na\u00efve \u00bd \ufb01ne \u2460 \uff21 \u00a0 \u201cquoted\u201d \u2026",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u0101\u0161 \u0391\u03b8\u03ae\u03bd\u03b1",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "\u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \U00020000 \u200f\u202e",
    "cafe\u0301 \u212b \u1100\u1161",  # not as in NFC
)
PATTERN = re.compile(r'"pattern": {"String": ("(?:[^"\\]|\\.)*")}')  # of a rule that looks for a text
MOST_ADDED_TOKENS = 500  # are tried
SHOWN_CHARACTERS = 16


def refuse_uncertain_ids(tokenizer: Tokenizer, what: str, ids: Mapping[str, int]) -> None:
    """Raises UserError (exit 3) if the tokenizer gives a text other ids each time, or one id to two tokens.

    ids are those of its get_vocab(with_added_tokens=True).
    """
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise UserError(Exit.DATA, f"{what}: its BPE has a dropout of {dropout:g}, so that the same text gets other "
                                   "ids each time. Set \"dropout\" to null in the file.")
    if len({*ids.values()}) < len(ids):
        raise UserError(Exit.DATA, f"{what}: an id stands for two tokens. Give one in which each has its own id.")


def probes_of(tokenizer: Tokenizer) -> list[str]:
    """Texts that a tokenizer may change: the common ones, and whatever its own rules name."""
    fields = json.loads(tokenizer.to_str())
    rules = json.dumps([fields["normalizer"], fields["pre_tokenizer"], fields["decoder"]])
    patterns = sorted({json.loads(text) for text in PATTERN.findall(rules)})
    added = [token["content"] for token in fields["added_tokens"] if not token["special"]]
    return [*PROBES, *(f"a{pattern}b {pattern} c" for pattern in patterns),
            *(f"a  {token}  b" for token in added[:MOST_ADDED_TOKENS])]


def refuse_changes(tokenizer: Tokenizer, what: str, texts: Sequence[str]) -> str:
    """What the tokenizer changes in these texts, if that does little harm, in words; '' if nothing.

    Raises UserError (exit 3) if a text does not come back from its ids.
    """
    change = ""
    for text in texts:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        if back == text:
            continue
        composed = unicodedata.normalize("NFC", text)
        if back == composed:
            change = NOT_NFC
        elif back in (f" {text}", f" {composed}"):
            change = ADDS_BLANK
        elif back.removeprefix(" ") == text.replace(MARK, " ").removeprefix(" "):
            change = change or TAKES_MARK_FOR_BLANK
        else:
            at = next((at for at, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), len(back))
            start = max(0, min(at, len(text)) - 4)
            raise UserError(Exit.DATA, f"{what}: the tokenizer changes text, {_shown(text[start:])} comes back as "
                                       f"{_shown(back[start:])}. Give a byte-level tokenizer, or leave out "
                                       "--tokenizer_file.")
    return change


def _shown(text: str) -> str:
    return printable(repr(text[:SHOWN_CHARACTERS]))
