"""The stages around an update, as functions of (run, state): check, observe, finish, save; and evaluation."""

from __future__ import annotations

import math
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from cohort.algorithms.refill import explain_difficulty
from cohort.algorithms.registry import SAMPLED
from cohort.base.interrupts import InterruptedAgain, defer_interrupts
from cohort.base.stopwatch import Laps, Stopwatch
from cohort.base.text import write_count
from cohort.engine import sample_groups
from cohort.engine.sampling import find_mismatch_limit
from cohort.errors import CheckpointError, Interrupted, RankError, RewardError
from cohort.evaluation.evaluate import Evaluation, evaluate
from cohort.model.critic import NoCritic
from cohort.observe.diagnosis import signs
from cohort.observe.early_stop import find_reason_to_stop, list_training_sets, name_absent_metrics, read_best
from cohort.observe.perf import Costs, make_speed_metrics, make_time_metrics
from cohort.observe.ranks import make_rank_metrics, make_record
from cohort.observe.rollouts import append_rows, choose_groups, choose_rows, list_rows, write_tokens
from cohort.recipe.rules import list_trusted_sources, name_reward
from cohort.recipe.schema import Recipe
from cohort.training import checkpoint
from cohort.training.rollouts import Collection, RewardScorer, group_rollouts
from cohort.training.run import Run, TrainingRun
from cohort.training.state import Batch, TrainState
from cohort.training.trace import make_token_rows
from cohort.training.updates import UpdateMeter, check_same_policy, kl_limit, merge_update_metrics
from cohort.types import NoiseKey, Prompt, Rollout, Sampling

EVALUATION_STAGES = {"before": "baseline evaluation", "after": "final evaluation"}
CHECKED_UPDATES = 2
"""Updates checked per process: the first step, and the next one, where a copy or cache that missed the first update shows."""
UNSCORED_STEPS = 5
"""A run ends with an error if its first steps, this many, have no score at all."""
QUIET_STEPS = 10
"""Steps between two messages about incomplete batches; the metrics record each one."""


def report_shortfall(run: Run, state: TrainState, groups: Collection) -> None:
    """Print that dynamic sampling could not fill the batch, at most every QUIET_STEPS steps."""
    step = state.step + 1
    if groups.is_short and step >= state.quiet_until:
        state.quiet_until = step + QUIET_STEPS
        run.monitors.on_message(explain_difficulty(groups.counts, step, groups.wanted))


def check_before_update(run: Run, state: TrainState, meter: UpdateMeter) -> None:
    """Before the first update on a batch: warn once of idle ranks; check that engine, trainer and reference are the same policy."""
    micro_batches = len(meter.measured)
    idle = run.world.size - micro_batches
    if idle > 0 and micro_batches and not state.warned_of_idle_ranks:
        state.warned_of_idle_ranks = True
        run.monitors.on_message(
            f"warning: an update has {micro_batches} micro-batch{'es' * (micro_batches != 1)} for {run.world.size} ranks, so "
            f"{write_count(idle, 'rank')} will be idle. Lower train.micro_batch_tokens (now {run.recipe.train.micro_batch_tokens}), or "
            "start fewer ranks"
        )
    compared = meter.mismatch or (meter.kl_max and state.policy_version == 0)  # batches ahead come from another version
    if state.updates_checked == CHECKED_UPDATES or state.update_metrics or not compared:
        return
    model, own_attention = run.policy.model, bool(run.policy.attention_configs)
    limit = find_mismatch_limit(model, run.engine.capabilities.rounding)
    check_same_policy(meter, limit, kl_limit(model, own_attention) if state.policy_version == 0 else None)
    state.updates_checked += 1


# -- after the updates of a step ---------------------------------------------------------------------------------------


def observe_step(run: TrainingRun, state: TrainState, watch: Stopwatch) -> None:
    """Record the step, and evaluate if due.

    The step is not finished yet: after a kill in here, the saved batch is observed again and no row is lost.
    """
    recipe, step, batch = run.recipe, state.step + 1, state.batch
    assert batch is not None
    row: dict[str, Any] = {"step": step} | batch.metrics | merge_update_metrics(state.update_metrics) | state.constant_metrics
    row["rollout/epoch"] = run.stream.epoch(state.cursor + batch.prompts_taken)
    row["optim/policy_version"] = state.policy_version
    if run.reference:
        row["loss/kl_coef"] = state.kl_coef
    row |= run.stream.metrics()
    found = signs.find_signs(batch.rollouts)
    row |= found.metrics
    if found.evidence:
        row["evidence"] = found.evidence
    if recipe.monitors.rollouts_every and step % recipe.monitors.rollouts_every == 0:
        run.folder.write_rollouts(step, batch.rollouts, batch.advantages_N)
    watch.lap("observe")
    every = recipe.evaluation.every_steps
    if run.evaluation_sets and every and step % every == 0 and step < recipe.train.num_steps:
        result = evaluate_policy(run, state, "during", step)
        remember_best(run, state, result)
        row |= result.metrics()
        watch.lap("evaluate")
    written = {name: value for name, value in row.items() if not name.startswith("tokens/")}
    run.monitors.on_metrics(written | measure_step(run, state, row, watch))
    record_step(run, state, step)
    shown = recipe.monitors.show_every
    if shown and (step == 1 or step % shown == 0):
        run.monitors.on_rollouts(step, list_rows(step, batch.rollouts, batch.advantages_N))
    state.stop_reason = run.world.on_main(lambda: find_reason_to_stop(recipe, run.folder, written))
    for sentence in name_absent_metrics(recipe, written):
        run.monitors.on_message(f"warning: {sentence}")
    watch.lap("observe")


def measure_step(run: TrainingRun, state: TrainState, row: Mapping[str, Any], watch: Stopwatch) -> dict[str, float]:
    """Seconds by stage since the last row, speeds, and the balance of several ranks."""
    laps = state.watch.take() if state.watch else Laps()
    laps.add_all(watch.take())
    state.watch = watch
    memory = measure_peak_memory(run.policy.device)
    measured = make_time_metrics(laps.seconds) | make_speed_metrics(row, laps.seconds, find_costs(run))
    measured["perf/peak_memory_gib"] = memory
    if (write := state.saver.take_new_write()) and write.size:
        measured["perf/checkpoint_seconds"] = write.seconds
        measured["perf/checkpoint_bytes_per_second"] = write.size / max(write.seconds, 1e-9)
    if run.world.size > 1:
        records = run.world.gather([make_record(run.world.rank, platform.node(), laps, memory)])
        run.monitors.on_ranks(row["step"], records)
        measured |= make_rank_metrics(records, {**row, **measured})
    return measured


def find_costs(run: TrainingRun) -> Costs | None:
    """The cost of training on a token, if the GPU's peak is known and weights have 16 bits; else None."""
    model = run.policy.model
    if run.policy.device.type != "cuda" or model.dtype.itemsize != 2 or not isinstance(run.critic, NoCritic):
        return None
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    name = torch.cuda.get_device_name(run.policy.device)
    return Costs.of(model.config, name, frozen_base=2 * trained < run.policy.num_parameters, ranks=run.world.size)


def finish_step(run: TrainingRun, state: TrainState) -> None:
    """Count the step as finished and update what follows the policy (reference, KL coefficient), without interruption."""
    assert state.batch is not None
    with defer_interrupts():
        kl = merge_update_metrics(state.update_metrics).get("loss/kl_per_completion")
        state.kl_coef = move_coefficient(run.recipe.algorithm.kl_coef, run.recipe.algorithm.kl_target, state.kl_coef, kl)
        run.stream.record(state.batch.verdicts)
        state.finish_step()
        if run.reference:
            run.reference.follow(run.policy, state.step)
    charge_time(state, "reference" if run.reference else "observe")
    refuse_unscored_run(run.recipe, state)


def refuse_unscored_run(recipe: Recipe, state: TrainState) -> None:
    """Refuse to go on if no completion has ever been scored: such a run learns nothing, and no metric shows it."""
    patience = min(UNSCORED_STEPS, recipe.train.num_steps)
    learns_otherwise = recipe.algorithm.data not in SAMPLED or recipe.teacher.source
    if state.scored_steps or learns_otherwise or (state.step < patience and not state.stopped):
        return
    names = ", ".join(repr(name_reward(reward)) for reward in recipe.rewards)
    raise RewardError(
        f"rewards: no completion of the first {state.step} steps has a score: {names} returned None for all of them, so nothing was "
        "learned. None means no opinion; return 0.0 for wrong answers, and look for a path without `return`. Then resume with: cohort "
        "resume"
    )


def save_if_due(run: Run, state: TrainState) -> None:
    """Begin to save if a checkpoint is due, and stop if writing the last one has failed."""
    every = run.recipe.checkpoints.every_steps
    due = state.best_step == state.step or (every and state.step % every == 0)
    if due:
        save_run(run, state)
    elif state.saver.open:
        state.saver.check(run.world)
    else:
        return
    charge_time(state, "checkpoint")


def charge_time(state: TrainState, stage: str) -> None:
    """Charge the time since the last row to the stage, in the row of the next step."""
    if state.watch:
        state.watch.lap(stage)


def save_run(run: Run, state: TrainState) -> None:
    """Begin to save a checkpoint, once the one before is written; then old ones are deleted and best.json is updated."""
    began = time.monotonic()
    saver = state.saver
    saver.wait(run.world)
    state.seconds = began - run.began
    with defer_interrupts():
        name = state.checkpoint_name
        # Made by all ranks: of a sharded model each rank contributes its shards.
        saver.start(run.world, run.folder.checkpoints, name, state.make_snapshot, plan_pruning(run, state, name))
    saver.stops.append(time.monotonic() - began)


def wait_for_save(run: Run, state: TrainState) -> None:
    """Wait until the last checkpoint is written."""
    began = time.monotonic()
    state.saver.wait(run.world)
    state.saver.stops.append(time.monotonic() - began)


def save_last_state(run: Run, state: TrainState, signal: Interrupted | None) -> str:
    """Save a run that ends, unless a second signal arrives; returns a message about it.

    A full disk must not hide why the run ends; earlier checkpoints stay valid.
    """
    try:
        if isinstance(signal, InterruptedAgain):
            raise signal
        try:
            wait_for_save(run, state)
        except CheckpointError as problem:  # of an earlier state, which this one replaces
            run.monitors.on_message(f"warning: {problem}")
        save_run(run, state)
        wait_for_save(run, state)
    except InterruptedAgain as again:
        kept = [folder.name for folder in checkpoint.list_checkpoints(run.folder.checkpoints)]
        if state.checkpoint_name in kept:
            return f"{again}: saved"
        here = f"step {state.step}" if state.phase == "train" else f"step {state.cold_steps} of the cold start"
        left = f"The newest checkpoint is {kept[-1]}" if kept else "No checkpoint exists: the run starts again"
        return f"{again}, a second signal: nothing was saved after {here}. {left}"
    except (OSError, CheckpointError, RankError) as problem:
        run.monitors.on_message(f"the last steps could not be saved: {problem}")
        return f"{signal}: not saved"
    return f"{signal}: saved"


def plan_pruning(run: Run, state: TrainState, saved: str) -> Callable[[], None]:
    """The work after this checkpoint: delete old ones and update best.json. It reads nothing that training changes."""
    root, keep, best_step = run.folder.checkpoints, run.recipe.checkpoints.keep, state.best_step
    best = {"checkpoint": f"step-{best_step}", **describe_best(run.recipe, state)} if best_step >= 0 else None

    def prune() -> None:
        checkpoint.prune_checkpoints(root, keep, always=f"step-{best_step}", newest=saved)
        if best:
            run.folder.write_json(root / "best.json", best)

    return prune


def sample_rollouts(
    run: Run, prompts: Sequence[Prompt], sampling: Sampling, noise: NoiseKey, step: int, policy_version: int = 0
) -> list[Rollout]:
    """Rollouts outside the loop, group after group, scored by the reward functions."""
    completions_PG = sample_groups(run.engine, prompts, sampling, noise, world=run.world)
    outcomes = RewardScorer(run.rewards, run.recipe).score(prompts, completions_PG, step, Stopwatch()).outcomes
    return [rollout for group in group_rollouts(prompts, completions_PG, outcomes, policy_version) for rollout in group]


def sync_engine(run: Run, state: TrainState) -> None:
    """Give the engine the current weights, before sampling outside the loop."""
    run.engine.sync(run.policy.read_weights(), state.policy_version)


def describe_end(run: Run, state: TrainState) -> dict[str, Any]:
    """The part of summary.json that describes training, however the run ended."""
    summary: dict[str, Any] = {
        "steps": state.step,
        "seconds": round(time.monotonic() - run.began, 2),
        "parameters": run.policy.num_parameters,
        "peak_memory_gib": round(measure_peak_memory(run.policy.device), 4),
        "paths": describe_paths(run),
    }
    if written := [write for write in state.saver.writes if write.size]:
        summary["saving"] = {
            "count": len(written),
            "stopped_seconds": round(sum(state.saver.stops), 3),
            "longest_stop": round(max(state.saver.stops), 3),
            "written_seconds": round(sum(write.seconds for write in written), 3),
            "bytes": written[-1].size,
        }
    others = {
        "products": state.products,
        "ranks": run.world.size if run.world.launched else 0,
        "trust_remote_code": list_trusted_sources(run.recipe),
        "jail": run.rewards.jail,
        "stopped": state.stopped,
    }
    summary |= {name: value for name, value in others.items() if value}
    if state.best_step >= 0:
        summary["best"] = {"step": state.best_step, **describe_best(run.recipe, state)}
    return summary


def describe_paths(run: Run) -> dict[str, dict[str, str]]:
    """The code that samples and the code that trains, with the sentence that gives the reason for a slower choice."""
    return {
        "sampling": {"code": run.engine.code, "choice": run.engine_description},
        "training": {"code": run.policy.code, "choice": run.policy.prepared},
    }


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluate_policy(run: Run, state: TrainState, label: str, step: int) -> Evaluation:
    """Evaluate the current policy on the held-out sets and write the result to the run folder."""
    sync_engine(run, state)
    recipe = run.recipe.evaluation
    sets, total = dict(run.evaluation_sets), 0
    if stage := EVALUATION_STAGES.get(label):
        total = sum(map(len, sets.values())) * (recipe.samples + recipe.greedy)
        run.monitors.on_stage(stage, total=total)
    else:
        sets = {name: sets[name][: recipe.every_problems] for name in list_training_sets(run.recipe)}
    result = evaluate(
        run.engine,
        sets,
        {name: run.rewards.for_set(name) for name in sets},
        sampling=make_evaluation_sampling(run.recipe, run.sampling),
        seed=run.recipe.seed,
        step=step,
        num_steps=run.recipe.train.num_steps,
        greedy=recipe.greedy and label != "during",
        resamples=recipe.resamples,
        label=label,
        world=run.world,
        on_progress=(lambda share: run.monitors.on_progress(int(share * total), {})) if stage else None,
    )
    if label in ("before", "after"):
        run.folder.write_samples(label, result.examples)
    run.monitors.on_evaluation(result.to_json())
    return result


def remember_best(run: Run, state: TrainState, result: Evaluation) -> None:
    """Update the best checkpoint, by the measure that checkpoints.best names. The final evaluation competes on the same problems."""
    score = score_for_best(run.recipe, result) if run.recipe.checkpoints.best else []
    if score > state.best_score:
        state.best_score, state.best_step = score, result.step
        if result.label == "after":  # its checkpoint exists: this updates best.json and deletes old ones
            save_run(run, state)


def score_for_best(recipe: Recipe, result: Evaluation) -> list[float]:
    """[measure, reward] on the first problems of the set, which every evaluation includes; [] without scores.

    Without a verdict the measure is -1, so that only the reward decides.
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
    """The set, measure and value by which the best checkpoint was chosen."""
    name, measure = read_best(recipe)
    by_reward = state.best_score[:1] == [-1.0]
    return {"set": name, "measure": "reward" if by_reward else measure, "value": next(iter(state.best_score[by_reward:]), None)}


def make_evaluation_sampling(recipe: Recipe, training: Sampling) -> Sampling:
    """Sampling settings of [evaluation]. The stop ids, and by default the length, are those of training."""
    settings = recipe.evaluation
    return Sampling(
        group_size=settings.samples,
        temperature=settings.temperature,
        max_completion_tokens=settings.max_completion_tokens or training.max_completion_tokens,
        stop_ids=training.stop_ids,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_reply_tokens=training.max_reply_tokens,
    )


def measure_peak_memory(device: torch.device) -> float:
    """Peak memory in GiB: of the policy's GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# -- adaptive KL coefficient -------------------------------------------------------------------------------------------

LARGEST_ERROR = 0.2
WIDEST_FACTOR = 1000.0
HORIZON = 10.0
"""Steps in which a steady error of e changes the coefficient by a factor of about exp(e)."""


def move_coefficient(start: float, target: float, coef: float, kl_per_completion: float | None) -> float:
    """The KL coefficient after a step, moved towards the value that keeps the KL at its target.

    Ziegler et al. 2019 (arXiv 1909.08593, section 2.2), a proportional controller on the logarithm of the coefficient:

        error = clip(kl / target - 1, -0.2, 0.2)        coef <- coef * (1 + error / horizon)

    One unusual step moves it by at most 2 % (horizon 10, the paper's gain of 0.1); a coefficient that is wrong by a factor of 100 is
    corrected in about 230 steps. Unlike the paper, the coefficient stays within a factor of 1000 of `start`, the recipe's value: while
    little is learned the KL is below its target, and the coefficient would otherwise shrink without limit.

    target and KL are in nats summed over a completion. target 0: the coefficient is constant. A KL of None, or one that is not finite,
    was not measured and changes nothing.
    """
    if not target or kl_per_completion is None or not math.isfinite(kl_per_completion):
        return coef
    error = min(LARGEST_ERROR, max(-LARGEST_ERROR, kl_per_completion / target - 1.0))
    return min(start * WIDEST_FACTOR, max(start / WIDEST_FACTOR, coef * (1.0 + error / HORIZON)))


# -- records of a step -------------------------------------------------------------------------------------------------


def record_step(run: Run, state: TrainState, step: int) -> None:
    """Write the step's records and tokens to the run folder, on the main rank. An error is reported once and does not stop the run."""
    settings, watch, batch = run.recipe.monitors, run.monitors.watch, state.batch
    assert batch is not None
    if not run.folder.owned:
        return
    try:
        named, new = (watch.list_named_rows(step), watch.list_named_rows(step, new=True)) if watch else ([], [])
        if settings.rollouts_every and step % settings.rollouts_every == 0:
            append_rows(run.folder.index_file, step, batch.rollouts, batch.advantages_N, named)
        if settings.tokens_every:
            due = step == 1 or step % settings.tokens_every == 0
            record_tokens(run, state, batch, step, new, due)
    except Exception as problem:
        run.monitors.note_failure(run.folder, "record_step", problem)


def record_tokens(run: Run, state: TrainState, batch: Batch, step: int, named: Sequence[int], due: bool) -> None:
    """Write single tokens of the groups of the named rollouts and, if due, of a few informative groups."""
    if not (named or due):
        return
    rewards: dict[int, list[float | None]] = {}
    members: dict[int, list[int]] = {}
    for row, rollout in enumerate(batch.rollouts):
        rewards.setdefault(rollout.group, []).append(rollout.outcome.reward)
        members.setdefault(rollout.group, []).append(row)
    groups = choose_groups(rewards, [batch.rollouts[row].group for row in named], due)
    if not groups:
        return
    lengths_N = [len(rollout.completion.token_ids) for rollout in batch.rollouts]
    chosen = choose_rows(groups, members, lengths_N, batch.advantages_N)
    reader, algorithm = run.policy.codec.token_texts, run.recipe.algorithm
    rows = make_token_rows(chosen, batch.rollouts, batch.examples, state.trace, len(state.update_metrics), algorithm, reader)
    write_tokens(run.folder.tokens_file(step), step, rows)
