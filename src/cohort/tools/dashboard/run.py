"""One run, live: everything that its report shows, when findings arose, and what happened last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from cohort.observe.report.data import RunData, as_number
from cohort.observe.report.frame import Cell, Part, Section
from cohort.observe.report.page import DETAILS, VERDICT, show_completions, show_curves
from cohort.observe.report.plots import list_charts, show_charts
from cohort.tools.dashboard.choices import Choices
from cohort.tools.dashboard.shelf import Shelf
from cohort.tools.dashboard.view import Page, View
from cohort.tools.dashboard.watched import WatchedRun, describe_stage

EVENTS_SHOWN = 100
KNOWN = ("time", "step", "kind")


def show_run(shelf: Shelf, view: View) -> Page:
    """The sections of the report, with the curves as they were chosen, and the events."""
    run = WatchedRun(shelf.find(view.words["name"]), shelf.reader)
    choices = Choices.read(view)

    def show_chosen_curves(run: RunData) -> Part | None:
        charts = [replace(chart, markers=run.markers) for chart in list_charts(run)]
        return show_charts("Curves", choices.apply(charts))

    details: list[Section[Any]] = [show_chosen_curves if section is show_curves else section for section in DETAILS]
    place = details.index(show_chosen_curves)
    details[place:place] = [show_finding_times, lambda run: ("choices", choices.describe(view)) if run.rows else None]
    details.insert(details.index(show_completions), show_events)
    sections = [lambda _: ("run_places", run.shown, "overview"), *VERDICT, show_now, show_losses, *details]
    return Page(run.name, sections, run, live=True, aging=run.status != "finished")


def show_now(run: WatchedRun) -> Part | None:
    """What a run does that has not finished a step: a cold start can take as long as the rest."""
    now = "" if run.rows else run.describe_now()
    return ("now", now, run.describe_quiet()) if now else None


def show_losses(run: WatchedRun) -> Part | None:
    """What of the files could not be read."""
    return ("losses", run.losses) if run.losses else None


def show_finding_times(run: WatchedRun) -> Part | None:
    """When each finding arose; the curves below mark the same steps."""
    if not run.markers:
        return None
    rows = [
        [f"{marker.step:g}", Cell(marker.level, style=f"level {marker.level}"), Cell(marker.text, style="does")]
        for marker in run.markers
    ]
    caption = "The step at which the run first said it; below, marked on the axis of every curve."
    return "table", "When findings arose", ["step", Cell("level", style="level"), Cell("finding", style="does")], rows, caption


def show_events(run: WatchedRun) -> Part | None:
    """The last things that the run wrote down, newest first."""
    if not run.events:
        return None
    told = [event for event, after in zip(run.events, [*run.events[1:], {}], strict=True) if not is_passed(event, after)]
    rows = [describe_event(event) for event in reversed(told[-EVENTS_SHOWN:])]
    caption = (
        f"{len(rows)} of {len(run.events):,} events, the newest first; events.jsonl holds all."
        if len(rows) < len(run.events)
        else ""
    )
    return "table", "What happened", ["time", "step", "kind", Cell("what", style="does")], rows, caption


def is_passed(event: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the next event says the same of a later moment: of progress the last word is enough."""
    return event.get("kind") == after.get("kind") == "progress" and event.get("stage") == after.get("stage")


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
