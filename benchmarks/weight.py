"""Counts the lines of code of `src/cohort` by room: what somebody has to read.

    python benchmarks/weight.py                 # the table of this checkout
    python benchmarks/weight.py OTHER_CHECKOUT  # beside that of another one
    python benchmarks/weight.py --files 20      # and the longest files

A line counts where it holds code: blank lines, comments and docstrings (those below a field or a
constant too) do not, whatever their number, so that words about the code are never what is saved. Templates, TOML tables and C count
by their lines that are neither blank nor a comment.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
# The comments of the files that are not Python, by their ending; what is not listed is not code.
_COMMENTS = {
    ".toml": re.compile(r"^\s*#.*$", re.MULTILINE),
    ".c": re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL),
    ".h": re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL),
    ".html": re.compile(r"<!--.*?-->|\{#.*?#\}", re.DOTALL),
    ".j2": re.compile(r"<!--.*?-->|\{#.*?#\}", re.DOTALL),
    ".js": re.compile(r"/\*.*?\*/|^\s*//[^\n]*", re.DOTALL | re.MULTILINE),
    ".css": re.compile(r"/\*.*?\*/", re.DOTALL),
}


def count_python_lines(source: str) -> int:
    """The lines of a Python file that hold code, docstrings left out."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that stands alone describes what it follows: a module, class, function, field or constant.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def count_code_lines(path: Path) -> int:
    """The lines of one file that hold code; 0 for a kind of file that is not code."""
    if path.suffix == ".py":
        return count_python_lines(path.read_text(encoding="utf-8"))
    comment = _COMMENTS.get(path.suffix)
    if comment is None:
        return 0
    text = comment.sub("", path.read_text(encoding="utf-8"))
    return sum(1 for line in text.splitlines() if line.strip())


def count_files(root: Path) -> dict[Path, int]:
    """The code lines of every file under the package of a checkout."""
    package = root / "src" / "cohort"
    files = (path for path in package.rglob("*") if path.is_file())
    counted = {path.relative_to(package): count_code_lines(path) for path in sorted(files)}
    return {path: lines for path, lines in counted.items() if lines}


def name_room(path: Path) -> str:
    """The room a file of the package stands in: its folder, or the file for a top module."""
    return path.parts[0]


def sum_rooms(counted: dict[Path, int]) -> Counter[str]:
    """The code lines of every room."""
    rooms: Counter[str] = Counter()
    for path, lines in counted.items():
        rooms[name_room(path)] += lines
    return rooms


def main(arguments: list[str]) -> int:
    """Print the table by room, beside another checkout's where one is named."""
    longest = 0
    if "--files" in arguments:
        at = arguments.index("--files")
        longest = int(arguments[at + 1])
        del arguments[at : at + 2]
    here = count_files(ROOT)
    rooms = sum_rooms(here)
    other = sum_rooms(count_files(Path(arguments[0]))) if arguments else None
    print("| room | code lines |" if other is None else "| room | there | here | change |")
    print("| --- | ---: |" if other is None else "| --- | ---: | ---: | ---: |")
    for room in sorted(rooms.keys() | (other or rooms).keys(), key=lambda room: -rooms[room]):
        if other is None:
            print(f"| {room} | {rooms[room]:,} |")
        else:
            change = rooms[room] - other[room]
            print(f"| {room} | {other[room]:,} | {rooms[room]:,} | {change:+,} |")
    total = rooms.total()
    if other is None:
        print(f"| **all** | **{total:,}** |")
    else:
        print(f"| **all** | {other.total():,} | **{total:,}** | {total - other.total():+,} |")
    for path, lines in sorted(here.items(), key=lambda one: -one[1])[:longest]:
        print(f"{lines:6,}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
