"""plot.py: curves of what was logged, in characters and as a picture that says what a reader must know."""

import json
import sys
from pathlib import Path

import pytest

import plot
from gpt.common.errors import Exit
from gpt.watching.history import LoggedRun, read_run
from tests.helpers.refusals import refused


@pytest.fixture
def make_run(tmp_path):
    """A function: writes an output folder's metrics.jsonl, 40 logged steps of 1,000 tokens; returns the folder.

    Validation every 10 steps is half a nat above training, is lowest at step 20, and takes so many bits per nat.
    """

    def make(name: str, slope: float = 0.1, extra: str = "", bits_per_nat: float | None = 0.4):
        folder = tmp_path / name
        folder.mkdir()
        lines = []
        for step in range(1, 41):
            loss = 9 - slope * step ** 0.5
            lines.append({"step": step, "loss": loss, "tokens": 1000 * step, "seconds": 0.5, "tokens_per_second": 2e3})
            if step % 10 == 0:
                val_loss = loss + (0.5 if step <= 20 else 2.0)
                lines.append({"step": step, "val_loss": val_loss,
                              "bits_per_byte": bits_per_nat and bits_per_nat * val_loss})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + extra)
        return str(folder)

    return make


def drawing_of(*words: str) -> plot.Drawing:
    args = plot.read_flags(words)
    return plot.drawing_of(args, [read_run(word) for word in args.runs])


# ---------------------------------------------------------------- on the terminal


def test_the_table_has_the_figures_of_each_run_and_all_fits_80_columns(make_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert plot.main([make_run("one"), make_run("two", 0.2), "--text", "--names", "nan,my two"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["step", "loss", "best", "val", "at", "step", "bits/byte", "tok/s", "time", "run"]
    for line, mark, slope, name in ((lines[1], "a", 0.1, "nan"), (lines[2], "b", 0.2, "my two")):
        best = 9.5 - slope * 20 ** 0.5
        assert line.split(maxsplit=9) == [
            mark, "40", f"{9 - slope * 40 ** 0.5:.4f}", f"{best:.4f}", "20", f"{0.4 * best:.4f}", "2,000", "20", "s",
            name]


HOSTILE = ['{"step": 1, "loss": 1' + "0" * 400 + "}", '{"step": 7, "loss": 1e99}', '{"step": 0, "loss": 0}',
           '{"step": 4611686018427387904, "loss": 1e-99, "tokens": 1e99, "seconds": 5e-324, "val_loss": -1e99}',
           '{"step": 3, "val_loss": 2.0, "bits_per_byte": 1e99}', '{"step": 3}']


@pytest.mark.parametrize("x", ["steps", "tokens", "hours"])
def test_hostile_figures_are_drawn(tmp_path, x):
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(HOSTILE))
    assert plot.main([str(path), "--text", "--x", x]) == 0
    pytest.importorskip("matplotlib")
    assert plot.main([str(path), "--x", x, "--output", str(tmp_path / "a.svg")]) == 0


# ---------------------------------------------------------------- units and axes


def test_runs_with_other_tokens_are_compared_in_bits_per_byte_alone(make_run, capsys):
    runs = [make_run("one"), make_run("two", bits_per_nat=0.3)]
    for words, unit, said in (([runs[0]], "nats per token", ""), ([*runs, "--y", "bits"], "bits per byte", ""),
                              (runs, "nats per token", "cannot be compared. Give --y bits")):
        assert plot.main([*words, "--text"]) == 0
        printed = capsys.readouterr()
        assert f"loss in {unit}" in printed.out
        assert said in printed.err
        assert bool(said) == bool(printed.err)
    in_bits = drawing_of(runs[0], "--y", "bits").runs[0]["val_loss"]
    assert in_bits.ys[0] == pytest.approx(0.4 * (9.5 - 0.1 * 10 ** 0.5))
    without = make_run("three", bits_per_nat=None)
    with refused("has no line with bits_per_byte. Give --y nats", Exit.DATA):
        plot.main([without, "--y", "bits"])


def test_a_figure_is_placed_by_its_step_on_every_axis(make_run):
    run = make_run("one", extra='{"step": 50, "tokens": 60000, "seconds": 2.0}\n{"step": 45, "val_loss": 9.0}\n')
    for x, label, expected in (("steps", "step", (10, 45)), ("tokens", "tokens", (10_000, 50_000)),
                               ("hours", "hours of training", (5 / 3600, 30 / 3600))):
        drawn = drawing_of(run, "--x", x)
        assert drawn.x_label == label
        xs = drawn.runs[0]["val_loss"].xs
        assert (xs[0], xs[-1]) == pytest.approx(expected)


# ---------------------------------------------------------------- the picture


def test_training_and_validation_share_axes_and_runs_are_told_apart_without_colour(make_run):
    pytest.importorskip("matplotlib")
    runs = [make_run("a"), make_run("b", 0.2), make_run("c", 0.3)]
    args = plot.read_flags(runs)
    named = [LoggedRun(name, read_run(run).curves, 0.4) for name, run in zip(("x", "x", "y"), runs, strict=True)]
    (axes,) = plot.figure_of(plot.drawing_of(args, named)).axes
    best = 9.5 - 0.15 * 20 ** 0.5  # the mean of both seeds
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:2] == ["x, training", f"x, validation, best: {best:.3f} at step 20"]
    assert list(axes.lines[1].get_xdata()) == [10, 20, 30, 40]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss, nats per token")
    styles = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert styles[::2] == styles[1::2]
    assert styles[0][1] != styles[2][1]
    _, band = (bands.get_paths()[0].vertices for bands in axes.collections)  # of x alone: training, validation
    error = 0.05 * 20 ** 0.5  # half of what the two differ by
    assert sorted({float(y) for x, y in band if x == 20}) == pytest.approx([best - error, best + error])
    assert axes.get_legend().get_title().get_text() == "mean of seeds; band: one standard error"
    shades = [sum(share * int(color[at:at + 2], 16) for share, at in ((0.299, 1), (0.587, 3), (0.114, 5)))
              for color in plot.COLORS[:3]]
    assert min(abs(a - b) for a in shades for b in shades if a != b) > 30


def test_the_runs_of_bench_are_drawn_by_recipe_and_their_seeds_stand_apart_in_the_table(make_run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    runs = [make_run("ours-1"), make_run("ours-2", 0.2), make_run("a-3")]
    for run in runs[:2]:
        Path(run, "recipe.json").touch()
    plot.main([*runs, "--output", str(tmp_path / "a.svg")])
    assert capsys.readouterr().out.endswith(f"a.svg: {tmp_path}/ours, {runs[2]}\n")
    plot.main([*runs, "--text"])
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:4]] == runs


@pytest.mark.parametrize(("name", "head"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_picture_is_written_whole_by_its_ending_and_is_the_same_file_again(make_run, tmp_path, name, head):
    pytest.importorskip("matplotlib")
    words = [make_run("one"), make_run("_two", 0.2, '{"step": 1}\n'), "--output", str(tmp_path / name)]
    assert plot.main(words) == 0
    content = (tmp_path / name).read_bytes()
    assert content.startswith(head)
    assert len(content) > 8000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["one", "_two", name])
    assert plot.main(words) == 0
    assert (tmp_path / name).read_bytes() == content


def test_without_matplotlib_one_line_names_it(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused(r"needs the package matplotlib.*-m pip install matplotlib", Exit.MACHINE):
        plot.main([make_run("one"), "--output", str(tmp_path / "a.png")])


@pytest.mark.parametrize("flags", [["--outptu", "a.png"], ["x"] * 27, ["--names", "a,b"], ["a", "b", "--names", "a"],
                                   ["--x", "epochs"], ["--y", "loss"], ["--output", "x.html"]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with refused(code=Exit.FLAGS):
        plot.read_flags(flags)
