"""SIGTERM, SIGHUP and Ctrl-C, turned into one exception at a moment when nothing is half done.

Between the critical sections the signal raises `Interrupted` at once, also in the middle of a long rollout: rollouts are
keyed, so they come out the same after a resume. Inside `defer_interrupts()` (an optimizer step, a save) it waits for the end of
the section. A signal within a second of the last one is ignored: a key pressed twice, a terminal and its shell, a launcher that
passes signals on. One that comes later raises `InterruptedAgain` wherever the process is, and nothing is saved any more. SIGHUP
that is ignored already, as under nohup, stays ignored.

Where several processes share a run, one that stops alone would leave the others waiting. There a signal is only noted, and the
processes tell each other at their next exchange (parallel/ranks.py); then it is raised in all of them, at the same place. What a
process does by itself on the way there, a rollout or its rewards, is given up at once (`allow_interrupts()`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cohort.errors import Interrupted

PATIENCE_S = 1.0
"""Within this time of a signal another one is ignored."""


class InterruptedAgain(Interrupted):
    """Raised by a second signal in the middle of anything, an update of the weights included."""


_depth = 0
_pending = ""
"""Name of the signal that waits."""
_agreed = ""
"""Name of the signal that is to be raised as soon as nothing is half done."""
_seen = 0
_last = 0.0
"""When the last signal came that was not ignored."""
_joint = False
"""Whether a signal waits until all processes of the run know of it."""
_ending = False
"""Whether all processes of the run are ending by a signal: another one says nothing new."""
_apart = True
"""Whether there is work that a process does without the others."""
_allowed = False
"""Whether what is done now can be given up although others wait for it."""


def _handle(number: int, frame: FrameType | None) -> None:
    global _pending, _seen, _allowed, _last
    name, now = signal.Signals(number).name, time.monotonic()
    _seen += 1
    if _joint:  # launchers pass on what the terminal has already sent to everyone
        if _ending:
            return
        _pending = _pending or name
        if _allowed and not _depth:
            _allowed = False  # once: what it cleans up on its way out is not interrupted again
            raise Interrupted(_pending)
        return
    if _seen > 1 and now < _last + PATIENCE_S:
        return
    _last = now
    if _seen > 1:
        _pending = ""
        raise InterruptedAgain(name)
    if _depth:
        _pending = name
    else:
        raise Interrupted(name)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Signals wait until the outermost of these blocks is left."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    raise_when_free("" if _joint else _pending)


def raise_when_free(name: str) -> None:
    """Raise the signal of this name, or one that was agreed on before, unless inside `defer_interrupts()`: at its end then."""
    global _pending, _agreed, _ending
    _agreed = name or _agreed
    if _agreed and not _depth:
        name, _agreed, _pending, _ending = _agreed, "", "", _joint
        raise Interrupted(name)


def read_pending() -> str:
    """Name of a signal that this process has got and not told the others yet."""
    return _pending


def was_signalled() -> bool:
    return _seen > 0


def pass_on(name: str) -> None:
    """A signal that another process of the run has got; called from a thread beside the main one."""
    global _pending
    if _joint and not (_pending or _ending) and signal.getsignal(signal.SIGTERM) is _handle:
        _pending = name
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # wakes it, wherever it waits


@contextmanager
def allow_interrupts() -> Iterator[None]:
    """A signal that waits for all processes of the run gives this block up at once, unless inside `defer_interrupts()`."""
    global _allowed
    _allowed = _joint and _apart
    try:
        if _allowed and _pending and not _depth:
            raise Interrupted(_pending)
        yield
    finally:
        _allowed = False


@contextmanager
def handle_interrupts(joint: bool = False, apart: bool = True) -> Iterator[None]:
    """Install the handlers for the duration of a run (in the main thread, the only one that receives signals).

    joint: several processes share the run; apart: each has work that it can give up without leaving another waiting in the middle of it.
    """
    global _pending, _seen, _joint, _agreed, _ending, _apart
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _pending, _seen, _joint, _agreed, _ending, _apart = "", 0, joint, "", False, apart
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, _handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # A signal that an error overtook must not come up in the next run of this process.
        _pending, _joint, _agreed = "", False, ""
