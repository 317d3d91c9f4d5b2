"""The quality ladder: what is there is not repeated, and what is not is trained."""

import io
import json
from pathlib import Path

import pytest

import train
from gpt.benchmarks.quality import RECIPES, compare_recipes, recipes, run_flags, steps_to
from gpt.common.children import Answer
from gpt.common.errors import Exit, UserError
from gpt.watching.history import Curve
from tests.helpers.bench import make_bench

FINALS = {"nanogpt": 5.0, "ours": 4.0}  # of the first seed; the second one ends 0.1 higher
MS = {"nanogpt": 100, "ours": 120}
STEPS = 100


class Trainer:
    """Children that train as train.py would: every run falls from 8 to its recipe's end in a straight line."""

    def __init__(self, folder: Path):
        self.folder, self.out = folder, io.StringIO()
        self.bench = make_bench(folder / "children", self.answer, self.out)
        self.endings: dict[str, Answer] = {}  # instead of a run, by the name of its folder
        self.started: list[str] = []

    def answer(self, words):
        flags = dict(zip(words[1:], [*words[2:], ""], strict=True))
        output = Path(flags["--output_dir"])
        self.started.append(output.name)
        if output.name in self.endings:
            return self.endings[output.name]
        assert flags["--resume_from"] == "auto"
        name, seed = output.name.rsplit("-", 1)
        recipe, steps = name.split("-")[0], int(flags["--max_steps"])
        assert flags["--seed"] == seed
        final = FINALS[recipe] + 0.1 * (int(seed) - 1337)
        rows = [{"step": step, "val_loss": 8 - (8 - final) * step / STEPS, "tokens": step, "seconds": MS[recipe] / 1000}
                for step in range(steps // 20, steps + 1, steps // 20)]
        (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Answer(0, "", "")

    def compare(self, words: str = "nanogpt,ours", num_seeds: int = 2, steps: int = STEPS) -> bool:
        self.started.clear()
        self.out.truncate(0)
        return self.compare_lengths(words, num_seeds, {"": steps})

    def compare_lengths(self, words: str, num_seeds: int, lengths: dict[str, int]) -> bool:
        return compare_recipes(self.bench, recipes()(words), num_seeds, lengths, self.folder / "runs")

    @property
    def said(self) -> list[list[str]]:
        return [line.split() for line in self.out.getvalue().splitlines()]


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


def test_every_recipe_is_run_with_every_seed_and_compared_with_the_first(trainer):
    assert trainer.compare()
    assert trainer.started == ["nanogpt-1337", "ours-1337", "nanogpt-1338", "ours-1338"]
    table = {line[0]: line[1:] for line in trainer.said if line[1:2] == ["2"]}
    share = 2.95 / 3.95
    assert table == {
        "nanogpt": ["2", "5.0500", "0.0500", "5.0500", "100.0", "100.0%", "100.0%"],
        "ours": ["2", "4.0500", "0.0500", "4.0500", "120.0", f"{share:.1%}", f"{1.2 * share:.1%}"]}
    found = trainer.bench.figures["recipes"]["ours"]
    assert found["share_of_tokens"] == pytest.approx(share)
    assert len(found["val_losses"][1]) == 20


def test_a_recipe_is_run_for_each_number_of_passes(trainer):
    assert trainer.compare_lengths("ours", 1, {"-1": STEPS, "-4": 4 * STEPS})
    assert trainer.started == ["ours-1-1337", "ours-4-1337"]
    finals = {line[0]: line[2] for line in trainer.said if line[1:2] == ["1"]}
    assert finals == {"ours-1": "4.0000", "ours-4": "-8.0000"}


def test_what_is_complete_is_not_repeated_and_what_is_not_is_resumed(trainer):
    trainer.compare()
    trainer.compare(num_seeds=3)
    assert trainer.started == ["nanogpt-1339", "ours-1339"]
    (trainer.folder / "runs/ours-1337/metrics.jsonl").write_text('{"step": 50, "val_loss": 7.0}\n')
    trainer.compare()
    assert trainer.started == ["ours-1337"]


def test_what_failed_is_said(trainer):
    trainer.endings = {"ours-1337": Answer(5, "", "error: no room")}
    assert not trainer.compare()
    assert ["ours,", "seed", "1337:", "no", "room"] in trainer.said


def test_a_folder_with_a_run_of_other_flags_is_refused(trainer):
    trainer.compare("ours")
    with pytest.raises(UserError, match="ours-1337 holds a run with other flags") as caught:
        trainer.compare("ours", steps=2 * STEPS)
    assert caught.value.code == Exit.FLAGS


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("steps", [20, 500, 600_000])
def test_train_understands_every_recipe(trainer, recipe, steps):
    flags = [*run_flags(trainer.bench, steps, 1337), *RECIPES[recipe](steps)]
    assert (train.read_flags(flags).warmup_steps or 0) < steps


def test_a_loss_is_reached_between_two_validations_or_never():
    one = Curve([5, 10], [5.0, 2.0])
    assert [steps_to(one, loss) for loss in (9.0, 5.0, 3.5, 2.0, 1.0)] == [5, 5, 7.5, 10, None]
