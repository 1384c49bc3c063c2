"""SIGTERM and Ctrl-C, turned into one exception at a moment when nothing is half done.

Between the critical sections the signal raises `Interrupted` at once, also in the middle of a long rollout: rollouts are
keyed, so they come out the same after a resume. Inside `defer_interrupts()` (an optimizer step, a save) it waits for the end of
the section. A second signal gives up politeness and raises KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cohort.errors import Interrupted

_depth = 0
_pending = ""
"""Name of the signal that waits."""
_seen = 0


def _handle(number: int, frame: FrameType | None) -> None:
    global _pending, _seen
    _seen += 1
    if _seen > 1:
        raise KeyboardInterrupt
    if _depth:
        _pending = signal.Signals(number).name
    else:
        raise Interrupted(signal.Signals(number).name)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Signals wait until the outermost of these blocks is left."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    if not _depth and _pending:
        name, _pending = _pending, ""
        raise Interrupted(name)


@contextmanager
def handle_interrupts() -> Iterator[None]:
    """Install the handlers for the duration of a run (in the main thread, the only one that receives signals)."""
    global _pending, _seen
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _pending, _seen = "", 0
    before = {number: signal.signal(number, _handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # A signal that an error overtook must not come up in the next run of this process.
        _pending = ""
