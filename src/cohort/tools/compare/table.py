"""The comparison on a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cohort.base.text import printable
from cohort.evaluation.estimators import PairedDifference
from cohort.observe.report.data import as_dict, number
from cohort.tools.compare.measure import Comparison, Measured, Standing

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
LONGEST_LABEL = 20


def print_comparison(console: Console, comparison: Comparison) -> None:
    from rich.table import Table
    from rich.text import Text

    first = comparison.standings[0].label
    several = len(comparison.seeds) > 1
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    spread = "after [min, max]" if several else "after [95 %]"
    against, majority = f"vs {short(first, 12)} [95 %]", f"maj@{comparison.votes}"
    heads = ["", "before", spread, against, "p", majority, "KL", "length", "tokens", "time"]
    same = common_start(comparison)
    if same is not None:  # one number says it; the column goes to longer names
        heads.remove("before")
    for place, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if place else "left", no_wrap=True)
    for standing in comparison.standings:
        cells = row_of(standing, comparison, several)
        table.add_row(*(Text(cell) for place, cell in enumerate(cells) if place != 1 or same is None))
    console.print(table)
    for line in remarks(comparison):
        console.print(Text(printable(line)), soft_wrap=True)


def row_of(standing: Standing, comparison: Comparison, several: bool) -> list[str]:
    runs = standing.finished
    label = short(standing.label, LONGEST_LABEL)
    if not runs:
        return [label, "", "failed, see below" if standing.runs[0].status != "interrupted" else "interrupted"]
    paired = next(iter(standing.against_first.values()), None)
    change = f"{100 * paired.difference:+.1f}{interval(paired)}" if paired else "–"
    return [
        label,
        share(as_dict(standing.over_seeds("before", "pass@1")).get("mean")),
        after_text(standing, runs[0], several),
        change,
        p_text(paired.p_value) if paired else "",
        share(as_dict(standing.over_seeds("after", f"maj@{comparison.votes}")).get("mean")),
        plain(standing.kl, 2 if (standing.kl or 0.0) < 100 else 0),
        plain(as_dict(standing.over_seeds("after", "length_mean")).get("mean"), 1),
        compact(standing.mean([run.sampled_tokens for run in runs])),
        short_time(standing.mean([run.training_seconds for run in runs]) or 0.0),
    ]


def interval(paired: PairedDifference) -> str:
    """ " [1.2, 5.6]"; nothing where there are too few problems for one."""
    return "" if paired.low is None or paired.high is None else f" [{100 * paired.low:.1f}, {100 * paired.high:.1f}]"


def common_start(comparison: Comparison) -> float | None:
    """Mean pass@1 before training where it is the same for all; None where it is not, or was not measured."""
    starts = [before["mean"] for s in comparison.standings if (before := s.over_seeds("before", "pass@1"))]
    return starts[0] if starts and max(starts) - min(starts) < 1e-9 else None


def after_text(standing: Standing, only: Measured, several: bool) -> str:
    """Mean over seeds with their range, or the one run with its interval."""
    mean = standing.over_seeds("after", "pass@1")
    if mean is None:
        return "–"
    if several:
        return f"{share(mean['mean'])} [{share(mean['min'])}, {share(mean['max'])}]"
    entry: Mapping[str, Any] = as_dict(next(iter(only.sets.values()))["after"]["pass@1"])
    low, high = number(entry.get("low")), number(entry.get("high"))
    return share(mean["mean"]) if low is None or high is None else f"{share(mean['mean'])} [{share(low)}, {share(high)}]"


def remarks(comparison: Comparison) -> list[str]:
    """What the numbers are, and what has to be known about single contenders."""
    seeds = ", ".join(map(str, comparison.seeds))
    where = comparison.sets[0] if comparison.sets else "no evaluation"
    same = common_start(comparison)
    lines = [
        "",
        *([f"all started at pass@1 {100 * same:.1f} %"] if same is not None else []),
        f"pass@1 and maj@{comparison.votes} in % on {where}; KL: nats per completion from the start; length and tokens: sampled; "
        f"time: of training{' with several runs at a time' if comparison.jobs > 1 else ''}; "
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {seeds}",
    ]
    few = {p.reason: None for s in comparison.standings for p in s.against_first.values() if p.reason}
    lines += [f"note: {words}" for words in (*comparison.unlike.values(), *few)]
    lines += [f"note: {s.label} {s.contender.note}" for s in comparison.standings if s.contender.note]
    lines += [f"{', '.join(names)}: {reason}" for reason, names in comparison.failures.items()]
    return lines


def short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}" if value < 0.9995 else "100"


def short_time(seconds: float) -> str:
    """At most six characters."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def plain(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def p_text(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 0.9995 else "1"


def compact(value: float | None) -> str:
    """At most five characters: 950, 12.3k, 1.25M."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.2f}{unit}" if scaled < 10 else f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"
