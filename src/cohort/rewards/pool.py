"""Worker processes for reward functions: start, call with a time limit, kill, replace.

Plain subprocesses, not multiprocessing: they inherit nothing from the trainer (no torch, no CUDA context, no locks) and exchange
JSON with it. Each has a guard (worker.py), so that ending one also ends its child processes. The trainer knows the guard's process
id; the guard exits when its worker does, with the same status.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.base.importing import find_current_folder, package_folder
from cohort.base.processes import memory_below
from cohort.base.text import make_printable
from cohort.errors import RewardError
from cohort.rewards.call import Answered, Failed, RewardCall, from_message
from cohort_verify.text import shorten
from cohort_verify.workers import Answer, Channel, Place, Pool, PoolClosed, ProcessEnded

LOAD_LIMIT_S = 300.0
"""For starting Python and importing the function's module; a call's time limit does not include this."""
MAX_REPLY_BYTES = 256 * 2**20
CHECK_EVERY_S = 0.1
"""Interval between checks of a silent worker: its memory, and whether it has died while a child holds its pipe open."""
MEMORY_MB = 4096
"""Default limit for a worker and all its child processes."""
GUARD_S = 15.0
"""A guard that has not ended its worker in this time is killed, and its worker with it."""
SHOWN_CHARS = 64 * 1024
"""Limit of the text that all workers together can print in one step."""


class LoadFailed(Exception):
    """The worker could not import the function. The message is a sentence without its subject."""


class Worker:
    """One child process. Used by one thread at a time."""

    def __init__(
        self, terminal: Terminal | None = None, variables: Mapping[str, str] | None = None, folder: str | None = None
    ) -> None:
        """`folder`: its working folder; by default the trainer's."""
        self._folder = folder or find_current_folder()
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
                env={**make_environment(), **(variables or {})},
                cwd=self._folder if os.path.isdir(self._folder) else None,
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
        self.channel = Channel(self._process.stdin.fileno(), self._process.stdout.fileno())
        self._loaded: dict[str, dict[str, Any]] = {}
        self._ready = False
        self._memory_mb = float("inf")
        self.calls = 0
        """Number of its calls, which may have left data in its memory."""
        self._ending = threading.Lock()
        self._reaped = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._reaped and self._find_end() is None

    def load(self, spec: str, memory_mb: float = MEMORY_MB) -> dict[str, Any]:
        """Import the function in the worker, once; returns its signature as plain data. The memory limit holds from now on."""
        self._memory_mb = memory_mb
        try:
            if not self._ready:
                path = [os.path.join(self._folder, entry) if entry else self._folder for entry in sys.path]
                self.ask({"op": "path", "path": path, "variable": os.environ.get("PYTHONPATH")}, LOAD_LIMIT_S)
                self._ready = True
            if spec not in self._loaded:
                reply = self.ask({"op": "load", "spec": spec}, LOAD_LIMIT_S)
                if not isinstance(reply, dict) or "signature" not in reply:
                    raise LoadFailed(shorten(str(reply.get("error", "") if isinstance(reply, dict) else reply)))
                self._loaded[spec] = reply["signature"]
        except ProcessEnded as ended:
            raise LoadFailed(f"cannot import {spec} ({ended.detail}).") from None
        return self._loaded[spec]

    def ask(self, message: dict[str, Any], limit_s: float) -> Any:
        """Send one request, return its reply. Raises ProcessEnded, of kind "timeout", "memory" or "crash"."""
        deadline = time.monotonic() + limit_s
        try:
            self.channel.send(json.dumps(message).encode())
            while not self.channel.has_reply:
                if self.channel.reply_size > MAX_REPLY_BYTES:
                    raise ProcessEnded("crash", f"the worker announced a reply of {self.channel.reply_size} bytes")
                self._transfer(deadline, limit_s)
            return json.loads(self.channel.take_reply())
        except (ValueError, RecursionError) as problem:
            self.kill()
            raise ProcessEnded("crash", "the worker's reply is not JSON") from problem
        except BaseException:  # ended, or interrupted midway: the next reply would belong to this request
            self.kill()
            raise

    def call_reward(self, spec: str, call: RewardCall, limit_s: float) -> Answered | Failed:
        """Call a loaded function."""
        self.calls += 1
        message = {"op": "call", "spec": spec, **vars(call), "state": vars(call.state)}
        try:
            reply = from_message(self.ask(message, limit_s), call.lengths)
        except ProcessEnded as ended:
            return Failed(ended.kind, ended.detail)
        if reply is None:
            self.kill()
            return Failed("crash", "the worker's reply does not have the form of a reward")
        return reply

    def _transfer(self, deadline: float, limit_s: float) -> None:
        """Write or read as soon as the pipes are ready; check the worker's limits if they are not."""
        channel, poll = self.channel, select.poll()
        poll.register(channel.replies, select.POLLIN)
        if channel.is_sending:
            poll.register(channel.requests, select.POLLOUT)
        ended, left = not self.alive, deadline - time.monotonic()
        events = dict(poll.poll(0 if ended else max(0.0, min(left, CHECK_EVERY_S)) * 1000))
        if channel.replies in events:
            open_still = channel.read_some()
        else:
            open_still = channel.write_some() if events else not ended
        if not open_still:
            raise ProcessEnded("crash", self.describe_end())
        if not events and memory_below(self.pid) > self._memory_mb:
            raise ProcessEnded("memory", f"more than memory_mb = {self._memory_mb:g} MB in use")
        if not events and left <= 0:
            raise ProcessEnded("timeout", f"no answer within {limit_s:g} s")

    def _find_end(self) -> os.waitid_result | None:
        """How the process ended, without reaping it: until then its process id is not reused."""
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None

    def describe_end(self) -> str:
        for _ in range(300):  # the pipe closes before the process can be waited for; on a busy machine that takes longer
            if (end := self._find_end()) is not None:
                if end.si_code == os.CLD_EXITED:
                    return f"the worker process ended with exit status {end.si_status}"
                return f"the worker process was ended by signal {signal.Signals(end.si_status).name}"
            time.sleep(0.01)
        return "the worker process closed its pipe"

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.005)

    def hang_up(self) -> None:
        """Close an idle worker's input, on which it ends."""
        if not self._reaped and self._process.stdin is not None:
            self._process.stdin.close()

    def terminate(self) -> None:
        """Signal the guard to end the worker. The process id is certainly ours: it is not reused before it is reaped."""
        with self._ending:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if sys.platform == "linux":
                        os.kill(self.pid, signal.SIGTERM)
                    else:
                        os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and close its pipes. Only for the thread that uses it."""
        self.terminate()
        self._await_end(GUARD_S)
        with self._ending:
            if self._reaped:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._reaped = True
        self._prints.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._lifeline)

    def close(self) -> None:
        """End the process, after a second to exit by itself."""
        self.hang_up()
        self._await_end(1.0)
        self.kill()


class Terminal:
    """Forwards the workers' prints to standard error, up to a limit per step.

    Many rewards print completions, so control characters are escaped. Text beyond the limit is read and dropped.
    """

    def __init__(self) -> None:
        self._left, self._noted = SHOWN_CHARS, False
        self._lock = threading.Lock()

    def refill(self) -> None:
        """Reset the limit for another step."""
        with self._lock:
            self._left, self._noted = SHOWN_CHARS, False

    def follow(self, descriptor: int) -> threading.Thread:
        """Show the text from a pipe in a thread until its last writer closes it."""
        thread = threading.Thread(target=self._follow, args=(descriptor,), daemon=True, name="prints of a reward worker")
        thread.start()
        return thread

    def _follow(self, descriptor: int) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while piece := os.read(descriptor, 1 << 16):
                self.show(decoder.decode(piece))
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def show(self, text: str) -> None:
        with self._lock:
            shown = text[: self._left]
            self._left -= len(shown)
            last = ""
            if len(shown) < len(text) and not self._noted:
                self._noted = True
                last = f"\n[rewards printed more than {SHOWN_CHARS} characters in this step; the rest is omitted]\n"
        if shown or last:
            with contextlib.suppress(Exception):  # a closed terminal must not stop the run
                sys.stderr.write(make_printable(shown.replace("\r\n", "\n").replace("\r", "\n")) + last)
                sys.stderr.flush()


class RunnerClosed(PoolClosed, RewardError):
    """A reward was called after its runner was closed."""


class HelperPool(Pool[Worker]):
    """Worker processes for trusted code that may still hang, crash or fill the memory. Not a jail."""

    closed_error = RunnerClosed

    def __init__(self, size: int = 0, entry: str = "", variables: Mapping[str, str] | None = None) -> None:
        """`entry`: the function that `ask` calls; `variables`: additional environment variables of the workers."""
        self.entry, self._variables = entry, variables
        self.terminal = Terminal()
        self._folder = find_current_folder()  # now, since user code may change it before a worker is replaced
        super().__init__(size)

    def _start(self) -> Worker:
        return Worker(self.terminal, self._variables, self._folder)

    def grow(self, size: int) -> None:
        """Start all workers now: starting takes time, and the calls of a step come all at once."""
        super().grow(size)
        for place in self._places:
            place.fill()

    def ask(self, message: Any, limits: Any = None) -> Answer:
        with self.borrow() as worker:
            try:
                worker.load(self.entry)
                reply = worker.ask({"op": "ask", "spec": self.entry, "message": message}, limits.wall_s)
            except LoadFailed as problem:
                return Answer(problem="infrastructure", detail=str(problem))
            except ProcessEnded as ended:
                return Answer(problem="wall" if ended.kind == "timeout" else ended.kind, detail=ended.detail)
        return Answer(reply["value"]) if "value" in reply else Answer(problem="exception", detail=str(reply["raised"]))

    def _end(self, borrowed: Sequence[Place[Worker]], idle: Sequence[Place[Worker]]) -> None:
        # A borrowed worker belongs to the thread that borrowed it, which notices its end and cleans up.
        for place in borrowed:
            if place.worker is not None:
                place.worker.terminate()
        for place in idle:
            if place.worker is not None:
                place.worker.hang_up()
        super()._end(borrowed, idle)


def make_environment() -> dict[str, str]:
    """The trainer's environment, with the folder of this package first in PYTHONPATH."""
    path = [str(package_folder()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
