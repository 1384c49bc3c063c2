"""The components of a run side by side, and the glue between them that the loop calls by name."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from cohort.base.interrupts import deferred
from cohort.base.stopwatch import Stopwatch
from cohort.data.prompt_choice import InformativeChoice
from cohort.engine.protocol import Engine
from cohort.evaluation.evaluate import Evaluation, evaluate
from cohort.model.critic import Critic, NoCritic
from cohort.model.policy import Policy
from cohort.model.reference import Reference
from cohort.observe.diagnosis import signs as hacking
from cohort.observe.monitors import Monitors
from cohort.observe.perf import Costs, speed_metrics, time_metrics
from cohort.observe.run_folder import RunFolder
from cohort.recipe.schema import Recipe, measures_kl
from cohort.rewards.base import RewardRunner
from cohort.rewards.contract import Scored
from cohort.training import checkpoint
from cohort.training.experience import Models
from cohort.training.kl_control import KLControl
from cohort.training.overlong import penalize_overlong
from cohort.training.sources import Source, Stream
from cohort.training.state import TrainState
from cohort.training.updates import UpdateMeter, check_same_policy, kl_limit, mean_metrics, mismatch_limit
from cohort.types import Completion, Prompt, Sampling


class Scorer(Protocol):
    """Reward functions, or what stands in for them."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored: ...


@dataclass
class Parts:
    recipe: Recipe
    folder: RunFolder
    policy: Policy
    engine: Engine
    rewards: RewardRunner
    stream: Stream
    sampling: Sampling
    evaluation_sets: Mapping[str, Sequence[Prompt]]
    monitors: Monitors
    reference: Reference | None = None
    kl_control: KLControl = field(init=False)
    critic: Critic | NoCritic = field(default_factory=NoCritic)
    scorer: Scorer | None = None
    """What judges training rollouts, where it is not `rewards`: a learned reward model."""
    source: Source = field(init=False)
    constant_metrics: dict[str, float] = field(default_factory=dict)
    """Written into the row of every step: what the last fit of the reward model measured."""
    base_seconds: float = 0.0
    """Seconds the run had already taken when this process took it up."""
    started: float = field(default_factory=time.monotonic)
    policies_checked: int = 0
    watch: Stopwatch | None = None
    """Of the step whose row was written last. Saving comes after a row, so its seconds stand in the row of the next step."""

    @property
    def models(self) -> Models:
        """Who scores a batch. A reference may be there to sample from alone."""
        scoring = self.reference.policy if self.reference and measures_kl(self.recipe) else None
        return Models(self.policy, scoring, self.critic)

    def score(self, prompts: Sequence[Prompt], completions_PG: Sequence[Sequence[Completion]], step: int) -> Scored:
        """Outcomes of training rollouts, the soft overlong penalty included."""
        flat = [(prompt, completion) for prompt, group in zip(prompts, completions_PG, strict=True) for completion in group]
        completions = [completion for _, completion in flat]
        scorer: Scorer = self.scorer or self.rewards
        scored = scorer.score([prompt for prompt, _ in flat], completions, step=step, num_steps=self.recipe.train.num_steps)
        share = self.recipe.algorithm.overlong_share
        return penalize_overlong(scored, completions, self.sampling.max_completion_tokens, share) if share else scored

    def check_before_update(self, meter: UpdateMeter, state: TrainState) -> None:
        """Before the first update on a fresh batch: engine, trainer and reference are the same policy.

        Twice per process: at its first step, and at the one after, where a copy or cache that missed the update shows.
        """
        if self.policies_checked == 2 or state.update_metrics or not (meter.mismatch or meter.kl_max):
            return
        model = self.policy.model
        check_same_policy(meter, mismatch_limit(model), kl_limit(model) if state.policy_version == 0 else None)
        self.policies_checked += 1

    def observe(self, state: TrainState, watch: Stopwatch) -> None:
        """Write down what the step did, and evaluate where the recipe says so.

        The step is not finished yet: a kill in here repeats the observation from the saved batch and loses no row.
        """
        recipe, step, batch = self.recipe, state.step + 1, state.batch
        assert batch is not None
        row: dict[str, Any] = {"step": step, **batch.metrics, **mean_metrics(state.update_metrics), **self.constant_metrics}
        row["rollout/epoch"] = self.stream.epoch(state.cursor + batch.prompts_taken)
        row["optim/policy_version"] = state.policy_version
        if self.reference:
            row["loss/kl_coef"] = state.kl_coef
        if isinstance(self.stream, InformativeChoice):
            row |= self.stream.metrics()
        signs = hacking.look(batch.rollouts)
        row |= signs.metrics
        if signs.evidence:
            row["evidence"] = signs.evidence
        if recipe.monitors.rollouts_every and step % recipe.monitors.rollouts_every == 0:
            self.folder.write_rollouts(step, batch.rollouts, batch.advantages_N)
        watch.lap("observe")
        every = recipe.evaluation.every_steps
        if self.evaluation_sets and every and step % every == 0 and step < recipe.train.num_steps:
            result = self.evaluate("during", step)
            self.remember_best(result, state)
            row |= result.metrics()
            watch.lap("evaluate")
        written = {name: value for name, value in row.items() if not name.startswith("tokens/")}
        self.monitors.on_metrics(written | self.measured(row, watch))
        watch.lap("observe")

    def measured(self, row: Mapping[str, Any], watch: Stopwatch) -> dict[str, float]:
        """Seconds by stage since the last row, and how fast that was."""
        seconds = self.watch.take() if self.watch else {}
        for stage, more in watch.take().items():
            seconds[stage] = seconds.get(stage, 0.0) + more
        self.watch = watch
        speeds = speed_metrics(row, seconds, self.costs)
        return time_metrics(seconds) | speeds | {"perf/peak_memory_gib": peak_memory_gib(self.policy.device)}

    @cached_property
    def costs(self) -> Costs | None:
        """What training on a token costs, where that can be held against a known peak: 16-bit matrices on a known GPU."""
        model = self.policy.model
        if self.policy.device.type != "cuda" or model.dtype.itemsize != 2 or not isinstance(self.critic, NoCritic):
            return None
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        name = torch.cuda.get_device_name(self.policy.device)
        return Costs.of(model.config, name, frozen_base=2 * trained < self.policy.num_parameters)

    def finish_step(self, state: TrainState) -> None:
        """The step counts as done, and everything that follows the policy follows it, in one move."""
        assert state.batch is not None
        with deferred():
            self.kl_control.update(mean_metrics(state.update_metrics).get("loss/kl_per_completion"))
            state.kl_coef = self.kl_control.coef
            if isinstance(self.stream, InformativeChoice):
                self.stream.record(state.batch.verdicts)
            state.finish_step()
            if self.reference:
                self.reference.follow(self.policy, state.step)
        self.lap("reference" if self.reference else "observe")

    def save_if_due(self, state: TrainState) -> None:
        every = self.recipe.checkpoints.every_steps
        if state.best_step == state.step or (every and state.step % every == 0):
            self.save(state)
            self.lap("checkpoint")

    def lap(self, stage: str) -> None:
        if self.watch:
            self.watch.lap(stage)

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
        state.seconds = self.seconds()
        saved = state.save(self.folder.checkpoints)
        checkpoint.prune(
            self.folder.checkpoints, self.recipe.checkpoints.keep, always=f"step-{state.best_step}", newest=saved.name
        )
        if state.best_step >= 0:
            best = {"checkpoint": f"step-{state.best_step}", "reward": state.best_reward}
            self.folder.write_json(self.folder.checkpoints / "best.json", best)


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


def peak_memory_gib(device: torch.device) -> float:
    """The most memory held at once so far: of the GPU the policy is on, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
