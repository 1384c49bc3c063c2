"""Rewards for the output format: tags in their places, or a pattern.

They ignore the content, so combine them with an outcome reward and give them a small weight. Zero-width spaces and the like do
not count as content. All take time linear in the text, except for a slow pattern of regex_format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from cohort_verify.text import text_of

OPEN, CLOSE = "<think>", "</think>"
TAG = re.compile(r"</?(?:think|answer)>")
UNSEEN = re.compile(
    "[\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffc\U000e0000-\U000e0fff]*"
)
"""White space and characters that are drawn as nothing. str.strip keeps many of these."""


# ---------------------------------------------------------------------------------------------------------------------
# Tags
# ---------------------------------------------------------------------------------------------------------------------


def think_format(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    prefilled: bool | Sequence[bool] | None = None,
    **columns: Any,
) -> list[float]:
    """1.0 for exactly one non-empty <think>...</think> block followed by a non-empty answer, else 0.0.

    Many chat templates end the prompt with `<think>`. The completion then starts inside the block and needs no opening tag.
    Text prompts show this by themselves. For chats a run adds a column `prefilled`; prefilled = true or false sets it for all
    completions.
    """
    return score_form(completions, prompts, prefilled, is_thought_then_answer)


def think_answer_format(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    prefilled: bool | Sequence[bool] | None = None,
    **columns: Any,
) -> list[float]:
    """1.0 for <think>...</think><answer>...</answer>, each once and not empty, with only white space outside, else 0.0.

    If the prompt already opened the thought (see think_format), the completion starts inside it.
    """
    return score_form(completions, prompts, prefilled, is_thought_and_tagged_answer)


def score_form(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None,
    prefilled: bool | Sequence[bool] | None,
    is_right: Callable[[str, bool], bool],
) -> list[float]:
    """Apply `is_right` to every completion; its second argument says whether the prompt already opened the thought."""
    if prefilled is None:
        inside = [opens_block(prompt) for prompt in (prompts if prompts is not None else [""] * len(completions))]
    else:
        inside = [prefilled] * len(completions) if isinstance(prefilled, bool) else list(prefilled)
    return [float(is_right(text_of(completion), within)) for completion, within in zip(completions, inside, strict=True)]


def opens_block(prompt: Any) -> bool:
    """Return whether the prompt ends with an opening tag."""
    return find_continued_text(prompt).rstrip().endswith(OPEN)


def find_continued_text(prompt: Any) -> str:
    """Return the text that the completion continues: a text prompt, or the assistant message at the end of a chat, else ""."""
    if isinstance(prompt, str):
        return prompt
    return text_of(prompt) if prompt and prompt[-1].get("role") == "assistant" else ""


def is_thought_then_answer(text: str, inside: bool) -> bool:
    body = text.strip()
    if not inside:
        if not body.startswith(OPEN):
            return False
        body = body[len(OPEN) :]
    thought, close, answer = body.partition(CLOSE)
    stray = OPEN in body or CLOSE in answer
    return bool(close and not stray and has_content(thought) and has_content(answer))


def is_thought_and_tagged_answer(text: str, inside: bool) -> bool:
    """Return whether the pieces between tags alternate between white space outside and content inside."""
    body = OPEN + text if inside else text
    if TAG.findall(body) != [OPEN, CLOSE, "<answer>", "</answer>"]:
        return False
    before, thought, between, answer, after = TAG.split(body)
    return not (before + between + after).strip() and has_content(thought) and has_content(answer)


def has_content(text: str) -> bool:
    """Return whether the text has a visible character."""
    return UNSEEN.fullmatch(text) is None


# ---------------------------------------------------------------------------------------------------------------------
# A pattern
# ---------------------------------------------------------------------------------------------------------------------


def regex_format(completions: Sequence[Any], pattern: str, **columns: Any) -> list[float]:
    """1.0 where the whole completion matches `pattern`, else 0.0; "." also matches newlines.

    If the pattern backtracks without end, the worker's time limit applies and the completion scores 0.
    """
    regex = re.compile(pattern, re.DOTALL)
    return [float(regex.fullmatch(text_of(completion)) is not None) for completion in completions]


think_format.reads = ("completions", "prompts", "prefilled")  # type: ignore[attr-defined]
think_format.per_completion = True  # type: ignore[attr-defined]
think_answer_format.reads = ("completions", "prompts", "prefilled")  # type: ignore[attr-defined]
think_answer_format.per_completion = True  # type: ignore[attr-defined]
regex_format.reads = ("completions",)  # type: ignore[attr-defined]
regex_format.per_completion = True  # type: ignore[attr-defined]
