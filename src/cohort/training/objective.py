"""The loss of one micro-batch: the recipe's choices applied to log-probs. Every value is per token; nothing is reduced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms.named import find_named
from cohort.algorithms.regions import Surrogate, Tokens, compute_mismatch_weights, corrected, ratio, unbounded
from cohort.algorithms.registry import Choice
from cohort.base.importing import reason
from cohort.errors import RecipeError
from cohort.model.examples import Example
from cohort.model.packing import Layouts, MicroBatch, Minibatch, Weigh, pack
from cohort.model.policy import Policy, TokenScores
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.schema import Recipe


@dataclass(frozen=True)
class TokenLoss:
    loss_M: Tensor
    policy_loss_M: Tensor
    """Without the KL and entropy terms."""
    surrogate: Surrogate
    coefficient_M: Tensor
    """Derivative of the objective by each token's log-probability: A + kl_coef (ref / pi - 1) for on-policy GRPO."""
    kl_loss_M: Tensor | None = None
    mismatch_weights_M: Tensor | None = None


def token_loss(scores: TokenScores, micro: MicroBatch, algorithm: AlgorithmConfig, kl_coef: float) -> TokenLoss:
    """The loss of each trained token: surrogate + kl_coef * KL - entropy_coef * entropy. kl_coef: the current one."""
    logprobs_M, num_rows = scores.logprobs_M, micro.num_rows
    old_logprobs_M = logprobs_M.detach() if micro.old_logprobs_M is None else micro.old_logprobs_M
    surrogate = bound_update(scores, old_logprobs_M, micro, algorithm, kl_coef)
    policy_loss_M, weights_M, kl_loss_M = surrogate.loss_M, None, None
    if algorithm.weighs_mismatch:
        kind, cap = algorithm.mismatch_weight, algorithm.mismatch_cap
        weights_M = compute_mismatch_weights(old_logprobs_M, micro.sampling_logprobs_M, micro.row_M, num_rows, kind, cap)
        policy_loss_M = policy_loss_M * weights_M
    loss_M = policy_loss_M
    if micro.ref_logprobs_M is not None and has_kl_term(algorithm):
        estimator = find_named("kl", algorithm.kl_estimator)
        kl_M = estimator.call(
            algorithm.read_parameters(estimator), policy_logprobs_M=logprobs_M, ref_logprobs_M=micro.ref_logprobs_M
        )
        kl_loss_M = kl_coef * (corrected(kl_M, ratio(logprobs_M, old_logprobs_M)) if algorithm.kl_corrected else kl_M)
        loss_M = loss_M + kl_loss_M
    coefficient_M = compute_gradient_coefficient(loss_M, logprobs_M)
    if algorithm.entropy_coef:
        loss_M = loss_M - algorithm.entropy_coef * scores.entropy_M
    return TokenLoss(loss_M, policy_loss_M, surrogate, coefficient_M, kl_loss_M, weights_M)


def bound_update(
    scores: TokenScores, old_logprobs_M: Tensor, micro: MicroBatch, algorithm: AlgorithmConfig, kl_coef: float
) -> Surrogate:
    """The surrogate of each token, from the recipe's region; a user's region may return the loss only."""
    region = find_named("region", algorithm.region, algorithm.own)
    tokens = Tokens(
        policy_logprobs_M=scores.logprobs_M,
        old_logprobs_M=old_logprobs_M,
        sampling_logprobs_M=micro.sampling_logprobs_M,
        advantages_M=micro.advantages_M,
        row_M=micro.row_M,
        num_rows=micro.num_rows,
        ref_logprobs_M=micro.ref_logprobs_M,
        group_B=micro.group_B,
    )
    settings = algorithm.read_parameters(region)
    if "kl_coef" in settings:
        settings["kl_coef"] = kl_coef
    found = region.call(settings, tokens=tokens)
    return check_surrogate(found, tokens, region) if region.digest else found


def check_surrogate(found: Any, tokens: Tokens, region: Choice) -> Surrogate:
    """A user's surrogate once it is checked. If the region returned the loss only, no token counts as clipped."""
    name, shape = f"algorithm.region: {region.name}", tokens.policy_logprobs_M.shape
    if isinstance(found, Tensor):
        whole = unbounded(found)
        ratio_M = ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M).detach()
        found = replace(whole, ratio_M=ratio_M) if region.traits.needs_ratio else whole
    if not isinstance(found, Surrogate):
        raise RecipeError(
            f"{name} returned {type(found).__name__}; a region returns a tensor with the loss of each token, or a Surrogate."
        )
    if found.margin_M is not None and not region.traits.preference:
        raise RecipeError(
            f"{name} returned margin_M, which only a preference has; leave it out, or declare @region(preference=True)."
        )
    for field in ("loss_M", "ratio_M", "below_M", "above_M", *(["margin_M"] if found.margin_M is not None else [])):
        values_M, device = getattr(found, field), tokens.policy_logprobs_M.device
        if not isinstance(values_M, Tensor) or values_M.device != device:
            given = f"on {values_M.device}" if isinstance(values_M, Tensor) else f"as {type(values_M).__name__}"
            raise RecipeError(f"{name} returned {field} {given}; it has to be a tensor on {device}, like the tokens.")
        if values_M.shape != shape:
            raise RecipeError(
                f"{name} returned {field} of shape {tuple(values_M.shape)} for {shape.numel()} tokens; a loss is per token, not reduced."
            )
    if not bool(found.loss_M.isfinite().all()):
        raise RecipeError(
            f"{name} returned a loss that is not finite; limit the exponent (cohort.algorithms.regions.ratio does)."
        )
    if tokens.policy_logprobs_M.requires_grad and not found.loss_M.requires_grad:
        raise RecipeError(f"{name} returned a loss without a gradient: it must depend on tokens.policy_logprobs_M.")
    return found


def compute_gradient_coefficient(loss_M: Tensor, logprobs_M: Tensor) -> Tensor:
    """-d loss / d log pi of each token: the gradient coefficient of DeepSeekMath (section 5), for any loss.

    Only the elementwise operations between log-probs and loss are differentiated, not the model.
    """
    if not loss_M.requires_grad:
        return torch.zeros_like(loss_M)
    return -torch.autograd.grad(loss_M.sum(), logprobs_M, retain_graph=True)[0]


def has_kl_term(algorithm: AlgorithmConfig) -> bool:
    """Whether the KL is a term of the loss. A preference objective contains it already."""
    preference = find_named("region", algorithm.region, algorithm.own).traits.preference
    return algorithm.kl_coef > 0 and algorithm.kl_in == "loss" and not preference


def pushes_on_all_tokens(algorithm: AlgorithmConfig) -> bool:
    """Whether a loss term acts on tokens with advantage 0, so that their forward pass is needed."""
    idle = find_named("region", algorithm.region, algorithm.own).traits.idle_at_zero
    return has_kl_term(algorithm) or algorithm.entropy_coef > 0 or reads_logprobs(algorithm) or not idle


def reads_logprobs(algorithm: AlgorithmConfig) -> bool:
    """Whether advantages depend on log-probs or values, which are then computed first for every example."""
    return needs_critic(algorithm) or (algorithm.kl_coef > 0 and algorithm.kl_in != "loss")


def needs_critic(algorithm: AlgorithmConfig) -> bool:
    return find_named("advantage", algorithm.advantage, algorithm.own).reads_values


def compares_pairs(algorithm: AlgorithmConfig) -> bool:
    """Whether two completions of a group share one loss, so that groups stay together in a micro-batch."""
    return find_named("region", algorithm.region, algorithm.own).traits.preference


def has_ratio(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss needs log-probs of the policy before the update; those of the engine always exist."""
    traits = find_named("region", algorithm.region, algorithm.own).traits
    needed = traits.needs_ratio and not traits.corrects_mismatch
    return needed or algorithm.kl_corrected or algorithm.weighs_mismatch


def weigh_tokens(algorithm: AlgorithmConfig) -> Weigh:
    """The aggregation as a function for `pack`: (lengths, groups, longest completion) -> weight of each token."""
    choice = find_named("aggregation", algorithm.aggregation, algorithm.own)

    def weigh(lengths_N: Sequence[int], groups_N: Sequence[int], max_completion_tokens: int) -> Sequence[float]:
        inputs = {"lengths_N": lengths_N, "groups_N": groups_N, "max_completion_tokens": max_completion_tokens}
        if choice.digest and not any(lengths_N):  # a user's function need not handle a minibatch without trained tokens
            return [0.0] * len(lengths_N)
        found = choice.call(algorithm.read_parameters(choice), **inputs)
        return check_weights(found, len(lengths_N), choice) if choice.digest else list(found)

    return weigh


def check_weights(found: Any, count: int, choice: Choice) -> list[float]:
    """The weights that a user's aggregation returned, one per completion, once they are checked."""
    name = f"algorithm.aggregation: {choice.name}"
    try:
        weights_N = [float(weight) for weight in found]
    except Exception as problem:  # a generator computes its weights only here
        raise RecipeError(
            f"{name} returned {type(found).__name__}; expected a number for each completion ({reason(problem)})."
        ) from problem
    if len(weights_N) != count:
        raise RecipeError(f"{name} returned {len(weights_N)} weights for {count} completions.")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights_N):
        raise RecipeError(f"{name} returned weights that are negative or not finite; only advantages may be negative.")
    return weights_N


def pack_minibatch(members: Sequence[Example], recipe: Recipe, policy: Policy, layouts: Layouts) -> Minibatch:
    """The examples of one optimizer step, weighted by the aggregation and packed into micro-batches."""
    algorithm = recipe.algorithm
    return pack(
        members,
        aggregation=weigh_tokens(algorithm),
        max_completion_tokens=recipe.sampling.max_completion_tokens,
        micro_batch_tokens=recipe.train.micro_batch_tokens,
        skip_zero_advantage=not pushes_on_all_tokens(algorithm),
        keep_groups=compares_pairs(algorithm),
        share_prompts=policy.share_prompts,
        layouts=layouts,
    )


def score_tokens(policy: Policy, micro: MicroBatch, algorithm: AlgorithmConfig) -> TokenScores:
    """Log-probs and entropies of the trained tokens; with the gradient of the entropy only if the loss uses it."""
    return policy.compute_logprobs(micro, entropy_gradient=algorithm.entropy_coef > 0)
