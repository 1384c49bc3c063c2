"""The report of a run: verdict, before and after, findings, plots, completions, recipe, next steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from cohort.base.files import write_whole
from cohort.base.text import write_count, write_duration, write_estimate, write_percent, write_rate, write_seconds
from cohort.errors import RunError
from cohort.evaluation.estimators import why_no_interval
from cohort.observe.diagnosis.checks import diagnose
from cohort.observe.outcome import colour_change, describe_change, name_set
from cohort.observe.perf import describe_ahead, drop_first_step, list_seconds, measure_stages
from cohort.observe.report.data import RunData, as_dict, as_number
from cohort.observe.report.frame import Cell, Part, Section, render_page
from cohort.observe.report.plots import draw_histograms, list_charts, show_charts, show_ranks

COMPLETIONS_SHOWN = 3
"""Completions per side of a problem: enough to see whether the policy is consistent."""
STOPPED = {"failed": "The run failed", "interrupted": "The run was interrupted"}
"""Status of a run that ended before its final evaluation -> the beginning of its heading."""


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into the run folder, atomically, and return its path."""
    folder = Path(run_folder)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder")
    return write_whole(folder / "report.html", render_report(RunData(folder)))


def render_report(run: RunData) -> str:
    return render_page(f"{run.name} · Cohort report", (*VERDICT, *DETAILS), run)


# -- verdict -----------------------------------------------------------------------------------------------------------


def show_header(run: RunData) -> Part:
    """The verdict, the algorithm with the recipe's changes to it, and why the run ended early if it did."""
    sentence, detail = describe_run(run)
    details = [detail, *run.describe_algorithm(), run.own_problem, run.summary.get("stopped")]
    words = [run.find_setting("algorithm", "name"), run.find_setting("model", "source"), run.last_written]
    return "header", sentence, filter(None, details), run.name, run.status, filter(None, words)


def describe_run(run: RunData) -> tuple[str, str]:
    """(the result in one plain sentence, its certainty); of a run that failed or was interrupted before its result, that."""
    sentence, detail = describe_result(run)
    if run.status in STOPPED and not run.find_numbers("after"):
        return f"{STOPPED[run.status]} {describe_end(run)}.", f"{sentence} {detail}" if run.rows else ""
    return sentence, detail


def describe_end(run: RunData) -> str:
    return f"after {write_count(run.steps, 'finished step')}" if run.steps else "before the first step finished"


def describe_result(run: RunData) -> tuple[str, str]:
    before, after = run.find_numbers("before"), run.find_numbers("after")
    for name, numbers in after.items():
        a, b = find_value(before.get(name), "pass@1"), find_value(numbers, "pass@1")
        if a is not None and b is not None:
            sentence, sure = describe_change(name, "pass@1", a, b, run.find_change(name))
            took = f" and {write_duration(run.seconds)}" if run.seconds else ""
            return sentence, f"{sure}, after {run.steps} steps{took}."
        if b is not None:
            sentence = f"pass@1 on {name_set(name)} is {write_percent(b, 1)} after training."
            return sentence, "There is no evaluation before training."
    for name, numbers in before.items():
        start = find_value(numbers, "pass@1")
        if start is not None:
            sentence = f"Training started from a pass@1 of {write_percent(start, 1)} on {name_set(name)}."
            return sentence, describe_progress(run, f"There is no final evaluation yet{describe_latest(run, name)}")
    if run.rows:
        progress = describe_progress(run, "There was no evaluation on held-out problems")
        return progress, "A higher training reward does not prove that the policy learned the task."
    return "There is no training step yet.", "Results appear here as the run proceeds."


def describe_latest(run: RunData, name: str) -> str:
    """The latest evaluation during training, with its number of problems, which may be fewer than the set has."""
    for evaluation in reversed(run.evaluations):
        numbers = as_dict(as_dict(evaluation.get("sets")).get(name))
        value, problems = find_value(numbers, "pass@1"), as_number(numbers.get("problems"))
        if evaluation.get("label") == "during" and value is not None:
            count = f", on {problems:.0f} problems" if problems else ""
            return f" (at step {evaluation['step']}: {write_percent(value, 1)}{count})"
    return ""


def describe_progress(run: RunData, lead: str) -> str:
    rewards = [value for _, value in run.find_series("reward/mean")]
    if not rewards:
        return f"{lead}."
    if len(rewards) == 1:
        return f"{lead}; the training reward of its one step is {rewards[0]:.3g}."
    count = min(10, len(rewards) // 2)  # overlapping windows would show no change
    head, tail = fmean(rewards[:count]), fmean(rewards[-count:])
    return f"{lead}; over {run.steps} steps the training reward went from {head:.3g} to {tail:.3g}."


def show_failure(run: RunData) -> Part | None:
    """The error that ended a failed run, where it occurred, and what to do."""
    card = describe_failed_run(run)
    return ("findings", "", [card], "", "", "failed") if card else None


def describe_failed_run(run: RunData) -> dict[str, Any] | None:
    message = run.summary.get("error")
    if run.status != "failed" or not message:
        return None
    where = as_dict(run.summary.get("failure"))
    code = f" in {where['where']}" if where.get("where") else ""
    fix = "There was no progress to save: fix the cause and start again, with the same name if you like."
    if run.folder.checkpoints.is_dir():
        fix = f"The progress is saved: fix the cause, then resume with: cohort resume {run.place}"
    lines = [("caption", f"It occurred{code} {describe_end(run)}."), ("fix", fix)]
    return make_card("alarm", where.get("type") or "error", "The run failed.", lines, str(message))


def make_card(
    level: str, mark: str = "", what: str = "", lines: Sequence[tuple[str, str]] = (), text: str = ""
) -> dict[str, Any]:
    """A finding for the template. lines: (style, text); empty ones are left out."""
    return {"level": level, "mark": mark, "what": what, "lines": lines, "text": text, "name": ""}


def show_facts(run: RunData) -> Part:
    """The most important numbers."""
    planned = run.find_setting("train", "num_steps")
    steps = f"{run.steps} of {planned}" if isinstance(planned, int) and planned > run.steps else str(run.steps)
    boxes = [("steps", steps), *([("time", write_duration(run.seconds))] if run.seconds else [])]
    for label, name, write in (
        ("training success", "reward/success", write_exactly),
        ("useful groups", "advantage/useful_groups", write_exactly),
        ("completion length", "rollout/length_mean", lambda v: write_count(round(v), "token")),
        ("throughput", "perf/tokens_per_second", write_rate),
    ):
        if values := run.find_last_values(name):
            boxes.append((label, write(fmean(values))))
    caption = "Training success and later tiles: mean of the last 10 steps." if len(run.rows) > 10 else ""
    return "facts", boxes, caption


def write_exactly(share: float) -> str:
    return write_percent(share, 1)


# -- before and after --------------------------------------------------------------------------------------------------


def show_before_and_after(run: RunData) -> Part | None:
    """A table of both evaluations; before the second one, only of the first."""
    before, after = run.find_numbers("before"), run.find_numbers("after")
    if not after:
        return show_before(before)
    rows = []
    for name in dict.fromkeys([*before, *after]):
        a, b = before.get(name, {}), after.get(name, {})
        problems = as_number((b or a).get("problems"))
        count = why_no_interval(int(problems)) or f"{problems:.0f} problems" if problems else ""
        rows.append([Cell(name, count, style="set", span=4)])
        rows += [compare_measure(run, name, what, as_dict(a.get(what)), as_dict(b.get(what))) for what in list_measures(a, b)]
    caption = (
        "Brackets: 95 % intervals, bootstrapped over problems. Significant changes are coloured. pass@k: at least one of k completions is "
        "right; maj@k: the most common answer of k completions is right; greedy: one completion at temperature 0."
    )
    return ("table", "Before and after", ("measure", "before", "after", "change"), rows, caption) if rows else None


def show_before(before: Mapping[str, Mapping[str, Any]]) -> Part | None:
    """The evaluation before training in one line per set: nothing has changed yet."""
    rows = []
    for name, numbers in before.items():
        what = "pass@1" if find_value(numbers, "pass@1") is not None else "reward"
        rows.append([name_set(name), what, make_interval_cell(as_dict(numbers.get(what)), share=what != "reward")])
    caption = "Brackets: 95 % intervals, bootstrapped over problems. All measures appear after the final evaluation."
    return ("table", "Before training", ("set", "measure", "before"), rows, caption) if rows else None


def list_measures(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The measures that a set has before or after, except mean@k, which equals pass@1."""
    names = [name for name in dict.fromkeys([*a, *b]) if isinstance(a.get(name) or b.get(name), Mapping)]
    return [name for name in names if not name.startswith("mean@")]


def compare_measure(run: RunData, name: str, what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Cell]:
    share = what != "reward"
    left, right = as_number(a.get("value")), as_number(b.get("value"))
    reason = str(a.get("reason") or b.get("reason") or "") if left is None and right is None else ""
    change = Cell()
    if left is not None and right is not None:
        points = f"{100 * (right - left):+.1f}" if share else f"{right - left:+.3f}"
        change = Cell(points, style=colour_change(run.find_change(name, what), a, b))
    return [Cell(what, note=reason), make_interval_cell(a, share), make_interval_cell(b, share), change]


def make_interval_cell(entry: Mapping[str, Any], share: bool = True) -> Cell:
    """An estimate with its interval."""
    value, low, high = (as_number(entry.get(key)) for key in ("value", "low", "high"))
    return Cell(*write_estimate(value, low, high, share), style="none" if value is None else "")


def show_findings(run: RunData) -> Part:
    found = diagnose(run.rows, run.recipe, run.evaluations, run.own)
    lines = [[("", one.why), ("fix", one.fix), *(("caption", line) for line in one.evidence)] for one in found]
    cards = [make_card(one.level, one.level, one.what, about) for one, about in zip(found, lines, strict=True)]
    line = "No problems found in the metrics." if len(run.rows) >= 5 else "Too few steps for a diagnosis."
    return "findings", "Diagnosis", cards, "" if cards else line


# -- plots -------------------------------------------------------------------------------------------------------------


def show_curves(run: RunData) -> Part | None:
    return show_charts("Curves", [replace(chart, markers=run.markers) for chart in list_charts(run)])


def show_timing(run: RunData) -> Part | None:
    """A table of the stages: seconds of the median step and share of all seconds."""
    rows = drop_first_step(run.rows)
    times = measure_stages(rows)
    if not times:
        return None
    slowest = max(times, key=lambda time: time.share)
    steps = list_seconds(rows, "step")
    sentence = f"{write_exactly(slowest.share)} of the time of {len(steps)} steps was spent on {slowest.stage.subject}."
    lines: list[list[str | Cell]] = []
    for time in times:
        rarely = f" (only in {time.steps} of {len(steps)} steps)" if time.steps < 0.9 * len(steps) else ""
        bar = Cell(style="bar", bar=100 * time.share / slowest.share)
        does = Cell(f"{time.stage.does}{rarely}", style="does")
        lines.append([time.stage.name, write_seconds(time.median), write_exactly(time.share), bar, does])
    lines.append(["step", write_seconds(median(steps)), "", Cell(style="bar"), ""])
    first = ", without the first step" if len(rows) < len(run.rows) else ""
    whose = "Main rank, including its waiting for other ranks. " if run.ranks else ""
    caption = f"{whose}Medians over the steps with the stage; shares of all seconds{first}. {describe_rates(run)}"
    if ahead := describe_ahead(run.rows):
        caption = f"{caption.rstrip()} Sampling ahead: {ahead}."
    heads = ["stage", "median", "share", Cell(style="bar"), ""]
    return "table", "Where the time goes", heads, lines, caption, f"{sentence} {slowest.stage.fix}"


def describe_rates(run: RunData) -> str:
    """The perf/ metrics of the last steps in one line."""
    writers = (
        ("perf/rollout_tokens_per_second", lambda v: f"{write_rate(v)} sampled"),
        ("perf/engine_occupancy", lambda v: f"{write_exactly(v)} of slots decoding"),
        ("perf/executed_tokens_per_second", lambda v: f"{write_rate(v)} executed in training"),
        ("perf/update_mfu", lambda v: f"MFU {write_exactly(v)}"),
        ("perf/shared_share", lambda v: f"{write_exactly(v)} of tokens saved by running prompts once"),
        ("perf/skipped_share", lambda v: f"{write_exactly(v)} skipped because they have no gradient"),
        ("perf/host_share", lambda v: f"{write_exactly(v)} of a step on the host only"),
        ("perf/peak_memory_gib", lambda v: f"peak memory {v:.2f} GiB"),
    )
    lines = []
    for name, write in writers:
        values = run.find_last_values(name)
        if values and any(values):
            lines.append(write(median(values)))
    return f"Last steps: {', '.join(lines)}." if lines else ""


def find_value(numbers: Mapping[str, Any] | None, what: str) -> float | None:
    return as_number(as_dict((numbers or {}).get(what)).get("value"))


# -- completions -------------------------------------------------------------------------------------------------------


def show_completions(run: RunData) -> Part | None:
    """Completions of the same problems before and after, in two columns."""
    pairs: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for side, rows in (("before", run.samples_before), ("after", run.samples_after)):
        for row in rows:
            pairs.setdefault((str(row.get("set") or ""), write_prompt(row.get("prompt"))), {})[side] = row
    cards = []
    for (name, prompt), found in pairs.items():
        answer = next(iter(found.values())).get("answer")
        reference = f" · reference answer: {answer}" if answer is not None else ""
        sides = [describe_side(side, found.get(side)) for side in ("before", "after")]
        cards.append({"meta": f"{name}{reference}", "prompt": prompt, "sides": sides})
    return ("problems", "Completions before and after", cards) if cards else None


def describe_side(title: str, row: Mapping[str, Any] | None) -> tuple[str, list[tuple[str, str, str]] | None]:
    """(heading, the first completions); None if this side was not sampled."""
    if row is None:
        return title, None
    kept = row.get("completions")
    kept = [as_dict(one) for one in kept] if isinstance(kept, Sequence) and not isinstance(kept, str) else []
    right = sum(one.get("success") is True for one in kept)
    more = f", {COMPLETIONS_SHOWN} shown" if len(kept) > COMPLETIONS_SHOWN else ""
    heading = f"{title}: {right} of {len(kept)} right{more}" if kept else title
    return heading, [describe_completion(one) for one in kept[:COMPLETIONS_SHOWN]]


def describe_completion(one: Mapping[str, Any]) -> tuple[str, str, str]:
    """(style, verdict and reward, text)."""
    success, reward = one.get("success"), as_number(one.get("reward"))
    style, word = ("right", "✓ right") if success is True else ("wrong", "✗ wrong") if success is False else ("", "no verdict")
    scored = f" · reward {reward:g}" if reward is not None else ""
    return style, f"{word}{scored}", str(one.get("text", "")) or "(empty)"


def write_prompt(prompt: Any) -> str:
    """A prompt as text; chat messages become "role: content" blocks."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        return "\n\n".join(f"{as_dict(m).get('role', '?')}: {as_dict(m).get('content', '')}" for m in prompt)
    return "" if prompt is None else str(prompt)


VERDICT: tuple[Section[RunData], ...] = (show_header, show_failure, show_facts, show_before_and_after, show_findings)
DETAILS: tuple[Section[RunData], ...] = (
    show_curves, draw_histograms, show_timing, show_ranks, show_completions, "recipe", "next_steps"
)  # fmt: skip
"""The sections of a page in order: the verdict, then the evidence."""
