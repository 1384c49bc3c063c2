"""A jailed process: starting it, exchanging messages with it, enforcing its limits, and ending it.

Everything happens in the calling thread. It waits on the pipes, and every few milliseconds checks the process's CPU clock, its
threads and, without a file system of its own, its scratch folder. After the end no process, descriptor or folder is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import marshal
import os
import pwd
import queue
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

from cohort_verify.sandbox import seccomp, tiers
from cohort_verify.sandbox.limits import FLOOD_BYTES, MAX_FILES, MAX_FRAME_BYTES, JailUnavailable, Limits
from cohort_verify.sandbox.process import JailedProcess, Watch
from cohort_verify.sandbox.scratch import make_folder, remove_folder
from cohort_verify.sandbox.tiers import Tier, find_tier
from cohort_verify.sandbox.values import MAX_NODES
from cohort_verify.workers import HEADER_BYTES, Channel, ProcessEnded, read_piece

Process = subprocess.Popen[bytes]
BOOT = (Path(__file__).parent / "boot.py").read_text(encoding="utf-8")
F_ADD_SEALS, F_SEAL_ALL = 1033, 0xF


def return_memory() -> None:
    """Return freed memory to the system. Otherwise the C library keeps what large replies took."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


_numbers = itertools.count()


def next_user() -> int:
    """Return a user id that no account and no other jail on this machine uses."""
    while True:
        user = tiers.FIRST_USER + os.getpid() * tiers.USERS_PER_TRAINER + next(_numbers) % tiers.USERS_PER_TRAINER
        with contextlib.suppress(KeyError):
            pwd.getpwuid(user)
            continue
        return user


class Spawner:
    """Starts processes from a thread that never ends.

    A process that dies with its parent dies with the *thread* that started it, and the threads that use jails come and go. An
    executor's thread would end before the last threads of a program.
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
            if started.exception() is None:  # interrupted: end the process that nobody waits for
                started.result().kill()
                started.result().wait()
            raise


_spawner: Spawner | None = None
_spawner_lock = threading.Lock()


def start_process(tier: Tier, readable: Sequence[str], scratch: str, pipes: Mapping[str, int]) -> Process:
    """Start the interpreter of a jail with boot.py, on the jail's ends of the pipes."""
    global _spawner
    names = ["requests", "replies", *(["info"] if tier.own_files else [])]
    command = [tiers.find_interpreter(), "-s", "-S", "-P", "-B", "-c", BOOT, str(pipes["requests"]), str(pipes["replies"])]
    if tier.own_files:
        prefix = tiers.write_bubblewrap_command(tier.bubblewrap, readable)
        command = [*prefix[:1], "--info-fd", str(pipes["info"]), *prefix[1:], *command]
    with _spawner_lock:
        if _spawner is None or _spawner.owner != os.getpid():  # threads do not survive a fork
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
    """Return the restrictions for boot.py; `user` is the user to change to, `pid` the process id if known to the host."""
    wrapped, unsafe, dropped = tier.own_files, tier.name == "unsafe", user is not None
    return {
        "unsafe": unsafe,
        "tmpfs": f"size={int(limits.files_mb * 2**20)},nr_inodes={MAX_FILES},mode=0777" if wrapped else "",
        "limits": tiers.list_process_limits(limits, own_user=dropped or (wrapped and tiers.counts_per_namespace())),
        "parent": None if wrapped else os.getpid(),
        "hold_folders": dropped and not wrapped,
        "dumpable": not wrapped,
        "landlock": tiers.list_landlock_rules(tier, readable, scratch) if tier.name == "landlock" else None,
        "filter": b"" if unsafe else seccomp.build_filter(tiers.JAILED_PID if wrapped else pid, wrapped, dropped),
    }


def seal_input(text: bytes) -> int:
    """Return a descriptor for standard input: a sealed file in memory.

    With a pipe, a process forked meanwhile would hold the writing end open, and the program would wait for ever.
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


# ---------------------------------------------------------------------------------------------------------------------
# The jail
# ---------------------------------------------------------------------------------------------------------------------

LARGE_BYTES = 256 * 1024
TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
"""Too few processes, pages, descriptors or blocks at the moment, not a property of the machine."""


class KeptOutput:
    """Standard output or error. Keeps the beginning and counts all of it."""

    def __init__(self, keep: int) -> None:
        self._keep, self._kept = keep, bytearray()
        self.total = 0

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        self._kept += piece[: max(0, self._keep - len(self._kept))]

    @property
    def truncated(self) -> bool:
        return self.total > len(self._kept)

    def text(self) -> str:
        return self._kept.decode("utf-8", errors="replace")


class Jail:
    """A jailed process. Use it from one thread at a time, and call `close` at the end."""

    def __init__(
        self,
        job: str,
        program: str,
        limits: Limits,
        *,
        extra: Mapping[str, Any] | None = None,
        packages: Sequence[str] = (),
        modules: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        tier: Tier | None = None,
    ) -> None:
        """Start the process. packages: folders to import from. modules: single import packages, name -> folder; their
        surroundings stay hidden.
        """
        self.limits, self.tier = limits, tier or find_tier()
        self.reset_output()
        self.companion: Jail | None = None
        """Another jail whose limits are checked while this one is waited for."""
        self.questions = 0
        self._process: JailedProcess | None = None
        self._end: ProcessEnded | None = None
        self._scratch = ""
        self._pipes: dict[str, int] = {}
        """The host's open ends, by name."""
        self._large_replies = 0
        try:
            self._start(job, program, extra or {}, [path for path in packages if os.path.exists(path)], modules or {}, stdin)
        except OSError as problem:
            self.close()
            if problem.errno in TRANSIENT:
                raise ProcessEnded("infrastructure", f"the jail did not start: {problem}") from problem
            raise JailUnavailable(f"the jail does not start: {problem}") from problem
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        job: str,
        program: str,
        extra: Mapping[str, Any],
        packages: Sequence[str],
        modules: Mapping[str, str],
        stdin: bytes | None,
    ) -> None:
        readable, wrapped = tiers.list_readable_folders([*packages, *modules.values()]), self.tier.own_files
        if not wrapped:
            self._scratch = make_folder()
        scratch = self._scratch or tiers.place_scratch(readable)
        with self._make_pipes(stdin) as inner:
            process = JailedProcess(start_process(self.tier, readable, scratch, inner), wrapped)
            self._watch = Watch(process, self.limits, self._scratch)
            self._process = process
        self._channel = Channel(self._pipes["requests"], self._pipes["replies"])
        user = next_user() if os.getuid() == 0 and self.tier.name != "unsafe" else None
        if user is not None and not wrapped:
            os.chown(scratch, user, user)
        setup = {"job": job, "program": program, "path": packages, "modules": dict(modules), "scratch": scratch, "user": user}
        setup |= {**list_restrictions(self.tier, self.limits, readable, scratch, user, self._watch.pid), **extra}
        try:
            self.receive()  # it waits now; a short program could end before anyone looks
            self._watch.measure_cpu()
            if not self._watch.pid and not process.has_ended():
                raise JailUnavailable("the jailed process cannot be found in /proc, so its CPU time could not be limited")
            word, *rest = self.request(setup)
        except ProcessEnded as ended:
            detail = self.stderr.text().strip()[-500:] or ended.detail
            raise ProcessEnded("infrastructure", f"the jail did not start ({ended.kind}): {detail}") from None
        if word != "ready":
            raise JailUnavailable(f"the jail could not be closed, and nothing was run in it: {': '.join(map(str, rest))}")
        # The program starts with this message. Whatever goes wrong from here on is the program's fault.
        self.charge(self.limits)
        self.send("go")

    @contextlib.contextmanager
    def _make_pipes(self, stdin: bytes | None) -> Iterator[dict[str, int]]:
        """Make the pipes and yield the jail's ends. Each end is registered as soon as it exists, so that none leaks if the next
        fails.
        """
        inner: dict[str, int] = {}
        try:
            for name in ("requests", "replies", "stdout", "stderr", *(("info",) if self.tier.own_files else ())):
                reading, writing = os.pipe()
                inner[name], self._pipes[name] = (reading, writing) if name == "requests" else (writing, reading)
                os.set_blocking(self._pipes[name], False)
            if stdin is not None:
                inner["stdin"] = seal_input(stdin)
            yield inner
        finally:
            for descriptor in inner.values():
                os.close(descriptor)

    # -----------------------------------------------------------------------------------------------------------------
    # Messages
    # -----------------------------------------------------------------------------------------------------------------

    def charge(self, limits: Limits) -> None:
        """Charge the process from now on, with these limits."""
        self._watch.charge(limits.cpu_s, limits.wall_s)

    def stop_charging(self, wall_s: float) -> None:
        """Limit only the wall-clock time from now on, for the worker's own work such as imports."""
        self._watch.charge(float("inf"), wall_s)

    def reset_output(self) -> None:
        """Reset the output before the next message."""
        self.stdout, self.stderr = KeptOutput(self.limits.output_kb * 1024), KeptOutput(self.limits.output_kb * 1024)
        self._reply_bytes = 0

    @property
    def alive(self) -> bool:
        return self._end is None and self._process is not None and not self._process.has_ended()

    @property
    def has_more(self) -> bool:
        """Whether it has sent something that was not read."""
        return self._channel.waiting_bytes > 0

    @property
    def cpu_s(self) -> float:
        return self._watch.charged_cpu_s

    @property
    def peak_mb(self) -> float:
        return self._watch.peak_mb

    def request(self, request: Any) -> list[Any]:
        """Send a request and return the reply, a list that begins with a word. Raises ProcessEnded after cleaning up."""
        self.send(request)
        return self.receive()

    def send(self, request: Any) -> None:
        self._channel.send(marshal.dumps(request, 4))

    def receive(self) -> list[Any]:
        while True:
            if self._channel.reply_size > MAX_FRAME_BYTES:
                raise self._stop(ProcessEnded("output", f"a reply of {self._channel.reply_size} bytes"))
            if self._channel.has_reply:
                return self._read_reply(self._channel.take_reply())
            if "replies" not in self._pipes:
                self.wait()
            self._take_turn(receiving=True)

    def _read_reply(self, body: bytes) -> list[Any]:
        """Parse a reply. The program may write anything here, at the cost of its own score."""
        # Counted before parsing: four bytes of text can be a list of a hundred.
        if body.count(b"[") + body.count(b",") > MAX_NODES + 16:
            raise self._stop(ProcessEnded("output", f"a reply of more than {MAX_NODES} values"))
        self._reply_bytes += len(body)
        if self._reply_bytes > FLOOD_BYTES:
            raise self._stop(ProcessEnded("output", f"replies of more than {FLOOD_BYTES >> 20} MiB together"))
        self._large_replies += len(body) > LARGE_BYTES
        with contextlib.suppress(ValueError, RecursionError, MemoryError):
            reply = json.loads(body)
            if isinstance(reply, list) and reply and isinstance(reply[0], str):
                return reply
        raise self._stop(ProcessEnded("crash", "a malformed reply"))

    def wait(self) -> NoReturn:
        """Wait for the end of the process and raise ProcessEnded."""
        assert self._process is not None
        while self._pipes or not self._process.has_ended():
            self._take_turn()
        self._end_process()
        raise self._stop(self._process.describe_end())

    # -----------------------------------------------------------------------------------------------------------------
    # The event loop: read, write, check the limits
    # -----------------------------------------------------------------------------------------------------------------

    def _take_turn(self, receiving: bool = False) -> None:
        if self._end is not None:
            raise self._end
        assert self._process is not None
        poll = select.poll()
        names = {descriptor: name for name, descriptor in self._pipes.items() if name != "requests" or self._channel.is_sending}
        for descriptor, name in names.items():
            poll.register(descriptor, select.POLLOUT if name == "requests" else select.POLLIN)
        over = self._process.has_ended()  # asked before the poll, which then sees all that a dead process has written
        left = self._watch.deadline - time.monotonic()
        events = poll.poll(0 if over else max(0.0, min(self._watch.tick_s, left)) * 1000)
        for descriptor, _ in events:
            if not self._serve(names[descriptor]):
                self._forget(names[descriptor])
        if self._watch.is_due():
            self._check_limits(receiving)
            if self.companion is not None:
                self.companion._check_limits()
        if over and not events:
            # Nothing is left to read; other processes may still hold a pipe open.
            for name in list(self._pipes):
                self._forget(name)

    def _serve(self, name: str) -> bool:
        """Read from or write to a pipe. Returns False once the pipe is of no more use."""
        if name == "requests":
            return self._channel.write_some()
        if name == "replies":
            if self._channel.waiting_bytes > HEADER_BYTES + MAX_FRAME_BYTES:
                raise self._stop(ProcessEnded("output", "unrequested replies"))
            return self._channel.read_some()
        piece = read_piece(self._pipes[name])
        if name == "info":  # not needed once the process is known
            assert self._process is not None
            return piece != b"" and not self._process.learn_first_pid(piece or b"")
        stream = self.stdout if name == "stdout" else self.stderr
        stream.add(piece or b"")
        if stream.total > FLOOD_BYTES:
            raise self._stop(ProcessEnded("output", f"more than {FLOOD_BYTES >> 20} MiB on {name}"))
        return piece != b""

    def _check_limits(self, receiving: bool = False) -> None:
        """Enforce the limits. With `receiving`, a reply that has arrived is accepted.

        Otherwise a program could stay alive for ever by sending replies that nobody reads.
        """
        if breach := self._watch.find_breach(receiving and self._channel.has_reply):
            raise self._stop(breach)

    def _forget(self, name: str) -> None:
        os.close(self._pipes.pop(name))

    # -----------------------------------------------------------------------------------------------------------------
    # Ending
    # -----------------------------------------------------------------------------------------------------------------

    def _stop(self, end: ProcessEnded) -> ProcessEnded:
        """Clean up and return the end."""
        self._end = end
        self.close()
        return end

    def _end_process(self) -> None:
        if self._process is not None:
            if not self._process.has_ended():
                self._watch.measure_cpu()
                self._watch.count_threads()
            self._process.end()

    def close(self) -> None:
        """End the process if it runs, and leave nothing behind."""
        self._end_process()
        for name in list(self._pipes):
            self._forget(name)
        if self._scratch:
            remove_folder(self._scratch)
            self._scratch = ""
        if self._end is None:
            self._end = ProcessEnded("exit", "closed")
        if self._large_replies:
            self._large_replies = 0
            return_memory()

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
