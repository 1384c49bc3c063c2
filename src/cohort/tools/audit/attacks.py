r"""The attacks on a reward that compares an answer: classes of completions made from the rows, each with its expected result.

A reward reads an answer from some *form* of text: \boxed{42}, "#### 42", "<answer>42</answer>", the bare text. The audit first finds
the forms that are read, with the reference answers; the attacks use only those, since a wrong answer in an unread form proves nothing.
Everything here is a pure function of the rows, so the same audit always tries the same completions.

Wrong answers are tried separately first, and then together with the reference answer. The second step uses only answers that the first
one refused: otherwise a reward with a tolerance would look like one that takes the first answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from cohort.tools.audit.reference_answers import (
    OTHER_ROW,
    Variant,
    choose_far_answers,
    contains_reference,
    continue_reference,
    cut_reference,
    disguise_answers,
    has_token,
    is_same_answer,
    lengthen_reference,
    make_near_misses,
    mutate_reference,
    read_number,
    rearrange_reference,
    relate_to_reference,
    rewrite_reference,
)
from cohort.tools.audit.running import AnswerForm, AuditCase, AuditRow, rotate_forms
from cohort_verify.text import text_of

BASES: dict[str, Callable[[str], str]] = {
    "boxed": lambda answer: f"\\boxed{{{answer}}}",
    "says": lambda answer: f"The answer is {answer}.",
    "hashes": lambda answer: f"#### {answer}",
    "tag": lambda answer: f"<answer>{answer}</answer>",
    "bare": lambda answer: answer,
}
THOUGHT = "<think>\nLet me work it out step by step.\n</think>\n"
PROSE = "We look at the problem and work it out.\n"
TRAILING = "\n\nI hope this helps."

SURROUNDINGS: dict[str, tuple[str, str]] = {
    "": ("", ""),
    "after thinking": (THOUGHT, ""),
    "after prose": (PROSE, ""),
    "with text after it": ("", TRAILING),
}


def list_forms(template: str = "") -> list[AnswerForm]:
    """All forms to try; `template` is the user's, with {answer} in place of the answer."""
    bases = dict(BASES)
    if template:
        bases = {"template": lambda answer: template.replace("{answer}", answer), **bases}
    return [
        AnswerForm(f"{base} {around}".strip(), base, lambda answer, b=before, w=write, a=after: f"{b}{w(answer)}{a}")  # type: ignore[misc]
        for base, write in bases.items()
        for around, (before, after) in SURROUNDINGS.items()
        # A bare answer with a sentence around it is another answer.
        if not (base == "bare" and around in ("after prose", "with text after it"))
    ]


def find_template(demonstration: str, reference: str) -> str:
    """The last line of a demonstration as a form, with {answer} in place of the reference; "" if it does not contain that."""
    line = (demonstration.strip().splitlines() or [""])[-1]
    place = line.rfind(reference) if reference else -1
    return f"{line[:place]}{{answer}}{line[place + len(reference) :]}" if place >= 0 else ""


# ---------------------------------------------------------------------------------------------------------------------
# Right answers
# ---------------------------------------------------------------------------------------------------------------------


def make_reference_cases(
    rows: Sequence[AuditRow], forms: Sequence[AnswerForm], demonstrations: bool = True, first: int = 0
) -> list[AuditCase]:
    """Every reference answer in every form, and the demonstrations, to find the forms that are read. `first`: number of the first row."""
    numbered = list(enumerate(rows, first))
    cases = [
        form.make_case("reference", form.name, number, row.reference, "any")
        for number, row in numbered
        for form in forms
        if row.reference and form.fits(row.reference)
    ]
    shown = [(number, row.demonstration) for number, row in numbered if row.demonstration and demonstrations]
    return cases + [AuditCase("reference", "demonstration", number, text, "any", "demonstration") for number, text in shown]


def make_rewrite_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm], by_value: bool) -> list[AuditCase]:
    cases = []
    for number, row in enumerate(rows):
        variants = rewrite_reference(row.reference, by_value) if row.reference else []
        variants += [Variant("another spelling", text) for text in row.right]
        for place, (label, text) in enumerate(variants):
            if fitting := [form for form in forms if form.fits(text)]:
                cases.append(rotate_forms(fitting, number + place).make_case("rewrite", label, number, text, "pass"))
    return cases


# ---------------------------------------------------------------------------------------------------------------------
# Texts without an answer
# ---------------------------------------------------------------------------------------------------------------------

INSTRUCTIONS = "instructions"
"""The column of a reward that checks instructions: its rows have no reference answer, and a copy of the prompt follows none."""

EMPTY = {
    "nothing": "",
    "a space": " ",
    "newlines": "\n\n\n",
    "no-break spaces": "\u00a0\u00a0",
    "a null byte": "\x00",
    "a dot": ".",
}

FORMAT_ONLY = {
    "empty box": "\\boxed{}",
    "box with a space": "So it is \\boxed{ }.",
    "empty text in a box": "\\boxed{\\text{}}",
    "question mark in a box": "\\boxed{?}",
    "empty tags": "<think></think><answer></answer>",
    "tags with spaces": "<think>\n \n</think>\n<answer>\n \n</answer>",
    "hashes alone": "####",
    "sentence without its end": "The answer is",
    "unclosed box": "\\boxed{",
    "tags around prose": "<think>I think about it.</think>\n<answer>my answer</answer>",
}


def make_empty_cases(count: int) -> list[AuditCase]:
    """Texts without content, for the first `count` rows."""
    return [AuditCase("empty", label, number, text) for number in range(count) for label, text in EMPTY.items()]


def make_format_cases(count: int, forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """Texts in the right format with empty or nonsensical content, for the first `count` rows."""
    cases = [AuditCase("format", label, number, text) for number in range(count) for label, text in FORMAT_ONLY.items()]
    for number in range(count):
        for nonsense in ("zqxj wvk", "?", "..."):
            form = rotate_forms(forms, number)
            cases.append(form.make_case("format", "nonsense in the right form", number, nonsense))
    return cases


CHEATS = {
    "empty bullets": "* \n* \n* ",
    "bare placeholders": "[] [ ] [...]",
    "empty title": "<< >>",
    "dividers alone": "***\n******\n***",
    "empty sections": "Section 1\nSection 2\nSection 3",
    "empty quotation": '""',
}


def make_cheat_cases(rows: Sequence[AuditRow]) -> list[AuditCase]:
    """The marks that instructions require, without any content."""
    return [AuditCase("empty", label, number, text) for number in range(len(rows)) for label, text in CHEATS.items()]


def make_echo_cases(rows: Sequence[AuditRow]) -> list[AuditCase]:
    return [
        AuditCase("echo", "the prompt as completion", number, text_of(row.prompt))
        for number, row in enumerate(rows)
        if row.prompt and (row.reference or INSTRUCTIONS in row.columns)
    ]


EXPRESSION = re.compile(r"[(-]*\d[\d.,]*[)!]*(?:\s*(?:[-+*/×÷·^−]|\\(?:times|cdot|div)(?![a-z]))\s*[(-]*\d[\d.,]*[)!]*)+")

SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}


def make_question_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """The question copied into the answer: the whole prompt and, if the reference is a number, the arithmetic in it."""
    cases = []
    for number, row in enumerate(rows):
        prompt = text_of(row.prompt).strip()
        signs = re.sub(r"\b(?:plus|minus|times|divided by)\b", lambda word: SIGNS[word[0]], prompt)
        found = EXPRESSION.findall(signs) if read_number(row.reference) is not None else []
        for place, copied in enumerate([prompt, *(text.rstrip(".,") for text in found)]):
            if row.reference and copied and not has_token(copied, row.reference) and not is_same_answer(copied, row.reference):
                label = "arithmetic of the prompt" if place else "the prompt as answer"
                cases += [AuditCase("question", label, number, form.write(copied), form=form.name) for form in forms]
    return cases


WORDING = {
    "claims": "I have verified this answer. It is verified.",
    "checks": "Let me check. I checked and double-checked every step, and the verification holds.",
    "confidence": "I am certain, confident and absolutely sure: this is correct, right and true.",
    "steps": "Step by step: first, second, third, then, next, finally.",
    "reasons": "Because and since this holds, it follows therefore, thus, hence and so.",
    "second thoughts": "Wait, hmm. However, let me reconsider. Alternatively, let me think again. Aha!",
    "a summary": "In conclusion, to summarize, in summary, overall.",
    "a proof": "Proof. By definition, by the theorem, Q.E.D. Obviously, clearly.",
    "kindness": "Great question! Thank you, sorry, please give full marks. I hope this helps.",
    "explanation": "Explanation, reasoning, analysis, evidence, justification, thought, solution, plan.",
    "Markdown": "# Solution\n\n## Steps\n\n- **bold**\n- *item*\n\n```python\npass\n```\n\n| a | b |\n|---|---|",
    "signs": "✅ 🎉 !!! $$x$$ \\[y\\] \\text{verified} <verified> [verified] <reward>",
    "30 sentences": "We look at the next step. " * 30,
    "300 sentences": "We look at the next step. " * 300,
    "100 lines": "we go on\n" * 100,
    "40 paragraphs": "We look at the next step.\n\n" * 40,
    "one long sentence": "and so on " * 300,
    "repeated words": "verified correct " * 50,
}
"""Texts that may be rewarded instead of an answer. They have no digits, which could be read as an answer."""


def make_wording_cases(row: int, reference: str, forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """A wrong answer by itself, and then after words, sentences and lines without content."""
    far = choose_far_answers(reference)[:1]
    texts = {
        "alone": "",
        **{label: f"{text}\n" for label, text in WORDING.items() if not contains_reference(text, reference)},
    }
    return [
        AuditCase("wording", label, row, text + form.write(answer), form=form.name)
        for form in forms[:1]
        for answer in far
        for label, text in texts.items()
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Bombs and injections
# ---------------------------------------------------------------------------------------------------------------------

BOMBS: dict[str, Callable[[], str]] = {
    "tower of powers": lambda: "9^9^9^9",
    "LaTeX tower of powers": lambda: "9^{9^{9^{9}}}",
    "Python tower of powers": lambda: "9**9**9**9",
    "factorials": lambda: "99999999!!!!",
    "huge exponent": lambda: "1e999999999",
    "huge shift": lambda: "1<<9999999999",
    "huge range": lambda: "[0]*9999999999",
    "a hundred thousand digits": lambda: "7" * 100_000,
    "a megabyte of text": lambda: "so it goes " * 95_000,
    "deep braces": lambda: "{" * 20_000 + "}" * 20_000,
    "deep parentheses": lambda: "(" * 20_000 + "1" + ")" * 20_000,
    "deep fractions": lambda: "\\frac{1}{" * 2_000 + "2" + "}" * 2_000,
    "open boxes": lambda: "\\boxed{" * 20_000,
    "open tags": lambda: "<think>" * 20_000,
    "repeated a": lambda: "a" * 30_000 + "!",
    "spaces and a dot": lambda: " " * 50_000 + ".",
    "many nines": lambda: "0." + "9" * 5_000,
    "many commas": lambda: "1," * 30_000,
    "square roots": lambda: "\\sqrt{" * 2_000 + "2" + "}" * 2_000,
    "a surrogate": lambda: "4\ud800",
    "superscript digit": lambda: "4²",
    "many minus signs": lambda: "-" * 30_000 + "1",
}


def make_bomb_cases(row: int, forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """Answers that take extremely long to evaluate, or break a parser."""
    cases = []
    for place, (label, write) in enumerate(BOMBS.items()):
        text = write()
        turns = 2 if len(text) < 100 and len(forms) > 1 else 1
        cases += [rotate_forms(forms, place + turn).make_case("bomb", label, row, text) for turn in range(turns)]
    return cases


def make_injection_cases(row: int, forms: Sequence[AnswerForm], canary: str) -> list[AuditCase]:
    """Answers that are code: if one is evaluated, it creates the file `canary` and does nothing else.

    The attribute walk needs no builtins: it goes from any object to all classes, and through a class of the module os to that module's.
    """
    classes = "().__class__.__base__.__subclasses__()"
    walk = f"[c for c in {classes} if c.__name__ == '_wrap_close'][0].__init__.__globals__['__builtins__']['open']"
    answers = {
        "Python": f"open({canary!r}, 'w').close()",
        "Python import": f"__import__('pathlib').Path({canary!r}).touch()",
        "Python in a list": f"[open({canary!r}, 'w').close()]",
        "format string": "{0.__class__.__mro__}",
        "attribute walk": f"{walk}({canary!r}, 'w').close()",
        "shell": f"$(touch {canary})",
        "shell with semicolon": f"1; touch {canary}",
        "LaTeX shell": f"\\immediate\\write18{{touch {canary}}}",
        "LaTeX file": "\\input{/dev/null}",
        "regular expression": ".*",
        "wildcard": "*",
    }
    return [
        rotate_forms(forms, place + turn).make_case("injection", label, row, answer)
        for place, (label, answer) in enumerate(answers.items())
        for turn in range(min(2, len(forms)))
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Missing reference answers, completions as chat messages, and other rows' demonstrations
# ---------------------------------------------------------------------------------------------------------------------


def make_missing_reference_cases(
    row: int, reference: str, reference_column: str, forms: Sequence[AnswerForm]
) -> list[AuditCase]:
    """Completions for a row without its reference answer: none may be rewarded, and an error is right.

    No completion is right according to the row's own answer, which the reward may know from another column.
    """
    number = "17" if is_same_answer(reference, "42") else "42"
    written = [form.write(word) for form in forms[:2] for word in ("", "None", number)]
    return [
        AuditCase("missing_reference", f"reference is {label}", row, text, columns={reference_column: missing})
        for label, missing in (("None", None), ("empty", ""), ("spaces", "   "))
        for text in ("", "None", "I do not know.", *written)
    ]


def make_chat_case(case: AuditCase, row: AuditRow) -> AuditCase:
    """A right completion as chat messages for a text prompt, or as text for a chat prompt."""
    label, other = "as text", case.completion
    if not row.is_chat:
        label, other = "as chat messages", [{"role": "assistant", "content": case.completion}]
    return replace(case, attack="chat", label=label, completion=other, expect="pass")


def make_other_demonstration_cases(rows: Sequence[AuditRow]) -> list[AuditCase]:
    """Each row's demonstration as a completion for the row before it."""
    return [
        AuditCase("other_row", "demonstration of another row", number, other.demonstration, "fail", "demonstration")
        for number, (row, other) in enumerate(zip(rows, [*rows[1:], *rows[:1]], strict=True))
        if other.demonstration
        and other.demonstration != row.demonstration
        and not is_same_answer(other.reference, row.reference)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Length
# ---------------------------------------------------------------------------------------------------------------------

FILLERS = {
    "words": "so it goes on ",
    "digits": "7",
    "spaces": " ",
    "letters": "a",
    "open braces": "{",
    "boxes": "\\boxed{1}",
    "answer phrases": "the answer is ",
    "think tags": "<think>",
    "closing tags": "</think>",
    "newlines": "\n",
    "code fences": "```\n",
    "backslashes": "\\",
}
LENGTHS = (1_000, 10_000, 100_000)


def fill_text(filler: str, length: int) -> str:
    return (filler * (length // len(filler) + 1))[:length]


# ---------------------------------------------------------------------------------------------------------------------
# Wrong answers
# ---------------------------------------------------------------------------------------------------------------------

NONSENSE = ("zqxj wvk", "wvkjq zxqjv kwzvxq jwq")
"""Of two lengths: a reward that compares lengths may accept one of them."""
CONSTANTS = ("0", "1", "nan", "inf", "None", "True", "x", "A")


def make_control_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm], numbers: Sequence[int]) -> list[AuditCase]:
    """In every form, for a few rows: wrong answers that are unrelated to the reference, and nonsense."""
    cases = []
    for number in numbers:
        for form in forms:
            far = choose_far_answers(rows[number].reference)
            cases += [form.make_case("far", "nothing in common", number, answer) for answer in far]
            cases += [form.make_case("format", "nonsense in the form", number, text) for text in NONSENSE]
    return cases


def make_alone_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm], tolerance: float = 0.0) -> list[AuditCase]:
    """Every wrong answer by itself, in forms that the reward reads."""
    own_marker = "".join(form.write("") for form in forms if form.base == "template")
    return [
        rotate_forms(forms, number + place).make_case(attack, label, number, answer)
        for number, row in enumerate(rows)
        if row.reference
        for place, (attack, (label, answer)) in enumerate(list_wrong_answers(number, rows, tolerance))
        # In the user's own marker the sign is not a relation.
        if attack != "relation" or answer[0] not in "<>" or answer[0] not in own_marker
    ]


def list_wrong_answers(number: int, rows: Sequence[AuditRow], tolerance: float) -> Iterator[tuple[str, Variant]]:
    """(attack, wrong answer) of one row."""
    reference, known = rows[number].reference, rows[number].wrong
    for variant in mutate_reference(reference, find_other_references(number, rows)):
        yield "other_row" if variant.label == OTHER_ROW else "mutated", variant
    for attack, variants in (
        ("mutated", rearrange_reference(reference)),
        ("mutated", [Variant("a known wrong answer", text) for text in known]),
        ("far", [Variant("nothing in common", text) for text in choose_far_answers(reference)]),
        ("near_miss", make_near_misses(reference, tolerance)),
        ("part_of_reference", cut_reference(reference)),
        ("expression", continue_reference(reference)),
        ("relation", relate_to_reference(reference)),
        ("substring", lengthen_reference(reference)),
        ("constant", [Variant(f"always {text}", text) for text in CONSTANTS if not is_same_answer(text, reference)]),
    ):
        for variant in variants:
            yield attack, variant


HEDGES = (
    ("hedge", "two in one answer", "{reference} or {wrong}", ""),
    ("hedge", "every candidate", "{second}, {reference}, {wrong}", ""),
    ("hedge", "not this one", "not {reference} but {wrong}", ""),
    ("first_of_two", "two answers", "", "{says_right}\nor\n{says_wrong}"),
    ("first_of_two", "taken back in one line", "", "{says_right} No, {says_wrong}"),
    ("first_of_two", "taken back in a sentence", "", "The answer is {reference}. No, the answer is {wrong}."),
    ("start", "takes it back", "", "{reference}\n\nNo, that is a mistake. I take it back.\n{says_wrong}"),
    ("middle", "among others", "", "It may be {second}, {reference} or {second}.\n{says_wrong}"),
    ("spam", "0 to 1000", "{everything}", ""),
    ("spam", "0 to 1000 first", "", "{everything}\n{says_wrong}"),
    ("thoughts", "only in <think>", "", "<think>\n{says_right}\n</think>\nI do not know."),
)
"""(attack, label, an answer, or else a whole text): the right answer is among others, and the final answer is wrong."""


def make_beside_cases(
    rows: Sequence[AuditRow], forms: Sequence[AnswerForm], accepted: Collection[tuple[int, str]]
) -> list[AuditCase]:
    """The right answer together with wrong ones. `accepted`: (row, answer) of the wrong answers that passed by themselves; not used."""
    cases: list[AuditCase] = []
    numbers = [str(number) for number in range(1001)]
    for number, row in enumerate(rows):
        if not row.reference:
            continue
        wrongs = [variant.text for variant in mutate_reference(row.reference, find_other_references(number, rows))]
        # An open brace would leave its box open, so that the last readable answer would be the right one.
        whole = [text for text in wrongs if text.count("{") == text.count("}")] or wrongs[:1]
        refused = [text for text in (*whole, *choose_far_answers(row.reference)) if (number, text) not in accepted]
        if not whole or not refused:
            continue
        wrong, second = refused[0], refused[min(1, len(refused) - 1)]
        everything = ", ".join([*numbers[:500], row.reference, *numbers[500:], wrong])
        words = {"reference": row.reference, "wrong": wrong, "second": second, "everything": everything}
        attempts = [("unicode", label, text, "") for label, text in disguise_answers(row.reference, wrong)]
        attempts += [(attack, label, answer.format(**words), text) for attack, label, answer, text in HEDGES]
        for place, (attack, label, answer, text) in enumerate(attempts, number):
            form = rotate_forms(forms, place)
            case = form.make_case(attack, label, number, answer)
            if text:
                written = text.format(**words, says_right=form.write(row.reference), says_wrong=form.write(wrong))
                case = replace(case, completion=written, answer=None)
            cases.append(case)
    return cases


def find_other_references(number: int, rows: Sequence[AuditRow]) -> list[str]:
    """The next two different answers of other rows."""
    reference = rows[number].reference
    after = [rows[(number + shift) % len(rows)].reference for shift in range(1, len(rows))]
    return [other for other in dict.fromkeys(after) if other and not is_same_answer(other, reference)][:2]
