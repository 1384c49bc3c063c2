"""Signs of reward hacking in the rollouts of one step: metrics, and rollouts as evidence. No torch.

    signs = find_signs(batch.rollouts)
    row |= signs.metrics                    # rollout/length_right, rollout/shared_rewarded, reward/inconsistent and so on
    row["evidence"] = signs.evidence        # {"shared": {"row": 17, "text": "...", ...}, "wrong_long": {...}, ...}

The checks that read both are in hacking.py. Rows are numbered within the step, as in rollouts/step-<N>.parquet. Texts are shortened and
printable, since the policy's output must not control a terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

from cohort.base.text import shorten_text
from cohort.observe.diagnosis.finding import FAILURE_WORDS
from cohort.observe.diagnosis.shared_string import find_shared_string, simplify_answer
from cohort.types import Rollout

PROMPT_SHOWN, COMPLETION_SHOWN, STRING_SHOWN, ROWS_SHOWN = 60, 120, 80, 5
NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,15})?")
ROUNDED = 0.02
"""Relative difference up to which two numbers count as equal after rounding."""


@dataclass(frozen=True, slots=True)
class Signs:
    metrics: dict[str, float]
    evidence: dict[str, Any] = field(default_factory=dict)
    """Examples by kind, as plain JSON: see `show_rollouts`."""


def find_signs(rollouts: Sequence[Rollout]) -> Signs:
    """The signs in the rollouts of one step; none without verdicts (demonstrations, pairs)."""
    judged = [row for row, rollout in enumerate(rollouts) if rollout.outcome.success is not None]
    if not judged:
        return Signs({})
    metrics: dict[str, float] = {}
    evidence: dict[str, Any] = {}
    by_success: dict[bool, dict[int, int]] = {True: {}, False: {}}
    for row in judged:
        by_success[bool(rollouts[row].outcome.success)][row] = rollouts[row].completion.length
    for success, lengths in by_success.items():
        if lengths:
            metrics[f"rollout/length_{'right' if success else 'wrong'}"] = fmean(lengths.values())
        if lengths and not success:
            longest = max(lengths, key=lengths.__getitem__)
            evidence["wrong_long"] = show_rollouts(rollouts, [longest], tokens=lengths[longest])
    shared = find_shared_string(rollouts)
    metrics["rollout/shared_rewarded"] = shared.share if shared else 0.0
    if shared:
        facts = asdict(shared) | {"text": shorten_text(shared.text, STRING_SHOWN, one_line=True)}
        evidence["shared"] = show_rollouts(rollouts, facts.pop("rows"), **facts)
    for name, share, rows in (
        ("rollout/other_number", *find_other_numbers(rollouts, judged)),
        ("reward/inconsistent", *find_inconsistent_rewards(rollouts)),
    ):
        if share is not None:
            metrics[name] = share
        if rows:
            evidence[name.rpartition("/")[2]] = show_rollouts(rollouts, rows)
    return Signs(metrics, evidence | show_failures(rollouts) | show_favourites(rollouts, judged))


def find_other_numbers(rollouts: Sequence[Rollout], judged: Sequence[int]) -> tuple[float | None, list[int]]:
    """(share of successes whose extracted answer is another number than the reference answer, their rows).

    Only plain numbers are compared, because expressions need a verifier.
    """
    pairs = {row: read_numbers(rollouts[row]) for row in judged if rollouts[row].outcome.success}
    known = {row: numbers for row, numbers in pairs.items() if numbers}
    other = [row for row, (given, reference) in known.items() if not math.isclose(given, reference, rel_tol=ROUNDED)]
    return (len(other) / len(known) if known else None), other


def read_numbers(rollout: Rollout) -> tuple[float, float] | None:
    """(extracted answer, reference answer) if both are plain numbers."""
    texts = [
        simplify_answer(str(text)) for text in (rollout.outcome.answer, rollout.prompt.reference_answer) if text is not None
    ]
    given = [float(text) for text in texts if NUMBER.fullmatch(text)]
    return (given[0], given[1]) if len(given) == 2 else None


def find_inconsistent_rewards(rollouts: Sequence[Rollout]) -> tuple[float | None, list[int]]:
    """(share of the sets of identical completions in a group whose rewards differ, rows of the first such set).

    Rewards differ if by more than a tenth of the standard deviation of all rewards of the step, which excludes rounding.
    """
    rewards = {row: reward for row, rollout in enumerate(rollouts) if (reward := rollout.outcome.reward) is not None}
    copies: dict[tuple[int, str], list[int]] = {}
    for row in rewards:
        copies.setdefault((rollouts[row].group, rollouts[row].completion.text), []).append(row)
    sets = [rows for rows in copies.values() if len(rows) > 1]
    if not sets:
        return None, []
    mean = fmean(rewards.values())
    least = 0.1 * math.sqrt(fmean((reward - mean) ** 2 for reward in rewards.values()))
    differ = [rows for rows in sets if max(rewards[row] for row in rows) - min(rewards[row] for row in rows) > least]
    return len(differ) / len(sets), differ[0] if differ else []


def show_rollouts(rollouts: Sequence[Rollout], rows: Sequence[int], **facts: Any) -> dict[str, Any]:
    """An excerpt of the first of these rows, the numbers of the first few rows, and further facts."""
    rollout = rollouts[rows[0]]
    content = rollout.prompt.content
    prompt = content if isinstance(content, str) else str(content[-1].get("content", "")) if content else ""
    return {
        "row": rows[0],
        "rows": list(rows[:ROWS_SHOWN]),
        "prompt": shorten_text(prompt, PROMPT_SHOWN, one_line=True),
        "completion": shorten_text(rollout.completion.text, COMPLETION_SHOWN, one_line=True),
        **facts,
    }


def show_failures(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Completions on which the verifier failed, for the two most frequent kinds of failure, the highest rewards first."""
    kinds: dict[str, list[int]] = {}
    for row, rollout in enumerate(rollouts):
        for kind in dict.fromkeys(name_failures(rollout)):
            kinds.setdefault(kind, []).append(row)
    found: dict[str, Any] = {}
    for kind, rows in islice(sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])), 2):
        rewards = {row: rollouts[row].outcome.reward or 0.0 for row in rows}
        best = sorted(rows, key=lambda row: -rewards[row])
        passed = sum(rollouts[row].outcome.success is True for row in rows)
        found[f"failed/{kind}"] = show_rollouts(rollouts, best, count=len(rows), passed=passed, reward=rewards[best[0]])
    return found


def name_failures(rollout: Rollout) -> Iterable[str]:
    """`part/word` for every failure of a verifier on one completion."""
    for column, word in rollout.outcome.extras.items():
        if column.endswith("/verdict") and word in FAILURE_WORDS:
            yield f"{column.removesuffix('/verdict')}/{word}"
    for fault in rollout.outcome.faults:
        part, _, kind = fault.rpartition(":")
        if kind in FAILURE_WORDS:
            yield f"{part}/{kind}"


def show_favourites(rollouts: Sequence[Rollout], judged: Sequence[int]) -> dict[str, Any]:
    """The completion with the highest reward, and for each part the failure that it scores highest."""
    found: dict[str, Any] = {}
    rewards = {row: reward for row in judged if (reward := rollouts[row].outcome.reward) is not None}
    if rewards:
        best = max(rewards, key=lambda row: rewards[row])
        found["best"] = show_rollouts(rollouts, [best], reward=rewards[best])
    names = sorted({name for row in judged for name in rollouts[row].outcome.parts})
    for name in names if len(names) > 1 else ():
        values = {
            row: value
            for row in judged
            if not rollouts[row].outcome.success and (value := rollouts[row].outcome.parts.get(name)) is not None
        }
        if values:
            liked = max(values, key=lambda row: values[row])
            found[f"part/{name}"] = show_rollouts(rollouts, [liked], value=values[liked])
    return found
