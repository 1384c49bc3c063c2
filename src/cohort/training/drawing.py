"""What a step draws: prompts and their rollouts, in one round or, with dynamic sampling, in as many as fill the batch.

    drawn = begin_drawing(...)
    while drawn.missing:
        ...                                    # prompts -> completions -> outcomes, the lines of the loop
        drawn = drawn.add_round(...)
    collected = finish_drawing(drawn, ...)

A round is a pure function of the cursor, the step and the weights, and so is how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cohort.algorithms.refill import (
    GroupCounts,
    choose_groups,
    count_groups,
    count_prompts_to_draw,
    explain_difficulty,
    make_refill_metrics,
)
from cohort.data.prompts import PromptStream
from cohort.observe.metrics import find_reduction
from cohort.recipe.schema import Recipe
from cohort.rewards.contract import Scored
from cohort.types import Completion, Outcome, Prompt, Rollout

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
