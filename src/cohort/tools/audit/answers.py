"""Attacks on a reward that compares an answer with a gold."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from cohort.rewards.text import text_of
from cohort.tools.audit import attacks, golds, wrong_answers
from cohort.tools.audit.attacks import Case, Form
from cohort.tools.audit.causes import answer_findings, hear
from cohort.tools.audit.findings import finding_of
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import AuditError, Result

CALIBRATION_ROWS = 6
CONTROL_ROWS = 2


class AnswerQuestions(Questions):
    """Finds the forms that are read, then asks right and wrong answers in them."""

    def ask_kind(self) -> None:
        if not any(row.gold or row.demonstration for row in self.rows):
            raise AuditError(
                f"rows: no column {self.gold_column!r} with a gold answer, and no demonstrations; name the column with --gold COLUMN."
            )
        every = attacks.known_forms(self.template)
        golden = self.ask_golds(every)
        forms = self.speaking_forms(every)
        by_value = self.kind == "math"
        with_gold = [number for number, row in enumerate(self.rows) if row.gold]
        wrong = self.run(wrong_answers.control_cases(self.rows, forms, with_gold[:CONTROL_ROWS]))
        hearing = hear(wrong, self.threshold)
        # What is said in a form that is not read proves nothing.
        forms = [form for form in forms if form.name not in hearing.deaf]
        self.forms = [form for form in self.forms if base_of(form.name) not in hearing.deaf]
        if self.forms:
            # A form of the user's own may be as narrow as its pattern: there only the golds as they are must pass.
            known = [form for form in forms if form.base != "template"]
            rewritten = self.run(attacks.rewrite_cases(self.rows, known, by_value))
            refused = self.refused(rewritten)
            if refused:
                self.findings.append(finding_of("rewrite", refused, self.rows, len(rewritten)))
        tolerance = self.bench.args.get("tolerance", 0.0)
        room = tolerance if isinstance(tolerance, int | float) else 0.0
        wrong += self.run(wrong_answers.alone_cases(self.rows, forms, room))
        accepted = {(result.case.row, result.case.answer or "") for result in self.passed(wrong)}
        wrong += self.run(wrong_answers.beside_cases(self.rows, forms, accepted))
        if self.demonstrations_count:
            wrong += self.run(self.other_demonstrations())
        wrong += self.run([*attacks.empty_cases(self.rows[:3]), *attacks.format_cases(self.rows[:3], forms)])
        first = with_gold[0] if with_gold else 0
        wrong += self.run(attacks.bomb_cases(first, forms))
        wrong += self.ask_injections(first, forms)
        echoes = self.run(attacks.echo_cases(self.rows))
        self.ask_gold_columns(first, forms, wrong)
        passed = self.passed(wrong)
        if not self.independent(wrong, golden, forms):
            leaks = self.leaks(echoes)
            leaked = {id(result) for result in leaks}
            wrong += [result for result in echoes if id(result) not in leaked]
            passed += self.passed([result for result in echoes if id(result) not in leaked])
            self.findings = answer_findings(wrong, passed, self.rows, hearing) + self.findings
        self.ask_chat(every, golden)

    def ask_golds(self, every: Sequence[Form]) -> list[Result]:
        """Find the forms that are read; the golds of all rows must then be accepted in them. Returns the accepted results."""
        few = self.rows[:CALIBRATION_ROWS]
        results = self.run(attacks.calibration_cases(few, every) + attacks.demonstration_cases(few))
        self.refuse_if_hopeless(results)
        if self.calibrate_threshold:
            scores = [result.score for result in results if result.score is not None]
            self.threshold = max(scores, default=self.threshold) - 1e-9
        by_form: dict[str, list[bool]] = {}
        for result in results:
            by_form.setdefault(result.case.form, []).append(result.passes(self.threshold))
        documented = self.profile.forms if self.profile else ()
        read = {form for form, verdicts in by_form.items() if sum(verdicts) * 2 >= len(verdicts) or form in documented}
        self.forms = [form for form in every if form.name in read]
        self.demonstrations_count = "demonstration" in read
        rest = self.rows[CALIBRATION_ROWS:]
        later = attacks.calibration_cases(rest, self.forms)
        if "demonstration" in read:
            later += attacks.demonstration_cases(rest)
        results += self.run([replace(case, row=case.row + len(few)) for case in later])
        judged = [result for result in results if result.case.form in read]
        refused = self.refused(judged)
        if not read and any(not result.fault for result in results):
            best = sorted(results, key=lambda result: -(result.score or 0.0))
            self.findings.append(finding_of("gold_rejected", best, self.rows, len(results)))
        elif refused:
            self.findings.append(finding_of("form", refused, self.rows, len(judged)))
        self.note_surroundings(read, results)
        return self.passed(judged)

    def note_surroundings(self, read: set[str], results: Sequence[Result]) -> None:
        """A marker that is read alone but not with text around it."""
        missing = [
            result
            for result in results
            if result.case.form not in read and result.case.form != "demonstration" and not result.fault
            if any(name == base_of(result.case.form) for name in read) and base_of(result.case.form) != result.case.form
        ]
        if missing and not self.profile:
            self.findings.append(finding_of("surroundings", missing, self.rows, level="note"))

    def speaking_forms(self, every: Sequence[Form]) -> list[Form]:
        """The forms to attack in: the plainest of each marker that is read. Where none is, the usual ones."""
        chosen: dict[str, Form] = {}
        for form in self.forms:
            chosen.setdefault(form.base, form)
        return list(chosen.values()) or [form for form in every if form.name in ("template", "boxed", "says", "bare")]

    def other_demonstrations(self) -> list[Case]:
        """The demonstration of the row after: right there, wrong here."""
        return [
            Case("other_row", "demonstration of another row", number, other.demonstration, "fail", "demonstration")
            for number, row in enumerate(self.rows)
            if (other := self.rows[(number + 1) % len(self.rows)]).demonstration
            and other.demonstration != row.demonstration
            and not golds.same(other.gold, row.gold)
        ]

    def ask_gold_columns(self, row: int, forms: Sequence[Form], wrong: list[Result]) -> None:
        column = self.gold_column
        if column not in self.bench.columns or (self.bench.signature.reads and column not in self.bench.asked()):
            return
        wrong += self.run(attacks.missing_gold_cases(row, self.rows[row].gold, column, forms))

    def independent(self, wrong: Sequence[Result], golden: Sequence[Result], forms: Sequence[Form]) -> bool:
        """Whether the answers of other rows score as the row's own does; then that is the finding, and no single attack is."""
        tried = [result for result in wrong if result.case.attack == "other_row"]
        others = [result for result in tried if not result.fault]
        if not tried:
            self.remarks.append("all rows have the same gold: whether the score depends on it could not be seen")
            return False
        same = [result for result in others if result.passes(self.threshold)]
        far = [result for result in wrong if result.case.attack == "far"]
        if not golden or not others or len(same) < 0.95 * len(others) or 2 * len(self.passed(far)) < len(far):
            return False  # few rows may have answers that look alike to a reward that compares a part of them
        flaw, shown = self.what_counts(same, forms)
        self.findings.insert(0, finding_of(flaw, shown, self.rows, len(others), "flaw" if self.outcome else "note"))
        return True

    def what_counts(self, same: Sequence[Result], forms: Sequence[Form]) -> tuple[str, list[Result]]:
        """What a score that ignores the gold depends on: nothing, the length, the format, or something else."""
        bare = next(form for form in attacks.known_forms() if form.name == "bare")
        letters = random.Random(self.seed)
        lengths = [
            self.run([Case("shape", f"{size} characters of nonsense", 0, nonsense(letters, size), "any") for _ in range(3)])
            for size in (1, 8, 40, 200, 1000, 5000)
        ]
        formed = self.run(
            [Case("shape", "nonsense in the form", 0, form.write("zqxj wvk"), "any", form.name) for form in forms]
        )
        plain = self.run([Case("shape", "nonsense", 0, bare.write(text), "any") for text in ("zqxj wvk", "", "42")])
        scores = {result.score for group in [*lengths, formed, plain, same] for result in group}
        if len(scores) == 1:
            return "constant", [*same, *plain]
        if all(len({result.score for result in group}) == 1 for group in lengths) and len(scores) > 1:
            by_length = {group[0].score for group in lengths}
            if len(by_length) > 1:
                return "length_only", [*self.passed([result for group in lengths for result in group]), *same]
        nonsense_passed = self.passed(formed)
        if nonsense_passed:
            return "format_only", [*nonsense_passed, *same]
        return "ignores_gold", list(same)

    def leaks(self, echoes: Sequence[Result]) -> list[Result]:
        """Prompts that hold their own gold, behind a marker or so that repeating the prompt is rewarded."""
        found = []
        whole = [
            result
            for result in echoes
            if golds.has_token(text_of(self.rows[result.case.row].prompt), self.rows[result.case.row].gold)
        ]
        for result in whole:
            row = self.rows[result.case.row]
            marked = behind_marker(text_of(row.prompt), row.gold)
            often = len(whole) * 2 >= len(echoes) and len(whole) > 1
            if marked or (often and result.passes(self.threshold)):
                found.append(result)
        if found:
            self.findings.append(finding_of("leaked_gold", found, self.rows, len(echoes)))
        return found

    def ask_chat(self, every: Sequence[Form], golden: Sequence[Result]) -> None:
        accepted = [(result.case.row, result.case.form) for result in golden[:1]]
        results = self.run(attacks.other_kind_cases(self.rows, every, accepted))
        refused = [result for result in results if not result.passes(self.threshold)]
        if refused:
            required = self.profile is not None and self.profile.reads_chat
            self.findings.append(finding_of("chat", refused, self.rows, len(results), "flaw" if required else "note"))


def base_of(form: str) -> str:
    """The form without the text around it."""
    for surroundings in attacks.SURROUNDINGS:
        if surroundings and form.endswith(f" {surroundings}"):
            return form.removesuffix(f" {surroundings}")
    return form


def behind_marker(prompt: str, gold: str) -> bool:
    r"""Whether the prompt announces its own gold: "answer: 42", "the answer is 42", \boxed{42}, "#### 42", <answer>42."""
    marks = r"(?:answer|solution|result)\s*(?:is|:|=)\s*|\\boxed\{\s*|####\s*|<answer>\s*"
    return re.search(rf"(?:{marks})[$*\s]*{re.escape(gold)}(?!\w|[.,]\d)", prompt, re.IGNORECASE) is not None


def nonsense(letters: random.Random, size: int) -> str:
    """Letters with a space at every sixth place, so that texts of one size have equally many words."""
    return "".join(" " if place % 6 == 5 else letters.choice("bcdfghjklmnpqrstvwxz") for place in range(size))
