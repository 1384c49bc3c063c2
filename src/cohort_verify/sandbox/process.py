"""A jailed process seen from outside: its end, and its use of the limits.

Signals are sent only to processes started here that are not reaped yet, so their ids cannot belong to another process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable

from cohort_verify.sandbox.limits import MAX_FILES, MAX_FOLDERS_DEEP, Limits
from cohort_verify.sandbox.scratch import scratch_is_over
from cohort_verify.workers import ProcessEnded


class JailedProcess:
    """The process started for a jail. With bubblewrap that is bwrap, and the jail has a first process of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], wrapped: bool) -> None:
        self._popen, self._wrapped = popen, wrapped
        self.first_pid = 0
        """Id of the first process in the jail, with which all others end; 0 if not known yet."""
        self._handle = -1
        """A descriptor of that first process, which cannot refer to a later process with the same id."""
        self._info = bytearray()
        self.usage: resource.struct_rusage | None = None
        """Resource usage, once the process is reaped."""
        if not wrapped:
            self._take_first(popen.pid)

    def learn_first_pid(self, text: bytes) -> bool:
        """Parse bubblewrap's report of the first process's id, which comes before that process can run. Returns whether the id
        is known.
        """
        self._info += text
        with contextlib.suppress(ValueError):  # it arrives in pieces
            self._take_first(int(json.loads(self._info)["child-pid"]))
        return self.first_pid > 0

    def _take_first(self, pid: int) -> None:
        self.first_pid = pid
        with contextlib.suppress(OSError, AttributeError):  # already gone, or a kernel older than 5.3
            self._handle = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        """Return whether the process has ended. Does not reap it, so its id stays valid."""
        if self._popen.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def end(self) -> None:
        """Kill the remaining processes and wait for them. Bubblewrap leaves its child to init, which may be this process."""
        if self._popen.returncode is not None:
            return
        if not self.has_ended():
            if self._handle >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            if self._handle < 0 or not wait_up_to(self.has_ended, 0.25):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)  # the process leads its group and is not reaped yet
        if self._handle >= 0:
            select.select([self._handle], [], [], 1.0)  # readable once the process is dead
        try:
            _, status, self.usage = os.wait4(self._popen.pid, 0)
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self._popen.returncode = -signal.SIGKILL
        if self._handle >= 0:
            reap_orphan(self._handle)
            os.close(self._handle)
            self._handle = -1

    def describe_end(self) -> ProcessEnded:
        """Return how a process ended that was not stopped. Call it after `end`."""
        status = self._popen.returncode
        if self._wrapped and status > 128:  # bubblewrap's code for a signal
            status = 128 - status
        if status < 0:
            with contextlib.suppress(ValueError):
                return ProcessEnded("crash", f"ended by {signal.Signals(-status).name}", status)
            return ProcessEnded("crash", f"ended by signal {-status}", status)
        return ProcessEnded("exit", f"ended by itself with status {status}", status)


def wait_up_to(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def reap_orphan(handle: int) -> None:
    """Reap an orphan that was re-parented to this process, as happens to the first process of a container.

    By its descriptor: waiting for any child could take the exit status of another one.
    """
    with contextlib.suppress(OSError, AttributeError):  # not ours to reap, or a kernel older than 5.4
        os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)


# ---------------------------------------------------------------------------------------------------------------------
# Limits
# ---------------------------------------------------------------------------------------------------------------------

START_LIMIT_S = 30.0
"""Limit on starting an interpreter and closing the jail, which programs are not charged for."""
TICK_S = 0.02
"""Interval between checks of the limits."""
WALK_S = 0.008
"""Interval between scans of a scratch folder. A disk can take more than a megabyte per millisecond."""
THREADS_MARGIN = 16


class Watch:
    """The clocks, memory, threads and files of a process, and their limits."""

    def __init__(self, process: JailedProcess, limits: Limits, scratch: str) -> None:
        """Watch a process. `scratch`: its folder, or "" if that is a file system of its own."""
        self._process, self._limits, self._scratch = process, limits, scratch
        self.tick_s = WALK_S if scratch else TICK_S
        self.peak_mb = 0.0
        """Peak resident memory in the samples: every few milliseconds, and before a kill."""
        self.pid = 0 if not scratch else process.first_pid
        """Id of the interpreter; 0 if not known yet."""
        self._lifetime_cpu = self._begun_cpu = 0.0
        self._next_look = self._next_walk = 0.0
        self._cpu_limit = START_LIMIT_S
        self.deadline = time.monotonic() + START_LIMIT_S

    def charge(self, cpu_s: float, wall_s: float) -> None:
        """Charge the process from now on, with these limits."""
        self._begun_cpu, self._cpu_limit = self.measure_cpu(), cpu_s
        self.deadline = time.monotonic() + wall_s

    def measure_cpu(self) -> float:
        """Return the CPU seconds of the process so far. The clock id is the kernel's encoding of the process id."""
        if not self.pid and self._process.first_pid:
            self.pid = find_child(self._process.first_pid)
        if self.pid and not self._process.has_ended():
            with contextlib.suppress(OSError):
                self._lifetime_cpu = max(self._lifetime_cpu, time.clock_gettime((~self.pid << 3) | 2))
        return self._lifetime_cpu

    @property
    def charged_cpu_s(self) -> float:
        """CPU seconds since charging began; exact once the process is reaped."""
        usage = self._process.usage
        return max(0.0, max(self._lifetime_cpu, usage.ru_utime + usage.ru_stime if usage else 0.0) - self._begun_cpu)

    def count_threads(self) -> int:
        """Return the number of threads, 0 if the process is gone, and update the memory peak.

        The peak from wait4 is useless here: it starts from that of the parent process, the trainer.
        """
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
                found = {words[0]: int(words[1]) for words in map(str.split, file) if words[:1] in (["VmHWM:"], ["Threads:"])}
        except OSError:
            return 0
        self.peak_mb = max(self.peak_mb, found.get("VmHWM:", 0) / 1024)
        return found.get("Threads:", 0)

    def is_due(self) -> bool:
        """Return whether the next check is due. A program that writes byte by byte must not cause a check per byte."""
        now = time.monotonic()
        if now < self._next_look and now <= self.deadline:
            return False
        self._next_look = now + self.tick_s / 2
        return True

    def find_breach(self, reply_is_here: bool) -> ProcessEnded | None:
        """Return the limit that was exceeded, if any. A reply that has arrived was in time, even if the host looks late."""
        if self.measure_cpu() - self._begun_cpu > self._cpu_limit:
            return ProcessEnded("cpu", f"{self._cpu_limit:g} s of CPU time")
        if time.monotonic() > self.deadline and not reply_is_here:
            return ProcessEnded("wall", f"no end within {self._limits.wall_s:g} s")
        if self.count_threads() > self._limits.threads + THREADS_MARGIN:
            return ProcessEnded("memory", f"more than {self._limits.threads} threads")
        now, most = time.monotonic(), self._limits.files_mb
        if self._scratch and now >= self._next_walk:
            if scratch_is_over(self._scratch, self.pid, int(most * 2**20), MAX_FILES):
                return ProcessEnded("files", f"more than {most:g} MB, {MAX_FILES} files or {MAX_FOLDERS_DEEP} levels")
            ended = time.monotonic()
            self._next_walk = ended + max(WALK_S, 4 * (ended - now))  # spends at most a fifth of the time on scans
        return None


def find_child(parent: int) -> int:
    """Return the only child of the jail's first process; 0 if there is none yet, or it is gone."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            return int((file.read().split() or ["0"])[0])
    except FileNotFoundError:  # gone, or a kernel that does not list children
        return next((pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if find_parent(pid) == parent), 0)
    except OSError:
        return 0


def find_parent(pid: int) -> int:
    """Return the parent's id; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
