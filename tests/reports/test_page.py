"""The report: what stands in its data, that nothing of a run can leave it, and that a browser draws it."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import plot
from common.errors import Exit, UserError
from reports.page import PROGRAMS

HOSTILE = "</script><script>document.title = 'taken'</script><!-- \u2028 {{data}} \ud800 <img src=x onerror=alert(1)>"
NOW = 1_800_000_000.0


@pytest.fixture
def out(tmp_path):
    """A function: an output folder of 60 logged steps, 3 validations, 2 samples, a start that was killed, and one that
    ended so."""

    def make(name: str = "out", how: str | None = "finished", age: float = 0, total: int = 60) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        lines = [{"step": step, "time": NOW - age - 60 + step, "loss": 5 - step / 60, "lr": 1e-3, "grad_norm": 1.0,
                  "tokens": 1000 * step, "seconds": 0.5, "memory_bytes": 2**30, "gpu": "H200"} for step in range(1, 61)]
        lines += [{"step": step, "val_loss": 6 - step / 60, "bits_per_byte": 2 - step / 180} for step in (20, 40, 60)]
        lines += [{"step": 30, "sample": HOSTILE}, {"step": 60, "sample": "fine"}, {"step": 50, "advice": HOSTILE}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 61, "lo')
        plan = {"step_seconds": 0.25, "seconds": 20.0, "memory_bytes": 2**30, "disk_bytes": 10, "checkpoint_bytes": 5,
                "tokens_per_step": 1000, "parameters": 1000, "passes": 1.5}
        start = {"event": "start", "time": NOW - 100, "step": 0, "total_steps": total, "plan": plan,
                 "machine": {"device": "H200", "torch": "2.13", "ram_bytes": 2**34}, "lines": ["a plan"],
                 "warnings": ["few tokens"], "reasons": {"lr_schedule": "as usual"},
                 "flags": {"given": {"data_dir": ["/home/ann/secret/data"], "compile": True}, "decided": {"lr": 1}}}
        rows = [start, {**start, "time": NOW - 30, "step": 25}]
        rows += [{"event": "end", "time": NOW, "step": 60, "how": how, "peak_memory_bytes": 2**31}] if how else []
        (folder / "starts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "e')
        return folder

    return make


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """A function: the page that plot.py --html writes of some folders, and the data within."""
    monkeypatch.setattr("reports.page.time.time", lambda: NOW + 5)

    def make(*words) -> tuple[str, dict]:
        path = tmp_path / "report.html"
        assert plot.main([*map(str, words), "--html", str(path)]) == 0
        page = path.read_text(encoding="utf-8")
        found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        assert len(found) == 1
        return page, json.loads(found[0])

    return make


# ---------------------------------------------------------------- what it says


def test_the_data_are_what_the_run_recorded(out, report):
    _, data = report(out())
    run = data["runs"][0]
    assert run["state"] == {"step": 60, "total": 60, "word": "finished", "kind": "good"}
    assert run["figures"][0] == ["best validation loss", "5.0000",
                                 "at step 60: perplexity 148.41, 1.6667 bits per byte"]
    assert [sample["step"] for sample in run["samples"]["shown"]] == [30, 60]
    said = [(found["step"], found["text"][:10]) for found in run["warnings"]]
    assert said == [(None, "few tokens"), (50, HOSTILE[:10])]
    assert sum(run["curves"]["loss"]["x"]) == 60
    assert run["curves"]["val"]["y"] == [5.6667, 5.3333, 5]
    assert ["device", "H200"] in run["machine"]
    assert ["RAM", "16.0 GiB"] in run["machine"]


def test_the_plan_stands_beside_what_was_measured(out, report):
    _, data = report(out())
    rows = {row["name"]: (row["planned"], row["measured"]) for row in data["runs"][0]["plan"]}
    assert rows["a step"] == ("250 ms", "500 ms")
    assert rows["tokens per second"] == ("4,000", "2,000")
    assert rows["memory"] == ("1.0 GiB", "2.0 GiB")
    assert rows["the whole run"] == ("20 s", "1 min 39 s"), "69 s to the last line before the kill, then 30 s"


def test_starts_say_from_where_to_where_and_how_they_ended(out, report):
    _, data = report(out())
    assert [(row["from"], row["to"], row["how"]) for row in data["runs"][0]["starts"]] == [
        (0, 25, "ended without a word; the next start went on from step 25"), (25, 60, "finished")]


@pytest.mark.parametrize(("how", "age", "total", "word", "kind"), [
    ("stopped by SIGINT", 0, 60, "finished", "good"), (None, 10_000, 60, "finished", "good"),
    ("stopped by SIGINT", 0, 90, "stopped by SIGINT", "bad"), (None, 0, 90, "running", "live"),
    (None, 10_000, 90, "not finished", "bad"), ("--patience", 0, 90, "ended by --patience", "good"),
    ("the disk is gone", 0, 90, "ended by an error: the disk is gone", "bad")])
def test_the_state_of_a_run(out, report, how, age, total, word, kind):
    state = report(out(how=how, age=age, total=total))[1]["runs"][0]["state"]
    assert (state["word"], state["kind"], state["total"]) == (word, kind, total)


def test_absolute_paths_tell_nothing_of_a_user(out, report):
    page, data = report(out())
    assert "secret" not in page
    assert data["runs"][0]["command"] == "python train.py --data_dir data --compile"


def test_a_run_without_anything_but_figures_has_a_page(out, report):
    folder = out()
    (folder / "starts.jsonl").unlink()
    _, data = report(folder / "metrics.jsonl")
    run = data["runs"][0]
    assert run["machine"] == [["device", "H200"]]
    assert run["plan"] == run["starts"] == run["settings"] == run["checkpoints"] == []


@pytest.mark.parametrize("rows", ["[1]\n", '{"event": "start"}\n', '{"event": "start", "plan": 1, "flags": [], '
                                  '"machine": null, "time": "x", "step": {}, "warnings": "x"}\n', "\0\n", "[" * 10_000])
def test_hostile_starts_are_left_out(out, report, rows):
    folder = out()
    (folder / "starts.jsonl").write_text(rows)
    (folder / "evaluation.json").write_text('{"results": [1, {"a": null}, {"a": {"b": 1}}]}')
    run = report(folder)[1]["runs"][0]
    assert run["state"]["step"] == 60
    assert run["evaluations"][0]["rows"] == [["n/a"], ["{'b': 1}"]]


def test_before_the_first_logged_step_there_is_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no logged step yet") as caught:
        plot.main([str(tmp_path), "--html", str(tmp_path / "r.html")])
    assert caught.value.code == Exit.DATA
    assert not (tmp_path / "r.html").exists()


# ---------------------------------------------------------------- that it is closed


def test_no_text_of_a_run_can_end_the_element_it_is_in(out, report):
    page, data = report(out(), "--title", HOSTILE)
    assert page.count("</script>") == 2
    assert page.count("<script") == 2
    assert "<img" not in page
    assert data["runs"][0]["samples"]["shown"][0]["text"] == HOSTILE.replace("\ud800", "\ufffd")


def test_the_page_loads_nothing_and_allows_its_own_program_alone(out, report):
    page, _ = report(out())
    without_data = re.sub(r'id="data">.*?</script>', "", page, flags=re.DOTALL)
    assert set(re.findall(r"\b(?:src|href)\s*=\s*\"?([^\"\s>]+)", without_data)) == {"data:,"}
    assert re.findall(r"https?://[^\s\"']+", without_data) == ["http://www.w3.org/2000/svg"]
    for element in ("script", "style"):
        text = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src &#x27;sha256-{digest}&#x27;" in page


def test_programs_write_text_never_markup():
    for name in PROGRAMS:
        program = (Path(plot.__file__).parent / "reports" / name).read_text()
        assert program.isascii()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", program)
        assert not re.search(r"fetch|XMLHttp|import\(|WebSocket|sendBeacon", program)


@pytest.mark.parametrize("num", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_logged_steps_make_a_small_page(tmp_path, report, num):
    lines = [f'{{"step": {2 * step}, "loss": {3 + (step * 7919 % 1000) / 1000}, "lr": 1e-3, '
             f'"grad_norm": 1.{step % 97}, "tokens": {1000 * step}, "seconds": 0.{1 + step % 8}}}\n'
             for step in range(1, num + 1)]
    lines[14_320] = '{"step": 28642, "loss": 99.5, "tokens": 14321000, "seconds": 0.5}\n'
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    page, data = report(tmp_path)
    assert len(page) < 400_000
    assert 99.5 in data["runs"][0]["curves"]["loss"]["y"]
    assert data["runs"][0]["curves"]["loss"]["n"] == num


# ---------------------------------------------------------------- the flag


def test_only_the_page_is_written_unless_a_picture_is_requested(out, report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report(out())
    assert not (tmp_path / "plot.png").exists()


def test_losses_are_those_of_the_flags(out, report):
    _, data = report(out(), out("other"), "--y", "bits", "--x", "tokens", "--log_y", "--y_limits", "1,2", "--panels",
                     "loss,speed", "--names", "wide,deep")
    assert (data["unit"], data["x"], data["log"], data["limits"]) == ("bits per byte", "tokens", True, [1.0, 2.0])
    assert [run["name"] for run in data["runs"]] == ["wide", "deep"]
    assert data["runs"][0]["curves"]["val"]["y"][0] == pytest.approx(2 - 20 / 180, rel=0.01)
    assert "norm" not in data["runs"][0]["curves"]


# ---------------------------------------------------------------- in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def drawn_by_chromium(path: Path, fragment: str, tmp_path: Path) -> str:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--virtual-time-budget=2000", f"--user-data-dir={tmp_path}/browser", "--window-size=1280,1600"]
    done = subprocess.run([str(CHROMIUM), *flags, "--dump-dom", f"file://{path}#{fragment}"], capture_output=True,
                          text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split('<script type="application/json"')[0]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to draw the page")
def test_a_browser_draws_every_section_and_runs_no_text(out, report, tmp_path):
    report(out())
    page = drawn_by_chromium(tmp_path / "report.html", "from=10&to=30&at=20&sample=0", tmp_path)
    assert page.count('class="curve ') == 6, "loss, smoothed, validation, learning rate, norm, speed"
    for title in ("Samples over time", "Warnings and advice", "Plan and measurement", "Validation", "Starts and stops",
                  "Machine", "Settings"):
        assert f"<h2>{title}</h2>" in page
    assert "&lt;/script&gt;&lt;script&gt;document.title" in page
    assert "<title>taken" not in page
    assert ">step 20<" in page, "the readout"
    assert ">10<" in page, "the axis begins at 10"
    assert ">40<" not in page.split("Samples over time")[0], "and ends at 30"


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to draw the page")
def test_a_run_has_neither_values_nor_marks_where_it_has_not_been(out, report, tmp_path):
    long, short = out("long"), out("short")
    rows = (short / "metrics.jsonl").read_text().splitlines()[:-1]
    (short / "metrics.jsonl").write_text("".join(row + "\n" for row in rows if json.loads(row)["step"] <= 20))
    report(long, short)
    page = drawn_by_chromium(tmp_path / "report.html", "from=30&to=60&at=40", tmp_path)
    read = page.split('class="readout"')[1].split("</section>")[0]
    assert "long: validation" in read
    assert "short" not in read
    assert page.count("<polygon") == 1, "the best of the long run alone"
    assert page.count('class="dot" r="4"') == 6, "of the long run the three losses and the three other curves"
