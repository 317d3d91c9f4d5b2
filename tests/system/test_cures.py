"""Every cure that a message names, typed: the command or the flag is read out of the message and run on its case.

A case is a line that ends in a message, in a folder with texts, tokens and a run. Its cure must end with exit code 0,
and without the message. Each message of the program with a cure has a case, or a reason why it has none.
"""

import ast
import functools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import train
from gpt.common.errors import UserError
from tests.helpers.commands import ROOT
from tests.helpers.house import nodes, sources

COMMAND = re.compile(r"(?:python \w+\.py|cp) (?:\\\n|[^\n])*?(?=\.?\n|\.?$|[.;] |, (?:then|and|or|with) )")
FLAG = re.compile(r"--(?:no-)?[a-z][a-z0-9_]*")
CURE = re.compile(r"python (?:\w+\.py|\{)|cp DATA|(?:\b[Gg]ive|\b[Dd]rop|\b[Tt]ry|\b[Ll]ower|\braise|\bDouble"
                  r"|\b[Ll]eave out|\bhelps|another|(?<!has no effect) with|fewer|smaller|larger|, or)\b[^\n]*?--[a-z]")
DROPS = re.compile(r"(?:[Dd]rop|[Ll]eave out) (?:--\w+ or )?$")
NO_VALUE = {"to", "and", "or", "with", "for", "of", "whose", "which", "replaces", "in", "then", "than", "if", "on"}
Maker = Callable[[], object]


USUAL = {"--output_dir": "other", "--ckpt": "out", "--data_dir": "data", "--init_from": "out", "TEXT": "a.txt",
         "--output": "other.gguf", "FILE": "a.txt", "DATA": "data", "MORE": "b.txt", "TOKENIZER": "data/tokenizer.json",
         "--tokenizer_file": "data/tokenizer.json", "--model_size": "tiny", "--vocab_size": "300", "N": "300",
         "--seq_length": "4", "--val_fraction": "0.01", "CHECKPOINT": "out", "--num_workers": "1"}


class Case(NamedTuple):
    """A line that ends in a message, of whose text in the program message is a part.

    make prepares the current folder. values replaces words in capitals, and gives flags the values that the
    message leaves open. The flags of a message are cures by themselves, unless they are together; the commands of a
    message come one after the other. drops are flags of the line that the cure asks to leave out in other words. again
    repeats the line after the commands. adds are
    the flags of the line that a command leaves to the user. What follows until is no cure of this case.
    """

    message: str
    line: str
    make: Maker = lambda: None
    values: dict[str, str] = USUAL
    together: bool = False
    drops: str = ""
    again: bool = False
    adds: str = ""
    until: str = ""


SMALL = "--n_layer 1 --n_head 2 --n_embd 16 --seq_length 8"
QUIET = "--batch_size 4 --no-use_gpu --sample_interval 0 --eval_interval 3 --max_steps 6"
NEW = f"train.py {SMALL} {QUIET} --output_dir new"
MORE = f"train.py {QUIET} --resume_from out --max_steps 8"


# ---------------------------------------------------------------- the situations


def text_in(encoding: str, text: str = "", name: str = "x.txt") -> Maker:
    return lambda: Path(name).write_bytes((text or Path("a.txt").read_text("utf-8")).encode(encoding))


def records(field: str, name: str = "k.jsonl") -> Maker:
    return lambda: Path(name).write_text("".join(json.dumps({field: f"the cat {n} sat"}) + "\n" for n in range(300)))


def without(name: str, folder: str = "hf") -> Maker:
    return lambda: Path(folder, name).unlink()


def copied(folder: str, to: str) -> Maker:
    return lambda: shutil.copytree(folder, to)


def moved(name: str, to: str) -> Maker:
    return lambda: shutil.move(name, to)


def raw_tokens(folder: str = "raw", name: str = "train.bin") -> None:
    Path(folder).mkdir(exist_ok=True)
    np.arange(2000, dtype="<u2").__mod__(290).tofile(Path(folder, name))


def edited(path: str, **fields: object) -> Maker:
    return lambda: Path(path).write_text(json.dumps({**json.loads(Path(path).read_text()), **fields}))


def two_sets() -> None:
    raw_tokens()
    raw_tokens(name="x_train_0.bin")


def pickled(with_shape: bool = True) -> None:
    import torch

    from tests.helpers.models import make_model

    state = make_model(vocab_size=300, activation="gelu").state_dict()
    state["transformer.wte.weight"] = state["transformer.wte.weight"][:300].clone()
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16, "vocab_size": 300, "bias": True}
    torch.save({"model": state, **({"model_args": shape} if with_shape else {})}, "ck.pt")


def export(name: str) -> None:
    import export

    assert export.main(["--ckpt", "out", "--output", name]) == 0


def chats() -> None:
    turns = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    Path("chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 300)


def lowercase() -> None:
    fields = json.loads(Path("data/tokenizer.json").read_text())
    Path("t.json").write_text(json.dumps({**fields, "normalizer": {"type": "Lowercase"}}))
    Path("a.txt").write_text("The Cat\n" * 900)


def larger() -> None:
    fields = json.loads(Path("data/tokenizer.json").read_text())
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": 300, "content": "<more>"})
    Path("t.json").write_text(json.dumps(fields))


# ---------------------------------------------------------------- the cases

AT_ONCE = [
    Case("as its marks show", "pretokenize.py x.txt --output_dir new", text_in("utf-16")),
    Case("Copy there the one of", "generate.py --ckpt hf --max_new_tokens 2", without("tokenizer.json"), again=True),
    Case("so it is no checkpoint of train.py", f"train.py {QUIET} --resume_from hf --output_dir new",
         together=True),
    Case("For its tokens type", f"{NEW} raw", raw_tokens, adds=f"{SMALL} {QUIET} --output_dir new"),
    Case("is far above the default", f"{NEW} --learning_rate 9"),
    Case("python pretokenize.py MORE", "train.py --resume_from out --max_steps 8 --data_dir data2 --allow_new_data"),
]
LATER = [
    Case("as its marks show", "pretokenize.py x.txt --output_dir new", text_in("utf-16")),
    Case("cannot be decoded, from", "pretokenize.py x.txt --output_dir new", text_in("latin-1"),
         {"--encoding": "latin-1"}),
    Case("as its marks show", "pretokenize.py x.txt --output_dir new",
         text_in("iso2022_jp", "\u65e5\u672c\u8a9e\u306e\u6587\n" * 200)),
    Case("as its marks show", "evaluate.py --ckpt out --text x.txt", text_in("utf-16")),
    Case("full of control characters", "pretokenize.py x.txt --output_dir new", text_in("ascii", "a\0b c\0d\n" * 2000),
         until=" If it holds"),
    Case("hold no document, the first", "pretokenize.py k.jsonl --output_dir new", records("body"),
         {"--text_field": "body"}),
    Case("cannot be decoded, from", "evaluate.py --ckpt out --text x.txt", text_in("latin-1"),
         {"--encoding": "latin-1"}),
    Case("Give the right --encoding", "pretokenize.py x.txt --encoding ascii --output_dir new", text_in("latin-1"),
         {"--encoding": "latin-1"}),
    Case("leave out --strict_utf8", "pretokenize.py x.txt --strict_utf8 --output_dir new",
         lambda: Path("x.txt").write_bytes(Path("a.txt").read_bytes() + b"\xff")),
    Case("already holds {', '.join(names[:4])}", "pretokenize.py a.txt --output_dir data"),
    Case("would be replaced by the output", "pretokenize.py new/train.bin --output_dir new --overwrite",
         lambda: (Path("new").mkdir(), text_in("ascii", "the cat sat. " * 99, "new/train.bin")())),
    Case("To keep it, give --tokenizer_file", "pretokenize.py a.txt --output_dir data --overwrite --vocab_size 280",
         drops="--vocab_size"),
    Case("Give another --tokenizer_file.", "pretokenize.py a.txt --tokenizer_file none.json --output_dir new"),
    Case("FILE: none given", "pretokenize.py --output_dir new --vocab_size 300"),
    Case("Train one first", "generate.py --ckpt new --max_new_tokens 2",
         lambda: shutil.move("out", Path("a/b/c").mkdir(parents=True) or "a/b/c"), adds=f"{SMALL} {QUIET}", again=True),
    Case("Convert nanoGPT's", f"train.py {QUIET} --init_from ck.pt --output_dir new", pickled),
    Case("holds the checkpoints of another run", f"train.py {SMALL} {QUIET}"),
    Case("holds checkpoints that do not lead", "train.py --resume_from out2 --output_dir out --max_steps 8",
         copied("out", "out2")),
    Case("Give that data, or --allow_new_data", "train.py --resume_from out --max_steps 8 --data_dir data3",
         values={"--data_dir": "data"}),
    Case("Another shape is another run", "train.py --resume_from out --max_steps 8 --n_layer 2",
         together=True),
    Case("was made with another tokenizer", f"train.py {QUIET} --init_from out --data_dir data2 --output_dir new",
         again=True, together=True),
    Case("Run: python pretokenize.py TEXT --output_dir", f"{NEW} --data_dir none", again=True),
    Case("has no metadata.json. For", f"{NEW} --data_dir raw", raw_tokens),
    Case("would delete {printable(model)}", f"train.py {QUIET} --init_from out --overwrite"),
    Case("does not exist. Give --teacher", f"{NEW} --teacher gone", values={"--teacher": "out"}),
    Case("but no manifest.json, and a run", f"{NEW}",
         lambda: (copied("out/checkpoint-6", "new/checkpoint-6")(), without("manifest.json", "new/checkpoint-6")())),
    Case("which it cannot use. Drop", "train.py --resume_from out --max_steps 8 --optimizer muon",
         drops="--optimizer"),
    Case("raise --epochs or", "train.py --resume_from out", values={"--epochs": "2", "--max_steps": "8"}),
    Case("Give --preload auto", f"{NEW} --preload gpu".replace("--no-use_gpu ", "")),
    Case("nothing to measure; give it files", "evaluate.py --ckpt out",
         values={"--text": "a.txt", "--tokens": "data/val.bin"}),
    Case("exists. Give another name", "export.py --ckpt out --output e.gguf", lambda: export("e.gguf"),
         values={"--overwrite": ""}),
    Case("a GGUF file ends in .gguf", "export.py --ckpt out --output e.x --format gguf"),
    Case("Give --n_head {max", "export.py --from_nanogpt ck.pt --output e --tokenizer_file data/tokenizer.json",
         lambda: pickled(False)),
    Case("the folder gets no tokenizer", "export.py --from_nanogpt ck.pt --output e --n_head 2", pickled),
    Case("holds conversations. Make", "evaluate.py --ckpt out --text chats.jsonl", chats),
    Case("has no tokens yet", f"{NEW} b.txt --dry_run", again=True),
    Case("holds the tokens of", f"{NEW} b.txt", lambda: shutil.copytree("data", "b.txt.tokens")),
    Case("each step reads the text", f"{NEW} --batch_size 4000 --max_steps 1"),
    Case("skipped, the first", "pretokenize.py k.jsonl --output_dir new --allow_bad_records", records("body"),
         {"--text_field": "body"}),
    Case("is not known. Give --metadata_file", f"{NEW} --bin_file raw/train.bin",
         lambda: (raw_tokens(), Path("m.json").write_text('{"vocab_size": 300}')),
         {"--metadata_file": "m.json"}),
    Case("the tokenizer changes text", "pretokenize.py a.txt --tokenizer_file t.json --output_dir new", lowercase),
    Case("sets of token files, not one", f"{NEW} --data_dir raw --vocab_size 300", two_sets,
         {"--bin_file": "raw/train.bin", "--val_bin_file": "raw/train.bin"}),
    Case("holds text, not tokens. Make", "evaluate.py --ckpt out --tokens a.txt"),
    Case("is missing or not a file. Make", f"{NEW} --bin_file none.bin --vocab_size 300"),
    Case("Give the model's own --tokenizer_file", "export.py --ckpt out --output e.gguf --tokenizer_file t.json",
         larger),
    Case("next: python generate.py", f"{NEW}"),
    Case("next: python train.py{data_dir}", "pretokenize.py a.txt --output_dir new",
         adds=f"{SMALL} {QUIET} --output_dir run"),
    Case("--eval_batches: validation keeps", "train.py --resume_from out --max_steps 8 --eval_batches 1",
         values={"--eval_tokens": "64"}, together=True),
]

NOT_TYPED = {
    "needs a GPU, or a processor without bf16": (
        "mixed precision is off on a GPU", "only emulates bf16", "has no bf16 instructions",
        "torch.compile is off on", "finds no Apple GPU", "not with --dropout on Apple", "--use_gpu: {reason}",
        "the GPU waits for the host", "not even one sequence of", "on a CPU the compiled step"),
    "needs several processes, or their memory": (
        "processes were started on a machine", "another process of this run has ended", "has not answered for",
        "processes cannot share evenly", "samples     none, as with", ", or share it among several",
        "--batch_size auto, or this", "takes half as many at a time", "is in use by another run"),
    "needs a network, or a package that is missing": (
        "Check the network and the disk", "the hub has weights", "not installed. Run", "has no column"),
    "needs memory or a disk that runs out": (
        "End other programs{where}", "out of memory in step", "Give a smaller model: ",
        "Try a smaller --seq_length", "continuation')} at once", "could not be written; run again",
        "has too little free space", "fewer --num_workers", "the loader holds the device back"),
    "is a part of another message, or no message": (
        ", or --overwrite, which deletes them",
        ", or a second run with --teacher", ", or --allow_bad_records to",
        " with --tokenizer_file {shell_word(corpus", "; or, without more text", "python {prog}",
        "python {prog} [flags]", "python {sys.version}", "with --init_from the model gets rows",
        "parameters} for {num_tokens}", "does not go with FILE or --demo", "not with several folders in",
        "unexpected argument. Give a value", "a flag such as --encoding goes to",
        "with --chat it needs --prompt"),
    "needs a model that learns, or a run of minutes": (
        "the loss oscillates", "the loss is {level}", "Give --learning_rate {lower_rate}",
        "overfitting since step", "did not come near", "last_good()} with", "allows only {several(recipe",
        "raise --max_minutes to", "python train.py --config {folder}",
        "--resume_from {folder} --{unit} {length", "stopped by {signals.name}; to"),
    "could be typed, and is not yet": (
        "cooled down; resume from", "no validation tokens: over", "the corpus is small for this", "the batches have no",
        ": only with --format gguf",
        "which --dtype {dtype} cannot", "{reason}. Give --format huggingface.",
        "It cannot be resumed with these", "every checkpoint there is damaged",
        "a library stopped at its input", "Train it on conversations", "Give a shorter message or",
        "or change --prompt", "Give --prompt.", "logits are not finite", "--init_from {shell_word(given)}",
        "differ in kind. Say", "is {kind}, not tokens", "so llama.cpp would split text",
        "so llama.cpp would never end", "metadata {name}: {why}. Make", "Give an --output_dir of",
        "Give --y bits", "Give --x steps", "Give --y nats", "Pipe it in",
        "no metadata names it", "fewer than a sequence of",
        "choose another --output_dir", "would go to validation", "The flags of the run in"),
}


# ---------------------------------------------------------------- the program's messages


@functools.cache
def messages() -> dict[str, str]:
    """The text of each message with a command or a flag, with {...} for what it fills in, and where it stands."""
    every: list[Any] = [node for tree in sources().values() for node in ast.walk(tree)]
    inner = {id(part) for _, node in nodes(ast.JoinedStr) for part in ast.walk(node) if part is not node}
    inner |= {id(part) for node in every if isinstance(node, ast.Call)
              and ast.unparse(node.func).endswith("add_argument") for part in ast.walk(node)}
    inner |= {id(node.body[0].value) for node in every  # type: ignore[attr-defined]
              if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)}
    texts = ((place, text_of(node)) for place, node in nodes(ast.Constant, ast.JoinedStr)
             if id(node) not in inner and not place.startswith("gpt/benchmarks"))
    return {text: place for place, text in texts
            if " " in text and re.search(r"python (?:\w+\.py|\{)|--[a-z]|cp DATA", text)}


def text_of(node: Any) -> str:
    """The text of a string, {...} for what an f-string fills in; nothing for another constant."""
    parts: list[Any] = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[arg-type]
                   for part in parts if not isinstance(part, ast.Constant) or isinstance(part.value, str))


def the_message(words: str) -> str:
    """The only message that these words are a part of."""
    found = [words] if words in messages() else [text for text in messages() if words in text]
    assert len(found) == 1, (words, found)
    return found[0]


def pattern_of(text: str) -> re.Pattern[str]:
    """What a message looks like when it is printed."""
    parts = re.split(r"(?<!\\)\{(?:[^{}]|\{[^{}]*\})*\}", text)
    return re.compile("(.*?)".join(map(re.escape, parts)) + "[^\n]*", re.DOTALL)


# ---------------------------------------------------------------- typing a cure


def cures(case: Case, said: str) -> Iterator[list[str]]:
    """The lines to type, one after the other, for each cure in what was said."""
    values = {**USUAL, **case.values}
    line = without_flag(shlex.split(case.line), case.drops)
    if commands := COMMAND.findall(said):
        lines = [command.removeprefix("python ").replace("\\\n", "") for command in commands]
        for word in (word for word in values if word.isupper()):
            lines = [re.sub(rf"(?<![\w-]){re.escape(word)}(?!\w)", values[word], line) for line in lines]
        for flag, value in re.findall(r"(?:and|then) give (--\w+) ([\w./-]*\w)", said):
            line = [*without_flag(line, flag), flag, value]
        yield [*lines[:-1], f"{lines[-1]} {case.adds}", *([shlex.join(line)] if case.again else [])]
        return
    together = line
    start = CURE.search(said)
    assert start
    cure = said[start.start():]
    for flag in FLAG.finditer(cure):
        if DROPS.search(cure[:flag.start()]):
            typed = without_flag(together if case.together else line, flag[0])
        else:
            word = re.match(r" ([\w./:-]*[\w/])", cure[flag.end():])
            is_value = word and word[1] not in NO_VALUE
            value = [word[1]] if word and is_value else [case.values.get(flag[0], USUAL.get(flag[0], ""))]
            typed = [*without_flag(together if case.together else line, flag[0]), flag[0], *filter(None, value)]
        together = typed
        if not case.together:
            yield [shlex.join(typed)]
    if case.together:
        yield [shlex.join(together)]


def without_flag(words: list[str], flag: str) -> list[str]:
    """The line without a flag and its value."""
    if not flag or flag not in words:
        return words
    start = words.index(flag)
    end = start + 1 + (words[start + 1:start + 2] != [] and not words[start + 1].startswith("--"))
    return words[:start] + words[end:]


@pytest.fixture(scope="session")
def place(tmp_path_factory, forks) -> Path:
    """A folder with texts, tokens of two tokenizers, a run of six steps and its weights alone."""
    folder = tmp_path_factory.mktemp("cures")
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "to", "sea", "caf\u00e9", "na\u00efve", "\u00fcber"]
    draws = np.random.default_rng(0)
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("\n".join(" ".join(draws.choice(words, 10)) for _ in range(600)), "utf-8")
    tokenizer = "--tokenizer_file data/tokenizer.json"
    for line in ("pretokenize.py a.txt --vocab_size 300", "pretokenize.py b.txt --vocab_size 290 --output_dir data2",
                 f"pretokenize.py b.txt {tokenizer} --output_dir data3",
                 f"train.py {SMALL} {QUIET} --checkpoint_every_steps 2 --lr_schedule wsd"):
        ended = forks.run(line, cwd=folder)
        assert ended.code == 0, ended.stderr
    shutil.copytree(folder / "out/checkpoint-6", folder / "hf")
    for name in ("manifest.json", "trainer_state.json", "optimizer.safetensors"):
        (folder / "hf" / name).unlink()
    return folder


def check(case: Case, place: Path, forks, tmp_path: Path, monkeypatch) -> None:
    """Runs the case's line, and types each cure of its message in a copy of the folder that it left."""
    folder = shutil.copytree(place, tmp_path / "raised")
    monkeypatch.chdir(folder)
    case.make()
    here = Path.cwd().relative_to(folder)
    pattern = pattern_of(the_message(case.message))
    ended = forks.run(case.line, cwd=folder / here, merged=True)
    found = pattern.search(ended.stdout)
    assert found, ended.stdout[-2000:]
    typed = [*cures(case, found[0].split(case.until)[0] if case.until else found[0])]
    assert typed, found[0]
    if ended.code == 0 and not found[0].startswith("next: "):
        shutil.rmtree("new", ignore_errors=True)
        shutil.rmtree("e", ignore_errors=True)
    for number, lines in enumerate(typed):
        said = ""
        again = shutil.copytree(folder, tmp_path / str(number)) / here
        for line in lines:
            if line.startswith("cp "):
                subprocess.run(line, shell=True, check=True, cwd=again)
                continue
            line = re.sub(r"--max_minutes \S+", "--max_minutes 0.03", line)  # the only word that is not as it was said
            answer = forks.run(line, cwd=again, merged=True)
            said = answer.stdout[-2000:]
            assert answer.code == 0, (line, said)
        assert not pattern.search(said) or found[0].startswith("next: "), (lines, said)


@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: case.message[:40])
def test_the_cure_of_a_message_works_as_it_is_typed(case, place, forks, tmp_path, monkeypatch):
    check(case, place, forks, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", LATER, ids=lambda case: case.message[:40])
def test_every_other_cure_works_as_it_is_typed(case, place, forks, tmp_path, monkeypatch):
    check(case, place, forks, tmp_path, monkeypatch)


def test_each_message_with_a_cure_has_a_case_or_a_reason():
    typed = {the_message(case.message) for case in (*AT_ONCE, *LATER)}
    others = {the_message(words) for reason in NOT_TYPED.values() for words in reason}
    assert not typed & others
    with_a_cure = {text for text in messages() if CURE.search(text)}
    assert sorted(with_a_cure - typed - others) == []
    assert others <= with_a_cure


@pytest.mark.parametrize("command", ["train", "generate", "evaluate", "export", "pretokenize"])
def test_an_older_python_is_told_before_it_meets_newer_syntax(command, monkeypatch, capsys):
    source = (ROOT / f"{command}.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))
    monkeypatch.setattr("sys.version_info", (3, 9, 18))
    with pytest.raises(SystemExit) as ended:
        exec((ROOT / "gpt/__init__.py").read_text(encoding="utf-8"))
    assert ended.value.code == 5
    assert "Python 3.9, and the program needs 3.10" in capsys.readouterr().err


def test_flags_of_other_programs_are_all_translated():
    words = ["--eval_iters=3", "--block_size=4", "--n_embed=5", "--lr=3", "--max_iters=4", "--device=cpu", "--foo"]
    with pytest.raises(UserError) as caught:
        train.read_flags(words)
    names = ("eval_batches", "seq_length", "n_embd", "learning_rate", "max_steps", "no-use_gpu")
    assert all(f"--{name}" in str(caught.value) for name in names)
