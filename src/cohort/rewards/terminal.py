"""What reward functions print in their workers, on its way to the trainer's standard error.

A worker has no terminal: nothing to read from, and what it prints comes through a pipe. Completions are printed by many a
reward, so control characters are written out, as everywhere, and a step shows only so much; the rest is read and dropped.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading

from cohort.base.text import make_printable

SHOWN_CHARS = 64 * 1024
"""Of all workers together, in one step."""


class Terminal:
    """Standard error, as far as workers can reach it."""

    def __init__(self) -> None:
        self._left, self._said = SHOWN_CHARS, False
        self._lock = threading.Lock()

    def refill(self) -> None:
        """Another step begins."""
        with self._lock:
            self._left, self._said = SHOWN_CHARS, False

    def follow(self, descriptor: int) -> threading.Thread:
        """Show what comes out of a pipe until its last writer is gone; then it is closed."""
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
            if len(shown) < len(text) and not self._said:
                self._said = True
                last = f"\n[rewards printed more than {SHOWN_CHARS} characters in this step; the rest is left out]\n"
        if shown or last:
            with contextlib.suppress(Exception):  # a terminal that was closed stops nobody
                sys.stderr.write(make_printable(shown.replace("\r\n", "\n").replace("\r", "\n")) + last)
                sys.stderr.flush()
