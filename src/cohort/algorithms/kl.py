"""Estimators of KL(policy || reference) from the sampled tokens alone (Schulman, "Approximating KL divergence")."""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.algorithms.losses import LOG_RATIO_LIMIT


def k3(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log ref - log policy: never negative, unbiased, low variance. GRPO's choice."""
    # Only the side that explodes is clamped: far below 0 the policy has left the reference, and the pull back must stay.
    difference_M = (ref_logprobs_M - policy_logprobs_M).clamp(max=LOG_RATIO_LIMIT)
    # expm1 keeps full precision where it matters most, near d = 0.
    return torch.expm1(difference_M) - difference_M
