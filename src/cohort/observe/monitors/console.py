"""Terminal output: a live line per stage, a group of completions now and then, findings, and a before/after table at the end.

If the output is not a terminal (a log file, CI), the same facts are printed as plain lines at an interval, without control characters or
bars. A line has at most 100 columns: the live line drops its least important facts, sentences are wrapped, and the table drops its
intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from cohort.base.text import make_printable, make_table, write_duration, write_estimate, write_percent, write_rate
from cohort.observe.diagnosis.finding import History, count_judged
from cohort.observe.monitors.base import Monitor, Watched
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.outcome import describe_changes
from cohort.observe.perf import describe_ahead, describe_times
from cohort.observe.ranks import describe_ranks
from cohort.observe.terminal import (
    WIDEST,
    EnduringConsole,
    find_telling_group,
    line_width,
    make_console,
    pick_best_and_worst,
    print_group,
    print_wrapped,
)

INTERVAL_S = 15.0
"""Seconds between two plain lines."""
SCORING_INTERVAL_S = 0.5
"""Seconds between two updates of the live line during scoring."""
PACE_WINDOW = 10
"""Recent steps used to estimate the remaining time, since completions change length."""
STYLES = {"info": "cyan", "warning": "yellow", "alarm": "bold red"}
REWARD = "reward"
TASK = TaskID(0)
"""The only task of a progress line."""
STAGE_LABELS = {"before": "baseline", "during": "evaluation", "after": "final"}


class ConsoleMonitor(Monitor):
    """rows: metric rows from before a resume, so that the summary covers the whole run."""

    @classmethod
    def for_run(cls, run: Watched) -> ConsoleMonitor:
        return cls(run.folder, run.recipe.model_dump(), read_rows(run.folder / "metrics.jsonl"))

    def __init__(
        self,
        folder: str | Path,
        recipe: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]] = (),
        console: Console | None = None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.recipe = Path(folder), recipe
        self.rows = list(rows)
        self.console = console or make_console(EnduringConsole)
        self.interval_s, self.clock = interval_s, clock
        self.stage, self.total, self.began = "", 0, 0.0
        self.last_line = float("-inf")
        self.pending = ""
        self.facts: Sequence[str] = ()
        self.sampled = ""
        self.scoring: dict[str, tuple[int, int, float]] = {}
        self.last_scoring = float("-inf")
        self.progress: Progress | None = None

    # Stages and progress -----------------------------------------------------------------------------------------

    def on_stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        self.end_stage()
        self.stage, self.total, self.began = stage, total, self.clock()
        # An evaluation ends with a line of results, so only a long one has lines of progress.
        self.last_line = self.began if self.is_evaluation else float("-inf")
        if not self.console.is_terminal:
            return
        columns = (
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", style="bold", table_column=Column(no_wrap=True, min_width=len(stage))),
            *((MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(total)) + 1)),) if total else ()),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
        )
        self.progress = Progress(*columns, console=self.console, refresh_per_second=4, transient=self.is_evaluation)
        self.progress.add_task(stage, total=total or None, completed=done, facts="")
        self.progress.start()

    @property
    def is_evaluation(self) -> bool:
        return self.stage.endswith("evaluation")

    def on_progress(self, done: int, values: Mapping[str, float]) -> None:
        facts = [f"{name} {write_percent(v) if name == 'success' else f'{v:.3g}'}" for name, v in values.items()]
        if self.is_evaluation and done:  # at most: completions may end before the limit
            left = (self.clock() - self.began) / done * (self.total - done)
            facts = [f"at most {write_duration(left)} left"] if left else []
        self.show_facts(done, facts)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        step = int(row["step"])
        group_size = History((), self.recipe).read_setting("train.group_size")
        self.show_facts(step, list_training_facts(row, self.estimate_seconds_left(step), group_size))

    def on_sampling(self, done: int, total: int) -> None:
        """Shown with the progress of scoring during sampling."""
        self.sampled = f"sampled {done}/{total}, " if done < total else ""

    def on_scoring(self, part: str, done: int, total: int) -> None:
        """Shown only if scoring takes a while."""
        now = self.clock()
        if done == total:
            self.scoring.pop(part, None)
            return
        _, _, began = self.scoring.get(part, (0, 0, now))
        self.scoring[part] = (done, total, began)
        patience = SCORING_INTERVAL_S if self.progress else self.interval_s
        if now - began < patience or now - max(self.last_scoring, 0.0 if self.progress else self.last_line) < patience:
            return
        self.last_scoring = now
        parts = [f"{name} {scored}/{of}" for name, (scored, of, _) in list(self.scoring.items())]
        line = f"{self.sampled}scoring {', '.join(parts)}"
        if self.progress:
            self.progress.update(TASK, facts=self.fit_facts([line, *self.facts]))
        else:
            self.print_line(" · ".join(filter(None, (self.stage, line))))
            self.last_line = now

    def show_facts(self, done: int, facts: Sequence[str]) -> None:
        self.facts = facts
        if self.progress:
            self.progress.update(TASK, completed=done, facts=self.fit_facts(facts))
            return
        line = f"{self.stage} {done}/{self.total}" if self.total else f"{self.stage} {done}"
        line = " · ".join(filter(None, [line, self.fit_facts(facts)]))
        if self.clock() - self.last_line >= self.interval_s or (done == self.total and not self.is_evaluation):
            self.print_line(line)
            self.last_line, self.pending = self.clock(), ""
        elif not self.is_evaluation:
            self.pending = line

    def fit_facts(self, facts: Sequence[str]) -> str:
        """The first facts, which are the most important, that fit on the line with the stage and its count."""
        room = line_width(self.console) - len(f"⠋ {self.stage} {self.total}/{self.total} · ")
        kept: list[str] = []
        for fact in facts:
            if cell_len(" · ".join([*kept, fact])) > room:
                break
            kept.append(fact)
        return " · ".join(kept)

    def estimate_seconds_left(self, step: int) -> float | None:
        recent = [row["time/step"] for row in self.rows[-PACE_WINDOW:] if isinstance(row.get("time/step"), int | float)]
        return sum(recent) / len(recent) * max(0, self.total - step) if recent and self.total else None

    def end_stage(self) -> None:
        """End the live line of a stage, or print the plain line that was held back."""
        if self.progress:
            self.progress.stop()
            self.progress = None
        self.print_pending()

    def print_pending(self) -> None:
        if self.pending:
            self.print_line(self.pending)
            self.pending = ""

    # Messages ----------------------------------------------------------------------------------------------------

    def on_message(self, text: str) -> None:
        self.print_pending()
        self.print_line(text)

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        if group := find_telling_group(rollouts):
            print_group(self.console, group, pick_best_and_worst(group))

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        for name, numbers in evaluation["sets"].items():
            # Only pass@1 has its interval here; the table at the end has all intervals.
            facts = [
                f"{what} {(write_with_interval if what == 'pass@1' else write_value)(what, numbers[what])}"
                for what in choose_headline(numbers)
            ]
            label = STAGE_LABELS.get(evaluation.get("label", ""), "evaluation")
            problems = f" ({numbers['problems']:.0f} problems)" if "problems" in numbers else ""
            self.print_line(f"{label}, {name}{problems}: {' · '.join(facts)}")

    def on_finding(self, step: int, finding: Mapping[str, Any]) -> None:
        mark = f"{finding['level']}, step {step}" if step else finding["level"]
        print_wrapped(self.console, Text.assemble((f"{mark}: ", STYLES[finding["level"]]), make_printable(finding["text"])))

    def print_line(self, text: str) -> None:
        """Print plain text, not markup: names may contain brackets, and messages may quote model output."""
        print_wrapped(self.console, Text(make_printable(text)))

    # The end -----------------------------------------------------------------------------------------------------

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        self.end_stage()
        steps, seconds = summary.get("steps", 0), summary.get("seconds")
        took = f" in {write_duration(seconds)}" if isinstance(seconds, int | float) else ""
        self.print_line(f"{summary.get('status', 'finished')} after {steps} steps{took}")
        if times := describe_times(self.rows):
            self.print_line(f"time     {times}")
        if ahead := describe_ahead(self.rows):
            self.print_line(f"ahead    {ahead}")
        if ranks := describe_ranks(read_rows(self.folder / "ranks.jsonl")):
            self.print_line(f"ranks    {ranks}")
        if table := make_before_after_table(summary.get("eval") or {}, line_width(self.console)):
            self.console.print(table, width=line_width(self.console))
        for line in describe_changes(summary.get("eval") or {}):
            self.print_line(line)
        if summary.get("status") != "failed" or steps:
            self.print_line(f"report   {self.folder / 'report.html'}")

    def close(self) -> None:
        self.end_stage()


Writer = tuple[str, str, Callable[[float], str]]
"""(label, metric, function that formats its value)."""


def list_training_facts(row: Mapping[str, Any], left: float | None, group_size: int | None = None) -> list[str]:
    """The most important numbers of a step, in order of importance, with the number of unscored completions if any."""
    missing: Writer = ("unscored", "reward/unscored", lambda v: f"{v:.0f} of {count_judged(row, group_size):.0f}")
    unscored = (missing,) if row.get("reward/unscored") else ()
    first: tuple[Writer, ...] = (
        ("reward", "reward/mean", lambda v: f"{v:.3f}"),
        ("success", "reward/success", write_percent),
        *unscored,
        ("useful", "advantage/useful_groups", write_percent),
        ("preferred", "loss/preferred", write_percent),
        ("length", "rollout/length_mean", lambda v: f"{v:.0f}"),
    )
    more: tuple[Writer, ...] = (
        ("KL", "loss/kl_per_completion", lambda v: f"{v:.2f}"),
        ("entropy", "loss/entropy", lambda v: f"{v:.2f}"),
        ("", "perf/tokens_per_second", write_rate),
    )
    if "reward/mean" not in row and not unscored:  # without sampling, the loss is the number to watch
        first = (("loss", "loss/total", lambda v: f"{v:.3f}"), *first)
    remaining = [f"{write_duration(left)} left"] if left else []
    return [*write_facts(row, first), *remaining, *write_facts(row, more)]


def write_facts(row: Mapping[str, Any], writers: Sequence[Writer]) -> list[str]:
    return [f"{label} {write(row[name])}".strip() for label, name, write in writers if isinstance(row.get(name), int | float)]


def choose_headline(numbers: Mapping[str, Any]) -> list[str]:
    """pass@1, the largest pass@k, the largest maj@k and greedy, if they have a value."""

    def largest(kind: str) -> list[str]:
        names = [name for name in numbers if name.startswith(f"{kind}@")]
        return sorted(names, key=lambda name: int(name.split("@")[1]))[-1:]

    names = dict.fromkeys(["pass@1", *largest("pass"), *largest("maj"), "greedy"])
    return [name for name in names if isinstance(numbers.get(name), Mapping) and numbers[name].get("value") is not None]


def make_before_after_table(evaluated: Mapping[str, Any], width: int = WIDEST) -> Table | None:
    """The results of each set before and after, with intervals if they fit; None without an evaluation."""
    sets = evaluated.get("sets") or {"": {side: evaluated[side] for side in ("before", "after") if evaluated.get(side)}}
    heads = ("set", "", "before", "after", "change")
    rows = make_table_rows(sets, write_with_interval)
    if sum(max(map(cell_len, column)) + 2 for column in zip(heads, *rows, strict=True)) - 2 > width:
        rows = make_table_rows(sets, write_value)
    return make_table(heads, rows, texts=2) if rows else None


def make_table_rows(sets: Mapping[str, Any], write: Callable[[str, Mapping[str, Any]], str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, sides in sets.items():
        before, after = sides.get("before") or {}, sides.get("after") or {}
        for what in dict.fromkeys([*choose_headline(before), *choose_headline(after), REWARD]):
            a, b = before.get(what) or {}, after.get(what) or {}
            if a.get("value") is not None or b.get("value") is not None:
                rows.append((name, what, write(what, a), write(what, b), write_change(what, a, b)))
    return rows


def write_change(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if before.get("value") is None or after.get("value") is None:
        return ""
    change = after["value"] - before["value"]
    return f"{change:+.3f}" if what == REWARD else f"{100 * change:+.1f}"


def write_value(what: str, number: Mapping[str, Any]) -> str:
    """ "54.1 %", for a reward "0.541"; a dash without a value."""
    return write_estimate(number.get("value"), None, None, what != REWARD)[0]


def write_with_interval(what: str, number: Mapping[str, Any]) -> str:
    """ "54.1 % [51.0, 57.2]"."""
    value, low, high = (number.get(key) for key in ("value", "low", "high"))
    return " ".join(filter(None, write_estimate(value, low, high, what != REWARD)))
