"""pruning.py, and export.py --prune: which weights become zero, what is measured, what the folder is afterwards."""

import math
import re

import numpy as np
import pytest
import torch

import export
from architectures.table import architecture_of
from checkpoint.huggingface import load_model
from common.errors import UserError
from evaluation.pruning import prune_and_measure, validation_of_run

CPU = torch.device("cpu")


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, 400, 50 * 16 + 1).astype("<u2").tofile(path)
    return path


@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_the_pruned_folder_has_the_smallest_weights_at_zero_and_says_what_it_costs(make_any, write_folder, tokens,
                                                                                   tmp_path, arch, capsys):
    source = write_folder(tmp_path / "model", make_any(arch))
    words = ["--ckpt", str(source), "--output", str(tmp_path / "out"), "--prune", "0.3", "--tokens", str(tokens)]
    assert export.main(words) == 0
    before, after = (load_model(folder, CPU).eval() for folder in (source, tmp_path / "out"))
    hidden = architecture_of(before.config).hidden_matrices(before.config)
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        zeros = new == 0
        assert torch.equal(new[~zeros], old[~zeros])
        if name in hidden:
            assert int(zeros.sum()) == round(0.3 * new.numel())
            assert old[zeros].abs().max() <= old[~zeros].abs().min()
        else:
            assert torch.equal(new, old)
    ids = torch.from_numpy(np.fromfile(tokens, "<u2").astype(np.int64))
    T = before.config.seq_length
    windows = torch.stack([ids[first:first + T + 1] for first in range(0, len(ids) - T, T)])
    with torch.no_grad():
        losses = [float(model(windows[:, :-1], windows[:, 1:])) for model in (before, after)]
    card = (tmp_path / "out" / "README.md").read_text()
    told = [float(cell) for cell in re.findall(r"^\| (?:before|after) \| [\d.]+ \| ([\d.,]+) \|", card, re.MULTILINE)]
    assert told == pytest.approx([math.exp(loss) for loss in losses], rel=1e-4)
    assert "30% of the weights" in card
    assert "same memory and time" in card
    assert "perplexity" in capsys.readouterr().out


def test_transformers_opens_the_pruned_folder(make_model, write_folder, tokens, tmp_path):
    from transformers import AutoModelForCausalLM

    source = write_folder(tmp_path / "model", make_model())
    assert export.main(["--ckpt", str(source), "--output", str(tmp_path / "out"), "--prune", "0.5"]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ours = load_model(tmp_path / "out", CPU).eval()
    ids = torch.arange(32).view(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=0, atol=1e-5)
    assert "was not measured" in (tmp_path / "out" / "README.md").read_text()


def test_tokens_of_another_vocabulary_are_refused(make_model, tmp_path):
    path = tmp_path / "tokens.bin"
    np.full(100, 9999, "<u2").tofile(path)
    with pytest.raises(UserError, match="9,999"):
        prune_and_measure(make_model(), 0.3, path, lambda: None)


def test_the_validation_tokens_of_a_run_are_found(run, corpus):
    run("--max_steps", "1")
    assert validation_of_run(run.folder / "out" / "checkpoint-1") == corpus
    assert validation_of_run(run.folder) is None
