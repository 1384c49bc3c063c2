"""What the tests of a row ask of a program: calls, scripts, and checks that run trusted code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort_verify.code.compare import Rule


class UnusableTests(ValueError):
    """The tests of a row cannot score any program; the message says why."""


@dataclass(frozen=True)
class CallCase:
    """Call a function of the program; one of the accepted values must come back."""

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[Any, ...] = ()
    rule: Rule = "strict"
    tolerance: float = 0.0


@dataclass(frozen=True)
class StdinCase:
    """Run the program on this standard input; it must print this output and end well."""

    input: str
    output: str
    tolerance: float = 0.0


@dataclass(frozen=True)
class Suite:
    """The cases of one set of tests, by the way they are run."""

    calls: tuple[CallCase, ...] = ()
    scripts: tuple[StdinCase, ...] = ()
    checks: tuple[str, ...] = ()
    """Trusted code, each text of which must run to its end without an exception."""
    setup: str = ""
    """Runs before the checks; it never calls the program, so that a program cannot break it."""
    proxies: Mapping[str, str] = field(default_factory=dict)
    """Names that checks call, and the function of the program behind each."""
    iterated: tuple[str, ...] = ()
    """Names among the proxies that checks also call as ITERATED + name, for a list of what the call's value holds."""

    @property
    def total(self) -> int:
        return len(self.calls) + len(self.scripts) + len(self.checks)


@dataclass(frozen=True)
class Tests:
    """What a row's reward is counted by, and the tests that the prompt shows, which a program must pass as well."""

    __test__ = False

    scored: Suite
    visible: Suite | None = None
