"""Which tokens end a completion.

One source is not enough: checkpoints name an end-of-text token while their chat template ends a turn with another (on
Phi-3.5 that made 97 % of completions look cut). So: generation config, tokenizer, chat template, and the recipe's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.errors import EngineError

MARKER = "cohort-assistant-content"


def stop_ids(model: Any, tokenizer: Any, extra: Sequence[str]) -> tuple[int, ...]:
    """Ids that end a completion, ascending and without duplicates."""
    ids = {int(token) for token in as_list(getattr(getattr(model, "generation_config", None), "eos_token_id", None))}
    ids |= {int(token) for token in as_list(tokenizer.eos_token_id)}
    end_of_turn = end_of_turn_id(tokenizer)
    if end_of_turn is not None:
        ids.add(end_of_turn)
    return tuple(sorted(ids | {single_token(tokenizer, text) for text in extra}))


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]


def end_of_turn_id(tokenizer: Any) -> int | None:
    """The added token that the chat template writes right after an assistant message; None where there is none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARKER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:
        # A template may refuse such a chat (its own roles, mandatory tools); the other sources still hold.
        return None
    after = text.rpartition(MARKER)[2].lstrip()
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    # Longest first: one added token may begin another.
    return next((added[token] for token in sorted(added, key=len, reverse=True) if token and after.startswith(token)), None)


def single_token(tokenizer: Any, text: str) -> int:
    known = tokenizer.get_vocab().get(text)
    ids = [known] if known is not None else list(tokenizer.encode(text, add_special_tokens=False))
    if len(ids) != 1:
        raise EngineError(
            f"sampling.stop: {text!r} is {len(ids)} tokens for this tokenizer ({ids}); only single tokens can stop a completion."
        )
    return int(ids[0])
