"""Where a result goes: the file is tried before anything is measured, and what was measured outlives a disk that fails."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.tools.bench.peers import BenchError


def refuse_unwritable(file: Path) -> None:
    """Try the file of a result before measuring, which may take an hour; folders that are missing are made."""
    if file.is_dir():
        raise RecipeError(f"--out {file}: is a folder; name a file in it.")
    existed = file.exists()
    if existed and not file.is_file():
        return  # a pipe or a terminal: whoever reads it would take the closing for the end
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
        if not existed:
            file.unlink()
    except OSError as problem:
        raise RecipeError(f"--out {file}: cannot be written ({problem.strerror}); name a file that can.") from problem


def write_result(document: Mapping[str, Any], file: Path, say: Callable[[str], None]) -> None:
    """Write the JSON; where the file fails after all, keep the result elsewhere and say where in a BenchError."""
    text = json.dumps(document, indent=1) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as problem:
        where = rescue_result(text, say)
        raise BenchError(f"--out {file}: {problem.strerror}. Nothing that was measured is lost: {where}.") from problem
    say(f"written: {file}")


def rescue_result(text: str, say: Callable[[str], None]) -> str:
    """Put the result where there is room, and say where: among the temporary files, or else on the terminal."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="cohort-bench-", suffix=".json", delete=False) as kept:
            kept.write(text)
    except OSError:
        say(text)
        return "it is printed above"
    return f"it is in {kept.name}"
