"""Runs one program on its tests, within its limits on time and memory."""

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
"""Wall-clock time of each process that is not charged, because a busy machine may start it late."""
MAX_DETAIL_CHARS = 500

LIMIT_ENDS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "output", "files": "files", "crash": "crash"}
"""Ends of a run that the program caused -> verdicts. Afterwards it is not run again."""
NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True)
class Terms:
    """Settings for all programs of a batch."""

    scoring: str
    limits: Limits
    packages: bool = False
    given_up: threading.Event = field(default_factory=threading.Event)
    """The caller no longer waits for verdicts."""


@dataclass(frozen=True)
class ProgramTask:
    """A program and its tests."""

    program: ProgramText
    tests: Tests


@dataclass(frozen=True)
class Judgement:
    """The result for one completion."""

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
    """Run the program. Hidden tests determine its score; a program that fails a visible test scores 0."""
    trial, hidden, visible = ProgramTrial(task.program, terms), task.tests.scored, task.tests.visible
    scored = trial.run_suite(hidden, stop_early=terms.scoring == "all")
    if trial.broken:
        return Judgement(None, INFRASTRUCTURE, trial.broken)
    passed = scored.passed == hidden.total if terms.scoring == "all" else scored.passed / hidden.total
    # No partial credit at a limit: it would depend on the order of the tests.
    score = 0.0 if scored.limit else float(passed)
    seen = trial.run_suite(visible, stop_early=False) if visible else SuiteTally()
    if score and trial.broken:
        return Judgement(None, INFRASTRUCTURE, trial.broken)
    verdict, detail = scored.limit or seen.limit or scored.failure or seen.failure or ("right", "")
    counts = (scored.passed, hidden.total, *((seen.passed, visible.total) if visible else ()))
    return Judgement(0.0 if seen.failure else score, verdict, detail, *counts)


@dataclass
class SuiteTally:
    """The results of one program on one suite so far."""

    passed: int = 0
    failure: tuple[str, str] | None = None
    """Verdict and detail of the first failed test."""
    limit: tuple[str, str] | None = None
    """Verdict and detail of the first test that hit a limit."""

    def add_failure(self, verdict: str, detail: str = "") -> None:
        failure = (verdict, shorten(detail[:MAX_DETAIL_CHARS]))
        self.failure = self.failure or failure
        if verdict in LIMIT_KINDS:
            self.limit = self.limit or failure


class ProgramTrial:
    """Runs one program on its tests, with one budget of CPU and wall time for all of them."""

    def __init__(self, program: ProgramText, terms: Terms) -> None:
        self.program, self.terms = program, terms
        self.cpu_left, self.wall_left = terms.limits.cpu_s, terms.limits.wall_s
        self.ended: tuple[str, str] | None = None
        """Verdict and detail of an end after which there are no more runs."""
        self.broken = ""
        """A failure that is not the program's fault."""

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
        except NotPlain as problem:  # in a test's arguments; in a program's result it would be part of the reply
            self.broken = f"tests: {problem}"
        return tally

    def _find_limits(self) -> Limits | None:
        """Return the limits for the next run, or None if there must not be one."""
        if self.terms.given_up.is_set():
            self.broken = "given up"
            return None
        if self.ended is None and min(self.cpu_left, self.wall_left) <= 0:
            self.ended = ("timeout", "the earlier tests used all the time")
        if self.ended is not None:
            return None
        return replace(self.terms.limits, cpu_s=self.cpu_left, wall_s=self.wall_left + FREE_WALL_S)

    def _charge_run(self, run: Run) -> None:
        """Subtract the cost of a run, and record whether it was the last."""
        self.cpu_left -= run.cpu_s
        self.wall_left -= max(0.0, run.wall_s - FREE_WALL_S)
        if run.end == "infrastructure":
            self.broken = f"jail: {run.detail or 'it failed'}"
        elif run.end in LIMIT_ENDS:
            self.ended = (LIMIT_ENDS[run.end], run.detail)
        elif run.end == "load":
            self.ended = (self._name_error(run.detail), run.detail)

    def _name_error(self, detail: str) -> str:
        """Return the verdict on a program that did not load. Text that is not Python counts as an attempt only if it was
        fenced.
        """
        if not detail.startswith(NOT_PYTHON):
            return "error"
        return "unparsed" if self.program.fenced else "no_answer"

    def _run_calls(self, suite: Suite, limits: Limits, tally: SuiteTally) -> None:
        calls = [Call(find_callable_name(self.program.text, case.function), case.args, case.kwargs) for case in suite.calls]
        run = run_calls(self.program.text, calls, limits, self.terms.packages)
        self._charge_run(run)
        for case, reply in zip(suite.calls, run.replies, strict=True):
            if reply is None:
                # The program ended itself, so its remaining tests fail too.
                self.ended = self.ended or ("error", f"the program ended: {run.detail}")
                tally.add_failure(*self.ended)
            elif reply.raised == "NotPlain":
                tally.add_failure("wrong", f"{show_call(case)} did not return a plain value: {reply.detail}")
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
    """Return code to append to a program: functions that return the items of its functions' results as a list."""
    text = ""
    for name in names:
        first, _, method = targets[name].partition(".")
        made = f"{first}().{method}" if method else first
        # If the program does not define the function, this one is missing too, and the jail reports that.
        text += f"\nif {first!r} in globals():\n    {ITERATED}{name} = lambda *args, **kwargs: [*{made}(*args, **kwargs)]\n"
    return text


def show_call(case: CallCase) -> str:
    arguments = [show_value(value) for value in case.args] + [
        f"{name}={show_value(value)}" for name, value in case.kwargs.items()
    ]
    return f"{case.function}({', '.join(arguments)})"
