"""Which flaw explains the wrong answers that passed: the causes first, from the widest on, then what is left by its attack.

One flaw lets many attacks through: a reward that looks for the gold anywhere in the text also falls for hedges, lists and
thoughts. So each cause takes the results it explains. A cause holds where the attacks that only it lets through passed: a
gold inside a longer number for a substring. How an answer is compared is read from all wrong answers at once, by the rule
that foretells best which of them pass. Where failing pays, what else passed proves little, and is not told apart.
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
from cohort.tools.audit import golds
from cohort.tools.audit.cases import AuditCase, AuditRow, CaseResult, safe_text
from cohort.tools.audit.findings import ATTACK_FLAWS, make_finding, make_findings

Explains = Callable[[AuditCase, str], bool]
"""(case, gold of its row) -> whether a cause lets the case through."""
MISSED = 0.25
"""A rule of comparison may be wrong about so many results, as a share of the wrong answers that passed."""


@dataclass(frozen=True)
class Hearing:
    """What became of answers that have nothing in common with the gold, and of text that is no answer, form by form."""

    deaf: Collection[str] = ()
    """Forms in which both are rewarded: no answer is read from them."""
    pays: Collection[str] = ()
    """Forms in which text that is no answer is rewarded, while wrong answers are refused in some form."""

    def cannot_read(self, case: AuditCase, gold: str) -> bool:
        """Whether the case is no plain answer: for a number anything else, for text what stands in a form that is not read."""
        if not case.form or case.form in self.deaf:
            return True
        if golds.read_number(gold) is None:
            return case.form in self.pays
        answer = case.answer or ""
        return golds.read_number(answer) is None or not answer.isascii()


def measure_hearing(controls: Sequence[CaseResult], threshold: float) -> Hearing:
    """controls: the results of wrong_answers.make_control_cases."""
    forms = {result.case.form for result in controls}
    passed = {(result.case.form, result.case.attack) for result in controls if result.passes(threshold)}
    deaf = {form for form in forms if (form, "far") in passed}
    # Where wrong answers are rewarded in every form, the score does not depend on the gold: another matter.
    nonsense: dict[tuple[str, int], list[bool]] = {}
    for result in controls:
        if result.case.attack == "format":
            nonsense.setdefault((result.case.form, result.case.row), []).append(result.passes(threshold))
    pays = {form for (form, _), passes in nonsense.items() if all(passes)} if deaf != forms else set()
    return Hearing(deaf & pays, pays)


class Cause(NamedTuple):
    """A flaw that explains why wrong answers passed."""

    flaw: str
    attacks: Collection[str]
    """Attacks that only it lets through; or labels of the attack "substring"."""
    explains: Explains

    def shows(self, case: AuditCase) -> bool:
        return case.attack in self.attacks or (case.attack == "substring" and case.label in self.attacks)


PLACES = (
    Cause("substring", ("inside",), lambda case, gold: golds.contains_gold(safe_text(case.completion), gold)),
    Cause("anywhere", ("middle", "spam"), lambda case, gold: golds.has_token(safe_text(case.completion), gold)),
    Cause(
        "first_answer", ("start", "first_of_two"), lambda case, gold: golds.is_first_answer(safe_text(case.completion), gold)
    ),
)
"""Where the answer is looked for."""
ENDS = (
    Cause("expression", ("expression", "word after"), lambda case, gold: (case.answer or "").startswith(gold)),
    Cause("ending", ("digit before", "word before"), lambda case, gold: (case.answer or "").endswith(gold)),
)
"""Which end of the answer is compared. What goes on after the gold passes a reader of the beginning."""
COMPARED_ALONE = ("near_miss", "expression", "substring", "part_of_gold")
"""Attacks with one answer that has much in common with the gold."""


class CauseFinder:
    """Takes the wrong answers that passed cause by cause; what is left is named by its attack."""

    def __init__(self, results: Sequence[CaseResult], passed: Sequence[CaseResult], rows: Sequence[AuditRow]) -> None:
        self.results, self.rows, self.left = results, rows, list(passed)
        self.tried = [result for result in results if result.case.expect == "fail"]
        self.found: list[Finding] = []

    def take_explained(self, cause: Cause, with_attacks: bool = False) -> None:
        """What the cause explains becomes its finding; with_attacks: whatever passed of its own attacks too."""

        def is_explained(result: CaseResult) -> bool:
            own = with_attacks and cause.shows(result.case)
            return own or cause.explains(result.case, self.rows[result.case.row].gold)

        explained = sorted(filter(is_explained, self.left), key=lambda result: not cause.shows(result.case))
        if explained:
            self.found.append(make_finding(cause.flaw, explained, self.rows, sum(map(is_explained, self.tried))))
        self.left = [result for result in self.left if not is_explained(result)]

    def take_causes(self, causes: Sequence[Cause]) -> None:
        """Those of the causes of whose own attacks at least half passed."""
        for cause in causes:
            asked = [result for result in self.tried if cause.shows(result.case)]
            left = {id(result) for result in self.left}
            if asked and sum(id(result) in left for result in asked) >= 0.5 * len(asked):
                self.take_explained(cause, with_attacks=True)

    def take_rule(self, rules: Rules) -> None:
        """The rule of comparison that foretells best which wrong answers pass, where one does."""
        if found := find_rule(self.tried, self.left, self.rows, rules):
            flaw, rule = found
            self.take_explained(
                Cause(flaw, COMPARED_ALONE, lambda case, gold: case.answer is not None and bool(rule(case.answer, gold)))
            )


def find_causes(
    results: Sequence[CaseResult], passed: Sequence[CaseResult], rows: Sequence[AuditRow], hearing: Hearing
) -> list[Finding]:
    """The causes behind the wrong answers that passed, each flaw once: what no cause explains may have the name of one."""
    finder = CauseFinder(results, passed, rows)
    if hearing.pays:
        finder.take_explained(Cause("failure_pays", ("format",), hearing.cannot_read))
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


# -- how an answer is compared -----------------------------------------------------------------------------------------

Pairs = Sequence[tuple[str, str]]
"""(answer, gold)."""
Compare = Callable[[str, str], bool | None]
"""(answer, gold) -> whether they count as the same; None where the rule says nothing of them."""
Rules = Callable[[Pairs], Iterator[tuple[str, Compare]]]
"""Wrong answers that passed -> (flaw, rule) of every rule that may have let them through."""
NOT_ALONE = ("unicode", "format", "bomb", "injection")
"""Attacks whose answers are odd in a way of their own: a rule may explain them, and is not found by them."""


def find_rule(
    tried: Sequence[CaseResult], left: Sequence[CaseResult], rows: Sequence[AuditRow], rules: Rules
) -> tuple[str, Compare] | None:
    """(flaw, rule) of the rule that foretells best which wrong answers pass alone; None where none does. Of equals, the first."""
    ids = {id(result) for result in left}
    alone = [
        (result.case.answer, rows[result.case.row].gold, id(result) in ids)
        for result in tried
        if result.case.answer and result.case.attack not in NOT_ALONE
    ]
    best, found = 0, None
    for flaw, rule in rules([(answer, gold) for answer, gold, passes in alone if passes]):
        said = [(foretold, passes) for answer, gold, passes in alone if (foretold := rule(answer, gold)) is not None]
        hits = sum(foretold and passes for foretold, passes in said)
        false = sum(foretold and not passes for foretold, passes in said)
        missed = sum(foretold != passes for foretold, passes in said)
        if missed <= MISSED * sum(passes for _, passes in said) and hits - 2 * false > best:
            best, found = hits - 2 * false, (flaw, rule)
    return found


def list_text_rules(passed: Pairs) -> Iterator[tuple[str, Compare]]:
    """Ways to compare a text by less than all of it, with and without regard to case."""

    def compare(rule: Callable[[str, str], bool], spelled: Callable[[str], str], answer: str, gold: str) -> bool:
        return rule(spelled(answer), spelled(gold))

    for spelled in (str.strip, lambda text: text.strip().casefold()):
        for flaw, rule in list_part_rules():
            yield flaw, partial(compare, rule, spelled)
    for least in sorted({round(measure_likeness(*pair), 2) for pair in passed}, reverse=True):
        yield "similar", lambda answer, gold, least=least: measure_likeness(answer, gold) >= least - 0.005  # type: ignore[misc]


def read_leading_number(text: str) -> str:
    """The whole number that a text begins with."""
    found = re.match(r"-?\d+", text)
    return found[0] if found else ""


def list_part_rules() -> Iterator[tuple[str, Callable[[str, str], bool]]]:
    yield "expression", str.startswith
    yield "expression", lambda answer, gold: read_leading_number(answer) == read_leading_number(gold) != ""
    yield "expression", lambda answer, gold: all(a == b for a, b in zip(answer, gold, strict=False))
    yield "ending", str.endswith
    yield "part_of_gold", lambda answer, gold: gold.startswith(answer)
    yield "part_of_gold", lambda answer, gold: gold.endswith(answer)
    yield "part_of_gold", lambda answer, gold: answer in gold
    for size in range(1, 9):
        yield "expression", lambda answer, gold, size=size: answer[:size] == gold[:size]  # type: ignore[misc]
        yield "ending", lambda answer, gold, size=size: answer[-size:] == gold[-size:]  # type: ignore[misc]


@cache
def measure_likeness(answer: str, gold: str) -> float:
    return difflib.SequenceMatcher(None, answer[:200].casefold(), gold[:200].casefold()).ratio()


def list_number_rules(passed: Pairs) -> Iterator[tuple[str, Compare]]:
    """Ways to compare numbers by less than all of them."""

    def compare_numbers(rule: Callable[[Fraction, Fraction], bool]) -> Compare:
        def compare(answer: str, gold: str) -> bool | None:
            pair = read_numbers(answer, gold)
            return None if pair is None else rule(*pair)

        return compare

    pairs = [pair for texts in passed if (pair := read_numbers(*texts))]
    for cut in (math.trunc, math.floor, math.ceil):
        yield "whole_part", compare_numbers(lambda value, gold, cut=cut: cut(value) == cut(gold))  # type: ignore[misc]
    for places in (0, 1, 2):
        yield "near_miss", compare_numbers(lambda value, gold, n=places: round(float(value), n) == round(float(gold), n))  # type: ignore[misc]
    for digits in (1, 2, 3):
        yield "near_miss", compare_numbers(lambda value, gold, n=digits: f"{float(value):.{n}g}" == f"{float(gold):.{n}g}")  # type: ignore[misc]
    for distance in sorted({abs(value - gold) for value, gold in pairs}):
        yield "near_miss", compare_numbers(lambda value, gold, most=distance: abs(value - gold) <= most)  # type: ignore[misc]
    for ratio in sorted({abs(value - gold) / abs(gold) for value, gold in pairs if gold}):
        yield "near_miss", compare_numbers(lambda value, gold, most=ratio: abs(value - gold) <= most * abs(gold))  # type: ignore[misc]
    for size in (10, 100, 1000):
        yield "ending", compare_numbers(lambda value, gold, size=size: value % size == gold % size)  # type: ignore[misc]


@cache
def read_numbers(answer: str, gold: str) -> tuple[Fraction, Fraction] | None:
    value, wanted = golds.read_number(answer), golds.read_number(gold)
    return None if value is None or wanted is None else (value, wanted)


# -- what is left ------------------------------------------------------------------------------------------------------


def find_code_causes(results: Sequence[CaseResult], passed: Sequence[CaseResult], rows: Sequence[AuditRow]) -> list[Finding]:
    """The causes behind the programs that passed. One that prints and then exits is the exit's doing where exits pass."""
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
