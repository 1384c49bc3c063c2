"""How wide the console writes, and lines that are wrapped so that they can still be read."""

from __future__ import annotations

import os
import re
from itertools import pairwise

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

WIDEST = 100
INDENT = 2
"""Spaces before the second line of a sentence."""


class EnduringConsole(Console):
    """One that falls silent when its reader goes away (`| head`, a closed pager) and lets the program go on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for what is buffered still, and for prints of others
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def make_console(kind: type[Console] = Console) -> Console:
    """The standard output; what goes into a file or a pipe is as wide as it may be."""
    console = kind(highlight=False)
    return console if console.is_terminal or columns_are_set() else kind(highlight=False, width=WIDEST)


def line_width(console: Console) -> int:
    """Columns that a line may take: at most 100, unless COLUMNS asks for another number."""
    return console.width if columns_are_set() else min(console.width, WIDEST)


def columns_are_set() -> bool:
    return os.environ.get("COLUMNS", "").isdecimal()


def print_wrapped(console: Console, text: Text) -> None:
    """A sentence on as many lines as it needs. A path or another long word stays in one piece, so that it can be copied."""
    room = max(20, line_width(console) - INDENT)
    lines = [piece for line in text.split("\n", allow_blank=True) for piece in line.divide(find_breaks(line.plain, room))]
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text(" " * INDENT if number else "").append_text(line), soft_wrap=True)


def find_breaks(line: str, room: int) -> list[int]:
    """Where the pieces begin that a line is cut into, between words."""
    found, taken = [], cell_len(line) - cell_len(line.lstrip())
    for word in re.finditer(r"\S+\s*", line):
        if taken and taken + cell_len(word.group().rstrip()) > room:
            found.append(word.start())
            taken = 0
        taken += cell_len(word.group())
    return found


def laid_out(text: str, room: int) -> list[str]:
    """The lines of a text, each as wide as there is room: cut between words, and inside those that are wider."""
    pieces = [line[a:b] for line in text.split("\n") for a, b in pairwise([0, *find_breaks(line, room), len(line)])]
    return [
        part.rstrip() for piece in pieces for part in (chop_cells(piece, room) if cell_len(piece.rstrip()) > room else [piece])
    ]
