"""The child process in which reward functions run: `python -m cohort.rewards.worker LIFELINE_FD`.

It reads requests from standard input and writes replies to standard output, each a 4-byte length and then JSON. No
pickle in either direction: what a reward function handles is model output. The function runs in the main thread, so
verifiers that set alarms work. The process leads a session of its own and dies with its parent, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import select
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from cohort.base.importing import NotImportable, load_function
from cohort.rewards.call import (
    Signature,
    TrainerState,
    call_reward,
    extract_answers,
    readable_traceback,
    shorten,
    to_message,
)

HEADER = struct.Struct(">I")


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    requests, replies = claim_pipes()
    faulthandler.enable()
    desk = Desk()
    while (message := read_message(requests)) is not None:
        reply = desk.handle(message)
        with contextlib.suppress(Exception):  # the function may have closed or replaced it
            sys.stdout.flush()
        body = json.dumps(reply).encode()
        replies.write(HEADER.pack(len(body)) + body)
        replies.flush()


class Desk:
    """Answers requests; keeps the functions it has imported and one event loop, which async clients hold on to."""

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
        if message["op"] == "extract":
            return extract_answers(function, message["texts"], message["args"])
        state = TrainerState(**message["state"])
        return to_message(
            call_reward(
                function, message["arguments"], message["lengths"], state, message["names"], self.loop.run_until_complete
            )
        )

    def load(self, spec: str) -> dict[str, Any]:
        try:
            self.functions[spec] = load_function(spec)
            return {"signature": vars(Signature.of(self.functions[spec]))}
        except NotImportable as problem:
            return {"error": str(problem)}
        except BaseException as problem:
            return {"error": shorten(readable_traceback(problem))}


def take_path(path: list[str], variable: str | None) -> None:
    """See modules exactly as the trainer does, and hand its own environment on to programs that a function starts."""
    sys.path[:] = path
    if variable is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = variable


def claim_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Take the pipes away from file descriptors 0 and 1: what a reward function prints goes to standard error."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def read_message(requests: BinaryIO) -> dict[str, Any] | None:
    header = requests.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = requests.read(length)
    return json.loads(body) if len(body) == length else None


def die_with_parent(lifeline: int) -> None:
    """Nothing is ever written to the lifeline; its other end closes when the parent ends, even by SIGKILL.

    On Linux the kernel itself then kills the whole process group, so neither a function that holds the interpreter
    lock nor the function's own children survive. (PR_SET_PDEATHSIG would spare the children, and fires when the
    *thread* that started the worker ends.) The watching thread does the same where the kernel cannot.
    """
    parent, leads = os.getppid(), os.getpgrp() == os.getpid()
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        if leads:
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        poll = select.poll()
        poll.register(lifeline, select.POLLIN | select.POLLHUP)
        while not poll.poll(1000) and os.getppid() == parent:
            pass
        if leads:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


if __name__ == "__main__":
    main()
