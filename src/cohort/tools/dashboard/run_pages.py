"""The page of one run, the comparison of several, and the settings of their curves, which are all in the address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from cohort.errors import NotFound
from cohort.observe.report.charts import COLOURS, Chart, Series
from cohort.observe.report.data import RunData, as_number
from cohort.observe.report.frame import Cell, Part, Section
from cohort.observe.report.overlay import Overlay, describe_facts, list_overlay_charts, show_before_and_after, show_failures
from cohort.observe.report.page import DETAILS, VERDICT, show_completions, show_curves
from cohort.observe.report.plots import list_charts, show_charts
from cohort.tools.dashboard.run_index import LiveRun, RunIndex, describe_stage
from cohort.tools.dashboard.view import Page, View

SMOOTHING = {"auto": "automatic", "1": "none", "5": "5 steps", "20": "20 steps", "50": "50 steps", "200": "200 steps"}
BANDS = {"no": "evaluations", "yes": "evaluations and moving averages"}
MAX_STEP = 10**9
EVENTS_SHOWN = 100
KNOWN = ("time", "step", "kind")
IGNORED = ("name", "runs_folder")
"""Recipe keys that differ between any two runs and change no number."""


# -- curves ------------------------------------------------------------------------------------------------------------


def read_range(view: View) -> tuple[int, int]:
    """The first and the last step of the curves."""
    return view.read_number("from", 0, 0, MAX_STEP), view.read_number("to", MAX_STEP, 0, MAX_STEP)


def apply_choices(view: View, charts: Sequence[Chart]) -> list[Chart]:
    """The charts with the steps, moving average and intervals of the address."""
    first, last = read_range(view)
    smooth = view.choose("smooth", tuple(SMOOTHING))
    window, bands = 0 if smooth == "auto" else int(smooth), view.choose("bands", tuple(BANDS)) == "yes"

    def cut(series: Series) -> Series:
        places = [place for place, (step, _) in enumerate(series.points) if first <= step <= last]
        intervals = [series.intervals[place] for place in places] if series.intervals else ()
        return replace(series, points=[series.points[place] for place in places], intervals=intervals)

    return [
        replace(
            chart, series=tuple(map(cut, chart.series)), window=window, bands=bands,
            markers=tuple(marker for marker in chart.markers if first <= marker.step <= last),
        )
        for chart in charts
    ]  # fmt: skip


def describe_choices(view: View) -> Part:
    """The form with the settings of the curves; it keeps the runs of the address."""
    first, last = read_range(view)
    numbers = [("from", "from step", first or ""), ("to", "to step", last if last < MAX_STEP else "")]
    selects = [
        (name, label, options, view.choose(name, tuple(options)))
        for name, label, options in (("smooth", "moving average", SMOOTHING), ("bands", "95 % intervals", BANDS))
    ]
    kept = [("run", name) for name in view.read_all("run")]
    return "choices", {"action": view.path, "kept": kept, "numbers": numbers, "selects": selects}


# -- one run -----------------------------------------------------------------------------------------------------------


def show_run(run_index: RunIndex, view: View) -> Page:
    """The sections of the report with the chosen curves, and the events."""
    run = LiveRun(run_index.find(view.params["name"]), run_index.reader)

    def show_chosen_curves(run: RunData) -> Part | None:
        return show_charts("Curves", apply_choices(view, [replace(chart, markers=run.markers) for chart in list_charts(run)]))

    details: list[Section[Any] | Part] = []
    for section in DETAILS:
        if section is show_curves:
            details += [show_finding_times, *([describe_choices(view)] if run.rows else []), show_chosen_curves]
        else:
            details += [show_events, section] if section is show_completions else [section]
    sections = [("run_places", run.shown, "overview"), *VERDICT, show_now, show_losses, *details]
    return Page(run.name, sections, run, live=True, aging=run.status != "finished")


def show_now(run: LiveRun) -> Part | None:
    """The stage of a run that has not finished a step: a cold start can take as long as the training."""
    now = "" if run.rows else run.describe_now()
    return ("now", now, run.describe_quiet()) if now else None


def show_losses(run: LiveRun) -> Part | None:
    return ("losses", run.losses) if run.losses else None


def show_finding_times(run: LiveRun) -> Part | None:
    """The step of each finding."""
    if not run.markers:
        return None
    rows = [[f"{one.step:g}", Cell(one.level, style=f"level {one.level}"), Cell(one.text, style="does")] for one in run.markers]
    caption = "The step that first triggered the finding. Every curve below marks it on its axis."
    return "table", "When findings arose", ["step", Cell("level", style="level"), Cell("finding", style="does")], rows, caption


def show_events(run: LiveRun) -> Part | None:
    """The latest events, newest first. Of consecutive progress events of one stage only the last is shown."""
    if not run.events:
        return None
    shown = []
    for event, after in zip(run.events, [*run.events[1:], {}], strict=True):
        if not (event.get("kind") == after.get("kind") == "progress" and event.get("stage") == after.get("stage")):
            shown.append(event)
    rows = [describe_event(event) for event in reversed(shown[-EVENTS_SHOWN:])]
    partial = f"{len(rows)} of {len(run.events):,} events, newest first. events.jsonl has all of them."
    heads = ["time", "step", "kind", Cell("event", style="does")]
    return "table", "Events", heads, rows, partial if len(rows) < len(run.events) else ""


def describe_event(event: dict[str, Any]) -> Sequence[str | Cell]:
    seconds, step = as_number(event.get("time")), as_number(event.get("step"))
    try:
        when = datetime.fromtimestamp(seconds).strftime("%d %b %H:%M:%S") if seconds is not None else ""
    except (OverflowError, OSError, ValueError):
        when = ""
    text = describe_stage(event) or next((str(event[name]) for name in ("what", "text", "message") if event.get(name)), "")
    rest = " · ".join(
        f"{name} {value}" for name, value in event.items() if name not in KNOWN and isinstance(value, str | int | float)
    )
    return [when, f"{step:g}" if step is not None else "", str(event.get("kind", "")), Cell(text or rest, style="does")]


# -- several runs ------------------------------------------------------------------------------------------------------


def show_comparison(run_index: RunIndex, view: View) -> Page:
    """The chosen runs on the same axes; if none is chosen, a list to choose from."""
    chosen = list(dict.fromkeys(view.read_all("run")))
    picker = ("run_picker", [(run, run.name in chosen) for run in run_index.list_runs()], bool(chosen), COLOURS)
    if not chosen:
        head = ("message", "Choose runs to compare", [f"Up to {COLOURS} runs. Each gets a line in every chart."])
        return Page("Compare", [head, picker])
    if len(chosen) > COLOURS:
        raise NotFound(f"run: at most {COLOURS} runs can be compared, not {len(chosen)}.")
    runs = [LiveRun(run_index.find(name), run_index.reader) for name in chosen]
    overlay = Overlay(runs, [run.name for run in runs])

    def list_them(_: Any) -> Part:
        lines = [(run.shown, run.status, describe_facts(run)) for run in runs]
        return "compared", f"{len(runs)} runs compared" if len(runs) > 1 else "One run. Choose another one to compare.", lines

    def show_all_losses(_: Any) -> Part | None:
        lines = [f"{run.name}: {loss}" for run in runs for loss in run.losses]
        return ("losses", lines) if lines else None

    def show_chosen_curves(_: Any) -> Part | None:
        return show_charts("Curves", apply_choices(view, list_overlay_charts(overlay)))

    ends = (show_before_and_after, show_recipe_difference)
    return Page(
        "Compare",
        [list_them, show_all_losses, *ends, describe_choices(view), show_chosen_curves, show_failures, picker],
        overlay,
        live=True,
        aging=any(run.status != "finished" for run in runs),
    )


def show_recipe_difference(overlay: Overlay) -> Part | None:
    """The recipe keys that differ."""
    if len(overlay.runs) < 2:
        return None
    flat = [dict(flatten(run.recipe)) for run in overlay.runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    differ = [key for key in keys if key not in IGNORED and len({repr(one.get(key)) for one in flat}) > 1]
    title = "Differences between the recipes"
    if not differ:
        return "findings", title, [], "Only the names differ." if all(flat) else "A recipe is missing or cannot be read."
    heads = ["key", *(Cell(name, style="run", colour=place) for place, name in enumerate(overlay.names))]
    rows = [[Cell(key, style="run"), *(Cell(write_setting(one, key), style="run value") for one in flat)] for key in differ]
    return "table", title, heads, rows, f"{len(differ)} of {len(keys)} keys differ."


def flatten(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; tables in a list are numbered from 1."""
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value, 1):
                yield from flatten(one, f"{path}.{number}.")
        else:
            yield path, value


def write_setting(flat: Mapping[str, Any], key: str) -> str:
    """A value in the recipe's notation; a dash if the recipe lacks the key."""
    if key not in flat:
        return "–"
    value = flat[key]
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
