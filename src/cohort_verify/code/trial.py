"""One program on its tests: what it passes, how it fails, and what it is given of time and memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cohort_verify.code.asserts import ITERATED
from cohort_verify.code.compare import holds, same_output
from cohort_verify.code.format import ProgramText, find_callable_name
from cohort_verify.code.suite import CallCase, StdinCase, Suite, Tests
from cohort_verify.sandbox import Call, Limits, NotPlain, Run, run_calls, run_checks, run_script
from cohort_verify.text import INFRASTRUCTURE, LIMIT_KINDS, shorten, show_value

FREE_WALL_S = 0.25
"""By the wall clock, per fresh process, not charged: what a busy machine takes to come round to it."""
MAX_DETAIL_CHARS = 500

LIMIT_WORDS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "output", "files": "files", "crash": "crash"}
"""Ends of a run that the program caused, as verdicts. After one of them it is not run again."""
NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True)
class Terms:
    """What holds for all programs of a batch."""

    scoring: str
    limits: Limits
    packages: bool = False
    given_up: threading.Event = field(default_factory=threading.Event)
    """Nobody waits for the verdicts any more."""


@dataclass(frozen=True)
class ProgramTask:
    """One program and the tests that it has to pass."""

    program: ProgramText
    tests: Tests


@dataclass(frozen=True)
class Judgement:
    """What became of one completion."""

    score: float | None
    verdict: str
    detail: str = ""
    tests_passed: int | None = None
    tests_total: int | None = None
    """None: not scored."""
    visible_passed: int | None = None
    visible_total: int | None = None
    """None: not scored, or the prompt shows no tests."""

    @classmethod
    def for_no_answer(cls, tests: Tests) -> Judgement:
        seen = (0, tests.visible.total) if tests.visible else ()
        return cls(0.0, "no_answer", "no program was found", 0, tests.scored.total, *seen)


def judge_program(task: ProgramTask, terms: Terms) -> Judgement:
    """Hidden tests decide what a program earns; one that fails a test of its own prompt earns nothing."""
    trial, hidden, visible = ProgramTrial(task.program, terms), task.tests.scored, task.tests.visible
    scored = trial.run_suite(hidden, stop_early=terms.scoring == "all")
    if trial.broken:
        return Judgement(None, INFRASTRUCTURE, trial.broken)
    passed = scored.passed == hidden.total if terms.scoring == "all" else scored.passed / hidden.total
    # At a limit there is no partial credit: it would hang on the place of the test that did not end among the others.
    score = 0.0 if scored.limit else float(passed)
    seen = trial.run_suite(visible, stop_early=False) if visible else SuiteTally()
    if score and trial.broken:
        return Judgement(None, INFRASTRUCTURE, trial.broken)
    verdict, detail = scored.limit or seen.limit or scored.failure or seen.failure or ("right", "")
    counts = (scored.passed, hidden.total, *((seen.passed, visible.total) if visible else ()))
    return Judgement(0.0 if seen.failure else score, verdict, detail, *counts)


@dataclass
class SuiteTally:
    """How one program has fared on one suite so far."""

    passed: int = 0
    failure: tuple[str, str] | None = None
    """Verdict and detail of the first test that failed."""
    limit: tuple[str, str] | None = None
    """Of the first that ran into a limit."""

    def add_failure(self, verdict: str, detail: str = "") -> None:
        failure = (verdict, shorten(detail[:MAX_DETAIL_CHARS]))
        self.failure = self.failure or failure
        if verdict in LIMIT_KINDS:
            self.limit = self.limit or failure


class ProgramTrial:
    """One program on its tests, within one allowance of CPU and wall time for all of them."""

    def __init__(self, program: ProgramText, terms: Terms) -> None:
        self.program, self.terms = program, terms
        self.cpu_left, self.wall_left = terms.limits.cpu_s, terms.limits.wall_s
        self.ended: tuple[str, str] | None = None
        """Verdict and detail of an end after which there is no other run."""
        self.broken = ""
        """What failed on our side."""

    def run_suite(self, suite: Suite, stop_early: bool) -> SuiteTally:
        tally = SuiteTally()
        runs: list[Callable[[Limits, SuiteTally], None]] = [partial(self._run_script, case) for case in suite.scripts]
        if suite.calls:
            runs.insert(0, partial(self._run_calls, suite))
        if suite.checks:
            runs.append(partial(self._run_checks, suite))
        try:
            for run in runs:
                if self.broken or (stop_early and tally.failure):
                    break
                limits = self._find_limits()
                if limits is None:
                    tally.add_failure(*self.ended or ("error", ""))
                    break
                run(limits, tally)
        except NotPlain as problem:  # of a test's arguments: what a program returns is part of a reply
            self.broken = f"tests: {problem}"
        return tally

    def _find_limits(self) -> Limits | None:
        """Limits for the next run; None where there is to be none."""
        if self.terms.given_up.is_set():
            self.broken = "given up"
            return None
        if self.ended is None and min(self.cpu_left, self.wall_left) <= 0:
            self.ended = ("timeout", "the tests before took all the time")
        if self.ended is not None:
            return None
        return replace(self.terms.limits, cpu_s=self.cpu_left, wall_s=self.wall_left + FREE_WALL_S)

    def _charge_run(self, run: Run) -> None:
        """Pay for a run, and see whether it was the last."""
        self.cpu_left -= run.cpu_s
        self.wall_left -= max(0.0, run.wall_s - FREE_WALL_S)
        if run.end == "infrastructure":
            self.broken = f"jail: {run.detail or 'it failed'}"
        elif run.end in LIMIT_WORDS:
            self.ended = (LIMIT_WORDS[run.end], run.detail)
        elif run.end == "load":
            self.ended = (self._name_error(run.detail), run.detail)

    def _name_error(self, detail: str) -> str:
        """The verdict on a program that did not load: what is no Python was an attempt only where it was fenced."""
        if not detail.startswith(NOT_PYTHON):
            return "error"
        return "unparsed" if self.program.fenced else "no_answer"

    def _run_calls(self, suite: Suite, limits: Limits, tally: SuiteTally) -> None:
        calls = [Call(find_callable_name(self.program.text, case.function), case.args, case.kwargs) for case in suite.calls]
        run = run_calls(self.program.text, calls, limits, self.terms.packages)
        self._charge_run(run)
        for case, reply in zip(suite.calls, run.replies, strict=True):
            if reply is None:
                # An end that is none of the limits: the program has left, and its other tests have failed with it.
                self.ended = self.ended or ("error", f"the program ended: {run.detail}")
                tally.add_failure(*self.ended)
            elif reply.raised == "NotPlain":
                tally.add_failure("wrong", f"{show_call(case)} gave no plain value: {reply.detail}")
            elif reply.raised:
                word = "memory" if reply.raised == "MemoryError" else "error"
                tally.add_failure(word, f"{show_call(case)} raised {reply.raised}: {reply.detail}")
            elif any(holds(case.rule, reply.value, accepted, case.tolerance) for accepted in case.accepted or (None,)):
                tally.passed += 1
            else:
                tally.add_failure("wrong", f"{show_call(case)} gave {show_value(reply.value)}")

    def _run_script(self, case: StdinCase, limits: Limits, tally: SuiteTally) -> None:
        limits = replace(limits, output_kb=max(limits.output_kb, len(case.output) * 4 // 1024 + 1))
        run = run_script(self.program.text, case.input, limits, self.terms.packages)
        self._charge_run(run)
        if self.ended is not None:
            tally.add_failure(*self.ended)
        elif run.status != 0:
            last = (run.stderr.strip().splitlines() or [run.detail])[-1]
            word = self._name_error(last)
            if word != "error":
                self.ended = (word, last)
            tally.add_failure(word, last)
        elif same_output(run.stdout, case.output, case.tolerance):
            tally.passed += 1
        else:
            tally.add_failure("wrong", f"it printed {show_value(run.stdout)}")

    def _run_checks(self, suite: Suite, limits: Limits, tally: SuiteTally) -> None:
        targets = {name: find_callable_name(self.program.text, target) for name, target in suite.proxies.items()}
        proxies = [name if name == target else f"{name}={target}" for name, target in targets.items()]
        run = run_checks(
            self.program.text + write_iterations(suite.iterated, targets),
            suite.checks,
            [*proxies, *(ITERATED + name for name in suite.iterated)],
            suite.setup,
            limits,
            self.terms.packages,
        )
        self._charge_run(run)
        for result in run.checks:
            if result.passed is None:
                self.broken = self.broken or f"tests: {result.detail}"
            elif result.passed:
                tally.passed += 1
            elif self.ended is not None:
                tally.add_failure(*self.ended)
            else:
                failed_assert = run.end == "finished" and result.detail.startswith("AssertionError")
                detail = (result.detail or run.detail).replace(ITERATED, "")
                tally.add_failure("wrong" if failed_assert else "error", detail)


def write_iterations(names: Sequence[str], targets: Mapping[str, str]) -> str:
    """Functions after the program that give lists of what its functions' values hold, with no name it may have taken."""
    text = ""
    for name in names:
        first, _, method = targets[name].partition(".")
        made = f"{first}().{method}" if method else first
        # Where the program lacks the function it lacks this one as well, and the jail says so.
        text += f"\nif {first!r} in globals():\n    {ITERATED}{name} = lambda *args, **kwargs: [*{made}(*args, **kwargs)]\n"
    return text


def show_call(case: CallCase) -> str:
    arguments = [show_value(value) for value in case.args] + [
        f"{name}={show_value(value)}" for name, value in case.kwargs.items()
    ]
    return f"{case.function}({', '.join(arguments)})"
