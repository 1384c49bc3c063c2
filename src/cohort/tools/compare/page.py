"""compare.html: one self-contained page for several contenders, in the style of report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from cohort.base.text import write_percent
from cohort.evaluation.estimators import UNCLEAR
from cohort.observe.outcome import colour_change, name_set
from cohort.observe.report.charts import Chart, Figure, Mark, Points, Scale, Series, find_ticks, make_mark, write_value
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.report.frame import Cell, Part, render_page
from cohort.observe.report.page import make_card, make_interval_cell
from cohort.observe.report.plots import show_charts
from cohort.recipe.words import format_value as choice_text
from cohort.tools.compare.measure import Contest, Measured, Standing
from cohort.tools.compare.table import list_cells, write_count, write_interval

COLOURS = 6
WIDTH, RIGHT, TOP, BOTTOM = 1080, 24, 8, 30
ROW, SEED_GAP = 34, 13
CHARACTER = 10.5
"""Room for a character of a name, on a phone too."""


def render_comparison(comparison: Contest) -> str:
    sections = (
        show_header,
        show_dots,
        show_results,
        show_costs,
        show_curves,
        show_outlook,
        show_choices,
        show_other_sets,
        show_notes,
    )
    names = " · ".join(standing.label for standing in comparison.standings)
    return render_page(f"{names} · Cohort comparison", sections, comparison)


def choose_colour(place: int) -> int:
    """The first contender has a colour of its own; the others share the rest, in charts of five."""
    return 0 if place == 0 else 1 + (place - 1) % (COLOURS - 1)


# -- the top -----------------------------------------------------------------------------------------------------------


def show_header(comparison: Contest) -> Part:
    sentence, detail = describe_comparison(comparison)
    budget = comparison.budget
    words = [
        f"recipe {comparison.field.base_name}",
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {', '.join(map(str, comparison.seeds))}",
        f"{budget['train.num_steps']} steps of {budget['train.prompts_per_step']} prompts × {budget['train.group_size']} completions",
    ]
    return "header", sentence, [detail], f"{len(comparison.standings)} contenders", "", words


def describe_comparison(comparison: Contest) -> tuple[str, str]:
    """One sentence anybody understands, and one that says how sure it is."""
    scored = [(after["mean"], s) for s in comparison.standings if (after := s.summarise_seeds("after", "pass@1"))]
    if not scored and any(standing.finished for standing in comparison.standings) and comparison.unlike:
        return "Not all runs were evaluated on the same problems.", "So no mean is taken and nothing is ranked; see below."
    if not scored:
        return "No contender has a result yet.", "The reasons are below."
    first = comparison.standings[0]
    best, winner = max(scored, key=lambda pair: pair[0])
    where = name_set(comparison.sets[0])
    sentence = f"{winner.label} ended highest: {write_percent(best, 1)} pass@1 on {where}."
    caution = " p-values are those of single pairs, not corrected for the number of contenders." if len(scored) > 2 else ""
    paired = next(iter(winner.against_first.values()), None)
    if paired:
        sure = f"{100 * paired.difference:+.1f} points against {first.label} ({paired.sureness})"
        if paired.verdict == UNCLEAR:
            return f"{sentence[:-1]}, but not by more than noise.", f"{sure}.{caution}"
        return sentence, f"{sure}.{caution}"
    told = [s.label for _, s in scored if (p := next(iter(s.against_first.values()), None)) and p.verdict != UNCLEAR]
    others = f"Below it by more than noise: {', '.join(told)}." if told else "No other contender can be told from it."
    return sentence, others + caution if len(scored) > 1 else ""


# -- the tables --------------------------------------------------------------------------------------------------------


def show_results(comparison: Contest) -> Part:
    votes, several = comparison.votes, len(comparison.seeds) > 1
    columns: dict[str, str | Cell] = {
        "before": "pass@1 before",
        "after": Cell("pass@1 after", " [min, max]" if several else " [95 %]"),
        "against": Cell(f"against {comparison.standings[0].label}", " [95 %]"),
        "p": "p",
        "majority": f"maj@{votes}",
        "any": f"pass@{votes}",
    }
    means = "Means over seeds; the brackets after pass@1 hold the least and the greatest seed. " if several else ""
    where = name_set(comparison.sets[0]) if comparison.sets else "no evaluation"
    caption = "Differences, their 95 % intervals and p-values are over problems, paired; they say nothing about other seeds."
    return make_table("Results", comparison, columns, f"On {where}. {means}{caption}")


def show_costs(comparison: Contest) -> Part:
    columns: dict[str, str | Cell] = {
        "kl": Cell("KL", " per token"),
        "length": Cell("length", " before"),
        "sampled": "sampled tokens",
        "trained": "trained tokens",
        "time": Cell("training", " whole run"),
        "memory": "memory",
        "reward": "last reward",
    }
    busy = f" Times were taken with {comparison.jobs} runs at a time." if comparison.jobs > 1 else ""
    caption = (
        "KL(policy || start) in nats per completion, measured after training in the same way for all: the final policy answers "
        "held-out prompts, both models score what it wrote. Length: tokens per held-out completion. Last reward: training reward, "
        f"mean of the last 10 steps. A shared cold start is in nobody's time.{busy}"
    )
    return make_table("Distance and cost", comparison, columns, caption)


def make_table(title: str, comparison: Contest, columns: Mapping[str, str | Cell], caption: str) -> Part:
    """One row per contender with the cells of these columns; one without a result says why, across all of them."""
    rows = []
    for place, standing in enumerate(comparison.standings):
        if standing.finished:
            found = list_cells(standing, comparison)
            cells = [found[column] for column in columns]
        else:
            reasons = "; ".join(dict.fromkeys(run.reason for run in standing.runs if run.reason))
            cells = [Cell(reasons, style="why", span=len(columns))]
        rows.append([Cell(standing.label, colour=choose_colour(place)), *cells])
    return "table", title, ["contender", *columns.values()], rows, caption


# -- plots -------------------------------------------------------------------------------------------------------------


def show_dots(comparison: Contest) -> Part | None:
    """After pass@1: one dot with its interval per seed, a bar at the mean, a dashed line where the shared start stood."""
    shown = [(place, s) for place, s in enumerate(comparison.standings) if s.summarise_seeds("after", "pass@1")]
    if not shown:
        return None
    starts = [v for _, s in shown for run in s.finished if (v := run.find_number("before", "pass@1")) is not None]
    low, high, same_start = find_span(shown, starts)
    seeds = len(comparison.seeds)
    row = max(ROW, SEED_GAP * seeds + 16)
    height = TOP + row * len(shown) + BOTTOM
    left = 40 + CHARACTER * max(len(standing.label) for _, standing in shown)
    scale = Scale(low, high, 0.0, 1.0, left, WIDTH - RIGHT, TOP, height - BOTTOM)
    marks: list[Mark] = []
    for tick in find_ticks(low, high, 8):
        x = scale.x(tick)
        marks.append(make_mark("line", "grid", x1=x, x2=x, y1=TOP, y2=height - BOTTOM))
        marks.append(make_mark("text", "tick", write_value(tick, share=True), x=x, y=height - 10, text_anchor="middle"))
    if same_start:
        x = scale.x(starts[0])
        marks.append(make_mark("line", "start", x1=x, x2=x, y1=TOP, y2=height - BOTTOM))
    for line, (place, standing) in enumerate(shown):
        marks += draw_dots(place, standing, TOP + row * (line + 0.5), scale)
    ends = ", ".join(f"{s.label} {write_percent(average_after(s), 1)}" for _, s in shown)
    many = "One dot per seed with its 95 % interval over problems; the bar is the mean."
    caption = f"{many if seeds > 1 else '95 % intervals over problems.'} "
    caption += "The dashed line is where all of them started." if same_start else ""
    label, title = f"pass@1 after training: {ends}", f"pass@1 on {name_set(comparison.sets[0])}"
    drawn = Figure(title, caption, label, marks, style="dots", width=WIDTH, height=height)
    return "figures", "After training", [drawn], ""


def draw_dots(place: int, standing: Standing, y: float, scale: Scale) -> list[Mark]:
    """Seeds above each other around the row's middle."""
    style, runs = f"c{choose_colour(place)}", standing.finished
    marks = [make_mark("text", "name", standing.label, x=0, y=y + 5)]
    for index, run in enumerate(runs):
        value, low, high = read_after(run)
        if value is None:
            continue
        line = y + (index - (len(runs) - 1) / 2) * SEED_GAP
        told = f"{standing.label}, seed {run.seed}: {write_percent(value, 1)}"
        if low is not None and high is not None:
            marks.append(make_mark("line", f"whisker {style}", told, x1=scale.x(low), x2=scale.x(high), y1=line, y2=line))
        marks.append(make_mark("circle", f"dot {style}", told, cx=scale.x(value), cy=line, r=4.6))
    if len(runs) > 1:
        middle, half = scale.x(average_after(standing)), (len(runs) - 1) / 2 * SEED_GAP + 8
        marks.append(make_mark("line", f"mean {style}", x1=middle, x2=middle, y1=y - half, y2=y + half))
    return marks


def average_after(standing: Standing) -> float:
    return float(as_dict(standing.summarise_seeds("after", "pass@1"))["mean"])


def read_after(run: Measured) -> tuple[float | None, float | None, float | None]:
    """pass@1 after training on the first set, with its interval."""
    entry = as_dict(as_dict(as_dict(next(iter(run.sets.values()), {})).get("after")).get("pass@1"))
    value, low, high = (as_number(entry.get(key)) for key in ("value", "low", "high"))
    return value, low, high


def find_span(shown: Sequence[tuple[int, Standing]], starts: Sequence[float]) -> tuple[float, float, bool]:
    """(low, high, whether the common start is drawn): all intervals with a little room, inside [0, 1].

    The start is left out where it would push what is to be compared into a corner.
    """
    values = [value for _, standing in shown for run in standing.finished for value in read_after(run) if value is not None]
    low, high = min(values), max(values)
    draw = bool(starts) and max(starts) - min(starts) < 1e-9 and high - min(low, starts[0]) <= 2.5 * (high - low)
    if draw:
        low, high = min(low, starts[0]), max(high, starts[0])
    room = max(0.005, 0.04 * (high - low))
    return max(0.0, low - room), min(1.0, high + room), draw


def show_curves(comparison: Contest) -> Part | None:
    """Means over seeds. At most six lines per chart; the first contender is in each, to compare with."""
    places = list(range(1, len(comparison.standings)))
    groups = [[0, *places[i : i + COLOURS - 1]] for i in range(0, len(places), COLOURS - 1)] or [[0]]
    where = name_set(comparison.sets[0]) if comparison.sets else "no set"
    charts = []
    for group in groups:
        training, held_out = [], []
        for place in group:
            label, runs, colour = comparison.standings[place].label, comparison.standings[place].runs, choose_colour(place)
            training.append(Series(label, average_curves([run.success_curve for run in runs]), colour=colour))
            looks = average_curves([] if comparison.unlike else [run.evaluation_curve for run in runs])
            held_out.append(Series(label, looks, marks=True, colour=colour))
        faint = "Share of the completions sampled in training that succeed; faint: every step, strong: smoothed."
        charts.append(Chart("Training success", faint, tuple(training), share=True))
        fewer = f"On {where}; looks between the ends may use fewer problems."
        charts.append(Chart("Held-out pass@1", fewer, tuple(held_out), share=True))
    return show_charts("On the way", charts)


def show_outlook(comparison: Contest) -> Part | None:
    """Compute against result: where each curve tends to, and whether more steps are worth it."""
    rows = []
    for place, standing in enumerate(comparison.standings):
        if standing.finished:
            name, fit = Cell(standing.label, colour=choose_colour(place)), standing.outlook
            if isinstance(fit, str):
                rows.append([name, Cell(fit, style="why", span=5)])
            else:
                top, numbers = (
                    make_interval_cell(fit.asymptote.to_json()),
                    (f"{fit.steepness.value:.1f}", write_count(fit.middle.value)),
                )
                noise, verdict = Cell(write_percent(fit.noise, 1)), Cell(fit.verdict, style="why")
                rows.append([name, top, *map(Cell, numbers), noise, verdict])
    caption = (
        "Held-out pass@1 against sampled tokens C: R0 + (A - R0) / (1 + (C_mid / C)^B), by least squares over the looks of all seeds; intervals by "
        "resampling the residuals. They hold if the curve does: further out it is a guess. Worth it: a point or more for twice the compute."
    )
    heads = ["contender", Cell("A", " [95 %]"), "B", "C_mid", "noise", "more steps?"]
    return ("table", "Compute and result", heads, rows, caption) if rows else None


def average_curves(runs: Sequence[Points]) -> list[tuple[float, float]]:
    """Mean at each step that every run with a curve has: a mean over changing members would jump where one ends."""
    known = [dict(points) for points in runs if points]
    steps = sorted(set.intersection(*(set(points) for points in known))) if known else []
    return [(step, fmean(points[step] for points in known)) for step in steps]


# -- words -------------------------------------------------------------------------------------------------------------


def show_choices(comparison: Contest) -> Part | None:
    """What the contenders differ in, and only that. The longer side goes down the page."""
    rows = comparison.list_choices()
    keys = [key for key in dict.fromkeys(key for row in rows.values() for key in row) if key != "name"]
    if not keys:
        return None
    names = [Cell(label, colour=choose_colour(place)) for place, label in enumerate(rows)]
    first = next(iter(rows.values()))
    cells = [[Cell(key), *(compare_choice(row, first, key) for row in rows.values())] for key in keys]
    table = [[Cell(), *names], *cells]
    if len(keys) <= len(rows):
        table = [list(column) for column in zip(*table, strict=True)]
    caption = "Everything else in the recipe is the same. Grey: as the first contender; –: not used."
    return "table", "What they differ in", table[0], table[1:], caption


def compare_choice(row: Mapping[str, Any], first: Mapping[str, Any], key: str) -> Cell:
    same = row is not first and row.get(key) == first.get(key)
    return Cell(choice_text(row[key]) if key in row else "–", style="same" if same else "")


def show_other_sets(comparison: Contest) -> Part | None:
    names = comparison.sets[1:]
    if not names:
        return None
    rows = []
    for place, standing in enumerate(comparison.standings):
        cells = []
        for name in names:
            mean, paired = standing.summarise_seeds("after", "pass@1", name), standing.against_first.get(name)
            change = f"{100 * paired.difference:+.1f}{write_interval(paired)}" if paired else ""
            cells.append(Cell(write_percent(mean["mean"], 1) if mean else "–", change, style=colour_change(paired, {}, {})))
        rows.append([Cell(standing.label, colour=choose_colour(place)), *cells])
    caption = f"Small: difference to {comparison.standings[0].label} with its 95 % interval."
    return "table", "Other sets", ["pass@1 after", *names], rows, caption


def show_notes(comparison: Contest) -> Part:
    notes = [*comparison.unlike.values()]
    notes += [f"{s.label} {s.contender.note}." for s in comparison.standings if s.contender.note]
    notes += [f"{', '.join(names)}: {reason}" for reason, names in comparison.failures.items()]
    cards = [make_card("warning", lines=[("", note)]) for note in notes]
    caption = (
        "compare.json holds every number of this page; each run has a report.html of its own in its folder beside this page."
    )
    return "findings", "To be known" if notes else "", cards, "", caption
