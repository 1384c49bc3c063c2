"""Where the program is in a completion. Nothing is parsed or compiled here: that is the jail's work.

A parser of the trainer's own process would be fed with model output, and Python's can be made to overflow its stack or
to think for minutes. So the search looks at lines only, in one pass, and whether the text found is a program at all is
seen when the jail loads it.
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
    """The program text of a completion."""

    text: str
    fenced: bool
    """It stood in a fenced block. Where it did not, a text that is no Python at all was no attempt at a program."""


@dataclass(frozen=True)
class Fence:
    """A line of three or more marks, with the word that follows them."""

    mark: str
    tag: str
    indent: int
    bare: bool
    """Nothing follows the marks: such a line can close a block."""


def find_program(
    completion: str,
    *,
    prompt: Any = "",
    inside_thought: bool = False,
    tags: Sequence[str] = TAGS,
    entry_point: str = "",
    prefix: str = "",
) -> ProgramText | None:
    """The last block marked as Python, else the last without a mark, else the whole answer; None where there is no text.

    The thinking is not searched: a draft is no answer. `prefix` is the start of the program that the prompt gave away
    (HumanEval): a completion that does not define `entry_point` itself continues it; one that does gets what the prefix
    has before that definition, its imports and helpers.
    """
    answer = drop_thought(completion, inside_thought)
    # A completion that opens a fence of its own has not gone on inside the prompt's.
    goes_on = answer == completion and read_fence(answer.lstrip().partition("\n")[0]) is None
    blocks, _ = split_blocks(answer, find_open_fence(prompt) if goes_on else None)
    marked = [block for tag, block in blocks if tag.lower() in tags] or [block for tag, block in blocks if not tag]
    text = marked[-1].removesuffix("\n") + "\n" if marked else answer
    if not text.strip() or (blocks and not marked):
        return None
    return ProgramText(add_prefix(text, entry_point, prefix), fenced=bool(marked))


def drop_thought(completion: str, inside: bool = False) -> str:
    """What follows the last </think>; nothing, where the thinking was begun and never ended."""
    _, close, answer = completion.rpartition(CLOSE)
    if close:
        return answer
    return "" if inside or completion.lstrip().startswith(OPEN) else completion


def starts_inside_thought(prompt: Any, prefilled: Any) -> bool:
    """Whether the completion starts inside a thought that the prompt, or its chat template, has opened."""
    return prefilled if isinstance(prefilled, bool) else opens_block(prompt)


# ---------------------------------------------------------------------------------------------------------------------
# Fences
# ---------------------------------------------------------------------------------------------------------------------


def split_blocks(text: str, start: Fence | None = None) -> tuple[list[tuple[str, str]], Fence | None]:
    """The fenced blocks of a text that begins inside the fence `start`, if one is given, and the fence left open.

    Each is the word after its fence, and its lines.

    A last block that nothing closes counts: a stop string may have taken its closing fence.
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
            # A fence inside a list is indented, and so is its block; a function's body is indented more than its fence.
            lines.append(line.removeprefix(" " * inside.indent))
    if inside is not None:
        blocks.append((inside.tag, "\n".join(lines)))
    return blocks, inside


def read_fence(line: str) -> Fence | None:
    """Read by hand: regular expressions for this backtrack, and a line of a hundred thousand marks is a completion too."""
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


def find_open_fence(prompt: Any) -> Fence | None:
    """The fence that the prompt ends inside of."""
    return split_blocks(find_continued_text(prompt))[1]


# ---------------------------------------------------------------------------------------------------------------------
# A program that begins in the prompt
# ---------------------------------------------------------------------------------------------------------------------


def defines_name(text: str, name: str) -> bool:
    """Whether a line of the text defines, assigns or imports the name at the top level."""
    word = re.escape(name)
    patterns = rf"(?:async[ \t]+)?def[ \t]+{word}\b|class[ \t]+{word}\b|{word}[ \t]*[=:]|(?:from|import)[ \t].*\b{word}\b"
    return re.search(rf"^(?:{patterns})", text, re.MULTILINE) is not None


def add_prefix(text: str, entry_point: str, prefix: str) -> str:
    if not prefix:
        return text
    if not entry_point or not defines_name(text, entry_point):
        return prefix + text
    head = find_prefix_head(prefix, entry_point)
    # Such an import has to be the first statement of a file.
    return text if re.search(r"^from[ \t]+__future__\b", text, re.MULTILINE) else head + text


def find_prefix_head(prefix: str, entry_point: str) -> str:
    """What a prefix has before the definition of the entry point: imports and helpers."""
    found = list(re.finditer(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", prefix, re.MULTILINE))
    return prefix[: found[-1].start()] if found else ""


# ---------------------------------------------------------------------------------------------------------------------
# Methods
# ---------------------------------------------------------------------------------------------------------------------


def strip_solution(entry_point: str) -> str:
    """Solution().two_sum is written as a method and called like a function."""
    return entry_point.removeprefix("Solution().").removeprefix("Solution.")


def find_callable_name(text: str, function: str) -> str:
    """How the jail is asked for the function: as a method of a new Solution where the program has only that."""
    return f"Solution.{function}" if not defines_name(text, function) and defines_name(text, "Solution") else function
