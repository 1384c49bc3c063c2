"""From the verdicts of the parts to outcomes and metrics."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from cohort.base.text import make_writable
from cohort.errors import RewardError
from cohort.rewards.contract import Bound, Verdicts
from cohort.rewards.entries import LARGEST, RewardEntry, Steps
from cohort.types import Outcome

SUM_FAULT = "sum:nan"
"""The parts can be used, and their weighted sum, or a weighted step, is no number or too large a one."""


def sum_parts(
    bound: Sequence[Bound], decisive: int, by_row: Iterable[Sequence[RewardEntry]], lengths: Sequence[int]
) -> list[Outcome]:
    """What all parts together say of each completion of so many characters; `decisive` is the part that decides success."""
    names, weights = [one.name for one in bound], [one.part.weight for one in bound]
    threshold = bound[decisive].part.threshold
    # A part of weight 0 is watched, not paid: its word does not make a score of what the others abstained on.
    counts = [bool(weight) or not any(weights) for weight in weights]
    outcomes = []
    for entries, length in zip(by_row, lengths, strict=True):
        values = [entry.value for entry in entries]
        faults = [f"{name}:{entry.fault}" for name, entry in zip(names, entries, strict=True) if entry.fault]
        spoken = [
            weight * value for weight, value, paid in zip(weights, values, counts, strict=True) if value is not None and paid
        ]
        scored = bool(spoken) and not (faults and any(entry.is_broken for entry in entries))
        reward = sum(spoken) if scored else None
        steps = merge_steps(bound, entries, length) if scored else ()
        if reward is not None and not (abs(reward) <= LARGEST and all(abs(weighted) <= LARGEST for _, weighted in steps)):
            reward, steps, faults = None, (), [*faults, SUM_FAULT]
        deciding = entries[decisive]
        outcomes.append(
            Outcome(
                parts=dict(zip(names, values, strict=True)),
                reward=reward,
                # Running into the limit is never a success, even where the threshold is 0.
                success=None if deciding.value is None else deciding.fault is None and deciding.value >= threshold,
                faults=tuple(faults),
                extras=merge_extras(names, entries),
                steps=steps,
            )
        )
    return outcomes


def add_answers(outcomes: Sequence[Outcome], answers: Sequence[str | None]) -> list[Outcome]:
    """The outcomes with what was extracted, as a file can hold it."""
    return [
        outcome if answer is None else replace(outcome, answer=make_writable(answer))
        for outcome, answer in zip(outcomes, answers, strict=True)
    ]


def merge_steps(bound: Sequence[Bound], entries: Sequence[RewardEntry], length: int) -> Steps:
    """Weighted step rewards of all parts by position, parts in the order of the recipe where positions are equal.

    A part that gave one number has judged the whole completion: it is one more step, at the end. Without a part that
    gave steps there is no process to supervise, and none are made up.
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
    """RewardError where the step has lost too many completions, whichever part loses them: it names who failed on the most.

    A completion is lost once, however many parts failed on it.
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
    faults, who, detail = max(blames, key=lambda blame: len(blame[0]))
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(Counter(faults).items(), key=str))
    at_least = "at least " if any(verdict.stopped_early for verdict in verdicts) else ""
    together = "" if len(lost) == len(faults) else f", all parts together on {len(lost)}"
    shown = f" The first:\n{detail}" if detail else ""
    problem = RewardError(
        f"{who} failed on {at_least}{len(faults)} of {count} completions ({kinds}){together}, more than "
        f"the {max_share:.0%} a step may lose.{shown}"
    )
    problem.outcomes = outcomes
    raise problem


def fails_everywhere(outcomes: Sequence[Outcome], rows: Sequence[int]) -> bool:
    """Whether a function failed on every row, and no completion of any row succeeded; rows[i] is the row of outcomes[i]."""
    failed = {row for row, outcome in zip(rows, outcomes, strict=True) if outcome.faults}
    return failed == set(rows) and not any(outcome.success for outcome in outcomes)


def merge_extras(names: Sequence[str], entries: Sequence[RewardEntry]) -> dict[str, Any]:
    """What all parts logged of one completion, as a file can hold it: a function may quote anything."""
    extras: dict[str, Any] = {}
    for name, entry in zip(names, entries, strict=True):
        if entry.word:
            extras[f"{name}/verdict"] = entry.word
        for column, value in entry.extras.items():
            extras[f"{name}/{column}" if column in extras else column] = value
    return dict(make_writable(extras)) if extras else extras


def measure_rewards(
    bound: Sequence[Bound], outcomes: Sequence[Outcome], verdicts: Sequence[Verdicts], failed_extracts: int
) -> dict[str, float]:
    """Means of nothing are left out. Standard deviations are those of the population, as in the advantages."""
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
    words = Counter(entry.word for entry in entries if entry.word)
    metrics |= {f"{area}/verdict/{word}": float(count) for word, count in sorted(words.items())}
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
    # math.dist scales before it squares, so that large rewards do not overflow.
    return {f"{area}/mean": mean, f"{area}/std": math.dist(values, [mean] * len(values)) / math.sqrt(len(values))}
