"""Processes: children and their memory, the parent, the first process of a container; and Python's garbage collector."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

PARENT_VARIABLE = "COHORT_PARENT"
"""Environment variable with the id of a parent; when that process ends, this one must end too."""
PR_SET_PDEATHSIG = 1
STOPPED = 130
"""Exit code of a command that a signal stopped: a shell's code for Ctrl-C."""


def children_of(pid: int) -> list[int]:
    """The child processes of a process. Empty without /proc."""
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                children += map(int, file.read().split())
    except FileNotFoundError:  # the process has ended, or the kernel does not list children
        with contextlib.suppress(OSError):
            children = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and parent_of(int(entry)) == pid]
    except OSError:
        pass
    return children


def parent_of(pid: int) -> int:
    """The id of the parent process; 0 if it is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def memory_below(pid: int) -> float:
    """Megabytes used by all descendants of a process: anonymous and shared pages, without file pages. 0 without /proc."""
    used, todo, seen = 0, children_of(pid), {pid}
    while todo:
        child = todo.pop()
        if child in seen:
            continue
        seen.add(child)
        todo += children_of(child)
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"/proc/{child}/status", encoding="utf-8", errors="replace") as file,
        ):
            used += sum(int(line.split()[1]) for line in file if line.startswith(("RssAnon:", "RssShmem:")))
    return used / 1024


def begin_process() -> None:
    """Set up signal handling at the start of a command."""
    end_with_parent()
    # Before and after a run, too, a signal ends a command with 130; for the first process of a container the kernel would ignore it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, leave)


def leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(STOPPED)


def end_with_parent() -> None:
    """Request SIGTERM for when the process named in COHORT_PARENT ends: a run then saves its state and stops. Only on Linux.

    The kernel sends the signal when the *thread* that started this process ends, so a parent that sets the variable must start its
    children from a thread that outlives them.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent.isdecimal() or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent ended before this call
        raise SystemExit(STOPPED)


@contextlib.contextmanager
def freeze_objects() -> Iterator[None]:
    """Freeze all existing objects during the block, so that the garbage collector skips them.

    Libraries and models are half a million objects. A full collection, which would happen in some of ten steps, takes longer than a
    short step. There is no collection before freezing, because it would be such a full one and find almost nothing.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
