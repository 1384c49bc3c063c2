"""The end of a jail's processes: certain, and with nothing left behind.

Only processes started here are ever signalled, and only while they are not reaped, so that their ids cannot belong to anyone else.
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
