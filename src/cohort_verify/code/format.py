"""Finds the program in a completion. Nothing is parsed or compiled here; the jail does that.

Hostile text can overflow the stack of Python's parser or keep it busy for minutes, so the trainer's process must not parse it.
The search only looks at lines, in one pass. The jail finds out whether the text is a program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort_verify.format import CLOSE, OPEN, find_continued_text, opens_block

TAGS = ("python", "python3", "py")
"""Words after an opening fence that mark a program."""


@dataclass(frozen=True)
class ProgramText:
    """The text of a completion's program."""

    text: str
    fenced: bool
    """It was in a fenced block. Otherwise text that is not Python counts as no answer rather than as a failed attempt."""


@dataclass(frozen=True)
class Fence:
    """A line of three or more marks, with the word that follows them."""

    mark: str
    tag: str
    indent: int
    bare: bool
    """Nothing follows the marks, so the line can close a block."""


def find_program(
    completion: str,
    *,
    prompt: Any = "",
    inside_thought: bool = False,
    tags: Sequence[str] = TAGS,
    entry_point: str = "",
    prefix: str = "",
) -> ProgramText | None:
    """Return the last block marked as Python, else the last unmarked one, else the whole answer; None without text.

    The thinking is not searched. `prefix` is the start of the program in the prompt (HumanEval). A completion that does not
    define `entry_point` continues the prefix; one that does gets the imports and helpers that come before the definition in the
    prefix.
    """
    answer = drop_thought(completion, inside_thought)
    # A completion that opens its own fence does not continue the prompt's.
    goes_on = answer == completion and read_fence(answer.lstrip().partition("\n")[0]) is None
    blocks, _ = split_blocks(answer, split_blocks(find_continued_text(prompt))[1] if goes_on else None)
    marked = [block for tag, block in blocks if tag.lower() in tags] or [block for tag, block in blocks if not tag]
    text = marked[-1].removesuffix("\n") + "\n" if marked else answer
    if not text.strip() or (blocks and not marked):
        return None
    return ProgramText(add_prefix(text, entry_point, prefix), fenced=bool(marked))


def drop_thought(completion: str, inside: bool = False) -> str:
    """Return the text after the last </think>, or "" if the thought is unclosed."""
    _, close, answer = completion.rpartition(CLOSE)
    if close:
        return answer
    return "" if inside or completion.lstrip().startswith(OPEN) else completion


def starts_inside_thought(prompt: Any, prefilled: Any) -> bool:
    """Return whether the prompt or its chat template has already opened a thought."""
    return prefilled if isinstance(prefilled, bool) else opens_block(prompt)


# ---------------------------------------------------------------------------------------------------------------------
# Fences
# ---------------------------------------------------------------------------------------------------------------------


def split_blocks(text: str, start: Fence | None = None) -> tuple[list[tuple[str, str]], Fence | None]:
    """Return the fenced blocks as (tag, content), and the fence left open. The text may begin inside the fence `start`.

    A last block without a closing fence counts: a stop string may have removed the fence.
    """
    blocks: list[tuple[str, str]] = []
    inside, lines = start, list[str]()
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        fence = read_fence(line)
        if inside is None:
            if fence is not None:
                inside, lines = fence, []
        elif fence is not None and fence.bare and fence.mark.startswith(inside.mark):
            blocks.append((inside.tag, "\n".join(lines)))
            inside = None
        else:
            # A fence inside a list is indented, and so is its block. A function body is indented more than its fence.
            lines.append(line.removeprefix(" " * inside.indent))
    if inside is not None:
        blocks.append((inside.tag, "\n".join(lines)))
    return blocks, inside


def read_fence(line: str) -> Fence | None:
    """Read a line as a fence. Not a regular expression: those backtrack on a line of a hundred thousand marks."""
    content = line.strip()
    mark = content[:1]
    if mark not in ("`", "~"):
        return None
    rest = content.lstrip(mark)
    count = len(content) - len(rest)
    if count < 3 or mark in rest:
        return None
    words = rest.split(maxsplit=1)
    return Fence(mark * count, words[0] if words else "", len(line) - len(line.lstrip(" ")), bare=not words)


# ---------------------------------------------------------------------------------------------------------------------
# Programs that begin in the prompt
# ---------------------------------------------------------------------------------------------------------------------


def defines_name(text: str, name: str) -> bool:
    """Return whether a line defines, assigns or imports the name at the top level."""
    word = re.escape(name)
    patterns = rf"(?:async[ \t]+)?def[ \t]+{word}\b|class[ \t]+{word}\b|{word}[ \t]*[=:]|(?:from|import)[ \t].*\b{word}\b"
    return re.search(rf"^(?:{patterns})", text, re.MULTILINE) is not None


def add_prefix(text: str, entry_point: str, prefix: str) -> str:
    if not prefix:
        return text
    if not entry_point or not defines_name(text, entry_point):
        return prefix + text
    head = find_prefix_head(prefix, entry_point)
    # A __future__ import has to be the first statement.
    return text if re.search(r"^from[ \t]+__future__\b", text, re.MULTILINE) else head + text


def find_prefix_head(prefix: str, entry_point: str) -> str:
    """Return the part of a prefix before the entry point's definition: imports and helpers."""
    found = list(re.finditer(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", prefix, re.MULTILINE))
    return prefix[: found[-1].start()] if found else ""


# ---------------------------------------------------------------------------------------------------------------------
# Methods
# ---------------------------------------------------------------------------------------------------------------------


def strip_solution(entry_point: str) -> str:
    """Return f for Solution().f, which is defined as a method and called like a function."""
    return entry_point.removeprefix("Solution().").removeprefix("Solution.")


def find_callable_name(text: str, function: str) -> str:
    """Return the name to call in the jail: Solution.f if the program defines the function only as a method."""
    return f"Solution.{function}" if not defines_name(text, function) and defines_name(text, "Solution") else function
