"""Several corpora mixed into one: the checks that they fit together, and the mixture that train.py trains on."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpt.common.errors import Exit, UserError
from gpt.common.words import printable, several, shell_word
from gpt.tokens.corpus import Component, Corpus
from gpt.tokens.files import DataDir, whole_weights
from gpt.tokens.stream import TokenStream


def mix(folders: Sequence[DataDir], corpora: Sequence[Corpus]) -> Corpus:
    """Mixes the corpora of two or more folders by the folders' weights.

    Raises UserError (exit 3) if the corpora differ in their tokenizer, vocabulary, end of text or dtype.
    """
    for folder, corpus in zip(folders[1:], corpora[1:], strict=True):
        _check_alike(folders[0].path, corpora[0], folder.path, corpus)
    weights = whole_weights(folders, [corpus.train.length for corpus in corpora])
    components = tuple(Component(name, weight, weight / sum(weights), corpus)
                       for name, weight, corpus in zip(_short_names(folders), weights, corpora, strict=True))
    validations = [corpus.val for corpus in corpora if corpus.val is not None]
    with_tokenizer = next((corpus for corpus in corpora if corpus.tokenizer_sha256), corpora[0])
    return replace(
        with_tokenizer,
        components=components,
        copies_were_sought=all(corpus.copies_were_sought for corpus in corpora),
        train=_joined([corpus.train for corpus in corpora]),
        val=_joined(validations) if validations else None,
        identity=_identity([corpus.identity for corpus in corpora], weights),
        val_identity=_identity([str(corpus.val_identity) for corpus in corpora], weights) if validations
        else None,
        notes=tuple(f"{component.name}: {note}" for component in components for note in component.corpus.notes),
        origins=tuple(dict.fromkeys(origin for corpus in corpora for origin in corpus.origins)))


def check_lengths(corpus: Corpus, seq_length: int) -> None:
    """Raises UserError (exit 3) if a component of a mixture is shorter than one training sequence."""
    for component in corpus.components:
        num_tokens = component.corpus.train.length
        if num_tokens <= seq_length:
            raise UserError(Exit.DATA, f"--data_dir {component.name} has {several(num_tokens, 'training token')}, "
                                       f"fewer than a sequence of {seq_length:,} and the token after it. "
                                       "Leave the folder out, or give a smaller --seq_length.")


def mixture_in_words(components: Sequence[Component]) -> str:
    """Describes a mixture by names and weights, as in 'prose 70%, code 30%'; '' without components."""
    return ", ".join(f"{component.name} {weight_percent(component.weight)}" for component in components)


def weight_percent(weight: float) -> str:
    """Writes a weight as '70%', '0.05%' or '99.9%'."""
    return f"{100 * weight:.3g}%"


def _check_alike(path: str, corpus: Corpus, other_path: str, other: Corpus) -> None:
    """Raises UserError (exit 3) unless both corpora have one tokenizer, vocabulary, end of text and dtype."""
    sha256 = corpus.tokenizer_sha256 or other.tokenizer_sha256  # a corpus may have no tokenizer beside it
    compared = [("tokenizers, by their sha256", sha256, other.tokenizer_sha256 or sha256),
                ("ids in their vocabularies", corpus.vocab_size, other.vocab_size),
                ("ids for the end of a text", corpus.end_of_text_id, other.end_of_text_id),
                ("types of tokens", corpus.train.dtype, other.train.dtype)]
    given = f" --tokenizer_file {shell_word(corpus.tokenizer_path)}" if corpus.tokenizer_path else ""
    cure = f"Make them again:\npython pretokenize.py TEXT --output_dir {shell_word(other_path)} --overwrite{given}"
    for what, mine, theirs in compared:
        if mine != theirs:
            raise UserError(Exit.DATA, f"--data_dir {printable(path)} and {printable(other_path)} have different "
                                       f"{what}: {mine} and {theirs}. All folders of a mixture must have "
                                       f"the same. {cure}")


def _short_names(folders: Sequence[DataDir]) -> list[str]:
    """Names the components by the ends of their folders' paths, long enough to tell the folders apart."""
    paths = [Path(folder.path).resolve().parts for folder in folders]
    length = next(n for n in range(1, max(map(len, paths)) + 1)
                  if len({path[-n:] for path in paths}) == len(paths))
    return [printable("/".join(path[-length:])) for path in paths]


def _joined(streams: Sequence[TokenStream]) -> TokenStream:
    return TokenStream(tuple(part for stream in streams for part in stream.parts), streams[0].vocab_size)


def _identity(identities: Sequence[str], weights: Sequence[int]) -> str:
    """The sha256 of the components' identities in their order, each with its weight."""
    lines = (f"{identity} {weight}\n" for identity, weight in zip(identities, weights, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
