"""What surrounds a command, variables, folders and streams: it works nevertheless, or says in one line why not."""

import os
import subprocess
import sys

import pytest

from gpt.common.errors import Exit
from tests.helpers.commands import ROOT, run_python

TINY = ["--n_layer", "1", "--n_head", "2", "--n_embd", "16", "--seq_length", "8", "--batch_size", "4", "--no-use_gpu",
        "--max_steps", "2", "--output_dir", "out", "--data_dir", "corpus"]
DOES_NOT_MATTER = {
    "a locale without Unicode": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no home": {"HOME": ""},
    "a home that is not there": {"HOME": "/nowhere"},
    "no folder for temporary files": {"TMPDIR": "/nowhere"},
    "a cache folder that is a file": {"XDG_CACHE_HOME": "corpus/train.bin"},
    "a terminal of no columns": {"COLUMNS": "0"},
    "a terminal of many columns": {"COLUMNS": "many"},
    "a GPU that is not there": {"CUDA_VISIBLE_DEVICES": "99"},
    "a seed of hashes": {"PYTHONHASHSEED": "0"},
    "warnings that are errors": {"PYTHONWARNINGS": "error::UserWarning"},
    "no bytecode": {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/nowhere"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("env", "streams"), [
    *((env, "") for env in DOES_NOT_MATTER.values()),
    *(({}, streams) for streams in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-", "| true", "| head -1")),
], ids=[*DOES_NOT_MATTER, "no input", "no output", "no errors", "no streams", "a closed pipe", "a pipe that closes"])
def test_what_does_not_matter_changes_nothing(corpus_folder, tmp_path, env, streams):
    line = f'"$0" "$@" {streams}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", line, sys.executable, str(ROOT / "train.py"), *TINY], cwd=tmp_path, text=True,
                          capture_output=True, timeout=120, stdin=subprocess.DEVNULL, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out/checkpoint-2/manifest.json").is_file()


@pytest.mark.skipif(os.name != "posix", reason="Windows does not delete a folder in use")
@pytest.mark.parametrize("check", [
    "from gpt.common.errors import require\nguard(lambda argv: require('torch'))",
    f"import runpy\nrunpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"], ids=["require", "train"])
def test_a_current_folder_that_has_been_deleted_is_named_before_torch_is_loaded(check, tmp_path):
    (tmp_path / "gone").mkdir()
    done = run_python(f"import os\nos.rmdir(os.getcwd())\nfrom gpt.common.ending import *\n{check}",
                      cwd=tmp_path / "gone")
    assert done.returncode == Exit.MACHINE
    assert done.stderr == "error: the current folder has been deleted. Go to one that exists: cd ~\n"
