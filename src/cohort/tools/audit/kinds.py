"""The audit for each kind of reward: comparing an answer, running programs, or scoring only the shape of a text."""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohort.observe.diagnosis.finding import Level
from cohort.tools.audit import attacks, profiles, programs
from cohort.tools.audit.auditor import Auditor
from cohort.tools.audit.causes import find_causes, find_code_causes, measure_reading
from cohort.tools.audit.profiles import RIGHT_TEXTS, SHAPE, WRONG_TEXTS, Profile
from cohort.tools.audit.reference_answers import has_token
from cohort.tools.audit.report import AuditReport, make_finding
from cohort.tools.audit.running import (
    AnswerForm,
    AuditCase,
    AuditError,
    AuditOptions,
    AuditRow,
    Bench,
    CaseResult,
    find_built_in,
)

# ---------------------------------------------------------------------------------------------------------------------
# Rewards that compare an answer
# ---------------------------------------------------------------------------------------------------------------------

CALIBRATION_ROWS = 6
CONTROL_ROWS = 2
LEAST_PAID = 0.01
"""Rise of a wrong answer's score from which the words around it count as rewarded."""


class AnswerAuditor(Auditor):
    """Finds the forms of answers that the reward reads, then tries right and wrong answers in them."""

    def audit_kind(self) -> None:
        if not any(row.reference or row.demonstration for row in self.rows):
            column = self.options.reference_column
            raise AuditError(
                f"rows: no column {column!r} with a reference answer, and no demonstrations; name the column with --reference COLUMN."
            )
        accepted = self.try_references(attacks.list_forms(self.template))
        forms = self.choose_forms()
        answered = [number for number, row in enumerate(self.rows) if row.reference]
        wrong = self.run(attacks.make_control_cases(self.rows, forms, answered[:CONTROL_ROWS]))
        reading = measure_reading(wrong, self.threshold)
        # An answer in a form that is not read proves nothing.
        forms = [form for form in forms if form.name not in reading.unread]
        self.forms = [form for form in self.forms if form.base not in reading.unread]
        if self.forms:
            # A user's template may be as narrow as its pattern: in it only the reference answers themselves must pass.
            known = [form for form in forms if form.base != "template"]
            rewritten = self.run(attacks.make_rewrite_cases(self.rows, known, by_value=self.kind == "math"))
            self.add_finding("rewrite", self.filter_refused(rewritten), len(rewritten))
        first = answered[0] if answered else 0
        wrong += self.try_wrong(forms, first)
        worded = self.run(attacks.make_wording_cases(first, self.rows[first].reference, forms))
        echoes = self.run(attacks.make_echo_cases(self.rows))
        if not self.ignores_reference(wrong, accepted, forms):
            leaked = self.find_leaks(echoes)
            wrong += [result for result in echoes if result not in leaked] + worded
            self.findings = find_causes(wrong, self.filter_passed(wrong), self.rows, reading) + self.findings
            self.note_wording(worded)
        self.try_chat(accepted)

    def try_references(self, every: Sequence[AnswerForm]) -> list[CaseResult]:
        """Find the forms that are read; all reference answers must then be accepted in them. Returns the accepted results."""
        results = self.run(attacks.make_reference_cases(self.rows[:CALIBRATION_ROWS], every))
        self.refuse_if_unusable(results)
        if self.options.threshold is None and not self.options.outcome:
            scores = [result.score for result in results if result.score is not None]
            self.threshold = max(scores, default=self.threshold) - 1e-9
        read = self.find_read_forms(results, every)
        self.demonstrations_count = "demonstration" in read
        rest = self.rows[CALIBRATION_ROWS:]
        results += self.run(attacks.make_reference_cases(rest, self.forms, self.demonstrations_count, CALIBRATION_ROWS))
        judged = [result for result in results if result.case.form in read]
        self.add_finding("form", self.filter_refused(judged), len(judged))
        if not self.profile:  # a marker that is read by itself but not with text around it
            bases = {form.name: form.base for form in every}
            missed = [result for result in results if result.case.form not in read and bases.get(result.case.form) in read]
            self.add_finding("surroundings", [result for result in missed if not result.fault], level="note")
        return self.filter_passed(judged)

    def choose_forms(self) -> list[AnswerForm]:
        """The forms of the attacks: the plainest one of each marker that is read; the usual ones if none is."""
        chosen: dict[str, AnswerForm] = {}
        for form in self.forms:
            chosen.setdefault(form.base, form)
        usual = ("template", "boxed", "says", "bare")
        return list(chosen.values()) or [form for form in attacks.list_forms(self.template) if form.name in usual]

    def try_wrong(self, forms: Sequence[AnswerForm], first: int) -> list[CaseResult]:
        """Try everything that must not pass. `first` is the first row with a reference answer."""
        tolerance = self.bench.args.get("tolerance", 0.0)
        room = tolerance if isinstance(tolerance, int | float) else 0.0
        wrong = self.run(attacks.make_alone_cases(self.rows, forms, room))
        accepted = {(result.case.row, result.case.answer or "") for result in self.filter_passed(wrong)}
        wrong += self.run(attacks.make_beside_cases(self.rows, forms, accepted))
        wrong += self.run(attacks.make_question_cases(self.rows, forms))
        if self.demonstrations_count:
            wrong += self.run(attacks.make_other_demonstration_cases(self.rows))
        count = min(3, len(self.rows))
        wrong += self.run([*attacks.make_empty_cases(count), *attacks.make_format_cases(count, forms)])
        wrong += self.run(attacks.make_bomb_cases(first, forms))
        wrong += self.try_injections(first, forms)
        column = self.options.reference_column
        if column in self.bench.columns and (not self.bench.signature.reads or column in self.bench.list_arguments()):
            wrong += self.run(attacks.make_missing_reference_cases(first, self.rows[first].reference, column, forms))
        return wrong

    def note_wording(self, worded: Sequence[CaseResult]) -> None:
        """Note words that raise a wrong answer's score but not above the threshold. The first result has no added words."""
        plain = next((result.score for result in worded if not result.fault), None)
        raised = [result for result in worded if not result.passes(self.threshold) and not result.fault]
        paid = [result for result in raised if None not in (plain, result.score) and result.score > plain + LEAST_PAID]  # type: ignore[operator]
        self.add_finding("wording", paid, len(worded), "note")

    def ignores_reference(
        self, wrong: Sequence[CaseResult], accepted: Sequence[CaseResult], forms: Sequence[AnswerForm]
    ) -> bool:
        """Whether other rows' answers score as well as the row's own. Then that is the only finding about wrong answers."""
        tried = [result for result in wrong if result.case.attack == "other_row"]
        others = [result for result in tried if not result.fault]
        if not tried:
            self.remarks.append(
                "all rows have the same reference answer, so the audit cannot tell whether the score depends on it"
            )
            return False
        same = self.filter_passed(others)
        far = [result for result in wrong if result.case.attack == "far"]
        if not accepted or not others or len(same) < 0.95 * len(others) or 2 * len(self.filter_passed(far)) < len(far):
            return False  # with few rows, a reward that compares only a part of the answers may not distinguish them
        flaw, shown = self.find_what_counts(same, forms)
        level: Level = "flaw" if self.options.outcome else "note"
        self.findings.insert(0, make_finding(flaw, shown, self.rows, len(others), level))
        return True

    def find_what_counts(self, same: Sequence[CaseResult], forms: Sequence[AnswerForm]) -> tuple[str, list[CaseResult]]:
        """(flaw, results) for a score that ignores the reference answer: it depends on nothing, the length, the format, or another
        property."""
        letters = random.Random(self.options.seed)
        lengths = [
            self.run(
                [AuditCase("look", f"{size} characters of nonsense", 0, write_nonsense(letters, size), "any") for _ in range(3)]
            )
            for size in (1, 8, 40, 200, 1000, 5000)
        ]
        formed = self.run([form.make_case("look", "nonsense in the form", 0, "zqxj wvk", "any") for form in forms])
        plain = self.run([AuditCase("look", "nonsense", 0, text, "any") for text in ("zqxj wvk", "", "42")])
        by_length = [{result.score for result in group} for group in lengths]
        if len({result.score for result in (*formed, *plain, *same)}.union(*by_length)) == 1:
            return "constant", [*same, *plain]
        if all(len(scores) == 1 for scores in by_length) and len(set().union(*by_length)) > 1:
            return "length_only", [*self.filter_passed([result for group in lengths for result in group]), *same]
        if nonsense := self.filter_passed(formed):
            return "format_only", [*nonsense, *same]
        return "ignores_reference", list(same)

    def find_leaks(self, echoes: Sequence[CaseResult]) -> list[CaseResult]:
        """Find prompts that contain their own reference answer, after a marker or so that repeating the prompt is rewarded."""

        def select(contains: Callable[[str, str], bool]) -> list[CaseResult]:
            return [result for result in echoes if contains(result.case.completion, self.rows[result.case.row].reference)]

        whole, marked = select(has_token), select(has_marked_answer)
        often = len(whole) * 2 >= len(echoes) and len(whole) > 1
        leaks = [result for result in whole if result in marked or (often and result.passes(self.threshold))]
        self.add_finding("leaked_reference", leaks, len(echoes))
        return leaks


def has_marked_answer(prompt: str, reference: str) -> bool:
    r"""Whether the prompt states its own reference answer: "answer: 42", "the answer is 42", \boxed{42}, "#### 42", <answer>42."""
    marks = r"(?:answer|solution|result)\s*(?:is|:|=)\s*|\\boxed\{\s*|####\s*|<answer>\s*"
    return re.search(rf"(?:{marks})[$*\s]*{re.escape(reference)}(?!\w|[.,]\d)", prompt, re.IGNORECASE) is not None


def write_nonsense(letters: random.Random, size: int) -> str:
    """Random letters with a space at every sixth place, so that texts of the same size have the same number of words."""
    return "".join(" " if place % 6 == 5 else letters.choice("bcdfghjklmnpqrstvwxz") for place in range(size))


# ---------------------------------------------------------------------------------------------------------------------
# Rewards that run programs
# ---------------------------------------------------------------------------------------------------------------------

ENDLESS_WALL_S, ENDLESS_CPU_S = 3.0, 1.0
"""Limits for programs that never end, if the reward takes limits: each of these programs uses all of it."""


class CodeAuditor(Auditor):
    """Tries right programs in every form, then programs that only look right to the grader."""

    def audit_kind(self) -> None:
        if not any(row.solution for row in self.rows):
            raise AuditError("rows: a `solution` column with right programs is needed to audit a reward that runs programs.")
        accepted = self.try_solutions()
        form = self.forms[0] if self.forms else programs.CODE_FORMS[0]
        jailed = self.profile is not None and self.profile.jailed
        wrong = self.run(programs.make_wrong_program_cases(self.rows, form))
        with self.bench.tighten_limits(wall_s=ENDLESS_WALL_S, cpu_s=ENDLESS_CPU_S):
            wrong += self.run(programs.make_endless_cases(self.rows, form, jailed))
        wrong += self.run(programs.make_other_solution_cases(self.rows, form))
        self.findings = find_code_causes(wrong, self.filter_passed(wrong), self.rows) + self.findings
        self.try_escapes(form)
        if not jailed:
            self.remarks.append(
                "endless loops, memory and output were not tried: the audit runs those only with a reward that is known to use a jail"
            )
        self.try_chat(accepted)

    def try_solutions(self) -> list[CaseResult]:
        """Find the forms of programs that are read; solutions must pass in them, refactored ones too. Returns the results that passed."""
        results = self.run(programs.make_solution_cases(self.rows))
        self.refuse_if_unusable(results)
        read = self.find_read_forms(results, programs.CODE_FORMS)
        judged = [result for result in results if result.case.form in read]
        accepted = self.filter_passed(judged)
        if self.forms:
            judged += self.run(programs.make_refactored_cases(self.rows, self.forms[0]))
        self.add_finding("code_rejected", self.filter_refused(judged), len(judged))
        return accepted

    def try_escapes(self, form: AnswerForm) -> None:
        """Try programs that write or read a file outside any jail."""
        secret, token = self.folder / "secret", "the audit's own secret"
        secret.write_text(token)
        cases = programs.make_escape_cases(self.rows, form, str(self.canary), str(secret), token)
        results, wrote = self.run_beside_canary(cases)
        escaped = [replace(result, detail="the file was written") for result in wrote]
        read = [result for result in self.filter_passed(results) if result not in wrote]
        escaped += [replace(result, detail="right only because it could read the file") for result in read]
        self.add_finding("unjailed", escaped, len(cases))


# ---------------------------------------------------------------------------------------------------------------------
# Rewards that score only the shape of a text
# ---------------------------------------------------------------------------------------------------------------------


class ShapeAuditor(Auditor):
    """Tries texts that are known to be right or wrong, and whether the function handles every text."""

    def audit_kind(self) -> None:
        name = find_built_in(self.bench.spec)
        known = [(0, text) for text in RIGHT_TEXTS.get(name, ())]
        known += [(number, text) for number, row in enumerate(self.rows) for text in row.right]
        right = self.run([AuditCase("look", "right shape", number, text, "pass") for number, text in known])
        known = [(0, text) for text in WRONG_TEXTS.get(name, ())]
        known += [(number, text) for number, row in enumerate(self.rows) for text in row.wrong]
        wrong = self.run([AuditCase("look", "wrong shape", number, text) for number, text in known])
        self.refuse_if_unusable(right)
        self.add_finding("shape_refuses", self.filter_refused(right), len(right))
        self.add_finding("shape_accepts", self.filter_passed(wrong), len(wrong))
        instructed = self.rows if all(attacks.INSTRUCTIONS in row.columns for row in self.rows) else ()
        cheats = self.run(attacks.make_cheat_cases(instructed))
        self.add_finding("empty", self.filter_passed(cheats), len(cheats))
        echoes = self.run(attacks.make_echo_cases(instructed))
        self.add_finding("echo", self.filter_passed(echoes), len(echoes))
        forms = attacks.list_forms(self.template)
        bases = [form for form in forms if form.base == form.name]
        for cases in (
            [*attacks.make_reference_cases(self.rows[:3], forms), *attacks.make_empty_cases(1)],
            attacks.make_bomb_cases(0, bases),
        ):
            self.run([replace(case, expect="any") for case in cases])
        self.try_injections(0, bases)


# ---------------------------------------------------------------------------------------------------------------------
# The audit
# ---------------------------------------------------------------------------------------------------------------------


def audit(
    function: str | Callable[..., Any], rows: Sequence[Mapping[str, Any]] | None = None, *, shape: bool = False, **options: Any
) -> AuditReport:
    """Attack a reward function and report its flaws.

    function    a built-in name, "package.module:function", or a function at the top level of a module.
    rows        rows with a `prompt` and the columns that the function reads; None: the rows that ship with the audit.
    shape       the same as kind="shape".
    options     the fields of AuditOptions.
    """
    started = time.monotonic()
    label, spec = profiles.find_function(function)
    settings = AuditOptions(**{**options, "kind": "shape"} if shape else options)
    profile = profiles.find_profile(label, spec)
    if profile is SHAPE and (settings.kind or "shape") != "shape":
        profile = None
    audited = gather_rows(label, rows, settings, profile)
    kind = settings.kind or (profile.kind if profile else profiles.guess_kind(audited))
    if settings.template and kind == "code":
        raise AuditError("template: it is a form of an answer; programs are tried in code fences and bare.")
    auditor = {"code": CodeAuditor, "shape": ShapeAuditor}.get(kind, AnswerAuditor)
    with tempfile.TemporaryDirectory(prefix="cohort-audit-") as folder, Bench(spec, audited, settings) as bench:
        bench.check_call()
        return auditor(bench, settings, kind, profile, Path(folder)).make_report(settings.name or label, started)


def gather_rows(
    label: str, rows: Sequence[Mapping[str, Any]] | None, options: AuditOptions, profile: Profile | None
) -> Sequence[AuditRow]:
    """Some of the given rows, or the rows that ship with the audit."""
    if rows is not None:
        found = profiles.choose_rows(profiles.make_rows(rows, options), options.limit or profiles.DEFAULT_ROWS, options.seed)
    elif profile is None and options.kind != "shape":
        raise AuditError(
            f"reward {label}: it is not built in, so the audit needs rows with right answers: --rows FILE (a `prompt` and the "
            "columns that the function reads), or rows=[...] in Python. If the reward scores only the shape of a text: --shape."
        )
    else:
        found = tuple((profile or SHAPE).rows())
        found = found if options.limit is None else profiles.choose_rows(found, options.limit, options.seed)
    if not found:
        raise AuditError("rows: at least one row is needed.")
    return found
