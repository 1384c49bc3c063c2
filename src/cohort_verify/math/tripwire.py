"""The comparison of symbolic.py under watch: for tests and benchmarks that prove that no text runs code.

The entry of a jailed pool of its own. Python's audit hooks report whatever would start a process, write a file, open a
connection or load a library, and every piece of source text that is compiled; what is part of ordinary work (Math-Verify
compiles arithmetic, Python reads modules) is left out by name, not by guess.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from cohort_verify.math import symbolic

FORBIDDEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.", "urllib.", "ftplib.", "smtplib.")
HARMLESS = ("os.listdir", "os.scandir", "os.walk")
"""Looking into a folder is how Python finds modules."""
ARITHMETIC = re.compile(
    r"[\s\d.+\-*/()\[\]{},'^=:]|Integer|Float|Rational|Symbol|Number|evaluate|False|True|Add|Mul|Pow|Function"
)
"""What parse_expr compiles for an arithmetic expression, and nothing else."""
PREAMBLE = "from sympy import *"
"""The first thing parse_expr compiles, whatever it is given."""

events: list[str] = []
watching = False


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
    """Hooks cannot be removed again: only where the watch is wanted."""
    sys.addaudithook(hook)


def compare(message: Mapping[str, Any]) -> dict[str, Any]:
    """As symbolic.compare; with "raw", the text also goes straight to Math-Verify with everything it can read."""
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
