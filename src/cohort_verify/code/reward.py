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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from cohort_verify.code.cases import read_tests
from cohort_verify.code.format import TAGS, find_program, starts_inside_thought, strip_solution
from cohort_verify.code.suite import Tests, UnusableTests
from cohort_verify.code.trial import Judgement, ProgramTask, Terms, judge_program
from cohort_verify.sandbox import Limits
from cohort_verify.text import INFRASTRUCTURE, show_value, text_of

logger = logging.getLogger(__name__)

SCORINGS = ("fraction", "all")
MAX_PARALLEL = 32
"""Programs that run at the same time: one per core, at most this many."""


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
    judgements = judge_all(tasks, Terms(scoring, limits, packages), log_verdict or warn_unscored)
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


def judge_all(tasks: Sequence[ProgramTask | Judgement], terms: Terms, tell: Callable[..., None]) -> list[Judgement]:
    """Programs side by side, each distinct one once: the same text on the same tests deserves the same verdict.

    `tell` hears of every completion as soon as it is judged, from this thread alone.
    """
    judged: dict[int, Judgement] = {}
    distinct: dict[tuple[str, int], tuple[ProgramTask, list[int]]] = {}
    for row, task in enumerate(tasks):
        if isinstance(task, Judgement):
            judged[row] = task
            tell(row, task.verdict, task.detail)
        else:
            distinct.setdefault((task.program.text, id(task.tests)), (task, []))[1].append(row)
    if distinct:
        side_by_side = min(len(distinct), os.cpu_count() or 1, MAX_PARALLEL)
        # Not as a context: that would wait for the programs that run, also on the way out of an interrupt.
        threads = ThreadPoolExecutor(side_by_side, thread_name_prefix="code tests")
        try:
            futures = {threads.submit(judge_program, task, terms): rows for task, rows in distinct.values()}
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
    metrics = {"all_passed": [float(one.verdict == "right") for one in judgements if one.score is not None]}
    for metric, (passed, total) in columns.items():
        counts = [(getattr(one, passed), getattr(one, total)) for one in judgements]
        metrics[metric] = [right / of for right, of in counts if of]
        if log_extra is not None and (metrics[metric] or metric == "pass_rate"):
            log_extra(passed, [right for right, _ in counts])
            log_extra(total, [of for _, of in counts])
    if log_metric is not None:
        for metric, values in metrics.items():
            for value in values:  # one at a time, as TRL takes them
                log_metric(metric, value)


# There is no `extract`: two programs that differ in a name or a space are one answer, so a majority of equal texts says
# nothing, and what would be worth a vote, their outputs on inputs without a known result, is no part of a test row.
code_tests.per_completion = True  # type: ignore[attr-defined]
code_tests.supervised = True  # type: ignore[attr-defined]
code_tests.jailed = True  # type: ignore[attr-defined]
code_tests.unusable = unusable  # type: ignore[attr-defined]
code_tests.reads = ("completions", "tests", "prompts", "entry_point", "program_prefix", "prefilled")  # type: ignore[attr-defined]
