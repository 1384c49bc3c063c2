"""The rollouts of a step: where completions come from, how they are scored, and how many groups are collected.

    algorithm.data = "policy"          sampled in groups from the current policy, scored by the reward functions
                     "start"           the same, from the policy that the run started from (offline)
                     "demonstrations"  given in the rows; the reward of a demonstration is 1
                     "pairs"           given in the rows; the reward is 1 for the chosen completion and 0 for the rejected one

Prompts, completions and the number of rounds depend only on the cursor, the step and the weights, so a resumed run collects the same
rollouts again. "start" needs no stored samples for the same reason: the noise is keyed by the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms.refill import GroupCounts, choose_groups, count_groups, count_prompts_to_draw, make_refill_metrics
from cohort.base.stopwatch import Stopwatch
from cohort.base.world import ALONE, World
from cohort.data.prompts import PromptStream
from cohort.engine import sample_groups
from cohort.engine.protocol import Engine
from cohort.evaluation.evaluate import score_groups
from cohort.observe.metrics import find_reduction
from cohort.observe.perf import make_engine_metrics
from cohort.recipe.rules import OVERLONG_PART
from cohort.recipe.schema import Recipe
from cohort.rewards.contract import Scored, Scorer
from cohort.rewards.early_scoring import OnCompletion
from cohort.rewards.outcomes import mean_and_std
from cohort.rewards.penalties import overlong_penalty
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Episode, NoiseKey, Outcome, Prompt, Rollout, Sampling, Turn

Groups = Sequence[Sequence[Completion]]

LARGEST_ROUND = 4
"""A refill round draws at most this many times prompts_per_step. At a useful share of 0.2, 92 % of batches are then full
after three rounds (5 % with a limit of 1). Where most groups are useful, the limit costs nothing."""

# -- completions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampledSource:
    """Groups of completions from an engine."""

    seed: int
    engine: Engine
    sampling: Sampling
    weights: Callable[[], Mapping[str, Tensor]]
    """Returns the named weights of the policy that the engine samples from."""
    world: World = ALONE
    samples = True
    """Whether completions are sampled, not given in the rows."""

    @property
    def keyed(self) -> bool:
        """Whether the same call would return the same completions again."""
        return self.engine.capabilities.keyed_noise

    def sync(self, policy_version: int) -> None:
        """Give the engine the current weights."""
        self.engine.sync(self.weights(), policy_version)

    def complete(
        self, prompts: Sequence[Prompt], step: int, first_draw: int, watch: Stopwatch, on_completion: OnCompletion | None = None
    ) -> list[list[Completion]]:
        """Completions in groups, in the order of the prompts. `on_completion` is called with each finished completion."""
        noise = NoiseKey(self.seed, "train", step)
        completions_PG = sample_groups(
            self.engine, prompts, self.sampling, noise, first_draw, world=self.world, on_finish=on_completion
        )
        own_PG = completions_PG[self.world.block(len(prompts))]
        watch.lap("rollout", sum(completion.length for group in own_PG for completion in group))
        return completions_PG

    def metrics(self) -> dict[str, float]:
        """Metrics of the last call."""
        return make_engine_metrics(self.engine)


# -- rewards -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardScorer:
    """Scores sampled completions with a scorer, and adds the soft overlong penalty to their rewards."""

    scorer: Scorer
    recipe: Recipe

    def start_early_scoring(self, prompts: Sequence[Prompt], step: int) -> OnCompletion | None:
        """A function that takes finished completions during sampling and begins to score them; None for a learned reward."""
        if not isinstance(self.scorer, RewardRunner):  # a learned reward scores the whole batch in this process
            return None
        flat = [prompt for prompt in prompts for _ in range(self.recipe.train.group_size)]
        return self.scorer.start_early_scoring(flat, step=step, num_steps=self.recipe.train.num_steps)

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        """Outcomes in the order of the completions, group after group."""
        scored = score_groups(self.scorer, prompts, completions_PG, step, self.recipe.train.num_steps)
        if share := self.recipe.algorithm.overlong_share:
            completions = [completion for group in completions_PG for completion in group]
            scored = penalize_overlong(scored, completions, self.recipe.sampling.max_completion_tokens, share)
        watch.lap("reward")
        return scored


@dataclass(frozen=True)
class WrittenRows:
    """Completions given in the rows, and their rewards: 1 for a demonstration or a chosen completion, 0 for a rejected one."""

    completions: Mapping[int, tuple[tuple[int, ...], ...]]
    """Prompt index -> its completions, best first, each with its stop token."""
    decode: Callable[[Sequence[int]], str]
    samples = False
    keyed = True

    def sync(self, policy_version: int) -> None:
        """Do nothing: no engine samples."""

    def complete(
        self, prompts: Sequence[Prompt], step: int, first_draw: int, watch: Stopwatch, on_completion: OnCompletion | None = None
    ) -> list[list[Completion]]:
        # There are no sampling log-probs, and nothing reads the zeros (algorithms/compatibility.py).
        return [
            [Completion(ids, (0.0,) * len(ids), "stop", self.decode(ids)) for ids in self.completions[prompt.index]]
            for prompt in prompts
        ]

    def metrics(self) -> dict[str, float]:
        return {}

    def start_early_scoring(self, prompts: Sequence[Prompt], step: int) -> None:
        """Return None: nothing is sampled."""

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        rewards = [1.0 if place == 0 else 0.0 for group in completions_PG for place in range(len(group))]
        return Scored([Outcome(parts={}, reward=reward, success=None) for reward in rewards], {})


def penalize_overlong(scored: Scored, completions: Sequence[Completion], longest: int, share: float) -> Scored:
    """Scores with DAPO's soft overlong penalty added to the rewards, never to success. A truncated completion loses 1."""
    outcomes, penalties = [], []
    for outcome, completion in zip(scored.outcomes, completions, strict=True):
        truncated = completion.end == "length"
        penalty = -1.0 if truncated else overlong_penalty(completion.length, longest, share * longest)
        penalties.append(penalty)
        if outcome.reward is None:
            outcomes.append(outcome)
            continue
        steps = outcome.steps
        if steps:  # added to the last step: a separate step would change the mean over all steps even at 0
            position, reward = steps[-1]
            steps = (*steps[:-1], (position, reward + penalty))
        parts = {**outcome.parts, OVERLONG_PART: penalty}
        outcomes.append(replace(outcome, reward=outcome.reward + penalty, parts=parts, steps=steps))
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    metrics = {**scored.metrics, **mean_and_std("reward", rewards), f"reward/{OVERLONG_PART}/mean": fmean(penalties)}
    return replace(scored, outcomes=outcomes, metrics=metrics)


# -- groups ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collected:
    """The rollouts that a step trains on."""

    rollouts: list[Rollout]
    """Rollouts in group order; all groups have the same size."""
    metrics: dict[str, float]
    prompts_taken: int
    tokens_sampled: int
    verdicts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Prompt index -> (successes, verdicts), for all groups drawn, including those not trained on."""
    useful: bool = True
    """False: dynamic sampling found no useful group; these rollouts are only recorded, not trained on."""
    policy_version: int | None = None
    """Version of the trained policy; tokens sampled by another version are stale. None: completions were not sampled."""
    keyed: bool = True
    """Whether collecting again would return the same rollouts."""


@dataclass(frozen=True)
class Collection:
    """The groups that a step has drawn."""

    cursor: int
    wanted: int
    """Number of groups to train on."""
    refill_rounds: int
    policy_version: int
    """Version of the policy that samples."""
    groups: tuple[list[Rollout], ...] = ()
    rounds: tuple[tuple[int, dict[str, float]], ...] = ()
    """(prompts drawn, metrics) of each round."""

    @property
    def drawn(self) -> int:
        return len(self.groups)

    @property
    def counts(self) -> GroupCounts:
        return count_groups([[rollout.outcome.success for rollout in group] for group in self.groups])

    @property
    def missing(self) -> int:
        """Number of prompts in the next round; 0 when the batch is full or no round is left."""
        if not self.rounds:
            return self.wanted
        if len(self.rounds) > self.refill_rounds:
            return 0
        counts = self.counts
        return count_prompts_to_draw(self.wanted - counts.useful, counts.useful, counts.drawn, LARGEST_ROUND * self.wanted)

    @property
    def is_short(self) -> bool:
        """Whether dynamic sampling has found fewer useful groups than wanted."""
        return self.refill_rounds > 0 and self.counts.useful < self.wanted

    def next_prompts(self, stream: PromptStream) -> list[Prompt]:
        """The prompts of the next round."""
        return stream.take(self.cursor, self.drawn + self.missing)[self.drawn :]

    def add_round(
        self, prompts: Sequence[Prompt], completions_PG: Groups, scored: Scored, metrics: Mapping[str, float]
    ) -> Collection:
        groups = group_rollouts(prompts, completions_PG, scored.outcomes, self.policy_version)
        row = (len(prompts), {**scored.metrics, **metrics})
        return replace(self, groups=(*self.groups, *groups), rounds=(*self.rounds, row))


def begin_collection(recipe: Recipe, cursor: int, policy_version: int) -> Collection:
    return Collection(cursor, recipe.train.prompts_per_step, recipe.algorithm.refill_rounds, policy_version)


def finish_collection(collection: Collection, policy_version: int, *, sampled: bool, keyed: bool) -> Collected:
    """The groups to train on, with their metrics. If no group is useful, the first ones are kept for the records only."""
    groups, counts, wanted = list(collection.groups), collection.counts, collection.wanted
    row, kept = merge_metrics(collection.rounds), groups
    if collection.refill_rounds:
        row = row | make_refill_metrics(counts, len(collection.rounds), wanted)
        verdicts = [[rollout.outcome.success for rollout in group] for group in groups]
        kept = [groups[place] for place in choose_groups(verdicts, wanted)] or groups[:wanted]
    return Collected(
        rollouts=[
            one if one.group == number else replace(one, group=number) for number, group in enumerate(kept) for one in group
        ],
        metrics=row,
        prompts_taken=len(groups),
        tokens_sampled=sum(rollout.completion.length for group in groups for rollout in group) if sampled else 0,
        verdicts=count_verdicts(groups) if sampled else {},
        useful=not collection.refill_rounds or counts.useful > 0,
        policy_version=policy_version if sampled else None,
        keyed=keyed,
    )


def group_rollouts(
    prompts: Sequence[Prompt], completions_PG: Groups, outcomes_N: Sequence[Outcome], policy_version: int
) -> list[list[Rollout]]:
    outcomes = iter(outcomes_N)
    return [
        [Rollout(prompt, group, sample, one, next(outcomes), policy_version) for sample, one in enumerate(completions)]
        for group, (prompt, completions) in enumerate(zip(prompts, completions_PG, strict=True))
    ]


def count_verdicts(groups: Sequence[Sequence[Rollout]]) -> dict[int, tuple[int, int]]:
    """Prompt index -> (successes, verdicts)."""
    counts: dict[int, tuple[int, int]] = {}
    for group in groups:
        verdicts = [rollout.outcome.success for rollout in group if rollout.outcome.success is not None]
        right, total = counts.get(group[0].prompt.index, (0, 0))
        counts[group[0].prompt.index] = (right + sum(verdicts), total + len(verdicts))
    return counts


def merge_metrics(rows: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Metrics of several rounds merged as docs/metrics.md defines (standard deviations: their mean). rows: (prompts, metrics)."""
    if len(rows) == 1:
        return rows[0][1]
    merged: dict[str, Any] = {}
    for name in {name: None for _, row in rows for name in row}:
        values = [(count, row[name]) for count, row in rows if name in row]
        total = sum(count for count, _ in values)
        reduce = find_reduction(name)
        merged[name] = reduce([v for _, v in values]) if reduce else sum(value * count / total for count, value in values)
    return merged


# -- in a checkpoint ---------------------------------------------------------------------------------------------------


def encode_rollouts(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """(tensors over all tokens, one JSON row per rollout). Prompts are stored by index; the recipe names their source."""
    completions = [rollout.completion for rollout in rollouts]
    tensors = {
        "completion_ids": torch.tensor([value for one in completions for value in one.token_ids], dtype=torch.int64),
        "sampling_logprobs": torch.tensor(
            [value for one in completions for value in one.sampling_logprobs], dtype=torch.float32
        ),
        "sampled_mask": torch.tensor([value for one in completions for value in one.mask], dtype=torch.bool),
    }
    rows = [
        {
            "prompt": rollout.prompt.index,
            "group": rollout.group,
            "sample": rollout.sample,
            "policy_version": rollout.policy_version,
            "length": len(rollout.completion.token_ids),
            "all_sampled": rollout.completion.sampled_mask is None,
            "end": rollout.completion.end,
            "text": rollout.completion.text,
            "versions": rollout.completion.versions,
            "episode": rollout.completion.episode and asdict(rollout.completion.episode),
            "outcome": asdict(rollout.outcome),
        }
        for rollout in rollouts
    ]
    return tensors, rows


def decode_episode(saved: Mapping[str, Any]) -> Episode:
    turns = tuple(Turn(**turn | {"mistakes": tuple(turn["mistakes"])}) for turn in saved["turns"])
    return Episode(**{**saved, "turns": turns, "messages": tuple(saved["messages"])})


def decode_rollouts(
    tensors: Mapping[str, Tensor], rows: Sequence[dict[str, Any]], find_prompt: Callable[[int], Prompt]
) -> list[Rollout]:
    rollouts, offset = [], 0
    for row in rows:
        span = slice(offset, offset + row["length"])
        offset += row["length"]
        completion = Completion(
            token_ids=tuple(tensors["completion_ids"][span].tolist()),
            sampling_logprobs=tuple(tensors["sampling_logprobs"][span].tolist()),
            end=row["end"],
            text=row["text"],
            sampled_mask=None if row["all_sampled"] else tuple(tensors["sampled_mask"][span].tolist()),
            versions=tuple((version, count) for version, count in row["versions"]),
            episode=row["episode"] and decode_episode(row["episode"]),
        )
        saved = row["outcome"]
        outcome = Outcome(**saved | {"faults": tuple(saved["faults"]), "steps": tuple(map(tuple, saved["steps"]))})
        prompt = find_prompt(row["prompt"])
        rollouts.append(Rollout(prompt, row["group"], row["sample"], completion, outcome, row["policy_version"]))
    return rollouts
