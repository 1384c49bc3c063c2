"""From the verdicts of the parts to outcomes and metrics."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cohort.base.text import writable
from cohort.rewards.call import LARGEST, LIMIT_KINDS, Steps
from cohort.rewards.contract import Bound, Verdicts
from cohort.types import Outcome

SUM_FAULT = "sum:nan"
"""The parts can be used, and their weighted sum, or a weighted step, is no number or too large a one."""


def outcome_of(bound: Sequence[Bound], decisive: int, row: int, length: int, verdicts: Sequence[Verdicts]) -> Outcome:
    """What all parts together say of one completion of `length` characters; `decisive` is the part that decides success."""
    faults = [f"{one.name}:{v.faults[row]}" for one, v in zip(bound, verdicts, strict=True) if v.faults[row]]
    # A part of weight 0 is watched, not paid: its word does not make a score of what the others abstained on.
    pays = any(one.part.weight for one in bound)
    spoken = [
        one.part.weight * value
        for one, v in zip(bound, verdicts, strict=True)
        if (value := v.values[row]) is not None and (one.part.weight or not pays)
    ]
    scored = bool(spoken) and all(v.faults[row] in (None, *LIMIT_KINDS) for v in verdicts)
    reward = sum(spoken) if scored else None
    steps = () if reward is None else merged_steps(bound, row, length, verdicts)
    if reward is not None and not all(abs(value) <= LARGEST for value in (reward, *(weighted for _, weighted in steps))):
        reward, steps, faults = None, (), [*faults, SUM_FAULT]
    deciding = verdicts[decisive]
    value = deciding.values[row]
    if value is None:
        success = None
    else:  # running into the limit is never a success, even where the threshold is 0
        success = deciding.faults[row] is None and value >= bound[decisive].part.threshold
    return Outcome(
        parts={one.name: v.values[row] for one, v in zip(bound, verdicts, strict=True)},
        reward=reward,
        success=success,
        faults=tuple(faults),
        extras=extras_of(bound, row, verdicts),
        steps=steps,
    )


def with_answers(outcomes: Sequence[Outcome], answers: Sequence[str | None]) -> list[Outcome]:
    """With what was extracted, as a file can hold it."""
    return [replace(outcome, answer=writable(answer)) for outcome, answer in zip(outcomes, answers, strict=True)]


def merged_steps(bound: Sequence[Bound], row: int, length: int, verdicts: Sequence[Verdicts]) -> Steps:
    """Weighted step rewards of all parts by position, parts in the order of the recipe where positions are equal.

    A part that gave one number has judged the whole completion: it is one more step, at the end. Without a part that
    gave steps there is no process to supervise, and none are made up.
    """
    if all(verdict.steps[row] is None for verdict in verdicts):
        return ()
    merged: list[tuple[int, float]] = []
    for one, verdict in zip(bound, verdicts, strict=True):
        value, steps = verdict.values[row], verdict.steps[row]
        if steps is None:
            steps = () if value is None else ((length, value),)
        merged += [(position, one.part.weight * reward) for position, reward in steps]
    return tuple(sorted(merged, key=lambda step: step[0]))


@dataclass(frozen=True)
class Blame:
    """One part (or the sum of all), and the completions it could not score."""

    who: str
    rows: list[int]
    kinds: str
    detail: str


def faulty_rows(outcomes: Sequence[Outcome], verdicts: Sequence[Verdicts]) -> set[int]:
    """Completions on which any part, or the sum, was at fault. One is lost once, however many parts failed on it."""
    overflowed = {row for row, outcome in enumerate(outcomes) if SUM_FAULT in outcome.faults}
    return overflowed.union(*(verdict.broken for verdict in verdicts))


def worst_blame(bound: Sequence[Bound], outcomes: Sequence[Outcome], verdicts: Sequence[Verdicts]) -> Blame:
    """Whoever failed on the most completions."""
    blames = []
    for one, verdict in zip(bound, verdicts, strict=True):
        kinds = Counter(verdict.faults[row] for row in verdict.broken)
        listed = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items(), key=str))
        first = min(verdict.details, default=None)
        blames.append(
            Blame(f"reward {one.name!r}", verdict.broken, listed, verdict.details[first] if first is not None else "")
        )
    overflowed = [row for row, outcome in enumerate(outcomes) if SUM_FAULT in outcome.faults]
    if overflowed:
        parts = ", ".join(f"{name} {value!r}" for name, value in outcomes[overflowed[0]].parts.items())
        detail = f"the weighted sum of {parts}, or one of its weighted steps, is not a number of at most {LARGEST:g}."
        blames.append(Blame("the sum of the rewards", overflowed, f"nan {len(overflowed)}", detail))
    return max(blames, key=lambda blame: len(blame.rows))


def extras_of(bound: Sequence[Bound], row: int, verdicts: Sequence[Verdicts]) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    for one, verdict in zip(bound, verdicts, strict=True):
        if verdict.words[row]:
            extras[f"{one.name}/verdict"] = verdict.words[row]
        for column, value in verdict.extras[row].items():
            extras[f"{one.name}/{column}" if column in extras else column] = value
    return dict(writable(extras))  # what a function logs may quote anything


def reward_metrics(
    bound: Sequence[Bound], outcomes: Sequence[Outcome], verdicts: Sequence[Verdicts], failed_extracts: int
) -> dict[str, float]:
    """Means of nothing are left out. Standard deviations are those of the population, as in the advantages."""
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    successes = [float(outcome.success) for outcome in outcomes if outcome.success is not None]
    metrics: dict[str, float] = {**mean_and_std("reward", rewards)}
    if successes:
        metrics["reward/success"] = statistics.fmean(successes)
    metrics["reward/unscored"] = float(len(outcomes) - len(rewards))
    metrics["reward/faults"] = float(sum(len(v.broken) for v in verdicts) + sum(SUM_FAULT in o.faults for o in outcomes))
    metrics["reward/timeouts"] = float(sum(v.timeouts for v in verdicts))
    metrics["reward/failed_extracts"] = float(failed_extracts)
    for one, verdict in zip(bound, verdicts, strict=True):
        area = f"reward/{one.name}"
        own = {
            **mean_and_std(area, [value for value in verdict.values if value is not None]),
            f"{area}/none": float(sum(v is None and f is None for v, f in zip(verdict.values, verdict.faults, strict=True))),
            f"{area}/faults": float(len(verdict.broken)),
            f"{area}/timeouts": float(verdict.timeouts),
            f"{area}/retried": float(verdict.retried),
            f"{area}/seconds": verdict.seconds,
        }
        own |= {f"{area}/verdict/{word}": float(count) for word, count in sorted(Counter(filter(None, verdict.words)).items())}
        counts = [len(steps) for steps in verdict.steps if steps is not None]
        if counts:
            own[f"{area}/steps"] = statistics.fmean(counts)
        if verdict.dropped:
            own[f"{area}/dropped_logs"] = float(verdict.dropped)
        for name, values in verdict.logged.items():
            key = f"{area}/{writable(name)}"
            own[f"{key}_logged" if key in own else key] = statistics.fmean(values)
        metrics.update(own)
    return metrics


def mean_and_std(area: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    mean = statistics.fmean(values)
    # math.dist scales before it squares, so that large rewards do not overflow.
    return {f"{area}/mean": mean, f"{area}/std": math.dist(values, [mean] * len(values)) / math.sqrt(len(values))}
