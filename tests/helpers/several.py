"""Runs of train.py in several processes on a small corpus, and what they are compared by."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.forks import Ended, Forks
from tests.helpers.training import metrics_of

SMALL = ["--no-use_gpu", "--n_layer", "2", "--n_head", "2", "--n_embd", "32", "--seq_length", "8", "--batch_size", "2",
         "--gradient_accumulation_steps", "4", "--max_steps", "12", "--eval_interval", "5", "--log_interval", "1",
         "--sample_interval", "0", "--checkpoint_every_minutes", "0"]
EXACT = 1e-5  # of losses and norms in fp32, whose sums have another order


@dataclass(frozen=True)
class Several:
    """Starts train.py as torchrun does; called with the number of processes and flags besides SMALL."""

    forks: Forks
    corpus: Path
    folder: Path

    def __call__(self, world_size: int, *flags: str, out: str = "out", **more: Any) -> Ended:
        argv = ["train.py", "--data_dir", str(self.corpus), "--output_dir", str(self.folder / out), *SMALL, *flags]
        return self.forks.run(argv, world_size=world_size, **{"alarm": 120, **more})


def figures(folder: Path) -> list[float]:
    """Loss and norm of each step, and each validation."""
    rows = metrics_of(folder)
    return [row[key] for row in rows for key in ("loss", "grad_norm", "val_loss") if key in row]
