"""A report for the eye: flaws first, each with what shows it, why it matters and what to do; one line at the end says it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cohort.observe.diagnosis.finding import Finding
from cohort.tools.audit.findings import AuditExample, AuditReport

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"flaw": "bold red", "note": "yellow"}
SLOW_S = 0.2
"""Slowest inputs faster than this are nobody's concern."""


def print_report(report: AuditReport, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def print_text(text: str | Text, indent: int = 0) -> None:
        console.print(Padding(text if isinstance(text, Text) else Text(text), (0, 0, 0, indent)))

    def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
        """A mark, and beside it a text that wraps in a column of its own."""
        grid = Table.grid(padding=(0, 1))
        for mark, text in pairs:
            grid.add_row(Text(mark, style="dim"), Text(text))
        console.print(Padding(grid, (0, 0, 0, 2)))

    print_text(Text.assemble((f"audit of {report.reward}", "bold"), f"  {describe_basis(report)}"))
    for finding in report.findings:
        console.print()
        print_text(
            Text.assemble(
                (finding.level.upper(), STYLES[finding.level]), " ", (finding.name, "bold"), f"  {describe_counts(finding)}"
            )
        )
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


def describe_basis(report: AuditReport) -> str:
    skipped = f", {report.skipped} skipped after time limits" if report.skipped else ""
    return f"({report.kind}; {report.rows} rows, {report.cases} completions{skipped}, success from {report.threshold:g})"


def describe_counts(finding: Finding) -> str:
    return f"({finding.category}; {finding.count} of {finding.tried} inputs)"


def describe_example(example: AuditExample) -> str:
    score = "no score" if example.score is None else f"score {example.score:g}"
    shown = example.gold if example.gold == example.gold.strip() else f'"{example.gold}"'  # spaces alone cannot be seen
    gold = f", gold {shown}" if shown else ""
    detail = f" -- {example.detail}" if example.detail else ""
    return f"{score}{gold}: {example.what}{detail}"


def write_summary(report: AuditReport) -> str:
    notes = f"{len(report.notes)} note{'s' * (len(report.notes) != 1)}"
    if report.clean:
        also = f", {notes}" if report.notes else ""
        return f"{report.reward}: nothing found in {report.cases} completions ({report.seconds:.1f} s{also})"
    return (
        f"{report.reward}: {len(report.flaws)} flaw{'s' * (len(report.flaws) != 1)} found ({', '.join(report.flaws)}), "
        f"{notes} ({report.seconds:.1f} s)"
    )


def print_reports(reports: Sequence[AuditReport], console: Console) -> None:
    for number, report in enumerate(reports):
        if number:
            console.rule(style="dim")
        print_report(report, console)
