"""GRPO once more, as slowly and as obviously as possible. Shares no code with the package.

Python loops over groups, completions and tokens, float64, one forward of the whole model per completion, no padding, no
micro-batches, no chunks. What the library computes must be this, to the last few bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def reference_advantages(
    rewards: Sequence[float | None], *, normalize: bool = True, ddof: int = 0, epsilon: float = 1e-6
) -> list[float]:
    """Advantages of one group; None is an unscored completion."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2 or all(reward == scored[0] for reward in scored):
        return [0.0 for _ in rewards]
    mean = math.fsum(scored) / len(scored)
    variance = math.fsum((reward - mean) ** 2 for reward in scored) / (len(scored) - ddof)
    scale = math.sqrt(variance) + epsilon if normalize else 1.0
    return [0.0 if reward is None else (reward - mean) / scale for reward in rewards]


@dataclass
class Sample:
    """One completion: what was asked, what was written, and what each of its tokens is trained with."""

    prompt: Sequence[int]
    completion: Sequence[int]
    trained: Sequence[bool]
    advantage: Sequence[float]
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None


def token_logprobs(model: Any, sample: Sample, temperature: float) -> list[Tensor]:
    """log softmax(logits / temperature) of each completion token, from the model's own forward."""
    token_ids = [*sample.prompt, *sample.completion]
    logits_TV = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    logprobs = []
    for place, token in enumerate(sample.completion):
        logits_V = logits_TV[len(sample.prompt) + place - 1] / temperature
        logprobs.append(logits_V[token] - torch.logsumexp(logits_V, 0))
    return logprobs


def token_loss(
    logprob: Tensor,
    old_logprob: float | None,
    ref_logprob: float | None,
    advantage: float,
    clip_low: float,
    clip_high: float,
    kl_coef: float,
) -> Tensor:
    """The loss of one token, written as the cases of the definition and not as a minimum of two products."""
    ratio = torch.exp(logprob - (logprob.detach() if old_logprob is None else old_logprob))
    if advantage > 0 and ratio.item() > 1 + clip_high:
        surrogate = torch.tensor((1 + clip_high) * advantage, dtype=torch.float64)
    elif advantage < 0 and ratio.item() < 1 - clip_low:
        surrogate = torch.tensor((1 - clip_low) * advantage, dtype=torch.float64)
    else:
        surrogate = ratio * advantage
    loss = -surrogate
    if ref_logprob is not None and kl_coef:
        loss = loss + kl_coef * (torch.exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1)
    return loss


def batch_loss(
    model: Any,
    samples: Sequence[Sample],
    *,
    aggregation: str,
    max_completion_tokens: int,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:
    """The whole objective. Completions without a single trained token count nowhere."""
    per_sample: list[list[Tensor]] = []
    for sample in samples:
        losses = []
        for place, logprob in enumerate(token_logprobs(model, sample, temperature)):
            if sample.trained[place]:
                old = None if sample.old_logprobs is None else float(sample.old_logprobs[place])
                ref = None if sample.ref_logprobs is None else float(sample.ref_logprobs[place])
                losses.append(token_loss(logprob, old, ref, float(sample.advantage[place]), clip_low, clip_high, kl_coef))
        if losses:
            per_sample.append(losses)
    if not per_sample:
        return torch.zeros((), dtype=torch.float64)
    if aggregation == "sequence_mean":
        return sum(sum(losses) / len(losses) for losses in per_sample) / len(per_sample)
    if aggregation == "token_mean":
        return sum(sum(losses) for losses in per_sample) / sum(len(losses) for losses in per_sample)
    if aggregation == "constant":
        return sum(sum(losses) for losses in per_sample) / (len(per_sample) * max_completion_tokens)
    raise ValueError(aggregation)
