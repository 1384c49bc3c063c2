"""From rewards to gradient coefficients: rollouts become examples with log-probs and an advantage on every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from cohort.algorithms.advantages import (
    FROM_REWARDS,
    FROM_SUCCESS,
    gae,
    process,
    returns_to_go,
    unusable_groups,
    whiten,
    zero_variance_groups,
)
from cohort.algorithms.kl import k1
from cohort.algorithms.presets import NEEDS_GROUP, PER_TOKEN, SAMPLED
from cohort.base.stopwatch import Stopwatch
from cohort.errors import RewardError
from cohort.model.critic import Critic, NoCritic
from cohort.model.packing import Example, make_examples, minibatch_members
from cohort.model.policy import Policy
from cohort.recipe.schema import AlgorithmConfig, Recipe
from cohort.training.objective import pushes_on_all_tokens, reads_logprobs
from cohort.training.sources import Collected
from cohort.training.state import Batch
from cohort.training.step_rewards import token_steps
from cohort.types import Rollout


@dataclass(frozen=True)
class Models:
    """What examples are scored with."""

    policy: Policy
    reference: Policy | None
    critic: Critic | NoCritic


def make_batch(
    collected: Collected, models: Models, recipe: Recipe, step: int, kl_coef: float, watch: Stopwatch | None = None
) -> Batch:
    """Examples, their minibatches, log-probs and advantages. Log-probs come first where advantages depend on them."""
    algorithm, train, watch = recipe.algorithm, recipe.train, watch or Stopwatch()
    rollouts = collected.rollouts
    scored_PG = rewards_of(rollouts)[1]
    left_out_P = torch.full((len(scored_PG),), not collected.useful)
    if algorithm.advantage in NEEDS_GROUP:
        left_out_P = left_out_P | unusable_groups(scored_PG)
    silent_P = silent_groups(rollouts, algorithm)
    if algorithm.zero_variance == "drop" or algorithm.region == "dpo":  # a pair of equals prefers nothing
        left_out_P = left_out_P | silent_P
    left_out = set(left_out_P.nonzero().flatten().tolist())
    examples = make_examples(rollouts, left_out=left_out, mask_truncated=algorithm.mask_truncated)
    counted_PG = scored_PG & ~left_out_P[:, None]
    if algorithm.advantage in FROM_SUCCESS and algorithm.data in SAMPLED:  # what nobody judged is neither right nor wrong
        examples = [example for example in examples if rollouts[example.rollout].outcome.success is not None]
    if algorithm.region == "dpo" and algorithm.mask_truncated:  # the pair is chosen among those that can be trained on
        counted_PG &= torch.tensor([rollout.completion.end != "length" for rollout in rollouts]).view_as(scored_PG)
    if algorithm.advantage == "process" and step == 1:
        check_steps_exist(rollouts)

    credit = Credit(rollouts, counted_PG, algorithm, kl_coef, models.policy.codec.decode)
    if not reads_logprobs(algorithm):
        examples = credit.advantages(examples)
    if algorithm.region == "dpo":
        examples = whole_pairs(examples)
    groups_N = [example.group for example in examples]
    plan = minibatch_members(groups_N, train.minibatches_per_step, train.passes_per_step, recipe.seed, step)
    watch.lap("prepare")
    examples = add_logprobs(examples, plan, models, algorithm, train.micro_batch_tokens, watch)
    if reads_logprobs(algorithm):
        examples = credit.advantages(examples)

    advantages_N = mean_advantages(examples, len(rollouts))
    metrics = rollout_metrics(rollouts, collected.tokens_sampled) | collected.metrics
    metrics |= advantage_metrics(advantages_N, scored_PG, examples)
    if algorithm.data in SAMPLED:
        metrics |= group_metrics(advantages_N, scored_PG, silent_P, left_out_P, rollouts)
    watch.lap("prepare")
    return Batch(rollouts, advantages_N, examples, plan, metrics, collected.prompts_taken, collected.verdicts)


def rewards_of(rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor]:
    """(rewards_PG, scored_PG). Rollouts are in group order, every group of the same size."""
    num_groups = rollouts[-1].group + 1
    rewards_N = torch.tensor([rollout.outcome.reward or 0.0 for rollout in rollouts], dtype=torch.float64)
    scored_N = torch.tensor([rollout.outcome.reward is not None for rollout in rollouts])
    return rewards_N.view(num_groups, -1), scored_N.view(num_groups, -1)


def silent_groups(rollouts: Sequence[Rollout], algorithm: AlgorithmConfig) -> Tensor:
    """[P] True where a group was scored and says nothing: all its rewards, or with process supervision all steps, are equal."""
    rewards_PG, scored_PG = rewards_of(rollouts)
    if algorithm.advantage != "process":
        return zero_variance_groups(rewards_PG, scored_PG)
    rewards: dict[int, set[float]] = {}
    for rollout in rollouts:
        if rollout.outcome.reward is not None:
            steps = [reward for _, reward in rollout.outcome.steps] or [rollout.outcome.reward]
            rewards.setdefault(rollout.group, set()).update(steps)
    equal_P = torch.tensor([len(rewards.get(group, ())) == 1 for group in range(len(scored_PG))])
    return equal_P & ~unusable_groups(scored_PG)


def check_steps_exist(rollouts: Sequence[Rollout]) -> None:
    scored = [rollout.outcome for rollout in rollouts if rollout.outcome.reward is not None]
    if scored and not any(outcome.steps for outcome in scored):
        raise RewardError(
            "algorithm.advantage: 'process' credits steps, and no reward function gave any: without them it is group_normalized "
            "under another name. Add a reward that returns [(position, reward), ...] per completion (docs/rewards.md), or use "
            "advantage = 'group_normalized'."
        )


def whole_pairs(examples: Sequence[Example]) -> list[Example]:
    """Best and worst of each group, where both have tokens to train on: one cut and masked leaves nothing to prefer."""
    members = [example for example in examples if example.has_gradient]
    sizes = Counter(example.group for example in members)
    return [example for example in members if sizes[example.group] == 2]


# -- log-probs ---------------------------------------------------------------------------------------------------------


def add_logprobs(
    examples: Sequence[Example],
    plan: list[list[int]],
    models: Models,
    algorithm: AlgorithmConfig,
    micro_batch_tokens: int,
    watch: Stopwatch,
) -> list[Example]:
    """Log-probs under the policy before this step's first update and under the reference, and the critic's values.

    Exactly on-policy (one optimizer step per batch) the old log-probs are the current ones and no forward is spent, unless
    the advantages need them. Each minibatch of the first pass is scored in the composition in which it is trained, without
    the examples that nothing pushes on: equal weights then give bitwise equal log-probs.
    """
    examples = list(examples)
    skip = not pushes_on_all_tokens(algorithm)
    together = algorithm.region == "dpo"
    has_ratio = algorithm.region not in ("none", "dpo") or algorithm.kl_corrected or algorithm.mismatch_weight != "off"

    def score(model: Policy) -> Callable[[list[Example]], list[Tensor]]:
        return lambda chosen: model.score_examples(chosen, micro_batch_tokens, skip, keep_groups=together)

    if reads_logprobs(algorithm) or (has_ratio and len(plan) > 1):
        _score_into(examples, plan, "old_logprobs_T", score(models.policy))
        watch.lap("old")
    if models.reference is not None:
        _score_into(examples, plan, "ref_logprobs_T", score(models.reference))
        watch.lap("reference")
    if algorithm.advantage == "gae":
        _score_into(examples, plan, "old_values_T", lambda chosen: models.critic.values(chosen, micro_batch_tokens))
        watch.lap("critic")
    return examples


def _score_into(
    examples: list[Example], plan: list[list[int]], field: str, score: Callable[[list[Example]], list[Tensor]]
) -> None:
    done: set[int] = set()
    for members in plan:
        fresh = [index for index in members if index not in done]
        done.update(fresh)
        for index, values_T in zip(fresh, score([examples[index] for index in fresh]), strict=True):
            examples[index] = replace(examples[index], **cast(Any, {field: values_T}))


# -- advantages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Credit:
    """Puts an advantage on every token of every example, by the recipe's choice."""

    rollouts: Sequence[Rollout]
    counted_PG: Tensor
    """Completions that count in means and deviations: scored, and in a group that is not left out."""
    algorithm: AlgorithmConfig
    kl_coef: float
    decode: Callable[[Sequence[int]], str]

    def advantages(self, examples: Sequence[Example]) -> list[Example]:
        name = self.algorithm.advantage
        if name == "process":
            return self._process(examples)
        return self._per_token(examples) if name in PER_TOKEN else self._per_completion(examples)

    def _per_completion(self, examples: Sequence[Example]) -> list[Example]:
        """One advantage per completion, from its reward (less its KL, where that is part of the reward) or its success."""
        algorithm = self.algorithm
        rewards_PG, counted_PG = rewards_of(self.rollouts)[0], self.counted_PG
        if algorithm.advantage in FROM_SUCCESS:
            success_PG = torch.tensor([bool(rollout.outcome.success) for rollout in self.rollouts]).view_as(counted_PG)
            advantages_PG = FROM_SUCCESS[algorithm.advantage](success_PG, counted_PG)
        else:
            rewards_N = rewards_PG.flatten().clone()
            for example in examples if self._kl_in_reward else ():
                rewards_N[example.rollout] -= self._kl_rewards(example).sum()
            function = FROM_REWARDS[algorithm.advantage]
            advantages_PG = function(
                rewards_N.view_as(rewards_PG), counted_PG, ddof=algorithm.std_ddof, epsilon=algorithm.std_epsilon
            )
        advantages_N = advantages_PG.flatten().tolist()
        return [
            replace(example, advantages_T=torch.full_like(example.advantages_T, advantages_N[example.rollout]))
            for example in examples
        ]

    @property
    def _kl_in_reward(self) -> bool:
        return self.kl_coef != 0 and self.algorithm.kl_in != "loss"

    def _kl_rewards(self, example: Example) -> Tensor:
        """kl_coef * k1 of each trained token, where the KL is part of the reward; elsewhere 0."""
        trained = example.loss_mask_T
        if not self._kl_in_reward:
            return torch.zeros(example.trained_tokens, dtype=torch.float64)
        assert example.old_logprobs_T is not None
        assert example.ref_logprobs_T is not None
        return self.kl_coef * k1(example.old_logprobs_T[trained].double(), example.ref_logprobs_T[trained].double())

    def _token_rewards(self, example: Example) -> Tensor:
        """The reward arrives with the last trained token; the KL costs each token its own share, or all of it at the end."""
        kl_M = self._kl_rewards(example)
        rewards_M = -kl_M if self.algorithm.kl_in == "token_reward" else torch.zeros_like(kl_M)
        rewards_M[-1] += self.rollouts[example.rollout].outcome.reward or 0.0
        if self.algorithm.kl_in == "completion_reward":
            rewards_M[-1] -= kl_M.sum()
        return rewards_M

    def _per_token(self, examples: Sequence[Example]) -> list[Example]:
        """REINFORCE++ and PPO: returns or GAE of each token, whitened over all trained tokens of the batch."""
        algorithm = self.algorithm
        trained = [index for index, example in enumerate(examples) if example.trained_tokens]
        rows, values = [], []
        for index in trained:
            example = examples[index]
            rewards_M = self._token_rewards(example)
            if algorithm.advantage == "gae":
                assert example.old_values_T is not None
                values.append(example.old_values_T[example.loss_mask_T].double())
                rows.append(gae(rewards_M, values[-1], algorithm.gamma, algorithm.gae_lambda))
            else:
                rows.append(returns_to_go(rewards_M, algorithm.gamma))
        credited = list(examples)
        for place, white_M in enumerate(whiten(rows, ddof=algorithm.std_ddof, epsilon=algorithm.std_epsilon)):
            example = examples[trained[place]]
            changes: dict[str, Any] = {"advantages_T": _spread(white_M, example)}
            if algorithm.advantage == "gae":
                changes["returns_T"] = _spread(rows[place] + values[place], example)
            credited[trained[place]] = replace(example, **changes)
        if algorithm.advantage == "gae":  # a minibatch holds the same fields throughout, also for what is masked
            credited = [
                example if example.returns_T is not None else replace(example, returns_T=torch.zeros_like(example.advantages_T))
                for example in credited
            ]
        return credited

    def _process(self, examples: Sequence[Example]) -> list[Example]:
        """Step rewards placed on tokens, normalised over their group. A completion without steps has one: its reward, at its end."""
        by_group: dict[int, list[Example]] = {}
        for example in examples:
            by_group.setdefault(example.group, []).append(example)
        credited: dict[int, Tensor] = {}
        for members in by_group.values():
            steps_G = [self._steps(self.rollouts[example.rollout]) for example in members]
            lengths_G = [len(example.completion_ids) for example in members]
            advantages_G = process(steps_G, lengths_G, ddof=self.algorithm.std_ddof, epsilon=self.algorithm.std_epsilon)
            for example, advantages_T in zip(members, advantages_G, strict=True):
                credited[example.rollout] = advantages_T
        return [replace(example, advantages_T=credited[example.rollout].to(example.advantages_T.dtype)) for example in examples]

    def _steps(self, rollout: Rollout) -> Sequence[tuple[int, float]]:
        if rollout.outcome.steps:
            return token_steps(rollout.completion, rollout.outcome.steps, self.decode)
        return ((len(rollout.completion.token_ids) - 1, rollout.outcome.reward or 0.0),)


def _spread(values_M: Tensor, example: Example) -> Tensor:
    """Values of the trained tokens as a vector over all tokens of the completion, 0 elsewhere."""
    spread_T = torch.zeros_like(example.advantages_T)
    spread_T[example.loss_mask_T] = values_M.to(spread_T.dtype)
    return spread_T


def mean_advantages(examples: Sequence[Example], count: int) -> list[float]:
    """One number per rollout for the logs: the mean over its trained tokens; 0 where it is not trained on."""
    means_N = [0.0] * count
    if examples:
        lengths = torch.tensor([len(example.advantages_T) for example in examples])
        mask_T, advantages_T = flat_advantages(examples)
        sums = torch.segment_reduce(advantages_T.double(), "sum", lengths=lengths)
        trained = torch.segment_reduce(mask_T.double(), "sum", lengths=lengths)
        for example, mean in zip(examples, (sums / trained.clamp(min=1)).tolist(), strict=True):
            means_N[example.rollout] = mean
    return means_N


def flat_advantages(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """(loss mask, advantages, 0 where not trained) over the tokens of all examples, laid flat: two large tensors, not many small."""
    mask_T = torch.cat([example.loss_mask_T for example in examples])
    return mask_T, torch.cat([example.advantages_T for example in examples]).masked_fill(~mask_T, 0.0)


# -- metrics -----------------------------------------------------------------------------------------------------------


def rollout_metrics(rollouts: Sequence[Rollout], tokens_sampled: int) -> dict[str, float]:
    lengths = [rollout.completion.length for rollout in rollouts]
    distinct: dict[int, set[tuple[int, ...]]] = {}
    for rollout in rollouts:
        distinct.setdefault(rollout.group, set()).add(rollout.completion.token_ids)
    group_size = len(rollouts) / len(distinct)
    return {
        "rollout/completions": len(rollouts),
        "rollout/tokens": tokens_sampled,
        "rollout/length_mean": fmean(lengths),
        "rollout/length_max": max(lengths),
        "rollout/truncated": fmean(rollout.completion.end == "length" for rollout in rollouts),
        "rollout/distinct": fmean(len(completions) / group_size for completions in distinct.values()),
        "rollout/prompt_tokens_mean": fmean(len(rollout.prompt.token_ids) for rollout in rollouts),
    }


def advantage_metrics(advantages_N: Sequence[float], scored_PG: Tensor, examples: Sequence[Example]) -> dict[str, float]:
    scored = torch.tensor(advantages_N, dtype=torch.float64).view_as(scored_PG)[scored_PG]
    largest = 0.0
    if examples:
        advantages_T = flat_advantages(examples)[1]
        largest = float(advantages_T.abs().max()) if len(advantages_T) else 0.0
    return {
        "advantage/std": float(scored.std(correction=0)) if scored.numel() else 0.0,
        "advantage/abs_max": largest,
    }


def group_metrics(
    advantages_N: Sequence[float], scored_PG: Tensor, silent_P: Tensor, left_out_P: Tensor, rollouts: Sequence[Rollout]
) -> dict[str, float]:
    right_P, wrong_P = verdicts_of(rollouts, scored_PG)
    usable_P = ~unusable_groups(scored_PG)
    return {
        "advantage/useful_groups": float((usable_P & ~silent_P).double().mean()),
        "advantage/zero_variance_groups": int(silent_P.sum()),
        "advantage/dropped_groups": int(left_out_P.sum()),
        "advantage/all_correct_groups": int((usable_P & (right_P > 0) & (wrong_P == 0)).sum()),
        "advantage/all_wrong_groups": int((usable_P & (right_P == 0) & (wrong_P > 0)).sum()),
        **difficulty_metrics(advantages_N, right_P, wrong_P),
    }


def difficulty_metrics(advantages_N: Sequence[float], right_P: Tensor, wrong_P: Tensor) -> dict[str, float]:
    """How much of all credit comes from groups with at most one success, or at most one failure; {} where none is given."""
    lopsided_P = (right_P + wrong_P > 0) & (torch.minimum(right_P, wrong_P) <= 1)
    credit_P = torch.tensor(advantages_N, dtype=torch.float64).view(len(right_P), -1).abs().sum(1)
    total = float(credit_P.sum())
    return {"advantage/lopsided_share": float(credit_P[lopsided_P].sum()) / total} if total else {}


def verdicts_of(rollouts: Sequence[Rollout], scored_PG: Tensor) -> tuple[Tensor, Tensor]:
    """(successes, failures) of every group among its scored completions; what nobody judged is neither."""
    verdicts = [rollout.outcome.success for rollout in rollouts]
    judged_PG = torch.tensor([verdict is not None for verdict in verdicts]).view_as(scored_PG) & scored_PG
    success_PG = torch.tensor([bool(verdict) for verdict in verdicts]).view_as(scored_PG)
    return (judged_PG & success_PG).sum(1), (judged_PG & ~success_PG).sum(1)
