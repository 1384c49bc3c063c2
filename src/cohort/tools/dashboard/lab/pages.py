"""The stations of the lab, read from stations.toml, and their pages."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cohort.errors import NotFound
from cohort.tools.dashboard.shelf import Shelf
from cohort.tools.dashboard.view import Page, View

STATIONS = Path(__file__).resolve().parent / "stations.toml"
SCRIPTS = ("lab.js",)
STYLES = ("lab.css",)


@dataclass(frozen=True)
class Control:
    """What a reader can change: a word of the address."""

    name: str
    kind: str
    """cards, words, lengths, range, choice, chips, or hidden: nothing of it is shown."""
    label: str = ""
    start: str = ""
    least: float = 0.0
    most: float = 1.0
    step: float = 0.01
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Station:
    name: str
    title: str
    question: str
    guesses: tuple[str, ...]
    right: int
    """Which guess is right; -1: it depends on the run."""
    sentence: str
    presets: tuple[tuple[str, str], ...]
    """(words on the button, what it puts into the address)."""
    controls: tuple[Control, ...]


@cache
def load_stations() -> dict[str, Station]:
    """The stations by name, in their order."""
    tree = tomllib.loads(STATIONS.read_text(encoding="utf-8"))
    return {name: make_station(name, entry) for name, entry in tree.items()}


def make_station(name: str, entry: dict[str, Any]) -> Station:
    controls = (
        Control(**{**control, "options": tuple((value, label) for value, label in control.get("options", ()))})
        for control in entry["controls"]
    )
    return Station(
        name,
        entry["title"],
        entry["question"],
        tuple(entry["guesses"]),
        entry["right"],
        entry["sentence"],
        tuple((preset["label"], preset["set"]) for preset in entry.get("presets", ())),
        tuple(controls),
    )


def show_lab(shelf: Shelf, view: View) -> Page:
    """All stations, in their order."""
    return Page("The lab", [("lab_stations", list(load_stations().values()))], scripts=SCRIPTS, styles=STYLES)


def show_station(shelf: Shelf, view: View) -> Page:
    """One station, with the ways to the one before and the next."""
    stations = list(load_stations().values())
    place = next((place for place, one in enumerate(stations) if one.name == view.words["station"]), None)
    if place is None:
        raise NotFound("There is no such station in the lab.")
    before = stations[place - 1] if place else None
    after = stations[place + 1] if place + 1 < len(stations) else None
    part = ("lab_station", stations[place], place + 1, len(stations), before, after)
    return Page(f"{stations[place].title} · the lab", [part], scripts=SCRIPTS, styles=STYLES)
