"""The page: verdict, before/after, findings, plots, completions, recipe, next steps. Every text from the run is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import median
from typing import Any

from cohort.evaluation.estimators import why_no_interval
from cohort.observe.changes import change_style, describe_change, percent, spoken
from cohort.observe.diagnosis.checks import diagnose
from cohort.observe.perf import drop_first_step, measure_stages, seconds_of
from cohort.observe.report.charts import COLOURS, Chart, Series, figure
from cohort.observe.report.completions import completions
from cohort.observe.report.data import RunData, as_dict, number
from cohort.observe.report.ends import failure, next_steps, recipe
from cohort.observe.report.frame import frame, text
from cohort.observe.report.histograms import histograms


def render(run: RunData) -> str:
    sections = (header, failure, facts, before_after, findings, plots, histograms, timing, completions, recipe, next_steps)
    return frame(f"{run.name} · Cohort report", sections, run)


# ---------------------------------------------------------------------------------------------------------------------
# The top: what happened
# ---------------------------------------------------------------------------------------------------------------------


def header(run: RunData) -> str:
    sentence, detail = verdict(run)
    model = as_dict(run.recipe.get("model")).get("source")
    algorithm = as_dict(run.recipe.get("algorithm")).get("name")
    words = [f"<span>{text(word)}</span>" for word in (algorithm, model, run.last_written) if word]
    return (
        f'<header><div class="top"><h1>{text(run.name)}</h1><span class="badge {run.status}">{run.status}</span>{"".join(words)}</div>'
        f'<p class="verdict">{text(sentence)}</p><p class="sub">{text(detail)}</p>{algorithm_line(run)}</header>'
    )


def algorithm_line(run: RunData) -> str:
    """What the name of the algorithm stands for, what the recipe changed of it, and why the run ended early if it did."""
    return "".join(f'<p class="sub">{text(line)}</p>' for line in run.lines_below() if line)


def verdict(run: RunData) -> tuple[str, str]:
    """One sentence anybody understands, and one that says how sure it is."""
    before, after = run.numbers("before"), run.numbers("after")
    for name, numbers in after.items():
        a, b = value_of(before.get(name), "pass@1"), value_of(numbers, "pass@1")
        if a is not None and b is not None:
            return compared(run, name, a, b)
        if b is not None:
            return f"pass@1 on {spoken(name)} is {percent(b)} after training.", "It was not measured before training."
    for name, numbers in before.items():
        start = value_of(numbers, "pass@1")
        if start is not None:
            sentence = f"Training started from a pass@1 of {percent(start)} on {spoken(name)}."
            return sentence, progress(run, f"There is no final evaluation yet{latest(run, name)}")
    if run.rows:
        return progress(
            run, "Nothing was evaluated on held-out problems"
        ), "Training reward alone does not show that a task is learned."
    return "No training step has been written yet.", "This page fills up as the run goes on: write it again with cohort report."


def compared(run: RunData, name: str, a: float, b: float) -> tuple[str, str]:
    sentence, sure = describe_change(name, "pass@1", a, b, run.change(name))
    return sentence, f"{sure}{length(run)}."


def latest(run: RunData, name: str) -> str:
    """The newest look while training, with its number of problems: it may be a part of the set."""
    for evaluation in reversed(run.evaluations):
        numbers = as_dict(as_dict(evaluation.get("sets")).get(name))
        value, problems = value_of(numbers, "pass@1"), number(numbers.get("problems"))
        if evaluation.get("label") == "during" and value is not None:
            count = f", on {problems:.0f} problems" if problems else ""
            return f" (at step {evaluation['step']}: {percent(value)}{count})"
    return ""


def progress(run: RunData, lead: str) -> str:
    rewards = [value for _, value in run.series("reward/mean")]
    if not rewards:
        return f"{lead}."
    tail = rewards[-10:]
    head = rewards[:10]
    return f"{lead}; over {run.steps} steps the training reward went from {sum(head) / len(head):.3g} to {sum(tail) / len(tail):.3g}."


def length(run: RunData) -> str:
    return f", after {run.steps} steps" + (f" and {duration(run.seconds)}" if run.seconds else "")


def facts(run: RunData) -> str:
    """The handful of numbers worth a glance."""
    planned = as_dict(run.recipe.get("train")).get("num_steps")
    steps = f"{run.steps} of {planned}" if isinstance(planned, int) and planned > run.steps else str(run.steps)
    cards = [("steps", steps)]
    if run.seconds:
        cards.append(("time", duration(run.seconds)))
    for label, name, write in (
        ("training success", "reward/success", percent),
        ("useful groups", "advantage/useful_groups", percent),
        ("completion length", "rollout/length_mean", lambda v: f"{v:.0f} tokens"),
        ("throughput", "perf/tokens_per_second", written_rate),
    ):
        values = [value for _, value in run.series(name)][-10:]
        if values:
            cards.append((label, write(sum(values) / len(values))))
    boxes = "".join(f'<div class="card"><b>{text(value)}</b><span>{text(label)}</span></div>' for label, value in cards)
    recent = '<p class="caption">From training success on: means of the last 10 steps.</p>' if len(run.rows) > 10 else ""
    return f'<div class="facts">{boxes}</div>{recent}'


def before_after(run: RunData) -> str:
    before, after = run.numbers("before"), run.numbers("after")
    names = list(dict.fromkeys([*before, *after]))
    if not names:
        return ""
    rows = []
    for name in names:
        a, b = before.get(name, {}), after.get(name, {})
        problems = number((b or a).get("problems"))
        words = why_no_interval(int(problems)) or f"{problems:.0f} problems" if problems else ""
        count = f"<small>{words}</small>" if words else ""
        rows.append(f'<tr class="set"><td colspan="4">{text(name)}{count}</td></tr>')
        rows += [number_row(run, name, what, as_dict(a.get(what)), as_dict(b.get(what))) for what in measured(a, b)]
    return (
        '<h2>Before and after</h2><div class="card scroll"><table><thead><tr><th>measure</th><th>before</th><th>after</th>'
        f"<th>change</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="caption">Brackets hold 95 % intervals, bootstrapped over problems; a change has a colour where it is clear. pass@k: '
        "at least one of k completions is right; maj@k: the answer most of k agree on is right; greedy: one completion at "
        "temperature 0.</p>"
    )


def measured(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Rows of the table. mean@k is left out: its value is pass@1's."""
    names = [name for name in dict.fromkeys([*a, *b]) if isinstance(a.get(name) or b.get(name), Mapping)]
    return [name for name in names if not name.startswith("mean@")]


def number_row(run: RunData, name: str, what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    share = what != "reward"
    left, right = number(a.get("value")), number(b.get("value"))
    change, style = "", ""
    if left is not None and right is not None:
        change = f"{100 * (right - left):+.1f}" if share else f"{right - left:+.3f}"
        style = change_style(run.change(name, what), a, b)
    reason = a.get("reason") or b.get("reason")
    note = f'<small class="note">{text(reason)}</small>' if reason and left is None and right is None else ""
    return f'<tr><td>{text(what)}{note}</td><td>{with_interval(a, share)}</td><td>{with_interval(b, share)}</td><td class="{style}">{change}</td></tr>'


def with_interval(entry: Mapping[str, Any], share: bool) -> str:
    value, low, high = (number(entry.get(key)) for key in ("value", "low", "high"))
    if value is None:
        return '<span class="none">–</span>'
    if not share:
        return f"{value:.3f}" + (f"<small>[{low:.3f}, {high:.3f}]</small>" if low is not None and high is not None else "")
    return percent(value) + (
        f"<small>[{100 * low:.1f}, {100 * high:.1f}]</small>" if low is not None and high is not None else ""
    )


def findings(run: RunData) -> str:
    found = diagnose(run.rows, run.recipe, run.evaluations, run.own)
    if not found:
        line = "Nothing looks wrong in the numbers." if len(run.rows) >= 5 else "Too few steps to judge."
        return f'<h2>Diagnosis</h2><p class="none">{line}</p>'
    cards = "".join(
        f'<div class="card finding {f.level}"><p><span class="level">{f.level}</span><strong>{text(f.what)}</strong></p>'
        f"<p>{text(f.why)}</p>"
        + (f'<p class="fix">{text(f.fix)}</p>' if f.fix else "")
        + "".join(f'<p class="caption">{text(line)}</p>' for line in f.evidence)
        + "</div>"
        for f in found
    )
    return f'<h2>Diagnosis</h2><div class="findings">{cards}</div>'


# ---------------------------------------------------------------------------------------------------------------------
# Plots
# ---------------------------------------------------------------------------------------------------------------------


def plots(run: RunData) -> str:
    drawn = [figure(chart) for chart in charts_of(run) if not chart.empty]
    return f'<h2>Curves</h2><div class="grid2">{"".join(drawn)}</div>' if drawn else ""


def charts_of(run: RunData) -> list[Chart]:
    def lines(**names: str) -> tuple[Series, ...]:
        return tuple(Series(label.replace("_", " "), run.series(name)) for label, name in names.items())

    reward = lines(reward="reward/mean", success="reward/success")
    if reward[0].points and reward[0].points == reward[1].points:  # one of two identical lines would hide the other
        reward = (Series("reward = success", reward[0].points),)
    parts = sorted({m[1] for row in run.rows for name in row if (m := re.fullmatch(r"reward/([^/]+)/mean", name))})
    part_lines = tuple(Series(part, run.series(f"reward/{part}/mean")) for part in parts) if len(parts) > 1 else ()
    written = as_dict(run.recipe.get("algorithm")).get("data") in ("demonstrations", "pairs")
    return [
        Chart("Held-out pass@1", f"{same_problems(run)}; bars are 95 % intervals.", held_out(run), share=True),
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
        Chart("Step time by stage", "Seconds, stacked. What each stage does is in the table below.", stage_series(run), stacked=True, unit="s"),
        Chart("Throughput", "Sampled tokens over the time of the whole step.", lines(tokens_per_second="perf/tokens_per_second"), unit="tok/s"),
        Chart("Gradient norm", "Before clipping. 0 means that no group had different rewards.", lines(gradient_norm="optim/grad_norm")),
        Chart("Learning rate", "Of the last optimizer step.", lines(learning_rate="optim/learning_rate"), smooth=False),
    ]  # fmt: skip


def stage_series(run: RunData) -> tuple[Series, ...]:
    """The largest stages in the order of a step, and all others in one: more layers than colours cannot be told apart."""
    times = measure_stages(run.rows)
    shown = sorted(times, key=lambda time: -time.total)[: COLOURS - 1]
    series = [Series(time.stage.name, run.series(f"time/{time.stage.name}")) for time in times if time in shown]
    rest: dict[float, float] = {}
    for time in times:
        if time not in shown:
            for step, seconds in run.series(f"time/{time.stage.name}"):
                rest[step] = rest.get(step, 0.0) + seconds
    return (*series, Series("others", sorted(rest.items()))) if rest else tuple(series)


def timing(run: RunData) -> str:
    """Which stage to look at: seconds of the median step and share of all seconds, stage by stage."""
    rows = drop_first_step(run.rows)
    times = measure_stages(rows)
    if not times:
        return ""
    slowest = max(times, key=lambda time: time.share)
    steps = [seconds for row in rows if (seconds := seconds_of(row, "step")) is not None]
    sentence = f"{percent(slowest.share)} of the time of {len(steps)} steps went into {slowest.stage.subject}."
    first = ", the first step left out" if len(rows) < len(run.rows) else ""
    lines = "".join(
        f"<tr><td>{text(time.stage.name)}</td><td>{brief(time.median)}</td><td>{percent(time.share)}</td>"
        f'<td class="bar"><span class="share c0" style="width:{100 * time.share / slowest.share:.1f}%"></span></td>'
        f'<td class="does">{text(time.stage.does)}{rarely(time.steps, len(steps))}</td></tr>'
        for time in times
    )
    return (
        f'<h2>Where the time goes</h2><div class="card scroll"><p>{text(sentence)} {text(slowest.stage.fix)}</p>'
        '<table><thead><tr><th>stage</th><th>median</th><th>share</th><th class="bar"></th><th></th></tr></thead>'
        f'<tbody>{lines}<tr><td>step</td><td>{brief(median(steps))}</td><td></td><td class="bar"></td><td></td></tr></tbody></table></div>'
        f'<p class="caption">Medians over the steps that went through a stage; shares of all seconds{first}. {text(rates(run))}</p>'
    )


def brief(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def rarely(steps: int, of: int) -> str:
    return f" (in {steps} of {of} steps)" if steps < 0.9 * of else ""


def rates(run: RunData) -> str:
    """The perf/ figures of the last steps in one line, those that there are."""
    writers = (
        ("perf/rollout_tokens_per_second", lambda v: f"{written_rate(v)} sampled"),
        ("perf/engine_occupancy", lambda v: f"{percent(v)} of slots decoding"),
        ("perf/executed_tokens_per_second", lambda v: f"{written_rate(v)} run in training"),
        ("perf/update_mfu", lambda v: f"MFU {percent(v)}"),
        ("perf/shared_share", lambda v: f"{percent(v)} of tokens saved by running prompts once"),
        ("perf/skipped_share", lambda v: f"{percent(v)} not run because nothing pushes on them"),
        ("perf/padding_share", lambda v: f"{percent(v)} padding"),
        ("perf/host_share", lambda v: f"{percent(v)} of a step on the host alone"),
        ("perf/peak_memory_gib", lambda v: f"peak memory {v:.2f} GiB"),
    )
    lines = []
    for name, write in writers:
        values = [value for _, value in run.series(name)][-10:]
        if values and any(values):
            lines.append(write(median(values)))
    return f"Last steps: {', '.join(lines)}." if lines else ""


def written_rate(rate: float) -> str:
    return f"{rate / 1000:.1f}k tok/s" if rate >= 1000 else f"{rate:.0f} tok/s"


def same_problems(run: RunData) -> str:
    """Whether the points are about the same problems: looks while training may use fewer of them than the ends."""
    counts: dict[str, set[float]] = {}
    for evaluation in run.evaluations:
        for name, numbers in as_dict(evaluation.get("sets")).items():
            counts.setdefault(str(name), set()).add(number(as_dict(numbers).get("problems")) or 0.0)
    if any(len(found) > 1 for found in counts.values()):
        return "Same sampling noise at every evaluation; those while training use fewer of the problems"
    return "Same problems and same sampling noise at every evaluation"


def held_out(run: RunData) -> tuple[Series, ...]:
    """pass@1 of every set over steps, with intervals where all points have one."""
    points: dict[str, dict[float, tuple[float, float | None, float | None]]] = {}
    for row in run.rows:
        for name in row:
            match = re.fullmatch(r"eval/(.+)/pass@1", name)
            step, value = number(row.get("step")), number(row.get(name))
            if match and step is not None and value is not None:
                points.setdefault(match[1], {})[step] = (value, None, None)
    for evaluation in run.evaluations:
        for name, numbers in as_dict(evaluation.get("sets")).items():
            one = as_dict(as_dict(numbers).get("pass@1"))
            step, value = number(evaluation.get("step")), number(one.get("value"))
            if step is not None and value is not None:
                points.setdefault(str(name), {})[step] = (value, number(one.get("low")), number(one.get("high")))
    series = []
    for name, found in points.items():
        ordered = sorted(found.items())
        intervals = [(low, high) for _, (_, low, high) in ordered if low is not None and high is not None]
        whole = intervals if len(intervals) == len(ordered) else []
        series.append(Series(name, [(step, value) for step, (value, _, _) in ordered], whole, marks=True))
    return tuple(series)


def value_of(numbers: Mapping[str, Any] | None, what: str) -> float | None:
    return number(as_dict((numbers or {}).get(what)).get("value"))


def duration(seconds: float | None) -> str:
    if not seconds or seconds < 60:
        return f"{seconds or 0:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
