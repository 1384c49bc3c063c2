"""Which tokens end a completion.

One source is not enough: checkpoints name an end-of-text token while their chat template ends a turn with another (on
Phi-3.5 that made 97 % of completions look cut). So: generation config, tokenizer, chat template, and the recipe's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.errors import EngineError
from cohort.model.chat import find_end_of_turn_id
from cohort.recipe.sections import suggest_nearest


def stop_ids(model: Any, tokenizer: Any, extra: Sequence[str]) -> tuple[int, ...]:
    """Ids that end a completion, ascending and without duplicates."""
    ids = {int(token) for token in make_list(getattr(getattr(model, "generation_config", None), "eos_token_id", None))}
    ids |= {int(token) for token in make_list(tokenizer.eos_token_id)}
    end_of_turn = find_end_of_turn_id(tokenizer)
    if end_of_turn is not None:
        ids.add(end_of_turn)
    ids = {token for token in ids if token >= 0}  # -1 is how some checkpoints write that there is none
    return tuple(sorted(ids | {find_single_token(tokenizer, text) for text in extra}))


def make_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]


def find_single_token(tokenizer: Any, text: str) -> int:
    """The one token that is this text. The unknown token stands for every text that the tokenizer lacks, and so for none."""
    known = tokenizer.get_vocab().get(text)
    ids = [known] if known is not None else list(tokenizer.encode(text, add_special_tokens=False))
    if len(ids) == 1 and (known is not None or ids[0] != tokenizer.unk_token_id):
        return int(ids[0])
    if ids and set(ids) == {tokenizer.unk_token_id}:
        what = f"the tokenizer does not know {text!r} and would take it for {tokenizer.unk_token!r}"
    else:
        what = f"{text!r} is {len(ids)} tokens for this tokenizer ({ids})"
    usable = [str(token) for token in tokenizer.all_special_tokens if token != tokenizer.unk_token]
    raise EngineError(
        f"sampling.stop: {what}; a completion is stopped by single tokens alone. Name a token of its vocabulary"
        f"{suggest_nearest(text, tokenizer.get_vocab()) or '.'} Special ones: {', '.join(usable) or 'none'}. The model's own end needs no mention."
    )
