"""Findings while a run trains: looked for as rows come, each told once. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cohort.algorithms.named import Own
from cohort.observe.diagnosis.checks import diagnose
from cohort.observe.diagnosis.finding import Finding
from cohort.observe.diagnosis.history import History, Row

EARLY_STEPS, THEN_EVERY = 50, 10
"""Early steps matter most and are cheap to look at: findings are looked for after each of them, and later after every tenth."""


def is_looked_at(step: int) -> bool:
    """Whether findings are looked for after this step."""
    return step <= EARLY_STEPS or step % THEN_EVERY == 0


class FindingWatch:
    """rows, evaluations, known: those from before a resume, and the names of what was found then."""

    def __init__(
        self,
        recipe: Mapping[str, Any],
        own: Own | None = None,
        rows: Sequence[Row] = (),
        evaluations: Sequence[Row] = (),
        known: Iterable[str] = (),
    ) -> None:
        self.recipe, self.own = recipe, own
        self.rows, self.evaluations = list(rows), list(evaluations)
        self.known = {*known}
        self.told: set[str] = set()
        self.standing: list[Finding] = []
        """What the last look has found."""
        self.new: list[Finding] = []
        """Of these, what nobody had found before."""

    def see_row(self, row: Row) -> list[Finding]:
        """The row of a step: what it is time to tell."""
        self.rows.append(row)
        last = History((), self.recipe).read_setting("train.num_steps")
        self.standing, self.new = [], []
        return self.look() if is_looked_at(int(row["step"])) or row["step"] == last else []

    def see_evaluation(self, evaluation: Row) -> None:
        self.evaluations.append(evaluation)

    def look(self) -> list[Finding]:
        """What stands and was not told by this process yet."""
        self.standing = diagnose(self.rows, self.recipe, self.evaluations, self.own)
        self.new = [finding for finding in self.standing if finding.name not in self.known]
        untold = [finding for finding in self.standing if finding.name not in self.told]
        self.known |= {finding.name for finding in self.new}
        self.told |= {finding.name for finding in untold}
        return untold

    @property
    def step(self) -> int:
        """Of the last row."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def list_named_rows(self, step: int, new: bool = False) -> list[int]:
        """Rollouts of the step that the evidence of what stands names, in its order; with `new` of what nobody had found before."""
        findings = self.new if new else self.standing
        return list(dict.fromkeys(row for finding in findings for place, row in finding.rows if place == step))
