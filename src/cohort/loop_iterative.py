"""Iterative GRPO with a learned reward model (DeepSeekMath, algorithm 1).

    for each iteration:  label fresh rollouts with the verifier
                         fit the reward model on them and on a replay of older ones
                         reference <- policy
                         train: the reward is the reward model's, success stays the verifier's

Rollouts are keyed, and an interrupted fit restores the old weights. So a run killed during a fit repeats it with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.loop import train
from cohort.model.critic import add_prefix, select_prefix
from cohort.model.optim import Adding
from cohort.training.checkpoint import fill_folder
from cohort.training.reward_data import Labelled, Replay, label
from cohort.training.reward_model import LearnedScorer, RewardModel
from cohort.training.rollouts import RewardScorer
from cohort.training.run import TrainingRun
from cohort.training.stages import sample_rollouts, save_run, sync_engine, wait_for_save
from cohort.training.state import TrainState
from cohort.types import NoiseKey

MODEL, REPLAY = "model/", "replay/"
"""Prefixes of the tensors in a checkpoint."""


class LearnedReward:
    """The reward model, the replay of labelled data, and the metrics of the last fit, as one component of the checkpoint."""

    def __init__(self, model: RewardModel):
        self.model, self.replay = model, Replay()
        self.metrics: dict[str, float] = {}
        self.before_fit: dict[str, Tensor] = {}
        """Weights from before a fit that is not saved yet; a checkpoint during the fit holds these."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        kept, document = self.replay.state()
        weights = self.model.weights.gather_tensors(self.before_fit) if self.before_fit else self.model.weights.tensors()
        return add_prefix(weights, MODEL) | add_prefix(kept, REPLAY), {"replay": document, "metrics": self.metrics}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        self.model.weights.load(select_prefix(tensors, MODEL))
        self.replay.load_state(select_prefix(tensors, REPLAY), document["replay"])
        self.metrics = dict(document["metrics"])


def train_in_iterations(run: TrainingRun, state: TrainState, compute_dtype: torch.dtype) -> None:
    """Train until `num_steps` steps are finished, in `reward_model.iterations` iterations of equal length."""
    recipe = run.recipe
    learned = LearnedReward(make_reward_model(run, compute_dtype, state.optimizer.weights.adding))
    state.attach("reward_model", learned)
    scorer = LearnedScorer(run.rewards, learned.model, recipe.train.micro_batch_tokens, recipe.train.max_fault_share)
    run = replace(run, scorer=RewardScorer(scorer, recipe))
    for iteration in range(1, recipe.reward_model.iterations + 1):
        if state.stopped:
            break
        if state.iteration < iteration:
            begin_iteration(run, state, learned, iteration)
        state.constant_metrics = {"reward_model/iteration": iteration, **learned.metrics}
        train(run, state, until=recipe.train.num_steps * iteration // recipe.reward_model.iterations)
    whole = learned.model.collect_weights()

    def save() -> None:
        with fill_folder(run.folder.reward_model) as folder:
            learned.model.save(folder, whole)

    run.world.on_main(save)


def make_reward_model(run: TrainingRun, compute_dtype: torch.dtype, adding: Adding) -> RewardModel:
    settings, bits = run.recipe.reward_model, run.recipe.optimizer.state_bits
    if settings.source:
        return RewardModel.from_pretrained(settings.source, run.policy, settings, compute_dtype, bits, adding)
    return RewardModel.from_policy(run.policy, settings, compute_dtype, run.recipe.seed, bits, adding)


def begin_iteration(run: TrainingRun, state: TrainState, learned: LearnedReward, iteration: int) -> None:
    """Fit the reward model on rollouts of the current policy, and make the current policy the reference."""
    settings, seed, started = run.recipe.reward_model, run.recipe.seed, time.monotonic()
    fresh = label_fresh_rollouts(run, state, iteration)
    data = learned.replay.mix(fresh, settings.replay_share, seed, iteration)
    learned.before_fit = learned.model.weights.copy_masters()
    run.monitors.on_message(
        f"iteration {iteration} of {settings.iterations}: fitting the reward model on {len(data)} completions"
    )
    metrics = learned.model.fit(data, iteration=iteration, seed=seed, micro_batch_tokens=run.recipe.train.micro_batch_tokens)
    with defer_interrupts():
        learned.metrics, learned.before_fit = metrics, {}
        learned.metrics["reward_model/tokens"] = float(sum(len(item.completion_ids) for item in fresh))
        learned.metrics["reward_model/seconds"] = time.monotonic() - started
        if run.reference:
            run.reference.become(run.policy)
        state.iteration, state.fitted_at = iteration, state.step
        save_run(run, state)
    wait_for_save(run, state)  # a kill must not cost the fit
    accuracy = learned.metrics.get("reward_model/accuracy")
    ranked = "no held-back pair to measure it" if accuracy is None else f"it ranks {accuracy:.1%} of held-back pairs correctly"
    run.monitors.on_message(
        f"iteration {iteration} of {settings.iterations}: reward model fitted on {learned.metrics['reward_model/completions']:.0f} "
        f"completions ({learned.metrics['reward_model/replayed']:.0f} replayed); "
        + ranked
        + ("; reference refreshed" if run.reference else "")
    )


def label_fresh_rollouts(run: TrainingRun, state: TrainState, iteration: int) -> list[Labelled]:
    """Labelled groups for the next prompts, scored by the reward functions.

    Training then uses prompts that the reward model has seen, though not these completions. The held-back prompts measure how well it
    does on unseen ones.
    """
    prompts = run.stream.take(state.cursor, run.recipe.reward_model.prompts)
    sync_engine(run, state)
    noise = NoiseKey(run.recipe.seed, "reward_model", iteration)
    rollouts = sample_rollouts(run, prompts, run.sampling, noise, state.step + 1, state.policy_version)
    return label(rollouts, iteration)
