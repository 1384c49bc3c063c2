"""Seconds, waiting and tokens by rank: which rank the others wait for, and why. No torch.

    record = make_record(world.rank, host, laps, memory)       # one per rank and step; together they are a line of ranks.jsonl
    row |= make_rank_metrics(records, row)

Ranks synchronise several times a step, and faster ranks wait for the slowest (`World.waited`). A rank's work is its seconds minus its
waiting, and the slowest rank is the one with the most work: the others wait for about the difference. Waiting inside a collective (gathering
sharded weights) counts as work, since a rank cannot distinguish it from the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from cohort.base.stopwatch import Laps
from cohort.base.text import shorten_text, write_percent, write_seconds
from cohort.observe.perf import STAGE_OF, Stage, drop_first_step

Line = Mapping[str, Any]
"""A step in ranks.jsonl: {"step": 3, "ranks": [one record per rank]}."""

NOTICED = 0.05
"""Share of the time by which the slowest rank must exceed the others to be named."""
EXPLAINED = 0.5
"""Share of the difference that more tokens must explain to count as its cause."""
WRITING = ("observe", "checkpoint")
"""Stages in which only the main rank writes to the run folder."""
LONGEST_HOST = 60
"""Characters shown of a host name."""
CAUSES = {
    "main": "it is the main rank, which writes to the run folder while the others wait",
    "tokens": "it has more tokens to process",
    "reward": "its reward functions are slower",
    "place": "its device or host is slower",
}
DEALT = dict.fromkeys(("rollout", "reward"), "rollout") | dict.fromkeys(
    ("old", "reference", "teacher", "critic", "update"), "update"
)
"""Stage -> the stage whose tokens measure a rank's share of the work."""


def make_record(rank: int, host: str, laps: Laps, memory_gib: float) -> dict[str, Any]:
    """The record of one rank for a step, as plain JSON."""
    times = {"seconds": laps.seconds, "waited": laps.waited}
    rounded = {name: {stage: round(value, 6) for stage, value in by_stage.items()} for name, by_stage in times.items()}
    return {"rank": rank, "host": host, **rounded, "tokens": laps.tokens, "memory_gib": round(memory_gib, 4)}


@dataclass
class RankTime:
    """The work and waiting of a rank in one or more steps."""

    rank: int
    host: str
    work: dict[str, float] = field(default_factory=dict)
    """Seconds by stage, excluding waiting."""
    waited: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    memory_gib: float = 0.0

    @property
    def worked(self) -> float:
        return sum(self.work.values())

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
    """The values that are valid counts or times."""
    return {stage: float(value) for stage, value in by_stage.items() if isinstance(value, int | float) and 0 <= value < 1e15}


def add_up_ranks(lines: Sequence[Line]) -> list[RankTime]:
    """Every rank over these steps, in order; [] if a line is malformed, as in an edited file."""
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
    """The steps with as many ranks as the last step, without the first step, which is slower."""
    counts = [len(ranks) if isinstance(ranks := line.get("ranks"), list) else 0 for line in lines]
    return drop_first_step([line for line, count in zip(lines, counts, strict=True) if count == counts[-1]])


# -- the slowest -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slowest:
    """The rank with the most work, compared with the others."""

    time: RankTime
    stage: Stage
    """The stage with most of the difference."""
    behind: float
    """Seconds of work beyond the mean of the others."""
    behind_in_stage: float
    explained: float | None
    """Share of `behind_in_stage` that its additional tokens explain; None if the stage has no tokens."""
    share: float
    """`behind` as a share of all its seconds."""


def find_slowest(times: Sequence[RankTime]) -> Slowest | None:
    """The slowest of several ranks; None if there is only one, or nothing was timed."""
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
    explained = 1.0 if own and not usual else None  # the others had nothing to do
    if usual and more[stage] > 0:
        explained = min(1.0, max(0.0, (own / usual - 1) * (slowest.work[stage] - more[stage]) / more[stage]))
    return Slowest(slowest, STAGE_OF[stage], behind, more[stage], explained, behind / (slowest.worked + slowest.waited))


def make_rank_metrics(records: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a step about the balance between ranks."""
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


# -- summaries ---------------------------------------------------------------------------------------------------------


def name_cause(rank: int, stage: str, explained: float | None) -> str:
    """Why a rank is slow in a stage; see CAUSES."""
    if rank == 0 and stage in WRITING:
        return "main"
    if explained is not None and explained >= EXPLAINED:
        return "tokens"
    return "reward" if stage == "reward" else "place"


def name_host(time: RankTime) -> str:
    return shorten_text(time.host, LONGEST_HOST, one_line=True)


def describe_ranks(lines: Sequence[Line]) -> str:
    """How long the ranks of a run waited, for which rank and why, in a sentence; "" without several ranks."""
    chosen = choose_lines(lines)
    times = add_up_ranks(chosen)
    slowest, whole = find_slowest(times), sum(time.worked + time.waited for time in times)
    if not slowest or not whole:
        return ""
    waiting = f"{len(times)} ranks waited for each other in {write_percent(sum(t.waited for t in times) / whole)} of their time"
    if slowest.share < NOTICED:
        return f"{waiting}; none is far behind the others"
    return (
        f"{waiting}; rank {slowest.time.rank} is the slowest, by {write_seconds(slowest.behind / len(chosen))} per step, mostly in "
        f"{slowest.stage.subject}: {CAUSES[name_cause(slowest.time.rank, slowest.stage.name, slowest.explained)]}"
    )
