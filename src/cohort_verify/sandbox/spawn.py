"""How jailed processes are started: by whom, with which command, and told to give up what."""

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cohort_verify.sandbox import seccomp, tiers
from cohort_verify.sandbox.limits import Limits
from cohort_verify.sandbox.tiers import Tier

Process = subprocess.Popen[bytes]
BOOT = (Path(__file__).parent / "boot.py").read_text(encoding="utf-8")
F_ADD_SEALS, F_SEAL_ALL = 1033, 0xF


def return_memory() -> None:
    """Give what a large reply took back to the system: the C library keeps it otherwise, and a run has thousands of them."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


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
    (Not an executor's thread: that ends before the last threads of a program do.)
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Future[Process], Callable[[], Process]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="jails").start()

    def _work(self) -> None:
        while True:
            started, job = self._jobs.get()
            try:
                started.set_result(job())
            except BaseException as problem:
                started.set_exception(problem)

    def start(self, job: Callable[[], Process]) -> Process:
        started: Future[Process] = Future()
        self._jobs.put((started, job))
        try:
            return started.result()
        except BaseException:
            if started.exception() is None:  # interrupted: what was started for nobody is ended
                started.result().kill()
                started.result().wait()
            raise


_spawner: Spawner | None = None
_spawner_lock = threading.Lock()


def start_process(tier: Tier, readable: Sequence[str], scratch: str, pipes: Mapping[str, int]) -> Process:
    """The interpreter of a jail, with boot.py, on these ends of its pipes."""
    global _spawner
    names = ["requests", "replies", *(["info"] if tier.own_files else [])]
    command = [tiers.find_interpreter(), "-s", "-S", "-P", "-B", "-c", BOOT, str(pipes["requests"]), str(pipes["replies"])]
    if tier.own_files:
        prefix = tiers.write_bubblewrap_command(tier.bubblewrap, readable)
        command = [*prefix[:1], "--info-fd", str(pipes["info"]), *prefix[1:], *command]
    with _spawner_lock:
        if _spawner is None or _spawner.owner != os.getpid():  # a fork has no threads of its parent
            _spawner = Spawner()
    return _spawner.start(
        lambda: subprocess.Popen(
            command,
            stdin=pipes.get("stdin", subprocess.DEVNULL),
            stdout=pipes["stdout"],
            stderr=pipes["stderr"],
            pass_fds=[pipes[name] for name in names],
            env=tiers.make_environment(scratch),
            start_new_session=True,
            cwd="/",
        )
    )


def list_restrictions(
    tier: Tier, limits: Limits, readable: Sequence[str], scratch: str, user: int | None, pid: int
) -> dict[str, Any]:
    """What boot.py is told to give up; `user` is the one that it drops to, `pid` its process where the host knows that."""
    wrapped, unsafe, dropped = tier.own_files, tier.name == "unsafe", user is not None
    return {
        "unsafe": unsafe,
        "tmpfs": tiers.write_scratch_options(limits) if wrapped else "",
        "limits": tiers.list_process_limits(limits, own_user=dropped or (wrapped and tiers.counts_per_namespace())),
        "parent": None if wrapped else os.getpid(),
        "hold_folders": dropped and not wrapped,
        "looked_at": not wrapped,
        "landlock": tiers.list_landlock_rules(tier, readable, scratch) if tier.name == "landlock" else None,
        "filter": b"" if unsafe else seccomp.build_filter(tiers.JAILED_PID if wrapped else pid, wrapped, dropped),
    }


def seal_input(text: bytes) -> int:
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
