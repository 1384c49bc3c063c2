"""Attacks on a reward that runs programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cohort.tools.audit import programs
from cohort.tools.audit.attacks import Case, Form
from cohort.tools.audit.causes import code_findings
from cohort.tools.audit.findings import finding_of
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import AuditError

ENDLESS_WALL_S, ENDLESS_CPU_S = 3.0, 1.0
"""Limits for programs that never end, where the reward takes such limits: each costs all of it."""


class CodeQuestions(Questions):
    """Right programs in every form, then programs that only look right to the grader."""

    def ask_kind(self) -> None:
        if not any(row.solution for row in self.rows):
            raise AuditError("rows: a `solution` column with right programs is needed to audit a reward that runs programs.")
        solved = [number for number, row in enumerate(self.rows) if row.solution]
        documented = self.profile.forms if self.profile else ()
        results = self.run(
            [
                Case("gold", form.name, number, form.write(self.rows[number].solution), "any", form.name)
                for number in solved
                for form in programs.CODE_FORMS
            ]
        )
        self.refuse_if_hopeless(results)
        by_form: dict[str, list[bool]] = {}
        for result in results:
            by_form.setdefault(result.case.form, []).append(result.passes(self.threshold))
        read = {form for form, verdicts in by_form.items() if sum(verdicts) * 2 >= len(verdicts) or form in documented}
        self.forms = [form for form in programs.CODE_FORMS if form.name in read]
        form = self.forms[0] if self.forms else programs.CODE_FORMS[0]
        judged = [result for result in results if result.case.form in read]
        refused = self.refused(judged)
        if not read and any(not result.fault for result in results):
            self.findings.append(finding_of("gold_rejected", results, self.rows, len(results)))
        if read:
            refactored = self.run(
                [
                    Case("rewrite", label, number, form.write(program), "pass", form.name)
                    for number in solved
                    for label, program in programs.right_programs(self.rows[number]).items()
                ]
            )
            judged += refactored
            refused += self.refused(refactored)
        if refused:
            self.findings.append(finding_of("code_rejected", refused, self.rows, len(judged)))
        jailed = self.profile is not None and self.profile.jailed
        wrong = self.run(programs.code_wrong_cases(self.rows, form))
        with self.bench.tighter(wall_s=ENDLESS_WALL_S, cpu_s=ENDLESS_CPU_S):
            wrong += self.run(programs.endless_cases(self.rows, form, jailed))
        wrong += self.run(programs.other_solution_cases(self.rows, form))
        self.findings = code_findings(wrong, self.passed(wrong), self.rows) + self.findings
        self.ask_escapes(form)
        if not jailed:
            self.remarks.append(
                "endless loops, memory and output were not tried: only a reward that is known to have a jail is given those"
            )
        self.ask_chat(form, solved)

    def ask_escapes(self, form: Form) -> None:
        canary, secret, token = self.folder / "canary", self.folder / "secret", "the audit's own secret"
        secret.write_text(token)
        escaped, cases = [], programs.code_escape_cases(self.rows, form, str(canary), str(secret), token)
        for case in cases:
            result = self.run([case])[0]
            if canary.exists():
                canary.unlink()
                escaped.append(replace(result, detail="the file was written"))
            elif result.passes(self.threshold):
                escaped.append(replace(result, detail="right only because it could read the file"))
        if escaped:
            self.findings.append(finding_of("unjailed", escaped, self.rows, len(cases)))

    def ask_chat(self, form: Form, solved: Sequence[int]) -> None:
        content = form.write(self.rows[solved[0]].solution)
        is_chat = self.rows[solved[0]].is_chat
        other: Any = content if is_chat else [{"role": "assistant", "content": content}]
        results = self.run([Case("chat", "as text" if is_chat else "as chat messages", solved[0], other, "pass", form.name)])
        if self.forms and not results[0].passes(self.threshold):
            required = self.profile is not None and self.profile.reads_chat
            self.findings.append(finding_of("chat", results, self.rows, 1, "flaw" if required else "note"))
