"""Runs of untrusted programs: calls of their functions, whole scripts, and trusted test code that calls them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort_verify.sandbox.jail import Jail
from cohort_verify.sandbox.limits import Limits
from cohort_verify.sandbox.tiers import find_installed_packages
from cohort_verify.sandbox.values import NotPlain, check_plain, rebuild
from cohort_verify.workers import ProcessEnded

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


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------

DEFAULTS = Limits()


def run_calls(program: str, calls: Sequence[Call], limits: Limits = DEFAULTS, packages: bool = False) -> CallsResult:
    """Load the program in a fresh jail and call its functions in turn. Raises JailUnavailable, and NotPlain for arguments.

    packages: what is installed beside the trainer (numpy, ...) can be imported too; else the standard library alone.
    """
    for call in calls:
        check_plain([list(call.args), dict(call.kwargs)])
    replies: list[Reply | None] = [None] * len(calls)

    def talk(jail: Jail) -> None:
        hear_loaded(jail)
        for index, call in enumerate(calls):
            replies[index] = ask_program(jail, call.function, call.args, call.kwargs)

    return CallsResult(**supervise("calls", program, limits, talk, packages), replies=tuple(replies))


def run_script(program: str, stdin: str, limits: Limits = DEFAULTS, packages: bool = False) -> ScriptResult:
    """Run the program as __main__ in a fresh jail, with this text on standard input."""
    status: int | None = None

    def talk(jail: Jail) -> None:
        nonlocal status
        try:
            jail.wait()
        except ProcessEnded as ended:
            status = ended.status
            raise

    run = supervise("script", program, limits, talk, packages, stdin=stdin.encode("utf-8", errors="surrogatepass"))
    if run["end"] == "exit" and status == 0:
        run["end"] = "finished"
    if run["end"] == "exit" and "MemoryError" in run["stderr"].rsplit("\n", 2)[-2:][0]:
        run["end"] = "memory"
    return ScriptResult(**run, status=status)


def run_checks(
    program: str,
    checks: Sequence[str],
    proxies: Sequence[str],
    setup: str = "",
    limits: Limits = DEFAULTS,
    packages: bool = False,
) -> ChecksResult:
    """Run trusted test code in a jail of its own; the names in `proxies` ("f", or "candidate=f") call the jailed program."""
    aliases = {name.partition("=")[0]: name.rpartition("=")[2] for name in proxies}
    results: list[CheckResult] = []

    def start_tests() -> Jail:
        return Jail("checks", setup, own, extra={"proxies": aliases}, packages=find_installed_packages() if packages else ())

    def talk(jail: Jail) -> None:
        hear_loaded(jail)
        run_tests(jail, tests, checks, results, reaches_program)

    def reaches_program(check: str) -> bool:
        """Whether a check asks the program where nothing has been before it, least of all a value of the program's."""
        with start_tests() as alone:
            try:
                return alone.hear()[0] == "loaded" and alone.ask_raw(check)[0] == "call"
            except ProcessEnded:  # at a limit, by itself
                return False

    # The tests are loaded first, at their own expense: a program that leaves them no time must not have them to blame.
    own = replace(limits, cpu_s=limits.cpu_s + DEFAULTS.cpu_s, wall_s=2 * limits.wall_s + DEFAULTS.wall_s)
    try:
        with start_tests() as tests:
            word, *said = tests.hear()
            problem = "" if word == "loaded" else f"the test code does not load: {': '.join(map(str, said[:2]))}"
            if not problem:
                tests.charge(own)
                run = supervise("calls", program, limits, talk, packages)
    except ProcessEnded as ended:
        problem = f"the test code ended: {ended}"
        if ended.kind == "infrastructure":
            return ChecksResult("infrastructure", ended.detail, checks=(CheckResult(None, ended.detail),) * len(checks))
    if problem:
        return ChecksResult("finished", problem, checks=(CheckResult(None, problem),) * len(checks))
    missing = "the program ended before" if run["end"] != "infrastructure" else "the jail failed before"
    results += [CheckResult(False, missing)] * (len(checks) - len(results))
    return ChecksResult(**run, checks=tuple(results))


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
                answer, lacks = relay_call(program, *said)
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


def relay_call(program: Jail, name: Any, arguments: Any) -> tuple[tuple[str, Any, str], str]:
    """One call on behalf of the test code, answered in the form boot.py expects; and what the program lacks for it."""
    try:
        args, kwargs = rebuild(arguments)
    except (NotPlain, ValueError, TypeError) as problem:
        return ("raised", "TypeError", str(problem)), ""
    reply = ask_program(program, str(name), args, kwargs)
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


def supervise(
    job: str,
    program: str,
    limits: Limits,
    talk: Callable[[Jail], None],
    packages: bool = False,
    stdin: bytes | None = None,
) -> dict[str, Any]:
    """The fields of Run, of a program that `talk` deals with until it has all its answers or raises ProcessEnded."""
    end, detail, began, jail = "finished", "", time.monotonic(), None
    try:
        with Jail(job, program, limits, stdin=stdin, packages=find_installed_packages() if packages else ()) as jail:
            began = time.monotonic()
            talk(jail)
    except ProcessEnded as ended:
        end, detail = ended.kind, ended.detail
    run = {"end": end, "detail": detail, "wall_s": time.monotonic() - began}
    if jail is None:
        return run
    return {
        **run,
        "stdout": jail.stdout.text(),
        "stderr": jail.stderr.text(),
        "truncated": jail.stdout.truncated or jail.stderr.truncated,
        "cpu_s": jail.cpu_s,
        "peak_mb": jail.peak_mb,
        "jail": jail.tier.name,
    }


def hear_loaded(jail: Jail) -> None:
    """Wait until the program is loaded; raises ProcessEnded where that failed."""
    word, *said = jail.hear()
    if word == "load":
        name, message = (str(part) for part in [*said, "", ""][:2])
        raise ProcessEnded("memory" if name == "MemoryError" else "load", f"{name}: {message}"[:MAX_DETAIL_CHARS])


def ask_program(jail: Jail, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reply:
    return read_reply(jail.ask_raw((function, tuple(args), dict(kwargs))))


def read_reply(said: list[Any]) -> Reply:
    """The program may have written anything; what is not a reply is one that raised."""
    if said[0] == "value" and len(said) == 2:
        return Reply.read(said[1])
    if said[0] == "raised" and len(said) == 4:
        return Reply.read(None, said[1] or "Exception", *said[2:])
    return Reply(raised="NotPlain", detail="not a reply", base="Exception")
