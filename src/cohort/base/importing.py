"""Imports functions named "package.module:function", and modules on first use. Light, because reward workers use it."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_REASON_CHARS = 400
PACKAGES = ("cohort", "cohort_verify")
"""The import packages of this distribution."""


def is_own(name: str) -> bool:
    """Whether a module, or "module:function", belongs to this distribution."""
    return name.partition(":")[0].partition(".")[0] in PACKAGES


def package_folder() -> Path:
    """The folder from which this package was imported; another process needs it on its path."""
    return Path(__file__).resolve().parents[2]


class NotImportable(Exception):
    """Why a function cannot be imported, in one line."""


def search_current_folder() -> None:
    """Add the current folder to sys.path: installed commands do not search it.

    It comes last, so that a file there never shadows an installed package.
    """
    here = find_current_folder()
    if here and here not in sys.path:
        sys.path.append(here)


def find_current_folder() -> str:
    """The current folder; "" if it has been removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def load_function(spec: str) -> Callable[..., Any]:
    """The function of "package.module:qualified.name"."""
    module_name, _, qualname = spec.partition(":")
    search_current_folder()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as problem:
        raise NotImportable(f"cannot import {spec} ({reason(problem)}).{name_places(module_name, problem)}") from problem
    target: Any = module
    for name in qualname.split("."):
        if not hasattr(target, name):
            home = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
            raise NotImportable(
                f"cannot import {spec}: {module_name}{home} has no function {name!r}{suggest_name(name, target)}"
            )
        target = getattr(target, name)
    if not callable(target):
        raise NotImportable(f"cannot use {spec}: it is of type {type(target).__name__}, not a function.")
    return target


def reason(problem: BaseException) -> str:
    """The last line of the traceback, and the place in the imported code."""
    from cohort.base.text import make_printable  # circular at import time

    first_line = (str(problem).strip().splitlines() or [""])[0]
    text = make_printable(f"{type(problem).__name__}: {first_line}" if first_line else type(problem).__name__)
    if len(text) > MAX_REASON_CHARS:
        text = text[:MAX_REASON_CHARS] + "..."
    skipped = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in skipped
    ]
    if not frames or isinstance(problem, SyntaxError):  # a syntax error already names its place
        return text
    return f"{text}, in {frames[-1].filename}, line {frames[-1].lineno}"


def name_places(module_name: str, problem: BaseException) -> str:
    """A sentence on where the module was searched for, if it is the module itself that was not found."""
    missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
    if missing is None or not f"{module_name}.".startswith(f"{missing}."):
        return ""
    here = find_current_folder() or "which no longer exists"
    return f" Searched: Python's path and the current folder, {here}."


def suggest_name(name: str, target: ModuleType | Any) -> str:
    known = [known for known in dir(target) if callable(getattr(target, known, None))]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else "."


class LazyModule:
    """A module that is imported on the first access to an attribute. (importlib's LazyLoader breaks torch.)"""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._name)
        return getattr(self._module, attribute)

    def __repr__(self) -> str:
        return f"LazyModule({self._name!r})"
