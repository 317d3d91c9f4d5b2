"""Resuming, finetuning, and what does not fit together."""

import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import train
from gpt.checkpoint.load import load_model, read_config
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit, UserError
from gpt.ops.rotary import RotaryScaling
from gpt.training.validation import ValidationLoss, Validator
from tests.helpers.models import make_rotary
from tests.helpers.training import metrics_of, trained


def test_a_finished_run_says_so_and_writes_nothing(run):
    assert run("--max_steps", "3")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (run.folder / "out").rglob("*") if path.name != ".lock"}
    text = run.ok("--max_steps", "3", "--resume_from", "auto")
    assert "already at step 3 of 3; raise --epochs or --max_steps" in text
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_checkpoint_of_another_corpus_is_refused_unless_it_is_allowed(run, corpus, tmp_path):
    run("--max_steps", "2")
    other = ["--bin_file", str(corpus / "val.bin"), "--tokenizer_file", str(corpus / "tokenizer.json"),
             "--resume_from", "auto", "--metadata_file", str(tmp_path / "metadata.json")]
    vocabulary = json.loads((corpus / "metadata.json").read_text())["vocab_size"]
    (tmp_path / "metadata.json").write_text(json.dumps({"vocab_size": vocabulary, "dtype": "int16"}))
    assert "--allow_new_data" in run.refused(Exit.DATA, "--max_steps", "4", *other)
    assert run("--max_steps", "4", *other, "--allow_new_data")[0] == 0


def test_a_resume_prints_a_flag_that_the_run_did_not_have(run):
    run.ok("--max_steps", "2")
    text = run.ok("--max_steps", "3", "--resume_from", "auto", "--label_smoothing", "0.1", "--input_noise", "0.2")
    assert "resume      changed: input_noise 0 -> 0.2, label_smoothing 0 -> 0.1\n" in text
    text = run.ok("--max_steps", "4", "--resume_from", "auto", "--label_smoothing", "0")
    assert "resume      changed: label_smoothing 0.1 -> 0\n" in text


def test_a_run_that_goes_on_in_another_folder_and_is_killed_goes_on_there(run, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    run.ok("--max_steps", "4")
    resume = ["--resume_from", str(run.folder / "out/checkpoint-4"), "--max_steps", "8"]
    monkeypatch.setattr(train, "loop", die)
    with pytest.raises(Killed):
        run(*resume, out="new")
    assert [*steps_in(run.folder / "new")] == [4]


def test_given_weights_whose_loss_is_not_finite_end_the_run_before_its_first_step(run, corpus, monkeypatch, capsys):
    run.ok("--max_steps", "2", out="base")
    measure = Validator.measure

    def overflow(own: Validator, *rest: int) -> ValidationLoss | None:
        found = measure(own, *rest)
        return found and replace(found, nats=math.nan)

    monkeypatch.setattr(Validator, "measure", overflow)
    error, _ = trained(["--data_dir", str(corpus), "--output_dir", str(run.folder / "out"), "--no-use_gpu",
                        "--init_from", str(run.folder / "base")], capsys)
    assert isinstance(error, UserError)
    assert (error.code, "--no-use_amp" in str(error)) == (Exit.DIVERGED, True)


def test_passes_over_other_tokens_do_not_count(run, corpus, tmp_path, capsys):
    """A run of 40 steps goes on with others, and once more: 5 steps are a pass."""
    run.ok("--max_steps", "40", "--batch_size", "20")
    shutil.copytree(corpus, tmp_path / "other")
    np.roll(np.fromfile(corpus / "train.bin", np.int16), 1).tofile(tmp_path / "other/train.bin")
    vocabulary = json.loads((corpus / "metadata.json").read_text())["vocab_size"]
    (tmp_path / "other/metadata.json").write_text(json.dumps({"vocab_size": vocabulary, "dtype": "int16"}))
    resume = ["--no-use_gpu", "--verbose", "--resume_from", str(tmp_path / "out"), "--max_steps"]
    for steps, passes, more in ((45, 1.01, ["--data_dir", str(tmp_path / "other"), "--allow_new_data"]),
                                (50, 2.02, [])):
        code, text = trained([*resume, str(steps), *more], capsys)
        assert code == 0, text
        assert re.search(rf"\nlength .*, {passes} epochs\n", text)
        state = json.loads((tmp_path / f"out/checkpoint-{steps}/trainer_state.json").read_text())
        assert state["samples_of_others"] == 800


def test_finetuning_starts_where_transformers_stands_and_its_result_opens_there(run, corpus, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    vocab_size = json.loads((corpus / "metadata.json").read_text())["vocab_size"]
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                        initializer_range=0.3)).eval()
    theirs.save_pretrained(run.folder / "gpt2")
    argv = ["--data_dir", str(corpus), "--output_dir", str(run.folder / "out"), "--init_from", str(run.folder / "gpt2"),
            "--no-use_gpu", "--max_steps", "30", "--batch_size", "8", "--learning_rate", "1e-2"]
    assert train.main(argv) == 0
    out = "".join(capsys.readouterr())
    tokens = torch.from_numpy(np.fromfile(corpus / "val.bin", "<i2").astype(np.int64))
    windows = [tokens[start:start + 17] for start in range(0, len(tokens) - 1, 16)]
    with torch.no_grad():
        nats = sum(float(F.cross_entropy(theirs(window[None, :-1]).logits[0], window[1:], reduction="sum"))
                   for window in windows)
    began = float(re.search(r"validation before the first step \| loss (\S+)", out)[1])  # type: ignore[index]
    assert began == pytest.approx(nats / (len(tokens) - 1), abs=6e-5)
    assert "warning: --init_from: " in out
    losses = [line["val_loss"] for line in metrics_of(run.folder / "out") if "val_loss" in line]
    assert losses[-1] < began - 1
    assert "To improve: no validation loss fell" not in out
    again = GPT2LMHeadModel.from_pretrained(run.folder / "out/checkpoint-30").eval()
    ours = load_model(run.folder / "out/checkpoint-30", torch.device("cpu")).eval()
    with torch.no_grad():
        assert torch.allclose(again(tokens[None, :16]).logits, ours(tokens[None, :16]), atol=1e-4)


def test_a_run_like_a_resumed_one_begins_from_the_same_weights(run, corpus, capsys):
    run.ok("--max_steps", "3")
    tuned = ["--output_dir", str(run.folder / "tuned"), "--no-use_gpu"]
    begin = ["--data_dir", str(corpus), "--init_from", str(run.folder / "out"), "--max_steps", "2"]
    assert trained([*begin, *tuned], capsys)[0] == 0
    assert trained(["--resume_from", "auto", "--max_steps", "4", *tuned], capsys)[0] == 0
    again = ["--config", str(run.folder / "tuned"), "--output_dir", str(run.folder / "again")]
    code, text = trained(again, capsys)
    assert code == 0
    assert "validation before the first step" in text, "of the weights of --init_from"
    assert trained(["--resume_from", "auto", "--max_steps", "6", *tuned], capsys)[0] == 0


def test_weights_that_training_only_made_worse_get_a_command_with_a_lower_rate(run, corpus, capsys):
    assert run("--max_steps", "30")[0] == 0
    code, out = trained(["--data_dir", str(corpus), "--output_dir", str(run.folder / "worse"), "--init_from",
                         str(run.folder / "out"), "--no-use_gpu", "--max_steps", "3", "--learning_rate", "9",
                         "--mirror_to", str(run.folder / "mirror")], capsys)
    assert code == 0
    began = re.search(r"validation before the first step \| loss (\S+)", out)[1]  # type: ignore[index]
    command = re.search(rf"To improve: no validation loss fell below {began}, .*\n"
                        r"python train.py (--config \S+worse/config.toml) \\\n    (--learning_rate 0.0\S+ "
                        r"--output_dir \S+worse-slower --mirror_to \S+mirror-slower)$", out, re.MULTILINE)
    assert command
    assert trained(" ".join(command.groups()).split(), capsys)[0] == 0
    out = trained(["--resume_from", str(run.folder / "worse"), "--max_steps", "6", "--no-use_gpu"], capsys)[1]
    assert f"To improve: no validation loss fell below {began}" in out


def test_weights_that_do_not_fit_the_corpus_are_refused(run, corpus, tmp_path):
    import pretokenize

    assert run("--max_steps", "2")[0] == 0
    text = tmp_path / "text.txt"
    text.write_text(" ".join(str(number**3) for number in range(800)))
    for name, size in (("other", "270"), ("larger", "320")):
        pretokenize.main([str(text), "--output_dir", str(tmp_path / name), "--vocab_size", size])
    for flags, code, words in (
        (["--seq_length", "99"], Exit.FLAGS, "--seq_length 99: --init_from has 8 positions"),
        (["--n_layer", "2"], Exit.FLAGS, "--n_layer: not with --init_from"),
        (["--data_dir", str(tmp_path / "other")], Exit.DATA, "another tokenizer than the weights of --init_from"),
        (["--data_dir", str(tmp_path / "larger")], Exit.DATA, "another tokenizer than the weights of --init_from"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            train.main(["--data_dir", str(corpus), "--output_dir", str(tmp_path / "tuned"), "--no-use_gpu",
                        "--max_steps", "2", "--init_from", str(run.folder / "out"), *flags])
        assert caught.value.code == code
        assert not [*(tmp_path / "tuned").glob("[!.]*")]  # its lock alone


@pytest.mark.parametrize(("has_tokenizer", "flag"), [(True, "--data_dir"), (False, "--bin_file")])
def test_nanogpts_files_take_their_vocabulary_from_the_weights(run, corpus, tmp_path, has_tokenizer, flag, capsys):
    """A Hugging Face folder and a folder of .bin files that says nothing of its vocabulary; then the run resumes."""
    assert run("--max_steps", "1")[0] == 0
    (tmp_path / "gpt2").mkdir()
    for name in ("config.json", "model.safetensors", *(["tokenizer.json"] * has_tokenizer)):
        shutil.copy(run.folder / "out/checkpoint-1" / name, tmp_path / "gpt2")
    (tmp_path / "nano").mkdir()
    for name in ("train.bin", "val.bin"):
        shutil.copy(corpus / name, tmp_path / "nano")
    shared = ["--output_dir", str(tmp_path / "tuned"), "--no-use_gpu", "--batch_size", "4"]
    source = [flag, str(tmp_path / "nano" / ("train.bin" * (flag == "--bin_file")))]
    assert train.main([*source, "--init_from", str(tmp_path / "gpt2"), *shared, "--max_steps", "1"]) == 0
    assert "taken from --init_from" in capsys.readouterr().out
    assert (tmp_path / "tuned/checkpoint-1/tokenizer.json").exists() == has_tokenizer
    assert train.main(["--resume_from", str(tmp_path / "tuned"), "--max_steps", "2"]) == 0
    assert read_config(tmp_path / "tuned/checkpoint-2") == read_config(tmp_path / "gpt2")


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_weights_of_others_are_trained_and_resumed_with_what_no_flag_says(arch, run, corpus, tmp_path, write_folder,
                                                                          capsys):
    model = make_rotary(arch, vocab_size=512, head_dim=24, rms_norm_epsilon=1e-3, rope_theta=500.0,
                        rope_scaling=RotaryScaling(8.0, 1.0, 4.0, 24))
    folder = write_folder(tmp_path / "theirs", model)
    (folder / "tokenizer.json").unlink()
    argv = ["--data_dir", str(corpus), "--no-use_gpu", "--sample_interval", "0", "--output_dir", str(tmp_path / "out"),
            "--batch_size", "4"]
    assert train.main([*argv, "--init_from", str(folder), "--seq_length", "16", "--max_steps", "2"]) == 0
    config = read_config(tmp_path / "out/checkpoint-2")
    assert config == replace(model.config, seq_length=16)
    for step, origin in ((3, folder), (4, tmp_path / "out")):
        capsys.readouterr()
        resume = ["--resume_from", str(tmp_path / "out"), "--max_steps", str(step)]
        assert train.main([*resume, "--init_from", str(origin)]) == 0
        assert read_config(tmp_path / f"out/checkpoint-{step}") == config
        said = capsys.readouterr().out
        assert (f"--init_from has no effect: the run began from {folder}" in said) == (origin != folder)
    shutil.rmtree(folder)  # the checkpoint needs nothing of it
    assert train.main([*argv, "--init_from", str(folder), "--resume_from", "auto", "--max_steps", "5"]) == 0
    assert read_config(tmp_path / "out/checkpoint-5") == config
