"""Several corpora as one: what they must have in common, and the mixture that train.py trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from common.errors import Exit, UserError
from common.words import printable, several, shell_word
from tokens.corpus import Corpus, Share
from tokens.shares import DataDir, whole_parts
from tokens.stream import TokenStream
from tokens.tokenizer import load_tokenizer


def mix(folders: Sequence[DataDir], corpora: Sequence[Corpus]) -> Corpus:
    """The mixture of the corpora in these folders, two or more of them.

    Raises UserError (exit 3) where an id does not mean the same in all of them.
    """
    for folder, corpus in zip(folders[1:], corpora[1:], strict=True):
        _check_alike(folders[0].path, corpora[0], folder.path, corpus)
    first = corpora[0]
    parts = whole_parts(folders, [corpus.train.length for corpus in corpora])
    names = _names_of(folders)
    shares = tuple(Share(name, part, part / sum(parts), corpus)
                   for name, part, corpus in zip(names, parts, corpora, strict=True))

    validations = [corpus.val for corpus in corpora if corpus.val is not None]
    val_identities = [str(corpus.val_identity) for corpus in corpora]
    notes = [f"{share.name}: {note}" for share in shares for note in share.corpus.notes]
    return Corpus(_joined([corpus.train for corpus in corpora]), _joined(validations) if validations else None,
                  first.vocab_size, first.end_of_text_id, first.tokenizer_path, first.tokenizer_sha256,
                  _identity([corpus.identity for corpus in corpora], parts),
                  _identity(val_identities, parts) if validations else None, (*notes, *_notes_on(shares)), shares,
                  tuple(dict.fromkeys(origin for corpus in corpora for origin in corpus.origins)))


def check_lengths(corpus: Corpus, seq_length: int) -> None:
    """Raises UserError (exit 3) if a share of a mixture is too short for a sequence: it would draw nothing from it."""
    if corpus.shares:
        shortest = min(corpus.shares, key=lambda share: share.corpus.train.length)
        num_tokens = shortest.corpus.train.length
        if num_tokens <= seq_length:
            at_most = f", or give --seq_length {num_tokens - 1} at most" if num_tokens > 1 else ""
            raise UserError(Exit.DATA, f"--data_dir {shortest.name} has {several(num_tokens, 'training token')}, fewer "
                                       f"than a sequence of {seq_length:,} and the token after it. Leave the folder "
                                       f"out{at_most}.")


def in_words(shares: Sequence[Share]) -> str:
    """'prose 70%, code 30%', which tells mixtures apart; '' without shares."""
    return ", ".join(f"{share.name} {share_in_words(share.weight)}" for share in shares)


def share_in_words(share: float) -> str:
    """A share with three digits: '70%', '0.05%', '99.99%', never 0% or 100% for what is neither."""
    for digits in range(3, 10):
        text = f"{100 * share:.{digits}g}"
        if 0 < float(text) < 100:
            return f"{text}%"
    return f"{100 * share:g}%"


def _check_alike(path: str, corpus: Corpus, other_path: str, other: Corpus) -> None:
    """Raises UserError (exit 3) unless both have one tokenizer, vocabulary, end of text and type."""
    names = f"--data_dir {printable(path)} and {printable(other_path)}"
    again = f"Run pretokenize.py for {printable(other_path)} again"
    if corpus.tokenizer_path is not None:
        again += f" with --tokenizer_file {shell_word(str(corpus.tokenizer_path))}"
    if not _is_same_tokenizer(corpus, other):
        raise UserError(Exit.DATA, f"{names} were made with different tokenizers (sha256 "
                                   f"{str(corpus.tokenizer_sha256)[:12]} and {str(other.tokenizer_sha256)[:12]}), so "
                                   f"an id means other text in each. {again}.")
    for what, here, there in (("ids in their vocabularies", corpus.vocab_size, other.vocab_size),
                              ("ids for the end of a text", corpus.end_of_text_id, other.end_of_text_id),
                              ("types of tokens", corpus.train.dtype, other.train.dtype)):
        if here != there:
            raise UserError(Exit.DATA, f"{names} have different {what}: {here} and {there}. A mixture has one. "
                                       f"{again}.")


def _is_same_tokenizer(corpus: Corpus, other: Corpus) -> bool:
    """False if two tokenizers are known to differ; the same one may lie in two files that are written differently."""
    here, there = corpus.tokenizer_path, other.tokenizer_path
    if corpus.tokenizer_sha256 == other.tokenizer_sha256 or here is None or there is None:
        return True
    return load_tokenizer(here).to_str() == load_tokenizer(there).to_str()


def _names_of(folders: Sequence[DataDir]) -> list[str]:
    """What the shares are called: the ends of the folders' paths, as long as it takes to tell them apart."""
    paths = [Path(folder.path).resolve().parts for folder in folders]
    length = next(n for n in range(1, max(map(len, paths)) + 1) if len({path[-n:] for path in paths}) == len(paths))
    return [printable("/".join(path[-length:])) for path in paths]


def _joined(streams: Sequence[TokenStream]) -> TokenStream:
    return TokenStream(tuple(part for stream in streams for part in stream.parts), streams[0].vocab_size)


def _identity(identities: Sequence[str], parts: Sequence[int]) -> str:
    """A sha256 of what is mixed, in its order, and by which weights."""
    lines = (f"{identity} {part}\n" for identity, part in zip(identities, parts, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _notes_on(shares: Sequence[Share]) -> list[str]:
    """What may not be meant: tokens without a tokenizer, or without validation, beside others."""
    bare = [share.name for share in shares if share.corpus.tokenizer_path is None]
    blind = [share.name for share in shares if share.corpus.val is None]
    notes = [(bare, "without a tokenizer nothing tells that the ids mean the same text as those of the other folders"),
             (blind, "there are no validation tokens; the validation loss is the mean of the others")]
    return [f"{', '.join(names)}: {what}" for names, what in notes if 0 < len(names) < len(shares)]
