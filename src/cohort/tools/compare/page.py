"""compare.html: one self-contained page for several contenders, in the style of report.html. Every text is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from cohort.evaluation.estimators import UNCLEAR, PairedDifference
from cohort.observe.changes import change_style, percent, spoken
from cohort.observe.report.charts import Chart, Points, Series, figure, ticks
from cohort.observe.report.data import as_dict, number
from cohort.observe.report.frame import frame, text
from cohort.observe.report.page import duration, with_interval
from cohort.recipe.choices import written as choice_text
from cohort.tools.compare.measure import Comparison, Measured, Standing
from cohort.tools.compare.table import compact, interval, p_text, plain

COLOURS = 6
WIDTH, RIGHT, TOP, BOTTOM = 1080, 24, 8, 30
ROW, SEED_GAP = 34, 13
CHARACTER = 10.5
"""Room for a character of a name, on a phone too."""

MORE_CSS = """
.dots svg{display:block;width:100%;min-width:480px;height:auto}
.name{fill:var(--ink);font-size:14px}
.start{stroke:var(--soft);stroke-dasharray:4 4}
.mean{stroke:currentColor;stroke-width:3;stroke-linecap:round}
td i,th i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px;background:currentColor}
td.why{text-align:left;white-space:normal;color:var(--bad)}
td.same{color:var(--soft)}
@media(max-width:640px){.name{font-size:20px}.dots .tick{font-size:18px}}
"""


def render(comparison: Comparison) -> str:
    sections = (header, dots, table, costs, curves, choices, other_sets, remarks)
    names = " · ".join(standing.label for standing in comparison.standings)
    return frame(f"{names} · Cohort comparison", sections, comparison, MORE_CSS)


def colour(place: int) -> str:
    """The first contender has a colour of its own; the others share the rest, in charts of five."""
    return f"c{0 if place == 0 else 1 + (place - 1) % (COLOURS - 1)}"


# -- the top -----------------------------------------------------------------------------------------------------------


def header(comparison: Comparison) -> str:
    sentence, detail = verdict(comparison)
    seeds = ", ".join(map(str, comparison.seeds))
    budget = comparison.budget
    words = (
        f"recipe {comparison.base_name}",
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {seeds}",
        f"{budget['train.num_steps']} steps of {budget['train.prompts_per_step']} prompts × {budget['train.group_size']} completions",
    )
    spans = "".join(f"<span>{text(word)}</span>" for word in words)
    return (
        f'<header><div class="top"><h1>{len(comparison.standings)} contenders</h1>{spans}</div>'
        f'<p class="verdict">{text(sentence)}</p><p class="sub">{text(detail)}</p></header>'
    )


def verdict(comparison: Comparison) -> tuple[str, str]:
    """One sentence anybody understands, and one that says how sure it is."""
    scored = [(after["mean"], s) for s in comparison.standings if (after := s.over_seeds("after", "pass@1"))]
    if not scored and any(standing.finished for standing in comparison.standings) and comparison.unlike:
        return "Not all runs were evaluated on the same problems.", "So no mean is taken and nothing is ranked; see below."
    if not scored:
        return "No contender has a result yet.", "The reasons are below."
    first = comparison.standings[0]
    best, winner = max(scored, key=lambda pair: pair[0])
    where = spoken(comparison.sets[0])
    sentence = f"{winner.label} ended highest: {percent(best)} pass@1 on {where}."
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


# -- the table ---------------------------------------------------------------------------------------------------------


def table(comparison: Comparison) -> str:
    votes, several = comparison.votes, len(comparison.seeds) > 1
    first = text(comparison.standings[0].label)
    heads = (
        "contender", "pass@1 before", f"pass@1 after<small> [{'min, max' if several else '95 %'}]</small>",
        f"against {first}<small> [95 %]</small>", "p", f"maj@{votes}", f"pass@{votes}",
    )  # fmt: skip

    def cells(standing: Standing) -> list[str]:
        paired = next(iter(standing.against_first.values()), None)
        return [
            mean_cell(standing, "before", "pass@1"),
            after_cell(standing, several),
            paired_cell(paired),
            f"<td>{p_text(paired.p_value) if paired else ''}</td>",
            mean_cell(standing, "after", f"maj@{votes}"),
            mean_cell(standing, "after", f"pass@{votes}"),
        ]

    means = "Means over seeds; the brackets after pass@1 hold the least and the greatest seed. " if several else ""
    where = text(spoken(comparison.sets[0]) if comparison.sets else "no evaluation")
    return (
        f'<h2>Results</h2>{rows_table(comparison, heads, cells)}<p class="caption">On {where}. {means}Differences, their 95 % '
        "intervals and p-values are over problems, paired; they say nothing about other seeds.</p>"
    )


def costs(comparison: Comparison) -> str:
    heads = (
        "contender", "KL<small> per token</small>", "length<small> before</small>", "sampled tokens", "trained tokens",
        "training<small> whole run</small>", "memory", "last reward",
    )  # fmt: skip

    def cells(standing: Standing) -> list[str]:
        runs = standing.finished
        before, after = (as_dict(standing.over_seeds(side, "length_mean")).get("mean") for side in ("before", "after"))
        per_token = standing.mean([number(as_dict((run.kl or {}).get("per_token")).get("value")) for run in runs])
        memory = max((run.peak_memory_gib for run in runs if run.peak_memory_gib is not None), default=None)
        whole = standing.mean([run.whole_seconds for run in runs])
        return [
            f"<td>{plain(standing.kl, 2)}<small>{plain(per_token, 3)}</small></td>",
            f"<td>{plain(after, 1)}<small>{plain(before, 1)}</small></td>",
            f"<td>{compact(standing.mean([run.sampled_tokens for run in runs]))}</td>",
            f"<td>{compact(standing.mean([run.trained_tokens for run in runs]))}</td>",
            f"<td>{duration(standing.mean([run.training_seconds for run in runs]))}<small>{duration(whole)}</small></td>",
            f"<td>{plain(memory, 2)}{' GiB' if memory is not None else ''}</td>",
            f"<td>{plain(standing.mean([run.last_reward for run in runs]), 3)}</td>",
        ]

    busy = f" Times were taken with {comparison.jobs} runs at a time." if comparison.jobs > 1 else ""
    return (
        f'<h2>Distance and cost</h2>{rows_table(comparison, heads, cells)}<p class="caption">KL(policy || start) in nats per completion, '
        "measured after training in the same way for all: the final policy answers held-out prompts, both models score what it wrote. "
        "Length: tokens per held-out completion. Last reward: training reward, mean of the last 10 steps. A shared cold start is in "
        f"nobody's time.{busy}</p>"
    )


def rows_table(comparison: Comparison, heads: Sequence[str], cells: Callable[[Standing], list[str]]) -> str:
    """One row per contender; one without a result says why, across all columns."""
    body = ""
    for place, standing in enumerate(comparison.standings):
        if standing.finished:
            row = "".join(cells(standing))
        else:
            reasons = "; ".join(dict.fromkeys(run.reason for run in standing.runs if run.reason))
            row = f'<td class="why" colspan="{len(heads) - 1}">{text(reasons)}</td>'
        body += f'<tr><td><i class="{colour(place)}"></i>{text(standing.label)}</td>{row}</tr>'
    head = "".join(f"<th>{one}</th>" for one in heads)
    return f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def mean_cell(standing: Standing, side: str, what: str, name: str = "") -> str:
    mean = standing.over_seeds(side, what, name)
    return f"<td>{percent(mean['mean']) if mean else '–'}</td>"


def after_cell(standing: Standing, several: bool) -> str:
    mean = standing.over_seeds("after", "pass@1")
    if mean is None:
        return "<td>–</td>"
    if several:
        return f"<td><b>{percent(mean['mean'])}</b><small>[{100 * mean['min']:.1f}, {100 * mean['max']:.1f}]</small></td>"
    entry = as_dict(next(iter(standing.finished[0].sets.values()))["after"]["pass@1"])
    return f"<td>{with_interval(entry, True)}</td>"


def paired_cell(paired: PairedDifference | None) -> str:
    if paired is None:
        return '<td class="none">–</td>'
    return f'<td class="{change_style(paired, {}, {})}">{100 * paired.difference:+.1f}<small>{interval(paired)}</small></td>'


# -- plots -------------------------------------------------------------------------------------------------------------


def dots(comparison: Comparison) -> str:
    """After pass@1: one dot with its interval per seed, a bar at the mean, a dashed line where the shared start stood."""
    shown = [(place, s) for place, s in enumerate(comparison.standings) if s.over_seeds("after", "pass@1")]
    if not shown:
        return ""
    starts = [v for _, s in shown for run in s.finished if (v := run.number("before", "pass@1")) is not None]
    low, high, same_start = span(shown, starts)
    seeds = len(comparison.seeds)
    row = max(ROW, SEED_GAP * seeds + 16)
    height = TOP + row * len(shown) + BOTTOM
    left = 40 + CHARACTER * max(len(standing.label) for _, standing in shown)

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT)

    parts = []
    for tick in ticks(low, high, 8):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        label = f"{100 * tick:.0f} %" if abs(100 * tick - round(100 * tick)) < 1e-6 else f"{100 * tick:.1f} %"
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{height - 10}" text-anchor="middle">{label}</text>')
    if same_start:
        parts.append(f'<line class="start" x1="{x(starts[0]):.1f}" x2="{x(starts[0]):.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
    for line, (place, standing) in enumerate(shown):
        parts.append(dot_row(place, standing, TOP + row * (line + 0.5), x))
    described = "pass@1 after training: " + ", ".join(f"{s.label} {percent(mean_after(s))}" for _, s in shown)
    many = seeds > 1
    caption = (
        "One dot per seed with its 95 % interval over problems; the bar is the mean. "
        if many
        else "95 % intervals over problems. "
    )
    caption += "The dashed line is where all of them started." if same_start else ""
    return (
        f'<h2>After training</h2><figure class="card dots"><figcaption><h3>pass@1 on {text(spoken(comparison.sets[0]))}</h3></figcaption>'
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{text(described)}">{"".join(parts)}</svg></div>'
        f'<p class="caption">{caption}</p></figure>'
    )


def dot_row(place: int, standing: Standing, y: float, x: Callable[[float], float]) -> str:
    """Seeds above each other around the row's middle."""
    parts = [f'<text class="name" x="0" y="{y + 5:.1f}">{text(standing.label)}</text><g class="{colour(place)}">']
    runs = standing.finished
    for index, run in enumerate(runs):
        entry = after_entry(run)
        value, low, high = (number(entry.get(key)) for key in ("value", "low", "high"))
        if value is None:
            continue
        line = y + (index - (len(runs) - 1) / 2) * SEED_GAP
        parts.append(f"<g><title>{text(standing.label)}, seed {run.seed}: {percent(value)}</title>")
        if low is not None and high is not None:
            parts.append(f'<line class="whisker" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{line:.1f}" y2="{line:.1f}"/>')
        parts.append(f'<circle class="dot" cx="{x(value):.1f}" cy="{line:.1f}" r="4.6"/></g>')
    if len(runs) > 1:
        middle, half = x(mean_after(standing)), (len(runs) - 1) / 2 * SEED_GAP + 8
        parts.append(f'<line class="mean" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - half:.1f}" y2="{y + half:.1f}"/>')
    return "".join(parts) + "</g>"


def mean_after(standing: Standing) -> float:
    return float(as_dict(standing.over_seeds("after", "pass@1"))["mean"])


def after_entry(run: Measured) -> dict[str, Any]:
    return as_dict(as_dict(as_dict(next(iter(run.sets.values()), {})).get("after")).get("pass@1"))


def span(shown: Sequence[tuple[int, Standing]], starts: Sequence[float]) -> tuple[float, float, bool]:
    """(low, high, whether the common start is drawn): all intervals with a little room, inside [0, 1].

    The start is left out where it would push what is to be compared into a corner.
    """
    values = []
    for _, standing in shown:
        for run in standing.finished:
            values += [v for key in ("value", "low", "high") if (v := number(after_entry(run).get(key))) is not None]
    low, high = min(values), max(values)
    draw = bool(starts) and max(starts) - min(starts) < 1e-9 and high - min(low, starts[0]) <= 2.5 * (high - low)
    if draw:
        low, high = min(low, starts[0]), max(high, starts[0])
    room = max(0.005, 0.04 * (high - low))
    return max(0.0, low - room), min(1.0, high + room), draw


def curves(comparison: Comparison) -> str:
    """Means over seeds. At most six lines per chart; the first contender is in each, to compare with."""
    places = list(range(1, len(comparison.standings)))
    groups = [[0, *places[i : i + COLOURS - 1]] for i in range(0, len(places), COLOURS - 1)] or [[0]]
    drawn = []
    for group in groups:
        members = [comparison.standings[place] for place in group]
        charts = (
            Chart(
                "Training success",
                "Share of the completions sampled in training that succeed; faint: every step, strong: smoothed.",
                tuple(Series(s.label, mean_curve([run.success_curve for run in s.runs])) for s in members),
                share=True,
            ),
            Chart(
                "Held-out pass@1",
                f"On {spoken(comparison.sets[0]) if comparison.sets else 'no set'}; looks between the ends may use fewer problems.",
                ()
                if comparison.unlike
                else tuple(Series(s.label, mean_curve([r.evaluation_curve for r in s.runs]), marks=True) for s in members),
                share=True,
            ),
        )
        drawn += [coloured(figure(chart), group) for chart in charts if not chart.empty]
    return f'<h2>On the way</h2><div class="grid2">{"".join(drawn)}</div>' if drawn else ""


def coloured(drawing: str, group: Sequence[int]) -> str:
    """A chart numbers its lines; here a line has its contender's colour."""
    colours = [colour(place) for place in group]
    return re.sub(r'(class="(?:[a-z]+ )*)c(\d)"', lambda found: f'{found[1]}{colours[int(found[2])]}"', drawing)


def mean_curve(runs: Sequence[Points]) -> list[tuple[float, float]]:
    """Mean at each step that every run with a curve has: a mean over changing members would jump where one ends."""
    known = [dict(points) for points in runs if points]
    steps = sorted(set.intersection(*(set(points) for points in known))) if known else []
    return [(step, fmean(points[step] for points in known)) for step in steps]


# -- words -------------------------------------------------------------------------------------------------------------


def choices(comparison: Comparison) -> str:
    """What the contenders differ in, and only that. The longer side goes down the page."""
    rows = comparison.choices()
    keys = [key for key in dict.fromkeys(key for row in rows.values() for key in row) if key != "name"]
    if not keys:
        return ""
    labels = list(rows)
    names = [f'<i class="{colour(place)}"></i>{text(label)}' for place, label in enumerate(labels)]
    cells = {(label, key): choice_cell(rows, labels[0], label, key) for label in labels for key in keys}
    if len(keys) > len(labels):
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join(f"<tr><td>{text(key)}</td>{''.join(cells[label, key] for label in labels)}</tr>" for key in keys)
    else:
        head = "".join(f"<th>{text(key)}</th>" for key in keys)
        body = "".join(
            f"<tr><td>{name}</td>{''.join(cells[label, key] for key in keys)}</tr>"
            for name, label in zip(names, labels, strict=True)
        )
    return (
        f'<h2>What they differ in</h2><div class="card scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody>'
        '</table></div><p class="caption">Everything else in the recipe is the same. Grey: as the first contender; –: not used.</p>'
    )


def choice_cell(rows: Mapping[str, Mapping[str, Any]], first: str, label: str, key: str) -> str:
    same = label != first and rows[label].get(key) == rows[first].get(key)
    written = text(choice_text(rows[label][key])) if key in rows[label] else "–"
    return f'<td class="{"same" if same else ""}">{written}</td>'


def other_sets(comparison: Comparison) -> str:
    names = comparison.sets[1:]
    if not names:
        return ""
    head = "".join(f"<th>{text(name)}</th>" for name in names)
    body = ""
    for place, standing in enumerate(comparison.standings):
        cells = ""
        for name in names:
            mean, paired = standing.over_seeds("after", "pass@1", name), standing.against_first.get(name)
            style = change_style(paired, {}, {})
            change = f"<small>{100 * paired.difference:+.1f}{interval(paired)}</small>" if paired else ""
            cells += f'<td class="{style}">{percent(mean["mean"]) if mean else "–"}{change}</td>'
        body += f'<tr><td><i class="{colour(place)}"></i>{text(standing.label)}</td>{cells}</tr>'
    return (
        f'<h2>Other sets</h2><div class="card scroll"><table><thead><tr><th>pass@1 after</th>{head}</tr></thead><tbody>{body}</tbody>'
        f'</table></div><p class="caption">Small: difference to {text(comparison.standings[0].label)} with its 95 % interval.</p>'
    )


def remarks(comparison: Comparison) -> str:
    notes = [*comparison.unlike.values()]
    notes += [f"{s.label} {s.contender.note}." for s in comparison.standings if s.contender.note]
    notes += [f"{', '.join(names)}: {reason}" for reason, names in comparison.failures.items()]
    items = "".join(f'<p class="card finding warning">{text(note)}</p>' for note in notes)
    notes_part = f'<h2>To be known</h2><div class="findings">{items}</div>' if items else ""
    return (
        f'{notes_part}<p class="caption">compare.json holds every number of this page; each run has a report.html of its own in '
        "its folder beside this page.</p>"
    )
