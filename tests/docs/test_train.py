"""train.ipynb, executed from top to bottom as a person runs it: on a processor, with a corpus of seconds.

    python -m pip install nbclient ipykernel
    python -m pytest -m "slow or not slow" tests/docs
"""

import importlib
import json
import os
import re
import shutil
import signal
import threading
import time

import pytest

from gpt.checkpoint.find import newest_sound
from gpt.checkpoint.steps import steps_in
from tests.helpers.commands import ROOT
from tests.helpers.training import metrics_of

NOTEBOOK = ROOT / "docs" / "notebooks" / "train.ipynb"
TINY = ("--n_layer 1 --n_head 2 --n_embd 16 --seq_length 16 --batch_size 4 --no-use_gpu --log_interval 20 "
        "--sample_interval 0 --eval_tokens 64")


@pytest.fixture(scope="module")
def nbformat():
    reason = "run: python -m pip install nbclient ipykernel"
    pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    return pytest.importorskip("nbformat", reason=reason)


def filled_in(nbformat, **fields):
    """The notebook with other values in its form."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    settings = next(cell for cell in notebook.cells if "#@title 1." in cell.source)
    for name, value in fields.items():
        settings.source, number = re.subn(rf"^{name} = .+? #@param", lambda _, line=f"{name} = {value!r} #@param": line,
                                          settings.source, flags=re.MULTILINE)
        assert number == 1, name
    return notebook


@pytest.fixture
def fields(tmp_path):
    (tmp_path / "verses.txt").write_text("ROMEO:\nTake me to me, I'll think from the world.\n\n" * 200)
    return {"corpus": str(tmp_path / "verses.txt"), "work_in": str(tmp_path / "machine"), "use_gpu": "auto",
            "keep_in": str(tmp_path / "drive"), "max_minutes": 0, "gpu_cost_per_hour": 2.0, "prompt": "ROMEO:",
            "more_flags": f"{TINY} --max_steps 60"}


def client_of(notebook):
    nbclient = importlib.import_module("nbclient")
    return nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3",
                                   resources={"metadata": {"path": str(NOTEBOOK.parent)}})


def shown(notebook) -> list[str]:
    """The output of each cell, as text."""
    return ["".join(output.get("text", "") or "\n".join(output.get("traceback", [])) or output["data"]["text/plain"]
                    for output in cell.outputs) if cell.cell_type == "code" else "" for cell in notebook.cells]


# ---------------------------------------------------------------- as it is committed


def test_no_outputs_are_committed_and_every_cell_is_a_form_with_a_title():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            assert cell["source"][0].startswith("#@title ")
            lines = [line for line in cell["source"] if line.strip() and not line.startswith("#@")]
            assert len(lines) <= 12, "more than that belongs in cells.py"


def test_the_measuring_cell_names_the_folder_which_may_have_no_validation_tokens():
    assert '"--tokens", place.tokens)' in "".join(
        line for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] for line in cell["source"])


# ---------------------------------------------------------------- executed


@pytest.mark.slow
def test_all_cells_run_from_top_to_bottom(nbformat, fields, tmp_path):
    notebook = filled_in(nbformat, **fields)
    client_of(notebook).execute()
    texts = shown(notebook)
    place = tmp_path / "machine"
    for number, words in enumerate(("", "", "", f"kept in      {tmp_path / 'drive'}/first",
                                    "next: cell 5", "cost: ", "val loss    ", "ROMEO:", "perplexity",
                                    "first-exported", "")):
        assert words in texts[number], texts[number]
    assert len(texts[5].splitlines()) <= 10, texts[5]
    assert 60 in steps_in(place / "out/first")
    assert 60 in steps_in(tmp_path / "drive/first")
    assert (tmp_path / "drive/first-exported/config.json").exists()


@pytest.mark.slow
def test_a_run_is_stopped_the_machine_is_gone_and_run_all_goes_on(nbformat, fields, tmp_path):
    fields["more_flags"] = f"{TINY} --max_steps 30000"
    notebook = filled_in(nbformat, **fields)
    client, is_stopped = client_of(notebook), threading.Event()

    def stop(cell, cell_index):
        def press():
            while not any(" left" in output.get("data", {}).get("text/plain", "") for output in cell.outputs):
                time.sleep(0.1)
            os.kill(client.km.provisioner.pid, signal.SIGINT)  # as the stop button does
            is_stopped.set()

        if "#@title 6." in cell.source:
            threading.Thread(target=press, daemon=True).start()

    client.on_cell_execute = stop
    with pytest.raises(importlib.import_module("nbclient").exceptions.CellExecutionError):
        client.execute()
    trained = shown(notebook)[6]
    assert is_stopped.is_set()
    assert "train.py was stopped. Run this cell again to go on." in trained
    assert "Traceback" not in trained
    kept, stored = newest_sound(tmp_path / "drive/first", print)  # type: ignore[misc]
    step = stored.state.step
    assert f"mirror      {kept.name} is in" in trained

    shutil.rmtree(tmp_path / "machine")
    fields["more_flags"] = f"{TINY} --max_steps {step + 100}"
    again = filled_in(nbformat, **fields)
    client_of(again).execute()
    trained = shown(again)[6]
    assert f"{kept.name} was copied from the mirror" in trained.replace("\n            ", " ")
    rows = [row["step"] for row in metrics_of(tmp_path / "machine/out/first") if "loss" in row]
    assert rows == sorted({1, *range(20, step + 101, 20), step + 100}), "each step once"
