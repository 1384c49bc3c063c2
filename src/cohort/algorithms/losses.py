"""Per-token losses. They return one value per trained token and never reduce: `aggregation` holds the weights.

The suffix M counts trained tokens: exactly the tokens the policy sampled and we train on, laid flat. Padding does not
exist here, so it cannot leak into an exp.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: far outside any trust region, still finite, also when squared in a gradient norm."""


def ratio(policy_logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """pi / pi_old. With old = stopgrad(policy) it is exactly 1 with the right gradient."""
    return torch.exp((policy_logprobs_M - old_logprobs_M).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def clipped_surrogate(ratio_M: Tensor, advantages_M: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """PPO's and GRPO's pessimistic bound, as a loss: -min(rho A, clip(rho, 1 - low, 1 + high) A)."""
    clipped_M = ratio_M.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_M * advantages_M, clipped_M * advantages_M)


def clip_shares(ratio_M: Tensor, advantages_M: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Number of tokens whose gradient the clip took away, below and above."""
    below = ((ratio_M < 1.0 - clip_low) & (advantages_M < 0)).sum()
    above = ((ratio_M > 1.0 + clip_high) & (advantages_M > 0)).sum()
    return below, above
