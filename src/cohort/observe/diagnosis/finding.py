"""What was found, in words: one class for what the numbers of a run say and for what an audit of a reward shows.

The sentences are no code. They stand in tables, findings.toml here and flaws.toml of the audit: a row for each finding, with
what is seen, why it matters and what to do. No torch.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cohort.base.text import write_percent

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
