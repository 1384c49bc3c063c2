"""Runs the comparison of cohort_verify.math.symbolic with Python's audit hooks on, to prove that no text runs code.

`watched_pool` starts jailed workers that see this folder beside the two import packages. The hooks report every attempt to start
a process, write a file, open a connection or load a library, and every piece of source text that is compiled. Two things that
ordinary work does are allowed by name: Math-Verify compiles arithmetic, and Python lists folders to find modules.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORBIDDEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.", "urllib.", "ftplib.", "smtplib.")
HARMLESS = ("os.listdir", "os.scandir", "os.walk")
ARITHMETIC = re.compile(
    r"[\s\d.+\-*/()\[\]{},'^=:]|Integer|Float|Rational|Symbol|Number|evaluate|False|True|Add|Mul|Pow|Function"
)
"""All that parse_expr compiles for an arithmetic expression."""
PREAMBLE = "from sympy import *"
"""parse_expr always compiles this line first."""

events: list[str] = []
watching = False


@contextlib.contextmanager
def watched_pool(limits: Any) -> Iterator[Any]:
    """A pool of jailed workers whose entry is `compare` below."""
    from unittest import mock

    from cohort_verify.sandbox import WorkerPool, workers

    packages = {**workers.find_own_packages(), __name__: str(Path(__file__).parent)}
    pool = WorkerPool(f"{__name__}:compare", limits)
    with mock.patch.object(workers, "find_own_packages", return_value=packages), contextlib.closing(pool):
        yield pool


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event == "open":
        path, mode, flags = arguments
        if set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR):
            events.append(f"open {path!r} for writing")
    elif event == "compile":
        source = arguments[0]
        text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
        if isinstance(text, str) and text != PREAMBLE and ARITHMETIC.sub("", text):
            events.append(f"compile {text[:200]!r}")
    elif event.startswith(FORBIDDEN) and event not in HARMLESS:
        events.append(event)


@functools.cache
def install() -> None:
    """Add the hook. Python cannot remove it again."""
    sys.addaudithook(hook)


def compare(message: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict of symbolic.compare and the events; with "raw", that text also goes straight to Math-Verify with all its readers."""
    from cohort_verify.math import symbolic

    global watching
    install()
    events.clear()
    watching = True
    try:
        result = symbolic.compare(message)
        if message.get("raw"):
            with symbolic.share_cpu(float(message.get("cpu_s", 0.0))):
                symbolic.math_verify.parse(str(message["raw"]), parsing_timeout=None)
    except symbolic.OutOfTime:
        result = {"verdict": "timeout", "detail": "Math-Verify alone"}
    finally:
        watching = False
    return {**result, "events": list(events)}
