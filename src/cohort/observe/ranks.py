"""Seconds, waiting and tokens by rank: which one the others wait for, and why. No torch.

    record = make_record(world.rank, host, laps, memory)       # each rank's own, once a step; all of them are a line of ranks.jsonl
    row |= make_rank_metrics(records, row)

Ranks meet several times a step, and whoever is early waits until the last has come (`World.waited`). So a rank's work is its seconds
without its waiting, and the slowest rank is the one with the most of it: the others wait for about as long as it has more than they
have. Waiting inside of a collective (the gathering of sharded weights) counts as work: no rank can tell it from the transfer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from cohort.base.stopwatch import Laps
from cohort.base.text import shorten_text, write_count, write_percent, write_seconds
from cohort.observe.perf import STAGE_OF, Stage, drop_first_step

Line = Mapping[str, Any]
"""A step in ranks.jsonl: {"step": 3, "ranks": [a record of each rank]}."""

NOTICED = 0.05
"""Share of the time that the slowest rank must have more than the others to be named."""
EXPLAINED = 0.5
"""Share of the difference that more tokens must account for to be its cause."""
WRITING = ("observe", "checkpoint")
"""Stages in which the main rank writes to the run folder, and the others do not."""
LONGEST_HOST = 60
"""Characters of a host's name that are shown."""
DEALT = dict.fromkeys(("rollout", "reward"), "rollout") | dict.fromkeys(
    ("old", "reference", "teacher", "critic", "update"), "update"
)
"""Stage -> the stage whose tokens say how much of it was a rank's to do."""


def make_record(rank: int, host: str, laps: Laps, memory_gib: float) -> dict[str, Any]:
    """What one rank tells of its step: plain JSON."""
    seconds, waited = (
        {stage: round(value, 6) for stage, value in by_stage.items()} for by_stage in (laps.seconds, laps.waited)
    )
    return {
        "rank": rank,
        "host": host,
        "seconds": seconds,
        "waited": waited,
        "tokens": laps.tokens,
        "memory_gib": round(memory_gib, 4),
    }


@dataclass
class RankTime:
    """A rank in one step, or in several together."""

    rank: int
    host: str
    work: dict[str, float] = field(default_factory=dict)
    """Seconds by stage, without waiting."""
    waited: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    memory_gib: float = 0.0

    @property
    def worked(self) -> float:
        return sum(self.work.values())

    @property
    def name(self) -> str:
        return f"rank {self.rank}"

    def add(self, record: Mapping[str, Any]) -> None:
        waited = keep_numbers(record["waited"])
        for stage, seconds in keep_numbers(record["seconds"]).items():
            if stage in STAGE_OF:
                self.work[stage] = self.work.get(stage, 0.0) + max(0.0, seconds - waited.get(stage, 0.0))
        for stage, tokens in keep_numbers(record["tokens"]).items():
            self.tokens[stage] = self.tokens.get(stage, 0.0) + tokens
        self.waited += sum(waited.values())
        self.memory_gib = max(self.memory_gib, *keep_numbers({"": record["memory_gib"]}).values(), 0.0)


def keep_numbers(by_stage: Mapping[str, Any]) -> dict[str, float]:
    """Without what is no count and no time."""
    return {stage: float(value) for stage, value in by_stage.items() if isinstance(value, int | float) and 0 <= value < 1e15}


def add_up_ranks(lines: Sequence[Line]) -> list[RankTime]:
    """Every rank over these steps, in their order. [] where a line is of another form, as in a file that was edited."""
    times: dict[int, RankTime] = {}
    try:
        for line in lines:
            for record in line["ranks"]:
                rank = int(record["rank"])
                times.setdefault(rank, RankTime(rank, str(record["host"]))).add(record)
    except (LookupError, TypeError, ValueError, AttributeError):
        return []
    return [times[rank] for rank in sorted(times)]


def choose_lines(lines: Sequence[Line]) -> Sequence[Line]:
    """The steps that speak of the ranks as they are now: as many as in the last step, and without the first one, as everywhere."""
    now = [line for line in lines if count_ranks(line) == count_ranks(lines[-1])] if lines else []
    return drop_first_step(now)


def count_ranks(line: Line) -> int:
    ranks = line.get("ranks")
    return len(ranks) if isinstance(ranks, list) else 0


# -- the slowest -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slowest:
    """The rank with the most work, held against the others."""

    time: RankTime
    stage: Stage
    """Where most of the difference arises."""
    behind: float
    """Seconds of work more than the mean of the others."""
    behind_in_stage: float
    tokens: float | None
    """Its tokens of that stage, as a multiple of the others' mean; None where the stage deals none."""
    explained: float | None
    """Share of `behind_in_stage` that they account for: they would take the others so much longer."""
    share: float
    """`behind` as a share of all its seconds."""


def find_slowest(times: Sequence[RankTime]) -> Slowest | None:
    """None where there is nobody to compare with, or no second was measured."""
    if len(times) < 2 or not any(time.worked for time in times):
        return None
    slowest = max(times, key=lambda time: time.worked)
    others = [time for time in times if time is not slowest]
    more = {stage: seconds - fmean(time.work.get(stage, 0.0) for time in others) for stage, seconds in slowest.work.items()}
    stage = max(more, key=lambda stage: more[stage])
    behind = slowest.worked - fmean(time.worked for time in others)
    dealt = DEALT.get(stage, "")
    usual = fmean(time.tokens.get(dealt, 0.0) for time in others)
    own = slowest.tokens.get(dealt, 0.0)
    tokens = own / usual if usual else math.inf if own else None
    explained = None
    if tokens == math.inf:  # the others had nothing to do
        explained = 1.0
    elif tokens is not None and more[stage] > 0:
        explained = min(1.0, max(0.0, (tokens - 1) * (slowest.work[stage] - more[stage]) / more[stage]))
    return Slowest(slowest, STAGE_OF[stage], behind, more[stage], tokens, explained, behind / (slowest.worked + slowest.waited))


def make_rank_metrics(records: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, float]:
    """The few numbers of a step's row that say how the ranks went together."""
    times = add_up_ranks([{"ranks": records}])
    slowest = find_slowest(times)
    whole = sum(time.worked + time.waited for time in times)
    metrics = {
        "ranks/count": float(len(times)),
        "ranks/wait_share": sum(time.waited for time in times) / whole if whole else 0.0,
    }
    if slowest:
        metrics |= {
            "ranks/slowest": float(slowest.time.rank),
            "ranks/behind": slowest.behind,
            f"ranks/behind/{slowest.stage.name}": slowest.behind_in_stage,
        }
        if slowest.explained is not None:
            metrics["ranks/explained_by_tokens"] = slowest.explained
    tokens, seconds = row.get("rollout/tokens") or row.get("loss/trained_tokens", 0), row.get("time/step", 0)
    if tokens and seconds:
        metrics["ranks/tokens_per_second"] = tokens / seconds / len(times)
    return metrics


# -- in words ----------------------------------------------------------------------------------------------------------


def name_cause(rank: int, stage: str, explained: float | None) -> str:
    """Why a rank is slow in a stage: "main" (it writes), "tokens" (it has more to do), "reward" (its reward functions take longer on no
    more), or "place" (its host or device is slower)."""
    if rank == 0 and stage in WRITING:
        return "main"
    if explained is not None and explained >= EXPLAINED:
        return "tokens"
    return "reward" if stage == "reward" else "place"


def name_host(time: RankTime) -> str:
    return shorten_text(time.host, LONGEST_HOST, one_line=True)


def explain_slowest(slowest: Slowest, times: Sequence[RankTime]) -> str:
    """Why it is the slowest, as far as the numbers say."""
    stage, host, tokens = slowest.stage.name, slowest.time.host, slowest.tokens
    cause = name_cause(slowest.time.rank, stage, slowest.explained)
    if cause == "main":
        return "it is the main rank, and writes to the run folder while the others stand by"
    if tokens == math.inf:
        return "all tokens were dealt to it, and the others had none to work on"
    if cause == "tokens":
        return f"{write_percent((tokens or 1.0) - 1)} more tokens were dealt to it than to the others on average"
    no_more = (
        "" if tokens is None else " and tokens do not explain it" if tokens > 1.1 else " with no more tokens than the others"
    )
    here = [time.work.get(stage, 0.0) for time in times if time.host == host]
    elsewhere = [time.work.get(stage, 0.0) for time in times if time.host != host]
    if elsewhere and min(here) > max(elsewhere):
        return f"its host {name_host(slowest.time)} is slower{no_more}, for all {write_count(len(here), 'rank')} on it"
    return (
        f"its reward functions take longer{no_more}" if cause == "reward" else f"it is slower{no_more}, so look at its device"
    )


def describe_ranks(lines: Sequence[Line]) -> str:
    """The ranks of a run in a sentence or two: how much they wait, for whom, and why. "" without several ranks."""
    chosen = choose_lines(lines)
    times = add_up_ranks(chosen)
    slowest, whole = find_slowest(times), sum(time.worked + time.waited for time in times)
    if not slowest or not whole:
        return ""
    waiting = f"{write_count(len(times), 'rank')} waited for each other in {write_percent(sum(t.waited for t in times) / whole)} of their time"
    if slowest.share < NOTICED:
        return f"{waiting}; none of them is far behind the others"
    return (
        f"{waiting}; {slowest.time.name} is the slowest, by {write_seconds(slowest.behind / len(chosen))} a step, "
        f"mostly in {slowest.stage.subject}: {explain_slowest(slowest, times)}"
    )
