"""What was found, in words: one class for what the numbers of a run say and for what an audit of a reward shows.

The sentences are no code. They stand in tables, findings.toml here and flaws.toml of the audit: a row for each finding, with
what is seen, why it matters and what to do. No torch.
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

from cohort.algorithms.named import Own
from cohort.base.text import write_percent
from cohort.observe.metrics import LARGEST

# DOC of diagnosis/history.py: """Metric rows, and the few questions that checks ask of them. No torch."""
#

Level = Literal["alarm", "warning", "info", "flaw", "note"]
"""Of a run an alarm, a warning or information; of a reward a flaw or a note."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a run or a reward."""

    name: str
    """Names the row of the table; a monitor shows each name once."""
    level: Level
    what: str
    """What is seen, with the number."""
    why: str
    fix: str
    """What to do about it; empty when there is nothing to do."""
    evidence: tuple[Any, ...] = ()
    """What to look at: of a run sentences that name rollouts (step, file and row), of a reward inputs with their scores."""
    rows: tuple[tuple[int, int], ...] = ()
    """Of a run: (step, row) of the rollouts that the evidence names."""
    category: str = ""
    """Of a reward: false positive, crash and so on."""
    count: int = 0
    """Inputs of an audit that show it."""
    tried: int = 0
    """Inputs of an audit that could have."""

    @property
    def text(self) -> str:
        look_at = f"Look at {' · '.join(self.evidence)}" if self.evidence else ""
        return " ".join(sentence for sentence in (self.what, self.why, self.fix, look_at) if sentence)


@dataclass(frozen=True, slots=True)
class Quoted:
    """Rollouts of a step that show what was found, in a sentence."""

    step: int
    rows: tuple[int, ...]
    text: str


def read_texts(file: Path) -> dict[str, dict[str, str]]:
    """The rows of a table of findings, by name. A text may go over several lines; it is read as one."""
    table: Mapping[str, Mapping[str, str]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: {key: " ".join(text.split()) for key, text in row.items()} for name, row in table.items()}


TEXTS = read_texts(Path(__file__).with_name("findings.toml"))


class TextFormatter(string.Formatter):
    """Fills the blanks of a text; `{share:%}` is a share in per cent, written as everywhere else."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return write_percent(value) if format_spec == "%" else str(super().format_field(value, format_spec))


def write_finding(
    row_name: str, level: Level, /, *, variant: str = "", evidence: tuple[Quoted, ...] = (), **facts: Any
) -> Finding:
    """The finding of a row, its blanks filled with the facts. Where the row has `why_<variant>`, that stands for its `why`."""
    row, texts = TEXTS[row_name], TextFormatter()
    chosen = (row.get(f"{part}_{variant}") or row.get(part, "") for part in ("what", "why", "fix"))
    what, why, fix = (texts.vformat(text, (), facts) for text in chosen)
    rows = tuple((one.step, row) for one in evidence for row in one.rows)
    return Finding(row_name, level, what, why, fix, tuple(one.text for one in evidence), rows)


# == from diagnosis/history.py

Row = Mapping[str, Any]

WINDOW = 10
"""Steps that "now" and "at the start" are averaged over."""
PATIENCE = 5
"""Steps before a low value counts as a pattern rather than as the luck of a small batch."""
FAILURE_WORDS = ("timeout", "memory", "output", "files", "crash", "unparsed", "infrastructure")
"""Verdicts that say that a verifier could not do its work. `wrong`, `no_answer` and `error` are work done."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How a metric changed between two windows of steps."""

    start: float
    now: float
    error: float
    """Standard error of the change, from how much single steps scatter within the windows."""

    @property
    def change(self) -> float:
        return self.now - self.start

    def rises(self, least: float = 0.0) -> bool:
        """By at least this much, and by more than the scatter of single steps explains."""
        return self.change > 0 and self.change >= least and self.change > 3 * self.error

    def falls(self, least: float = 0.0) -> bool:
        return self.change < 0 and -self.change >= least and -self.change > 3 * self.error


@dataclass(frozen=True)
class History:
    """Metric rows with the few questions that checks ask of them."""

    rows: Sequence[Row]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    own: Own = field(default_factory=dict)
    """What is known of the user's functions in the recipe."""

    def read_setting(self, path: str, default: Any = None) -> Any:
        """`train.group_size` of the recipe."""
        node: Any = self.recipe
        for name in path.split("."):
            if not isinstance(node, Mapping) or name not in node:
                return default
            node = node[name]
        return node

    def quote_setting(self, path: str) -> str:
        """` (now 0.04)`, to stand behind the name of a number of the recipe; "" where the recipe does not say it."""
        value = self.read_setting(path)
        return f" (now {value:g})" if isinstance(value, int | float) else ""

    def count_completions(self, rows: Sequence[Row]) -> float:
        """Completions that were judged in these steps."""
        return sum(count_judged(row, self.read_setting("train.group_size")) for row in rows)

    def sum_parts(self, what: str, rows: Sequence[Row]) -> dict[str, float]:
        """Part of the reward -> the sum of its metric reward/<part>/<what> in these steps."""
        metric = re.compile(rf"reward/([^/]+)/{what}")
        parts = sorted({found[1] for row in rows for name in row if (found := metric.fullmatch(name))})
        return {part: sum(self.read_values(f"reward/{part}/{what}", rows)) for part in parts}

    def read_values(self, name: str, rows: Sequence[Row]) -> list[float]:
        found = (row.get(name) for row in rows)
        numbers = (value for value in found if isinstance(value, int | float) and not isinstance(value, bool))
        return [float(value) for value in numbers if abs(value) <= LARGEST]

    def last_values(self, name: str, count: int = WINDOW) -> list[float]:
        return self.read_values(name, self.rows[-count:])

    def mean_now(self, name: str, count: int = WINDOW, least: int = PATIENCE) -> float | None:
        """Mean over the last steps; None where fewer than `least` of them have the metric."""
        return mean_or_none(self.last_values(name, count), least)

    def mean_at_start(self, name: str, count: int = WINDOW) -> float | None:
        return mean_or_none(self.read_values(name, self.rows[:count]))

    def find_trend(self, name: str, first: int = 0) -> Trend | None:
        """From the window of steps that begins with row `first` to the last window; None where they overlap or are empty."""
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
        """Start and now do not overlap."""
        return len(self.rows) >= 2 * WINDOW


def count_judged(row: Row, group_size: Any) -> float:
    """Completions that were judged in a step: dynamic sampling judges more than it keeps."""
    groups, kept = row.get("rollout/groups_drawn"), row.get("rollout/completions")
    if isinstance(groups, int | float) and isinstance(group_size, int):
        return float(groups * group_size)
    return float(kept) if isinstance(kept, int | float) else 0.0


def mean_or_none(values: Sequence[float], least: int = PATIENCE) -> float | None:
    return sum(values) / len(values) if len(values) >= least else None


def measure_trend(start: Sequence[float], now: Sequence[float]) -> Trend | None:
    """None where either side has fewer than PATIENCE values."""
    if min(len(start), len(now)) < PATIENCE:
        return None
    return Trend(fmean(start), fmean(now), math.sqrt(variance(start) / len(start) + variance(now) / len(now)))
