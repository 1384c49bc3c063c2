"""The check before a release, from outside: only commands, files and HTTP, with nothing imported from the package.

    benchmarks/acceptance.sh                              every check; at most 15 minutes on two quiet cores
    benchmarks/acceptance.sh --list                       the checks
    benchmarks/acceptance.sh --environment .venv ranks    one check, with an existing environment instead of a fresh one
    benchmarks/acceptance.sh --commit v0.1.0              another commit than HEAD

It clones the committed HEAD into a temporary folder, builds both wheels there, installs them into a fresh environment and runs the checks
in it. It prints one line per check: ok, FAIL or skip, the seconds, and the figure or the reason. The result of a complete run
goes to benchmarks/results/acceptance.json, that of single checks only to a named --output. Exit status 1 if a check failed.

A check is a function with @check in checks.py: it gets the Place, returns its figure, and raises Failure or Skip. Code that has
to run inside the environment is a function of inside.py.
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
from pathlib import Path

import checks  # noqa: F401
from place import CHECKS, ROOT, SETUP, Place, run_checks

RESULT = ROOT / "benchmarks" / "results" / "acceptance.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="acceptance.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)}; default: all of them")
    parser.add_argument("--list", action="store_true", help="show the checks")
    parser.add_argument("--environment", type=Path, help="use this virtual environment, with Cohort installed, not a fresh one")
    parser.add_argument("--commit", default="HEAD", help="the commit to check (default: HEAD)")
    parser.add_argument("--output", type=Path, help="where the result is written as JSON")
    parser.add_argument("--keep", type=Path, help="a new folder for the clone, the environment and the runs, which then stay")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.checks if name not in CHECKS]:
        parser.error(f"there is no check {unknown[0]!r}; choose from {', '.join(CHECKS)}")
    if chosen.list:
        for name, function in (SETUP | CHECKS).items():
            print(f"{name:16} {function.__doc__}")
        return 0
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.check_output([*git, "rev-parse", f"{chosen.commit}^{{commit}}"], text=True).strip()
    if subprocess.check_output([*git, "status", "--porcelain", "--", ".", ":!benchmarks/results"], text=True):
        print(f"The working tree has changes that are not in {commit[:12]}: they are not checked.")
    if chosen.keep:
        chosen.keep.mkdir(parents=True)
    started, load, results = time.monotonic(), round(os.getloadavg()[0], 1), []
    with tempfile.TemporaryDirectory(prefix="cohort-acceptance-") as scratch:
        place = Place((chosen.keep or Path(scratch)).absolute(), commit, chosen.environment)
        for result in run_checks(place, chosen.checks or list(CHECKS)):
            print(f"{result['verdict']:4}  {result['check']:16} {result['seconds']:6.1f} s  {result['figure']}", flush=True)
            results.append(result)
    failed = [result["check"] for result in results if result["verdict"] == "FAIL"]
    document = {
        "passed": not failed,
        "commit": commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "load at the start": load,
            "python": platform.python_version(),
        },
        "seconds": round(time.monotonic() - started),
        "cpu_seconds": round(sum(result["cpu_seconds"] for result in results)),
        "checks": results,
    }
    output = chosen.output or (None if chosen.checks or chosen.environment else RESULT)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    verdict = f"failed: {', '.join(failed)}" if failed else "passed"
    print(
        f"{verdict} after {document['seconds']} s, {document['cpu_seconds']} s of CPU time" + (f"; {output}" if output else "")
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
