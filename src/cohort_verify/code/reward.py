"""Scores the program of a completion by the row's unit tests. It runs in a jail; the verdict is computed outside.

    code_tests(["```python\\ndef add(a, b): return a + b\\n```"], tests=[["assert add(2, 3) == 5"]])   ->  [1.0]

Unlike in the usual test runner, expected values never enter the jail, and exit statuses and a printed "PASS" do not count. The
program returns plain values, and the host compares them, including their types. Whatever a program does to its own process
(exit, patched builtins, an `__eq__` that always agrees) can only cost it points. After a program has hit a limit it is not run
again, so it costs about one limit regardless of the number of tests.
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
"""Limit on programs that run in parallel; at most one per core."""


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
    """The share of its tests that each completion's program passes; with scoring = "all", 1.0 if it passes all of them, else
    0.0.

    `tests` contains calls, standard input, asserts or test code for each row (docs/code-rewards.md). `entry_point` is the
    function under test if the tests do not name it; `program_prefix` is the start of the program in the prompt. The program is
    the last block fenced with one of `tags`, else the last block without a tag. `cpu_s` and `wall_s` limit one program over all
    its tests; hitting a limit scores 0.0. With `packages`, programs and test code may import installed packages (numpy, ...),
    otherwise only the standard library. None means that the row cannot be scored, because its tests are unusable or the jail
    failed.
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
            entry_point=entries[row] or (suite.scored.calls[0].function if suite.scored.calls else ""),
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
    """Return for each row why its tests can never score a program, or None."""
    count = len(tests)
    entries = [strip_solution(name) for name in spread_texts("entry_point", entry_point, count)]
    prefixes = spread_texts("program_prefix", program_prefix, count)
    # All columns of the data arrive here, and one may be named packages.
    read = read_rows(spread_column("tests", tests, count), entries, prefixes, packages is True)
    return [f"tests: {one}" if isinstance(one, str) else None for one in read]


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def spread_column(name: str, column: Any, count: int) -> list[Any]:
    """Return one value per completion. `tests` cannot be a single text, which would give one test per letter."""
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
    """Return the tests of each row, or the reason why they cannot be used. Cells shared by a group are read once."""
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


def judge_all(tasks: Sequence[ProgramTask | Judgement], terms: Terms, report: Callable[..., None]) -> list[Judgement]:
    """Judge programs in parallel, each distinct one once: the same text with the same tests gets the same verdict.

    `report` is called from this thread for every completion as soon as it is judged.
    """
    judged: dict[int, Judgement] = {}
    distinct: dict[tuple[str, int], tuple[ProgramTask, list[int]]] = {}
    for row, task in enumerate(tasks):
        if isinstance(task, Judgement):
            judged[row] = task
            report(row, task.verdict, task.detail)
        else:
            distinct.setdefault((task.program.text, id(task.tests)), (task, []))[1].append(row)
    if distinct:
        side_by_side = min(len(distinct), os.cpu_count() or 1, MAX_PARALLEL)
        # Not a `with` block: that would wait for running programs, also after an interrupt.
        threads = ThreadPoolExecutor(side_by_side, thread_name_prefix="code tests")
        try:
            futures = {threads.submit(judge_program, task, terms): rows for task, rows in distinct.values()}
            for future in as_completed(futures):
                judgement = future.result()
                for row in futures[future]:
                    judged[row] = judgement
                    report(row, judgement.verdict, judgement.detail)
        finally:
            terms.given_up.set()
            threads.shutdown(wait=False, cancel_futures=True)
    return [judged[row] for row in range(len(tasks))]


def warn_unscored(row: int, verdict: str, detail: str) -> None:
    """Log what could not be scored if no runner collects the verdicts."""
    if verdict == INFRASTRUCTURE:
        logger.warning("code_tests: completion %d is not scored: %s", row, detail)


def log_judgements(
    judgements: Sequence[Judgement],
    log_extra: Callable[[str, list[Any]], None] | None,
    log_metric: Callable[[str, float], None] | None,
) -> None:
    """Log counts per completion and shares as metrics, for visible tests too if there are any."""
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
            for value in values:  # TRL expects one value per call
                log_metric(metric, value)


# No `extract`: programs that differ in a name or a space are the same answer, so a vote over equal texts is meaningless.
# Outputs on inputs without a known result would be worth a vote, but test rows have no such inputs.
code_tests.per_completion = True  # type: ignore[attr-defined]
code_tests.supervised = True  # type: ignore[attr-defined]
code_tests.jailed = True  # type: ignore[attr-defined]
code_tests.unusable = unusable  # type: ignore[attr-defined]
code_tests.reads = ("completions", "tests", "prompts", "entry_point", "program_prefix", "prefilled")  # type: ignore[attr-defined]
