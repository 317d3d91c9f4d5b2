"""check.py: without data and without a GPU it says what the machine is, and the hours of each size."""

import contextlib
import io
import re
from dataclasses import replace

import pytest
import torch

import train
from gpt.common.errors import Exit, UserError
from gpt.common.progress import Progress
from gpt.machine.cards import TYPICAL_GPUS
from gpt.optimizers.build import state_bytes
from gpt.planning import check
from gpt.planning.memory import CUDA_CONTEXT, GIB, MemorySetting, predicted_peak
from model import GPTConfig
from tests.helpers.checkpoints import hugging_face_folder
from tests.helpers.training import on_cpu


@pytest.fixture
def say(monkeypatch):
    """A function: what --check with these words says, with products of matrices that take no time."""
    monkeypatch.setattr(check, "matmul_flops", lambda *_, seconds: 1e12)

    def said(*words: str) -> str:
        printed = io.StringIO()
        with contextlib.closing(Progress(printed)) as out:
            assert check.check_machine(train.read_flags(["--check", *words]), on_cpu(), out) == 0
        return printed.getvalue()

    return said


def test_products_of_matrices_are_timed_until_their_time_is_over(monkeypatch):
    called = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: called.append(a.dtype) or multiply(a, b))
    assert 1e6 < check.matmul_flops(on_cpu(), 64, 0.01) < 1e15
    assert set(called) == {torch.float32}
    called.clear()
    check.matmul_flops(replace(on_cpu(), dtype=torch.bfloat16), 64, 0.01)
    assert set(called) == {torch.bfloat16}


def test_the_machine_and_the_hours_of_each_size_are_said(say):
    said = say()
    labels = re.findall(r"^(\w+) {2,}\S", said.split("\n\n")[0], re.MULTILINE)
    assert labels == ["device", "precision", "attention", "compile", "software", "matmul"]
    assert re.search(r"^attention   (flash|unfused|efficient|matrix products in blocks)", said, re.MULTILINE)
    assert re.search(r"^ +tiny +mini +small +medium +large +xl$", said, re.MULTILINE)
    assert re.search(r"^this machine( +[\d.,*-]+){6}$", said, re.MULTILINE)
    assert re.search(r"^H100, 80 GB( +[\d.,]+){6}$", said, re.MULTILINE)
    said = say("--gpu_cost_per_hour", "2.5")
    assert "The price, at 2.5 an hour, of 20 tokens" in said
    assert said.count("this machine") == 1  # in the table of batches: a processor has no price


def test_each_device_has_the_memory_of_batch_sizes_and_a_batch_that_fits(say):
    said = say("--model_size", "gpt2_medium", "--batch_size", "32", "--gradient_accumulation_steps", "2")
    rows = re.findall(r"^(\S.*?), (\d+) GB((?: +[\d.,*-]+){4})((?: +[\d,-]+){3})$", said, re.MULTILINE)
    assert [name for name, *_ in rows] == list(TYPICAL_GPUS.values())
    assert re.search(r"^this machine((?: +[\d.,*-]+){4})((?: +[\d,-]+){3})$", said, re.MULTILINE)
    config = GPTConfig(50257, 1024, 24, 16, 1024)
    for name, gigabytes, peaks, suggested in rows:
        dtype = torch.float16 if name == "T4" else torch.bfloat16
        setting = MemorySetting("cuda", dtype, True, residual_bytes=2, loss_chunk=2048,
                                optimizer_bytes=state_bytes("adamw", config))
        room = 0.92 * int(gigabytes) * GIB - CUDA_CONTEXT
        for num, peak in zip((8, 16, 32, 64), peaks.split(), strict=True):
            predicted = predicted_peak(config, num, setting)
            assert peak == f"{predicted / GIB:.1f}{'' if predicted <= room else '*'}"
        batch_size, length, accumulation = (int(word.replace(",", "")) for word in suggested.split())
        assert batch_size * length * accumulation == 64 * 1024
        assert length == 1024 or predicted_peak(config, 1, setting) > room
        fits = [predicted_peak(replace(config, seq_length=length), num, setting) <= room
                for num in (batch_size, 2 * batch_size)]
        assert fits == [True, False] or batch_size == 64


def test_where_not_one_sequence_fits_a_shorter_one_is_suggested_or_none():
    config, setting = GPTConfig(50257, 1024, 12, 12, 768), MemorySetting("cuda", torch.bfloat16, True, loss_chunk=2048)
    rooms = [predicted_peak(replace(config, seq_length=length), 1, setting) for length in (1024, 600, 128, 127)]
    assert [check.suggestion(config, setting, room, 16_384) for room in rooms] == [
        ("1", "1,024", "16"), ("1", "512", "32"), ("1", "128", "128"), ("-", "-", "-")]


def test_the_flags_of_a_shape_make_it_the_only_one(say):
    said = say("--n_layer", "3", "--n_head", "2", "--n_embd", "64", "--vocab_size", "1024")
    assert "1,024 ids" in said
    assert re.search("^ +your shape$", said, re.MULTILINE)
    with pytest.raises(UserError, match="is not a multiple") as caught:
        say("--n_head", "5")
    assert caught.value.code == Exit.FLAGS


def test_the_model_to_fine_tune_is_the_only_one(say, tmp_path):
    model = hugging_face_folder(tmp_path)
    said = say("--init_from", str(tmp_path))
    assert f"{model.config.vocab_size} ids" in said
    assert re.search("^ +your model$", said, re.MULTILINE)
    with pytest.raises(UserError, match="has 16 positions") as caught:
        say("--init_from", str(tmp_path), "--seq_length", "4096")
    assert caught.value.code == Exit.FLAGS


def test_hours_are_those_of_the_floating_point_operations_and_need_memory():
    config = GPTConfig(50257, 1024, 12, 12, 768)
    setting = MemorySetting("cuda", torch.bfloat16, True, loss_chunk=2048)
    flops = 20 * config.num_parameters * config.flops_per_token
    found = [check.price_of(config, setting, room * GIB, flops / 3600 / price)
             for room, price in ((80, 1.0), (80, 7.0), (2.6, 1.0))]
    assert found == ["1", "7", "-"]
