"""A notebook that is really executed: whole lines no wider than its 80 columns, and a stop button that saves.

    python -m pip install nbclient ipykernel
    python -m pytest -m slow tests/system/test_notebook.py
"""

import re
import sys
import time
from pathlib import Path

import pytest

from checkpoint.find import newest_sound
from tests.helpers.commands import ROOT
from tests.helpers.training import TINY, metrics_of

pytestmark = pytest.mark.slow
COLUMNS = 80


def needed(name: str):
    return pytest.importorskip(name, reason="run: python -m pip install nbclient ipykernel")


def command_of(corpus: Path, out: Path, *flags: str) -> str:
    """A cell that trains."""
    words = [sys.executable, ROOT / "train.py", "--data_dir", corpus, "--output_dir", out, *TINY, "--no-use_gpu",
             "--sample_interval", "0", *flags]
    return "!" + " ".join(map(str, words))


def test_an_executed_cell_shows_whole_lines_one_for_each_logged_step(corpus, tmp_path):
    needed("ipykernel")
    nbclient, nbformat = needed("nbclient"), needed("nbformat")
    cell = command_of(corpus, tmp_path / "out", "--max_steps", "12", "--log_interval", "2")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = "".join(output["text"] for output in notebook.cells[0].outputs)
    assert "\r" not in shown.replace("\r\n", "\n"), "nothing is drawn twice"
    assert "\x1b" not in shown
    steps = re.findall(r"^step (\d+)/12 \| .* left \| loss [\d.]+ \| [\d,]+ tok/s \| mfu n/a .*$", shown, re.MULTILINE)
    assert list(map(int, steps)) == [line["step"] for line in metrics_of(tmp_path / "out") if "loss" in line]
    wide = [line for line in shown.splitlines() if len(line) > COLUMNS]
    assert [line for line in wide if "python " not in line and str(tmp_path) not in line] == []


def test_the_stop_button_saves_what_can_be_saved_in_half_a_second(corpus, tmp_path):
    needed("ipykernel")
    manager, client = needed("jupyter_client.manager").start_new_kernel(kernel_name="python3")
    shown, deadline = "", time.monotonic() + 240
    try:
        client.execute(command_of(corpus, tmp_path / "out", "--max_steps", "1000000", "--epochs", "1000000",
                                  "--log_interval", "5", "--checkpoint_interval", "1000000", "--eval_interval",
                                  "1000000", "--checkpoint_every_minutes", "0"))
        is_stopped = False
        while not (is_stopped and "loses" in shown):
            assert time.monotonic() < deadline, shown
            message = client.get_iopub_msg(timeout=120)
            if message["msg_type"] == "stream":
                shown += message["content"]["text"]
            if shown.count(" left") > 20 and not is_stopped:
                manager.interrupt_kernel()
                is_stopped = True
        time.sleep(2)
    finally:
        manager.shutdown_kernel(now=True)
    found = newest_sound(tmp_path / "out", print)
    assert found, shown
    assert found[1]["step"] >= 100
