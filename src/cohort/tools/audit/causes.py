"""Finds the flaws that explain why wrong answers passed: the causes first, widest first; other results are named by their attack.

One flaw lets many attacks through: a reward that searches for the reference answer anywhere in the text also accepts hedges, lists
and thoughts. So each cause takes the results it explains. A cause is confirmed if the attacks that only it lets through passed: for
"substring", the answer inside a longer number. The comparison is inferred from all wrong answers at once, by the rule that best
predicts which of them pass. If unreadable text is rewarded, other results that passed prove little and are not distinguished.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import NamedTuple

from cohort.observe.diagnosis.finding import Finding
from cohort.tools.audit.reference_answers import contains_reference, has_token, is_first_answer, read_number
from cohort.tools.audit.report import ATTACK_FLAWS, make_finding, make_findings
from cohort.tools.audit.running import AuditCase, AuditRow, CaseResult
from cohort_verify.text import text_of

Explains = Callable[[AuditCase, str], bool]
"""(case, reference answer of its row) -> whether a cause lets the case through."""
MISSED = 0.25
"""Largest number of wrong predictions of a rule, as a share of the wrong answers that passed."""


@dataclass(frozen=True)
class Reading:
    """How the reward reads each form, from unrelated wrong answers and from nonsense."""

    unread: Collection[str] = ()
    """Forms in which both are rewarded: the reward reads no answer from them."""
    pays: Collection[str] = ()
    """Forms in which nonsense is rewarded, although wrong answers are refused in some form."""

    def cannot_read(self, case: AuditCase, right: str) -> bool:
        """Whether the reward probably cannot read the case: it is not a plain number if the right answer is one, or its form is
        unread."""
        if not case.form or case.form in self.unread:
            return True
        if read_number(right) is None:
            return case.form in self.pays
        answer = case.answer or ""
        return read_number(answer) is None or not answer.isascii()


def measure_reading(controls: Sequence[CaseResult], threshold: float) -> Reading:
    """How the reward reads each form. controls: the results of attacks.make_control_cases."""
    forms = {result.case.form for result in controls}
    passed = {(result.case.form, result.case.attack) for result in controls if result.passes(threshold)}
    unread = {form for form in forms if (form, "far") in passed}
    # If wrong answers are rewarded in every form, the score ignores the reference answer: another flaw.
    nonsense: dict[tuple[str, int], list[bool]] = {}
    for result in controls:
        if result.case.attack == "format":
            nonsense.setdefault((result.case.form, result.case.row), []).append(result.passes(threshold))
    pays = {form for (form, _), passes in nonsense.items() if all(passes)} if unread != forms else set()
    return Reading(unread & pays, pays)


class Cause(NamedTuple):
    """A flaw that can explain why wrong answers passed."""

    flaw: str
    attacks: Collection[str]
    """Attacks that only it lets through; or labels of the attack "substring"."""
    explains: Explains

    def shows(self, case: AuditCase) -> bool:
        return case.attack in self.attacks or (case.attack == "substring" and case.label in self.attacks)


PLACES = (
    Cause("substring", ("inside",), lambda case, right: contains_reference(text_of(case.completion), right)),
    Cause("anywhere", ("middle", "spam"), lambda case, right: has_token(text_of(case.completion), right)),
    Cause("first_answer", ("start", "first_of_two"), lambda case, right: is_first_answer(text_of(case.completion), right)),
)
"""Flaws of the search for the answer."""
ENDS = (
    Cause("expression", ("expression", "word after"), lambda case, right: (case.answer or "").startswith(right)),
    Cause("ending", ("digit before", "word before"), lambda case, right: (case.answer or "").endswith(right)),
)
"""Flaws that compare only one end of the answer."""
COMPARED_ALONE = ("near_miss", "expression", "substring", "part_of_reference")
"""Attacks with a single answer that resembles the right one."""


class CauseFinder:
    """Assigns the wrong answers that passed to causes, one cause after the other."""

    def __init__(self, results: Sequence[CaseResult], passed: Sequence[CaseResult], rows: Sequence[AuditRow]) -> None:
        self.results, self.rows, self.left = results, rows, list(passed)
        self.tried = [result for result in results if result.case.expect == "fail"]
        self.found: list[Finding] = []

    def take_explained(self, cause: Cause, with_attacks: bool = False) -> None:
        """Make a finding of the results that the cause explains; with_attacks: and of all results of its own attacks."""

        def is_explained(result: CaseResult) -> bool:
            own = with_attacks and cause.shows(result.case)
            return own or cause.explains(result.case, self.rows[result.case.row].reference)

        explained = sorted(filter(is_explained, self.left), key=lambda result: not cause.shows(result.case))
        if explained:
            self.found.append(make_finding(cause.flaw, explained, self.rows, sum(map(is_explained, self.tried))))
        self.left = [result for result in self.left if not is_explained(result)]

    def take_causes(self, causes: Sequence[Cause]) -> None:
        """Take each cause if at least half of its own attacks passed."""
        for cause in causes:
            own = [result for result in self.tried if cause.shows(result.case)]
            left = {id(result) for result in self.left}
            if own and sum(id(result) in left for result in own) >= 0.5 * len(own):
                self.take_explained(cause, with_attacks=True)

    def take_rule(self, rules: Rules) -> None:
        """Take the rule that best predicts which wrong answers pass, if any."""
        if found := find_rule(self.tried, self.left, self.rows, rules):
            flaw, rule = found
            self.take_explained(
                Cause(flaw, COMPARED_ALONE, lambda case, right: case.answer is not None and bool(rule(case.answer, right)))
            )


def find_causes(
    results: Sequence[CaseResult], passed: Sequence[CaseResult], rows: Sequence[AuditRow], reading: Reading
) -> list[Finding]:
    """One finding for each flaw that explains wrong answers that passed. An unexplained result may add to a cause of the same name."""
    finder = CauseFinder(results, passed, rows)
    if reading.pays:
        finder.take_explained(Cause("failure_pays", ("format",), reading.cannot_read))
    finder.take_rule(list_number_rules)
    finder.take_causes(PLACES)
    finder.take_rule(list_text_rules)
    finder.take_causes(ENDS)
    by_flaw: dict[str, Finding] = {}
    for finding in [*finder.found, *name_by_attack(finder.left, results, rows)]:
        if known := by_flaw.get(finding.name):
            count = known.count + finding.count
            finding = replace(known, count=count, tried=max(known.tried, count))
        by_flaw[finding.name] = finding
    return list(by_flaw.values())


# -- rules of comparison -----------------------------------------------------------------------------------------------

Pairs = Sequence[tuple[str, str]]
"""(answer, right answer)."""
Compare = Callable[[str, str], bool | None]
"""(answer, right answer) -> whether they count as equal; None if the rule does not apply."""
Rules = Callable[[Pairs], Iterator[tuple[str, Compare]]]
"""Wrong answers that passed -> (flaw, rule) of every rule that may have let them through."""
NOT_ALONE = ("unicode", "format", "bomb", "injection")
"""Attacks with unusual answers: a rule may explain them, but is not inferred from them."""


def find_rule(
    tried: Sequence[CaseResult], left: Sequence[CaseResult], rows: Sequence[AuditRow], rules: Rules
) -> tuple[str, Compare] | None:
    """(flaw, rule) that best predicts which single wrong answers pass, the first of equal ones; None if no rule is good enough."""
    ids = {id(result) for result in left}
    alone = [
        (result.case.answer, rows[result.case.row].reference, id(result) in ids)
        for result in tried
        if result.case.answer and result.case.attack not in NOT_ALONE
    ]
    best, found = 0, None
    for flaw, rule in rules([(answer, right) for answer, right, passes in alone if passes]):
        pairs = [(predicted, passes) for answer, right, passes in alone if (predicted := rule(answer, right)) is not None]
        hits = sum(predicted and passes for predicted, passes in pairs)
        false = sum(predicted and not passes for predicted, passes in pairs)
        missed = sum(predicted != passes for predicted, passes in pairs)
        if missed <= MISSED * sum(passes for _, passes in pairs) and hits - 2 * false > best:
            best, found = hits - 2 * false, (flaw, rule)
    return found


def list_text_rules(passed: Pairs) -> Iterator[tuple[str, Compare]]:
    """Rules that compare only a part of the texts, case-sensitive and not."""

    def compare(rule: Callable[[str, str], bool], spelled: Callable[[str], str], answer: str, right: str) -> bool:
        return rule(spelled(answer), spelled(right))

    for spelled in (str.strip, lambda text: text.strip().casefold()):
        for flaw, rule in list_part_rules():
            yield flaw, partial(compare, rule, spelled)
    for least in sorted({round(measure_likeness(*pair), 2) for pair in passed}, reverse=True):
        yield "similar", lambda answer, right, least=least: measure_likeness(answer, right) >= least - 0.005  # type: ignore[misc]


def read_leading_number(text: str) -> str:
    """The whole number that a text begins with."""
    found = re.match(r"-?\d+", text)
    return found[0] if found else ""


def list_part_rules() -> Iterator[tuple[str, Callable[[str, str], bool]]]:
    yield "expression", str.startswith
    yield "expression", lambda answer, right: read_leading_number(answer) == read_leading_number(right) != ""
    yield "expression", lambda answer, right: all(a == b for a, b in zip(answer, right, strict=False))
    yield "ending", str.endswith
    yield "part_of_reference", lambda answer, right: right.startswith(answer)
    yield "part_of_reference", lambda answer, right: right.endswith(answer)
    yield "part_of_reference", lambda answer, right: answer in right
    for size in range(1, 9):
        yield "expression", lambda answer, right, size=size: answer[:size] == right[:size]  # type: ignore[misc]
        yield "ending", lambda answer, right, size=size: answer[-size:] == right[-size:]  # type: ignore[misc]


@cache
def measure_likeness(answer: str, right: str) -> float:
    return difflib.SequenceMatcher(None, answer[:200].casefold(), right[:200].casefold()).ratio()


def list_number_rules(passed: Pairs) -> Iterator[tuple[str, Compare]]:
    """Rules that compare numbers only in part or approximately."""

    def compare_numbers(rule: Callable[[Fraction, Fraction], bool]) -> Compare:
        def compare(answer: str, right: str) -> bool | None:
            pair = read_numbers(answer, right)
            return None if pair is None else rule(*pair)

        return compare

    pairs = [pair for texts in passed if (pair := read_numbers(*texts))]
    for cut in (math.trunc, math.floor, math.ceil):
        yield "whole_part", compare_numbers(lambda a, b, cut=cut: cut(a) == cut(b))  # type: ignore[misc]
    for places in (0, 1, 2):
        yield "near_miss", compare_numbers(lambda a, b, n=places: round(float(a), n) == round(float(b), n))  # type: ignore[misc]
    for digits in (1, 2, 3):
        yield "near_miss", compare_numbers(lambda a, b, n=digits: f"{float(a):.{n}g}" == f"{float(b):.{n}g}")  # type: ignore[misc]
    for distance in sorted({abs(a - b) for a, b in pairs}):
        yield "near_miss", compare_numbers(lambda a, b, most=distance: abs(a - b) <= most)  # type: ignore[misc]
    for ratio in sorted({abs(a - b) / abs(b) for a, b in pairs if b}):
        yield "near_miss", compare_numbers(lambda a, b, most=ratio: abs(a - b) <= most * abs(b))  # type: ignore[misc]
    for size in (10, 100, 1000):
        yield "ending", compare_numbers(lambda a, b, size=size: a % size == b % size)  # type: ignore[misc]


@cache
def read_numbers(answer: str, right: str) -> tuple[Fraction, Fraction] | None:
    value, wanted = read_number(answer), read_number(right)
    return None if value is None or wanted is None else (value, wanted)


# -- names by attack ---------------------------------------------------------------------------------------------------


def find_code_causes(results: Sequence[CaseResult], passed: Sequence[CaseResult], rows: Sequence[AuditRow]) -> list[Finding]:
    """The flaws that let programs pass. A program that prints and exits counts as "exit" if other exits passed."""
    cause = "exit" if any(result.case.attack == "exit" for result in passed) else "stdout"
    named = [
        replace(result, case=replace(result.case, attack=cause)) if result.case.attack == "print_and_exit" else result
        for result in passed
    ]
    return name_by_attack(named, results, rows)


def name_by_attack(left: Sequence[CaseResult], results: Sequence[CaseResult], rows: Sequence[AuditRow]) -> list[Finding]:
    def name_flaw(result: CaseResult) -> str:
        return ATTACK_FLAWS.get(result.case.attack, result.case.attack)

    return make_findings(((name_flaw(result), result) for result in left), rows, Counter(map(name_flaw, results)))
