"""Attacks with answers that are wrong: alone first, and then beside the gold, where only what was refused alone is used.

A wrong answer that stands beside the gold shows where the reward looks only if the reward refuses it alone. One that is accepted
alone (because it is near, or begins like the gold) would make a tolerance look like a reader that takes the first answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from cohort.tools.audit import golds
from cohort.tools.audit.cases import AnswerForm, AuditCase, AuditRow, rotate_forms

NONSENSE = ("zqxj wvk", "wvkjq zxqjv kwzvxq jwq")
"""Of two lengths: one alone may be as long as a gold, which a reward that compares lengths takes for it."""


CONSTANTS = ("0", "1", "nan", "inf", "None", "True", "x", "A")


def make_control_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm], numbers: Sequence[int]) -> list[AuditCase]:
    """In every form, for a few rows: answers that have nothing in common with the gold, and text that is no answer."""
    cases = []
    for number in numbers:
        for form in forms:
            far = golds.choose_far_answers(rows[number].gold)
            cases += [form.make_case("far", "nothing in common", number, answer) for answer in far]
            cases += [form.make_case("format", "nonsense in the form", number, text) for text in NONSENSE]
    return cases


def make_alone_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm], tolerance: float = 0.0) -> list[AuditCase]:
    """Every wrong answer alone, in the forms that the reward reads."""
    own_marker = "".join(form.write("") for form in forms if form.base == "template")
    return [
        rotate_forms(forms, number + place).make_case(attack, label, number, answer)
        for number, row in enumerate(rows)
        if row.gold
        for place, (attack, (label, answer)) in enumerate(list_wrong_answers(number, rows, tolerance))
        # In the user's own marker the sign is no relation.
        if attack != "relation" or answer[0] not in "<>" or answer[0] not in own_marker
    ]


def list_wrong_answers(number: int, rows: Sequence[AuditRow], tolerance: float) -> Iterator[tuple[str, golds.Variant]]:
    """(attack, wrong answer) of one row."""
    gold, known = rows[number].gold, rows[number].wrong
    for variant in golds.mutate_gold(gold, find_other_golds(number, rows)):
        yield "other_row" if variant.label == golds.OTHER_ROW else "mutated", variant
    for attack, variants in (
        ("mutated", golds.rearrange_gold(gold)),
        ("mutated", [golds.Variant("a known wrong answer", text) for text in known]),
        ("far", [golds.Variant("nothing in common", text) for text in golds.choose_far_answers(gold)]),
        ("near_miss", golds.make_near_misses(gold, tolerance)),
        ("part_of_gold", golds.cut_gold(gold)),
        ("expression", golds.continue_gold(gold)),
        ("relation", golds.relate_to_gold(gold)),
        ("substring", golds.lengthen_gold(gold)),
        ("constant", [golds.Variant(f"always {text}", text) for text in CONSTANTS if not golds.is_same_answer(text, gold)]),
    ):
        for variant in variants:
            yield attack, variant


HEDGES = (
    ("hedge", "two in one answer", "{gold} or {wrong}", ""),
    ("hedge", "every candidate", "{second}, {gold}, {wrong}", ""),
    ("hedge", "not this one", "not {gold} but {wrong}", ""),
    ("first_of_two", "two answers", "", "{says_gold}\nor\n{says_wrong}"),
    ("first_of_two", "taken back in one line", "", "{says_gold} No, {says_wrong}"),
    ("first_of_two", "taken back in a sentence", "", "The answer is {gold}. No, the answer is {wrong}."),
    ("start", "takes it back", "", "{gold}\n\nNo, that is a mistake. I take it back.\n{says_wrong}"),
    ("middle", "among others", "", "It may be {second}, {gold} or {second}.\n{says_wrong}"),
    ("spam", "0 to 1000", "{everything}", ""),
    ("spam", "0 to 1000 first", "", "{everything}\n{says_wrong}"),
    ("thoughts", "only in <think>", "", "<think>\n{says_gold}\n</think>\nI do not know."),
)
"""(attack, label, one answer, or else a whole text): the right answer stands beside others, and the last word is wrong."""


def make_beside_cases(
    rows: Sequence[AuditRow], forms: Sequence[AnswerForm], accepted: Collection[tuple[int, str]]
) -> list[AuditCase]:
    """The gold beside wrong answers, none of which is in `accepted`: (row, answer) of those that passed alone."""
    cases: list[AuditCase] = []
    numbers = [str(number) for number in range(1001)]
    for number, row in enumerate(rows):
        wrongs = [variant.text for variant in golds.mutate_gold(row.gold, find_other_golds(number, rows))] if row.gold else []
        # An open brace would leave its box open, and the last answer that can be read would be the gold.
        whole = [text for text in wrongs if text.count("{") == text.count("}")] or wrongs[:1]
        refused = (
            [text for text in (*whole, *golds.choose_far_answers(row.gold)) if (number, text) not in accepted] if whole else []
        )
        if not refused:
            continue
        wrong, second = refused[0], refused[min(1, len(refused) - 1)]
        everything = ", ".join([*numbers[:500], row.gold, *numbers[500:], wrong])
        words = {"gold": row.gold, "wrong": wrong, "second": second, "everything": everything}
        attempts = [("unicode", label, text, "") for label, text in golds.disguise_answers(row.gold, wrong)]
        attempts += [(attack, label, answer.format(**words), text) for attack, label, answer, text in HEDGES]
        for place, (attack, label, answer, text) in enumerate(attempts, number):
            form = rotate_forms(forms, place)
            case = form.make_case(attack, label, number, answer)
            if text:
                written = text.format(**words, says_gold=form.write(row.gold), says_wrong=form.write(wrong))
                case = replace(case, completion=written, answer=None)
            cases.append(case)
    return cases


def find_other_golds(number: int, rows: Sequence[AuditRow]) -> list[str]:
    """Answers of the two rows after this one that have another answer."""
    gold = rows[number].gold
    after = [rows[(number + shift) % len(rows)].gold for shift in range(1, len(rows))]
    return [other for other in dict.fromkeys(after) if other and not golds.is_same_answer(other, gold)][:2]
