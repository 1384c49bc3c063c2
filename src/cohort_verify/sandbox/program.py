"""Runs untrusted programs: calls of their functions, whole scripts, and trusted test code that calls them."""

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
    """A call of the program's function with plain arguments; "Solution.solve" is a method of a new Solution."""

    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """The outcome of one call, in values built by the host."""

    value: Any = None
    raised: str = ""
    """Class name of the exception, "" if it returned. "NotPlain": the result cannot be sent."""
    detail: str = ""
    base: str = ""
    """The nearest built-in class of the exception: ValueError for a program's own subclass of it."""

    @classmethod
    def read(cls, value: Any, raised: Any = "", detail: Any = "", base: Any = "") -> Reply:
        """Build a reply from its parts. A value that cannot be rebuilt counts as the program's fault."""
        name, message, built_in = (str(part)[:MAX_DETAIL_CHARS] for part in (raised, detail, base))
        try:
            return cls(rebuild(value), name, message, built_in)
        except NotPlain as problem:
            return cls(raised="NotPlain", detail=str(problem), base="Exception")


@dataclass(frozen=True)
class Run:
    """The fields of every result."""

    end: str
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    """Part of the output was dropped."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    jail: str = ""
    """The tier used."""


@dataclass(frozen=True)
class CallsResult(Run):
    replies: tuple[Reply | None, ...] = ()
    """One per call; None: not answered."""


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
# Running programs
# ---------------------------------------------------------------------------------------------------------------------

DEFAULTS = Limits()


def run_calls(program: str, calls: Sequence[Call], limits: Limits = DEFAULTS, packages: bool = False) -> CallsResult:
    """Load the program in a fresh jail and call its functions in turn. Raises JailUnavailable, and NotPlain for arguments.

    packages: the program may import installed packages (numpy, ...), otherwise only the standard library.
    """
    for call in calls:
        check_plain([list(call.args), dict(call.kwargs)])
    replies: list[Reply | None] = [None] * len(calls)

    def talk(jail: Jail) -> None:
        wait_until_loaded(jail)
        for index, call in enumerate(calls):
            replies[index] = ask_program(jail, call.function, call.args, call.kwargs)

    return CallsResult(**supervise("calls", program, limits, talk, packages), replies=tuple(replies))


def run_script(program: str, stdin: str, limits: Limits = DEFAULTS, packages: bool = False) -> ScriptResult:
    """Run the program as __main__ in a fresh jail, with this standard input."""
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
    """Run trusted test code in its own jail; the names in `proxies` ("f", or "candidate=f") call the jailed program."""
    aliases = {name.partition("=")[0]: name.rpartition("=")[2] for name in proxies}
    results: list[CheckResult] = []

    def start_tests() -> Jail:
        return Jail("checks", setup, own, extra={"proxies": aliases}, packages=find_installed_packages() if packages else ())

    def talk(jail: Jail) -> None:
        wait_until_loaded(jail)
        run_tests(jail, tests, checks, results, reaches_program)

    def reaches_program(check: str) -> bool:
        """Return whether a check calls the program when run on its own, with no values from earlier checks."""
        with start_tests() as alone:
            try:
                return alone.receive()[0] == "loaded" and alone.request(check)[0] == "call"
            except ProcessEnded:  # it hit a limit by itself
                return False

    # The tests are loaded first, on their own budget: a program must not be able to leave them no time and blame them.
    own = replace(limits, cpu_s=limits.cpu_s + DEFAULTS.cpu_s, wall_s=2 * limits.wall_s + DEFAULTS.wall_s)
    try:
        with start_tests() as tests:
            word, *rest = tests.receive()
            problem = "" if word == "loaded" else f"the test code does not load: {': '.join(map(str, rest[:2]))}"
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
    """Relay calls from the test code to the program. Raises ProcessEnded of the *program*; an end of the tests is a result.

    A check that fails before its first call is at fault itself, unless its variables hold values of the program from an earlier
    check. In that case it is run again on its own.
    """
    tests.companion = program  # the program continues to run, and to be charged, while the test code works
    asked = asked_before = False
    try:
        for check in checks:
            asked_before, asked, missing = asked_before or asked, False, ""
            word, *rest = tests.request(check)
            while word == "call":
                asked = True
                answer, lacks = relay_call(program, *rest)
                missing = missing or lacks
                word, *rest = tests.request(answer)
            if missing:  # otherwise a test that expects an exception would accept this one
                results.append(CheckResult(False, missing))
                continue
            passed = rest[0] if word == "check" and rest and isinstance(rest[0], bool | None) else None
            if passed is None and asked_before and reaches_program(check):
                passed = False
            results.append(CheckResult(passed, ": ".join(str(part) for part in rest[1:3] if part)[:MAX_DETAIL_CHARS]))
    except ProcessEnded as problem:
        if not program.alive:
            results.append(CheckResult(False, f"the program ended: {problem}"))
            raise
        if problem.kind == "infrastructure":
            raise
        # The test code hit its own limit, possibly because of values that the program returned.
        blamed = asked or (asked_before and reaches_program(checks[len(results)]))
        results.append(CheckResult(False if blamed else None, f"the test code ended: {problem}"))


def relay_call(program: Jail, name: Any, arguments: Any) -> tuple[tuple[str, Any, str], str]:
    """Make one call for the test code. Returns the answer in boot.py's format, and what the program lacks for it."""
    try:
        args, kwargs = rebuild(arguments)
    except (NotPlain, ValueError, TypeError) as problem:
        return ("raised", "TypeError", str(problem)), ""
    reply = ask_program(program, str(name), args, kwargs)
    if not reply.raised:
        return ("value", reply.value, ""), ""
    return ("raised", reply.base, reply.detail), f"{reply.raised}: {reply.detail}" if is_missing(str(name), reply) else ""


def is_missing(name: str, reply: Reply) -> bool:
    """Return whether the program lacks the function, judging by the error messages of boot.py and, for methods, of Python."""
    first, _, method = name.partition(".")
    return (reply.raised, reply.detail) in (
        ("NameError", f"the program defines no {first}"),
        ("AttributeError", f"{first!r} object has no attribute {method!r}"),
    )


def supervise(
    job: str, program: str, limits: Limits, talk: Callable[[Jail], None], packages: bool = False, stdin: bytes | None = None
) -> dict[str, Any]:
    """Run a program and return the fields of Run. `talk` exchanges messages until it has all answers, or raises ProcessEnded."""
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


def wait_until_loaded(jail: Jail) -> None:
    """Wait until the program is loaded. Raises ProcessEnded if that fails."""
    word, *rest = jail.receive()
    if word == "load":
        name, message = (str(part) for part in [*rest, "", ""][:2])
        raise ProcessEnded("memory" if name == "MemoryError" else "load", f"{name}: {message}"[:MAX_DETAIL_CHARS])


def ask_program(jail: Jail, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reply:
    return read_reply(jail.request((function, tuple(args), dict(kwargs))))


def read_reply(rest: list[Any]) -> Reply:
    """Parse a reply. The program may have written anything; malformed replies count as an exception."""
    if rest[0] == "value" and len(rest) == 2:
        return Reply.read(rest[1])
    if rest[0] == "raised" and len(rest) == 4:
        return Reply.read(None, rest[1] or "Exception", *rest[2:])
    return Reply(raised="NotPlain", detail="not a reply", base="Exception")
