"""A comparison as a terminal table of 100 columns, and as compare.html: one self-contained page in the style of report.html."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cohort.base.text import make_printable, make_table, shorten_text, write_duration, write_percent
from cohort.evaluation.estimators import UNCLEAR, PairedDifference
from cohort.observe.outcome import colour_change, name_set, write_difference
from cohort.observe.report.charts import Chart, Figure, Mark, Points, Scale, Series, find_ticks, make_mark, write_value
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.report.frame import Cell, Part, render_page
from cohort.observe.report.page import make_card, make_interval_cell
from cohort.observe.report.plots import show_charts
from cohort.recipe.describe import format_value
from cohort.tools.compare.results import Comparison, ContenderResult, RunResult

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_LABEL = 20
COLUMNS = ("before", "after", "against", "p", "majority", "length", "sampled", "time")
"""The cells of a contender on the terminal."""
WITH_INTERVAL = ("after", "against")
"""Those whose smaller text is shown on the terminal too."""
COLOURS = 6
WIDTH, RIGHT, TOP, BOTTOM = 1080, 24, 8, 30
ROW, SEED_GAP = 34, 13
CHARACTER = 10.5
"""Pixels per character of a label, on a phone too."""


# -- cells -------------------------------------------------------------------------------------------------------------


def list_cells(contender: ContenderResult, comparison: Comparison) -> dict[str, Cell]:
    """All cells of a contender with a result, for the terminal and the page."""
    paired = next(iter(contender.against_first.values()), None)
    shorter, longer = (as_dict(contender.summarise_seeds(side, "length_mean")).get("mean") for side in ("before", "after"))
    memory = max((run.peak_memory_gib for run in contender.finished if run.peak_memory_gib is not None), default=None)
    training, whole = contender.average(lambda run: run.training_seconds), contender.average(lambda run: run.whole_seconds)
    return {
        "before": make_mean_cell(contender, "before", "pass@1"),
        "after": make_after_cell(contender, len(comparison.seeds) > 1),
        "against": make_paired_cell(paired),
        "p": Cell(write_p(paired.p_value) if paired else ""),
        "majority": make_mean_cell(contender, "after", f"maj@{comparison.votes}"),
        "any": make_mean_cell(contender, "after", f"pass@{comparison.votes}"),
        "length": Cell(write_number(longer, 1), write_number(shorter, 1)),
        "sampled": Cell(write_amount(contender.average(lambda run: run.sampled_tokens))),
        "trained": Cell(write_amount(contender.average(lambda run: run.trained_tokens))),
        "time": Cell(write_duration(training or 0.0), write_duration(whole or 0.0)),
        "memory": Cell("–" if memory is None else f"{memory:.2f} GiB"),
        "reward": Cell(write_number(contender.average(lambda run: run.last_reward), 3)),
    }


def make_mean_cell(contender: ContenderResult, side: str, what: str) -> Cell:
    mean = contender.summarise_seeds(side, what)
    return Cell(write_percent(mean["mean"], 1) if mean else "–")


def make_after_cell(contender: ContenderResult, several: bool) -> Cell:
    """The mean over seeds with their range, or the only run with its interval."""
    mean = contender.summarise_seeds("after", "pass@1")
    if mean is None:
        return Cell("–")
    if several:
        return Cell(write_percent(mean["mean"], 1), f"[{100 * mean['min']:.1f}, {100 * mean['max']:.1f}]", style="strong")
    return make_interval_cell(as_dict(next(iter(contender.finished[0].sets.values()))["after"]["pass@1"]))


def make_paired_cell(paired: PairedDifference | None) -> Cell:
    return Cell(*write_difference(paired), style=colour_change(paired, {}, {})) if paired else Cell("–", style="none")


def find_common_start(comparison: Comparison) -> float | None:
    """Mean pass@1 before training; None if contenders differ or it was not measured."""
    starts = [before["mean"] for one in comparison.contenders if (before := one.summarise_seeds("before", "pass@1"))]
    return starts[0] if starts and max(starts) - min(starts) < 1e-9 else None


def write_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def write_p(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 0.9995 else "1"


def write_amount(value: float | None) -> str:
    """At most five characters: 950, 12.3k, 1.25M."""
    if value is None:
        return "–"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}"


# -- the terminal ------------------------------------------------------------------------------------------------------


def print_comparison(console: Console, comparison: Comparison) -> None:
    from cohort.observe.terminal import print_whole

    first = shorten_text(comparison.contenders[0].label, 12)
    spread = "after [min, max]" if len(comparison.seeds) > 1 else "after [95 %]"
    heads = ("before", spread, f"vs {first} [95 %]", "p", f"maj@{comparison.votes}", "length", "tokens", "time")
    # A common start is one line below the table, and its column goes to longer labels.
    left_out = 0 if find_common_start(comparison) is None else 1
    rows = [(shorten_text(one.label, LONGEST_LABEL), *list_texts(one, comparison)[left_out:]) for one in comparison.contenders]
    console.print(make_table(("", *heads[left_out:]), rows, gap=1))
    for line in describe_table(comparison):
        print_whole(console, make_printable(line))


def list_texts(contender: ContenderResult, comparison: Comparison) -> list[str]:
    """The texts of COLUMNS, without per cent signs."""
    if not contender.finished:
        return ["", "failed, see below" if contender.runs[0].status != "interrupted" else "interrupted"]
    cells = list_cells(contender, comparison)
    smaller = {name: f" {cells[name].small}" for name in WITH_INTERVAL}
    return [f"{cells[name].text.removesuffix(' %')}{smaller.get(name, '')}".strip() for name in COLUMNS]


def describe_table(comparison: Comparison) -> list[str]:
    """The lines below the table: units, and notes on single contenders."""
    where = comparison.sets[0] if comparison.sets else "no evaluation"
    same = find_common_start(comparison)
    few = dict.fromkeys(
        paired.reason for one in comparison.contenders for paired in one.against_first.values() if paired.reason
    )
    return [
        "",
        *([f"all started at pass@1 {100 * same:.1f} %"] if same is not None else []),
        f"pass@1 and maj@{comparison.votes} in % on {where}; length: tokens per completion; tokens: sampled; "
        f"time: training{' with several runs at a time' if comparison.jobs > 1 else ''}; "
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {', '.join(map(str, comparison.seeds))}",
        *(f"note: {text}" for text in (*comparison.notes, *few)),
    ]


# -- the page ----------------------------------------------------------------------------------------------------------


def render_comparison(comparison: Comparison) -> str:
    sections = (show_header, show_dots, show_results, show_costs, show_curves, show_choices, show_other_sets, show_notes)
    names = " · ".join(one.label for one in comparison.contenders)
    return render_page(f"{names} · Cohort comparison", sections, comparison)


def choose_colour(place: int) -> int:
    """The first contender has its own colour; the others share five."""
    return 0 if place == 0 else 1 + (place - 1) % (COLOURS - 1)


def show_header(comparison: Comparison) -> Part:
    sentence, detail = describe_comparison(comparison)
    train = comparison.lineup.base.train
    words = [
        f"recipe {comparison.lineup.base_name}",
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {', '.join(map(str, comparison.seeds))}",
        f"{train.num_steps} steps of {train.prompts_per_step} prompts × {train.group_size} completions",
    ]
    return "header", sentence, [detail], f"{len(comparison.contenders)} contenders", "", words


def describe_comparison(comparison: Comparison) -> tuple[str, str]:
    """A sentence on the best contender, and one on how certain it is."""
    scored = [(after["mean"], one) for one in comparison.contenders if (after := one.summarise_seeds("after", "pass@1"))]
    if not scored and any(one.finished for one in comparison.contenders) and comparison.different:
        return "Not all runs were evaluated on the same problems.", "So no mean is taken and nothing is ranked; see below."
    if not scored:
        return "No contender has a result yet.", "The reasons are below."
    first = comparison.contenders[0]
    best, winner = max(scored, key=lambda pair: pair[0])
    sentence = f"{winner.label} ended highest: {write_percent(best, 1)} pass@1 on {name_set(comparison.sets[0])}."
    caution = " p-values are for single pairs, not corrected for the number of contenders." if len(scored) > 2 else ""
    paired = next(iter(winner.against_first.values()), None)
    if paired:
        detail = f"{100 * paired.difference:+.1f} points against {first.label} ({paired.sureness}).{caution}"
        return f"{sentence[:-1]}, but not clearly." if paired.verdict == UNCLEAR else sentence, detail
    clear = [one.label for _, one in scored if (p := next(iter(one.against_first.values()), None)) and p.verdict != UNCLEAR]
    others = f"Clearly below it: {', '.join(clear)}." if clear else "No other contender differs clearly from it."
    return sentence, others + caution if len(scored) > 1 else ""


def show_results(comparison: Comparison) -> Part:
    votes, several = comparison.votes, len(comparison.seeds) > 1
    columns: dict[str, str | Cell] = {
        "before": "pass@1 before",
        "after": Cell("pass@1 after", " [min, max]" if several else " [95 %]"),
        "against": Cell(f"against {comparison.contenders[0].label}", " [95 %]"),
        "p": "p",
        "majority": f"maj@{votes}",
        "any": f"pass@{votes}",
    }
    means = "Means over seeds; the brackets after pass@1 are the lowest and highest seed. " if several else ""
    where = name_set(comparison.sets[0]) if comparison.sets else "no evaluation"
    caption = "Differences, their 95 % intervals and p-values are over problems, paired; they do not cover other seeds."
    return show_table("Results", comparison, list_cells, columns, f"On {where}. {means}{caption}")


def show_costs(comparison: Comparison) -> Part:
    columns: dict[str, str | Cell] = {
        "length": Cell("length", " before"),
        "sampled": "sampled tokens",
        "trained": "trained tokens",
        "time": Cell("training", " whole run"),
        "memory": "memory",
        "reward": "last reward",
    }
    busy = f" Times were taken with {comparison.jobs} runs at a time." if comparison.jobs > 1 else ""
    caption = (
        "Length: tokens per held-out completion. Last reward: mean training reward of the last 10 steps. "
        f"Times do not include a shared cold start.{busy}"
    )
    return show_table("Cost", comparison, list_cells, columns, caption)


def show_other_sets(comparison: Comparison) -> Part | None:
    def list_sets(contender: ContenderResult, comparison: Comparison) -> dict[str, Cell]:
        cells = {}
        for name in comparison.sets[1:]:
            mean, paired = contender.summarise_seeds("after", "pass@1", name), contender.against_first.get(name)
            change = " ".join(write_difference(paired)) if paired else ""
            cells[name] = Cell(write_percent(mean["mean"], 1) if mean else "–", change, style=colour_change(paired, {}, {}))
        return cells

    caption = f"Small: difference to {comparison.contenders[0].label} with its 95 % interval."
    columns = {name: name for name in comparison.sets[1:]}
    return show_table("Other sets, pass@1 after", comparison, list_sets, columns, caption) if columns else None


def show_table(
    title: str,
    comparison: Comparison,
    list_cells: Callable[[ContenderResult, Comparison], Mapping[str, Cell]],
    columns: Mapping[str, str | Cell],
    caption: str,
) -> Part:
    """One row per contender; without a result, the reasons fill the row."""
    rows = []
    for place, contender in enumerate(comparison.contenders):
        if contender.finished:
            found = list_cells(contender, comparison)
            cells = [found[column] for column in columns]
        else:
            reasons = "; ".join(dict.fromkeys(run.reason for run in contender.runs if run.reason))
            cells = [Cell(reasons, style="why", span=len(columns))]
        rows.append([Cell(contender.label, colour=choose_colour(place)), *cells])
    return "table", title, ["contender", *columns.values()], rows, caption


def show_choices(comparison: Comparison) -> Part | None:
    """The settings in which contenders differ. The longer side runs down the page."""
    rows = comparison.list_choices()
    keys = [key for key in dict.fromkeys(key for row in rows.values() for key in row) if key != "name"]
    if not keys:
        return None
    first = next(iter(rows.values()))

    def make_cell(row: Mapping[str, Any], key: str) -> Cell:
        same = row is not first and row.get(key) == first.get(key)
        return Cell(format_value(row[key]) if key in row else "–", style="same" if same else "")

    names = [Cell(label, colour=choose_colour(place)) for place, label in enumerate(rows)]
    table = [[Cell(), *names], *([Cell(key), *(make_cell(row, key) for row in rows.values())] for key in keys)]
    if len(keys) <= len(rows):
        table = [list(column) for column in zip(*table, strict=True)]
    caption = "All other settings are the same. Grey: as the first contender; –: not used."
    return "table", "Different settings", table[0], table[1:], caption


def show_notes(comparison: Comparison) -> Part:
    cards = [make_card("warning", lines=[("", note)]) for note in comparison.notes]
    caption = "compare.json holds every number of this page; each run's folder next to this page has its own report.html."
    return "findings", "Notes" if cards else "", cards, "", caption


# -- plots -------------------------------------------------------------------------------------------------------------


def show_dots(comparison: Comparison) -> Part | None:
    """pass@1 after training: a dot with its interval per seed, a bar at the mean, a dashed line at the common start."""
    shown = [(place, one) for place, one in enumerate(comparison.contenders) if one.summarise_seeds("after", "pass@1")]
    if not shown:
        return None
    values = [value for _, one in shown for run in one.finished for value in read_after(run) if value is not None]
    low, high, start = min(values), max(values), find_common_start(comparison)
    if start is not None and high - min(low, start) > 2.5 * (high - low):
        start = None  # it would squeeze the dots into a corner
    low, high = (low, high) if start is None else (min(low, start), max(high, start))
    room = max(0.005, 0.04 * (high - low))
    low, high = max(0.0, low - room), min(1.0, high + room)
    seeds = len(comparison.seeds)
    row = max(ROW, SEED_GAP * seeds + 16)
    height = TOP + row * len(shown) + BOTTOM
    left = 40 + CHARACTER * max(len(one.label) for _, one in shown)
    scale = Scale(low, high, 0.0, 1.0, left, WIDTH - RIGHT, TOP, height - BOTTOM)
    marks: list[Mark] = []
    for x, style, text in [
        *((scale.x(tick), "grid", write_value(tick, share=True)) for tick in find_ticks(low, high, 8)),
        *([(scale.x(start), "start", "")] if start is not None else []),
    ]:
        marks.append(make_mark("line", style, x1=x, x2=x, y1=TOP, y2=height - BOTTOM))
        marks += [make_mark("text", "tick", text, x=x, y=height - 10, text_anchor="middle")] if text else []
    for line, (place, one) in enumerate(shown):
        marks += draw_dots(f"c{choose_colour(place)}", one, TOP + row * (line + 0.5), scale)
    ends = ", ".join(f"{one.label} {write_percent(average_after(one), 1)}" for _, one in shown)
    caption = (
        "One dot per seed with its 95 % interval over problems; the bar is the mean."
        if seeds > 1
        else "95 % intervals over problems."
    )
    caption += " The dashed line is the common start." if start is not None else ""
    label, title = f"pass@1 after training: {ends}", f"pass@1 on {name_set(comparison.sets[0])}"
    return "figures", "After training", [Figure(title, caption, label, marks, style="dots", width=WIDTH, height=height)], ""


def draw_dots(style: str, contender: ContenderResult, y: float, scale: Scale) -> Iterator[Mark]:
    """One row: the seeds above each other around its middle."""
    runs = contender.finished
    yield make_mark("text", "name", contender.label, x=0, y=y + 5)
    for index, run in enumerate(runs):
        value, low, high = read_after(run)
        if value is None:
            continue
        line = y + (index - (len(runs) - 1) / 2) * SEED_GAP
        text = f"{contender.label}, seed {run.seed}: {write_percent(value, 1)}"
        if low is not None and high is not None:
            yield make_mark("line", f"whisker {style}", text, x1=scale.x(low), x2=scale.x(high), y1=line, y2=line)
        yield make_mark("circle", f"dot {style}", text, cx=scale.x(value), cy=line, r=4.6)
    if len(runs) > 1:
        middle, half = scale.x(average_after(contender)), (len(runs) - 1) / 2 * SEED_GAP + 8
        yield make_mark("line", f"mean {style}", x1=middle, x2=middle, y1=y - half, y2=y + half)


def average_after(contender: ContenderResult) -> float:
    return float(as_dict(contender.summarise_seeds("after", "pass@1"))["mean"])


def read_after(run: RunResult) -> tuple[float | None, ...]:
    """pass@1 after training on the first set, with its interval."""
    entry = as_dict(as_dict(as_dict(next(iter(run.sets.values()), {})).get("after")).get("pass@1"))
    return tuple(as_number(entry.get(key)) for key in ("value", "low", "high"))


def show_curves(comparison: Comparison) -> Part | None:
    """Means over seeds. At most six lines per chart, the first contender in each."""
    places = list(range(1, len(comparison.contenders)))
    groups = [[0, *places[i : i + COLOURS - 1]] for i in range(0, len(places), COLOURS - 1)] or [[0]]
    where = name_set(comparison.sets[0]) if comparison.sets else "no set"
    charts = []
    for group in groups:
        training, held_out = [], []
        for place in group:
            label, runs, colour = comparison.contenders[place].label, comparison.contenders[place].runs, choose_colour(place)
            training.append(Series(label, average_curves([run.success_curve for run in runs]), colour=colour))
            evaluated = average_curves([] if comparison.different else [run.evaluation_curve for run in runs])
            held_out.append(Series(label, evaluated, marks=True, colour=colour))
        faint = "Share of successful training completions; faint: every step, strong: smoothed."
        charts.append(Chart("Training success", faint, tuple(training), share=True))
        fewer = f"On {where}; intermediate evaluations may use fewer problems."
        charts.append(Chart("Held-out pass@1", fewer, tuple(held_out), share=True))
    return show_charts("During training", charts)


def average_curves(runs: Sequence[Points]) -> list[tuple[float, float]]:
    """The mean at each step that all curves have: with changing members it would jump where one ends."""
    known = [dict(points) for points in runs if points]
    steps = sorted(set.intersection(*(set(points) for points in known))) if known else []
    return [(step, fmean(points[step] for points in known)) for step in steps]
