"""Several corpora as one: what they must have in common, and the mixture that train.py trains on."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable, several, shell_word
from gpt.tokens.corpus import Corpus, Share
from gpt.tokens.shares import DataDir, whole_parts
from gpt.tokens.stream import TokenStream


def mix(folders: Sequence[DataDir], corpora: Sequence[Corpus]) -> Corpus:
    """The mixture of the corpora in these folders, two or more of them.

    Raises UserError (exit 3) where an id does not mean the same in all of them.
    """
    for folder, corpus in zip(folders[1:], corpora[1:], strict=True):
        _check_alike(folders[0].path, corpora[0], folder.path, corpus)
    parts = whole_parts(folders, [corpus.train.length for corpus in corpora])
    shares = tuple(Share(name, part, part / sum(parts), corpus)
                   for name, part, corpus in zip(_names_of(folders), parts, corpora, strict=True))
    validations = [corpus.val for corpus in corpora if corpus.val is not None]
    return replace(
        corpora[0], shares=shares, train=_joined([corpus.train for corpus in corpora]),
        val=_joined(validations) if validations else None,
        identity=_identity([corpus.identity for corpus in corpora], parts),
        val_identity=_identity([str(corpus.val_identity) for corpus in corpora], parts) if validations else None,
        notes=tuple(f"{share.name}: {note}" for share in shares for note in share.corpus.notes),
        origins=tuple(dict.fromkeys(origin for corpus in corpora for origin in corpus.origins)))


def check_lengths(corpus: Corpus, seq_length: int) -> None:
    """Raises UserError (exit 3) if a share of a mixture is too short for a sequence: it would draw nothing from it."""
    for share in corpus.shares:
        if (num_tokens := share.corpus.train.length) <= seq_length:
            raise UserError(Exit.DATA, f"--data_dir {share.name} has {several(num_tokens, 'training token')}, fewer "
                                       f"than a sequence of {seq_length:,} and the token after it. Leave the folder "
                                       "out, or give a smaller --seq_length.")


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
    again = f"Run pretokenize.py for {printable(other_path)} again"
    if corpus.tokenizer_path is not None:
        again += f" with --tokenizer_file {shell_word(corpus.tokenizer_path)}"
    tokenizers = corpus.tokenizer_sha256, other.tokenizer_sha256
    for what, mine, theirs in (("tokenizers, by their sha256", *(tokenizers if None not in tokenizers else ("", ""))),
                               ("ids in their vocabularies", corpus.vocab_size, other.vocab_size),
                               ("ids for the end of a text", corpus.end_of_text_id, other.end_of_text_id),
                               ("types of tokens", corpus.train.dtype, other.train.dtype)):
        if mine != theirs:
            raise UserError(Exit.DATA, f"--data_dir {printable(path)} and {printable(other_path)} have different "
                                       f"{what}: {mine} and {theirs}. A mixture has one. {again}.")


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
