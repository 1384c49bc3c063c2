"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

from cohort.base.interrupts import deferred


def write_whole(path: Path, text: str) -> Path:
    """Replace a file in one move, so that a reader never sees half of it; gives its path."""
    with deferred():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return path
