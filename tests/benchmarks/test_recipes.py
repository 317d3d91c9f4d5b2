"""The recipes: train.py understands each, the old ones stay what they were, and one's own are made of flags."""

from dataclasses import replace

import pytest

import bench
import train
from benchmarks.ladder import as_flags
from benchmarks.recipes import RECIPES, Scale, own_recipes, peak_before, recipe_before, recipe_of_nanogpt
from common.errors import UserError
from model import GPTConfig
from planning.recipe import choose_recipe

TINY = Scale(4, 128, 128, 786_432, 2048, 500)
MINI = Scale(6, 384, 256, 10_616_832, 2048, 5000)
SMALL = Scale(12, 768, 1024, 84_934_656, 491_520, 600_000)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("scale", [TINY, SMALL, replace(TINY, steps=20)])
def test_train_understands_every_recipe(recipe, scale):
    args = train.read_flags(["--max_steps", str(scale.steps), *as_flags(recipe.flags(scale))])
    assert (args.warmup_steps or 0) < scale.steps
    assert args.learning_rate is None or args.learning_rate > (args.min_lr or 0)


def test_nanogpts_recipe_is_that_of_its_train_py_with_a_shorter_warm_up_in_a_short_run():
    assert recipe_of_nanogpt(SMALL) == {
        "arch": "gpt2", "optimizer": "adamw", "lr_schedule": "cosine", "learning_rate": 6e-4, "min_lr": 6e-5,
        "warmup_steps": 2000, "embedding_learning_rate": 6e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1,
        "embedding_weight_decay": 0.1, "grad_clip": 1.0, "init_std": 0.02}
    assert recipe_of_nanogpt(TINY)["warmup_steps"] == 10
    assert recipe_of_nanogpt(replace(TINY, steps=20))["warmup_steps"] == 1


@pytest.mark.parametrize(("scale", "peak"), [
    (TINY, 0.0013452510153447762), (MINI, 0.0009821758042252845), (SMALL, 0.0005751158590788701)])
def test_the_peak_of_before_is_what_the_default_was(scale, peak):
    assert peak_before(scale) == peak  # from train.py as of 2026-11-21


@pytest.mark.parametrize("flags_of", [recipe_of_nanogpt, recipe_before])
def test_a_recipe_of_others_or_of_before_leaves_nothing_to_our_defaults(flags_of):
    args = train.read_flags(["--max_steps", "500", "--batch_size", "16", "--epochs", "9", *as_flags(flags_of(TINY))])
    recipe = choose_recipe(args, GPTConfig(2048, 128, 4, 4, 128), 10_000_000, 16)
    assert recipe.reasons == ()
    assert recipe.learning_rate == recipe.embedding_learning_rate


def test_ones_own_recipes_add_flags_to_others():
    found = own_recipes().parse("hot: nanogpt --learning_rate 0.01 --no-bias; hotter: hot --learning_rate=0.1 ;"
                                "plain: --compile")
    assert found["hot"].flags(TINY) == {**recipe_of_nanogpt(TINY), "learning_rate": "0.01", "bias": False}
    assert found["hotter"].flags(TINY) == {**recipe_of_nanogpt(TINY), "learning_rate": "0.1", "bias": False}
    assert as_flags(found["plain"].flags(TINY)) == (*as_flags(RECIPES["ours"].flags(TINY)), "--compile")
    assert found["hotter"].words == "hot --learning_rate=0.1"


@pytest.mark.parametrize("text", ["x", "ours: --bias", "a: unknown --bias", "a: --bias; a: --bias", "../a: --bias", ";",
                                  "a: --seed 1 2", ": --bias"])
def test_what_is_no_recipe_is_refused(text):
    with pytest.raises(UserError, match=r"--own_recipes .*: must be recipes with semicolons between"):
        bench.read_flags(["--quality", "--data_dir", "x", "--own_recipes", text])
