"""generate.py: the same text whatever the batch, one line of timing, JSON, refusals, a conversation."""

import dataclasses
import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import generate
from checkpoint.contents import Tensors, tensor_files, text_files
from checkpoint.save import save
from common.errors import Exit, UserError
from generation.continuation import Continuation, Sampling
from generation.sampling import decode
from generation.streaming import SEPARATOR
from tests.helpers.commands import run
from tests.helpers.graphs import FakeGraph, graph_decoder_of, pretend_graphs
from tokens.tokenizer import tokenizer_of

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


TIMING = (r"first token \d+\.\d{3} s, then (\d+) new tokens? in \d+\.\d\d s, "
          r"(\d+\.\d tok/s, \d+\.\d GB/s of weights|n/a tok/s)\n")


def test_the_command_writes_text_and_one_line_of_timing(folder, forks):
    done = forks.run(["generate.py", "--ckpt", ".", "--prompt", "the cat", "--num_samples", "2", "--max_new_tokens",
                      "20", "--no-use_gpu"], cwd=folder)
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("the cat")
    assert done.stdout.count("the cat") == 2
    assert SEPARATOR in done.stdout
    match = re.fullmatch(TIMING, done.stderr)
    assert match, done.stderr
    assert int(match[1]) <= 39


def test_a_missing_checkpoint_ends_the_command_with_4(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"nowhere does not exist\. .* train\.py --output_dir nowhere") as caught:
        generate.main(["--ckpt", "nowhere", "--no-use_gpu"])
    assert caught.value.code == Exit.CHECKPOINT


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
    done = run("generate", "--max_new_tokens", "1000000000", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == Exit.FLAGS
    assert done.stderr.startswith("error: --max_new_tokens '1000000000': must be a whole number from 1 to 1,000,000")


def test_the_defaults_of_the_flags_are_those_of_sampling():
    args = generate.read_flags([])
    assert Sampling(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Sampling)}) == Sampling()


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_asking_for_a_gpu_where_there_is_none_ends_the_command_with_5(folder):
    with pytest.raises(UserError, match=r"--use_gpu: .*drop the flag") as caught:
        generate.main(["--ckpt", str(folder), "--use_gpu"])
    assert caught.value.code == Exit.MACHINE


def test_the_same_seed_gives_the_same_text(call):
    first = call("--seed", "1")[0]
    assert call("--seed", "1")[0] == first
    assert call("--seed", "2")[0] != first
    both = call("--seed", "1", "--num_samples", "2")[0].split(SEPARATOR)
    assert both[0] == first
    assert both[1] == call("--seed", "2")[0]


def test_a_prompt_may_be_empty_a_file_or_too_long(call, tmp_path):
    assert call("--prompt", "", "--temperature", "0")[0]
    (tmp_path / "prompt.txt").write_text("the dog\n")
    assert call("--prompt_file", str(tmp_path / "prompt.txt"))[0].startswith("the dog\n")
    out, err = call("--prompt", "sea " * 50, "--max_new_tokens", "5")
    assert out.startswith("sea " * 50)
    assert re.search(r"warning: the prompt has \d+ tokens, the model sees the last 16\.", err)
    out, err = call("--prompt", "\udcff", "--max_new_tokens", "1")  # a byte of the shell that is not UTF-8
    assert "0 new tokens" in err
    with pytest.raises(UserError, match="No such file") as caught:
        call("--prompt_file", str(tmp_path / "none.txt"))
    assert caught.value.code == Exit.DATA


def objects(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_each_json_line_says_everything_about_one_continuation(call, tokenizer):
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


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_a_text_ends_where_the_folder_says_and_special_tokens_are_text_unless_asked(call, make_any, write_folder,
                                                                                   tmp_path, arch):
    folder = write_folder(tmp_path / arch, make_any(arch))
    greedy = ["--json", "--prompt", "the <|endoftext|>cat", "--temperature", "0"]
    whole, = objects(call(*greedy, ckpt=folder)[0])
    assert whole["finish_reason"] == "length"
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [399, whole["ids"][5]]}))
    short, = objects(call(*greedy, ckpt=folder)[0])
    assert short["finish_reason"] == "end_of_text"
    assert short["ids"] == whole["ids"][:whole["ids"].index(whole["ids"][5])]
    other, = objects(call(*greedy, "--special_tokens", ckpt=folder)[0])
    assert other["log_probabilities"] != short["log_probabilities"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "<|im_end|>"}))
    with pytest.raises(UserError, match=r"generation_config\.json: eos_token_id is '<\|im_end\|>'") as caught:
        call(*greedy, ckpt=folder)
    assert caught.value.code == Exit.CHECKPOINT


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_a_modern_checkpoint_gives_the_same_text_alone_and_in_a_batch(call, make_any, write_folder, tmp_path, arch):
    folder = write_folder(tmp_path / arch, make_any(arch))
    (tmp_path / "prompts.txt").write_text("the\nthe cat sat on the mat\na")
    settings = ["--prompt_file", str(tmp_path / "prompts.txt"), "--prompt_lines", "--json"]
    alone, together = (objects(call("--batch_size", size, *settings, ckpt=folder)[0]) for size in ("1", "3"))
    assert alone == together


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
    parts = out.split(SEPARATOR)
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


def test_the_prompt_comes_from_standard_input(call, monkeypatch, tmp_path):
    (tmp_path / "prompt.txt").write_bytes("the \u6f22".encode())
    with open(tmp_path / "prompt.txt", encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert call("--prompt_file", "-", "--max_new_tokens", "3")[0].startswith("the \u6f22")


def test_a_step_that_cannot_be_compiled_is_said_and_runs_eagerly(call, monkeypatch):
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

    monkeypatch.setattr(generate.Decoder, "compile", fail)
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
    path = save(tmp_path, 1, tensor_files(model.config, tensors), text_files(1, model.config, {}, None, None, ""))
    with pytest.raises(UserError, match=r"has no tokenizer\.json\. Give the model's") as caught:
        call(ckpt=path)
    assert caught.value.code == Exit.DATA
    assert call("--tokenizer_file", str(tokenizer_file), ckpt=path)[0]


def test_a_model_whose_logits_are_not_finite_is_said_to_have_diverged(call, make_model, write_folder, tmp_path):
    model = make_model()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight").fill_(torch.nan)
    with pytest.raises(UserError, match="not finite") as caught:
        call(ckpt=write_folder(tmp_path / "model", model))
    assert caught.value.code == Exit.DIVERGED


# ---------------------------------------------------------------- on a GPU


@pytest.mark.parametrize(("flags", "num_rows", "expected", "says"), [
    ([], 8, True, ""), (["--no-cuda_graphs"], 8, False, ""), ([], 33, False, ""), (["--cuda_graphs"], 32, True, ""),
    (["--cuda_graphs"], 33, False, "33 continuations are made at once, more than 32. Give a smaller --batch_size")],
    ids=str)
def test_on_a_gpu_a_step_is_a_graph_unless_something_speaks_against_it(flags, num_rows, expected, says, capsys):
    assert generate.uses_graphs(generate.read_flags(flags), "cuda", num_rows) is expected
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith("warning: --cuda_graphs: has no effect") if says else not err


def test_on_a_cpu_graphs_are_refused_with_a_warning(call):
    assert "warning: --cuda_graphs: has no effect, no NVIDIA GPU is in use.\n" in call("--cuda_graphs")[1]


def test_with_graphs_the_command_writes_what_it_writes_without(call, monkeypatch):
    flags = ["--num_samples", "4", "--batch_size", "2", "--stop", "e", "--json", "--top_p", "0.9"]
    expected = call(*flags)[0]
    pretend_graphs(monkeypatch)
    monkeypatch.setattr(generate, "uses_graphs", lambda *_: True)
    found = call(*flags)[0]
    assert FakeGraph.replays > 5
    found, expected = (re.sub(r'"log_probabilities": .*?\]', "", text) for text in (found, expected))
    assert found == expected


def test_a_conversation_with_graphs_says_what_it_says_without(talk, monkeypatch):
    lines = ["the cat", "/temperature 1.5", "a dog"]
    expected = talk(*lines)[0]
    pretend_graphs(monkeypatch)
    monkeypatch.setattr(generate, "uses_graphs", lambda *_: True)
    assert talk(*lines)[0] == expected
    assert FakeGraph.replays > 10


@pytest.mark.gpu
def test_on_a_gpu_graphs_change_no_text(folder, capsys):
    texts = []
    for flags in ([], ["--no-cuda_graphs"]):
        assert generate.main(["--ckpt", str(folder), "--use_gpu", "--no-use_amp", "--max_new_tokens", "40",
                              "--num_samples", "3", "--temperature", "0", *flags]) == 0
        texts.append(capsys.readouterr())
    assert texts[0].out == texts[1].out
    assert "--cuda_graphs: failed" not in texts[0].err


def test_where_cuda_cannot_record_a_step_the_texts_are_made_without_graphs(make_model, monkeypatch, capsys):
    def refuse(*_, **__):
        raise RuntimeError("operation not permitted\nmore")

    pretend_graphs(monkeypatch)
    decoder = graph_decoder_of(make_model(), 1)
    with monkeypatch.context() as broken:
        broken.setattr(FakeGraph, "recorded", refuse)
        generate.prepare_graphs(decoder, Sampling())
    assert capsys.readouterr().err == ("warning: --cuda_graphs: failed, launching kernels one by one: operation not "
                                       "permitted\n")
    text = Continuation([1, 2], 5, 0)
    for _ in decode(decoder, [text], Sampling(), ()):
        pass
    assert len(text.new_ids) == 5
    assert FakeGraph.replays == 0


@pytest.mark.parametrize(("compiles", "num_rows", "says"), [
    (True, 4, ""), (True, 5, "widens the weights first.\n"), (False, 1, "Give --compile, which")])
def test_on_a_gpu_eight_bits_are_slow_unless_compiled_for_a_few_rows(compiles, num_rows, says, capsys):
    generate.warn_where_int8_is_slow(compiles, num_rows)
    err = capsys.readouterr().err
    assert says in err
    assert bool(says) == bool(err)


# ---------------------------------------------------------------- a conversation


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


def test_a_conversation_without_standard_input_is_refused(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="--interactive: standard input is closed") as caught:
        generate.main(["--ckpt", str(folder), "--no-use_gpu", "--interactive"])
    assert caught.value.code == Exit.DATA


def test_a_conversation_takes_its_commands(talk, call):
    expected = call("--prompt", "the cat", "--seed", "7", "--temperature", "1.5", "--max_new_tokens", "8")[0]
    said, err = talk("/seed 7", "/temperature 1.5", "/seed x", "/nothing", "the cat", "/quit", "never read")
    assert "the cat" + "\n".join(said) == expected
    assert "/seed x: must be a number" in err
    assert "/reset" in err
    assert err.count("new tokens") == 1
