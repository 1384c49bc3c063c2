"""Supervised fine-tuning on demonstrations: a stage before GRPO, or a separate run.

It is the same update with other data: demonstrations instead of rollouts, advantage 1 on every token, no ratio. The stage can stop
while the model still fails on some prompts (`until_success`): GRPO needs groups with both outcomes, and a model that solves
everything has nothing left to learn.
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
from cohort.training.run import Run
from cohort.training.stages import sample_rollouts, save_run, sync_engine
from cohort.training.state import TrainState
from cohort.types import NoiseKey, Prompt


def cold_start(run: Run, state: TrainState, demonstrations: Sequence[WrittenRow]) -> None:
    """Train on demonstrations until `num_steps` batches or until sampled success reaches `until_success`."""
    recipe = run.recipe.cold_start
    by_index = {demonstration.prompt.index: demonstration for demonstration in demonstrations}
    stream = PromptStream([demonstration.prompt for demonstration in demonstrations], run.recipe.seed, shuffle=True)
    success: float | None = None
    while state.cold_steps < recipe.num_steps:
        # Checked before the update, by step number only, so that a resumed run stops at the same step.
        if recipe.until_success < 1.0 and state.cold_steps and state.cold_steps % recipe.check_every == 0:
            success = measure_success(run, state, stream.take(0, recipe.check_prompts), state.cold_steps)
            if success >= recipe.until_success:
                run.monitors.on_message(
                    f"cold start ends after {state.cold_steps} batches: {success:.0%} of sampled completions succeed, "
                    f"and until_success is {recipe.until_success:.0%}"
                )
                return
        prompts = stream.take(state.cold_steps * recipe.batch_size, recipe.batch_size)
        loss = supervised_update(run, state, [by_index[prompt.index] for prompt in prompts])
        run.monitors.on_progress(state.cold_steps, {"loss": loss} if success is None else {"loss": loss, "success": success})
        state.saver.check(run.world)
        every = run.recipe.checkpoints.every_steps
        if every and state.cold_steps % every == 0:
            save_run(run, state)


def supervised_update(run: Run, state: TrainState, demonstrations: Sequence[WrittenRow]) -> float:
    examples = []
    for demonstration in demonstrations:
        [ids] = demonstration.completions
        [mask] = demonstration.masks or [(True,) * len(ids)]
        vectors: dict[str, Any] = {
            "loss_mask_T": torch.tensor(mask, dtype=torch.bool),
            "advantages_T": torch.ones(len(ids)),
            "sampling_logprobs_T": torch.zeros(len(ids)),
        }
        examples.append(Example(0, 0, demonstration.prompt.token_ids, ids, **vectors))
    minibatch = pack(
        examples,
        aggregation="token_mean",
        max_completion_tokens=run.sampling.max_completion_tokens,
        micro_batch_tokens=run.recipe.train.micro_batch_tokens,
        skip_zero_advantage=False,
    )
    losses = []
    for micro in minibatch.deal(run.world):
        micro = micro.to(run.policy.device)
        scores = run.policy.compute_logprobs(micro, temperature=1.0)
        loss = (-scores.logprobs_M * micro.loss_weights_M).sum()
        loss.backward()
        if not micro.idle:
            losses.append((micro.place, float(loss.detach())))
    with defer_interrupts():
        report = state.optimizer.clip_and_step()
        state.cold_steps += 1
    if report.skipped:
        run.monitors.on_message(f"cold start {state.cold_steps}: non-finite gradient, update skipped")
    state.optimizer.check_finite()
    return sum(loss for _, loss in sorted(run.world.gather(losses)))


def measure_success(run: Run, state: TrainState, prompts: Sequence[Prompt], step: int) -> float:
    """Success rate of one sampled completion per training prompt; held-out prompts are not used."""
    sync_engine(run, state)
    noise = NoiseKey(run.recipe.seed, "cold_start", step)
    rollouts = sample_rollouts(run, prompts, replace(run.sampling, group_size=1), noise, step)
    verdicts = [rollout.outcome.success for rollout in rollouts if rollout.outcome.success is not None]
    return sum(verdicts) / max(1, len(verdicts))
