"""Runs of untrusted programs: calls of their functions, whole scripts, and trusted test code that calls them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort.base.workers import ProcessEnded
from cohort.sandbox.jail import Jail
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
        except ProcessEnded as ended:
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
        assert tests is not None
        run_tests(jail, tests, checks, results, reaches_program)
        return "finished"

    def reaches_program(check: str) -> bool:
        """Whether a check asks the program where nothing has been before it, least of all a value of the program's."""
        with Jail("checks", setup, own, extra={"proxies": aliases}, packages=installed_packages(packages)) as alone:
            try:
                return alone.hear()[0] == "loaded" and alone.ask_raw(check)[0] == "call"
            except ProcessEnded:  # at a limit, by itself
                return False

    # The tests are loaded first, at their own expense: a program that leaves them no time must not have them to blame.
    own = replace(limits, cpu_s=limits.cpu_s + DEFAULTS.cpu_s, wall_s=2 * limits.wall_s + DEFAULTS.wall_s)
    tests: Jail | None = None
    try:
        tests = Jail("checks", setup, own, extra={"proxies": aliases}, packages=installed_packages(packages))
        word, *said = tests.hear()
        problem = "" if word == "loaded" else f"the test code does not load: {': '.join(map(str, said[:2]))}"
        if not problem:
            tests.charge(own)
            run = supervised("calls", program, limits, talk, packages)
    except ProcessEnded as ended:
        problem = f"the test code ended: {ended}"
        if ended.kind == "infrastructure":
            return ChecksResult(**nothing_ran(ended), checks=(CheckResult(None, ended.detail),) * len(checks))
    finally:
        if tests is not None:
            tests.close()
    if problem:
        return ChecksResult(
            **nothing_ran(ProcessEnded("finished", problem)), checks=(CheckResult(None, problem),) * len(checks)
        )
    missing = "the program ended before" if run["end"] != "infrastructure" else "the jail failed before"
    results += [CheckResult(False, missing)] * (len(checks) - len(results))
    return ChecksResult(**run, checks=tuple(results))


def nothing_ran(ended: ProcessEnded) -> dict[str, Any]:
    """The fields of Run where the program was never looked at."""
    nothing = {"stdout": "", "stderr": "", "truncated": False, "cpu_s": 0.0, "wall_s": 0.0, "peak_mb": 0.0, "jail": ""}
    return {"end": ended.kind, "detail": ended.detail, **nothing}


def run_tests(
    program: Jail, tests: Jail, checks: Sequence[str], results: list[CheckResult], reaches_program: Callable[[str], bool]
) -> None:
    """Relay calls from the test code to the program. Raises ProcessEnded of the *program*; what ends the tests is a result.

    A check that fails before it has asked is at fault itself, unless values of the program stand in the variables that it
    reads, from a check before: then it is tried alone.
    """
    tests.companion = program  # which goes on running, and paying, while the test code thinks
    asked = asked_before = False
    try:
        for check in checks:
            asked_before, asked, missing = asked_before or asked, False, ""
            word, *said = tests.ask_raw(check)
            while word == "call":
                asked = True
                answer, lacks = relay(program, said)
                missing = missing or lacks
                word, *said = tests.ask_raw(answer)
            if missing:  # test code that waits for an exception would take this one for it
                results.append(CheckResult(False, missing))
                continue
            passed = said[0] if word == "check" and said and isinstance(said[0], bool | None) else None
            if passed is None and asked_before and reaches_program(check):
                passed = False
            results.append(CheckResult(passed, ": ".join(str(part) for part in said[1:3] if part)[:MAX_DETAIL_CHARS]))
    except ProcessEnded as problem:
        if not program.alive:
            results.append(CheckResult(False, f"the program ended: {problem}"))
            raise
        if problem.kind == "infrastructure":
            raise
        # The test code ran into a limit of its own: with what the program had returned, if it was asked at all.
        blamed = asked or (asked_before and reaches_program(checks[len(results)]))
        results.append(CheckResult(False if blamed else None, f"the test code ended: {problem}"))


def relay(program: Jail, said: list[Any]) -> tuple[tuple[str, Any, str], str]:
    """One call on behalf of the test code, answered in the form boot.py expects; and what the program lacks for it."""
    name, arguments = said
    try:
        args, kwargs = rebuild(arguments)
    except (NotPlain, ValueError, TypeError) as problem:
        return ("raised", "TypeError", str(problem)), ""
    reply = read_reply(program.ask_raw((str(name), tuple(args), kwargs)))
    if not reply.raised:
        return ("value", reply.value, ""), ""
    return ("raised", reply.base, reply.detail), f"{reply.raised}: {reply.detail}" if is_missing(str(name), reply) else ""


def is_missing(name: str, reply: Reply) -> bool:
    """Whether there is no such function in the program, in the words of boot.py or of Python (for a method)."""
    first, _, method = name.partition(".")
    return (reply.raised, reply.detail) in (
        ("NameError", f"the program defines no {first}"),
        ("AttributeError", f"{first!r} object has no attribute {method!r}"),
    )


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
    except ProcessEnded as ended:
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
