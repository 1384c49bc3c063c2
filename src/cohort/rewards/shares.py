"""Completions judged by several processes: who judges which, and what all of them said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.base.world import World
from cohort.rewards.contract import Verdicts
from cohort.types import Prompt


@dataclass(frozen=True)
class JudgedShare:
    """What the parts said of one process's share of the completions."""

    verdicts: list[Verdicts]
    """One for each part."""
    answers: list[str | None]
    failed_extracts: int


def find_own_rows(world: World, prompts: Sequence[Prompt]) -> slice:
    """The completions that this process judges: whole groups, whose prompts stand beside each other."""
    starts = [row for row, prompt in enumerate(prompts) if row == 0 or prompt is not prompts[row - 1]] + [len(prompts)]
    block = world.block(len(starts) - 1)
    return slice(starts[block.start], starts[block.stop])


def join_verdicts(shares: Sequence[Verdicts]) -> Verdicts:
    """What one part said of all completions, from what it said of each share of them, in their order."""
    if len(shares) == 1:
        return shares[0]
    logged: dict[str, list[float]] = {}
    for share in shares:
        for name, values in share.logged.items():
            logged.setdefault(name, []).extend(values)
    return Verdicts(
        entries=[entry for share in shares for entry in share.entries],
        logged=logged,
        dropped=sum(share.dropped for share in shares),
        retry_detail=next((share.retry_detail for share in shares if share.retry_detail), ""),
        seconds=max(share.seconds for share in shares),
        retried=sum(share.retried for share in shares),
        stopped_early=any(share.stopped_early for share in shares),
    )
