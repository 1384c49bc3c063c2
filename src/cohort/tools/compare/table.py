"""What is told of a contender, cell by cell, and the comparison on a terminal of 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cohort.base.table import make_table
from cohort.base.text import make_printable, shorten_text, write_duration, write_percent
from cohort.evaluation.estimators import PairedDifference
from cohort.observe.outcome import colour_change
from cohort.observe.report.data import as_dict
from cohort.observe.report.frame import Cell
from cohort.observe.report.page import make_interval_cell
from cohort.tools.compare.measure import Contest, Standing

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_LABEL = 20
COLUMNS = ("before", "after", "against", "p", "majority", "kl", "length", "sampled", "time")
"""Of the cells of a contender, those on the terminal; there the smaller numbers of a cell are told of these alone:"""
WITH_SMALL = ("after", "against")


def print_comparison(console: Console, comparison: Contest) -> None:
    from rich.text import Text

    first = shorten_text(comparison.standings[0].label, 12)
    spread = "after [min, max]" if len(comparison.seeds) > 1 else "after [95 %]"
    heads = ("before", spread, f"vs {first} [95 %]", "p", f"maj@{comparison.votes}", "KL", "length", "tokens", "time")
    # One number says where all started; its column goes to longer names.
    left_out = 0 if find_common_start(comparison) is None else 1
    rows = [list_texts(standing, comparison)[left_out:] for standing in comparison.standings]
    labels = [shorten_text(standing.label, LONGEST_LABEL) for standing in comparison.standings]
    cells = [(label, *row) for label, row in zip(labels, rows, strict=True)]
    console.print(make_table(("", *heads[left_out:]), cells, gap=1))
    for line in describe_table(comparison):
        console.print(Text(make_printable(line)), soft_wrap=True)


def list_texts(standing: Standing, comparison: Contest) -> list[str]:
    """The cells of COLUMNS, as short as they can be: what is in per cent is said below the table."""
    if not standing.finished:
        return ["", "failed, see below" if standing.runs[0].status != "interrupted" else "interrupted"]
    cells = list_cells(standing, comparison)
    texts = [cells[name].text.removesuffix(" %") for name in COLUMNS]
    texts[-1] = write_short_time(standing.average(lambda run: run.training_seconds) or 0.0)
    return [
        f"{text} {cells[name].small}".strip() if name in WITH_SMALL else text for name, text in zip(COLUMNS, texts, strict=True)
    ]


def list_cells(standing: Standing, comparison: Contest) -> dict[str, Cell]:
    """Everything that is told of a contender with a result, for the table and the page."""
    runs = standing.finished
    paired = next(iter(standing.against_first.values()), None)
    shorter, longer = (as_dict(standing.summarise_seeds(side, "length_mean")).get("mean") for side in ("before", "after"))
    per_token = standing.average(lambda run: run.find_kl("per_token"))
    memory = max((run.peak_memory_gib for run in runs if run.peak_memory_gib is not None), default=None)
    training, whole = standing.average(lambda run: run.training_seconds), standing.average(lambda run: run.whole_seconds)
    return {
        "before": make_mean_cell(standing, "before", "pass@1"),
        "after": make_after_cell(standing, len(comparison.seeds) > 1),
        "against": make_paired_cell(paired),
        "p": Cell(write_p(paired.p_value) if paired else ""),
        "majority": make_mean_cell(standing, "after", f"maj@{comparison.votes}"),
        "any": make_mean_cell(standing, "after", f"pass@{comparison.votes}"),
        "kl": Cell(write_number(standing.kl, 2 if (standing.kl or 0.0) < 100 else 0), write_number(per_token, 3)),
        "length": Cell(write_number(longer, 1), write_number(shorter, 1)),
        "sampled": Cell(write_count(standing.average(lambda run: run.sampled_tokens))),
        "trained": Cell(write_count(standing.average(lambda run: run.trained_tokens))),
        "time": Cell(write_duration(training or 0.0), write_duration(whole or 0.0)),
        "memory": Cell(f"{write_number(memory, 2)}{' GiB' if memory is not None else ''}"),
        "reward": Cell(write_number(standing.average(lambda run: run.last_reward), 3)),
    }


def make_mean_cell(standing: Standing, side: str, what: str) -> Cell:
    mean = standing.summarise_seeds(side, what)
    return Cell(write_percent(mean["mean"], 1) if mean else "–")


def make_after_cell(standing: Standing, several: bool) -> Cell:
    """Mean over seeds with their range, or the one run with its interval."""
    mean = standing.summarise_seeds("after", "pass@1")
    if mean is None:
        return Cell("–")
    if several:
        return Cell(write_percent(mean["mean"], 1), f"[{100 * mean['min']:.1f}, {100 * mean['max']:.1f}]", style="strong")
    return make_interval_cell(as_dict(next(iter(standing.finished[0].sets.values()))["after"]["pass@1"]))


def make_paired_cell(paired: PairedDifference | None) -> Cell:
    if paired is None:
        return Cell("–", style="none")
    return Cell(f"{100 * paired.difference:+.1f}", write_interval(paired).strip(), style=colour_change(paired, {}, {}))


def write_interval(paired: PairedDifference) -> str:
    """ " [1.2, 5.6]"; nothing where there are too few problems for one."""
    return "" if paired.low is None or paired.high is None else f" [{100 * paired.low:.1f}, {100 * paired.high:.1f}]"


def find_common_start(comparison: Contest) -> float | None:
    """Mean pass@1 before training where it is the same for all; None where it is not, or was not measured."""
    starts = [before["mean"] for s in comparison.standings if (before := s.summarise_seeds("before", "pass@1"))]
    return starts[0] if starts and max(starts) - min(starts) < 1e-9 else None


def describe_table(comparison: Contest) -> list[str]:
    """What the numbers are, and what has to be known about single contenders."""
    seeds = ", ".join(map(str, comparison.seeds))
    where = comparison.sets[0] if comparison.sets else "no evaluation"
    same = find_common_start(comparison)
    lines = [
        "",
        *([f"all started at pass@1 {100 * same:.1f} %"] if same is not None else []),
        f"pass@1 and maj@{comparison.votes} in % on {where}; KL: nats per completion from the start; length and tokens: sampled; "
        f"time: of training{' with several runs at a time' if comparison.jobs > 1 else ''}; "
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {seeds}",
    ]
    outlooks: dict[str, list[str]] = {}
    for standing in comparison.standings:
        if standing.finished:
            outlooks.setdefault(write_outlook(standing), []).append(standing.label)
    lines += [f"{', '.join(labels)}: {words}" for words, labels in outlooks.items()]
    few = {p.reason: None for s in comparison.standings for p in s.against_first.values() if p.reason}
    lines += [f"note: {words}" for words in (*comparison.unlike.values(), *few)]
    lines += [f"note: {s.label} {s.contender.note}" for s in comparison.standings if s.contender.note]
    lines += [f"{', '.join(names)}: {reason}" for reason, names in comparison.failures.items()]
    return lines


def write_outlook(standing: Standing) -> str:
    """What more steps would bring, in a line: the curve of compute against held-out pass@1, or why there is none."""
    fit = standing.outlook
    if isinstance(fit, str):
        return f"more steps? {fit}"
    top = fit.asymptote.written()
    return f"more steps? {fit.verdict}" + (
        "" if fit.is_flat else f"; the curve tends to {top}, half of the way at {write_count(fit.middle.value)} tokens"
    )


def write_short_time(seconds: float) -> str:
    """At most six characters."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def write_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def write_p(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 0.9995 else "1"


def write_count(value: float | None) -> str:
    """At most five characters: 950, 12.3k, 1.25M."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.2f}{unit}" if scaled < 10 else f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"
