"""The ranks of a run: who waited for whom, and where each one's seconds went."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.base.text import write_percent, write_seconds
from cohort.observe.perf import STAGE_OF
from cohort.observe.report.charts import (
    COLOURS,
    Chart,
    Figure,
    Mark,
    Scale,
    Series,
    draw_chart,
    draw_numbers,
    find_ticks,
    make_mark,
    write_value,
)
from cohort.observe.report.data import RunData
from cohort.observe.report.frame import Cell, Part
from cohort.observe.waiting import RankTime, add_up_ranks, choose_lines, describe_ranks, find_slowest, name_host

MOST_SHOWN = 16
"""Ranks: of more of them those with the most work and, for comparison, the one with the least."""
BAR, GAP = 20, 8
"""Height of a rank's bar, and the room between two."""
WAITING = COLOURS - 1
"""Colour of waiting; the one before is that of all stages that have none of their own."""


def pick_ranks(times: Sequence[RankTime]) -> tuple[Sequence[RankTime], str]:
    """Those that are shown, in their order, and what to say of the others."""
    if len(times) <= MOST_SHOWN:
        return times, ""
    by_work = sorted(times, key=lambda time: -time.worked)
    shown = [*by_work[: MOST_SHOWN - 1], by_work[-1]]
    left_out = f" Of {len(times)} ranks the {MOST_SHOWN - 1} with the most work and the one with the least are shown."
    return sorted(shown, key=lambda time: time.rank), left_out


def show_ranks(run: RunData) -> Part | None:
    """A line for each rank, and the slowest in words."""
    lines = choose_lines(run.ranks)
    times = add_up_ranks(lines)
    slowest = find_slowest(times)
    if slowest is None:
        return None
    shown, left_out = pick_ranks(times)
    most = max(time.worked for time in times)
    several = len({time.host for time in times}) > 1
    rows: list[list[str | Cell]] = []
    for time in shown:
        whole = time.worked + time.waited
        rows.append(
            [
                Cell(
                    str(time.rank),
                    note=name_host(time) if several else "",
                    style="run strong" if time is slowest.time else "run",
                ),
                Cell(write_seconds(time.worked / len(lines)), f"waits {write_percent(time.waited / whole)}" if whole else ""),
                *(f"{time.tokens.get(stage, 0.0) / len(lines):,.0f}" for stage in ("rollout", "update")),
                f"{time.memory_gib:.2f}",
                Cell(style="bar", bar=100 * time.worked / most),
            ]
        )
    heads = ["rank", "work a step", "sampled", "trained", "GiB", Cell(style="bar")]
    where = "" if several else f" All are on {name_host(times[0])}."
    caption = (
        f"Over {len(lines)} steps. Work: seconds without waiting for other ranks; sampled and trained: tokens of a step, prompts included where "
        f"they are run in training; GiB: the most memory held so far.{where}{left_out}"
    )
    said = describe_ranks(run.ranks)
    return "table", "Ranks", heads, rows, caption, f"{said[0].upper()}{said[1:]}."


def list_rank_seconds(time: RankTime, steps: int) -> list[float | str]:
    """Of a rank in a mean step: its work by stage, and its waiting."""
    return [time.name, *(time.work.get(stage, 0.0) / steps for stage in STAGE_OF), time.waited / steps]


def draw_ranks(run: RunData) -> Part | None:
    """A bar for each rank, its work by stage and its waiting; and how the waiting of all went from step to step."""
    lines = choose_lines(run.ranks)
    times = add_up_ranks(lines)
    if find_slowest(times) is None:
        return None
    shown, left_out = pick_ranks(times)
    sums = {stage: sum(time.work.get(stage, 0.0) for time in times) for stage in STAGE_OF}
    large = sorted(sums, key=lambda stage: -sums[stage])[: WAITING - 1]
    named = [stage for stage in STAGE_OF if stage in large and sums[stage]]
    longest = max(time.worked + time.waited for time in times) / len(lines)
    bottom = len(shown) * (BAR + GAP)
    scale = Scale(0.0, longest, 0.0, 1.0, left=62.0, top=0.0, bottom=float(bottom))
    marks: list[Mark] = []
    for place, time in enumerate(shown):
        y = float(place * (BAR + GAP))
        marks.append(make_mark("text", "tick", time.name, x=scale.left - 8, y=y + BAR / 2 + 4, text_anchor="end"))
        parts = [(stage, time.work.get(stage, 0.0), f"area c{colour}") for colour, stage in enumerate(named)]
        parts.append(
            ("other stages", sum(time.work.values()) - sum(seconds for _, seconds, _ in parts), f"area c{WAITING - 1}")
        )
        parts.append(("waiting", time.waited, f"band c{WAITING}"))
        begin = 0.0
        for label, seconds, style in parts:
            seconds /= len(lines)
            left, right = scale.x(begin), scale.x(begin + seconds)
            told = f"{time.name}, {label}: {write_seconds(seconds)} a step"
            if right - left >= 0.1:
                marks.append(make_mark("rect", style, told, x=left, y=y, width=right - left, height=float(BAR)))
            begin += seconds
    marks += draw_numbers(scale, [(tick, f"{write_value(tick)} s") for tick in find_ticks(0.0, longest, 6)])
    legend = [*enumerate(named), (WAITING - 1, "other stages"), (WAITING, "waiting")]
    words = "; ".join(
        f"{time.name} works {write_seconds(time.worked / len(lines))} and waits {write_seconds(time.waited / len(lines))}"
        for time in shown
    )
    caption = f"Seconds of a step, the mean of {len(lines)} steps. Pale: waiting until the last rank had come.{left_out}"
    figure = Figure(
        "Seconds by rank and stage", caption, f"Seconds by rank and stage: {words}", marks, legend,
        numbers=(["rank", *STAGE_OF, "waiting"], [list_rank_seconds(time, len(lines)) for time in shown]), height=bottom + 30,
    )  # fmt: skip
    waiting = Series("waiting, all ranks", run.find_series("ranks/wait_share"))
    told = "Share of all ranks' seconds that were spent until the last of them had come."
    charts = [draw_chart(Chart("Waiting", told, (waiting,), share=True))] if waiting.points else []
    return "figures", "Work and waiting of the ranks", [figure, *charts]
