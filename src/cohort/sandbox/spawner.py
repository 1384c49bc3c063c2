"""How jailed processes are started, and what the host needs around that."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import pwd
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from cohort.sandbox import tiers

F_ADD_SEALS, F_SEAL_ALL = 1033, 0xF


def return_memory() -> None:
    """Give what a large reply took back to the system: the C library keeps it otherwise, and a run has thousands of them."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


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


_numbers = itertools.count()


def next_user() -> int:
    """A user id that no account and no other jail of this machine has right now."""
    while True:
        user = tiers.FIRST_USER + os.getpid() * tiers.USERS_PER_TRAINER + next(_numbers) % tiers.USERS_PER_TRAINER
        with contextlib.suppress(KeyError):
            pwd.getpwuid(user)
            continue
        return user


class Spawner:
    """Starts processes from one thread that never ends.

    A process that dies with its parent dies with the *thread* that started it; the threads that ask for jails come and go.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[Any]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._work, daemon=True, name="jails").start()

    def _work(self) -> None:
        while True:
            start, answer = self._jobs.get()
            try:
                answer.put(start())
            except BaseException as problem:
                answer.put(problem)

    def start(self, job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        result: subprocess.Popen[bytes] | BaseException
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._jobs.put((job, answer))
        try:
            result = answer.get()
        except BaseException:  # interrupted: what was started for nobody is ended
            late = answer.get()
            if isinstance(late, subprocess.Popen):
                late.kill()
                late.wait()
            raise
        if isinstance(result, BaseException):
            raise result
        return result


_spawner: Spawner | None = None
_spawner_lock = threading.Lock()


def spawn(job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    global _spawner
    with _spawner_lock:
        if _spawner is None or _spawner.owner != os.getpid():  # a fork has no threads of its parent
            _spawner = Spawner()
    return _spawner.start(job)


def sealed_input(text: bytes) -> int:
    """A descriptor to read standard input from: a file in memory, which nobody can change or add to any more.

    Not a pipe: a process that the trainer forks meanwhile would hold its other end open, and the program would wait for ever.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.write(text)
            file.seek(0)
            return os.dup(file.fileno())
    writer = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(os.dup(writer), "wb") as file:
            file.write(text)
        fcntl.fcntl(writer, F_ADD_SEALS, F_SEAL_ALL)
        return os.open(f"/proc/self/fd/{writer}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writer)
