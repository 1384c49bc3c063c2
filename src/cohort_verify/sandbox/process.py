"""What a jailed process has used of its limits, looked at from outside every few milliseconds."""

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
    """The process that was started for a jail; with bubblewrap, that program, and in the jail a first process of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], wrapped: bool) -> None:
        self._popen, self._wrapped = popen, wrapped
        self.first_pid = 0
        """Of the first process in the jail, with which all the others end; 0 where that is not known yet."""
        self._handle = -1
        """A descriptor for exactly that first process, which no later one with its id can be taken for."""
        self._info = bytearray()
        self.usage: resource.struct_rusage | None = None
        """What the process has used, once it is reaped."""
        if not wrapped:
            self._take_first(popen.pid)

    def learn_first_pid(self, text: bytes) -> bool:
        """Whether that is known now. Bubblewrap tells the id of the jail's first process before that can run."""
        self._info += text
        with contextlib.suppress(ValueError):  # it comes in pieces
            self._take_first(int(json.loads(self._info)["child-pid"]))
        return self.first_pid > 0

    def _take_first(self, pid: int) -> None:
        self.first_pid = pid
        with contextlib.suppress(OSError, AttributeError):  # gone already, or a kernel older than 5.3
            self._handle = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        """Whether the process has ended. It is not reaped here: until then its id is certainly its own."""
        if self._popen.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def end(self) -> None:
        """Kill what is left and wait for it. Bubblewrap leaves its child to init, which may be this very process."""
        if self._popen.returncode is not None:
            return
        if not self.has_ended():
            if self._handle >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            if self._handle < 0 or not wait_up_to(self.has_ended, 0.25):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)  # it leads the group, and it is not reaped yet
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
        """How a process ended that was not stopped. Only after `end`."""
        status = self._popen.returncode
        if self._wrapped and status > 128:  # bubblewrap's way to say that a signal ended it
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
    """Take leave of a dead process that was left to this one, as the first process of a container inherits all orphans.

    By its descriptor: a wait for any child would take the exit status of somebody else's.
    """
    with contextlib.suppress(OSError, AttributeError):  # somebody else's to reap, or a kernel older than 5.4
        os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)


# ---------------------------------------------------------------------------------------------------------------------
# Limits
# ---------------------------------------------------------------------------------------------------------------------

START_LIMIT_S = 30.0
"""For starting an interpreter and closing the jail, which no program is charged for."""
TICK_S = 0.02
"""How often limits are looked at."""
WALK_S = 0.008
"""How often the files of a scratch folder are counted: a disk takes in more than a megabyte in a millisecond."""
THREADS_MARGIN = 16


class Watch:
    """The clocks, memory, threads and files of one process, and the limits on them."""

    def __init__(self, process: JailedProcess, limits: Limits, scratch: str) -> None:
        """`scratch`: the folder, where it is no file system of its own; else empty."""
        self._process, self._limits, self._scratch = process, limits, scratch
        self.tick_s = WALK_S if scratch else TICK_S
        self.peak_mb = 0.0
        """Resident memory, as often as it was looked at: every few milliseconds, and before a kill."""
        self.pid = 0 if not scratch else process.first_pid
        """Of the interpreter; 0 where it is not known yet."""
        self._lifetime_cpu = self._begun_cpu = 0.0
        self._next_look = self._next_walk = 0.0
        self._cpu_limit = START_LIMIT_S
        self.deadline = time.monotonic() + START_LIMIT_S

    def charge(self, cpu_s: float, wall_s: float) -> None:
        """From now on the process pays, within these limits."""
        self._begun_cpu, self._cpu_limit = self.measure_cpu(), cpu_s
        self.deadline = time.monotonic() + wall_s

    def measure_cpu(self) -> float:
        """CPU seconds of the process so far. Its clock id is its process id in the kernel's spelling."""
        if not self.pid and self._process.first_pid:
            self.pid = find_child(self._process.first_pid)
        if self.pid and not self._process.has_ended():
            with contextlib.suppress(OSError):
                self._lifetime_cpu = max(self._lifetime_cpu, time.clock_gettime((~self.pid << 3) | 2))
        return self._lifetime_cpu

    @property
    def charged_cpu_s(self) -> float:
        """CPU seconds since the process pays; exact once it is reaped."""
        usage = self._process.usage
        return max(0.0, max(self._lifetime_cpu, usage.ru_utime + usage.ru_stime if usage else 0.0) - self._begun_cpu)

    def count_threads(self) -> int:
        """Threads right now, with a note of the memory on the way; 0 when the process is gone.

        The peak that wait4 reports would be no good: it begins with that of the process that started it, the trainer.
        """
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
                found = {words[0]: int(words[1]) for words in map(str.split, file) if words[:1] in (["VmHWM:"], ["Threads:"])}
        except OSError:
            return 0
        self.peak_mb = max(self.peak_mb, found.get("VmHWM:", 0) / 1024)
        return found.get("Threads:", 0)

    def is_due(self) -> bool:
        """Whether it is time for a look: a program that writes byte by byte must not cost one each."""
        now = time.monotonic()
        if now < self._next_look and now <= self.deadline:
            return False
        self._next_look = now + self.tick_s / 2
        return True

    def find_breach(self, reply_is_here: bool) -> ProcessEnded | None:
        """The limit that the process has run into, if any. A reply that is here was in time, however late a host looks."""
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
            self._next_walk = ended + max(WALK_S, 4 * (ended - now))  # thousands of files: a fifth of the time, no more
        return None


def find_child(parent: int) -> int:
    """The only child of the jail's first process; 0: not there yet, or gone."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            return int((file.read().split() or ["0"])[0])
    except FileNotFoundError:  # gone, or a kernel that does not list children
        return next((pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if find_parent(pid) == parent), 0)
    except OSError:
        return 0


def find_parent(pid: int) -> int:
    """0: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
