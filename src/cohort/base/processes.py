"""What a process needs to know of those around it: its children, their memory, its parent, and whether it is the first."""

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
"""The id of the process without which this one has nothing to do."""
PR_SET_PDEATHSIG = 1


def children_of(pid: int) -> list[int]:
    """The processes whose parent it is. Empty where the system has no /proc."""
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                children += map(int, file.read().split())
    except FileNotFoundError:  # gone, or a kernel that does not list them
        with contextlib.suppress(OSError):
            children = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and parent_of(int(entry)) == pid]
    except OSError:
        pass
    return children


def parent_of(pid: int) -> int:
    """0: there is no such process, or it cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def memory_below(pid: int) -> float:
    """Megabytes in use by the processes below it: their own and shared pages, without those of files. 0 without /proc."""
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
    """At the start of a command: as the first process of a container, and as the child of another command."""
    end_with_parent()
    if os.getpid() == 1:
        # The kernel spares the first process of a container whatever it has no handler for: it could not be stopped.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, leave)


def leave(number: int, frame: FrameType | None) -> None:
    """What the signal would do to any other process."""
    raise SystemExit(128 + number)


def end_with_parent() -> None:
    """SIGTERM when the process named in COHORT_PARENT ends, by whatever: a run then saves what it has and stops.

    The kernel sends it when the *thread* that started this process ends; whoever sets the variable starts its children from
    a thread that outlives them. Linux alone can do that.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent.isdecimal() or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before that was said
        raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def freeze_objects() -> Iterator[None]:
    """What is there by now is left alone until the end of the block.

    Libraries and models are half a million objects, and a walk over all of them, which some steps in ten would bring on, takes longer
    than a short step. It is not looked for garbage first: there is next to none, and the search is such a walk.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
