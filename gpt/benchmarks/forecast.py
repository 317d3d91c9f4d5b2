"""Prints the lines of gpt/planning/forecast.csv, the table that a forecast is fitted to, for finished runs.

    python -m gpt.benchmarks.forecast OUT [OUT ...]
"""

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from gpt.architectures.table import ARCHITECTURES
from gpt.common.config import read_toml
from gpt.common.names import METADATA, RUN_CONFIG, TOKENIZER
from gpt.planning.forecast import FinishedRun, ngram_statistics
from gpt.tokens.corpus import open_corpus
from gpt.watching.history import read_run


def print_table(folders: Sequence[str]) -> None:
    """Prints one line for the run in each output folder. Raises UserError for a folder without a finished run."""
    table = csv.DictWriter(sys.stdout, [field.name for field in fields(FinishedRun)], lineterminator="\n")
    table.writeheader()
    table.writerows(line_of(Path(folder)) for folder in folders)


def line_of(folder: Path) -> dict[str, object]:
    """The table's line for a finished run, from its config.toml and metrics.jsonl. Raises UserError."""
    flags = read_toml(folder / RUN_CONFIG).values
    validations = read_run(str(folder))["val_loss"]
    tokens = Path(flags["data_dir"])
    corpus = open_corpus(tokens, None, tokens / METADATA, tokens / TOKENIZER)
    statistics = ngram_statistics(corpus)
    assert statistics, f"{tokens}: no forecast is possible for this text"
    shape = (flags["n_layer"], flags["n_head"], flags["n_embd"])
    seq_length = flags["seq_length"]
    config = ARCHITECTURES[flags["arch"]].sized(shape, corpus.vocab_size, seq_length)
    tokens_per_step = seq_length * flags["batch_size"] * flags["gradient_accumulation_steps"]
    seen = int(validations.xs[-1]) * tokens_per_step
    evidence = statistics.evidence(config, flags["eval_tokens"] // seq_length, seen)
    return {"text": tokens.name, **asdict(evidence), "bits": validations.ys[-1] / math.log(2)}


if __name__ == "__main__":
    print_table(sys.argv[1:])
