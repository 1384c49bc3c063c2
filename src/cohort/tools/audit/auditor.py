"""The audit: choose rows and kind, ask the questions of that kind, report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.tools.audit import profiles
from cohort.tools.audit.answers import AnswerQuestions
from cohort.tools.audit.cases import AuditRow
from cohort.tools.audit.code import CodeQuestions
from cohort.tools.audit.findings import AuditReport
from cohort.tools.audit.goldless import GoldlessQuestions
from cohort.tools.audit.profiles import GOLDLESS, Profile
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import AuditError, AuditOptions, Bench

QUESTIONS: dict[str, type[Questions]] = {
    "math": AnswerQuestions,
    "exact": AnswerQuestions,
    "code": CodeQuestions,
    "shape": GoldlessQuestions,
}


def audit(
    function: str | Callable[..., Any],
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    shape: bool = False,
    **options: Any,
) -> AuditReport:
    """Attack a reward function and report what gets through.

    function    a built-in name, "package.module:function", or a function at the top level of a module.
    rows        rows with a `prompt` and the columns that the function reads; None: the rows that ship with the audit.
    shape       the same as kind="shape".
    options     the fields of AuditOptions.
    """
    started = time.monotonic()
    label, spec = profiles.find_function(function)
    words = AuditOptions(**{**options, "kind": "shape"} if shape else options)
    profile = profiles.find_profile(label, spec)
    if profile is GOLDLESS and (words.kind or "shape") != "shape":
        profile = None
    audited = gather_rows(label, rows, words, profile)
    kind = words.kind or (profile.kind if profile else profiles.guess_kind(audited))
    if words.template and kind == "code":
        raise AuditError("template: it is a form of an answer; programs are tried in code fences and bare.")
    with tempfile.TemporaryDirectory(prefix="cohort-audit-") as folder, Bench(spec, audited, words) as bench:
        bench.check_call()
        questions = QUESTIONS[kind](bench, words, kind, profile, Path(folder))
        questions.ask_everything()
        return questions.make_report(words.name or label, time.monotonic() - started)


def gather_rows(
    label: str, rows: Sequence[Mapping[str, Any]] | None, words: AuditOptions, profile: Profile | None
) -> Sequence[AuditRow]:
    """The rows given, or those that ship with the audit; a few of them."""
    if rows is not None:
        found = profiles.choose_rows(profiles.make_rows(rows, words), words.limit or profiles.DEFAULT_ROWS, words.seed)
    elif profile is None and words.kind != "shape":
        raise AuditError(
            f"reward {label}: it is not built in, so rows are needed that say what is right: --rows FILE (a `prompt` "
            "and the columns that the function reads), or rows=[...] in Python. For a reward of the shape alone: --shape."
        )
    else:
        found = tuple((profile or GOLDLESS).rows())
        found = found if words.limit is None else profiles.choose_rows(found, words.limit, words.seed)
    if not found:
        raise AuditError("rows: there are none.")
    return found
