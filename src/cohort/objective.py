"""The loss of one micro-batch: the recipe's choices applied to log-probs. Every value is per token; nothing is reduced."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cohort.algorithms.kl import k3
from cohort.algorithms.losses import clipped_surrogate, ratio
from cohort.batching import MicroBatch
from cohort.config import AlgorithmConfig
from cohort.policy import TokenScores


@dataclass(frozen=True)
class TokenLoss:
    loss_M: Tensor
    policy_loss_M: Tensor
    ratio_M: Tensor
    kl_M: Tensor | None


def token_loss(scores: TokenScores, micro: MicroBatch, algorithm: AlgorithmConfig) -> TokenLoss:
    """surrogate + kl_coef * k3 - entropy_coef * entropy, for each trained token."""
    policy_logprobs_M = scores.logprobs_M
    old_logprobs_M = policy_logprobs_M.detach() if micro.old_logprobs_M is None else micro.old_logprobs_M
    ratio_M = ratio(policy_logprobs_M, old_logprobs_M)
    policy_loss_M = clipped_surrogate(ratio_M, micro.advantages_M, algorithm.clip_low, algorithm.clip_high)
    loss_M, kl_M = policy_loss_M, None
    if micro.ref_logprobs_M is not None:
        kl_M = k3(policy_logprobs_M, micro.ref_logprobs_M)
        loss_M = loss_M + algorithm.kl_coef * kl_M
    if algorithm.entropy_coef:
        loss_M = loss_M - algorithm.entropy_coef * scores.entropy_M
    return TokenLoss(loss_M, policy_loss_M, ratio_M, kl_M)


def pushes_on_all_tokens(algorithm: AlgorithmConfig) -> bool:
    """Whether a term acts on tokens whose advantage is 0, so that their forward cannot be left out."""
    return algorithm.kl_coef > 0 or algorithm.entropy_coef > 0
