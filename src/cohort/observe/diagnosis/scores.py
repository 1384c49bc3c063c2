"""Completions that nobody scored, in words; and how many were scored, for every check that counts them. No torch.

A reward function may abstain (return None), and it may fail. Either way the completion is out of every mean, so a run of
which nothing is scored has no bad number anywhere: reward and success are missing, the gradient is 0, and nothing says
whether the prompts are easy or hard. These checks name the missing scores, and the checks about difficulty stay silent then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.algorithms.named import find_named
from cohort.base.text import write_percent
from cohort.observe.diagnosis.history import PATIENCE, WINDOW, Finding, History, Row

UNSCORED = 0.5
"""Share of the completions without a score from which on it is said. Abstaining on some rows may be meant, so a minority is
not worth a word; from half on, most of the sampling is paid for in vain and every mean speaks of the smaller part."""


def unscored(history: History) -> Finding | None:
    """Most completions have no score at all, or most groups too few to compare."""
    if not scores_are_missing(history):
        return None
    rows = recent(history)
    count, completions = unscored_in(history, rows)
    nothing = count >= completions or (compares_in_groups(history) and history.now("advantage/useful_groups") == 0)
    where = "the last step" if len(rows) == 1 else f"the last {len(rows)} steps"
    lost = without_scores(history, rows)
    groups = f" {lost:.0f} groups have fewer than two scores, and are left out." if lost >= 1 else ""
    return Finding(
        "unscored",
        "alarm" if nothing else "warning",
        f"{count:.0f} of {completions:.0f} completions ({write_percent(count / completions)}) in {where} are unscored "
        f"(reward/unscored).{groups}{who_is_silent(history, rows)}",
        "An unscored completion gives no gradient and is in no mean: "
        + (
            "nothing was learned, and whether the prompts are easy or hard is not known."
            if nothing
            else "reward/mean and reward/success speak of the other ones alone."
        ),
        "Call the reward function by hand on a row of rollouts/. None means no opinion: a wrong answer must score 0.0. Usual "
        "causes are a path through the function without a return, a column of the rows that is missing or has another name, "
        "and exceptions (the `faults` column of rollouts/).",
    )


def unjudged(history: History) -> Finding | None:
    """Other parts pay, and the part that decides success says nothing."""
    outcome, rows = outcome_part(history), history.rows[-WINDOW:]
    abstained = history.values(f"reward/{outcome}/none", rows)
    completions = sum(drawn(row, history.setting("train.group_size")) for row in rows)
    if not outcome or len(abstained) < PATIENCE or scores_are_missing(history) or sum(abstained) < UNSCORED * completions:
        return None
    return Finding(
        "unjudged",
        "warning",
        f"{outcome}, the part that decides success, returned None for {sum(abstained):.0f} of {completions:.0f} completions in the "
        f"last {len(rows)} steps (reward/{outcome}/none).",
        "They are trained on for what the other parts pay, and neither reward/success nor pass@k counts them.",
        f"Let {outcome} return 0.0 for what is wrong, or set outcome = true on the part that judges.",
    )


def scores_are_missing(history: History) -> bool:
    """Whether so many completions are unscored that nothing about difficulty can be read from the rest."""
    rows = recent(history)
    count, completions = unscored_in(history, rows)
    if not rows or not completions or count <= 0:
        return False
    groups = groups_in(history, rows)
    return count >= UNSCORED * completions or bool(groups and without_scores(history, rows) >= UNSCORED * groups)


def recent(history: History) -> list[Row]:
    """The last steps; fewer than PATIENCE of them count only where nothing was scored: that is never the luck of a batch."""
    rows = [row for row in history.rows[-WINDOW:] if history.values("reward/unscored", [row])]
    count, completions = unscored_in(history, rows)
    return rows if len(rows) >= PATIENCE or count >= completions else []


def unscored_in(history: History, rows: Sequence[Row]) -> tuple[float, float]:
    """(unscored completions, completions that were to be scored)."""
    completions = sum(drawn(row, history.setting("train.group_size")) for row in rows)
    return sum(history.values("reward/unscored", rows)), completions


def groups_in(history: History, rows: Sequence[Row]) -> float:
    group_size = history.setting("train.group_size")
    kept = sum(history.values("rollout/completions", rows))
    return kept / group_size if isinstance(group_size, int) and group_size > 0 else 0.0


def without_scores(history: History, rows: Sequence[Row]) -> float:
    """Groups of the batch that are neither useful nor of equal rewards: fewer than two of their completions were scored.

    0 where the group is not the baseline: one score is enough then.
    """
    lost = 0.0
    for row in rows if compares_in_groups(history) else ():
        found = [history.values(f"advantage/{name}", [row]) for name in ("useful_groups", "zero_variance_groups")]
        if all(found):
            (useful,), (equal,) = found
            lost += groups_in(history, [row]) * (1 - useful) - equal
    return max(0.0, lost)


def compares_in_groups(history: History) -> bool:
    name = history.setting("algorithm.advantage", "group_normalized")
    return bool(find_named("advantage", name, history.own).traits.compares_group)


def who_is_silent(history: History, rows: Sequence[Row]) -> str:
    """The parts that abstained or failed, with how often."""
    said = []
    for name in sorted({name for row in rows for name in row if name.startswith("reward/") and name.count("/") == 2}):
        _, part, what = name.split("/")
        count = sum(history.values(name, rows)) if what in ("none", "faults") else 0.0
        if count > 0:
            said.append(f"{part} {'returned None for' if what == 'none' else 'failed on'} {count:.0f}")
    return f" {', '.join(said)}." if said else ""


def outcome_part(history: History) -> str:
    """The part that decides success, where there are others beside it; "" where there are none or the recipe does not say."""
    outcome, weights = parts_of(history)
    return outcome if len(weights) > 1 else ""


def parts_of(history: History) -> tuple[str, dict[str, float]]:
    """(name of the outcome part, weight of every part) as the recipe says; ("", {}) where it does not."""
    entries = history.setting("rewards")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return "", {}
    named = [(part_name(entry), entry) for entry in entries if isinstance(entry, Mapping)]
    if not named:
        return "", {}
    outcome = next((name for name, entry in named if entry.get("outcome")), named[0][0])
    weights = {name: entry.get("weight", 1.0) for name, entry in named}
    return outcome, {name: float(weight) for name, weight in weights.items() if isinstance(weight, int | float)}


def part_name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or str(entry.get("function", "")).rsplit(":", 1)[-1].rsplit(".", 1)[-1])


def drawn(row: Mapping[str, Any], group_size: Any) -> float:
    """Completions that were judged in a step: dynamic sampling judges more than it keeps."""
    groups, kept = row.get("rollout/groups_drawn"), row.get("rollout/completions")
    if isinstance(groups, int | float) and isinstance(group_size, int):
        return float(groups * group_size)
    return float(kept) if isinstance(kept, int | float) else 0.0


SCORE_CHECKS = (unscored, unjudged)
