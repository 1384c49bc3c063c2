"""What is asked of a reward: rows, the forms of text that carry an answer, single completions, and what came of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cohort.tools.audit import golds
from cohort_verify.text import text_of

Expect = Literal["pass", "fail", "any"]
"""A score of at least the threshold; one below it, or none; whatever it is, as long as it is a score and comes in time."""


@dataclass(frozen=True)
class AuditRow:
    """One row under audit: what the reward is given with every completion, and what is known to be right and wrong."""

    prompt: Any
    """Text or chat messages."""
    columns: Mapping[str, Any]
    gold: str = ""
    """The answer that the gold column stands for; "" where the row has none."""
    right: tuple[str, ...] = ()
    """Further answers that must be accepted."""
    wrong: tuple[str, ...] = ()
    """Further answers that must not be accepted."""
    demonstration: str = ""
    """A whole completion that is right."""
    solution: str = ""
    """For code: a program that passes the tests."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str)


@dataclass(frozen=True)
class AuditCase:
    """One completion under one row, and what must come of it."""

    attack: str
    label: str
    """What is special about this one: "off by one"."""
    row: int
    completion: Any
    """Text, or chat messages where the text itself is not what is tried."""
    expect: Expect = "fail"
    form: str = ""
    answer: str | None = None
    """The one answer that the completion gives, where it gives one and nothing else."""
    columns: dict[str, Any] = field(default_factory=dict, hash=False)
    """Columns of the row that are replaced, such as a gold that is missing."""


@dataclass(frozen=True)
class AnswerForm:
    """A way to write a completion around an answer."""

    name: str
    base: str
    """The marker that carries the answer, without the text around it."""
    write: Callable[[str], str]

    def fits(self, answer: str) -> bool:
        """Whether a right answer can be expected to be read from this form: after ####, a heading in Markdown, only a number."""
        return self.base != "hashes" or golds.read_number(answer) is not None

    def make_case(self, attack: str, label: str, row: int, answer: str, expect: Expect = "fail") -> AuditCase:
        return AuditCase(attack, label, row, self.write(answer), expect, self.name, answer)


@dataclass(frozen=True)
class CaseResult:
    """What came of one case."""

    case: AuditCase
    score: float | None
    """None: no opinion, or no score because of the fault."""
    fault: str = ""
    """"", a kind of fault ("exception", "nan", ...), "crash", or "timeout"."""
    detail: str = ""
    seconds: float = 0.0

    def passes(self, threshold: float) -> bool:
        return not self.fault and self.score is not None and self.score >= threshold


def rotate_forms(forms: Sequence[AnswerForm], place: int) -> AnswerForm:
    """The forms in turn: every attack meets every form somewhere, without the product of the two."""
    return forms[place % len(forms)]


def safe_text(completion: Any) -> str:
    return completion if isinstance(completion, str) else text_of(completion)
