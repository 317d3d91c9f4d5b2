"""The tokenizer a run encodes with: an existing one, or one trained on a sample of the text.

Two libraries train the same tokenizer: tokenizers, and gigatoken where that is certain.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gpt.common.memory import without_collector
from gpt.common.words import printable, shell_word
from gpt.pretokenization.engines import Encoder, Fence, is_compared
from gpt.pretokenization.passes import Job
from gpt.pretokenization.workers import SEPARATOR, in_child
from gpt.tokens.faithful import probes_of, refuse_changes, refuse_uncertain_ids
from gpt.tokens.tokenizer import END_OF_TEXT, Vocabulary, byte_alphabet, load_tokenizer, parse, vocabulary_of

FAST_BYTES_PER_ID = 1000  # of the sample, below which gigatoken is not used to train
NUM_FIRST_IDS = 257  # the end of text and the 256 bytes; each merge adds one


# ---------------------------------------------------------------- for one run


def given_vocabulary(path: str, warn: Callable[[str], None]) -> Vocabulary:
    """An existing tokenizer, with a warning of what it changes in text. Raises UserError (exit 3)."""
    what = f"--tokenizer_file {printable(path)}"
    with without_collector():
        tokenizer = load_tokenizer(path)
        vocabulary = vocabulary_of(tokenizer)
        refuse_uncertain_ids(tokenizer, what, tokenizer.get_vocab(with_added_tokens=True))
    if change := refuse_changes(tokenizer, what, probes_of(tokenizer)):
        warn(f"{what} {change}.")
    return vocabulary


def new_vocabulary(job: Job, train_bytes: int) -> Vocabulary:
    """A tokenizer trained on a sample of the training part, of which there are so many bytes, evenly spread over it.

    Raises UserError (exit 3) if there is no text.
    """
    args, progress = job.args, job.progress
    sample_bytes = min(train_bytes, args.train_sample_bytes)
    is_auto = args.vocab_size == "auto"
    requested = auto_vocab_size(train_bytes) if is_auto else args.vocab_size
    progress.say(f"training a tokenizer of {requested:,} ids{' (32,000 from 100 MB of text on)' * is_auto} on "
                 f"{sample_bytes:,} of {train_bytes:,} bytes")
    if (old := job.folder.path / "tokenizer.json").exists():
        progress.warn(f"a new tokenizer replaces that of {job.folder.shown}, which checkpoints need. "
                      f"--tokenizer_file {shell_word(old)} keeps it.")

    path = job.folder.work / "sample"
    with job.folder.writing(), path.open("wb", buffering=2**22) as file:
        answers = job.answers("sampling", share=sample_bytes / max(1, train_bytes))
        sample_bytes = sum(file.write(answer.sample) for answer in answers)
    job.report.refuse_nothing(job.text_bytes)
    possible = min(requested, NUM_FIRST_IDS + sample_bytes)  # a byte brings one merge at most
    with progress.phase("training the tokenizer"):
        content = ""
        # With many ties, as in a small sample, gigatoken's trainer may be the slower one.
        is_large = sample_bytes >= max(job.reading.limits.fast_sample_bytes, FAST_BYTES_PER_ID * possible)
        if args.engine != "tokenizers" and is_large and is_compared():
            content = in_child(job.signals, train_fast, path, possible, args.min_frequency,
                               seconds=max(30.0, sample_bytes / 2e6))
        content = content or in_child(job.signals, train_tokenizer, path, possible, args.min_frequency)
    path.unlink()

    vocabulary = vocabulary_of(parse(content))
    if vocabulary.size < requested:
        progress.say(f"the text supports {vocabulary.size:,} ids, not {requested:,}: no other pair occurs "
                     f"{args.min_frequency:,} times")
    return vocabulary


def auto_vocab_size(train_bytes: int) -> int:
    """32,000 ids from 100 MB on; below, bytes^0.75 in multiples of 128: 5,632 at 10 MB, 1,024 at 1 MB; 512 at least."""
    return min(32_000, max(512, round(32_000 * (train_bytes / 1e8) ** 0.75 / 128) * 128))


# ---------------------------------------------------------------- training


def byte_level(model: models.BPE) -> Tokenizer:
    """A tokenizer of this model with GPT-2's pre-tokenizer."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return tokenizer


def train_tokenizer(sample: Path, vocab_size: int, min_frequency: int) -> str:
    """A byte-level BPE with GPT-2's pre-tokenizer, as JSON: id 0 ends a document, no byte is ever unknown."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False,
                                  special_tokens=[END_OF_TEXT],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((text.decode() for text in sampled(sample)), trainer)
    return tokenizer.to_str(pretty=True)


def train_fast(sample: Path, vocab_size: int, min_frequency: int) -> str:
    """The same by gigatoken: what train_tokenizer() would return, or an empty string where that is not certain.

    gigatoken has no least frequency and does not know when to stop. But counts fall from merge to merge, so if the
    last pair occurs often enough, all do.
    """
    import gigatoken

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # gigatoken prints; this process has nothing to say
    os.dup2(quiet, 2)
    if any(map(Fence().holds, sampled(sample))):
        return ""
    _, merges = gigatoken.train_bpe(str(sample), vocab_size, [END_OF_TEXT], "huggingface", SEPARATOR)
    if not len({left + right for left, right in merges}) == len(merges) == vocab_size - NUM_FIRST_IDS:
        return ""

    content = tokenizer_json(merges)
    encoder = Encoder(vocabulary_of(parse(content)), "gigatoken")
    num_found = 0
    for text in sampled(sample):
        ids, _ = encoder.encode_by_gigatoken([text], [False])
        num_found += int(np.count_nonzero(ids == vocab_size - 1))
        if num_found >= min_frequency:
            return content
    return ""


def tokenizer_json(merges: Sequence[tuple[bytes, bytes]]) -> str:
    """What tokenizers' BpeTrainer writes for these merges: ids for the end of text, the 256 bytes, then each merge."""
    alphabet = byte_alphabet()
    pairs = [("".join([alphabet[byte] for byte in left]), "".join([alphabet[byte] for byte in right]))
             for left, right in merges]
    tokens = [END_OF_TEXT, *sorted(alphabet), *(left + right for left, right in pairs)]
    tokenizer = byte_level(models.BPE({token: number for number, token in enumerate(tokens)}, pairs))
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer.to_str(pretty=True)


def sampled(path: Path) -> Iterator[bytes]:
    """The texts of a sample, in UTF-8."""
    held = b""
    with path.open("rb") as file:
        while block := file.read(2**20):
            *texts, held = (held + block).split(SEPARATOR)
            yield from texts
