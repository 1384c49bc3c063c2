"""Attacks on a reward that compares an answer with a gold."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence

from cohort.observe.diagnosis.finding import Level
from cohort.tools.audit import attacks, golds, wrong_answers
from cohort.tools.audit.cases import AnswerForm, AuditCase, CaseResult
from cohort.tools.audit.causes import find_causes, measure_hearing
from cohort.tools.audit.findings import make_finding
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import AuditError

CALIBRATION_ROWS = 6
CONTROL_ROWS = 2
LEAST_PAID = 0.01
"""By so much more a wrong answer scores with words around it, where those are paid for."""


class AnswerQuestions(Questions):
    """Finds the forms that are read, then asks right and wrong answers in them."""

    def ask_kind(self) -> None:
        if not any(row.gold or row.demonstration for row in self.rows):
            column = self.options.gold_column
            raise AuditError(
                f"rows: no column {column!r} with a gold answer, and no demonstrations; name the column with --gold COLUMN."
            )
        golden = self.ask_golds(attacks.list_forms(self.template))
        forms = self.choose_forms()
        with_gold = [number for number, row in enumerate(self.rows) if row.gold]
        wrong = self.run(wrong_answers.make_control_cases(self.rows, forms, with_gold[:CONTROL_ROWS]))
        hearing = measure_hearing(wrong, self.threshold)
        # What is said in a form that is not read proves nothing.
        forms = [form for form in forms if form.name not in hearing.deaf]
        self.forms = [form for form in self.forms if form.base not in hearing.deaf]
        if self.forms:
            # A form of the user's own may be as narrow as its pattern: there only the golds as they are must pass.
            known = [form for form in forms if form.base != "template"]
            rewritten = self.run(attacks.make_rewrite_cases(self.rows, known, by_value=self.kind == "math"))
            self.add_finding("rewrite", self.filter_refused(rewritten), len(rewritten))
        first = with_gold[0] if with_gold else 0
        wrong += self.ask_wrong(forms, first)
        worded = self.run(attacks.make_wording_cases(first, self.rows[first].gold, forms))
        echoes = self.run(attacks.make_echo_cases(self.rows))
        if not self.ignores_gold(wrong, golden, forms):
            leaked = self.find_leaks(echoes)
            wrong += [result for result in echoes if result not in leaked] + worded
            self.findings = find_causes(wrong, self.filter_passed(wrong), self.rows, hearing) + self.findings
            self.note_wording(worded)
        self.ask_chat(golden)

    def ask_golds(self, every: Sequence[AnswerForm]) -> list[CaseResult]:
        """Find the forms that are read; the golds of all rows must then be accepted in them. Returns the accepted results."""
        results = self.run(attacks.make_gold_cases(self.rows[:CALIBRATION_ROWS], every))
        self.refuse_if_hopeless(results)
        if self.options.threshold is None and not self.options.outcome:
            scores = [result.score for result in results if result.score is not None]
            self.threshold = max(scores, default=self.threshold) - 1e-9
        read = self.find_read_forms(results, every)
        self.demonstrations_count = "demonstration" in read
        rest = self.rows[CALIBRATION_ROWS:]
        results += self.run(attacks.make_gold_cases(rest, self.forms, self.demonstrations_count, CALIBRATION_ROWS))
        judged = [result for result in results if result.case.form in read]
        self.add_finding("form", self.filter_refused(judged), len(judged))
        self.note_surroundings(read, results)
        return self.filter_passed(judged)

    def note_surroundings(self, read: Collection[str], results: Sequence[CaseResult]) -> None:
        """A marker that is read alone but not with text around it."""
        bases = {form.name: form.base for form in attacks.list_forms(self.template)}
        missing = [
            result
            for result in results
            if result.case.form not in read and not result.fault and bases.get(result.case.form) in read
        ]
        if not self.profile:
            self.add_finding("surroundings", missing, level="note")

    def choose_forms(self) -> list[AnswerForm]:
        """The forms to attack in: the plainest of each marker that is read. Where none is, the usual ones."""
        chosen: dict[str, AnswerForm] = {}
        for form in self.forms:
            chosen.setdefault(form.base, form)
        usual = ("template", "boxed", "says", "bare")
        return list(chosen.values()) or [form for form in attacks.list_forms(self.template) if form.name in usual]

    def ask_wrong(self, forms: Sequence[AnswerForm], first: int) -> list[CaseResult]:
        """Everything that must not pass. `first` is the first row with a gold."""
        tolerance = self.bench.args.get("tolerance", 0.0)
        room = tolerance if isinstance(tolerance, int | float) else 0.0
        wrong = self.run(wrong_answers.make_alone_cases(self.rows, forms, room))
        accepted = {(result.case.row, result.case.answer or "") for result in self.filter_passed(wrong)}
        wrong += self.run(wrong_answers.make_beside_cases(self.rows, forms, accepted))
        wrong += self.run(attacks.make_question_cases(self.rows, forms))
        if self.demonstrations_count:
            wrong += self.run(self.make_other_demonstrations())
        count = min(3, len(self.rows))
        wrong += self.run([*attacks.make_empty_cases(count), *attacks.make_format_cases(count, forms)])
        wrong += self.run(attacks.make_bomb_cases(first, forms))
        wrong += self.ask_injections(first, forms)
        column = self.options.gold_column
        if column in self.bench.columns and (not self.bench.signature.reads or column in self.bench.list_asked()):
            wrong += self.run(attacks.make_missing_gold_cases(first, self.rows[first].gold, column, forms))
        return wrong

    def note_wording(self, worded: Sequence[CaseResult]) -> None:
        """Words that raise the score of a wrong answer, and not so far that it passes. The first of the results has none."""
        plain = next((result.score for result in worded if not result.fault), None)
        raised = [result for result in worded if not result.passes(self.threshold) and not result.fault]
        paid = [result for result in raised if None not in (plain, result.score) and result.score > plain + LEAST_PAID]  # type: ignore[operator]
        self.add_finding("wording", paid, len(worded), "note")

    def make_other_demonstrations(self) -> list[AuditCase]:
        """The demonstration of the row after: right there, wrong here."""
        return [
            AuditCase("other_row", "demonstration of another row", number, other.demonstration, "fail", "demonstration")
            for number, row in enumerate(self.rows)
            if (other := self.rows[(number + 1) % len(self.rows)]).demonstration
            and other.demonstration != row.demonstration
            and not golds.is_same_answer(other.gold, row.gold)
        ]

    def ignores_gold(self, wrong: Sequence[CaseResult], golden: Sequence[CaseResult], forms: Sequence[AnswerForm]) -> bool:
        """Whether the answers of other rows score as the row's own does; then that is the finding, and no single attack is."""
        tried = [result for result in wrong if result.case.attack == "other_row"]
        others = [result for result in tried if not result.fault]
        if not tried:
            self.remarks.append("all rows have the same gold: whether the score depends on it could not be seen")
            return False
        same = self.filter_passed(others)
        far = [result for result in wrong if result.case.attack == "far"]
        if not golden or not others or len(same) < 0.95 * len(others) or 2 * len(self.filter_passed(far)) < len(far):
            return False  # few rows may have answers that look alike to a reward that compares a part of them
        flaw, shown = self.find_what_counts(same, forms)
        level: Level = "flaw" if self.options.outcome else "note"
        self.findings.insert(0, make_finding(flaw, shown, self.rows, len(others), level))
        return True

    def find_what_counts(self, same: Sequence[CaseResult], forms: Sequence[AnswerForm]) -> tuple[str, list[CaseResult]]:
        """What a score that ignores the gold depends on: nothing, the length, the format, or something else."""
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
        return "ignores_gold", list(same)

    def find_leaks(self, echoes: Sequence[CaseResult]) -> list[CaseResult]:
        """Prompts that hold their own gold, behind a marker or so that repeating the prompt is rewarded."""
        whole = [result for result in echoes if golds.has_token(result.case.completion, self.rows[result.case.row].gold)]
        often = len(whole) * 2 >= len(echoes) and len(whole) > 1
        leaks = [
            result
            for result in whole
            if announces_gold(result.case.completion, self.rows[result.case.row].gold)
            or (often and result.passes(self.threshold))
        ]
        self.add_finding("leaked_gold", leaks, len(echoes))
        return leaks


def announces_gold(prompt: str, gold: str) -> bool:
    r"""Whether the prompt announces its own gold: "answer: 42", "the answer is 42", \boxed{42}, "#### 42", <answer>42."""
    marks = r"(?:answer|solution|result)\s*(?:is|:|=)\s*|\\boxed\{\s*|####\s*|<answer>\s*"
    return re.search(rf"(?:{marks})[$*\s]*{re.escape(gold)}(?!\w|[.,]\d)", prompt, re.IGNORECASE) is not None


def write_nonsense(letters: random.Random, size: int) -> str:
    """Letters with a space at every sixth place, so that texts of one size have equally many words."""
    return "".join(" " if place % 6 == 5 else letters.choice("bcdfghjklmnpqrstvwxz") for place in range(size))
