"""Compute against result: the curve of ScaleRL (arXiv 2510.13786), its intervals, and what more compute would bring. No torch.

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

R0 is the result before training and is measured; A, the result that the curve tends to, B, how steeply it gets there, and C_mid, the compute at which
half of the way is done, are fitted by least squares. For any B and C_mid the best A is a division, so the two are searched on a grid
that is narrowed around its best place: there is no start to choose and nothing that can fail to converge.

Intervals are those of a residual bootstrap: the fitted curve plus residuals drawn with replacement is fitted again and again. They say how
well the points determine the curve, and nothing about whether the curve is the right one: look at the error of a forecast
(`forecast_error`) before you believe one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohort.evaluation.estimators import Estimate

FEWEST_POINTS = 5
"""After the start. Three numbers are fitted, and what is left over has to say how sure they are."""
STEEPEST, FLATTEST = 6.0, 0.3
"""Values of B that are tried. ScaleRL found 1 to 3; beyond these the curve is a step, or a line."""
REACH = 30.0
"""C_mid is sought up to so many times beyond the last point and before the first: further out the points do not reach."""
GRID, ZOOMS = 33, 5
WORTH = 0.01
"""A gain in pass@1 that is worth twice the compute: a point."""


@dataclass(frozen=True, slots=True)
class ScalingFit:
    start: float
    asymptote: Estimate
    """A: what the curve tends to; between 0 and 1."""
    steepness: Estimate
    """B."""
    middle: Estimate
    """C_mid, in the unit of the compute."""
    noise: float
    """Root mean square of the residuals."""
    last: float
    """The compute of the last point."""
    gain: Estimate
    """What as much compute again would add to the result."""
    points: int

    def predict(self, compute: float) -> float:
        if self.asymptote.value is None or self.steepness.value is None or self.middle.value is None:
            return self.start
        return float(
            self.start + (self.asymptote.value - self.start) * shape_curve(compute, self.steepness.value, self.middle.value)
        )

    @property
    def is_flat(self) -> bool:
        """Whether the points cannot tell the curve from no rise at all."""
        low, high = self.asymptote.low, self.asymptote.high
        return low is None or high is None or low <= self.start <= high

    @property
    def verdict(self) -> str:
        """In words: whether more steps are worth it."""
        if self.is_flat:
            return "flat: the looks cannot tell the curve from no change, so more of the same steps are not worth it"
        told = f"twice the compute would add {write_points(self.gain)} points"
        if self.gain.high is not None and self.gain.high < WORTH:
            return f"{told}: more steps are not worth it"
        if self.gain.low is not None and self.gain.low >= WORTH:
            return f"{told}: more steps are worth it"
        return f"{told}: whether more steps are worth it cannot be told from these looks"

    def to_json(self) -> dict[str, Any]:
        named = {"asymptote": self.asymptote, "steepness": self.steepness, "middle": self.middle, "gain": self.gain}
        numbers = {"start": self.start, "noise": self.noise, "last": self.last, "points": self.points}
        return {**numbers, **{name: one.to_json() for name, one in named.items()}, "verdict": self.verdict}


def why_no_fit(computes: Sequence[float]) -> str:
    """Why so few looks have no curve; "" where they have one."""
    count = len({compute for compute in computes if compute > 0})
    if count >= FEWEST_POINTS:
        return ""
    return (
        f"{count} held-out look{'' if count == 1 else 's'} after the start {'is' if count == 1 else 'are'} too few to fit a curve; it takes "
        f"{FEWEST_POINTS}: lower evaluation.every_steps"
    )


def fit_scaling(points: Sequence[tuple[float, float]], start: float, resamples: int = 200, seed: int = 0) -> ScalingFit:
    """The curve through (compute, result) points; several runs may be pooled. Raises ValueError where there are too few."""
    if reason := why_no_fit([compute for compute, _ in points]):
        raise ValueError(reason)
    computes, results = (np.asarray(values, dtype=np.float64) for values in zip(*(p for p in points if p[0] > 0), strict=True))
    last = float(computes.max())
    best = fit_many(computes, results[None, :] - start, start)[0]
    fitted = best[0] * shape_curve(computes, best[1], best[2])
    residuals = results - start - fitted
    # Three numbers were fitted, which makes residuals smaller than the noise.
    wider = residuals * np.sqrt(computes.size / max(1, computes.size - 3))
    rng = np.random.default_rng(seed)
    drawn = fitted + rng.choice(wider, size=(resamples, computes.size))
    found = fit_many(computes, drawn, start)
    gains = found[:, 0] * (shape_curve(2 * last, found[:, 1], found[:, 2]) - shape_curve(last, found[:, 1], found[:, 2]))
    gain = best[0] * (shape_curve(2 * last, best[1], best[2]) - shape_curve(last, best[1], best[2]))
    return ScalingFit(
        start=start,
        asymptote=make_estimate(start + best[0], start + found[:, 0]),
        steepness=make_estimate(best[1], found[:, 1]),
        middle=make_estimate(best[2], found[:, 2]),
        noise=float(np.sqrt(np.mean(residuals**2))),
        last=last,
        gain=make_estimate(gain, gains),
        points=int(computes.size),
    )


def forecast_error(points: Sequence[tuple[float, float]], start: float, share: float = 0.4) -> tuple[ScalingFit, float]:
    """(the curve fitted on the first share of the compute, its value at the end minus the result there)."""
    end = max(compute for compute, _ in points)
    fit = fit_scaling([point for point in points if point[0] <= share * end], start)
    reached = [result for compute, result in points if compute == end]
    return fit, fit.predict(end) - sum(reached) / len(reached)


def shape_curve(compute: Any, steepness: Any, middle: Any) -> Any:
    """1 / (1 + (C_mid / C)^B): from 0 to 1."""
    return 1.0 / (1.0 + (middle / compute) ** steepness)


def fit_many(computes: np.ndarray, rises_RN: np.ndarray, start: float) -> np.ndarray:
    """(A - R0, B, C_mid) of each row of rises: a grid over the last two, narrowed around the best place of each row."""
    rows = len(rises_RN)
    low = np.tile([np.log(FLATTEST), np.log(computes.min() / REACH)], (rows, 1))
    high = np.tile([np.log(STEEPEST), np.log(computes.max() * REACH)], (rows, 1))
    best = np.zeros((rows, 3))
    steps = np.linspace(0.0, 1.0, GRID)
    bounds_low, bounds_high = low.copy(), high.copy()
    for _ in range(ZOOMS):
        for row in range(rows):
            steepness, middle = np.meshgrid(*(np.exp(low[row, i] + steps * (high[row, i] - low[row, i])) for i in (0, 1)))
            shape_GN = shape_curve(computes, steepness.reshape(-1, 1), middle.reshape(-1, 1))
            rise = (shape_GN @ rises_RN[row]) / (shape_GN**2).sum(1)
            rise = np.clip(rise, -start, 1.0 - start)  # a result is a share
            errors = ((rises_RN[row] - rise[:, None] * shape_GN) ** 2).sum(1)
            place = int(errors.argmin())
            best[row] = rise[place], steepness.reshape(-1)[place], middle.reshape(-1)[place]
        half = (high - low) / 6
        centre = np.log(best[:, 1:])
        low, high = np.maximum(centre - half, bounds_low), np.minimum(centre + half, bounds_high)
    return best


def make_estimate(value: float, drawn: np.ndarray) -> Estimate:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))


def write_points(gain: Estimate) -> str:
    """+1.2 [0.3, 2.5]."""
    value, low, high = (100 * (number or 0.0) for number in (gain.value, gain.low, gain.high))
    return f"{value:+.1f} [{low:.1f}, {high:.1f}]"
