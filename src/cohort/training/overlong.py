"""DAPO's soft overlong penalty: what a completion loses for coming close to the limit, or being cut at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from cohort.recipe.rules import OVERLONG_PART
from cohort.rewards.contract import Scored
from cohort.rewards.shape import overlong_penalty
from cohort.rewards.summing import mean_and_std
from cohort.types import Completion


def penalize_overlong(scored: Scored, completions: Sequence[Completion], longest: int, share: float) -> Scored:
    """Scores with the penalty added to the reward, never to the success. A completion cut at the limit loses 1."""
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
