"""Mixtures: the checks that their folders fit together, and runs of train.py on them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import data
import train
from gpt.common.errors import Exit, UserError
from gpt.planning.inputs import find_corpus
from gpt.tokens.corpus import Corpus
from gpt.training.validation import LossSums, mean_by_weight
from tests.helpers.refusals import refused
from tests.helpers.token_files import ids_in
from tests.helpers.training import QUIET, TINY, metrics_of, same_tensors, trained


@pytest.fixture
def folders(make_corpus, tmp_path, monkeypatch) -> list[str]:
    """The folders prose and code beside each other, of 1,000 and 300 training tokens; the test runs there."""
    monkeypatch.chdir(tmp_path)
    return [str(make_corpus(Path(name), seed, length)) for name, seed, length in (("prose", 1, 1000), ("code", 2, 300))]


def opened(*words: str) -> Corpus:
    return find_corpus(train.read_flags(["--data_dir", *words]))


def refusal(*words: str) -> str:
    with refused(code=Exit.DATA) as caught:
        opened(*words)
    return str(caught.value)


def edit(folder: str, **fields) -> None:
    path = Path(folder, "metadata.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


# ---------------------------------------------------------------- mixing


def test_a_mixture_holds_the_tokens_of_its_folders_in_their_order(folders):
    corpus, prose, code = opened("prose:3", "code:1"), opened("prose"), opened("code")
    assert ids_in(corpus.train) == ids_in(prose.train) + ids_in(code.train)
    assert ids_in(corpus.val) == ids_in(prose.val) + ids_in(code.val)
    assert [component.name for component in corpus.components] == ["prose", "code"]
    assert [component.whole_weight for component in corpus.components] == [3, 1]
    assert [component.weight for component in corpus.components] == [0.75, 0.25]
    assert [component.corpus for component in corpus.components] == [prose, code]
    assert corpus.vocab_size == 400
    assert corpus.notes == ()
    assert [component.weight for component in opened("prose", "code").components] == [1000 / 1300, 300 / 1300]
    assert prose.components == ()


def test_a_mixture_has_the_tokenizer_of_any_of_its_folders(folders):
    Path("prose/tokenizer.json").unlink()
    edit("prose", tokenizer_sha256=None)
    for words in (("prose", "code"), ("code", "prose")):
        corpus = opened(*words)
        assert corpus.tokenizer_path == Path("code/tokenizer.json")
        assert corpus.tokenizer_sha256 == opened("code").tokenizer_sha256


def test_the_identity_of_a_mixture_depends_on_folders_order_and_weights(folders):
    first = opened("prose:3", "code:1").identity
    assert first == opened("prose:0.75", "code:.25").identity
    assert len({first, opened("prose:2", "code:1").identity, opened("code:1", "prose:3").identity,
                opened("prose", "code").identity, opened("prose").identity}) == 5


def test_folders_that_do_not_fit_together_are_refused_by_name(folders):
    tokenizer = json.loads(Path("code/tokenizer.json").read_text())
    edit("code", end_of_text_id=1)
    assert "prose and code have different ids for the end of a text: 0 and 1" in refusal("prose", "code")
    edit("code", end_of_text_id=0, vocab_size=401)
    assert "prose and code have different ids in their vocabularies: 400 and 401" in refusal("prose", "code")
    edit("code", vocab_size=400)
    tokenizer["model"]["merges"].pop()
    Path("code/tokenizer.json").write_text(json.dumps(tokenizer))
    said = refusal("prose", "code")
    assert "--data_dir prose and code have different tokenizers, by their sha256: " in said
    assert said.endswith("\npython pretokenize.py TEXT --output_dir code --overwrite "
                         "--tokenizer_file prose/tokenizer.json")


# ---------------------------------------------------------------- losses


def test_the_loss_of_a_mixture_is_the_weighted_mean_of_its_components(folders):
    prose, code = opened("prose:3", "code:1").validation_sets
    found = mean_by_weight([(prose, LossSums(nats=200.0, num_tokens=100, num_bytes=400)),
                            (code, LossSums(nats=30.0, num_tokens=10, num_bytes=20))])
    assert found.nats == pytest.approx(0.75 * 2 + 0.25 * 3)
    assert found.bits_per_byte == pytest.approx(2.25 / np.log(2) / (0.75 * 4 + 0.25 * 2))
    assert {name: share.nats for name, share in found.by_name.items()} == {"prose": 2.0, "code": 3.0}


@pytest.mark.parametrize(("num_tokens", "limit", "expected"), [
    ([801, 81], 1000, [100, 10]), ([801, 801], 10, [5, 5]), ([801, 17], 10, [8, 2]), ([17, 801, 801], 20, [2, 9, 9]),
    ([801] * 3, 2, [1, 1, 1]), ([2, 10**9], 1000, [1, 999])])
def test_validation_windows_are_divided_equally_among_corpora(num_tokens, limit, expected):
    assert data.divide_windows(num_tokens, 8, limit) == expected


# ---------------------------------------------------------------- runs


@pytest.fixture
def run_on(folders, capsys):
    """A function: trains on folders into out; returns (exit code or UserError, what was printed)."""

    def call(*words: str, out: str = "out"):
        argv = ["--output_dir", out, *TINY, *QUIET, "--no-use_gpu", "--log_interval", "1", *words]
        return trained(argv, capsys)

    return call


MIXED = ["--data_dir", "prose:0.7", "code:0.3"]


def test_a_resumed_mixture_equals_an_undisturbed_run_in_ram_and_in_a_memory_map(run_on):
    flags = ["--epochs", "9", "--max_steps", "8", "--dropout", "0.1", "--eval_interval", "4"]
    code, text = run_on(*MIXED, *flags, "--checkpoint_every_steps", "3", out="whole")
    assert code == 0
    assert "mixture     prose 70%, 0.179 epochs; code 30%, 0.256 epochs\n" in text
    shutil.copytree("whole", "parts", ignore=lambda folder, names: {name for name in names if name in (
        "checkpoint-8", "checkpoint-6", ".lock")})
    assert train.main(["--resume_from", "parts", "--preload", "mmap"]) == 0
    assert same_tensors(Path("whole/checkpoint-8"), Path("parts/checkpoint-8"))
    assert metrics_of(Path("whole")) == metrics_of(Path("parts"))


def test_a_folder_of_a_mixture_that_would_be_learned_by_heart_is_named(run_on):
    warnings = re.findall(r"warning: (.*) is read (\S+) times", run_on(*MIXED, "--max_steps", "1000", "--dry_run")[1])
    assert warnings == [("prose", "22"), ("code", "32")]
    assert "times" not in run_on(*MIXED, "--max_steps", "8", "--dry_run")[1]


def test_a_checkpoint_of_another_mixture_is_refused_and_says_which(run_on):
    assert run_on(*MIXED, "--max_steps", "2")[0] == 0
    again = ["--max_steps", "3", "--resume_from", "auto"]
    for words in (["prose:0.6", "code:0.4"], ["code:0.3", "prose:0.7"], ["prose"], ["prose", "code"]):
        error, _ = run_on("--data_dir", *words, *again)
        assert isinstance(error, UserError)
        assert error.code == Exit.DATA
        assert "on another mixture: prose 70%, code 30%; here " in str(error)
        assert "--allow_new_data to go on" in str(error)
    assert run_on("--data_dir", "prose:70", "code:30", *again)[0] == 0
    assert run_on("--data_dir", "prose:60", "code:40", "--max_steps", "4", "--resume_from", "auto",
                  "--allow_new_data")[0] == 0
