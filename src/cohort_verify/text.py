"""What a reward reads of a completion: its text, and the part of it that is meant as the answer; how such text is shown."""

from __future__ import annotations

import re
from typing import Any

LIMIT_KINDS = ("timeout", "memory", "output", "files")
"""The completion ran into a limit: it scores 0."""
INFRASTRUCTURE = "infrastructure"
"""Something other than the completion failed: there is no score."""


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a cursor, colour a terminal, reorder a line or cannot be encoded. Newlines and tabs are not among them."""
MAX_DETAIL_CHARS = 8000

THINK_TAG = re.compile(r"</?think>")
ANSWER_TAG = re.compile(r"</?answer>")
BRACES = re.compile(r"\\(?:A?boxed|fbox|framebox(?:\[[^\[\]{}]{0,20}\]){0,2})[ ]?\{|\\[{}\\]|[{}]")


def text_of(completion: Any) -> str:
    """Text of a completion as TRL hands it over: a plain string, or a list of chat messages (the last one counts)."""
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
    """The text without its <think> blocks, if anything follows the last of them; else all of it."""
    before, after = split_thinking(text)
    return before + after if after is not None and after.strip() else text


def drop_thinking(text: str) -> str:
    """The text without its <think> blocks; "" if there is nothing else. A block that never ends is thinking to the end."""
    before, after = split_thinking(text)
    return before + (after or "")


def split_thinking(text: str) -> tuple[str, str | None]:
    """(what stands before and between <think> blocks, what follows the last of them: None if it never ends).

    A block that a chat template opened in the prompt has only its closing tag here. One pass over the tags: a search
    per tag would be quadratic on a completion that is nothing but tags.
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
    r"""Every \\boxed{...} or \\fbox{...} whose braces balance and that holds no other: where it, its content and its end begin.

    One pass with a stack: unclosed boxes cost nothing extra.
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
    r"""Content of the last \\boxed{...} whose braces balance."""
    boxes = find_boxes(text)
    return text[boxes[-1][1] : boxes[-1][2]] if boxes else None


def find_last_tag(text: str) -> str | None:
    """Content of the last <answer>...</answer> that is closed; None without one. One pass over the tags.

    It begins at the nearest opening tag, as a box within a box does: "in <answer> tags: <answer>4</answer>" says 4.
    """
    last, start = None, -1
    for tag in ANSWER_TAG.finditer(text):
        if tag.group() == "<answer>":
            start = tag.end()
        elif start >= 0:
            last, start = (start, tag.start()), -1
    return text[slice(*last)] if last is not None else None


def list_golds(answer: Any, completions: Any) -> list[Any]:
    """The gold column as a list of the right length. A bare string would otherwise be zipped letter by letter."""
    if isinstance(answer, str) or not hasattr(answer, "__len__") or getattr(answer, "ndim", 1) == 0:
        raise TypeError(f"answer: one gold answer per completion is expected, as a list; got {answer!r}")
    if len(answer) != len(completions):
        raise ValueError(f"answer: {len(answer)} gold answers for {len(completions)} completions")
    return list(answer)


def show_value(value: Any) -> str:
    """The value's repr, at most 100 characters. An object whose repr raises gets a placeholder."""
    try:
        text = repr(value)
    except Exception:
        return "(it cannot be shown)"
    return text if len(text) <= 100 else text[:100] + "..."


def shorten(text: str) -> str:
    """Untrusted text for display: control characters are escaped, and the middle of a long text is left out."""
    text = CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    half = MAX_DETAIL_CHARS // 2
    return text if len(text) <= MAX_DETAIL_CHARS else f"{text[:half]}\n[...]\n{text[-half:]}"
