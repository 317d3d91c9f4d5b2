"""generate.py: whole characters, stops across token borders, the same text whatever the batch, JSON, a conversation."""

import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import generate
from checkpoint.contents import Tensors
from checkpoint.save import save
from common.errors import Exit, UserError
from generation.streaming import Text, show
from tokens.tokenizer import tokenizer_of, vocab_size_of

ROOT = Path(generate.__file__).parent

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


def pieces_of(tokenizer, ids: list[int], stops=()) -> list[str]:
    """What a text gives, id by id, until it is stopped or ends."""
    text, pieces = Text(tokenizer, stops), []
    for index in ids:
        if not text.stopped:
            pieces.append(text.add(index))
    pieces.append(text.end())
    assert text.given == "".join(pieces)
    return pieces


def test_no_piece_holds_a_part_of_a_character(tokenizer, texts):
    for text in texts:
        pieces = pieces_of(tokenizer, tokenizer.encode(text).ids)
        assert "".join(pieces).encode() == text.encode()
        assert not any("\ufffd" in piece for piece in pieces)
        assert sum(map(bool, pieces)) > 3, "it waited for the end"


def test_what_is_written_is_what_the_tokenizer_decodes_whatever_the_ids(tokenizer):
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(vocab_size_of(tokenizer)) for _ in range(rng.randint(0, 40))]
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_cut_off_by_the_end_is_shown_as_such(tokenizer):
    assert "".join(pieces_of(tokenizer, tokenizer.encode("ab\U0001f44d").ids[:-1])) == "ab\ufffd"


def test_a_stop_ends_the_text_before_it_wherever_tokens_and_characters_end(tokenizer, texts):
    rng = random.Random(0)
    for text in texts:
        ids = tokenizer.encode(text).ids
        for _ in range(20):
            start = rng.randrange(len(text))
            stop = text[start:start + rng.randint(1, 6)]
            pieces = pieces_of(tokenizer, ids, [stop, "never there", text + "more"])
            assert "".join(pieces) == text[:text.index(stop)]
        assert "".join(pieces_of(tokenizer, ids, ["never there", text + "!"])) == text


def test_the_first_of_several_stops_counts_and_its_beginning_is_never_shown(tokenizer):
    ids = tokenizer.encode("the cat sat. END of it").ids
    pieces = pieces_of(tokenizer, ids, ["it", "END of", ". END"])
    assert "".join(pieces) == "the cat sat"
    shown = pieces_of(tokenizer, tokenizer.encode("a EN b END").ids, ["END"])
    assert "".join(shown) == "a EN b "


def test_control_bytes_are_escaped_on_a_terminal_alone(monkeypatch):
    for is_terminal, expected in ((False, "a\x1b[31mb\tc\x07\n\x9b2J"), (True, "a\\x1b[31mb\tc\\x07\n\\x9b2J")):
        stream = Terminal(is_terminal)
        monkeypatch.setattr(sys, "stdout", stream)
        show("a\x1b[31mb\tc\x07\n\x9b2J")
        assert stream.pieces == [expected]


# ---------------------------------------------------------------- prompts


def test_a_line_is_a_prompt_and_so_is_a_field(tmp_path):
    in_lines = generate.prompts_in_lines
    assert in_lines("one\r\n\n two \n{not json}\n", "x") == ["one", " two ", "{not json}"]
    assert in_lines('{"prompt": "a\\nb", "text": "c"}\n\n{"text": "d"}', "x") == ["a\nb", "d"]
    for bad in ('{"prompt": 3}', "[1]", "plain"):
        with pytest.raises(UserError, match="line 2: no JSON object") as caught:
            in_lines('{"prompt": "a"}\n' + bad, "x")
        assert caught.value.code == Exit.DATA
    with pytest.raises(UserError, match="no line that is not blank"):
        in_lines(" \n\n", "x")


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
        assert generate.main(["--ckpt", str(ckpt), "--no-use_gpu", "--max_new_tokens", "24", *flags]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return main


TIMING = (r"first token \d+\.\d{3} s, then (\d+) new tokens in \d+\.\d\d s, "
          r"(\d+\.\d tok/s, \d+\.\d GB/s of weights|n/a tok/s)\n")


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
    assert int(match[1]) <= 39


def test_a_missing_checkpoint_ends_the_command_with_4_and_one_line(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "generate.py"), "--ckpt", "nowhere", "--no-use_gpu"],
                          capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == Exit.CHECKPOINT
    assert done.stderr == "error: nowhere does not exist. Train one first: python train.py --output_dir nowhere\n"
    assert not done.stdout


@pytest.mark.parametrize("flags", [["--max_new_tokens", "1000000000"], ["--max_new_tokens", "0"], ["--top_p", "0"],
                                   ["--temperature", "nan"], ["--top_k", "-1"], ["--prompt", "a", "--prompt_file", "b"],
                                   ["--amp_dtype", "bf16"], ["--seed", "x"], ["--prompt_lines"],
                                   ["--interactive", "--json"], ["--interactive", "--prompt", "a"], ["--stop", ""],
                                   ["--min_p", "1.1"], ["--repetition_penalty", "0"], ["--quantize", "int4"],
                                   ["--batch_size", "0"], ["--no_repeat_ngram_size", "-1"],
                                   ["--promt", "a"]], ids=" ".join)
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


def objects(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_each_json_line_tells_all_about_one_continuation(call, tokenizer):
    found = objects(call("--json", "--prompt", "the \u6f22", "--num_samples", "3", "--seed", "5", "--max_new_tokens",
                         "12")[0])
    assert [record["sample"] for record in found] == [0, 1, 2]
    assert [record["seed"] for record in found] == [5, 6, 7]
    for record in found:
        assert set(record) == {"prompt", "sample", "seed", "text", "ids", "log_probabilities", "finish_reason"}
        assert record["prompt"] == "the \u6f22"
        assert record["text"] == tokenizer.decode(record["ids"], skip_special_tokens=True)
        assert len(record["ids"]) == len(record["log_probabilities"])
        assert max(record["log_probabilities"]) <= 0
        assert record["finish_reason"] == ("length" if len(record["ids"]) == 12 else "end_of_text")


@pytest.mark.parametrize("flags", [[], ["--use_amp"], ["--quantize", "int8"]], ids=str)
def test_a_prompt_gives_the_same_text_alone_and_in_a_batch(call, tmp_path, flags):
    path, prompts = tmp_path / "prompts.txt", ["the", "the cat sat on the mat", "a", "sea " * 20]
    path.write_text("\n".join(prompts))
    settings = ["--json", "--num_samples", "2", "--max_new_tokens", "20", *flags]
    batches = [objects(call("--prompt_file", str(path), "--prompt_lines", "--batch_size", size, *settings)[0])
               for size in ("1", "3", "8")]
    assert batches[0] == batches[1] == batches[2]
    for number, prompt in enumerate(prompts):
        assert objects(call("--prompt", prompt, *settings)[0]) == batches[0][2 * number:2 * number + 2]


def test_more_8_bit_rows_than_are_multiplied_at_once_change_no_text(call):
    settings = ["--json", "--quantize", "int8", "--num_samples", "40", "--max_new_tokens", "3"]
    assert objects(call("--batch_size", "40", *settings)[0]) == objects(call("--batch_size", "1", *settings)[0])


def test_texts_come_in_the_order_of_their_prompts(call, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "the cat"}\n{"text": "a dog"}\n')
    out = call("--prompt_file", str(tmp_path / "prompts.jsonl"), "--prompt_lines", "--num_samples", "2")[0]
    parts = out.split(generate.SEPARATOR)
    assert [part[:5] for part in parts] == ["the c", "the c", "a dog", "a dog"]
    records = objects(call("--prompt_file", str(tmp_path / "prompts.jsonl"), "--prompt_lines", "--num_samples", "2",
                           "--json")[0])
    assert parts == [record["prompt"] + record["text"] + "\n" for record in records]


def test_a_stop_ends_a_continuation_and_says_so(call):
    whole = objects(call("--json", "--seed", "3")[0])[0]
    stop = whole["text"][5:7]
    found = objects(call("--json", "--seed", "3", "--stop", "never there", "--stop", stop)[0])[0]
    assert found["text"] == whole["text"][:whole["text"].index(stop)]
    assert found["finish_reason"] == "stop"
    assert found["ids"] == whole["ids"][:len(found["ids"])]
    assert call("--seed", "3", "--stop", stop)[0] == "\n" + found["text"] + "\n"


@pytest.mark.parametrize("flags", [["--min_p", "0.99"], ["--top_k", "1"], ["--top_p", "0.001"], ["--quantize", "int8"],
                                   ["--repetition_penalty", "9"], ["--no_repeat_ngram_size", "1"],
                                   ["--temperature", "0"], ["--use_amp"]], ids=" ".join)
def test_each_of_these_flags_changes_the_text(call, flags):
    common = ["--json", "--temperature", "2", "--top_k", "0", "--num_samples", "2"]
    found, plain = objects(call(*common, *flags)[0]), objects(call(*common)[0])
    assert [record["log_probabilities"] for record in found] != [record["log_probabilities"] for record in plain]
    if flags == ["--no_repeat_ngram_size", "1"]:
        assert all(len(set(record["ids"])) == len(record["ids"]) for record in found)


def test_the_prompt_comes_from_standard_input(folder):
    command = [sys.executable, str(ROOT / "generate.py"), "--ckpt", str(folder), "--prompt_file", "-", "--no-use_gpu",
               "--max_new_tokens", "3"]
    done = subprocess.run(command, input="the \u6f22".encode(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().startswith("the \u6f22")


@pytest.fixture
def talk(folder, monkeypatch, capsys):
    """Runs a conversation of the given lines; returns what was said and the timing and messages."""

    def conversation(*lines: str, flags=()) -> tuple[list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        assert generate.main(["--ckpt", str(folder), "--no-use_gpu", "--interactive", "--max_new_tokens", "8",
                              *flags]) == 0
        captured = capsys.readouterr()
        return captured.out.split("\n"), captured.err

    return conversation


def test_a_conversation_goes_on_from_all_that_was_said(talk, call):
    said, err = talk("the cat")
    assert ["the cat" + said[0], *said[1:]] == call("--prompt", "the cat", "--max_new_tokens", "8")[0].split("\n")
    assert re.fullmatch(TIMING, err)
    greedy = ["--temperature", "0"]
    first, second = talk("the cat", "/reset", "a dog", flags=greedy)[0], talk("a dog", flags=greedy)[0]
    assert "\n".join(first).endswith("\n".join(second))
    assert talk("the cat", "a dog", flags=greedy)[0] != first


def test_a_conversation_takes_its_commands(talk, call):
    expected = call("--prompt", "the cat", "--seed", "7", "--temperature", "1.5", "--max_new_tokens", "8")[0]
    said, err = talk("/seed 7", "/temperature 1.5", "/seed x", "/nothing", "the cat", "/quit", "never read")
    assert "the cat" + "\n".join(said) == expected
    assert "/seed x: must be a number" in err
    assert "/reset" in err
    assert err.count("new tokens") == 1


def test_a_wish_to_compile_that_cannot_be_honoured_is_said_aloud(call, monkeypatch):
    plain = call("--num_samples", "2")[0]
    out, err = call("--num_samples", "2", "--compile")
    assert out == plain
    assert "warning: --compile: on a CPU it serves one continuation at a time, 2 are made at once" in err
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "warning: --compile: not possible here, running eagerly: no C++ compiler" in call("--compile")[1]
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(generate.device, "why_no_compile", lambda _: None)

    def fail(_):
        raise RuntimeError("no kernel\nfor you")

    monkeypatch.setattr(generate.decode.Decoder, "compile", fail)
    assert "warning: --compile: failed, running eagerly: no kernel\n" in call("--compile")[1]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--quantize", "int8"]], ids=str)
def test_compiled_the_command_writes_a_text(call, flags):
    out, err = call("--compile", "--prompt", "the cat", *flags)
    assert out.startswith("the cat")
    assert re.fullmatch(TIMING, err)


def test_a_tokenizer_larger_than_the_model_is_refused(call, folder, tmp_path):
    (tmp_path / "big.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 400}, "merges": []}}')
    with pytest.raises(UserError, match="the tokenizer has 401 ids, the model 400") as caught:
        call("--tokenizer_file", str(tmp_path / "big.json"))
    assert caught.value.code == Exit.DATA


def test_a_tokenizer_without_an_id_is_refused(call, tmp_path):
    (tmp_path / "none.json").write_text('{"model": {"type": "BPE", "vocab": {}, "merges": []}}')
    with pytest.raises(UserError, match="has 0 ids, not 1 to 16,777,216") as caught:
        call("--tokenizer_file", str(tmp_path / "none.json"))
    assert caught.value.code == Exit.DATA


def test_an_id_beyond_the_model_s_among_few_is_refused_once_a_prompt_has_it(call, tmp_path):
    path = tmp_path / "gaps.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {"b": 1, "a": 400}, "merges": []}}')
    out, _ = call("--tokenizer_file", str(path), "--prompt", "bb", "--max_new_tokens", "1")
    assert out.startswith("bb")
    with pytest.raises(UserError, match="gives the prompt an id 400, the model has 400 ids") as caught:
        call("--tokenizer_file", str(path), "--prompt", "ba")
    assert caught.value.code == Exit.DATA
    with pytest.raises(UserError, match="has 401 ids, the model 400"):
        tokenizer_of(tmp_path, str(path), 400)


def test_a_folder_without_a_tokenizer_asks_for_one(call, make_model, tmp_path, tokenizer_file):
    model = make_model()
    tensors = Tensors.of(model, torch.optim.AdamW(model.parameters()))
    path = save(tmp_path, 1, model.config, tensors, {}, None, None, "")
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
