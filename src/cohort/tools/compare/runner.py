"""Runs the plan: each run and each measurement is a process of its own, some at a time.

Children get no terminal signals of their own (each is its own process group): a Ctrl-C reaches this process alone, which
passes it on once. Twice would tell a run to stop without saving. Should this process be killed, the kernel tells them.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from cohort.base.interrupts import PATIENCE_S
from cohort.base.processes import PARENT_VARIABLE
from cohort.base.text import write_duration
from cohort.observe.outcome import describe_before_and_after
from cohort.observe.run_folder import RunFolder
from cohort.tools.compare.plan import Plan, PlannedRun

POLL_S = 0.05
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNSAVED_AFTER = 3
"""The third signal ends the children at once: the first lets them save, the second interrupts that."""


@dataclass(frozen=True)
class RunJob:
    """One process to be: what it is called, its command, where it writes, and what has to be finished first."""

    name: str
    command: tuple[str, ...]
    log: Path
    begun: str
    needs: str = ""


@dataclass
class Child:
    job: RunJob
    process: subprocess.Popen[bytes]
    told: int = 0
    """How many signals were passed on to it."""
    started: float = field(default_factory=time.monotonic)


@dataclass
class Executed:
    failed: dict[str, str] = field(default_factory=dict)
    """Run -> why it has no result, in words."""
    interrupted: bool = False


def run_plan(plan: Plan, jobs: int, say: Callable[[str], None]) -> Executed:
    """Everything that is missing: cold starts, runs, then the divergence of each."""
    outcome = Executed()
    waiting = list(list_jobs(plan, outcome, say))
    children: list[Child] = []
    environment = make_environment(jobs)
    with collect_signals() as signals:
        while waiting or children:
            if signals:
                waiting.clear()
            for job in take_ready_jobs(waiting, children, jobs):
                say(f"{job.name}: {job.begun}")
                children.append(start_child(job, environment))
            for child in children:
                pass_signals_on(child, len(signals))
            for child in [child for child in children if child.process.poll() is not None]:
                children.remove(child)
                waiting = end_child(plan, child, waiting, outcome, bool(signals), say)
            if children:
                time.sleep(POLL_S)
    outcome.interrupted = bool(signals)
    return outcome


# -- what there is to do -----------------------------------------------------------------------------------------------


def list_jobs(plan: Plan, outcome: Executed, say: Callable[[str], None]) -> Iterator[RunJob]:
    needed = {run.start for run in plan.runs if run.start and not is_finished(plan.folder(run.name))}
    unfinished: set[str] = set()
    for run in (*plan.starts, *plan.runs):
        if is_finished(plan.folder(run.name)):
            say(f"{run.name}: finished before{describe_outcome(plan, run)}")
        elif run.label or run.name in needed:
            unfinished.add(run.name)
            yield make_train_job(plan, run, run.start if run.start in unfinished else "")
    for run in plan.runs:
        if not plan.divergence_file(run.name).is_file():
            yield make_divergence_job(plan, run, run.name if run.name in unfinished else "")


def make_train_job(plan: Plan, run: PlannedRun, needs: str) -> RunJob:
    folder = RunFolder(plan.folder(run.name))
    if folder.has_results():
        words, begun = ["resume", str(folder.root)], "goes on"
    else:
        words, begun = ["train", str(plan.recipe_file(run.name))], "started"
    return RunJob(run.name, (sys.executable, "-m", "cohort", *words), plan.log(run.name), begun, needs)


def make_divergence_job(plan: Plan, run: PlannedRun, needs: str) -> RunJob:
    target = plan.divergence_file(run.name)
    command = (sys.executable, "-m", "cohort.tools.compare.divergence", str(plan.folder(run.name)), str(target))
    name = f"{run.name} divergence"
    return RunJob(name, command, plan.log(f"{run.name}-divergence"), "measuring KL to the start", needs)


def is_finished(folder: Path) -> bool:
    return RunFolder(folder).read_summary().get("status") == "finished"


def take_ready_jobs(waiting: list[RunJob], children: Sequence[Child], jobs: int) -> Iterator[RunJob]:
    """Jobs that can begin now, as many as there is room for; they leave the list."""
    open_names = {job.name for job in waiting} | {child.job.name for child in children}
    room = jobs - len(children)
    for job in list(waiting):
        if room > 0 and job.needs not in open_names:
            waiting.remove(job)
            room -= 1
            yield job


# -- processes ---------------------------------------------------------------------------------------------------------


def make_environment(jobs: int) -> dict[str, str]:
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    if jobs > 1:  # else every child would start a thread per core
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    return environment


def start_child(job: RunJob, environment: dict[str, str]) -> Child:
    with job.log.open("ab") as log:
        log.write(f"$ {shlex.join(job.command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, process_group=0
        )
    return Child(job, process)


def pass_signals_on(child: Child, signals: int) -> None:
    if signals > child.told and child.process.poll() is None:
        child.told = signals
        child.process.send_signal(signal.SIGKILL if signals >= UNSAVED_AFTER else signal.SIGTERM)


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
    plan: Plan, child: Child, waiting: list[RunJob], outcome: Executed, interrupted: bool, say: Callable[[str], None]
) -> list[RunJob]:
    """Say how a child ended; what needed it and cannot begin any more leaves the list."""
    job, took = child.job, write_duration(time.monotonic() - child.started)
    run = next((run for run in (*plan.starts, *plan.runs) if run.name == job.name), None)
    good = child.process.returncode == 0 and (run is None or is_finished(plan.folder(run.name)))
    if good:
        say(f"{job.name}: finished in {took}{describe_outcome(plan, run) if run else ''}")
        return waiting
    if interrupted:
        say(f"{job.name}: interrupted after {took}")
        return waiting
    reason = explain_failure(plan, job, run, child.process.returncode)
    say(f"{job.name}: failed after {took}: {reason}")
    lost = {job.name: reason}
    left = []
    for other in waiting:
        if other.needs in lost:
            lost[other.name] = f"{other.needs} failed: {lost[other.needs]}" if not other.name.endswith(" divergence") else ""
        else:
            left.append(other)
    outcome.failed |= {name: text for name, text in lost.items() if text}
    return left


def describe_outcome(plan: Plan, run: PlannedRun) -> str:
    """ ", pass@1 41.2 % -> 68.3 %", as far as it was measured."""
    ends = describe_before_and_after(RunFolder(plan.folder(run.name)).read_summary().get("eval"))
    return f", {ends}" if ends else ""


def explain_failure(plan: Plan, job: RunJob, run: PlannedRun | None, code: int) -> str:
    """The run's own words where it left any, else the last line of its log."""
    error = RunFolder(plan.folder(run.name)).read_summary().get("error") if run else ""
    if isinstance(error, str) and error.strip():
        return error.strip()
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; its output is in {job.log}"
    lines = [line.strip() for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    return f"{said} (its output is in {job.log})"
