"""The curves of a report, and the evaluations on the way, as charts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cohort.observe.perf import measure_stages
from cohort.observe.report.charts import COLOURS, Chart, Series, draw_chart
from cohort.observe.report.data import RunData, as_dict, as_number
from cohort.observe.report.frame import Part


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
