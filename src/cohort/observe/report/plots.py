"""The drawings of a report: curves, histograms of rewards and lengths, and the ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from cohort.base.text import write_percent, write_seconds
from cohort.observe.perf import STAGE_OF, measure_stages
from cohort.observe.ranks import RankTime, add_up_ranks, choose_lines, describe_ranks, find_slowest, name_host
from cohort.observe.report.charts import (
    COLOURS,
    Chart,
    Figure,
    Mark,
    Scale,
    Series,
    draw_chart,
    draw_grid,
    draw_numbers,
    find_ticks,
    make_mark,
    write_value,
)
from cohort.observe.report.data import RunData, as_dict, as_number
from cohort.observe.report.frame import Cell, Part
from cohort.observe.rollouts import list_kept_steps


def show_charts(title: str, charts: Sequence[Chart]) -> Part | None:
    """A section of those charts that have something to show."""
    drawings = [draw_chart(chart) for chart in charts if not chart.empty]
    return ("figures", title, drawings) if drawings else None


def list_charts(run: RunData) -> list[Chart]:
    """Every chart of the page; one without points is left out."""

    def lines(**names: str) -> tuple[Series, ...]:
        return tuple(Series(label.replace("_", " "), run.find_series(name)) for label, name in names.items())

    reward = lines(reward="reward/mean", success="reward/success")
    if reward[0].points and reward[0].points == reward[1].points:  # one of two identical lines would hide the other
        reward = (Series("reward = success", reward[0].points),)
    parts = sorted({m[1] for name in run.metric_names if (m := re.fullmatch(r"reward/([^/]+)/mean", name))})
    part_lines = tuple(Series(part, run.find_series(f"reward/{part}/mean")) for part in parts) if len(parts) > 1 else ()
    written = run.find_setting("algorithm", "data") in ("demonstrations", "pairs")
    return [
        Chart("Held-out pass@1", f"{describe_problems(run)}; bars are 95 % intervals.", list_held_out(run), share=True),
        Chart("Reward and success", "Of the training completions. Thick lines are moving averages.", reward),
        Chart("Parts of the reward", "Mean of each reward function before weighting.", part_lines),
        Chart("Where the signal is", "Useful groups hold completions with different rewards; only they teach.", lines(useful_groups="advantage/useful_groups", distinct_completions="rollout/distinct"), share=True),
        Chart("KL to the reference", "Summed over a completion. Beyond 5 to 10 nats, read the completions.", lines(KL_per_completion="loss/kl_per_completion"), unit="nats"),
        Chart("Gap to the teacher", "Reverse KL per token, estimated on the policy's own completions.", lines(gap="teacher/gap"), unit="nats"),
        Chart("Gradient coefficient", "How hard tokens are pushed up (above 0) or down: 5th percentile, mean and 95th percentile.", lines(p95="loss/coefficient_p95", mean="loss/coefficient_mean", p05="loss/coefficient_p05")),
        Chart("Loss", "Of demonstrations or pairs; for sampled completions the loss says nothing about progress.", lines(loss="loss/total") if written else ()),
        Chart("Preferences", "Pairs whose chosen completion gained on the rejected one.", lines(preferred="loss/preferred"), share=True),
        Chart("Critic", "Share of the variance of returns that the critic explains.", lines(explained_variance="critic/explained_variance")),
        Chart("Learned reward", "How well the reward model's scores agree with the verifier on training completions (AUC).", lines(agreement="reward/verifier_agreement"), share=True),
        Chart("Entropy", "Per token. A collapse means that exploration has stopped.", lines(entropy="loss/entropy"), unit="nats"),
        Chart("Completion length", "Tokens the policy sampled, stop token included.", lines(mean="rollout/length_mean", longest="rollout/length_max"), unit="tokens"),
        Chart("Cut completions", "Ended at max_completion_tokens instead of a stop token.", lines(truncated="rollout/truncated"), share=True),
        Chart("Step time by stage", "Seconds, stacked. What each stage does is in the table below.", list_stage_series(run), stacked=True, unit="s"),
        Chart("Throughput", "Sampled tokens over the time of the whole step.", lines(tokens_per_second="perf/tokens_per_second"), unit="tok/s"),
        Chart("Gradient norm", "Before clipping. 0 means that no group had different rewards.", lines(gradient_norm="optim/grad_norm")),
        Chart("Learning rate", "Of the last optimizer step.", lines(learning_rate="optim/learning_rate"), smooth=False),
    ]  # fmt: skip


def list_stage_series(run: RunData) -> tuple[Series, ...]:
    """The largest stages in the order of a step, and all others in one: more layers than colours cannot be told apart."""
    times = measure_stages(run.rows)
    shown = sorted(times, key=lambda time: -time.total)[: COLOURS - 1]
    series = [Series(time.stage.name, run.find_series(f"time/{time.stage.name}")) for time in times if time in shown]
    rest: dict[float, float] = {}
    for time in times:
        if time not in shown:
            for step, seconds in run.find_series(f"time/{time.stage.name}"):
                rest[step] = rest.get(step, 0.0) + seconds
    return (*series, Series("others", sorted(rest.items()))) if rest else tuple(series)


def describe_problems(run: RunData) -> str:
    """Whether the points are about the same problems: looks while training may use fewer of them than the ends."""
    counts: dict[str, set[float]] = {}
    for evaluation in run.evaluations:
        for name, numbers in as_dict(evaluation.get("sets")).items():
            counts.setdefault(str(name), set()).add(as_number(as_dict(numbers).get("problems")) or 0.0)
    if any(len(found) > 1 for found in counts.values()):
        return "Same sampling noise at every evaluation; those while training use fewer of the problems"
    return "Same problems and same sampling noise at every evaluation"


def list_held_out(run: RunData) -> tuple[Series, ...]:
    """pass@1 of every set over steps, with intervals where all points have one."""
    points: dict[str, dict[float, tuple[float, float | None, float | None]]] = {}
    for name in sorted(run.metric_names):
        if match := re.fullmatch(r"eval/(.+)/pass@1", name):
            points[match[1]] = {step: (value, None, None) for step, value in run.find_series(name)}
    for evaluation in run.evaluations:
        for name, numbers in as_dict(evaluation.get("sets")).items():
            one = as_dict(as_dict(numbers).get("pass@1"))
            step, value = as_number(evaluation.get("step")), as_number(one.get("value"))
            if step is not None and value is not None:
                points.setdefault(str(name), {})[step] = (value, as_number(one.get("low")), as_number(one.get("high")))
    series = []
    for name, found in points.items():
        ordered = sorted(found.items())
        intervals = [(low, high) for _, (_, low, high) in ordered if low is not None and high is not None]
        whole = intervals if len(intervals) == len(ordered) else []
        series.append(Series(name, [(step, value) for step, (value, _, _) in ordered], whole, marks=True))
    return tuple(series)


# -- histograms --------------------------------------------------------------------------------------------------------

STEPS = 10
"""Steps on each side at most; a run of fewer than twice as many is cut in halves."""
BARS = 20
FEW = 12
"""A quantity of so few different values has a bar for each, and no ranges."""
WIDEST = 60
"""Of a bar, in the units of the drawing."""


@dataclass(frozen=True)
class Side:
    """The values of some steps, and what they are called."""

    label: str
    values: Sequence[float]


def draw_histograms(run: RunData) -> Part | None:
    """The section of a report; None where a run kept no completions of two steps."""
    steps = list_kept_steps(run.folder.rollouts)
    count = min(STEPS, len(steps) // 2)
    if not count:
        return None
    sides = [
        (label, run.read_completions(part, ("reward", "length")))
        for label, part in ((f"first {count} kept steps", steps[:count]), (f"last {count}", steps[-count:]))
    ]
    drawn = []
    for title, caption, column in (
        ("Rewards", "Of single completions, before and after most of the training.", "reward"),
        ("Lengths", "Tokens of single completions. A bar at the right end is the limit that cuts them.", "length"),
    ):
        found = [
            Side(label, [value for row in rows if (value := as_number(row.get(column))) is not None]) for label, rows in sides
        ]
        if all(side.values for side in found):
            drawn.append(draw_histogram(title, caption, found))
    return ("figures", "Completions by reward and length", drawn) if drawn else None


# -- bins --------------------------------------------------------------------------------------------------------------


def find_edges(sides: Sequence[Side]) -> tuple[list[float], list[float]]:
    """(round borders of the bars, what is written below them); one bar for each value where there are few of them."""
    values = sorted({value for side in sides for value in side.values})
    gap = min((b - a for a, b in pairwise(values)), default=1.0)
    if len(values) <= FEW and (values[-1] - values[0]) / gap <= BARS:
        count = round((values[-1] - values[0]) / gap)
        return [values[0] + (i - 0.5) * gap for i in range(count + 2)], values
    round_ones = find_ticks(values[0], values[-1], BARS)
    step = round_ones[1] - round_ones[0] if len(round_ones) > 1 else (values[-1] - values[0]) / BARS
    first = math.floor(values[0] / step) * step
    count = math.floor((values[-1] - first) / step + 1e-9) + 1
    edges = [first + i * step for i in range(count + 1)]
    return edges, find_ticks(edges[0], edges[-1], 6)


def count_shares(side: Side, edges: Sequence[float]) -> list[float]:
    """Share of the values between each two borders."""
    width, last = edges[1] - edges[0], len(edges) - 2
    counts = [0] * (last + 1)
    for value in side.values:
        counts[min(last, max(0, math.floor((value - edges[0]) / width + 1e-9)))] += 1
    return [count / len(side.values) for count in counts]


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw_histogram(title: str, caption: str, sides: Sequence[Side]) -> Figure:
    """A bar per side in every bin. Each bar says its range and share; the whole says the medians."""
    edges, values = find_edges(sides)
    shares = [count_shares(side, edges) for side in sides]
    top = next((top for top in (0.1, 0.25, 0.5, 1.0) if max(map(max, shares)) <= top), 1.0)
    scale = Scale(edges[0], edges[-1], 0.0, top)
    width = min((scale.x(edges[1]) - scale.x(edges[0])) / len(sides), WIDEST)
    marks = [*draw_grid(scale, [(tick, write_value(tick, share=True)) for tick in find_ticks(0.0, top, 5)])]
    marks += draw_numbers(scale, [(value, write_value(value)) for value in values])
    for index, side in enumerate(sides):
        for share, (low, high) in zip(shares[index], pairwise(edges), strict=True):
            if share:
                left, y = (scale.x(low) + scale.x(high)) / 2 + (index - 1) * width, scale.y(share)
                place = {"x": left + 0.5, "y": y, "width": max(1.0, width - 1), "height": scale.bottom - y}
                told = f"{side.label}: {100 * share:.1f} % from {low:.4g} to {high:.4g}"
                marks.append(make_mark("rect", f"area c{index}", told, **place))
    medians = "; ".join(f"{side.label}: median {median(side.values):.4g} of {len(side.values)}" for side in sides)
    where = ("left", "right") if len(sides) == 2 else ("",) * len(sides)  # not by colour alone
    legend = [
        (index, f"{side.label} ({word})" if word else side.label)
        for index, (side, word) in enumerate(zip(sides, where, strict=True))
    ]
    told = f"{caption} {medians[0].upper()}{medians[1:]}."
    heads = ["from", "to", *(side.label for side in sides)]
    rows = [[low, high, *found] for (low, high), *found in zip(pairwise(edges), *shares, strict=True)]
    return Figure(title, told, f"{title}, {medians}", marks, legend, numbers=(heads, rows))


# -- ranks -------------------------------------------------------------------------------------------------------------

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
