"""What completions are worth: the second arrow of data source -> reward -> gradient coefficient -> update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cohort.base.stopwatch import Stopwatch
from cohort.evaluation.evaluate import score_groups
from cohort.recipe.rules import OVERLONG_PART
from cohort.recipe.schema import Recipe
from cohort.rewards.contract import Scored, Scorer
from cohort.rewards.early_scoring import OnCompletion
from cohort.rewards.outcomes import mean_and_std
from cohort.rewards.penalties import overlong_penalty
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Outcome, Prompt

Groups = Sequence[Sequence[Completion]]


@dataclass(frozen=True)
class RewardJudge:
    """Completions that were sampled are judged by a scorer; the soft overlong penalty is part of their reward."""

    scorer: Scorer
    recipe: Recipe

    def listen(self, prompts: Sequence[Prompt], step: int) -> OnCompletion | None:
        """Whom to tell of the completions of these prompts as they are sampled, before `score` is asked about all of them; None: nobody."""
        if not isinstance(self.scorer, RewardRunner):  # a learned one runs in this process, over the whole batch
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
class RowJudge:
    """Completions that stand in the rows are worth what they are there for: the first of a group 1, the others 0."""

    def listen(self, prompts: Sequence[Prompt], step: int) -> None:
        """Nothing is sampled."""

    def score(self, prompts: Sequence[Prompt], completions_PG: Groups, step: int, watch: Stopwatch) -> Scored:
        rewards = [1.0 if place == 0 else 0.0 for group in completions_PG for place in range(len(group))]
        return Scored([Outcome(parts={}, reward=reward, success=None) for reward in rewards], {})


Judge = RewardJudge | RowJudge


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
