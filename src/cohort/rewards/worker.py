"""The child process that runs reward functions: `python -m cohort.rewards.worker LIFELINE_FD`.

It reads requests from standard input and writes replies to standard output, each a 4-byte length and then JSON. No pickle in either
direction, since reward functions process model output. The function runs in the main thread, so verifiers that set alarms work.
The worker has no terminal. When its parent ends, it is killed with all its child processes: a guard, the process that the
trainer knows, does this.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from cohort.base.importing import NotImportable, load_function
from cohort.base.processes import children_of
from cohort.rewards.call import RewardCall, Signature, TrainerState, call_reward, extract_answers, format_problem, to_message
from cohort_verify.text import shorten
from cohort_verify.workers import HEADER_BYTES, frame_message


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    requests, replies = claim_pipes()
    faulthandler.enable()
    handler = RequestHandler()
    while (message := read_message(requests)) is not None:
        if message["op"] == "serve":  # the function exchanges messages of its own until the pipe is closed
            load_function(message["spec"])(requests, replies)
            return
        reply = handler.handle(message)
        with contextlib.suppress(Exception):  # the function may have closed or replaced it
            sys.stdout.flush()
        replies.write(frame_message(json.dumps(reply).encode()))
        replies.flush()


class RequestHandler:
    """Handles requests; keeps the imported functions and one event loop, since async clients keep a reference to theirs."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        self.loop = asyncio.new_event_loop()

    def handle(self, message: dict[str, Any]) -> Any:
        if message["op"] == "path":
            take_path(message["path"], message["variable"])
            return None
        if message["op"] == "load":
            return self.load(message["spec"])
        function = self.functions[message["spec"]]
        if message["op"] == "ask":
            try:
                return {"value": function(message["message"])}
            except BaseException as problem:
                return {"raised": shorten(format_problem(problem))}
        if message["op"] == "extract":
            return extract_answers(function, message["texts"], message["args"])
        call = RewardCall(message["arguments"], message["lengths"], TrainerState(**message["state"]), message["names"])
        return to_message(call_reward(function, call, self.loop.run_until_complete))

    def load(self, spec: str) -> dict[str, Any]:
        try:
            self.functions[spec] = load_function(spec)
            return {"signature": vars(Signature.read(self.functions[spec]))}
        except NotImportable as problem:
            return {"error": str(problem)}
        except BaseException as problem:
            return {"error": shorten(format_problem(problem))}


def take_path(path: list[str], variable: str | None) -> None:
    """Use the trainer's import path, and pass the user's PYTHONPATH to programs that a function starts."""
    sys.path[:] = path
    if variable is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = variable


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes away from file descriptors 0 and 1: prints of a reward function go to standard error."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def read_message(requests: BinaryIO) -> dict[str, Any] | None:
    """The next request, or None when the trainer has closed the pipe."""
    length = int.from_bytes(requests.read(HEADER_BYTES), "big")
    body = requests.read(length)
    return json.loads(body) if body and len(body) == length else None


def die_with_parent(lifeline: int) -> None:
    """End this process when its parent ends, even by SIGKILL: the other end of the lifeline, which carries no data, then closes."""
    parent = os.getppid()
    if sys.platform == "linux":
        guard_worker(lifeline, parent)
        return

    def watch() -> None:
        while not has_hung_up([lifeline], 1000) and os.getppid() == parent:
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


def has_hung_up(descriptors: list[int], wait_ms: int) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(wait_ms))


# ---------------------------------------------------------------------------------------------------------------------
# The guard
# ---------------------------------------------------------------------------------------------------------------------

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STUBBORN_S = 5.0
"""Time for ending children; those of another user cannot be ended."""


class Terminated(BaseException):
    """The trainer has sent SIGTERM."""


def guard_worker(lifeline: int, trainer: int) -> None:
    """Fork: the child continues as the worker; this process becomes its guard and, once it has ended, ends all its descendants.

    Orphans are re-parented to the guard, not to init, whatever their session, so it finds every descendant and reaps each before its
    id is reused. The worker cannot block the guard, which exits with the worker's status.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker = 0
    try:
        signal.signal(signal.SIGTERM, raise_terminated)
        guard, worker = os.getpid(), os.fork()
        if worker == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(1)
            os.close(lifeline)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # when memory runs out the kernel kills this process, not the trainer
            return
        os.dup2(lifeline, 0)  # only the worker keeps the pipes
        os.dup2(lifeline, 1)
        watched, wait_ms = [lifeline], 50
        with contextlib.suppress(OSError):  # a kernel older than 5.3
            watched, wait_ms = [lifeline, os.pidfd_open(worker)], 1000
        while os.getppid() == trainer and not has_hung_up(watched, wait_ms) and not has_ended(worker):
            pass
    except Terminated:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exit_like(end_children(worker) if worker else 0)


def raise_terminated(*_: object) -> None:
    raise Terminated


def has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_children(worker: int) -> int:
    """Kill and reap all descendants; returns the worker's status. Orphans are re-parented to this process and killed on the next pass."""
    status, deadline = 0, time.monotonic() + STUBBORN_S
    while time.monotonic() < deadline:
        for child in children_of(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            child, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if child == worker:
            status = how
        elif not child:
            time.sleep(0.002)
    return status


def exit_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main()
