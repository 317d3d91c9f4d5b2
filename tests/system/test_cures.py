"""Every cure that a message names, typed: the command or the flag is read out of the message and run on its case.

A case is a line that ends in a message, in a folder with texts, tokens and a run. Its cure must end with exit code 0,
and without the message. Each message of the program with a cure has a case, or a reason why it has none.
"""

import ast
import functools
import gzip
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import train
from gpt.common.errors import UserError
from gpt.common.files import try_lock
from tests.helpers.commands import ROOT
from tests.helpers.forks import Raised
from tests.helpers.house import nodes, sources

COMMAND = re.compile(r"(?:python \w+\.py|cp|echo) (?:\\\n|[^\n])*?(?=\.?\n|\.?$|[.;] |, (?:then|and|or|with) )")
FLAG = re.compile(r"--(?:no-)?[a-z][a-z0-9_]*")
CURE = re.compile(r"(?:python|\{launcher\(\)\}) (?:\w+\.py|\{)|cp DATA|echo '|^--\w+, or"
                  r"|(?:\b[Gg]ive|\b[Dd]rop|\b[Tt]ry|\b[Ll]ower|\braise|\bDouble"
                  r"|\b[Ll]eave out|\bhelps|another|Resume|(?<!has no effect) with|fewer|smaller|larger|, or)\b"
                  r"[^\n]*?--[a-z]")
DROPS = re.compile(r"(?:[Dd]rop|[Ll]eave out) (?:--\w+ or )?$")
NO_VALUE = {"to", "and", "or", "with", "for", "of", "whose", "which", "replaces", "in", "then", "than", "if", "on",
            "alone"}
Maker = Callable[[], object]


USUAL = {"--output_dir": "other", "--ckpt": "out", "--data_dir": "data", "--init_from": "out", "TEXT": "a.txt",
         "--output": "other.gguf", "FILE": "a.txt", "DATA": "data", "MORE": "b.txt",
         "TOKENIZER": "data/tokenizer.json",
         "--tokenizer_file": "data/tokenizer.json", "--model_size": "tiny", "--vocab_size": "300", "N": "300",
         "--seq_length": "4", "--val_fraction": "0.01", "--num_workers": "1"}
CPU = {"env": {"CUDA_VISIBLE_DEVICES": ""}}
TWO = {"world_size": 2}
ALONE: dict[str, Any] = {}


class Case(NamedTuple):
    """A line that ends in a message, of whose text in the program message is a part.

    make prepares the current folder. values replaces words in capitals, and gives flags the values that the
    message leaves open. The flags of a message are cures by themselves, unless they are together; the commands of a
    message come one after the other. drops are flags of the line that the cure asks to leave out in other words. again
    repeats the line after the commands. adds are the flags of the line that a command leaves to the user. What follows
    until is no cure of this case. raised befalls the line alone; more are fields of the Job, such as stdin, of the line
    and of its cures. file is the file of the run that holds the message, as comments. With said the line raises nothing
    on a machine without a GPU: the flags of the message are typed all the same. With stays the message may come again.
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
    raised: tuple[Raised, ...] = ()
    more: dict[str, Any] = ALONE
    file: str = ""
    said: bool = False
    stays: bool = False


SMALL = "--n_layer 1 --n_head 2 --n_embd 16 --seq_length 8"
QUIET = "--batch_size 4 --no-use_gpu --sample_interval 0 --eval_interval 3 --max_steps 6"
NEW = f"train.py {SMALL} {QUIET} --output_dir new"
MORE = f"train.py {QUIET} --resume_from out --max_steps 8"
KEPT = f"train.py {SMALL} {QUIET} --output_dir run"
LENGTHLESS = QUIET.removesuffix(" --max_steps 6")
STEP = "train:try_step"


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
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": 300, "content": "<more>", "special": False})
    Path("t.json").write_text(json.dumps(fields))


def weights(factor: float, folder: str = "hf") -> Maker:
    """Makes the weights of a folder larger."""
    def make() -> None:
        from safetensors.torch import load_file, save_file

        path = f"{folder}/model.safetensors"
        save_file({name: factor * tensor for name, tensor in load_file(path).items()}, path)
    return make


def endless() -> None:
    """Takes the end of a text out of the folder hf."""
    edited("hf/config.json", eos_token_id=None, bos_token_id=None)()
    Path("hf/generation_config.json").unlink(missing_ok=True)
    edited("hf/tokenizer.json", added_tokens=[], post_processor=None)()


def words_alone() -> None:
    """Gives the folder hf a vocabulary of words, without a token for others."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"the": 0, "cat": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save("hf/tokenizer.json")


def in_use() -> None:
    """Locks the folder new as long as the tests last."""
    Path("new").mkdir()
    assert try_lock(os.open("new/.pretokenize.lock", os.O_RDWR | os.O_CREAT))


def in_hub_cache() -> None:
    pytest.importorskip("huggingface_hub")
    repository = Path("hub/models--someone--cat")
    shutil.copytree("hf", repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)


def table() -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"body": [f"the cat {n} sat" for n in range(300)]}), "k.parquet")


def timed() -> None:
    trained(f"{SMALL} {LENGTHLESS} --output_dir timed --max_minutes 0.005")


def impatient() -> None:
    trained(f"{SMALL} {QUIET} --output_dir run --max_steps 40 --learning_rate 1e-30 --min_lr 0 --patience 1")


def half_bad() -> None:
    records("text")()
    with open("k.jsonl", "a") as file:
        file.write('{"body": "the cat"}\n' * 300)


def notes() -> None:
    Path("mine").mkdir()
    Path("mine/config.toml").write_text("# my notes\n")


def mirrored() -> None:
    """As the copy of a run with a mirror: the lock file names the folder from which this one was copied."""
    config = Path("out/config.toml")
    config.write_text(f'mirror_to = "mirror"\n{config.read_text()}')


def damaged_mirror() -> None:
    for number in (2, 4, 6):
        shutil.copytree(f"out/checkpoint-{number}", f"mirror/checkpoint-{number}")
        Path(f"mirror/checkpoint-{number}/model.safetensors").write_bytes(b"0")


def panics() -> None:
    bytes_of_text = json.loads(Path("data/tokenizer.json").read_text())["pre_tokenizer"]
    edited("data/tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}, bytes_of_text]})()
    shutil.move("data/tokenizer.json", "t.json")
    shutil.copy("data2/tokenizer.json", "data")
    Path("a.txt").write_text("x" * 30000)


def uneven() -> None:
    raw_tokens()
    np.arange(90000, dtype="<i4").tofile("raw/train.bin")


def interleaved() -> None:
    """Writes uint16 ids, of which every second is a large one."""
    raw_tokens()
    ids = np.arange(20000) % 200
    (ids + (np.arange(20000) % 2) * 60000).astype("<u2").tofile("raw/train.bin")


def pretokenized(line: str) -> None:
    import pretokenize

    assert pretokenize.main(shlex.split(line)) == 0


def trained(line: str) -> None:
    assert train.main(shlex.split(line)) == 0


def masked() -> None:
    chats()
    pretokenized("chats.jsonl --tokenizer_file data/tokenizer.json --output_dir chats --num_workers 1")


def converses() -> None:
    from tokenizers import Tokenizer

    from tests.helpers.models import conversing_checkpoint

    shutil.move(conversing_checkpoint(Path("chats"), Tokenizer.from_file("data/tokenizer.json")), "chat")


def small_folder(flags: str = "") -> None:
    text_in("utf-8", "the cat sat on a mat\n" * 40, "small.txt")()
    pretokenized(f"small.txt --tokenizer_file data/tokenizer.json --output_dir small --num_workers 1 {flags}")


def grown() -> None:
    """Makes the tokens of a text that is then longer."""
    pretokenized("b.txt --output_dir b.txt.tokens --num_workers 1 --vocab_size 300")
    with open("b.txt", "a") as file:
        file.write("the cat sat\n")


def cooled() -> None:
    trained(f"{LENGTHLESS} --cooldown_from out/checkpoint-4 --output_dir cool")


def taught_again() -> None:
    """Trains a run by a teacher, which is then trained again; t0 has the earlier one."""
    shutil.copytree("out", "t")
    trained(f"{SMALL} {QUIET} --teacher t --output_dir run")
    shutil.move("t", "t0")
    trained(f"{SMALL} {QUIET} --seed 2 --output_dir t")


def first_is_lower() -> None:
    trained(f"{SMALL} {QUIET} --output_dir run/first_model")
    path = Path("run/first_model/metrics.jsonl")
    path.write_text(path.read_text().replace('"val_loss": ', '"val_loss": -'))


def other_vocabulary() -> None:
    shutil.copytree("out", "out2")
    path = Path("out2/metrics.jsonl")
    path.write_text(path.read_text().replace('"bits_per_byte": ', '"bits_per_byte": 1'))


def logged() -> None:
    Path("m.jsonl").write_text("".join(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in range(1, 9)))


def of_trainer() -> None:
    shutil.copytree("hf", "trainer/checkpoint-5")
    Path("trainer/checkpoint-5/training_args.bin").touch()


# ---------------------------------------------------------------- the cases

AT_ONCE = [
    Case("as its marks show", "pretokenize.py x.txt --output_dir new", text_in("utf-16")),
    Case("Copy there the one of", "generate.py --ckpt hf --max_new_tokens 2", without("tokenizer.json"), again=True),
    Case("so it is no checkpoint of train.py", f"train.py {QUIET} --resume_from hf --output_dir new",
         together=True),
    Case("To train on them", f"{NEW} raw", raw_tokens, adds=f"{SMALL} {QUIET} --output_dir new", together=True),
    Case("is far above the default", f"{NEW} --learning_rate 9"),
    Case("python pretokenize.py MORE", "train.py --resume_from out --max_steps 8 --data_dir data2 --allow_new_data"),
    Case(": only in a file. Give", "export.py --ckpt out --output e --format huggingface --dtype q8_0",
         together=True),
    Case("--ckpt out --text FILE", f"{NEW} --eval_only"),
    Case("--init_from resume: drop it", f"{NEW} --init_from resume", drops="--init_from"),
    Case("--use_gpu: {reason}", NEW.replace("--no-use_gpu", "--use_gpu"), more=CPU, drops="--use_gpu"),
    Case("the hub has weights", f"train.py {QUIET} --resume_from hf://someone/cat --output_dir new", in_hub_cache,
         {"--init_from": "hf://someone/cat"}, drops="--resume_from",
         more={"env": {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "hub"}}),
    Case("Pipe it in", "pretokenize.py /dev/stdin --output_dir new", adds="--output_dir new",
         more={"stdin": "the cat sat\n" * 300}),
    Case("choose another --output_dir", NEW, lambda: (Path("new").mkdir(), Path("new/.lock").write_text("mine"))),
]
LATER = [
    Case("give --encoding iso2022_jp", "pretokenize.py x.txt --output_dir new --vocab_size 300",
         text_in("iso2022_jp", "the cat sat on a mat\n" * 250 + "\u65e5 of \u672c\n" * 90)),
    Case("cannot be decoded, from", "pretokenize.py x.txt --output_dir new", text_in("latin-1"),
         {"--encoding": "latin-1"}),
    Case("as its marks show", "pretokenize.py x.txt --output_dir new",
         text_in("iso2022_jp", "\u65e5\u672c\u8a9e\u306e\u6587\n" * 200)),
    Case("The flag goes to this command", "evaluate.py --ckpt out --text x.txt", text_in("utf-16"),
         adds="--encoding utf-16", drops="--text", again=True),
    Case("full of control characters", "pretokenize.py x.txt --output_dir new",
         text_in("ascii", "a\0b c\0d\n" * 2000),
         until=" If it holds"),
    Case("the field's name with --text_field, or records", "pretokenize.py k.jsonl --output_dir new", records("body"),
         {"--text_field": "body"}),
    Case("The flag goes to this command", "evaluate.py --ckpt out --text x.txt", text_in("latin-1"),
         adds="--encoding latin-1", drops="--text", again=True),
    Case("The flag goes to this command", "evaluate.py --ckpt out --text k.jsonl", records("body"),
         adds="--text_field body", drops="--text", again=True),
    Case("Give the right --encoding", "pretokenize.py x.txt --encoding ascii --output_dir new", text_in("latin-1"),
         {"--encoding": "latin-1"}),
    Case("already holds {', '.join(names[:4])}", "pretokenize.py a.txt --output_dir data"),
    Case("is the output of a run", f"{NEW} out", adds="--max_steps 8"),
    Case("is the output of a run", "evaluate.py --ckpt out --text out/checkpoint-6", adds="--max_steps 8"),
    Case("holds a model, not", "pretokenize.py hf --output_dir new", adds=f"{QUIET} --output_dir new"),
    Case("holds a model, whose", "pretokenize.py a.txt --output_dir hf --overwrite"),
    Case("would be replaced by the output", "pretokenize.py new/train.bin --output_dir new --overwrite",
         lambda: (Path("new").mkdir(), text_in("ascii", "the cat sat. " * 99, "new/train.bin")())),
    Case("To keep it, give --tokenizer_file", "pretokenize.py a.txt --output_dir data --overwrite --vocab_size 280",
         drops="--vocab_size"),
    Case("Give another --tokenizer_file. hf", "pretokenize.py a.txt --tokenizer_file none.json --output_dir new"),
    Case("FILE: none given", "pretokenize.py --output_dir new --vocab_size 300"),
    Case("or train one first", "generate.py --ckpt new --max_new_tokens 2",
         lambda: shutil.move("out", Path("a/b/c").mkdir(parents=True) or "a/b/c"), adds=f"{SMALL} {QUIET}", again=True),
    Case("began from random weights", f"{MORE} --init_from out"),
    Case("Begin a run there", f"{MORE} --output_dir new --resume_from new".replace("--resume_from out ", ""),
         lambda: shutil.move("out", Path("a/b/c").mkdir(parents=True) or "a/b/c"), adds=f"{SMALL} {QUIET}"),
    Case("Convert nanoGPT's", f"train.py {QUIET} --init_from ck.pt --output_dir new", pickled),
    Case("holds the checkpoints of another run", f"train.py {SMALL} {QUIET}"),
    Case("lies in --output_dir {printable(folder)}", f"train.py {QUIET} --init_from out"),
    Case("lies in --output_dir {printable(folder)}", f"train.py {SMALL} {QUIET} --teacher out/best"),
    Case("no model is its own teacher", "train.py --resume_from out --max_steps 8 --teacher out"),
    Case("To go on with both", f"{NEW} --resume_from new",
         lambda: Path("new/first_model").mkdir(parents=True)),
    Case("holds checkpoints of another run, or", "train.py --resume_from out2 --output_dir out --max_steps 8",
         copied("out", "out2")),
    Case("Give that data, or --allow_new_data", "train.py --resume_from out --max_steps 8 --data_dir data3",
         values={"--data_dir": "data"}),
    Case("Another shape is another run: drop", "train.py --resume_from out --max_steps 8 --n_layer 2 --data_dir data",
         lambda: Path("out/config.toml").unlink(), together=True),
    Case("Another shape is another run, with", "train.py --resume_from out --max_steps 8 --n_layer 2",
         together=True),
    Case("was made with another tokenizer", f"train.py {QUIET} --init_from out --data_dir data2 --output_dir new",
         again=True, together=True),
    Case("else run: python pretokenize.py TEXT", f"{NEW} --data_dir none", again=True),
    Case("has no metadata.json. For", f"{NEW} --data_dir raw", raw_tokens),
    Case("holds no tokens. If it is text", f"{NEW} --data_dir a.txt", adds=f"{SMALL} {QUIET} --output_dir new"),
    Case("is missing. Make tokens with the model's", "evaluate.py --ckpt out --tokens gone"),
    Case("train.py did not write it, and", f"train.py {SMALL} {QUIET} --output_dir mine", notes),
    Case("a copy has none, unless", "train.py --resume_from out --max_steps 8", mirrored, {"--mirror_to": "mirror2"}),
    Case("would delete {printable(model)}", f"train.py {QUIET} --init_from out --overwrite"),
    Case("Give --teacher with the folder", f"{NEW} --teacher gone", values={"--teacher": "out"}),
    Case("or is another one. Give --teacher", "train.py --resume_from run --max_steps 8", taught_again,
         {"--teacher": "t0"}),
    Case("Its run has deleted it", f"{NEW} --teacher out/checkpoint-1"),
    Case("but no manifest.json, and a run", f"{NEW}",
         lambda: (copied("out/checkpoint-6", "new/checkpoint-6")(), without("manifest.json", "new/checkpoint-6")())),
    Case("another optimizer cannot continue", f"train.py --resume_from out {QUIET} --max_steps 8 --optimizer muon",
         values={"--output_dir": "new"}, together=True),
    Case("raise --epochs or", "train.py --resume_from out", values={"--epochs": "2", "--max_steps": "8"}),
    Case("Give --preload auto", f"{NEW} --preload gpu".replace("--no-use_gpu ", "")),
    Case("nothing to measure; give it files", "evaluate.py --ckpt out", values={"--text": "a.txt"}),
    Case("to open it: python generate.py", "export.py --ckpt hf --output f --format huggingface", stays=True),
    Case("first copy the one of the tokens", "export.py --ckpt hf --output f --format huggingface",
         without("tokenizer.json"), stays=True),
    Case("exists. Give another name", "export.py --ckpt out --output e.gguf", lambda: export("e.gguf"),
         values={"--overwrite": ""}),
    Case("than the model's own tokenizer", "export.py --ckpt out --output e.gguf --tokenizer_file "
                                           "data2/tokenizer.json"),
    Case("a GGUF file ends in .gguf", "export.py --ckpt out --output e.x --format gguf"),
    Case("Give --n_head {max", "export.py --from_nanogpt ck.pt --output e --tokenizer_file data/tokenizer.json",
         lambda: pickled(False)),
    Case("--n_head {n_head}: {printable(path)}", "export.py --from_nanogpt ck.pt --output e --n_head 4", pickled,
         drops="--n_head"),
    Case("the folder gets no tokenizer", "export.py --from_nanogpt ck.pt --output e --n_head 2", pickled),
    Case("{scorer.command_for_tokens([source.shown])}", "evaluate.py --ckpt out --text chats.jsonl", chats),
    Case("--output_dir to_score --val_fraction 0", "evaluate.py --ckpt out --text chats.jsonl", chats),
    Case("is another tokenizer than the model's. Make", "evaluate.py --ckpt out --tokens data2"),
    Case("is read as text to learn", f"{NEW} c.py", lambda: shutil.copy("a.txt", "c.py"), again=True),
    Case("has no tokens yet", f"{NEW} b.txt --dry_run", again=True),
    Case("Its tokens are still there", f"{NEW} c.txt", lambda: shutil.copytree("data", "c.txt.tokens"), drops="c.txt"),
    Case("holds the tokens of", f"{NEW} b.txt", lambda: shutil.copytree("data", "b.txt.tokens")),
    Case("holds the tokens of", f"{NEW} b.txt", grown),
    Case("each step reads the text", f"{NEW} --batch_size 4000 --max_steps 1"),
    Case("the field's name with --text_field, or records",
         "pretokenize.py k.jsonl --output_dir new --allow_bad_records", records("body"), {"--text_field": "body"}),
    Case("is not known. Give --metadata_file", f"{NEW} --bin_file raw/train.bin",
         lambda: (raw_tokens(), Path("m.json").write_text('{"vocab_size": 300}')),
         {"--metadata_file": "m.json"}),
    Case("the tokenizer changes text", "pretokenize.py a.txt --tokenizer_file t.json --output_dir new", lowercase),
    Case("sets of token files, not one", f"{NEW} --data_dir raw --vocab_size 300", two_sets,
         {"--bin_file": "raw/train.bin", "--val_bin_file": "raw/train.bin"}),
    Case("holds text, not tokens. Make", f"{NEW} --bin_file a.txt --vocab_size 300"),
    Case("after --text. For", "evaluate.py --ckpt out --tokens a.txt", together=True),
    Case("is missing or not a file. Make", f"{NEW} --bin_file none.bin --vocab_size 300"),
    Case("Give the model's own --tokenizer_file", "export.py --ckpt out --output e.gguf --tokenizer_file t.json",
         larger),
    Case("next: python generate.py", KEPT, stays=True),
    Case("the first of the two models", f"{KEPT} --teacher run/first_model", first_is_lower, stays=True),
    Case("next: python train.py{data_dir}", "pretokenize.py a.txt --output_dir tokens",
         adds=f"{SMALL} {QUIET} --output_dir run", stays=True),
    Case("--eval_batches: validation keeps", "train.py --resume_from out --max_steps 8 --eval_batches 1",
         values={"--eval_tokens": "64"}, together=True),
    Case("Make the tokens again: python", NEW, lambda: Path("data/metadata.json").write_text("{"), again=True),
    Case("which --dtype {dtype} cannot", "export.py --ckpt hf --output e.gguf --dtype f16", weights(1e6)),
    Case("{reason}. Give --format huggingface", "export.py --ckpt hf --output e.gguf",
         edited("hf/config.json", activation_function="gelu"), {"--output": "e"}, together=True),
    Case("so llama.cpp would make other", "export.py --ckpt hf --output e.gguf",
         edited("hf/tokenizer.json", normalizer={"type": "Lowercase"}), {"--output": "e"}, together=True),
    Case("so llama.cpp would never end", "export.py --ckpt hf --output e.gguf", endless, {"--output": "e"},
         together=True),
    Case("It cannot be resumed with these", f"{MORE} --data_dir data", drops="--resume_from",
         raised=(Raised("gpt.checkpoint.load:like", 1, error="OSError"),)),
    Case("every checkpoint there is damaged",
         f"train.py {SMALL} {QUIET} --output_dir new --resume_from auto --mirror_to mirror",
         damaged_mirror, {"--mirror_to": "other"}),
    Case("a library stopped at its input", "pretokenize.py a.txt --output_dir new --tokenizer_file t.json", panics),
    Case("Train it on conversations", "generate.py --ckpt hf --chat --prompt the --max_new_tokens 2", chats,
         adds=QUIET),
    Case("standard input is empty", "generate.py --ckpt chat --chat --max_new_tokens 2", converses),
    Case("Give a shorter message or",
         f"generate.py --ckpt chat --chat --prompt cat --max_new_tokens 2 --system '{'the cat ' * 90}'",
         converses, {"--system": "the"}),
    Case("or change --prompt", "generate.py --ckpt hf --max_new_tokens 2 --prompt zebra", words_alone,
         {"--prompt": "the"}),
    Case("Give --prompt.", "generate.py --ckpt hf --max_new_tokens 2 --prompt ''", endless, {"--prompt": "the"}),
    Case("logits are not finite", "generate.py --ckpt hf --max_new_tokens 2 --use_amp --amp_dtype fp16",
         weights(1e6), together=True),
    Case("the losses are not finite", "evaluate.py --ckpt hf --text a.txt", said=True),
    Case("--init_from {shell_word(named)}", "pretokenize.py chats.jsonl --tokenizer_file hf --output_dir chats",
         chats,
         adds=QUIET),
    Case("differ in kind. Give", f"{NEW} --bin_file raw/train.bin --vocab_size 300", uneven,
         {"--vocab_size": "90000"},
         until=", or if"),
    Case("differ in kind. Give", f"{NEW} --bin_file raw/train.bin --vocab_size 61000", interleaved, again=True),
    Case("is {kind}, not tokens", f"{NEW} --bin_file a.gz --vocab_size 300",
         lambda: Path("a.gz").write_bytes(gzip.compress(b"the cat " * 99))),
    Case("which tokens of conversations are", f"{NEW} --bin_file chats/train.bin --vocab_size 300", masked,
         {"--data_dir": "chats"}, drops="--bin_file", until=" (evaluate"),
    Case("fewer than a sequence of", f"{NEW} --seq_length 512 --data_dir data small", small_folder),
    Case("no validation tokens: over", f"{NEW} --data_dir small", lambda: small_folder("--val_fraction 0"),
         again=True),
    Case("the corpus is small for this", f"{NEW} --n_layer 8 --n_embd 128 --batch_size 64 --max_steps 40", until=";"),
    Case("the batches have no",
         f"{NEW} --overfit 1 --seq_length 1 --batch_size 1 --data_dir chats --max_steps 900 --learning_rate 0.02",
         masked,
         {"--seq_length": "64", "--batch_size": "64"}),
    Case("{launcher()} train.py --resume_from {shell_word(source)}", "train.py --resume_from cool", cooled,
         stays=True),  # the longer run has a plateau of its own
    Case("Name a folder that train.py wrote", "plot.py nowhere"),
    Case("no loss is below", "plot.py m.jsonl --y_max 0.001", logged, {"--y_max": "20"}),
    Case("Give --y bits", "plot.py out out2", other_vocabulary),
    Case("Give --x steps", "plot.py m.jsonl --x hours", logged),
    Case("Give --y nats", "plot.py m.jsonl --y bits", logged),
    Case(". To continue it", KEPT, file="run/config.toml", adds="--max_steps 8"),
    Case("so it is no checkpoint of train.py", f"train.py {QUIET} --resume_from trainer --output_dir new",
         of_trainer, together=True),
    Case("Give the folder of the model's training", "generate.py --ckpt hf --compare_with data2 --max_new_tokens 4",
         again=True),
    Case("not as settings", f"{NEW} x.py",
         lambda: (text_in("utf-8", name="x.py")(), text_in("utf-8", "seed = 2\n", "s.toml")()), {"FILE": "s.toml"},
         drops="x.py"),
    Case("Give --seq_length {2 *", f"{NEW} --seq_length 16 --data_dir chats", masked, until=","),
    Case("If the text is in another encoding", "pretokenize.py x.txt --output_dir new",
         text_in("latin-1", "the cat sat on a mat. " * 400 + "caf\u00e9"), {"--encoding": "latin-1"}, together=True),
    Case("Give --vocab_size alone", "pretokenize.py a.txt --tokenizer_file meta.pkl --output_dir new",
         lambda: Path("meta.pkl").write_bytes(pickle.dumps({"stoi": {}})), drops="--tokenizer_file", until=", or"),
    # machine
    Case("has no bf16 instructions", f"{NEW} --use_amp --amp_dtype bf16", together=True,
         raised=(Raised("gpt.machine.backends:Backend.has_bf16", 0, returns=False),)),
    Case("not even one sequence of", f"train.py {QUIET} --seq_length 8 --output_dir new --batch_size auto",
         raised=(Raised("gpt.planning.memory:available_ram", 0, returns=0),),
         values={"--model_size": "tiny", "--seq_length": "4"}),
    Case("on a CPU the compiled step",
         "generate.py --ckpt hf --compile --num_samples 2 --batch_size 2 --max_new_tokens 2 --no-use_gpu"),
    Case("mixed precision is off on a GPU", NEW, said=True),
    Case("only emulates bf16", f"{NEW} --use_amp --amp_dtype bf16", said=True),
    Case("torch.compile is off on", f"{NEW} --no-compile", said=True),
    Case("not together on Apple", f"{NEW} --dropout 0.1 --activation_checkpointing", said=True),
    Case("the GPU waits for the host", NEW, said=True, values={"--batch_size": "8"}),
    Case("the loader holds the device", NEW, said=True),
    # processes
    Case("processes cannot share evenly", f"{NEW} --batch_size 3 --gradient_accumulation_steps 1", more=TWO,
         together=True,
         values={"--batch_size": "2", "--gradient_accumulation_steps": "2"}),
    Case("another process of this run has ended", f"{NEW} --checkpoint_every_steps 1", more=TWO, until="; torchrun",
         raised=(Raised(STEP, 6, signal.SIGKILL, rank=1),)),
    Case("--compile_mode reduce-overhead: {reason}",
         f"{NEW.replace(' --no-use_gpu', '')} --compile_mode reduce-overhead"),
    Case("is for one process; give", f"{NEW} --compile_mode reduce-overhead", more=TWO),
    Case("For that, give", f"{NEW} --batch_size 4 --gradient_accumulation_steps 1", more=TWO),
    Case("takes half as many at a time", f"{NEW} --checkpoint_every_steps 1", more=TWO,
         raised=(Raised(STEP, 6, error="MemoryError"),)),
    Case(", or share it among several", NEW, more=TWO, said=True),
    Case("is being filled by another process", "pretokenize.py a.txt --output_dir new", in_use),
    # packages
    Case("--tracker {name}: not installed. Run", f"{NEW} --tracker wandb"),
    Case("has no column", "pretokenize.py k.parquet --output_dir new", table, {"--text_field": "body"}),
    # memory, disk
    Case("out of memory in step", NEW, raised=(Raised(STEP, 3, error="MemoryError"),), together=True),
    Case("a smaller --model_size", f"train.py {QUIET} --seq_length 8 --output_dir new",
         raised=(Raised("train:build_model", 1, error="MemoryError"),)),
    Case("Try a smaller --seq_length", f"train.py {QUIET} --seq_length 8 --batch_size 1 --output_dir new",
         values={"--model_size": "tiny", "--seq_length": "4"},
         raised=(Raised(STEP, 3, error="MemoryError"),)),
    Case("Resume with --activation", f"{MORE} --batch_size 1 --gradient_accumulation_steps 4",
         raised=(Raised(STEP, 3, error="MemoryError"),), stays=True),
    *(Case(cure, f"generate.py --ckpt hf --max_new_tokens 2 --num_samples {num}", values={"--batch_size": "1"},
           raised=(Raised("generate:open_model", 1, error="MemoryError"),))
      for cure, num in (("Give a smaller --batch_size.", 2), ("Give --quantize int8.", 1))),
    Case("could not be written; run again", "export.py --ckpt hf --output e.gguf",
         raised=(Raised("export:write_export", 1, error="KeyError"), Raised("tempfile:mkstemp", 0, error="OSError"))),
    *(Case(f"give a {cure}", f"{NEW} --max_steps {steps}", values={cure.split()[1]: "2"},
           raised=(Raised("gpt.planning.plan:most_checkpoints", 0, returns=10**12),))
      for cure, steps in (("larger --checkpoint_interval", 400), ("smaller --keep_checkpoints", 2))),
    Case("fewer --num_workers", "pretokenize.py a.txt --output_dir new --num_workers 2 --vocab_size 300",
         values={"--num_workers": "1", "--train_sample_bytes": "10000"},
         raised=(Raised("gpt.pretokenization.passes:read_block", 1, signal.SIGKILL),)),
    # learning
    Case("the loss is {level}",
         f"{NEW} --max_steps 270 --eval_interval 270 --learning_rate 1e-9 --no-use_lr_scheduler"),
    Case("Give --learning_rate {lower_rate_argument}", f"{NEW} --learning_rate 9 --max_steps 40"),
    Case("overfitting since step", NEW, said=True),
    Case("did not come near", f"{NEW} --overfit 1 --max_steps 2", together=True,
         values={"--learning_rate": "0.02", "--max_steps": "900"}),
    Case("how_to_resume()} with", NEW, raised=(Raised(STEP, 6, error="FloatingPointError"),), together=True,
         values={"--warmup_steps": "3"}),
    Case("Begin the cooldown at an earlier", "train.py --cooldown_from out --cooldown 2 --output_dir new",
         raised=(Raised(STEP, 6, error="FloatingPointError"),)),
    Case("The last good checkpoint is", f"{NEW} --checkpoint_every_steps 1", together=True,
         values={"--warmup_steps": "3"}, raised=(Raised(STEP, 6, error="FloatingPointError"),)),
    Case("allows only {several(recipe", f"train.py {SMALL} {LENGTHLESS} --output_dir new --max_minutes 0.001",
         stays=True, values={"--model_size": "tiny"}),
    Case("raise --max_minutes to", "train.py --resume_from timed", timed, {"--max_minutes": "0.1"},
         raised=(Raised("gpt.planning.deadline:Deadline.is_used_up", 0, returns=True),)),
    Case("raise --patience to", "train.py --resume_from run", impatient, {"--patience": "9"}),
    Case("--model_size {how}{in_bf16}", KEPT,
         raised=(Raised("gpt.watching.monitor:best_improvement", 1, returns=["tiny", "it may"]),)),
    Case("--resume_from {folder}{longer}", KEPT, stays=True),
    Case("To improve: no validation loss", f"train.py {QUIET} --init_from out --learning_rate 9 --output_dir run"),
    Case("--resume_from {folder}{longer}",
         f"train.py {LENGTHLESS} --cooldown_from out/checkpoint-4 --output_dir cool",
         stays=True),
    Case("stopped by {signals.name}; to", KEPT, raised=(Raised(STEP, 6, signal.SIGINT),)),
    # parts of messages
    Case(", or --overwrite, which deletes them", f"train.py {SMALL} {QUIET}"),
    Case(", or a second run with --teacher", NEW, said=True, values={"--teacher": "out"}),
    Case(", or --allow_bad_records to", "pretokenize.py k.jsonl --output_dir new", half_bad),
    Case("tokens{on_gpu}; another: --model_size", f"train.py {QUIET} --output_dir new --seq_length 8",
         values={"--model_size": "tiny"}),
    Case("is a flag, such as --encoding, it", f"train.py {SMALL} {QUIET} --output_dir new x.txt", text_in("latin-1"),
         adds="--encoding latin-1", again=True),
    Case("a conversation has one answer", "generate.py --ckpt hf --chat --num_samples 2 --max_new_tokens 2",
         values={"--prompt": "the", "--prompt_file": "a.txt"}),
    Case("--overwrite{given}", f"{NEW} --data_dir data data2", again=True),
    Case("--overwrite --tokenizer_file {shell_word(tokenizer_file)}", f"{NEW} --val_bin_file data2", again=True),
]

NOT_TYPED = {
    "its cure is torchrun's, typed on a pretended GPU in tests/late_device/test_commands.py": (
        "processes were started on a machine",),
    "fp16 overflows only on a GPU; its message is tried in tests/gpt/training/test_starting.py": (
        "--init_from: its weights give",),
    "only the first of two models has it, which another command starts; tried in tests/gpt/training/test_recovery.py": (
        "which trains one model.",),
    "comes where several processes compile; tried in tests/gpt/training/test_recovery.py": (
        "torch.compile failed, and not in all processes",),
    "its cure is typed where a hub answers, in tests/gpt/hub/test_download.py": (
        "Check the network and the disk", "is on the hub. Make tokens"),
    "says what was decided, or that two flags do not go together: no cure, or the pattern of one": (
        "samples     none, as with", "--batch_size auto, or this", "with --init_from the model gets rows",
        "does not go with FILE or --demo", "not with several folders in", "unexpected argument. Give a value"),
    "comes after many passes; typed in tests/gpt/watching/test_monitor.py": (
        ". Give more text, or teach",),
    "is for token files without metadata.json; tried in tests/gpt/planning/test_setup.py": (
        "tokens of this text, and",),
    "is a line of the message that holds the tokens of other texts, and is typed with it": (
        "\n    python {shell_line([*command, *kept, '--overwrite'])}", "\n    python {shell_line(command)}"),
    "is the name of the program, or a line of the crash log": (
        "python {prog}", "python {prog} [flags]", "python {sys.version}", "{shell_line(['train.py', *argv])}"),
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
            if " " in text and re.search(r"(?:python|\{launcher\(\)\}) (?:\w+\.py|\{)|--[a-z]|cp DATA", text)}


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
            word = re.match(r" (?!--)([\w./:-]*[\w/])", cure[flag.end():])
            is_value = word and word[1] not in NO_VALUE
            value = [values.get(word[1], word[1]) if word and is_value else values.get(flag[0], "")]
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
    ended = forks.run(case.line, cwd=folder / here, merged=True, raised=case.raised, **case.more)
    printed = Path(case.file).read_text().replace("\n# ", "\n") if case.file else ended.stdout
    found = [the_message(case.message)] if case.said else pattern.search(printed)
    assert found, printed[-2000:]
    typed = [*cures(case, found[0].split(case.until)[0] if case.until else found[0])]
    assert typed, found[0]
    if ended.code == 0:
        shutil.rmtree("new", ignore_errors=True)
        shutil.rmtree("e", ignore_errors=True)
    for number, lines in enumerate(typed):
        said = ""
        again = shutil.copytree(folder, tmp_path / str(number)) / here
        for line in lines:
            if line.startswith(("cp ", "echo ")):
                subprocess.run(line, shell=True, check=True, cwd=again)
                continue
            line = re.sub(r"--max_minutes [1-9]\S*", "--max_minutes 0.03", line)  # the only word that differs
            answer = forks.run(line, cwd=again, merged=True, **case.more)
            said = answer.stdout[-2000:]
            assert answer.code == 0, (line, said)
        assert not pattern.search(said) or case.stays, (lines, said)


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


def test_nothing_stands_behind_a_command_on_its_line():
    behind = re.compile(r"(?:python (?:\w+\.py|\{)|cp DATA|echo ')[^\n]*(?:[.;] \w|, (?:and|or|then|with) )")
    assert [text for text in messages() if behind.search(text)] == []


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--output e.gguf", "--format huggingface --output e"])
def test_the_line_for_benchmarks_names_a_folder_that_lm_eval_opens(flags, place, forks, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(shutil.copytree(place, tmp_path / "here"))
    said = forks.run(f"export.py --ckpt out {flags}", cwd=Path.cwd()).stdout
    words = shlex.split(said.partition("benchmarks: ")[2])
    assert words[:4] == ["lm_eval", "--model", "hf", "--model_args"]
    folder = dict(word.split("=") for word in words[4].split(","))["pretrained"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(transformers.AutoTokenizer.from_pretrained(folder))


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


@pytest.mark.parametrize(("flag", "here"), [
    ("--max_tokens", "max_steps"), ("--train.max_tokens", "max_steps"), ("--num_nodes", "nnodes"),
    ("--train.global_batch_size", "gradient_accumulation_steps")])
def test_a_flag_of_litgpt_leads_to_what_does_the_same_here(flag, here):
    with pytest.raises(UserError, match=f"{re.escape(flag)}: no such flag. Here it is .*--{here}"):
        train.read_flags([flag, "3"])
