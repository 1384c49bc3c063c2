r"""The attacks on a reward that compares an answer: classes of completions, made from the rows, with what each must score.

A reward reads an answer from some *form* of text: \boxed{42}, "#### 42", "<answer>42</answer>", the bare text. Which forms it
reads is found out first, with the golds (`FORMS`); the attacks then speak in those forms, for a wrong answer in a form that the
reward does not read proves nothing. Everything here is a pure function of the rows: the same audit asks the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cohort.tools.audit import golds
from cohort.tools.audit.samples import AuditRow

Expect = Literal["pass", "fail", "any"]
"""A score of at least the threshold; one below it, or none; whatever it is, as long as it is a score and comes in time."""


@dataclass(frozen=True)
class Case:
    """One completion under one row, and what must come of it."""

    attack: str
    label: str
    """What is special about this one: "off by one"."""
    row: int
    completion: Any
    """Text, or chat messages where the text itself is not what is tried."""
    expect: Expect
    form: str = ""
    columns: dict[str, Any] = field(default_factory=dict, hash=False)
    """Columns of the row that are replaced, such as a gold that is missing."""
    answer: str | None = None
    """The one answer that the completion gives, where it gives one and nothing else."""


@dataclass(frozen=True)
class Form:
    """A way to write a completion around an answer."""

    name: str
    base: str
    """The marker that carries the answer, without the text around it."""
    write: Callable[[str], str]

    def fits(self, answer: str) -> bool:
        """Whether a right answer can be expected to be read from this form: after ####, a heading in Markdown, only a number."""
        return self.base != "hashes" or golds.value_of(answer) is not None


def with_text(before: str, after: str, write: Callable[[str], str]) -> Callable[[str], str]:
    return lambda answer: f"{before}{write(answer)}{after}"


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


def known_forms(template: str = "") -> list[Form]:
    """Every form that is tried; `template` is one of the user's own, with {answer} where the answer stands."""
    bases = dict(BASES)
    if template:
        bases = {"template": lambda answer: template.replace("{answer}", answer), **bases}
    return [
        Form(f"{base} {around}".strip(), base, with_text(before, after, write))
        for base, write in bases.items()
        for around, (before, after) in SURROUNDINGS.items()
        # A bare answer with a sentence around it is not that answer any more.
        if not (base == "bare" and around in ("after prose", "with text after it"))
    ]


def template_of(demonstration: str, gold: str) -> str:
    """The line of a demonstration that gives the gold, as a form: {answer} in its place. "" where the last line does not."""
    line = (demonstration.strip().splitlines() or [""])[-1]
    place = line.rfind(gold) if gold else -1
    return f"{line[:place]}{{answer}}{line[place + len(gold) :]}" if place >= 0 else ""


# ---------------------------------------------------------------------------------------------------------------------
# Right answers
# ---------------------------------------------------------------------------------------------------------------------


def calibration_cases(rows: Sequence[AuditRow], forms: Sequence[Form]) -> list[Case]:
    """Every gold in every form: which forms does the reward read?"""
    return [
        Case("gold", form.name, number, form.write(row.gold), "any", form.name)
        for number, row in enumerate(rows)
        for form in forms
        if row.gold and form.fits(row.gold)
    ]


def demonstration_cases(rows: Sequence[AuditRow]) -> list[Case]:
    return [
        Case("gold", "demonstration", number, row.demonstration, "any", "demonstration")
        for number, row in enumerate(rows)
        if row.demonstration
    ]


def rewrite_cases(rows: Sequence[AuditRow], forms: Sequence[Form], by_value: bool) -> list[Case]:
    cases = []
    for number, row in enumerate(rows):
        variants = golds.rewrites(row.gold, by_value) if row.gold else []
        variants += [golds.Variant("another spelling", text) for text in row.right]
        for place, variant in enumerate(variants):
            fitting = [form for form in forms if form.fits(variant.text)]
            if not fitting:
                continue
            form = rotate(fitting, number + place)
            cases.append(Case("rewrite", variant.label, number, form.write(variant.text), "pass", form.name))
    return cases


def rotate(forms: Sequence[Form], place: int) -> Form:
    """The forms in turn: every attack meets every form somewhere, without the product of the two."""
    return forms[place % len(forms)]


# ---------------------------------------------------------------------------------------------------------------------
# Texts without an answer
# ---------------------------------------------------------------------------------------------------------------------

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


def empty_cases(rows: Sequence[AuditRow]) -> list[Case]:
    return [Case("empty", label, number, text, "fail") for number in range(len(rows)) for label, text in EMPTY.items()]


def format_cases(rows: Sequence[AuditRow], forms: Sequence[Form]) -> list[Case]:
    """Texts in the right format whose content is nothing, or nonsense."""
    cases = [Case("format", label, number, text, "fail") for number in range(len(rows)) for label, text in FORMAT_ONLY.items()]
    for number in range(len(rows)):
        for nonsense in ("zqxj wvk", "?", "..."):
            form = rotate(forms, number)
            cases.append(Case("format", "nonsense in the right form", number, form.write(nonsense), "fail", form.name))
    return cases


def echo_cases(rows: Sequence[AuditRow]) -> list[Case]:
    from cohort.rewards.text import text_of

    return [
        Case("echo", "the prompt as completion", number, text_of(row.prompt), "fail")
        for number, row in enumerate(rows)
        if row.prompt and row.gold
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


def bomb_cases(row: int, forms: Sequence[Form]) -> list[Case]:
    """Answers that cost an age to evaluate, or break a parser."""
    cases = []
    for place, (label, write) in enumerate(BOMBS.items()):
        text = write()
        chosen = (
            [rotate(forms, place), rotate(forms, place + 1)] if len(text) < 100 and len(forms) > 1 else [rotate(forms, place)]
        )
        for form in chosen:
            cases.append(Case("bomb", label, row, form.write(text), "fail", form.name, answer=text))
    return cases


def injection_cases(row: int, forms: Sequence[Form], canary: str) -> list[Case]:
    """Answers that are code: if any is evaluated, the file `canary` exists afterwards. They do nothing else.

    The walk needs no builtins: from any object to all classes, and from one of the module os to that module's own.
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
    seen: dict[tuple[str, str], Case] = {}
    for place, (label, answer) in enumerate(answers.items()):
        for form in (rotate(forms, place), rotate(forms, place + 1)):
            seen[label, form.name] = Case("injection", label, row, form.write(answer), "fail", form.name, answer=answer)
    return list(seen.values())


# ---------------------------------------------------------------------------------------------------------------------
# Golds that are none, and completions of the other kind
# ---------------------------------------------------------------------------------------------------------------------


def missing_gold_cases(row: int, gold: str, gold_column: str, forms: Sequence[Form]) -> list[Case]:
    """A row whose gold is missing must not reward anything; an error for that row is right.

    Nothing is tried that is right by the row's own gold: a reward may know that from another column.
    """
    cases = []
    number = "17" if golds.same(gold, "42") else "42"
    for label, missing in (("None", None), ("empty", ""), ("spaces", "   ")):
        for text in ("", "None", "I do not know.", *(form.write(word) for form in forms[:2] for word in ("", "None", number))):
            cases.append(Case("missing_gold", f"gold is {label}", row, text, "fail", columns={gold_column: missing}))
    return cases


def other_kind_cases(rows: Sequence[AuditRow], forms: Sequence[Form], accepted: Sequence[tuple[int, str]]) -> list[Case]:
    """Right completions as chat messages where the rows have text, and the other way round."""
    by_name = {form.name: form for form in forms}
    cases = []
    for number, form_name in accepted:
        row = rows[number]
        text = by_name[form_name].write(row.gold) if form_name in by_name else row.demonstration
        other: Any = text if row.is_chat else [{"role": "assistant", "content": text}]
        cases.append(Case("chat", "as text" if row.is_chat else "as chat messages", number, other, "pass", form_name))
    return cases


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


def filled(filler: str, length: int) -> str:
    return (filler * (length // len(filler) + 1))[:length]
