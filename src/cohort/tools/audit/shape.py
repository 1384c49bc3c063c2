"""Questions to a reward of the shape alone, which reads no gold."""

from __future__ import annotations

from dataclasses import replace

from cohort.rewards import BUILT_IN
from cohort.rewards.contract import importable_name
from cohort.tools.audit import attacks
from cohort.tools.audit.attacks import Case
from cohort.tools.audit.findings import finding_of
from cohort.tools.audit.questions import Questions
from cohort.tools.audit.samples import SHAPE_TEXTS, ShapeTexts


class ShapeQuestions(Questions):
    """Known texts where there are any, and whether the function bears every text."""

    def ask_kind(self) -> None:
        name = next((name for name, known in BUILT_IN.items() if importable_name(known) == self.bench.spec), "")
        texts = SHAPE_TEXTS.get(name, ShapeTexts())
        right = self.run([Case("shape", "right shape", 0, text, "pass") for text in texts.right])
        wrong = self.run([Case("shape", "wrong shape", 0, text, "fail") for text in texts.wrong])
        self.refuse_if_hopeless(right)
        if refused := self.refused(right):
            self.findings.append(finding_of("shape_refuses", refused, self.rows, len(right)))
        if passed := self.passed(wrong):
            self.findings.append(finding_of("shape_accepts", passed, self.rows, len(wrong)))
        bases = [form for form in attacks.known_forms(self.template) if form.base == form.name]
        first = self.rows[:3]
        ordinary = [
            replace(case, expect="any") for case in attacks.calibration_cases(first, attacks.known_forms(self.template))
        ]
        ordinary += [replace(case, expect="any") for case in attacks.demonstration_cases(first)]
        ordinary += [replace(case, expect="any") for case in attacks.empty_cases(first[:1])]
        self.run(ordinary)
        self.run([replace(case, expect="any") for case in attacks.bomb_cases(0, bases)])
        self.ask_injections(0, bases)
