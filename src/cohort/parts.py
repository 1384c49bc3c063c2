"""The components of a run side by side, and the glue between them that the loop calls by name."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from cohort import checkpoint
from cohort.config import Recipe
from cohort.evaluation import Evaluation, evaluate
from cohort.monitors import Monitors
from cohort.policy import Policy
from cohort.prompts import PromptStream
from cohort.rewards.base import RewardRunner
from cohort.rewards.contract import Scored
from cohort.rollout.engine import Engine
from cohort.run import RunFolder
from cohort.state import TrainState
from cohort.types import Completion, Prompt, Sampling
from cohort.updates import UpdateMeter, check_same_policy, mean_metrics, mismatch_limit


class Stopwatch:
    """Seconds by stage: each lap is the time since the one before."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now

    def total(self) -> float:
        return time.monotonic() - self.started


@dataclass
class Parts:
    recipe: Recipe
    folder: RunFolder
    policy: Policy
    reference: Policy | None
    engine: Engine
    rewards: RewardRunner
    stream: PromptStream
    sampling: Sampling
    evaluation_sets: Mapping[str, Sequence[Prompt]]
    monitors: Monitors
    stopwatch: type[Stopwatch] = Stopwatch
    base_seconds: float = 0.0
    """Seconds the run had already taken when this process took it up."""
    started: float = field(default_factory=time.monotonic)
    policies_checked: int = 0
    save_seconds: float = 0.0

    def score(self, prompts: Sequence[Prompt], completions_PG: Sequence[Sequence[Completion]], step: int) -> Scored:
        flat = [(prompt, completion) for prompt, group in zip(prompts, completions_PG, strict=True) for completion in group]
        return self.rewards.score(
            [prompt for prompt, _ in flat],
            [completion for _, completion in flat],
            step=step,
            num_steps=self.recipe.train.num_steps,
        )

    def check_before_update(self, meter: UpdateMeter, state: TrainState) -> None:
        """Before the first update on a fresh batch: engine, trainer and reference are the same policy.

        Twice per process: at its first step, and at the one after, where a copy or cache that missed the update shows.
        """
        if self.policies_checked == 2 or state.update_metrics or not meter.mismatch:
            return
        check_same_policy(meter, mismatch_limit(self.policy.model), weights_equal_reference=state.policy_version == 0)
        self.policies_checked += 1

    def observe(self, state: TrainState, watch: Stopwatch) -> None:
        """Write down what the step did, and evaluate where the recipe says so.

        The step is not finished yet: a kill in here repeats the observation from the saved batch and loses no row.
        """
        recipe, step, batch = self.recipe, state.step + 1, state.batch
        assert batch is not None
        row: dict[str, Any] = {"step": step, **batch.metrics, **mean_metrics(state.update_metrics)}
        row["rollout/epoch"] = self.stream.epoch(state.cursor + recipe.train.prompts_per_step)
        row["optim/policy_version"] = state.policy_version
        if recipe.monitors.rollouts_every and step % recipe.monitors.rollouts_every == 0:
            self.folder.write_rollouts(step, batch.rollouts, batch.advantages_N)
        every = recipe.evaluation.every_steps
        if self.evaluation_sets and every and step % every == 0 and step < recipe.train.num_steps:
            result = self.evaluate("during", step)
            self.remember_best(result, state)
            row |= result.metrics()
            watch.lap("evaluate")
        self.monitors.on_metrics(row | time_metrics(watch, self.save_seconds) | speed_metrics(row, watch))
        self.save_seconds = 0.0

    def save_if_due(self, state: TrainState) -> None:
        every = self.recipe.checkpoints.every_steps
        if state.best_step == state.step or (every and state.step % every == 0):
            self.save(state)

    def evaluate(self, label: str, step: int) -> Evaluation:
        """Held-out evaluation, written to the run folder."""
        recipe = self.recipe.evaluation
        sampling = evaluation_sampling(self.recipe, self.sampling)
        sets = dict(self.evaluation_sets)
        if label == "during":
            first = next(iter(sets))
            sets = {first: sets[first][: recipe.every_problems]}
        result = evaluate(
            self.engine,
            sets,
            self.rewards,
            sampling=sampling,
            seed=self.recipe.seed,
            step=step,
            num_steps=self.recipe.train.num_steps,
            greedy=recipe.greedy and label != "during",
            resamples=recipe.resamples,
            answers=self.rewards.has_answers,
            label=label,
        )
        if label in ("before", "after"):
            self.folder.samples.mkdir(exist_ok=True)
            text = "".join(json.dumps(example) + "\n" for example in result.examples)
            (self.folder.samples / f"{label}.jsonl").write_text(text, encoding="utf-8")
        self.monitors.on_evaluation(result.to_json())
        return result

    def remember_best(self, result: Evaluation, state: TrainState) -> None:
        """Best by held-out reward; the loss says nothing about it. The final evaluation competes too."""
        reward = next(iter(result.sets.values()))["reward"].value
        if self.recipe.checkpoints.best and reward is not None and (state.best_reward is None or reward > state.best_reward):
            state.best_reward, state.best_step = reward, result.step
            if result.label == "after":  # its checkpoint is there already: this moves the pointer and prunes
                self.save(state)

    def seconds(self) -> float:
        return self.base_seconds + time.monotonic() - self.started

    def save(self, state: TrainState) -> None:
        started = time.monotonic()
        state.seconds = self.seconds()
        saved = state.save(self.folder.checkpoints)
        checkpoint.prune(
            self.folder.checkpoints, self.recipe.checkpoints.keep, always=f"step-{state.best_step}", newest=saved.name
        )
        if state.best_step >= 0:
            best = {"checkpoint": f"step-{state.best_step}", "reward": state.best_reward}
            self.folder.write_json(self.folder.checkpoints / "best.json", best)
        self.save_seconds += time.monotonic() - started


def evaluation_sampling(recipe: Recipe, training: Sampling) -> Sampling:
    """Evaluation draws as [evaluation] says; only the stop ids, and by default the length, are those of training."""
    settings = recipe.evaluation
    return Sampling(
        group_size=settings.samples,
        temperature=settings.temperature,
        max_completion_tokens=settings.max_completion_tokens or training.max_completion_tokens,
        stop_ids=training.stop_ids,
        top_p=settings.top_p,
        top_k=settings.top_k,
    )


def time_metrics(watch: Stopwatch, save_seconds: float) -> dict[str, float]:
    """Saving happens after a step's row is written, so its time stands in the row of the next step."""
    stages = {f"time/{stage}": seconds for stage, seconds in watch.seconds.items()}
    return stages | {"time/checkpoint": save_seconds, "time/step": watch.total() + save_seconds}


def speed_metrics(row: Mapping[str, Any], watch: Stopwatch) -> dict[str, float]:
    speeds = {}
    if watch.seconds.get("rollout"):
        speeds["perf/rollout_tokens_per_second"] = row["rollout/tokens"] / watch.seconds["rollout"]
        speeds["perf/tokens_per_second"] = row["rollout/tokens"] / watch.total()
    if watch.seconds.get("update"):
        speeds["perf/train_tokens_per_second"] = row["loss/trained_tokens"] / watch.seconds["update"]
    if torch.cuda.is_available():
        speeds["perf/peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    else:
        speeds["perf/peak_memory_gib"] = psutil.Process().memory_info().rss / 2**30
    return speeds
