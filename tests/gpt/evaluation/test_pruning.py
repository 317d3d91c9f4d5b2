"""export.py --prune: the smallest weights become zero, and the folder opens in transformers."""

import pytest
import torch

import export
from gpt.architectures.table import architecture_of
from gpt.checkpoint.load import load_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_a_pruned_folder_has_zeros_for_its_smallest_weights_and_opens_elsewhere(make_any, write_folder, tmp_path, arch):
    from transformers import AutoModelForCausalLM

    source = write_folder(tmp_path / "model", make_any(arch))
    assert export.main(["--ckpt", str(source), "--output", str(tmp_path / "out"), "--prune", "0.3"]) == 0
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
    assert "30% of the weights" in (tmp_path / "out" / "README.md").read_text()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(32).view(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, after(ids), rtol=0, atol=1e-5)
