"""Completions written in the rows: demonstrations, and preference pairs (`chosen` and `rejected`, text or chat messages that end with
the assistant's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cohort.errors import PromptError
from cohort.model.chat import ChatCodec
from cohort.types import Prompt

CHOSEN, REJECTED = "chosen", "rejected"


@dataclass(frozen=True)
class WrittenRow:
    """A prompt and the completions that stand in its row."""

    prompt: Prompt
    completions: tuple[tuple[int, ...], ...]
    """Token ids, best first, each continuing the prompt's very ids and ended by the stop token."""

    @property
    def longest(self) -> int:
        """Tokens of the prompt and of its longest completion."""
        return len(self.prompt.token_ids) + max(map(len, self.completions))


def make_demonstrations(prompts: Sequence[Prompt], codec: ChatCodec, column: str, stop_id: int) -> list[WrittenRow]:
    """One completion per prompt, as the column has it."""
    return [encode_row(prompt, [read_demonstration(prompt, column)], codec, stop_id) for prompt in prompts]


def make_pairs(prompts: Sequence[Prompt], codec: ChatCodec, stop_id: int) -> list[WrittenRow]:
    """Two completions per prompt, the chosen one and the rejected one."""
    pairs = []
    for prompt in prompts:
        pairs.append(encode_row(prompt, [read_preference(prompt, column) for column in (CHOSEN, REJECTED)], codec, stop_id))
        if len(set(pairs[-1].completions)) == 1:
            raise PromptError(
                f"row {prompt.index}: chosen and rejected are the same, so the pair prefers nothing; remove the row."
            )
    return pairs


def encode_row(prompt: Prompt, texts: Sequence[str], codec: ChatCodec, stop_id: int) -> WrittenRow:
    """Tokenised once: prompt ids exactly as in rollouts."""
    encoded = [codec.encode_demonstration(prompt.content, text, stop_id) for text in texts]
    for prompt_ids, _ in encoded:
        assert prompt_ids == prompt.token_ids, "a completion must continue the very ids that rollouts start from"
    return WrittenRow(prompt, tuple(completion_ids for _, completion_ids in encoded))


def read_demonstration(prompt: Prompt, column: str) -> str:
    if column not in prompt.columns:
        raise PromptError(
            f"cold_start.completion_column: row {prompt.index} has no column {column!r} (it has {list_columns(prompt)}), where its "
            "demonstration is read. Add it, or name the column that holds the text."
        )
    return str(prompt.columns[column])


def read_preference(prompt: Prompt, column: str) -> str:
    value: Any = prompt.columns.get(column)
    if value is None:
        raise PromptError(
            f'algorithm.data: "pairs" trains on `chosen` and `rejected` completions, and row {prompt.index} has no column '
            f"{column!r} (it has {list_columns(prompt)}). Add them, or build pairs from rollouts with algorithm.data = "
            '"start" (from the policy the run starts from) or "policy" (from the policy as it is).'
        )
    if isinstance(value, list):
        last = value[-1] if value else None
        if not isinstance(last, dict) or last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            raise PromptError(f"row {prompt.index}: `{column}` is a chat that does not end with an assistant message in text.")
        return str(last["content"])
    if not isinstance(value, str):
        raise PromptError(f"row {prompt.index}: `{column}` is {type(value).__name__}; give text, or a list of chat messages.")
    return value


def list_columns(prompt: Prompt) -> str:
    return ", ".join(sorted(prompt.columns)) or "none"
