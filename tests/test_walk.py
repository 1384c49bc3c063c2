"""The walk of docs/how-it-works.md, taken: a tiny demo is trained, and every call of the package is seen.

Stations are calls in the order of the page, each inside the one that the page says; none is entered again while it is open; and
no package calls up the layers except where HANDED says so.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

from cohort.cli import app
from house import FLOORS, ROOT, SOURCE

PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
MOST_STATIONS = 44
SMALL = """
    model.scratch.hidden_size=32 model.scratch.intermediate_size=48 model.scratch.num_layers=2 model.scratch.num_heads=2
    model.scratch.num_kv_heads=1 prompts.args.digits=1 prompts.limit=8 cold_start.num_steps=1 cold_start.batch_size=8
    cold_start.check_prompts=4 cold_start.check_every=1 sampling.max_completion_tokens=12 num_steps=1 prompts_per_step=4
    group_size=8 evaluation.samples=0 evaluation.sets.held_out.args.digits=1 evaluation.sets.all_carry.args.digits=1
    evaluation.sets.four_digits.args.digits=1 checkpoints.every_steps=1 monitors.console=false name=run
"""
"""The demo as `cohort train` has it, with a smaller model, fewer prompts and one step."""


COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


class Station(NamedTuple):
    number: int
    inside: int
    """0: nothing."""
    name: str


def rows_between(mark: str) -> list[list[str]]:
    """Cells of the table between two marks of the page."""
    text = PAGE.split(f"<!-- {mark}:begin -->\n")[1].split(f"<!-- {mark}:end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


STATIONS = [Station(int(row[0]), int(row[1] or 0), row[2].strip("`")) for row in rows_between("walk")]
HANDED = [
    (["base/stopwatch.py:Stopwatch.lap"], ["model/policy.py:Policy.wait"]),  # a stage ends when the device has finished it
    (
        ["base/threads.py:start_thread"],
        [
            "rewards/runner.py:RewardRunner._score_part",
            "rewards/runner.py:RewardRunner._call",
            "rewards/runner.py:RewardRunner._extract_chunk",
        ],
    ),  # reward functions in parallel threads
    (["base/threads.py:start_thread"], ["rewards/call.py:extract_answers"]),  # answers within a time limit
    (
        ["cohort_verify/workers.py:Pool.__init__", "cohort_verify/workers.py:Pool.close"],
        ["rewards/pool.py:HelperPool.grow", "rewards/pool.py:HelperPool._end"],
    ),  # the pool's kind of worker
    (
        ["cohort_verify/math/answer.py:math_answer"],
        ["rewards/call.py:CallLog.log_verdict", "rewards/call.py:CallLog.log_extra", "rewards/call.py:CallLog.log_metric"],
    ),  # a reward reports verdicts and metrics through functions that it is given
    (
        ["base/world.py:World.on_main"],
        [
            "training/launch.py:claim_folder",
            "training/launch.py:find_checkpoint",
            "session.py:Session.assemble",
            "session.py:Session._cold_start",
            "training/build.py:settle_products",
            "model/policy.py:Policy.save",
            "training/stages.py:observe_step",
            "training/stages.py:plan_pruning",
            "training/saver.py:Saver._advance",
        ],
    ),  # work of rank 0 for all ranks: folder, checkpoints, exports, stop reason
    (
        ["base/world.py:World.compute"],
        [
            "training/launch.py:claim_folder",
            "engine/requests.py:sample_groups",
            "rewards/runner.py:RewardRunner.score",
            "model/backbone.py:score_tokens",
        ],
    ),  # each rank's share: draws, rewards, scoring passes
    (["base/threads.py:Worker.submit"], ["training/saver.py:Saver._submit"]),  # writing a checkpoint
    (["training/launch.py:claim_folder"], ["session.py:start"]),  # how to make the folder
    (
        ["rewards/retry_one_by_one.py:Progress._advance"],
        ["observe/monitors/base.py:forward"],
    ),  # progress of slow scoring
    (["model/packing.py:pack"], ["training/objective.py:weigh_tokens"]),  # the aggregation's token weights
    (
        ["ops/cached_attention.py:hidden_states", "ops/cached_attention.py:read_cache"],
        ["engine/decoders.py:SlotCache.update", "engine/decoders.py:SlotCache.attend"],
    ),  # the slot cache inside the modules of transformers
    (
        ["ops/fused/training.py:FusedBackbone.prove"],
        ["model/backbone.py:ModuleBackbone.__call__"],
    ),  # the modules that check Cohort's kernels
]
"""Calls up the layers: (callers, functions that they received). The comment gives the purpose."""


def code_of(name: str) -> CodeType:
    """Of `file.py:Class.method`."""
    file, _, path = name.partition(":")
    module = file.removesuffix(".py").replace("/", ".")
    found: Any = importlib.import_module(module if file.startswith("cohort_verify/") else f"cohort.{module}")
    for attribute in path.split("."):
        found = getattr(found, attribute)
    return inspect.unwrap(found).__code__


def name_of(code: CodeType) -> str:
    """As on the page. A function inside another is a part of it."""
    return f"{str(Path(code.co_filename).relative_to(SOURCE)).removeprefix('cohort/')}:{code.co_qualname.partition('.<locals>')[0]}"


def floor_of(name: str) -> int:
    room = re.split(r"[/.]", name)[0]
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


@dataclass
class Open:
    """A call that has not returned."""

    name: str
    station: int
    number: int
    """Of the call, from 0, over all stations."""


@dataclass
class Walk:
    """Who was called, by whom, in a run."""

    codes: dict[CodeType, str] = field(default_factory=dict)
    """Codes met so far; a name of "" is not looked at."""
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    """(station, number of the call it is inside, functions between the two) of every call of a station, in order; -1: none."""
    again: set[str] = field(default_factory=set)
    """Stations entered while they were open."""
    upward: set[tuple[str, str]] = field(default_factory=set)
    stacks: dict[int, list[Open]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stations = {code_of(station.name): station.number for station in STATIONS}

    def find_name(self, code: CodeType) -> str:
        if code not in self.codes:
            ours = code.co_filename.startswith(str(SOURCE)) and code.co_flags & inspect.CO_OPTIMIZED  # no module, no class
            self.codes[code] = name_of(code) if ours and code.co_name not in COMPREHENSIONS else ""
        return self.codes[code]

    def look(self, frame: FrameType, event: str, _: Any) -> None:
        """A profiler (sys.setprofile) of every thread."""
        if event not in ("call", "return") or not (name := self.find_name(frame.f_code)):
            return
        stack = self.stacks.setdefault(threading.get_ident(), [])
        if event == "return":
            if stack and stack[-1].name == name:
                stack.pop()
            return
        if stack and floor_of(name) < floor_of(stack[-1].name):
            self.upward.add((stack[-1].name, name))
        station = self.stations.get(frame.f_code, 0)
        number = -1
        if station:
            number = len(self.calls)
            place = next((place for place in range(len(stack) - 1, -1, -1) if stack[place].station), -1)
            between = {one.name for one in stack[place + 1 :]}
            self.calls.append((station, stack[place].number if place >= 0 else -1, len(between)))
            if any(one.station == station for one in stack):
                self.again.add(name)
        stack.append(Open(name, station, number))


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """One run of the command line under the profiler. A thread stands where it was started."""
    for module in ("transformers.models.llama.modeling_llama", "cohort.observe.report.page", "pyarrow.parquet", "pandas"):
        importlib.import_module(module)  # what is imported under a profiler takes three times as long
    runs, made = tmp_path_factory.mktemp("walk"), Walk()
    start, run = threading.Thread.start, threading.Thread.run

    def start_here(thread: threading.Thread) -> None:
        thread.walked = list(made.stacks.get(threading.get_ident(), []))  # type: ignore[attr-defined]
        start(thread)

    def run_there(thread: threading.Thread) -> None:
        made.stacks[threading.get_ident()] = thread.walked  # type: ignore[attr-defined]
        run(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_here)
        patch.setattr(threading.Thread, "run", run_there)
        threading.setprofile(made.look)
        sys.setprofile(made.look)
        try:
            app(["train", *SMALL.split(), f"runs_folder={runs}"], standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    assert (runs / "run" / "checkpoints" / "step-1").is_dir()
    return made


def test_the_walk_is_short_and_numbered():
    assert [station.number for station in STATIONS] == list(range(1, len(STATIONS) + 1))
    assert len(STATIONS) <= MOST_STATIONS
    assert all(station.inside < station.number for station in STATIONS)
    assert len({station.name for station in STATIONS}) == len(STATIONS)


def test_stations_are_called_in_the_order_of_the_page_and_inside_the_one_it_says(walk):
    met = {0: -1}  # station -> the call that is meant
    for station in STATIONS:
        found = [
            number
            for number, (one, inside, _) in enumerate(walk.calls)
            if (one, inside) == (station.number, met[station.inside])
        ]
        assert found, f"{station.name} is not called inside station {station.inside}"
        assert found[0] > met.get(station.number - 1, -1), f"{station.name} is called before station {station.number - 1}"
        met[station.number] = found[0]
    between = [walk.calls[met[station.number]][2] for station in STATIONS]
    [(most, total)] = re.findall(r"at most (\w+) between a step and the one it is inside, (\d+) on the whole\s+way", PAGE)
    assert most == ["no", "one", "two", "three", "four", "five", "six"][max(between)]
    assert int(total) == sum(between)


def test_no_station_is_called_back_by_what_it_contains(walk):
    assert walk.again == set()


def test_calls_up_the_layers_are_listed(walk):
    named = {(caller, handed) for callers, all_handed in HANDED for caller in callers for handed in all_handed}
    assert walk.upward <= named
    assert len(walk.upward) >= 5  # those of own kernels are met where there are any
    for pair in named:
        assert [name_of(code_of(name)) for name in pair] == list(pair)
        assert floor_of(pair[0]) > floor_of(pair[1])


def test_the_readme_tells_its_length():
    [told] = re.findall(r"(?:in|through) (\d+) (?:stations|steps)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert int(told) == len(STATIONS)
