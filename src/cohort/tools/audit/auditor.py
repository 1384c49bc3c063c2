"""The audit: choose rows and kind, ask the questions of that kind, report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.tools.audit.answers import AnswerQuestions
from cohort.tools.audit.code import CodeQuestions
from cohort.tools.audit.findings import AuditReport
from cohort.tools.audit.profiles import DEFAULT_ROWS, SHAPE, check_kind, choose, find, kind_of, profile_of, rows_from
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import AuditError, Bench
from cohort.tools.audit.shape import ShapeQuestions

QUESTIONS: dict[str, type[Questions]] = {
    "math": AnswerQuestions,
    "exact": AnswerQuestions,
    "code": CodeQuestions,
    "shape": ShapeQuestions,
}


def audit(
    function: str | Callable[..., Any],
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    kind: str = "",
    shape: bool = False,
    gold: str = "answer",
    prompt: str = "prompt",
    solution: str = "solution",
    demonstration: str = "demonstration",
    columns: Mapping[str, str] | None = None,
    template: str = "",
    threshold: float | None = None,
    outcome: bool = True,
    timeout_s: float = 10.0,
    limit: int | None = None,
    seed: int = 0,
    name: str = "",
) -> AuditReport:
    """Attack a reward function and report what gets through.

    function       a built-in name, "package.module:function", or a function at the top level of a module.
    rows           rows with a `prompt` and the columns that the function reads; None: the rows that ship with the audit.
    args           arguments bound to the function, as in a recipe.
    kind, shape    "math", "exact", "code" or "shape"; "" decides by the function and its rows. shape=True is kind="shape".
    gold, prompt, solution, demonstration    columns of the rows that hold these.
    columns        parameter of the function -> column that it is fed from, where the names differ.
    template       a form of completion that the function reads, with {answer} in it, beside the ones that are always tried.
    threshold      a score from here on is a success; outcome=False takes the score of the golds instead.
    limit          rows that are used, drawn by the seed; None: 8 of the rows given, all of those that ship with the audit.
    """
    started = time.monotonic()
    label, spec = find(function)
    profile = profile_of(label, spec)
    if profile is not None and profile is SHAPE and (kind or "shape") != "shape":
        profile = None
    chosen_kind = check_kind("shape" if shape else kind)
    if limit is not None and limit < 1:
        raise AuditError(f"limit: at least one row is needed, got {limit}.")
    if timeout_s <= 0:
        raise AuditError(f"timeout_s: a number above 0 is expected, got {timeout_s!r}.")
    if rows is None:
        if profile is None and chosen_kind != "shape":
            raise AuditError(
                f"reward {label}: it is not built in, so rows are needed that say what is right: --rows FILE (a `prompt` "
                "and the columns that the function reads), or rows=[...] in Python. For a reward of the shape alone: --shape."
            )
        audited = tuple((profile or SHAPE).rows())
        audited = audited if limit is None else choose(audited, limit, seed)
    else:
        gold = (columns or {}).get(gold, gold)
        audited = choose(rows_from(rows, gold, prompt, solution, demonstration), limit or DEFAULT_ROWS, seed)
    if not audited:
        raise AuditError("rows: there are none.")
    chosen_kind = chosen_kind or (profile.kind if profile else kind_of(audited))
    if template and chosen_kind == "code":
        raise AuditError("template: it is a form of an answer; programs are tried in code fences and bare.")
    names = tuple(dict.fromkeys(column for row in audited for column in row.columns))
    with (
        tempfile.TemporaryDirectory(prefix="cohort-audit-") as folder,
        Bench(spec, args or {}, names, timeout_s, columns) as bench,
    ):
        bench.check(audited)
        questions = QUESTIONS[chosen_kind](
            bench,
            audited,
            profile,
            chosen_kind,
            threshold if threshold is not None else profile.threshold if profile else 0.5,
            threshold is None and not outcome,
            outcome,
            gold,
            template,
            Path(folder),
            seed,
        )
        questions.ask()
        return questions.report(name or label, time.monotonic() - started)
