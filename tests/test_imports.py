"""Each module of both packages can be the first of its room to be imported: there are no circular imports.

A room is imported on top of all rooms below it, which cannot import it (tests/test_house.py). A module that imports nothing of its
own room cannot be part of a circle. Both save time.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import house
from yardstick import measure_slowdown

MODULES = house.find_modules()

IMPORT_EACH = """
import gc, importlib, json, os, resource, sys, time, traceback

floors, libraries = json.loads(sys.stdin.read())
for line in libraries:  # imported once, here; the children inherit them
    try:
        exec(line, {})
    except ImportError:
        pass
assert "torch" in sys.modules and not {"cohort", "cohort_verify"} & {*sys.modules}


def try_import(name):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException:
            os.write(writer, traceback.format_exc()[-2000:].encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as report:
        problem = report.read()
    _, status = os.waitpid(child, 0)
    return problem or (status and f"the child ended with status {status}")


problems = {}
began = time.process_time()
for floor in floors:
    gc.freeze()
    problems |= {name: problem for name, is_leaf in floor if not is_leaf and (problem := try_import(name))}
    for name, _ in floor:
        if name not in problems:
            importlib.import_module(name)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu_s = time.process_time() - began + children.ru_utime + children.ru_stime
print(json.dumps({"problems": problems, "cpu_s": cpu_s}))
"""
MAX_CPU_S = 20.0


def list_libraries() -> list[str]:
    """The import statements of our modules that name modules of other packages."""
    found = {"import torch", "import transformers"}
    for file in MODULES.values():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                found |= {f"import {alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                found |= {f"from {node.module} import {alias.name}" for alias in node.names}
    return sorted(line for line in found if line.replace(".", " ").split()[1] not in house.PACKAGES)


def list_floors() -> list[list[tuple[str, bool]]]:
    """The modules of each floor, from the lowest, and whether each imports nothing of its own room."""
    floors: list[list[tuple[str, bool]]] = [[] for _ in house.FLOORS]
    places = {room: place for place, rooms in enumerate(reversed(house.FLOORS)) for room in rooms}
    for name, targets in house.find_imports(MODULES).items():
        if (room := house.room_of(name)) and not name.endswith("__main__"):
            floors[places[room]].append((name, room not in map(house.room_of, targets)))
    return floors


def import_each(floors: list[list[tuple[str, bool]]], path: str) -> dict:
    """The problems of importing each module, in children forked from a process that has loaded the libraries and lower floors."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {[path]!r}\n" + IMPORT_EACH],
        input=json.dumps([floors, list_libraries()]),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_each_module_can_be_imported_first_and_a_circular_import_is_found(tmp_path) -> None:
    """Two modules that import each other stand above ours, so that one process loads the libraries for both."""
    (tmp_path / "one_way.py").write_text("import other_way\nVALUE = 1\n", encoding="utf-8")
    (tmp_path / "other_way.py").write_text("from one_way import VALUE\n", encoding="utf-8")
    found = import_each([*list_floors(), [("one_way", False), ("other_way", False)]], str(tmp_path))
    assert "circular import" in found["problems"].pop("one_way", "")
    assert found["problems"] == {}
    assert found["cpu_s"] < MAX_CPU_S * measure_slowdown()
