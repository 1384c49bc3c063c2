"""The sampler that every engine uses: from logits to the next token and its log-probability.

The log-probability is always that of the full distribution at the sampling temperature, because training recomputes that one.
top-k and top-p only restrict the candidates; recipes allow them in evaluation only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cohort.base.text import write_count
from cohort.errors import EngineError
from cohort.model.architecture import count_positions
from cohort.types import Prompt, Sampling

MISMATCH_LIMITS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1.0, torch.float16: 0.5}
"""Largest |log ratio| of one token between engine and trainer with the same weights.

In bfloat16 a token of low probability can differ by several tenths. The mean, which is limited to a tenth of this, is the
sharper test there.
"""
GPU_FACTOR = 10.0
"""On a GPU, float32 sums have another order for one token than for a sequence: 1.7e-5 was measured on the column_addition model."""
LARGE_MODEL = 4096
"""Layers x width up to which the limits hold. Beyond, rounding grows in proportion."""


def choose_tokens(
    logits_BV: Tensor, sampling: Sampling, gumbel_BV: Tensor | None, greedy_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Ids [B] (int64) and float32 log-probs [B] of the next tokens.

    gumbel_BV: the noise; None for greedy sampling. greedy_B: the greedy rows, if only some are.
    """
    if sampling.greedy:
        scaled_BV = logits_BV.float()
        ids_B = scaled_BV.argmax(-1)
    else:
        assert gumbel_BV is not None, "sampling at a temperature needs noise"
        temperature: float | Tensor = sampling.temperature
        if greedy_B is not None:
            temperature = torch.where(greedy_B, 1.0, sampling.temperature)[:, None]
            gumbel_BV = gumbel_BV.masked_fill(greedy_B[:, None], 0.0)
        scaled_BV = logits_BV.float() / temperature
        ids_B = (cut_candidates(scaled_BV, sampling.top_k, sampling.top_p) + gumbel_BV).argmax(-1)
    # log_softmax subtracts the maximum first. logit - logsumexp would round a log-prob near 0 to the scale of the logits.
    logprobs_B = scaled_BV.log_softmax(-1).gather(-1, ids_B[:, None])[:, 0]
    return ids_B, logprobs_B


def cut_candidates(scaled_BV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set the tokens outside top_k and then top_p to -inf (0 and 1.0: keep all). The most likely token always stays."""
    if 0 < top_k < scaled_BV.shape[-1]:
        smallest_B1 = scaled_BV.topk(top_k, -1).values[:, -1:]
        scaled_BV = scaled_BV.masked_fill(scaled_BV < smallest_B1, -torch.inf)
    if top_p < 1.0:
        sorted_BV, order_BV = scaled_BV.sort(-1, descending=True)
        probs_BV = sorted_BV.softmax(-1)
        # A token stays while the mass before it is below top_p: the smallest set that reaches top_p.
        outside_BV = probs_BV.cumsum(-1) - probs_BV >= top_p
        outside_BV[:, 0] = False
        scaled_BV = scaled_BV.masked_fill(torch.zeros_like(outside_BV).scatter(-1, order_BV, outside_BV), -torch.inf)
    return scaled_BV


@contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Switch off autograd and dropout, and restore the mode of every module afterwards.

    no_grad instead of inference_mode: modules may keep tensors that they compute (rotary tables), and an inference tensor
    would break the next backward.
    """
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def check_request(config: Any, prompts: list[Prompt], sampling: Sampling) -> None:
    """Raise EngineError for a request that no engine can sample correctly. config: the text config of the model."""
    if sampling.max_completion_tokens < 1:
        raise EngineError(f"sampling.max_completion_tokens is {sampling.max_completion_tokens}; it must be at least 1.")
    if sampling.temperature < 0:
        raise EngineError(f"sampling.temperature is {sampling.temperature:g}; it must be 0 (greedy) or above.")
    for prompt in prompts:
        if not prompt.token_ids:
            raise EngineError(f"prompt {prompt.index} has no tokens, so there is nothing to continue.")
    longest = max((len(prompt.token_ids) for prompt in prompts), default=0)
    limit, needed = count_positions(config), longest + sampling.longest_completion
    if limit and needed > limit:
        raise EngineError(
            f"the longest prompt has {longest} tokens and sampling.max_completion_tokens is "
            f"{sampling.max_completion_tokens}{describe_replies(sampling)}: together {needed}, but the model has {limit} positions "
            "(max_position_embeddings). Lower sampling.max_completion_tokens or prompts.max_prompt_tokens"
            f"{', environment.max_turns or environment.max_observation_tokens' if sampling.max_reply_tokens else ''}."
        )


def describe_replies(sampling: Sampling) -> str:
    return f" and the environment may reply with {sampling.max_reply_tokens}" if sampling.max_reply_tokens else ""


def check_finite(logprobs: Tensor, version: int) -> None:
    """Raise EngineError for NaN or infinite log-probs. NaN logits have an argmax, so sampling would continue with token 0.

    version: of the policy.
    """
    if bool(torch.isfinite(logprobs).all()):
        return
    fault = "the policy's logits are NaN or infinite"
    if version:
        raise EngineError(
            f"{fault} after {write_count(version, 'optimizer step')}: optimizer.learning_rate is too high for this model. Lower it by a "
            "factor of ten or more and start again."
        )
    raise EngineError(
        f"{fault}: the weights of the model are broken, or model.dtype is too narrow for them. After a cold start: lower "
        "cold_start.learning_rate."
    )


def find_mismatch_limit(model: Any, rounding: float = 1.0) -> float:
    """Largest difference that rounding may cause between the log-probs of engine and trainer. rounding: of the engine's Capabilities."""
    config = model.config.get_text_config()
    limit = MISMATCH_LIMITS[model.dtype] * max(1.0, config.num_hidden_layers * config.hidden_size / LARGE_MODEL)
    if model.dtype == torch.float32:
        limit *= rounding * (GPU_FACTOR if model.device.type != "cpu" else 1.0)
    return limit
