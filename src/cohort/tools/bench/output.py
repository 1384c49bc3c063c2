"""Where a result goes: every file is tried before anything is measured, and what was measured outlives a disk that fails."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.tools.bench.peers import BenchError


def refuse_unwritable(out: Path | None, plot: Path | None) -> None:
    """Found out before measuring, which may take an hour, and not after it. Folders that are missing are made."""
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None:
            try_file(option, file)
    if out is not None and plot is not None and out.resolve() == plot.resolve():
        raise RecipeError(f"--plot {plot}: --out names the same file, and the drawing would replace the result; name another.")


def try_file(option: str, file: Path) -> None:
    if file.is_dir():
        raise RecipeError(f"{option} {file}: is a folder; name a file in it.")
    existed = file.exists()
    if existed and not file.is_file():
        return  # a pipe or a terminal: whoever reads it would take the closing for the end
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
        if not existed:
            file.unlink()
    except OSError as problem:
        raise RecipeError(f"{option} {file}: cannot be written ({problem.strerror}); name a file that can.") from problem


def write_result(
    document: Mapping[str, Any],
    out: Path | None,
    plot: Path | None,
    draw: Callable[[Mapping[str, Any]], str],
    say: Callable[[str], None],
) -> None:
    """The JSON, then the drawing. BenchError where one of them cannot be written, with the place where the figures are."""
    text = json.dumps(document, indent=1) + "\n"
    if out is not None:
        try:
            write(out, text)
        except OSError as problem:
            where = rescue(text, say)
            raise BenchError(f"--out {out}: {problem.strerror}. Nothing that was measured is lost: {where}.") from problem
        say(f"written: {out}")
    if plot is not None:
        try:
            write(plot, draw(document))
        except OSError as problem:
            where = f"it is in {out}" if out is not None else rescue(text, say)
            again = "python -m cohort.tools.bench.plot RESULT.json > DRAWING.svg draws it again"
            raise BenchError(
                f"--plot {plot}: {problem.strerror}. Nothing that was measured is lost: {where}; {again}."
            ) from problem
        say(f"drawn: {plot}")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def rescue(text: str, say: Callable[[str], None]) -> str:
    """Put the result where there is room, and say where: among the temporary files, or else on the terminal."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="cohort-bench-", suffix=".json", delete=False) as kept:
            kept.write(text)
    except OSError:
        say(text)
        return "it is printed above"
    return f"it is in {kept.name}"
