"""The loss of one micro-batch: the recipe's choices applied to log-probs. Every value is per token; nothing is reduced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.algorithms.kl import KL_ESTIMATORS, corrected
from cohort.algorithms.regions import REGIONS, Limits, Surrogate, dpo, mismatch_weights, ratio
from cohort.model.packing import MicroBatch
from cohort.model.policy import TokenScores
from cohort.recipe.schema import AlgorithmConfig


@dataclass(frozen=True)
class TokenLoss:
    loss_M: Tensor
    policy_loss_M: Tensor
    """Without the KL and entropy terms."""
    surrogate: Surrogate
    coefficient_M: Tensor
    """How hard each token's log-probability is pushed up: A + kl_coef (ref / pi - 1) for on-policy GRPO."""
    kl_loss_M: Tensor | None = None
    mismatch_weights_M: Tensor | None = None
    margin_M: Tensor | None = None
    """DPO: the margin of each token's pair."""


def token_loss(scores: TokenScores, micro: MicroBatch, algorithm: AlgorithmConfig, kl_coef: float) -> TokenLoss:
    """surrogate + kl_coef * KL - entropy_coef * entropy, for each trained token."""
    if algorithm.region == "dpo":
        return preference_loss(scores, micro, kl_coef)
    logprobs_M, num_rows = scores.logprobs_M, micro.num_rows
    old_logprobs_M = logprobs_M.detach() if micro.old_logprobs_M is None else micro.old_logprobs_M
    limits = Limits(algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip, algorithm.ratio_cap)
    surrogate = REGIONS[algorithm.region](logprobs_M, old_logprobs_M, micro.advantages_M, micro.row_M, num_rows, limits)
    policy_loss_M, weights_M, kl_loss_M = surrogate.loss_M, None, None
    if algorithm.mismatch_weight != "off":
        kind, cap = algorithm.mismatch_weight, algorithm.mismatch_cap
        weights_M = mismatch_weights(old_logprobs_M, micro.sampling_logprobs_M, micro.row_M, num_rows, kind, cap)
        policy_loss_M = policy_loss_M * weights_M
    loss_M = policy_loss_M
    if micro.ref_logprobs_M is not None and algorithm.kl_coef > 0 and algorithm.kl_in == "loss":
        kl_M = KL_ESTIMATORS[algorithm.kl_estimator](logprobs_M, micro.ref_logprobs_M)
        kl_loss_M = kl_coef * (corrected(kl_M, ratio(logprobs_M, old_logprobs_M)) if algorithm.kl_corrected else kl_M)
        loss_M = loss_M + kl_loss_M
    coefficient_M = gradient_coefficient(loss_M, logprobs_M)
    if algorithm.entropy_coef:
        loss_M = loss_M - algorithm.entropy_coef * scores.entropy_M
    return TokenLoss(loss_M, policy_loss_M, surrogate, coefficient_M, kl_loss_M, weights_M)


def preference_loss(scores: TokenScores, micro: MicroBatch, beta: float) -> TokenLoss:
    """DPO: one loss per pair. Both rows of a pair are in this micro-batch, and share a group."""
    assert micro.ref_logprobs_M is not None
    pair_B = torch.unique(micro.group_B, return_inverse=True)[1]
    loss_M, margin_M = dpo(scores.logprobs_M, micro.ref_logprobs_M, micro.advantages_M, pair_B[micro.row_M], beta)
    nowhere_M = torch.zeros_like(margin_M, dtype=torch.bool)
    surrogate = Surrogate(loss_M, torch.ones_like(margin_M), nowhere_M, nowhere_M)
    return TokenLoss(loss_M, loss_M, surrogate, gradient_coefficient(loss_M, scores.logprobs_M), margin_M=margin_M.detach())


def gradient_coefficient(loss_M: Tensor, logprobs_M: Tensor) -> Tensor:
    """-d loss / d log pi of each token: the gradient coefficient of DeepSeekMath (section 5), for whatever was composed above.

    The model is not entered: only the few elementwise operations between its log-probs and the loss are differentiated.
    """
    if not loss_M.requires_grad:
        return torch.zeros_like(loss_M)
    return -torch.autograd.grad(loss_M.sum(), logprobs_M, retain_graph=True)[0]


def pushes_on_all_tokens(algorithm: AlgorithmConfig) -> bool:
    """Whether a term acts on tokens whose advantage is 0, so that their forward cannot be left out."""
    kl_in_loss = algorithm.kl_coef > 0 and algorithm.kl_in == "loss" and algorithm.region != "dpo"
    return kl_in_loss or algorithm.entropy_coef > 0 or algorithm.advantage == "gae" or reads_logprobs(algorithm)


def reads_logprobs(algorithm: AlgorithmConfig) -> bool:
    """Whether advantages depend on log-probs or values, which are then computed first, for every example."""
    return algorithm.advantage == "gae" or (algorithm.kl_coef > 0 and algorithm.kl_in != "loss")
