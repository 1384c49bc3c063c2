"""Where completions come from: the first arrow of data source -> reward -> gradient coefficient -> update.

    algorithm.data = "policy"          sampled from the policy as it is now, in groups, judged by the reward functions
                     "start"           the same from the policy the run started from: offline, and never out of samples
                     "demonstrations"  written in the rows; the reward of a demonstration is 1 by definition
                     "pairs"           chosen (1) and rejected (0) completions written in the rows

A source is a pure function of the prompts, the step and the weights: a resumed run is given the same again. "start" needs no
file of samples for the same reason: the noise is keyed by the step, so sampling when a step comes is sampling beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms.refill import (
    GroupCounts,
    choose_groups,
    count_groups,
    count_prompts_to_draw,
    explain_difficulty,
    make_refill_metrics,
)
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
from cohort.rewards.base import RewardRunner
from cohort.rewards.contract import Scored, Scorer
from cohort.rewards.listening import Hear
from cohort.rewards.penalties import overlong_penalty
from cohort.rewards.summing import mean_and_std
from cohort.types import Completion, NoiseKey, Outcome, Prompt, Rollout, Sampling


@dataclass(frozen=True)
class SampledSource:
    """Groups of completions from an engine."""

    seed: int
    engine: Engine
    sampling: Sampling
    weights: Callable[[], Mapping[str, Tensor]]
    """Of the policy that the engine samples from, by name."""
    world: World = ALONE
    samples = True
    """Whether completions are sampled, or stand in the rows."""

    @property
    def keyed(self) -> bool:
        """Whether asking again would give the same."""
        return self.engine.capabilities.keyed_noise

    def sync(self, policy_version: int) -> None:
        """The policy has become this version; what is sampled from now on is of it."""
        self.engine.sync(self.weights(), policy_version)

    def complete(
        self, prompts: Sequence[Prompt], step: int, first_draw: int, watch: Stopwatch, hear: Hear | None = None
    ) -> list[list[Completion]]:
        """Groups in the order of the prompts. `hear`: told of each completion as it is finished."""
        noise = NoiseKey(self.seed, "train", step)
        completions_PG = sample_groups(self.engine, prompts, self.sampling, noise, first_draw, world=self.world, hear=hear)
        own_PG = completions_PG[self.world.block(len(prompts))]
        watch.lap("rollout", sum(completion.length for group in own_PG for completion in group))
        return completions_PG

    def metrics(self) -> dict[str, float]:
        """What the last call cost."""
        return make_engine_metrics(self.engine)


@dataclass(frozen=True)
class WrittenSource:
    """Completions that stand in the rows: one demonstration per group, or a chosen and a rejected one."""

    completions: Mapping[int, tuple[tuple[int, ...], ...]]
    """Prompt -> its completions, best first, each ended by the stop token."""
    decode: Callable[[Sequence[int]], str]
    samples = False
    keyed = True

    def sync(self, policy_version: int) -> None:
        """Nobody samples."""

    def complete(
        self, prompts: Sequence[Prompt], step: int, first_draw: int, watch: Stopwatch, hear: Hear | None = None
    ) -> list[list[Completion]]:
        # Not sampled, so there are no sampling log-probs; nothing reads them (algorithms/fitting.py).
        return [
            [Completion(ids, (0.0,) * len(ids), "stop", self.decode(ids)) for ids in self.completions[prompt.index]]
            for prompt in prompts
        ]

    def metrics(self) -> dict[str, float]:
        return {}


Source = SampledSource | WrittenSource
"""Prompts in, groups of completions out."""


# -- scoring -----------------------------------------------------------------------------------------------------------
#

Groups = Sequence[Sequence[Completion]]


@dataclass(frozen=True)
class RewardScorer:
    """Completions that were sampled are judged by a scorer; the soft overlong penalty is part of their reward."""

    scorer: Scorer
    recipe: Recipe

    def listen(self, prompts: Sequence[Prompt], step: int) -> Hear | None:
        """Whom to tell of the completions of these prompts as they are sampled, before `score` is asked about all of them; None: nobody."""
        if not isinstance(self.scorer, RewardRunner):  # a learned one runs in this process, over the whole batch
            return None
        flat = [prompt for prompt in prompts for _ in range(self.recipe.train.group_size)]
        return self.scorer.listen(flat, step=step, num_steps=self.recipe.train.num_steps)

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        """Outcomes in the order of the completions, group after group."""
        scored = score_groups(self.scorer, prompts, completions_PG, step, self.recipe.train.num_steps)
        if share := self.recipe.algorithm.overlong_share:
            completions = [completion for group in completions_PG for completion in group]
            scored = penalize_overlong(scored, completions, self.recipe.sampling.max_completion_tokens, share)
        watch.lap("reward")
        return scored


@dataclass(frozen=True)
class RowScorer:
    """Completions that stand in the rows are worth what they are there for: the first of a group 1, the others 0."""

    def listen(self, prompts: Sequence[Prompt], step: int) -> None:
        """Nothing is sampled."""

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        rewards = [1.0 if place == 0 else 0.0 for group in completions_PG for place in range(len(group))]
        return Scored([Outcome(parts={}, reward=reward, success=None) for reward in rewards], {})


Judge = RewardScorer | RowScorer


def penalize_overlong(scored: Scored, completions: Sequence[Completion], longest: int, share: float) -> Scored:
    """DAPO's soft overlong penalty: scores with the penalty added to the reward, never to the success. A completion cut at the limit loses 1."""
    outcomes, penalties = [], []
    for outcome, completion in zip(scored.outcomes, completions, strict=True):
        cut = completion.end == "length"
        penalty = -1.0 if cut else overlong_penalty(completion.length, longest, share * longest)
        penalties.append(penalty)
        if outcome.reward is None:
            outcomes.append(outcome)
            continue
        steps = outcome.steps
        if steps:  # into the last step: a step of its own would move the mean over all steps even when it is 0
            position, reward = steps[-1]
            steps = (*steps[:-1], (position, reward + penalty))
        outcomes.append(
            replace(outcome, reward=outcome.reward + penalty, parts={**outcome.parts, OVERLONG_PART: penalty}, steps=steps)
        )
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    metrics = {**scored.metrics, **mean_and_std("reward", rewards), f"reward/{OVERLONG_PART}/mean": fmean(penalties)}
    return replace(scored, outcomes=outcomes, metrics=metrics)


# -- collecting --------------------------------------------------------------------------------------------------------
#

LARGEST_ROUND = 4
"""A refill round draws at most this many times prompts_per_step: at a useful share of 0.2, 92 % of batches are then full
after three rounds (5 % with 1), and where most groups are useful it costs nothing."""


@dataclass(frozen=True)
class Collected:
    rollouts: list[Rollout]
    """In group order, every group of the same size."""
    metrics: dict[str, float]
    """What the reward functions and the choice of groups had to say."""
    prompts_taken: int
    tokens_sampled: int
    verdicts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Prompt -> (successes, verdicts), for every group that was drawn, trained on or not."""
    useful: bool = True
    """False: dynamic sampling found no group worth training on; what is here only shows what was sampled."""
    policy_version: int | None = None
    """Of the policy that trains on this, where a policy sampled; tokens of other versions are stale. None: none are told apart."""
    keyed: bool = True
    """Whether collecting again would give the same."""


@dataclass(frozen=True)
class Drawn:
    """The groups that a step has drawn so far."""

    cursor: int
    wanted: int
    """Groups that the step is to train on."""
    refill_rounds: int
    policy_version: int
    """Of the policy that samples."""
    groups: tuple[list[Rollout], ...] = ()
    rounds: tuple[tuple[int, dict[str, float]], ...] = ()
    """(prompts drawn, metrics) of each round."""

    @property
    def counts(self) -> GroupCounts:
        return count_groups([[rollout.outcome.success for rollout in group] for group in self.groups])

    @property
    def missing(self) -> int:
        """Prompts to draw in the next round; 0: the step has what it wants, or the rounds are used up."""
        if not self.rounds:
            return self.wanted
        if len(self.rounds) > self.refill_rounds:
            return 0
        counts = self.counts
        return count_prompts_to_draw(self.wanted - counts.useful, counts.useful, counts.drawn, LARGEST_ROUND * self.wanted)

    def next_prompts(self, stream: PromptStream) -> list[Prompt]:
        """The prompts of the next round."""
        return stream.take(self.cursor, len(self.groups) + self.missing)[len(self.groups) :]

    def add_round(
        self,
        prompts: Sequence[Prompt],
        completions_PG: Sequence[Sequence[Completion]],
        scored: Scored,
        metrics: Mapping[str, float],
    ) -> Drawn:
        groups = group_rollouts(prompts, completions_PG, scored.outcomes, self.policy_version)
        row = (len(prompts), {**scored.metrics, **metrics})
        return replace(self, groups=(*self.groups, *groups), rounds=(*self.rounds, row))


def begin_drawing(recipe: Recipe, cursor: int, policy_version: int) -> Drawn:
    return Drawn(cursor, recipe.train.prompts_per_step, recipe.algorithm.refill_rounds, policy_version)


def finish_drawing(drawn: Drawn, policy_version: int, *, sampled: bool, keyed: bool) -> Collected:
    """The groups that this version of the policy trains on. With no useful one at all the first are kept to be looked at, and nothing is
    trained."""
    groups, counts, wanted = list(drawn.groups), drawn.counts, drawn.wanted
    row, kept = merge_metrics(drawn.rounds), groups
    if drawn.refill_rounds:
        row = row | make_refill_metrics(counts, len(drawn.rounds), wanted)
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
        useful=not drawn.refill_rounds or counts.useful > 0,
        policy_version=policy_version if sampled else None,
        keyed=keyed,
    )


def why_not_full(drawn: Drawn, step: int) -> str:
    """What it means that the rounds are used up and the batch is not full; "" where it is, or is not refilled."""
    if not drawn.refill_rounds or drawn.counts.useful >= drawn.wanted:
        return ""
    return explain_difficulty(drawn.counts, step, drawn.wanted)


def group_rollouts(
    prompts: Sequence[Prompt],
    completions_PG: Sequence[Sequence[Completion]],
    outcomes_N: Sequence[Outcome],
    policy_version: int,
) -> list[list[Rollout]]:
    outcomes = iter(outcomes_N)
    return [
        [
            Rollout(prompt, group, sample, completion, next(outcomes), policy_version)
            for sample, completion in enumerate(completions)
        ]
        for group, (prompt, completions) in enumerate(zip(prompts, completions_PG, strict=True))
    ]


def count_verdicts(groups: Sequence[Sequence[Rollout]]) -> dict[int, tuple[int, int]]:
    counts: dict[int, tuple[int, int]] = {}
    for group in groups:
        verdicts = [rollout.outcome.success for rollout in group if rollout.outcome.success is not None]
        right, judged = counts.get(group[0].prompt.index, (0, 0))
        counts[group[0].prompt.index] = (right + sum(verdicts), judged + len(verdicts))
    return counts


def merge_metrics(rows: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Metrics of several rounds as if they had been one, as the table of metrics says (standard deviations: their mean)."""
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
#

Rows = list[dict[str, Any]]


def encode_rollouts(rollouts: Sequence[Rollout]) -> tuple[dict[str, Tensor], Rows]:
    """(tensors over all tokens, a row for each rollout). Prompts are stored by index: their source is part of the recipe."""
    tensors = {
        "completion_ids": lay_flat([rollout.completion.token_ids for rollout in rollouts], torch.int64),
        "sampling_logprobs": lay_flat([rollout.completion.sampling_logprobs for rollout in rollouts], torch.float32),
        "sampled_mask": lay_flat([rollout.completion.mask for rollout in rollouts], torch.bool),
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
            "outcome": asdict(rollout.outcome),
        }
        for rollout in rollouts
    ]
    return tensors, rows


def decode_rollouts(tensors: Mapping[str, Tensor], rows: Rows, find_prompt: Callable[[int], Prompt]) -> list[Rollout]:
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
            versions=tuple((version, count) for version, count in row.get("versions", ())),
        )
        said = row["outcome"]
        outcome = Outcome(**said | {"faults": tuple(said["faults"]), "steps": tuple(map(tuple, said["steps"]))})
        prompt = find_prompt(row["prompt"])
        rollouts.append(Rollout(prompt, row["group"], row["sample"], completion, outcome, row["policy_version"]))
    return rollouts


def lay_flat(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=dtype)
