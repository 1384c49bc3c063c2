"""Training rollouts judged by the reward model: its score is the reward, success stays the verifier's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.errors import RewardError
from cohort.rewards.contract import Scored, Scorer
from cohort.rewards.outcomes import mean_and_std
from cohort.training.reward_model import PART, RewardModel, compute_auc
from cohort.types import Completion, Outcome, Prompt

NOT_FINITE = f"{PART}:nan"


@dataclass(frozen=True)
class LearnedScorer:
    """Scores training rollouts: the reward is the reward model's, success and answer stay the verifier's.

    For training alone. Evaluation asks the verifier itself: what the reward model thinks of the policy it has raised is
    no evidence.
    """

    verifier: Scorer
    reward_model: RewardModel
    micro_batch_tokens: int
    max_fault_share: float = 0.1
    """As train.max_fault_share: scores that are not finite, past this share of a step, stop the run."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored:
        verified = self.verifier.score(prompts, completions, step=step, num_steps=num_steps)
        sequences = [(prompt.token_ids, completion.token_ids) for prompt, completion in zip(prompts, completions, strict=True)]
        scores = self.reward_model.rewards(self.reward_model.score(sequences, self.micro_batch_tokens))
        outcomes = [replace_reward(outcome, score) for outcome, score in zip(verified.outcomes, scores, strict=True)]
        broken = sum(not math.isfinite(score) for score in scores)
        if broken > self.max_fault_share * len(scores):
            raise RewardError(
                f"the reward model gave no finite score to {broken} of {len(scores)} completions of step {step}. "
                "Lower reward_model.learning_rate."
            )
        return Scored(outcomes, replace_reward_metrics(verified.metrics, outcomes, broken))


def replace_reward(outcome: Outcome, score: float) -> Outcome:
    """The verifier's own faults do not matter here: the reward does not come from it."""
    if PART in outcome.parts:
        raise RewardError(f"rewards: a part is named {PART!r}, which is the name of the learned one; give it another `name`.")
    reward = score if math.isfinite(score) else None
    faults = outcome.faults if reward is not None else (*outcome.faults, NOT_FINITE)
    return replace(outcome, parts={**outcome.parts, PART: reward}, reward=reward, faults=faults, steps=())


def replace_reward_metrics(verified: Mapping[str, float], outcomes: Sequence[Outcome], broken: int) -> dict[str, float]:
    """The verifier's metrics of its parts and of success, with everything said of the reward itself put right."""
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    metrics = {name: value for name, value in verified.items() if name not in ("reward/mean", "reward/std")}
    metrics |= mean_and_std("reward", rewards) | mean_and_std(f"reward/{PART}", rewards)
    metrics["reward/unscored"] = float(len(outcomes) - len(rewards))
    metrics["reward/faults"] = verified.get("reward/faults", 0.0) + broken
    judged = [
        (outcome.reward, outcome.success) for outcome in outcomes if outcome.reward is not None and outcome.success is not None
    ]
    agreement = compute_auc([reward for reward, _ in judged], [success for _, success in judged])
    if agreement is not None:
        metrics["reward/verifier_agreement"] = agreement
    return metrics
