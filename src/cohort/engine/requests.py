"""Prompts to requests and completions to groups; prefixes of requests; stop tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cohort.base.world import ALONE, World
from cohort.engine.protocol import Engine
from cohort.errors import EngineError
from cohort.model.chat import find_end_of_turn_id
from cohort.recipe.sections import suggest_nearest
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

T = TypeVar("T")


def make_requests(prompts: Sequence[Prompt], group_size: int, first_draw: int = 0) -> list[Request]:
    """`group_size` requests per prompt, group after group. Draws count from `first_draw` in the order of the prompts."""
    return [
        Request(prompt, draw, sample) for draw, prompt in enumerate(prompts, start=first_draw) for sample in range(group_size)
    ]


def regroup(completions: Sequence[T], prompts: int, group_size: int) -> list[list[T]]:
    return [list(completions[group * group_size : (group + 1) * group_size]) for group in range(prompts)]


def sample_groups(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    noise: NoiseKey,
    first_draw: int = 0,
    *,
    world: World = ALONE,
    on_finish: Callable[[int, Completion], None] | None = None,
) -> list[list[Completion]]:
    """One group of `sampling.completions` completions per prompt. Each process samples its block of the draws.

    on_finish(index, completion): called for each completion that this process finishes, with its index among those of all groups.
    """
    block = world.block(len(prompts))
    requests = make_requests(prompts[block], sampling.completions, first_draw + block.start)

    def report(request: Request, completion: Completion) -> None:
        assert on_finish is not None
        on_finish((request.draw - first_draw) * sampling.completions + request.sample, completion)

    completions = world.compute(lambda: engine.generate(requests, sampling, noise, *([report] if on_finish else [])))
    return regroup(completions, len(prompts), sampling.completions)


# -- prefixes ----------------------------------------------------------------------------------------------------------


def check_prefix(request: Request) -> None:
    prefix = request.prefix
    if request.position < 0:
        raise EngineError(f"prompt {request.prompt.index}: the noise position {request.position} of a completion is negative.")
    if prefix is not None and len(prefix.sampling_logprobs) != len(prefix.token_ids):
        raise EngineError(
            f"prompt {request.prompt.index}: the prefix has {len(prefix.token_ids)} tokens but "
            f"{len(prefix.sampling_logprobs)} log-probs. Pass one log-prob per token."
        )


def find_finished_prefix(request: Request, sampling: Sampling) -> Completion | None:
    """The prefix as a completion, if it already ends with a sampled stop token or has the maximum length; otherwise None."""
    prefix = request.prefix
    if prefix is None or not prefix.token_ids:
        return None
    if prefix.token_ids[-1] in sampling.stop_ids and prefix.mask[-1]:
        return replace(prefix, end="stop")
    return replace(prefix, end="length") if prefix.length >= sampling.max_completion_tokens else None


def count_left(request: Request, sampling: Sampling) -> int:
    """Tokens that may still be sampled after the request's prefix."""
    return sampling.max_completion_tokens - (request.prefix.length if request.prefix else 0)


def join_prefix(request: Request, more: Completion, version: int) -> Completion:
    """The request's prefix and `more`, which was sampled after it and whose text covers both.

    version: the policy version that sampled `more`, unless `more` has its own versions.
    """
    prefix = request.prefix
    if prefix is None:
        return more
    mask = None if prefix.sampled_mask is more.sampled_mask is None else (*prefix.mask, *more.mask)
    spans = more.versions or ((version, len(more.token_ids)),)
    versions = (*prefix.versions, *spans) if prefix.versions else ()
    return Completion(
        (*prefix.token_ids, *more.token_ids),
        (*prefix.sampling_logprobs, *more.sampling_logprobs),
        more.end,
        more.text,
        mask,
        versions,
    )


# -- stop tokens -------------------------------------------------------------------------------------------------------


def stop_ids(model: Any, tokenizer: Any, extra: Sequence[str]) -> tuple[int, ...]:
    """Ids that end a completion, ascending and without duplicates. extra: sampling.stop of the recipe.

    They come from the generation config, the tokenizer, the chat template and the recipe. One source is not enough: checkpoints name an
    end-of-text token while their chat template ends a turn with another one (on Phi-3.5 97 % of completions then looked truncated).
    """
    ids = {int(token) for token in make_list(getattr(getattr(model, "generation_config", None), "eos_token_id", None))}
    ids |= {int(token) for token in make_list(tokenizer.eos_token_id)}
    end_of_turn = find_end_of_turn_id(tokenizer)
    if end_of_turn is not None:
        ids.add(end_of_turn)
    ids = {token for token in ids if token >= 0}  # some checkpoints write -1 for none
    return tuple(sorted(ids | {find_single_token(tokenizer, text) for text in extra}))


def make_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]


def find_single_token(tokenizer: Any, text: str) -> int:
    """Id of the token with exactly this text. The unknown token stands for any text, so it does not count."""
    known = tokenizer.get_vocab().get(text)
    ids = [known] if known is not None else list(tokenizer.encode(text, add_special_tokens=False))
    if len(ids) == 1 and (known is not None or ids[0] != tokenizer.unk_token_id):
        return int(ids[0])
    if ids and set(ids) == {tokenizer.unk_token_id}:
        fault = f"{text!r} is not in the tokenizer's vocabulary and would become {tokenizer.unk_token!r}"
    else:
        fault = f"{text!r} is {len(ids)} tokens for this tokenizer ({ids})"
    usable = [str(token) for token in tokenizer.all_special_tokens if token != tokenizer.unk_token]
    raise EngineError(
        f"sampling.stop: {fault}, but a stop must be a single token. Name a token of the vocabulary"
        f"{suggest_nearest(text, tokenizer.get_vocab()) or '.'} Special tokens: {', '.join(usable) or 'none'}. The model's own end-of-text "
        "tokens are included automatically."
    )
