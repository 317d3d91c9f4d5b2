"""What a run logged, laid over a horizontal axis: steps, tokens or time; and the limits that a reader needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.errors import Exit, UserError
from common.words import count, duration
from watching.history import LoggedRun, Series, smoothed

# Of the largest x: curves fall so steeply before it that limits of the y axis which include it show nothing else.
STEEP = 0.05
SPIKES = 0.02  # of the values may lie above the y axis, if they are far away
FEWEST_SMOOTHED = 20  # values of a curve that is smoothed by default


@dataclass(frozen=True)
class XAxis:
    """The horizontal axis: steps, tokens, or time in the unit that fits the longest run, of so many seconds."""

    kind: str
    label: str
    seconds: float = 1.0

    @staticmethod
    def of(kind: str, runs: Sequence[LoggedRun]) -> XAxis:
        """The axis of --x. Raises UserError (exit 3) where a run has not logged what it needs."""
        if kind == "steps":
            return XAxis(kind, "step")
        for run in runs:
            if not run.tokens.steps:
                raise UserError(Exit.DATA, f"--x {kind}: {run.name} has no line with tokens and seconds. Give "
                                           "--x steps.")
        if kind == "tokens":
            return XAxis(kind, "tokens")
        longest = max(run.seconds.values[-1] for run in runs)
        unit, seconds = next(((unit, seconds) for unit, seconds in (("hours", 3600.0), ("minutes", 60.0))
                              if longest >= 3 * seconds), ("seconds", 1.0))
        return XAxis(kind, f"{unit} of training", seconds)

    def place(self, run: LoggedRun, step: int) -> float:
        """Where a step of the run lies."""
        if self.kind == "steps":
            return float(step)
        return run.tokens.at(step) if self.kind == "tokens" else run.seconds.at(step) / self.seconds

    def words(self, x: float) -> str:
        """A place in words: 'step 1,700', '2.49B tokens', '3 h 20 min'."""
        if self.kind == "steps":
            return f"step {x:,.0f}"
        return f"{count(x)} tokens" if self.kind == "tokens" else duration(x * self.seconds)


@dataclass(frozen=True)
class Curve:
    """Values over the horizontal axis."""

    xs: list[float]
    ys: list[float]

    @property
    def last_x(self) -> float:
        return self.xs[-1] if self.xs else 0.0


@dataclass(frozen=True)
class Curves:
    """A run as it is drawn: the training loss as logged and smoothed, validation with its best point, and the rest.

    shares are the validation losses of a mixture's folders, by name.
    """

    run: LoggedRun
    raw: Curve
    training: Curve
    validation: Curve
    best: tuple[float, float] | None
    others: dict[str, Curve]
    shares: dict[str, Curve] = field(default_factory=dict)

    @property
    def is_smoothed(self) -> bool:
        return self.training is not self.raw

    @property
    def last_x(self) -> float:
        return max(self.training.last_x, self.validation.last_x)


def curves_of(run: LoggedRun, x_axis: XAxis, in_bits: bool, smoothing: float | None = None) -> Curves:
    """The run over the horizontal axis; smoothing is the weight of the neighbours, None that of default_smoothing."""

    def over_x(series: Series) -> Curve:
        return Curve([x_axis.place(run, step) for step in series.steps], series.values)

    factor = run.bits_per_nat or 1.0
    loss, val_loss = (series.scaled(factor) if in_bits else series for series in (run.loss, run.val_loss))
    raw, validation = over_x(loss), over_x(val_loss)
    weight = default_smoothing(len(raw.ys)) if smoothing is None else smoothing
    training = Curve(raw.xs, smoothed(raw.ys, weight)) if weight else raw
    best = min(zip(validation.xs, validation.ys, strict=True), key=lambda at: at[1], default=None)
    others = {"lr": over_x(run.lr), "norm": over_x(run.grad_norm), "speed": over_x(run.tokens_per_second)}
    shares = {name: over_x(series) for name, series in (run.share_bits if in_bits else run.share_losses).items()}
    return Curves(run, raw, training, validation, best, others, shares)


def default_smoothing(num_values: int) -> float:
    """The weight of the neighbours by which a mean covers about a twentieth of the curve; 0 for short curves."""
    covered = max(5.0, num_values / 20)  # an exponential mean with weight w covers (1 + w) / (1 - w) values
    return (covered - 1) / (covered + 1) if num_values >= FEWEST_SMOOTHED else 0.0


def loss_limits(curves: Sequence[Curves], on_log_axis: bool = False) -> tuple[float, float]:
    """Limits of the loss axis within which a reader sees something: without the steep beginning and lone spikes."""
    steep_until = STEEP * max(run.last_x for run in curves)
    shares = curves[0].shares.values() if len(curves) == 1 else ()  # several runs are drawn without them
    drawn = [(x, y) for run in curves for curve in (run.training, run.validation, *shares)
             for x, y in zip(curve.xs, curve.ys, strict=True)]
    values = sorted(y for x, y in drawn if x >= steep_until) or [0.0]
    if len(values) < 3:
        values = sorted(y for _, y in drawn) or [0.0]
    low, usual = values[0], values[int((1 - SPIKES) * (len(values) - 1))]
    high = min(values[-1], usual + 0.5 * (usual - low)) if usual > low else values[-1]
    if on_log_axis:
        low = next((value for value in values if value > 0), 1.0)
        return 0.97 * low, 1.03 * max(low, high)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin
