"""How curves are shown: which steps, how smooth, with intervals or without. All of it stands in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cohort.observe.report.charts import Chart, Series
from cohort.tools.dashboard.view import View

SMOOTHING = {"auto": "by itself", "1": "none", "5": "5 steps", "20": "20 steps", "50": "50 steps", "200": "200 steps"}
BANDS = {"no": "of evaluations", "yes": "of moving averages too"}
MAX_STEP = 10**9


@dataclass(frozen=True)
class Choices:
    smooth: str
    bands: str
    first: int
    last: int

    @classmethod
    def read(cls, view: View) -> Choices:
        first, last = view.read_number("from", 0, 0, MAX_STEP), view.read_number("to", MAX_STEP, 0, MAX_STEP)
        return cls(view.choose("smooth", tuple(SMOOTHING)), view.choose("bands", tuple(BANDS)), first, last)

    def apply(self, charts: Sequence[Chart]) -> list[Chart]:
        window = 0 if self.smooth == "auto" else int(self.smooth)
        return [
            replace(
                chart, series=tuple(self.cut(series) for series in chart.series), window=window, bands=self.bands == "yes",
                markers=tuple(marker for marker in chart.markers if self.first <= marker.step <= self.last),
            )
            for chart in charts
        ]  # fmt: skip

    def cut(self, series: Series) -> Series:
        """The points of the chosen steps."""
        if self.first == 0 and self.last == MAX_STEP:
            return series
        places = [place for place, (step, _) in enumerate(series.points) if self.first <= step <= self.last]
        intervals = [series.intervals[place] for place in places] if series.intervals else ()
        return replace(series, points=[series.points[place] for place in places], intervals=intervals)

    def describe(self, view: View, kept: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """What the form needs. kept: words of the address that are no choice here."""
        numbers = [("from", "from step", self.first or ""), ("to", "to step", self.last if self.last < MAX_STEP else "")]
        selects = [("smooth", "moving average", SMOOTHING, self.smooth), ("bands", "95 % intervals", BANDS, self.bands)]
        return {"action": view.path, "kept": kept, "numbers": numbers, "selects": selects}
