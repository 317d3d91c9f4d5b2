import io
from dataclasses import replace

import pytest
import torch

from common.progress import Progress
from model import GPTConfig
from planning.memory import MemorySetting
from planning.shortage import FILE, remember, what_fits
from tests.helpers.training import recipe

CONFIG = GPTConfig(400, 8, 2, 2, 32)
SETTING = MemorySetting("cuda", torch.bfloat16)


@pytest.fixture
def said():
    return io.StringIO()


def fits(folder, said, batch_size=8, accumulation=4, setting=SETTING, config=CONFIG):
    there = recipe(batch_size=batch_size, accumulation=accumulation)
    return what_fits(folder, there, config, setting, Progress(said))


@pytest.mark.parametrize(("too_many", "found"), [(8, 4), (6, 2), (2, 1), (1, 1), (16, 8)])
def test_half_of_what_did_not_fit_is_taken_as_a_divisor_of_the_step(tmp_path, said, too_many, found):
    """A step has 32 sequences; what did not fit another time is no reason to take more than the recipe's 8."""
    remember(tmp_path / "out", CONFIG, SETTING, too_many)
    assert fits(tmp_path / "out", said) == found


def test_a_run_that_fits_another_setting_or_a_broken_file_is_left_alone(tmp_path, said):
    assert fits(tmp_path, said) == 8
    remember(tmp_path, CONFIG, SETTING, 8)
    assert fits(tmp_path, said, setting=replace(SETTING, checkpointing=True)) == 8
    assert fits(tmp_path, said, config=replace(CONFIG, n_layer=3)) == 8
    assert fits(tmp_path, said, setting=replace(SETTING, accumulates=False)) == 4
    for broken in ("", "[]", '{"sequences": "many", "setting": 1}'):
        (tmp_path / FILE).write_text(broken)
        assert fits(tmp_path, said) == 8


def test_a_folder_that_cannot_be_written_is_no_other_error(tmp_path):
    (tmp_path / "file").write_text("")
    remember(tmp_path / "file" / "out", CONFIG, SETTING, 8)
