"""The drawings of a report: curves, histograms of rewards and lengths, and the ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from cohort.base.text import write_percent, write_seconds
from cohort.observe.perf import measure_stages
from cohort.observe.ranks import add_up_ranks, choose_lines, describe_ranks, find_slowest, name_host
from cohort.observe.report.charts import (
    COLOURS,
    Chart,
    Figure,
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
    """A section with the charts that have data."""
    drawings = [draw_chart(chart) for chart in charts if not chart.empty]
    return ("figures", title, drawings) if drawings else None


def list_charts(run: RunData) -> list[Chart]:
    """Every chart of the page; show_charts leaves out those without data."""

    def lines(**names: str) -> tuple[Series, ...]:
        return tuple(Series(label.replace("_", " "), run.find_series(name)) for label, name in names.items())

    reward = lines(reward="reward/mean", success="reward/success")
    if reward[0].points and reward[0].points == reward[1].points:  # one of two identical lines would hide the other
        reward = (Series("reward = success", reward[0].points),)
    parts = sorted({m[1] for name in run.metric_names if (m := re.fullmatch(r"reward/([^/]+)/mean", name))})
    part_lines = tuple(Series(part, run.find_series(f"reward/{part}/mean")) for part in parts) if len(parts) > 1 else ()
    written = run.find_setting("algorithm", "data") in ("demonstrations", "pairs")
    return [
        Chart("Held-out pass@1", "Same random numbers at every evaluation; evaluations during training may use fewer problems. Bars: 95 % intervals.", list_held_out(run), share=True),
        Chart("Reward and success", "On training completions. Thick lines are moving averages.", reward),
        Chart("Parts of the reward", "Mean of each reward function before weighting.", part_lines),
        Chart("Useful groups", "Share of groups whose completions have different rewards: only these groups teach.", lines(useful_groups="advantage/useful_groups", distinct_completions="rollout/distinct"), share=True),
        Chart("KL to the reference", "Summed over each completion. Beyond 5 to 10 nats, read the completions.", lines(KL_per_completion="loss/kl_per_completion"), unit="nats"),
        Chart("Gap to the teacher", "Reverse KL per token, estimated on the policy's own completions.", lines(gap="teacher/gap"), unit="nats"),
        Chart("Gradient coefficient", "How hard the update pushes tokens up (above 0) or down (below 0): 5th percentile, mean and 95th percentile.", lines(p95="loss/coefficient_p95", mean="loss/coefficient_mean", p05="loss/coefficient_p05")),
        Chart("Loss", "On demonstrations or pairs. For sampled completions the loss does not measure progress.", lines(loss="loss/total") if written else ()),
        Chart("Preferences", "Share of pairs whose chosen completion gained probability relative to the rejected one.", lines(preferred="loss/preferred"), share=True),
        Chart("Critic", "Share of the variance of returns that the critic explains.", lines(explained_variance="critic/explained_variance")),
        Chart("Learned reward", "Agreement of the reward model's scores with the verifier on training completions (AUC).", lines(agreement="reward/verifier_agreement"), share=True),
        Chart("Entropy", "Per token. After a collapse the policy stops exploring.", lines(entropy="loss/entropy"), unit="nats"),
        Chart("Completion length", "Sampled tokens, including the stop token.", lines(mean="rollout/length_mean", longest="rollout/length_max"), unit="tokens"),
        Chart("Truncated completions", "Share that reached max_completion_tokens before a stop token.", lines(truncated="rollout/truncated"), share=True),
        Chart("Step time by stage", "Seconds, stacked. The table below describes the stages.", list_stage_series(run), stacked=True, unit="s"),
        Chart("Waiting of ranks", "Share of all ranks' seconds spent waiting for the slowest rank.", lines(waiting="ranks/wait_share"), share=True),
        Chart("Throughput", "Sampled tokens per second of the whole step.", lines(tokens_per_second="perf/tokens_per_second"), unit="tok/s"),
        Chart("Gradient norm", "Before clipping. 0 means that no group had different rewards.", lines(gradient_norm="optim/grad_norm")),
        Chart("Learning rate", "At the last optimizer step.", lines(learning_rate="optim/learning_rate"), smooth=False),
    ]  # fmt: skip


def list_stage_series(run: RunData) -> tuple[Series, ...]:
    """The largest stages in the order of a step, and all others combined, since the number of colours is limited."""
    times = measure_stages(run.rows)
    shown = sorted(times, key=lambda time: -time.total)[: COLOURS - 1]
    series = [Series(time.stage.name, run.find_series(f"time/{time.stage.name}")) for time in times if time in shown]
    rest: dict[float, float] = {}
    for time in times:
        if time not in shown:
            for step, seconds in run.find_series(f"time/{time.stage.name}"):
                rest[step] = rest.get(step, 0.0) + seconds
    return (*series, Series("others", sorted(rest.items()))) if rest else tuple(series)


def list_held_out(run: RunData) -> tuple[Series, ...]:
    """pass@1 of every set over steps, with intervals if all points have one."""
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
"""Steps per side; a run of fewer than twice as many is split in half."""
BARS = 20
FEW = 12
"""Up to this many different values, each value has its own bar."""
WIDEST = 60
"""Largest width of a bar, in pixels."""


def draw_histograms(run: RunData) -> Part | None:
    """Histograms of reward and length, first steps against last steps; None without saved completions of two steps.

    They show what a mean hides: a reward with only two values, or completions that all reach the token limit.
    """
    steps = list_kept_steps(run.folder.rollouts)
    count = min(STEPS, len(steps) // 2)
    if not count:
        return None
    parts = {f"first {count} saved steps": steps[:count], f"last {count}": steps[-count:]}
    sides = {label: run.read_completions(part, ("reward", "length")) for label, part in parts.items()}
    drawn = []
    for title, caption, column in (
        ("Rewards", "Rewards of single completions, early and late in training.", "reward"),
        ("Lengths", "Tokens of single completions. A bar at the right end means truncation at the token limit.", "length"),
    ):
        found = {
            label: [value for row in rows if (value := as_number(row.get(column))) is not None] for label, rows in sides.items()
        }
        if all(found.values()):
            drawn.append(draw_histogram(title, caption, found))
    return ("figures", "Completions by reward and length", drawn) if drawn else None


# -- bins --------------------------------------------------------------------------------------------------------------


def find_edges(sides: Iterable[Sequence[float]]) -> tuple[list[float], list[float]]:
    """(edges of the bars, values of the axis); one bar per value if there are few values, otherwise round edges."""
    values = sorted({value for side in sides for value in side})
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


def count_shares(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Share of the values between each two edges."""
    width, last = edges[1] - edges[0], len(edges) - 2
    counts = [0] * (last + 1)
    for value in values:
        counts[min(last, max(0, math.floor((value - edges[0]) / width + 1e-9)))] += 1
    return [count / len(values) for count in counts]


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw_histogram(title: str, caption: str, sides: Mapping[str, Sequence[float]]) -> Figure:
    """A bar per side in every bin. Bars have their range and share as tooltips; the caption has the medians."""
    edges, values = find_edges(sides.values())
    shares = [count_shares(side, edges) for side in sides.values()]
    top = next((top for top in (0.1, 0.25, 0.5, 1.0) if max(map(max, shares)) <= top), 1.0)
    scale = Scale(edges[0], edges[-1], 0.0, top)
    width = min((scale.x(edges[1]) - scale.x(edges[0])) / len(sides), WIDEST)
    marks = [*draw_grid(scale, [(tick, write_value(tick, share=True)) for tick in find_ticks(0.0, top, 5)])]
    marks += draw_numbers(scale, [(value, write_value(value)) for value in values])
    for index, label in enumerate(sides):
        for share, (low, high) in zip(shares[index], pairwise(edges), strict=True):
            if share:
                left, y = (scale.x(low) + scale.x(high)) / 2 + (index - 1) * width, scale.y(share)
                place = {"x": left + 0.5, "y": y, "width": max(1.0, width - 1), "height": scale.bottom - y}
                tooltip = f"{label}: {100 * share:.1f} % from {low:.4g} to {high:.4g}"
                marks.append(make_mark("rect", f"area c{index}", tooltip, **place))
    medians = "; ".join(f"{label}: median {median(side):.4g} over {len(side)}" for label, side in sides.items())
    # The position too, so that the colour is not the only difference.
    legend = [(index, f"{label} ({('left', 'right')[index]})") for index, label in enumerate(sides)]
    heads = ["from", "to", *sides]
    rows = [[low, high, *found] for (low, high), *found in zip(pairwise(edges), *shares, strict=True)]
    caption = f"{caption} {medians[0].upper()}{medians[1:]}."
    return Figure(title, caption, f"{title}, {medians}", marks, legend, numbers=(heads, rows))


# -- ranks -------------------------------------------------------------------------------------------------------------

MOST_SHOWN = 16
"""Ranks shown; of more, those with the most work and, for comparison, the one with the least."""


def show_ranks(run: RunData) -> Part | None:
    """A table with a row per rank, led by a sentence on the slowest rank."""
    lines = choose_lines(run.ranks)
    times = add_up_ranks(lines)
    slowest = find_slowest(times)
    if slowest is None:
        return None
    shown, left_out = times, ""
    if len(times) > MOST_SHOWN:
        by_work = sorted(times, key=lambda time: -time.worked)
        shown = sorted([*by_work[: MOST_SHOWN - 1], by_work[-1]], key=lambda time: time.rank)
        left_out = f" Shown: the {MOST_SHOWN - 1} of {len(times)} ranks with the most work, and the one with the least."
    most = max(time.worked for time in times)
    several = len({time.host for time in times}) > 1
    rows: list[list[str | Cell]] = []
    for time in shown:
        style, host = "run strong" if time is slowest.time else "run", name_host(time) if several else ""
        whole = time.worked + time.waited
        waits = f"waits {write_percent(time.waited / whole)}" if whole else ""
        tokens = [f"{time.tokens.get(stage, 0.0) / len(lines):,.0f}" for stage in ("rollout", "update")]
        bar = Cell(style="bar", bar=100 * time.worked / most)
        work = Cell(write_seconds(time.worked / len(lines)), waits)
        rows.append([Cell(str(time.rank), note=host, style=style), work, *tokens, f"{time.memory_gib:.2f}", bar])
    heads = ["rank", "work per step", "sampled", "trained", "GiB", Cell(style="bar")]
    where = "" if several else f" All ranks are on {name_host(times[0])}."
    caption = (
        f"Means over {len(lines)} steps. Work: seconds without waiting for other ranks. Sampled and trained: tokens per step; trained tokens "
        f"include prompts that are run. GiB: peak memory.{where}{left_out}"
    )
    return "table", "Ranks", heads, rows, caption, f"{describe_ranks(run.ranks)}."
