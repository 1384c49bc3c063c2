"""Several runs in one page: the same charts with a line for each, and a table of before and after. Every text is escaped.

It overlays runs that exist, whatever their recipes; `cohort compare` trains contenders from one start. A difference between two runs is
given where both answered the same problems, and as a pair, problem by problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.errors import RunError
from cohort.evaluation.estimators import UNCLEAR
from cohort.evaluation.evaluate import Evaluation, compare
from cohort.observe.changes import change_style, spoken
from cohort.observe.report.charts import COLOURS, Chart, Series, figure
from cohort.observe.report.data import RunData, as_dict, load_run, number
from cohort.observe.report.ends import failure
from cohort.observe.report.frame import frame, text
from cohort.observe.report.page import duration, held_out, with_interval

MORE_CSS = """
td i,th i,li i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px;background:currentColor}
td.run{white-space:normal;overflow-wrap:anywhere}
td.run b{font-weight:400;color:var(--ink)}
.runs{list-style:none;margin:0;padding:0}.runs li+li{margin-top:6px}.runs li{overflow-wrap:anywhere}
"""

CURVES: tuple[tuple[str, str, str, bool, str], ...] = (
    ("Reward", "Of the training completions. Thick lines are moving averages.", "reward/mean", False, ""),
    ("Success", "Share of the training completions that the outcome part calls right.", "reward/success", True, ""),
    ("Useful groups", "Groups that hold completions with different rewards.", "advantage/useful_groups", True, ""),
    ("KL to the reference", "Summed over a completion.", "loss/kl_per_completion", False, "nats"),
    ("Entropy", "Per token.", "loss/entropy", False, "nats"),
    ("Completion length", "Tokens that the policy sampled.", "rollout/length_mean", False, "tokens"),
    ("Cut completions", "Ended at max_completion_tokens.", "rollout/truncated", True, ""),
    ("Step time", "Seconds of a step.", "time/step", False, "s"),
)


@dataclass(frozen=True)
class Overlay:
    runs: Sequence[RunData]
    names: Sequence[str]
    """What each run is called on the page: the name of its folder, with the folder above where two share one."""


def load_overlay(folders: Sequence[Path]) -> Overlay:
    places = [folder.resolve() for folder in folders]
    if len(set(places)) < len(places):
        raise RunError("report: a run is named twice; name each once.")
    if len(places) > COLOURS:
        raise RunError(f"report: {len(places)} runs are more lines than can be told apart; name at most {COLOURS}.")
    short = [place.name for place in places]
    names = [f"{place.parent.name}/{place.name}" if short.count(place.name) > 1 else place.name for place in places]
    return Overlay([load_run(folder) for folder in folders], names)


def render(overlay: Overlay) -> str:
    sections = (header, table, curves, failures)
    return frame(f"{' · '.join(overlay.names)} · Cohort runs", sections, overlay, MORE_CSS)


def header(overlay: Overlay) -> str:
    sentence = f"{len(overlay.runs)} runs, side by side."
    detail = "Their recipes and problems may differ; a difference counts only where it was measured on the same problems."
    lines = "".join(
        f'<li><i class="c{index}"></i>{text(name)} <span class="badge {run.status}">{run.status}</span> {text(facts(run))}</li>'
        for index, (name, run) in enumerate(zip(overlay.names, overlay.runs, strict=True))
    )
    return (
        f'<header><p class="verdict">{text(sentence)}</p><p class="sub">{text(detail)}</p></header>'
        f'<div class="facts"><div class="card"><ul class="runs">{lines}</ul></div></div>'
    )


def facts(run: RunData) -> str:
    algorithm, source = (
        as_dict(run.recipe.get(section)).get(word) for section, word in (("algorithm", "name"), ("model", "source"))
    )
    model = Path(str(source)).name if source else ""
    took = duration(run.seconds) if run.seconds else ""
    return " · ".join(filter(None, (str(algorithm or ""), model, f"{run.steps} steps", took)))


# -- before and after --------------------------------------------------------------------------------------------------


def table(overlay: Overlay) -> str:
    """pass@1 of every run on every set, before and after, and against the first run where the problems are the same."""
    numbers = [(run.numbers("before"), run.numbers("after")) for run in overlay.runs]
    sets = list(dict.fromkeys(name for before, after in numbers for name in [*before, *after]))
    if not sets:
        return '<p class="none">None of these runs was evaluated.</p>'
    rows = []
    for name in sets:
        rows.append(f'<tr class="set"><td colspan="5">{text(spoken(name))}</td></tr>')
        for index, (run, (before, after)) in enumerate(zip(overlay.runs, numbers, strict=True)):
            a, b = before.get(name, {}), after.get(name, {})
            if a or b:
                problems = number((b or a).get("problems"))
                count = f"<small>{problems:.0f} problems</small>" if problems else ""
                first = "" if index == 0 else against(overlay.runs[0], run, name)
                rows.append(
                    f'<tr><td class="run"><i class="c{index}"></i><b>{text(overlay.names[index])}</b>{count}</td>'
                    f"<td>{cell(a)}</td><td>{cell(b)}</td>{change(run, name, a, b)}<td>{first}</td></tr>"
                )
    return (
        '<h2>pass@1 before and after</h2><div class="card scroll"><table><thead><tr><th>run</th><th>before</th><th>after</th>'
        f"<th>change</th><th>against the first</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="caption">Brackets hold 95 % intervals over problems. Against the first: after training, in points, paired on the '
        "problems that both answered.</p>"
    )


def cell(numbers: Mapping[str, Any]) -> str:
    return with_interval(as_dict(numbers.get("pass@1")), True)


def change(run: RunData, name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """In points; with a colour where the paired test is clear, as in the report of one run."""
    left, right = (number(as_dict(side.get("pass@1")).get("value")) for side in (a, b))
    if left is None or right is None:
        return "<td></td>"
    style = change_style(run.change(name), as_dict(a.get("pass@1")), as_dict(b.get("pass@1")))
    return f'<td class="{style}">{100 * (right - left):+.1f}</td>'


def against(first: RunData, other: RunData, name: str) -> str:
    """The paired difference of two final evaluations, or why there is none: a success is what a run's own rewards call one."""
    if (reason := other_measure(first, other)) is not None:
        return f'<small class="note">{reason}</small>'
    try:
        sides = [Evaluation.from_json(run.labelled("after")) for run in (first, other)]
        paired = compare(*sides).sets[name]["pass@1"]
    except (KeyError, TypeError, ValueError, AttributeError):
        return '<small class="note">no common problems</small>'
    counts = [len(side.per_problem[name].problems) for side in sides]
    interval = (
        ""
        if paired.low is None or paired.high is None
        else f"<small>[{100 * paired.low:+.1f}, {100 * paired.high:+.1f}]</small>"
    )
    part = f'<small class="note">on {paired.problems} common problems</small>' if paired.problems < max(counts) else ""
    unclear = f'<small class="note">{paired.verdict}</small>' if paired.verdict == UNCLEAR else ""
    return f"{100 * paired.difference:+.1f}{interval}{part}{unclear}"


def other_measure(first: RunData, other: RunData) -> str | None:
    """What of the measure itself differs between two runs."""
    if first.recipe.get("rewards") != other.recipe.get("rewards"):
        return "other rewards"
    ours, theirs = (as_dict(run.recipe.get("evaluation")) for run in (first, other))
    differing = [
        word for word in ("temperature", "top_p", "top_k", "max_completion_tokens") if ours.get(word) != theirs.get(word)
    ]
    return f"another evaluation.{differing[0]}" if differing else None


# -- curves ------------------------------------------------------------------------------------------------------------


def curves(overlay: Overlay) -> str:
    """Every chart has a line for each run, in the colour of the run, on the same axes."""
    drawn = [figure(chart) for chart in charts_of(overlay) if not chart.empty]
    return f'<h2>Curves</h2><div class="grid2">{"".join(drawn)}</div>' if drawn else ""


def charts_of(overlay: Overlay) -> list[Chart]:
    charts = []
    measured = [{series.label: series for series in held_out(run)} for run in overlay.runs]
    for name in dict.fromkeys(label for found in measured for label in found):
        series = tuple(
            Series(label, found[name].points, found[name].intervals, marks=True) if name in found else Series(label, ())
            for label, found in zip(overlay.names, measured, strict=True)
        )
        charts.append(Chart(f"pass@1 on {spoken(name)}", "Bars are 95 % intervals.", series, share=True))
    for title, caption, metric, share, unit in CURVES:
        series = tuple(Series(label, run.series(metric)) for label, run in zip(overlay.names, overlay.runs, strict=True))
        charts.append(Chart(title, caption, series, share=share, unit=unit))
    return charts


def failures(overlay: Overlay) -> str:
    found = [(name, failure(run)) for name, run in zip(overlay.names, overlay.runs, strict=True)]
    cards = "".join(f"<h3>{text(name)}</h3>{words}" for name, words in found if words)
    return f"<h2>What failed</h2>{cards}" if cards else ""
