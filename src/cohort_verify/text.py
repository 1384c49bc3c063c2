"""Reads the text and the marked answer of a completion, and prepares untrusted text for display."""

from __future__ import annotations

import re
from typing import Any

LIMIT_KINDS = ("timeout", "memory", "output", "files")
"""Verdicts of completions that ran into a limit. They score 0."""
INFRASTRUCTURE = "infrastructure"
"""Verdict where something other than the completion failed. There is no score."""


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, set colours, reorder a line or cannot be encoded. Newlines and tabs are not included."""
MAX_DETAIL_CHARS = 8000

THINK_TAG = re.compile(r"</?think>")
ANSWER_TAG = re.compile(r"</?answer>")
BRACES = re.compile(r"\\(?:A?boxed|fbox|framebox(?:\[[^\[\]{}]{0,20}\]){0,2})[ ]?\{|\\[{}\\]|[{}]")


def text_of(completion: Any) -> str:
    """Return the text of a completion in one of TRL's forms: a string, or a list of chat messages, of which the last one
    counts.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and completion and isinstance(completion[-1], dict):
        content = completion[-1].get("content")
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    raise TypeError(f"a completion is a string or a list of chat messages, not {type(completion).__name__}")


def read_visible(text: str) -> str:
    """Return the text without its <think> blocks if text follows the last of them, else all of it."""
    before, after = split_thinking(text)
    return before + after if after is not None and after.strip() else text


def drop_thinking(text: str) -> str:
    """Return the text without its <think> blocks, "" if there is nothing else. An unclosed block reaches to the end."""
    before, after = split_thinking(text)
    return before + (after or "")


def split_thinking(text: str) -> tuple[str, str | None]:
    """Return the text before and between <think> blocks, and the text after the last one (None if that is unclosed).

    A block that a chat template opened in the prompt has only its closing tag here. One pass over the tags: a search per tag
    would be quadratic on a completion that consists of tags.
    """
    kept: list[str] = []
    start, inside = 0, False
    for tag in THINK_TAG.finditer(text):
        if tag.group() == "</think>":
            kept = kept if inside else []
            start, inside = tag.end(), False
        elif not inside:
            kept.append(text[start : tag.start()])
            inside = True
    return "".join(kept), None if inside else text[start:]


def find_boxes(text: str) -> list[tuple[int, int, int]]:
    r"""List the boxes \\boxed{...} and \\fbox{...} with balanced braces and no box inside, as (start, start of the content, end
    of the content).

    One pass with a stack, so unclosed boxes cost no extra time.
    """
    if "box" not in text:
        return []
    open_braces: list[tuple[int, int] | None] = []
    found: list[tuple[int, int, int]] = []
    for brace in BRACES.finditer(text):
        token = brace.group()
        if len(token) > 2:
            open_braces.append((brace.start(), brace.end()))
        elif token == "{":
            open_braces.append(None)
        elif token == "}" and open_braces:
            box = open_braces.pop()
            if box is not None and not (found and found[-1][0] > box[0]):
                found.append((*box, brace.start()))
    return found


def find_last_box(text: str) -> str | None:
    r"""Return the content of the last \\boxed{...} with balanced braces."""
    boxes = find_boxes(text)
    return text[boxes[-1][1] : boxes[-1][2]] if boxes else None


def find_last_tag(text: str) -> str | None:
    """Return the content of the last closed <answer>...</answer>, or None. One pass over the tags.

    It begins at the nearest opening tag: "in <answer> tags: <answer>4</answer>" gives 4.
    """
    last, start = None, -1
    for tag in ANSWER_TAG.finditer(text):
        if tag.group() == "<answer>":
            start = tag.end()
        elif start >= 0:
            last, start = (start, tag.start()), -1
    return text[slice(*last)] if last is not None else None


def list_references(answer: Any, completions: Any) -> list[Any]:
    """Return the answer column as a list of the right length. A bare string is refused: zip would split it into letters."""
    if isinstance(answer, str) or not hasattr(answer, "__len__") or getattr(answer, "ndim", 1) == 0:
        raise TypeError(f"answer: one reference answer per completion is expected, as a list; got {answer!r}")
    if len(answer) != len(completions):
        raise ValueError(f"answer: {len(answer)} reference answers for {len(completions)} completions")
    return list(answer)


def show_value(value: Any) -> str:
    """Return the repr, at most 100 characters, or a placeholder if repr raises."""
    try:
        text = repr(value)
    except Exception:
        return "(it cannot be shown)"
    return text if len(text) <= 100 else text[:100] + "..."


def shorten(text: str) -> str:
    """Prepare untrusted text for display: escape control characters and drop the middle of a long text."""
    text = CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    half = MAX_DETAIL_CHARS // 2
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[:half]}\n[...]\n{text[-half:]}"
