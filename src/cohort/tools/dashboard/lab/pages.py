"""The lab's pages: its stations, and each of them."""

from __future__ import annotations

from cohort.errors import NotFound
from cohort.observe.report.lab import STYLES, load_stations
from cohort.tools.dashboard.shelf import Shelf
from cohort.tools.dashboard.view import Page, View

SCRIPTS = ("lab_served.js",)


def show_lab(shelf: Shelf, view: View) -> Page:
    """All stations, in their order."""
    return Page("The lab", [("lab_stations", list(load_stations().values()))], scripts=SCRIPTS, styles=(STYLES,))


def show_station(shelf: Shelf, view: View) -> Page:
    """One station, with the ways to the one before and the next."""
    stations = list(load_stations().values())
    place = next((place for place, one in enumerate(stations) if one.name == view.words["station"]), None)
    if place is None:
        raise NotFound("There is no such station in the lab.")
    before = stations[place - 1] if place else None
    after = stations[place + 1] if place + 1 < len(stations) else None
    part = ("lab_station", stations[place], place + 1, len(stations), before, after)
    return Page(f"{stations[place].title} · the lab", [part], scripts=SCRIPTS, styles=(STYLES,))
