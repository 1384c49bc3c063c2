"""The finding, its texts, and the history of metric rows that checks read. No torch.

One class serves findings about a run and findings about a reward function. Their texts are in tables (findings.toml here, flaws.toml of
the audit): for each finding the symptom, why it matters and the fix.
"""

from __future__ import annotations

import math
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Literal

from cohort.algorithms.named import Own, find_named
from cohort.base.text import write_percent
from cohort.observe.metrics import LARGEST

Level = Literal["alarm", "warning", "info", "flaw", "note"]
"""Of a run: alarm, warning or info; of a reward: flaw or note."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or notice about a run or a reward function."""

    name: str
    """The row of the table; monitors report each name once."""
    level: Level
    what: str
    """The symptom, with its numbers."""
    why: str
    fix: str
    """What to do about it; empty if nothing needs to be done."""
    evidence: tuple[Any, ...] = ()
    """Of a run: sentences that name rollouts (step, file and row); of a reward: inputs with their scores."""
    rows: tuple[tuple[int, int], ...] = ()
    """Of a run: (step, row) of the rollouts in the evidence."""
    category: str = ""
    """Of a reward: false positive, crash and so on."""
    count: int = 0
    """Of a reward: audit inputs that show the problem."""
    tried: int = 0
    """Of a reward: audit inputs that were tried for it."""

    @property
    def text(self) -> str:
        evidence = f"Look at {' · '.join(self.evidence)}" if self.evidence else ""
        return " ".join(sentence for sentence in (self.what, self.why, self.fix, evidence) if sentence)


@dataclass(frozen=True, slots=True)
class Quoted:
    """A sentence about rollouts of one step, as evidence."""

    step: int
    rows: tuple[int, ...]
    text: str


def read_texts(file: Path) -> dict[str, dict[str, str]]:
    """The rows of a table of findings by name, with line breaks in texts removed."""
    table: Mapping[str, Mapping[str, str]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: {key: " ".join(text.split()) for key, text in row.items()} for name, row in table.items()}


TEXTS = read_texts(Path(__file__).with_name("findings.toml"))


class TextFormatter(string.Formatter):
    """Fills the placeholders of a text; `{share:%}` writes a share as a percentage."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return write_percent(value) if format_spec == "%" else str(super().format_field(value, format_spec))


def write_finding(
    row_name: str, level: Level, /, *, variant: str = "", evidence: tuple[Quoted, ...] = (), **facts: Any
) -> Finding:
    """The finding of a table row, its placeholders filled from the facts. A text `why_<variant>` of the row replaces its `why`."""
    row, texts = TEXTS[row_name], TextFormatter()
    chosen = (row.get(f"{part}_{variant}") or row.get(part, "") for part in ("what", "why", "fix"))
    what, why, fix = (texts.vformat(text, (), facts) for text in chosen)
    rows = tuple((one.step, row) for one in evidence for row in one.rows)
    return Finding(row_name, level, what, why, fix, tuple(one.text for one in evidence), rows)


# -- history -----------------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]

WINDOW = 10
"""Steps that "now" and "at the start" are averaged over."""
PATIENCE = 5
"""Steps before a low value counts as a pattern instead of bad luck in a small batch."""
FAILURE_WORDS = ("timeout", "memory", "output", "files", "crash", "unparsed", "infrastructure")
"""Verdicts of a verifier that failed to reach a decision; `wrong`, `no_answer` and `error` are decisions."""
UNSCORED = 0.5
"""Share of unscored completions that is worth a finding. A reward function may abstain on some rows by design; from one half on, most
of the sampling is wasted and every mean describes the smaller part."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The change of a metric between two windows of steps."""

    start: float
    now: float
    error: float
    """Standard error of the change, from the scatter of single steps within the windows."""

    @property
    def change(self) -> float:
        return self.now - self.start

    def rises(self, least: float = 0.0) -> bool:
        """Whether it rises by at least this much and by more than three standard errors."""
        return self.change > 0 and self.change >= least and self.change > 3 * self.error

    def falls(self, least: float = 0.0) -> bool:
        return self.change < 0 and -self.change >= least and -self.change > 3 * self.error


@dataclass(frozen=True)
class History:
    """The metric rows of a run and its recipe, with the queries that checks need."""

    rows: Sequence[Row]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    own: Own = field(default_factory=dict)
    """Facts about the user-defined functions in the recipe."""

    def read_setting(self, path: str, default: Any = None) -> Any:
        """A setting of the recipe by its path, such as `train.group_size`."""
        node: Any = self.recipe
        for name in path.split("."):
            if not isinstance(node, Mapping) or name not in node:
                return default
            node = node[name]
        return node

    def quote_setting(self, path: str) -> str:
        """The value of a numeric setting as ` (now 0.04)`, to follow its name in a text; "" if the recipe does not have it."""
        value = self.read_setting(path)
        return f" (now {value:g})" if isinstance(value, int | float) else ""

    def count_completions(self, rows: Sequence[Row]) -> float:
        """Completions that were scored, or should have been, in these steps."""
        return sum(count_judged(row, self.read_setting("train.group_size")) for row in rows)

    def sum_parts(self, what: str, rows: Sequence[Row]) -> dict[str, float]:
        """Part of the reward -> sum of its metric reward/<part>/<what> over these steps."""
        metric = re.compile(rf"reward/([^/]+)/{what}")
        parts = sorted({found[1] for row in rows for name in row if (found := metric.fullmatch(name))})
        return {part: sum(self.read_values(f"reward/{part}/{what}", rows)) for part in parts}

    def read_values(self, name: str, rows: Sequence[Row]) -> list[float]:
        """The metric in those of the rows that have it."""
        found = (row.get(name) for row in rows)
        numbers = (value for value in found if isinstance(value, int | float) and not isinstance(value, bool))
        return [float(value) for value in numbers if abs(value) <= LARGEST]

    def last_values(self, name: str, count: int = WINDOW) -> list[float]:
        return self.read_values(name, self.rows[-count:])

    def mean_now(self, name: str, count: int = WINDOW, least: int = PATIENCE) -> float | None:
        """Mean over the last steps; None if fewer than `least` of them have the metric."""
        return mean_or_none(self.last_values(name, count), least)

    def mean_at_start(self, name: str) -> float | None:
        return mean_or_none(self.read_values(name, self.rows[:WINDOW]))

    def find_trend(self, name: str, first: int = 0) -> Trend | None:
        """The change from the window of steps starting at row `first` to the last window; None if they overlap or are empty."""
        if first + 2 * WINDOW > len(self.rows):
            return None
        return measure_trend(self.read_values(name, self.rows[first : first + WINDOW]), self.last_values(name))

    def list_evidence(self, kind: str) -> list[tuple[int, Mapping[str, Any]]]:
        """(step, example) of every step that has evidence of this kind; see signs.find_signs."""
        found = []
        for row in self.rows:
            kinds = row.get("evidence")
            one = kinds.get(kind) if isinstance(kinds, Mapping) else None
            if isinstance(one, Mapping) and isinstance(row.get("step"), int) and isinstance(one.get("row"), int):
                found.append((row["step"], one))
        return found

    @property
    def long_enough(self) -> bool:
        """Whether the first and the last window do not overlap."""
        return len(self.rows) >= 2 * WINDOW

    # -- scores ----------------------------------------------------------------------------------------------------------

    @property
    def compares_in_groups(self) -> bool:
        """Whether the advantage compares the completions of a group with each other."""
        name = self.read_setting("algorithm.advantage", "group_normalized")
        return bool(find_named("advantage", name, self.own).traits.compares_group)

    def count_unscored(self, rows: Sequence[Row]) -> tuple[float, float]:
        """(unscored completions, all completions that were to be scored)."""
        return sum(self.read_values("reward/unscored", rows)), self.count_completions(rows)

    @property
    def scored_rows(self) -> list[Row]:
        """The last steps with rewards. Fewer than PATIENCE count only if nothing was scored: that is never bad luck."""
        rows = [row for row in self.rows[-WINDOW:] if self.read_values("reward/unscored", [row])]
        count, completions = self.count_unscored(rows)
        return rows if len(rows) >= PATIENCE or count >= completions else []

    @property
    def scores_are_missing(self) -> bool:
        """Whether too many completions are unscored to judge the difficulty of the prompts."""
        rows = self.scored_rows
        count, completions = self.count_unscored(rows)
        if not rows or not completions or count <= 0:
            return False
        groups = self.count_groups(rows)
        return count >= UNSCORED * completions or bool(groups and self.count_groups_without_scores(rows) >= UNSCORED * groups)

    def count_groups(self, rows: Sequence[Row]) -> float:
        group_size = self.read_setting("train.group_size")
        kept = sum(self.read_values("rollout/completions", rows))
        return kept / group_size if isinstance(group_size, int) and group_size > 0 else 0.0

    def count_groups_without_scores(self, rows: Sequence[Row]) -> float:
        """Groups of the batch that are neither useful nor of equal rewards, because fewer than two completions were scored.

        0 if the group is not the baseline: one score is enough then.
        """
        lost = 0.0
        for row in rows if self.compares_in_groups else ():
            found = [self.read_values(f"advantage/{name}", [row]) for name in ("useful_groups", "zero_variance_groups")]
            if all(found):
                (useful,), (equal,) = found
                lost += self.count_groups([row]) * (1 - useful) - equal
        return max(0.0, lost)

    def read_parts(self) -> tuple[str, dict[str, float]]:
        """(name of the outcome part, weight of every part) from the recipe; ("", {}) if it has no rewards."""
        entries = self.read_setting("rewards")
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            return "", {}
        named = [(name_part(entry), entry) for entry in entries if isinstance(entry, Mapping)]
        if not named:
            return "", {}
        outcome = next((name for name, entry in named if entry.get("outcome")), named[0][0])
        weights = {name: entry.get("weight", 1.0) for name, entry in named}
        return outcome, {name: float(weight) for name, weight in weights.items() if isinstance(weight, int | float)}


def name_part(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or str(entry.get("function", "")).rsplit(":", 1)[-1].rsplit(".", 1)[-1])


def count_judged(row: Row, group_size: Any) -> float:
    """Completions of a step that were to be scored; dynamic sampling scores more than it keeps."""
    groups, kept = row.get("rollout/groups_drawn"), row.get("rollout/completions")
    if isinstance(groups, int | float) and isinstance(group_size, int):
        return float(groups * group_size)
    return float(kept) if isinstance(kept, int | float) else 0.0


def mean_or_none(values: Sequence[float], least: int = PATIENCE) -> float | None:
    return sum(values) / len(values) if len(values) >= least else None


def measure_trend(start: Sequence[float], now: Sequence[float]) -> Trend | None:
    """The change between two samples; None if either has fewer than PATIENCE values."""
    if min(len(start), len(now)) < PATIENCE:
        return None
    return Trend(fmean(start), fmean(now), math.sqrt(variance(start) / len(start) + variance(now) / len(now)))
