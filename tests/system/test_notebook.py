"""A cell with !python train.py that is really executed: its stop button saves.

    python -m pip install ipykernel
    python -m pytest -m slow tests/system/test_notebook.py
"""

import sys
import time

import pytest

from checkpoint.find import newest_sound
from tests.helpers.commands import ROOT
from tests.helpers.training import TINY

pytestmark = pytest.mark.slow


def test_the_stop_button_saves_what_can_be_saved_in_half_a_second(corpus, tmp_path):
    pytest.importorskip("ipykernel", reason="run: python -m pip install ipykernel")
    manager, client = pytest.importorskip("jupyter_client.manager").start_new_kernel(kernel_name="python3")
    words = [sys.executable, ROOT / "train.py", "--data_dir", corpus, "--output_dir", tmp_path / "out", *TINY,
             "--no-use_gpu", "--sample_interval", "0", "--max_steps", "1000000", "--epochs", "1000000",
             "--log_interval", "5", "--checkpoint_interval", "1000000", "--eval_interval", "1000000",
             "--checkpoint_every_minutes", "0"]
    shown, deadline = "", time.monotonic() + 240
    try:
        client.execute("!" + " ".join(map(str, words)))
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
