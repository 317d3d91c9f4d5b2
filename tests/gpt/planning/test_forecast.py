"""The forecast of a run's end: probabilities of n-grams, the fit on texts that it has not seen, what a run prints."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import train
from gpt.benchmarks.forecast import MINUTES, intervals_that_hold, line_of, refit
from gpt.common.files import sha256_of
from gpt.planning.forecast import TABLE, finished_runs
from gpt.tokens.ngrams import copied_fraction, ngram_bits
from tests.helpers.training import metrics_of


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_the_probabilities_of_what_may_follow_add_up_to_one(order):
    draw, V = np.random.default_rng(order), 6
    train_ids, before = np.minimum(draw.geometric(0.4, 300) - 1, V - 2), draw.integers(0, V, 5)
    bits = [ngram_bits(train_ids, np.append(before, following), V, order)[-1] for following in range(V)]
    assert sum(2.0**-np.array(bits)) == pytest.approx(1)
    assert all(np.isfinite(bits))


def test_pairs_are_smoothed_as_chen_and_goodman_say():
    # In 01010102 the pairs 01, 10, 02 occur 3, 3, 1 times: counts of 1 and 3 are discounted by 1/3 and 7/3. Each of 0,
    # 1, 2 follows one token, which is discounted by 0.6.
    single = (1 - 0.6) / 3 + 1.8 / 3 / 4
    after_2, after_0, after_1 = single, (3 - 7 / 3) / 4 + (7 / 3 + 1 / 3) / 4 * single, 7 / 3 / 3 * single
    bits = ngram_bits(np.array([0, 1, 0, 1, 0, 1, 0, 2]), np.array([0, 1, 2]), 4, order=2)
    assert 2.0**-bits == pytest.approx([after_2, after_0, after_1])


def test_the_interval_holds_on_texts_that_the_fit_has_not_seen():
    held = intervals_that_hold(finished_runs())
    assert sum(held) >= 0.85 * len(held) >= 0.85 * 100


@pytest.fixture
def short(monkeypatch):
    """Forecasts of texts and runs as short as those of tests."""
    for name in ("gpt.planning.evidence.LEAST_TOKENS", "gpt.planning.forecast.LEAST_SEEN",
                 "gpt.planning.recipe.MUON_PAYS"):
        monkeypatch.setattr(name, 1)
    monkeypatch.setattr("gpt.planning.forecast.WIDEST", math.inf)


def test_a_run_tells_its_end_before_it_begins_and_beside_what_it_is(short, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--data_dir", str(corpus), "--no-use_gpu", "--max_steps", "2", "--sample_interval", "0"]
    monkeypatch.setattr("gpt.planning.plan.MANY_COPIES", 0.0)
    monkeypatch.setattr("gpt.planning.forecast.LEAST_BITS_GAINED", -99.0)
    assert train.main([*flags, "--seed", "7"]) == 0
    printed, warned = capsys.readouterr()
    assert "0.0% of the validation tokens stand word for word in the training text" in warned
    bits, low, high = map(float, re.findall(r"forecast +([\d.]+) bits .*?, (-?[\d.]+) to ([\d.]+)", printed)[0])
    assert low < bits < high
    assert re.search(r"\n +[-\d.]+ with twice the time; [-\d.]+ with twice the text in this time\n", printed)
    (measured,) = re.findall(r"\nforecast .* it is ([\d.]+)\n", printed)
    assert measured in [f"{float(bits):.2f}" for bits in re.findall(r"bits per byte (\d\S+)", printed)]

    assert train.main(["--resume_from", "out", "--max_steps", "3"]) == 0
    assert re.search(r"\nforecast .* it is [\d.]+\n", capsys.readouterr().out)

    assert line_of(Path("out"))["bits"] == metrics_of(tmp_path / "out")[-1]["val_loss"] / math.log(2)

    table, before = tmp_path / "table.csv", len(finished_runs())
    shutil.copy(TABLE, table)
    for room in ("gpt.planning", "gpt.benchmarks"):
        monkeypatch.setattr(f"{room}.forecast.TABLE", table)
    monkeypatch.setattr("gpt.benchmarks.forecast.trained", lambda *_: Path("out"))
    for _ in range(2):  # the second time the lines of this text are replaced
        refit(corpus.parent)
        assert len(finished_runs()) == before + len(MINUTES)
    assert re.search(rf"\n\d+ of {before + len(MINUTES)} runs end in the interval", capsys.readouterr().out)


def test_validation_tokens_that_stand_in_the_training_text_are_counted():
    ids = np.arange(1000, dtype="<u2")
    passages = np.array([ids[start:start + 63] + new for start in range(0, 900, 7) for new in (0, 2000)], "<u2")
    assert copied_fraction([ids[:512], ids[512:]], 1, 63, lambda starts, width: passages) == 0.5


def test_validation_inside_the_training_text_is_told_whatever_the_flags(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokens = str(corpus / "train.bin")
    flags = ["--bin_file", tokens, "--vocab_size", "400", "--no-use_gpu", "--max_steps", "1", "--learning_rate", "0.01"]
    for val, is_copy in ((tokens, True), (str(corpus / "val.bin"), False)):
        assert train.main([*flags, "--val_bin_file", val, "--overwrite"]) == 0
        assert ("100.0% of the validation tokens stand word for word" in capsys.readouterr().err) == is_copy


def test_validation_of_one_folder_in_the_training_text_of_another_is_told(make_corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    large, small = make_corpus(Path("large"), 1, 2000), make_corpus(Path("small"), 2)
    ids = np.fromfile(large / "train.bin", "<i2")
    ids[500:600] = np.fromfile(small / "val.bin", "<i2")
    ids.tofile(large / "train.bin")
    stamp = json.loads((large / "metadata.json").read_text())
    stamp["splits"]["train"].update(sha256=sha256_of(large / "train.bin"),
                                    modified_ns=(large / "train.bin").stat().st_mtime_ns)
    (large / "metadata.json").write_text(json.dumps(stamp))
    assert train.main(["--data_dir", "large", "small", "--no-use_gpu", "--max_steps", "1"]) == 0
    assert re.search(r"[\d.]+% of the validation tokens of small stand word for word", capsys.readouterr().err)


@pytest.mark.parametrize(("flags", "widest"), [(["--weight_decay", "0.2"], 10.0), (["--input_noise", "0.2"], 10.0),
                                                ([], 0.001)])
def test_a_run_of_another_recipe_and_a_wide_interval_are_told_nothing(short, corpus, tmp_path, monkeypatch, capsys,
                                                                      flags, widest):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpt.planning.forecast.WIDEST", widest)
    assert train.main(["--data_dir", str(corpus), "--no-use_gpu", "--max_steps", "2", *flags]) == 0
    assert "forecast" not in capsys.readouterr().out
