"""Checks for reward hacking and for falling held-out results, each with rollouts as evidence. No torch.

Reward hacking is the one failure in which every training curve looks good. A second number that does not follow reveals it: the outcome,
held-out problems, verifier failures, the length of wrong completions, or one text shared by the successes of different problems. The
numbers and examples come from signs.py; a change counts if it exceeds three standard errors of the scatter between steps.
docs/hacking-alarms.md explains the rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cohort.base.text import make_printable, write_percent
from cohort.evaluation.evaluate import ProblemVerdicts, compare_set, find_largest_k
from cohort.observe.diagnosis.finding import (
    FAILURE_WORDS,
    PATIENCE,
    WINDOW,
    Finding,
    History,
    Level,
    Quoted,
    Trend,
    measure_trend,
    write_finding,
)
from cohort.recipe.rules import OVERLONG_PART

SHARED = 0.5
"""Share of the successes that one string must explain for an alarm."""
SHARED_STEPS = 3
"""Steps out of WINDOW in which the same string must do so."""
OTHER, MANY = 0.1, 0.25
"""Share of the successes with another number than the reference answer that is worth a finding: if it has risen, and in any case."""
CHANCE = 0.05
"""Share of the sets of identical completions whose rewards may differ."""
MOSTLY = 0.5
"""From this share on, either is an alarm."""
EXAMPLES = 3
SOLVED = 0.9


# -- a part outruns the outcome ----------------------------------------------------------------------------------------


def check_part_outruns_outcome(history: History) -> Finding | None:
    """A part other than the outcome rises while success stays flat or falls."""
    outcome, weights = history.read_parts()
    if not outcome or not history.rows:
        return None
    for first in dict.fromkeys((0, find_best_window(history, "reward/success"))):
        success = history.find_trend("reward/success", first)
        if success is None:
            continue
        falls = success.falls(0.05)
        # Since the start, no progress is enough; since its best, success must have fallen, because it can hardly rise further.
        flat = first == 0 and success.change < max(2 * success.error, 0.02) and success.now < SOLVED
        if not falls and not flat:
            continue
        # Cohort's own length penalty does not count: it rises when fewer completions are truncated.
        others = [name for name in history.sum_parts("mean", history.rows[-1:]) if name not in (outcome, OVERLONG_PART)]
        risen = [(trend, name) for name in others if (trend := find_part_rise(history, name, weights, first))]
        if risen:
            trend, name = max(risen, key=lambda pair: abs(pair[0].change))
            return write_finding(
                "part_outruns_outcome",
                "alarm" if falls else "warning",
                variant="fell" if falls else "",
                evidence=quote_evidence(history, f"part/{name}"),
                name=name,
                part=trend,
                success=success,
                outcome=outcome,
            )
    return None


def find_part_rise(history: History, name: str, weights: Mapping[str, float], first: int) -> Trend | None:
    """The change of a part in the rewarded direction; None if it is too small to matter."""
    trend, weight = history.find_trend(f"reward/{name}/mean", first), weights.get(name, 1.0)
    if trend is None or weight == 0:
        return None
    spread, all_spread = history.mean_at_start(f"reward/{name}/std"), history.mean_at_start("reward/std")
    least = 0.25 * spread if spread else 0.05
    if all_spread:  # the policy cannot follow a part that hardly changes the reward
        least = max(least, 0.1 * all_spread / abs(weight))
    return trend if (trend.rises(least) if weight > 0 else trend.falls(least)) else None


def find_best_window(history: History, name: str) -> int:
    """First row of the window with the largest mean of the metric."""
    starts = range(0, max(1, len(history.rows) - 2 * WINDOW + 1), WINDOW)
    means = {
        first: fmean(values) for first in starts if (values := history.read_values(name, history.rows[first : first + WINDOW]))
    }
    return max(means, key=lambda first: means[first], default=0)


# -- one string in most successes --------------------------------------------------------------------------------------


def check_shared_rewarded(history: History) -> Finding | None:
    """One string explains most successes of different problems in several steps, by the rules of shared_string.py."""
    found = [
        (step, one)
        for step, one in history.list_evidence("shared")
        if isinstance(one.get("share"), int | float) and one["share"] >= SHARED and isinstance(one.get("text"), str)
    ]
    sure = find_latest_run([(step, one) for step, one in found if one.get("level") != "warning"])
    together = sure or find_latest_run(found)
    if not together:
        return None
    step, one = together[-1]
    failed, failures = one.get("share_failed"), ""
    if isinstance(failed, int | float):
        failures = f", and {write_percent(failed)} of the failures{' that the verifier could read' if sure else ''}"
    return write_finding(
        "shared_rewarded",
        "alarm" if sure else "warning",
        variant="" if sure else "unsure",
        evidence=quote_evidence(history, "shared", [step for step, _ in together]),
        share=one["share"],
        step=step,
        what={"answer": "the answer", "ending": "the last line"}.get(str(one.get("kind")), "the text"),
        text=quote_text(one["text"]),
        failures=failures,
        prompts=one.get("prompts"),
        references=one.get("references"),
        first=together[0][0],
    )


def find_latest_run(found: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[int, Mapping[str, Any]]]:
    """All occurrences of the newest string found in SHARED_STEPS of WINDOW steps. A string and a longer form of it count as one."""
    texts = dict.fromkeys(str(one["text"]) for _, one in reversed(found[-WINDOW * WINDOW :]))
    for text in texts:
        same = [(step, one) for step, one in found if text in str(one["text"]) or str(one["text"]) in text]
        spans = zip(same, same[SHARED_STEPS - 1 :], strict=False)
        if any(last[0] - first[0] < WINDOW for first, last in spans):
            return same
    return []


# -- what the verifier contradicts -------------------------------------------------------------------------------------


def check_other_number(history: History) -> Finding | None:
    """Successes with another number than the reference answer: increasingly many, or many from the start."""
    share, now = history.find_trend("rollout/other_number"), history.mean_now("rollout/other_number")
    risen = share is not None and share.now >= OTHER and share.rises(OTHER / 2)
    if now is None or not (risen or now >= MANY):
        return None
    level: Level = "alarm" if share is not None and share.now >= MOSTLY and share.rises(MOSTLY / 2) else "warning"
    evidence, variant = quote_evidence(history, "other_number"), "" if risen else "always"
    return write_finding("other_number", level, variant=variant, evidence=evidence, share=share, now=now)


def check_inconsistent(history: History) -> Finding | None:
    """Identical completions of a group get different rewards."""
    share = history.mean_now("reward/inconsistent")
    if share is None or share < CHANCE:
        return None
    evidence = quote_evidence(history, "inconsistent")
    return write_finding("inconsistent", "alarm" if share >= MOSTLY else "warning", evidence=evidence, share=share)


# -- length and failures -----------------------------------------------------------------------------------------------


def check_wrong_grows(history: History) -> Finding | None:
    """Wrong completions grow, right ones do not."""
    wrong, right = history.find_trend("rollout/length_wrong"), history.find_trend("rollout/length_right")
    success = history.mean_now("reward/success")
    if wrong is None or right is None or success is None or success > SOLVED or min(wrong.start, right.start) <= 0:
        return None  # the few remaining failures of a solved task are its hardest problems
    if not wrong.rises(max(20.0, wrong.start)) or right.now / right.start > 1 + (wrong.now / wrong.start - 1) / 3:
        return None
    return write_finding("wrong_grows", "warning", evidence=quote_evidence(history, "wrong_long"), wrong=wrong, right=right)


def check_failures_rise(history: History) -> Finding | None:
    """The verifier fails but reports success; or it fails increasingly often while the reward rises."""
    if passed := find_passed_failure(history):
        return passed
    reward = history.find_trend("reward/mean")
    if reward is None or not reward.rises():
        return None
    kinds = sorted({kind for row in (*history.rows[:WINDOW], *history.rows[-WINDOW:]) for kind in count_failures(row)})
    trends = {kind: trend for kind in kinds if (trend := measure_failure_trend(history, [kind])) is not None}
    together = measure_failure_trend(history, kinds)
    if together is None or not together.rises(0.05):
        return None
    kind = max(trends, key=lambda one: trends[one].change)
    part, _, word = kind.partition("/")
    paid = any(float(one.get("reward") or 0) > 0 for _, one in history.list_evidence(f"failed/{kind}")[-WINDOW:])
    level: Level = "alarm" if paid else "warning"
    evidence = quote_evidence(history, f"failed/{kind}")
    facts = {"share": together, "part": part, "word": word, "reward": reward}
    return write_finding("failures_rise", level, variant="paid" if paid else "", evidence=evidence, **facts)


def find_passed_failure(history: History) -> Finding | None:
    """Completions on which the outcome part failed count as successes, in several of the last steps."""
    outcome, _ = history.read_parts()
    rows = history.rows[-WINDOW:]
    for word in FAILURE_WORDS if outcome else ():
        kind = f"failed/{outcome}/{word}"
        steps = [step for step, one in replace(history, rows=rows).list_evidence(kind) if one.get("passed")]
        if len(steps) >= SHARED_STEPS:
            facts = {"steps": len(steps), "of": len(rows), "part": outcome, "word": word}
            return write_finding(
                "failures_rise", "alarm", variant="passed", evidence=quote_evidence(history, kind, steps), **facts
            )
    return None


def count_failures(row: Mapping[str, Any]) -> dict[str, float]:
    """`part/word` -> completions, of one step. A timeout is a verdict, or counted by the reward runner, or both."""
    found: dict[str, float] = {}
    for name, value in row.items():
        match = re.fullmatch(r"reward/([^/]+)/(?:verdict/(\w+)|(timeout)s)", name)
        word = match and (match[2] or match[3])
        if match and word in FAILURE_WORDS and isinstance(value, int | float) and value > 0:
            kind = f"{match[1]}/{word}"
            found[kind] = max(found.get(kind, 0.0), float(value))
    return found


def measure_failure_trend(history: History, kinds: Iterable[str]) -> Trend | None:
    """The change of the share of completions that failed in one of these ways; a kind missing from a row did not occur."""
    wanted = set(kinds)
    start, now = (
        [
            sum(count for kind, count in count_failures(row).items() if kind in wanted) / completions
            for row in rows
            if (completions := history.count_completions([row]))
        ]
        for rows in (history.rows[:WINDOW], history.rows[-WINDOW:])
    )
    return measure_trend(start, now) if history.long_enough else None


# -- evidence ----------------------------------------------------------------------------------------------------------


def quote_evidence(history: History, kind: str, steps: Iterable[int] | None = None) -> tuple[Quoted, ...]:
    """The newest examples of a kind, one sentence each."""
    chosen = None if steps is None else set(steps)
    found = [(step, one) for step, one in history.list_evidence(kind) if chosen is None or step in chosen]
    return tuple(quote_rollout(history, step, one) for step, one in reversed(found[-EXAMPLES:]))


def quote_rollout(history: History, step: int, one: Mapping[str, Any]) -> Quoted:
    """`rollouts/step-000012.parquet row 17: prompt -> completion`."""
    every = history.read_setting("monitors.rollouts_every", 1)
    kept = isinstance(every, int) and every > 0 and step % every == 0
    rows = [row for row in one.get("rows") or () if isinstance(row, int)] or [one["row"]]
    numbers = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows))}"
    where = f"rollouts/step-{step:06d}.parquet {numbers}" if kept else f"step {step} {numbers} (its rollouts were not kept)"
    text = f"{where}: {quote_text(one.get('prompt'))} → {quote_text(one.get('completion'))}"
    return Quoted(step, tuple(rows), text)


def quote_text(text: Any) -> str:
    """Text of the policy in quotation marks, printable: the file that it comes from may have been edited."""
    return f"“{make_printable(str(text or ''))}”"


# -- held-out problems ---------------------------------------------------------------------------------------------------

RESAMPLES = 10_000
"""As in summary.json, so that both have the same interval."""


class EvaluationPoint(NamedTuple):
    """One measurement on a set, with its interval."""

    step: int
    value: float
    low: float
    high: float


def check_held_out_falls(history: History) -> Finding | None:
    """Held-out pass@1 or reward fell significantly from its best while the training reward rose.

    The best of several evaluations is partly luck: one evaluation below it is a warning, two in a row are an alarm.
    """
    for measure in ("pass@1", "reward"):
        for name, points in list_points(history, measure).items():
            best, last = max(points, key=lambda point: point.value), points[-1]
            if last.step <= best.step or not has_fallen(history, name, measure, best, last):
                continue
            rewards = [mean_reward_near(history, point.step) for point in (best, last)]
            if rewards[0] is None or rewards[1] is None or rewards[1] <= rewards[0]:
                continue
            paid = find_held_out_rewards(history, name, best, last)
            variant = "reward" if measure == "reward" else "paid" if len(paid) == 2 and paid[1] >= paid[0] else ""
            evidence, facts = quote_evidence(history, "best"), {"name": name, "best": best, "last": last, "paid": paid}
            before = points[-2]
            only_two = before is best and len(points) == 2
            is_sure = only_two or (before.step > best.step and has_fallen(history, name, measure, best, before))
            return write_finding(
                "held_out_falls",
                "alarm" if is_sure else "warning",
                variant=variant,
                evidence=evidence,
                rewards=rewards,
                **facts,
            )
    return None


def find_held_out_rewards(history: History, name: str, *points: EvaluationPoint) -> list[float]:
    """The held-out rewards at these evaluations. If they do not fall with pass@1, memorised prompts are not the cause."""
    rewards = {point.step: point.value for point in list_points(history, "reward").get(name, [])}
    return [rewards[point.step] for point in points if point.step in rewards]


def has_fallen(history: History, name: str, measure: str, best: EvaluationPoint, last: EvaluationPoint) -> bool:
    """Whether `last` is significantly below `best`: by intervals, or, if both have verdicts, by the more sensitive paired test."""
    if last.high < best.low:
        return True
    differences = list_paired_differences(history, name, best.step, last.step) if measure == "pass@1" else []
    if len(differences) < 20:
        return False
    change, error = fmean(differences), stdev(differences) / math.sqrt(len(differences))
    return change <= -0.02 and change < -3 * error


def list_paired_differences(history: History, name: str, best: int, last: int) -> list[float]:
    """The change in success rate of every problem in both evaluations."""
    sides = [find_verdicts(history, name, step=step) for step in (best, last)]
    rates = [verdicts.success_rates() if verdicts else {} for verdicts in sides]
    return [rates[1][key] - rates[0][key] for key in rates[0] if key in rates[1]]


def find_verdicts(history: History, name: str, **wanted: Any) -> ProblemVerdicts | None:
    """The verdicts on a set in the newest evaluation with this step or label; None if missing or unreadable."""
    for evaluation in reversed(history.evaluations):
        sets = evaluation.get("per_problem")
        if isinstance(sets, Mapping) and name in sets and all(evaluation.get(key) == value for key, value in wanted.items()):
            try:
                return ProblemVerdicts.from_json(sets[name])
            except (KeyError, TypeError, ValueError, AttributeError):
                return None
    return None


def list_points(history: History, measure: str) -> dict[str, list[EvaluationPoint]]:
    """Set -> its evaluations in order. Evaluations have intervals; pass@1 from a metric row gets +- 0.025."""
    points: dict[str, dict[int, EvaluationPoint]] = {}
    metrics = set().union(*history.rows) if measure == "pass@1" else set()
    for name in sorted(name for name in metrics if name.startswith("eval/") and name.endswith("/pass@1")):
        for row in history.rows:
            if isinstance(value := row.get(name), int | float):
                step = int(row.get("step", 0))
                points.setdefault(name[5:-7], {})[step] = EvaluationPoint(step, value, value - 0.025, value + 0.025)
    for evaluation in history.evaluations:
        sets = evaluation.get("sets")
        for name, numbers in sets.items() if isinstance(sets, Mapping) else ():
            one = numbers.get(measure) if isinstance(numbers, Mapping) else None
            if isinstance(one, Mapping) and isinstance(one.get("value"), int | float):
                step, value, low, high = int(evaluation.get("step", 0)), float(one["value"]), one.get("low"), one.get("high")
                # Too few problems for an interval: no fall is reported.
                ends = (-math.inf, math.inf) if low is None or high is None else (low, high)
                points.setdefault(name, {})[step] = EvaluationPoint(step, value, *ends)
    return {name: [found[step] for step in sorted(found)] for name, found in points.items() if len(found) > 1}


def mean_reward_near(history: History, step: int) -> float | None:
    """Mean training reward of the steps around this one."""
    near = [row for row in history.rows if abs(int(row.get("step", 0)) - max(step, 1)) < PATIENCE]
    values = history.read_values("reward/mean", near)
    return fmean(values) if values else None


# -- pass@k against pass@1 ---------------------------------------------------------------------------------------------


def check_pass_at_k_falls(history: History) -> Finding | None:
    """pass@k fell during training although pass@1 did not.

    Only the evaluations before and after are compared: testing every evaluation in between would give false positives.
    """
    final: Mapping[str, Any] = history.evaluations[-1] if history.evaluations else {}
    done = max((step for row in history.rows[-1:] if isinstance(step := row.get("step"), int)), default=0)
    sets = final.get("per_problem") if final.get("label") == "after" and int(final.get("step", 0)) >= done else None
    for name in sets if isinstance(sets, Mapping) else ():
        before, after = find_verdicts(history, name, label="before"), find_verdicts(history, name, label="after")
        k = find_largest_k(before, after) if before and after else 0
        if before is None or after is None or not k:
            continue
        changes = compare_set(before, after, 0, RESAMPLES)
        one, many = changes["pass@1"], changes[f"pass@{k}"]
        if many.verdict == "fell" and one.verdict != "fell":
            variant = "rose" if one.verdict == "rose" else ""
            facts = {"name": name, "k": k, "sureness": many.sureness, "kl_coef": history.quote_setting("algorithm.kl_coef")}
            facts |= {"one": mean_pass_rates(before, after, 1), "many": mean_pass_rates(before, after, k)}
            return write_finding("pass_at_k_falls", "warning", variant=variant, **facts)
    return None


def mean_pass_rates(before: ProblemVerdicts, after: ProblemVerdicts, k: int) -> tuple[float, float]:
    """pass@k before and after, on the problems with enough verdicts on both sides."""
    left, right = before.success_rates(k), after.success_rates(k)
    common = left.keys() & right.keys()
    return fmean(left[place] for place in common), fmean(right[place] for place in common)
