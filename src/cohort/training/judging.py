"""What completions are worth: the second arrow of data source -> reward -> gradient coefficient -> update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cohort.base.stopwatch import Stopwatch
from cohort.recipe.schema import Recipe
from cohort.rewards.contract import Scored
from cohort.training.overlong import penalize_overlong
from cohort.types import Completion, Outcome, Prompt

Groups = Sequence[Sequence[Completion]]


class Scorer(Protocol):
    """Reward functions, or a learned model that stands in for them."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored: ...


class Judge(Protocol):
    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        """Outcomes in the order of the completions, group after group."""
        ...


@dataclass(frozen=True)
class RewardJudge:
    """Completions that were sampled are judged by a scorer; the soft overlong penalty is part of their reward."""

    scorer: Scorer
    recipe: Recipe
    max_completion_tokens: int

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        flat = [(prompt, completion) for prompt, group in zip(prompts, completions_PG, strict=True) for completion in group]
        completions = [completion for _, completion in flat]
        num_steps, share = self.recipe.train.num_steps, self.recipe.algorithm.overlong_share
        scored = self.scorer.score([prompt for prompt, _ in flat], completions, step=step, num_steps=num_steps)
        if share:
            scored = penalize_overlong(scored, completions, self.max_completion_tokens, share)
        watch.lap("reward")
        return scored


@dataclass(frozen=True)
class RowJudge:
    """Completions that stand in the rows are worth what they are there for: the first of a group 1, the others 0."""

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        rewards = [1.0 if place == 0 else 0.0 for group in completions_PG for place in range(len(group))]
        return Scored([Outcome(parts={}, reward=reward, success=None) for reward in rewards], {})
