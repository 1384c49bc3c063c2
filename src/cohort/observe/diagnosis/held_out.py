"""What the evaluations on held-out problems say against the training reward, and against themselves. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from cohort.base.text import write_percent
from cohort.evaluation.evaluate import ProblemVerdicts, compare_set, largest_k
from cohort.observe.diagnosis.hacking import evidence_of
from cohort.observe.diagnosis.history import PATIENCE, Finding, History

RESAMPLES = 10_000
"""As in summary.json, so that both give the same interval."""

Point = tuple[int, float, float, float]
"""(step, value, low, high) of one evaluation."""


def held_out_falls(history: History) -> Finding | None:
    """Held-out pass@1, or reward, below its best by more than chance allows, while the training reward rose."""
    for measure in ("pass@1", "reward"):
        for name, points in held_out_points(history, measure).items():
            best, last = max(points, key=lambda point: point[1]), points[-1]
            if last[0] <= best[0] or not has_fallen(history, name, measure, best, last):
                continue
            rewards = [mean_near(history, step) for step in (best[0], last[0])]
            if rewards[0] is None or rewards[1] is None or rewards[1] <= rewards[0]:
                continue
            write = write_percent if measure == "pass@1" else "{:.2f}".format
            what = "pass@1" if measure == "pass@1" else "the reward"
            return Finding(
                "held_out_falls",
                "alarm",
                f"On {name}, {what} fell from {write(best[1])} at step {best[0]} to {write(last[1])} at step {last[0]}, while the "
                f"training reward rose from {rewards[0]:.2f} to {rewards[1]:.2f}.",
                why_held_out_falls(history, name, measure, best[0], last[0]),
                f"Use the checkpoint near step {best[0]}. Then more prompts, a larger kl_coef, or a stricter reward.",
                evidence_of(history, "best"),
            )
    return None


def why_held_out_falls(history: History, name: str, measure: str, best: int, last: int) -> str:
    """A held-out reward that does not fall with pass@1 rules memory out: the new problems pay just as well."""
    rewards = {step: value for step, value, _, _ in held_out_points(history, "reward").get(name, [])}
    if measure == "pass@1" and best in rewards and last in rewards and rewards[last] >= rewards[best]:
        return (
            f"On the same problems the reward went from {rewards[best]:.2f} to {rewards[last]:.2f}, so it is not a matter of "
            "memorised prompts: the reward can be earned without solving the task."
        )
    return "The policy is getting better at the reward and worse at the task: memorised prompts, or a reward that can be gamed."


def has_fallen(history: History, name: str, measure: str, best: Point, last: Point) -> bool:
    """By the intervals; or, where the verdicts of both are there, problem by problem, which sees more."""
    if last[3] < best[2]:
        return True
    differences = paired_differences(history, name, best[0], last[0]) if measure == "pass@1" else []
    if len(differences) < 20:
        return False
    change, error = fmean(differences), stdev(differences) / math.sqrt(len(differences))
    return change <= -0.02 and change < -3 * error


def paired_differences(history: History, name: str, best: int, last: int) -> list[float]:
    """Change of the success rate of every problem that both evaluations hold."""
    sides = [verdicts_of(history, name, step=step) for step in (best, last)]
    rates = [verdicts.success_rates() if verdicts else {} for verdicts in sides]
    return [rates[1][key] - rates[0][key] for key in rates[0] if key in rates[1]]


def verdicts_of(history: History, name: str, **wanted: Any) -> ProblemVerdicts | None:
    """The verdicts on a set in the newest evaluation with this step or label; None where they are missing or not readable."""
    for evaluation in reversed(history.evaluations):
        sets = evaluation.get("per_problem")
        if isinstance(sets, Mapping) and name in sets and all(evaluation.get(key) == value for key, value in wanted.items()):
            try:
                return ProblemVerdicts.from_json(sets[name])
            except (KeyError, TypeError, ValueError, AttributeError):
                return None
    return None


def held_out_points(history: History, measure: str) -> dict[str, list[Point]]:
    """Set -> its evaluations in order. Evaluations carry intervals; pass@1 of a bare metric row gets +- 0.025."""
    points: dict[str, dict[int, Point]] = {}
    for row in history.rows if measure == "pass@1" else ():
        for name, value in row.items():
            if name.startswith("eval/") and name.endswith("/pass@1") and isinstance(value, int | float):
                step = int(row.get("step", 0))
                points.setdefault(name[5:-7], {})[step] = (step, value, value - 0.025, value + 0.025)
    for evaluation in history.evaluations:
        sets = evaluation.get("sets")
        for name, numbers in sets.items() if isinstance(sets, Mapping) else ():
            one = numbers.get(measure) if isinstance(numbers, Mapping) else None
            if isinstance(one, Mapping) and isinstance(one.get("value"), int | float):
                step, value, low, high = int(evaluation.get("step", 0)), float(one["value"]), one.get("low"), one.get("high")
                # Without an interval, because the problems are too few for one, nothing is said to have fallen.
                ends = (-math.inf, math.inf) if low is None or high is None else (low, high)
                points.setdefault(name, {})[step] = (step, value, *ends)
    return {name: [found[step] for step in sorted(found)] for name, found in points.items() if len(found) > 1}


def mean_near(history: History, step: int) -> float | None:
    """Mean reward of the steps around one step."""
    near = [row for row in history.rows if abs(int(row.get("step", 0)) - max(step, 1)) < PATIENCE]
    values = history.values("reward/mean", near)
    return fmean(values) if values else None


# -- pass@k against pass@1 ---------------------------------------------------------------------------------------------


def pass_at_k_falls(history: History) -> Finding | None:
    """Of many tries fewer problems are solved than before training, while a single try is right as often or more often.

    Before against after alone: looks on the way are many, and one of many tests of noise comes out.
    """
    final: Mapping[str, Any] = history.evaluations[-1] if history.evaluations else {}
    done = max((step for row in history.rows[-1:] if isinstance(step := row.get("step"), int)), default=0)
    sets = final.get("per_problem") if final.get("label") == "after" and int(final.get("step", 0)) >= done else None
    for name in sets if isinstance(sets, Mapping) else ():
        before, after = verdicts_of(history, name, label="before"), verdicts_of(history, name, label="after")
        k = largest_k(before, after) if before and after else 0
        if before is None or after is None or not k:
            continue
        changes = compare_set(before, after, 0, RESAMPLES)
        one, many = changes["pass@1"], changes[f"pass@{k}"]
        if many.verdict == "fell" and one.verdict != "fell":
            return narrowed(
                history, name, k, many.sureness, one.verdict, means_of(before, after, 1), means_of(before, after, k)
            )
    return None


def narrowed(
    history: History, name: str, k: int, sureness: str, verdict: str, one: tuple[float, float], many: tuple[float, float]
) -> Finding:
    rose = f"rose from {write_percent(one[0])} to {write_percent(one[1])}"
    stayed = f"went from {write_percent(one[0])} to {write_percent(one[1])}, no clear change"
    coefficient = history.setting("algorithm.kl_coef")
    now = f" (now {coefficient:g})" if isinstance(coefficient, int | float) else ""
    return Finding(
        "pass_at_k_falls",
        "warning",
        f"On {name}, pass@{k} fell from {write_percent(many[0])} to {write_percent(many[1])} ({sureness}), while pass@1 "
        f"{rose if verdict == 'rose' else stayed}.",
        f"The policy has become surer rather than more able: it repeats what it already solved, and no longer finds, in {k} tries, "
        "answers to problems that it solved now and then. That costs wherever several answers are drawn (a vote, a search, "
        "more training), and nothing where a single one is used.",
        f"Hold it nearer to its start with algorithm.kl_coef{now}, keep it trying with algorithm.entropy_coef or a larger "
        "algorithm.clip_high, use algorithm=maxrl, which puts more weight on problems that are rarely solved, or train fewer steps: "
        "evaluation.every_steps shows where the fall begins.",
    )


def means_of(before: ProblemVerdicts, after: ProblemVerdicts, k: int) -> tuple[float, float]:
    """pass@k before and after, on the problems that have enough verdicts on both sides."""
    left, right = before.success_rates(k), after.success_rates(k)
    common = left.keys() & right.keys()
    return fmean(left[place] for place in common), fmean(right[place] for place in common)


HELD_OUT_CHECKS = (held_out_falls, pass_at_k_falls)
