"""The numbers of a station for what stands in the address. A word that makes no sense is answered with a sentence, not with a guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cohort.errors import NotFound
from cohort.tools.dashboard.lab.clipping import HIGHEST_RATIO, list_ratios, trace_regions
from cohort.tools.dashboard.lab.difficulty import LARGEST, weigh_difficulty
from cohort.tools.dashboard.lab.divergence import measure_drift
from cohort.tools.dashboard.lab.groups import compare_baselines, compare_group
from cohort.tools.dashboard.lab.lengths import weigh_lengths
from cohort.tools.dashboard.lab.pages import load_stations
from cohort.tools.dashboard.lab.pushing import push_words
from cohort.tools.dashboard.shelf import Shelf
from cohort.tools.dashboard.view import View

MOST_COMPLETIONS, MOST_TOKENS = 64, 4096
FOUR_WORDS = (0.4, 0.3, 0.2, 0.1)
"""The policy of the stations that have one: four words, one of them rare."""


class BadWord(ValueError):
    """What is wrong with a word of the address."""


def answer_station(shelf: Shelf, view: View) -> dict[str, Any]:
    """The numbers of the station that the path names."""
    name = view.words["station"]
    if name not in ANSWERS:
        raise NotFound(f"There is no station {name!r}; there are {', '.join(load_stations())}.")
    try:
        return ANSWERS[name](view)
    except BadWord as problem:
        return {"problem": str(problem)}


def read_float(view: View, name: str, default: float, least: float, most: float) -> float:
    return check_number(name, view.read(name) or str(default), least, most)


def read_int(view: View, name: str, default: int, least: int, most: int) -> int:
    value = read_float(view, name, default, least, most)
    if value != int(value):
        raise BadWord(f"{name}: {value:g} is no whole number.")
    return int(value)


def read_list(view: View, name: str, default: str, least: float, most: float, count: tuple[int, int]) -> list[float]:
    """Numbers with commas between them."""
    entries = [entry for entry in (view.read(name) or default).split(",") if entry]
    if not count[0] <= len(entries) <= count[1]:
        raise BadWord(f"{name}: {len(entries)} numbers; between {count[0]} and {count[1]} belong there.")
    return [check_number(name, entry, least, most) for entry in entries]


def check_number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise BadWord(f"{name}: a number from {least:g} to {most:g} belongs there.")
    return value


def answer_group(view: View) -> dict[str, Any]:
    rewards_G = read_list(view, "rewards", "1,0,0,0,0,0", -1e6, 1e6, (2, MOST_COMPLETIONS))
    return compare_group(rewards_G, read_int(view, "ddof", 0, 0, 1))


def answer_baselines(view: View) -> dict[str, Any]:
    rewards_G = read_list(view, "rewards", "1,0.6,0.9,0.5", -1e6, 1e6, (2, MOST_COMPLETIONS))
    size = len(rewards_G)
    form_G = read_list(view, "format", "", -1e6, 1e6, (0, MOST_COMPLETIONS))
    other = min(size, read_int(view, "other", 2, 0, MOST_COMPLETIONS))
    return compare_baselines(
        rewards_G,
        read_float(view, "value", 0.5, -1e6, 1e6),
        other,
        [*form_G, *[0.0] * size][:size],
        read_float(view, "format_weight", 0.0, 0.0, 100.0),
    )


def answer_pushed(view: View) -> dict[str, Any]:
    last = len(FOUR_WORDS) - 1
    drawn_G = [int(word) for word in read_list(view, "drawn", "0,0,1,2", 0, last, (2, MOST_COMPLETIONS))]
    preset = view.read("preset") or "grpo"
    offered = next(control for control in load_stations()["pushed"].controls if control.name == "preset")
    if preset not in dict(offered.options):
        raise BadWord(f"preset: one of {', '.join(dict(offered.options))} belongs there.")
    return push_words(
        FOUR_WORDS, drawn_G, read_int(view, "word", 1, 0, last), read_float(view, "rate", 1.0, 0.0, 100.0), preset
    )


def answer_clip(view: View) -> dict[str, Any]:
    probability = read_float(view, "probability", 0.2, 1e-6, 0.999)
    asked = read_float(view, "ratio", 1.5, 1e-3, 100.0)
    ratios = list_ratios(probability)
    ratio = min(asked, max(ratios))
    advantage = read_float(view, "advantage", 1.0, -100.0, 100.0)
    words = {
        "clip_low": read_float(view, "clip_low", 0.2, 0.0, 0.99),
        "clip_high": read_float(view, "clip_high", 0.2, 0.0, 1.9),
    }
    length = read_int(view, "length", 1, 1, MOST_TOKENS // 8)
    regions = {}
    for name, traced in trace_regions([ratio, *ratios], advantage, words, probability, length).items():
        regions[name] = {
            "says": traced["says"],
            "told": traced["told"],
            "surrogate": traced["surrogate"][0],
            "slope": traced["slope"][0],
            "silenced": traced["silenced"][0],
            "curve": {"surrogate": traced["surrogate"][1:], "slope": traced["slope"][1:]},
        }
    return {
        "ratio": ratio,
        "asked": asked,
        "advantage": advantage,
        "ratios": ratios,
        "regions": regions,
        "highest": HIGHEST_RATIO,
    }


def answer_difficulty(view: View) -> dict[str, Any]:
    return weigh_difficulty(read_float(view, "p", 0.1, 0.0, 1.0), read_int(view, "group_size", 8, 2, LARGEST))


def answer_length(view: View) -> dict[str, Any]:
    lengths_N = [int(length) for length in read_list(view, "lengths", "20,200,60,60", 1, MOST_TOKENS, (2, MOST_COMPLETIONS))]
    half = (len(lengths_N) + 1) // 2
    groups_N = [int(place >= half) for place in range(len(lengths_N))]
    return weigh_lengths(lengths_N, groups_N, read_int(view, "longest", 256, 1, MOST_TOKENS))


def answer_kl(view: View) -> dict[str, Any]:
    toward = read_int(view, "toward", 3, 0, len(FOUR_WORDS) - 1)
    return measure_drift(FOUR_WORDS, toward, read_float(view, "drift", 1.5, 0.0, 10.0))


ANSWERS: dict[str, Callable[[View], dict[str, Any]]] = {
    "group": answer_group,
    "baselines": answer_baselines,
    "pushed": answer_pushed,
    "clip": answer_clip,
    "difficulty": answer_difficulty,
    "length": answer_length,
    "kl": answer_kl,
}
"""By the names of stations.toml, but for that of a run."""
