"""The stations of the lab: their pages, and their numbers for the settings in an address. Invalid settings return an error message."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cohort.errors import NotFound
from cohort.tools.dashboard.lab.advantages import LARGEST, compare_baselines, compare_group, weigh_difficulty
from cohort.tools.dashboard.lab.updates import list_ratios, measure_drift, push_words, trace_regions, weigh_lengths
from cohort.tools.dashboard.run_index import RunIndex
from cohort.tools.dashboard.view import Page, View

MOST_COMPLETIONS, MOST_TOKENS = 64, 4096
FOUR_WORDS = (0.4, 0.3, 0.2, 0.1)
"""Word probabilities of the toy policy that some stations use."""
ANY = (-1e6, 1e6)


@cache
def load_stations() -> dict[str, dict[str, Any]]:
    """The stations of stations.toml by name, in order."""
    tree = tomllib.loads((Path(__file__).parent / "stations.toml").read_text(encoding="utf-8"))
    return {name: {"name": name, **entry} for name, entry in tree.items()}


def show_lab(run_index: RunIndex, view: View) -> Page:
    """The list of all stations."""
    return Page("The lab", [("lab_stations", list(load_stations().values()))], scripts=["lab.js"], styles=["lab.css"])


def show_station(run_index: RunIndex, view: View) -> Page:
    """One station, with links to its neighbours."""
    stations = list(load_stations().values())
    place = next((place for place, one in enumerate(stations) if one["name"] == view.params["station"]), None)
    if place is None:
        raise NotFound("The lab has no such station.")
    before, after = stations[place - 1] if place else None, stations[place + 1] if place + 1 < len(stations) else None
    part = ("lab_station", stations[place], place + 1, len(stations), before, after)
    return Page(f"{stations[place]['title']} · the lab", [part], scripts=["lab.js"], styles=["lab.css"])


class BadSetting(ValueError):
    """A setting in the address is invalid; the message names it."""


def answer_station(run_index: RunIndex, view: View) -> dict[str, Any]:
    """The numbers of the station in the path."""
    name = view.params["station"]
    if name not in ANSWERS:
        raise NotFound(f"The lab has no station {name!r}; it has {', '.join(load_stations())}.")
    try:
        return ANSWERS[name](view)
    except BadSetting as problem:
        return {"problem": str(problem)}


def read_text(view: View, name: str) -> str:
    """A setting of the address; by default the start value of its control."""
    controls = load_stations()[view.params["station"]]["controls"]
    return view.read(name) or str(next(control["start"] for control in controls if control["name"] == name))


def read_float(view: View, name: str, least: float, most: float) -> float:
    return check_number(name, read_text(view, name), least, most)


def read_int(view: View, name: str, least: int, most: int) -> int:
    value = read_float(view, name, least, most)
    if value != int(value):
        raise BadSetting(f"{name}: {value:g} is not a whole number.")
    return int(value)


def read_list(view: View, name: str, least: float, most: float, fewest: int = 2) -> list[float]:
    """Numbers separated by commas."""
    entries = [entry for entry in read_text(view, name).split(",") if entry]
    if not fewest <= len(entries) <= MOST_COMPLETIONS:
        raise BadSetting(f"{name}: give {fewest} to {MOST_COMPLETIONS} numbers, not {len(entries)}.")
    return [check_number(name, entry, least, most) for entry in entries]


def check_number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise BadSetting(f"{name}: give a number from {least:g} to {most:g}.")
    return value


def answer_group(view: View) -> dict[str, Any]:
    return compare_group(read_list(view, "rewards", *ANY), read_int(view, "ddof", 0, 1))


def answer_baselines(view: View) -> dict[str, Any]:
    rewards_G = read_list(view, "rewards", *ANY)
    size = len(rewards_G)
    form_G = [*read_list(view, "format", *ANY, fewest=0), *[0.0] * size][:size]
    other = min(size, read_int(view, "other", 0, MOST_COMPLETIONS))
    return compare_baselines(
        rewards_G, read_float(view, "value", *ANY), other, form_G, read_float(view, "format_weight", 0.0, 100.0)
    )


def answer_pushed(view: View) -> dict[str, Any]:
    last = len(FOUR_WORDS) - 1
    drawn_G = [int(word) for word in read_list(view, "drawn", 0, last)]
    preset = read_text(view, "preset")
    offered = dict(next(control for control in load_stations()["pushed"]["controls"] if control["name"] == "preset")["options"])
    if preset not in offered:
        raise BadSetting(f"preset: choose one of {', '.join(offered)}.")
    return push_words(FOUR_WORDS, drawn_G, read_int(view, "word", 0, last), read_float(view, "rate", 0.0, 100.0), preset)


def answer_clip(view: View) -> dict[str, Any]:
    probability, requested = read_float(view, "probability", 1e-6, 0.999), read_float(view, "ratio", 1e-3, 100.0)
    ratios = list_ratios(probability)
    ratio, advantage = min(requested, max(ratios)), read_float(view, "advantage", -100.0, 100.0)
    clip = {"clip_low": read_float(view, "clip_low", 0.0, 0.99), "clip_high": read_float(view, "clip_high", 0.0, 1.9)}
    length = read_int(view, "length", 1, MOST_TOKENS // 8)
    regions = {}
    for name, traced in trace_regions([ratio, *ratios], advantage, clip, probability, length).items():
        curve = {key: traced[key][1:] for key in ("surrogate", "slope")}
        regions[name] = {key: traced[key][0] for key in ("surrogate", "slope", "silenced")} | {"curve": curve}
    return {"ratio": ratio, "requested": requested, "advantage": advantage, "ratios": ratios, "regions": regions}


def answer_difficulty(view: View) -> dict[str, Any]:
    return weigh_difficulty(read_float(view, "p", 0.0, 1.0), read_int(view, "group_size", 2, LARGEST))


def answer_length(view: View) -> dict[str, Any]:
    lengths_N = [int(length) for length in read_list(view, "lengths", 1, MOST_TOKENS)]
    half = (len(lengths_N) + 1) // 2
    groups_N = [int(place >= half) for place in range(len(lengths_N))]
    return weigh_lengths(lengths_N, groups_N, read_int(view, "longest", 1, MOST_TOKENS))


def answer_kl(view: View) -> dict[str, Any]:
    return measure_drift(FOUR_WORDS, read_int(view, "toward", 0, len(FOUR_WORDS) - 1), read_float(view, "drift", 0.0, 10.0))


ANSWERS: dict[str, Callable[[View], dict[str, Any]]] = {
    "group": answer_group,
    "baselines": answer_baselines,
    "pushed": answer_pushed,
    "clip": answer_clip,
    "difficulty": answer_difficulty,
    "length": answer_length,
    "kl": answer_kl,
}
"""By station, except `run`."""
