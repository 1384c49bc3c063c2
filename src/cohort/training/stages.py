"""What the loop does around an update, each a function of (parts, state): check, observe, finish, save; and evaluation."""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cohort.algorithms.registry import SAMPLED
from cohort.base.interrupts import InterruptedAgain, defer_interrupts
from cohort.base.stopwatch import Laps, Stopwatch
from cohort.engine import sample_groups
from cohort.engine.mismatch import find_mismatch_limit
from cohort.errors import CheckpointError, Interrupted, RankError, RewardError
from cohort.evaluation.evaluate import Evaluation, evaluate
from cohort.model.critic import NoCritic
from cohort.observe.diagnosis import signs
from cohort.observe.early_stop import find_reason_to_stop, list_training_sets, name_absent_metrics, read_best
from cohort.observe.perf import Costs, make_speed_metrics, make_time_metrics
from cohort.observe.ranks import make_rank_metrics, make_record
from cohort.observe.rollouts import list_rows
from cohort.recipe.rules import list_trusted_sources, name_reward
from cohort.recipe.schema import Recipe
from cohort.training import checkpoint
from cohort.training.drawing import group_rollouts
from cohort.training.judging import RewardJudge
from cohort.training.kl_control import move_coefficient
from cohort.training.parts import Parts, TrainingParts
from cohort.training.recording import record_step
from cohort.training.state import Save, TrainState
from cohort.training.updates import UpdateMeter, check_same_policy, kl_limit, merge_update_metrics
from cohort.types import NoiseKey, Prompt, Rollout, Sampling

CHECKED_UPDATES = 2
"""Of a process: its first step, and the one after, where a copy or cache that missed the update shows."""
SILENT_STEPS = 5
"""Steps from the first on without a single score after which a run ends."""
QUIET_STEPS = 10
"""Steps between two messages that the batch could not be filled; the metrics tell of every one."""


def say_why_not_full(parts: Parts, state: TrainState, reason: str) -> None:
    """Tell that dynamic sampling could not fill the batch, but not in every step."""
    if reason and state.step + 1 >= state.quiet_until:
        state.quiet_until = state.step + 1 + QUIET_STEPS
        parts.monitors.on_message(reason)


def say_idle_ranks(parts: Parts, state: TrainState, micro_batches: int) -> None:
    """Tell, once, that an update has fewer micro-batches than there are ranks to compute them."""
    idle = parts.world.size - micro_batches
    if idle > 0 and micro_batches and not state.idle_said:
        state.idle_said = True
        parts.monitors.on_message(
            f"warning: {parts.world.size} ranks share the {micro_batches} micro-batch{'' if micro_batches == 1 else 'es'} of an update, so {idle} of them "
            f"{'has' if idle == 1 else 'have'} nothing to train on. Lower train.micro_batch_tokens (now "
            f"{parts.recipe.train.micro_batch_tokens}), or start fewer ranks"
        )


def check_before_update(parts: Parts, state: TrainState, meter: UpdateMeter) -> None:
    """Before the first update on a fresh batch: engine, trainer and reference are the same policy, and no rank is there for nothing."""
    say_idle_ranks(parts, state, len(meter.measured))
    compared = meter.mismatch or (meter.kl_max and state.policy_version == 0)  # what was sampled ahead is of another version
    if state.updates_checked == CHECKED_UPDATES or state.update_metrics or not compared:
        return
    model, own_attention = parts.policy.model, bool(parts.policy.attention_configs)
    limit = find_mismatch_limit(model, parts.engine.capabilities.rounding)
    check_same_policy(meter, limit, kl_limit(model, own_attention) if state.policy_version == 0 else None)
    state.updates_checked += 1


# -- after the updates of a step ---------------------------------------------------------------------------------------


def observe_step(parts: TrainingParts, state: TrainState, watch: Stopwatch) -> None:
    """Write down what the step did, and evaluate where the recipe says so.

    The step is not finished yet: a kill in here repeats the observation from the saved batch and loses no row.
    """
    recipe, step, batch = parts.recipe, state.step + 1, state.batch
    assert batch is not None
    row: dict[str, Any] = {
        "step": step,
        **batch.metrics,
        **merge_update_metrics(state.update_metrics),
        **state.constant_metrics,
    }
    row["rollout/epoch"] = parts.stream.epoch(state.cursor + batch.prompts_taken)
    row["optim/policy_version"] = state.policy_version
    if parts.reference:
        row["loss/kl_coef"] = state.kl_coef
    row |= parts.stream.metrics()
    found = signs.find_signs(batch.rollouts)
    row |= found.metrics
    if found.evidence:
        row["evidence"] = found.evidence
    if recipe.monitors.rollouts_every and step % recipe.monitors.rollouts_every == 0:
        parts.folder.write_rollouts(step, batch.rollouts, batch.advantages_N)
    watch.lap("observe")
    every = recipe.evaluation.every_steps
    if parts.evaluation_sets and every and step % every == 0 and step < recipe.train.num_steps:
        result = evaluate_policy(parts, state, "during", step)
        remember_best(parts, state, result)
        row |= result.metrics()
        watch.lap("evaluate")
    written = {name: value for name, value in row.items() if not name.startswith("tokens/")}
    parts.monitors.on_metrics(written | measure_step(parts, state, row, watch))
    record_step(parts, state, step)
    shown = recipe.monitors.show_every
    if shown and (step == 1 or step % shown == 0):
        parts.monitors.on_rollouts(step, list_rows(step, batch.rollouts, batch.advantages_N))
    state.stops_because = parts.world.on_main(lambda: find_reason_to_stop(recipe, parts.folder, written))
    for sentence in name_absent_metrics(recipe, written):
        parts.monitors.on_message(f"warning: {sentence}")
    watch.lap("observe")


def measure_step(parts: TrainingParts, state: TrainState, row: Mapping[str, Any], watch: Stopwatch) -> dict[str, float]:
    """Seconds by stage since the last row, how fast that was, and how several ranks went together."""
    laps = state.watch.take() if state.watch else Laps()
    laps.add_all(watch.take())
    state.watch = watch
    memory = measure_peak_memory(parts.policy.device)
    measured = make_time_metrics(laps.seconds) | make_speed_metrics(row, laps.seconds, find_costs(parts))
    measured["perf/peak_memory_gib"] = memory
    if "checkpoint" in laps.seconds and state.saves and state.saves[-1].size:
        measured["perf/checkpoint_bytes_per_second"] = state.saves[-1].size / max(state.saves[-1].seconds, 1e-9)
    if parts.world.size > 1:
        records = parts.world.gather([make_record(parts.world.rank, platform.node(), laps, memory)])
        parts.monitors.on_ranks(row["step"], records)
        measured |= make_rank_metrics(records, {**row, **measured})
    return measured


def find_costs(parts: TrainingParts) -> Costs | None:
    """What training on a token costs, where that can be held against a known peak: 16-bit matrices on a known GPU."""
    model = parts.policy.model
    if parts.policy.device.type != "cuda" or model.dtype.itemsize != 2 or not isinstance(parts.critic, NoCritic):
        return None
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    name = torch.cuda.get_device_name(parts.policy.device)
    return Costs.of(model.config, name, frozen_base=2 * trained < parts.policy.num_parameters, ranks=parts.world.size)


def finish_step(parts: TrainingParts, state: TrainState) -> None:
    """The step counts as done, and everything that follows the policy follows it, in one move."""
    assert state.batch is not None
    with defer_interrupts():
        kl = merge_update_metrics(state.update_metrics).get("loss/kl_per_completion")
        state.kl_coef = move_coefficient(parts.recipe.algorithm.kl_coef, parts.recipe.algorithm.kl_target, state.kl_coef, kl)
        parts.stream.record(state.batch.verdicts)
        state.finish_step()
        if parts.reference:
            parts.reference.follow(parts.policy, state.step)
    lap(state, "reference" if parts.reference else "observe")
    refuse_silent_rewards(parts.recipe, state)


def refuse_silent_rewards(recipe: Recipe, state: TrainState) -> None:
    """A run of which nothing was ever scored learns nothing, shows no bad number and must not end well."""
    patience = min(SILENT_STEPS, recipe.train.num_steps)
    learns_otherwise = recipe.algorithm.data not in SAMPLED or recipe.teacher.source
    if state.scored_steps or learns_otherwise or (state.step < patience and not state.stopped):
        return
    names = ", ".join(repr(name_reward(reward)) for reward in recipe.rewards)
    raise RewardError(
        f"rewards: not one completion of the first {state.step} steps has a score: {names} returned None for all of them, so nothing "
        "was learned. None means no opinion; return 0.0 for what is wrong, and look for a path without `return`. Then go on with: cohort "
        "resume"
    )


def save_if_due(parts: Parts, state: TrainState) -> None:
    every = parts.recipe.checkpoints.every_steps
    if state.best_step == state.step or (every and state.step % every == 0):
        save_run(parts, state)
        lap(state, "checkpoint")


def lap(state: TrainState, stage: str) -> None:
    """Charge what came after a row to the stage; it stands in the row of the next step."""
    if state.watch:
        state.watch.lap(stage)


def save_run(parts: Parts, state: TrainState) -> None:
    """A checkpoint of now, the ones that are too many taken away, and the pointer to the best."""
    state.seconds, began = parts.clock.read(), time.monotonic()
    there = (parts.folder.checkpoints / state.checkpoint_name).is_dir()
    snapshot = state.make_snapshot()  # by all ranks: where they share a model out, each brings its slices
    saved = checkpoint.save_together(parts.world, parts.folder.checkpoints, state.checkpoint_name, snapshot)
    size = parts.world.on_main(lambda: tidy_checkpoints(parts, state, saved))
    state.saves.append(Save(time.monotonic() - began, 0 if there else size))


def save_last_state(parts: Parts, state: TrainState, signal: Interrupted | None) -> str:
    """Save a run that ends, unless a second signal has come, and return a sentence about it.

    A full disk must not hide why the run ends; earlier checkpoints stay valid.
    """
    try:
        if isinstance(signal, InterruptedAgain):
            raise signal
        save_run(parts, state)
    except InterruptedAgain as again:
        return describe_unsaved(parts, state, again)
    except (OSError, CheckpointError, RankError) as problem:
        parts.monitors.on_message(f"the last steps could not be saved: {problem}")
        return f"{signal}: not saved"
    return f"{signal}: saved"


def describe_unsaved(parts: Parts, state: TrainState, signal: InterruptedAgain) -> str:
    kept = [folder.name for folder in checkpoint.list_checkpoints(parts.folder.checkpoints)]
    if state.checkpoint_name in kept:
        return f"{signal}: saved"
    here = f"step {state.step}" if state.phase == "train" else f"step {state.cold_steps} of the cold start"
    left = (
        f"The newest checkpoint is {kept[-1]}, and the run resumes from it"
        if kept
        else "No checkpoint exists: the run starts again"
    )
    return f"{signal}, a second signal: nothing was saved after {here}. {left}"


def tidy_checkpoints(parts: Parts, state: TrainState, saved: Path) -> int:
    """Take away those that are too many, and point to the best. Bytes of the one that was saved."""
    keep = parts.recipe.checkpoints.keep
    checkpoint.prune_checkpoints(parts.folder.checkpoints, keep, always=f"step-{state.best_step}", newest=saved.name)
    if state.best_step >= 0:
        best = {"checkpoint": f"step-{state.best_step}", **describe_best(parts.recipe, state)}
        parts.folder.write_json(parts.folder.checkpoints / "best.json", best)
    return sum(size for size, _ in checkpoint.list_files(saved).values())


def sample_rollouts(
    parts: Parts, prompts: Sequence[Prompt], sampling: Sampling, noise: NoiseKey, step: int, policy_version: int = 0
) -> list[Rollout]:
    """Rollouts outside of the loop, group after group, judged by the reward functions."""
    completions_PG = sample_groups(parts.engine, prompts, sampling, noise, world=parts.world)
    outcomes = RewardJudge(parts.rewards, parts.recipe).score(prompts, completions_PG, step, Stopwatch()).outcomes
    return [rollout for group in group_rollouts(prompts, completions_PG, outcomes, policy_version) for rollout in group]


def sync_engine(parts: Parts, state: TrainState) -> None:
    """Before anybody samples from the policy outside of the loop: the engine has its weights."""
    parts.engine.sync(parts.policy.read_weights(), state.policy_version)


def describe_end(parts: Parts, state: TrainState) -> dict[str, Any]:
    """What the summary of a run says of its work, however it ended."""
    summary: dict[str, Any] = {
        "steps": state.step,
        "seconds": round(parts.clock.read(), 2),
        "parameters": parts.policy.num_parameters,
        "peak_memory_gib": round(measure_peak_memory(parts.policy.device), 4),
    }
    if state.products:
        summary["products"] = state.products
    if parts.world.launched:
        summary["ranks"] = parts.world.size
    if written := [save.size for save in state.saves if save.size]:
        summary["saving"] = {
            "count": len(written),
            "seconds": round(sum(save.seconds for save in state.saves), 3),
            "longest": round(max(save.seconds for save in state.saves), 3),
            "bytes": written[-1],
        }
    if trusted := list_trusted_sources(parts.recipe):
        summary["trust_remote_code"] = trusted
    if jail := parts.rewards.jail:
        summary["jail"] = jail
    if state.stopped:
        summary["stopped"] = state.stopped
    if state.best_step >= 0:
        summary["best"] = {"step": state.best_step, **describe_best(parts.recipe, state)}
    return summary


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluate_policy(parts: Parts, state: TrainState, label: str, step: int) -> Evaluation:
    """Held-out evaluation of the policy as it is now, written to the run folder."""
    sync_engine(parts, state)
    recipe = parts.recipe.evaluation
    sets = dict(parts.evaluation_sets)
    if label == "during":
        sets = {name: sets[name][: recipe.every_problems] for name in list_training_sets(parts.recipe)}
    result = evaluate(
        parts.engine,
        sets,
        {name: parts.rewards.for_set(name) for name in sets},
        sampling=make_evaluation_sampling(parts.recipe, parts.sampling),
        seed=parts.recipe.seed,
        step=step,
        num_steps=parts.recipe.train.num_steps,
        greedy=recipe.greedy and label != "during",
        resamples=recipe.resamples,
        label=label,
        world=parts.world,
    )
    if label in ("before", "after"):
        parts.folder.write_samples(label, result.examples)
    parts.monitors.on_evaluation(result.to_json())
    return result


def remember_best(parts: Parts, state: TrainState, result: Evaluation) -> None:
    """Best by what checkpoints.best names; the loss says nothing about it. The final evaluation competes too, on the problems of the others."""
    score = score_for_best(parts.recipe, result) if parts.recipe.checkpoints.best else []
    if score > state.best_score:
        state.best_score, state.best_step = score, result.step
        if result.label == "after":  # its checkpoint is there already: this moves the pointer and prunes
            save_run(parts, state)


def score_for_best(recipe: Recipe, result: Evaluation) -> list[float]:
    """[measure, reward] on the first problems of the set, which every evaluation holds, the looks while training too; [] without scores.

    Without a verdict the measure is -1, so that the reward alone decides.
    """
    name, measure = read_best(recipe)
    verdicts, first = result.per_problem[name], recipe.evaluation.every_problems
    known = [reward for reward in verdicts.reward[:first] if reward is not None]
    if not known:
        return []
    reward, size = sum(known) / len(known), int(measure.removeprefix("pass@")) if measure != "reward" else 0
    kept = replace(verdicts, problems=verdicts.problems[:first], success=verdicts.success[:first])
    rates = kept.success_rates(size).values() if size else [reward]
    return [sum(rates) / len(rates) if rates else -1.0, reward]


def describe_best(recipe: Recipe, state: TrainState) -> dict[str, Any]:
    """By what the best checkpoint was chosen, and what it has of it."""
    name, measure = read_best(recipe)
    by_reward = state.best_score[:1] == [-1.0]
    return {"set": name, "measure": "reward" if by_reward else measure, "value": next(iter(state.best_score[by_reward:]), None)}


def make_evaluation_sampling(recipe: Recipe, training: Sampling) -> Sampling:
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


def measure_peak_memory(device: torch.device) -> float:
    """The most memory held at once so far: of the GPU the policy is on, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
