"""The cost of the jail, and whether it holds.

    python benchmarks/jail.py overhead                       each tier against a bare interpreter; target 50 ms
    python benchmarks/jail.py soak --runs 10000              honest and hostile programs from two threads; nothing may accumulate
    python benchmarks/jail.py table                          every hostile program, each tier x user (about half an hour)
    python benchmarks/jail.py table --tier landlock --user nobody --category escape

Prints markdown; exit code 1 if a target is missed. The programs are in tests/hostile.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from cohort_verify import sandbox  # noqa: E402
from cohort_verify.sandbox.tiers import VARIABLE, find_interpreter  # noqa: E402
from hostile import harness  # noqa: E402
from hostile.honest import HONEST  # noqa: E402
from hostile.programs import CATEGORIES, HostileProgram  # noqa: E402

OVERHEAD_MS = 50.0
GROWTH_MB = 20.0
WARM_RUNS = 200
"""Runs after which the soak takes its first picture: by then the allocator has what it needs."""
HOSTILE_SHARE = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    overhead = commands.add_parser("overhead", help="time to run a trivial program")
    overhead.add_argument("--runs", type=int, default=40)
    soak = commands.add_parser("soak", help="many runs, two threads, nothing may pile up")
    soak.add_argument("--runs", type=int, default=10_000)
    soak.add_argument("--threads", type=int, default=2)
    soak.add_argument("--seed", type=int, default=0)
    soak.add_argument("--tier", choices=harness.TIERS, default="")
    table = commands.add_parser("table", help="every hostile program, by category")
    table.add_argument("--tier", choices=harness.TIERS, action="append")
    table.add_argument("--user", choices=harness.USERS, action="append")
    table.add_argument("--category", choices=CATEGORIES, action="append")
    chosen = parser.parse_args()
    if chosen.command == "overhead":
        return measure_overhead(chosen.runs)
    if chosen.command == "soak":
        return soak_in(chosen.tier, chosen.runs, chosen.threads, chosen.seed)
    return print_tables(chosen.tier or harness.TIERS, chosen.user or harness.USERS, chosen.category or CATEGORIES)


# ---------------------------------------------------------------------------------------------------------------------
# Overhead
# ---------------------------------------------------------------------------------------------------------------------

TRIVIAL = "print(1)"


def measure_overhead(runs: int) -> int:
    """Bare and jailed runs take turns, so that a busy machine is busy for both."""
    ways: dict[str, Callable[[], None]] = {"bare": run_bare, "bare -S": functools.partial(run_bare, "-S")}
    for tier in harness.TIERS:
        try:
            sandbox.find_tier(tier)
        except sandbox.JailUnavailable as problem:
            print(f"{tier}: {problem}", file=sys.stderr)
            continue
        ways[tier] = jailed(tier)
    times: dict[str, list[float]] = defaultdict(list)
    for way in ways.values():
        way()  # warm: files in the page cache, modules imported
    for _ in range(runs):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - began) * 1000)
    bare = statistics.median(times["bare"])
    print(f"| jail | median of {runs} runs | overhead | target | verdict |\n|---|---|---|---|---|")
    print(f"| bare `python -I -c` | {bare:.1f} ms | | | |")
    print(f"| bare `python -I -S -c`, as in the jail | {statistics.median(times['bare -S']):.1f} ms | | | |")
    missed = 0
    for name in ways:
        if name in harness.TIERS:
            middle = statistics.median(times[name])
            passed = middle - bare <= OVERHEAD_MS
            missed += not passed
            print(
                f"| {name} | {middle:.1f} ms | {middle - bare:.1f} ms | <= {OVERHEAD_MS:g} ms | {'PASS' if passed else 'FAIL'} |"
            )
    return 1 if missed or len(ways) == 2 else 0


def run_bare(*options: str) -> None:
    ended = subprocess.run(
        [find_interpreter(), "-I", *options, "-c", TRIVIAL], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert ended.stdout == "1\n"


def jailed(tier: str) -> Callable[[], None]:
    def run() -> None:
        os.environ[VARIABLE] = tier
        result = sandbox.run_script(TRIVIAL, "")
        assert (result.stdout, result.end, result.jail) == ("1\n", "finished", tier), result

    return run


# ---------------------------------------------------------------------------------------------------------------------
# Soak
# ---------------------------------------------------------------------------------------------------------------------


def soak_in(tier: str, runs: int, threads: int, seed: int) -> int:
    """With its own working, home and temporary folders, so that leftovers are ours."""
    with harness.stage() as folder:
        os.environ.update(TMPDIR=str(folder / "temporary"), HOME=str(folder / "home"))
        tempfile.tempdir = None
        os.chdir(folder / "work")
        if tier:
            os.environ[VARIABLE] = tier
        bounds = harness.SHORT
        traps = harness.Traps(folder / "traps", bounds)
        try:
            return soak(traps, bounds, runs, threads, seed)
        finally:
            traps.close()
            os.chdir("/")


def soak(traps: harness.Traps, bounds: harness.Bounds, runs: int, threads: int, seed: int) -> int:
    hostile = list(harness.all_hostile().values())
    todo = plan(hostile, runs, seed)
    lock, counts, ends = threading.Lock(), Counter[str](), Counter[str]()
    began = time.monotonic()

    def work() -> None:
        while True:
            with lock:
                program, is_hostile = next(todo, (None, False))
            if program is None:
                return
            outcome, late = one_run(traps, program, bounds if is_hostile else harness.Bounds(2.0, 10.0))
            with lock:
                kind = "hostile" if is_hostile else "honest"
                counts[kind] += 1
                counts["late"] += late
                ends[f"{kind} {outcome.end}"] += 1
                counts["rewarded"] += is_hostile and any(outcome.right)
                counts["unscored"] += outcome.end == "infrastructure" or outcome.blamed_on_tests
                if not is_hostile and not all(outcome.right):
                    counts["failed"] += 1
                    print(f"honest {program.name} failed: {outcome.end} {outcome.detail}", file=sys.stderr)
                effects = [line for line in outcome.text.splitlines() if line.startswith("BREACH")] if is_hostile else []
                counts["breaches"] += bool(effects)
                if effects or (is_hostile and any(outcome.right)):
                    print(f"{program.name}: rewarded {any(outcome.right)} {effects[:3]}", file=sys.stderr)
                done = counts["hostile"] + counts["honest"]
                if done == WARM_RUNS:
                    counts["warm_mb"] = int(resident_mb() * 1000)
                if done % 1000 == 0:
                    print(f"{done} runs, {time.monotonic() - began:.0f} s, {resident_mb():.1f} MB", file=sys.stderr)

    # Once before the first picture: the thread that starts jails stays.
    sandbox.run_script(TRIVIAL, "")
    before = host_picture()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    time.sleep(0.5)
    after = host_picture()
    growth = resident_mb() - counts["warm_mb"] / 1000 if counts["warm_mb"] else 0.0
    calm = harness.Outcome("finished", "", "", ("", ""), ())
    effects = list(traps.effects(calm))
    rows = [
        (
            "runs",
            f"{counts['honest']} honest, {counts['hostile']} hostile, {threads} threads, {time.monotonic() - began:.0f} s",
            True,
        ),
        ("honest programs that failed", str(counts["failed"]), counts["failed"] == 0),
        ("hostile programs rewarded", str(counts["rewarded"]), counts["rewarded"] == 0),
        ("hostile programs unscored", str(counts["unscored"]), counts["unscored"] == 0),
        ("breaches reported", str(counts["breaches"]), counts["breaches"] == 0),
        ("effects on the host", "; ".join(effects) or "none", not effects),
        ("open descriptors", changed(before, after, "descriptors"), before["descriptors"] == after["descriptors"]),
        ("temporary files", changed(before, after, "temporary"), before["temporary"] == after["temporary"]),
        ("processes left, zombies among them", changed(before, after, "children"), before["children"] == after["children"]),
        ("threads", changed(before, after, "threads"), before["threads"] == after["threads"]),
        (f"growth of memory after run {WARM_RUNS}", f"{growth:.1f} MB (< {GROWTH_MB:g})", growth < GROWTH_MB),
    ]
    print("| soak | measured | verdict |\n|---|---|---|")
    for name, value, passed in rows:
        print(f"| {name} | {value} | {'PASS' if passed else 'FAIL'} |")
    print(f"\nlater than their limit by more than {harness.OVERRUN_S:g} s: {counts['late']}")
    print("ends: " + ", ".join(f"{name} {count}" for name, count in sorted(ends.items())))
    return 0 if all(passed for _, _, passed in rows) else 1


def plan(hostile: Sequence[HostileProgram], runs: int, seed: int) -> Iterator[tuple[HostileProgram | None, bool]]:
    chance = random.Random(seed)
    for _ in range(runs):
        if chance.random() < HOSTILE_SHARE:
            yield chance.choice(hostile), True
        else:
            yield chance.choice(HONEST).as_hostile(), False


def one_run(traps: harness.Traps, program: HostileProgram, bounds: harness.Bounds) -> tuple[harness.Outcome, bool]:
    limits = sandbox.Limits(**asdict(bounds))
    began = time.monotonic()
    outcome = harness.execute(sandbox, limits, program, harness.ways(program)[0], traps.fill_in(program.source))
    return outcome, time.monotonic() - began > bounds.wall_s + harness.OVERRUN_S


def host_picture() -> dict[str, object]:
    return {
        "descriptors": harness.open_descriptors(),
        "temporary": sorted(os.listdir(os.environ["TMPDIR"])),
        "children": [f"{process} {harness.state_of(process)}" for process in harness.descendants(os.getpid())],
        "threads": threading.active_count(),
    }


def changed(before: dict[str, object], after: dict[str, object], what: str) -> str:
    return "as before" if before[what] == after[what] else f"{before[what]} -> {after[what]}"


def resident_mb() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return float(line.split()[1]) / 1024
    return 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Table
# ---------------------------------------------------------------------------------------------------------------------


def print_tables(tiers: Sequence[str], users: Sequence[str], categories: Sequence[str]) -> int:
    programs = [program for program in harness.all_hostile().values() if program.category in categories]
    failed = 0
    for tier in tiers:
        for user in users:
            print(f"\n### {tier}, as {user}\n", flush=True)
            if problem := harness.why_not(tier, user):
                print(f"not run: {problem}")
                failed += 1
                continue
            reports = harness.run_elsewhere([program.name for program in programs], tier=tier, user=user)
            print_table(reports, categories)
            bad = [report for report in reports if report.effects or report.rewarded]
            failed += len(bad)
            for report in bad:
                print(
                    f"- {report.name} ({report.way}, {report.end}){', rewarded' if report.rewarded else ''}: {'; '.join(report.effects)}"
                )
    return 1 if failed else 0


def print_table(reports: Sequence[harness.Report], categories: Sequence[str]) -> None:
    print("| category | programs | runs | rewarded | with host effects | worst overrun | most memory | survivors |")
    print("|---|---|---|---|---|---|---|---|")
    rows = [(category, [report for report in reports if report.category == category]) for category in categories]
    for name, part in [*rows, ("all", list(reports))]:
        if part:
            print(
                f"| {name} | {len({report.name for report in part})} | {len(part)} | {sum(report.rewarded for report in part)} "
                f"| {sum(bool(report.effects) for report in part)} | {max(report.overrun_s for report in part):.2f} s "
                f"| {max(max(report.peak_mb, report.seen_mb) for report in part):.0f} MB | {sum(report.survivors for report in part)} |",
                flush=True,
            )
    print()


if __name__ == "__main__":
    sys.exit(main())
