"""generate.py: it draws from the distribution Hugging Face draws from, and writes whole characters."""

import io
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import checkpoint
import data
import generate
from cli import Exit, UserError

ROOT = Path(generate.__file__).parent


def take(model, prompt, max_new_tokens, temperature=0.0, top_k=0, top_p=1.0, seed=0, end_of_text_id=None):
    return list(generate.sample(model, prompt, max_new_tokens, temperature, top_k, top_p, seed, end_of_text_id))


# ---------------------------------------------------------------- the distribution


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [
    (1.0, 0, 1.0), (0.7, 5, 1.0), (1.0, 1, 1.0), (1.3, 49, 1.0), (1.0, 50, 1.0), (1.0, 10**6, 1.0), (1.0, 0, 0.9),
    (0.8, 0, 0.3), (1.0, 0, 1e-6), (0.5, 20, 0.8), (2.0, 3, 0.999)])
def test_the_ids_left_are_those_transformers_leaves(temperature, top_k, top_p):
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    logits_BV = 4 * torch.randn(200, 50)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    expected_BV = warpers(torch.zeros(200, 1, dtype=torch.long), logits_BV.clone())  # type: ignore[arg-type]
    found_BV = generate.filtered(logits_BV, temperature, top_k, top_p)
    assert torch.equal(found_BV.isinf(), expected_BV.isinf())
    assert not found_BV.isinf().all(-1).any()
    torch.testing.assert_close(found_BV.softmax(-1), expected_BV.softmax(-1))


def test_draws_come_as_often_as_their_probability_says():
    logits_BV = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]]).expand(20_000, -1)
    drawn = generate.pick(logits_BV, 0.5, 3, 1.0, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=5) / 20_000
    expected = torch.tensor([4.0, 2.0, 0.0]).softmax(0)
    torch.testing.assert_close(share[:3], expected, atol=0.01, rtol=0)
    assert share[3:].sum() == 0


def test_temperature_zero_takes_the_likeliest_and_a_tiny_one_does_not_fail():
    logits_BV = 100 * torch.randn(50, 30)
    assert torch.equal(generate.pick(logits_BV, 0.0, 5, 0.5, None), logits_BV.argmax(-1))
    for temperature in (1e-4, 1e-10, 1e-38, 1e-300):
        assert torch.equal(generate.pick(logits_BV, temperature, 0, 0.9, None), logits_BV.argmax(-1))


# ---------------------------------------------------------------- the sampler


def test_greedy_ids_are_those_of_transformers(make_checkpoint, tmp_path):
    from transformers import AutoModelForCausalLM

    path, model, _ = make_checkpoint(tmp_path, seq_length=32)
    theirs = AutoModelForCausalLM.from_pretrained(path).eval()
    theirs.generation_config.eos_token_id = None
    rng = random.Random(0)
    for length in (1, 2, 7, 20):
        prompt = [rng.randrange(400) for _ in range(length)]
        expected = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=32 - length, pad_token_id=0)  # type: ignore[operator]
        assert prompt + take(model, prompt, 32 - length) == expected[0].tolist()


def by_the_documented_rule(model, prompt: list[int], max_new_tokens: int, temperature: float, seed: int) -> list[int]:
    """No cache: the window grows to T; when it is full its older half is dropped."""
    window, found, T = prompt[-model.config.seq_length:], [], model.config.seq_length
    generator = torch.Generator().manual_seed(seed)
    for _ in range(max_new_tokens):
        if len(window) > T:
            window = window[-(T // 2 or 1):]
        with torch.no_grad():
            logits_BV = model.next_logits(torch.tensor([window]))
        found.append(int(generate.pick(logits_BV, temperature, 50, 0.95, generator)))
        window = [*window, found[-1]]
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("seq_length", "prompt_length"), [(8, 3), (8, 8), (8, 30), (7, 1), (1, 2), (2, 1)])
def test_beyond_its_window_it_goes_on_by_the_documented_rule(make_model, seq_length, prompt_length, temperature):
    model = make_model(seq_length=seq_length)
    prompt = [random.Random(1).randrange(400) for _ in range(prompt_length)]
    found = take(model, prompt, 40, temperature, 50, 0.95, seed=3)
    assert found == by_the_documented_rule(model, prompt, 40, temperature, 3)


def test_a_seed_gives_the_same_ids_and_another_seed_others(make_model):
    model = make_model()
    first = take(model, [1, 2], 30, 1.0, seed=5)
    assert take(model, [1, 2], 30, 1.0, seed=5) == first
    assert take(model, [1, 2], 30, 1.0, seed=6) != first
    torch.manual_seed(123)  # the global generator plays no part
    assert take(model, [1, 2], 30, 1.0, seed=5) == first


def test_padding_is_never_sampled(make_model):
    model = make_model(vocab_size=130)
    with torch.no_grad():
        model.head_weight[130:] = 10.0 * model.head_weight[:1]
    assert max(take(model, [1], 500, 100.0)) < 130


def test_it_ends_at_the_end_of_text(make_model):
    model = make_model()
    ids = take(model, [1, 2, 3], 10)
    end = ids[4]
    assert take(model, [1, 2, 3], 10, end_of_text_id=end) == ids[:ids.index(end)]


def test_half_precision_works(make_model):
    assert len(take(make_model().to(torch.bfloat16), [1, 2], 20, 1.0)) == 20


# ---------------------------------------------------------------- whole characters


class Terminal(io.StringIO):
    """Remembers each write."""

    def __init__(self, is_terminal: bool):
        super().__init__()
        self.pieces: list[str] = []
        self.isatty = lambda: is_terminal

    def write(self, piece: str) -> int:
        self.pieces.append(piece)
        return len(piece)


def written(tokenizer, ids: list[int], monkeypatch, is_terminal: bool = False) -> list[str]:
    stream = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    writer = generate.Writer(tokenizer)
    for index in ids:
        writer.id(index)
    writer.end()
    monkeypatch.undo()
    return stream.pieces


def test_no_write_holds_a_part_of_a_character(tokenizer, texts, monkeypatch):
    for text in texts:
        ids = tokenizer.encode(text).ids
        pieces = written(tokenizer, ids, monkeypatch)
        assert "".join(pieces) == text + "\n"
        assert not any("\ufffd" in piece for piece in pieces)
        assert len(pieces) > 3, "it waited for the end"


def test_what_is_written_is_what_the_tokenizer_decodes_whatever_the_ids(tokenizer, monkeypatch):
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(data.vocab_size_of(tokenizer)) for _ in range(rng.randint(0, 40))]
        expected = tokenizer.decode(ids, skip_special_tokens=True)
        assert "".join(written(tokenizer, ids, monkeypatch)) == expected + "\n"


def test_a_character_cut_off_by_the_end_is_shown_as_such(tokenizer, monkeypatch):
    ids = tokenizer.encode("ab\U0001f44d").ids[:-1]
    assert "".join(written(tokenizer, ids, monkeypatch)) == "ab\ufffd\n"


def test_control_bytes_are_escaped_on_a_terminal_alone(tokenizer, monkeypatch):
    ids = tokenizer.encode("a\x1b[31mb\tc\x07\n\x9b2J").ids
    assert "".join(written(tokenizer, ids, monkeypatch)) == "a\x1b[31mb\tc\x07\n\x9b2J\n"
    assert "".join(written(tokenizer, ids, monkeypatch, True)) == "a\\x1b[31mb\tc\\x07\n\\x9b2J\n"


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def folder(make_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate") / "out"
    make_checkpoint(folder, 3)
    return folder


@pytest.fixture
def call(folder, capsys):
    """Runs main on the checkpoint; returns stdout and stderr."""

    def main(*flags: str, ckpt: Path = folder) -> tuple[str, str]:
        assert generate.main(["--ckpt", str(ckpt), "--no-use_gpu", *flags]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return main


TIMING = r"first token \d+\.\d{3} s, then (\d+) new tokens in \d+\.\d\d s, (\d+\.\d|n/a) tok/s\n"


def test_the_command_writes_text_and_one_line_of_timing(folder):
    done = subprocess.run(
        [sys.executable, str(ROOT / "generate.py"), "--ckpt", str(folder), "--prompt", "the cat", "--num_samples", "2",
         "--max_new_tokens", "20", "--no-use_gpu"], capture_output=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert text.startswith("the cat")
    assert text.count("the cat") == 2
    assert ("\n" + "-" * 40 + "\n") in text
    match = re.fullmatch(TIMING, done.stderr.decode())
    assert match, done.stderr
    assert int(match[1]) <= 38


def test_a_missing_checkpoint_ends_the_command_with_4_and_one_line(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "generate.py"), "--ckpt", "nowhere", "--no-use_gpu"],
                          capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == Exit.CHECKPOINT
    assert done.stderr == "error: nowhere does not exist. Train one first: python train.py --output_dir nowhere\n"
    assert not done.stdout


@pytest.mark.parametrize("flags", [["--max_new_tokens", "1000000000"], ["--max_new_tokens", "0"], ["--top_p", "0"],
                                   ["--temperature", "nan"], ["--top_k", "-1"], ["--prompt", "a", "--prompt_file", "b"],
                                   ["--amp_dtype", "bf16"], ["--seed", "x"], ["--promt", "a"]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with pytest.raises(UserError) as caught:
        generate.read_flags(flags)
    assert caught.value.code == Exit.FLAGS
    assert flags[0] in str(caught.value)


def test_bad_flags_are_answered_before_torch_is_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit(99)")
    done = subprocess.run([sys.executable, str(ROOT / "generate.py"), "--max_new_tokens", "1000000000"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == Exit.FLAGS
    assert done.stderr.startswith("error: --max_new_tokens '1000000000': must be a whole number from 1 to 1,000,000")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_asking_for_a_gpu_where_there_is_none_ends_the_command_with_5(folder):
    with pytest.raises(UserError, match=r"--use_gpu: .*drop the flag") as caught:
        generate.main(["--ckpt", str(folder), "--use_gpu"])
    assert caught.value.code == Exit.MACHINE


def test_the_same_seed_gives_the_same_text(call):
    first = call("--seed", "1")[0]
    assert call("--seed", "1")[0] == first
    assert call("--seed", "2")[0] != first
    both = call("--seed", "1", "--num_samples", "2")[0].split("\n" + "-" * 40 + "\n")
    assert both[0] == first
    assert both[1] == call("--seed", "2")[0]


def test_a_prompt_may_be_empty_a_file_or_too_long(call, tmp_path):
    assert call("--prompt", "", "--temperature", "0")[0]
    (tmp_path / "prompt.txt").write_text("the dog\n")
    assert call("--prompt_file", str(tmp_path / "prompt.txt"))[0].startswith("the dog\n")
    out, err = call("--prompt", "sea " * 50, "--max_new_tokens", "5")
    assert out.startswith("sea " * 50)
    assert re.search(r"warning: the prompt has \d+ tokens, the model sees the last 16\.", err)
    out, err = call("--prompt", "\udcff", "--max_new_tokens", "1")  # a byte of the shell that is no UTF-8
    assert "0 new tokens" in err
    with pytest.raises(UserError, match="No such file") as caught:
        call("--prompt_file", str(tmp_path / "none.txt"))
    assert caught.value.code == Exit.DATA


def test_a_tokenizer_larger_than_the_model_is_refused(call, folder, tmp_path):
    (tmp_path / "big.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 400}, "merges": []}}')
    with pytest.raises(UserError, match="the tokenizer has 401 ids, the model 400") as caught:
        call("--tokenizer_file", str(tmp_path / "big.json"))
    assert caught.value.code == Exit.DATA


def test_a_folder_without_a_tokenizer_asks_for_one(call, make_model, tmp_path, tokenizer_file):
    model = make_model()
    tensors = checkpoint.Tensors.of(model, torch.optim.AdamW(model.parameters()))
    path = checkpoint.save(tmp_path, 1, model.config, tensors, {}, None, None, "")
    with pytest.raises(UserError, match=r"has no tokenizer\.json\. Give the model's") as caught:
        call(ckpt=path)
    assert caught.value.code == Exit.DATA
    assert call("--tokenizer_file", str(tokenizer_file), ckpt=path)[0]


def test_a_model_whose_logits_are_no_numbers_is_said_to_be_diverged(call, make_model, write_folder, tmp_path):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    with pytest.raises(UserError, match="not finite") as caught:
        call(ckpt=write_folder(tmp_path / "model", model))
    assert caught.value.code == Exit.DIVERGED


def test_a_prompt_that_is_not_utf8_is_replaced_and_said(tmp_path, capsys):
    (tmp_path / "p.txt").write_bytes(b"caf\xe9 noir")
    assert generate.read_prompt(str(tmp_path / "p.txt")) == "caf\ufffd noir"
    assert "p.txt is not UTF-8 at byte 3 (invalid continuation byte)" in capsys.readouterr().err
