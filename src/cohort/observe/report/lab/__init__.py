"""lab.html: stations that teach GRPO by guessing first, in one file that needs no server. The dashboard serves all of them.

The words of the stations are in stations.toml. What this page computes itself, in lab_arithmetic.js, mirrors four of them; a
test holds it to the functions that train.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from cohort.observe.look import find_telling_group
from cohort.observe.report.data import RunData
from cohort.observe.report.frame import fill_frame, make_environment
from cohort.observe.rollouts import list_kept_steps

HERE = Path(__file__).resolve().parent
MODULES = ("lab_arithmetic.js", "lab_drawing.js", "lab_pictures.js", "lab_files.js", "lab.js", "lab_alone.js")
"""The modules of the page in the order in which they need each other."""
STYLES = "lab.css"
STEPS_BACK = 5
"""Of the newest steps whose completions are kept: those that are looked through for a group that teaches."""
MOST_COMPLETIONS = 64
"""Of a group in the lab."""


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
    everywhere: bool
    """Whether it is also on the page that needs no server."""


@cache
def load_stations() -> dict[str, Station]:
    """The stations by name, in their order."""
    tree = tomllib.loads((HERE / "stations.toml").read_text(encoding="utf-8"))
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
        entry.get("everywhere", False),
    )


def render_lab() -> str:
    """The page, the same wherever it is written."""
    stations = [station for station in load_stations().values() if station.everywhere]
    body = make_environment(HERE).get_template("lab.html").render(stations=stations)
    return fill_frame("The lab · Cohort", [Markup(body)], join_modules(), read_file(STYLES))


def join_modules() -> str:
    """The modules as one script: a page that loads nothing can import nothing."""
    joined = "\n".join(read_file(name) for name in MODULES)
    joined = re.sub(r"^import .*?;\n", "", joined, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^export ", "", joined, flags=re.MULTILINE)


def find_lab_address(run: RunData) -> str:
    """The lab with the rewards of the newest group of the run in which they differ; "" where none that is kept does."""
    for step in reversed(list_kept_steps(run.folder.rollouts)[-STEPS_BACK:]):
        group = find_telling_group(run.read_completions([step], ("group", "reward")))
        rewards = [row["reward"] for row in group if row["reward"] is not None]
        if len(set(rewards)) > 1 and len(rewards) <= MOST_COMPLETIONS:
            words = {"rewards": ",".join(f"{reward:.6g}" for reward in rewards)}
            words["from"] = f"step {step}, group {group[0]['group']} of {run.name}"
            return ("/lab/group?" if run.served else "lab.html#") + urlencode(words, safe=",")
    return ""


def read_file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
