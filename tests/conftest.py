"""What the tests share: a multilingual tokenizer, a small corpus folder, tiny models, runs of the commands.

Fixtures import torch only when they need it, so that the tests of rooms without it start at once.
"""

import gc
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt.common.errors import UserError
from gpt.common.files import sha256_of
from gpt.tokens.metadata import METADATA_FORMAT, METADATA_VERSION
from gpt.tokens.tokenizer import END_OF_TEXT, load_tokenizer, vocab_size_of
from tests.helpers.forks import Forks

if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each process, and so for those that the tests start
    os.environ["OMP_NUM_THREADS"] = "1"
# cuBLAS reads it at the first product of a process, long before the tests of --deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# A shell that runs the tests in the background, and nohup, ignore these; what the tests start would inherit that.
for number in (signal.SIGINT, getattr(signal, "SIGHUP", None)):
    if number and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

TEXTS = ["the cat sat on the mat and the dog ran to the sea",
         "caf\u00e9 na\u00efve \u00fcber \u00df \u0141\u00f3d\u017a",
         "\u6f22\u5b57\u3068\u304b\u306a\u4ea4\u3058\u308a\u6587\u3002\u4f60\u597d\uff0c\u4e16\u754c",
         "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
         "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
         "\u041f\u0440\u0438\u0432\u0435\u0442",
         "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7",
         "1,024 + 3.14 = ?\n\n\tend\r\n"]


def pytest_make_parametrize_id(val, argname):
    """Long bytes give a test no name: what gzip writes holds the time, and all processes must agree on the names."""
    return argname if isinstance(val, bytes) and len(val) > 20 else None


@pytest.fixture(autouse=True)
def _collector_left_with_what_is_new():
    """What earlier tests have imported and made is not looked through at each gc.collect() of a command."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _torch_as_at_the_start():
    """A run sets two things for its whole process: TF32, on a GPU, and eager steps, where the compiler failed."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_float32_matmul_precision("highest")
        sys.modules["torch"].compiler.set_stance("default")


@pytest.fixture(autouse=True, scope="session")
def _disk_that_is_not_waited_for():
    """A flush to the disk matters after a power cut alone, which no test makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
        yield


@pytest.fixture(autouse=True)
def _measurements_as_short_as_they_can_be(monkeypatch):
    """A run measures three passes of the processor, and few steps, where it would measure for seconds."""
    for name in ("gpt.planning.sizing.MEASURED_SECONDS", "gpt.training.pacing.MEASURING_SECONDS"):
        if name.rpartition(".")[0] in sys.modules:
            monkeypatch.setattr(name, 0.0)


@pytest.fixture(scope="session")
def texts():
    """Lines in several scripts."""
    return TEXTS


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE of 400 ids, trained on the English half of the texts, so that other scripts fall to bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END_OF_TEXT], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    words = np.random.default_rng(0).choice(" ".join(TEXTS[:2] * 20).split(), 3000)
    tokenizer.train_from_iterator([" ".join(words) + "".join(chr(97 + i % 26) * (i % 5) for i in range(999))], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    assert vocab_size_of(tokenizer) <= 400
    return path


@pytest.fixture
def tokenizer(tokenizer_file):
    """The tokenizer as the commands load it."""
    return load_tokenizer(tokenizer_file)


@pytest.fixture(scope="session")
def make_corpus(tokenizer_file):
    """A function: fills a folder as pretokenize.py leaves it: 1,000 training and 100 validation tokens, int16."""

    def make(folder: Path, seed: int = 0, num_tokens: int = 1000) -> Path:
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
        rng, splits = np.random.default_rng(seed), {}
        for name, length in (("train", num_tokens), ("val", 100)):
            path = folder / f"{name}.bin"
            rng.integers(0, 300, length).astype("<i2").tofile(path)
            splits[name] = {"tokens": length, "modified_ns": path.stat().st_mtime_ns, "sha256": sha256_of(path)}
        metadata = {"format": METADATA_FORMAT, "version": METADATA_VERSION, "vocab_size": 400,
                    "dtype": "int16", "end_of_text_id": 0, "splits": splits}
        (folder / "metadata.json").write_text(json.dumps(metadata))
        return folder

    return make


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Runs commands in a tenth of a second each: tests.helpers.forks."""
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture
def corpus_folder(make_corpus, tmp_path):
    """A folder as pretokenize.py leaves it."""
    return make_corpus(tmp_path / "corpus")


@pytest.fixture
def one_thread():
    """PyTorch computes with one thread: with several a matrix product may round by the thread that computes it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_model():
    """A function: a tiny model of a seed, with the changes to its configuration."""
    from tests.helpers.models import make_model

    return make_model


@pytest.fixture(scope="session")
def make_any():
    """A function: a tiny model of an architecture, with the changes to its configuration."""
    from tests.helpers.models import make_model, make_rotary

    return lambda arch, **changes: make_model(**changes) if arch == "gpt2" else make_rotary(arch, **changes)


@pytest.fixture(scope="session")
def make_checkpoint(tokenizer_file):
    """A function: trains a tiny model one step, saves it as folder/checkpoint-STEP; returns path, model, optimizer."""
    from tests.helpers.models import trained_checkpoint

    def make(folder: Path, step: int = 1, **changes):
        return trained_checkpoint(folder, step, tokenizer_file.read_text(encoding="utf-8"), **changes)

    return make


@pytest.fixture(scope="session")
def write_folder(tokenizer_file):
    """A function: writes a model as a Hugging Face folder without training state; weights that are not finite too."""
    from tests.helpers.models import write_hugging_face_folder

    return lambda folder, model: write_hugging_face_folder(folder, model, tokenizer_file)


# ---------------------------------------------------------------- runs of train.py


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder of pretokenize.py: 800 training and 90 validation tokens of 300 ids, with their tokenizer."""
    import pretokenize

    folder = tmp_path_factory.mktemp("corpus")
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "sea", "\n"]
    (folder / "text.txt").write_text(" ".join(np.random.default_rng(0).choice(words, 900)))
    flags = ["--output_dir", str(folder / "data"), "--vocab_size", "300", "--val_fraction", "0.1"]
    assert pretokenize.main([str(folder / "text.txt"), *flags]) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def chats(corpus, tmp_path_factory):
    """A folder of pretokenize.py with the corpus's tokenizer: conversations, of whose tokens few are answers."""
    import pretokenize

    folder, rng = tmp_path_factory.mktemp("chats"), np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat"]
    texts = [" ".join(rng.choice(words, length)) for length in rng.integers(1, 30, 120)]
    turns = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    lines = [json.dumps({"messages": turns[first:first + 2]}) for first in range(0, len(turns), 2)]
    (folder / "chats.jsonl").write_text("\n".join(lines))
    flags = ["--output_dir", str(folder / "data"), "--tokenizer_file", str(corpus / "tokenizer.json")]
    assert pretokenize.main([str(folder / "chats.jsonl"), *flags, "--val_fraction", "0.1"]) == 0
    return folder / "data"


@pytest.fixture
def run(corpus, tmp_path, capsys):
    """A function: runs train.main on the small corpus in this process; returns (exit code or UserError, what it
    printed). Its ok() returns what a run printed that must succeed, its refused() the words of one that must not."""
    from tests.helpers.training import QUIET, TINY, trained

    def call(*flags, out="out"):
        where = [] if "--use_gpu" in flags else ["--no-use_gpu"]
        argv = ["--data_dir", str(corpus), "--output_dir", str(tmp_path / out), *TINY, *QUIET, *where, *flags]
        return trained(argv, capsys)

    def ok(*flags, out="out"):
        code, text = call(*flags, out=out)
        assert code == 0, text
        return text

    def refused(expected, *flags, out="out"):
        error, _ = call(*flags, out=out)
        assert isinstance(error, UserError)
        assert error.code == expected, error
        return str(error)

    call.folder, call.ok, call.refused = tmp_path, ok, refused  # type: ignore[attr-defined]
    return call
