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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from cohort.tools.audit import golds
from cohort.tools.audit.findings import FLAWS, OF_ATTACK, Finding, finding_of
from cohort.tools.audit.running import Result, safe_text
from cohort.tools.audit.samples import AuditRow

Explains = Callable[[Result], bool]
Cause = tuple[str, Explains, Explains]
"""(flaw, results that only it lets through, results that it explains)."""
MISSED = 0.25
"""A rule of comparison may be wrong about so many results, as a share of the wrong answers that passed."""


@dataclass(frozen=True)
class Hearing:
    """What became of answers that have nothing in common with the gold, and of text that is no answer, form by form."""

    deaf: Collection[str] = ()
    """Forms in which both are rewarded: no answer is read from them."""
    pays: Collection[str] = ()
    """Forms in which text that is no answer is rewarded, while wrong answers are refused in some form."""


def hear(controls: Sequence[Result], threshold: float) -> Hearing:
    """controls: the results of wrong_answers.control_cases."""
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


def answer_findings(
    results: Sequence[Result], passed: Sequence[Result], rows: Sequence[AuditRow], hearing: Hearing
) -> list[Finding]:
    """The causes behind the wrong answers that passed."""

    def gold(result: Result) -> str:
        return rows[result.case.row].gold

    def text(result: Result) -> str:
        return safe_text(result.case.completion)

    def answer(result: Result) -> str:
        return result.case.answer or ""

    def unread(result: Result) -> bool:
        """Not a plain answer: for a number anything else, for text what stands in a form of which nothing is read."""
        if not result.case.form or (result.case.form in hearing.deaf):
            return True
        if golds.value_of(gold(result)) is None:
            return result.case.form in hearing.pays
        return golds.value_of(answer(result)) is None or not answer(result).isascii()

    def labelled(*labels: str) -> Explains:
        return lambda result: result.case.attack == "substring" and result.case.label in labels

    def attacks(*names: str) -> Explains:
        return lambda result: result.case.attack in names

    places: list[Cause] = [
        ("substring", labelled("inside"), lambda result: golds.contains(text(result), gold(result))),
        ("anywhere", attacks("middle", "spam"), lambda result: golds.has_token(text(result), gold(result))),
        ("first_answer", attacks("start", "first_of_two"), lambda result: golds.comes_first(text(result), gold(result))),
    ]
    ends: list[Cause] = [
        ("expression", begins, lambda result: answer(result).startswith(gold(result))),
        ("ending", labelled("digit before", "word before"), lambda result: answer(result).endswith(gold(result))),
    ]
    found: list[Finding] = []
    left = list(passed)
    tried = [result for result in results if result.case.expect == "fail"]

    def take(flaw: str, telling: Explains, explains: Explains) -> None:
        nonlocal left
        explained = [result for result in left if explains(result)]
        if explained:
            shown = sorted(explained, key=lambda result: not telling(result))
            found.append(finding_of(flaw, shown, rows, sum(explains(result) for result in tried)))
        taken = {id(result) for result in explained}
        left = [result for result in left if id(result) not in taken]

    def take_causes(causes: Sequence[Cause]) -> None:
        for flaw, telling, explains in causes:
            if share(tried, left, telling) >= 0.5:
                take(flaw, telling, lambda result, telling=telling, explains=explains: telling(result) or explains(result))  # type: ignore[misc]

    def take_rule(rules: Callable[[Pairs], Iterator[tuple[str, Compare]]]) -> None:
        if found_rule := find_rule(tried, left, rows, rules):
            flaw, rule = found_rule
            alone = attacks("near_miss", "expression", "substring", "part_of_gold")
            take(flaw, alone, lambda result: result.case.answer is not None and bool(rule(answer(result), gold(result))))

    if hearing.pays:
        take("failure_pays", attacks("format"), unread)
    take_rule(number_rules)
    take_causes(places)
    take_rule(text_rules)
    take_causes(ends)
    return together([*found, *leftover_findings(left, results, rows)])


def together(findings: Sequence[Finding]) -> list[Finding]:
    """Each flaw once: what a cause did not explain may have its name all the same."""
    by_flaw: dict[str, Finding] = {}
    for one in findings:
        if known := by_flaw.get(one.flaw):
            one = replace(known, count=known.count + one.count, tried=max(known.tried, known.count + one.count))
        by_flaw[one.flaw] = one
    return list(by_flaw.values())


def begins(result: Result) -> bool:
    """Attacks that only a reader of the beginning lets through: an expression, or a word, that goes on after the gold."""
    return result.case.attack == "expression" or (result.case.attack == "substring" and result.case.label == "word after")


def share(results: Iterable[Result], passed: Sequence[Result], telling: Explains) -> float:
    """How many of the inputs that tell passed."""
    asked = [result for result in results if telling(result)]
    ids = {id(result) for result in passed}
    return sum(id(result) in ids for result in asked) / len(asked) if asked else 0.0


# -- how an answer is compared -----------------------------------------------------------------------------------------

Pairs = Sequence[tuple[str, str]]
"""(answer, gold)."""
Compare = Callable[[str, str], bool | None]
"""(answer, gold) -> whether they count as the same; None where the rule says nothing of them."""
NOT_ALONE = ("unicode", "format", "bomb", "injection")
"""Attacks whose answers are odd in a way of their own: a rule may explain them, and is not found by them."""


def find_rule(
    tried: Sequence[Result],
    left: Sequence[Result],
    rows: Sequence[AuditRow],
    rules: Callable[[Pairs], Iterator[tuple[str, Compare]]],
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


def text_rules(passed: Pairs) -> Iterator[tuple[str, Compare]]:
    """Ways to compare a text by less than all of it."""

    for spelled in (str.strip, folded):
        yield from spelling_rules(spelled)
    for least in sorted({round(likeness(*pair), 2) for pair in passed}, reverse=True):
        yield "similar", lambda answer, gold, least=least: likeness(answer, gold) >= least - 0.005  # type: ignore[misc]


def folded(text: str) -> str:
    return text.strip().casefold()


def spelling_rules(spelled: Callable[[str], str]) -> Iterator[tuple[str, Compare]]:
    def plain(rule: Callable[[str, str], bool]) -> Compare:
        return lambda answer, gold: rule(spelled(answer), spelled(gold))

    yield "expression", plain(lambda answer, gold: answer.startswith(gold))
    yield "expression", plain(lambda answer, gold: lead(answer) == lead(gold) != "")
    yield "expression", plain(lambda answer, gold: all(a == b for a, b in zip(answer, gold, strict=False)))
    yield "ending", plain(lambda answer, gold: answer.endswith(gold))
    yield "part_of_gold", plain(lambda answer, gold: gold.startswith(answer))
    yield "part_of_gold", plain(lambda answer, gold: gold.endswith(answer))
    yield "part_of_gold", plain(lambda answer, gold: answer in gold)
    for size in range(1, 9):
        yield "expression", plain(lambda answer, gold, size=size: answer[:size] == gold[:size])  # type: ignore[misc]
        yield "ending", plain(lambda answer, gold, size=size: answer[-size:] == gold[-size:])  # type: ignore[misc]


def lead(text: str) -> str:
    """The whole number that a text begins with."""
    found = re.match(r"-?\d+", text)
    return found[0] if found else ""


@cache
def likeness(answer: str, gold: str) -> float:
    return difflib.SequenceMatcher(None, answer[:200].casefold(), gold[:200].casefold()).ratio()


def number_rules(passed: Pairs) -> Iterator[tuple[str, Compare]]:
    """Ways to compare numbers by less than all of them."""

    def number(rule: Callable[[Fraction, Fraction], bool]) -> Compare:
        def compare(answer: str, gold: str) -> bool | None:
            pair = numbers(answer, gold)
            return None if pair is None else rule(*pair)

        return compare

    pairs = [pair for texts in passed if (pair := numbers(*texts))]
    for cut in (math.trunc, math.floor, math.ceil):
        yield "whole_part", number(lambda value, gold, cut=cut: cut(value) == cut(gold))  # type: ignore[misc]
    for places in (0, 1, 2):
        yield "near_miss", number(lambda value, gold, n=places: round(float(value), n) == round(float(gold), n))  # type: ignore[misc]
    for digits in (1, 2, 3):
        yield "near_miss", number(lambda value, gold, n=digits: f"{float(value):.{n}g}" == f"{float(gold):.{n}g}")  # type: ignore[misc]
    for distance in sorted({abs(value - gold) for value, gold in pairs}):
        yield "near_miss", number(lambda value, gold, most=distance: abs(value - gold) <= most)  # type: ignore[misc]
    for ratio in sorted({abs(value - gold) / abs(gold) for value, gold in pairs if gold}):
        yield "near_miss", number(lambda value, gold, most=ratio: abs(value - gold) <= most * abs(gold))  # type: ignore[misc]
    for size in (10, 100, 1000):
        yield "ending", number(lambda value, gold, size=size: value % size == gold % size)  # type: ignore[misc]


@cache
def numbers(answer: str, gold: str) -> tuple[Fraction, Fraction] | None:
    value, wanted = golds.value_of(answer), golds.value_of(gold)
    return None if value is None or wanted is None else (value, wanted)


# -- what is left ------------------------------------------------------------------------------------------------------


def code_findings(results: Sequence[Result], passed: Sequence[Result], rows: Sequence[AuditRow]) -> list[Finding]:
    """The causes behind the programs that passed. One that prints and then exits is the exit's doing where exits pass."""
    exits = any(result.case.attack == "exit" for result in passed)
    cause = "exit" if exits else "stdout"
    named = [
        replace(result, case=replace(result.case, attack=cause)) if result.case.attack == "print_and_exit" else result
        for result in passed
    ]
    return leftover_findings(named, results, rows)


def leftover_findings(left: Sequence[Result], results: Sequence[Result], rows: Sequence[AuditRow]) -> list[Finding]:
    by_flaw: dict[str, list[Result]] = {}
    for result in left:
        by_flaw.setdefault(OF_ATTACK.get(result.case.attack, result.case.attack), []).append(result)
    tried: dict[str, int] = {}
    for result in results:
        flaw = OF_ATTACK.get(result.case.attack, result.case.attack)
        tried[flaw] = tried.get(flaw, 0) + 1
    order = list(FLAWS)
    return [
        finding_of(flaw, group, rows, tried.get(flaw, 0))
        for flaw, group in sorted(by_flaw.items(), key=lambda item: order.index(item[0]))
    ]
