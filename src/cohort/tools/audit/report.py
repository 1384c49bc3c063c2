"""Findings, from the results that show a flaw, with the texts of flaws.toml; the report, and its printed form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.text import shorten_text, write_count
from cohort.observe.diagnosis.finding import Finding, Level, read_texts
from cohort.tools.audit.running import AuditRow, CaseResult
from cohort_verify.text import text_of

# ---------------------------------------------------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------------------------------------------------

SHOWN_CHARS = 160
EXAMPLES = 3
FALSE_POSITIVE, FALSE_NEGATIVE = "false positive", "false negative"
JSON_NAMES = {"name": "flaw", "what": "title", "evidence": "examples"}
"""Field of a finding -> its name in the JSON of a report."""

FLAWS = {
    name: Finding(name, "flaw", text["what"], text["why"], text["fix"], category=text.get("category", FALSE_POSITIVE))
    for name, text in read_texts(Path(__file__).with_name("flaws.toml")).items()
}
"""All flaws of rewards that the audit can find."""

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
"""Attack -> flaw, if their names differ."""
FAULT_FLAWS = {"exception": "raises", "infrastructure": "raises", "crash": "crash", "timeout": "hang"}
"""Fault -> flaw; any other fault is the flaw "contract"."""


@dataclass(frozen=True)
class AuditExample:
    """One input that shows a flaw. All text is printable and short."""

    input: str
    reference: str
    score: float | None
    what: str
    """The kind of input: "off by one, boxed"."""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit. `findings` has flaws first, then notes."""

    reward: str
    kind: str
    rows: int
    cases: int
    skipped: int
    seconds: float
    threshold: float
    forms: tuple[str, ...]
    """Forms of answers that the reward reads."""
    findings: tuple[Finding, ...]
    slowest: tuple[AuditExample, ...]
    remarks: tuple[str, ...] = ()
    """Checks that were not made, and why."""

    @property
    def flaws(self) -> tuple[str, ...]:
        """Names of the flaws found, without notes."""
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
    """The input of a result with its reference answer and score, shortened and printable."""
    case, row = result.case, rows[result.case.row]
    reference = next(iter(case.columns.values())) if case.columns else row.reference
    shown = case.completion if isinstance(case.completion, str) else f"(messages) {text_of(case.completion)}"
    last = (result.detail.strip().splitlines() or [""])[-1]
    what = f"{case.label}, {case.form}" if case.form and case.form != case.label else case.label
    texts = ((shown, SHOWN_CHARS), (reference if isinstance(reference, str) else repr(reference), 60), (last, 120))
    shown, reference, detail = (shorten_text(text, most, one_line=True) for text, most in texts)
    return AuditExample(shown, reference, result.score, what, detail, round(result.seconds, 3))


def make_finding(
    flaw: str, results: Sequence[CaseResult], rows: Sequence[AuditRow], tried: int = 0, level: Level = "flaw"
) -> Finding:
    """The flaw with its texts, the number of inputs that show it, and a few of them."""
    evidence = tuple(show_result(result, rows) for result in choose_examples(results))
    return replace(FLAWS[flaw], level=level, evidence=evidence, count=len(results), tried=max(tried, len(results)))


def choose_examples(results: Sequence[CaseResult]) -> list[CaseResult]:
    """A few different results: the shortest of each label, in the given order. No input is shown twice."""
    distinct: dict[tuple[int, str, str], CaseResult] = {}
    for result in results:
        distinct.setdefault((result.case.row, text_of(result.case.completion), repr(result.case.columns)), result)
    by_label: dict[tuple[str, str], list[CaseResult]] = {}
    for result in distinct.values():
        by_label.setdefault((result.case.attack, result.case.label), []).append(result)
    groups = [sorted(group, key=lambda result: len(text_of(result.case.completion))) for group in by_label.values()]
    return [*(group[0] for group in groups), *(other for group in groups for other in group[1:])][:EXAMPLES]


def make_findings(named: Iterable[tuple[str, CaseResult]], rows: Sequence[AuditRow], tried: Mapping[str, int]) -> list[Finding]:
    """One finding per flaw, in the order of FLAWS. named: (flaw, result); tried: number of inputs by flaw."""
    by_flaw: dict[str, list[CaseResult]] = {}
    for flaw, result in named:
        by_flaw.setdefault(flaw, []).append(result)
    return [make_finding(flaw, by_flaw[flaw], rows, tried.get(flaw, 0)) for flaw in FLAWS if flaw in by_flaw]


def find_faults(results: Sequence[CaseResult], rows: Sequence[AuditRow]) -> list[Finding]:
    """Findings for exceptions, crashes, hangs and malformed values. A row without a reference answer may raise: it should."""
    faulty = [
        (FAULT_FLAWS.get(result.fault, "contract"), result)
        for result in results
        if result.fault and result.case.attack != "chat"
        if result.case.attack != "missing_reference" or result.fault not in ("exception", "infrastructure")
    ]
    return make_findings(faulty, rows, dict.fromkeys(FLAWS, len(results)))


# ---------------------------------------------------------------------------------------------------------------------
# Printing
# ---------------------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"flaw": "bold red", "note": "yellow"}
SLOW_S = 0.2
"""The slowest inputs are only shown if they take longer than this."""


def print_report(report: AuditReport, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def print_text(text: str | Text, indent: int = 0) -> None:
        console.print(Padding(text if isinstance(text, Text) else Text(text), (0, 0, 0, indent)))

    def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
        """Print marks, each with a text that wraps in its own column."""
        grid = Table.grid(padding=(0, 1))
        for mark, text in pairs:
            grid.add_row(Text(mark, style="dim"), Text(text))
        console.print(Padding(grid, (0, 0, 0, 2)))

    skipped = f", {report.skipped} skipped after time limits" if report.skipped else ""
    basis = f"({report.kind}; {report.rows} rows, {report.cases} completions{skipped}, success from {report.threshold:g})"
    print_text(Text.assemble((f"audit of {report.reward}", "bold"), f"  {basis}"))
    for finding in report.findings:
        console.print()
        level, counts = (
            (finding.level.upper(), STYLES[finding.level]),
            f"{finding.count} of {write_count(finding.tried, 'input')}",
        )
        print_text(Text.assemble(level, " ", (finding.name, "bold"), f"  ({finding.category}; {counts})"))
        print_text(finding.what, 2)
        print_pairs([("why", finding.why), ("fix", finding.fix)])
        for example in finding.evidence:
            print_pairs([("*", describe_example(example))])
            print_text(Text(example.input or "(an empty completion)", style="cyan"), 4)
    slow = [example for example in report.slowest if example.seconds >= SLOW_S]
    if slow:
        console.print()
        print_text(Text("slowest inputs", "bold"))
        for example in slow:
            print_pairs([(f"{example.seconds:6.2f} s", example.what)])
    for remark in report.remarks:
        console.print()
        print_pairs([("remark", remark)])
    console.print()
    print_text(Text(write_summary(report), STYLES["flaw"] if report.flaws else "bold green"))


def describe_example(example: AuditExample) -> str:
    score = "no score" if example.score is None else f"score {example.score:g}"
    shown = example.reference
    if shown != shown.strip():  # make spaces visible
        shown = f'"{shown}"'
    reference = f", reference {shown}" if shown else ""
    detail = f" -- {example.detail}" if example.detail else ""
    return f"{score}{reference}: {example.what}{detail}"


def write_summary(report: AuditReport) -> str:
    notes = write_count(len(report.notes), "note")
    if report.clean:
        also = f", {notes}" if report.notes else ""
        return f"{report.reward}: nothing found in {report.cases} completions ({report.seconds:.1f} s{also})"
    return (
        f"{report.reward}: {write_count(len(report.flaws), 'flaw')} found ({', '.join(report.flaws)}), "
        f"{notes} ({report.seconds:.1f} s)"
    )


def print_reports(reports: Sequence[AuditReport], console: Console) -> None:
    for number, report in enumerate(reports):
        if number:
            console.rule(style="dim")
        print_report(report, console)
