"""The contract of the house: which way imports go, how much stands at the top, how long a file is, who does without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import house
from pages import DOCS, ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import weight

MODULES = house.find_modules()
IMPORTS = house.find_imports(MODULES)

MAX_AT_THE_TOP = 10
MAX_LINES = 400
"""Lines of code: blank lines, comments and docstrings do not count."""

LATE = {
    "cohort.ops.adam8 -> cohort.ops.fused.kernels_adam8",  # the fast twin reads the slow one's tables
    "cohort.ops.logprobs -> cohort.ops.fused.kernels_head",  # the same
    "cohort_verify.sandbox.tiers -> cohort_verify.sandbox.jail",  # a tier is probed by running a jail in it
}
"""Imports inside functions that would close a circle at the top of the file; all within one room."""


# -- layers ------------------------------------------------------------------------------------------------------------


def test_imports_go_one_way():
    assert house.find_climbs(IMPORTS) == set()


def test_every_room_has_its_floor_and_every_floor_its_rooms():
    assert sorted(room for floor in house.FLOORS for room in floor) == sorted(house.join_rooms(IMPORTS))


def test_no_room_and_no_module_imports_itself_round_a_corner():
    late = {tuple(pair.split(" -> ")) for pair in LATE}
    cut = {name: {target for target in targets if (name, target) not in late} for name, targets in IMPORTS.items()}
    assert house.find_cycle(cut) == []
    assert house.find_cycle(house.join_rooms(IMPORTS)) == []


def test_a_late_import_stays_in_its_room_and_is_still_needed():
    for late in LATE:
        name, target = late.split(" -> ")
        assert house.room_of(name) == house.room_of(target)
        assert name in house.reach(IMPORTS, target), (
            f"{late} closes no circle any more: import it at the top, and strike it out"
        )


def test_no_module_imports_the_package_itself():
    assert {name for name, targets in IMPORTS.items() if "cohort" in targets} == set()
    assert IMPORTS["cohort"] == set()


def test_the_walk_sees_late_imports_and_leaves_out_those_for_types(tmp_path):
    source = tmp_path
    files = {
        "__init__.py": "",
        "loop.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cohort.cli\nelse:\n    import cohort.types\n",
        "cli.py": "def go():\n    from cohort.model import policy, CONSTANT\n",
        "types.py": "try:\n    import cohort.loop\nexcept ImportError:\n    pass\n",
        "model/__init__.py": "CONSTANT = 1\n",
        "model/policy.py": "import os, cohort\nfrom cohort.types import Prompt\n",
    }
    for name, text in files.items():
        file = source / "cohort" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    edges = house.find_imports(house.find_modules(source))
    assert edges == {
        "cohort": set(),
        "cohort.loop": {"cohort.types"},
        "cohort.cli": {"cohort.model", "cohort.model.policy"},
        "cohort.types": {"cohort.loop"},
        "cohort.model": set(),
        "cohort.model.policy": {"cohort", "cohort.types"},
    }
    assert house.find_climbs(edges) == {"cohort.types -> cohort.loop"}
    assert house.find_cycle(edges) == ["cohort.types", "cohort.loop", "cohort.types"]
    assert house.join_rooms(edges) == {"loop": {"types"}, "cli": {"model"}, "types": {"loop"}, "model": {"types"}}


def test_an_arrow_that_a_longer_way_replaces_is_not_drawn():
    assert house.drop_shortcuts({"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}) == {
        "a": {"b", "d"},
        "b": {"c"},
        "c": set(),
        "d": set(),
    }


# -- size --------------------------------------------------------------------------------------------------------------


def test_few_modules_stand_at_the_top():
    top = [file.name for file in (house.SOURCE / "cohort").glob("*.py")]
    assert len(top) <= MAX_AT_THE_TOP, sorted(top)


def test_no_file_has_too_many_lines_of_code():
    lines = {name: weight.count_code_lines(file) for name, file in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}, "split it"


# -- torch -------------------------------------------------------------------------------------------------------------


def loads_torch(modules: list[str]) -> bool:
    """Whether torch or transformers is there once these have been imported, in an interpreter of their own.

    A walk over the imports cannot tell: an object that imports on first use looks like an import, and a package loads others.
    """
    code = f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\nprint({{'torch', 'transformers'}} & {{*sys.modules}})"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout != "set()\n"


@pytest.mark.slow
@pytest.mark.parametrize("room", house.TORCH_FREE)
def test_a_room_does_without_torch(room):
    modules = [name for name in MODULES if house.room_of(name) == room and not name.endswith("__main__")]
    assert not loads_torch(["cohort", *modules])


def test_torch_would_be_noticed(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    (tmp_path / "careless.py").write_text("import torch", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert loads_torch(["careless"])
    assert not loads_torch(["json"])


# -- the picture -------------------------------------------------------------------------------------------------------


def test_the_picture_shows_the_rooms_and_their_imports():
    """Lines may drift until `make docs` is run again; rooms and arrows may not."""
    drawn = ElementTree.parse(DOCS / "house.svg").getroot()
    rooms = {node.get("data-room") for node in drawn.iter() if node.get("data-room")}
    arrows = {(node.get("data-from"), node.get("data-to")) for node in drawn.iter() if node.get("data-from")}
    assert rooms == set(house.join_rooms(IMPORTS)), "run: make docs"
    assert arrows == house.find_arrows(IMPORTS), "run: make docs"
