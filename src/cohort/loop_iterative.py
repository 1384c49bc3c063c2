"""Iterative GRPO with a learned reward model (DeepSeekMath, algorithm 1).

    for each iteration:  label fresh rollouts with the verifier
                         fit the reward model on them and on a replay of older ones
                         reference <- policy
                         train: the reward is the reward model's, success stays the verifier's

Rollouts are keyed and a fit leaves no half-fitted weights, so a run killed while fitting fits again and gets the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.loop import train
from cohort.model.critic import add_prefix, select_prefix
from cohort.model.optim import Adding
from cohort.recipe.schema import Recipe
from cohort.training.checkpoint import fill_folder
from cohort.training.learned_scorer import LearnedScorer
from cohort.training.parts import TrainingParts
from cohort.training.reward_data import Labelled, Replay, label
from cohort.training.reward_model import RewardModel
from cohort.training.stages import sample_rollouts, save_run, sync_engine
from cohort.training.state import TrainState
from cohort.training.training_parts import make_judge
from cohort.types import NoiseKey

MODEL, REPLAY = "model/", "replay/"
"""Prefixes of the tensors in a checkpoint."""


class LearnedReward:
    """The reward model, the labelled data it may see again, and what its last fit measured: one part of the checkpoint."""

    def __init__(self, model: RewardModel):
        self.model, self.replay = model, Replay()
        self.metrics: dict[str, float] = {}
        self.before_fit: dict[str, Tensor] = {}
        """Weights from before a fit that is not written down yet: a checkpoint made in between holds these."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        kept, document = self.replay.state()
        weights = self.model.weights.gather_tensors(self.before_fit) if self.before_fit else self.model.weights.tensors()
        return add_prefix(weights, MODEL) | add_prefix(kept, REPLAY), {"replay": document, "metrics": self.metrics}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        self.model.weights.load(select_prefix(tensors, MODEL))
        self.replay.load_state(select_prefix(tensors, REPLAY), document["replay"])
        self.metrics = dict(document["metrics"])


def train_in_iterations(parts: TrainingParts, state: TrainState, compute_dtype: torch.dtype) -> None:
    """Train until `num_steps` steps are finished, in `reward_model.iterations` parts of equal length."""
    recipe = parts.recipe
    learned = LearnedReward(make_reward_model(parts, compute_dtype, state.optimizer.weights.adding))
    state.attach("reward_model", learned)
    scorer = LearnedScorer(
        parts.rewards, learned.model, recipe.train.micro_batch_tokens, max_fault_share=recipe.train.max_fault_share
    )
    parts = replace(parts, judge=make_judge(parts, scorer))
    for iteration in range(1, recipe.reward_model.iterations + 1):
        if state.stopped:
            break
        if state.iteration < iteration:
            begin_iteration(parts, state, learned, iteration)
        state.constant_metrics = {"reward_model/iteration": iteration, **learned.metrics}
        train(parts, state, until=find_last_step(recipe, iteration))
    whole = learned.model.collect_weights()
    parts.world.on_main(lambda: save_reward_model(learned.model, parts.folder.reward_model, whole))


def save_reward_model(model: RewardModel, folder: Path, whole: Mapping[str, Tensor]) -> None:
    with fill_folder(folder) as filled:
        model.save(filled, whole)


def make_reward_model(parts: TrainingParts, compute_dtype: torch.dtype, adding: Adding) -> RewardModel:
    settings, bits = parts.recipe.reward_model, parts.recipe.optimizer.state_bits
    if settings.source:
        return RewardModel.from_pretrained(settings.source, parts.policy, settings, compute_dtype, bits, adding)
    return RewardModel.from_policy(parts.policy, settings, compute_dtype, parts.recipe.seed, bits, adding)


def find_last_step(recipe: Recipe, iteration: int) -> int:
    return recipe.train.num_steps * iteration // recipe.reward_model.iterations


def begin_iteration(parts: TrainingParts, state: TrainState, learned: LearnedReward, iteration: int) -> None:
    """Fit the reward model on what the policy writes now, and let the policy start over from here."""
    settings, seed, started = parts.recipe.reward_model, parts.recipe.seed, time.monotonic()
    fresh = label_fresh_rollouts(parts, state, iteration)
    data = learned.replay.mix(fresh, settings.replay_share, seed, iteration)
    learned.before_fit = learned.model.weights.copy_masters()
    parts.monitors.on_message(
        f"iteration {iteration} of {settings.iterations}: fitting the reward model on {len(data)} completions"
    )
    metrics = learned.model.fit(data, iteration=iteration, seed=seed, micro_batch_tokens=parts.recipe.train.micro_batch_tokens)
    with defer_interrupts():
        learned.metrics, learned.before_fit = metrics, {}
        learned.metrics["reward_model/tokens"] = float(sum(len(item.completion_ids) for item in fresh))
        learned.metrics["reward_model/seconds"] = time.monotonic() - started
        if parts.reference:
            parts.reference.become(parts.policy)
        state.iteration, state.fitted_at = iteration, state.step
        save_run(parts, state)
    accuracy = learned.metrics.get("reward_model/accuracy")
    parts.monitors.on_message(
        f"iteration {iteration} of {settings.iterations}: reward model fitted on {learned.metrics['reward_model/completions']:.0f} "
        f"completions ({learned.metrics['reward_model/replayed']:.0f} replayed); "
        + ("no held-back pair to measure it on" if accuracy is None else f"it ranks {accuracy:.1%} of held-back pairs right")
        + ("; reference refreshed" if parts.reference else "")
    )


def label_fresh_rollouts(parts: TrainingParts, state: TrainState, iteration: int) -> list[Labelled]:
    """Groups for the prompts that come next, judged by the reward functions.

    The reward model has then seen the prompts it is asked about in training, though not the completions; how well it does
    on prompts it has not seen is what the held-back ones measure.
    """
    prompts = parts.stream.take(state.cursor, parts.recipe.reward_model.prompts)
    sync_engine(parts, state)
    noise = NoiseKey(parts.recipe.seed, "reward_model", iteration)
    rollouts = sample_rollouts(parts, prompts, parts.sampling, noise, state.step + 1, state.policy_version)
    return label(rollouts, iteration)
