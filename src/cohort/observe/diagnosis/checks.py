"""Checks that turn metric rows into findings, and the watch that runs them during training. No torch.

"Why is my loss 0?" and "why is my reward 0?" are the two most frequent questions about GRPO, and nearly every failing run fails silently:
exit code 0, finite loss, plausible curves. Each check detects one such failure in the rows of metrics.jsonl and reports the symptom, why it
matters and what to do. The console prints each finding once, the report lists all of them.

A check is a function `(History) -> Finding | None`; the texts of `check_copies` are the row `copies` of findings.toml. It reads only
the first and last few steps, so running all checks after every step is cheap. Missing metrics trigger nothing.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from cohort.algorithms.named import Own
from cohort.algorithms.refill import ONE_SIDED
from cohort.base.text import write_count, write_percent
from cohort.evaluation.estimators import predict_useful_share
from cohort.observe.diagnosis import hacking, methods
from cohort.observe.diagnosis.finding import (
    PATIENCE,
    TEXTS,
    UNSCORED,
    WINDOW,
    Finding,
    History,
    Row,
    mean_or_none,
    write_finding,
)  # fmt: skip
from cohort.observe.perf import STAGE_OF, StageTime, drop_first_step, measure_ahead, measure_stages
from cohort.observe.ranks import name_cause

# -- signal: rewards and groups ----------------------------------------------------------------------------------------


def check_loss_zero(history: History) -> Finding | None:
    on_policy = (
        history.read_setting("train.minibatches_per_step", 1) == 1 and history.read_setting("train.passes_per_step", 1) == 1
    )
    losses, norms = history.last_values("loss/policy"), history.last_values("optim/grad_norm")
    if not on_policy or not losses or not norms or max(map(abs, losses)) > 1e-5 or max(norms) == 0:
        return None
    return write_finding("loss_zero", "info", norm=norms[-1])


def check_unscored(history: History) -> Finding | None:
    """Most completions are unscored, or most groups have too few scores to compare."""
    if not history.scores_are_missing:
        return None
    rows = history.scored_rows
    count, completions = history.count_unscored(rows)
    nothing = count >= completions or (history.compares_in_groups and history.mean_now("advantage/useful_groups") == 0)
    lost = history.count_groups_without_scores(rows)
    failed = [
        f"{part} {verb} {count:.0f}"
        for what, verb in (("faults", "failed on"), ("none", "returned None for"))
        for part, count in history.sum_parts(what, rows).items()
        if count > 0
    ]
    return write_finding(
        "unscored",
        "alarm" if nothing else "warning",
        variant="nothing" if nothing else "",
        count=count,
        completions=completions,
        share=count / completions,
        where="the last step" if len(rows) == 1 else f"the last {len(rows)} steps",
        groups=f" {lost:.0f} groups have fewer than two scores and are dropped." if lost >= 1 else "",
        silent=f" {', '.join(sorted(failed))}." if failed else "",
    )


def check_unjudged(history: History) -> Finding | None:
    """Other parts give rewards, but the part that decides success abstains."""
    outcome, weights = history.read_parts()
    rows = history.rows[-WINDOW:]
    abstained = history.read_values(f"reward/{outcome}/none", rows)
    completions = history.count_completions(rows)
    if len(weights) < 2 or len(abstained) < PATIENCE or sum(abstained) < UNSCORED * completions or history.scores_are_missing:
        return None
    facts: dict[str, Any] = {"outcome": outcome, "abstained": sum(abstained), "completions": completions, "steps": len(rows)}
    return write_finding("unjudged", "warning", **facts)


def check_no_success(history: History) -> Finding | None:
    success = history.last_values("reward/success")
    if len(success) < PATIENCE or max(success) > 0:
        return None
    unscored, completions = history.count_unscored(history.rows[-WINDOW:])
    scored = f" of the {completions - unscored:.0f} that were scored" if completions > unscored else ""
    reward = history.mean_now("reward/mean")
    shaped = f" The mean reward of {reward:.2f} comes from other parts." if reward else ""
    return write_finding("no_success", "alarm", scored=scored, steps=len(success), shaped=shaped)


def check_no_useful_groups(history: History) -> Finding | None:
    useful, success = history.mean_now("advantage/useful_groups"), history.mean_now("reward/success")
    if useful is None or useful >= 0.15 or success == 0 or not history.compares_in_groups:
        return None
    if history.scores_are_missing:
        return None  # groups without scores are neither too easy nor too hard
    right, wrong = (sum(history.last_values(f"advantage/all_{kind}_groups")) for kind in ("correct", "wrong"))
    larger = 2 * int(history.read_setting("train.group_size", 8))
    return write_finding(
        "no_useful_groups",
        "alarm" if useful == 0 and wrong > right else "warning",
        variant=name_difficulty(right, wrong) if success is not None else "unjudged",
        useful=useful,
        steps=len(history.last_values("advantage/useful_groups")),
        counts=f"{right:.0f} groups had only right completions and {wrong:.0f} only wrong ones"
        if right or wrong
        else "the others had equal rewards",
        success=success,
        larger=larger,
        then_useful=predict_useful_share(min(success or 0.0, 1.0), larger),
    )


def name_difficulty(right: float, wrong: float) -> str:
    """How difficult the prompts are, from the numbers of groups that were all right and all wrong; "" if they are mixed."""
    if not right + wrong:
        return "unjudged"
    return "easy" if right >= ONE_SIDED * (right + wrong) else "hard" if wrong >= ONE_SIDED * (right + wrong) else ""


def check_reward_faults(history: History) -> Finding | None:
    faults, rows = sum(history.last_values("reward/faults", 3)), history.rows[-3:]
    if faults <= 0:
        return None
    parts = [part for part, count in history.sum_parts("faults", rows).items() if count]
    where = f" Failing: {', '.join(parts)}." if parts else ""
    return write_finding("reward_faults", "warning", faults=faults, steps=len(rows), where=where)


def check_reward_timeouts(history: History) -> Finding | None:
    timeouts, completions = sum(history.last_values("reward/timeouts")), history.count_completions(history.rows[-WINDOW:])
    if not completions or timeouts / completions < 0.05:
        return None
    return write_finding("reward_timeouts", "warning", share=timeouts / completions)


# -- sampling: what the policy writes ----------------------------------------------------------------------------------


def check_truncation(history: History) -> Finding | None:
    shares = history.last_values("rollout/truncated", 3)
    share = sum(shares) / max(1, len(shares))
    if share < 0.2 or (len(shares) < 3 and share < 0.9):
        return None  # a policy needs a few steps to learn to stop; if nearly nothing ends, a setting is wrong
    if len(shares) == 3 and shares[0] > shares[1] > shares[2] and shares[2] <= 0.5 * shares[0]:
        return None  # it is learning to stop
    limit = history.read_setting("sampling.max_completion_tokens")
    at = write_count(limit, "token") if limit else "the token limit"
    return write_finding("truncation", "alarm" if share >= 0.5 else "warning", share=share, limit=at)


def check_tools_unused(history: History) -> Finding | None:
    """Tool use has fallen to 0 while success has not risen."""
    start, now = history.mean_at_start("tools/used"), history.mean_now("tools/used")
    before, after = history.mean_at_start("reward/success"), history.mean_now("reward/success")
    if not history.long_enough or not start or now is None or start < 0.1 or now > 0.05 * start:
        return None
    if before is not None and after is not None and after > before + 0.05:
        return None
    return write_finding("tools_unused", "alarm", start=start, now=now)


def check_replies_fill(history: History) -> Finding | None:
    """Replies take most of the context, or are cut."""
    share, cut = history.mean_now("turns/read_share"), history.mean_now("turns/cut", WINDOW, 1)
    if share is None or (share < 0.8 and not cut):
        return None
    limit = history.read_setting("environment.max_observation_tokens")
    return write_finding("replies_fill", "warning", share=share, cut=cut or 0.0, limit=limit)


def check_environment_fails(history: History) -> Finding | None:
    """Episodes are lost to faults of the environment."""
    faults = history.last_values("turns/faults")
    episodes = history.count_completions(history.rows[-len(faults) :]) if faults else 0.0
    if not faults or not episodes or sum(faults) < 0.01 * episodes:
        return None
    share = sum(faults) / episodes
    return write_finding("environment_fails", "alarm" if share >= 0.05 else "warning", count=sum(faults), share=share)


def check_copies(history: History) -> Finding | None:
    share = history.mean_now("rollout/distinct", PATIENCE)
    group_size = history.read_setting("train.group_size", 8)
    if share is None or group_size < 2 or (history.mean_now("reward/success") or 0) > 0.9:
        return None  # a group of one has no copies, and a solved task with one right answer should repeat it
    # Nor are copies of a right answer a fault: a solved group counts as one distinct completion, and the others have the rest.
    groups = history.count_groups(history.rows[-PATIENCE:])
    solved = sum(history.last_values("advantage/all_correct_groups", PATIENCE)) / groups if groups else 0.0
    distinct = (share * group_size - solved) / (1 - solved) if solved < 1 else group_size
    if distinct > 1.5:
        return None
    temperature = history.read_setting("sampling.temperature")
    at = f" at temperature {temperature:g}" if isinstance(temperature, int | float) else ""
    return write_finding("copies", "alarm", distinct=distinct, group_size=group_size, temperature=at)


def check_length_explosion(history: History) -> Finding | None:
    start, now = history.mean_at_start("rollout/length_mean"), history.mean_now("rollout/length_mean")
    if not history.long_enough or not start or not now or now < 2.5 * start or now < start + 20:
        return None
    before, after = history.mean_at_start("reward/success"), history.mean_now("reward/success")
    if before is None or after is None or after > before + 0.05:
        return None  # longer and better: that is reasoning
    return write_finding("length_explosion", "warning", start=start, now=now, success=after)


def check_mismatch(history: History) -> Finding | None:
    p95, largest = history.last_values("rollout/mismatch_p95", 3), history.last_values("rollout/mismatch_max", 3)
    worst = max(p95, default=0.0)
    if worst <= 0.1:
        return None
    return write_finding("mismatch", "alarm" if worst > 0.5 else "warning", p95=worst, largest=max(largest, default=worst))


# -- policy: drift, entropy, gradients ---------------------------------------------------------------------------------


def check_kl_drift(history: History) -> Finding | None:
    drift = history.mean_now("loss/kl_per_completion", 5, least=1) or 0.0
    if drift < 5:
        return None
    coefficient = history.quote_setting("algorithm.kl_coef")
    return write_finding("kl_drift", "alarm" if drift >= 10 else "warning", drift=drift, kl_coef=coefficient)


def check_kl_outweighs(history: History) -> Finding | None:
    """The KL term is stronger than the rewards, in a token's gradient or in the reward.

    In the loss, the slope of k3 is |ratio - 1|, about sqrt(2 k3), per unit of kl_coef; the slope of the policy term is the advantage.
    """
    coefficient, drift = history.mean_now("loss/kl_coef"), history.mean_now("loss/kl")
    if not coefficient or drift is None or history.read_setting("algorithm.region") == "dpo":
        return None  # DPO's kl_coef is its beta
    if history.read_setting("algorithm.kl_in", "loss") == "loss":
        pull, push = coefficient * math.sqrt(2 * max(drift, 0.0)), history.mean_now("advantage/std")
    else:
        pull, push = coefficient * (history.mean_now("loss/kl_per_completion") or 0.0), history.mean_now("reward/std")
    if not push or pull <= push:
        return None
    return write_finding("kl_outweighs", "warning", ratio=pull / push, kl_coef=coefficient)


def check_policy_still(history: History) -> Finding | None:
    """The policy has not moved after many steps, although groups carry a signal."""
    drift, useful = history.mean_now("loss/kl_per_completion"), history.mean_now("advantage/useful_groups")
    success = history.find_trend("reward/success")
    if len(history.rows) < STILL_STEPS or drift is None or useful is None or success is None:
        return None
    follows = history.read_setting("algorithm.reference_every") or history.read_setting("algorithm.reference_decay")
    moved = drift > STILL or abs(success.change) > 2 * success.error
    if moved or follows or useful < 0.15:
        return None  # a reference that follows the policy stays close to it
    rate, kl_coef = (history.quote_setting(name) for name in ("optimizer.learning_rate", "algorithm.kl_coef"))
    facts: dict[str, Any] = {"steps": len(history.rows), "success": success.now, "rate": rate, "kl_coef": kl_coef}
    return write_finding("policy_still", "warning", drift=drift, useful=useful, **facts)


STILL_STEPS, STILL = 4 * WINDOW, 0.01
"""Steps without progress before a finding, and the nats per completion below which a policy has not moved."""


def check_collapsed(history: History) -> Finding | None:
    """One update destroyed the policy: the entropy of its tokens fell or rose abruptly, and success did not rise.

    In 30 runs made to fail the entropy of a step was 0.28 to 2 times that of the step before, but for those of a far too high rate.
    """
    highest = 0.0
    for place, (old, new) in enumerate(pairwise(history.rows)):
        before, after = (row.get(ENTROPY) for row in (old, new))
        highest = max(highest, before or 0.0)
        if before is None or after is None or before < LEAST_ENTROPY:
            continue
        fell, rose = after < before / FALL, after > highest * RISE and after - before > LEAST_RISE
        success = history.read_values("reward/success", [old, new])
        if not (fell or rose) or (len(success) == 2 and success[1] > success[0]):
            continue
        now = fmean(history.read_values(ENTROPY, history.rows[place + 1 :][-PATIENCE:]))
        if (fell and now > before / FALL) or (rose and now < before * RISE / 2):
            continue  # it has recovered
        fall = f", and success from {write_percent(success[0])} to {write_percent(success[1])}" if len(success) == 2 else ""
        rate = history.quote_setting("optimizer.learning_rate")
        facts: dict[str, Any] = {"step": old.get("step"), "before": before, "after": abs(after), "success": fall}
        return write_finding("collapsed", "alarm", variant="" if fell else "scattered", rate=rate, **facts)
    return None


ENTROPY = "rollout/entropy"
FALL, RISE = 10.0, 3.0
"""Factors between the entropies of two steps that no sensible update causes."""
LEAST_ENTROPY, LEAST_RISE = 0.05, 0.2
"""Nats per token. A nearly certain policy has a few tokens of doubt, whose share of the batch varies by large factors."""
EFFECTS = {
    *("copies", "no_gradient", "no_success", "no_useful_groups", "truncation", "entropy_collapse", "length_explosion"),
    *("kl_drift", "kl_outweighs", "policy_still", "held_out_falls", "clipping"),
}
"""Findings that a collapse causes, whose advice would not help."""


def check_entropy_collapse(history: History) -> Finding | None:
    start, now = history.mean_at_start("loss/entropy"), history.mean_now("loss/entropy")
    if not history.long_enough or start is None or now is None or start < 0.02 or now > 0.1 * start:
        return None
    success = history.mean_now("reward/success")
    if success is None or success > 0.9:
        return None  # no verdicts (demonstrations), or certain and right
    return write_finding("entropy_collapse", "warning", start=start, now=now, success=success)


def check_no_gradient(history: History) -> Finding | None:
    norms = history.last_values("optim/grad_norm", PATIENCE)
    if len(norms) < PATIENCE or max(norms) > 0 or history.scores_are_missing:
        return None
    useful = history.mean_now("advantage/useful_groups", PATIENCE)
    return write_finding("no_gradient", "alarm", variant="lost" if useful else "", steps=len(norms), useful=useful)


def check_skipped_steps(history: History) -> Finding | None:
    policy, critic = sum(history.last_values("optim/skipped")), sum(history.last_values("critic/skipped"))
    skipped = policy + critic
    if skipped <= 0:
        return None
    whose = " of the critic" if not policy else f" ({critic:g} of them of the critic)" if critic else ""
    rates = [f"{name}.learning_rate" for name, count in (("optimizer", policy), ("critic", critic)) if count]
    return write_finding(
        "skipped_steps",
        "warning",
        skipped=f"{skipped:g} optimizer step{'' if skipped == 1 else 's'}{whose}",
        steps=min(WINDOW, len(history.rows)),
        were="was" if skipped == 1 else "were",
        rates=" and ".join(rates),
    )


def check_clipping(history: History) -> Finding | None:
    low, high = history.mean_now("loss/clip_low", PATIENCE) or 0.0, history.mean_now("loss/clip_high", PATIENCE) or 0.0
    if low + high < 0.2:
        return None
    return write_finding("clipping", "warning", both=low + high, low=low, high=high)


def check_weights_still(history: History) -> Finding | None:
    first = next((row for row in history.rows if history.read_values("optim/weight_change", [row])), {})
    norms = history.read_values("optim/grad_norm", [first])
    if not norms or max(norms) == 0 or first["optim/weight_change"] > 0:
        return None  # without a gradient nothing should change
    rate = history.mean_now("optim/learning_rate", PATIENCE) or history.read_setting("optimizer.learning_rate", 0.0)
    return write_finding("weights_still", "alarm", norm=norms[0], rate=rate)


# -- cost --------------------------------------------------------------------------------------------------------------


def check_slow_stage(history: History) -> Finding | None:
    rows = drop_first_step(history.rows)[-2 * WINDOW :]
    times = measure_stages(rows)
    whole = sum(history.read_values("time/step", rows))
    excess = [time for time in times if time.share > time.stage.normal]
    if len(history.rows) < PATIENCE or whole < 1.0 or not excess:
        return None
    slowest = max(excess, key=lambda time: time.share)
    found = write_finding(
        "slow_stage",
        "info" if slowest.stage.normal > 0.5 else "warning",
        share=slowest.share,
        stage=slowest.stage,
        seconds=whole / len(rows),
        rest=1 - slowest.share,
        detail=explain_stage(history, slowest),
    )
    return replace(found, name=f"slow_{slowest.stage.name}")


def explain_stage(history: History, slowest: StageTime) -> str:
    """The perf/ metrics that explain why this stage is slow, if the run has them."""
    rows, stage = history.rows[-2 * WINDOW :], slowest.stage.name
    if stage == "reward":
        seconds = history.sum_parts("seconds", rows)
        part = max(seconds, key=lambda name: seconds[name], default="")
        return f" {part} is the slowest part, at {seconds[part] / slowest.steps:.2g} s." if len(seconds) > 1 else ""
    occupancy, mfu = history.mean_now("perf/engine_occupancy"), history.mean_now("perf/update_mfu")
    if stage == "rollout" and occupancy is not None:
        return f" {write_percent(occupancy)} of the engine's slots were decoding."
    if stage == "update" and mfu is not None:
        return f" The device reaches {write_percent(mfu)} of its peak (perf/update_mfu)."
    return ""


def check_rank_behind(history: History) -> Finding | None:
    recent = drop_first_step(history.rows)[-2 * WINDOW :]
    rows = [row for row in recent if all(history.read_values(name, [row]) for name in ("ranks/slowest", "ranks/behind"))]
    whole, behind, stages = sum(history.read_values("time/step", rows)), Counter[int](), Counter[str]()
    for row in rows:
        behind[int(row["ranks/slowest"])] += row["ranks/behind"]
    if len(rows) < PATIENCE or whole < 1.0 or not behind:
        return None
    rank, seconds = behind.most_common(1)[0]
    if seconds < FAR_BEHIND * whole:
        return None
    its_rows = [row for row in rows if row["ranks/slowest"] == rank]
    for row in its_rows:
        stages.update({stage: sum(history.read_values(BEHIND + stage, [row])) for stage in STAGE_OF})
    stage = stages.most_common(1)[0][0]
    in_stage = [row for row in its_rows if BEHIND + stage in row]
    cause = name_cause(rank, stage, mean_or_none(history.read_values("ranks/explained_by_tokens", in_stage), 1))
    return write_finding(
        "rank_behind",
        "warning",
        variant=cause,
        rank=rank,
        share=seconds / whole,
        stage=STAGE_OF[stage],
        count=max(history.last_values("ranks/count"), default=rank + 1),
        waiting=history.mean_now("ranks/wait_share", 2 * WINDOW) or 0.0,
    )


def check_ahead_waits(history: History) -> Finding | None:
    rows = history.rows[-2 * WINDOW :]
    times = measure_ahead(rows)
    if times is None or len(history.rows) < PATIENCE or sum(history.read_values("time/step", rows)) < 1.0:
        return None
    if times.slowest == "training":
        return None
    return write_finding("ahead_waits", "warning", variant=times.slowest, share=times.wait_share, times=times)


FAR_BEHIND = 0.15
"""Share of the steps' time by which a rank may work longer than the others."""
BEHIND = "ranks/behind/"


MODULES = ChainMap(globals(), vars(hacking), vars(methods))
CHECKS: tuple[Callable[[History], Finding | None], ...] = tuple(MODULES[f"check_{name}"] for name in TEXTS)
"""The function of each row of findings.toml, in the same order."""
ORDER = {"alarm": 0, "warning": 1, "info": 2}


def diagnose(rows: Sequence[Row], recipe: Any = None, evaluations: Sequence[Row] = (), own: Own | None = None) -> list[Finding]:
    """All findings, the worst first. `recipe` is a Recipe or the same as nested dicts; it may be None or partial."""
    plain = recipe.model_dump() if hasattr(recipe, "model_dump") else recipe
    history = History(rows, plain if isinstance(plain, Mapping) else {}, evaluations, own or {})
    found = [finding for check in CHECKS if (finding := check(history))]
    effects = EFFECTS if any(finding.name == "collapsed" for finding in found) else set()
    return sorted((finding for finding in found if finding.name not in effects), key=lambda finding: ORDER[finding.level])


# -- during training ---------------------------------------------------------------------------------------------------

EARLY_STEPS, THEN_EVERY = 50, 10
"""Checks run after each of the first 50 steps, which matter most and are cheap to check, then after every tenth."""


def is_checked(step: int) -> bool:
    """Whether the checks run after this step."""
    return step <= EARLY_STEPS or step % THEN_EVERY == 0


class FindingWatch:
    """Runs the checks as metric rows arrive, and returns each finding once.

    rows, evaluations, known: from before a resume; known has the names of earlier findings.
    """

    def __init__(
        self,
        recipe: Mapping[str, Any],
        own: Own | None = None,
        rows: Sequence[Row] = (),
        evaluations: Sequence[Row] = (),
        known: Iterable[str] = (),
    ) -> None:
        self.recipe, self.own = recipe, own
        self.rows, self.evaluations = list(rows), list(evaluations)
        self.known = {*known}
        self.reported: dict[str, Finding] = {}
        self.stood: dict[str, int] = {}
        """Reported finding -> the last step of a check that found it."""
        self.withdrawn: list[Finding] = []
        """Warnings and alarms that the last WINDOW steps have refuted; if such a finding comes back, it is reported again."""
        self.standing: list[Finding] = []
        """The findings of the last check."""
        self.new: list[Finding] = []
        """Those of them that are new to the run."""

    def add_row(self, row: Row) -> list[Finding]:
        """Add the row of a step and return the findings to report now."""
        self.rows.append(row)
        last = History((), self.recipe).read_setting("train.num_steps")
        self.standing, self.new, self.withdrawn = [], [], []
        return self.check() if is_checked(int(row["step"])) or row["step"] == last else []

    def check(self) -> list[Finding]:
        """Run all checks; the findings that this process has not reported yet."""
        self.standing = diagnose(self.rows, self.recipe, self.evaluations, self.own)
        self.new = [finding for finding in self.standing if finding.name not in self.known]
        unreported = [finding for finding in self.standing if finding.name not in self.reported]
        self.known |= {finding.name for finding in self.new}
        self.reported |= {finding.name: finding for finding in unreported}
        self.stood |= {finding.name: self.step for finding in self.standing}
        gone = [name for name in self.reported if self.step - self.stood[name] >= WINDOW]
        self.withdrawn = [one for name in gone if (one := self.reported.pop(name)).level != "info"]
        return unreported

    @property
    def step(self) -> int:
        """The step of the last row."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def list_named_rows(self, step: int, new: bool = False) -> list[int]:
        """Rollouts of the step that the evidence of the current findings names, in their order; with `new`, of new findings only."""
        findings = self.new if new else self.standing
        return list(dict.fromkeys(row for finding in findings for place, row in finding.rows if place == step))
