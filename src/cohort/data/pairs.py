"""Preference pairs written in the rows: `chosen` and `rejected`, as text or as chat messages ending with the assistant's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.errors import PromptError
from cohort.model.chat import ChatCodec
from cohort.types import Prompt

CHOSEN, REJECTED = "chosen", "rejected"


def make_pairs(prompts: Sequence[Prompt], codec: ChatCodec, stop_id: int) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Prompt -> (chosen ids, rejected ids), each continuing the prompt's very ids and ended by the stop token."""
    pairs = {}
    for prompt in prompts:
        both = []
        for column in (CHOSEN, REJECTED):
            text = completion_text(prompt, column)
            prompt_ids, completion_ids = codec.encode_demonstration(prompt.content, text, stop_id)
            assert prompt_ids == prompt.token_ids, "a completion must continue the very ids that rollouts start from"
            both.append(completion_ids)
        if both[0] == both[1]:
            raise PromptError(
                f"row {prompt.index}: chosen and rejected are the same, so the pair prefers nothing; remove the row."
            )
        pairs[prompt.index] = tuple(both)
    return pairs


def completion_text(prompt: Prompt, column: str) -> str:
    value: Any = prompt.columns.get(column)
    if value is None:
        has = ", ".join(sorted(prompt.columns)) or "none"
        raise PromptError(
            f'algorithm.data: "pairs" trains on `chosen` and `rejected` completions, and row {prompt.index} has no column '
            f'{column!r} (it has {has}). Add them, or build pairs from rollouts with algorithm.data = "start" (from the policy '
            'the run starts from) or "policy" (from the policy as it is).'
        )
    if isinstance(value, list):
        last = value[-1] if value else None
        if not isinstance(last, dict) or last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            raise PromptError(f"row {prompt.index}: `{column}` is a chat that does not end with an assistant message in text.")
        return str(last["content"])
    if not isinstance(value, str):
        raise PromptError(f"row {prompt.index}: `{column}` is {type(value).__name__}; give text, or a list of chat messages.")
    return value
