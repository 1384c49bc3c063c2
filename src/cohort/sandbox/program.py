"""Runs of untrusted programs: calls of their functions, whole scripts, and trusted test code that calls them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort.sandbox.jail import Ended, Jail
from cohort.sandbox.limits import Limits
from cohort.sandbox.values import NotPlain, rebuild, tagged

MAX_DETAIL_CHARS = 2000
DEFAULTS = Limits()


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


@dataclass(frozen=True)
class Run:
    """What every run reports."""

    end: str
    detail: str
    stdout: str
    stderr: str
    truncated: bool
    """Some of the output was thrown away."""
    cpu_s: float
    wall_s: float
    peak_mb: float
    jail: str
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


def run_calls(
    program: str, calls: Sequence[Call], limits: Limits = DEFAULTS, backend: str = "", packages: bool = False
) -> CallsResult:
    """Load the program in a fresh jail and call its functions in turn. Raises JailUnavailable, and NotPlain for arguments.

    packages: what is installed beside the trainer (numpy, ...) can be imported too; else the standard library alone.
    """
    requests = [(call.function, *plain_arguments(call.args, call.kwargs)) for call in calls]
    if backend:
        from cohort.sandbox.remote import remote_calls

        return remote_calls(backend, program, calls, limits, packages)
    replies: list[Reply | None] = [None] * len(calls)

    def talk(jail: Jail) -> str:
        word, *said = jail.hear()
        if word == "load":
            return memory_or("load", said)
        for index, request in enumerate(requests):
            replies[index] = read_reply(jail.ask_raw(request))
        return "finished"

    run = supervised("calls", program, limits, talk, packages)
    return CallsResult(**run, replies=tuple(replies))


def run_script(program: str, stdin: str, limits: Limits = DEFAULTS, backend: str = "", packages: bool = False) -> ScriptResult:
    """Run the program as __main__ in a fresh jail, with this text on standard input."""
    if backend:
        from cohort.sandbox.remote import remote_script

        return remote_script(backend, program, stdin, limits, packages)
    status: list[int | None] = [None]

    def talk(jail: Jail) -> str:
        try:
            jail.wait()
        except Ended as ended:
            status[0] = ended.status
            raise
        raise AssertionError

    run = supervised("script", program, limits, talk, packages, stdin=stdin.encode("utf-8", errors="surrogatepass"))
    if run["end"] == "exit" and status[0] == 0:
        run["end"] = "finished"
    if run["end"] == "exit" and "MemoryError" in run["stderr"].rsplit("\n", 2)[-2:][0]:
        run["end"] = "memory"
    return ScriptResult(**run, status=status[0])


def run_checks(
    program: str,
    checks: Sequence[str],
    proxies: Sequence[str],
    setup: str = "",
    limits: Limits = DEFAULTS,
    backend: str = "",
    packages: bool = False,
) -> ChecksResult:
    """Run trusted test code in a jail of its own; the names in `proxies` ("f", or "candidate=f") call the jailed program."""
    aliases = {name.partition("=")[0]: name.rpartition("=")[2] for name in proxies}
    if backend:
        from cohort.sandbox.remote import remote_checks

        return remote_checks(backend, program, checks, proxies, setup, limits, packages)
    results: list[CheckResult] = []

    def talk(jail: Jail) -> str:
        word, *said = jail.hear()
        if word == "load":
            return memory_or("load", said)
        left = replace(limits, wall_s=max(jail.seconds_left, 0.1))
        with Jail("checks", setup, left, extra={"proxies": aliases}, packages=installed_packages(packages)) as tests:
            run_tests(jail, tests, checks, results)
        return "finished"

    run = supervised("calls", program, limits, talk, packages)
    missing = "the program ended before" if run["end"] != "infrastructure" else "the jail failed before"
    results += [CheckResult(False, missing)] * (len(checks) - len(results))
    return ChecksResult(**run, checks=tuple(results))


def run_tests(program: Jail, tests: Jail, checks: Sequence[str], results: list[CheckResult]) -> None:
    """Relay calls from the test code to the program. Raises Ended of the *program*; what ends the tests is a result."""
    ended: Ended | None = None
    asked = False
    try:
        word, *said = tests.hear()
        if word == "load":
            results += [CheckResult(None, f"the test code does not load: {': '.join(map(str, said[:2]))}")] * len(checks)
            return
        for check in checks:
            asked = False
            word, *said = tests.ask_raw(check)
            while word == "call":
                asked = True
                try:
                    answer = relay(program, said)
                except Ended as problem:
                    ended, answer = problem, ("raised", "ProgramEnded", problem.kind)
                if ended is not None:
                    results.append(CheckResult(False, f"the program ended: {ended}"))
                    raise ended
                word, *said = tests.ask_raw(answer)
            passed = said[0] if word == "check" and said and isinstance(said[0], bool | None) else None
            results.append(CheckResult(passed, ": ".join(str(part) for part in said[1:3] if part)[:MAX_DETAIL_CHARS]))
    except Ended as problem:
        if problem is ended or problem.kind == "infrastructure":
            raise
        # The test code ran into a limit: with what the program had returned, if it was asked at all.
        results.append(CheckResult(False if asked else None, f"the test code ended: {problem}"))


def relay(program: Jail, said: list[Any]) -> tuple[str, Any, str]:
    """One call on behalf of the test code, answered in the form boot.py expects."""
    name, arguments = said
    try:
        args, kwargs = rebuild(arguments)
    except (NotPlain, ValueError, TypeError) as problem:
        return "raised", "TypeError", str(problem)
    reply = read_reply(program.ask_raw((str(name), tuple(args), kwargs)))
    return ("raised", reply.base, reply.detail) if reply.raised else ("value", reply.value, "")


def installed_packages(wanted: bool) -> list[str]:
    """Folders of installed packages; not those of the trainer's own source, which no program needs to see."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")] if wanted else []


def supervised(
    job: str,
    program: str,
    limits: Limits,
    talk: Callable[[Jail], str],
    packages: bool = False,
    stdin: bytes | None = None,
) -> dict[str, Any]:
    """The fields of Run, of a program that `talk` deals with."""
    detail, began, jail = "", time.monotonic(), None
    try:
        jail = Jail(job, program, limits, stdin=stdin, packages=installed_packages(packages))
        began = time.monotonic()
        end = talk(jail)
        jail.close()
    except Ended as ended:
        end, detail = ended.kind, ended.detail
    finally:
        if jail is not None:
            jail.close()
    if "|" in end:
        end, _, detail = end.partition("|")
    return {
        "end": end,
        "detail": detail,
        "stdout": jail.stdout.text() if jail else "",
        "stderr": jail.stderr.text() if jail else "",
        "truncated": bool(jail and (jail.stdout.truncated or jail.stderr.truncated)),
        "cpu_s": jail.cpu_s if jail else 0.0,
        "wall_s": time.monotonic() - began,
        "peak_mb": jail.peak_mb if jail else 0.0,
        "jail": jail.tier.name if jail else "",
    }


def plain_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments exactly as a program will see them; NotPlain if they cannot be passed."""
    tagged([list(args), dict(kwargs)], 0)
    json.dumps(list(kwargs))
    return tuple(args), dict(kwargs)


def read_reply(said: list[Any]) -> Reply:
    """The program may have written anything; what is not a reply is one that raised."""
    if said[0] == "value" and len(said) == 2:
        try:
            return Reply(value=rebuild(said[1]))
        except NotPlain as problem:
            return Reply(raised="NotPlain", detail=str(problem), base="Exception")
    if said[0] == "raised" and len(said) == 4:
        name, detail, base = (str(part)[:MAX_DETAIL_CHARS] for part in said[1:])
        return Reply(raised=name or "Exception", detail=detail, base=base)
    return Reply(raised="NotPlain", detail="not a reply", base="Exception")


def memory_or(end: str, said: list[Any]) -> str:
    name, message = (str(part) for part in [*said, "", ""][:2])
    return f"{'memory' if name == 'MemoryError' else end}|{name}: {message}"[:MAX_DETAIL_CHARS]
