"""plot.py: curves of what was logged, in characters and as a picture that says what a reader must know."""

import json
import re
import sys
from dataclasses import replace

import pytest

import plot
from common.errors import Exit, UserError
from watching.history import Curve, XAxis, read_run


@pytest.fixture
def make_run(tmp_path):
    """A function: writes an output folder's metrics.jsonl, 100 logged steps of 1,000 tokens; returns the folder.

    Validation every 25 steps is half a nat above training, is lowest at step 50, and takes so many bits per nat.
    """

    def make(name: str, slope: float = 0.1, extra: str = "", bits_per_nat: float | None = 0.4):
        folder = tmp_path / name
        folder.mkdir()
        lines = []
        for step in range(1, 101):
            loss = 9 - slope * step ** 0.5
            lines.append({"step": step, "loss": loss, "lr": 1e-3 / step, "grad_norm": 1.0, "tokens": 1000 * step,
                          "seconds": 0.5})
            if step % 25 == 0:
                val_loss = loss + (0.5 if step <= 50 else 2.0)
                lines.append({"step": step, "val_loss": val_loss, "perplexity": 1.0,
                              "bits_per_byte": bits_per_nat and bits_per_nat * val_loss})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + extra)
        return str(folder)

    return make


@pytest.fixture
def picture():
    """A function: the figure that plot.py draws with these words."""
    pytest.importorskip("matplotlib.figure")

    def draw(*words: str):
        args = plot.read_flags(words)
        runs = [read_run(word) for word in args.runs]
        names = args.names.split(",") if args.names else [run.name for run in runs]
        runs = [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
        return plot.figure_of(plot.Drawing.of(args, runs), args.panels == "all")

    return draw


def labels_of(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def line_called(axes, label: str):
    return next(line for line in axes.lines if line.get_label().startswith(label))


# ---------------------------------------------------------------- on the terminal


def test_the_table_has_the_figures_of_each_run(make_run, capsys):
    assert plot.main([make_run("one"), make_run("two", 0.2), "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "loss", "best", "val", "at", "step", "bits/byte", "tok/s", "time", "run"]
    for line, mark, loss, best in ((lines[1], "a", 8.0, 9.5 - 50 ** 0.5 / 10), (lines[2], "b", 7.0, 9.5 - 50**0.5 / 5)):
        cells = line.split()
        assert cells[:3] == [mark, "100", f"{loss:.4f}"]
        assert cells[3:8] == [f"{best:.4f}", "50", f"{0.4 * best:.4f}", "2,000", "50"]


def test_everything_on_the_terminal_fits_80_columns(make_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert plot.main([make_run("a"), make_run("b", 0.2), "--text", "--names", "one,two", "--x", "hours"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def drawing_of(training: Curve, validation: Curve, low: float, high: float) -> plot.Drawing:
    lines = plot.Lines(None, training, training, validation, {})  # type: ignore[arg-type] - not read here
    return plot.Drawing([lines], XAxis("steps", "step"), "", (low, high))


def test_a_chart_has_training_and_validation_in_their_places():
    flat, falling, nothing = Curve([0, 99], [1.0, 1.0]), Curve([0, 50, 99], [3.0, 2.0, 1.0]), Curve([], [])
    lines = plot.chart("loss", drawing_of(falling, flat, 1.0, 3.0), 10)
    assert lines[1:3] == ["loss", "3 |a"]
    assert lines[2 + plot.CHART_ROWS - 1] == "1 |A        *"
    assert [number for number, line in enumerate(lines) if line == "  |     a"] in ([2 + 6], [2 + 7])
    assert lines[-1] == "   0  step 99"
    assert plot.chart("loss", drawing_of(falling, flat, 1.0, 2.0), 10)[2] == "2 |^    a"
    assert plot.chart("loss", drawing_of(nothing, nothing, 1.0, 3.0), 10) == []


def test_lines_cut_short_nulls_and_unknown_lines_are_skipped(make_run, capsys):
    extra = ('{"step": 105, "loss": null, "lr": 0.1, "tokens": 105000, "seconds": 0.5}\n[1]\n"x"\n\n{"step": "x"}\n'
             '{"step": 105, "time": 1.5, "sample": "a text"}\n{"step": 105, "advice": "the loss explodes"}\n'
             '{"step": 110, "val_loss": NaN}\n{"step": 115, "lo\0\xff')
    assert plot.main([make_run("one", extra=extra), "--text"]) == 0
    cells = capsys.readouterr().out.splitlines()[1].split()
    assert cells[1:3] == ["100", "8.0000"]


HOSTILE = ['{"step": -5, "loss": 1}', '{"step": 1, "loss": 1' + "0" * 400 + "}", '{"step": 7, "loss": 1e99}',
           '{"step": 4611686018427387904, "loss": 1e-99, "tokens": 1e99, "seconds": 5e-324, "val_loss": -1e99}',
           '{"step": 0, "loss": 0}', '{"step": 3, "val_loss": 2.0, "bits_per_byte": 1e99}', '{"step": 3}']


@pytest.mark.parametrize("line", HOSTILE)
@pytest.mark.parametrize("x", ["steps", "tokens", "hours"])
def test_hostile_figures_are_drawn_or_end_the_command_with_3(tmp_path, capsys, line, x):
    (tmp_path / "m.jsonl").write_text(line)
    words = [str(tmp_path / "m.jsonl"), "--text", "--x", x]
    if (x == "steps" and '"step": -5' not in line) or "tokens" in line:
        assert plot.main(words) == 0
        return
    with pytest.raises(UserError) as caught:
        plot.main(words)
    assert caught.value.code == Exit.DATA
    assert "\n" not in str(caught.value)


def test_a_folder_without_metrics_ends_the_command_with_3(tmp_path):
    for word, why in (("none", "No such file"), (str(tmp_path), "No such file")):
        with pytest.raises(UserError, match=why) as caught:
            plot.main([word, "--text"])
        assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- units


def test_an_axis_that_a_run_has_not_logged_ends_the_command_with_3(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 3, "loss": 2}')
    for x in ("tokens", "hours"):
        with pytest.raises(UserError, match=f"--x {x}: .* has no line with tokens and seconds") as caught:
            plot.main([str(tmp_path / "m.jsonl"), "--text", "--x", x])
        assert caught.value.code == Exit.DATA


def test_runs_with_other_tokens_are_compared_in_bits_per_byte_and_it_is_said(make_run, capsys):
    runs = [make_run("one"), make_run("two", bits_per_nat=0.3)]
    for words, unit, said in (([], "bits per byte", "are drawn in bits per byte"),
                              (["--y", "bits"], "bits per byte", ""), (["--y", "nats"], "nats per token", "cannot be")):
        assert plot.main([*runs, "--text", *words]) == 0
        printed = capsys.readouterr()
        assert f"loss in {unit}" in printed.out
        assert said in printed.err
        assert bool(said) == bool(printed.err)
    assert plot.main([runs[0], "--text"]) == 0
    assert "loss in nats per token" in capsys.readouterr().out


def test_bits_that_were_never_recorded_end_the_command_with_3(make_run):
    with pytest.raises(UserError, match=r"--y bits: .*one has no validation with bits_per_byte") as caught:
        plot.main([make_run("one", bits_per_nat=None), "--text", "--y", "bits"])
    assert caught.value.code == Exit.DATA


# ---------------------------------------------------------------- the picture


def test_training_and_validation_share_axes_and_the_best_point_is_marked(make_run, picture):
    large, *small = picture(make_run("one")).axes
    best = 9.5 - 50 ** 0.5 / 10
    assert labels_of(large) == ["training, smoothed", "validation", f"best: {best:.3f} at step 50"]
    assert list(line_called(large, "validation").get_xdata()) == [25, 50, 75, 100]
    star = line_called(large, "best")
    assert (star.get_marker(), list(star.get_xdata()), list(star.get_ydata())) == ("*", [50.0], [pytest.approx(best)])
    assert large.get_ylabel() == "loss, nats per token"
    assert large.get_xlabel() == "step"
    assert [axes.get_title() for axes in small] == ["learning rate", "gradient norm", "tokens per second"]
    raw, smooth = large.lines[:2]
    assert raw.get_alpha() < 0.5
    assert len(raw.get_ydata()) == len(smooth.get_ydata()) == 100


def test_the_folders_of_a_mixture_have_validation_curves_of_their_own(make_run, picture, capsys):
    rows = [{"step": 50 * n, "val_loss/prose": 7.0 + n, "val_loss/code": 6.0, "bits_per_byte/prose": 2.0 + n}
            for n in (1, 2)]
    run = make_run("one", extra="".join(json.dumps(row) + "\n" for row in rows))
    large = picture(run).axes[0]
    assert labels_of(large)[2:4] == ["validation, prose", "validation, code"]
    assert list(line_called(large, "validation, prose").get_ydata()) == [8.0, 9.0]
    assert large.get_ylim()[0] < 6.0
    bits = picture(run, "--y", "bits").axes[0]
    assert list(line_called(bits, "validation, prose").get_ydata()) == [3.0, 4.0]
    capsys.readouterr()
    assert plot.main([run, "--text"]) == 0
    assert "a  at step 100: prose 9.0000, code 6.0000\n" in capsys.readouterr().out
    several = picture(run, make_run("two")).axes[0]
    assert not any("prose" in label for label in labels_of(several))


def test_several_runs_have_names_and_are_told_apart_without_colour(make_run, picture):
    (axes,) = picture(make_run("a"), make_run("b", 0.2), make_run("c", 0.3), "--names", "base,wide,deep", "--panels",
                      "loss").axes
    assert [label.split(",")[0] for label in labels_of(axes)] == ["base", "wide", "deep"]
    drawn = [line_called(axes, name) for name in ("base", "wide", "deep")]
    assert len({(line.get_linestyle(), line.get_marker()) for line in drawn}) == 3


def test_runs_of_one_name_are_drawn_as_their_mean_with_a_band(make_run, picture):
    (axes,) = picture(make_run("a"), make_run("b", 0.2), make_run("c", 0.3), "--names", "one,one,two", "--panels",
                      "loss").axes
    assert labels_of(axes) == ["one, best: 8.439 at step 50", "two, best: 7.379 at step 50"]
    assert list(line_called(axes, "one").get_ydata()) == pytest.approx(
        [9.5 - 0.15 * step**0.5 + (1.5 if step > 50 else 0) for step in (25, 50, 75, 100)])
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(11 - 0.1 * 75**0.5)


def test_the_colours_of_the_first_runs_are_apart_in_grey():
    shades = [sum(share * int(color[at:at + 2], 16) for share, at in ((0.299, 1), (0.587, 3), (0.114, 5)))
              for color in plot.COLORS[:3]]
    assert min(abs(a - b) for a in shades for b in shades if a != b) > 30


def test_what_lies_above_the_axis_is_said(make_run):
    runs = [read_run(make_run("one", extra='{"step": 101, "loss": 50.5}\n'))]
    said = plot.Drawing.of(plot.read_flags(["one"]), runs).what_is_left_out()
    assert re.fullmatch(r"; the loss axis ends at [89]\.\d*, losses went up to 50\.5", said)


@pytest.mark.parametrize("line", [*HOSTILE[2:4], "\n".join(HOSTILE)], ids=["large", "extreme", "all"])
def test_hostile_figures_make_a_picture_too(tmp_path, picture, line):
    (tmp_path / "m.jsonl").write_text(line + '\n{"step": 2}')
    picture(str(tmp_path / "m.jsonl")).canvas.draw()


@pytest.mark.parametrize(("name", "head"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_picture_is_written_whole_by_its_ending(make_run, tmp_path, name, head):
    pytest.importorskip("matplotlib")
    folders = [make_run("one"), make_run("_two", 0.2, '{"step": 1}\n'), "--panels", "loss"]
    assert plot.main([*folders, "--output", str(tmp_path / name)]) == 0
    content = (tmp_path / name).read_bytes()
    assert content.startswith(head)
    assert len(content) > 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["one", "_two", name])
    if name == "a.svg":
        assert b">nats per token<" in content.replace(b"loss, ", b"")  # letters are letters
    if name == "a.png":
        assert plot.main([*folders, "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes() == content


def test_without_matplotlib_one_line_names_it_and_text_still_works(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = make_run("one")
    why = r"needs the package matplotlib.*-m pip install matplotlib, or give --text"
    with pytest.raises(UserError, match=why) as caught:
        plot.main([folder, "--output", str(tmp_path / "a.png")])
    assert caught.value.code == Exit.MACHINE
    assert plot.main([folder, "--text"]) == 0


@pytest.mark.parametrize("flags", [
    ["--output", "a.jpg"], ["--outptu", "a.png"], ["x"] * 27, [""], ["--names", "a,b"], ["a", "b", "--names", "a"],
    ["--panels", "los"], ["--x", "epochs"], ["--y", "loss"],
    ["--output", "x.htm"], ["--html", "x.htm"]], ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with pytest.raises(UserError) as caught:
        plot.read_flags(flags)
    assert caught.value.code == Exit.FLAGS


# ---------------------------------------------------------------- smoothing and limits


def test_smoothing_leaves_a_line_a_line_does_not_lag_and_does_not_spread_a_lone_spike():
    line = [float(i) for i in range(41)]
    assert plot.smoothed(line, 0.6)[20] == pytest.approx(20.0)
    assert plot.smoothed([7.0] * 5, 0.9) == pytest.approx([7.0] * 5)
    valley = plot.smoothed([abs(i - 20.0) for i in range(41)], 0.5)
    assert valley[5:36] == pytest.approx(valley[5:36][::-1], abs=0.1)
    assert min(range(41), key=valley.__getitem__) == 20
    assert plot.smoothed([2.0] * 10 + [50.0] + [2.0] * 10, 0.9) == pytest.approx([2.0] * 21)


def test_short_curves_are_not_smoothed_by_default_and_long_ones_over_a_twentieth():
    assert [plot.smoothing_of(n) for n in (0, 1, 19)] == [0.0, 0.0, 0.0]
    for num_values, covered in ((20, 5), (100, 5), (3000, 150)):
        weight = plot.smoothing_of(num_values)
        assert (1 + weight) / (1 - weight) == pytest.approx(covered)


def test_the_loss_axis_leaves_out_the_steep_beginning_and_lone_spikes_but_not_a_rise():
    def limits_of(values: list[float]):
        curve = Curve([float(x) for x in range(len(values))], values)
        return plot.loss_limits(drawing_of(curve, Curve([], []), 0, 1).lines)

    falling = [11.0 if x < 4 else 4 - x / 100 for x in range(100)]
    low, high = limits_of(falling)
    assert 2.9 < low < 3.01
    assert 3.9 < high < 4.2
    assert limits_of([*falling[:50], 60.0, *falling[51:]])[1] < 5
    assert limits_of([*falling[:70], *[8.0] * 30])[1] > 8
    assert limits_of([2.0]) == pytest.approx((1.9, 2.1))
    assert limits_of([]) == (-1.0, 1.0)
