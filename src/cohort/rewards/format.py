"""Rewards for the shape of a completion, not its content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cohort.rewards.text import text_of

OPEN, CLOSE = "<think>", "</think>"


def think_format(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    prefilled: bool | Sequence[bool] | None = None,
    **columns: Any,
) -> list[float]:
    """1.0 for exactly one non-empty <think>...</think> block followed by a non-empty answer, else 0.0.

    Many chat templates end the prompt with `<think>`: the completion then starts inside the block and is right without
    an opening tag. That is read from text prompts, and for chats from a column `prefilled` that a run adds when the
    template opens the block itself; prefilled = true or false decides it for all.
    """
    starts = prompts if prompts is not None else [""] * len(completions)
    if prefilled is None:
        inside = [opens_block(prompt) for prompt in starts]
    else:
        inside = [prefilled] * len(completions) if isinstance(prefilled, bool) else list(prefilled)
    return [
        float(is_thought_then_answer(text_of(completion), within))
        for completion, within in zip(completions, inside, strict=True)
    ]


def opens_block(prompt: Any) -> bool:
    """Whether the prompt's own last words are an opening tag."""
    if not isinstance(prompt, str):
        last = prompt[-1] if prompt else {}
        if last.get("role") != "assistant":
            return False
        prompt = text_of(prompt)
    return bool(prompt.rstrip().endswith(OPEN))


def is_thought_then_answer(text: str, inside: bool) -> bool:
    body = text.strip()
    if not inside:
        if not body.startswith(OPEN):
            return False
        body = body[len(OPEN) :]
    thought, close, answer = body.partition(CLOSE)
    stray = OPEN in body or CLOSE in answer
    return bool(close and not stray and thought.strip() and answer.strip())


def regex_format(completions: Sequence[Any], pattern: str, **columns: Any) -> list[float]:
    """1.0 where the whole completion matches `pattern`; "." matches newlines too.

    A pattern that backtracks without end runs into the time limit of the worker, and the completion scores 0.
    """
    regex = re.compile(pattern, re.DOTALL)
    return [float(regex.fullmatch(text_of(completion)) is not None) for completion in completions]


think_format.reads = ("completions", "prompts", "prefilled")  # type: ignore[attr-defined]
think_format.per_completion = True  # type: ignore[attr-defined]
regex_format.reads = ("completions",)  # type: ignore[attr-defined]
regex_format.per_completion = True  # type: ignore[attr-defined]
