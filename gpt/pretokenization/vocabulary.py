"""The tokenizer of a run: an existing one, or one trained on a sample of the text."""

import os
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gpt.common.errors import Exit, UserError
from gpt.common.names import TOKENIZER
from gpt.common.words import printable, shell_word
from gpt.pretokenization.block_task import PART_SEPARATOR
from gpt.pretokenization.passes import Job
from gpt.pretokenization.workers import in_child
from gpt.tokens.chat import can_converse
from gpt.tokens.faithful import probes_of, refuse_changes, special_ids_in_text
from gpt.tokens.tokenizer import (
    END,
    END_OF_TEXT,
    START,
    Vocabulary,
    end_of_text_id,
    load_tokenizer,
    parse,
    vocabulary_of,
)

SPECIAL_TOKENS = [END_OF_TEXT, START, END]
NUM_FIRST_IDS = len(SPECIAL_TOKENS) + 256  # the special tokens and the 256 bytes; each merge adds one id


# ---------------------------------------------------------------- the tokenizer of one run


def given_vocabulary(path: str, warn: Callable[[str], None]) -> Vocabulary:
    """Opens an existing tokenizer, and warns if it changes text in a harmless way.

    Raises UserError (exit 3) if it loses characters, encodes at random, has no
    end-of-text token, or cannot be opened.
    """
    name = f"--tokenizer_file {printable(path)}"
    tokenizer = load_tokenizer(path)
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        raise UserError(Exit.DATA, f"{name}: its BPE has a dropout of {dropout:g}, so the same text gets different "
                                   "ids each time. Set \"dropout\" to null in the file.")
    change = refuse_changes(tokenizer, name, probes_of(tokenizer))
    if change:
        warn(f"{name} {change}.")
    special = special_ids_in_text(tokenizer)
    if special:
        warn(f"{name} makes the special token of {printable(' or '.join(special[:3]))} in a text, which may end a "
             "document there. Remove it from the text, or give a tokenizer with byte-level BPE.")
    return vocabulary_of(tokenizer, end_of_text_id(tokenizer, Path(path)))


def with_chat_tokens(vocabulary: Vocabulary, say: Callable[[str], None]) -> Vocabulary:
    """Returns the vocabulary with ids for the special tokens of conversations, appended where it lacks them.

    Raises UserError (exit 3) if they have ids of other tokens: the library gives them such where ids have gaps.
    """
    has_both = can_converse(vocabulary.tokenizer)
    tokenizer = parse(vocabulary.content)
    if not has_both:
        tokenizer.add_special_tokens([START, END])
    ids_of_others = {index for name, index in tokenizer.get_vocab().items() if name not in (START, END)}
    if not ids_of_others.isdisjoint(map(tokenizer.token_to_id, (START, END))):
        raise UserError(Exit.DATA, f"--tokenizer_file: {START} or {END} would have the id of another token, because "
                                   "the ids have gaps. Give a tokenizer without gaps.")
    if has_both:
        return vocabulary
    say(f"the tokenizer gets {START} and {END} as its last ids; with --init_from the model gets rows for them")
    return vocabulary_of(tokenizer, vocabulary.end_id)


def new_vocabulary(job: Job, train_bytes: int) -> Vocabulary:
    """Trains a tokenizer on a sample spread evenly over the train_bytes of training text.

    It has fewer ids than requested if the text supports no more. Raises UserError (exit 3) if there is no
    text, and the errors of job.results.
    """
    args, progress = job.args, job.progress
    wanted_bytes = min(train_bytes, args.train_sample_bytes)
    requested = auto_vocab_size(train_bytes) if args.vocab_size == "auto" else args.vocab_size
    of_all = f" of {train_bytes:,}" if wanted_bytes < train_bytes else ""
    progress.say(f"training a tokenizer of {requested:,} ids on {wanted_bytes:,}{of_all} bytes")
    old = job.folder.path / TOKENIZER
    if old.exists():
        progress.warn(f"a new tokenizer replaces the one in {job.folder.shown}, which checkpoints trained "
                      f"on it need. To keep it, give --tokenizer_file {shell_word(old)}.")

    path = job.folder.work / "sample"
    with job.folder.writing(), path.open("wb", buffering=2**22) as file:
        results = job.results("sampling", sample_fraction=wanted_bytes / max(1, train_bytes))
        sample_bytes = sum(file.write(result.sample) for result in results)
    job.report.refuse_empty(job.text_bytes)
    possible = min(requested, NUM_FIRST_IDS + sample_bytes)  # each byte of the sample allows one merge at most
    with progress.phase("training the tokenizer"):
        content = in_child(job.signals, train_tokenizer, path, possible, args.min_frequency)
    path.unlink()

    vocabulary = vocabulary_of(parse(content), 0)
    if vocabulary.size < requested:
        progress.say(f"the text supports {vocabulary.size:,} ids, not {requested:,}: no other pair of "
                     f"tokens occurs {args.min_frequency:,} times")
    return vocabulary


def auto_vocab_size(train_bytes: int) -> int:
    """32,000 ids from 100 MB on; below, bytes^0.75 in multiples of 128: 5,632 at 10 MB, 1,024 at 1 MB; 512 at least."""
    return min(32_000, max(512, round(32_000 * (train_bytes / 1e8) ** 0.75 / 128) * 128))


# ---------------------------------------------------------------- training


def train_tokenizer(sample: Path, vocab_size: int, min_frequency: int) -> str:
    """Trains a byte-level BPE with GPT-2's pre-tokenizer; returns its JSON. Id 0 ends a document.

    Its vocabulary has all 256 bytes, so it encodes every text. It has fewer ids than vocab_size if no other
    pair occurs min_frequency times. Call it in a process of its own, as it turns on tokenizers' threads.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False,
                                  special_tokens=SPECIAL_TOKENS,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(map(bytes.decode, sample.read_bytes().split(PART_SEPARATOR)), trainer)
    return tokenizer.to_str(pretty=True)
