"""Attacks with answers that are wrong: alone first, and then beside the gold, where only what was refused alone is used.

A wrong answer that stands beside the gold shows where the reward looks only if the reward refuses it alone. One that is accepted
alone (because it is near, or begins like the gold) would make a tolerance look like a reader that takes the first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from cohort.tools.audit import golds
from cohort.tools.audit.attacks import Case, Form, rotate
from cohort.tools.audit.samples import AuditRow

NONSENSE = ("zqxj wvk", "wvkjq zxqjv kwzvxq jwq")
"""Of two lengths: one alone may be as long as a gold, which a reward that compares lengths takes for it."""


def control_cases(rows: Sequence[AuditRow], forms: Sequence[Form], numbers: Sequence[int]) -> list[Case]:
    """In every form, for a few rows: answers that have nothing in common with the gold, and text that is no answer."""
    cases = []
    for number in numbers:
        for form in forms:
            for answer in golds.far(rows[number].gold):
                cases.append(Case("far", "nothing in common", number, form.write(answer), "fail", form.name, answer=answer))
            for text in NONSENSE:
                cases.append(Case("format", "nonsense in the form", number, form.write(text), "fail", form.name, answer=text))
    return cases


def alone_cases(rows: Sequence[AuditRow], forms: Sequence[Form], tolerance: float = 0.0) -> list[Case]:
    """Every wrong answer alone, in the forms that the reward reads."""
    cases: list[Case] = []
    own_marker = "".join(form.write("") for form in forms if form.base == "template")
    for number, row in enumerate(rows):
        if not row.gold:
            continue
        for place, (attack, variant) in enumerate(wrong_answers(number, rows, tolerance)):
            form = rotate(forms, number + place)
            answer = variant.text
            if attack == "relation" and answer[0] in "<>" and answer[0] in own_marker:
                continue  # in the user's own marker the sign is no relation
            cases.append(Case(attack, variant.label, number, form.write(answer), "fail", form.name, answer=answer))
    return cases


def wrong_answers(number: int, rows: Sequence[AuditRow], tolerance: float) -> Iterator[tuple[str, golds.Variant]]:
    """(attack, wrong answer) of one row."""
    row = rows[number]
    gold = row.gold
    for variant in golds.mutations(gold, other_golds(number, rows)):
        yield "other_row" if variant.label == "answer of another row" else "mutated", variant
    for variant in golds.rearranged(gold):
        yield "mutated", variant
    for text in row.wrong:
        yield "mutated", golds.Variant("a known wrong answer", text)
    for text in golds.far(gold):
        yield "far", golds.Variant("nothing in common", text)
    for attack, variants in (
        ("near_miss", golds.near_misses(gold, tolerance)),
        ("part_of_gold", golds.parts(gold)),
        ("expression", golds.continued(gold)),
        ("relation", golds.related(gold)),
        ("substring", golds.longer(gold)),
    ):
        for variant in variants:
            yield attack, variant
    for constant in ("0", "1", "nan", "inf", "None", "True", "x", "A"):
        if not golds.same(constant, gold):
            yield "constant", golds.Variant(f"always {constant}", constant)


def beside_cases(rows: Sequence[AuditRow], forms: Sequence[Form], accepted: Collection[tuple[int, str]]) -> list[Case]:
    """The gold beside wrong answers, none of which is in `accepted`: (row, answer) of those that passed alone."""
    cases: list[Case] = []
    for number, row in enumerate(rows):
        wrongs = [variant.text for variant in golds.mutations(row.gold, other_golds(number, rows))] if row.gold else []
        # An open brace would leave its box open, and the last answer that can be read would be the gold.
        whole = [text for text in wrongs if text.count("{") == text.count("}")] or wrongs[:1]
        refused = [text for text in (*whole, *golds.far(row.gold)) if (number, text) not in accepted] if whole else []
        if not refused:
            continue
        wrong, second = refused[0], refused[min(1, len(refused) - 1)]
        attempts: list[Attempt] = [("unicode", one.label, plainly, one.text) for one in golds.disguised(row.gold, wrong)]
        for place, (attack, label, write, answer) in enumerate([*attempts, *hedges(row.gold, wrong, second)]):
            form = rotate(forms, number + place)
            single = answer if write is plainly else None
            cases.append(Case(attack, label, number, write(form, answer), "fail", form.name, answer=single))
    return cases


def plainly(form: Form, answer: str) -> str:
    return form.write(answer)


Attempt = tuple[str, str, Callable[[Form, str], str], str]
"""(attack, label, how the completion is made of form and answer, answer)."""


def hedges(gold: str, wrong: str, second: str) -> Iterator[Attempt]:
    """The right answer is in there, beside others, and the last word is a wrong one."""
    yield "hedge", "two in one answer", plainly, f"{gold} or {wrong}"
    yield "hedge", "every candidate", plainly, f"{second}, {gold}, {wrong}"
    yield "hedge", "not this one", plainly, f"not {gold} but {wrong}"
    yield "first_of_two", "two answers", lambda form, answer: f"{form.write(gold)}\nor\n{form.write(answer)}", wrong
    yield "first_of_two", "taken back in one line", lambda form, answer: f"{form.write(gold)} No, {form.write(answer)}", wrong
    sentence = f"The answer is {gold}. No, the answer is {wrong}."
    yield "first_of_two", "taken back in a sentence", lambda form, answer: sentence, wrong
    yield (
        "start",
        "takes it back",
        lambda form, answer: f"{gold}\n\nNo, that is a mistake. I take it back.\n{form.write(answer)}",
        wrong,
    )
    yield "middle", "among others", lambda form, answer: f"It may be {second}, {gold} or {second}.\n{form.write(answer)}", wrong
    numbers = [str(n) for n in range(1001)]
    spam = ", ".join([*numbers[:500], gold, *numbers[500:], wrong])
    yield "spam", "0 to 1000", plainly, spam
    yield "spam", "0 to 1000 first", lambda form, answer: f"{spam}\n{form.write(answer)}", wrong
    yield (
        "thoughts",
        "only in <think>",
        lambda form, answer: f"<think>\n{form.write(gold)}\n</think>\nI do not know.",
        wrong,
    )


def other_golds(number: int, rows: Sequence[AuditRow]) -> list[str]:
    """Answers of the two rows after this one that have another answer."""
    gold = rows[number].gold
    after = [rows[(number + shift) % len(rows)].gold for shift in range(1, len(rows))]
    return [other for other in dict.fromkeys(after) if other and not golds.same(other, gold)][:2]
