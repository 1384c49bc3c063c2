"""One audit under way: what is asked of every reward, whatever its kind, and the report at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cohort.rewards.entries import Answered
from cohort.tools.audit import attacks
from cohort.tools.audit.attacks import Case, Form
from cohort.tools.audit.findings import (
    FALSE_NEGATIVE,
    FALSE_POSITIVE,
    AuditReport,
    Finding,
    example_of,
    fault_findings,
    finding_of,
)
from cohort.tools.audit.probe import leaves_arguments
from cohort.tools.audit.profiles import Profile
from cohort.tools.audit.running import AuditError, Bench, Result, safe_text
from cohort.tools.audit.samples import AuditRow

STEADY_CASES = 12
SLOW_S, STEEP = 0.5, 25.0
"""A text of 100,000 characters that takes longer than this, and so many times longer than one of 10,000, is too slow."""
STEEP_AT_LIMIT = 15.0
"""The same where the longer text ran into the time limit: it would have taken longer still."""
SLOWEST = 3


class Questions:
    """The attacks on one function. A subclass asks what its kind of reward is asked."""

    def __init__(
        self,
        bench: Bench,
        rows: Sequence[AuditRow],
        profile: Profile | None,
        kind: str,
        threshold: float,
        calibrate_threshold: bool,
        outcome: bool,
        gold_column: str,
        template: str,
        folder: Path,
        seed: int,
    ) -> None:
        self.bench, self.rows, self.profile, self.kind = bench, rows, profile, kind
        self.threshold, self.calibrate_threshold, self.outcome = threshold, calibrate_threshold, outcome
        self.gold_column, self.folder, self.seed = gold_column, folder, seed
        self.findings: list[Finding] = []
        self.remarks: list[str] = []
        self.forms: list[Form] = []
        self.demonstrations_count = False
        """Whether the rows' demonstrations score as right."""
        self.template = template or next(
            (found for row in rows if (found := attacks.template_of(row.demonstration, row.gold))), ""
        )

    def ask_kind(self) -> None:
        raise NotImplementedError

    def ask(self) -> None:
        self.bench.warm_up(self.rows)
        self.ask_kind()
        self.findings += fault_findings(self.bench.results, self.rows)
        self.ask_steadiness()
        self.ask_length()
        self.note_threshold()

    def run(self, cases: Sequence[Case]) -> list[Result]:
        return self.bench.run(self.rows, cases)

    def passed(self, results: Sequence[Result]) -> list[Result]:
        return [result for result in results if result.passes(self.threshold)]

    def refused(self, results: Sequence[Result]) -> list[Result]:
        return [result for result in results if not result.passes(self.threshold) and not result.fault]

    def refuse_if_hopeless(self, results: Sequence[Result]) -> None:
        """A jail that is missing is no flaw of the reward, and nothing can be said without it."""
        for result in results:
            if "JailUnavailable" in result.detail:
                raise AuditError(f"reward {self.bench.spec}: {result.detail.strip().splitlines()[-1]}")
        if results and all(result.fault == "exception" for result in results):
            self.remarks.append("the function raised on every gold: look at that first")

    def ask_injections(self, row: int, forms: Sequence[Form]) -> list[Result]:
        canary = self.folder / "canary"
        results, executed = [], []
        for case in attacks.injection_cases(row, forms, str(canary)):
            result = self.run([case])
            results += result
            if canary.exists():
                executed += result
                canary.unlink()
        if executed:
            self.findings.append(finding_of("executes", executed, self.rows, len(results)))
        return results

    # -- every kind ------------------------------------------------------------------------------------------------------

    def ask_steadiness(self) -> None:
        """The same score again, in a new process, in a batch, in another order, and arguments left as they were."""
        steady = [
            result
            for result in self.bench.results
            if not result.fault
            and result.case.attack not in ("chat", "missing_gold", "sleep", "resources", "escape", "injection")
            if len(safe_text(result.case.completion)) < 5_000
        ]
        right, other = self.passed(steady), [result for result in steady if not result.passes(self.threshold)]
        half = STEADY_CASES // 2
        chosen = [*spread(right, half), *spread(other, STEADY_CASES - min(half, len(right)))]
        if not chosen:
            return
        cases = [result.case for result in chosen]
        again = [self.bench.call(self.rows, [case])[0] for case in cases]
        self.bench.fresh()
        anew = [self.bench.call(self.rows, [case])[0] for case in cases]
        self.compare("not_deterministic", chosen, again, anew)
        if any(finding.flaw == "not_deterministic" for finding in self.findings):
            self.drop_consequences(chosen, again, anew)
            return  # a comparison with a batch would only find the same again
        together = self.bench.call(self.rows, cases)
        backwards = self.bench.call(self.rows, cases[::-1])[::-1]
        beside = self.bench.call(self.rows, [self.neighbour(cases[0]), *cases, self.neighbour(cases[-1])])[1:-1]
        self.compare("batch_dependent", chosen, together, backwards, beside)
        self.ask_purity(cases)

    def drop_consequences(self, first: Sequence[Result], *others: Sequence[Result]) -> None:
        """Where the same completion passes one time and not the next, what passed proves nothing: the cause alone is left."""
        turned = [
            before
            for group in others
            for result, before in zip(group, first, strict=True)
            if not result.fault and result.passes(self.threshold) != before.passes(self.threshold)
        ]
        judged = (FALSE_POSITIVE, FALSE_NEGATIVE)
        dropped = [finding.flaw for finding in self.findings if finding.category in judged and finding.level == "flaw"]
        if turned and dropped:
            self.findings = [finding for finding in self.findings if finding.flaw not in dropped]
            self.remarks.append(
                f"left out, since the same completion passes one time and not the next: {', '.join(dict.fromkeys(dropped))}. "
                "Mend that first, then audit again"
            )

    def note_threshold(self) -> None:
        scores = [result.score for result in self.bench.results if result.score is not None]
        if scores and min(scores) < max(scores) < self.threshold:
            self.remarks.append(
                f"the threshold {self.threshold:g} is never reached: the highest score of any completion was {max(scores):g}. "
                "Give the score that a right answer gets as --threshold"
            )

    def neighbour(self, case: Case) -> Case:
        """A row that a careless function stumbles over."""
        return replace(
            case, completion="\\boxed{\u202e9^9^9^9²" if self.kind != "code" else "```python\nraise SystemExit(0)\n```"
        )

    def compare(self, flaw: str, first: Sequence[Result], *others: Sequence[Result]) -> None:
        malformed = [result for group in others for result in group if result.fault in ("type", "length", "nan", "position")]
        if malformed:
            if not any(finding.flaw == "contract" for finding in self.findings):
                self.findings.append(finding_of("contract", malformed[:1], self.rows, len(first)))
            return
        differing: dict[int, Result] = {}
        for group in others:
            for result, before in zip(group, first, strict=True):
                if result.fault == "exception" and flaw == "batch_dependent":
                    continue  # the runner asks again, one by one
                if result.fault or not same_score(result.score, before.score):
                    said = f"{before.score} alone" if flaw == "batch_dependent" else f"{before.score} the first time"
                    detail = result.detail if result.fault else f"{said}, then {result.score}"
                    differing.setdefault(id(before), replace(result, detail=detail))
        if differing:
            self.findings.append(finding_of(flaw, list(differing.values()), self.rows, len(first)))

    def ask_purity(self, cases: Sequence[Case]) -> None:
        # What a careless function does in place is to strip its texts.
        padded = [
            replace(case, completion=f" \n{case.completion}\n ") for case in cases[:2] if isinstance(case.completion, str)
        ]
        cases = [*cases, *padded]
        given = self.bench.arguments(self.rows, cases)
        probe = f"{leaves_arguments.__module__}:{leaves_arguments.__qualname__}"
        reply = self.bench.ask(
            probe, {"audited": self.bench.spec, "given": given}, [len(safe_text(c.completion)) for c in cases]
        )
        if isinstance(reply, Answered) and any(entry.value == 0.0 for entry in reply.entries):
            shown = [Result(cases[0], None, "", "its arguments differ after the call")]
            self.findings.append(finding_of("impure", shown, self.rows))

    def ask_length(self) -> None:
        """Ten times the text should take about ten times as long."""
        form = self.forms[0] if self.forms and self.kind != "code" else None
        slow: list[Result] = []
        odd: list[Result] = []
        for place, (label, filler) in enumerate(attacks.FILLERS.items()):
            if len(slow) + len(odd) >= 3:
                break  # each costs about the time limit, and three say it all
            texts = [attacks.filled(filler, size) for size in attacks.LENGTHS]
            short, middle, long = (
                Case("length", f"{label}, {len(text):,} characters", 0, form.write(text) if form and place % 2 else text, "any")
                for text in texts
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
        if slow:
            self.findings.append(finding_of("superlinear", slow, self.rows, len(attacks.FILLERS)))
        known = {finding.flaw for finding in self.findings}
        self.findings += [finding for finding in fault_findings(odd, self.rows) if finding.flaw not in known]

    # -- the end ---------------------------------------------------------------------------------------------------------

    def report(self, name: str, seconds: float) -> AuditReport:
        results = self.bench.results
        slowest = sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
        ordered = [finding for level in ("flaw", "note") for finding in self.findings if finding.level == level]
        return AuditReport(
            reward=name,
            kind=self.kind,
            rows=len(self.rows),
            cases=len(results),
            skipped=self.bench.skipped,
            seconds=round(seconds, 2),
            threshold=self.threshold,
            forms=tuple(form.name for form in self.forms),
            findings=tuple(ordered),
            slowest=tuple(example_of(result, self.rows) for result in slowest),
            remarks=tuple(self.remarks),
        )


def spread(results: Sequence[Result], count: int) -> list[Result]:
    """`count` of them from all over the list."""
    if len(results) <= count:
        return list(results)
    return [results[place * len(results) // count] for place in range(count)]


def same_score(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= 1e-9 * max(1.0, abs(left))
