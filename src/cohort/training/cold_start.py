"""Supervised fine-tuning on demonstrations: a stage before GRPO, or a run of its own.

It is the same update with another data source: demonstrations instead of rollouts, advantage 1 on every token, no ratio.
The stage can stop while the model is still mediocre (`until_success`): GRPO needs groups with both outcomes, and a start
that solves everything leaves it nothing to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cohort.base.interrupts import defer_interrupts
from cohort.data.prompts import PromptStream, WrittenRow
from cohort.model.examples import Example
from cohort.model.packing import pack
from cohort.training.parts import Parts
from cohort.training.stages import sample_rollouts, save_run, sync_engine
from cohort.training.state import TrainState
from cohort.types import NoiseKey, Prompt


def cold_start(parts: Parts, state: TrainState, demonstrations: Sequence[WrittenRow]) -> None:
    """Train on demonstrations until `num_steps` batches or until sampled success reaches `until_success`."""
    recipe = parts.recipe.cold_start
    by_index = {demonstration.prompt.index: demonstration for demonstration in demonstrations}
    stream = PromptStream([demonstration.prompt for demonstration in demonstrations], parts.recipe.seed, shuffle=True)
    success: float | None = None
    while state.cold_steps < recipe.num_steps:
        # Looked at before the update, from the step number alone: a resumed run stops at the very same step.
        if recipe.until_success < 1.0 and state.cold_steps and state.cold_steps % recipe.check_every == 0:
            success = measure_success(parts, state, stream.take(0, recipe.check_prompts), state.cold_steps)
            if success >= recipe.until_success:
                parts.monitors.on_message(
                    f"cold start ends after {state.cold_steps} batches: {success:.0%} of sampled completions are right, "
                    f"and until_success is {recipe.until_success:.0%}"
                )
                return
        prompts = stream.take(state.cold_steps * recipe.batch_size, recipe.batch_size)
        loss = supervised_update(parts, state, [by_index[prompt.index] for prompt in prompts])
        seen = {"loss": loss} if success is None else {"loss": loss, "success": success}
        parts.monitors.on_progress(state.cold_steps, seen)
        every = parts.recipe.checkpoints.every_steps
        if every and state.cold_steps % every == 0:
            save_run(parts, state)


def supervised_update(parts: Parts, state: TrainState, demonstrations: Sequence[WrittenRow]) -> float:
    minibatch = pack(
        [make_supervised_example(demonstration) for demonstration in demonstrations],
        aggregation="token_mean",
        max_completion_tokens=parts.sampling.max_completion_tokens,
        micro_batch_tokens=parts.recipe.train.micro_batch_tokens,
        skip_zero_advantage=False,
    )
    losses = []
    for micro in minibatch.deal(parts.world):
        micro = micro.to(parts.policy.device)
        scores = parts.policy.compute_logprobs(micro, temperature=1.0)
        loss = (-scores.logprobs_M * micro.loss_weights_M).sum()
        loss.backward()
        if not micro.idle:
            losses.append((micro.place, float(loss.detach())))
    with defer_interrupts():
        report = state.optimizer.clip_and_step()
        state.cold_steps += 1
    if report.skipped:
        parts.monitors.on_message(f"cold start {state.cold_steps}: non-finite gradient, update skipped")
    state.optimizer.check_finite()
    return sum(loss for _, loss in sorted(parts.world.gather(losses)))


def make_supervised_example(demonstration: WrittenRow) -> Example:
    [completion_ids] = demonstration.completions
    length = len(completion_ids)
    vectors: dict[str, Any] = {
        "loss_mask_T": torch.ones(length, dtype=torch.bool),
        "advantages_T": torch.ones(length),
        "sampling_logprobs_T": torch.zeros(length),
    }
    return Example(0, 0, demonstration.prompt.token_ids, completion_ids, **vectors)


def measure_success(parts: Parts, state: TrainState, prompts: Sequence[Prompt], step: int) -> float:
    """Success rate of one sampled completion per training prompt; held-out prompts are not looked at here."""
    sync_engine(parts, state)
    noise = NoiseKey(parts.recipe.seed, "cold_start", step)
    rollouts = sample_rollouts(parts, prompts, replace(parts.sampling, group_size=1), noise, step)
    verdicts = [rollout.outcome.success for rollout in rollouts if rollout.outcome.success is not None]
    return sum(verdicts) / max(1, len(verdicts))
