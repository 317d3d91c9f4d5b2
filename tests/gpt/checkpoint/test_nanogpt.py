"""A nanoGPT checkpoint as a folder: the same function, the tokenizer that fits, and no pickle that runs anything."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

import export
from gpt.checkpoint.load import load_model
from gpt.common.errors import Exit, UserError
from tests.helpers.models import make_model
from tests.helpers.refusals import refused

ARGS = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16, "vocab_size": 448, "bias": True, "dropout": 0.0}


class GPTConfig:
    """As build-nanogpt's, which it saves as an object."""

    def __init__(self) -> None:
        self.block_size, self.vocab_size, self.n_layer, self.n_head, self.n_embd = 16, 448, 2, 2, 32


class Runs:
    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def state_of(model, with_head: bool = True) -> dict[str, torch.Tensor]:
    """The state dict as nanoGPT has it: padded rows, the tied head a second time, a mask."""
    num_ids = model.config.vocab_size
    state = {name: tensor[:num_ids].clone() if name.endswith(("wte.weight", "lm_head.weight")) else tensor.clone()
             for name, tensor in model.state_dict().items()}
    if with_head:
        state.setdefault("lm_head.weight", state["transformer.wte.weight"])
    return {**state, "transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}


def converted(path, tmp_path, *flags):
    assert export.main(["--from_nanogpt", str(path), "--output", str(tmp_path / "made"), *flags]) == 0
    return load_model(tmp_path / "made", torch.device("cpu")).eval()


def same(made, model, num_ids: int = 448) -> bool:
    ids = torch.arange(48).view(3, 16)
    with torch.no_grad():
        return torch.allclose(made(ids)[..., :num_ids], model(ids)[..., :num_ids], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("prefix", "changes"), [("", {}), ("_orig_mod.", {"bias": False}),
                                                 ("module._orig_mod.", {"tie_weights": False})])
def test_a_checkpoint_of_nanogpt_computes_the_same(tmp_path, prefix, changes, capsys):
    model = make_model(vocab_size=448, activation="gelu", **changes)
    state = {prefix + name: tensor for name, tensor in state_of(model, not changes).items()}
    optimizer = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1e-3}]}
    torch.save({"model": state, "optimizer": optimizer, "model_args": ARGS, "iter_num": 7,
                "best_val_loss": torch.tensor(2.5), "config": {"device": "cuda"}}, tmp_path / "ckpt.pt")
    assert same(converted(tmp_path / "ckpt.pt", tmp_path), model)
    said = capsys.readouterr()
    assert "448 ids" in said.err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_lines_on_the_page_of_exports_lead_back_to_nanogpt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make_model(vocab_size=448, activation="gelu")
    torch.save({"model": state_of(model), "model_args": ARGS}, "first.pt")
    converted("first.pt", tmp_path)
    page = (Path(export.__file__).parent / "docs/export.md").read_text()
    [lines] = re.findall(r"## To nanoGPT.*?```python\n(.*?)```", page, re.DOTALL)
    exec(lines.replace("my-gpt2", "made"), {})
    os.rename("made", "first")
    assert same(converted("ckpt.pt", tmp_path), model)


def test_build_nanogpt_saves_its_config_as_an_object_and_computes_tanh(tmp_path, monkeypatch):
    model = make_model(vocab_size=448)
    monkeypatch.setattr(GPTConfig, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "GPTConfig", GPTConfig, raising=False)
    torch.save({"model": state_of(model), "config": GPTConfig(), "step": 9, "val_loss": 3.0}, tmp_path / "model.pt")
    assert same(converted(tmp_path / "model.pt", tmp_path), model)
    assert json.loads((tmp_path / "made" / "config.json").read_text())["activation_function"] == "gelu_new"


def test_a_plain_state_dict_needs_the_number_of_heads(tmp_path):
    model = make_model(vocab_size=448, activation="gelu")
    torch.save(state_of(model), tmp_path / "weights.pt")
    with refused("--n_head", Exit.CHECKPOINT):
        converted(tmp_path / "weights.pt", tmp_path)
    with refused("3 heads do not divide a width of 32. Give --n_head 1 ", Exit.CHECKPOINT):
        converted(tmp_path / "weights.pt", tmp_path, "--n_head", "3")
    assert same(converted(tmp_path / "weights.pt", tmp_path, "--n_head", "2"), model)


def test_what_a_file_says_or_lacks_is_named(tmp_path):
    state = state_of(make_model(vocab_size=448))
    torch.save({"model": state, "model_args": ARGS}, tmp_path / "ckpt.pt")
    with refused("--n_head 4: .*ckpt.pt says 2. Drop --n_head", Exit.FLAGS):
        converted(tmp_path / "ckpt.pt", tmp_path, "--n_head", "4")
    del state["transformer.wte.weight"]
    torch.save({"model": state, "model_args": ARGS}, tmp_path / "ckpt.pt")
    with refused("it has no tensor transformer.wte.weight", Exit.CHECKPOINT):
        converted(tmp_path / "ckpt.pt", tmp_path)


def test_padding_goes_with_the_tokenizer_that_says_so(tmp_path, tokenizer_file):
    model = make_model(vocab_size=448, activation="gelu")
    torch.save({"model": state_of(model), "model_args": ARGS}, tmp_path / "ckpt.pt")
    made = converted(tmp_path / "ckpt.pt", tmp_path, "--tokenizer_file", str(tokenizer_file))
    assert made.config.vocab_size == 400
    assert same(made, model, 400)
    assert (tmp_path / "made" / "tokenizer.json").exists()


@pytest.mark.parametrize("num_ids", [390, 4096])
def test_another_tokenizer_is_refused(tmp_path, tokenizer_file, num_ids):
    model = make_model(vocab_size=num_ids)
    torch.save({"model": state_of(model), "model_args": ARGS}, tmp_path / "ckpt.pt")
    with refused(f"--tokenizer_file .* 400 ids.* {num_ids:,}", Exit.DATA):
        converted(tmp_path / "ckpt.pt", tmp_path, "--tokenizer_file", str(tokenizer_file))


def test_a_pickle_that_runs_a_command_runs_nothing(tmp_path):
    mark = tmp_path / "ran"
    torch.save({"model": {"x": torch.ones(1)}, "model_args": Runs(f"touch {mark}")}, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match=r"--from_nanogpt .*posix\.system"):
        converted(tmp_path / "ckpt.pt", tmp_path)
    assert not mark.exists()
    torch.load(tmp_path / "ckpt.pt", weights_only=False)
    assert mark.exists(), "the file is one that runs its command elsewhere"
