"""Every bad input of the commands, one row each: its exit code, its one message, nothing left behind.

A row runs in a copy of a small world: corpus/ (from pretokenize.py), out/checkpoint-2 (from train.py), gpt2/ (the same
model as a Hugging Face folder), text.txt. The rows share one process that has imported the commands and forks for each.
"""

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

from common.errors import Exit
from common.files import sha256_of
from tests.helpers.checkpoints import cut_into_shards, edit, seal
from tests.helpers.forks import Ended

SECONDS = 10
MOST_BYTES = 2**30  # of memory: what importing torch takes, and no more than a little
Setup = Callable[[Path], Any]
MODEL = "--n_layer 2 --n_head 2 --n_embd 32 --seq_length 16 --no-use_gpu --no-compile"
COOL = f"train.py --data_dir corpus {MODEL} --batch_size 2"
TRAIN = f"train.py --data_dir corpus --output_dir new {MODEL} --batch_size 2 --max_steps 4"
BIN = f"train.py --output_dir new {MODEL} --batch_size 2 --max_steps 4"
RESUME = f"train.py --data_dir corpus --output_dir out {MODEL} --batch_size 2 --max_steps 4 --resume_from"
PRETOKENIZE = "pretokenize.py --output_dir new --num_workers 1 --engine tokenizers --vocab_size 300"
GIVEN = "pretokenize.py --output_dir new --num_workers 1 --engine tokenizers text.txt --tokenizer_file"
GENERATE = "generate.py --max_new_tokens 3 --no-use_gpu --ckpt"
HERE = "out/checkpoint-2"
STATE, WEIGHTS, OPTIMIZER = (f"{HERE}/{name}" for name in
                             ("trainer_state.json", "model.safetensors", "optimizer.safetensors"))
META = "corpus/metadata.json"
QKV = "transformer.h.0.attn.c_attn.weight"


@dataclass(frozen=True)
class Row:
    """A bad input in one sentence: the command line, its exit code, what its message says, how the world is spoilt."""

    sentence: str
    line: str
    code: int
    says: str
    setup: Setup = lambda place: None


# ---------------------------------------------------------------- how the world is spoilt


def both(*setups: Setup) -> Setup:
    return lambda place: [setup(place) for setup in setups]


def write(name: str, content: bytes | str) -> Setup:
    """A file, or what lies there replaced by it."""

    def setup(place: Path) -> None:
        drop(name)(place)
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return setup


def drop(name: str) -> Setup:
    def setup(place: Path) -> None:
        path = place / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    return setup


def change(name: str, how: Callable[[bytes], bytes]) -> Setup:
    return lambda place: (place / name).write_bytes(how((place / name).read_bytes()))


def cut(name: str, num_bytes: int) -> Setup:
    return change(name, lambda content: content[:num_bytes])


def sparse(name: str, num_bytes: int = 2**30) -> Setup:
    """A file of zeros that takes no room."""

    def setup(place: Path) -> None:
        (place / name).touch()
        os.truncate(place / name, num_bytes)

    return setup


def folder(name: str) -> Setup:
    return lambda place: (drop(name)(place), (place / name).mkdir(parents=True))


def twin(name: str, other: str) -> Setup:
    """A copy of a folder beside it."""
    return lambda place: shutil.copytree(place / name, place / other)


def link(name: str, target: str) -> Setup:
    return lambda place: (drop(name)(place), (place / name).symlink_to(target))


def fifo(name: str) -> Setup:
    return lambda place: (drop(name)(place), os.mkfifo(place / name))


def hold(name: str) -> Setup:
    """Another run's lock; the open file is kept by the caller."""

    def setup(place: Path) -> Any:
        import fcntl

        (place / name).parent.mkdir(parents=True, exist_ok=True)
        file = (place / name).open("a+")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    return setup


def in_shards(setup: Setup) -> Setup:
    """The Hugging Face folder with its weights in three files, then spoilt."""
    return lambda place: (cut_into_shards(place / "gpt2"), setup(place))


GONE: Any = object()


def put(name: str, key: str, value: Any) -> Setup:
    """A field of a JSON file, 'splits.train.tokens' say, set or taken out."""

    def setup(place: Path) -> None:
        fields = json.loads((place / name).read_text())
        inner, *keys = fields, *key.split(".")
        for step in keys[:-1]:
            inner = inner[step]
        if value is GONE:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        (place / name).write_text(json.dumps(fields))

    return setup


def tensors(name: str, how: Callable[[dict[str, Any]], Any]) -> Setup:
    def setup(place: Path) -> None:
        from safetensors.numpy import load_file, save_file

        held = load_file(place / name)
        how(held)
        save_file({key: value.copy(order="C") for key, value in held.items()}, place / name)

    return setup


def ids(name: str, position: int, value: int) -> Setup:
    """One id of an int16 token file."""

    def setup(place: Path) -> None:
        tokens = np.fromfile(place / name, "<i2")
        tokens[position] = value
        tokens.tofile(place / name)

    return setup


def sealed(*setups: Setup) -> Setup:
    """Spoils the checkpoint, then makes its manifest anew, so that it verifies."""

    def setup(place: Path) -> None:
        both(*setups)(place)
        entries = {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                   for path in (place / HERE).iterdir() if path.name != "manifest.json" and path.is_file()}
        (place / HERE / "manifest.json").write_text(json.dumps({"version": 1, "files": entries}))

    return setup


def state(key: str, value: Any) -> Setup:
    return sealed(put(STATE, key, value))


def deep(kind: str) -> str:
    return {"list": "[" * 200_000, "object": '{"a":' * 200_000}[kind]


def packed(kind: str, content: bytes) -> bytes:
    import bz2
    import gzip
    import lzma

    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](content)


RUSSIAN = ("\u0443\u0442\u0440\u043e \u0431\u044b\u043b\u043e \u044f\u0441\u043d\u043e\u0435, \u0438 "
           "\u0433\u043e\u0440\u043e\u0434 \u0441\u043f\u0430\u043b\n")
WORDS = b"the cat sat on the mat and the dog ran to the sea\n" * 40
NO_IDS = json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                     "pre_tokenizer": None, "post_processor": None, "decoder": None,
                     "model": {"type": "WordLevel", "vocab": {"cat": 0}, "unk_token": "no"}})
HUGE_IDS = NO_IDS.replace('"cat": 0', '"cat": 4294967295').replace('"no"', '"cat"')

# ---------------------------------------------------------------- train.py

TRAIN_FLAGS = [
    ("a batch size that is not a number", "--batch_size nan", "--batch_size 'nan': must be auto or a whole number"),
    ("steps beyond 2^31", "--max_steps 99999999999999999999", "--max_steps '99999999999999999999'"),
    ("a name that is no size", "--model_size gpt3", "--model_size 'gpt3': must be one of tiny, mini"),
    ("a place where tokens cannot live", "--preload disk", "--preload 'disk': must be one of"),
    ("a flag without its value", "--batch_size", "--batch_size: expected one argument"),
    ("a misspelt flag", "--learningrate 1e-3", "--learningrate: no such flag. Did you mean --learning_rate?"),
    ("a min_lr above the peak", "--learning_rate 1e-4 --min_lr 1e-3", "--min_lr: is above --learning_rate"),
    ("a warm-up longer than the run", "--warmup_steps 4", "--warmup_steps: ends after --max_steps"),
    ("overwriting what is to be resumed", "--overwrite --resume_from auto", "--overwrite: not with"),
    ("a share without a decay", "--decay_share 0.3", "--cooldown: has no effect without --lr_schedule wsd"),
    ("a cooldown's steps without one", "--cooldown_steps 5", "--cooldown: has no effect without"),
    ("two ends of a cooldown", "--cooldown_from out --max_steps 9", "--max_steps: not with --cooldown_from"),
    ("tokens on a GPU that is not to be used", "--preload gpu", "--preload gpu: not with --no-use_gpu"),
    ("checkpoints every so often", "--checkpoint_every often", "--checkpoint_every 'often': must be a whole number of"),
    ("a flag that is gone", "--fp8_head", "--fp8_head: no such flag. The output layer is"),
    ("six wrong flags", "--batch_size 0 --epochs x --seed y --dropout 2 --beta1 nan --grad_clip -1",
     "and 2 more: --beta1, --grad_clip"),
]

MIXTURES = [  # of the flag --data_dir alone
    ("a weight of zero", "corpus:0 other:1", "corpus:0: the weight must be a number above 0"),
    ("a weight for one of two folders", "corpus:0.7 other", "other has no weight"),
    ("files for several folders", "corpus other --bin_file corpus/train.bin", "--bin_file: not with several folders"),
]

TOKENS = [
    ("an odd number of bytes", "has 1,999 bytes, where its 999 tokens", cut("corpus/train.bin", 1999)),
    ("no tokens", "has 0 bytes", cut("corpus/train.bin", 0)),
    ("an id beyond the vocabulary, deep inside", "id 400 at position 777 is outside the vocabulary of 400",
     ids("corpus/train.bin", 777, 400)),
]

METADATA = [
    ("an empty file", "is not JSON", write(META, "")),
    ("a list", "holds no JSON object", write(META, "[1]")),
    ("lists in lists without end", "is not JSON", write(META, deep("list"))),
    ("a gigabyte", "has 1,073,741,824 bytes", sparse(META)),
    ("an unknown version", "version is 99, not 1", put(META, "version", 99)),
    ("a file outside its folder", "splits.train.files[0].name is '../../secret.bin'",
     put(META, "splits.train.files", [{"name": "../../secret.bin"}])),
]

TOKENIZERS = [
    ("an empty file", "is not a tokenizer.json", ""),
    ("an object of nothing", "is not a tokenizer.json", "{}"),
    ("lists in lists without end", "is not a tokenizer.json", deep("list")),
    ("an id of 2^32 - 1", "has 4,294,967,296 ids", HUGE_IDS),
]

BIN_FILES = [
    ("a missing token file", "--bin_file none.bin --vocab_size 400", "none.bin is missing", both()),
    ("a pattern that matches nothing", "--bin_file '*.none' --vocab_size 400", "matches 0 files", both()),
    ("tokens without a vocabulary", "--bin_file corpus/train.bin", "comes without its vocabulary", both()),
    ("a single token", "--bin_file one.bin --vocab_size 400", "the corpus has 1 token,", write("one.bin", b"\1\0")),
    ("an llm.c header that says too much", "--bin_file x.bin --vocab_size 400", "where its 1,000,000,000 tokens of",
     write("x.bin", np.array([20240520, 1, 10**9, *[0] * 353], "<i4").tobytes())),
    ("a .npy of objects, which are pickles", "--bin_file x.npy --vocab_size 400", "is a .npy that numpy cannot read",
     lambda place: np.save(place / "x.npy", np.array([{}]))),
]

RESUMED = [
    ("a checkpoint that is not there", "none", "none does not exist", both()),
    ("a pickle", "ckpt.pt", "a pickle", write("ckpt.pt", b"\x80\x02}q\x00.")),
    ("llm.c's checkpoint", "model.bin", "model.bin is not a folder",
     write("model.bin", np.array([20240326, 3] + [0] * 254, "<i4").tobytes())),
    ("a pipe", "pipe", "pipe is not a folder", fifo("pipe")),
    ("a model without training state", "gpt2", "Only a checkpoint of train.py can be resumed", both()),
    ("one flipped bit", HERE, "model.safetensors does not have the manifest's sha256",
     change(WEIGHTS, lambda held: held[:-9] + bytes([held[-9] ^ 1]) + held[-8:])),
    ("no manifest", HERE, "no manifest.json", drop(f"{HERE}/manifest.json")),
    ("a manifest that leaves its folder", HERE, "does not name a file of this folder",
     put(f"{HERE}/manifest.json", "files", {name: {} for name in ("../../text.txt", "model.safetensors",
                                                                  "optimizer.safetensors", "trainer_state.json")})),
    ("all checkpoints damaged", "out", "no sound checkpoint in out", cut(WEIGHTS, 5000)),
    ("a state of another program", HERE, "trainer_state.json: format is 'x'", state("format", "x")),
    ("a step other than the folder's", HERE, "step is 3", state("step", 3)),
    ("a model of other layers", f"{HERE} --n_layer 3", "n_layer is 2 in the checkpoint and 3 here", both()),
    ("a wider vocabulary", HERE, "vocab_size is 400 in the checkpoint and 500 here", put(META, "vocab_size", 500)),
    ("a tensor too few", HERE, f"{QKV} is missing", sealed(tensors(WEIGHTS, lambda held: held.pop(QKV)))),
    ("a tensor of another shape", HERE, f"{QKV} has shape [96, 5]",
     sealed(tensors(WEIGHTS, lambda held: held.update({QKV: np.zeros((5, 96), "f4")})))),
    ("an optimizer without a moment", HERE, f"exp_avg_sq.{QKV} is missing",
     sealed(tensors(OPTIMIZER, lambda held: held.pop(f"exp_avg_sq.{QKV}")))),
]


FLAG_FILES = [
    ("text without quotes", "x.toml is not TOML: Invalid value (at line 1", write("x.toml", "data_dir = corpus")),
    ("an unknown key", "lerning_rate (x.toml): no such flag. Did you mean --learning_rate?",
     write("x.toml", "seed = 1\nlerning_rate = 1e-3\n")),
    ("a key of another program", "block_size (x.toml): no such flag. Here it is called --seq_length.",
     write("x.toml", "block_size = 256")),
    ("a key that drives a terminal", "no such flag", write("x.toml", '"\\u001b[2J\\n" = 1')),
    ("a flag in a file that only the line may have", "debug (x.toml): has no effect in a file",
     write("x.toml", "debug = true")),
]


def train_rows() -> list[Row]:
    data, machine = Exit.DATA, Exit.MACHINE
    return [
        *(Row(f"train.py: {what}", f"{TRAIN} {flags}", Exit.FLAGS, says) for what, flags, says in TRAIN_FLAGS),
        *(Row(f"train.py mixes: {what}", f"{BIN} --data_dir {words}", Exit.FLAGS, says)
          for what, words, says in MIXTURES),
        Row("train.py mixes: a folder that is not there", f"{BIN} --data_dir corpus:1 other:2", data,
            "--data_dir other does not exist"),
        Row("train.py mixes: two tokenizers", f"{BIN} --data_dir corpus:1 other:2", data,
            "corpus and other have different tokenizers", both(
                twin("corpus", "other"), put("other/metadata.json", "tokenizer", GONE),
                put("other/tokenizer.json", "model.merges", []))),
        Row("train.py mixes: two ends of a text", f"{BIN} --data_dir corpus other", data,
            "different ids for the end of a text: 0 and 1", both(
                twin("corpus", "other"), put("other/metadata.json", "end_of_text_id", 1))),
        Row("train.py mixes: a folder shorter than a sequence", f"{BIN} --data_dir corpus other --seq_length 1000",
            data, "training tokens, fewer than a sequence of 1,000", twin("corpus", "other")),
        Row("train.py resumes: another mixture", f"{RESUME} {HERE} --data_dir corpus:1 other:2", data,
            "on another mixture: one folder; here corpus 33.3%, other 66.7%", twin("corpus", "other")),
        *(Row(f"train.py tokens: {what}", TRAIN, data, says, setup) for what, says, setup in TOKENS),
        *(Row(f"train.py metadata: {what}", TRAIN, data, says, setup) for what, says, setup in METADATA),
        *(Row(f"train.py tokenizer: {what}", TRAIN, data, says, write("corpus/tokenizer.json", content))
          for what, says, content in TOKENIZERS),
        *(Row(f"train.py: {what}", f"{BIN} {flags}", data, says, setup) for what, flags, says, setup in BIN_FILES),
        *(Row(f"train.py --config: {what}", f"{TRAIN} --config {'none.toml' if 'none' in says else 'x.toml'}",
              Exit.FLAGS, says, setup) for what, says, setup in FLAG_FILES),
        Row("train.py resumes: a config.toml with a wrong value", "train.py --resume_from out", Exit.FLAGS,
            "n_layer (out/config.toml) '2.5': must be a whole number",
            write("out/config.toml", "n_layer = 2.5")),
        Row("train.py resumes: another model by a flag", "train.py --resume_from out --model_size mini",
            Exit.CHECKPOINT, "the checkpoint holds another model", both()),
        *(Row(f"train.py resumes: {what}", f"{RESUME} {flags}", Exit.CHECKPOINT, says, setup)
          for what, flags, says, setup in RESUMED),
        Row("train.py: no data folder", f"{BIN} --data_dir none", data, "--data_dir none does not exist"),
        Row("train.py: a data folder without metadata", TRAIN, data, "has no metadata.json", drop(META)),
        Row("train.py resumes: other tokens", f"{RESUME} {HERE}", data, "on another text",
            both(ids("corpus/train.bin", 5, 7), put(META, "splits.train.sha256", GONE))),
        Row("train.py resumes: another tokenizer", f"{RESUME} {HERE}", data, "on another tokenizer",
            both(change("corpus/tokenizer.json", lambda held: held + b"\n"), put(META, "tokenizer", GONE))),
        Row("train.py: another run's checkpoints", f"{BIN} --data_dir corpus --output_dir out", Exit.CHECKPOINT,
            "holds the checkpoints of another run"),
        Row("train.py: output_dir is a file", f"{TRAIN} --output_dir text.txt", machine, "--output_dir text.txt"),
        Row("train.py: output_dir is a link to nowhere", f"{TRAIN} --output_dir l", machine, "--output_dir l",
            link("l", "nowhere/x")),
        Row("train.py: output_dir is another run's", f"{TRAIN} --output_dir busy", Exit.BUSY, "is in use",
            hold("busy/.lock")),
    ]


# ---------------------------------------------------------------- pretokenize.py

PRETOKENIZE_FLAGS = [
    ("no text", "", "FILE: none given"),
    ("a misspelt flag", "text.txt --vocabsize 300", "Did you mean --vocab_size?"),
    ("text beside the demonstration", "text.txt --demo", "--demo: takes no FILE beside it"),
    ("a model for a dataset", "hf://someone/tales", "FILE hf://someone/tales: must be hf://datasets/"),
    ("an empty name", "''", "FILE '': must be text"),
    ("a size for a tokenizer that exists", "text.txt --tokenizer_file x.json", "--vocab_size: not with"),
    ("an encoding that is none", "text.txt --encoding klingon",
     "--encoding 'klingon': must be an encoding that Python knows, such as cp1251"),
    ("six wrong flags", "--vocab_size 1 --val_fraction 2 --min_frequency x --num_workers 0 --peek 0 --engine 9",
     "and 2 more: "),
]

CORPORA = [
    ("a missing file", "none.txt", "none.txt: No such file", both()),
    ("a pattern that matches nothing", "'*.none'", "matches no file", both()),
    ("a link to nowhere", "x.txt", "x.txt: No such file", link("x.txt", "nowhere")),
    ("an empty file", "x.txt", "nothing to train on in x.txt", write("x.txt", "")),
    ("UTF-16 with a mark", "x.txt", "x.txt is UTF-16", write("x.txt", "the cat".encode("utf-16"))),
    ("text in cp1251", "x.txt", "x.txt is not UTF-8:", write("x.txt", (RUSSIAN * 9).encode("cp1251"))),
    ("token ids", "corpus/train.bin", "If it holds tokens: train.py takes it with --bin_file", both()),
    ("a text that the output would replace", "corpus/tokenizer.json --output_dir corpus --overwrite",
     "corpus/tokenizer.json would be replaced by the output of the same name", both()),
    ("a gigabyte of zeros", "x.txt", "full of control characters", sparse("x.txt")),
    ("a PDF", "x.txt", "x.txt is a PDF", write("x.txt", b"%PDF-1.7\n" + bytes(99))),
    *((f"a damaged .{kind}", f"x.txt.{kind}", f"x.txt.{kind} is damaged",
       write(f"x.txt.{kind}", packed(kind, WORDS)[:20] + b"\0\xff\0" * 9 + packed(kind, WORDS)[30:]))
      for kind in ("gz", "bz2", "xz")),
    *((f"a .{kind} cut short", f"x.txt.{kind}", f"x.txt.{kind} is damaged",
       write(f"x.txt.{kind}", packed(kind, WORDS)[:-9])) for kind in ("gz", "bz2", "xz")),
    ("a bomb", "x.txt.gz", "as an archive bomb does",
     lambda place: (place / "x.txt.gz").write_bytes(packed("gz", b"\n" * 2**20) * 300)),
    ("lines without the field", "x.jsonl", "has no text in field 'text': its fields are body",
     write("x.jsonl", '{"body": "a b c"}\n' * 9)),
    ("junk for a table", "x.parquet", "x.parquet is not a Parquet file", write("x.parquet", "junk" * 99)),
]


VERIFIED = [
    ("tokens that have changed", "corpus", "its sha256 is not the one in metadata.json", both(
        change("corpus/train.bin", lambda held: held[2:] + held[:2]))),
    ("a tokenizer that has changed", "corpus", "is not the one with which the tokens were made",
     change("corpus/tokenizer.json", lambda held: held + b"\n")),
    ("no document ends", "corpus", "train.idx is missing", drop("corpus/train.idx")),
]


def remade(how: Callable[[dict[str, Any]], Any]) -> Setup:
    """x.json: the corpus's tokenizer with something changed."""

    def setup(place: Path) -> None:
        fields = json.loads((place / "corpus/tokenizer.json").read_text(encoding="utf-8"))
        how(fields)
        (place / "x.json").write_text(json.dumps(fields))

    return setup


def normalized(**normalizer: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields.update(normalizer=normalizer)


UNFAITHFUL = [
    ("one that makes letters small", "the tokenizer changes text", normalized(type="Lowercase")),
    ("one that drops what lies between words", "comes back as", lambda fields: fields.update(
        pre_tokenizer={"type": "Whitespace"})),
    ("one whose ids are random", "its BPE has a dropout of 0.1",
     lambda fields: fields["model"].update(dropout=0.1)),
]


def pretokenize_rows() -> list[Row]:
    data, machine = Exit.DATA, Exit.MACHINE
    return [
        *(Row(f"pretokenize.py: {what}", f"{PRETOKENIZE} {flags}", Exit.FLAGS, says)
          for what, flags, says in PRETOKENIZE_FLAGS),
        *(Row(f"pretokenize.py text: {what}", f"{PRETOKENIZE} {flags}", data, says, setup)
          for what, flags, says, setup in CORPORA),
        *(Row(f"pretokenize.py tokenizer: {what}", f"{GIVEN} x.json", data, says, write("x.json", content))
          for what, says, content in TOKENIZERS),
        *(Row(f"pretokenize.py verifies: {what}", f"pretokenize.py --verify {name}", data, says, setup)
          for what, name, says, setup in VERIFIED),
        Row("pretokenize.py: no tokenizer", f"{GIVEN} none.json", data, "tokenizer none.json: No such file"),
        *(Row(f"pretokenize.py tokenizer: {what}", f"{GIVEN} x.json", data, says, remade(how))
          for what, says, how in UNFAITHFUL),
        Row("pretokenize.py: a work folder that is a link", f"{PRETOKENIZE} text.txt --output_dir out2", machine,
            "out2: .pretokenize in it is a link", both(folder("out2"), link("out2/.pretokenize", "../corpus"))),
        Row("pretokenize.py: peeking at nothing", "pretokenize.py --peek 1 --output_dir none", data, "No such file"),
        Row("pretokenize.py: outputs exist", f"{PRETOKENIZE} text.txt --output_dir corpus", data, "Give --overwrite"),
        Row("pretokenize.py: output_dir is another run's", f"{PRETOKENIZE} text.txt --output_dir busy", Exit.BUSY,
            "is in use", hold("busy/.pretokenize.lock")),
    ]


# ---------------------------------------------------------------- generate.py

GENERATE_FLAGS = [
    ("a billion new tokens", "--max_new_tokens 1000000000", "--max_new_tokens '1000000000': must be a whole number fr"
     "om 1 to 1,000,000"),
    ("two prompts", "--prompt a --prompt_file text.txt", "--prompt and --prompt_file: give one of them"),
]
CONFIG = "gpt2/config.json"
GPT2 = "gpt2/model.safetensors"
CONFIGS = [
    ("no config", "config.json", drop(CONFIG)),
    ("another kind of model", "model_type is 'mamba'", put(CONFIG, "model_type", "mamba")),
    ("10^9 layers", "n_layer is 1000000000, not a whole number from 1 to 1,024", put(CONFIG, "n_layer", 10**9)),
    ("a layer too many", "is missing", put(CONFIG, "n_layer", 3)),
    ("heads that do not divide the width", "n_embd 32 is not a multiple of n_head 5", put(CONFIG, "n_head", 5)),
    ("no weights", "model.safetensors is missing", drop(GPT2)),
    ("weights in a pickle alone", "its weights are a pickle", both(drop(GPT2), write("gpt2/pytorch_model.bin", "x"))),
    ("weights cut short", "model.safetensors cannot be read", cut(GPT2, 140_000)),
    ("a tensor too few", f"{QKV} is missing", tensors(GPT2, lambda held: held.pop(QKV))),
    ("a tensor of another shape", f"{QKV} has shape",
     tensors(GPT2, lambda held: held.update({QKV: np.zeros((5, 96), "f4")}))),
]
TENSOR_INDEX = "gpt2/model.safetensors.index.json"
ONE_OF_THREE = "model-00002-of-00003.safetensors"
SHARDED = [
    ("an index that names a file elsewhere", "not an object with the safetensors file of each",
     in_shards(change(TENSOR_INDEX, lambda held: held.replace(ONE_OF_THREE.encode(), f"../{WEIGHTS}".encode())))),
    ("a file of several missing", f"{ONE_OF_THREE} cannot be read", in_shards(drop(f"gpt2/{ONE_OF_THREE}"))),
]
PROMPTS = [
    ("a missing prompt file", "--prompt_file none.txt", "--prompt_file none.txt: No such file", both()),
    ("a prompt of a gigabyte", "--prompt_file x.txt", "--prompt_file x.txt has more than", sparse("x.txt")),
]


def generate_rows() -> list[Row]:
    code = Exit.CHECKPOINT
    return [
        *(Row(f"generate.py: {what}", f"{GENERATE} gpt2", code, says, setup) for what, says, setup in SHARDED),
        *(Row(f"{line.partition(' ')[0]}: a file of several missing", line, code, f"{ONE_OF_THREE} cannot be read",
              in_shards(drop(f"gpt2/{ONE_OF_THREE}")))
          for line in ("train.py --data_dir corpus --output_dir new --init_from gpt2",
                       "evaluate.py --ckpt gpt2 --text text.txt --no-use_gpu",
                       "export.py --ckpt gpt2 --output x --format huggingface")),
        *(Row(f"generate.py: {what}", f"{GENERATE} gpt2 {flags}", Exit.FLAGS, says)
          for what, flags, says in GENERATE_FLAGS),
        *(Row(f"generate.py: {what}", f"{GENERATE} gpt2", code, says, setup) for what, says, setup in CONFIGS),
        *(Row(f"generate.py: {what}", f"{GENERATE} gpt2 {flags}", Exit.DATA, says, setup)
          for what, flags, says, setup in PROMPTS),
        *(Row(f"generate.py: {what}", f"{GENERATE} {flags}", code, says, setup) for what, flags, says, setup in RESUMED
          if flags in ("none", "corpus", "ckpt.pt", "model.bin", "text.txt", "pipe", "nano", "out")),
        Row("generate.py: a checkpoint's junk generation_config", f"{GENERATE} {HERE}", code, "generation_config.json",
            write(f"{HERE}/generation_config.json", "junk")),
        Row("generate.py: weights that are not finite", f"{GENERATE} gpt2", Exit.DIVERGED, "logits are not finite",
            tensors(GPT2, lambda held: held.update({QKV: held[QKV] * np.float32("nan")}))),
    ]


# ---------------------------------------------------------------- what evaluate, export, plot and bench write

EVALUATE = "evaluate.py --ckpt gpt2 --text text.txt --no-use_gpu"
OUTPUTS = [
    (EVALUATE, "--json", "x.json"),
    ("export.py --ckpt gpt2 --format huggingface", "--output", "x"),
    ("plot.py out", "--output", "x.png"),
    ("bench.py --no-use_gpu", "--json", "x.json"),
]


def output_rows() -> list[Row]:
    """The same bad places for what each command writes: all are refused before any work."""
    return [row for line, flag, name in OUTPUTS for row in (
        Row(f"{line.split()[0]} {flag} in a file", f"{line} {flag} text.txt/{name}", Exit.MACHINE,
            f"{flag} text.txt/{name}: Not a"),
        *([] if line.startswith("export.py") else [Row(
            f"{line.split()[0]} {flag} is a folder", f"{line} {flag} {name}", Exit.FLAGS, "is a folder. Name a file",
            folder(name))]))]


# ---------------------------------------------------------------- folders of checkpoints, best and last

BEST = "generate.py --max_new_tokens 3 --no-use_gpu --ckpt out/best"
MANIFEST = f"{HERE}/manifest.json"


def copied(step: int, *files: str) -> Setup:
    """A folder with a checkpoint's name that holds a few of its files."""

    def setup(place: Path) -> None:
        (place / f"out/checkpoint-{step}").mkdir()
        for name in files:
            shutil.copy(place / HERE / name, place / f"out/checkpoint-{step}" / name)

    return setup


def later(place: Path) -> None:
    """A checkpoint of step 3, for which that of step 2 is the best."""
    state("best_step", 2)(place)
    folder = shutil.copytree(place / HERE, place / "out/checkpoint-3")
    edit(folder / "trainer_state.json", step=3)
    seal(folder)


LOCKS = [
    ("a link to nowhere", "is a link or another file", link("out/.lock", "nowhere")),
    ("another name of a file", "is a link or another file, and was left alone",
     both(drop("out/.lock"), lambda place: os.link(place / "text.txt", place / "out/.lock"))),
    ("a folder", "cannot be written: Is a directory", folder("out/.lock")),
]
BESTS = [
    ("a run that never validated", "out has no best checkpoint: checkpoint-2 says nothing of a validation.",
     state("best_val_loss", None)),
    ("the best was deleted", "out has no best checkpoint: checkpoint-2 says it is checkpoint-1, which is not there",
     state("best_step", 1)),
    ("a record without its step", "checkpoint-2 says it is checkpoint-0", state("best_step", GONE)),
    ("a best of the future", "best_step is 3, not a whole number from 0 to 2", state("best_step", 3)),
    ("a damaged best", "checkpoint-2 is damaged: model.safetensors has 5,000 bytes", cut(WEIGHTS, 5000)),
    ("a record that is no JSON", "no sound checkpoint in out. checkpoint-2: trainer_state.json cannot be read",
     sealed(write(STATE, "x"))),
    ("no checkpoint at all", "out holds no checkpoint. Train one first: python train.py", drop(HERE)),
    ("no folder", "out does not exist. Train one first: python train.py", drop("out")),
    ("a file for a folder", "out is not a folder", write("out", "x")),
]


def checkpoint_rows() -> list[Row]:
    code, start = Exit.CHECKPOINT, f"train.py --data_dir corpus {MODEL} --batch_size 2 --max_steps 4"
    return [
        *(Row(f"train.py: the lock is {what}", f"{start} --output_dir out --overwrite", Exit.MACHINE, says, setup)
          for what, says, setup in LOCKS),
        *(Row(f"generate.py --ckpt out/best: {what}", BEST, code, says, setup) for what, says, setup in BESTS),
        Row("generate.py: a file of a checkpoint", f"{GENERATE} {WEIGHTS}", code, "is not a folder"),
        Row("generate.py: a folder with a newline in its name", "generate.py --ckpt 'a\nerror: b'", code,
            r"error: a\nerror: b does not exist. Train one first: python train.py --output_dir $'a\012error: b'"),
        Row("train.py resumes: the best, where later ones are", f"{RESUME} best", code,
            "holds checkpoints that do not lead to checkpoint-2: checkpoint-3", later),
        Row("train.py cools down: a model without a schedule", f"{COOL} --output_dir new --cooldown_from gpt2", code,
            "gpt2 has no manifest.json. Only a checkpoint"),
        Row("train.py: a checkpoint's name that is another program's", f"{start} --output_dir out --overwrite", code,
            "out/checkpoint-500 has a checkpoint's name but no manifest.json", copied(500, "config.json")),
        Row("train.py: the output folder is a checkpoint", f"{start} --output_dir {HERE}", code,
            f"--output_dir {HERE} is a checkpoint itself, and a run would write into it. Give its folder, out"),
        Row("train.py: it would delete the weights it starts from", "train.py --data_dir corpus --output_dir out "
            "--overwrite --init_from out/best", Exit.FLAGS, "--overwrite: would delete out/best"),
        Row("train.py: the mirror is the output folder", f"{TRAIN} --mirror_to ./new", Exit.FLAGS,
            "--mirror_to: lies in --output_dir, or holds it; give a folder on another disk"),
        Row("train.py: the mirror is a checkpoint", f"{TRAIN} --mirror_to {HERE}", code,
            f"--mirror_to {HERE} is a checkpoint itself, and a run would write into it. Give its folder, out"),
        Row("train.py: the mirror holds another run", f"{TRAIN} --mirror_to out", code, "--mirror_to out holds the "
            "checkpoints of another run, the last one of step 2. Give --resume_from auto to continue that run"),
    ]


# ---------------------------------------------------------------- tokens that lie about themselves, and evaluate.py

MEASURE = f"evaluate.py --no-use_gpu --ckpt {HERE}"
SWAPPED = change("corpus/tokenizer.json", lambda held: held.replace(b'"t":', b'"?":', 1).replace(b'"u":', b'"t":', 1)
                 .replace(b'"?":', b'"u":', 1))


LIES = [
    ("tokens other than recorded", "", "train.bin is not what pretokenize.py wrote: its sha256 is not the",
     ids("corpus/train.bin", 5, 7)),
    ("another tokenizer of the same size", "", "is not the one with which the tokens were made", SWAPPED),
    ("a folder without a tokenizer", "--tokenizer_file gpt2", "tokenizer gpt2/tokenizer.json: No such",
     drop("gpt2/tokenizer.json")),
]
MEASURED = [
    ("an id beyond the model's vocabulary", "--tokens x.bin", "x.bin: id 60,000 at position 1",
     write("x.bin", np.array([1, 60_000, 2], "<u2").tobytes())),
    ("a text for tokens", "--tokens text.txt", "text.txt holds text, not tokens", both()),
    ("tokens of another tokenizer", "--tokens corpus", "corpus/tokenizer.json is another tokenizer than the model's",
     SWAPPED),
]


def truth_rows() -> list[Row]:
    return [
        *(Row(f"train.py: {what}", f"{TRAIN} {flags}", Exit.DATA, says, setup) for what, flags, says, setup in LIES),
        *(Row(f"evaluate.py: {what}", f"{MEASURE} {flags}", Exit.DATA, says, setup)
          for what, flags, says, setup in MEASURED),
        Row("train.py: a text for tokens", f"{BIN} --bin_file text.txt --vocab_size 50257", Exit.DATA,
            "text.txt holds text, not tokens"),
        Row("evaluate.py: nothing to measure", MEASURE, Exit.FLAGS, "--text: nothing to measure"),
        Row("train.py: two sizes of the validation", f"{TRAIN} --eval_tokens 9 --eval_batches 9", Exit.FLAGS,
            "--eval_batches: not with --eval_tokens"),
        Row("generate.py: tokens for a prompt", f"{GENERATE} gpt2 --prompt_file corpus/val.bin", Exit.DATA,
            "corpus/val.bin is not text in UTF-8"),
    ]


# ---------------------------------------------------------------- names, places and commands of every kind

BAD_NAME = "caf\udce9"  # a byte that is not UTF-8


def place_rows() -> list[Row]:
    """Names that no file can have or no library opens, and what the other commands are given by mistake."""
    flags, data, checkpoint = Exit.FLAGS, Exit.DATA, Exit.CHECKPOINT
    export = "export.py --format huggingface --ckpt"
    return [
        Row("train.py: output_dir has a byte that is not UTF-8", f"{TRAIN} --output_dir {BAD_NAME}", flags,
            "bytes that are not UTF-8, under which the checkpoints could not be read again"),
        Row("generate.py: a folder whose name is not UTF-8", f"{GENERATE} {BAD_NAME}", checkpoint, "cannot be read",
            lambda place: (place / "gpt2").rename(place / BAD_NAME)),
        Row("export.py: a file that is no export", "export.py --ckpt gpt2 --output text.txt --overwrite", flags,
            "text.txt exists and is not an earlier export"),
        Row("export.py: a precision that is none", f"{export} gpt2 --output x --dtype f8", flags, "--dtype 'f8'"),
        Row("export.py: nowhere to write", f"{export} gpt2", flags, "--output: required"),
        Row("plot.py: a folder without a run", "plot.py corpus", data, "metrics.jsonl: No such file"),
        Row("plot.py: an ending that is no picture's", "plot.py out --output x.doc", flags, "must end in .png"),
        Row("bench.py: rungs that are none", "bench.py --rungs 99", flags, "--rungs '99'"),
    ]


ROWS = [*place_rows(), *train_rows(), *pretokenize_rows(), *generate_rows(), *output_rows(), *checkpoint_rows(),
        *truth_rows()]

# ---------------------------------------------------------------- how a row is run


@pytest.fixture(scope="session")
def fork(forks):
    """A function: runs a command line in a folder, in a fork of a process that has imported everything."""
    return lambda line, where: forks.run(line, cwd=where, alarm=SECONDS)


@pytest.fixture(scope="module")
def world(fork, tokenizer_file, tmp_path_factory):
    """The good folder that each row spoils a copy of; that its commands succeed is part of the proof."""
    place = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(WORDS.decode().split(), 20_000))
    (place / "text.txt").write_text(text)
    done = fork(f"pretokenize.py text.txt --tokenizer_file {tokenizer_file} --output_dir corpus --num_workers 1", place)
    assert done.code == 0, done.stderr
    rewrite_tokens(place / "corpus")
    done = fork(f"train.py --data_dir corpus --output_dir out {MODEL} --batch_size 2 --max_steps 2", place)
    assert done.code == 0, done.stderr
    shutil.rmtree(place / "out/checkpoint-1")  # the best by validation
    (place / "gpt2").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(place / HERE / name, place / "gpt2" / name)
    return place


def rewrite_tokens(folder: Path) -> None:
    """Cuts the training part to 1,000 tokens and the validation to 100: a single document each, 400 ids known."""
    metadata = json.loads((folder / "metadata.json").read_text())
    for split, length in (("train", 1000), ("val", 100)):
        path = folder / f"{split}.bin"
        tokens = np.resize(np.fromfile(path, "<i2"), length)
        tokens[-1] = metadata["end_of_text_id"]
        tokens.tofile(path)
        np.array([length], "<u8").tofile(folder / f"{split}.idx")
        metadata["splits"][split] |= {"tokens": length, "documents": 1, "file_bytes": 2 * length,
                                      "modified_ns": path.stat().st_mtime_ns, "sha256": sha256_of(path)}
    (folder / "metadata.json").write_text(json.dumps(metadata))


def there_is(place: Path) -> dict[str, Any]:
    """Every file and folder but locks, with size and time."""
    return {str(path.relative_to(place)): (os.lstat(path).st_size, os.lstat(path).st_mtime_ns)
            if not path.is_dir() else None for path in place.rglob("*") if not path.name.endswith(".lock")}


def faults_of(row: Row, world: Path, place: Path, fork: Callable[[str, Path], Ended]) -> list[str]:
    """All that is wrong with what the command does about a row."""
    shutil.copytree(world, place, symlinks=True)  # copy2: the times are kept, so the tokens are trusted
    kept = row.setup(place)
    before = there_is(place)
    done = fork(row.line, place)
    after = there_is(place)
    new = {name for name in {**before, **after} if before.get(name, "new") != after.get(name, "new")}
    new -= {"new", "busy"} if row.line.startswith("train.py") else set()  # the folder with the lock
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
        "speaks before the flags are right": row.code == 2 and row.line.count("--min_lr 0.5") == 0
        and "--epochs 1" not in row.line and bool(done.stdout),
        f"{done.seconds:.1f} s": done.seconds > SECONDS,
        f"{done.peak_bytes:,} bytes of memory": done.peak_bytes > MOST_BYTES,
    }
    del kept
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
    for command, least in (("train.py", 50), ("pretokenize.py", 40), ("generate.py", 30)):
        assert sum(row.line.startswith(command) for row in ROWS) >= least


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.sentence)
def test_a_bad_input_is_named_and_nothing_else_happens(row, world, fork, tmp_path):
    if faults := faults_of(row, world, tmp_path / "world", fork):
        pytest.fail("\n".join(faults), pytrace=False)
