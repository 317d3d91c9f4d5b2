"""plot.py: curves of what was logged, whatever state the file is in."""

import json
import sys

import pytest

import plot
from common.errors import Exit, UserError


@pytest.fixture
def make_run(tmp_path):
    """A function: writes an output folder's metrics.jsonl, 20 logged steps of 1,000 tokens; returns the folder."""

    def make(name: str, slope: float = 0.1, extra: str = ""):
        folder = tmp_path / name
        folder.mkdir()
        lines = []
        for step in range(5, 101, 5):
            lines.append({"step": step, "loss": 9 - slope * step ** 0.5, "lr": 1e-3 / step, "grad_norm": 1.0,
                          "tokens": 1000 * step, "seconds": 0.5})
            if step % 25 == 0:
                lines.append({"step": step, "val_loss": 9.5 - slope * step ** 0.5, "perplexity": 1.0,
                              "bits_per_byte": 2.0 - step / 1000})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + extra)
        return folder

    return make


def test_the_table_has_the_figures_of_each_run(make_run, capsys):
    assert plot.main([str(make_run("one")), str(make_run("two", 0.2)), "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "step", "loss", "best", "validation", "at", "step", "bits/byte", "lr", "tok/s",
                                "time"]
    for line, mark, loss, val_loss in ((lines[1], "a", "8.0000", "8.5000"), (lines[2], "b", "7.0000", "7.5000")):
        cells = line.split()
        assert cells[0] == mark
        assert cells[2:] == ["100", loss, val_loss, "100", "1.9000", "1.00e-05", "2,000", "50", "s"]


def test_a_chart_has_each_value_in_its_place():
    falling, flat = plot.Series([0, 50, 99], [3.0, 2.0, 1.0]), plot.Series([0, 99], [1.0, 1.0])
    lines = plot.chart("loss", [falling, flat], 10)
    assert lines[1] == "loss"
    assert lines[2] == "3 |a"
    assert lines[2 + plot.CHART_ROWS - 1] == "1 |b        *"
    middle = [number for number, line in enumerate(lines) if line == "  |     a"]
    assert middle in ([2 + 6], [2 + 7])
    assert lines[-1] == "   0  step 99"


def test_one_value_and_none_can_be_drawn():
    assert plot.chart("loss", [plot.Series([7], [2.0])], 10)[2].endswith("a")
    assert plot.chart("loss", [plot.Series([], [])], 10) == []


def test_lines_cut_short_nulls_and_unknown_lines_are_skipped(make_run, capsys):
    extra = ('{"step": 105, "loss": null, "lr": 0.1, "tokens": 105000, "seconds": 0.5}\n[1]\n"x"\n\n{"step": "x"}\n'
             '{"step": 110, "val_loss": NaN}\n{"step": 115, "lo\0\xff')
    assert plot.main([str(make_run("one", extra=extra)), "--text"]) == 0
    cells = capsys.readouterr().out.splitlines()[1].split()
    assert cells[2:6] == ["100", "8.0000", "8.5000", "100"]
    assert cells[7] == "1.00e-01"


def test_speed_is_tokens_of_a_step_by_its_seconds_also_where_steps_were_skipped(tmp_path):
    lines = [{"step": 2, "tokens": 200, "seconds": 0.1}, {"step": 10, "tokens": 1000, "seconds": 0.2},
             {"step": 12, "tokens": 1400, "seconds": None}, {"step": 14, "tokens": 1800, "seconds": 0.5}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = plot.read_run(str(tmp_path / "m.jsonl"))
    assert run.tokens_per_second.steps == [2, 10, 14]
    assert run.tokens_per_second.values == pytest.approx([1000.0, 500.0, 400.0])
    assert run.seconds == pytest.approx(0.2 + 1.6 + 2.0)


def test_a_folder_without_metrics_ends_the_command_with_3(tmp_path):
    for word, why in (("none", "No such file"), (str(tmp_path), "No such file")):
        with pytest.raises(UserError, match=why) as caught:
            plot.main([word, "--text"])
        assert caught.value.code == Exit.DATA
    (tmp_path / "metrics.jsonl").write_text('{"st')
    with pytest.raises(UserError, match="no logged step yet") as caught:
        plot.main([str(tmp_path), "--text"])
    assert caught.value.code == Exit.DATA


def test_without_matplotlib_one_line_names_it_and_text_still_works(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = str(make_run("one"))
    why = r"needs the package matplotlib.*-m pip install matplotlib, or give --text"
    with pytest.raises(UserError, match=why) as caught:
        plot.main([folder, "--output", str(tmp_path / "a.png")])
    assert caught.value.code == Exit.MACHINE
    assert plot.main([folder, "--text"]) == 0


@pytest.mark.parametrize(("name", "head"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_the_picture_is_written_whole(make_run, tmp_path, name, head):
    pytest.importorskip("matplotlib")
    folders = [str(make_run("one")), str(make_run("_two", 0.2, '{"step": 1}\n'))]
    assert plot.main([*folders, "--output", str(tmp_path / name)]) == 0
    content = (tmp_path / name).read_bytes()
    assert content.startswith(head)
    assert len(content) > 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["one", "_two", name])


@pytest.mark.parametrize("flags", [["--output", "a.jpg"], ["--outptu", "a.png"], ["x"] * 27, [""]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with pytest.raises(UserError) as caught:
        plot.read_flags(flags)
    assert caught.value.code == Exit.FLAGS
