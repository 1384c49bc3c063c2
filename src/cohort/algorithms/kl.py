"""Estimators of KL(policy || reference) from the sampled tokens alone (Schulman, "Approximating KL divergence").

As values all three are near the KL; what matters in a loss is the gradient. On-policy, averaged over all outcomes, the
gradient of k2 is that of the KL, that of k1 is 0, that of k3 is that of the *other* KL(reference || policy); multiplied by
the ratio, with the gradient flowing through it (`corrected`), k1 and k3 have the gradient of the KL. In the reward only k1
has it. tests/algorithms/test_kl.py computes all of these on a vocabulary of eight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cohort.algorithms.regions import LOG_RATIO_LIMIT
from cohort.algorithms.registry import kl
from cohort.base.lazy import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")


@kl(gradient="none", fits_reward=True)
def k1(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """log policy - log ref: unbiased, and negative as often as not."""
    return policy_logprobs_M - ref_logprobs_M


@kl(gradient="kl")
def k2(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """(log policy - log ref)^2 / 2: never negative, biased as a value, right as a gradient."""
    return 0.5 * (policy_logprobs_M - ref_logprobs_M).square()


@kl(gradient="reverse")
def k3(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log ref - log policy: never negative, unbiased, low variance. GRPO's choice."""
    # Only the side that explodes is clamped: far below 0 the policy has left the reference, and the pull back must stay.
    difference_M = (ref_logprobs_M - policy_logprobs_M).clamp(max=LOG_RATIO_LIMIT)
    # expm1 keeps full precision where it matters most, near d = 0.
    return torch.expm1(difference_M) - difference_M


def corrected(kl_M: Tensor, ratio_M: Tensor) -> Tensor:
    """Importance-corrected: the ratio carries the gradient of the sampling distribution (DeepSeek-V3.2)."""
    return ratio_M * kl_M
