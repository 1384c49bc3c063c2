"""The checks that every reward goes through, whatever its kind, and the report."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from cohort.observe.diagnosis.finding import Finding, Level
from cohort.rewards.call import Answered
from cohort.tools.audit import attacks
from cohort.tools.audit.profiles import Profile
from cohort.tools.audit.report import FALSE_NEGATIVE, FALSE_POSITIVE, AuditReport, find_faults, make_finding, show_result
from cohort.tools.audit.running import (
    AnswerForm,
    AuditCase,
    AuditError,
    AuditOptions,
    Bench,
    CaseResult,
    leaves_arguments,
)
from cohort_verify.text import text_of

STEADY_CASES = 12
SLOW_S, STEEP = 0.5, 25.0
"""100,000 characters are too slow if they take longer than SLOW_S and more than STEEP times as long as 10,000."""
STEEP_AT_LIMIT = 15.0
"""STEEP for a text that reached the time limit: it would have taken longer still."""
SLOWEST = 3


class Auditor:
    """The audit of one function. Subclasses add the attacks for one kind of reward."""

    def __init__(self, bench: Bench, options: AuditOptions, kind: str, profile: Profile | None, folder: Path) -> None:
        self.bench, self.options, self.kind, self.profile, self.folder = bench, options, kind, profile, folder
        self.rows = bench.rows
        known = profile.threshold if profile else 0.5
        self.threshold = known if options.threshold is None else options.threshold
        self.findings: list[Finding] = []
        self.remarks: list[str] = []
        self.forms: list[AnswerForm] = []
        self.template = options.template or next(
            (found for row in self.rows if (found := attacks.find_template(row.demonstration, row.reference))), ""
        )

    def audit_kind(self) -> None:
        raise NotImplementedError

    def make_report(self, name: str, started: float) -> AuditReport:
        """Run the checks for this kind of reward, then those for every reward."""
        self.bench.warm_up()
        self.audit_kind()
        self.findings += find_faults(self.bench.results, self.rows)
        self.check_stability()
        self.check_length()
        results = self.bench.results
        scores = [result.score for result in results if result.score is not None]
        if scores and min(scores) < max(scores) < self.threshold:
            self.remarks.append(
                f"no completion reached the threshold {self.threshold:g}: the highest score was {max(scores):g}. Set --threshold "
                "to the score of a right answer"
            )
        slowest = sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
        return AuditReport(
            reward=name,
            kind=self.kind,
            rows=len(self.rows),
            cases=len(results),
            skipped=self.bench.skipped,
            seconds=round(time.monotonic() - started, 2),
            threshold=self.threshold,
            forms=tuple(form.name for form in self.forms),
            findings=tuple(sorted(self.findings, key=lambda finding: ("flaw", "note").index(finding.level))),
            slowest=tuple(show_result(result, self.rows) for result in slowest),
            remarks=tuple(self.remarks),
        )

    def run(self, cases: Sequence[AuditCase]) -> list[CaseResult]:
        return self.bench.run(cases)

    def add_finding(self, flaw: str, results: Sequence[CaseResult], tried: int = 0, level: Level = "flaw") -> None:
        """Add a finding if any result shows the flaw."""
        if results:
            self.findings.append(make_finding(flaw, results, self.rows, tried, level))

    def filter_passed(self, results: Sequence[CaseResult]) -> list[CaseResult]:
        return [result for result in results if result.passes(self.threshold)]

    def filter_refused(self, results: Sequence[CaseResult]) -> list[CaseResult]:
        return [result for result in results if not result.passes(self.threshold) and not result.fault]

    def refuse_if_unusable(self, results: Sequence[CaseResult]) -> None:
        """Raise AuditError if the jail is missing: that is not a flaw of the reward, but prevents the audit."""
        for result in results:
            if "JailUnavailable" in result.detail:
                raise AuditError(f"reward {self.bench.spec}: {result.detail.strip().splitlines()[-1]}")
        if results and all(result.fault == "exception" for result in results):
            self.remarks.append("the function raised an exception on every reference answer: fix that first")

    # -- shared by several kinds -----------------------------------------------------------------------------------------

    def find_read_forms(self, results: Sequence[CaseResult], forms: Sequence[AnswerForm]) -> Collection[str]:
        """The forms in which at least half of the reference answers pass, or that the reward documents. None is a finding."""
        verdicts: dict[str, list[bool]] = {}
        for result in results:
            verdicts.setdefault(result.case.form, []).append(result.passes(self.threshold))
        documented = self.profile.forms if self.profile else ()
        read = {form for form, passes in verdicts.items() if sum(passes) * 2 >= len(passes) or form in documented}
        self.forms = [form for form in forms if form.name in read]
        if not read and any(not result.fault for result in results):
            best = sorted(results, key=lambda result: -(result.score or 0.0))
            self.add_finding("reference_rejected", best, len(results))
        return read

    def run_beside_canary(self, cases: Sequence[AuditCase]) -> tuple[list[CaseResult], list[CaseResult]]:
        """(results, those whose completion created the file `canary`). The cases run one by one, to identify the cause."""
        results, touched = [], []
        for case in cases:
            results += self.run([case])
            if self.canary.exists():
                self.canary.unlink()
                touched.append(results[-1])
        return results, touched

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    def try_injections(self, row: int, forms: Sequence[AnswerForm]) -> list[CaseResult]:
        results, executed = self.run_beside_canary(attacks.make_injection_cases(row, forms, str(self.canary)))
        self.add_finding("executes", executed, len(results))
        return results

    def try_chat(self, accepted: Sequence[CaseResult]) -> None:
        """Try the first right completion in the other format: as chat messages, or as text."""
        results = self.run([attacks.make_chat_case(result.case, self.rows[result.case.row]) for result in accepted[:1]])
        refused = [result for result in results if not result.passes(self.threshold)]
        self.add_finding("chat", refused, len(results), "flaw" if self.profile else "note")

    # -- every kind ------------------------------------------------------------------------------------------------------

    def check_stability(self) -> None:
        """Check that scores are the same again, in a new process, in a batch and in another order, and arguments are unchanged."""
        steady = [
            result
            for result in self.bench.results
            if not result.fault
            and result.case.attack not in ("chat", "missing_reference", "sleep", "resources", "escape", "injection")
            if len(text_of(result.case.completion)) < 5_000
        ]
        right, other = self.filter_passed(steady), [result for result in steady if not result.passes(self.threshold)]
        half = STEADY_CASES // 2
        chosen = [*pick_spread(right, half), *pick_spread(other, STEADY_CASES - min(half, len(right)))]
        if not chosen:
            return
        cases = [result.case for result in chosen]
        again = [self.bench.call([case])[0] for case in cases]
        self.bench.close()
        anew = [self.bench.call([case])[0] for case in cases]
        self.compare_scores("not_deterministic", chosen, again, anew)
        if any(finding.name == "not_deterministic" for finding in self.findings):
            self.drop_consequences(chosen, again, anew)
            return  # a comparison with a batch would find the same flaw
        together = self.bench.call(cases)
        backwards = self.bench.call(cases[::-1])[::-1]
        # A row on which careless functions fail.
        text = "\\boxed{\u202e9^9^9^9²" if self.kind != "code" else "```python\nraise SystemExit(0)\n```"
        beside = self.bench.call([replace(cases[0], completion=text), *cases, replace(cases[-1], completion=text)])[1:-1]
        self.compare_scores("batch_dependent", chosen, together, backwards, beside)
        self.check_purity(cases)

    def drop_consequences(self, first: Sequence[CaseResult], *others: Sequence[CaseResult]) -> None:
        """Drop other findings if the same completion passes one time and not the next, since they then prove nothing."""
        turned = [
            before
            for group in others
            for result, before in zip(group, first, strict=True)
            if not result.fault and result.passes(self.threshold) != before.passes(self.threshold)
        ]
        judged = (FALSE_POSITIVE, FALSE_NEGATIVE)
        dropped = [finding.name for finding in self.findings if finding.category in judged and finding.level == "flaw"]
        if turned and dropped:
            self.findings = [finding for finding in self.findings if finding.name not in dropped]
            self.remarks.append(
                f"omitted, since the same completion passes one time and not the next: {', '.join(dict.fromkeys(dropped))}. "
                "Fix that first, then audit again"
            )

    def compare_scores(self, flaw: str, first: Sequence[CaseResult], *others: Sequence[CaseResult]) -> None:
        """Add the flaw if a later score of a case differs from its first."""
        malformed = [result for group in others for result in group if result.fault in ("type", "length", "nan", "position")]
        if malformed:
            if not any(finding.name == "contract" for finding in self.findings):
                self.add_finding("contract", malformed[:1], len(first))
            return
        when = "alone" if flaw == "batch_dependent" else "the first time"
        differing: dict[int, CaseResult] = {}
        for result, before in (pair for group in others for pair in zip(group, first, strict=True)):
            if result.fault == "exception" and flaw == "batch_dependent":
                continue  # the runner retries one completion at a time
            if result.fault or not is_same_score(result.score, before.score):
                detail = result.detail if result.fault else f"{before.score} {when}, then {result.score}"
                differing.setdefault(id(before), replace(result, detail=detail))
        self.add_finding(flaw, list(differing.values()), len(first))

    def check_purity(self, cases: Sequence[AuditCase]) -> None:
        # A typical careless change in place strips the texts.
        texts = [case for case in cases[:2] if isinstance(case.completion, str)]
        cases = [*cases, *(replace(case, completion=f" \n{case.completion}\n ") for case in texts)]
        probe = f"{leaves_arguments.__module__}:{leaves_arguments.__qualname__}"
        asked = {"audited": self.bench.spec, "given": self.bench.make_arguments(cases)}
        reply = self.bench.call_worker(probe, asked, [len(text_of(case.completion)) for case in cases])
        if isinstance(reply, Answered) and any(entry.value == 0.0 for entry in reply.entries):
            self.add_finding("impure", [CaseResult(cases[0], None, "", "its arguments differ after the call")])

    def check_length(self) -> None:
        """Ten times the text should take about ten times as long."""
        form = self.forms[0] if self.forms and self.kind != "code" else None
        slow: list[CaseResult] = []
        odd: list[CaseResult] = []
        for place, (label, filler) in enumerate(attacks.FILLERS.items()):
            if len(slow) + len(odd) >= 3:
                break  # each costs about the time limit, and three are enough evidence
            write = form.write if form and place % 2 else str
            short, middle, long = (
                AuditCase("length", f"{label}, {size:,} characters", 0, write(attacks.fill_text(filler, size)), "any")
                for size in attacks.LENGTHS
            )
            result = self.run([long])[0]
            if result.fault not in ("", "timeout"):
                odd.append(result)
            if result.fault != "timeout" and result.seconds < SLOW_S:
                continue
            before = self.run([middle])[0]
            # A busy machine slows single calls: the fastest of three counts.
            again = [] if result.fault == "timeout" else self.run([long, long])
            seconds = min(one.seconds for one in [result, *again])
            steep = STEEP_AT_LIMIT if result.fault == "timeout" else STEEP
            if before.fault != "timeout" and seconds > max(SLOW_S, steep * before.seconds):
                detail = f"{before.seconds:.2f} s for 10,000 characters, {seconds:.2f} s for 100,000"
                slow.append(replace(result, detail=detail, fault=""))
            elif result.fault == "timeout":
                odd += [result, *([before, *self.run([short])] if before.fault == "timeout" else [])]
        self.add_finding("superlinear", slow, len(attacks.FILLERS))
        known = {finding.name for finding in self.findings}
        self.findings += [finding for finding in find_faults(odd, self.rows) if finding.name not in known]


def pick_spread(results: Sequence[CaseResult], count: int) -> list[CaseResult]:
    """`count` results, spread over the list."""
    if len(results) <= count:
        return list(results)
    return [results[place * len(results) // count] for place in range(count)]


def is_same_score(left: float | None, right: float | None) -> bool:
    return left is right if left is None or right is None else math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
