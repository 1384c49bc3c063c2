"""Does the completion's program pass the row's unit tests? It runs in a jail; the verdict is reached outside.

    code_tests(["```python\\ndef add(a, b): return a + b\\n```"], tests=[["assert add(2, 3) == 5"]])   ->  [1.0]

Differs from the usual test runner in where the verdict lives. Nothing in the jail knows what is expected, and neither
an exit status nor a printed "PASS" counts for anything: the program gives plain values, and the host compares them,
type-strict. What a program does to its own process (exit, patched builtins, an `__eq__` that always agrees) can so only
lose it points. A program that has run into a limit is not run again, so it costs about one limit, however many tests.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cohort.rewards.code.asserts import ITERATED
from cohort.rewards.code.cases import read_tests
from cohort.rewards.code.compare import holds, same_output
from cohort.rewards.code.format import (
    TAGS,
    ProgramText,
    find_callable_name,
    find_program,
    starts_inside_thought,
    strip_solution,
)
from cohort.rewards.code.suite import CallCase, StdinCase, Suite, Tests, UnusableTests
from cohort.rewards.entries import INFRASTRUCTURE, LIMIT_KINDS, shorten, show_value
from cohort.rewards.text import text_of
from cohort.sandbox import Call, Limits, NotPlain, Run, run_calls, run_checks, run_script

logger = logging.getLogger(__name__)

SCORINGS = ("fraction", "all")
REMOTE_RUNS = 32
"""Programs that wait for a remote backend side by side; on this machine it is one per core."""
FREE_WALL_S = 0.25
"""By the wall clock, per fresh process, not charged: what a busy machine takes to come round to it."""
MAX_DETAIL_CHARS = 500

LIMIT_WORDS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "output", "files": "files", "crash": "crash"}
"""Ends of a run that the program caused, as verdicts. After one of them it is not run again."""
NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")


def code_tests(
    completions: Sequence[Any],
    tests: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    *,
    entry_point: Sequence[str | None] | str | None = None,
    program_prefix: Sequence[str | None] | str | None = None,
    prefilled: Sequence[bool | None] | bool | None = None,
    scoring: str = "fraction",
    tags: Sequence[str] = TAGS,
    cpu_s: float = 4.0,
    wall_s: float = 10.0,
    memory_mb: int = 512,
    packages: bool = False,
    backend: str = "",
    log_verdict: Callable[..., None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The share of its tests that each completion's program passes; with scoring = "all", 1.0 for all of them and else 0.0.

    `tests` holds calls, standard input, asserts or test code per row (docs/code-rewards.md). `entry_point` is the function
    under test where the tests do not name it, `program_prefix` the start of the program that the prompt gives away. The
    last block fenced with one of `tags`, else without a tag, is the program. `cpu_s` and `wall_s` are what one program may
    take over all its tests; one that runs into a limit scores 0.0. With `packages`, programs and test code may import what
    is installed beside the trainer (numpy, ...), else the standard library alone. None: the row cannot be scored, for its
    tests are unusable or the jail failed.
    """
    if scoring not in SCORINGS:
        raise ValueError(f"scoring: {' or '.join(map(repr, SCORINGS))} is expected, got {scoring!r}")
    if isinstance(tags, str):
        raise TypeError(f"tags: a list of words is expected, got {tags!r}")
    if not isinstance(packages, bool):
        raise TypeError(f"packages: true or false is expected, got {packages!r}")
    limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb)
    count = len(completions)
    cells = spread_column("tests", tests, count)
    starts = spread_column("prompts", prompts, count)
    entries = [strip_solution(name) for name in spread_texts("entry_point", entry_point, count)]
    prefixes = spread_texts("program_prefix", program_prefix, count)
    inside = [starts_inside_thought(*row) for row in zip(starts, spread_column("prefilled", prefilled, count), strict=True)]
    suites = read_rows(cells, entries, prefixes, packages)
    tasks: list[ProgramTask | Judgement] = []
    for row, suite in enumerate(suites):
        if isinstance(suite, str):
            tasks.append(Judgement(None, INFRASTRUCTURE, f"tests: {suite}"))
            continue
        program = find_program(
            text_of(completions[row]),
            prompt=starts[row],
            inside_thought=inside[row],
            tags=tags,
            entry_point=entries[row] or find_function(suite),
            prefix=prefixes[row],
        )
        tasks.append(ProgramTask(program, suite) if program else Judgement.for_no_answer(suite))
    judgements = judge_all(tasks, Terms(scoring, limits, packages, backend), log_verdict or warn_unscored)
    log_judgements(judgements, log_extra, log_metric)
    return [judgement.score for judgement in judgements]


def unusable(
    tests: Sequence[Any],
    entry_point: Sequence[str | None] | str | None = None,
    program_prefix: Sequence[str | None] | str | None = None,
    packages: Any = False,
    **columns: Any,
) -> list[str | None]:
    """Per row: None, or why its tests can never score a program."""
    count = len(tests)
    entries = [strip_solution(name) for name in spread_texts("entry_point", entry_point, count)]
    prefixes = spread_texts("program_prefix", program_prefix, count)
    # All columns of the data come here, and one may be called packages.
    read = read_rows(spread_column("tests", tests, count), entries, prefixes, packages is True)
    return [f"tests: {one}" if isinstance(one, str) else None for one in read]


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def spread_column(name: str, column: Any, count: int) -> list[Any]:
    """One value per completion. Only `tests` cannot be one value for all: a text would be one test cell per letter."""
    if name != "tests" and (column is None or isinstance(column, str | bool)):
        return [column] * count
    if isinstance(column, str | Mapping) or not hasattr(column, "__len__"):
        raise TypeError(f"{name}: a list with one entry per completion is expected, got {show_value(column)}")
    if len(column) != count:
        raise ValueError(f"{name}: {len(column)} entries for {count} completions")
    return list(column)


def spread_texts(name: str, column: Any, count: int) -> list[str]:
    texts = []
    for row, value in enumerate(spread_column(name, column, count)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}: text is expected in every row, got {show_value(value)} in row {row}")
        texts.append(value or "")
    return texts


def read_rows(cells: Sequence[Any], entries: Sequence[str], prefixes: Sequence[str], packages: bool) -> list[Tests | str]:
    """The tests of each row, or why they cannot be used. The completions of a group share one object, read once."""
    known: dict[tuple[Any, ...], Tests | str] = {}
    read = []
    for cell, entry_point, prefix in zip(cells, entries, prefixes, strict=True):
        key = (cell if isinstance(cell, str) else id(cell), entry_point, prefix)
        if key not in known:
            try:
                known[key] = read_tests(cell, entry_point, prefix, packages)
            except UnusableTests as problem:
                known[key] = str(problem)
        read.append(known[key])
    return read


def find_function(tests: Tests) -> str:
    """The function under test, where the tests call one directly."""
    return tests.scored.calls[0].function if tests.scored.calls else ""


@dataclass(frozen=True)
class Terms:
    """What holds for all programs of a batch."""

    scoring: str
    limits: Limits
    packages: bool = False
    backend: str = ""
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


def judge_all(tasks: Sequence[ProgramTask | Judgement], terms: Terms, tell: Callable[..., None]) -> list[Judgement]:
    """Programs side by side, each distinct one once: the same text on the same tests deserves the same verdict.

    `tell` hears of every completion as soon as it is judged, from this thread alone.
    """
    judged: dict[int, Judgement] = {}
    rows: dict[tuple[str, int], list[int]] = {}
    distinct: dict[tuple[str, int], ProgramTask] = {}
    for row, task in enumerate(tasks):
        if isinstance(task, Judgement):
            judged[row] = task
            tell(row, task.verdict, task.detail)
        else:
            key = (task.program.text, id(task.tests))
            distinct[key] = task
            rows.setdefault(key, []).append(row)
    if distinct:
        side_by_side = min(len(distinct), REMOTE_RUNS if terms.backend else min(os.cpu_count() or 1, REMOTE_RUNS))
        # Not as a context: that would wait for the programs that run, also on the way out of an interrupt.
        threads = ThreadPoolExecutor(side_by_side, thread_name_prefix="code tests")
        try:
            futures = {threads.submit(judge_program, task, terms): rows[key] for key, task in distinct.items()}
            for future in as_completed(futures):
                judgement = future.result()
                for row in futures[future]:
                    judged[row] = judgement
                    tell(row, judgement.verdict, judgement.detail)
        finally:
            terms.given_up.set()
            threads.shutdown(wait=False, cancel_futures=True)
    return [judged[row] for row in range(len(tasks))]


def warn_unscored(row: int, verdict: str, detail: str) -> None:
    """Called without a runner, at least what could not be scored is said."""
    if verdict == INFRASTRUCTURE:
        logger.warning("code_tests: completion %d is not scored: %s", row, detail)


def log_judgements(
    judgements: Sequence[Judgement],
    log_extra: Callable[[str, list[Any]], None] | None,
    log_metric: Callable[[str, float], None] | None,
) -> None:
    """Counts of every completion beside the rollouts, and the shares as metrics; of visible tests where there are any."""
    columns = {"pass_rate": ("tests_passed", "tests_total"), "visible_pass_rate": ("visible_passed", "visible_total")}
    for metric, (passed, total) in columns.items():
        counts = [(getattr(one, passed), getattr(one, total)) for one in judgements]
        rates = [right / of for right, of in counts if of]
        if log_extra is not None and (rates or metric == "pass_rate"):
            log_extra(passed, [right for right, _ in counts])
            log_extra(total, [of for _, of in counts])
        if log_metric is not None and rates:
            log_metric(metric, sum(rates) / len(rates))
    scored = [one for one in judgements if one.score is not None]
    if log_metric is not None and scored:
        log_metric("all_passed", sum(one.verdict == "right" for one in scored) / len(scored))


# ---------------------------------------------------------------------------------------------------------------------
# One program
# ---------------------------------------------------------------------------------------------------------------------


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
        run = run_calls(self.program.text, calls, limits, self.terms.backend, self.terms.packages)
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
        run = run_script(self.program.text, case.input, limits, self.terms.backend, self.terms.packages)
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
            self.terms.backend,
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


# There is no `extract`: two programs that differ in a name or a space are one answer, so a majority of equal texts says
# nothing, and what would be worth a vote, their outputs on inputs without a known result, is no part of a test row.
code_tests.supervised = True  # type: ignore[attr-defined]
code_tests.jailed = True  # type: ignore[attr-defined]
code_tests.unusable = unusable  # type: ignore[attr-defined]
code_tests.reads = ("completions", "tests", "prompts", "entry_point", "program_prefix", "prefilled")  # type: ignore[attr-defined]
