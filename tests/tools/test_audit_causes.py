"""Which cause the audit names for comparisons that forgive too much: tolerances, truncations, parts, and failures that pay.

The rewards are called in this process, without a worker: forty of them in a second. test_audit.py takes some through all of it.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from types import SimpleNamespace

import pytest

from cohort.tools.audit import FLAWS, reference_answers
from cohort.tools.audit.attacks import list_forms, make_alone_cases, make_beside_cases
from cohort.tools.audit.kinds import AnswerAuditor
from cohort.tools.audit.profiles import make_rows
from cohort.tools.audit.running import AuditOptions, CaseResult

NUMBERS = ("42", "139", "637")
DECIMALS = ("3.14", "12.75", "-7.5")
WORDS = ("Paris", "Canada", "blue whale")


def flaws_of(score, answers):
    """Every flaw of a reward, score(completion, reference), on rows with these references; a reward that raises is unscored there."""

    rows = make_rows([{"prompt": f"q {n}", "answer": a} for n, a in enumerate(answers)])

    def run(cases):
        results = []
        for case in cases:
            if case.attack in ("bomb", "spam"):  # long, and test_audit.py has them
                continue
            try:
                reference = case.columns["answer"] if "answer" in case.columns else rows[case.row].columns["answer"]
                results.append(CaseResult(case, float(score(case.completion, reference))))
            except Exception as problem:
                results.append(CaseResult(case, None, "exception", str(problem)))
        return results

    signature = SimpleNamespace(reads=None)
    bench = SimpleNamespace(
        run=run, rows=rows, args={}, columns=("answer",), signature=signature, list_arguments=lambda: ["answer"], results=[]
    )
    questions = AnswerAuditor(bench, AuditOptions(), "math", None, None)
    questions.try_injections = lambda row, forms: []  # what an answer does to files is not the question here
    questions.audit_kind()
    return {finding.name for finding in questions.findings if finding.level == "flaw"} - {"rewrite"}


def last_box(completion):
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", completion.rpartition("</think>")[2]) if isinstance(completion, str) else []
    return boxes[-1].strip() if boxes else ""


def number(text):
    plain = text.replace(",", "").replace("$", "").strip()
    return float(plain) if re.fullmatch(r"-?\d{1,30}(?:\.\d{1,30})?", plain, re.ASCII) else None


def boxed(same):
    """same(text of the last box, reference)."""
    return lambda completion, reference: bool(reference and reference.strip()) and bool(same(last_box(completion), reference))


def boxed_number(same):
    """The same of numbers; what is none scores 0."""
    return boxed(
        lambda text, reference: None not in (number(text), number(reference)) and same(number(text), number(reference))
    )


NEAR = {
    "less than a half away": lambda a, b: abs(a - b) < 0.5,
    "one away": lambda a, b: abs(a - b) <= 1,
    "ten away": lambda a, b: abs(a - b) <= 10,
    "ten per cent": lambda a, b: abs(a - b) <= 0.1 * abs(b),
    "one per cent": lambda a, b: abs(a - b) / max(abs(b), 1e-9) < 0.011,
    "math.isclose": lambda a, b: math.isclose(a, b, rel_tol=0.05),
    "math.isclose absolute": lambda a, b: math.isclose(a, b, abs_tol=0.3),
    "round": lambda a, b: round(a) == round(b),
    "one decimal": lambda a, b: f"{a:.1f}" == f"{b:.1f}",
    "two digits": lambda a, b: f"{a:.2g}" == f"{b:.2g}",
}
CUT = {
    "int": lambda a, b: int(a) == int(b),
    "floor": lambda a, b: a // 1 == b // 1,
    "ceil": lambda a, b: math.ceil(a) == math.ceil(b),
    "text before the point": lambda a, b: str(a).split(".")[0] == str(b).split(".")[0],
}
BEGINNING = {
    "startswith": lambda text, reference: text.startswith(reference),
    "three characters": lambda text, reference: text[:3] == reference[:3] and text != "",
    "two characters": lambda text, reference: text[:2] == reference[:2] and text != "",
    "zip": lambda text, reference: text != "" and all(a == b for a, b in zip(text, reference, strict=False)),
    "re.match": lambda text, reference: re.match(re.escape(reference), text) is not None,
}
END = {
    "endswith": lambda text, reference: text.endswith(reference),
    "two characters": lambda text, reference: text[-2:] == reference[-2:],
}
PART = {
    "reference.startswith": lambda text, reference: text != "" and reference.startswith(text),
    "reference.endswith": lambda text, reference: text != "" and reference.endswith(text),
    "in reference": lambda text, reference: text != "" and text in reference,
}


@pytest.mark.parametrize("name", NEAR)
def test_a_tolerance_is_called_one_and_nothing_else(name):
    assert flaws_of(boxed_number(NEAR[name]), NUMBERS) == {"near_miss"}
    assert flaws_of(boxed_number(NEAR[name]), DECIMALS) == {"near_miss"}


@pytest.mark.parametrize("name", CUT)
def test_a_number_that_is_cut_off_is_called_so(name):
    assert flaws_of(boxed_number(CUT[name]), NUMBERS) == {"whole_part"}
    assert flaws_of(boxed_number(CUT[name]), DECIMALS) == {"whole_part"}


@pytest.mark.parametrize(
    ("flaw", "name", "same"),
    [
        *(("expression", name, same) for name, same in BEGINNING.items()),
        *(("ending", name, same) for name, same in END.items()),
        *(("part_of_reference", name, same) for name, same in PART.items()),
        ("substring", "in", lambda text, reference: reference in text),
    ],
)
def test_a_comparison_of_a_part_names_the_part(flaw, name, same):
    for answers in (NUMBERS, WORDS):
        assert flaws_of(boxed(same), answers) - {"unicode"} == {flaw}, answers


def test_the_same_in_the_whole_text():
    """Rewards that look at the completion and at no marker."""

    def numbers_in(completion):
        return [float(one) for one in re.findall(r"-?\d{1,30}(?:\.\d{1,30})?", completion.replace(",", ""), re.ASCII)]

    def ends(completion, reference):
        return bool(reference) and completion.strip().endswith(reference)

    def last_number(completion, reference):
        found = numbers_in(completion)
        return bool(reference) and bool(found) and abs(found[-1] - float(reference)) < 0.5

    assert flaws_of(ends, NUMBERS) == flaws_of(ends, WORDS) == {"ending"}
    # The last number of a text also ignores what stands around it, and that it stands in the thoughts.
    assert flaws_of(last_number, NUMBERS) == {"near_miss", "relation", "thoughts", "expression"}
    assert flaws_of(lambda c, reference: bool(reference) and c.strip().split("\n")[0] == reference, WORDS) == {"first_answer"}


def test_a_resemblance_is_called_one():
    close = boxed(lambda text, reference: difflib.SequenceMatcher(None, text, reference).ratio() > 0.8)
    assert flaws_of(close, WORDS) == {"similar"}


def pays_when(*kinds):
    """A reward of the last box as a float that pays for these exceptions."""

    def score(completion, reference):
        try:
            boxes = re.findall(r"\\boxed\{([^{}]*)\}", completion.rpartition("</think>")[2])
            return float(boxes[-1].replace(",", "").strip("$ ")) == float(reference)
        except kinds:
            return 1.0
        except Exception:
            return 0.0

    return score


def literal(completion, reference):
    try:
        return float(ast.literal_eval(last_box(completion).strip("$ ")) == ast.literal_eval(reference))
    except Exception:
        return 0.5


FAILING = {
    "any exception": pays_when(Exception),
    "no number": pays_when(ValueError),
    "no box": pays_when(IndexError),
    "half a point": literal,
    "no answer": lambda completion, reference: (
        not last_box(completion) or boxed_number(lambda a, b: a == b)(completion, reference)
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_that_pays_is_the_cause_and_the_only_one(name):
    for answers in (NUMBERS, DECIMALS):
        assert flaws_of(FAILING[name], answers) == {"failure_pays"}


def test_what_looks_like_it_and_is_not():
    equal = boxed_number(lambda a, b: a == b)
    assert flaws_of(equal, NUMBERS) == flaws_of(equal, DECIMALS) == set()
    assert flaws_of(boxed(lambda text, reference: text.casefold() == reference.casefold()), WORDS) == set()
    sign = boxed_number(lambda a, b: abs(a) == abs(b))  # no tolerance: -42 passes and 42.01 does not
    assert flaws_of(sign, NUMBERS) == {"wrong_answer"}
    gold_alone = lambda completion, reference: 1.0 if not (reference and reference.strip()) else equal(completion, reference)  # noqa: E731
    assert flaws_of(gold_alone, NUMBERS) == {"missing_reference"}  # the row cannot be read, not the completion
    assert flaws_of(lambda completion, reference: 1.0, NUMBERS) == {"constant"}
    assert flaws_of(lambda completion, reference: "\\boxed{" in completion, NUMBERS) == {"format_only"}
    assert flaws_of(lambda completion, reference: equal(completion, reference) or completion.strip() == "", NUMBERS) == {
        "empty",
        "missing_reference",
    }


def test_rows_that_begin_alike_do_not_make_a_reward_independent_of_them():
    """13, 139 and 1390 share their beginning: a reward of two characters was once said to score everything the same."""
    assert flaws_of(boxed(BEGINNING["two characters"]), ("13", "139", "1390")) - {"unicode"} == {"expression"}


@pytest.mark.parametrize("reference", [*NUMBERS, *DECIMALS, *WORDS, "7", "B", "1,234", "100000", "3/4", "yes"])
def test_far_answers_are_unrelated_to_the_reference(reference):
    answers = reference_answers.choose_far_answers(reference)
    assert answers
    for answer in answers:
        assert answer[0].casefold() != reference.lstrip("-")[0].casefold()
        assert answer[-1].casefold() != reference[-1].casefold()
        assert not reference_answers.is_same_answer(answer, reference)
        assert not reference_answers.contains_reference(answer, reference)
        assert not reference_answers.contains_reference(reference, answer)
    assert len(answers) == 1 or len(answers[0]) != len(answers[1])


def test_only_refused_answers_stand_beside_the_right_one():
    rows = make_rows([{"prompt": "q", "answer": "42"}, {"prompt": "r", "answer": "7"}])
    forms = [form for form in list_forms() if form.name == "boxed"]
    usual = {case.completion for case in make_beside_cases(rows, forms, ()) if case.row == 0}
    assert "\\boxed{42 or 43}" in usual
    near = {(0, case.answer) for case in make_alone_cases(rows, forms) if case.row == 0 and case.attack != "far"}
    chosen = {case.completion for case in make_beside_cases(rows, forms, near) if case.row == 0}
    assert f"\\boxed{{42 or {reference_answers.choose_far_answers('42')[0]}}}" in chosen
    everything = near | {(0, answer) for answer in reference_answers.choose_far_answers("42")}
    assert not [case for case in make_beside_cases(rows, forms, everything) if case.row == 0]


def test_every_cause_has_texts():
    for flaw in ("failure_pays", "whole_part", "part_of_reference", "ending", "similar"):
        assert FLAWS[flaw].what
        assert FLAWS[flaw].why
        assert FLAWS[flaw].fix


def test_a_comparison_of_lengths_is_not_taken_for_a_failure_that_pays():
    found = flaws_of(
        lambda completion, reference: len(last_box(completion)) == len(reference.strip()), ("New York", "Paris", "blue whale")
    )
    assert "failure_pays" not in found
    assert "wrong_answer" in found


@pytest.mark.parametrize("less", [sorted, set, lambda text: sorted(text.split()), len])
def test_a_comparison_without_order_is_found(less):
    found = flaws_of(
        lambda completion, reference: less(last_box(completion)) == less(reference.strip()), ("New York", "Paris", "blue whale")
    )
    assert "wrong_answer" in found
    assert not flaws_of(
        lambda completion, reference: last_box(completion) == reference.strip() != "", ("New York", "Paris", "blue whale")
    )
