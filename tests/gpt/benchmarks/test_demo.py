"""demo.py: it installs into the environment it runs in, or into .venv, and what fails ends it. (Its three commands run
in tests/system/test_docs.py.)"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import train
from gpt.benchmarks import demo


class Calls(list[list[str]]):
    """Command lines, the folders they are run in, and the exit codes of those in which a word stands."""

    codes: dict[str, int]
    folders: list[Path | None]


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The commands that the demo starts, none of which is run; what they answer can be set by a word of theirs."""
    found = Calls()
    found.codes = codes = {}
    found.folders = []

    def run(words, cwd=None, **_):
        found.append([str(word) for word in words])
        found.folders.append(cwd)
        code = next((code for word, code in codes.items() if word in (*found[-1], Path(found[-1][1]).name)), 0)
        return SimpleNamespace(returncode=code, wait=lambda: code)

    monkeypatch.setattr(demo.subprocess, "run", run)
    monkeypatch.setattr(demo.subprocess, "Popen", run)
    monkeypatch.setattr(demo, "HERE", tmp_path)
    codes[demo.HAS_PACKAGES] = 1
    return found


def test_outside_an_environment_one_is_made_and_used(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert demo.main() == 0
    assert calls[1] == [sys.executable, "-m", "venv", "--clear", str(tmp_path / ".venv")]
    python = str(tmp_path / ".venv" / "bin" / "python")
    assert {words[0] for words in calls[2:]} == {python}
    Path(python).parent.mkdir(parents=True)
    Path(python).touch()
    calls.clear()
    assert demo.main() == 0
    assert not any("venv" in words for words in calls)
    calls.codes[demo.HAS_PIP] = 1  # an earlier attempt was interrupted
    demo.main()
    assert any("--clear" in words for words in calls)
    assert [Path(words[1]).name for words in calls[-3:]] == ["pretokenize.py", "train.py", "generate.py"]


def test_with_all_packages_nothing_is_installed_and_a_read_only_folder_stays(calls, monkeypatch, tmp_path):
    """As in an image, whose program belongs to root."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(demo.os, "access", lambda *_: False)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    del calls.codes[demo.HAS_PACKAGES]
    assert demo.main() == 0
    assert [words[1] for words in calls[1:]] == [
        str(tmp_path / name) for name in ("pretokenize.py", "train.py", "generate.py")]
    assert calls.folders == [tmp_path, *[tmp_path / "mine"] * 3]


@pytest.mark.parametrize(("fails", "constraint"), [("show", ["-c", "constraints.txt"]), ("nothing", [])])
def test_only_where_there_is_no_torch_a_release_is_chosen(calls, monkeypatch, tmp_path, fails, constraint):
    monkeypatch.setattr(sys, "prefix", "an environment")
    calls.codes[fails] = 1
    assert demo.main() == 0
    [install] = [words for words in calls if "install" in words]
    assert install == [sys.executable, "-m", "pip", "install", "-q", "-r", str(tmp_path / "requirements.txt"),
                       *[word.replace("constraints", str(tmp_path / "constraints")) for word in constraint]]


SAVES = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(0.2); open('saved', 'x')"


def test_after_ctrl_c_the_command_saves_and_ends_by_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "HERE", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        demo.run_command([sys.executable, "-c", SAVES])
    assert (tmp_path / "saved").exists()


def test_training_has_a_budget_of_time_and_none_of_steps():
    [line] = [line for line in demo.THREE_COMMANDS.splitlines() if "train.py" in line]
    args = train.read_flags(line.split()[2:])
    assert 0 < args.max_minutes < 2
    assert args.max_steps is None


def test_without_pip_nothing_is_installed_and_a_failure_ends_the_demo_with_its_code(calls, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "an environment")
    calls.codes.update({demo.HAS_PIP: 1, "train.py": 5})
    assert demo.main() == 5
    assert not any("install" in words for words in calls)
    assert not any(words[1].endswith("generate.py") for words in calls)
