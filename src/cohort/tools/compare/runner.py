"""Runs what is missing of a plan: each run is a process, a few at a time.

Each child has its own process group, so a Ctrl-C reaches only this process, which passes it on once: a second signal would stop a run
without saving. If this process is killed, the kernel signals the children.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from cohort.base.interrupts import PATIENCE_S
from cohort.base.processes import PARENT_VARIABLE
from cohort.base.text import write_duration
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.outcome import describe_before_and_after
from cohort.observe.run_folder import RunFolder
from cohort.tools.compare.plan import Plan, PlannedRun
from cohort.tools.dashboard.run_index import describe_stage

POLL_S = 0.05
PROGRESS_S = 15.0
"""Seconds between two lines about a run."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL_AFTER = 3
"""The third signal kills the children. The first lets them save, the second interrupts that."""


@dataclass
class Child:
    run: PlannedRun
    process: subprocess.Popen[bytes]
    signals_sent: int = 0
    started: float = field(default_factory=time.monotonic)
    begun: float = field(default_factory=time.time)
    """As `started`, by the clock of the run's events."""
    progress: str = ""
    """The last line about it."""


@dataclass
class Outcome:
    failed: dict[str, str] = field(default_factory=dict)
    """Run -> why it has no result."""
    interrupted: bool = False


def run_plan(plan: Plan, jobs: int, say: Callable[[str], None]) -> Outcome:
    """Run the cold starts and runs that are not finished, `jobs` at a time."""
    outcome = Outcome()
    waiting = list_unfinished(plan, say)
    children: list[Child] = []
    environment = make_environment(jobs)
    due = time.monotonic() + PROGRESS_S
    with collect_signals() as signals:
        while waiting or children:
            if signals:
                waiting.clear()
            unfinished = {run.name for run in waiting} | {child.run.name for child in children}
            ready = [run for run in waiting if run.start not in unfinished]
            for run in ready[: jobs - len(children)]:
                waiting.remove(run)
                command, begun = make_command(plan, run)
                say(f"{run.name}: {begun}")
                children.append(Child(run, start_process(command, plan.log(run.name), environment)))
            for child in children:
                pass_signals_on(child, len(signals))
            for child in [child for child in children if child.process.poll() is not None]:
                children.remove(child)
                waiting = end_child(plan, child, waiting, outcome, bool(signals), say)
            if time.monotonic() >= due:
                due += PROGRESS_S
                for child in children:
                    report_progress(plan, child, say)
            if children:
                time.sleep(POLL_S)
    outcome.interrupted = bool(signals)
    return outcome


def list_unfinished(plan: Plan, say: Callable[[str], None]) -> list[PlannedRun]:
    """The runs to do: those without a result, and the shared cold starts that they need."""
    runs = [run for run in plan.runs if not is_finished(plan, run)]
    needed = {run.start for run in runs}
    for run in (*plan.starts, *plan.runs):
        if is_finished(plan, run):
            say(f"{run.name}: finished before{describe_result(plan, run)}")
    return [*(start for start in plan.starts if start.name in needed and not is_finished(plan, start)), *runs]


def make_command(plan: Plan, run: PlannedRun) -> tuple[tuple[str, ...], str]:
    """(the command of a run, what it does)."""
    folder = RunFolder(plan.folder(run.name))
    if folder.has_results():
        words, begun = ("resume", str(folder.root)), "resumed"
    else:
        words, begun = ("train", str(plan.recipe_file(run.name))), "started"
    return (sys.executable, "-m", "cohort", *words), begun


def is_finished(plan: Plan, run: PlannedRun) -> bool:
    return RunFolder(plan.folder(run.name)).read_summary().get("status") == "finished"


# -- processes ---------------------------------------------------------------------------------------------------------


def make_environment(jobs: int) -> dict[str, str]:
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    if jobs > 1:  # else every child would start a thread per core
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    return environment


def start_process(command: tuple[str, ...], file: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, with its output appended to a log file."""
    with file.open("ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, process_group=0
        )


def pass_signals_on(child: Child, signals: int) -> None:
    if signals > child.signals_sent and child.process.poll() is None:
        child.signals_sent = signals
        child.process.send_signal(signal.SIGKILL if signals >= KILL_AFTER else signal.SIGTERM)


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """The signals received, without repetitions within a second. A signal that was ignored before (nohup) stays ignored."""
    seen: list[int] = []
    last = 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if not seen or time.monotonic() >= last + PATIENCE_S:
            last = time.monotonic()
            seen.append(number)

    before: dict[signal.Signals, Any] = {}
    in_main = threading.current_thread() is threading.main_thread()
    for number in SIGNALS if in_main else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield seen
    finally:
        for installed, handler in before.items():
            signal.signal(installed, handler)


def end_child(
    plan: Plan, child: Child, waiting: list[PlannedRun], outcome: Outcome, interrupted: bool, say: Callable[[str], None]
) -> list[PlannedRun]:
    """Report how a child ended; returns the waiting runs, except runs that needed a failed start."""
    run, took = child.run, write_duration(time.monotonic() - child.started)
    if child.process.returncode == 0 and is_finished(plan, run):
        say(f"{run.name}: finished in {took}{describe_result(plan, run)}")
    elif interrupted:
        say(f"{run.name}: interrupted after {took}")
    else:
        reason = explain_failure(plan, child)
        say(f"{run.name}: failed after {took}: {reason}")
        outcome.failed[run.name] = reason
        outcome.failed |= {other.name: f"{run.name} failed: {reason}" for other in waiting if other.start == run.name}
        return [other for other in waiting if other.start != run.name]
    return waiting


def report_progress(plan: Plan, child: Child, say: Callable[[str], None]) -> None:
    """Print the stage of a run, such as "baseline evaluation, 512 of 1,467", unless nothing has changed."""
    folder = RunFolder(plan.folder(child.run.name))
    events = [event for event in read_rows(folder.events_file) if event["kind"] in ("stage", "progress")]
    events = [event for event in events if event["time"] >= child.begun]  # others are from before a resume
    event = events[-1] if events else {"stage": "loading"}
    if event["stage"] == "training":
        total = next(one["total"] for one in reversed(events) if one["stage"] == "training" and one["kind"] == "stage")
        event = {"stage": "training", "done": len(folder.metrics()), "total": total}
    if (progress := describe_stage(event)) != child.progress:
        child.progress = progress
        say(f"{child.run.name}: {progress}")


def describe_result(plan: Plan, run: PlannedRun) -> str:
    """ ", pass@1 41.2 % -> 68.3 %", or "" if it was not measured."""
    ends = describe_before_and_after(RunFolder(plan.folder(run.name)).read_summary().get("eval"))
    return f", {ends}" if ends else ""


def explain_failure(plan: Plan, child: Child) -> str:
    """The error in the run's summary, else the last line of its log."""
    error = RunFolder(plan.folder(child.run.name)).read_summary().get("error")
    if isinstance(error, str) and error.strip():
        return error.strip()
    log, code = plan.log(child.run.name), child.process.returncode
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; its output is in {log}"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    return f"{last} (its output is in {log})"
