"""Where completions come from: the first arrow of data source -> reward -> gradient coefficient -> update.

    algorithm.data = "policy"          sampled from the policy as it is now, in groups, judged by the reward functions
                     "start"           the same from the policy the run started from: offline, and never out of samples
                     "demonstrations"  written in the rows; the reward of a demonstration is 1 by definition
                     "pairs"           chosen (1) and rejected (0) completions written in the rows

A source is a pure function of the cursor, the step and the weights: a resumed run collects the same again. "start" needs no
file of samples for the same reason: the noise is keyed by the step, so sampling when a step comes is sampling beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from cohort.algorithms.refill import batch_members, count_groups, prompts_to_draw, refill_metrics, verdict_on_difficulty
from cohort.base.stopwatch import Stopwatch
from cohort.engine import sample_groups
from cohort.engine.protocol import Engine
from cohort.observe.metrics import find_merge
from cohort.observe.perf import engine_metrics
from cohort.recipe.schema import Recipe
from cohort.rewards.contract import Scored
from cohort.types import Completion, NoiseKey, Outcome, Prompt, Rollout, Sampling

LARGEST_ROUND = 4
"""A refill round draws at most this many times prompts_per_step: at a useful share of 0.2, 92 % of batches are then full
after three rounds (5 % with 1), and where most groups are useful it costs nothing."""
QUIET_STEPS = 10
"""Steps between two messages that the batch could not be filled; the metrics tell of every one."""


class Stream(Protocol):
    """The endless sequence of prompts: prompts.PromptStream, or prompt_choice.InformativeChoice."""

    prompts: list[Prompt]

    def take(self, cursor: int, count: int) -> list[Prompt]: ...

    def epoch(self, cursor: int) -> float: ...


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
    """Of the policy that trains on this, where it sampled; tokens of other versions are stale. None: none are told apart."""
    keyed: bool = True
    """Whether collecting again would give the same."""


class Source(Protocol):
    def collect(self, cursor: int, step: int, policy_version: int, watch: Stopwatch) -> Collected: ...


@dataclass
class Sampled:
    """Groups of completions from an engine, scored; with `refill_rounds`, until the batch is full of groups that differ."""

    recipe: Recipe
    stream: Stream
    engine: Engine
    sampling: Sampling
    score: Callable[[Sequence[Prompt], Sequence[Sequence[Completion]], int], Scored]
    on_message: Callable[[str], None]
    weights: Callable[[], Mapping[str, Tensor]]
    """Of the policy that the engine samples from, by name."""
    quiet_until: int = 0

    def collect(self, cursor: int, step: int, policy_version: int, watch: Stopwatch) -> Collected:
        wanted, rounds = self.recipe.train.prompts_per_step, self.recipe.algorithm.refill_rounds
        groups: list[list[Rollout]] = []
        metrics: list[tuple[int, dict[str, float]]] = []
        counts = count_groups([])
        self.engine.sync(self.weights(), policy_version)
        for _ in range(1 + rounds):
            most = LARGEST_ROUND * wanted
            count = prompts_to_draw(wanted - counts.useful, counts.useful, counts.drawn, most) if groups else wanted
            prompts = self.stream.take(cursor, len(groups) + count)[len(groups) :]
            noise = NoiseKey(self.recipe.seed, "train", step)
            completions_PG = sample_groups(self.engine, prompts, self.sampling, noise, first_draw=len(groups))
            watch.lap("rollout")
            counted = engine_metrics(self.engine)
            scored = self.score(prompts, completions_PG, step)
            watch.lap("reward")
            groups += as_groups(prompts, completions_PG, scored.outcomes, policy_version)
            metrics.append((count, dict(scored.metrics) | counted))
            verdicts = [[rollout.outcome.success for rollout in group] for group in groups]
            counts = count_groups(verdicts)
            if counts.useful >= wanted:
                break
        row, kept = merge_metrics(metrics), groups
        if rounds:
            row |= refill_metrics(counts, len(metrics), wanted)
            # With no useful group at all the first ones are kept to be looked at, and nothing is trained.
            kept = [groups[place] for place in batch_members(verdicts, wanted)] or groups[:wanted]
            if counts.useful < wanted and step >= self.quiet_until:
                self.quiet_until = step + QUIET_STEPS
                self.on_message(verdict_on_difficulty(counts, step, wanted))
        return Collected(
            rollouts=[replace(rollout, group=number) for number, group in enumerate(kept) for rollout in group],
            metrics=row,
            prompts_taken=len(groups),
            tokens_sampled=sum(rollout.completion.length for group in groups for rollout in group),
            verdicts=count_verdicts(groups),
            useful=not rounds or counts.useful > 0,
            policy_version=policy_version,
            keyed=self.engine.capabilities.keyed_noise,
        )


@dataclass
class Written:
    """Completions that stand in the rows: one demonstration per group, or a chosen and a rejected one."""

    recipe: Recipe
    stream: Stream
    completions: Mapping[int, tuple[tuple[int, ...], ...]]
    """Prompt -> its completions, best first, each ended by the stop token."""
    decode: Callable[[Sequence[int]], str]

    def collect(self, cursor: int, step: int, policy_version: int, watch: Stopwatch) -> Collected:
        count = self.recipe.train.prompts_per_step
        rollouts = []
        for group, prompt in enumerate(self.stream.take(cursor, count)):
            for sample, token_ids in enumerate(self.completions[prompt.index]):
                # Not sampled, so there are no sampling log-probs; nothing reads them (contradictions.py).
                completion = Completion(token_ids, (0.0,) * len(token_ids), "stop", self.decode(token_ids))
                outcome = Outcome(parts={}, reward=1.0 if sample == 0 else 0.0, success=None)
                rollouts.append(Rollout(prompt, group, sample, completion, outcome, policy_version))
        return Collected(rollouts, {}, prompts_taken=count, tokens_sampled=0)


def as_groups(
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
        merge = find_merge(name)
        merged[name] = merge([v for _, v in values]) if merge else sum(value * count / total for count, value in values)
    return merged
