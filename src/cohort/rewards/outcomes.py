"""Outcomes and metrics, from the verdicts of all parts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cohort.base.text import make_writable
from cohort.errors import RewardError
from cohort.rewards.call import LARGEST, RewardEntry, Steps
from cohort.rewards.contract import Bound, Verdicts
from cohort.types import Completion, Outcome

SUM_FAULT = "sum:nan"
"""The parts are usable, but their weighted sum, or a weighted step, is not finite or too large."""


def sum_parts(
    bound: Sequence[Bound],
    decisive: int,
    by_row: Iterable[Sequence[RewardEntry]],
    completions: Sequence[Completion],
    answers: Sequence[str | None],
) -> list[Outcome]:
    """One outcome per completion, from all parts' entries. The part `decisive` decides success; `answers` were extracted by it."""
    names, weights = [one.name for one in bound], [one.part.weight for one in bound]
    threshold = bound[decisive].part.threshold
    # A part of weight 0 is only observed: its value does not score a completion on which the other parts have no opinion.
    counts = [bool(weight) or not any(weights) for weight in weights]
    outcomes = []
    for entries, completion, answer in zip(by_row, completions, answers, strict=True):
        values = [entry.value for entry in entries]
        faults = [f"{name}:{entry.fault}" for name, entry in zip(names, entries, strict=True) if entry.fault]
        terms = [
            weight * value
            for weight, value, counted in zip(weights, values, counts, strict=True)
            if value is not None and counted
        ]
        scored = bool(terms) and not (faults and any(entry.is_broken for entry in entries))
        reward = sum(terms) if scored else None
        steps = merge_steps(bound, entries, len(completion.text)) if scored else ()
        if reward is not None and not (abs(reward) <= LARGEST and all(abs(weighted) <= LARGEST for _, weighted in steps)):
            reward, steps, faults = None, (), [*faults, SUM_FAULT]
        deciding = entries[decisive]
        outcomes.append(
            Outcome(
                parts=dict(zip(names, values, strict=True)),
                reward=reward,
                # Hitting a limit is never a success, even with threshold 0.
                success=None if deciding.value is None else deciding.fault is None and deciding.value >= threshold,
                faults=tuple(faults),
                extras=merge_extras(names, entries),
                steps=steps,
                answer=None if answer is None else make_writable(answer),
            )
        )
    return outcomes


def merge_steps(bound: Sequence[Bound], entries: Sequence[RewardEntry], length: int) -> Steps:
    """Weighted step rewards of all parts by position; for equal positions, in the order of the recipe.

    A part that returned one number counts as one more step, at the end. Without any part that returned steps the result is empty.
    """
    if all(entry.steps is None for entry in entries):
        return ()
    merged: list[tuple[int, float]] = []
    for one, entry in zip(bound, entries, strict=True):
        whole = () if entry.value is None else ((length, entry.value),)
        merged += [(position, one.part.weight * reward) for position, reward in entry.steps or whole]
    return tuple(sorted(merged, key=lambda step: step[0]))


def list_overflowed(outcomes: Sequence[Outcome]) -> list[int]:
    return [row for row, outcome in enumerate(outcomes) if SUM_FAULT in outcome.faults]


def check_faults(bound: Sequence[Bound], outcomes: Sequence[Outcome], verdicts: Sequence[Verdicts], max_share: float) -> None:
    """Raise RewardError if the step has too many unscored completions; the message names the part with the most faults.

    A completion counts once, however many parts failed on it.
    """
    overflowed, count = list_overflowed(outcomes), len(outcomes)
    lost = set(overflowed).union(*(verdict.broken for verdict in verdicts))
    if len(lost) <= max_share * count:
        return
    blames = [
        ([verdict.entries[row].fault for row in verdict.broken], f"reward {one.name!r}", verdict.detail)
        for one, verdict in zip(bound, verdicts, strict=True)
    ]
    if overflowed:
        parts = ", ".join(f"{name} {value!r}" for name, value in outcomes[overflowed[0]].parts.items())
        detail = f"the weighted sum of {parts}, or one of its weighted steps, is not a number of at most {LARGEST:g}."
        blames.append((["nan"] * len(overflowed), "the sum of the rewards", detail))
    faults, culprit, detail = max(blames, key=lambda blame: len(blame[0]))
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(Counter(faults).items(), key=str))
    at_least = "at least " if any(verdict.stopped_early for verdict in verdicts) else ""
    together = "" if len(lost) == len(faults) else f", all parts together on {len(lost)}"
    shown = f" The first:\n{detail}" if detail else ""
    problem = RewardError(
        f"{culprit} failed on {at_least}{len(faults)} of {count} completions ({kinds}){together}, more than "
        f"the {max_share:.0%} that train.max_fault_share allows in a step.{shown}"
    )
    problem.outcomes = outcomes
    raise problem


def fails_everywhere(outcomes: Sequence[Outcome], rows: Sequence[int]) -> bool:
    """Whether a function failed on every row, and no completion of any row succeeded; rows[i] is the row of outcomes[i]."""
    failed = {row for row, outcome in zip(rows, outcomes, strict=True) if outcome.faults}
    return failed == set(rows) and not any(outcome.success for outcome in outcomes)


def merge_extras(names: Sequence[str], entries: Sequence[RewardEntry]) -> dict[str, Any]:
    """The values that all parts logged about one completion, made writable to a file: a function may log any text."""
    extras: dict[str, Any] = {}
    for name, entry in zip(names, entries, strict=True):
        if entry.verdict:
            extras[f"{name}/verdict"] = entry.verdict
        for column, value in entry.extras.items():
            extras[f"{name}/{column}" if column in extras else column] = value
    return dict(make_writable(extras)) if extras else extras


def measure_rewards(
    bound: Sequence[Bound], outcomes: Sequence[Outcome], verdicts: Sequence[Verdicts], failed_extracts: int
) -> dict[str, float]:
    """The metrics of the rewards. Means of no values are omitted; standard deviations are population ones, as in the advantages."""
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    successes = [float(outcome.success) for outcome in outcomes if outcome.success is not None]
    metrics: dict[str, float] = {**mean_and_std("reward", rewards)}
    if successes:
        metrics["reward/success"] = statistics.fmean(successes)
    metrics["reward/unscored"] = float(len(outcomes) - len(rewards))
    metrics["reward/faults"] = float(sum(len(v.broken) for v in verdicts) + len(list_overflowed(outcomes)))
    metrics["reward/timeouts"] = float(sum(v.timeouts for v in verdicts))
    metrics["reward/failed_extracts"] = float(failed_extracts)
    for one, verdict in zip(bound, verdicts, strict=True):
        metrics |= measure_part(f"reward/{one.name}", verdict)
    return metrics


def measure_part(area: str, verdict: Verdicts) -> dict[str, float]:
    entries = verdict.entries
    metrics = {
        **mean_and_std(area, [entry.value for entry in entries if entry.value is not None]),
        f"{area}/none": float(sum(entry.value is None and entry.fault is None for entry in entries)),
        f"{area}/faults": float(len(verdict.broken)),
        f"{area}/timeouts": float(verdict.timeouts),
        f"{area}/retried": float(verdict.retried),
        f"{area}/seconds": verdict.seconds,
    }
    counted = Counter(entry.verdict for entry in entries if entry.verdict)
    metrics |= {f"{area}/verdict/{name}": float(count) for name, count in sorted(counted.items())}
    if counts := [len(entry.steps) for entry in entries if entry.steps is not None]:
        metrics[f"{area}/steps"] = statistics.fmean(counts)
    if verdict.dropped:
        metrics[f"{area}/dropped_logs"] = float(verdict.dropped)
    for name, values in verdict.logged.items():
        key = f"{area}/{make_writable(name)}"
        metrics[f"{key}_logged" if key in metrics else key] = statistics.fmean(values)
    return metrics


def mean_and_std(area: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    mean = statistics.fmean(values)
    # math.dist scales before squaring, so large rewards do not overflow.
    return {f"{area}/mean": mean, f"{area}/std": math.dist(values, [mean] * len(values)) / math.sqrt(len(values))}
