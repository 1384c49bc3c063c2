"""Several runs on the same axes, and what their recipes do not share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cohort.errors import NotFound
from cohort.observe.report.charts import COLOURS
from cohort.observe.report.frame import Cell, Part
from cohort.observe.report.overlay import Overlay, describe_facts, list_overlay_charts, show_before_and_after, show_failures
from cohort.observe.report.plots import show_charts
from cohort.tools.dashboard.choices import Choices
from cohort.tools.dashboard.shelf import Shelf
from cohort.tools.dashboard.view import Page, View
from cohort.tools.dashboard.watched import WatchedRun

BOOKKEEPING = ("name", "runs_folder", "version")
"""Keys of a recipe that differ between any two runs and change no number."""


def show_comparison(shelf: Shelf, view: View) -> Page:
    """The chosen runs; without any, all of them to choose from."""
    chosen = list(dict.fromkeys(view.read_all("run")))
    picker = ("run_picker", [(run, run.name in chosen) for run in shelf.list_runs()], bool(chosen), COLOURS)
    if not chosen:
        head = ("told", "Choose runs to lay over each other.", [f"Up to {COLOURS}; each gets a line in every chart."])
        return Page("Compare", [head, picker])
    if len(chosen) > COLOURS:
        raise NotFound(f"run: {len(chosen)} runs are more lines than can be told apart; choose at most {COLOURS}.")
    runs = [WatchedRun(shelf.find(name), shelf.reader) for name in chosen]
    overlay = Overlay(runs, [run.name for run in runs])
    choices = Choices.read(view)

    def list_them(_: Any) -> Part:
        lines = [(run.shown, run.status, describe_facts(run)) for run in runs]
        sentence = f"{len(runs)} runs, side by side." if len(runs) > 1 else "One run; choose another to compare it with."
        return "compared", sentence, lines

    def show_chosen_curves(_: Any) -> Part | None:
        return show_charts("Curves", choices.apply(list_overlay_charts(overlay)))

    def show_all_losses(_: Any) -> Part | None:
        lines = [f"{run.name}: {loss}" for run in runs for loss in run.losses]
        return ("losses", lines) if lines else None

    kept = [("run", name) for name in chosen]
    form: Part = ("choices", choices.describe(view, kept))
    ends = (show_before_and_after, show_recipe_difference)
    return Page(
        "Compare",
        [list_them, show_all_losses, *ends, form, show_chosen_curves, show_failures, picker],
        overlay,
        live=True,
        aging=any(run.status != "finished" for run in runs),
    )


def show_recipe_difference(overlay: Overlay) -> Part | None:
    """Every key of the recipes that is not the same in all of them."""
    if len(overlay.runs) < 2:
        return None
    flat = [dict(flatten(run.recipe)) for run in overlay.runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    differ = [key for key in keys if key not in BOOKKEEPING and len({repr(one.get(key)) for one in flat}) > 1]
    title = "What differs in their recipes"
    if not differ:
        known = all(flat)
        return "findings", title, [], "Nothing but their names." if known else "A recipe is missing or cannot be read."
    heads = ["key", *(Cell(name, style="run", colour=place) for place, name in enumerate(overlay.names))]
    rows = [[Cell(key, style="run"), *(Cell(write_setting(one, key), style="run value") for one in flat)] for key in differ]
    return "table", title, heads, rows, f"{len(differ)} of {len(keys)} keys; the others are the same."


def flatten(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; entries of a list of tables by their number, from 1."""
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
    """A value as a recipe writes it; a dash where the recipe does not have the key."""
    if key not in flat:
        return "–"
    value = flat[key]
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
