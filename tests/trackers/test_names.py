"""Which trackers a command requests, and what it says where a package is missing."""

import importlib.util

import pytest

import train
from common.errors import Exit, UserError
from trackers.libraries import LIBRARIES
from trackers.names import requested_trackers, require_packages


def requested(*flags: str) -> list[str]:
    return requested_trackers(train.read_flags(flags).output)


def test_the_flag_takes_several_names_and_may_be_repeated():
    assert requested() == []
    assert requested("--tracker", "wandb") == ["wandb"]
    assert requested("--tracker", "wandb", "tensorboard", "--tracker", "trackio") == ["wandb", "tensorboard", "trackio"]
    assert requested("--tracker", "tensorboard", "--tracker", "tensorboard") == ["tensorboard"]
    assert requested("--tensorboard", "--tracker", "wandb", "tensorboard") == ["tensorboard", "wandb"]
    assert requested("--tracker", *LIBRARIES) == list(LIBRARIES)


def test_none_stands_alone():
    assert requested("--tracker", "none") == []
    with pytest.raises(UserError, match="--tracker none: not with the names of trackers"):
        requested("--tracker", "none", "wandb")


def test_a_run_goes_on_with_its_trackers_unless_others_are_named(tmp_path):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    for name in ("manifest.json", "trainer_state.json"):
        (folder / name).write_text("{}")
    for recorded, names in (("tensorboard = true", ["tensorboard"]), ('tracker = "wandb"', ["wandb"]),
                            ('tracker = ["wandb", "tensorboard"]', ["wandb", "tensorboard"])):
        (tmp_path / "config.toml").write_text(recorded)
        assert requested("--resume_from", str(tmp_path)) == names
        assert requested("--resume_from", str(tmp_path), "--tracker", "none") == []
        assert requested("--resume_from", str(tmp_path), "--tracker", "trackio") == ["trackio"]


def test_another_name_ends_the_command_with_the_list():
    with pytest.raises(UserError, match="must be one of tensorboard, wandb, trackio, none") as raised:
        requested("--tracker", "comet")
    assert raised.value.code == Exit.FLAGS


def test_a_missing_package_ends_the_command_with_the_line_that_installs_it(tmp_path, monkeypatch):
    (tmp_path / "no_such_tracker").mkdir()  # a folder that a run of wandb leaves in the current one looks like this
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("no_such_tracker"), "a folder without files can be imported"
    require_packages(["json"])
    with pytest.raises(UserError, match=r"no_such_tracker: not installed\. Run: \S+ -m pip install "
                                        r"no_such_tracker, or give --tracker none\.$") as raised:
        require_packages(["json", "no_such_tracker"])
    assert raised.value.code == Exit.MACHINE
