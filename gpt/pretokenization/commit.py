"""Commits the token files of a run, with metadata.json last, and prints the summary."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt.common.files import sha256_of, split_checkpoint_name, sync
from gpt.common.names import TOKENIZER, TRAINS_NEXT
from gpt.common.words import shell_word
from gpt.hub.names import as_recorded, is_on_hub
from gpt.pretokenization.files import refuse_changed
from gpt.pretokenization.passes import Job
from gpt.pretokenization.sources import KINDS, identity_of, names_of_words
from gpt.tokens.layouts import Part
from gpt.tokens.metadata import METADATA_FORMAT, METADATA_VERSION
from gpt.tokens.stream import scan
from gpt.tokens.tokenizer import Vocabulary


def commit(job: Job, dtype: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """Reads all token files back, gives them their final names, writes metadata.json and returns its fields.

    A split without documents gets no file. Raises UserError (exit 3) for an id outside the vocabulary, for
    another size than written, and for a text that has changed. Raises OSError, and Stopped at a signal before
    the renaming.
    """
    splits = {}
    for split, totals in job.totals.items():
        if totals["documents"]:
            job.signals.raise_if_stopped()
            path = job.folder.work / f"{split}.bin"
            sync(path)
            splits[split] = {**totals, "modified_ns": path.stat().st_mtime_ns,
                             "sha256": scan(Part(path, dtype, totals["tokens"]), vocabulary.size)}
            if job.has_chats:
                splits[split]["mask_sha256"] = sha256_of(path.with_suffix(".mask"))

    rule_holds = "val" in splits or job.split.rule.startswith("none")
    sources = ([f"Python {sys.version.split()[0]} standard library"] if job.args.demo else
               [Path(source.shown).name for source in job.sources])
    origins = list(dict.fromkeys(source.origin for source in job.sources if source.origin))
    hub_texts = [word for word in job.args.files if is_on_hub(word)]
    metadata = {
        "format": METADATA_FORMAT,
        "version": METADATA_VERSION,
        "vocab_size": vocabulary.size,
        "end_of_text_id": vocabulary.end_id,
        "end_of_text": vocabulary.end,
        "dtype": dtype,
        "splits": splits,
        "tokenizer": {"sha256": sha256_of(job.folder.work / TOKENIZER)},
        "sources": sources[:1000],  # for messages; their identity is that of all
        "texts": names_of_words(job.args.files),
        "sources_identity": identity_of(
            (source.shown, source.path) for source in job.sources if not source.origin),
        **({"origins": origins} if origins else {}),  # datasets of the Hugging Face hub, each with its commit
        **({"hub_texts": hub_texts} if hub_texts else {}),  # as they were asked for
        # The cut of a short text moves to its end, behind the last character.
        "split_rule": job.split.rule if rule_holds else "none, the text is too short",
        **({"encoding": job.args.encoding} if job.args.encoding else {}),
        "created": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    names = [path.name for split in splits for path in sorted(job.folder.work.glob(f"{split}.*"))]
    refuse_changed(job.sources)  # while the tokens were looked at
    job.folder.commit([TOKENIZER, *names], metadata)
    return metadata


def summarise(job: Job, metadata: Mapping[str, Any], seconds: float) -> None:
    """Prints the counts, the seconds, and the command to type next."""
    say, splits = job.progress.say, metadata["splits"]
    sums = {key: sum(split[key] for split in splits.values()) for key in ("documents", "bytes", "tokens")}
    fraction = f"{min(99, 100 * splits['val']['bytes'] / sums['bytes']):.2g}% of the text: " if "val" in splits else ""
    say(f"validation: {fraction}{metadata['split_rule']}")
    for key, value in sums.items():
        say(f"{key}: {value:,} ({', '.join(f'{split} {splits[split][key]:,}' for split in splits)})")
    if job.has_chats:
        counted = sum(split["counted"] for split in splits.values())
        what = "answers" if all(KINDS[source.kind].is_chat for source in job.sources) else "answers and plain texts"
        say(f"{what}: {100 * counted / sums['tokens']:.3g}% of the tokens; they alone count in the loss")
    say(f"vocabulary: {metadata['vocab_size']:,} ids ({metadata['dtype']})\n"
        f"bytes per token: {sums['bytes'] / max(1, sums['tokens']):.3f}\nseconds: {seconds:.1f}")
    if TRAINS_NEXT in os.environ:
        return
    data_dir = "" if str(job.folder.path) == "data" else f" --data_dir {shell_word(job.folder.path)}"
    given = Path(job.args.tokenizer_file or os.devnull)
    if given.name == TOKENIZER:
        given = given.parent
    model = split_checkpoint_name(given)[0]
    named = as_recorded(str(given))  # of a tokenizer of the hub: hf://OWNER/NAME@COMMIT
    if job.has_chats and (is_on_hub(named) or [*model.glob("*.safetensors"), *model.glob("checkpoint-*")]):
        say(f"next: python train.py --init_from {shell_word(named)}{data_dir} --output_dir "
            f"{shell_word(f'{job.folder.path}-out')}")
    else:
        say(f"next: python train.py{data_dir}")
