"""Terminal output: line width and wrapping, and the completions of a group; used by the console and `cohort look`. No torch.

Model output is untrusted: control characters are escaped. Long texts keep their beginning and end, where the answer usually is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from cohort.base.text import make_printable, shorten_text, write_count
from cohort.observe.rollouts import find_parts, order_useful_first, write_transcript

Row = Mapping[str, Any]

BRIEF = 320
"""Characters shown of a completion, if several are shown."""
MAX_LINES = 8
"""Lines shown of a completion, if several are shown."""
SHORT_COLUMN = 60
"""Characters of the longest data column that is shown in place of a reference answer."""
LABEL = 9
"""Width of the labels before the texts."""


def group_rows(rows: Sequence[Row]) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(int(row["group"]), []).append(row)
    return groups


def find_telling_group(rows: Sequence[Row]) -> list[Row]:
    """The first group with different rewards, since only such groups teach; if there is none, the first group."""
    groups = group_rows(rows)
    order = order_useful_first({number: [row["reward"] for row in group] for number, group in groups.items()})
    return groups[order[0]] if order else []


def pick_best_and_worst(group: Sequence[Row]) -> list[tuple[str, Row]]:
    """(label, row) of the completions to show; if all rewards are equal, one completion and another with a different text."""
    scored = [row for row in group if row["reward"] is not None]
    if len({row["reward"] for row in scored}) > 1:
        return [("best", max(scored, key=lambda row: row["reward"])), ("worst", min(scored, key=lambda row: row["reward"]))]
    other = next((row for row in group if row["completion"] != group[0]["completion"]), None)
    return [("one", group[0]), *([("another", other)] if other is not None else [])]


def print_group(console: Console, group: Sequence[Row], chosen: Sequence[tuple[str, Row]], most: int = BRIEF) -> None:
    """Print a title, the prompt, the reference answer and the chosen completions of a group. most: characters per text; 0: all."""
    first = group[0]
    print_wrapped(console, Text(describe_group(group), style="bold"))
    print_entry(console, "prompt", shorten_lines(write_question(first["prompt"]), most))
    for name, value in find_expected(first):
        print_entry(console, shorten_lines(name, LABEL - 1), shorten_lines(value, most))
    for label, row in chosen:
        print_entry(console, label, describe_completion(row), "bold cyan")
        print_entry(console, "", shorten_lines(write_transcript(row), most) or "(nothing)")


def print_entry(console: Console, label: str, text: str, style: str = "") -> None:
    for number, line in enumerate(wrap_text(text, line_width(console) - LABEL - INDENT)):
        before = " " * INDENT + f"{'' if number else label:{LABEL}}"
        console.print(Text.assemble(before, (line, style)) if line else "", soft_wrap=True)


def write_question(prompt: str) -> str:
    """A prompt as readable text: chat messages as "role: content" lines instead of JSON."""
    if not prompt.startswith("[{"):
        return prompt
    try:
        return "\n".join(f"{message['role']}: {message['content']}" for message in json.loads(prompt))
    except (ValueError, LookupError, TypeError):  # a text that only starts like a chat
        return prompt


def describe_group(group: Sequence[Row]) -> str:
    """ "step 12, group 3: 2 of 8 right, mean reward 0.25"."""
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    judged = [row["success"] for row in group if row["success"] is not None]
    facts = [f"{sum(judged)} of {len(group)} right"] if judged else []
    facts += [f"mean reward {sum(rewards) / len(rewards):.3g}"] if rewards else []
    facts += [f"{len(group) - len(rewards)} without a score"] if len(rewards) < len(group) else []
    return f"step {group[0]['step']}, group {group[0]['group']}: {', '.join(facts)}"


def find_expected(row: Row) -> list[tuple[str, str]]:
    """The reference answer; without one, up to three data columns short enough to be one."""
    if row.get("reference_answer") is not None:
        return [("expected", str(row["reference_answer"]))]
    names = list(row)
    start = max((place for place, name in enumerate(names) if name.startswith("reward/")), default=len(names) - 1)
    found = [(name, str(row[name])) for name in names[start + 1 :] if name != "row" and row[name] is not None]
    return [(name, value) for name, value in found if len(value) <= SHORT_COLUMN][:3]


def describe_completion(row: Row) -> str:
    """ "reward 1 · math_answer 1 · think_format 0 · extracted 46 · 33 tokens, truncated"."""
    parts = find_parts(row)
    alone = len(parts) == 1 and next(iter(parts.values())) == row["reward"]
    words = ["no score" if row["reward"] is None else f"reward {row['reward']:.3g}"]
    words += [f"{name} {'none' if value is None else f'{value:.3g}'}" for name, value in parts.items() if not alone]
    if row.get("success") is not None:
        words.append("right" if row["success"] else "wrong")
    if row.get("extracted") is not None:
        words.append(f"extracted {shorten_lines(str(row['extracted']), SHORT_COLUMN)}")
    if row.get("length") is not None:
        words.append(write_count(row["length"], "token") + (", truncated" if row["end"] == "length" else ""))
    words += [f"fault {', '.join(row['faults'])}"] if row.get("faults") else []
    return make_printable(" · ".join(words))


def shorten_lines(text: str, most: int) -> str:
    """The text with control characters escaped; a long text keeps its beginning and end."""
    lines = shorten_text(text.expandtabs(4).strip("\n"), most).split("\n")
    if most and len(lines) > MAX_LINES:
        left_out = len(lines) - MAX_LINES
        lines = [*lines[: MAX_LINES // 2], f"… {left_out} more lines …", *lines[-(MAX_LINES // 2) :]]
    return "\n".join(lines)


# -- line width and wrapping -------------------------------------------------------------------------------------------

WIDEST = 100
INDENT = 2
"""Spaces before the continuation lines of a sentence."""


class EnduringConsole(Console):
    """A console that goes quiet after a broken pipe (`| head`, a closed pager) instead of ending the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        null = os.open(os.devnull, os.O_WRONLY)  # for output still buffered, and for other prints
        os.dup2(null, self.file.fileno())
        os.close(null)


def make_console(kind: type[Console] = Console) -> Console:
    """A console on standard output; 100 columns wide if the output is a file or a pipe."""
    console = kind(highlight=False)
    return console if console.is_terminal or columns_are_set() else kind(highlight=False, width=WIDEST)


def line_width(console: Console) -> int:
    """Columns per line: at most 100, unless COLUMNS sets another number."""
    return console.width if columns_are_set() else min(console.width, WIDEST)


def columns_are_set() -> bool:
    return os.environ.get("COLUMNS", "").isdecimal()


def print_whole(console: Console, text: str | Text, indent: int = INDENT) -> None:
    """Print a sentence as one line into a file or pipe, where programs read it; on a terminal, wrapped between words."""
    text = Text(text) if isinstance(text, str) else text
    if console.is_terminal:
        print_wrapped(console, text, indent)
    else:
        console.print(text, soft_wrap=True)


def print_error(text: str) -> None:
    print_whole(Console(stderr=True, highlight=False), f"error: {make_printable(text)}")


def print_wrapped(console: Console, text: Text, indent: int = INDENT) -> None:
    """Print a sentence, wrapped between words. Paths and other long words are not split, so that they can be copied."""
    room = max(20, line_width(console) - indent)
    first, *rest = text.split("\n", allow_blank=True)
    lines = list(first.divide(find_breaks(first.plain, room, wider=indent - INDENT)))
    lines += [piece for line in rest for piece in line.divide(find_breaks(line.plain, room))]
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text(" " * indent if number else "").append_text(line), soft_wrap=True)


def find_breaks(line: str, room: int, wider: int = 0) -> list[int]:
    """Positions between words at which a line is wrapped; a number and its per cent sign are one word.

    wider: columns that only the first piece has.
    """
    found, taken = [], cell_len(line) - cell_len(line.lstrip()) - wider
    for word in re.finditer(r"\S+( %\S*)?\s*", line):
        if taken > -wider and taken + cell_len(word.group().rstrip()) > room:
            found.append(word.start())
            taken = wider = 0
        taken += cell_len(word.group())
    return found


def wrap_text(text: str, room: int) -> list[str]:
    """The lines of a text, wrapped between words, and inside words that are too long."""
    pieces = [line[a:b] for line in text.split("\n") for a, b in pairwise([0, *find_breaks(line, room), len(line)])]
    return [
        part.rstrip() for piece in pieces for part in (chop_cells(piece, room) if cell_len(piece.rstrip()) > room else [piece])
    ]
