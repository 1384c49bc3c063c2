"""From results to findings: which flaw an input shows, in the words of flaws.toml, and the report that holds them all.

The causes behind wrong answers are in causes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cohort.base.text import shorten_text
from cohort.observe.diagnosis.finding import Finding, Level, read_texts
from cohort.tools.audit.cases import AuditRow, CaseResult, safe_text

SHOWN_CHARS = 160
EXAMPLES = 3
FALSE_POSITIVE, FALSE_NEGATIVE = "false positive", "false negative"
JSON_NAMES = {"name": "flaw", "what": "title", "evidence": "examples"}
"""What fields of a finding are called in the data of a report."""

FLAWS = {
    name: Finding(name, "flaw", text["what"], text["why"], text["fix"], category=text.get("category", FALSE_POSITIVE))
    for name, text in read_texts(Path(__file__).with_name("flaws.toml")).items()
}
"""What can be wrong with a reward."""

FLAW_ATTACKS = {
    "wrong_answer": ("mutated", "other_row", "far", "constant"),
    "first_answer": ("first_of_two", "start"),
    "anywhere": ("middle", "spam"),
    "empty": ("format",),
    "copied_question": ("question",),
    "exit_code": ("exit",),
    "wrong_program": ("sleep", "resources"),
}
ATTACK_FLAWS = {attack: flaw for flaw, attacks in FLAW_ATTACKS.items() for attack in attacks}
"""Attacks whose flaw has another name than the attack itself."""
FAULT_FLAWS = {"exception": "raises", "infrastructure": "raises", "crash": "crash", "timeout": "hang"}
"""What a fault shows; any other fault is a breach of the contract."""


@dataclass(frozen=True)
class AuditExample:
    """One input that shows a flaw. All text is printable and short."""

    input: str
    gold: str
    score: float | None
    what: str
    """What is special about the input."""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class AuditReport:
    """What an audit found. `findings` holds flaws first, then notes."""

    reward: str
    kind: str
    rows: int
    cases: int
    skipped: int
    seconds: float
    threshold: float
    forms: tuple[str, ...]
    """Forms of text that the reward reads an answer from."""
    findings: tuple[Finding, ...]
    slowest: tuple[AuditExample, ...]
    remarks: tuple[str, ...] = ()
    """What was not audited, and why."""

    @property
    def flaws(self) -> tuple[str, ...]:
        """Names of the flaws found, notes left out."""
        return tuple(finding.name for finding in self.findings if finding.level == "flaw")

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(finding.name for finding in self.findings if finding.level == "note")

    @property
    def clean(self) -> bool:
        return not self.flaws

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        data["findings"] = [{JSON_NAMES.get(key, key): value for key, value in row.items()} for row in data["findings"]]
        return {**data, "clean": self.clean, "flaws": list(self.flaws), "notes": list(self.notes)}


def show_result(result: CaseResult, rows: Sequence[AuditRow]) -> AuditExample:
    """The input of a result, its gold and its score, fit to be shown."""
    case, row = result.case, rows[result.case.row]
    gold = next(iter(case.columns.values())) if case.columns else row.gold
    shown = case.completion if isinstance(case.completion, str) else f"(messages) {safe_text(case.completion)}"
    last = (result.detail.strip().splitlines() or [""])[-1]
    what = f"{case.label}, {case.form}" if case.form and case.form != case.label else case.label
    texts = ((shown, SHOWN_CHARS), (gold if isinstance(gold, str) else repr(gold), 60), (last, 120))
    shown, gold, detail = (shorten_text(text, most, one_line=True) for text, most in texts)
    return AuditExample(shown, gold, result.score, what, detail, round(result.seconds, 3))


def make_finding(
    flaw: str, results: Sequence[CaseResult], rows: Sequence[AuditRow], tried: int = 0, level: Level = "flaw"
) -> Finding:
    """The flaw with its words, the number of inputs that show it, and a few of them."""
    evidence = tuple(show_result(result, rows) for result in choose_examples(results))
    return replace(FLAWS[flaw], level=level, evidence=evidence, count=len(results), tried=max(tried, len(results)))


def choose_examples(results: Sequence[CaseResult]) -> list[CaseResult]:
    """A few results that differ as much as they can: one of each label, in the order given, each the shortest of its kind.

    No input is shown twice, though it may have been tried twice.
    """
    distinct: dict[tuple[int, str, str], CaseResult] = {}
    for result in results:
        distinct.setdefault((result.case.row, safe_text(result.case.completion), repr(result.case.columns)), result)
    by_label: dict[tuple[str, str], list[CaseResult]] = {}
    for result in distinct.values():
        by_label.setdefault((result.case.attack, result.case.label), []).append(result)
    groups = [sorted(group, key=lambda result: len(safe_text(result.case.completion))) for group in by_label.values()]
    return [*(group[0] for group in groups), *(other for group in groups for other in group[1:])][:EXAMPLES]


def make_findings(named: Iterable[tuple[str, CaseResult]], rows: Sequence[AuditRow], tried: Mapping[str, int]) -> list[Finding]:
    """A finding for each flaw that results were named with, in the order of the table."""
    by_flaw: dict[str, list[CaseResult]] = {}
    for flaw, result in named:
        by_flaw.setdefault(flaw, []).append(result)
    return [make_finding(flaw, by_flaw[flaw], rows, tried.get(flaw, 0)) for flaw in FLAWS if flaw in by_flaw]


def find_faults(results: Sequence[CaseResult], rows: Sequence[AuditRow]) -> list[Finding]:
    """Exceptions, crashes, hangs, values that are none. A row without a gold may raise: that is what it should do."""
    faulty = [
        (FAULT_FLAWS.get(result.fault, "contract"), result)
        for result in results
        if result.fault and result.case.attack != "chat"
        if result.case.attack != "missing_gold" or result.fault not in ("exception", "infrastructure")
    ]
    return make_findings(faulty, rows, dict.fromkeys(FLAWS, len(results)))
