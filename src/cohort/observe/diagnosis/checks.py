"""What the numbers mean, in words: pure functions from metric rows to findings. No torch.

"Why is my loss 0?" and "why is my reward 0?" are the two most asked questions about GRPO, and nearly every failure of a run
is silent: exit code 0, finite loss, plausible curves. Each check below looks for one such failure in the rows of
metrics.jsonl and says what is seen, why it matters and what to do. The console prints each finding once, the report shows
them all.

A check is a function `(History) -> Finding | None`. It looks at the first and the last few steps only, so that running all
of them after every step costs nothing. Metrics that are absent trigger nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from cohort.algorithms.named import Own
from cohort.algorithms.refill import ONE_SIDED
from cohort.base.text import write_percent
from cohort.evaluation.estimators import useful_share
from cohort.observe.diagnosis.hacking import HACKING_CHECKS
from cohort.observe.diagnosis.held_out import HELD_OUT_CHECKS
from cohort.observe.diagnosis.history import PATIENCE, WINDOW, Finding, History, Row
from cohort.observe.diagnosis.methods import METHOD_CHECKS
from cohort.observe.diagnosis.scores import SCORE_CHECKS, compares_in_groups, drawn, scores_are_missing, unscored_in
from cohort.observe.perf import StageTime, stage_times, warm

# ---------------------------------------------------------------------------------------------------------------------
# Signal: rewards and groups
# ---------------------------------------------------------------------------------------------------------------------


def loss_is_zero_by_construction(history: History) -> Finding | None:
    on_policy = history.setting("train.minibatches_per_step", 1) == 1 and history.setting("train.passes_per_step", 1) == 1
    losses, norms = history.last("loss/policy"), history.last("optim/grad_norm")
    if not on_policy or not losses or not norms or max(map(abs, losses)) > 1e-5 or max(norms) == 0:
        return None
    return Finding(
        "loss_zero",
        "info",
        "The policy loss is 0, and that is correct.",
        "With one optimizer step per batch the ratio is exactly 1 and the advantages of a group sum to 0, so the loss is 0 by "
        f"construction; its gradient is not (norm {norms[-1]:.3g}).",
        "Judge the run by reward, held-out pass@1 and grad norm.",
    )


def no_success(history: History) -> Finding | None:
    success = history.last("reward/success")
    if len(success) < PATIENCE or max(success) > 0:
        return None
    unscored, completions = unscored_in(history, history.rows[-WINDOW:])
    of = f" of the {completions - unscored:.0f} that were scored" if completions > unscored else ""
    reward = history.now("reward/mean")
    shaped = f" The mean reward of {reward:.2f} comes from other parts." if reward else ""
    return Finding(
        "no_success",
        "alarm",
        f"Not one completion{of} in the last {len(success)} steps was a success.{shaped}",
        "Either the model is too weak for these problems, or the verifier does not find the answer where the model writes it.",
        "Read a few completions in rollouts/. If they are right, fix the answer format or the reward function; if not, start "
        "with easier prompts, a stronger model, or a cold start on demonstrations.",
    )


def no_useful_groups(history: History) -> Finding | None:
    useful = history.now("advantage/useful_groups")
    if useful is None or useful >= 0.15 or history.now("reward/success") == 0 or not compares_in_groups(history):
        return None
    if scores_are_missing(history):
        return None  # groups without scores are neither too easy nor too hard
    right, wrong = sum(history.last("advantage/all_correct_groups")), sum(history.last("advantage/all_wrong_groups"))
    counts = (
        f"{right:.0f} groups were all right and {wrong:.0f} all wrong" if right or wrong else "the others had equal rewards"
    )
    return Finding(
        "no_useful_groups",
        "alarm" if useful == 0 and wrong > right else "warning",
        f"Only {write_percent(useful)} of groups carry a signal: in the last {len(history.last('advantage/useful_groups'))} steps {counts}.",
        "A group whose completions all score the same has advantage 0 throughout, so its rollouts teach nothing.",
        difficulty(history, right, wrong),
    )


def difficulty(history: History, right: float, wrong: float) -> str:
    """What to do about groups of which so many were all right and so many all wrong."""
    success, group_size = history.now("reward/success"), int(history.setting("train.group_size", 8))
    if not right + wrong or success is None:
        return (
            "No verdict says whether they were right: read some in rollouts/. If they differ in quality, the reward functions do "
            "not see it."
        )
    if right >= ONE_SIDED * (right + wrong):
        return "The prompts are too easy for the policy by now: the run is done, or needs harder prompts."
    if wrong >= ONE_SIDED * (right + wrong):
        larger = useful_share(min(success, 1.0), 2 * group_size)
        return (
            f"The prompts are too hard. At a success rate of {write_percent(success)}, train.group_size = {2 * group_size} would make "
            f"about {write_percent(larger)} of groups useful; easier prompts or a cold start help more."
        )
    return (
        'Some prompts are too easy and others too hard: algorithm.prompt_choice = "informative" prefers those in between, '
        "algorithm.refill_rounds replaces groups without a signal."
    )


def reward_faults(history: History) -> Finding | None:
    faults = sum(history.last("reward/faults", 3))
    if faults <= 0:
        return None
    parts = sorted({name.split("/")[1] for row in history.rows[-3:] for name in row if failing_part(name, row)})
    where = f" Failing: {', '.join(parts)}." if parts else ""
    return Finding(
        "reward_faults",
        "warning",
        f"Reward functions failed {faults:g} times in the last {min(3, len(history.rows))} steps.{where}",
        "A completion whose reward function fails is unscored and leaves the batch; if failing goes with a kind of answer, that "
        "is a bias of the training signal.",
        "Look at the `faults` column in rollouts/ for the exceptions, and call the function on one of those completions.",
    )


def failing_part(name: str, row: Row) -> bool:
    return name.startswith("reward/") and name.endswith("/faults") and name.count("/") == 2 and bool(row[name])


def reward_timeouts(history: History) -> Finding | None:
    timeouts = sum(history.last("reward/timeouts"))
    completions = sum(drawn(row, history.setting("train.group_size")) for row in history.rows[-WINDOW:])
    if not completions or timeouts / completions < 0.05:
        return None
    return Finding(
        "reward_timeouts",
        "warning",
        f"{write_percent(timeouts / completions)} of completions ran into the time limit of a reward function and scored 0.",
        "Either the limit is too tight for correct answers, or the policy writes what the verifier cannot digest.",
        "Check some of them in rollouts/; raise the part's timeout_s if they are honest.",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Sampling: what the policy writes
# ---------------------------------------------------------------------------------------------------------------------


def truncation(history: History) -> Finding | None:
    cut = history.last("rollout/truncated", 3)
    share = sum(cut) / len(cut) if cut else 0.0
    if share < 0.2:
        return None
    limit = history.setting("sampling.max_completion_tokens")
    at = f"at {limit} tokens" if limit else "at the token limit"
    return Finding(
        "truncation",
        "alarm" if share >= 0.5 else "warning",
        f"{write_percent(share)} of completions were cut {at}.",
        "A cut completion rarely holds an answer, so it is punished for its length rather than for being wrong.",
        "Raise sampling.max_completion_tokens. If the completions look finished, the model's stop token is not being recognised: "
        "add it to sampling.stop.",
    )


def copies(history: History) -> Finding | None:
    distinct = history.now("rollout/distinct", PATIENCE)
    group_size = history.setting("train.group_size", 8)
    if distinct is None or distinct > 1.5 / group_size or group_size < 2 or (history.now("reward/success") or 0) > 0.9:
        return None  # one completion has no copy, and a solved task with one right answer is meant to repeat itself
    temperature = history.setting("sampling.temperature")
    at = f" at temperature {temperature:g}" if isinstance(temperature, int | float) else ""
    return Finding(
        "copies",
        "alarm",
        f"Groups hold about {distinct * group_size:.1f} distinct completions out of {group_size}{at}.",
        "Copies earn the same reward, so the group has no variance and no gradient.",
        "Raise sampling.temperature towards 1.0. If it is there already, the policy has collapsed: go back to an earlier "
        "checkpoint with a lower learning rate or an entropy_coef.",
    )


def length_explosion(history: History) -> Finding | None:
    start, now = history.start("rollout/length_mean"), history.now("rollout/length_mean")
    if not history.long_enough or not start or not now or now < 2.5 * start or now < start + 20:
        return None
    before, after = history.start("reward/success"), history.now("reward/success")
    if before is None or after is None or after > before + 0.05:
        return None  # longer and better is what reasoning looks like
    return Finding(
        "length_explosion",
        "warning",
        f"Completions grew from {start:.0f} to {now:.0f} tokens while success stayed at {write_percent(after)}.",
        "Length that buys nothing is usually padding: per-sequence averaging punishes long wrong answers less per token.",
        'Use algorithm.aggregation = "token_mean" or "constant", or add a length reward.',
    )


def mismatch(history: History) -> Finding | None:
    p95, largest = history.last("rollout/mismatch_p95", 3), history.last("rollout/mismatch_max", 3)
    worst = max(p95, default=0.0)
    if worst <= 0.1:
        return None
    return Finding(
        "mismatch",
        "alarm" if worst > 0.5 else "warning",
        f"Engine and trainer disagree: |log ratio| has a 95th percentile of {worst:.2g} and a maximum of {max(largest, default=worst):.2g}.",
        "Both should be the same policy on the same tokens; this much difference biases every gradient.",
        'Compare with sampling.engine = "hf" and model.dtype = "float32"; if that closes the gap, it is rounding, else a bug.',
    )


# ---------------------------------------------------------------------------------------------------------------------
# Policy: drift, entropy, gradients
# ---------------------------------------------------------------------------------------------------------------------


def kl_drift(history: History) -> Finding | None:
    values = history.last("loss/kl_per_completion", 5)
    drift = sum(values) / len(values) if values else 0.0
    if drift < 5:
        return None
    coefficient = history.setting("algorithm.kl_coef")
    now = f" (now {coefficient:g})" if isinstance(coefficient, int | float) else ""
    return Finding(
        "kl_drift",
        "alarm" if drift >= 10 else "warning",
        f"The policy is {drift:.1f} nats per completion away from its reference.",
        "Beyond 5 to 10 nats it writes text the reference would hardly ever write; gains there are often reward hacking.",
        f"Read recent completions. If they look strange, stop at an earlier checkpoint, raise algorithm.kl_coef{now} or lower the "
        "learning rate.",
    )


def entropy_collapse(history: History) -> Finding | None:
    start, now = history.start("loss/entropy"), history.now("loss/entropy")
    if not history.long_enough or start is None or now is None or start < 0.02 or now > 0.1 * start:
        return None
    success = history.now("reward/success")
    if success is None or success > 0.9:
        return None  # nobody said what is right (demonstrations), or certain and right
    return Finding(
        "entropy_collapse",
        "warning",
        f"Entropy fell from {start:.3g} to {now:.3g} nats per token, with success at {write_percent(success)}.",
        "The policy has become certain before it became right, and stops exploring.",
        "Raise algorithm.clip_high (0.28), set a small algorithm.entropy_coef, or lower the learning rate.",
    )


def no_gradient(history: History) -> Finding | None:
    norms = history.last("optim/grad_norm", PATIENCE)
    if len(norms) < PATIENCE or max(norms) > 0 or scores_are_missing(history):
        return None
    useful = history.now("advantage/useful_groups", PATIENCE)
    equal = (
        "No group had rewards that differ, so there is nothing to learn from; the weights do not move.",
        "See advantage/useful_groups: mix in prompts that the policy solves some of the time.",
    )
    differ = (
        f"{write_percent(useful or 0.0)} of groups have rewards that differ, so it was lost on the way: no token is trained on, or every "
        "one is clipped.",
        "See loss/trained_tokens and loss/clip_high. algorithm.mask_truncated leaves out what was cut, which may be everything.",
    )
    return Finding(
        "no_gradient",
        "alarm",
        f"The gradient was exactly 0 in the last {len(norms)} steps.",
        *(differ if useful else equal),
    )


def skipped_steps(history: History) -> Finding | None:
    policy, critic = sum(history.last("optim/skipped")), sum(history.last("critic/skipped"))
    skipped = policy + critic
    if skipped <= 0:
        return None
    whose = " of the critic" if not policy else f" ({critic:g} of them of the critic)" if critic else ""
    rates = [name for name, count in (("optimizer", policy), ("critic", critic)) if count]
    return Finding(
        "skipped_steps",
        "warning",
        f"{skipped:g} optimizer step{'' if skipped == 1 else 's'}{whose} in the last {min(WINDOW, len(history.rows))} steps had a loss "
        f"or gradient that was not finite, and {'was' if skipped == 1 else 'were'} skipped.",
        "The weights are left as they were, but something overflows. Three in a row stop the run.",
        f"Lower {' and '.join(f'{name}.learning_rate' for name in rates)}; look at loss/ratio_max and rollout/mismatch_max in the same "
        "steps.",
    )


def clipping(history: History) -> Finding | None:
    low, high = history.now("loss/clip_low", PATIENCE) or 0.0, history.now("loss/clip_high", PATIENCE) or 0.0
    if low + high < 0.2:
        return None
    return Finding(
        "clipping",
        "warning",
        f"{write_percent(low + high)} of tokens are clipped ({write_percent(low)} below, {write_percent(high)} above).",
        "A clipped token has no gradient: the later minibatches of a step are mostly thrown away.",
        "Lower optimizer.learning_rate, or use fewer minibatches_per_step or passes_per_step.",
    )


def weights_still(history: History) -> Finding | None:
    changes = history.values("optim/weight_change", history.rows)
    moved = history.last("optim/grad_norm")
    if not changes or max(changes) > 0 or not moved or max(moved) == 0:
        return None
    rate = history.now("optim/learning_rate", PATIENCE) or history.setting("optimizer.learning_rate", 0.0)
    return Finding(
        "weights_still",
        "alarm",
        f"There is a gradient (norm {moved[-1]:.3g}), but no parameter changed.",
        f"The update is lost: the learning rate ({rate:g}) is 0, or too small for the precision of the weights.",
        "Check optimizer.learning_rate and warmup_steps.",
    )


# -- Cost --------------------------------------------------------------------------------------------------------------


def slow_stage(history: History) -> Finding | None:
    rows = warm(history.rows)[-2 * WINDOW :]
    times = stage_times(rows)
    whole = sum(history.values("time/step", rows))
    excess = [time for time in times if time.share > time.stage.normal]
    if len(history.rows) < PATIENCE or whole < 1.0 or not excess:
        return None
    slowest = max(excess, key=lambda time: time.share)
    stage = slowest.stage
    return Finding(
        f"slow_{stage.name}",
        "info" if stage.normal > 0.5 else "warning",
        f"{write_percent(slowest.share)} of a step's time goes into {stage.subject} (time/{stage.name}).",
        f"A step takes {whole / len(rows):.2g} s; making everything else faster gains at most {write_percent(1 - slowest.share)}."
        + stage_detail(stage.name, history, slowest),
        stage.fix,
    )


def stage_detail(stage: str, history: History, slowest: StageTime) -> str:
    """The perf/ figures that say why this stage is slow, where the run has them."""
    rows = history.rows[-2 * WINDOW :]
    if stage == "reward":
        names = {name for row in rows for name in row if name.startswith("reward/") and name.endswith("/seconds")}
        seconds = {name.split("/")[1]: sum(history.values(name, rows)) for name in names if name.count("/") == 2}
        part = max(seconds, key=lambda name: seconds[name], default="")
        return f" {part} is the slowest part, at {seconds[part] / slowest.steps:.2g} s." if len(seconds) > 1 else ""
    if stage == "rollout":
        occupancy = history.now("perf/engine_occupancy")
        return f" {write_percent(occupancy)} of the engine's slots were decoding." if occupancy is not None else ""
    mfu = history.now("perf/update_mfu") if stage == "update" else None
    return "" if mfu is None else f" The device does {write_percent(mfu)} of what it is made for (perf/update_mfu)."


def steps_missing(history: History) -> Finding | None:
    steps = [int(row["step"]) for row in history.rows[-200:] if isinstance(row.get("step"), int | float)]
    gaps = [(a, b) for a, b in pairwise([0, *steps] if len(history.rows) <= 200 else steps) if b != a + 1]
    if not gaps:
        return None
    return Finding(
        "steps_missing",
        "warning",
        f"metrics.jsonl {f'jumps from step {gaps[0][0]} to' if gaps[0][0] else 'begins with'} step {gaps[0][1]}.",
        "Some steps were not written (a full disk, or a file edited by hand); the plots have holes there.",
        "",
    )


CHECKS: tuple[Callable[[History], Finding | None], ...] = (
    *SCORE_CHECKS,
    no_success,
    no_useful_groups,
    truncation,
    copies,
    no_gradient,
    weights_still,
    *HELD_OUT_CHECKS,
    *HACKING_CHECKS,
    kl_drift,
    *METHOD_CHECKS,
    entropy_collapse,
    skipped_steps,
    mismatch,
    reward_faults,
    reward_timeouts,
    clipping,
    length_explosion,
    steps_missing,
    slow_stage,
    loss_is_zero_by_construction,
)

ORDER = {"alarm": 0, "warning": 1, "info": 2}


def diagnose(rows: Sequence[Row], recipe: Any = None, evaluations: Sequence[Row] = (), own: Own | None = None) -> list[Finding]:
    """All findings, the worst first. `recipe` is a Recipe or the same as nested dicts; None or partial is fine."""
    plain = recipe.model_dump() if hasattr(recipe, "model_dump") else recipe
    history = History(rows, plain if isinstance(plain, Mapping) else {}, evaluations, own or {})
    return sorted(filter(None, (check(history) for check in CHECKS)), key=lambda finding: ORDER[finding.level])
