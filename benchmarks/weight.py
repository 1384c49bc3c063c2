"""Counts modules and lines of code: `src/cohort` by package, `src/cohort_verify`, packages, benchmarks and JavaScript of docs.

    python benchmarks/weight.py                 # the table of this checkout
    python benchmarks/weight.py OTHER_CHECKOUT  # next to that of another one
    python benchmarks/weight.py --files 20      # and the longest files

A module is a Python file. A line counts if it holds code: blank lines, comments and docstrings (also below fields and constants) do
not. Templates, TOML tables and C count by their lines that are neither blank nor a comment.
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
# Comments of other kinds of files, by suffix; files with other suffixes are not code.
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
    """The lines of a Python file that hold code, without docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string as a statement is the docstring of a module, class, function, field or constant.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def count_code_lines(path: Path) -> int:
    """The lines of one file that hold code; 0 for files that are not code."""
    if path.suffix == ".py":
        return count_python_lines(path.read_text(encoding="utf-8"))
    comment = _COMMENTS.get(path.suffix)
    if comment is None:
        return 0
    text = comment.sub("", path.read_text(encoding="utf-8"))
    return sum(1 for line in text.splitlines() if line.strip())


def count_script_lines(page: Path) -> int:
    """The lines of JavaScript in an HTML page."""
    scripts = "\n".join(re.findall(r"<script[^>]*>(.*?)</script>", page.read_text(encoding="utf-8"), re.DOTALL))
    return sum(1 for line in _COMMENTS[".js"].sub("", scripts).splitlines() if line.strip())


def count_files(root: Path) -> dict[Path, int]:
    """The code lines of every file of a checkout that has any, by its path in the checkout."""
    folders = [root / name for name in ("src", "packages", "benchmarks")]
    files = {path: count_code_lines(path) for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}
    files |= {page: count_script_lines(page) for page in sorted((root / "docs").glob("*.html"))}
    return {path.relative_to(root): lines for path, lines in files.items() if lines or path.suffix == ".py"}


def name_parts(path: Path) -> list[str]:
    """The rows of the table that a file counts in."""
    if path.parts[:2] == ("src", "cohort"):
        return ["src/cohort", f"src/cohort/{path.parts[2]}", "**src**"]
    return ["src/cohort_verify", "**src**"] if path.parts[0] == "src" else [PARTS[path.parts[0]]]


PARTS = {"packages": "packages", "benchmarks": "benchmarks", "docs": "docs, JavaScript"}


def sum_parts(counted: dict[Path, int]) -> dict[str, tuple[int, int]]:
    """Row -> modules and code lines, the packages of src/cohort from largest to smallest."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, count in counted.items():
        for part in name_parts(path):
            modules[part] += path.suffix == ".py"
            lines[part] += count
    inner = sorted((part for part in lines if part.startswith("src/cohort/")), key=lambda part: -lines[part])
    return {
        part: (modules[part], lines[part]) for part in (*inner, "src/cohort", "src/cohort_verify", "**src**", *PARTS.values())
    }


def main(arguments: list[str]) -> int:
    """Print the table, next to another checkout's if one is named."""
    longest = 0
    if "--files" in arguments:
        at = arguments.index("--files")
        longest = int(arguments[at + 1])
        del arguments[at : at + 2]
    files = count_files(ROOT)
    here = sum_parts(files)
    if arguments:
        there = sum_parts(count_files(Path(arguments[0])))
        print("| part | modules there | here | lines there | here | change |\n| --- | ---: | ---: | ---: | ---: | ---: |")
        for part in dict.fromkeys([*(part for part in there if part not in here), *here]):
            (modules, lines), (old_modules, old_lines) = here.get(part, (0, 0)), there.get(part, (0, 0))
            print(f"| {part} | {old_modules} | {modules} | {old_lines:,} | {lines:,} | {lines - old_lines:+,} |")
    else:
        print("| part | modules | code lines |\n| --- | ---: | ---: |")
        for part, (modules, lines) in here.items():
            print(f"| {part} | {modules} | {lines:,} |")
    for path, lines in sorted(files.items(), key=lambda one: -one[1])[:longest]:
        print(f"{lines:6,}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
