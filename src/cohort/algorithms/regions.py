"""Ratio and trust region: how far one update may move the policy. One value per trained token; nothing is reduced here.

The suffix M counts trained tokens: exactly the tokens the policy sampled and we train on, laid flat. Padding does not
exist here, so it cannot leak into an exp. `row_M` says which completion a token belongs to; a completion is never split
over micro-batches, so sums over it are whole. A region with one value per completion gives that value to each of its
tokens, and `sequence_mean` weights turn it into the mean over completions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: far outside any trust region, still finite, also when squared in a gradient norm."""


@dataclass(frozen=True)
class Limits:
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    ratio_cap: float = 5.0


@dataclass(frozen=True)
class Surrogate:
    loss_M: Tensor
    ratio_M: Tensor
    below_M: Tensor
    """Tokens whose gradient the region took away (cispo: whose weight it cut), below and above 1."""
    above_M: Tensor


def ratio(policy_logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """pi / pi_old. With old = stopgrad(policy) it is exactly 1 with the right gradient."""
    return exp_limited(policy_logprobs_M - old_logprobs_M)


def exp_limited(log_ratio_M: Tensor) -> Tensor:
    return torch.exp(log_ratio_M.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def over_rows(values_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    """The sum over each token's completion, at every one of its tokens."""
    return values_M.new_zeros(num_rows).index_add(0, row_M, values_M)[row_M]


def clipped_surrogate(ratio_M: Tensor, advantages_M: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """PPO's and GRPO's pessimistic bound, as a loss: -min(rho A, clip(rho, 1 - low, 1 + high) A)."""
    clipped_M = ratio_M.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_M * advantages_M, clipped_M * advantages_M)


# -- regions: (policy log-probs, old log-probs, advantages, row of each token, rows, limits) -> surrogate ----------------


def clip(
    policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, row_M: Tensor, num_rows: int, limits: Limits
) -> Surrogate:
    """Each token by its own ratio (PPO, GRPO); a higher upper limit is DAPO's clip-higher."""
    return _clipped(ratio(policy_logprobs_M, old_logprobs_M), advantages_M, limits)


def dual_clip(
    policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, row_M: Tensor, num_rows: int, limits: Limits
) -> Surrogate:
    """As clip, and for A < 0 the loss of a token stops at dual_clip |A|: a ratio that explodes cannot dominate the batch."""
    once = _clipped(ratio(policy_logprobs_M, old_logprobs_M), advantages_M, limits)
    negative_M = advantages_M < 0
    loss_M = torch.where(negative_M, torch.minimum(once.loss_M, -limits.dual_clip * advantages_M), once.loss_M)
    return Surrogate(loss_M, once.ratio_M, once.below_M, once.above_M | (negative_M & (once.ratio_M > limits.dual_clip)))


def sequence_product(
    policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, row_M: Tensor, num_rows: int, limits: Limits
) -> Surrogate:
    """The completion as one action: its ratio is the product over its tokens, clipped once."""
    log_ratio_M = over_rows(policy_logprobs_M - old_logprobs_M, row_M, num_rows)
    return _clipped(exp_limited(log_ratio_M), advantages_M, limits)


def sequence(
    policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, row_M: Tensor, num_rows: int, limits: Limits
) -> Surrogate:
    """GSPO: the geometric mean of the tokens' ratios, clipped once per completion; the gradient flows through the mean."""
    length_M = over_rows(torch.ones_like(policy_logprobs_M), row_M, num_rows)
    log_ratio_M = over_rows(policy_logprobs_M - old_logprobs_M, row_M, num_rows) / length_M
    return _clipped(exp_limited(log_ratio_M), advantages_M, limits)


def cispo(
    policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, row_M: Tensor, num_rows: int, limits: Limits
) -> Surrogate:
    """-stopgrad(min(rho, cap)) A log pi: the weight is capped, but every token keeps its gradient."""
    ratio_M = ratio(policy_logprobs_M, old_logprobs_M).detach()
    loss_M = -ratio_M.clamp(max=limits.ratio_cap) * advantages_M * policy_logprobs_M
    return Surrogate(loss_M, ratio_M, torch.zeros_like(ratio_M, dtype=torch.bool), ratio_M > limits.ratio_cap)


def none(
    policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, row_M: Tensor, num_rows: int, limits: Limits
) -> Surrogate:
    """-A log pi: REINFORCE, RLOO, RFT and SFT. Nothing bounds the update; on stale data nothing corrects it either."""
    nowhere_M = torch.zeros_like(policy_logprobs_M, dtype=torch.bool)
    return Surrogate(-advantages_M * policy_logprobs_M, torch.ones_like(policy_logprobs_M), nowhere_M, nowhere_M)


def _clipped(ratio_M: Tensor, advantages_M: Tensor, limits: Limits) -> Surrogate:
    return Surrogate(
        clipped_surrogate(ratio_M, advantages_M, limits.clip_low, limits.clip_high),
        ratio_M,
        (ratio_M < 1.0 - limits.clip_low) & (advantages_M < 0),
        (ratio_M > 1.0 + limits.clip_high) & (advantages_M > 0),
    )


Region = Callable[[Tensor, Tensor, Tensor, Tensor, int, Limits], Surrogate]

REGIONS: dict[str, Region] = {
    "clip": clip,
    "dual_clip": dual_clip,
    "sequence_product": sequence_product,
    "sequence": sequence,
    "cispo": cispo,
    "none": none,
}


# -- preferences -------------------------------------------------------------------------------------------------------


def dpo(
    policy_logprobs_M: Tensor, ref_logprobs_M: Tensor, signs_M: Tensor, pair_M: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """(loss, margin) of each token's pair: -log sigmoid(margin), margin = beta [(log pi - log ref)(chosen) - (...)(rejected)].

    signs_M is +1 on chosen and -1 on rejected tokens; pair_M numbers the pairs from 0.
    """
    num_pairs = int(pair_M.max()) + 1 if pair_M.numel() else 0
    margin_M = beta * over_rows(signs_M * (policy_logprobs_M - ref_logprobs_M), pair_M, num_pairs)
    return -F.logsigmoid(margin_M), margin_M


# -- mismatch between engine and trainer -------------------------------------------------------------------------------


def mismatch_weights(
    old_logprobs_M: Tensor, sampling_logprobs_M: Tensor, row_M: Tensor, num_rows: int, kind: str, cap: float
) -> Tensor:
    """Importance weights pi_old / pi_engine, per token or completion, cut at cap or 0 outside [1 / cap, cap]. No gradient."""
    level, _, treatment = kind.partition("_")
    log_ratio_M = (old_logprobs_M - sampling_logprobs_M).detach()
    if level == "sequence":
        log_ratio_M = over_rows(log_ratio_M, row_M, num_rows)
    weights_M = exp_limited(log_ratio_M)
    if treatment == "truncate":
        return weights_M.clamp(max=cap)
    inside_M = (weights_M >= 1.0 / cap) & (weights_M <= cap)
    return torch.where(inside_M, weights_M, 0.0)
