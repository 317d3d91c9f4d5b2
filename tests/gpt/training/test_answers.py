"""Training on conversations: the loss of a step is the mean over its answers, however the step is cut."""

import copy
import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import pretokenize
import train
from gpt.architectures.table import create
from gpt.checkpoint.load import load_model, read_config, start_from
from gpt.checkpoint.steps import steps_in
from gpt.common.errors import Exit
from gpt.common.progress import Progress
from gpt.common.signals import Signals
from gpt.evaluation.documents import token_files_of
from gpt.evaluation.scoring import Scorer
from gpt.machine import device
from gpt.ops.loss import IGNORED, LossRule, cross_entropy, linear_cross_entropy
from gpt.tokens.corpus import open_corpus
from gpt.tokens.layouts import Part
from gpt.tokens.stream import TokenStream
from gpt.tokens.tokenizer import bytes_per_id, load_tokenizer
from gpt.training.teacher import Teacher
from gpt.training.validation import sum_losses
from model import GPT, Options
from tests.helpers.training import QUIET, metrics_of, on_cpu, run_of, same_tensors, small_model, trained
from tests.helpers.trial import Trial, prove

T = 8
NUM_SAMPLES = 12
CUTS = [(12, 1), (4, 3), (1, 12)]  # rows of a micro-batch, and micro-batches of a step
STEPS = ["--max_steps", "4", "--log_interval", "1", "--eval_interval", "2", "--optimizer", "adamw"]
EXACT = 1e-6


def opened(folder: Path):
    return open_corpus(folder, None, folder / "metadata.json", folder / "tokenizer.json")


def batches_of(stream: TokenStream) -> data.Batches:
    windows = data.CorpusWindows(stream, "ram", T, 0, torch.device("cpu"))
    return data.Batches(windows, NUM_SAMPLES, torch.device("cpu"))


def model_of(vocab_size: int, chunk: int = 0) -> GPT:
    model = small_model(vocab_size=vocab_size, seq_length=T)
    return GPT(model.config, Options(loss_chunk=chunk)).init_weights(std=0.2)


def step_of(model: GPT, stream: TokenStream, rows: int, num: int, **more) -> tuple[float, float]:
    """The loss and the gradient's norm of one step of a copy of the model, in micro-batches of these rows."""
    batches = batches_of(stream)
    batches.resize(rows)
    run = run_of(copy.deepcopy(model), batches=batches, **more)
    figures = train.try_step(run, (batches.get(0, micro) for micro in range(num)), num)
    assert not figures["skipped"]
    return float(figures["loss"]), float(figures["grad_norm"])


def plain_mean(model: GPT, folder: Path, stream: TokenStream, teacher: GPT | None = None) -> tuple[float, float]:
    """The same from the files, with nothing but numpy and PyTorch's own functions; half is the teacher's."""
    ids = np.fromfile(folder / "train.bin", np.int16).astype(np.int64)
    bits = np.unpackbits(np.fromfile(folder / "train.mask", np.uint8), bitorder="little").astype(bool)
    losses, numbers = [], []
    for start in data.WindowOrder(stream.length, T, 0).starts(0, NUM_SAMPLES).tolist():
        window = torch.from_numpy(ids[start:start + T + 1])
        counted = torch.from_numpy(bits[start + 1:start + T + 1])
        log_p = model(window[None, :-1])[0].log_softmax(-1)
        wanted = F.one_hot(window[1:], log_p.shape[-1]).float()
        if teacher:
            wanted = wanted / 2 + teacher(window[None, :-1])[0].softmax(-1).detach() / 2
        losses.append(-(wanted * log_p).sum(-1)[counted].sum())
        numbers.append(int(counted.sum()))
    assert min(numbers) == 0
    assert max(numbers) == T
    loss = torch.stack(losses).sum() / sum(numbers)
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    return loss.item(), torch.stack([gradient.norm() for gradient in gradients]).norm().item()


# ---------------------------------------------------------------- the loss of a step


@pytest.mark.parametrize("rule", [LossRule(16, 0), LossRule(16, 5), LossRule(16, 0, 0.1), LossRule(16, 5, 0.1)])
@pytest.mark.parametrize("has_teacher", [False, True])
@pytest.mark.parametrize("num_targets", [None, torch.tensor(3.5)])
def test_logits_of_targets_that_do_not_count_have_no_gradient(rule, has_teacher, num_targets):
    torch.manual_seed(0)
    logits, targets, theirs = torch.randn(24, 16, requires_grad=True), torch.randint(16, (24,)), torch.randn(24, 16)
    targets[5:10] = targets[::3] = IGNORED
    if rule.loss_chunk:  # the output matrix is the unit matrix, so that the inputs are the logits
        loss = linear_cross_entropy(logits, torch.eye(16), targets, rule,
                                    (theirs, torch.eye(16)) if has_teacher else None, num_targets=num_targets)
    else:
        loss = cross_entropy(logits, targets, theirs if has_teacher else None, num_targets, rule.smoothing)
    [gradient] = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient.abs().sum(-1) > 0, targets != IGNORED)


@pytest.mark.parametrize("chunk", [0, 5])
@pytest.mark.parametrize("has_teacher", [False, True])
def test_a_step_is_the_mean_over_its_answers_however_it_is_cut(chats, chunk, has_teacher):
    corpus = opened(chats)
    model, other = model_of(corpus.vocab_size, chunk), small_model(vocab_size=corpus.vocab_size)
    expected = plain_mean(model, chats, corpus.train, other if has_teacher else None)
    for rows, num in CUTS:
        teacher = Teacher(copy.deepcopy(other)) if has_teacher else None
        assert step_of(model, corpus.train, rows, num, teacher=teacher) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 2e-2), ("fp16", 3e-3)])
def test_a_step_in_16_bits_is_near_the_mean_over_its_answers(chats, dtype, tolerance):
    corpus = opened(chats)
    model, machine = model_of(corpus.vocab_size, 5), device.choose(False, True, dtype, None)
    expected = plain_mean(model, chats, corpus.train)
    for rows, num in CUTS:
        scaler = torch.amp.GradScaler("cpu", enabled=dtype == "fp16")
        found = step_of(model, corpus.train, rows, num, machine=machine, scaler=scaler)
        assert found == pytest.approx(expected, rel=tolerance)


def test_a_step_without_an_answer_has_no_loss_and_no_gradient(chats, tmp_path):
    [part] = opened(chats).train.parts
    nothing = tmp_path / "train.mask"
    nothing.write_bytes(bytes(-(-part.length // 8)))
    stream = TokenStream((dataclasses.replace(part, mask=nothing),), 300)
    for chunk in (0, 5):
        model = model_of(300, chunk)
        for rows, num in CUTS:
            assert step_of(model, stream, rows, num) == (0.0, 0.0)


def test_a_mask_counts_from_the_first_token_of_its_part_of_a_file(tmp_path):
    """Two files, the second a part that begins in the middle of a byte of its mask, and a third without a mask."""
    bits = np.random.default_rng(0).random((2, 100)) < 0.5
    for number in range(2):
        np.zeros(100, "<i2").tofile(tmp_path / f"{number}.bin")
        np.packbits(bits[number], bitorder="little").tofile(tmp_path / f"{number}.mask")
    parts = [Part(tmp_path / f"{number}.bin", "int16", 100 - first, 2 * first, tmp_path / f"{number}.mask")
             for number, first in ((0, 0), (1, 37))]
    stream = TokenStream((*parts, Part(tmp_path / "0.bin", "int16", 100)), 300)
    mask = data.Tokens(stream, "ram", torch.device("cpu")).mask
    assert mask
    expected = np.concatenate([bits[0], bits[1][37:], np.ones(100, bool)])
    for width in (1, 7, 8, 9, 30):
        starts = [first for low, high in ((0, 100), (100, 163), (163, 263)) for first in range(low, high - width + 1)]
        wanted = [expected[first:first + width] for first in starts]
        assert np.array_equal(mask.rows(np.array(starts), width), wanted)


# ---------------------------------------------------------------- runs of train.py


@pytest.mark.slow
def test_runs_in_several_processes_have_the_losses_of_one(chats, forks, tmp_path):
    found = []
    for world_size in (1, 2, 3):
        out = tmp_path / str(world_size)
        argv = ["train.py", "--data_dir", str(chats), "--output_dir", str(out), "--no-use_gpu", "--n_layer", "1",
                "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "1", "--sample_interval", "0",
                "--gradient_accumulation_steps", str(NUM_SAMPLES), *STEPS]
        done = forks.run(argv, world_size=world_size, alarm=120)
        assert done.code == 0, done.stderr
        found.append([row[key] for row in metrics_of(out) for key in ("loss", "grad_norm", "val_loss") if key in row])
    assert len(found[0]) == 2 * 4 + 2
    assert found[1:] == [pytest.approx(found[0], rel=1e-5)] * 2


@pytest.mark.slow
def test_a_run_that_was_killed_three_times_is_exact(chats, forks, tmp_path):
    trial = Trial(forks, chats, tmp_path / "trial", 40, "--checkpoint_every_steps", "10", "--eval_interval", "10",
                  "--dropout", "0.1", "--gradient_accumulation_steps", "2")
    prove(trial.killed, range(3))
    assert trial.kills


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_an_eager_one(run, chats):
    for out, flags in (("eager", []), ("compiled", ["--compile"])):
        assert "failed" not in run.ok("--data_dir", str(chats), *STEPS, "--gradient_accumulation_steps", "3", *flags,
                                      out=out)
    eager, compiled = ([row.get("loss", row.get("val_loss")) for row in metrics_of(run.folder / out)]
                       for out in ("eager", "compiled"))
    assert compiled == pytest.approx(eager, rel=1e-5)


def test_validation_counts_the_tokens_and_bytes_that_evaluate_counts(chats):
    corpus, tokenizer = opened(chats), load_tokenizer(chats / "tokenizer.json")
    assert corpus.val
    assert corpus.end_of_text_id is not None
    model = small_model(vocab_size=corpus.vocab_size, seq_length=128).eval()
    lengths = torch.from_numpy(bytes_per_id(tokenizer, corpus.vocab_size))
    tokens = data.Tokens(corpus.val, "mmap", torch.device("cpu"))
    sums = [sum_losses(model, data.validation_batches(tokens, length, 4, 1000), lengths, on_cpu().autocast,
                       lambda: False) for length in (8, 128)]

    scorer = Scorer(model.eval(), chats, tokenizer, corpus.end_of_text_id, on_cpu(), Progress(), Signals())
    [(name, documents)] = token_files_of([str(chats)], scorer)
    found = scorer.measure(documents, name)
    for each in sums:
        assert each
        assert (each.num_tokens, each.num_bytes) == (found["tokens"], found["bytes"])

    ids = np.fromfile(chats / "val.bin", np.int16).astype(np.int64)
    bits = np.unpackbits(np.fromfile(chats / "val.mask", np.uint8), bitorder="little").astype(bool)[:len(ids)]
    assert found["tokens"] == bits.sum()
    nats, first = 0.0, 0
    for end in np.fromfile(chats / "val.idx", "<u8").tolist():
        window = torch.from_numpy(np.concatenate([[corpus.end_of_text_id], ids[first:end]]))
        assert len(window) <= 129
        losses = F.cross_entropy(model(window[None, :-1])[0].detach(), window[1:], reduction="none")
        nats += float(losses[bits[first:end]].sum())
        first = end
    assert found["nats_per_token"] == pytest.approx(nats / found["tokens"], rel=1e-5)


def test_a_mixture_trains_on_conversations_and_text_and_validates_each_by_its_name(run, chats, corpus, tmp_path):
    for name, folder in (("chats", chats), ("text", corpus)):
        shutil.copytree(folder, tmp_path / name)
    folders = [f"{tmp_path}/chats:0.8", f"{tmp_path}/text:0.2"]
    run.ok("--data_dir", *folders, *STEPS)
    for name, folder in (("chats", chats), ("text", corpus)):
        losses = [row[f"val_loss/{name}"] for row in metrics_of(run.folder / "out") if "val_loss" in row]
        assert len(losses) == 2
        model = load_model(run.folder / "out" / "checkpoint-4", torch.device("cpu")).eval()
        stream = opened(folder).val
        assert stream
        tokens = data.Tokens(stream, "mmap", torch.device("cpu"))
        sums = sum_losses(model, data.validation_batches(tokens, T, 4, 1000), None, on_cpu().autocast, lambda: False)
        assert sums
        assert losses[-1] == pytest.approx(sums.mean().nats, rel=1e-5)


def test_a_validation_of_few_windows_takes_those_with_an_answer(run, chats, tmp_path):
    """Prompts of a hundred tokens: of windows of 8 tokens most hold no answer."""
    lines = [json.dumps({"messages": [{"role": "user", "content": "the cat " * 50 + str(number)},
                                      {"role": "assistant", "content": "sat"}]}) for number in range(100)]
    (tmp_path / "few.jsonl").write_text("\n".join(lines))
    flags = ["--tokenizer_file", str(chats / "tokenizer.json"), "--output_dir", str(tmp_path / "few")]
    assert pretokenize.main([str(tmp_path / "few.jsonl"), *flags, "--val_fraction", "0.5"]) == 0
    stream = opened(tmp_path / "few").val
    assert stream
    tokens = data.Tokens(stream, "mmap", torch.device("cpu"))
    for most in (1, 5, 10_000):
        targets = torch.cat([targets for _, targets in data.validation_batches(tokens, 64, 1, most)])
        assert (targets != IGNORED).any(1).all()
        assert len(targets) == most or most == 10_000
    counted = json.loads((tmp_path / "few" / "metadata.json").read_text())["splits"]["val"]["counted"]
    assert int((targets != IGNORED).sum()) == counted
    text = run.ok("--data_dir", str(tmp_path / "few"), *STEPS, "--eval_batches", "1", "--batch_size", "1")
    bits = np.unpackbits(np.fromfile(tmp_path / "few/train.mask", np.uint8), bitorder="little")[1:]
    silent = 100 - 100 * bits[:len(bits) // T * T].reshape(-1, T).any(1).mean()
    [(share, longer)] = re.findall(r"warning: ([\d.]+)% .* --seq_length (\d+)", text)
    assert float(share) == pytest.approx(silent, abs=1)
    assert int(longer) == 2 * T
    assert "--seq_length" not in run.ok("--data_dir", str(tmp_path / "few"), *STEPS, "--seq_length", "256", out="long")
    assert [row["val_loss"] > 0 for row in metrics_of(run.folder / "out") if "val_loss" in row] == [True, True]

    shutil.copytree(chats, tmp_path / "most")
    text = run.ok("--data_dir", f"{tmp_path}/few:1", f"{tmp_path}/most:1", *STEPS, "--dry_run")
    alone = run.ok("--data_dir", str(chats), *STEPS, "--dry_run")
    shares = [float((re.findall(r"warning: ([\d.]+)% of the sequences", said) or [0])[0]) for said in (text, alone)]
    assert shares[0] == pytest.approx((silent + shares[1]) / 2, abs=12), "by the weights, not by the sizes"


# ---------------------------------------------------------------- a model that lacks the ids of conversations


@pytest.fixture
def new_chats(tokenizer_file, tmp_path):
    """Conversations by a tokenizer of text alone, which got two ids more."""
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world, how are you"}]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"messages": [*turns, *turns[:number % 2]]})
                                                  for number in range(60)))
    flags = ["--tokenizer_file", str(tokenizer_file), "--output_dir", str(tmp_path / "new"), "--val_fraction", "0"]
    assert pretokenize.main([str(tmp_path / "new.jsonl"), *flags]) == 0
    return tmp_path / "new"


@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("tie_weights", [True, False])
def test_new_ids_begin_as_the_mean_of_the_others_which_stay(make_any, write_folder, tmp_path, arch, tie_weights):
    old = make_any(arch, tie_weights=tie_weights)
    folder = write_folder(tmp_path / "old", old)
    num_ids = read_config(folder).vocab_size
    new = create(dataclasses.replace(old.config, vocab_size=num_ids + 2), "cpu", Options())
    start_from(folder, new)
    before, after = old.state_dict(), new.state_dict()
    grown = [name for name in before if name.startswith(old.EMBEDDING) or name == "lm_head.weight"]
    assert len(grown) == 2 - tie_weights
    for name, tensor in before.items():
        found = after[name]
        if name in grown:
            assert torch.allclose(found[num_ids:num_ids + 2], tensor[:num_ids].mean(0).expand(2, -1), atol=1e-6)
            assert not found[num_ids + 2:].any()
            found, tensor = found[:num_ids], tensor[:num_ids]
        assert torch.equal(found, tensor), name


@pytest.mark.parametrize("tie_weights", [True, False])
def test_a_run_from_a_model_that_grew_resumes_exactly(new_chats, make_checkpoint, tmp_path, capsys, tie_weights):
    start = make_checkpoint(tmp_path / "old", 1, tie_weights=tie_weights)[0]
    flags = ["--data_dir", str(new_chats), "--no-use_gpu", *QUIET, *STEPS, "--seq_length", "8", "--batch_size", "4",
             "--lr_schedule", "constant", "--warmup_steps", "1"]
    for out, more in (("whole", ["--init_from", str(start)]),
                      ("parts", ["--init_from", str(start), "--max_steps", "2"]),
                      ("parts", ["--resume_from", str(tmp_path / "parts")])):
        assert trained([*flags, *more, "--output_dir", str(tmp_path / out)], capsys)[0] == 0
    whole, parts = (steps_in(tmp_path / name)[4] for name in ("whole", "parts"))
    assert same_tensors(whole, parts)
    assert read_config(whole).vocab_size == 402


def test_a_corpus_may_have_more_tokens_than_the_model_but_no_other_ones(new_chats, chats, make_checkpoint, tmp_path,
                                                                        tokenizer_file, capsys):
    """Models of as many ids as their tokenizer, and of more, as most models of others have."""
    other = Tokenizer.from_file(str(tokenizer_file))
    other.add_special_tokens(["<|other|>"])
    other.save(str(tmp_path / "other.json"))
    for number, (vocab_size, tokenizer, code) in enumerate((
            (400, tokenizer_file, 0), (416, tokenizer_file, 0), (400, chats / "tokenizer.json", Exit.DATA),
            (402, tmp_path / "other.json", Exit.DATA), (400, None, Exit.DATA))):
        start = make_checkpoint(tmp_path / str(number), 1, vocab_size=vocab_size)[0]
        for name in ("manifest.json", "trainer_state.json", "optimizer.safetensors"):
            (start / name).unlink()
        (start / "tokenizer.json").unlink() if tokenizer is None else shutil.copy(tokenizer, start / "tokenizer.json")
        found, text = trained(["--data_dir", str(new_chats), "--no-use_gpu", *QUIET, "--max_steps", "1", "--init_from",
                               str(start), "--output_dir", str(tmp_path / f"out-{number}")], capsys)
        assert getattr(found, "code", found) == code, text
