"""Every bad input of the commands, one row each: its exit code, its one message, nothing left behind.

A row runs in a copy of a small world: corpus/ (from pretokenize.py), out/checkpoint-2 (from train.py), gpt2/ (the same
model as a Hugging Face folder), text.txt. The rows share one process that has imported the commands and forks for each.
"""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt.common.errors import Exit
from tests.helpers.checkpoints import seal
from tests.helpers.forks import Ended

SECONDS = 10
MOST_BYTES = 2**30  # of memory: what importing torch takes, and no more than a little
Setup = Callable[[Path], Any]
FLAGS, DATA, CHECKPOINT, MACHINE = Exit.FLAGS, Exit.DATA, Exit.CHECKPOINT, Exit.MACHINE
MODEL = "--n_layer 2 --n_head 2 --n_embd 32 --seq_length 16 --no-use_gpu --no-compile"
BIN = f"train.py --output_dir new {MODEL} --batch_size 2 --max_steps 4"
TRAIN = BIN.replace("train.py", "train.py --data_dir corpus")
START = f"train.py --data_dir corpus {MODEL} --batch_size 2 --max_steps 4 --output_dir"
RESUME = f"train.py --data_dir corpus --output_dir out {MODEL} --batch_size 2 --max_steps 4 --resume_from"
PRETOKENIZE = "pretokenize.py --output_dir new --num_workers 1 --engine tokenizers --vocab_size 300"
GIVEN = "pretokenize.py --output_dir new --num_workers 1 --engine tokenizers text.txt --tokenizer_file"
GENERATE = "generate.py --max_new_tokens 3 --no-use_gpu --ckpt"
EVALUATE = "evaluate.py --ckpt gpt2 --text text.txt --no-use_gpu"
EXPORT = "export.py --format huggingface --ckpt gpt2"
HERE = "out/checkpoint-2"
STATE, WEIGHTS, MANIFEST = (f"{HERE}/{name}" for name in ("trainer_state.json", "model.safetensors", "manifest.json"))
META, IDS, TOKENIZER = "corpus/metadata.json", "corpus/train.bin", "corpus/tokenizer.json"
CONFIG, GPT2 = "gpt2/config.json", "gpt2/model.safetensors"
QKV = "transformer.h.0.attn.c_attn.weight"


@dataclass(frozen=True)
class Row:
    """A bad input in one sentence: the command line, its exit code, what its message says, how the world is spoilt."""

    sentence: str
    line: str
    code: int
    says: str
    setup: Setup


def rows(subject: str, line: str, code: int, *entries: tuple[Any, ...]) -> list[Row]:
    """Rows of one command line: what is wrong, words that the line has besides, what is said, and a set-up.

    The words and the set-up may be missing.
    """
    found = []
    for what, *more in entries:
        setup = more.pop() if callable(more[-1]) else both()
        *words, says = more
        found.append(Row(f"{subject}: {what}", " ".join([line, *words]), code, says, setup))
    return found


# ---------------------------------------------------------------- how the world is spoilt


def spoiler(function: Callable[..., Any]) -> Callable[..., Setup]:
    """Makes of a function of the world and other things a function of the others that returns a set-up."""
    return lambda *others, **named: lambda place: function(place, *others, **named)


@spoiler
def both(place: Path, *setups: Setup) -> list[Any]:
    return [setup(place) for setup in setups]


@spoiler
def drop(place: Path, name: str) -> None:
    path = place / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@spoiler
def write(place: Path, name: str, content: bytes | str) -> None:
    """A file, or what lies there replaced by it."""
    drop(name)(place)
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content.encode() if isinstance(content, str) else content)


@spoiler
def change(place: Path, name: str, how: Callable[[bytes], bytes]) -> None:
    (place / name).write_bytes(how((place / name).read_bytes()))


def cut(name: str, num_bytes: int) -> Setup:
    return change(name, lambda content: content[:num_bytes])


def swap(name: str) -> Setup:
    """The token b"t" gets the id of b"u", and the other way round."""
    return change(name, lambda held: held.replace(b'"t":', b'"?":', 1).replace(b'"u":', b'"t":', 1)
                  .replace(b'"?":', b'"u":', 1))


@spoiler
def sparse(place: Path, name: str) -> None:
    """A gigabyte of zeros that takes no room."""
    (place / name).touch()
    os.truncate(place / name, 2**30)


@spoiler
def folder(place: Path, name: str) -> None:
    drop(name)(place)
    (place / name).mkdir(parents=True)


@spoiler
def link(place: Path, name: str, target: str) -> None:
    drop(name)(place)
    (place / name).symlink_to(target)


GONE: Any = object()


@spoiler
def put(place: Path, name: str, key: str, value: Any, to: str = "") -> None:
    """A field of a JSON file, 'splits.train.tokens' say, set or taken out; `to` is the file that gets the result."""
    fields = json.loads((place / name).read_text(encoding="utf-8"))
    inner, *keys = fields, *key.split(".")
    for step in keys[:-1]:
        inner = inner[step]
    if value is GONE:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    (place / (to or name)).write_text(json.dumps(fields))


@spoiler
def tensors(place: Path, name: str, how: Callable[[dict[str, Any]], Any]) -> None:
    from safetensors.numpy import load_file, save_file

    held = load_file(place / name)
    how(held)
    save_file({key: value.copy(order="C") for key, value in held.items()}, place / name)


@spoiler
def sealed(place: Path, *setups: Setup) -> None:
    """Spoils the checkpoint, then makes its manifest anew, so that it verifies."""
    both(*setups)(place)
    seal(place / HERE)


def state(key: str, value: Any) -> Setup:
    return sealed(put(STATE, key, value))


# ---------------------------------------------------------------- the same bad things for several commands

WORDS = b"the cat sat on the mat and the dog ran to the sea\n" * 40
BAD_NAME = "caf\udce9"  # a byte that is not UTF-8
DEEP = "[" * 200_000
NO_CHECKPOINT = [
    ("a checkpoint that is not there", "none", "none does not exist"),
    ("a pickle", "ckpt.pt", "a pickle", write("ckpt.pt", b"\x80\x02}q\x00.")),
    ("a pipe", "pipe", "pipe is not a folder", lambda place: os.mkfifo(place / "pipe")),
    ("all checkpoints damaged", "out", "no sound checkpoint in out", cut(WEIGHTS, 5000)),
]


# ---------------------------------------------------------------- train.py

TRAIN_ROWS = [
    *rows("train.py", TRAIN, FLAGS,
        ("a batch size that is not a number", "--batch_size nan", "--batch_size 'nan': must be auto or a whole number"),
        ("a share without a decay", "--cooldown 0.3", "--cooldown: has no effect without --lr_schedule wsd"),
        ("two ends of a cooldown", "--cooldown_from out --max_steps 9", "--max_steps: not with --cooldown_from"),
        ("tokens on a GPU that is not to be used", "--preload gpu", "--preload gpu: not with --no-use_gpu"),
        ("checkpoints every so often", "--checkpoint_every_steps often",
         "--checkpoint_every_steps 'often': must be a whole number of"),
        ("six wrong flags", "--batch_size 0 --epochs x --seed y --dropout 2 --beta1 nan --grad_clip -1",
         "and 2 more: --beta1, --grad_clip"),
        ("seven unknown flags", "--block_size 9 --max_iters 9 --lr 1 --min-lr 1 --wd 0 --backend nccl --decay_lr 1",
         "--backend: no such flag. See --help.\nerror: --block_size: no such flag. Here it is called"),
        ("two sizes of the validation", "--eval_tokens 9 --eval_batches 9", "--eval_batches: not with --eval_tokens"),
        ("output_dir has a byte that is not UTF-8", f"--output_dir {BAD_NAME}",
         "bytes that are not UTF-8")),
    *rows("train.py --config", f"{TRAIN} --config x.toml", FLAGS,
        ("keys without end", "\nerror: and 16 more: ",
         write("x.toml", "".join(f"key{i} = 1\n" for i in range(10**5))))),
    *rows("train.py mixes", f"{BIN} --data_dir", DATA,
        ("a folder that is not there", "corpus:1 other:2", "--data_dir other does not exist"),
        ("a folder shorter than a sequence", "corpus other --seq_length 1000",
         "training tokens, fewer than a sequence of 1,000",
         lambda place: shutil.copytree(place / "corpus", place / "other"))),
    *rows("train.py metadata", TRAIN, DATA,
        ("lists in lists without end", "is not JSON", write(META, DEEP)),
        ("a gigabyte", "has 1,073,741,824 bytes", sparse(META))),
    *rows("train.py", TRAIN, DATA,
        ("a tokenizer of lists in lists without end", "is not a tokenizer.json", write(TOKENIZER, DEEP)),
        ("a data folder without metadata", "has no metadata.json", drop(META)),
        ("a folder without a tokenizer", "--tokenizer_file gpt2", "tokenizer gpt2/tokenizer.json: No such",
         drop("gpt2/tokenizer.json"))),
    *rows("train.py", f"{BIN} --dry_run", DATA,
        ("a misspelt text", "novle.txt", "novle.txt: No such file or directory. Give the path of a text")),
    *rows("train.py", BIN, FLAGS, ("a pipe", "-", "-: standard input is read by pretokenize.py alone")),
    *rows("train.py", BIN, DATA,
        ("tokens without a vocabulary", f"--bin_file {IDS}", "or --vocab_size"),
        ("a single token", "--bin_file one.bin --vocab_size 400", "the corpus has 1 token,",
         write("one.bin", b"\1\0"))),
    *rows("train.py resumes", "train.py --resume_from out", FLAGS,
        ("a config.toml with a wrong value", "n_layer (out/config.toml) '2.5': must be a whole number",
         write("out/config.toml", "n_layer = 2.5"))),
    *rows("train.py resumes", "train.py --resume_from out", CHECKPOINT,
        ("another model by a flag", "--model_size mini", "the checkpoint holds another model")),
    *rows("train.py resumes", "train.py", CHECKPOINT,  # without a record the tokens are not known
        ("nothing, and no tokens", "--resume_from nothing", "nothing does not exist")),
    *rows("train.py resumes", RESUME, CHECKPOINT, *NO_CHECKPOINT,
        ("a model without training state", "gpt2", "and give --init_from gpt2")),
    *rows("train.py resumes", f"{RESUME} {HERE}", CHECKPOINT,
        ("no manifest", "no manifest.json", drop(MANIFEST)),
        ("a manifest that leaves its folder", "does not name a file of this folder",
         put(MANIFEST, "files", {name: {} for name in ("../../text.txt", "model.safetensors", "optimizer.safetensors",
                                                       "trainer_state.json")}))),
    *rows("train.py", START, CHECKPOINT,
        ("another run's checkpoints", "out", "holds the checkpoints of another run"),
        ("a checkpoint's name that is another program's", "out --overwrite",
         "out/checkpoint-500 has a checkpoint's name but no manifest.json", write("out/checkpoint-500/x", "")),
        ("the output folder is a checkpoint", HERE,
         f"--output_dir {HERE} is a checkpoint itself, and a run would write into it. Give its folder, out"),
        ("the mirror is a checkpoint", f"new --mirror_to {HERE}",
         f"--mirror_to {HERE} is a checkpoint itself, and a run would write into it. Give its folder, out"),
        ("the mirror holds another run", "new --mirror_to out", "--mirror_to out holds the checkpoints of another run, "
         "the last one of step 2")),
    *rows("train.py", START, MACHINE,
        ("output_dir is a file", "text.txt", "--output_dir text.txt"),
        ("output_dir is a link to nowhere", "l", "--output_dir l", link("l", "nowhere/x")),
        ("the lock is a link to nowhere", "out --overwrite", "cannot be written: Too many",
         link("out/.lock", "nowhere")),
        ("the lock is another name of a file", "out --overwrite", "out/.lock is another file, and was left alone",
         both(drop("out/.lock"), lambda place: os.link(place / "text.txt", place / "out/.lock"))),
        ("the lock is a folder", "out --overwrite", "Is a directory. Choose another name.", folder("out/.lock"))),
    *rows("train.py cools down", f"train.py --data_dir corpus {MODEL} --batch_size 2 --output_dir new", CHECKPOINT,
        ("a model without a schedule", "--cooldown_from gpt2", "gpt2 has no manifest.json")),
    *rows("train.py", "train.py --data_dir corpus --output_dir out --overwrite", FLAGS,
        ("it would delete the weights it starts from", "--init_from out/best", "--overwrite: would delete out/best")),
]

# ---------------------------------------------------------------- pretokenize.py

PRETOKENIZE_ROWS = [
    *rows("pretokenize.py", PRETOKENIZE, FLAGS,
        ("no text", "FILE: none given"),
        ("text beside the demonstration", "text.txt --demo", "--demo: does not go with FILE"),
        ("an address", "text.txt --output_dir s3://bucket/a", "--output_dir: must be a folder of this machine"),
        ("a model for a dataset", "hf://someone/tales", "FILE hf://someone/tales: must be hf://datasets/"),
        ("an empty name", "''", "FILE '': must be text"),
        ("a size for a tokenizer that exists", "text.txt --tokenizer_file x.json", "--vocab_size: not with"),
        ("an encoding that is none", "text.txt --encoding klingon",
         "--encoding 'klingon': must be an encoding that Python knows, such as cp1251")),
    *rows("pretokenize.py", "pretokenize.py", DATA,
        ("tokens of another program to verify", "--verify .", "Give a folder that pretokenize.py has made")),
    *rows("pretokenize.py text", PRETOKENIZE, DATA,
        ("UTF-8 far into a text with an encoding", "x.txt --encoding cp1252", "x.txt is UTF-8, and --encoding cp1252",
         write("x.txt", WORDS * 3 + "d\u00e9j\u00e0 vu \u00e0 la fen\u00eatre".encode())),
        ("a missing file", "none.txt", "none.txt: No such file"),
        ("a missing file, before a folder that is full", "none.txt --output_dir corpus", "none.txt: No such file"),
        ("a pattern that matches nothing", "'*.none'", "matches no file"),
        ("a link to nowhere", "x.txt", "x.txt: No such file", link("x.txt", "nowhere")),
        ("an empty file", "x.txt", "no text in x.txt", write("x.txt", "")),
        ("an empty file of records", "x.jsonl", "no text in x.jsonl", write("x.jsonl", "")),
        ("token ids", IDS, "--bin_file"),
        ("a text that the output would replace", f"{TOKENIZER} --output_dir corpus --overwrite",
         f"{TOKENIZER} would be"),
        ("a gigabyte of zeros", "x.txt", "full of control characters, most often NUL", sparse("x.txt")),
        ("a bomb", "x.txt.gz", "as an archive bomb does",
         lambda place: (place / "x.txt.gz").write_bytes(gzip.compress(b"\n" * 2**20) * 300)),
        ("junk for a table", "x.parquet", "x.parquet is not a Parquet file", write("x.parquet", "junk" * 99))),
    *rows("pretokenize.py tokenizer", f"{GIVEN} x.json", DATA,
        ("an empty file", "is not a tokenizer.json", write("x.json", "")),
        ("one that encodes at random", "dropout of 0.1", put(TOKENIZER, "model.dropout", 0.1, to="x.json")),
        ("one that makes letters small", "the tokenizer changes text",
         put(TOKENIZER, "normalizer", {"type": "Lowercase"}, to="x.json"))),
    *rows("pretokenize.py", "pretokenize.py --verify corpus", DATA,
        ("verifying a folder without its documents' ends", "train.idx is missing", drop("corpus/train.idx"))),
    *rows("pretokenize.py", GIVEN, DATA, ("no tokenizer", "none.json", "tokenizer none.json: No such file")),
    *rows("pretokenize.py", "pretokenize.py --peek 1", DATA,
        ("peeking at nothing", "--output_dir none", "No such file")),
    *rows("pretokenize.py", f"{PRETOKENIZE} text.txt --output_dir", DATA,
        ("outputs exist", "corpus", "Give --overwrite")),
    *rows("pretokenize.py", f"{PRETOKENIZE} text.txt --output_dir", MACHINE,
        ("a work folder that is a link", "out2", "out2 cannot be written: File exists",
         both(folder("out2"), link("out2/.pretokenize", "../corpus")))),
]

# ---------------------------------------------------------------- generate.py

GENERATE_ROWS = [
    *rows("generate.py", f"{GENERATE} gpt2", FLAGS,
        ("a billion new tokens", "--max_new_tokens 1000000000",
         "--max_new_tokens '1000000000': must be a whole number from 1 to 1,000,000"),
        ("two prompts", "--prompt a --prompt_file text.txt", "--prompt_file: not with --prompt; drop one"),
        ("several answers to each line", "--chat --num_samples 2", "--num_samples: a conversation has one answer"),
        ("a conversation by its earlier name", "--interactive", "Here it is called --chat"),
        ("a system's turn without a conversation", "--system x", "--system: has no effect without --chat"),
        ("a precision that is not used", "--amp_dtype bf16 --no-use_amp", "--amp_dtype bf16: not with --no-use_amp")),
    *rows("generate.py", f"{GENERATE} gpt2", DATA,
        ("a missing prompt file", "--prompt_file none.txt", "--prompt_file none.txt: No such file"),
        ("a prompt of a gigabyte", "--prompt_file x.txt", "--prompt_file x.txt has more than", sparse("x.txt"))),
    *rows("generate.py", f"{GENERATE} gpt2", CHECKPOINT,
        ("no config", "config.json", drop(CONFIG)),
        ("no weights", "model.safetensors is missing", drop(GPT2)),
        ("weights cut short", "model.safetensors cannot be read", cut(GPT2, 140_000))),
    *rows("generate.py", f"{GENERATE} gpt2", Exit.DIVERGED,
        ("weights that are not finite", "logits are not finite",
         tensors(GPT2, lambda held: held.update({QKV: held[QKV] * np.float32("nan")})))),
    *rows("generate.py", GENERATE, CHECKPOINT, *NO_CHECKPOINT,
        ("a checkpoint's junk generation_config", HERE, "generation_config.json",
         write(f"{HERE}/generation_config.json", "junk")),
        ("a folder whose name is not UTF-8", BAD_NAME, "cannot be read",
         lambda place: (place / "gpt2").rename(place / BAD_NAME)),
        ("a folder with a newline in its name", "'a\nerror: b'",
         r"error: a\nerror: b does not exist. Give one of those beside it: out")),
    *rows("generate.py --ckpt out/best", f"{GENERATE} out/best", CHECKPOINT,
        ("a run that never validated", "out has no best checkpoint: checkpoint-2 says",
         state("best_val_loss", None)),
        ("the best was deleted", "out has no best checkpoint: checkpoint-2 says the best is checkpoint-1",
         state("best_step", 1)),
        ("a record without its step", "checkpoint-0", state("best_step", GONE)),
        ("a damaged best", "checkpoint-2 is damaged: model.safetensors has 5,000 bytes", cut(WEIGHTS, 5000)),
        ("a record that is no JSON", "no sound checkpoint in out. checkpoint-2: trainer_state.json cannot be read",
         sealed(write(STATE, "x"))),
        ("no checkpoint at all", "out holds no checkpoint and no config.json", drop(HERE)),
        ("the first of two models alone", "Its first model is in out/first_model. To go on with both",
         lambda place: (place / HERE).rename(place / "out/first_model")),
        ("a file for a folder", "out is not a folder", write("out", "x"))),
]

# ---------------------------------------------------------------- the other commands

OTHER_ROWS = [
    *rows("evaluate.py", f"evaluate.py --no-use_gpu --ckpt {HERE}", DATA,
        ("an id beyond the model's vocabulary", "--tokens x.bin", "x.bin holds id 60,000 at position 1",
         write("x.bin", np.array([1, 60_000, 2], "<u2").tobytes())),
        ("tokens of another tokenizer", "--tokens corpus", f"{TOKENIZER} is another tokenizer than the model's",
         swap(TOKENIZER))),
    *rows("evaluate.py", f"evaluate.py --no-use_gpu --ckpt {HERE}", FLAGS,
        ("nothing to measure", "--text: nothing to measure")),
    *rows("export.py", EXPORT, FLAGS,
        ("onto the model itself", "--output gpt2 --overwrite", "gpt2 is the model to export"),
        ("nowhere to write", "--output: required")),
    *rows("export.py", "export.py --ckpt gpt2 --format huggingface", FLAGS,
        ("a file that is no export", "--output text.txt --overwrite", "text.txt exists. Give another name")),
    *rows("plot.py", "plot.py", DATA, ("a folder without a run", "corpus", "metrics.jsonl: No such file")),
]
for line, flag, name in ((EVALUATE, "--json", "x.json"), (EXPORT, "--output", "x"), ("plot.py out", "--output",
                         "x.png"), ("bench.py --no-use_gpu", "--json", "x.json")):  # refused before any work
    OTHER_ROWS += rows(f"{line.split()[0]} {flag}", f"{line} {flag}", MACHINE,
        ("in a file", f"text.txt/{name}", f"{flag} text.txt/{name} cannot be written: Not a directory. Choose"))
    if line != EXPORT:
        OTHER_ROWS += rows(f"{line.split()[0]} {flag}", f"{line} {flag}", FLAGS,
            ("is a folder", name, "is a folder. Name a file", folder(name)))

ROWS = [*TRAIN_ROWS, *PRETOKENIZE_ROWS, *GENERATE_ROWS, *OTHER_ROWS]

# ---------------------------------------------------------------- how a row is run


@pytest.fixture(scope="module")
def fork(forks):
    """A function: runs a command line in a folder, in a fork of a process that has imported everything."""
    return lambda line, where: forks.run(line, cwd=where, alarm=SECONDS)


@pytest.fixture(scope="module")
def world(fork, tokenizer_file, tmp_path_factory):
    """The good folder that each row spoils a copy of; that its commands succeed is part of the proof."""
    place = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(WORDS.decode().split(), 1000))
    (place / "text.txt").write_text(text)
    done = fork(f"pretokenize.py text.txt --tokenizer_file {tokenizer_file} --output_dir corpus --num_workers 1", place)
    assert done.code == 0, done.stderr
    done = fork(f"train.py --data_dir corpus --output_dir out {MODEL} --batch_size 2 --max_steps 2", place)
    assert done.code == 0, done.stderr
    shutil.rmtree(place / "out/checkpoint-1")  # the best by validation
    (place / "gpt2").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(place / HERE / name, place / "gpt2" / name)
    return place


def there_is(place: Path) -> dict[str, Any]:
    """Every file and folder but locks, with size and time."""
    return {str(path.relative_to(place)): (os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
            if not path.is_dir() else None for path in place.rglob("*") if not path.name.endswith(".lock")}


def faults_of(row: Row, world: Path, place: Path, fork: Callable[[str, Path], Ended]) -> list[str]:
    """All that is wrong with what the command does about a row."""
    shutil.copytree(world, place, symlinks=True)  # copy2: the times are kept, so the tokens are trusted
    row.setup(place)
    before = there_is(place)
    done = fork(row.line, place)
    after = there_is(place)
    new = {name for name in {**before, **after} if before.get(name, "new") != after.get(name, "new")}
    new -= {"new"} if row.line.startswith("train.py") else set()  # the folder with the lock
    lines = done.stderr.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("error: ")), len(lines))
    message = lines[first:]
    faults = {
        f"exit code {done.code}, not {row.code}": done.code != row.code,
        f"does not say {row.says!r}": row.says not in "\n".join(message),
        f"{len(message)} lines of message": not 1 <= len(message) <= 5,
        "a line that is no message": not all(line.startswith("warning: ") for line in lines[:first]),
        "a trace of the program": bool(re.search("Traceback|panicked|Error:|RUST_BACKTRACE", done.stderr)),
        f"a message of {len(' '.join(message))} characters": len(" ".join(message)) > 700,
        "what cannot be printed": not all(c.isprintable() or c == "\n" for c in done.stderr),
        f"left behind or changed: {sorted(new)}": bool(new),
        "looks like success": bool(re.search(r"^next:|^saved|tok/s|^step \d", done.stdout, re.MULTILINE)),
        "speaks before the flags are right": row.code == 2 and bool(done.stdout),
        f"{done.seconds:.1f} s": done.seconds > SECONDS,
        f"{done.peak_bytes:,} bytes of memory": done.peak_bytes > MOST_BYTES,
    }
    found = [fault for fault, is_there in faults.items() if is_there]
    return [*found, done.stderr] if found else []


# ---------------------------------------------------------------- the tests


def test_the_unspoilt_inputs_are_good(world, fork, tmp_path):
    for at, line in enumerate((TRAIN, f"{RESUME} {HERE}", f"{RESUME} auto", f"{RESUME} out", f"{PRETOKENIZE} text.txt",
                               f"{GIVEN} corpus/tokenizer.json", f"{GENERATE} gpt2", f"{GENERATE} out",
                               f"{BIN} --bin_file corpus/train.bin --vocab_size 400", "pretokenize.py --verify corpus",
                               f"{TRAIN} --use_amp --amp_dtype fp16", f"{GENERATE} gpt2 --prompt_file text.txt")):
        shutil.copytree(world, tmp_path / str(at))
        done = fork(line, tmp_path / str(at))
        assert done.code == 0, (line, done.stderr)
        assert done.peak_bytes < MOST_BYTES


def test_there_is_a_row_for_each_sentence():
    assert len({row.sentence for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_a_bad_input_is_named_and_nothing_else_happens(row, world, fork, tmp_path):
    if faults := faults_of(row, world, tmp_path / "world", fork):
        pytest.fail("\n".join(faults), pytrace=False)
