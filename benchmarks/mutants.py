"""Mutation testing: random mutants of covered lines, each run against the tests of its folder.

    pip install coverage==7.11.0
    python benchmarks/mutants.py --seed COMMIT --output FILE [--count 50] [--jobs 2]

Runs on a clean copy of the checkout. The tests of the packages below run once under coverage, without those marked slow, prove, gpu or
vllm. A mutant is drawn from the expressions on covered lines, and is killed if one of the tests that ran its line fails or does not end.
Only tests of the folder that mirrors the module count. Mutations change comparisons, arithmetic, `and` and `or`, `not`, numbers, `min`
and `max`, but not messages and annotations.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {  # code: its tests
    "src/cohort/algorithms": "tests/algorithms",
    "src/cohort/training": "tests/training",
    "src/cohort/engine": "tests/engine",
    "src/cohort/rewards": "tests/rewards",
    "src/cohort_verify": "tests/verify",
}
MARKS = "not prove and not gpu and not vllm and not slow"
LIMIT_SECONDS = 120.0  # of tests per mutant, as measured without it; quick tests first
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    start: int
    """Offsets in the file's UTF-8 bytes."""
    stop: int
    old: str
    new: str


def find_mutants(path: Path, covered: set[int]) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    tree = ast.parse(source)
    skipped = set(find_skipped(tree))

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def swap(node: ast.expr, first: int, last: int, old: str, new: str) -> Iterator[Mutant]:
        """Replaces `old` where it stands exactly once between two offsets."""
        between = source[first:last].decode()
        if node not in skipped and node.lineno in covered and between.count(old) == 1:
            at = first + len(between[: between.index(old)].encode())
            yield Mutant(str(path.relative_to(ROOT)), node.lineno, at, at + len(old), old, new)

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from swap(node, end(node.left), begin(node.comparators[0]), *COMPARISONS[type(node.ops[0])])
        elif (
            isinstance(node, ast.BinOp)
            and type(node.op) in ARITHMETIC
            and not isinstance(node.left, ast.Constant | ast.JoinedStr)
        ):
            yield from swap(node, end(node.left), begin(node.right), *ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from swap(node, end(node.values[0]), begin(node.values[1]), old, new)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from swap(node, begin(node), begin(node.operand), "not ", "")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            text = source[begin(node) : end(node)].decode()
            yield from swap(node, begin(node), end(node), text, f"({text} + 1)")
        elif isinstance(node, ast.Name) and node.id in ("min", "max"):
            yield from swap(node, begin(node), end(node), node.id, "max" if node.id == "min" else "min")


def find_skipped(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything inside messages and annotations."""
    for node in ast.walk(tree):
        roots: list[ast.AST | None] = []
        if isinstance(node, ast.Raise | ast.JoinedStr):
            roots.append(node)
        elif isinstance(node, ast.AnnAssign | ast.arg):
            roots.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            roots.append(node.returns)
        for root in roots:
            if root is not None:
                yield from ast.walk(root)


def make_copy(folder: Path) -> Path:
    """The checkout's files as git lists them, without what is ignored."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_tests(
    copy: Path, arguments: list[str], seconds: float | None, prefix: tuple[str, ...] = ("-m",)
) -> tuple[int | None, str]:
    """Exit code (None: did not end) and output of pytest in a copy."""
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *prefix, "pytest", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, ""
    return process.returncode, output


@dataclass
class Coverage:
    lines: dict[str, dict[int, set[str]]]
    """File: line: the tests that ran it."""
    seconds: dict[str, float]
    """Of each test that passed."""


def measure_coverage(copy: Path) -> Coverage:
    import coverage

    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    seconds: dict[str, float] = {}
    plugin = copy / "note_tests.py"
    plugin.write_text(
        "import json, os, pytest\n"
        "import coverage\n"
        "@pytest.hookimpl(hookwrapper=True)\n"
        "def pytest_runtest_protocol(item):\n"
        "    coverage.Coverage.current().switch_context(item.nodeid)\n"
        "    yield\n"
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'call':\n"
        "        with open(os.environ['NOTED'], 'a') as file:\n"
        "            file.write(json.dumps([report.nodeid, report.outcome, report.duration]) + '\\n')\n"
    )
    noted = copy / "noted.jsonl"
    os.environ["NOTED"] = str(noted)
    for code, tests in FOLDERS.items():
        data = copy / f".coverage-{code.replace('/', '-')}"
        began = time.monotonic()
        prefix = ("-m", "coverage", "run", f"--data-file={data}", f"--source={copy / code}", "-m")
        run_tests(copy, ["-p", "note_tests", "-m", MARKS, tests], None, prefix)
        found = coverage.CoverageData(str(data))
        found.read()
        for file in found.measured_files():
            name = str(Path(file).relative_to(copy))
            for line, contexts in found.contexts_by_lineno(file).items():
                lines[name][line] |= {one for one in contexts if one}
        print(f"{tests}: covered in {time.monotonic() - began:.0f} s", flush=True)
    for text in noted.read_text().splitlines():
        test, outcome, duration = json.loads(text)
        if outcome == "passed":
            seconds[test] = duration
    return Coverage({name: dict(found) for name, found in lines.items()}, seconds)


def choose_tests(mutant: Mutant, covered: Coverage) -> list[str]:
    passed = [test for test in covered.lines[mutant.file][mutant.line] if test in covered.seconds]
    chosen, spent = [], 0.0
    for test in sorted(passed, key=lambda one: (covered.seconds[one], one)):
        spent += covered.seconds[test]
        if chosen and spent > LIMIT_SECONDS:
            break
        chosen.append(test)
    return chosen


def try_mutant(mutant: Mutant, copy: Path, covered: Coverage) -> dict[str, object]:
    path, tests = copy / mutant.file, choose_tests(mutant, covered)
    original = path.read_bytes()
    path.write_bytes(original[: mutant.start] + mutant.new.encode() + original[mutant.stop :])
    limit = 120.0 + 5 * sum(covered.seconds[test] for test in tests)
    try:
        code, output = run_tests(copy, ["-x", *tests], limit)
    finally:
        path.write_bytes(original)
    if code not in (None, 0, 1, 2, 3):  # 4 and 5: pytest itself found nothing to run
        raise RuntimeError(f"pytest ended with {code} for {mutant}:\n{output[-2000:]}")
    by = next(
        (line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "did not end" if code is None else ""
    )
    text = original.decode().splitlines()[mutant.line - 1].strip()
    return asdict(mutant) | {"killed": code != 0, "by": by[:200], "tests": len(tests), "text": text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [make_copy(Path(scratch) / str(number)) for number in range(chosen.jobs)]
        covered = measure_coverage(copies[0])
        pool = [
            mutant
            for name in sorted(covered.lines)
            if name.endswith(".py")
            for mutant in find_mutants(
                ROOT / name, {line for line, tests in covered.lines[name].items() if tests & covered.seconds.keys()}
            )
        ]
        drawn = random.Random(chosen.seed).sample(pool, chosen.count)
        print(
            f"{chosen.count} of {len(pool):,} possible mutants of {len(covered.lines)} files, {len(covered.seconds):,} tests",
            flush=True,
        )
        free: Queue[Path] = Queue()
        for copy in copies:
            free.put(copy)

        def judge(mutant: Mutant) -> dict[str, object]:
            copy = free.get()
            try:
                result = try_mutant(mutant, copy, covered)
            finally:
                free.put(copy)
            print(
                f"{'killed  ' if result['killed'] else 'SURVIVED'} {mutant.file}:{mutant.line} {mutant.old} -> {mutant.new}   {result['text']}",
                flush=True,
            )
            return result

        with ThreadPoolExecutor(chosen.jobs) as workers:
            results = list(workers.map(judge, drawn))
    killed = sum(bool(one["killed"]) for one in results)
    document = {"seed": chosen.seed, "killed": killed, "count": len(results), "pool": len(pool), "mutants": results}
    chosen.output.write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(f"{killed} of {len(results)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
