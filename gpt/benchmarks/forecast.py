"""Makes gpt/planning/forecast.csv, the table that a forecast is fitted to.

    python -m gpt.benchmarks.forecast --refit DIR       # trains on each folder of tokens in DIR, and writes the table

Give DIR folders of pretokenize.py, of 100,000 to 1,000,000 tokens each. Twelve of them take three hours on two
cores. A changed recipe changes how runs end: then make the table again, or the forecast misleads.
"""

import csv
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path

from gpt.architectures.table import ARCHITECTURES
from gpt.checkpoint.history import read_run
from gpt.common.children import PROGRAM_FOLDER
from gpt.common.config import read_toml
from gpt.common.names import METADATA, RUN_CONFIG, TRAINS_NEXT
from gpt.planning.evidence import ngram_statistics
from gpt.planning.forecast import DEVIATIONS, TABLE, FinishedRun, finished_runs, predicted_bits
from gpt.tokens.corpus import open_folder

MINUTES = (16, 8, 4, 2, 1)  # of a refit's runs over each text, by one thread


def refit(folder: Path) -> None:
    """Trains on each folder of tokens in this one, writes the table, and prints how often its intervals hold.

    The runs go into folder/runs, one for each core at a time; runs that are there already are not repeated.
    Lines of other texts stay in the table.
    """
    texts = sorted(path.parent for path in folder.glob(f"*/{METADATA}"))
    if not texts:
        sys.exit(f"{folder} holds no folder of tokens, and the table stays as it is.")
    runs = [(text, minutes) for text in texts for minutes in MINUTES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outs = list(pool.map(lambda run: trained(run[0], run[1], folder / "runs"), runs))
    names = {text.name for text in texts}
    with TABLE.open(encoding="utf-8") as file:
        others = [row for row in csv.DictReader(file) if row["text"] not in names]
    with TABLE.open("w", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(FinishedRun)], lineterminator="\n")
        table.writeheader()
        table.writerows([*others, *map(line_of, outs)])
    held = intervals_that_hold(finished_runs())
    print(f"{sum(held)} of {len(held)} runs end in the interval that the other texts' runs give")


def trained(text: Path, minutes: int, runs: Path) -> Path:
    """Trains one model on a text's tokens, with one thread, unless it is there; returns the output folder."""
    out = runs / f"{text.name}-{minutes}"
    command = [sys.executable, str(PROGRAM_FOLDER / "train.py"), "--data_dir", str(text), "--output_dir", str(out),
               "--max_minutes", str(minutes), "--resume_from", "auto", "--sample_interval", "0"]
    # A run has two models only without TRAINS_NEXT.
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", TRAINS_NEXT: "train.py"}, check=True)
    return out


def intervals_that_hold(runs: Sequence[FinishedRun]) -> list[bool]:
    """Tells for each run if it ended within the interval of the fit to the runs of all other texts."""
    held = []
    for run in runs:
        bits, deviation = predicted_bits(run, [other for other in runs if other.text != run.text])
        held.append(abs(run.bits - bits) < DEVIATIONS * deviation)
    return held


def line_of(folder: Path) -> dict[str, object]:
    """The table's line for a finished run, from its config.toml and metrics.jsonl. Raises UserError."""
    flags = read_toml(folder / RUN_CONFIG).values
    validations = read_run(str(folder))["val_loss"]
    tokens = Path(flags["data_dir"])
    corpus = open_folder(tokens)
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
    if sys.argv[1:-1] != ["--refit"] or not os.path.isdir(sys.argv[-1]):
        sys.exit("Give --refit and a folder with folders of tokens.")
    refit(Path(sys.argv[-1]))
