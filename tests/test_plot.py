"""plot.py: the picture shows the logged losses, tells the runs apart, and names its units."""

import itertools
import json
import sys
from dataclasses import replace

import pytest

import plot
from gpt.checkpoint.history import read_run
from gpt.common.errors import Exit
from tests.helpers.refusals import refused


@pytest.fixture
def make_run(tmp_path):
    """A function: writes an output folder's metrics.jsonl, 40 logged steps of 1,000 tokens; returns the folder.

    Validation every 10 steps is half a nat above training, is lowest at step 20, and has bits_per_nat.
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


def test_a_picture_without_a_loss_is_refused(make_run, tmp_path):
    pytest.importorskip("matplotlib")
    with refused(r"no loss is below 1, the lowest is 8\.37\. Give a larger --y_max", Exit.FLAGS):
        plot.main([make_run("a"), "--y_max", "1", "--output", str(tmp_path / "a.svg")])
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "loss": null}\n{"step": 2, "loss"')
    with refused("no loss yet", Exit.DATA):
        plot.main([str(path), "--output", str(tmp_path / "a.svg")])


@pytest.mark.parametrize("word", ["out/checkpoint-20", "out/best", "last", "nowhere/best", "nowhere"])
def test_a_folder_without_metrics_leads_to_the_usual_run(make_run, tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    make_run("out")
    (tmp_path / "out/checkpoint-20").mkdir()
    with refused("python plot.py out$", Exit.DATA):
        plot.main([word, "--output", "a.svg"])


HOSTILE = ['{"step": 1, "loss": 1' + "0" * 400 + "}", '{"step": 7, "loss": 1e99}', '{"step": 0, "loss": 0}',
           '{"step": 4611686018427387904, "loss": 1e-99, "tokens": 1e99, "seconds": 5e-324, "val_loss": -1e99}',
           '{"step": 3, "val_loss": 2.0, "bits_per_byte": 1e99}', '{"step": 3}']


@pytest.mark.parametrize("x", ["steps", "tokens", "hours"])
def test_hostile_figures_are_drawn(tmp_path, x):
    pytest.importorskip("matplotlib")
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(HOSTILE))
    assert plot.main([str(path), "--x", x, "--output", str(tmp_path / "a.svg")]) == 0


# ---------------------------------------------------------------- units and axes


def test_runs_with_other_tokens_are_compared_in_bits_per_byte_alone(make_run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    runs = [make_run("one"), make_run("two", bits_per_nat=0.3)]
    to_file = ["--output", str(tmp_path / "a.svg")]
    for words, warning in (([runs[0]], ""), ([*runs, "--y", "bits"], ""), (runs, "--y bits")):
        assert plot.main([*words, *to_file]) == 0
        errors = capsys.readouterr().err
        assert warning in errors
        assert bool(warning) == bool(errors)
    in_bits = plot.in_units(read_run(runs[0]), "steps", "bits")["val_loss"]
    assert in_bits.ys[0] == pytest.approx(0.4 * (9.5 - 0.1 * 10 ** 0.5))
    without = make_run("three", bits_per_nat=None)
    with refused("bits_per_byte.*--y nats", Exit.DATA):
        plot.main([without, "--y", "bits", *to_file])


@pytest.mark.parametrize(("x", "first", "last"), [("steps", 10, 45), ("tokens", 10_000, 50_000),
                                                  ("hours", 5 / 3600, 30 / 3600)])
def test_a_loss_is_placed_by_its_step_on_every_axis(make_run, x, first, last):
    run = make_run("one", extra='{"step": 50, "tokens": 60000, "seconds": 2.0}\n{"step": 45, "val_loss": 9.0}\n')
    xs = plot.in_units(read_run(run), x, "nats")["val_loss"].xs
    assert xs[0] == pytest.approx(first)
    assert xs[-1] == pytest.approx(last)


# ---------------------------------------------------------------- the picture


def figure_of(runs: list[str], names: list[str]):
    pytest.importorskip("matplotlib")
    return plot.figure_of([plot.in_units(replace(read_run(run), name=name), "steps", "nats")
                           for run, name in zip(runs, names, strict=True)], "step", "loss, nats per token", None)


def test_seeds_are_a_mean_with_a_band_and_the_legend_tells_the_lowest_loss(make_run):
    figure = figure_of([make_run("a"), make_run("b", 0.2), make_run("c", 0.3)], ["x", "x", "y"])
    (axes,), (legend,) = figure.axes, figure.legends
    best = 9.5 - 0.15 * 20 ** 0.5  # the mean of both seeds
    assert legend.get_texts()[0].get_text() == f"x: {best:.3f} at step 20"
    assert "band: one standard error" in legend.get_title().get_text()
    assert list(axes.lines[1].get_xdata()) == [10, 20, 30, 40]
    assert axes.get_xlabel() == "step"
    assert axes.get_ylabel() == "loss, nats per token"
    band = axes.collections[1].get_paths()[0].vertices
    error = 0.05 * 20 ** 0.5  # half of the difference between the two
    assert sorted({float(y) for x, y in band if x == 20}) == pytest.approx([best - error, best + error])


def test_32_runs_have_32_styles_that_differ_without_colour_from_the_next(make_run):
    run = make_run("one")
    lines = figure_of([run] * 32, [str(number) for number in range(32)]).axes[0].lines
    styles = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert styles[::2] == styles[1::2], "training and validation look alike"
    assert len(set(styles)) == 32
    dashes = [dash for _, dash in styles[::2]]
    assert all(one != following for one, following in itertools.pairwise(dashes))
    greys = sorted(sum(part * int(color[at:at + 2], 16) for part, at in ((0.299, 1), (0.587, 3), (0.114, 5)))
                   for color in plot.COLORS[:3])
    assert min(greys[1] - greys[0], greys[2] - greys[1]) > 30


def test_the_legend_covers_no_curve_and_no_axis(make_run, tmp_path):
    for num_runs in (1, 9, 32):
        figure = figure_of([make_run(f"run-{num_runs}")] * num_runs, [f"name {number}" for number in range(num_runs)])
        figure.savefig(tmp_path / "a.png")
        (axes,), (legend,) = figure.axes, figure.legends
        assert not axes.get_tightbbox().overlaps(legend.get_window_extent())
        assert legend.get_window_extent().y1 <= figure.bbox.y1
        assert axes.get_window_extent().height > 2 * figure.dpi, "the curves are two inches high at least"


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


def test_a_picture_of_another_program_is_not_replaced(make_run, tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG of a camera")
    with refused("a.png exists", Exit.FLAGS):
        plot.main([make_run("one"), "--output", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").read_bytes() == b"\x89PNG of a camera"


def test_what_the_names_stand_for_is_printed(make_run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    runs = [make_run("a"), make_run("b", 0.2)]
    assert plot.main([*runs, "--names", "wide,deep", "--output", f"{tmp_path}/x.png"]) == 0
    assert capsys.readouterr().out.endswith(f": wide ({runs[0]}), deep ({runs[1]})\n")


def test_without_matplotlib_one_line_names_it(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused(r"needs the package matplotlib.*-m pip install matplotlib", Exit.MACHINE):
        plot.main([make_run("one"), "--output", str(tmp_path / "a.png")])


@pytest.mark.parametrize("flags", [["--outptu", "a.png"], ["--names", "a,b"], ["a", "b", "--names", "a"],
                                   ["--x", "epochs"], ["--y", "loss"], ["--output", "x.html"], ["--y_max", "0"]],
                         ids=" ".join)
def test_bad_flags_end_the_command_with_2(flags):
    with refused(code=Exit.FLAGS):
        plot.read_flags(flags)
