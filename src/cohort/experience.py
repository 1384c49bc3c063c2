"""The collecting half of a step: completions become scored rollouts, rollouts become advantages and a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from cohort.algorithms.advantages import ADVANTAGES, unusable_groups, zero_variance_groups
from cohort.batching import Example, make_examples, minibatch_members
from cohort.config import Recipe
from cohort.policy import Policy
from cohort.state import Batch
from cohort.types import Completion, Outcome, Prompt, Rollout


def as_rollouts(
    prompts: Sequence[Prompt],
    completions_PG: Sequence[Sequence[Completion]],
    outcomes_N: Sequence[Outcome],
    policy_version: int,
) -> list[Rollout]:
    outcomes = iter(outcomes_N)
    return [
        Rollout(prompt, group, sample, completion, next(outcomes), policy_version)
        for group, (prompt, completions) in enumerate(zip(prompts, completions_PG, strict=True))
        for sample, completion in enumerate(completions)
    ]


def rewards_of(rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor]:
    """(rewards_PG, scored_PG). Rollouts are in group order, every group of the same size."""
    num_groups = rollouts[-1].group + 1
    rewards_N = torch.tensor([rollout.outcome.reward or 0.0 for rollout in rollouts], dtype=torch.float64)
    scored_N = torch.tensor([rollout.outcome.reward is not None for rollout in rollouts])
    return rewards_N.view(num_groups, -1), scored_N.view(num_groups, -1)


def make_batch(rollouts: list[Rollout], reward_metrics: Mapping[str, float], recipe: Recipe, step: int) -> Batch:
    """Advantages of the groups, then the examples and minibatches to train on."""
    algorithm, train = recipe.algorithm, recipe.train
    rewards_PG, scored_PG = rewards_of(rollouts)
    advantages_PG = ADVANTAGES[algorithm.advantage](
        rewards_PG, scored_PG, ddof=algorithm.std_ddof, epsilon=algorithm.std_epsilon
    )
    left_out_P = unusable_groups(scored_PG)
    if algorithm.zero_variance == "drop":
        left_out_P = left_out_P | zero_variance_groups(rewards_PG, scored_PG)
    advantages_N = advantages_PG.flatten().tolist()
    examples = make_examples(
        rollouts, advantages_N, left_out=set(left_out_P.nonzero().flatten().tolist()), mask_truncated=algorithm.mask_truncated
    )
    groups_N = [rollouts[example.rollout].group for example in examples]
    plan = minibatch_members(groups_N, train.minibatches_per_step, train.passes_per_step, recipe.seed, step)
    metrics = rollout_metrics(rollouts) | dict(reward_metrics)
    metrics |= advantage_metrics(rewards_PG, scored_PG, advantages_PG, left_out_P, rollouts)
    return Batch(rollouts, advantages_N, examples, plan, metrics)


def add_logprobs(
    batch: Batch, policy: Policy, reference: Policy | None, micro_batch_tokens: int, skip_zero_advantage: bool
) -> Batch:
    """Log-probs under the policy before this step's first update, and under the reference.

    Exactly on-policy (one optimizer step per batch) the old log-probs are the current ones and no forward is spent. Each
    minibatch of the first pass is scored in the composition in which it is trained, without the examples that nothing
    pushes on: equal weights then give bitwise equal log-probs.
    """
    examples = list(batch.examples)
    if len(batch.plan) > 1:
        _score_into(examples, batch.plan, policy, "old_logprobs_T", micro_batch_tokens, skip_zero_advantage)
    if reference is not None:
        _score_into(examples, batch.plan, reference, "ref_logprobs_T", micro_batch_tokens, skip_zero_advantage)
    return replace(batch, examples=examples)


def _score_into(
    examples: list[Example],
    plan: list[list[int]],
    policy: Policy,
    field: str,
    micro_batch_tokens: int,
    skip_zero_advantage: bool,
) -> None:
    done: set[int] = set()
    for members in plan:
        fresh = [index for index in members if index not in done]
        done.update(fresh)
        scored = policy.score_examples([examples[index] for index in fresh], micro_batch_tokens, skip_zero_advantage)
        for index, logprobs_T in zip(fresh, scored, strict=True):
            examples[index] = replace(examples[index], **cast(Any, {field: logprobs_T}))


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    lengths = [rollout.completion.length for rollout in rollouts]
    distinct: dict[int, set[tuple[int, ...]]] = {}
    for rollout in rollouts:
        distinct.setdefault(rollout.group, set()).add(rollout.completion.token_ids)
    group_size = len(rollouts) / len(distinct)
    return {
        "rollout/completions": len(rollouts),
        "rollout/tokens": sum(lengths),
        "rollout/length_mean": fmean(lengths),
        "rollout/length_max": max(lengths),
        "rollout/truncated": fmean(rollout.completion.end == "length" for rollout in rollouts),
        "rollout/distinct": fmean(len(completions) / group_size for completions in distinct.values()),
        "rollout/prompt_tokens_mean": fmean(len(rollout.prompt.token_ids) for rollout in rollouts),
    }


def advantage_metrics(
    rewards_PG: Tensor, scored_PG: Tensor, advantages_PG: Tensor, left_out_P: Tensor, rollouts: Sequence[Rollout]
) -> dict[str, float]:
    zero_P = zero_variance_groups(rewards_PG, scored_PG)
    success_PG = torch.tensor([bool(rollout.outcome.success) for rollout in rollouts]).view_as(scored_PG)
    usable_P = ~unusable_groups(scored_PG)
    scored = advantages_PG[scored_PG]
    return {
        "advantage/useful_groups": float((usable_P & ~zero_P).double().mean()),
        "advantage/zero_variance_groups": int(zero_P.sum()),
        "advantage/dropped_groups": int(left_out_P.sum()),
        "advantage/all_correct_groups": int((usable_P & (success_PG | ~scored_PG).all(1)).sum()),
        "advantage/all_wrong_groups": int((usable_P & ~(success_PG & scored_PG).any(1)).sum()),
        "advantage/std": float(scored.std(correction=0)) if scored.numel() else 0.0,
        "advantage/abs_max": float(scored.abs().max()) if scored.numel() else 0.0,
    }
