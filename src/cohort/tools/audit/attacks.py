r"""The attacks on a reward that compares an answer: classes of completions, made from the rows, with what each must score.

A reward reads an answer from some *form* of text: \boxed{42}, "#### 42", "<answer>42</answer>", the bare text. Which forms it
reads is found out first, with the golds (`FORMS`); the attacks then speak in those forms, for a wrong answer in a form that the
reward does not read proves nothing. Everything here is a pure function of the rows: the same audit asks the same questions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from cohort.tools.audit import golds
from cohort.tools.audit.cases import AnswerForm, AuditCase, AuditRow, rotate_forms, safe_text

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
    """Every form that is tried; `template` is one of the user's own, with {answer} where the answer stands."""
    bases = dict(BASES)
    if template:
        bases = {"template": lambda answer: template.replace("{answer}", answer), **bases}
    return [
        AnswerForm(f"{base} {around}".strip(), base, lambda answer, b=before, w=write, a=after: f"{b}{w(answer)}{a}")  # type: ignore[misc]
        for base, write in bases.items()
        for around, (before, after) in SURROUNDINGS.items()
        # A bare answer with a sentence around it is not that answer any more.
        if not (base == "bare" and around in ("after prose", "with text after it"))
    ]


def find_template(demonstration: str, gold: str) -> str:
    """The line of a demonstration that gives the gold, as a form: {answer} in its place. "" where the last line does not."""
    line = (demonstration.strip().splitlines() or [""])[-1]
    place = line.rfind(gold) if gold else -1
    return f"{line[:place]}{{answer}}{line[place + len(gold) :]}" if place >= 0 else ""


# ---------------------------------------------------------------------------------------------------------------------
# Right answers
# ---------------------------------------------------------------------------------------------------------------------


def make_gold_cases(
    rows: Sequence[AuditRow], forms: Sequence[AnswerForm], demonstrations: bool = True, first: int = 0
) -> list[AuditCase]:
    """Every gold in every form, and the demonstrations: which forms does the reward read? `first` numbers the first row."""
    numbered = list(enumerate(rows, first))
    cases = [
        form.make_case("gold", form.name, number, row.gold, "any")
        for number, row in numbered
        for form in forms
        if row.gold and form.fits(row.gold)
    ]
    shown = [(number, row.demonstration) for number, row in numbered if row.demonstration and demonstrations]
    return cases + [AuditCase("gold", "demonstration", number, text, "any", "demonstration") for number, text in shown]


def make_rewrite_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm], by_value: bool) -> list[AuditCase]:
    cases = []
    for number, row in enumerate(rows):
        variants = golds.rewrite_gold(row.gold, by_value) if row.gold else []
        variants += [golds.Variant("another spelling", text) for text in row.right]
        for place, (label, text) in enumerate(variants):
            if fitting := [form for form in forms if form.fits(text)]:
                cases.append(rotate_forms(fitting, number + place).make_case("rewrite", label, number, text, "pass"))
    return cases


# ---------------------------------------------------------------------------------------------------------------------
# Texts without an answer
# ---------------------------------------------------------------------------------------------------------------------

INSTRUCTIONS = "instructions"
"""The column of a reward that checks instructions: their rows have no gold, and a copy of the prompt follows none."""

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
    """Texts without content under the first `count` rows."""
    return [AuditCase("empty", label, number, text) for number in range(count) for label, text in EMPTY.items()]


def make_format_cases(count: int, forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """Texts in the right format whose content is nothing, or nonsense, under the first `count` rows."""
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
    """The marks that instructions ask for, without any content."""
    return [AuditCase("empty", label, number, text) for number in range(len(rows)) for label, text in CHEATS.items()]


def make_echo_cases(rows: Sequence[AuditRow]) -> list[AuditCase]:
    return [
        AuditCase("echo", "the prompt as completion", number, safe_text(row.prompt))
        for number, row in enumerate(rows)
        if row.prompt and (row.gold or INSTRUCTIONS in row.columns)
    ]


EXPRESSION = re.compile(r"[(-]*\d[\d.,]*[)!]*(?:\s*(?:[-+*/×÷·^−]|\\(?:times|cdot|div)(?![a-z]))\s*[(-]*\d[\d.,]*[)!]*)+")

SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}


def make_question_cases(rows: Sequence[AuditRow], forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """The question copied into the answer: the whole prompt, and where the gold is a number the arithmetic in it."""
    cases = []
    for number, row in enumerate(rows):
        prompt = safe_text(row.prompt).strip()
        signs = re.sub(r"\b(?:plus|minus|times|divided by)\b", lambda word: SIGNS[word[0]], prompt)
        found = EXPRESSION.findall(signs) if golds.read_number(row.gold) is not None else []
        for place, copied in enumerate([prompt, *(text.rstrip(".,") for text in found)]):
            if row.gold and copied and not golds.has_token(copied, row.gold) and not golds.is_same_answer(copied, row.gold):
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
"""What may be paid for instead of an answer. No digits, so that no number in it can be taken for one."""


def make_wording_cases(row: int, gold: str, forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """A wrong answer alone, and then behind words, sentences and lines that say nothing."""
    far = golds.choose_far_answers(gold)[:1]
    texts = {"alone": "", **{label: f"{text}\n" for label, text in WORDING.items() if not golds.contains_gold(text, gold)}}
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
    """Answers that cost an age to evaluate, or break a parser."""
    cases = []
    for place, (label, write) in enumerate(BOMBS.items()):
        text = write()
        turns = 2 if len(text) < 100 and len(forms) > 1 else 1
        cases += [rotate_forms(forms, place + turn).make_case("bomb", label, row, text) for turn in range(turns)]
    return cases


def make_injection_cases(row: int, forms: Sequence[AnswerForm], canary: str) -> list[AuditCase]:
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
    return [
        rotate_forms(forms, place + turn).make_case("injection", label, row, answer)
        for place, (label, answer) in enumerate(answers.items())
        for turn in range(min(2, len(forms)))
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Golds that are none, and completions as chat messages
# ---------------------------------------------------------------------------------------------------------------------


def make_missing_gold_cases(row: int, gold: str, gold_column: str, forms: Sequence[AnswerForm]) -> list[AuditCase]:
    """A row whose gold is missing must not reward anything; an error for that row is right.

    Nothing is tried that is right by the row's own gold: a reward may know that from another column.
    """
    number = "17" if golds.is_same_answer(gold, "42") else "42"
    written = [form.write(word) for form in forms[:2] for word in ("", "None", number)]
    return [
        AuditCase("missing_gold", f"gold is {label}", row, text, columns={gold_column: missing})
        for label, missing in (("None", None), ("empty", ""), ("spaces", "   "))
        for text in ("", "None", "I do not know.", *written)
    ]


def make_chat_case(case: AuditCase, row: AuditRow) -> AuditCase:
    """A right completion as chat messages where the row has text, and the other way round."""
    label, other = "as text", case.completion
    if not row.is_chat:
        label, other = "as chat messages", [{"role": "assistant", "content": case.completion}]
    return replace(case, attack="chat", label=label, completion=other, expect="pass")


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
