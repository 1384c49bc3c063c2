"""The house: which room imports which, its order, and its picture. Imports count wherever they stand, in functions too.

It draws docs/house.svg and writes the list of rooms in docs/how-it-works.md. tests/test_house.py holds the code to what is written
here.
"""

from __future__ import annotations

import ast
import html
from collections.abc import Iterator, Mapping
from pathlib import Path

from pages import ROOT, read_page, replace_between

SOURCE = ROOT / "src"
PACKAGES = ("cohort", "cohort_verify")
MARKS = ("<!-- house:begin -->\n", "<!-- house:end -->\n")

FLOORS = (
    ("cli", "api"),
    ("tools",),
    ("session",),
    ("loop_iterative", "loop_async"),
    ("loop",),
    ("training",),
    ("observe",),
    ("evaluation",),
    ("data",),
    ("environments",),
    ("rewards",),
    ("engine",),
    ("model",),
    ("ops",),
    ("parallel",),
    ("recipe",),
    ("algorithms",),
    ("base",),
    ("types", "errors"),
    ("cohort_verify",),
)
"""From the roof down. A room imports what stands below it; the rooms of one floor do not know each other."""

TORCH_FREE = (
    "cli",
    "tools",
    "observe",
    "evaluation",
    "data",
    "rewards",
    "recipe",
    "algorithms",
    "base",
    "types",
    "errors",
    "cohort_verify",
)
"""Rooms of which every module can be imported without torch: what `--help`, a reward worker or a report needs."""

Edges = dict[str, set[str]]


def find_modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    found = {}
    for file in sorted(file for package in PACKAGES for file in (source / package).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def find_imports(modules: Mapping[str, Path]) -> Edges:
    """What each module imports of the others. A package imported for its path alone counts as the package."""
    edges: Edges = {}
    for name, file in modules.items():
        edges[name] = set()
        for node in walk_running(ast.parse(file.read_text(encoding="utf-8"))):
            edges[name] |= {target for target in targets_of(node, modules, f"{name} line {node.lineno}") if target != name}
    return edges


def walk_running(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that can run: all but those for the type checker alone."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
        return
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in node.orelse if for_types else ast.iter_child_nodes(node):
        yield from walk_running(child)


def targets_of(node: ast.Import | ast.ImportFrom, modules: Mapping[str, Path], where: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
        return
    if node.level:
        raise ValueError(f"{where}: write the whole name in place of a relative import")
    for alias in node.names:
        if f"{node.module}.{alias.name}" in modules:
            yield f"{node.module}.{alias.name}"
        elif node.module in modules:
            yield node.module


def room_of(module: str) -> str:
    """The first name after `cohort`; the package itself is no room, and `python -m cohort` is the command line. The other package
    is one room."""
    package, _, rest = module.partition(".")
    return package if package != "cohort" else rest.partition(".")[0].replace("__main__", "cli")


def find_home(room: str, modules: Mapping[str, Path]) -> Path:
    """The file that describes a room: a module, or the first file of a package."""
    return modules[room if room in PACKAGES else f"cohort.{room}"]


def join_rooms(edges: Edges) -> Edges:
    """Which room imports which."""
    rooms: Edges = {room_of(name): set() for name in edges if room_of(name)}
    for name, targets in edges.items():
        if room_of(name):
            rooms[room_of(name)] |= {room_of(target) for target in targets if room_of(target) not in ("", room_of(name))}
    return rooms


def find_climbs(edges: Edges) -> set[str]:
    """Imports that go up or sideways, as "module -> module"."""
    floor = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
    return {
        f"{name} -> {target}"
        for name, targets in edges.items()
        for target in targets
        if room_of(name) != room_of(target) and room_of(name) and room_of(target)
        if floor[room_of(target)] <= floor[room_of(name)]
    }


def find_cycle(edges: Edges) -> list[str]:
    """One chain of imports that ends where it begins, or nothing."""
    left = {name: set(targets) for name, targets in edges.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    chain = [min(left)]
    while chain[-1] not in chain[:-1]:
        chain.append(min(left[chain[-1]] & left.keys()))
    return chain[chain.index(chain[-1]) :]


def reach(edges: Edges, start: str) -> set[str]:
    """All that can be got to from here."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def drop_shortcuts(edges: Edges) -> Edges:
    """The arrows that no longer way replaces."""
    return {
        name: {target for target in targets if not any(target in reach(edges, other) for other in targets - {target})}
        for name, targets in edges.items()
    }


def count_lines(room: str, modules: Mapping[str, Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for name, file in modules.items() if room_of(name) == room)


# -- the picture and the list of rooms ---------------------------------------------------------------------------------

COLUMNS = dict.fromkeys(("data", "rewards", "base"), 90) | dict.fromkeys(("observe", "evaluation"), 115)
COLUMNS |= {"api": 400, "types": 165, "engine": 350, "model": 350, "ops": 380, "recipe": 420, "algorithms": 345, "errors": 440}
COLUMNS |= {"loop_iterative": 110, "loop_async": 290}
"""Where the middle of a room stands on its floor, so that no arrow runs behind a box; 200 where nothing is said."""
WIDTH, ROW, BOX = 500, 50, 30


def find_arrows(edges: Edges) -> set[tuple[str, str]]:
    """The arrows of the picture: imports from room to room, less those a longer way replaces."""
    return {(room, target) for room, targets in drop_shortcuts(join_rooms(edges)).items() for target in targets}


def draw_house() -> str:
    """The house as an SVG that needs nothing else: a box for each room, an arrow for each import that no longer way replaces."""
    modules = find_modules()
    rooms = [(room, row) for row, floor in enumerate(FLOORS) for room in floor]
    middle = {room: (COLUMNS.get(room, 200), ROW * row + 30) for room, row in rooms}
    height = ROW * len(FLOORS) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Verdana, DejaVu Sans, sans-serif" font-size="12">',
        "<title>The packages of src and their imports</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for room, target in sorted(find_arrows(find_imports(modules))):
        (x, y), (to_x, to_y) = middle[room], middle[target]
        lines.append(
            f'<path data-from="{room}" data-to="{target}" d="M{x},{y + BOX / 2:.0f} L{to_x},{to_y - BOX / 2:.0f}" '
            'stroke="#555" fill="none" marker-end="url(#tip)"/>'
        )
    for room, _ in rooms:
        is_room = find_home(room, modules).name == "__init__.py"
        text = f"{room}{'/' if is_room else ''} {count_lines(room, modules)}"
        (x, y), wide = middle[room], 8 * len(text) + 24
        fill, line = "#eaf1ff" if is_room else "#fff1d0", ' stroke-dasharray="4 3"' if room in TORCH_FREE else ""
        lines.append(
            f'<g data-room="{room}"><rect x="{x - wide / 2:.0f}" y="{y - BOX / 2:.0f}" width="{wide}" height="{BOX}" rx="10" '
            f'fill="{fill}" stroke="#222"{line}/><text x="{x}" y="{y + 4:.0f}" text-anchor="middle">{html.escape(text)}</text></g>'
        )
    lines.append(
        f'<text x="{WIDTH / 2:.0f}" y="{height - 12}" text-anchor="middle" font-size="11" fill="#555">'
        "name and lines of code; arrows are imports; dashed: no torch</text>"
    )
    return "\n".join([*lines, "</svg>", ""])


def list_rooms(modules: Mapping[str, Path]) -> str:
    """A row for each room: the first sentence of its docstring."""
    rows = ["| | |", "|---|---|"]
    for room in (room for floor in FLOORS for room in floor):
        file = find_home(room, modules)
        path = f"{room}/" if file.name == "__init__.py" else f"{room}.py"
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        sentence = " ".join(said.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
        rows.append(f"| [`{path}`](../src/{path if room in PACKAGES else f'cohort/{path}'}) | {sentence} |")
    return "\n".join([*rows, ""])


def make_page() -> str:
    """The text of docs/how-it-works.md: the page as it is, with the list of rooms between its marks."""
    return replace_between(read_page("how-it-works.md"), *MARKS, list_rooms(find_modules()))
