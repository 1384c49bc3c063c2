"""Completions that nobody scored, in words; and how many were scored, for every check that counts them. No torch.

A reward function may abstain (return None), and it may fail. Either way the completion is out of every mean, so a run of
which nothing is scored has no bad number anywhere: reward and success are missing, the gradient is 0, and nothing says
whether the prompts are easy or hard. These checks name the missing scores, and the checks about difficulty stay silent then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.algorithms.named import find_named
from cohort.observe.diagnosis.finding import PATIENCE, WINDOW, Finding, History, Row, write_finding

UNSCORED = 0.5
"""Share of the completions without a score from which on it is said. Abstaining on some rows may be meant, so a minority is
not worth a word; from half on, most of the sampling is paid for in vain and every mean speaks of the smaller part."""


def check_unscored(history: History) -> Finding | None:
    """Most completions have no score at all, or most groups too few to compare."""
    if not scores_are_missing(history):
        return None
    rows = choose_recent_rows(history)
    count, completions = count_unscored(history, rows)
    nothing = count >= completions or (compares_in_groups(history) and history.mean_now("advantage/useful_groups") == 0)
    lost = count_groups_without_scores(history, rows)
    return write_finding(
        "unscored",
        "alarm" if nothing else "warning",
        variant="nothing" if nothing else "",
        count=count,
        completions=completions,
        share=count / completions,
        where="the last step" if len(rows) == 1 else f"the last {len(rows)} steps",
        groups=f" {lost:.0f} groups have fewer than two scores, and are left out." if lost >= 1 else "",
        silent=describe_failed_parts(history, rows),
    )


def check_unjudged(history: History) -> Finding | None:
    """Other parts pay, and the part that decides success says nothing."""
    outcome, weights = read_parts(history)
    rows = history.rows[-WINDOW:]
    abstained = history.read_values(f"reward/{outcome}/none", rows)
    completions = history.count_completions(rows)
    if len(weights) < 2 or len(abstained) < PATIENCE or sum(abstained) < UNSCORED * completions or scores_are_missing(history):
        return None
    facts: dict[str, Any] = {"outcome": outcome, "abstained": sum(abstained), "completions": completions, "steps": len(rows)}
    return write_finding("unjudged", "warning", **facts)


def scores_are_missing(history: History) -> bool:
    """Whether so many completions are unscored that nothing about difficulty can be read from the rest."""
    rows = choose_recent_rows(history)
    count, completions = count_unscored(history, rows)
    if not rows or not completions or count <= 0:
        return False
    groups = count_groups(history, rows)
    return count >= UNSCORED * completions or bool(groups and count_groups_without_scores(history, rows) >= UNSCORED * groups)


def choose_recent_rows(history: History) -> list[Row]:
    """The last steps; fewer than PATIENCE of them count only where nothing was scored: that is never the luck of a batch."""
    rows = [row for row in history.rows[-WINDOW:] if history.read_values("reward/unscored", [row])]
    count, completions = count_unscored(history, rows)
    return rows if len(rows) >= PATIENCE or count >= completions else []


def count_unscored(history: History, rows: Sequence[Row]) -> tuple[float, float]:
    """(unscored completions, completions that were to be scored)."""
    return sum(history.read_values("reward/unscored", rows)), history.count_completions(rows)


def count_groups(history: History, rows: Sequence[Row]) -> float:
    group_size = history.read_setting("train.group_size")
    kept = sum(history.read_values("rollout/completions", rows))
    return kept / group_size if isinstance(group_size, int) and group_size > 0 else 0.0


def count_groups_without_scores(history: History, rows: Sequence[Row]) -> float:
    """Groups of the batch that are neither useful nor of equal rewards: fewer than two of their completions were scored.

    0 where the group is not the baseline: one score is enough then.
    """
    lost = 0.0
    for row in rows if compares_in_groups(history) else ():
        found = [history.read_values(f"advantage/{name}", [row]) for name in ("useful_groups", "zero_variance_groups")]
        if all(found):
            (useful,), (equal,) = found
            lost += count_groups(history, [row]) * (1 - useful) - equal
    return max(0.0, lost)


def compares_in_groups(history: History) -> bool:
    name = history.read_setting("algorithm.advantage", "group_normalized")
    return bool(find_named("advantage", name, history.own).traits.compares_group)


def describe_failed_parts(history: History, rows: Sequence[Row]) -> str:
    """The parts that abstained or failed, with how often."""
    said = [
        f"{part} {verb} {count:.0f}"
        for what, verb in (("faults", "failed on"), ("none", "returned None for"))
        for part, count in history.sum_parts(what, rows).items()
        if count > 0
    ]
    return f" {', '.join(sorted(said))}." if said else ""


def read_parts(history: History) -> tuple[str, dict[str, float]]:
    """(name of the outcome part, weight of every part) as the recipe says; ("", {}) where it does not."""
    entries = history.read_setting("rewards")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return "", {}
    named = [(name_part(entry), entry) for entry in entries if isinstance(entry, Mapping)]
    if not named:
        return "", {}
    outcome = next((name for name, entry in named if entry.get("outcome")), named[0][0])
    weights = {name: entry.get("weight", 1.0) for name, entry in named}
    return outcome, {name: float(weight) for name, weight in weights.items() if isinstance(weight, int | float)}


def name_part(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or str(entry.get("function", "")).rsplit(":", 1)[-1].rsplit(".", 1)[-1])
