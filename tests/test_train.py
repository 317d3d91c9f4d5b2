"""train.py: flags, the step, runs, stopping and resuming."""

import contextlib
import copy
import dataclasses
import functools
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import data
import train
from gpt.architectures.table import create
from gpt.checkpoint.steps import steps_in
from gpt.checkpoint.stored import verify
from gpt.common.errors import Exit, UserError
from gpt.optimizers.build import parameter_groups
from gpt.optimizers.table import OPTIMIZERS
from gpt.planning.sizing import choose_options
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream
from gpt.training.run import Run
from gpt.training.validation import Validator, sum_losses
from gpt.watching.monitor import Monitor
from model import GPT, Options
from tests.helpers.training import TINY, metrics_of, on_cpu, run_of, same_tensors, small_batch, small_model

ROOT = Path(train.__file__).parent


def step_with(learner: Run, batches):
    """The loss and the norm."""
    result = train.try_step(learner, batches, len(batches))
    return result["loss"], result["grad_norm"]


IN_FP16 = dataclasses.replace(on_cpu(), dtype=torch.float16)


@pytest.mark.parametrize("clip", [0.5, 1e3], ids=["every gradient is longer", "no gradient is"])
def test_a_step_equals_plain_adamw_with_clipping(clip):
    """Without biases: that of the keys has a gradient of zero, whose rounding Adam divides by epsilon."""
    ours = small_model(bias=False)
    theirs = copy.deepcopy(ours)
    learner = run_of(ours, learning_rate=1e-3, grad_clip=clip)
    groups = parameter_groups(theirs, "adamw", 0.1)
    reference = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), foreach=False, fused=False)
    for seed in range(5):
        x, y = small_batch(4, seed)
        loss, norm = step_with(learner, [(x, y)])
        expected = F.cross_entropy(theirs(x).flatten(0, 1), y.flatten())
        reference.zero_grad()
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        reference.step()
        assert torch.allclose(loss, expected, atol=1e-6)
        assert torch.allclose(norm, expected_norm, rtol=1e-5)
        assert (norm > clip) == (clip < 1)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_that_is_not_finite_changes_nothing(name):
    model = small_model()
    learner = run_of(model, name=name)
    step_with(learner, [small_batch(4)])
    weights = [p.clone() for p in model.parameters()]
    moments = copy.deepcopy(learner.optimizer.state_dict()["state"])
    model.get_submodule("transformer.ln_f").register_full_backward_hook(lambda *_: (torch.full((4, 8, 16), math.nan),))
    _, norm = step_with(learner, [small_batch(4)])
    assert not norm.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    after = learner.optimizer.state_dict()["state"]
    assert all(torch.equal(moments[i][key], after[i][key]) for i in moments for key in moments[i])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fp16_scales_the_loss_and_halves_the_scale_when_it_overflows(name):
    model = small_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    learner = run_of(model, scaler, name=name, machine=IN_FP16)
    weights = [p.clone() for p in model.parameters()]
    _, norm = step_with(learner, [small_batch(4)])
    assert not norm.isfinite()
    assert scaler.get_scale() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))

    learner = dataclasses.replace(learner, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    loss, norm = step_with(learner, [small_batch(4)])
    expected, expected_norm = step_with(run_of(small_model()), [small_batch(4)])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-2)
    assert norm.item() == pytest.approx(expected_norm.item(), rel=2e-2)  # unscaled before it is measured and clipped


def test_help_and_wrong_flags_answer_before_torch_is_imported():
    program = ("import runpy, sys\nsys.argv = ['train.py', {!r}]\n"
               "try:\n    runpy.run_path('train.py', run_name='__main__')\nexcept SystemExit as end:\n"
               "    print(int(end.code or 0), 'torch' in sys.modules, 'numpy' in sys.modules)\n")
    for flag, code in (("--help", 0), ("--hlep", 2)):
        done = subprocess.run([sys.executable, "-c", program.format(flag)], capture_output=True, text=True, cwd=ROOT,
                              check=True)
        assert done.stdout.splitlines()[-1] == f"{code} False False"


# What each flag is set to; after the bar what the run it is compared with is given too.
VARIANTS = {
    "--data_dir": "nowhere", "--bin_file": "{corpus}/val.bin", "--val_bin_file": "{corpus}/train.bin",
    "--tokenizer_file": "nowhere.json", "--metadata_file": "nowhere.json",
    "--vocab_size": "300 | --bin_file {corpus}/train.bin", "--preload": "mmap",
    "--arch": "qwen3", "--n_layer": "2", "--n_head": "4", "--n_embd": "32", "--seq_length": "4", "--dropout": "0.5",
    "--no-bias": "", "--n_kv_head": "2 | --arch qwen3", "--n_inner": "16 | --arch llama",
    "--rope_theta": "2 | --arch qwen3", "--no-tie_weights": "", "--batch_size": "2",
    "--gradient_accumulation_steps": "2", "--epochs": "2 | --max_steps 100", "--max_steps": "2",
    "--max_minutes": "0.001", "--patience": "1 | --eval_interval 1 --learning_rate 1e-30 --min_lr 0",
    "--learning_rate": "0.1", "--init_std": "0.1", "--lr_schedule": "cosine", "--min_lr": "1e-6",
    "--cooldown": "0.5 | --lr_schedule wsd", "--cooldown_from": "nowhere", "--warmup_steps": "1",
    "--optimizer": "muon", "--embedding_learning_rate": "0.1", "--weight_decay": "5", "--beta1": "0.5",
    "--beta2": "0.5", "--grad_clip": "0.01", "--label_smoothing": "0.1", "--input_noise": "0.1",
    "--teacher": "nowhere", "--seed": "2",
    "--use_gpu": "", "--use_amp": "", "--amp_dtype": "fp16 | --use_amp", "--compile": "",
    "--activation_checkpointing": "",
    "--output_dir": "{tmp}/elsewhere", "--checkpoint_interval": "3 | --batch_size 50 --epochs 3",
    "--checkpoint_every_steps": "1", "--keep_checkpoints": "1 | --checkpoint_every_steps 1",
    "--mirror_to": "{tmp}/mirror",
    "--resume_from": "auto", "--init_from": "nowhere", "--eval_interval": "1", "--eval_tokens": "24",
    "--eval_batches": "1", "--sample_interval": "1",
    "--sample_prompt": "def | --sample_interval 2", "--log_interval": "2", "--dry_run": "", "--overfit": "2",
    "--gpu_cost_per_hour": "2 | --dry_run",
}
# Tested in gpt/common/, gpt/planning/ and system/, with a resumed run, with a real compile, or on a GPU.
ELSEWHERE = ["--config", "--texts", "--check", "--model_size", "--allow_new_data", "--overwrite", "--tracker",
             "--compile_mode", "--verbose", "--deterministic", "--model_parallel", "--debug",
             "--checkpoint_every_minutes", "--use_lr_scheduler"]
CLOCKS = re.compile(r"[\d.]+ (ms|GiB|MiB|s\b|min|free)|[\d,]+ tok/s|seconds: \S+|step_seconds: .*|\S*_second: .*|"
                    r"time: .*|\.\.\. .*\n|hours\S+ .*|cost: [\d.]+|budget: f.*|memory\S*:.*|out-\d+")


class Fingerprints:
    """What runs with certain flags show and leave; a run that several flags are compared with is made once."""

    def __init__(self, corpus: Path, folder: Path):
        self.corpus, self.folder, self.count = corpus, folder, 0
        self.of = functools.cache(self.new)

    def new(self, *flags: str) -> tuple:
        """Exit code, printed text, files, metrics and weights of a run, except for what is measured with a clock."""
        self.count += 1
        out, printed = self.folder / f"out-{self.count}", io.StringIO()
        argv = ["--data_dir", str(self.corpus), "--output_dir", str(out), *TINY, "--epochs", "1", "--max_steps", "4",
                "--log_interval", "1", "--eval_interval", "4", "--sample_interval", "0", "--verbose"]
        argv += flags if "--use_gpu" in flags else ["--no-use_gpu", *flags]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                code = str(train.main(argv))
            except UserError as error:
                code = str(error)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        weights = [path.read_bytes() for path in files if path.name == "model.safetensors"]
        lines = metrics_of(out) if (out / "metrics.jsonl").exists() else []
        names = [str(path.relative_to(out)) for path in files if "tfevents" not in path.name]
        return code, CLOCKS.sub("", printed.getvalue()), names, len(files), lines, weights


@pytest.fixture(scope="module")
def fingerprints(corpus, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "/nonexistent")  # --compile then shows in plan and warning, and takes no seconds
        yield Fingerprints(corpus, tmp_path_factory.mktemp("fingerprints"))


@pytest.mark.parametrize("flag", VARIANTS)
def test_each_flag_changes_something(flag, fingerprints, corpus):
    value, _, context = (part.format(corpus=corpus, tmp=fingerprints.folder).split()
                         for part in VARIANTS[flag].partition("|"))
    assert fingerprints.of(*context) != fingerprints.new(*context, flag, *value)


def test_the_same_flags_change_nothing(fingerprints):
    assert fingerprints.new() == fingerprints.of()


def test_every_flag_is_tried_here_or_elsewhere():
    declared = {f"--{name}" for name in vars(train.read_flags([])) if name != "origin"}
    assert declared == {flag.replace("--no-", "--") for flag in (*VARIANTS, *ELSEWHERE)}


def test_a_run_prints_its_plan_its_steps_and_what_to_type_next(run):
    text = run.ok("--epochs", "2", "--log_interval", "5", "--verbose")
    for word in ("size ", "time ", "disk ", "device ", "precision ", "attention ", "compile ", "model ", "schedule ",
                 "next: python generate.py"):
        assert f"\n{word}" in "\n" + text
    line = re.compile(
        r"^step [\d,]+/[\d,]+ \| epoch \d+/2 \| loss \d+\.\d{4} \| lr \d\.\d\de-\d\d \| norm \d+\.\d\d \| [\d.]+ ms \| "
        r"[\d,]+ tok/s \| [\d.]+ GiB \| .* left$", re.MULTILINE)
    assert len(line.findall(text)) >= 5
    rows = metrics_of(run.folder / "out")
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == sorted(set(steps))
    assert {"step", "loss", "lr", "grad_norm", "tokens"} == set(rows[0])
    assert {"step", "val_loss", "perplexity", "bits_per_byte"} == set(next(row for row in rows if "val_loss" in row))
    states = [json.loads((path / "trainer_state.json").read_text()) for path in steps_in(run.folder / "out").values()]
    assert sum(state["stays"] for state in states) == 2  # one an epoch


def test_each_step_has_the_learning_rate_of_its_number(run, monkeypatch):
    """Two steps up to the peak, then a line whose next point would be zero."""
    rates, take_step = [], train.take_step

    def noted_step(run, *args):
        rates.append(run.optimizer.param_groups[0]["lr"])
        return take_step(run, *args)

    monkeypatch.setattr(train, "take_step", noted_step)
    assert run("--optimizer", "adamw", "--learning_rate", "0.009", "--min_lr", "0", "--warmup_steps", "2",
               "--lr_schedule", "linear", "--max_steps", "4")[0] == 0
    assert rates[-4:] == pytest.approx([0.0045, 0.009, 0.006, 0.003])


def test_a_new_figure_of_a_step_is_logged_by_its_name_and_with_a_slash_only_recorded(run, monkeypatch):
    step = train.try_step
    monkeypatch.setattr(train, "try_step", lambda *args: {
        **step(*args), "entropy": torch.tensor(1.5), "norm/h.0": torch.tensor(2.5)})
    text = run.ok("--max_steps", "1")
    assert ("| entropy 1.5 |" in text, "h.0" in text) == (True, False)
    assert metrics_of(run.folder / "out")[0].items() >= {"entropy": 1.5, "norm/h.0": 2.5}.items()


@pytest.mark.parametrize("flags", [
    "--preload ram --log_interval 7", "--preload mmap --use_amp", "--arch llama --use_amp",
    "--batch_size 2 --gradient_accumulation_steps 2 --use_amp --amp_dtype fp16",
    "--arch qwen3 --optimizer muon --no-tie_weights", "--optimizer adamw8bit --n_embd 64"])
def test_a_run_stopped_and_resumed_equals_one_that_was_not(run, monkeypatch, flags):
    """A signal at steps 7 and 28, which is in the second epoch; dropout on; weights, moments and losses bit for bit."""
    flags = f"--epochs 3 --max_steps 36 --dropout 0.1 --log_interval 1 --eval_interval 12 {flags}".split()
    assert run(*flags, out="whole")[0] == 0
    add = Monitor.add
    for stop in (7, 28):
        monkeypatch.setattr(Monitor, "add", lambda monitor, result, stop=stop: (
            add(monitor, result), monitor.state.step == stop and os.kill(os.getpid(), signal.SIGTERM)))
        code, text = run(*flags, "--resume_from", "auto", out="parts")
        assert code == 128 + signal.SIGTERM
        assert "to continue: python train.py" in text
    monkeypatch.undo()
    assert run(*flags, "--resume_from", "auto", out="parts")[0] == 0
    assert metrics_of(run.folder / "whole") == metrics_of(run.folder / "parts")
    assert same_tensors(run.folder / "whole/checkpoint-36", run.folder / "parts/checkpoint-36")
    state = json.loads((run.folder / "whole/checkpoint-36/trainer_state.json").read_text())
    assert state["samples_seen"] == 36 * 4


def test_a_signal_in_the_last_validation_postpones_it_to_the_resumed_run(run, monkeypatch):
    flags = ["--max_steps", "5", "--log_interval", "1", "--eval_interval", "2", "--resume_from", "auto"]
    assert run(*flags, out="whole")[0] == 0
    measure = Validator.measure

    def stopping(validator, *windows):
        if validator._run.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(validator, *windows)

    monkeypatch.setattr(Validator, "measure", stopping)
    code, text = run(*flags, out="parts")
    assert code == 128 + signal.SIGTERM, text
    monkeypatch.undo()
    text = run.ok(*flags, out="parts")
    assert "already at step 5 of 5; its last validation is missing and follows now\n" in text
    assert "\nloss  " not in text  # of a step: none was made
    assert metrics_of(run.folder / "parts") == metrics_of(run.folder / "whole")
    parts, whole = (verify(run.folder / out / "checkpoint-5") for out in ("parts", "whole"))
    state = dataclasses.replace(parts.state, seconds=whole.state.seconds)
    assert dataclasses.replace(parts, state=state) == whole


@pytest.mark.slow
def test_a_whole_run_compiles_one_graph_for_training_and_one_for_validation_before_its_first_step(run, monkeypatch):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    loop, before = train.loop, []
    monkeypatch.setattr(train, "loop", lambda *all: (
        before.append(torch._dynamo.utils.counters["stats"]["unique_graphs"]), loop(*all)))
    text = run.ok("--compile", "--epochs", "2", "--eval_interval", "7", "--sample_interval", "5", "--dropout", "0.1",
                  "--warmup_steps", "2")
    assert text.count("| val loss ") > 2
    assert text.count("sample at step") > 2
    assert before == [torch._dynamo.utils.counters["stats"]["unique_graphs"]] == [2]
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
def test_compiled_equals_eager_within_rounding(run):
    flags = ["--max_steps", "8", "--log_interval", "1", "--no-tie_weights"]
    run(*flags, out="eager")
    for mode in ("default", "blocks"):
        assert "compiled    in" in run.ok(*flags, "--verbose", "--compile", "--compile_mode", mode, out=mode)
        for a, b in zip(metrics_of(run.folder / mode), metrics_of(run.folder / "eager"), strict=True):
            assert all(a[key] == pytest.approx(b[key], rel=1e-4) for key in a)
    assert run("--max_steps", "2", "--compile", "--compile_mode", "max-autotune-no-cudagraphs", out="tuned")[0] == 0


def test_losses_that_are_not_finite_end_the_run_with_exit_6(run, monkeypatch):
    run("--max_steps", "3")
    forward = GPT.forward
    monkeypatch.setattr(GPT, "forward", lambda *a, **k: forward(*a, **k) * math.nan)
    said = run.refused(Exit.DIVERGED, "--max_steps", "40", "--resume_from", "auto", "--log_interval", "1")
    assert "checkpoint-3" in said
    assert list(steps_in(run.folder / "out")) == [3]


def test_what_is_wrong_around_a_run_is_told_in_one_go(run):
    (run.folder / "out").write_text("a file")
    said = run.refused(Exit.MACHINE, "--metadata_file", "nowhere.json", "--resume_from", str(run.folder / "no"))
    lines = said.split("\nerror: ")
    assert len(lines) == 3
    assert all(word in line for word, line in zip(("--output_dir", "no does not exist", "nowhere.json"), lines,
                                                  strict=True))


def test_the_old_spelling_of_the_files_trains(corpus, tmp_path, capsys):
    for name, old in (("train.bin", "tokens_bpe.bin"), ("tokenizer.json", "bpe_tokenizer.json")):
        (tmp_path / old).write_bytes((corpus / name).read_bytes())
    vocab_size = json.loads((corpus / "metadata.json").read_text())["vocab_size"]
    (tmp_path / "tokens_bpe_metadata.json").write_text(json.dumps({"vocab_size": vocab_size, "dtype": "int16"}))
    flags = ("--model_size tiny --batch_size 2 --gradient_accumulation_steps 2 --learning_rate 0.001 --epochs 10 "
             "--checkpoint_interval 1 --use_lr_scheduler --warmup_steps 1 --min_lr 1e-5 --seq_length 16 --max_steps 2")
    named = ["--bin_file", f"{tmp_path}/tokens_bpe.bin", "--tokenizer_file", f"{tmp_path}/bpe_tokenizer.json",
             "--metadata_file", f"{tmp_path}/tokens_bpe_metadata.json"]
    losses = []
    for words, out in ((named, "out"), (["--data_dir", str(tmp_path)], "found")):
        assert train.main([*words, "--output_dir", f"{tmp_path}/{out}", *flags.split()]) == 0
        losses.append([row.get("loss") for row in metrics_of(tmp_path / out)])
    assert losses[0] == losses[1]
    assert (tmp_path / "found/checkpoint-2/tokenizer.json").exists()
    assert "the last" in capsys.readouterr().out  # where the validation tokens come from


@pytest.mark.gpu
@pytest.mark.parametrize("flags", [["--no-compile"], ["--compile", "--use_amp"], ["--use_amp", "--amp_dtype", "fp16"]])
def test_a_deterministic_run_on_a_gpu_resumes_bit_for_bit(run, flags):
    torch.compiler.reset()  # after eight graphs of one function it compiles no more, and says so in a log only
    flags = ["--use_gpu", "--deterministic", "--dropout", "0.1", "--epochs", "9", "--checkpoint_every_steps", "3",
             "--log_interval", "1", *flags]
    assert run("--max_steps", "12", *flags)[0] == 0
    assert run("--max_steps", "12", *flags, out="parts")[0] == 0
    for step in (9, 12):  # as if it had been killed
        shutil.rmtree(run.folder / f"parts/checkpoint-{step}")
    assert run("--max_steps", "12", *flags, "--resume_from", "auto", out="parts")[0] == 0
    assert metrics_of(run.folder / "out") == metrics_of(run.folder / "parts")
    assert same_tensors(run.folder / "out/checkpoint-12", run.folder / "parts/checkpoint-12")


@pytest.mark.parametrize("tie_weights", [True, False])
def test_products_by_weights_kept_in_bf16_give_the_losses_of_the_weights_as_they_are(tie_weights):
    config, machine = small_model(tie_weights=tie_weights).config, dataclasses.replace(on_cpu(), dtype=torch.bfloat16)
    model, plain = (GPT(config, Options(rounded_to=dtype, loss_chunk=8)).init_weights().train()
                    for dtype in (torch.bfloat16, None))
    learner = run_of(model, machine=machine)
    for seed in range(3):
        plain.load_state_dict(model.state_dict())
        with torch.no_grad(), machine.autocast():
            expected = plain(*small_batch(4, seed))
        assert torch.equal(train.try_step(learner, [small_batch(4, seed)], 1)["loss"], expected)
    plain.load_state_dict(model.state_dict())
    found = [sum_losses(one, [small_batch(4, 9)], None, machine.autocast, lambda: False) for one in (model, plain)]
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["gpu", "ram"])
def test_a_step_on_a_gpu_waits_for_nothing(tmp_path, where):
    torch.use_deterministic_algorithms(False)  # what another test has set
    cuda = torch.device("cuda")
    machine = dataclasses.replace(on_cpu(), device=cuda, dtype=torch.bfloat16)
    model = create(small_model().config, cuda, choose_options(False, False, machine, {})).train()
    learner = run_of(model, torch.amp.GradScaler("cuda", enabled=False), machine=machine)
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 2000).astype("<u2")
    ids.tofile(tmp_path / "ids.bin")
    stream = TokenStream((Part(tmp_path / "ids.bin", "uint16", 2000),), 2**16)
    T, cpu = model.config.seq_length, torch.device("cpu")
    loader = data.Batches(data.CorpusWindows(stream, where, T, 0, cuda), 4, cuda)
    expected_loader = data.Batches(data.CorpusWindows(stream, "ram", T, 0, cpu), 4, cpu)
    for found, expected in zip(loader.get(8, 1), expected_loader.get(8, 1), strict=True):
        assert torch.equal(found.cpu(), expected)

    def step(number: int) -> None:
        batches = (loader.get(8 * number, micro) for micro in range(2))
        train.try_step(learner, batches, 2)

    step(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1, 4):
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
