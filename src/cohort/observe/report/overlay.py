"""One page for several runs: the same charts with a line per run, and a table of before and after.

It overlays existing runs with any recipes, while `cohort compare` trains contenders from one start. Differences between two runs are
paired, over the problems that both answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.base.files import write_whole
from cohort.base.text import write_duration
from cohort.errors import RunError
from cohort.evaluation.estimators import UNCLEAR
from cohort.evaluation.evaluate import compare
from cohort.observe.outcome import name_set, write_difference
from cohort.observe.report.charts import COLOURS, Chart, Series
from cohort.observe.report.data import RunData, as_dict, as_number
from cohort.observe.report.frame import Cell, Part, render_page
from cohort.observe.report.page import compare_measure, describe_failed_run
from cohort.observe.report.plots import list_held_out, show_charts

CURVES: tuple[tuple[str, str, str, bool, str], ...] = (
    ("Reward", "On training completions. Thick lines are moving averages.", "reward/mean", False, ""),
    ("Success", "Share of the training completions that are right.", "reward/success", True, ""),
    ("Useful groups", "Share of groups whose completions have different rewards.", "advantage/useful_groups", True, ""),
    ("KL to the reference", "Summed over each completion.", "loss/kl_per_completion", False, "nats"),
    ("Entropy", "Per token.", "loss/entropy", False, "nats"),
    ("Completion length", "Sampled tokens.", "rollout/length_mean", False, "tokens"),
    ("Truncated completions", "Share that reached max_completion_tokens.", "rollout/truncated", True, ""),
    ("Step time", "Seconds per step.", "time/step", False, "s"),
)


@dataclass(frozen=True)
class Overlay:
    runs: Sequence[RunData]
    names: Sequence[str]
    """The names of the runs on the page: their folder names, with the parent folder if two are equal."""

    @property
    def pairs(self) -> list[tuple[str, RunData]]:
        return list(zip(self.names, self.runs, strict=True))


def write_overlay(run_folders: Sequence[Path], target: Path) -> Path:
    """Write a page of several runs and return its path."""
    places = [folder.resolve() for folder in run_folders]
    if len(set(places)) < len(places):
        raise RunError("report: a run is named twice; name each run once.")
    if len(places) > COLOURS:
        raise RunError(f"report: a chart can show at most {COLOURS} runs, not {len(places)}; name fewer.")
    short = [place.name for place in places]
    names = [f"{place.parent.name}/{place.name}" if short.count(place.name) > 1 else place.name for place in places]
    overlay = Overlay([RunData(folder) for folder in run_folders], names)
    sections = (show_runs, show_before_and_after, show_curves, show_failures)
    return write_whole(target, render_page(f"{' · '.join(names)} · Cohort runs", sections, overlay))


def show_runs(overlay: Overlay) -> Part:
    detail = "Their recipes and problems may differ; compare results only on the same problems."
    lines = [(name, run.status, describe_facts(run)) for name, run in overlay.pairs]
    return "runs", f"{len(overlay.runs)} runs", detail, lines


def describe_facts(run: RunData) -> str:
    source = run.find_setting("model", "source")
    model = Path(str(source)).name if source else ""
    took = write_duration(run.seconds) if run.seconds else ""
    return " · ".join(filter(None, (str(run.find_setting("algorithm", "name") or ""), model, f"{run.steps} steps", took)))


# -- before and after --------------------------------------------------------------------------------------------------


def show_before_and_after(overlay: Overlay) -> Part:
    """pass@1 of every run on every set, before and after, and compared with the first run on common problems."""
    numbers = [(run.find_numbers("before"), run.find_numbers("after")) for run in overlay.runs]
    rows = []
    for name in dict.fromkeys(name for before, after in numbers for name in [*before, *after]):
        rows.append([Cell(name_set(name), style="set", span=5)])
        for index, (run, (before, after)) in enumerate(zip(overlay.runs, numbers, strict=True)):
            a, b = before.get(name, {}), after.get(name, {})
            if a or b:
                problems = as_number((b or a).get("problems"))
                count = f"{problems:.0f} problems" if problems else ""
                first = compare_runs(overlay.runs[0], run, name) if index else Cell()
                ends = compare_measure(run, name, "pass@1", as_dict(a.get("pass@1")), as_dict(b.get("pass@1")))
                rows.append([Cell(overlay.names[index], count, style="run", colour=index), *ends[1:], first])
    if not rows:
        return "findings", "", [], "None of these runs was evaluated."
    caption = "Brackets: 95 % intervals over problems. vs. first: difference to the first run after training, in points, paired over common problems."
    return "table", "pass@1 before and after", ("run", "before", "after", "change", "vs. first"), rows, caption


def compare_runs(first: RunData, other: RunData, name: str) -> Cell:
    """The paired difference of two final evaluations, or why there is none, such as different definitions of success."""
    if (reason := find_other_measure(first, other)) is not None:
        return Cell(note=reason)
    sides = [run.find_evaluation("after") for run in (first, other)]
    paired = compare(sides[0], sides[1]).get(name, {}).get("pass@1") if sides[0] and sides[1] else None
    if paired is None:
        return Cell(note="no common problems")
    most = max(len(side.per_problem[name].problems) for side in sides if side)
    notes = [f"on {paired.problems} common problems"] if paired.problems < most else []
    notes += [f"{paired.verdict} (p = {paired.p_value:.2g})"] if paired.verdict == UNCLEAR else []
    return Cell(*write_difference(paired), note="; ".join(notes))


def find_other_measure(first: RunData, other: RunData) -> str | None:
    """The difference between two runs that makes their evaluations incomparable."""
    if first.recipe.get("rewards") != other.recipe.get("rewards"):
        return "rewards differ"
    for key in ("temperature", "top_p", "top_k", "max_completion_tokens"):
        if first.find_setting("evaluation", key) != other.find_setting("evaluation", key):
            return f"evaluation.{key} differs"
    return None


# -- curves ------------------------------------------------------------------------------------------------------------


def show_curves(overlay: Overlay) -> Part | None:
    return show_charts("Curves", list_overlay_charts(overlay))


def list_overlay_charts(overlay: Overlay) -> list[Chart]:
    """The charts, each with a line per run in the run's colour."""
    charts = []
    measured = [{series.label: series for series in list_held_out(run)} for run in overlay.runs]
    for name in dict.fromkeys(label for found in measured for label in found):
        lines = [found.get(name, Series(name, ())) for found in measured]
        series = tuple(replace(line, label=label) for label, line in zip(overlay.names, lines, strict=True))
        charts.append(Chart(f"pass@1 on {name_set(name)}", "Bars: 95 % intervals.", series, share=True))
    for title, caption, metric, share, unit in CURVES:
        series = tuple(Series(label, run.find_series(metric)) for label, run in overlay.pairs)
        charts.append(Chart(title, caption, series, share=share, unit=unit))
    return charts


def show_failures(overlay: Overlay) -> Part | None:
    cards = [card | {"name": name} for name, run in overlay.pairs if (card := describe_failed_run(run))]
    return ("findings", "Failed runs", cards) if cards else None
