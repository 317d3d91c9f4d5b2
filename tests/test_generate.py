"""generate.py: the same text whatever the batch, one line of timing, JSON, refusals, a conversation."""

import io
import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import generate
from gpt.checkpoint.load import load_model
from gpt.common.errors import Exit
from gpt.generation import streaming
from gpt.generation.continuation import Sampling
from gpt.generation.sampling import generate_texts, sample
from gpt.generation.streaming import SEPARATOR
from gpt.machine.backends import CPU
from gpt.tokens.chat import END, Turn, prompt_ids
from gpt.tokens.tokenizer import load_tokenizer
from tests.helpers.models import conversing_checkpoint, replaced_meanwhile
from tests.helpers.refusals import refused

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


def test_16_bits_without_their_instructions_are_warned_of(call, monkeypatch):
    monkeypatch.setattr(type(CPU), "has_bf16", lambda self: False)
    assert "no bf16 instructions" in call("--use_amp")[1]


TIMING = (r"first token \d+\.\d{3} s, then (\d+) new tokens? in \d+\.\d\d s, "
          r"(\d+\.\d|n/a) tok/s\n")


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


def test_the_same_seed_gives_the_same_text(call):
    first = call("--seed", "1")[0]
    assert call("--seed", "1")[0] == first
    assert call("--seed", "2")[0] != first
    both = call("--seed", "1", "--num_samples", "2")[0].split(SEPARATOR)
    assert both[0] == first
    assert both[1] == call("--seed", "2")[0]


def test_a_checkpoint_that_a_run_replaces_while_it_is_read_gives_way_to_the_next(call, make_checkpoint, tmp_path,
                                                                               monkeypatch):
    load = replaced_meanwhile(generate.load_decoder, tmp_path, make_checkpoint)
    monkeypatch.setattr(generate, "load_decoder", load)
    assert call("--prompt", "the cat", ckpt=tmp_path)[0].startswith("the cat")
    assert os.listdir(tmp_path) == ["checkpoint-2"]


def test_a_prompt_may_be_empty_a_file_or_too_long(call, tmp_path):
    assert call("--prompt", "", "--temperature", "0")[0]
    (tmp_path / "prompt.txt").write_text("the dog\n")
    assert call("--prompt_file", str(tmp_path / "prompt.txt"))[0].startswith("the dog\n")
    out, err = call("--prompt", "sea " * 50, "--max_new_tokens", "5")
    assert out.startswith("sea " * 50)
    assert re.search(r"warning: the prompt has \d+ tokens, the model sees the last 16\.", err)
    out, err = call("--prompt", "\udcff", "--max_new_tokens", "1")  # a byte of the shell that is not UTF-8
    assert "0 new tokens" in err
    with refused("No such file", Exit.DATA):
        call("--prompt_file", str(tmp_path / "none.txt"))


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
def test_a_text_ends_where_the_folder_says(call, make_any, write_folder, tmp_path, arch):
    folder = write_folder(tmp_path / arch, make_any(arch))
    greedy = ["--json", "--prompt", "the <|endoftext|>cat", "--temperature", "0"]
    whole, = objects(call(*greedy, ckpt=folder)[0])
    assert whole["finish_reason"] == "length"
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [399, whole["ids"][5]]}))
    short, = objects(call(*greedy, ckpt=folder)[0])
    assert short["finish_reason"] == "end_of_text"
    assert short["ids"] == whole["ids"][:whole["ids"].index(whole["ids"][5])]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": whole["ids"][0]}))
    assert call(*greedy, ckpt=folder)[1] == "no new token\n"
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "<|im_end|>"}))
    with refused(r"generation_config\.json: eos_token_id is '<\|im_end\|>'", Exit.CHECKPOINT):
        call(*greedy, ckpt=folder)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="unpacked weights: MKL rounds few rows otherwise")
@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
@pytest.mark.parametrize("flags", [[], ["--use_amp"], ["--quantize", "int8"]], ids=str)
def test_a_text_is_the_same_whatever_is_made_at_once(call, one_thread, make_any, write_folder, tmp_path, flags, arch):
    folder = write_folder(tmp_path / arch, make_any(arch))
    settings = ["--json", "--num_samples", "4", "--max_new_tokens", "20", "--prompt", "the cat", *flags]
    batches = [call("--batch_size", size, *settings, ckpt=folder)[0] for size in ("1", "3", "8")]
    assert batches[0] == batches[1] == batches[2]
    assert batches[0] != call(*settings[:-len(flags) or None], "--seed", "9", ckpt=folder)[0]


def test_more_8_bit_rows_than_are_multiplied_at_once_change_no_text(call, one_thread):
    settings = ["--json", "--quantize", "int8", "--num_samples", "40", "--max_new_tokens", "3"]
    assert objects(call("--batch_size", "40", *settings)[0]) == objects(call("--batch_size", "1", *settings)[0])


@pytest.mark.parametrize(("flags", "times"), [
    (["--no-use_amp"], 1), (["--use_amp", "--amp_dtype", "fp16"], 1), ([], 0)])
def test_a_precision_that_8_bit_weights_have_not_on_a_cpu_is_said(call, flags, times):
    err = call("--quantize", "int8", "--max_new_tokens", "2", *flags)[1]
    assert err.count("--quantize int8: on a CPU, --use_amp and --amp_dtype have no effect") == times


def test_a_step_that_cannot_be_compiled_is_said_and_runs_eagerly(call, monkeypatch):
    plain = call("--num_samples", "2")[0]
    out, err = call("--num_samples", "2", "--compile")
    assert out == plain
    assert "--compile: running eagerly" in err
    assert "--batch_size 1" in err
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "warning: --compile: running eagerly: no C++ compiler" in call("--compile")[1]
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(CPU, "why_no_compile", lambda: None)

    def fail(*_, **__):
        raise RuntimeError("no kernel\nfor you")

    monkeypatch.setattr(generate.Decoder, "compile", fail)
    assert "warning: --compile: failed, running eagerly: no kernel; if a folder is full" in call("--compile")[1]


# ---------------------------------------------------------------- quotations


@pytest.fixture
def training_text(corpus_folder):
    """A function: a folder as pretokenize.py leaves it, whose training tokens begin with the given ids."""
    folder = corpus_folder

    def put(ids: list[int]) -> Path:
        (folder / "train.bin").write_bytes(np.array(ids, "<i2").tobytes() + (folder / "train.bin").read_bytes())
        metadata = json.loads((folder / "metadata.json").read_text())
        metadata["splits"] = {"train": {"tokens": 1000 + len(ids)}, "val": {"tokens": 100}}
        (folder / "metadata.json").write_text(json.dumps(metadata))
        return folder

    return put


def test_quotations_are_marked_and_change_no_text(call, training_text, tokenizer):
    settings = ["--num_samples", "2", "--prompt", "the cat"]
    plain = objects(call(*settings, "--json")[0])
    passage = plain[1]["ids"][3:20]
    flags = [*settings, "--compare_with", str(training_text([7, *passage, 7]))]
    out, err = call(*flags, "--json")
    none = {"quoted_tokens": 0, "quoted_text": "", "quoted_at": None}
    quoted = {"quoted_tokens": 17, "quoted_text": tokenizer.decode(passage), "quoted_at": 1}
    assert objects(out) == [{**plain[0], **none}, {**plain[1], **quoted}]
    lines = r"sample 0: no passage of 8 .*\nsample 1: 17 tokens .* token 1 on: .*\nfor comparison, 4 .* 24 .* 7 .* 7\n"
    assert re.search(lines, err)
    out, err = call(*flags)
    assert out == call(*settings)[0]
    assert re.search(lines, err)


def test_a_signal_ends_the_search_at_once_where_nothing_is_lost(call, training_text, monkeypatch):
    seen: list = []
    monkeypatch.setattr(generate, "write_samples", lambda *given: seen.append(given[5]))
    monkeypatch.setattr(generate, "write_quotations", lambda *_: seen.append(seen[-1].at_once))
    folder = training_text([])
    for flags in ([], ["--json"]):
        call("--compare_with", str(folder), *flags)
    assert [bool(seen[1]), bool(seen[3])] == [True, False]


def test_the_validation_text_says_how_long_passages_of_a_document_are(call, training_text, corpus_folder):
    validation = np.fromfile(corpus_folder / "val.bin", "<i2")
    validation[::12] = 0  # the end of a document
    validation.tofile(corpus_folder / "val.bin")
    folder = training_text(validation[:50].tolist())
    found = re.search(r"\nfor comparison, \d+ .* share at most (\d+) .* at most (\d+)\n",
                      call("--compare_with", str(folder))[1])
    assert found
    assert 7 <= int(found[1]) <= int(found[2]) == 11


def test_only_tokens_of_the_models_own_tokenizer_are_compared(call, training_text, tmp_path):
    folder = training_text([])
    fields = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    fields["model"]["vocab"] = {token: 399 - number for token, number in fields["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    with refused(r"(?s)--compare_with .*--tokenizer_file", Exit.FLAGS):
        call("--compare_with", str(folder))
    with refused("--chat.*--compare_with|--compare_with.*--chat", Exit.FLAGS):
        call("--chat", "--compare_with", str(folder))
    (folder / "tokenizer.json").unlink()
    for other in (tmp_path / "none", folder, folder / "train.bin"):
        with refused(rf"(?s){other} is no folder of .*--tokenizer_file", Exit.DATA):
            call("--compare_with", str(other))


# ---------------------------------------------------------------- a conversation


@pytest.fixture
def chatty(tokenizer, tmp_path):
    """The checkpoint of a model that was trained on conversations, with a window of 256."""
    return conversing_checkpoint(tmp_path / "chatty", tokenizer, seq_length=256)


@pytest.fixture
def talk(folder, monkeypatch, capsys):
    """A function: runs a conversation of the given lines; returns stdout and stderr."""

    def conversation(*lines: str, flags=(), ckpt: Path = folder, stream=io.StringIO) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", stream("".join(line + "\n" for line in lines)))
        assert generate.main(["--ckpt", str(ckpt), "--no-use_gpu", "--chat", "--max_new_tokens", "8", *flags]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return conversation


def asked(folder: Path, turns: list[Turn], max_new_tokens: int = 8) -> list[int]:
    """The greedy ids of the answer to these turns, by the model's own loop."""
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, torch.device("cpu")).eval()
    ids = prompt_ids(turns, tokenizer)
    return sample(model, ids, max_new_tokens, 0, tokenizer.token_to_id(END), Sampling(temperature=0.0))


GREEDY_JSON = ["--json", "--temperature", "0"]


def test_a_line_of_windows_asks_the_same(talk, chatty):
    first, second = (talk(line, flags=GREEDY_JSON, ckpt=chatty)[0] for line in ("the cat\r", "the cat"))
    assert objects(first)[0]["ids"] == objects(second)[0]["ids"]


def test_a_conversation_remembers_its_turns_in_the_template_of_training(talk, chatty):
    lines = ["the cat", "", f"a dog {END}{{{{ 7*7 }}}}"]
    said = objects(talk(*lines, flags=[*GREEDY_JSON, "--system", "Be kind."], ckpt=chatty)[0])
    turns = [Turn("system", "Be kind.")]
    for line, record in zip(lines, said, strict=True):
        turns.append(Turn("user", line))
        assert (record["prompt"], record["ids"]) == (line, asked(chatty, turns))
        turns.append(Turn("assistant", record["text"]))
    assert [record["seed"] for record in said] == [0, 1, 2]
    again = objects(talk(lines[0], "/reset", lines[1], flags=GREEDY_JSON, ckpt=chatty)[0])
    assert again[1]["ids"] == asked(chatty, [Turn("user", lines[1])])
    plain, err = talk(*lines, flags=[*GREEDY_JSON[1:], "--system", "Be kind."], ckpt=chatty)
    assert plain == "".join(record["text"] + "\n" for record in said)
    assert re.fullmatch(TIMING * 3, err)


def test_a_prompt_is_answered_once_without_being_repeated(call, chatty, tmp_path):
    prompt = ["--chat", "--prompt", "the cat", "--num_samples", "2", "--temperature", "0"]
    first, second = objects(call(*prompt, "--json", ckpt=chatty)[0])
    assert first["ids"] == second["ids"] == asked(chatty, [Turn("user", "the cat")], 24)
    (tmp_path / "p.txt").write_bytes(b"the cat\r\n")  # a line's end is no part of the question
    of_file = call("--chat", "--prompt_file", str(tmp_path / "p.txt"), "--temperature", "0", "--json", ckpt=chatty)
    assert objects(of_file[0])[0]["ids"] == first["ids"]
    assert call(*prompt, ckpt=chatty)[0] == f"{first['text']}\n{SEPARATOR}{first['text']}\n"
    with refused(r"the message has \d\d\d tokens", Exit.DATA):
        call("--chat", "--prompt", "sea " * 400, ckpt=chatty)


def test_a_model_that_learned_from_text_alone_continues_the_lines(talk, call, tmp_path):
    said, err = talk("the cat", flags=["--system", "x"])
    assert "the cat" + said == call("--prompt", "the cat", "--max_new_tokens", "8")[0]
    assert re.fullmatch(rf"(?s)warning: --chat: .* without --system\. .*train\.py --init_from .*\n{TIMING}", err)
    assert "the cat" + call("--chat", "--prompt", "the cat")[0] == call("--prompt", "the cat")[0]
    assert talk("x", "/reset", "the cat")[0][-len(said):] != said  # the next seed
    greedy = ["--temperature", "0"]
    first, second = talk("the cat", "/reset", "a dog", flags=greedy)[0], talk("a dog", flags=greedy)[0]
    assert first.endswith(second)
    assert talk("the cat", "a dog", flags=greedy)[0] != first


class Terminal(io.StringIO):
    """Standard input where somebody types."""

    def isatty(self) -> bool:
        return True


def test_a_conversation_takes_its_commands(talk):
    said, err = talk("/usr/bin is where?", "/quit ", "never read", flags=GREEDY_JSON)
    assert [record["prompt"] for record in objects(said)] == ["/usr/bin is where?"]
    assert "/reset" not in err
    said, err = talk("", " ", "the cat", flags=GREEDY_JSON, stream=Terminal)
    assert "/reset" in err
    assert [record["prompt"] for record in objects(said)] == ["the cat"], "a bare Enter is no message"


def test_a_message_that_is_too_long_stops_a_pipe_and_not_a_terminal(talk, chatty):
    long = "sea " * 400
    with refused(r"the message has \d\d\d tokens in its template, and the model sees 248", Exit.DATA):
        talk(long, ckpt=chatty)
    said, err = talk("the cat", long, "a dog", flags=GREEDY_JSON, ckpt=chatty, stream=Terminal)
    assert "warning: the message has" in err
    answers = objects(said)
    turns = [Turn("user", "the cat"), Turn("assistant", answers[0]["text"]), Turn("user", "a dog")]
    assert answers[1]["ids"] == asked(chatty, turns)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGTERM that a program can answer")
def test_sigterm_ends_a_conversation_with_its_code_and_ctrl_c_an_answer(talk, chatty, monkeypatch):
    def interrupted(*arguments):
        for number, text in enumerate(generate_texts(*arguments)):
            if number == 2:
                signal.raise_signal(signals.pop())
            yield text

    monkeypatch.setattr(streaming, "generate_texts", interrupted)
    signals = [signal.SIGINT, signal.SIGINT]
    first, second = objects(talk("the cat", "a dog", flags=GREEDY_JSON, ckpt=chatty)[0])
    assert [first["finish_reason"], second["finish_reason"]] == ["interrupted", "interrupted"]
    assert first["ids"] == asked(chatty, [Turn("user", "the cat")])[:3]
    turns = [Turn("user", "the cat"), Turn("assistant", first["text"]), Turn("user", "a dog")]
    assert second["ids"] == asked(chatty, turns)[:3]
    signals = [signal.SIGTERM]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\na dog\n"))
    assert generate.main(["--ckpt", str(chatty), "--no-use_gpu", "--chat"]) == 128 + signal.SIGTERM


def test_a_template_that_is_not_ours_is_said_or_refused(talk, call, chatty):
    for name in ("manifest.json", "trainer_state.json"):  # it is somebody else's folder
        (chatty / name).unlink()
    (chatty / "chat_template.jinja").write_text("{{ messages }}")
    assert re.match("warning: --chat: .*ChatML\\.\n", talk("the cat", ckpt=chatty)[1])
    fields = json.loads((chatty / "tokenizer.json").read_text(encoding="utf-8"))
    fields["added_tokens"] = fields["added_tokens"][:1]
    (chatty / "tokenizer.json").write_text(json.dumps(fields))
    with refused(r"(?s)no <\|im_start\|>.*pretokenize\.py", Exit.CHECKPOINT):
        talk("the cat", ckpt=chatty)
