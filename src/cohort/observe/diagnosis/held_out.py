"""What the evaluations on held-out problems say against the training reward, and against themselves. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cohort.evaluation.evaluate import ProblemVerdicts, compare_set, find_largest_k
from cohort.observe.diagnosis.finding import Finding, write_finding
from cohort.observe.diagnosis.hacking import quote_evidence
from cohort.observe.diagnosis.history import PATIENCE, History

RESAMPLES = 10_000
"""As in summary.json, so that both give the same interval."""


class EvaluationPoint(NamedTuple):
    """One evaluation of a set, with its interval."""

    step: int
    value: float
    low: float
    high: float


def check_held_out_falls(history: History) -> Finding | None:
    """Held-out pass@1, or reward, below its best by more than chance allows, while the training reward rose.

    The best of several looks is partly luck: one look below it is a warning, two in a row are an alarm.
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
            only_two_looks = before is best and len(points) == 2
            is_sure = only_two_looks or (before.step > best.step and has_fallen(history, name, measure, best, before))
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
    """The held-out rewards of these evaluations.

    Rewards that do not fall with pass@1 rule memory out: the new problems pay just as well.
    """
    rewards = {point.step: point.value for point in list_points(history, "reward").get(name, [])}
    return [rewards[point.step] for point in points if point.step in rewards]


def has_fallen(history: History, name: str, measure: str, best: EvaluationPoint, last: EvaluationPoint) -> bool:
    """By the intervals; or, where the verdicts of both are there, problem by problem, which sees more."""
    if last.high < best.low:
        return True
    differences = list_paired_differences(history, name, best.step, last.step) if measure == "pass@1" else []
    if len(differences) < 20:
        return False
    change, error = fmean(differences), stdev(differences) / math.sqrt(len(differences))
    return change <= -0.02 and change < -3 * error


def list_paired_differences(history: History, name: str, best: int, last: int) -> list[float]:
    """Change of the success rate of every problem that both evaluations hold."""
    sides = [find_verdicts(history, name, step=step) for step in (best, last)]
    rates = [verdicts.success_rates() if verdicts else {} for verdicts in sides]
    return [rates[1][key] - rates[0][key] for key in rates[0] if key in rates[1]]


def find_verdicts(history: History, name: str, **wanted: Any) -> ProblemVerdicts | None:
    """The verdicts on a set in the newest evaluation with this step or label; None where they are missing or not readable."""
    for evaluation in reversed(history.evaluations):
        sets = evaluation.get("per_problem")
        if isinstance(sets, Mapping) and name in sets and all(evaluation.get(key) == value for key, value in wanted.items()):
            try:
                return ProblemVerdicts.from_json(sets[name])
            except (KeyError, TypeError, ValueError, AttributeError):
                return None
    return None


def list_points(history: History, measure: str) -> dict[str, list[EvaluationPoint]]:
    """Set -> its evaluations in order. Evaluations carry intervals; pass@1 of a bare metric row gets +- 0.025."""
    points: dict[str, dict[int, EvaluationPoint]] = {}
    there = set().union(*history.rows) if measure == "pass@1" else set()
    for name in sorted(name for name in there if name.startswith("eval/") and name.endswith("/pass@1")):
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
                # Without an interval, because the problems are too few for one, nothing is said to have fallen.
                ends = (-math.inf, math.inf) if low is None or high is None else (low, high)
                points.setdefault(name, {})[step] = EvaluationPoint(step, value, *ends)
    return {name: [found[step] for step in sorted(found)] for name, found in points.items() if len(found) > 1}


def mean_reward_near(history: History, step: int) -> float | None:
    """Mean reward of the steps around one step."""
    near = [row for row in history.rows if abs(int(row.get("step", 0)) - max(step, 1)) < PATIENCE]
    values = history.read_values("reward/mean", near)
    return fmean(values) if values else None


# -- pass@k against pass@1 ---------------------------------------------------------------------------------------------


def check_pass_at_k_falls(history: History) -> Finding | None:
    """Of many tries fewer problems are solved than before training, while a single try is right as often or more often.

    Before against after alone: looks on the way are many, and one of many tests of noise comes out.
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
            rates, variant = (
                (mean_pass_rates(before, after, 1), mean_pass_rates(before, after, k)),
                "rose" if one.verdict == "rose" else "",
            )
            facts = {"name": name, "k": k, "sureness": many.sureness, "kl_coef": history.quote_setting("algorithm.kl_coef")}
            return write_finding("pass_at_k_falls", "warning", variant=variant, one=rates[0], many=rates[1], **facts)
    return None


def mean_pass_rates(before: ProblemVerdicts, after: ProblemVerdicts, k: int) -> tuple[float, float]:
    """pass@k before and after, on the problems that have enough verdicts on both sides."""
    left, right = before.success_rates(k), after.success_rates(k)
    common = left.keys() & right.keys()
    return fmean(left[place] for place in common), fmean(right[place] for place in common)
