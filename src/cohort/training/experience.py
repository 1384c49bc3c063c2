"""From rewards to a batch: rollouts become examples with an advantage and the required log-probs on every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms.advantages import find_unusable_groups, zero_variance_groups
from cohort.algorithms.named import find_named
from cohort.algorithms.registry import SAMPLED, Choice
from cohort.base.stopwatch import Stopwatch
from cohort.errors import InvariantError, RewardError
from cohort.model.critic import Critic, NoCritic
from cohort.model.examples import Example, Examples, join_examples, make_examples
from cohort.model.frozen import Teacher
from cohort.model.packing import Layouts, plan_minibatches
from cohort.model.policy import Policy
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.rules import ENVIRONMENT_REWARD, name_reward
from cohort.recipe.schema import Recipe
from cohort.training.credit import Credit, count_completions, read_parts, read_turns, score_with_teacher, stack_rewards
from cohort.training.objective import compares_pairs, has_ratio, needs_critic, pushes_on_all_tokens, reads_logprobs
from cohort.training.rollouts import Collected
from cohort.training.state import Batch
from cohort.types import Completion, Rollout


@dataclass(frozen=True)
class Models:
    """The models that score examples."""

    policy: Policy
    reference: Policy | None
    critic: Critic | NoCritic
    teacher: Teacher | None = None


@dataclass(frozen=True)
class Selected:
    """The completions that a step trains on, and the state of their groups."""

    examples: Examples
    counted_PG: Tensor
    """Completions that count in means and deviations."""
    scored_PG: Tensor
    equal_P: Tensor
    """Groups whose members do not differ in what the advantage compares."""
    left_out_P: Tensor


def make_batch(
    collected: Collected, models: Models, recipe: Recipe, step: int, kl_coef: float, watch: Stopwatch | None = None
) -> Batch:
    """The batch of the step: an advantage and the required log-probs on every token, and metrics.

    Log-probs are computed before advantages that depend on them, and otherwise after.
    """
    algorithm, train, watch = recipe.algorithm, recipe.train, watch or Stopwatch()
    rollouts, layouts = collected.rollouts, Layouts()
    weights = {name_reward(reward): reward.weight for reward in recipe.rewards}
    environment = sum(reward.weight for reward in recipe.rewards if reward.function == ENVIRONMENT_REWARD)
    chosen = choose_examples(collected, algorithm, weights, step, environment)
    credit = Credit(rollouts, chosen.counted_PG, algorithm, kl_coef, models.policy.codec.decode, weights, environment)
    examples, scored_PG = chosen.examples, chosen.scored_PG
    teacher_credit = score_with_teacher(models.teacher, examples, train.micro_batch_tokens, watch, layouts)
    if not reads_logprobs(algorithm):
        examples = teacher_credit.add_to(credit.advantages(examples))
    if compares_pairs(algorithm):
        examples = select_whole_pairs(examples)
    plan = plan_minibatches(examples.group_N, train.minibatches_per_step, train.passes_per_step, recipe.seed, step)
    watch.lap("prepare")
    examples = mark_fresh(examples, rollouts, collected.policy_version)
    examples = add_logprobs(examples, plan, models, algorithm, train.micro_batch_tokens, watch, layouts)
    if reads_logprobs(algorithm):
        examples = teacher_credit.add_to(credit.advantages(examples))
    advantages_N = average_advantages(examples, len(rollouts))
    metrics = measure_rollouts(rollouts, collected.tokens_sampled) | collected.metrics
    metrics |= measure_advantages(advantages_N, scored_PG, examples) | teacher_credit.metrics
    if algorithm.data in SAMPLED:
        metrics |= measure_groups(advantages_N, scored_PG, chosen.equal_P, chosen.left_out_P, rollouts)
    watch.lap("prepare")
    taken, verdicts, keyed = collected.prompts_taken, collected.verdicts, collected.keyed
    return Batch(rollouts, advantages_N, examples, plan, metrics, taken, verdicts, keyed, layouts)


def choose_examples(
    collected: Collected, algorithm: AlgorithmConfig, weights: Mapping[str, float], step: int, environment: float = 0.0
) -> Selected:
    """Completions to train on: scored, and in a group that is not left out."""
    rollouts = collected.rollouts
    advantage, pairs = find_named("advantage", algorithm.advantage, algorithm.own), compares_pairs(algorithm)
    scored_PG = stack_rewards(rollouts)[1]
    usable_PG = count_completions(rollouts, advantage, algorithm.data)
    left_out_P = torch.full((len(scored_PG),), not collected.useful)
    if advantage.traits.compares_group:
        left_out_P = left_out_P | find_unusable_groups(usable_PG)
    compared_PG = usable_PG if advantage.traits.compares_group else scored_PG
    equal_P = find_equal_groups(rollouts, advantage, compared_PG, weights, environment)
    if algorithm.zero_variance == "drop" or pairs:  # a pair with equal rewards has no preference
        left_out_P = left_out_P | equal_P
    left_out = set(left_out_P.nonzero().flatten().tolist())
    examples = make_examples(rollouts, left_out=left_out, mask_truncated=algorithm.mask_truncated)
    counted_PG = usable_PG & ~left_out_P[:, None]
    if pairs and algorithm.mask_truncated:  # the pair is chosen among completions that can be trained on
        counted_PG &= torch.tensor([rollout.completion.end != "length" for rollout in rollouts]).view_as(scored_PG)
    if "steps_N" in advantage.reads and step == 1:
        check_steps_exist(rollouts, advantage.name)
    usable = examples.select(usable_PG.flatten()[list(examples.rollout_N)].nonzero().flatten().tolist())
    return Selected(usable, counted_PG, scored_PG, equal_P, left_out_P)


def find_equal_groups(
    rollouts: Sequence[Rollout], advantage: Choice, counted_PG: Tensor, weights: Mapping[str, float], environment: float = 0.0
) -> Tensor:
    """[P] True if all that the advantage compares in a group (rewards, steps, parts, success) is equal."""
    found = []
    if "steps_N" in advantage.reads:
        rewards: dict[int, set[float]] = {}
        for rollout in rollouts:
            if rollout.outcome.reward is not None:
                steps = [reward for _, reward in rollout.outcome.steps] or [rollout.outcome.reward]
                rewards.setdefault(rollout.group, set()).update(steps)
        equal_P = torch.tensor([len(rewards.get(group, ())) == 1 for group in range(len(counted_PG))])
        found.append(equal_P & ~find_unusable_groups(counted_PG))
    if "turns_N" in advantage.reads:
        played: dict[int, set[Any]] = {}
        for rollout in rollouts:
            if rollout.outcome.reward is not None:
                turns = [reward for _, reward in read_turns(rollout, environment)]
                played.setdefault(rollout.group, set()).add(tuple(turns))
        equal_P = torch.tensor([len(played.get(group, ())) == 1 for group in range(len(counted_PG))])
        found.append(equal_P & ~find_unusable_groups(counted_PG))
    if "parts_PG" in advantage.reads:
        equal_P = ~find_unusable_groups(counted_PG)
        for name, values_PG in read_parts(rollouts).items():
            if weights.get(name, 1.0) or "weights" not in advantage.reads:  # a part of weight 0 is only measured
                known_PG = counted_PG & ~values_PG.isnan()
                equal_P &= zero_variance_groups(values_PG, known_PG) | find_unusable_groups(known_PG)
        found.append(equal_P)
    if advantage.reads_success and advantage.traits.compares_group:
        success_PG = torch.tensor([float(bool(rollout.outcome.success)) for rollout in rollouts]).view_as(counted_PG)
        found.append(zero_variance_groups(success_PG, counted_PG))
    if advantage.reads_reward or not found:
        found.append(zero_variance_groups(stack_rewards(rollouts)[0], counted_PG))
    return torch.stack(found).all(0)


def check_steps_exist(rollouts: Sequence[Rollout], advantage: str) -> None:
    scored = [rollout.outcome for rollout in rollouts if rollout.outcome.reward is not None]
    if scored and not any(outcome.steps for outcome in scored):
        raise RewardError(
            f"algorithm.advantage: {advantage!r} credits steps, but no reward function returned any, so it would equal group_normalized. "
            "Add a reward that returns [(position, reward), ...] per completion (docs/rewards.md), or use advantage = 'group_normalized'."
        )


def select_whole_pairs(examples: Sequence[Example]) -> Examples:
    """The pairs whose chosen and rejected completion both have tokens to train on."""
    examples = join_examples(examples)
    members = np.flatnonzero(examples.has_gradient_N).tolist()
    sizes = Counter(examples.group_N[place] for place in members)
    return examples.select([place for place in members if sizes[examples.group_N[place]] == 2])


# -- log-probs ---------------------------------------------------------------------------------------------------------


def mark_fresh(examples: Examples, rollouts: Sequence[Rollout], policy_version: int | None) -> Examples:
    """The examples; if any token was sampled by another version than `policy_version`, each token is marked as fresh or not."""
    spans = [rollouts[rollout].versions for rollout in examples.rollout_N]
    if policy_version is None or all(version == policy_version for one in spans for version, _ in one):
        return examples
    for one, length in zip(spans, examples.length_N, strict=True):
        if (spanned := sum(count for _, count in one)) != length:
            raise InvariantError(f"versions of {spanned} tokens on a completion of {length}.")
    fresh = [version == policy_version for one in spans for version, count in one for _ in range(count)]
    return replace(examples, fresh_C=torch.tensor(fresh, dtype=torch.bool))


def add_logprobs(
    examples: Examples,
    plan: list[list[int]],
    models: Models,
    algorithm: AlgorithmConfig,
    micro_batch_tokens: int,
    watch: Stopwatch,
    layouts: Layouts,
) -> Examples:
    """Log-probs under the policy before this step's first update and under the reference, and the critic's values.

    Exactly on-policy (one optimizer step per batch) the old log-probs equal the current ones, so they are computed only if the
    advantages need them. If any token is older than the policy, the engine's log-probs become old; with a mismatch weight, which
    covers staleness itself, old stays the policy before this step. Each minibatch of the first pass is scored in the composition in
    which it is trained, without examples that no loss term acts on, so equal weights give bitwise equal log-probs.
    """
    skip = not pushes_on_all_tokens(algorithm)
    together = compares_pairs(algorithm)

    def score(model: Policy) -> Callable[[Examples], list[Tensor]]:
        return lambda chosen: model.score_examples(chosen, micro_batch_tokens, skip, keep_groups=together, layouts=layouts)

    if examples.fresh_C is not None and not algorithm.weighs_mismatch:
        if has_ratio(algorithm) or reads_logprobs(algorithm):
            examples = replace(examples, old_logprobs_C=examples.sampling_logprobs_C)
    elif reads_logprobs(algorithm) or (has_ratio(algorithm) and len(plan) > 1):
        examples = _score_by_plan(examples, plan, "old_logprobs_C", score(models.policy))
        watch.lap("old")
    if models.reference is not None:
        examples = _score_by_plan(examples, plan, "ref_logprobs_C", score(models.reference))
        watch.lap("reference")
    if needs_critic(algorithm):
        examples = _score_by_plan(
            examples, plan, "old_values_C", lambda chosen: models.critic.values(chosen, micro_batch_tokens, layouts)
        )
        watch.lap("critic")
    return examples


def _score_by_plan(
    examples: Examples, plan: list[list[int]], field: str, score: Callable[[Examples], list[Tensor]]
) -> Examples:
    """The examples with this field set to the results of `score`; each example is scored once."""
    found: dict[int, Tensor] = {}
    for members in plan:
        fresh = [index for index in members if index not in found]
        found |= zip(fresh, score(examples.select(fresh)), strict=True)
    scored: Any = {field: torch.cat([torch.zeros(0), *(found[index] for index in range(len(examples)))])}
    return replace(examples, **scored)


# -- metrics -----------------------------------------------------------------------------------------------------------


def average_advantages(examples: Sequence[Example], count: int) -> list[float]:
    """Mean advantage of each rollout over its trained tokens; 0 if it has none."""
    examples = join_examples(examples)
    means_N = torch.zeros(count, dtype=torch.float64)
    if examples:
        lengths, advantages_C = torch.from_numpy(examples.length_N), read_trained_advantages(examples)
        sums = torch.segment_reduce(advantages_C.double(), "sum", lengths=lengths)
        means_N[list(examples.rollout_N)] = sums / torch.from_numpy(examples.trained_N).clamp(min=1)
    return cast(list[float], means_N.tolist())


def read_trained_advantages(examples: Examples) -> Tensor:
    """[C] Advantages, 0 for tokens that are not trained."""
    return examples.advantages_C.masked_fill(~examples.loss_mask_C, 0.0)


def measure_rollouts(rollouts: Sequence[Rollout], tokens_sampled: int) -> dict[str, float]:
    lengths = [rollout.completion.length for rollout in rollouts]
    ends = [rollout.completion.end for rollout in rollouts]
    distinct: dict[int, set[tuple[int, ...]]] = {}
    for rollout in rollouts:
        distinct.setdefault(rollout.group, set()).add(rollout.completion.token_ids)
    group_size = len(rollouts) / len(distinct)
    logprob = sum(sum(rollout.completion.sampling_logprobs) for rollout in rollouts)  # 0 for tokens that were not sampled
    return {
        **({"rollout/entropy": -logprob / tokens} if (tokens := sum(lengths)) and tokens_sampled else {}),
        "rollout/completions": len(rollouts),
        "rollout/tokens": tokens_sampled,
        "rollout/length_mean": fmean(lengths),
        "rollout/length_max": max(lengths),
        "rollout/truncated": ends.count("length") / len(ends),
        "rollout/distinct": fmean(len(completions) / group_size for completions in distinct.values()),
        "rollout/prompt_tokens_mean": fmean([len(rollout.prompt.token_ids) for rollout in rollouts]),
        **measure_episodes([rollout.completion for rollout in rollouts]),
    }


def measure_episodes(completions: Sequence[Completion]) -> dict[str, float]:
    """Metrics of turns and tool calls; {} without an environment."""
    played = [(one, one.episode) for one in completions if one.episode is not None]
    if not played:
        return {}
    turns = [turn for _, episode in played for turn in episode.turns]
    calls, mistakes = sum(turn.calls for turn in turns), Counter(kind for turn in turns for kind in turn.mistakes)
    tokens = sum(len(one.token_ids) for one, _ in played)
    metrics: dict[str, float] = {
        "turns/mean": len(turns) / len(played),
        "turns/max": float(max(len(episode.turns) for _, episode in played)),
        "turns/at_limit": sum(episode.end == "turns" for _, episode in played) / len(played),
        "turns/read_tokens": (tokens - sum(one.length for one, _ in played)) / len(played),
        "turns/read_share": (tokens - sum(one.length for one, _ in played)) / max(1, tokens),
        "turns/cut": float(sum(turn.cut for turn in turns)),
        "turns/faults": float(sum(bool(episode.fault) for _, episode in played)),
        "turns/mean_seconds": fmean(turn.seconds for turn in turns),
        "turns/max_seconds": max(turn.seconds for turn in turns),
    }
    if calls:
        metrics["tools/mistakes"] = sum(mistakes.values()) / calls
    metrics |= {f"tools/mistakes/{kind}": float(mistakes[kind]) for kind in ("syntax", "unknown_tool", "arguments", "raised")}
    return metrics | {
        "tools/calls": calls / len(played),
        "tools/used": sum(any(turn.calls for turn in episode.turns) for _, episode in played) / len(played),
    }


def measure_advantages(advantages_N: Sequence[float], scored_PG: Tensor, examples: Sequence[Example]) -> dict[str, float]:
    scored = torch.tensor(advantages_N, dtype=torch.float64).view_as(scored_PG)[scored_PG]
    advantages_C = read_trained_advantages(join_examples(examples))
    return {
        "advantage/std": float(scored.std(correction=0)) if scored.numel() else 0.0,
        "advantage/abs_max": float(advantages_C.abs().max()) if len(advantages_C) else 0.0,
    }


def measure_groups(
    advantages_N: Sequence[float], scored_PG: Tensor, equal_P: Tensor, left_out_P: Tensor, rollouts: Sequence[Rollout]
) -> dict[str, float]:
    right_P, wrong_P = count_group_verdicts(rollouts, scored_PG)
    usable_P = ~find_unusable_groups(scored_PG)
    return {
        "advantage/useful_groups": float((usable_P & ~equal_P & ~left_out_P).double().mean()),
        "advantage/zero_variance_groups": int(equal_P.sum()),
        "advantage/dropped_groups": int(left_out_P.sum()),
        "advantage/all_correct_groups": int((usable_P & (right_P > 0) & (wrong_P == 0)).sum()),
        "advantage/all_wrong_groups": int((usable_P & (right_P == 0) & (wrong_P > 0)).sum()),
        **measure_difficulty(advantages_N, right_P, wrong_P),
    }


def measure_difficulty(advantages_N: Sequence[float], right_P: Tensor, wrong_P: Tensor) -> dict[str, float]:
    """Share of all credit in groups with at most one success or at most one failure; {} without credit."""
    lopsided_P = (right_P + wrong_P > 0) & (torch.minimum(right_P, wrong_P) <= 1)
    credit_P = torch.tensor(advantages_N, dtype=torch.float64).view(len(right_P), -1).abs().sum(1)
    total = float(credit_P.sum())
    return {"advantage/lopsided_share": float(credit_P[lopsided_P].sum()) / total} if total else {}


def count_group_verdicts(rollouts: Sequence[Rollout], scored_PG: Tensor) -> tuple[Tensor, Tensor]:
    """(successes, failures) of every group among its scored completions; a completion without a verdict is neither."""
    verdicts = [rollout.outcome.success for rollout in rollouts]
    judged_PG = torch.tensor([verdict is not None for verdict in verdicts]).view_as(scored_PG) & scored_PG
    success_PG = torch.tensor([bool(verdict) for verdict in verdicts]).view_as(scored_PG)
    return (judged_PG & success_PG).sum(1), (judged_PG & ~success_PG).sum(1)
