"""Questions to a reward that reads no gold: one that judges the shape of a text alone."""

from __future__ import annotations

from dataclasses import replace

from cohort.tools.audit import attacks
from cohort.tools.audit.cases import AuditCase
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.running import find_built_in
from cohort.tools.audit.samples import RIGHT_TEXTS, WRONG_TEXTS


class GoldlessQuestions(Questions):
    """Known texts where there are any, and whether the function bears every text."""

    def ask_kind(self) -> None:
        name = find_built_in(self.bench.spec)
        right = self.run([AuditCase("look", "right shape", 0, text, "pass") for text in RIGHT_TEXTS.get(name, ())])
        wrong = self.run([AuditCase("look", "wrong shape", 0, text) for text in WRONG_TEXTS.get(name, ())])
        right += self.run(
            [
                AuditCase("look", "right shape", number, text, "pass")
                for number, row in enumerate(self.rows)
                for text in row.right
            ]
        )
        wrong += self.run(
            [AuditCase("look", "wrong shape", number, text) for number, row in enumerate(self.rows) for text in row.wrong]
        )
        self.refuse_if_hopeless(right)
        self.add_finding("shape_refuses", self.filter_refused(right), len(right))
        self.add_finding("shape_accepts", self.filter_passed(wrong), len(wrong))
        instructed = self.rows if all(attacks.INSTRUCTIONS in row.columns for row in self.rows) else ()
        cheats = self.run(attacks.make_cheat_cases(instructed))
        self.add_finding("empty", self.filter_passed(cheats), len(cheats))
        echoes = self.run(attacks.make_echo_cases(instructed))
        self.add_finding("echo", self.filter_passed(echoes), len(echoes))
        forms = attacks.list_forms(self.template)
        bases = [form for form in forms if form.base == form.name]
        for cases in (
            [*attacks.make_gold_cases(self.rows[:3], forms), *attacks.make_empty_cases(1)],
            attacks.make_bomb_cases(0, bases),
        ):
            self.run([replace(case, expect="any") for case in cases])
        self.ask_injections(0, bases)
