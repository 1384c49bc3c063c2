"""Worker processes seen from the trainer: started, asked with a time limit, killed, replaced.

Plain subprocesses and not multiprocessing: they inherit nothing of the trainer (no torch, no CUDA context, no locks),
they are spoken to in JSON, and each has a guard (see worker.py), so that ending one takes along whatever it started. The
guard is the process that is known here: it ends when, and as, its worker does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cohort
from cohort.base.processes import memory_below
from cohort.errors import RewardError
from cohort.rewards.entries import Answered, Failed, from_message, shorten
from cohort.rewards.terminal import Terminal
from cohort.rewards.worker import HEADER

LOAD_LIMIT_S = 300.0
"""For starting Python and importing the function's module, which is no part of a call's time limit."""
MAX_REPLY_BYTES = 256 * 2**20
LOOK_EVERY_S = 0.1
"""How often a silent worker is looked at: whether it has died with its pipe held open by a child of its own, and its memory."""
MEMORY_MB = 4096
"""For a worker and all that it starts, unless it is told otherwise."""
GUARD_S = 15.0
"""A guard that has not ended its worker by then is killed itself, and its worker with it."""


class WorkerTimeout(Exception):
    """The worker did not answer within the limit."""


class WorkerFull(Exception):
    """The worker used more memory than it may."""


class WorkerDied(Exception):
    """The worker ended, or answered nonsense."""


class LoadFailed(Exception):
    """The worker could not import the function; the message says why."""


NOT_LOADED = (LoadFailed, WorkerDied, WorkerFull, WorkerTimeout)


class Worker:
    """One child process. Used by one thread at a time."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: the working folder must not shadow the standard library before the trainer's own path is set.
                [sys.executable, "-P", "-m", "cohort.rewards.worker", str(lifeline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(lifeline,),
                start_new_session=True,
                env=worker_environment(),
                bufsize=0,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._prints = (terminal or Terminal()).follow(os.dup(self._process.stderr.fileno()))
        self._process.stderr.close()
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self._loaded: dict[str, dict[str, Any]] = {}
        self._ready = False
        self._memory_mb = float("inf")
        self.calls = 0
        """So many it has begun: what they have left behind is in its memory."""
        self._ending = threading.Lock()
        self.alive = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, spec: str, memory_mb: float = MEMORY_MB) -> dict[str, Any]:
        """Import the function there, once; returns its signature as plain data. The memory limit holds from here on."""
        self._memory_mb = memory_mb
        if not self._ready:
            path = [entry or os.getcwd() for entry in sys.path]
            self.ask({"op": "path", "path": path, "variable": os.environ.get("PYTHONPATH")}, LOAD_LIMIT_S)
            self._ready = True
        if spec not in self._loaded:
            reply = self.ask({"op": "load", "spec": spec}, LOAD_LIMIT_S)
            if not isinstance(reply, dict) or "signature" not in reply:
                raise LoadFailed(shorten(str(reply.get("error", "") if isinstance(reply, dict) else reply)))
            self._loaded[spec] = reply["signature"]
        return self._loaded[spec]

    def ask(self, message: dict[str, Any], limit_s: float) -> Any:
        """Send one request, return its reply. After WorkerTimeout, WorkerFull or WorkerDied the process is gone."""
        deadline = time.monotonic() + limit_s
        body = json.dumps(message).encode()
        try:
            self._write(HEADER.pack(len(body)) + body, deadline)
            (length,) = HEADER.unpack(self._read(HEADER.size, deadline))
            if length > MAX_REPLY_BYTES:
                raise WorkerDied(f"the worker announced a reply of {length} bytes")
            return json.loads(self._read(length, deadline))
        except (WorkerTimeout, WorkerFull, WorkerDied):
            self.kill()
            raise
        except (ValueError, RecursionError) as problem:
            self.kill()
            raise WorkerDied("the worker's reply is not JSON") from problem
        except BaseException:  # interrupted half-way: the pipe is out of step
            self.kill()
            raise

    def call(self, message: dict[str, Any], lengths: Sequence[int], limit_s: float) -> Answered | Failed:
        """One call of a function it has loaded, on completions of these lengths."""
        self.calls += 1
        try:
            reply = from_message(self.ask(message, limit_s), lengths)
        except WorkerTimeout:
            return Failed("timeout", f"no answer within {limit_s:g} s")
        except WorkerFull as problem:
            return Failed("memory", str(problem))
        except WorkerDied as problem:
            return Failed("crash", str(problem))
        if reply is None:
            self.kill()
            return Failed("crash", "the worker's reply does not have the form of a reward")
        return reply

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._requests, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._requests, view) :]
            except BlockingIOError:
                continue
            except OSError as problem:
                raise WorkerDied(self._epitaph()) from problem

    def _read(self, size: int, deadline: float) -> bytes:
        pieces: list[bytes] = []
        while size > 0:
            self._wait(self._replies, select.POLLIN, deadline)
            try:
                piece = os.read(self._replies, min(size, 2**20))
            except BlockingIOError:
                continue
            except OSError as problem:
                raise WorkerDied(self._epitaph()) from problem
            if not piece:
                raise WorkerDied(self._epitaph())
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        while True:
            left = deadline - time.monotonic()
            ended = not self.alive or self._ended() is not None
            if poll.poll(0 if ended else max(0.0, min(left, LOOK_EVERY_S)) * 1000):
                return
            if ended:
                raise WorkerDied(self._epitaph())
            if memory_below(self.pid) > self._memory_mb:
                raise WorkerFull(f"more than memory_mb = {self._memory_mb:g} MB in use")
            if left <= 0:
                raise WorkerTimeout("no answer within the time limit")

    def _ended(self) -> os.waitid_result | None:
        """How the process ended, without reaping it: until it is reaped nobody else can be given its process id."""
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None

    def _epitaph(self) -> str:
        for _ in range(300):  # the pipe closes before the process can be waited for: a moment, or longer on a busy machine
            if (end := self._ended()) is not None:
                if end.si_code == os.CLD_EXITED:
                    return f"the worker process ended with exit status {end.si_status}"
                return f"the worker process was ended by signal {signal.Signals(end.si_status).name}"
            time.sleep(0.01)
        return "the worker process closed its pipe"

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive and self._ended() is None and time.monotonic() < deadline:
            time.sleep(0.005)

    def hang_up(self) -> None:
        """Ask an idle worker to end by itself."""
        if self.alive and self._process.stdin is not None:
            self._process.stdin.close()

    def shoot(self) -> None:
        """Tell the guard to end it all. Certainly ours: as long as it is not reaped, its id is not reused."""
        with self._ending:
            if self.alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if sys.platform == "linux":
                        os.kill(self.pid, signal.SIGTERM)
                    else:
                        os.killpg(self.pid, signal.SIGKILL)

    def kill(self, grace_s: float = 0.0) -> None:
        """End the process, with a moment to end by itself, and let go of its pipes. Only for the thread that holds it."""
        self._await_end(grace_s)
        self.shoot()
        self._await_end(GUARD_S)
        with self._ending:
            if not self.alive:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self.alive = False
        self._prints.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._lifeline)


class Pool:
    """A fixed number of workers, borrowed one call at a time; one that died while out is replaced on return."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        self._all: set[Worker] = set()
        self.terminal = Terminal()
        self._closed = False

    @property
    def size(self) -> int:
        return len(self._all)

    @property
    def pids(self) -> list[int]:
        return sorted(worker.pid for worker in self._all)

    def grow(self, size: int) -> None:
        while self.size < size:
            self._add()

    def _add(self) -> None:
        worker = Worker(self.terminal)
        self._all.add(worker)
        if self._closed:  # closed by another thread in between
            worker.kill()
        self._idle.put(worker)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Worker]:
        worker = None
        while worker is None:
            if self._closed:
                raise RewardError("The reward runner is closed.")
            with contextlib.suppress(queue.Empty):
                worker = self._idle.get(timeout=LOOK_EVERY_S)
        try:
            yield worker
        finally:
            if worker.alive:
                self._idle.put(worker)
            else:
                self._all.discard(worker)
                if not self._closed:
                    self._add()

    def close(self) -> None:
        self._closed = True
        idle: list[Worker] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        # A worker that is out belongs to the thread that borrowed it: that thread notices the death and cleans up.
        for worker in self._all.difference(idle):
            worker.shoot()
        for worker in idle:
            worker.hang_up()
        for worker in idle:
            worker.kill(grace_s=1.0)


def worker_environment() -> dict[str, str]:
    """The trainer's environment, with the folder this package was imported from in front."""
    package = str(Path(cohort.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, inherited] if inherited else [package])}


def load_problem(spec: str, problem: LoadFailed | WorkerDied | WorkerFull | WorkerTimeout) -> str:
    """Why a worker does not have the function, as a sentence without its subject."""
    return str(problem) if isinstance(problem, LoadFailed) else f"cannot import {spec} ({problem})."
