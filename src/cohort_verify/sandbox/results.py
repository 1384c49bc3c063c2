"""What is asked of a program, and what its run gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort_verify.sandbox.values import NotPlain, rebuild

MAX_DETAIL_CHARS = 2000


@dataclass(frozen=True)
class Call:
    """A function of the program and plain arguments; "Solution.solve" is a method of a new Solution."""

    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What one call gave, in values that the host has built itself."""

    value: Any = None
    raised: str = ""
    """Class name of the exception; empty: it returned. "NotPlain": what it returned cannot be carried over."""
    detail: str = ""
    base: str = ""
    """The nearest built-in class of the exception: ValueError for a program's own class that extends it."""

    @classmethod
    def read(cls, value: Any, raised: Any = "", detail: Any = "", base: Any = "") -> Reply:
        """A reply as it was sent. A value that cannot be rebuilt is the program's doing."""
        name, message, built_in = (str(part)[:MAX_DETAIL_CHARS] for part in (raised, detail, base))
        try:
            return cls(rebuild(value), name, message, built_in)
        except NotPlain as problem:
            return cls(raised="NotPlain", detail=str(problem), base="Exception")


@dataclass(frozen=True)
class Run:
    """What every run reports."""

    end: str
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    """Some of the output was thrown away."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    jail: str = ""
    """The tier it ran in."""


@dataclass(frozen=True)
class CallsResult(Run):
    replies: tuple[Reply | None, ...] = ()
    """One per call; None: never answered."""


@dataclass(frozen=True)
class ScriptResult(Run):
    status: int | None = None


@dataclass(frozen=True)
class CheckResult:
    passed: bool | None
    """None: the test code itself is at fault."""
    detail: str = ""


@dataclass(frozen=True)
class ChecksResult(Run):
    checks: tuple[CheckResult, ...] = ()
