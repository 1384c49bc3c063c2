"""Turns SIGTERM, SIGHUP and Ctrl-C into an exception at a point where no update is half done.

Outside critical sections a signal raises `Interrupted` immediately, even during a long rollout: rollouts are keyed, so a resume
produces the same ones. Inside `defer_interrupts()` (an optimizer step, a save) it is raised at the end of the section. A second signal
within a second is ignored: a key pressed twice, a terminal and its shell, a launcher that forwards signals. A later signal raises
`InterruptedAgain` anywhere, and nothing more is saved. If SIGHUP is already ignored, as under nohup, it stays ignored.

If several processes share a run, one that stopped by itself would leave the others waiting. There a signal is only recorded, and the
processes exchange it at their next collective (parallel/ranks.py); then it is raised in all of them at the same point. Work that a
process does independently, a rollout or its rewards, is aborted immediately (`allow_interrupts()`).
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
"""Another signal within this time is ignored."""


class InterruptedAgain(Interrupted):
    """Raised by a second signal at any point, even during an update of the weights."""


_depth = 0
_pending = ""
"""Name of the deferred signal."""
_agreed = ""
"""Name of the signal to raise when the critical section ends."""
_seen = 0
_last = 0.0
"""Time of the last signal that was not ignored."""
_joint = False
"""Whether a signal waits until all processes of the run have received it."""
_ending = False
"""Whether all processes of the run are already ending because of a signal."""
_apart = True
"""Whether processes have independent work."""
_allowed = False
"""Whether the current work can be aborted although other processes wait for it."""


def _handle(number: int, frame: FrameType | None) -> None:
    global _pending, _seen, _allowed, _last
    name, now = signal.Signals(number).name, time.monotonic()
    _seen += 1
    if _joint:  # launchers forward signals that the terminal has already sent to all
        if _ending:
            return
        _pending = _pending or name
        if _allowed and not _depth:
            _allowed = False  # only once: the cleanup is not interrupted again
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
    """Defer signals to the end of the outermost of these blocks. No effect in other threads, which receive no signals."""
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    raise_when_free("" if _joint else _pending)


def raise_when_free(name: str) -> None:
    """Raise this signal, or one agreed on before; inside `defer_interrupts()` at the end of the block."""
    global _pending, _agreed, _ending
    _agreed = name or _agreed
    if _agreed and not _depth:
        name, _agreed, _pending, _ending = _agreed, "", "", _joint
        raise Interrupted(name)


def read_pending() -> str:
    """Name of a signal that this process has received and not yet shared."""
    return _pending


def was_signalled() -> bool:
    return _seen > 0


def pass_on(name: str) -> None:
    """Take over a signal that another process of the run received; called from another thread than the main one."""
    global _pending
    if _joint and not (_pending or _ending) and signal.getsignal(signal.SIGTERM) is _handle:
        _pending = name
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # wakes the main thread


@contextmanager
def allow_interrupts() -> Iterator[None]:
    """Let a signal that waits for other processes abort this block immediately, except inside `defer_interrupts()`."""
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

    joint: several processes share the run; apart: each has independent work that it can abort without blocking another process.
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
        # A signal that came after an error must not affect the next run of this process.
        _pending, _joint, _agreed = "", False, ""
