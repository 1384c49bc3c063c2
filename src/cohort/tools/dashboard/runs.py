"""The runs: what each is doing, how far it is, what it has learned, and its reward from beginning to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.base.text import write_count, write_duration, write_percent
from cohort.observe.outcome import colour_change, name_set
from cohort.observe.report.charts import Mark, Scale, make_mark
from cohort.observe.report.data import as_dict
from cohort.observe.report.frame import Part
from cohort.observe.report.page import find_value
from cohort.tools.dashboard.pace import stamp_run
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.view import Page, View
from cohort.tools.dashboard.watched import GlancedRun

PAGE_SIZE = 50
SPARK = (132, 34)
"""Width and height of a small drawing."""
NOTHING = "Train something, and it appears here by itself. The demo needs no download and no GPU:"
CARD_SORTS = {"newest": "newest first", "name": "by name"}


@dataclass(frozen=True)
class Glance:
    """A run in the list."""

    run: ShownRun
    status: str
    facts: str
    progress: tuple[int, int]
    """Steps made, and planned (0: not known)."""
    ends: str
    """pass@1 before and after."""
    change: float | None
    clear: str
    """up or down, where the change is more than noise."""
    measured_on: str
    spark: Sequence[Mark]
    spark_label: str
    when: str
    age: float


def show_runs(shelf: Shelf, view: View) -> Page:
    """All runs that may be shown, those that train first."""
    runs = shelf.list_runs()
    if not runs:
        where = " and ".join(f"{root.name}/" for root in shelf.roots)
        return Page(
            "Runs", [("told", "There are no runs yet.", [f"Looked for in {where}.", NOTHING], "cohort train")], live=True
        )
    wanted, sort = view.read("find")[:200], view.choose("sort", tuple(CARD_SORTS))
    found = [run for run in runs if wanted.lower() in run.title.lower()]
    if sort == "newest":
        found.sort(key=lambda run: -find_last_written(run))
    pages = max(1, -(-len(found) // PAGE_SIZE))
    page = view.read_number("page", 1, 1, pages)
    shown = [glance_or_skip(shelf, run) for run in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]]
    if sort == "newest":
        shown.sort(key=lambda glance: glance.status != "running")

    def list_runs(_: Any) -> Part:
        turns = [(word, view.link(page=to)) for word, to in (("previous", page - 1), ("next", page + 1)) if 1 <= to <= pages]
        return "run_list", shown, turns, f"page {page} of {pages}" if pages > 1 else ""

    training = sum(glance.status == "running" for glance in shown)
    detail = f"{write_count(training, 'run')} training now." if training else ""
    form = {"find": wanted, "sort": sort, "sorts": CARD_SORTS, "many": len(runs) > 1}
    aging = any(glance.status != "finished" for glance in shown)
    return Page("Runs", [("runs_head", write_count(len(found), "run"), detail, form), list_runs], live=True, aging=aging)


def find_last_written(run: ShownRun) -> float:
    times = []
    for file in (run.folder.metrics_file, run.folder.summary_file, run.folder.recipe_file):
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def glance_or_skip(shelf: Shelf, shown: ShownRun) -> Glance:
    """The run in the list; of one whose files hold what no run writes its name alone, and the others as ever."""
    try:
        return glance_at(shelf, shown)
    except Exception as problem:
        words = f"its files cannot be read ({type(problem).__name__})"
        return Glance(shown, "unreadable", words, (0, 0), "", None, "", "", [], "", "", 0.0)


def glance_at(shelf: Shelf, shown: ShownRun) -> Glance:
    """What the list says of a run; read again only where its files have changed."""
    stamp = ",".join(stamp_run(shown))
    kept = shelf.glances.get(shown.name)
    if kept is None or kept[0] != stamp:
        kept = shelf.glances[shown.name] = (stamp, GlancedRun(shown, shelf.reader))
    run = kept[1]
    planned = run.find_setting("train", "num_steps")
    ends, change, clear, on = describe_ends(run)
    series = run.find_series("reward/mean") or run.find_series("loss/total")
    label = "reward" if run.find_series("reward/mean") else "loss"
    told = (
        f"{label} {series[0][1]:.3g} at step {series[0][0]:.0f}, {series[-1][1]:.3g} at step {series[-1][0]:.0f}"
        if series
        else ""
    )
    status, seconds = run.status, run.seconds if run.summary.get("seconds") else None
    when = run.describe_quiet() if status != "finished" else f"took {write_duration(seconds)}" if seconds else ""
    when = " · ".join(filter(None, ["" if run.rows else run.describe_now(), when]))
    algorithm = [str(run.find_setting("algorithm", "name") or ""), Path(str(run.find_setting("model", "source") or "")).name]
    return Glance(
        shown,
        status,
        " · ".join(filter(None, algorithm)),
        (run.steps, planned if isinstance(planned, int) and planned > 0 else 0),
        ends,
        change,
        clear,
        on,
        draw_spark(series),
        told,
        when,
        run.quiet_s,
    )


def describe_ends(run: GlancedRun) -> tuple[str, float | None, str, str]:
    """(pass@1 before and after in words, the change, whether it is clear, on which set); of a run that goes on, its newest look."""
    before, after = run.find_numbers("before"), run.find_numbers("after")
    for name in dict.fromkeys([*after, *before]):
        sides = [before.get(name), after.get(name)]
        if find_value(sides[1], "pass@1") is None:
            during = [row for row in run.evaluations if row.get("label") == "during" and name in as_dict(row.get("sets"))]
            sides[1] = as_dict(during[-1]["sets"][name]) if during else None
        a, b = (find_value(side, "pass@1") for side in sides)
        if a is not None and b is not None:
            clear = colour_change(run.find_change(name), *(as_dict((side or {}).get("pass@1")) for side in sides))
            return f"{write_percent(a, 1)} → {write_percent(b, 1)}", b - a, clear, name_set(name)
        if a is not None or b is not None:
            return " → ".join("–" if one is None else write_percent(one, 1) for one in (a, b)), None, "", name_set(name)
    return "", None, "", ""


def draw_spark(points: Sequence[tuple[float, float]]) -> list[Mark]:
    """A line without axes; what it says stands beside it in words."""
    if len(points) < 2:
        return []
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)
    if low == high:
        low, high = low - 1, high + 1
    scale = Scale(xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1, low, high, 3.0, SPARK[0] - 5.0, 4.0, SPARK[1] - 4.0)
    x, y = points[-1]
    return [
        make_mark("polyline", "line c0", points=scale.place(points)),
        make_mark("circle", "dot c0", cx=scale.x(x), cy=scale.y(y), r=2.6),
    ]
