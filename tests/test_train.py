"""train.py: the schedule, the step, resuming, and what each flag does."""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import data
import train
from checkpoint.find import steps_in
from checkpoint.huggingface import load_model, read_config
from checkpoint.save import Snapshot, save, write_tensors
from common.errors import Exit, UserError
from machine import device
from machine.timing import Gauge
from model import GPT, SIZES, GPTConfig
from ops.loss import IGNORED
from tokens.layouts import Part
from tokens.stream import TokenStream

ROOT = Path(__file__).parent.parent
TINY = ["--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "4"]
QUIET = ["--sample_interval", "0", "--eval_interval", "1000"]  # no checkpoint but those a test is about


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder as pretokenize.py leaves it: 600 training and 90 validation tokens of 300 ids, with a tokenizer."""

    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "sea", "\n"]
    (folder / "text.txt").write_text(" ".join(rng.choice(words, 900)))
    code = pretokenize.main(
        [str(folder / "text.txt"), "--output_dir", str(folder / "data"), "--vocab_size", "300", "--val_fraction", "0.1"]
    )
    assert code == 0
    return folder / "data"


@pytest.fixture
def run(corpus, tmp_path, capsys):
    """Runs train.main on the small corpus in this process; returns (exit code or UserError, what it printed)."""

    def call(*flags, out="out"):
        where = [] if "--use_gpu" in flags else ["--no-use_gpu"]
        argv = ["--data_dir", str(corpus), "--output_dir", str(tmp_path / out), *TINY, *QUIET, *where, *flags]
        try:
            code = train.main(argv)
        except UserError as error:
            code = error
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    call.folder = tmp_path  # type: ignore[attr-defined]
    return call


def metrics_of(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl without what is measured with a clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def same_tensors(a: Path, b: Path) -> bool:
    """True if weights and optimizer state of two checkpoints are byte-identical."""
    return all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")
    )


# ---------------------------------------------------------------- the pure pieces


def recipe(**changes) -> train.Recipe:
    values = {
        "batch_size": 4,
        "accumulation": 1,
        "windows_per_epoch": 100,
        "epochs": 1,
        "total_steps": 100,
        "learning_rate": 1e-3,
        "min_lr": 1e-5,
        "warmup_steps": 10,
        "use_lr_scheduler": True,
        "eval_interval": 10,
        "sample_interval": 0,
        "log_interval": 1,
        "reasons": (),
    }
    return train.Recipe(**{**values, **changes})


def test_the_schedule_at_its_corners():
    r = recipe()
    assert train.lr_at(1, r) == pytest.approx(1e-4)
    assert train.lr_at(10, r) == pytest.approx(1e-3)
    assert train.lr_at(55, r) == pytest.approx((1e-3 + 1e-5) / 2)
    assert train.lr_at(100, r) == pytest.approx(1e-5)
    assert train.lr_at(1000, r) == pytest.approx(1e-5)
    assert train.lr_at(1, recipe(warmup_steps=0)) == pytest.approx(1e-3, rel=1e-2)
    assert train.lr_at(7, recipe(use_lr_scheduler=False)) == 1e-3
    assert train.lr_at(1, recipe(warmup_steps=0, total_steps=1)) == pytest.approx(1e-5)
    rates = [train.lr_at(step, r) for step in range(1, 101)]
    assert rates.index(max(rates)) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_the_schedule_equals_transformers_cosine():
    from transformers import get_cosine_schedule_with_warmup

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    theirs = get_cosine_schedule_with_warmup(optimizer, 10, 100)
    for step in range(1, 101):
        optimizer.step()
        theirs.step()  # their step counts finished steps, so after it they are where ours is
        assert train.lr_at(step, recipe(min_lr=0.0)) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)


def test_every_parameter_is_in_exactly_one_group_and_only_matrices_decay():
    with torch.device("meta"):
        model = GPT(GPTConfig(tie_weights=False))
    decay, plain = train.param_groups(model, 0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    grouped = [id(p) for group in (decay, plain) for p in group["params"]]
    assert sorted(grouped) == sorted(names)
    assert {names[id(p)].rsplit(".", 2)[-2] for p in decay["params"]} == {
        "wte",
        "wpe",
        "c_attn",
        "c_proj",
        "c_fc",
        "lm_head",
    }
    assert all(names[id(p)].endswith(".bias") or ".ln_" in names[id(p)] for p in plain["params"])
    assert (decay["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)


def small_model(**changes) -> GPT:
    torch.manual_seed(1)
    return GPT.create(
        GPTConfig(**{"vocab_size": 70, "seq_length": 8, "n_layer": 2, "n_head": 2, "n_embd": 16, **changes})
    )


def small_batch(rows: int, seed: int = 0) -> train.Batch:
    tokens = torch.randint(0, 70, (rows, 9), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def step_with(model, optimizer, batches, scaler=None, clip=1.0, autocast: train.Autocast = contextlib.nullcontext):
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    return train.train_step(model, optimizer, scaler, batches, len(batches), autocast, 0.0, clip)


def test_one_batch_of_2b_equals_two_micro_batches_of_b():
    whole, halves = small_model(), small_model()
    x, y = small_batch(8)
    results = []
    for model, batches in ((whole, [(x, y)]), (halves, [(x[:4], y[:4]), (x[4:], y[4:])])):
        optimizer = torch.optim.AdamW(train.param_groups(model, 0.1), lr=1e-2, fused=True)
        results.append(step_with(model, optimizer, batches))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-5)
    for (name, a), b in zip(whole.named_parameters(), halves.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-5), name  # Adam's first step divides by the gradient's own size


def test_a_step_equals_plain_adamw_with_clipping():
    ours = small_model()
    theirs = copy.deepcopy(ours)
    optimizer = torch.optim.AdamW(train.param_groups(ours, 0.1), lr=1e-3, betas=(0.9, 0.95), fused=True)
    reference = torch.optim.AdamW(
        train.param_groups(theirs, 0.1), lr=1e-3, betas=(0.9, 0.95), foreach=False, fused=False
    )
    for seed in range(5):
        x, y = small_batch(4, seed)
        loss, norm = step_with(ours, optimizer, [(x, y)], clip=0.5)
        logits = theirs(x)
        expected = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        reference.zero_grad()
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
        assert torch.allclose(loss, expected, atol=1e-6)
        assert torch.allclose(norm, expected_norm, rtol=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_gradient_that_is_not_finite_changes_nothing():
    model = small_model()
    optimizer = torch.optim.AdamW(train.param_groups(model, 0.1), lr=1e-2, fused=True)
    step_with(model, optimizer, [small_batch(4)])
    weights = [p.clone() for p in model.parameters()]
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    model.transformer["ln_f"].register_full_backward_hook(lambda *_: (torch.full((4, 8, 16), math.nan),))
    _, norm = step_with(model, optimizer, [small_batch(4)])
    assert not norm.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(moments[i][key], after[i][key]) for i in moments for key in moments[i])


def test_fp16_scales_the_loss_and_halves_the_scale_when_it_overflows():
    model = small_model()
    optimizer = torch.optim.AdamW(train.param_groups(model, 0.1), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    weights = [p.clone() for p in model.parameters()]
    _, norm = step_with(
        model, optimizer, [small_batch(4)], scaler, autocast=lambda: torch.autocast("cpu", torch.float16)
    )
    assert not norm.isfinite()
    assert scaler.get_scale() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    loss, norm = step_with(
        model, optimizer, [small_batch(4)], scaler, autocast=lambda: torch.autocast("cpu", torch.float16)
    )
    plain = small_model()
    expected, expected_norm = step_with(
        plain, torch.optim.AdamW(train.param_groups(plain, 0.1), fused=True), [small_batch(4)]
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-2)
    assert norm.item() == pytest.approx(expected_norm.item(), rel=2e-2)  # unscaled before it is measured and clipped


def test_evaluation_is_the_exact_mean_over_all_targets(tmp_path):
    model = small_model()
    (np.arange(75) % 70).astype("<i2").tofile(tmp_path / "val.bin")
    file = TokenStream((Part(tmp_path / "val.bin", "int16", 75),))
    tokens = data.Tokens(file, "ram", torch.device("cpu"))
    lengths = torch.arange(70)
    found = train.evaluate(
        model, data.validation_batches(tokens, 8, 4, 100), lengths, contextlib.nullcontext, lambda: False
    )
    total, targets = 0.0, []
    with torch.no_grad():
        for start in range(0, 74, 8):
            window = torch.from_numpy(tokens.at(np.arange(start, min(start + 9, 75)))).long()[None]
            total += F.cross_entropy(model(window[:, :-1])[0], window[0, 1:], reduction="sum").item()
            targets += window[0, 1:].tolist()
    assert found is not None
    assert found[0] == pytest.approx(total / 74, rel=1e-5)
    assert found[1] == pytest.approx(total / math.log(2) / sum(targets), rel=1e-5)
    assert train.evaluate(model, iter([small_batch(2)]), None, contextlib.nullcontext, lambda: True) is None
    assert model.training


def test_padding_targets_take_no_part_in_an_evaluation():
    model = small_model()
    x, y = small_batch(2)
    padded = torch.cat((y, torch.full_like(y, IGNORED)))
    alone = train.evaluate(model, [(x, y)], None, contextlib.nullcontext, lambda: False)
    both = train.evaluate(model, [(torch.cat((x, x)), padded)], None, contextlib.nullcontext, lambda: False)
    assert alone is not None
    assert both is not None
    assert alone[0] == pytest.approx(both[0], rel=1e-6)


def test_model_sizes_of_the_flag_are_those_of_the_model():
    help_text = subprocess.run(
        [sys.executable, ROOT / "train.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "|".join(SIZES) in help_text


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"epochs": 3}),  # 20 tokens for each of 4,752 parameters, 32,008 tokens a pass
        (["--epochs", "2"], {"epochs": 2, "total_steps": 2000}),
        (["--max_steps", "5000"], {"epochs": 5, "total_steps": 5000}),  # not held back by a default
        (["--max_steps", "50"], {"total_steps": 50, "warmup_steps": 10, "log_interval": 1}),
        (["--epochs", "1", "--gradient_accumulation_steps", "5"], {"total_steps": 200, "accumulation": 5}),
        (["--learning_rate", "1e-3"], {"learning_rate": 1e-3, "min_lr": 1e-5}),
        (["--no-use_lr_scheduler"], {"use_lr_scheduler": False}),
    ],
)
def test_defaults_fill_in_what_the_flags_leave_open(flags, expected):
    args = train.read_flags([*TINY, *flags])
    config = GPTConfig(70, 8, 1, 2, 16)
    found = train.choose_recipe(args, config, 8 * 4001, 4)
    assert {key: getattr(found, key) for key in expected} == expected
    assert 0 <= found.warmup_steps <= max(1, found.total_steps // 5)
    assert 0 < found.min_lr <= found.learning_rate


def test_the_default_learning_rate_falls_with_size_and_rises_with_the_batch():
    rates = [train.default_learning_rate(GPTConfig(50257, 1024, *SIZES[name]), 10**10, 2**19) for name in SIZES]
    assert rates == sorted(rates, reverse=True)
    small = GPTConfig(50257, 1024, *SIZES["gpt2_small"])
    assert train.default_learning_rate(small, 3 * 10**11, 2**19) == pytest.approx(6e-4, rel=0.2)  # nanoGPT's, by hand
    assert train.default_learning_rate(small, 10**10, 2**14) < train.default_learning_rate(small, 10**10, 2**19)


# ---------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lerning_rate", "1"], "Did you mean --learning_rate?"),
        (["--batch", "4"], "Did you mean --batch_size?"),
        (["--learning_rate", "nan"], "--learning_rate 'nan'"),
        (["--learning_rate", "1e999"], "--learning_rate '1e999'"),
        (["--epochs", "0"], "--epochs '0'"),
        (["--batch_size", "-3"], "--batch_size '-3'"),
        (["--dropout", "1"], "below 1"),
        (["--epochs", "two"], "a whole number of at least 1"),
        (["--model_size", "huge"], "one of tiny"),
        (["--n_embd", "10", "--n_head", "3"], "no multiple of --n_head"),
        (["--min_lr", "1", "--learning_rate", "0.1"], "--min_lr: is above --learning_rate"),
        (["--warmup_steps", "10", "--max_steps", "10"], "--warmup_steps: ends after --max_steps"),
        (["--no-use_lr_scheduler", "--min_lr", "0"], "--min_lr: needs --use_lr_scheduler"),
        (["--no-use_amp", "--amp_dtype", "bf16"], "--amp_dtype"),
        (["--gpu_cost_per_hour", "2"], "--gpu_cost_per_hour"),
        (["--dry_run", "--budget", "2"], "--budget: needs --gpu_cost_per_hour"),
        (["--batch_size", "most"], "auto or a whole number"),
        (["--learning_rate"], "--learning_rate: expected one argument"),
    ],
)
def test_wrong_flags_are_answered_with_the_cure(flags, message):
    with pytest.raises(UserError) as caught:
        train.read_flags(flags)
    assert caught.value.code == Exit.FLAGS
    assert message in str(caught.value)


def test_all_problems_of_the_flags_are_reported_together():
    with pytest.raises(UserError) as caught:
        train.read_flags(["--epochs", "0", "--dropout", "2", "--sed", "1"])
    assert all(name in str(caught.value) for name in ("--epochs", "--dropout", "--sed"))


def test_help_and_wrong_flags_answer_before_torch_is_imported():
    program = (
        "import runpy, sys\nsys.argv = ['train.py', {!r}]\n"
        "try:\n    runpy.run_path('train.py', run_name='__main__')\nexcept SystemExit as end:\n"
        "    print(int(end.code or 0), 'torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    for flag, code in (("--help", 0), ("--hlep", 2)):
        done = subprocess.run(
            [sys.executable, "-c", program.format(flag)], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert done.stdout.splitlines()[-1] == f"{code} False False"


# What each flag is set to; after the bar what the run it is compared with is given too.
VARIANTS = {
    "--data_dir": "nowhere",
    "--bin_file": "{corpus}/val.bin",
    "--val_bin_file": "{corpus}/train.bin",
    "--tokenizer_file": "nowhere.json",
    "--metadata_file": "nowhere.json",
    "--vocab_size": "300 | --bin_file {corpus}/train.bin",
    "--preload": "mmap",
    "--allow_new_data": "| --resume_from auto",
    "--deterministic": "",
    "--model_size": "mini | --n_head 2",
    "--n_layer": "2",
    "--n_head": "4",
    "--n_embd": "32",
    "--seq_length": "4",
    "--dropout": "0.5",
    "--no-bias": "",
    "--no-tie_weights": "",
    "--batch_size": "2",
    "--gradient_accumulation_steps": "2",
    "--epochs": "2 | --max_steps 100",
    "--max_steps": "2",
    "--patience": "1 | --eval_interval 1 --learning_rate 1e-30 --min_lr 0",
    "--learning_rate": "0.1",
    "--min_lr": "0",
    "--warmup_steps": "1",
    "--no-use_lr_scheduler": "",
    "--weight_decay": "5",
    "--beta1": "0.5",
    "--beta2": "0.5",
    "--grad_clip": "0.01",
    "--label_smoothing": "0.2",
    "--seed": "2",
    "--use_gpu": "",
    "--use_amp": "",
    "--amp_dtype": "fp16 | --use_amp",
    "--compile": "",
    "--residual_dtype": "fp32 | --use_amp",
    "--loss_chunk_tokens": "3",
    "--activation_checkpointing": "",
    "--output_dir": "{tmp}/elsewhere",
    "--checkpoint_interval": "3 | --batch_size 50 --epochs 3",
    "--checkpoint_every_steps": "1",
    "--checkpoint_every_minutes": "1e-9",
    "--keep_checkpoints": "1 | --checkpoint_every_steps 1",
    "--resume_from": "auto",
    "--overwrite": "| --resume_from {tmp}",
    "--reset_optimizer": "| --resume_from auto",
    "--init_from": "nowhere",
    "--eval_interval": "1",
    "--eval_batches": "1",
    "--sample_interval": "1",
    "--log_interval": "2",
    "--tensorboard": "",
    "--dry_run": "",
    "--gpu_cost_per_hour": "2 | --dry_run",
    "--budget": "1 | --dry_run --gpu_cost_per_hour 2",
}
NOT_ON_A_CPU = {
    "--compile_mode": "needs a real compile: tested with -m slow",
    "--no-tf32": "a GPU's number format",
    "--fp8_head": "a GPU's number format; that a CPU refuses it is tested below",
    "--debug": "tested in test_cli.py",
}


def fingerprint(run, *flags) -> tuple:
    """All that a run shows and leaves, but for clock readings: printed text, metrics, checkpoints, weights."""
    out = f"out-{len(list(run.folder.iterdir()))}"
    code, text = run(
        "--epochs",
        "1",
        "--max_steps",
        "4",
        "--log_interval",
        "1",
        "--eval_interval",
        "4",
        "--sample_interval",
        "4",
        *flags,
        out=out,
    )
    text = re.sub(
        r"[\d.]+ (ms|GiB|MiB|s\b|min|free)|[\d,]+ tok/s|seconds: \S+|step_seconds: .*|\S*_second: .*|time: .*|"
        r"hours\S+ .*|cost: [\d.]+|budget: f.*|memory\S*:.*|data_wait:.*|out-\d+",
        "",
        text,
    )
    files = sorted(str(path.relative_to(run.folder / out)) for path in (run.folder / out).rglob("*"))
    weights = [(run.folder / out / name).read_bytes() for name in files if name.endswith("model.safetensors")]
    lines = metrics_of(run.folder / out) if "metrics.jsonl" in files else []
    return str(code), text, files, lines, weights


def test_each_flag_changes_something(run, corpus, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")  # --compile then shows in the plan and the warning, without its seconds
    assert fingerprint(run) == fingerprint(run)
    silent = []
    for flag, words in VARIANTS.items():
        value, _, context = (part.format(corpus=corpus, tmp=run.folder).split() for part in words.partition("|"))
        if fingerprint(run, *context) == fingerprint(run, *context, flag, *value):
            silent.append(flag)
    assert silent == ["--allow_new_data", "--model_size", "--overwrite", "--reset_optimizer"]  # have tests of their own
    shown = subprocess.run(
        [sys.executable, ROOT / "train.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    declared = set(re.findall(r"^  (--[\w-]+)", shown, re.MULTILINE))
    assert declared == {flag.replace("--no-", "--") for flag in (*VARIANTS, *NOT_ON_A_CPU)}


def test_model_sizes_are_those_of_the_table():
    for name, shape in SIZES.items():
        config = train.model_config(train.read_flags(["--model_size", name]), 300, 10_000)
        assert (config.n_layer, config.n_head, config.n_embd, config.seq_length) == (*shape, 1024)


# ---------------------------------------------------------------- runs


def test_a_run_prints_its_plan_its_steps_and_what_to_type_next(run):
    code, text = run("--epochs", "2", "--log_interval", "5")
    assert code == 0
    for word in (
        "device ",
        "precision ",
        "attention ",
        "compile ",
        "model ",
        "schedule ",
        "output ",
        "next: python generate.py",
    ):
        assert f"\n{word}" in "\n" + text
    line = re.compile(
        r"^step [\d,]+/[\d,]+ \| epoch \d+/2 \| loss \d+\.\d{4} \| lr \d\.\d\de-\d\d \| norm \d+\.\d\d \| [\d.]+ ms \| "
        r"[\d,]+ tok/s \| mfu n/a \| [\d.]+ GiB \| .* left$",
        re.MULTILINE,
    )
    assert len(line.findall(text)) >= 5
    lines = metrics_of(run.folder / "out")
    steps = [fields["step"] for fields in lines if "loss" in fields]
    assert steps == sorted(set(steps))
    assert {"step", "loss", "lr", "grad_norm", "tokens"} == set(lines[0])
    assert {"step", "val_loss", "perplexity", "bits_per_byte"} == set(
        next(fields for fields in lines if "val_loss" in fields)
    )
    stays = [
        path
        for path in steps_in(run.folder / "out").values()
        if json.loads((path / "trainer_state.json").read_text())["stays"]
    ]
    assert len(stays) == 2  # one an epoch


def test_the_loss_falls_and_the_best_checkpoint_stays(run):
    code, _ = run(
        "--epochs",
        "8",
        "--learning_rate",
        "0.01",
        "--eval_interval",
        "20",
        "--keep_checkpoints",
        "1",
        "--checkpoint_interval",
        "100",
    )
    assert code == 0
    lines = metrics_of(run.folder / "out")
    losses = [fields["loss"] for fields in lines if "loss" in fields]
    assert losses[-1] < losses[0] - 1
    val = {fields["step"]: fields["val_loss"] for fields in lines if "val_loss" in fields}
    assert min(val, key=lambda step: val[step]) in steps_in(run.folder / "out")


@pytest.mark.parametrize(
    "flags",
    [
        ["--preload", "ram"],
        ["--preload", "mmap"],
        ["--use_amp"],
        ["--log_interval", "7"],
        ["--batch_size", "2", "--gradient_accumulation_steps", "2", "--use_amp", "--amp_dtype", "fp16"],
    ],
    ids=" ".join,
)
def test_a_run_stopped_and_resumed_equals_one_that_was_not(run, monkeypatch, flags):
    """A signal at steps 7 and 42, which is in the second epoch; dropout on; weights, moments and losses bit for bit."""
    flags = [
        "--epochs",
        "3",
        "--max_steps",
        "60",
        "--dropout",
        "0.1",
        "--log_interval",
        "1",
        "--eval_interval",
        "20",
        *flags,
    ]
    assert run(*flags, out="whole")[0] == 0
    report = train.report

    def stop_at(stops):
        def stopping(r, *rest):
            report(r, *rest)
            if r.state.step in stops:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(train, "report", stopping)

    for stops in ({7}, {42}):
        stop_at(stops)
        code, text = run(*flags, "--resume_from", "auto", out="parts")
        assert code == 128 + signal.SIGTERM
        assert "to go on: python train.py" in text
    stop_at(set())
    assert run(*flags, "--resume_from", "auto", out="parts")[0] == 0
    assert metrics_of(run.folder / "whole") == metrics_of(run.folder / "parts")
    assert same_tensors(run.folder / "whole/checkpoint-60", run.folder / "parts/checkpoint-60")


def test_ram_and_mmap_train_alike(run):
    for where in ("ram", "mmap"):
        run("--max_steps", "5", "--preload", where, out=where)
    assert metrics_of(run.folder / "ram") == metrics_of(run.folder / "mmap")


def killed_run(argv: list[str], folder: Path, kill_after_step: int) -> None:
    """Starts train.py and kills it, uncatchably, once it has logged the step."""
    with subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                if f'"step": {kill_after_step},' in (folder / "metrics.jsonl").read_text():
                    process.send_signal(signal.SIGKILL)
                    return
            time.sleep(0.01)


def three_kills(corpus: Path, tmp_path: Path, flags: list[str]) -> None:
    common = [
        "--no-use_gpu",
        "--data_dir",
        str(corpus),
        *TINY,
        "--epochs",
        "9",
        "--max_steps",
        "60",
        "--dropout",
        "0.1",
        "--log_interval",
        "1",
        "--checkpoint_every_steps",
        "4",
        "--eval_interval",
        "9",
        "--sample_interval",
        "0",
        "--resume_from",
        "auto",
        *flags,
    ]
    subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *common, "--output_dir", str(tmp_path / "whole")],
        check=True,
        capture_output=True,
    )
    parts = [*common, "--output_dir", str(tmp_path / "parts")]
    for step in (7, 23, 46):
        killed_run(parts, tmp_path / "parts", step)
    subprocess.run([sys.executable, str(ROOT / "train.py"), *parts], check=True, capture_output=True)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "parts")
    assert same_tensors(tmp_path / "whole/checkpoint-60", tmp_path / "parts/checkpoint-60")


def test_a_run_killed_three_times_equals_one_that_was_not(corpus, tmp_path):
    three_kills(corpus, tmp_path, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--compile"],
        ["--compile", "--use_amp", "--preload", "mmap"],
        ["--preload", "mmap"],
        ["--gradient_accumulation_steps", "3", "--use_amp"],
    ],
    ids=" ".join,
)
def test_a_run_killed_three_times_equals_one_that_was_not_in_every_mode(corpus, tmp_path, flags):
    three_kills(corpus, tmp_path, flags)


@pytest.mark.slow
def test_a_whole_run_compiles_one_graph_for_training_and_one_for_validation(run):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    code, text = run("--compile", "--epochs", "2", "--eval_interval", "7", "--sample_interval", "5", "--dropout", "0.1",
                     "--warmup_steps", "2")
    assert code == 0
    assert text.count("validation at step") > 2
    assert text.count("sample at step") > 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
def test_compiled_equals_eager_within_rounding(run):
    code, text = run(
        "--max_steps",
        "8",
        "--log_interval",
        "1",
        "--compile",
        "--no-tie_weights",
        "--label_smoothing",
        "0.1",
        out="compiled",
    )
    assert code == 0
    assert "compiled    in" in text
    run("--max_steps", "8", "--log_interval", "1", "--no-tie_weights", "--label_smoothing", "0.1", out="eager")
    for a, b in zip(metrics_of(run.folder / "compiled"), metrics_of(run.folder / "eager"), strict=True):
        assert all(a[key] == pytest.approx(b[key], rel=1e-4) for key in a)
    code, text = run("--max_steps", "2", "--compile", "--compile_mode", "max-autotune-no-cudagraphs", out="tuned")
    assert code == 0


def test_a_compiler_that_fails_costs_one_warning(run, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(device, "why_no_compile", lambda _: None)
    monkeypatch.setattr(GPT, "compile", broken)
    code, text = run("--max_steps", "2", "--compile")
    assert code == 0
    assert "torch.compile failed, running eagerly: no such kernel" in text


def test_a_finished_run_says_so_and_writes_nothing(run):
    assert run("--max_steps", "3")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (run.folder / "out").rglob("*") if path.name != ".lock"}
    code, text = run("--max_steps", "3", "--resume_from", "auto")
    assert code == 0
    assert "already at step 3 of 3; raise --epochs or --max_steps" in text
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_longer_horizon_goes_on_and_says_what_changed(run):
    run("--max_steps", "3")
    code, text = run("--max_steps", "6", "--learning_rate", "0.001", "--resume_from", "auto")
    assert code == 0
    assert "total_steps 3 -> 6" in text
    assert "learning_rate" in text
    assert max(steps_in(run.folder / "out")) == 6


def test_another_runs_checkpoints_are_never_mixed_with_ours(run):
    run("--max_steps", "3")
    code, _ = run("--max_steps", "3")
    assert code.code == Exit.CHECKPOINT
    assert "--overwrite, which deletes its 1 checkpoints" in str(code)
    code, text = run("--max_steps", "2", "--overwrite")
    assert code == 0
    assert "deleting" in text
    assert list(steps_in(run.folder / "out")) == [2]


def test_a_checkpoint_of_another_model_or_corpus_is_refused(run, corpus, tmp_path):
    run("--max_steps", "2")
    code, _ = run("--max_steps", "4", "--n_layer", "2", "--resume_from", "auto")
    assert code.code == Exit.CHECKPOINT
    assert "n_layer is 1 there, 2 here" in str(code)
    other = [
        "--bin_file",
        str(corpus / "val.bin"),
        "--tokenizer_file",
        str(corpus / "tokenizer.json"),
        "--resume_from",
        "auto",
    ]
    (tmp_path / "metadata.json").write_text(json.dumps({"vocab_size": 300, "dtype": "int16"}))
    other += ["--metadata_file", str(tmp_path / "metadata.json")]
    vocabulary = json.loads((corpus / "metadata.json").read_text())["vocab_size"]
    (tmp_path / "metadata.json").write_text(json.dumps({"vocab_size": vocabulary, "dtype": "int16"}))
    code, _ = run("--max_steps", "4", *other)
    assert code.code == Exit.DATA
    assert "--allow_new_data" in str(code)
    assert run("--max_steps", "4", *other, "--allow_new_data")[0] == 0


def test_losses_that_are_not_finite_end_the_run_with_exit_6(run, monkeypatch):
    run("--max_steps", "3")
    forward = GPT.forward
    monkeypatch.setattr(GPT, "forward", lambda *a, **k: forward(*a, **k) * math.nan)
    code, _ = run("--max_steps", "40", "--resume_from", "auto", "--log_interval", "1")
    assert code.code == Exit.DIVERGED
    assert "checkpoint-3" in str(code)
    assert list(steps_in(run.folder / "out")) == [3]


def test_what_is_wrong_around_a_run_is_told_in_one_go(run):
    (run.folder / "out").write_text("a file")
    code, _ = run("--metadata_file", "nowhere.json", "--resume_from", str(run.folder / "no"), "--max_steps", "2")
    assert code.code == Exit.MACHINE
    lines = str(code).split("\nerror: ")
    assert len(lines) == 3
    assert all(word in line for word, line in zip(("--output_dir", "nowhere.json", "no does not exist"), lines,
                                                  strict=True))


def test_a_run_that_never_began_leaves_no_folder(run):
    code, _ = run("--metadata_file", "nowhere.json")
    assert code.code == Exit.DATA
    assert not (run.folder / "out").exists()


def test_training_goes_on_while_a_checkpoint_is_written(run, monkeypatch):
    logged, real = [], save

    def slow(output_dir, step, *rest):
        deadline = time.monotonic() + 60
        while step == 2 and time.monotonic() < deadline:  # until later steps have been logged
            logged[:] = [line["step"] for line in metrics_of(output_dir)]
            if max(logged) >= 3:
                break
            time.sleep(0.01)
        return real(output_dir, step, *rest)

    monkeypatch.setattr(checkpoint, "save", slow)
    code, text = run("--max_steps", "5", "--checkpoint_every_steps", "2", "--log_interval", "1", "--eval_interval", "9")
    assert code == 0
    assert max(logged) >= 3
    assert re.search(r"saved checkpoint-2: .* in \d+\.\d\d s, of which training waited \d\.\d\d s \(said once\)", text)
    assert list(steps_in(run.folder / "out")) == [5, 4, 2]


def test_no_copy_is_held_where_only_the_end_is_saved(run, monkeypatch):
    flags = ("--max_steps", "3", "--eval_interval", "9", "--checkpoint_every_minutes", "0")
    code, text = run(*flags, "--checkpoint_every_steps", "2")
    assert code == 0
    assert "written in the background, from a copy" in text
    assert "copy " in next(line for line in text.splitlines() if line.startswith("memory"))
    monkeypatch.setattr(checkpoint, "Snapshot", None)
    code, text = run(*flags, out="other")
    assert code == 0
    assert "written at the end" in text
    assert "copy " not in next(line for line in text.splitlines() if line.startswith("memory"))
    assert list(steps_in(run.folder / "other")) == [3]


def test_a_copy_in_pinned_memory_takes_a_power_of_two(monkeypatch):
    config, on_cpu = GPTConfig(300, 16, 2, 2, 16), device.choose(False, None, "auto", None)
    on_gpu = dataclasses.replace(on_cpu, device=torch.device("cuda"))
    monkeypatch.setattr(checkpoint, "bytes_needed", lambda config: 5 * 2**20)
    assert train.copy_bytes(config, on_cpu) == 5 * 2**20
    assert train.copy_bytes(config, on_gpu) == 8 * 2**20
    monkeypatch.setattr(device, "available_ram", lambda: 12 * 2**20)
    assert train.has_room_for_a_copy(config, on_cpu)
    assert not train.has_room_for_a_copy(config, on_gpu)


def test_a_copy_takes_as_much_whether_or_not_there_are_moments(run, monkeypatch):
    reserved, real = [], Snapshot.reserve

    def reserve(self, num_bytes, pinned):
        reserved.append(num_bytes)
        real(self, num_bytes, pinned)

    monkeypatch.setattr(Snapshot, "reserve", reserve)
    flags = ("--checkpoint_every_steps", "2", "--eval_interval", "9")
    for more in (("--max_steps", "3"), ("--max_steps", "5", "--resume_from", "auto")):
        reserved.clear()
        assert run(*flags, *more)[0] == 0
        first, *saves = reserved  # what is taken ahead suffices for each save, and is not much more
        assert max(saves) <= first < max(saves) + 2**16


def test_without_memory_for_a_copy_training_waits_and_the_bytes_are_the_same(run, monkeypatch):
    flags = ("--max_steps", "4", "--checkpoint_every_steps", "2", "--eval_interval", "9")
    assert run(*flags)[0] == 0
    monkeypatch.setattr(train.checkpoint, "bytes_needed", lambda config: 2**62)
    code, text = run(*flags, out="waiting")
    assert code == 0
    assert "written while training waits" in text
    for step in (2, 4):
        assert same_tensors(run.folder / f"out/checkpoint-{step}", run.folder / f"waiting/checkpoint-{step}")


def test_the_best_stays_until_a_better_one_is_on_the_disk(run, monkeypatch):
    losses, real = iter([3.0, 2.0, 1.0]), save

    def full_from_step_4(output_dir, step, *rest):
        if step >= 4:
            raise OSError(28, "No space left on device")
        return real(output_dir, step, *rest)

    monkeypatch.setattr(checkpoint, "save", full_from_step_4)
    monkeypatch.setattr(train, "evaluate", lambda *_: (next(losses), None))
    run("--max_steps", "6", "--eval_interval", "2", "--checkpoint_every_steps", "1", "--keep_checkpoints", "1")
    assert list(steps_in(run.folder / "out")) == [3, 2]


def test_finetuning_starts_where_transformers_stands_and_its_result_opens_there(run, corpus):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    vocab_size = json.loads((corpus / "metadata.json").read_text())["vocab_size"]
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                        initializer_range=0.3)).eval()
    theirs.save_pretrained(run.folder / "gpt2")
    argv = ["--data_dir", str(corpus), "--output_dir", str(run.folder / "out"), "--init_from", str(run.folder / "gpt2"),
            "--no-use_gpu", "--max_steps", "30", "--batch_size", "8", "--learning_rate", "1e-2"]
    out = cli_output(argv)
    tokens = torch.from_numpy(np.fromfile(corpus / "val.bin", "<i2").astype(np.int64))
    windows = [tokens[start:start + 17] for start in range(0, len(tokens) - 1, 16)]
    with torch.no_grad():
        nats = sum(float(F.cross_entropy(theirs(window[None, :-1]).logits[0], window[1:], reduction="sum"))
                   for window in windows)
    began = float(re.search(r"validation before the first step \| loss (\S+)", out)[1])  # type: ignore[index]
    assert began == pytest.approx(nats / (len(tokens) - 1), abs=6e-5)
    assert "no tokenizer to compare" in out
    losses = [line["val_loss"] for line in metrics_of(run.folder / "out") if "val_loss" in line]
    assert losses[-1] < began - 1
    again = GPT2LMHeadModel.from_pretrained(run.folder / "out/checkpoint-30").eval()
    ours = load_model(run.folder / "out/checkpoint-30", torch.device("cpu")).eval()
    with torch.no_grad():
        assert torch.allclose(again(tokens[None, :16]).logits, ours(tokens[None, :16]), atol=1e-4)



def cli_output(argv: list[str]) -> str:
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("flags", "code", "words"), [
    (["--seq_length", "99"], Exit.FLAGS, "--seq_length 99: --init_from has 8 positions"),
    (["--n_layer", "2"], Exit.FLAGS, "--init_from: sets the model's shape"),
    (["--data_dir", "{other}"], Exit.DATA, "another tokenizer than --init_from's"),
    (["--data_dir", "{larger}"], Exit.DATA, "ids, --init_from"),
])
def test_weights_that_do_not_fit_the_corpus_are_refused(run, corpus, tmp_path, flags, code, words):
    import pretokenize

    assert run("--max_steps", "2")[0] == 0
    text = tmp_path / "text.txt"
    text.write_text(" ".join(str(number**3) for number in range(800)))
    for name, size in (("other", "270"), ("larger", "320")):
        pretokenize.main([str(text), "--output_dir", str(tmp_path / name), "--vocab_size", size])
    flags = [flag.format(other=tmp_path / "other", larger=tmp_path / "larger") for flag in flags]
    with pytest.raises(UserError, match=words) as caught:
        train.main(["--data_dir", str(corpus), "--output_dir", str(tmp_path / "tuned"), "--no-use_gpu", "--max_steps",
                    "2", "--init_from", str(run.folder / "out"), *flags])
    assert caught.value.code == code
    assert not (tmp_path / "tuned").exists()


def test_a_finetuned_model_may_be_shorter_and_a_run_of_it_resumes(run, corpus, tmp_path):
    assert run("--max_steps", "2")[0] == 0
    argv = ["--data_dir", str(corpus), "--output_dir", str(tmp_path / "tuned"), "--no-use_gpu", "--batch_size", "4",
            "--init_from", str(run.folder / "out"), "--seq_length", "4", "--sample_interval", "0"]
    assert train.main([*argv, "--max_steps", "2"]) == 0
    assert train.main([*argv, "--max_steps", "3", "--resume_from", "auto"]) == 0
    assert max(steps_in(tmp_path / "tuned")) == 3
    config = read_config(tmp_path / "tuned/checkpoint-3")
    assert (config.seq_length, config.n_layer) == (4, 1)


def test_a_model_card_tells_the_data_the_curve_and_the_command_without_paths(run):
    run("--max_steps", "4", "--eval_interval", "2", "--checkpoint_every_steps", "2")
    run("--max_steps", "6", "--eval_interval", "2", "--resume_from", "auto", "--epochs", "9")
    card = (run.folder / "out/checkpoint-6/README.md").read_text()
    losses = {line["step"]: line["val_loss"] for line in metrics_of(run.folder / "out") if "val_loss" in line}
    rows = dict(re.findall(r"^\| (\d) \| ([\d.]+) \|", card, re.MULTILINE))
    assert rows == {str(step): f"{losses[step]:.4f}" for step in (2, 4)}  # a save comes before its validation
    assert re.search(r"training tokens: 8\d\d, sha256 [0-9a-f]{64}", card)
    assert re.search(r"    python train\.py --data_dir data --output_dir out .*--max_steps 6", card)
    assert str(run.folder) not in card


def test_tensorboard_is_told_what_metrics_jsonl_is(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run("--max_steps", "4", "--log_interval", "1", "--tensorboard", "--checkpoint_every_steps", "2")
    run("--max_steps", "6", "--log_interval", "1", "--tensorboard", "--resume_from", "auto", "--epochs", "9")
    events = accumulator.EventAccumulator(str(run.folder / "out/tensorboard")).Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    lines = metrics_of(run.folder / "out")
    assert told == pytest.approx({line["step"]: line["loss"] for line in lines if "loss" in line})
    assert {event.step for event in events.Scalars("val_loss")} == {4, 6}


def test_an_optimizer_reset_resumes_weights_and_step_alone(run):
    flags = ("--checkpoint_every_steps", "2", "--eval_interval", "9", "--log_interval", "1", "--epochs", "9")
    run("--max_steps", "4", *flags)
    code, text = run("--max_steps", "6", *flags, "--resume_from", "auto", "--reset_optimizer")
    assert code == 0
    assert "the optimizer starts without its state (--reset_optimizer)" in text
    assert [line["step"] for line in metrics_of(run.folder / "out")][:6] == [1, 2, 3, 4, 5, 6]
    tensors = load_file(run.folder / "out/checkpoint-6/optimizer.safetensors")
    assert tensors["step.transformer.wte.weight"] == 2


def test_spikes_and_advice_are_told(run, monkeypatch):
    monkeypatch.setattr(train.curve.Curve, "add", lambda self, step, loss: f"spike {step}" if step == 3 else None)
    monkeypatch.setattr(train.curve.Curve, "advice", lambda *_: "the loss explodes: so")
    _, text = run("--max_steps", "6", "--log_interval", "2", "--epochs", "9")
    assert text.count("warning: spike 3\n") == 1
    assert text.count("the loss explodes") == 1


@pytest.mark.slow
def test_a_process_that_stood_still_does_not_spoil_the_seconds(corpus, tmp_path):
    argv = ["--no-use_gpu", "--data_dir", str(corpus), "--output_dir", str(tmp_path), *TINY, *QUIET, "--log_interval",
            "1", "--epochs", "999999", "--max_steps", "100000", "--checkpoint_interval", "999999"]
    with subprocess.Popen([sys.executable, str(ROOT / "train.py"), *argv], stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: len(metrics_lines(tmp_path)) > 5)
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        stopped_after = len(metrics_lines(tmp_path))
        wait_for(lambda: len(metrics_lines(tmp_path)) > stopped_after + 50)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert max(json.loads(line)["seconds"] for line in metrics_lines(tmp_path) if '"seconds"' in line) < 4


def metrics_lines(folder: Path) -> list[str]:
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(what) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_disk_that_fills_up_costs_the_checkpoint_and_not_the_run(run, monkeypatch):
    real, calls = write_tensors, []

    def full(*a, **k):
        calls.append(1)
        if len(calls) <= 4:  # two files a save
            raise OSError(28, "No space left on device")
        return real(*a, **k)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    code, text = run("--max_steps", "6", "--checkpoint_every_steps", "2", "--eval_interval", "100")
    assert code == 0
    assert text.count("could not be saved: No space left on device") == 2
    assert list(steps_in(run.folder / "out")) == [6]
    assert not list((run.folder / "out").glob(".tmp*"))
    monkeypatch.setattr(checkpoint, "write_tensors", lambda *_, **__: full_always())
    code, _ = run("--max_steps", "2", out="full")
    assert code.code == Exit.MACHINE


def full_always():
    raise OSError(28, "No space left on device")


def test_a_dry_run_writes_nothing(run):
    code, text = run("--dry_run", "--gpu_cost_per_hour", "2.5", "--budget", "1000")
    assert code == 0
    for key in ("step_seconds", "tokens_per_second", "peak_memory", "largest_batch_size", "disk", "time", "cost"):
        assert f"\n{key}: " in text
    assert "\nbudget: fits" in text
    assert not (run.folder / "out").exists()


# ---------------------------------------------------------------- memory


def forward_that_needs(monkeypatch, most_rows: int, error: Exception) -> list[int]:
    """Makes the model's training forward raise the error for more rows than that; returns the rows of each call."""
    forward, rows = GPT.forward, []

    def limited(model, idx_BT, *rest):
        if model.training:
            rows.append(len(idx_BT))
        if len(idx_BT) > most_rows:
            raise error
        return forward(model, idx_BT, *rest)

    monkeypatch.setattr(GPT, "forward", limited)
    return rows


OUT_OF_MEMORY = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes. Error code 12"),
    "host": MemoryError(),
}


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
@pytest.mark.parametrize("preload", ["ram", "mmap"])
def test_a_step_that_does_not_fit_is_done_in_smaller_micro_batches(run, monkeypatch, kind, preload):
    """Six samples a step as 6, then as 2 x 3 from the first step on, and as 2 x 3 from the flags: one mathematics."""
    flags = ["--max_steps", "6", "--log_interval", "1", "--eval_interval", "3", "--preload", preload]
    assert run(*flags, "--batch_size", "6", out="whole")[0] == 0
    assert run(*flags, "--batch_size", "2", "--gradient_accumulation_steps", "3", out="thirds")[0] == 0
    rows = forward_that_needs(monkeypatch, 2, OUT_OF_MEMORY[kind])
    code, text = run(*flags, "--batch_size", "6", out="shrunk")
    assert code == 0
    assert rows == [6, 3] + [2] * 18
    assert text.count("out of memory in step 1") == 2
    assert "going on with 2 x 3 micro-batches" in text
    whole, thirds, shrunk = (metrics_of(run.folder / name) for name in ("whole", "thirds", "shrunk"))
    for one, other in zip(whole, shrunk, strict=True):
        assert other == pytest.approx(one, rel=1e-4)  # validation alike: its windows do not depend on the batch
    assert [fields for fields in shrunk if "loss" in fields] == [fields for fields in thirds if "loss" in fields]


def test_a_step_that_fails_between_micro_batches_leaves_no_trace(run, monkeypatch):
    """Memory runs out in the third of four micro-batches of step 3, with dropout: steps 1 and 2 are those of before."""
    flags = ["--max_steps", "4", "--log_interval", "1", "--dropout", "0.2", "--gradient_accumulation_steps", "4"]
    run(*flags, out="clean")
    forward, calls = GPT.forward, []

    def once(model, *rest):
        calls.append(len(rest[0]))
        if len(calls) == 11:
            raise OUT_OF_MEMORY["gpu"]
        return forward(model, *rest)

    monkeypatch.setattr(GPT, "forward", once)
    code, text = run(*flags, out="failed")
    assert code == 0
    assert "out of memory in step 3 with 4 sequences at a time: going on with 2 x 8 micro-batches" in text
    assert calls[10:20] == [4] + [2] * 8 + [2]
    clean, failed = (metrics_of(run.folder / name) for name in ("clean", "failed"))
    assert clean[:2] == failed[:2]
    assert failed[2]["loss"] == pytest.approx(clean[2]["loss"], abs=0.05)  # other neurons are dropped
    assert failed[2]["tokens"] == clean[2]["tokens"]


def test_undoing_a_step_drops_moments_and_scaler_notes_half_made(run):
    holder, seen = {}, train.loop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "loop", lambda r, metrics: holder.update(run=r) or seen(r, metrics))
        run("--max_steps", "2", "--use_amp", "--amp_dtype", "fp16")
    r = holder["run"]
    parameter = next(iter(r.optimizer.state))
    del r.optimizer.state[parameter]["exp_avg_sq"]
    for p in r.model.parameters():
        p.grad = torch.zeros_like(p)
    r.scaler.scale(torch.ones(()))
    r.scaler.unscale_(r.optimizer)
    scale, rng = r.scaler.get_scale(), torch.get_rng_state()
    train.undo(r, device.rng_state(r.machine))
    assert parameter not in r.optimizer.state
    assert all(p.grad is None for p in r.model.parameters())
    assert r.scaler.get_scale() == scale
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.isfinite(train.step_of(r)[0])


def test_one_sequence_that_does_not_fit_ends_with_exit_5_and_the_cure(run, monkeypatch):
    rows = forward_that_needs(monkeypatch, 0, OUT_OF_MEMORY["gpu"])
    code, text = run("--max_steps", "2")
    assert code.code == Exit.MACHINE
    assert rows == [4, 2, 1]
    assert "out of memory with 1 sequences at a time" in str(code)
    assert "--seq_length" in str(code)
    assert "1 x 4 micro-batches" in text


def test_another_error_of_the_step_is_not_taken_for_want_of_memory(run, monkeypatch):
    forward_that_needs(monkeypatch, 0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run("--max_steps", "2")


def test_batch_size_auto_keeps_the_samples_of_a_step_and_tries_only_once(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(train.plan, "MOST_TOKENS", 40)  # five sequences of 8
    flags = ["--max_steps", "1", "--seq_length", "8", "--batch_size", "auto", "--gradient_accumulation_steps", "3"]
    code, text = run(*flags, out="first")
    assert code == 0
    found = re.search(r"^batch_size  (\d+) x (\d+) micro-batches holds [\d.]+ MiB; (.*) \((.*)\)$", text, re.MULTILINE)
    assert found
    assert found.groups() == ("4", "384", "more than 40 tokens help no more", "1 tried")
    assert "step        12,288 tokens: 4 sequences x 384 micro-batches x 8" in text  # 3 x 4,096 tokens
    monkeypatch.setattr(train.plan, "peak_in_child", None)
    code, text = run(*flags, out="second")
    assert code == 0
    assert "remembered in" in text
    monkeypatch.setattr(device, "available_ram", lambda: 2**20)
    code, _ = run(*flags, out="third")
    assert code.code == Exit.MACHINE
    assert "not even one sequence" in str(code)


# ---------------------------------------------------------------- is the device busy?


class Busy(Gauge):
    """A gauge of a GPU that has work a third of the time and waits for data a tenth."""

    def __init__(self, machine):
        super().__init__(machine)
        self.readings = [(33, 100.0)] * 3

    def lap(self, seconds):
        self.trained += 60
        self.waited["data"] += 6


def test_what_holds_the_device_back_is_said_once(run, monkeypatch):
    _, text = run("--max_steps", "4", out="idle")
    assert re.search(r"^data_wait: [\d.]+% of the steps' time$", text, re.MULTILINE)
    assert "holds the device back" not in text
    monkeypatch.setattr(device, "Gauge", Busy)
    code, text = run("--max_steps", "6", "--log_interval", "1", out="busy")
    assert code == 0
    assert text.count("the loader holds the device back: 10% of the time") == 1
    assert "gpu: 33% busy, 100 W, the mean of 3 readings" in text
    assert "the GPU waits" not in text  # this is a CPU


def test_a_gpu_that_is_asked_for_and_missing_ends_with_exit_5(run):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, _ = run("--use_gpu")
    assert code.code == Exit.MACHINE
    assert "CPU build" in str(code) or "driver" in str(code)


def test_a_head_in_8_bits_is_refused_where_it_cannot_be(run, monkeypatch):
    monkeypatch.setattr(device, "why_no_cuda", lambda: None)
    monkeypatch.setattr(device, "why_no_fp8", lambda: "compute capability 8.0 is below 8.9. Take another")
    code, _ = run("--use_gpu", "--fp8_head", "--seq_length", "16")
    assert code.code == Exit.MACHINE
    assert str(code) == "--fp8_head: compute capability 8.0 is below 8.9. Take another, or drop the flag."
    monkeypatch.setattr(device, "why_no_fp8", lambda: None)
    code, _ = run("--use_gpu", "--fp8_head", "--seq_length", "24")
    assert code.code == Exit.FLAGS
    assert "needs a width and a T that 16 divides, not 16 and 24" in str(code)
    for flags in (["--no-use_amp"], ["--amp_dtype", "fp16"], ["--loss_chunk_tokens", "24"]):
        code, _ = run("--use_gpu", "--fp8_head", *flags)
        assert code.code == Exit.FLAGS


def test_the_old_spelling_of_the_files_trains(corpus, tmp_path, capsys):
    for name, old in (("train.bin", "tokens_bpe.bin"), ("tokenizer.json", "bpe_tokenizer.json")):
        (tmp_path / old).write_bytes((corpus / name).read_bytes())
    fields = json.loads((corpus / "metadata.json").read_text())
    (tmp_path / "tokens_bpe_metadata.json").write_text(
        json.dumps({"vocab_size": fields["vocab_size"], "dtype": "int16"})
    )
    code = train.main(
        [
            "--bin_file",
            f"{tmp_path}/tokens_bpe.bin",
            "--tokenizer_file",
            f"{tmp_path}/bpe_tokenizer.json",
            "--metadata_file",
            f"{tmp_path}/tokens_bpe_metadata.json",
            "--model_size",
            "tiny",
            "--batch_size",
            "2",
            "--gradient_accumulation_steps",
            "2",
            "--learning_rate",
            "0.001",
            "--epochs",
            "10",
            "--checkpoint_interval",
            "1",
            "--use_lr_scheduler",
            "--warmup_steps",
            "1",
            "--min_lr",
            "1e-5",
            "--seq_length",
            "16",
            "--output_dir",
            f"{tmp_path}/out",
            "--max_steps",
            "2",
        ]
    )
    assert code == 0
    assert "the last" in capsys.readouterr().err  # where the validation tokens come from


def test_a_corpus_shorter_than_a_sequence_trains_on_a_shorter_one(tmp_path, capsys):
    np.arange(20, dtype="<i2").tofile(tmp_path / "short.bin")
    code = train.main(
        [
            "--bin_file",
            f"{tmp_path}/short.bin",
            "--vocab_size",
            "32",
            "--model_size",
            "tiny",
            "--max_steps",
            "2",
            "--output_dir",
            f"{tmp_path}/out",
        ]
    )
    assert code == 0
    text = capsys.readouterr().err
    assert "T is 19, not 1,024" in text
    assert "no validation tokens" in text


def test_a_validation_that_says_little_is_pointed_out(corpus, tmp_path, capsys):
    flags = ["--data_dir", str(corpus), "--model_size", "tiny", "--seq_length", "16", "--dry_run"]
    assert train.main(flags) == 0
    assert "validation has 92 tokens: by chance alone its loss is 0.3 nats off" in capsys.readouterr().err


def test_patience_ends_the_run(run):
    code, text = run(
        "--epochs",
        "50",
        "--learning_rate",
        "1e-30",
        "--min_lr",
        "0",
        "--eval_interval",
        "2",
        "--patience",
        "2",
        "--label_smoothing",
        "0.1",
    )
    assert code == 0
    assert "patience    2 validations without a new best" in text


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_run_on_a_gpu_learns_and_resumes(run, dtype):
    torch.compiler.reset()  # after eight graphs of one function it compiles no more, and says so in a log only
    flags = ["--use_gpu", "--use_amp", "--amp_dtype", dtype, "--compile", "--preload", "gpu", "--learning_rate", "0.01"]
    assert run("--epochs", "2", *flags)[0] == 0
    losses = [fields["loss"] for fields in metrics_of(run.folder / "out") if "loss" in fields]
    assert losses[-1] < losses[0] - 0.5
    code, text = run("--epochs", "3", *flags, "--resume_from", "auto")
    assert code == 0
    assert "resume      from checkpoint-" in text


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


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["gpu", "ram"])
def test_a_step_on_a_gpu_waits_for_nothing(tmp_path, where):
    torch.use_deterministic_algorithms(False)  # another test's wish
    model, cuda = small_model().to("cuda"), torch.device("cuda")
    optimizer = torch.optim.AdamW(train.param_groups(model, 0.1), lr=1e-2, fused=True)
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 2000).astype("<u2")
    ids.tofile(tmp_path / "ids.bin")
    stream = TokenStream((Part(tmp_path / "ids.bin", "uint16", 2000),))
    T, cpu = model.config.seq_length, torch.device("cpu")
    loader = data.Batches(data.CorpusWindows(stream, where, T, 0, cuda), 4, cuda)
    on_cpu = data.Batches(data.CorpusWindows(stream, "ram", T, 0, cpu), 4, cpu)
    for found, expected in zip(loader.get(8, 1), on_cpu.get(8, 1), strict=True):
        assert torch.equal(found.cpu(), expected)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    autocast = functools.partial(torch.autocast, "cuda", torch.bfloat16)

    def step(number: int) -> None:
        batches = (loader.get(8 * number, micro) for micro in range(2))
        train.train_step(model, optimizer, scaler, batches, 2, autocast, 0.0, 1.0)

    step(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1, 4):
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
