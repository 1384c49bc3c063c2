"""Ratio and trust region: how far one update can move the policy; and the KL estimators. One value per trained token, never reduced.

The suffix M counts trained tokens: the tokens that the policy sampled and that are trained on, in one flat tensor without padding.
`row_M` is the completion of each token; a completion is never split over micro-batches, so sums over it are complete. A region with
one value per completion gives that value to each of its tokens, and `sequence_mean` weights turn it into the mean over completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cohort.algorithms.registry import Setting, kl, region
from cohort.base.importing import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: far outside any trust region, but finite even when squared in a gradient norm."""


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of one micro-batch in flat tensors."""

    policy_logprobs_M: Tensor
    """Under the current policy, with gradient."""
    old_logprobs_M: Tensor
    """Under the policy that sampled; if that is the current policy, policy_logprobs_M detached."""
    sampling_logprobs_M: Tensor
    """From the engine."""
    advantages_M: Tensor
    row_M: Tensor
    """The completion of each token."""
    num_rows: int
    ref_logprobs_M: Tensor | None = None
    """Under the reference, if there is one."""
    group_B: Tensor | None = None
    """The group of each completion."""


@dataclass(frozen=True)
class Surrogate:
    loss_M: Tensor
    ratio_M: Tensor
    below_M: Tensor
    """Tokens that the region clipped (cispo: whose weight it capped), with ratios below and above 1."""
    above_M: Tensor
    margin_M: Tensor | None = None
    """With a preference objective: the margin of each token's pair."""


def ratio(policy_logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """pi / pi_old. With old = stopgrad(policy) it is exactly 1 with the right gradient."""
    return exp_limited(policy_logprobs_M - old_logprobs_M)


def exp_limited(log_ratio_M: Tensor) -> Tensor:
    return torch.exp(log_ratio_M.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def sum_over_rows(values_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    """The sum over each token's completion, repeated for each of its tokens."""
    return values_M.new_zeros(num_rows).index_add(0, row_M, values_M)[row_M]


def clipped_surrogate(ratio_M: Tensor, advantages_M: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """PPO's and GRPO's pessimistic bound, as a loss: -min(rho A, clip(rho, 1 - low, 1 + high) A)."""
    clipped_M = ratio_M.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_M * advantages_M, clipped_M * advantages_M)


# -- regions -----------------------------------------------------------------------------------------------------------


@region(idle_at_zero=True, zero_on_policy=True)
def clip(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Surrogate:
    """Clips the ratio of each token (PPO, GRPO); a higher upper limit is DAPO's clip-higher."""
    return _clipped(ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M), tokens.advantages_M, clip_low, clip_high)


@region(idle_at_zero=True, zero_on_policy=True)
def dual_clip(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float = 3.0) -> Surrogate:
    """As clip, and for A < 0 the loss of a token is at most dual_clip |A|, so an exploding ratio cannot dominate the batch."""
    advantages_M = tokens.advantages_M
    once = _clipped(ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M), advantages_M, clip_low, clip_high)
    negative_M = advantages_M < 0
    loss_M = torch.where(negative_M, torch.minimum(once.loss_M, -dual_clip * advantages_M), once.loss_M)
    return Surrogate(loss_M, once.ratio_M, once.below_M, once.above_M | (negative_M & (once.ratio_M > dual_clip)))


@region(idle_at_zero=True, zero_on_policy=True, one_value=True)
def sequence_product(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Surrogate:
    """The completion as one action: its ratio is the product over its tokens, clipped once."""
    log_ratio_M = sum_over_rows(tokens.policy_logprobs_M - tokens.old_logprobs_M, tokens.row_M, tokens.num_rows)
    return _clipped(exp_limited(log_ratio_M), tokens.advantages_M, clip_low, clip_high)


@region(idle_at_zero=True, zero_on_policy=True, one_value=True)
def sequence(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> Surrogate:
    """GSPO: the geometric mean of the tokens' ratios, clipped once per completion; the gradient flows through the mean."""
    length_M = sum_over_rows(torch.ones_like(tokens.policy_logprobs_M), tokens.row_M, tokens.num_rows)
    log_ratio_M = sum_over_rows(tokens.policy_logprobs_M - tokens.old_logprobs_M, tokens.row_M, tokens.num_rows) / length_M
    return _clipped(exp_limited(log_ratio_M), tokens.advantages_M, clip_low, clip_high)


@region(idle_at_zero=True)
def cispo(tokens: Tokens, *, ratio_cap: float = 5.0) -> Surrogate:
    """-stopgrad(min(rho, cap)) A log pi: the weight is capped, and every token keeps its gradient."""
    ratio_M = ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M).detach()
    loss_M = -ratio_M.clamp(max=ratio_cap) * tokens.advantages_M * tokens.policy_logprobs_M
    return Surrogate(loss_M, ratio_M, torch.zeros_like(ratio_M, dtype=torch.bool), ratio_M > ratio_cap)


@region(
    idle_at_zero=True,
    settings=[
        Setting("soft_up", 1.0, "soft: how fast the gradient of a token decays as its ratio leaves 1, for A > 0.", gt=0),
        Setting("soft_down", 1.05, "soft: the same for A < 0; larger decays faster.", gt=0, down_only=True),
    ],
)
def soft(tokens: Tokens, *, soft_up: float = 1.0, soft_down: float = 1.05) -> Surrogate:
    """SAPO: -(4 / tau) sigmoid(tau (rho - 1)) A. No clip: the gradient decays as the ratio leaves 1; on-policy the loss is -2A / tau."""
    advantages_M = tokens.advantages_M
    ratio_M = ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M)
    tau_M = torch.full_like(advantages_M, soft_down).masked_fill(advantages_M > 0, soft_up)
    nowhere_M = torch.zeros_like(ratio_M, dtype=torch.bool)
    return Surrogate(-4.0 / tau_M * torch.sigmoid(tau_M * (ratio_M - 1.0)) * advantages_M, ratio_M, nowhere_M, nowhere_M)


@region(
    idle_at_zero=True,
    zero_on_policy=True,
    corrects_mismatch=True,
    settings=[
        Setting(
            "divergence_limit",
            0.15,
            "divergence: how far the probability of a token can change before its gradient is removed.",
            gt=0,
            lt=1,
        ),
        Setting("divergence_cap", 0.0, "divergence: upper limit of the ratio that weighs a token (20 is usual); 0: off.", ge=0),
    ],
)
def divergence(tokens: Tokens, *, divergence_limit: float = 0.15, divergence_cap: float = 0.0) -> Surrogate:
    """DPPO: -rho A with rho = pi / mu, and 0 where |pi - mu| > divergence_limit and the update would increase it.

    mu is the engine's probability of the sampled token, so ratio and limit both include the mismatch between engine and
    trainer. A rare token can double its probability, a likely one cannot. The cap drops no token, as in cispo.
    """
    policy_M, sampling_M, advantages_M = tokens.policy_logprobs_M, tokens.sampling_logprobs_M, tokens.advantages_M
    ratio_M = ratio(policy_M, sampling_M)
    moved_M = torch.exp(policy_M.detach()) - torch.exp(sampling_M)
    below_M = (moved_M < -divergence_limit) & (advantages_M < 0)
    above_M = (moved_M > divergence_limit) & (advantages_M > 0)
    weight_M = ratio_M * (divergence_cap / ratio_M.detach()).clamp(max=1.0) if divergence_cap else ratio_M
    return Surrogate((-weight_M * advantages_M).masked_fill(below_M | above_M, 0.0), ratio_M, below_M, above_M)


@region(needs_ratio=False, idle_at_zero=True)
def none(tokens: Tokens) -> Surrogate:
    """-A log pi: REINFORCE, RLOO, RFT and SFT. The update is not bounded, and stale data is not corrected."""
    return unbounded(-tokens.advantages_M * tokens.policy_logprobs_M)


def _clipped(ratio_M: Tensor, advantages_M: Tensor, clip_low: float, clip_high: float) -> Surrogate:
    return Surrogate(
        clipped_surrogate(ratio_M, advantages_M, clip_low, clip_high),
        ratio_M,
        (ratio_M < 1.0 - clip_low) & (advantages_M < 0),
        (ratio_M > 1.0 + clip_high) & (advantages_M > 0),
    )


def unbounded(loss_M: Tensor, margin_M: Tensor | None = None) -> Surrogate:
    """A loss without a ratio, where no token is clipped."""
    nowhere_M = torch.zeros_like(loss_M, dtype=torch.bool)
    return Surrogate(loss_M, torch.ones_like(loss_M), nowhere_M, nowhere_M, margin_M)


# -- preferences -------------------------------------------------------------------------------------------------------


@region("dpo", needs_ratio=False, idle_at_zero=True, preference=True)
def prefer_pairs(tokens: Tokens, *, kl_coef: float) -> Surrogate:
    """DPO: one loss per pair of a group, its best completion and its worst; kl_coef is its beta."""
    assert tokens.ref_logprobs_M is not None
    assert tokens.group_B is not None
    pair_M = torch.unique(tokens.group_B, return_inverse=True)[1][tokens.row_M]
    loss_M, margin_M = dpo(tokens.policy_logprobs_M, tokens.ref_logprobs_M, tokens.advantages_M, pair_M, kl_coef)
    return unbounded(loss_M, margin_M.detach())


def dpo(
    policy_logprobs_M: Tensor, ref_logprobs_M: Tensor, signs_M: Tensor, pair_M: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """(loss, margin) of each token's pair: -log sigmoid(margin), margin = beta [(log pi - log ref)(chosen) - (...)(rejected)].

    signs_M is +1 on chosen and -1 on rejected tokens; pair_M numbers the pairs from 0.
    """
    num_pairs = int(pair_M.max()) + 1 if pair_M.numel() else 0
    margin_M = beta * sum_over_rows(signs_M * (policy_logprobs_M - ref_logprobs_M), pair_M, num_pairs)
    return -torch.nn.functional.logsigmoid(margin_M), margin_M


# -- mismatch between engine and trainer -------------------------------------------------------------------------------


def compute_mismatch_weights(
    old_logprobs_M: Tensor, sampling_logprobs_M: Tensor, row_M: Tensor, num_rows: int, kind: str, cap: float
) -> Tensor:
    """Importance weights pi_old / pi_engine, per token or completion, capped, or 0 outside [1 / cap, cap]. No gradient."""
    level, _, treatment = kind.partition("_")
    log_ratio_M = (old_logprobs_M - sampling_logprobs_M).detach()
    if level == "sequence":
        log_ratio_M = sum_over_rows(log_ratio_M, row_M, num_rows)
    weights_M = exp_limited(log_ratio_M)
    if treatment == "truncate":
        return weights_M.clamp(max=cap)
    inside_M = (weights_M >= 1.0 / cap) & (weights_M <= cap)
    return torch.where(inside_M, weights_M, 0.0)


# -- the KL to the reference -------------------------------------------------------------------------------------------

# Estimators of KL(policy || reference) from the sampled tokens (Schulman, "Approximating KL divergence"). As values all three are close
# to the KL; in a loss the gradient matters. On-policy, averaged over all outcomes, the gradient of k2 is that of the KL, that of k1 is
# 0, and that of k3 is that of the other KL(reference || policy). Multiplied by the ratio, with its gradient (`corrected`), k1 and k3 have
# the gradient of the KL. In the reward only k1 has it. tests/algorithms/test_kl.py computes all of these on a vocabulary of eight.


@kl(gradient="none", fits_reward=True)
def k1(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """log policy - log ref: unbiased, and often negative."""
    return policy_logprobs_M - ref_logprobs_M


@kl(gradient="kl")
def k2(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """(log policy - log ref)^2 / 2: never negative; a biased value with the correct gradient."""
    return 0.5 * (policy_logprobs_M - ref_logprobs_M).square()


@kl(gradient="reverse")
def k3(policy_logprobs_M: Tensor, ref_logprobs_M: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log ref - log policy: never negative, unbiased, low variance. GRPO's choice."""
    # Only the side that explodes is clamped: far below 0 the policy has left the reference, and the gradient back must remain.
    difference_M = (ref_logprobs_M - policy_logprobs_M).clamp(max=LOG_RATIO_LIMIT)
    # expm1 keeps full precision where it matters most, near d = 0.
    return torch.expm1(difference_M) - difference_M


def corrected(kl_M: Tensor, ratio_M: Tensor) -> Tensor:
    """Importance-corrected: the ratio carries the gradient of the sampling distribution (DeepSeek-V3.2)."""
    return ratio_M * kl_M
