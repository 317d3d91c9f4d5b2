"""What a run recorded of its flags is found where --resume_from points, in the order it is promised."""

import json
import shutil

import pytest

from gpt.checkpoint import recorded
from gpt.common.config import Layer, write_toml
from gpt.common.errors import Exit
from tests.helpers.refusals import refused


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags_for(**asked: str) -> Layer:
    found = recorded.recorded_flags(asked)
    assert found
    return found


def checkpoint(folder, step: int, **state):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps(state))
    return path


def run_config(folder, **given):
    write_toml(folder / "config.toml", Layer("", given, {"n_layer": 2}), "", {})


@pytest.mark.parametrize("path", ["runs/a", "runs/a/checkpoint-5", "runs/a/best", "runs/a/last", "runs/a/"])
def test_a_run_is_found_by_its_folder_or_one_of_its_checkpoints_and_goes_on_there(place, path):
    checkpoint(place / "runs/a", 5)
    run_config(place / "runs/a", data_dir="d")
    found = flags_for(resume_from=path)
    assert found.given == {"data_dir": "d"}
    assert found.decided == {"n_layer": 2, "output_dir": "runs/a"}
    assert found.source == "runs/a/config.toml"


def test_a_link_to_a_checkpoint_means_its_run_and_a_checkpoint_that_is_one_the_run_that_holds_the_link(place):
    (place / "latest").symlink_to(checkpoint(place / "runs/a", 5))
    run_config(place / "runs/a", data_dir="d")
    (place / "runs/a/checkpoint-7").symlink_to(checkpoint(place / "another disk", 7))
    assert flags_for(resume_from="latest").decided["output_dir"] == str(place / "runs/a")
    assert flags_for(resume_from="runs/a/checkpoint-7").decided["output_dir"] == "runs/a"


def test_paths_of_a_run_that_began_in_another_folder_are_named_from_here(place, monkeypatch):
    checkpoint(place / "runs/a", 5)
    (place / "tokens/here").mkdir(parents=True)
    run_config(place / "runs/a", data_dir=["tokens:0.7", "gone"], tokenizer_file="tokens", teacher="hf://a/b")
    monkeypatch.chdir(place / "tokens/here")
    assert flags_for(resume_from="../../runs/a").given == {
        "data_dir": [f"{place}/tokens:0.7", "gone"], "tokenizer_file": f"{place}/tokens", "teacher": "hf://a/b"}


@pytest.mark.parametrize(("at", "here", "named", "teacher"), [
    ("pa/out", "pb", "../pa/out", "{place}/pa/base"), ("pa/runs/out", "pb", "../pa/runs/out", "{place}/pa/base"),
    ("pb/out", "pb", "out", "base"), ("pb/out", "pb", "./out/", "base"), ("pb/runs/out", "pb", "runs/out", "base"),
    ("big/out", "pb", "../big/out", "base"), ("pa/out", ".", "pa/out", "{place}/pa/base"),
    ("pa/out", "pa/out", ".", "{place}/pa/base")])
def test_files_beside_a_run_count_before_those_of_the_current_folder(place, monkeypatch, at, here, named, teacher):
    for folder in ("pa", "pb", "pb/runs", "."):
        (place / folder / "base").mkdir(parents=True)
    shutil.rmtree(place / "base")
    checkpoint(place / at, 5)
    run_config(place / at, teacher="base", data_dir=["base:0.5", "gone"])
    monkeypatch.chdir(place / here)
    there = teacher.format(place=place)
    assert flags_for(resume_from=named).given == {"teacher": there, "data_dir": [f"{there}:0.5", "gone"]}


def test_files_beside_a_mirror_count_after_those_of_the_current_folder(place, monkeypatch):
    checkpoint(place / "backup/out", 5)
    run_config(place / "backup/out", data_dir="data", mirror_to=str(place / "backup/out"))
    for folder in ("backup/data", "here/data"):
        (place / folder).mkdir(parents=True)
    monkeypatch.chdir(place / "here")
    assert flags_for(resume_from="../backup/out").given["data_dir"] == "data"
    shutil.rmtree(place / "here/data")
    assert flags_for(resume_from="../backup/out").given["data_dir"] == f"{place}/backup/data"


def test_a_new_run_records_nothing_to_take(place):
    (place / "out").mkdir()
    run_config(place / "out", data_dir="d")  # it died before its first checkpoint
    assert recorded.recorded_flags({}) is None
    assert recorded.recorded_flags({"resume_from": "auto"}) is None
    assert flags_for(resume_from="out").values == {"data_dir": "d", "n_layer": 2, "output_dir": "out"}
    assert recorded.recorded_flags({"resume_from": "none"}) is None


def test_weights_to_begin_at_are_not_taken_again(place):
    checkpoint(place / "out", 5)
    run_config(place / "out", init_from="gpt2", epochs=3)
    assert flags_for(resume_from="out").given == {"epochs": 3}


@pytest.mark.parametrize(("given", "is_kept"), [
    ("base", True), ("base/checkpoint-5", True), ("base/best", True), ("base/checkpoint-9", False), ("other", False)])
def test_a_folder_still_means_the_teacher_that_it_meant(place, given, is_kept):
    checkpoint(place / "base", 5)
    checkpoint(place / "base", 9)  # a newer one
    checkpoint(place / "out", 5)
    run_config(place / "out", teacher="base/checkpoint-5")
    assert ("teacher" in flags_for(resume_from="out", teacher=given).excludes) == is_kept
    shutil.rmtree(place / "base/checkpoint-5")
    assert "teacher" not in flags_for(resume_from="out", teacher=given).excludes


def test_a_checkpoint_that_was_copied_away_is_enough(place):
    flags = {"given": {"data_dir": "d"}, "decided": {"n_layer": 4}}
    checkpoint(place / "copies", 5, flags=flags)
    for path, more in (("copies/checkpoint-5", {}), ("copies", {"output_dir": "copies"})):
        found = flags_for(resume_from=path)
        assert (found.given, found.decided) == (flags["given"], flags["decided"] | more)
        assert found.source == "copies/checkpoint-5"


def test_the_newest_checkpoint_whose_state_can_be_read_counts(place):
    checkpoint(place / "out", 5, flags={"given": {}, "decided": {"n_layer": 4}})
    (checkpoint(place / "out", 12) / "trainer_state.json").write_text("{")
    (checkpoint(place / "out", 13) / "manifest.json").unlink()
    assert flags_for(resume_from="auto").decided == {"n_layer": 4}


def test_a_record_sets_no_flag_of_one_call(place):
    checkpoint(place / "got/a", 5, flags={"given": {"overwrite": True}, "decided": {"output_dir": "mine"}})
    found = recorded.recorded_flags({"resume_from": "got/a"}, ["overwrite", "output_dir"])
    assert found is not None
    assert found.values == {"output_dir": "got/a"}
    run_config(place / "got/a", output_dir="mine")
    with refused(r"got/a/config\.toml sets output_dir", Exit.FLAGS):
        recorded.recorded_flags({"resume_from": "got/a"}, ["overwrite", "output_dir"])


@pytest.mark.parametrize("state", [{"flags": 3, "model": [], "settings": "x"}, {"flags": {"given": 1}}])
def test_a_state_that_says_nothing_sets_nothing(place, state):
    checkpoint(place / "out", 5, **state)
    assert recorded.recorded_flags({"resume_from": "auto"}) is None


def test_an_emptied_config_leaves_the_flags_to_the_checkpoint_in_its_folder(place):
    checkpoint(place / "runs/a", 5, flags={"given": {}, "decided": {"n_layer": 4}})
    (place / "runs/a/config.toml").touch()
    assert flags_for(resume_from="runs/a").decided == {"n_layer": 4, "output_dir": "runs/a"}


def test_the_mirror_of_another_run_lends_a_new_run_no_flags(place):
    checkpoint(place / "mirror", 6, flags={"given": {"n_layer": 3}, "decided": {}})
    assert recorded.recorded_flags({"mirror_to": "mirror", "output_dir": "new"}) is None
    assert flags_for(mirror_to="mirror", output_dir="new", resume_from="auto").values["n_layer"] == 3
