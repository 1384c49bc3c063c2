"""Check the claims of docs/results.md again, part by part, and record the outcome.

    make prove                                       all parts, one after the other (about five hours on two cores)
    make prove PART=jail                             one part, at most forty minutes
    python benchmarks/prove.py --list                the parts: minutes, contents, and last outcome
    python benchmarks/prove.py --only addition --seeds 0 one figure, nothing recorded

A part is a set of tests (those marked `prove` or `vllm`) and of figures (benchmarks/figures.py). Its result goes to docs/results/prove/PART.json:
commit, date, machine, seconds, every figure and the tests that failed. Figures are printed as rows of a markdown table with their
commands. Exit code 1 if anything misses its target. Runs go into a temporary folder, or the folder of --keep.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from figures import FIGURES, ROOT, Figure, Settings

RESULTS = ROOT / "docs" / "results" / "prove"
MARKED = "(prove or vllm) and not gpu"


@dataclass(frozen=True)
class Part:
    """Tests by folder or file, figures by name, and about how many minutes they take on two cores."""

    minutes: int
    tests: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


JAIL = ("verify/test_sandbox.py", "verify/test_jail_*.py", "verify/test_docs_*.py", "verify/test_first_process.py")
VERDICTS = ("verify/test_math_*.py", "verify/test_code_*.py", "verify/test_instruction*.py", "verify/test_rewards_*.py")
PARTS = {
    "maths": Part(12, ("algorithms", "base", "data", "engine", "evaluation", "model", "observe", "ops", "recipe"), ("lines",)),
    "runs": Part(20, ("training", "tools/test_*.py", "test_*.py"), ("help", "doctor")),
    "eyes": Part(25, ("tools/dashboard",), ("dashboard", "record")),
    "ranks": Part(36, ("parallel",)),
    "vllm": Part(30, ("vllm_servers",)),
    "vllm-soak": Part(30, (), ("soak",)),
    "rewards": Part(17, ("environments", "rewards", *VERDICTS), ("math",)),
    "jail": Part(28, JAIL, ("jail",)),
    "smollm2": Part(20, (), ("smollm2",)),
    "addition": Part(10, (), ("addition", "rollouts")),
    "speed": Part(12, (), ("speed", "memory")),
    "iterative": Part(14, (), ("iterative",)),
    "faults": Part(36, (), ("faults",)),
    "findings": Part(40, (), ("findings",)),
    "family-1": Part(34, (), ("family-1",)),
    "family-2": Part(34, (), ("family-2",)),
    "family-3": Part(34, (), ("family-3",)),
}
"""Minutes were measured under load, so they are upper bounds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; none: all of them")
    parser.add_argument("--list", action="store_true", help="show the parts and how they ended last")
    parser.add_argument("--only", choices=sorted(FIGURES), action="append", help="this figure only; may be repeated")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of smollm2 and addition")
    parser.add_argument("--keep", type=Path, help="folder for the runs; default: a temporary one")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="setting of smollm2 and addition"
    )
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.part if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if chosen.list:
        print(list_parts(RESULTS))
        return 0
    with tempfile.TemporaryDirectory(prefix="cohort-prove-") as scratch:
        folder = chosen.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(chosen.seeds, folder.resolve(), chosen.overrides)
        if chosen.only:
            return 0 if all(figure.passed for figure in measure(chosen.only, settings)) else 1
        ended = [run_part(name, settings, RESULTS) for name in chosen.part or PARTS]
    return 0 if all(ended) else 1


def run_part(name: str, settings: Settings, results: Path) -> bool:
    """Run the tests and the figures of a part, and write down what came out."""
    part, started = PARTS[name], time.monotonic()
    print(f"\n## {name}: about {part.minutes} minutes\n", flush=True)
    report = settings.folder / f"{name}.xml"
    if part.tests:
        # On one worker: some proofs take both cores, and limits should be tested without other load.
        paths = [str(path) for path in paths_of(part)]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-m", MARKED, "--durations=20", f"--junitxml={report}", *paths],
            cwd=ROOT, check=False,
        )  # fmt: skip
    tests = read_report(report) if part.tests else {}
    figures = measure(part.figures, settings)
    passed = not tests.get("failed") and (not part.tests or tests["passed"] > 0) and all(figure.passed for figure in figures)
    document = {
        "part": name,
        "passed": passed,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "seconds": round(time.monotonic() - started),
        "tests": tests,
        "figures": [asdict(figure) for figure in figures],
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{name}: {'passed' if passed else 'FAILED'} after {document['seconds']} s", flush=True)
    return passed


def paths_of(part: Part) -> list[Path]:
    """The folders and files of a part, below tests/."""
    return sorted(path for pattern in part.tests for path in (ROOT / "tests").glob(pattern))


def read_report(file: Path) -> dict[str, Any]:
    """How many tests passed and were skipped, and which failed, from pytest's report; none if there is no report."""
    if not file.is_file():
        return {"passed": 0, "skipped": 0, "failed": ["pytest wrote no report"]}
    cases = list(ElementTree.parse(file).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
    }


def measure(names: Sequence[str], settings: Settings) -> list[Figure]:
    """Make the figures, printing each as soon as it is there. One that cannot be made has missed its target."""
    figures: list[Figure] = []
    if names:
        print("| figure | command | measured | target | verdict |\n|---|---|---|---|---|", flush=True)
    for name in names:
        try:
            made = FIGURES[name](settings)
        except Exception as error:
            made = [Figure(name, f"python benchmarks/prove.py --only {name}", repr(error)[-300:], "runs", False)]
        for figure in made:
            print(figure.row(), flush=True)
        figures += made
    return figures


def list_parts(results: Path) -> str:
    """A row for each part, with its last result."""
    rows = ["| part | minutes | tests | figures | last |", "|---|---|---|---|---|"]
    for name, part in PARTS.items():
        file, last = results / f"{name}.json", "never noted"
        if file.is_file():
            noted = json.loads(file.read_text(encoding="utf-8"))
            last = (
                f"{'passed' if noted['passed'] else 'FAILED'} {noted['date'][:10]} at {noted['commit']}, {noted['seconds']} s"
            )
        rows.append(f"| {name} | {part.minutes} | {', '.join(part.tests)} | {', '.join(part.figures)} | {last} |")
    return "\n".join(rows)


def commit() -> str:
    """The commit that is checked out, and whether the files differ from it (results aside)."""
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", ".", ":!docs/results"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return (head.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else "")


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "transformers")},
    }


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
