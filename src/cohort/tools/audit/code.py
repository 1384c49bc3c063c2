"""Attacks on a reward that runs programs."""

from __future__ import annotations

from dataclasses import replace

from cohort.tools.audit import programs
from cohort.tools.audit.cases import AnswerForm, CaseResult
from cohort.tools.audit.causes import find_code_causes
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import AuditError

ENDLESS_WALL_S, ENDLESS_CPU_S = 3.0, 1.0
"""Limits for programs that never end, where the reward takes such limits: each costs all of it."""


class CodeQuestions(Questions):
    """Right programs in every form, then programs that only look right to the grader."""

    def ask_kind(self) -> None:
        if not any(row.solution for row in self.rows):
            raise AuditError("rows: a `solution` column with right programs is needed to audit a reward that runs programs.")
        golden = self.ask_solutions()
        form = self.forms[0] if self.forms else programs.CODE_FORMS[0]
        jailed = self.profile is not None and self.profile.jailed
        wrong = self.run(programs.make_wrong_program_cases(self.rows, form))
        with self.bench.tighten_limits(wall_s=ENDLESS_WALL_S, cpu_s=ENDLESS_CPU_S):
            wrong += self.run(programs.make_endless_cases(self.rows, form, jailed))
        wrong += self.run(programs.make_other_solution_cases(self.rows, form))
        self.findings = find_code_causes(wrong, self.filter_passed(wrong), self.rows) + self.findings
        self.ask_escapes(form)
        if not jailed:
            self.remarks.append(
                "endless loops, memory and output were not tried: only a reward that is known to have a jail is given those"
            )
        self.ask_chat(golden)

    def ask_solutions(self) -> list[CaseResult]:
        """Find the forms that programs are read from; solutions must pass in them, refactored ones too. Returns what passed."""
        results = self.run(programs.make_solution_cases(self.rows))
        self.refuse_if_hopeless(results)
        read = self.find_read_forms(results, programs.CODE_FORMS)
        judged = [result for result in results if result.case.form in read]
        golden = self.filter_passed(judged)
        if self.forms:
            judged += self.run(programs.make_refactored_cases(self.rows, self.forms[0]))
        self.add_finding("code_rejected", self.filter_refused(judged), len(judged))
        return golden

    def ask_escapes(self, form: AnswerForm) -> None:
        """Programs that write or read a file outside of any jail."""
        secret, token = self.folder / "secret", "the audit's own secret"
        secret.write_text(token)
        cases = programs.make_escape_cases(self.rows, form, str(self.canary), str(secret), token)
        results, wrote = self.run_beside_canary(cases)
        escaped = [replace(result, detail="the file was written") for result in wrote]
        read = [result for result in self.filter_passed(results) if result not in wrote]
        escaped += [replace(result, detail="right only because it could read the file") for result in read]
        self.add_finding("unjailed", escaped, len(cases))
