"""Reads documents to score: from text files, as pretokenize.py does, and from token files in any layout."""

import contextlib
import glob
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from data import Tokens
from gpt.common.errors import Exit, UserError, writing
from gpt.common.words import printable, size
from gpt.evaluation.scoring import Document, Scorer
from gpt.hub.names import is_on_hub
from gpt.pretokenization.blocks import LIMITS, SAFE_CUT, SPACE_CUT, Findings, Reading, parts_of
from gpt.pretokenization.files import Source, refuse_changed, unpacked
from gpt.pretokenization.report import Report, warn_of_unusual_texts
from gpt.pretokenization.sources import KINDS, blocks_of, documents_of, find_sources
from gpt.tokens.chat import can_converse, how_to_converse
from gpt.tokens.corpus import open_tokens
from gpt.tokens.faithful import decodes_to_itself
from gpt.tokens.layouts import DTYPES, document_ends
from gpt.tokens.stream import TokenStream, warn_without_mask
from gpt.tokens.tokenizer import END, bytes_per_id, load_tokenizer, opening_ids, vocabulary_of


def texts_of(words: Sequence[str], scorer: Scorer) -> Iterator[tuple[str, Iterator[Document]]]:
    """Yields the name and the documents of each file of --text; read the documents before the next file.

    An unpacked copy of a compressed or encoded file is deleted then. words are files, folders and globs. Raises
    UserError (exit 3) for an unreadable file, and Stopped at a signal.
    """
    with leading_to_tokens(words, scorer):
        for word in filter(is_on_hub, words):
            raise UserError(Exit.DATA, f"--text {printable(word)} is on the hub. Make tokens of it, and give "
                                       f"--tokens to_score:\n{scorer.command_for_tokens([word])}")
        sources = find_sources(words, scorer.out.say, {})
        warn_of_unusual_texts([source for source in sources if not source.packing], scorer.out)
        for source in sources:
            as_tokens = ("Make tokens of it, and give --tokens to_score:\n"
                         f"{scorer.command_for_tokens([source.shown])}")
            if KINDS[source.kind].is_chat:
                cure = (as_tokens if can_converse(scorer.tokenizer) else
                        f"This model's tokenizer has no tokens for their turns. {how_to_converse(scorer.folder)}")
                raise source.error(f"holds conversations. {cure}")
            with tempfile.TemporaryDirectory() as folder:
                with writing(f"the temporary folder {printable(folder)} (the variable TMPDIR names another place)"):
                    source = unpacked(source, Path(folder) / "text", scorer.signals.raise_if_stopped)
                if source.kind == "text" and source.text_bytes > LIMITS.document_bytes:
                    raise source.error(f"is longer than {size(LIMITS.document_bytes)}, too long to hold in memory. "
                                       f"{as_tokens}")
                yield source.shown, documents_in(source, scorer)


@contextlib.contextmanager
def leading_to_tokens(names: Sequence[str], scorer: Scorer) -> Iterator[None]:
    """Adds to a UserError that names a flag of pretokenize.py the command that takes the flag, for these files."""
    try:
        yield
    except UserError as error:
        if " --" not in str(error) or "python " in str(error):
            raise
        raise UserError(error.code, f"{error} The flag goes to this command; then give --tokens to_score instead of "
                                    f"--text:\n{scorer.command_for_tokens(names)}") from error


def documents_in(source: Source, scorer: Scorer) -> Iterator[Document]:
    """Reads the documents of a file, block by block; the tokenizer decides where a long document may be cut.

    A document begins with the tokenizer's opening id (Llama's has one) or the end-of-text id. If the tokenizer
    has neither, the document's first token is context and never scored. At the end it warns of skipped records
    and replaced characters. Raises Stopped at a signal. Raises UserError (exit 3) for a file that is unreadable
    or changed, that has too many invalid bytes, or whose records all lack a text.
    """
    tokenizer = scorer.tokenizer
    start_ids = opening_ids(tokenizer)[-1:] or ([] if scorer.end_of_text_id is None
                                                else [scorer.end_of_text_id])
    splits_as_gpt2 = (scorer.end_of_text_id is not None
                      and vocabulary_of(tokenizer, scorer.end_of_text_id).splits_as_gpt2)
    is_faithful = decodes_to_itself(tokenizer)
    lost = 0
    byte_lengths_V = bytes_per_id(tokenizer, scorer.model.config.vocab_size)
    reading = Reading(cut_pattern=SAFE_CUT if splits_as_gpt2 else SPACE_CUT)
    report = Report([source], reading)
    with leading_to_tokens([source.shown], scorer):
        for block in blocks_of(source, reading):
            found = Findings()
            texts = [text for text in documents_of(block, [source], reading, found) if text.strip()]
            found.has_text = bool(texts)
            report.add(block, found)
            for text in texts:
                ids, num_bytes = [np.array(start_ids, np.int32)], 0
                for part in parts_of(text.encode(), reading):  # a long document has many parts
                    scorer.signals.raise_if_stopped()
                    try:
                        part_ids = tokenizer.encode(part.decode(), add_special_tokens=False).ids
                    except Exception as error:  # a vocabulary of words without a token for unknown words
                        raise source.error("has text for which the model's tokenizer has no ids "
                                           f"({printable(error)[:120]}). Give another text.") from error
                    if not is_faithful:
                        lost += max(0, len(part) - len(tokenizer.decode(part_ids, skip_special_tokens=False).encode()))
                    num_bytes += len(part)
                    ids.append(np.array(part_ids, np.int32))
                ids_N = np.concatenate(ids)
                if not start_ids:
                    num_bytes -= (len(tokenizer.decode(ids_N[:1].tolist(), skip_special_tokens=False).encode())
                                  if byte_lengths_V is None else int(byte_lengths_V[ids_N[0]]))
                yield Document(ids_N, num_bytes, np.ones(len(ids_N), bool))
        if report.total.bad_records:
            report.refuse_empty(source.text_bytes)
    refuse_changed([source])
    if lost:
        scorer.out.warn(f"{source.shown}: the tokenizer has no ids for {lost:,} bytes of the text. They were "
                        "not scored, and make the bits per byte too low.")
    report.say(scorer.out)


# ---------------------------------------------------------------- documents from token files

READ_TOKENS = 2**20  # tokens to read at once in search of the documents' ends


def token_files_of(words: Sequence[str], scorer: Scorer) -> Iterator[tuple[str, Iterator[Document]]]:
    """Yields the name and the documents of each word of --tokens, no file or folder twice.

    A folder means its validation files if it has any. Warns if no tokenizer.json lies beside them. Raises
    Stopped at a signal, and UserError (exit 3) for files that are unreadable or of another tokenizer.
    """
    for word in {os.path.realpath(word): word for word in words}.values():
        if not (os.path.exists(word) or glob.has_magic(word)):
            raise UserError(Exit.DATA, f"--tokens {printable(word)} is missing. Make tokens with the model's "
                                       f"tokenizer, and give --tokens to_score:\n{scorer.command_for_tokens(['TEXT'])}")
        with scorer.out.phase(f"checking {printable(word)}"):
            stream, tokenizer = open_tokens(Path(word), scorer.model.config.vocab_size)
        if tokenizer is None:
            scorer.out.warn(f"{stream.name}: without a tokenizer.json beside it, the model's is assumed.")
        elif load_tokenizer(tokenizer).get_vocab() != scorer.tokenizer.get_vocab():
            raise UserError(Exit.DATA, f"{printable(tokenizer)} is another tokenizer than the model's. Make tokens "
                                       "with the model's, and give --tokens to_score:\n"
                                       f"{scorer.command_for_tokens(['TEXT'])}")
        warn_without_mask(stream, scorer.tokenizer, scorer.out.warn)
        yield printable(word), documents_of_tokens(stream, scorer)


def documents_of_tokens(stream: TokenStream, scorer: Scorer) -> Iterator[Document]:
    """Splits token files into their documents, without empty ones.

    A document ends at an end-of-text id, which is not scored, nor is its opening id; the id before a document
    is the context of its first token. If the tokenizer has no end-of-text id, the first token of the files is
    context alone. Of conversations the answers alone are scored. The bytes of a document are 0 unless the
    tokenizer is byte-level.
    """
    tokens = Tokens(stream, "mmap", torch.device("cpu"))
    end_id = scorer.end_of_text_id
    byte_lengths_V = bytes_per_id(scorer.tokenizer, scorer.model.config.vocab_size)
    if byte_lengths_V is None:
        byte_lengths_V = np.zeros(scorer.model.config.vocab_size, np.int64)
    # A document may have billions of tokens: they keep the type of the file if it holds end_id too.
    dtype = DTYPES[stream.dtype]
    fits = end_id is None or end_id <= np.iinfo(dtype).max
    prefix = np.array([] if end_id is None else [end_id], dtype if fits else np.int32)
    opening = opening_ids(scorer.tokenizer)
    ends = np.unique(np.concatenate([[0, tokens.length], *_ends_of_documents(stream, tokens, scorer)]))
    for first, end in itertools.pairwise(ends):
        scorer.signals.raise_if_stopped()
        ids_N = tokens.read(first, end - first)
        ids_N = np.concatenate([prefix, ids_N[:-1] if ids_N[-1] == end_id else ids_N])
        if len(ids_N) > len(prefix):
            counted = np.ones(len(ids_N), bool)
            if tokens.mask:
                counted[len(prefix):] = tokens.mask.rows(np.array([first]), len(ids_N) - len(prefix))[0]
            for opening_id in opening:
                counted &= ids_N != opening_id
            blocks = (slice(start, start + READ_TOKENS) for start in range(1, len(ids_N), READ_TOKENS))
            num_bytes = sum(int(byte_lengths_V[ids_N[block][counted[block]]].sum()) for block in blocks)
            yield Document(ids_N, num_bytes, counted)


def _ends_of_documents(stream: TokenStream, tokens: Tokens, scorer: Scorer) -> Iterator[np.ndarray]:
    """Yields the positions after documents, int64, as their end-of-text ids tell; tokens holds the stream.

    Where that id ends each turn of a conversation too, as in Qwen's chat models, the .idx beside each file tells.
    """
    end_id, first = scorer.end_of_text_id, 0
    if end_id is None:
        return
    if end_id == scorer.tokenizer.token_to_id(END) and all(part.mask for part in stream.parts):
        for part in stream.parts:
            yield first + document_ends(Path(part.mask or ""), part.length).astype(np.int64)
            first += part.length
        return
    for first in range(0, tokens.length, READ_TOKENS):
        ids = tokens.read(first, min(READ_TOKENS, tokens.length - first))
        yield first + 1 + np.flatnonzero(ids == end_id)
