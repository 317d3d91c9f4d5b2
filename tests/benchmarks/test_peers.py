"""Beside others: the same weights and batches, figures for every part, and losses that must agree."""

import io
import json

import pytest
import torch

from benchmarks import parts, peers
from common.children import Answer
from model import GPT
from tests.helpers.bench import leave_a_run, make_bench

TINY = {"model_size": "tiny", "vocab_size": 300, "seq_length": 16, "batch_size": 2}
NANOGPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

class GPTConfig:
    def __init__(self, *fields):
        self.fields = fields

class GPT(torch.nn.Module):  # with nanoGPT's names and calls
    def __init__(self, config):
        super().__init__()
        T, V, L, H, C, dropout, bias = config.fields
        theirs = GPT2LMHeadModel(GPT2Config(
            vocab_size=V, n_positions=T, n_embd=C, n_layer=L, n_head=H, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        self.transformer, self.lm_head, self.net = theirs.transformer, theirs.lm_head, theirs

    def load_state_dict(self, weights):
        turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        self.net.load_state_dict({name: w.t() if name.endswith(turned) else w for name, w in weights.items()})

    def configure_optimizers(self, decay, rate, betas, kind):
        groups = [{"params": [p for p in self.net.parameters() if (p.dim() > 1) == is_matrix],
                   "weight_decay": decay * is_matrix} for is_matrix in (True, False)]
        return torch.optim.AdamW(groups, rate, betas)

    def forward(self, inputs, targets):
        return None, self.net(input_ids=inputs, labels=targets, shift_labels=targets).loss
"""


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A folder of made-up tokens, and a model.py."""
    folder = tmp_path_factory.mktemp("made-up")
    parts.synthesise(folder, 300, 100_000)
    (folder / "model.py").write_text(NANOGPT)
    return folder


def test_a_peers_model_starts_from_our_weights_on_our_batches(made_up, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "compile", lambda net: net)
    found = parts.time_step(str(made_up), str(made_up), TINY, 3, 2, "fp32", False)
    batches, config, _ = parts._ours(made_up, parts.Shape(**TINY), torch.device("cpu"))
    torch.manual_seed(1337)
    ours = GPT(config).init_weights()
    inputs, targets = batches.get(0, 0)
    assert found["losses"][0] == pytest.approx(ours(inputs.long(), targets.long()).item(), rel=1e-4)
    assert len(found["seconds"]) == len(found["losses"]) == 3
    assert found["losses"][2] < found["losses"][0]


@pytest.mark.parametrize(("last", "is_same"), [(2.0, True), (2.1, False)])
def test_a_peer_is_timed_in_turns_with_our_best_rung_and_compared(tmp_path, last, is_same):
    def answer(words):
        if words[1] != "step":
            return leave_a_run(words)
        request = json.loads(words[2])
        assert (request["every"], request["precision"], request["num_steps"]) == (1, "bf16", 3)
        return Answer(0, json.dumps({"seconds": [9.0, 1.0, 1.0], "losses": [4.0, 3.0, last],
                                    "peak_memory_bytes": 2_000_000}), "")

    out = io.StringIO()
    bench = make_bench(tmp_path, answer, out)
    assert peers.time_beside(bench, "step", "x") == is_same
    assert "memory 1.9 MiB and 977 KiB; losses of the same batches differ by" in out.getvalue()
    assert [line.split() for line in out.getvalue().splitlines() if line.endswith("x")] == [
        ["nanoGPT", "1", "seconds", "1.00x"], ["ours,", "bf16", "0.5", "seconds", "2.00x"]]


def test_our_loader_is_faster_than_slicing_row_by_row(made_up):
    found = parts.time_loader(str(made_up), num_batches=16)
    assert list(found) == ["nanoGPT's get_batch", "ours, ram", "ours, mmap"]
    assert found["ours, ram"] < found["nanoGPT's get_batch"]


def test_saving_is_timed_in_its_parts(tmp_path):
    found = parts.time_saving(str(tmp_path), TINY, False)
    assert all(seconds > 0 for seconds in found.values())
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-1", "theirs"}


def test_decoding_is_timed_with_every_precision(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    small = transformers.GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    monkeypatch.setattr(transformers, "GPT2Config", lambda: small)
    monkeypatch.setattr(parts, "NEW_TOKENS", 3)
    monkeypatch.setattr(parts, "OUR_DECODING", {name: flags for name, flags in parts.OUR_DECODING.items()
                                                if "--compile" not in flags})
    found = parts.time_decode(str(tmp_path), False)
    assert [f"{name}, {num}" for num in (1, 8) for name in (
        "transformers fp32", "transformers bf16", "ours fp32", "ours bf16", "ours int8")] == list(found)
    assert all(rate > 0 for rate in found.values())
