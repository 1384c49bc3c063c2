"""The cases that a row's tests consist of: calls, scripts, and checks that run trusted code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort_verify.code.compare import Rule


class UnusableTests(ValueError):
    """The tests of a row cannot score any program; the message gives the reason."""


@dataclass(frozen=True)
class CallCase:
    """Call a function of the program; it must return one of the accepted values."""

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[Any, ...] = ()
    rule: Rule = "strict"
    tolerance: float = 0.0


@dataclass(frozen=True)
class StdinCase:
    """Run the program with this standard input; it must print this output and exit with status 0."""

    input: str
    output: str
    tolerance: float = 0.0


@dataclass(frozen=True)
class Suite:
    """The cases of one set of tests."""

    calls: tuple[CallCase, ...] = ()
    scripts: tuple[StdinCase, ...] = ()
    checks: tuple[str, ...] = ()
    """Trusted code. Each text must run to its end without an exception."""
    setup: str = ""
    """Code that runs before the checks. It never calls the program, so a program cannot break it."""
    proxies: Mapping[str, str] = field(default_factory=dict)
    """Name that checks call -> function of the program."""
    iterated: tuple[str, ...] = ()
    """Proxies that checks also call as ITERATED + name, to get the result as a list."""

    @property
    def total(self) -> int:
        return len(self.calls) + len(self.scripts) + len(self.checks)


@dataclass(frozen=True)
class Tests:
    """The tests that determine the reward, and the tests shown in the prompt, which a program must pass as well."""

    __test__ = False

    scored: Suite
    visible: Suite | None = None
