"""The list of runs: status, progress, pass@1 before and after, and a small reward curve for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cohort.base.text import write_count, write_duration, write_percent
from cohort.observe.outcome import colour_change, name_set
from cohort.observe.report.charts import Mark, Scale, make_mark
from cohort.observe.report.data import as_dict
from cohort.observe.report.page import find_value
from cohort.tools.dashboard.pace import stamp_run
from cohort.tools.dashboard.run_index import RunIndex, SampledRun, ShownRun
from cohort.tools.dashboard.view import Page, View

PAGE_SIZE = 50
SPARK = (132, 34)
"""Width and height of a small curve."""
NO_RUNS = "Train a model and its run appears here. This one needs no download and no GPU:"
ORDERS = {"newest": "newest first", "name": "by name"}


def show_runs(run_index: RunIndex, view: View) -> Page:
    """All runs, with running ones first."""
    runs = run_index.list_runs()
    if not runs:
        where = " and ".join(f"{root.name}/" for root in run_index.roots)
        return Page("Runs", [("message", "No runs yet", [f"Searched in {where}.", NO_RUNS], "cohort train")], live=True)
    wanted, sort = view.read("find")[:200], view.choose("sort", tuple(ORDERS))
    found = [run for run in runs if wanted.lower() in run.title.lower()]
    if sort == "newest":
        found.sort(key=lambda run: -find_last_written(run))
    pages = max(1, -(-len(found) // PAGE_SIZE))
    page = view.read_number("page", 1, 1, pages)
    shown = [summarise_run(run_index, run) for run in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]]
    if sort == "newest":
        shown.sort(key=lambda one: one["status"] != "running")
    turns = [(word, view.link(page=to)) for word, to in (("previous", page - 1), ("next", page + 1)) if 1 <= to <= pages]
    running = sum(one["status"] == "running" for one in shown)
    form = {"find": wanted, "sort": sort, "sorts": ORDERS, "many": len(runs) > 1}
    head = ("runs_head", write_count(len(found), "run"), f"{running} running" if running else "", form)
    body = ("run_list", shown, turns, f"page {page} of {pages}" if pages > 1 else "")
    return Page("Runs", [head, body], live=True, aging=any(one["status"] != "finished" for one in shown))


def find_last_written(run: ShownRun) -> float:
    times = [0.0]
    for file in (run.folder.metrics_file, run.folder.summary_file, run.folder.recipe_file):
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times)


def summarise_run(run_index: RunIndex, shown: ShownRun) -> dict[str, Any]:
    """The values of one run for the template; a run with unreadable files shows only its name and the error."""
    summary = {"run": shown, "progress": (0, 0), "ends": "", "change": None, "direction": "", "measured_on": ""}
    summary |= {"spark": [], "spark_label": "", "when": "", "alarms": []}
    try:
        return summary | read_summary(run_index, shown)
    except Exception as problem:  # files of unknown origin may hold anything
        return summary | {"status": "unreadable", "facts": f"its files cannot be read ({type(problem).__name__})"}


def read_summary(run_index: RunIndex, shown: ShownRun) -> dict[str, Any]:
    """What the list shows of a run; its files are read again only after a change."""
    stamp = ",".join(stamp_run(shown))
    kept = run_index.sampled.get(shown.name)
    if kept is None or kept[0] != stamp:
        kept = run_index.sampled[shown.name] = (stamp, SampledRun(shown, run_index.reader))
    run = kept[1]
    status, seconds = run.status, run.seconds if run.summary.get("seconds") else None
    when = run.describe_quiet() if status != "finished" else f"took {write_duration(seconds)}" if seconds else ""
    facts = [str(run.find_setting("algorithm", "name") or ""), Path(str(run.find_setting("model", "source") or "")).name]
    planned = run.find_setting("train", "num_steps")
    label, series = "reward", run.find_series("reward/mean")
    if not series:
        label, series = "loss", run.find_series("loss/total")
    ends = [f"{value:.3g} at step {step:.0f}" for step, value in (series[0], series[-1])] if series else []
    return {
        "status": status,
        "facts": " · ".join(filter(None, facts)),
        "progress": (run.steps, planned if isinstance(planned, int) and planned > 0 else 0),
        **describe_ends(run),
        "spark": draw_spark(series),
        "spark_label": f"{label} {', '.join(ends)}" if ends else "",
        "alarms": [one.text for one in run.markers if one.level == "alarm"],
        "when": " · ".join(filter(None, ["" if run.rows else run.describe_now(), when])),
    }


def describe_ends(run: SampledRun) -> dict[str, Any]:
    """pass@1 before and after training, the change, and the set it was measured on; for an unfinished run, its latest evaluation."""
    before, after = run.find_numbers("before"), run.find_numbers("after")
    for name in dict.fromkeys([*after, *before]):
        sides = [before.get(name), after.get(name)]
        if find_value(sides[1], "pass@1") is None:
            during = [row for row in run.evaluations if row.get("label") == "during" and name in as_dict(row.get("sets"))]
            sides[1] = as_dict(during[-1]["sets"][name]) if during else None
        a, b = (find_value(side, "pass@1") for side in sides)
        if a is None and b is None:
            continue
        found: dict[str, Any] = {
            "ends": " → ".join("–" if one is None else write_percent(one, 1) for one in (a, b)),
            "measured_on": name_set(name),
        }
        if a is not None and b is not None:
            clear = colour_change(run.find_change(name), *(as_dict((side or {}).get("pass@1")) for side in sides))
            found |= {"change": b - a, "direction": clear}
        return found
    return {}


def draw_spark(points: Sequence[tuple[float, float]]) -> list[Mark]:
    """A line without axes; its label states the values."""
    if len(points) < 2:
        return []
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)
    if low == high:
        low, high = low - 1, high + 1
    scale = Scale(xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1, low, high, 3.0, SPARK[0] - 5.0, 4.0, SPARK[1] - 4.0)
    x, y = points[-1]
    line = make_mark("polyline", "line c0", points=scale.place(points))
    return [line, make_mark("circle", "dot c0", cx=scale.x(x), cy=scale.y(y), r=2.6)]
