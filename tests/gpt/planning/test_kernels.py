"""kernels.py: a right kernel is chosen by its time, a wrong kernel never."""

import itertools

import pytest
import torch
from torch.nn.attention import SDPBackend

from gpt.machine import device
from gpt.machine.backends import CPU
from gpt.planning import kernels
from gpt.planning.kernels import CHUNKS, KERNELS, choose_kernels, fastest, time_attention, use_attention
from model import GPTConfig

CONFIG = GPTConfig(vocab_size=512, seq_length=32, n_layer=1, n_head=2, n_embd=16)
MACHINE = device.choose(False, False, "auto", False)


def raises(error):
    """A function that raises the error, whatever it is called with."""
    def function(*_):
        raise error

    return function


@pytest.fixture
def card(monkeypatch):
    """A pretended card, on which every kernel is the processor's; a function sets the milliseconds of each."""
    monkeypatch.setattr(kernels, "LARGE_MEMORY", 0)
    monkeypatch.setattr(CPU, "runs_ahead", True)
    monkeypatch.setattr(kernels, "KERNELS", dict.fromkeys(KERNELS, SDPBackend.FLASH_ATTENTION))
    measured = []

    def pretend(**milliseconds):
        times = itertools.cycle(milliseconds.values())
        monkeypatch.setattr(kernels, "seconds_of", lambda work: measured.append(work()) or next(times) / 1e3)
        return measured

    return pretend


def test_the_fastest_kernel_is_chosen(card, monkeypatch):
    measured = card(flash=0.5, efficient=0.9, cudnn=0.4)
    chosen = choose_kernels(CONFIG, MACHINE, CHUNKS[0], {})
    assert (chosen.attention, chosen.loss_chunk) == ("cudnn", CHUNKS[1])
    assert chosen.times == "cudnn 0.40 ms, flash 0.50 ms, efficient 0.90 ms"
    assert len(measured) == 3
    card(flash=0.3, efficient=0.9, cudnn=0.4)
    monkeypatch.setattr(kernels, "LARGE_MEMORY", 2**60)
    chosen = choose_kernels(CONFIG, MACHINE, CHUNKS[0], {})
    assert (chosen.attention, chosen.loss_chunk) == ("flash", CHUNKS[0])
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert choose_kernels(CONFIG, MACHINE, CHUNKS[0], {}) == ("", CHUNKS[0], ""), "two starts choose alike"


def test_a_resumed_run_keeps_its_kernels(card):
    card(flash=0.5, efficient=0.9, cudnn=0.4)
    chosen = choose_kernels(CONFIG, MACHINE, CHUNKS[0], {"attention": "efficient", "loss_chunk": CHUNKS[0]})
    assert (chosen.attention, chosen.loss_chunk) == ("efficient", CHUNKS[0])
    for damaged in ({"attention": "gone"}, {"attention": [], "loss_chunk": "many"}, {"loss_chunk": -1}):
        assert choose_kernels(CONFIG, MACHINE, CHUNKS[0], damaged)[:2] == ("cudnn", CHUNKS[1])


def test_a_kernel_that_fails_at_low_scores_is_refused(card, monkeypatch):
    """As cuDNN's did: the gradient of q is NaN where all scores of a row are below -88.7."""
    attend = kernels.attend

    def fails(inputs):
        y, dq, *others = attend(inputs)
        q, k = inputs[:2]
        scores = (q @ k.transpose(-1, -2)).float() * CONFIG.head_dim**-0.5
        return y, dq.masked_fill(scores.amax(-1, keepdim=True) < -88.7, torch.nan), *others

    card(flash=0.5, efficient=0.9, cudnn=0.4)
    monkeypatch.setattr(kernels, "attend", fails)
    assert time_attention(CONFIG, MACHINE) == {}


def test_a_kernel_with_a_wrong_gradient_is_refused(card, monkeypatch):
    attend = kernels.attend

    def wrong(inputs):
        y, dq, dk, dv = attend(inputs)
        return y, dq, dk, dv * (1.05 if torch.backends.cuda.flash_sdp_enabled() else 1)

    card(flash=0.5, efficient=0.9, cudnn=0.4)
    assert time_attention(CONFIG, MACHINE).keys() == KERNELS.keys()
    monkeypatch.setattr(kernels, "attend", wrong)
    assert time_attention(CONFIG, MACHINE) == {}
    assert fastest({}) == ""


def test_timings_that_memory_did_not_allow_are_no_choice(card, monkeypatch):
    card(flash=0.5, efficient=0.9, cudnn=0.4)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "attend", raises(torch.OutOfMemoryError("CUDA out of memory")))
        assert choose_kernels(CONFIG, MACHINE, CHUNKS[0], {}) == ("", CHUNKS[1], "")


@pytest.mark.parametrize(("seconds", "name"), [
    ({"flash": 1.0, "cudnn": 0.98}, "flash"), ({"flash": 1.0, "cudnn": 0.9}, "cudnn"),
    ({"efficient": 1.0}, "efficient")])
def test_the_first_kernel_stays_unless_another_is_clearly_faster(seconds, name):
    assert fastest(seconds) == name


def test_the_others_are_off_in_the_process(monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_CACHE_KEY_TAG", "mine")
    enabled = (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled,
               torch.backends.cuda.cudnn_sdp_enabled)
    for name, expected in (("cudnn", [False, False, True]), ("flash", [True, False, False]), ("", [True, True, False])):
        use_attention(name)
        assert [is_on() for is_on in enabled] == expected
        assert str(torch.compiler.config.cache_key_tag) == (f"mine attention {name}" if name else "mine")
