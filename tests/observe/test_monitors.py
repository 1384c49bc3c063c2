"""Monitors: what they write, and that none of them can stop a run."""

import io
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from cohort.base.text import write_duration
from cohort.errors import Interrupted, RecipeError
from cohort.observe.diagnosis.checks import FindingWatch
from cohort.observe.monitors import MONITORS, build_monitors, find_monitor_problems
from cohort.observe.monitors.base import METHODS, Monitor, Monitors, check_methods
from cohort.observe.monitors.console import ConsoleMonitor, make_before_after_table, write_with_interval
from cohort.observe.monitors.jsonl import JsonlMonitor, append_line, read_rows, truncate_after
from cohort.recipe.file import build_recipe

ONE = {"value": 0.541, "low": 0.51, "high": 0.572}
BETTER = {"value": 0.952, "low": 0.94, "high": 0.96}
EVALUATION = {"step": 0, "label": "before", "sets": {"held_out": {"pass@1": ONE, "pass@8": BETTER, "problems": 512}}}
SUMMARY = {
    "status": "finished", "steps": 3, "seconds": 130.0,
    "eval": {"before": {"pass@1": ONE}, "after": {"pass@1": BETTER}, "sets": {"held_out": {"before": {"pass@1": ONE}, "after": {"pass@1": BETTER}}}},
}  # fmt: skip


def row(step, **more):
    return {
        "step": step,
        "reward/mean": 0.4,
        "reward/success": 0.38,
        "time/step": 2.0,
        "perf/tokens_per_second": 3210.0,
        **more,
    }


# Fan-out ---------------------------------------------------------------------------------------------------------


class Broken(Monitor):
    def on_metrics(self, row):
        raise OSError("disk full")

    def close(self):
        raise RuntimeError("still broken")


class Recorder(Monitor):
    def __init__(self):
        self.calls = []

    def on_metrics(self, row):
        self.calls.append(row["step"])

    def close(self):
        self.calls.append("closed")


def test_a_broken_monitor_is_reported_once_and_stops_nobody():
    reports, recorder = [], Recorder()
    with Monitors([Broken(), recorder], report=reports.append) as monitors:
        for step in range(3):
            monitors.on_metrics({"step": step})
    assert recorder.calls == [0, 1, 2, "closed"]
    assert monitors.failures == {"Broken": 4}
    assert len(reports) == 1
    assert "disk full" in reports[0]
    assert "Training continues" in reports[0]


def test_even_a_closed_stderr_stops_nobody():
    def closed(text):
        raise ValueError("I/O operation on closed file")

    monitors = Monitors([Broken()], report=closed)
    monitors.on_metrics({"step": 1})
    assert monitors.failures == {"Broken": 1, "report": 1}


def test_an_interrupt_passes_through_and_monitors_are_closed():
    class Slow(Monitor):
        def on_metrics(self, row):
            raise Interrupted

    recorder = Recorder()
    with pytest.raises(Interrupted), Monitors([recorder, Slow()]) as monitors:
        monitors.on_metrics({"step": 1})
    assert recorder.calls == [1, "closed"]


class Light:
    """Of no class of ours, with two of the methods; it takes from its row what it has read."""

    def __init__(self):
        self.steps = []

    def on_metrics(self, row):
        self.steps.append(row.pop("step"))

    def on_finish(self, summary):
        self.steps.append(summary.pop("status"))


def test_a_monitor_of_ones_own_has_the_methods_it_cares_about_and_spoils_nobodys_row():
    light, recorder, finished = Light(), Recorder(), {"status": "finished"}
    with Monitors([light, recorder], report=pytest.fail) as monitors:
        monitors.on_stage("training", total=2)
        monitors.on_metrics({"step": 1})
        monitors.on_metrics({"step": 2})
        monitors.on_finish(finished)
    assert light.steps == [1, 2, "finished"]
    assert recorder.calls == [1, 2, "closed"]
    assert finished == {"status": "finished"}
    assert monitors.failures == {}


def test_what_a_run_calls_is_what_the_interface_has():
    assert set(METHODS) == {name for name in dir(Monitor) if name.startswith("on_")} | {"close"}
    assert all(name in vars(Monitors) for name in METHODS)


@pytest.mark.parametrize(
    ("monitor", "words"),
    [
        (Light, r"monitors\.0: Light is a class; pass an instance: Light\(\)\."),
        (types.SimpleNamespace(on_metric=print, close=print), r"has the unknown method 'on_metric'.*did you mean 'on_metrics'\? A run calls these methods"),
        (object(), r"monitors\.0: object has no method of a monitor\. A run calls these methods"),
        (print, "has no method of a monitor"),
    ],
)  # fmt: skip
def test_an_object_that_would_watch_nothing_is_refused(monitor, words):
    with pytest.raises(RecipeError, match=words):
        check_methods(monitor, "monitors.0")


# jsonl -----------------------------------------------------------------------------------------------------------


def test_jsonl_writes_strict_json_one_line_per_step(tmp_path):
    monitor = JsonlMonitor(tmp_path)
    monitor.on_metrics({"step": 1, "a": float("nan"), "b": np.float32(0.5), "c": float("inf"), "d": True})
    monitor.on_metrics({"step": 2, "a": np.int64(3)})
    monitor.on_evaluation(EVALUATION)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"step": 1, "a": None, "b": 0.5, "c": None, "d": True},
        {"step": 2, "a": 3},
    ]
    assert read_rows(tmp_path / "evaluations.jsonl") == [EVALUATION]


def test_torn_line_spoils_only_itself(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "name": "caf\xc3')  # torn inside a character
    append_line(path, {"step": 3})
    assert read_rows(path) == [{"step": 1}, {"step": 3}]


def test_truncate_after_leaves_no_step_twice(tmp_path):
    monitor = JsonlMonitor(tmp_path)
    for step in range(1, 8):
        monitor.on_metrics(row(step))
    for step in (0, 5, 7):
        monitor.on_evaluation({**EVALUATION, "step": step})
    with monitor.metrics.open("ab") as file:
        file.write(b'{"step": 8, "rew')
    lines = monitor.metrics.read_bytes().splitlines(keepends=True)
    monitor.metrics.write_bytes(b"".join([lines[1], lines[0], *lines[1:]]))  # edited: one line twice, two in the wrong order
    monitor.truncate_after(5)
    monitor.on_metrics(row(6))
    assert [r["step"] for r in read_rows(monitor.metrics)] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in read_rows(monitor.evaluations)] == [0, 5]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evaluations.jsonl", "metrics.jsonl"]
    truncate_after(tmp_path / "missing.jsonl", 3)
    assert read_rows(tmp_path / "missing.jsonl") == []


# console ---------------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_console(tmp_path, terminal=False, width=200):
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=terminal, width=width, highlight=False, color_system=None)
    recipe = build_recipe({"sampling": {"max_completion_tokens": 256}}).model_dump()
    return ConsoleMonitor(tmp_path, recipe, console=console, interval_s=15, clock=clock), out, clock


def watched(monitor):
    """The monitor in a run whose rows are looked at."""
    return Monitors([monitor], report=pytest.fail, watch=FindingWatch(monitor.recipe))


def test_plain_output_is_one_line_per_interval(tmp_path):
    monitor, out, clock = make_console(tmp_path)
    monitor.on_stage("training", total=100)
    for step in range(1, 41):
        clock.now += 2.0
        monitor.on_metrics(row(step))
    lines = out.getvalue().splitlines()
    assert [int(line.split()[1].split("/")[0]) for line in lines] == [1, 9, 17, 25, 33]
    assert lines[0] == "training 1/100 · reward 0.400 · success 38 % · 3 min left · 3.2k tok/s"
    monitor.on_finish(SUMMARY)  # the last state is not lost
    assert "training 40/100" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_missing_scores_are_on_the_line_and_only_then(tmp_path):
    """Dynamic sampling scores what it draws: 6 groups of 8 here, of which 4 were kept."""
    console, out, _ = make_console(tmp_path)
    monitor = watched(console)
    monitor.on_stage("training", total=1)
    drawn = {"rollout/completions": 32, "rollout/groups_drawn": 6}
    monitor.on_metrics(row(1, **drawn, **{"reward/unscored": 0.0}))
    monitor.on_metrics(row(1, **drawn, **{"reward/unscored": 12.0}))
    nothing = {"step": 1, "rollout/completions": 32, "reward/unscored": 32.0, "loss/total": 0.0}
    monitor.on_metrics(nothing)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("training")]
    assert lines == [
        "training 1/1 · reward 0.400 · success 38 % · 3.2k tok/s",
        "training 1/1 · reward 0.400 · success 38 % · unscored 12 of 48 · 3.2k tok/s",
        "training 1/1 · unscored 32 of 32",
    ]
    assert "alarm, step 1: 32 of 32 completions" not in out.getvalue()  # the steps before had scores


def test_scoring_is_mentioned_only_when_it_takes_long(tmp_path):
    monitor, out, clock = make_console(tmp_path)
    monitor.on_scoring("math_answer", 1, 64)  # before any stage, and quick
    monitor.on_scoring("math_answer", 64, 64)
    monitor.on_stage("training", total=100)
    for done in range(1, 65):
        clock.now += 1.0
        monitor.on_scoring("code_tests", done, 64)
    assert out.getvalue().splitlines() == [f"training · scoring code_tests {done}/64" for done in (16, 31, 46, 61)]


def test_what_is_scored_while_others_are_sampled_shows_both(tmp_path):
    monitor, out, clock = make_console(tmp_path)
    monitor.on_stage("training", total=100)
    for done in range(1, 65):
        clock.now += 1.0
        monitor.on_sampling(min(64, 2 * done), 64)
        monitor.on_scoring("code_tests", done, 64)
    assert out.getvalue().splitlines() == [
        "training · sampled 32/64, scoring code_tests 16/64",
        "training · sampled 62/64, scoring code_tests 31/64",
        *(f"training · scoring code_tests {done}/64" for done in (46, 61)),
    ]


def test_a_live_line_shows_how_far_scoring_is(tmp_path):
    monitor, _, clock = make_console(tmp_path, terminal=True)
    monitor.on_stage("training", total=100)
    monitor.on_metrics(row(1))
    for done in range(1, 5):
        clock.now += 1.0
        monitor.on_scoring("code_tests", done, 64)
    assert monitor.progress is not None
    assert monitor.progress.tasks[0].fields["facts"].startswith("scoring code_tests 4/64 · reward 0.400")
    monitor.close()


def test_cold_start_and_evaluation_lines(tmp_path):
    monitor, out, _ = make_console(tmp_path)
    monitor.on_stage("cold start", total=50)
    monitor.on_progress(1, {"loss": 2.345, "success": 0.12})
    monitor.on_stage("baseline evaluation")
    monitor.on_evaluation(EVALUATION)
    text = out.getvalue()
    assert "cold start 1/50 · loss 2.35 · success 12 %" in text or "cold start 1/50 · loss 2.34 · success 12 %" in text
    assert "baseline, held_out (512 problems): pass@1 54.1 % [51.0, 57.2] · pass@8 95.2 %" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_evaluation_shows_its_progress_and_an_estimate(tmp_path, terminal):
    """163 problems with 8 completions and a greedy one. In a log, a short evaluation has no line but its result."""
    monitor, out, clock = make_console(tmp_path, terminal)
    monitor.on_stage("baseline evaluation", total=1467)
    lines, transient = [], monitor.progress and monitor.progress.live.transient
    for done in range(0, 1468, 163):
        clock.now += 4.0
        monitor.on_progress(done, {})
        lines += [monitor.progress.tasks[0].fields["facts"]] if monitor.progress else []
    monitor.on_evaluation(EVALUATION)
    monitor.on_stage("training", total=3)
    if terminal:
        assert lines == ["", *(f"at most {write_duration(4 * (9 - n) * (n + 1) / n)} left" for n in range(1, 9)), ""]
        assert transient  # the line is erased at the end
    else:
        printed = [line for line in out.getvalue().splitlines() if line.startswith("baseline evaluation")]
        assert printed == [
            f"baseline evaluation {done}/1467 · at most {left} left" for done, left in ((489, "32 s"), (1141, "9 s"))
        ]
    monitor.close()


def test_findings_are_printed_once_each_in_words(tmp_path):
    monitor, out, _ = make_console(tmp_path)
    monitors = watched(monitor)
    monitors.on_stage("training", total=40)
    for step in range(1, 31):
        monitors.on_metrics(row(step, **{"rollout/truncated": 0.97}))
    text = out.getvalue()
    assert text.count("97 % of completions were cut at 256 tokens") == 1
    assert "alarm, step 1: " in text


def test_the_end_shows_before_and_after_and_the_report(tmp_path):
    monitor, out, _ = make_console(tmp_path)
    monitor.on_finish(SUMMARY)
    text = out.getvalue()
    assert "finished after 3 steps in 2 min" in text
    assert "54.1 % [51.0, 57.2]" in text
    assert "+41.1" in text
    assert str(tmp_path / "report.html") in text.replace("\n", "")


def test_the_command_to_resume_is_the_last_message_after_the_last_step_and_printed_once(tmp_path):
    monitor, out, clock = make_console(tmp_path)
    monitor.on_stage("training", total=100)
    for step in (1, 2):  # step 2 is held back for the next line
        monitor.on_metrics(row(step))
        clock.now += 2.0
    monitor.on_message("SIGINT: saved. Resume with: cohort resume runs/a")
    monitor.on_finish({"status": "interrupted", "steps": 2, "resume": "cohort resume runs/a"})
    words = [line.split(" · ")[0] for line in out.getvalue().splitlines()]
    assert words[:3] == ["training 1/100", "training 2/100", "SIGINT: saved. Resume with: cohort resume runs/a"]
    assert out.getvalue().count("cohort resume") == 1


def test_the_end_says_where_the_time_went(tmp_path):
    monitor, out, _ = make_console(tmp_path)
    monitor.on_metrics(row(1, **{"time/rollout": 60.0, "time/step": 60.0}))  # the first step warms up
    for step in range(2, 6):
        seconds = {
            "rollout": 1.0,
            "reward": 0.5,
            "prepare": 0.02,
            "pack": 0.02,
            "update": 0.4,
            "optimizer": 0.05,
            "observe": 0.01,
        }
        monitor.on_metrics(row(step, **{f"time/{stage}": value for stage, value in seconds.items()} | {"time/step": 2.0}))
    monitor.on_finish(SUMMARY)
    line = "time     rollout 50 % · reward 25 % · update 20 % · optimizer 2.5 % · other 2.5 %"
    assert line in out.getvalue().splitlines()


def test_terminal_has_a_live_line_and_is_given_back(tmp_path):
    monitor, out, _ = make_console(tmp_path, terminal=True)
    monitor.on_stage("training", total=3)
    monitor.on_metrics(row(1))
    monitor.on_metrics(row(2))
    assert monitor.progress is not None
    monitor.close()
    assert monitor.progress is None
    assert "2/3" in out.getvalue()
    assert "success 38 %" in out.getvalue()


def everything_said(monitor, clock):
    """A run with all there is to say: long messages, every fact of a step, a finding, sets with long names, and the end."""
    long = {
        "loss/kl_per_completion": 12.34,
        "loss/entropy": 1.25,
        "rollout/length_mean": 4096.0,
        "advantage/useful_groups": 0.875,
    }
    monitor.on_message(
        "algorithm grpo: " + "samples of the policy -> group_normalized -> clip 0.2/0.2 -> " * 4 + "/a/path/in/one/piece"
    )
    monitor.on_message("字" * 25 + " " + "字" * 25 + "\nsecond line")
    monitor.on_stage("cold start", total=2500)
    monitor.on_progress(2500, {"loss": 0.123456, "success": 0.5})
    monitor.on_stage("training", total=10_000)
    for step in range(1, 4):
        for done in (1, 2):
            clock.now += 20.0
            monitor.on_scoring("a_reward_with_a_long_name", done, 256)
        clock.now += 20.0
        monitor.on_metrics(
            row(step, **long, **{"reward/unscored": 100.0, "rollout/completions": 256, "rollout/truncated": 0.97})
        )
    numbers = {
        "pass@1": ONE,
        "pass@8": BETTER,
        "maj@8": ONE,
        "greedy": ONE,
        "reward": {"value": -0.25, "low": -0.5, "high": 0.125},
    }
    monitor.on_stage("final evaluation")
    monitor.on_evaluation({"step": 3, "label": "after", "sets": {"a_held_out_set_with_a_name": {**numbers, "problems": 512}}})
    sets = {name: {"before": numbers, "after": numbers} for name in ("held_out", "a_held_out_set_with_a_name")}
    monitor.on_finish({"status": "finished", "steps": 3, "seconds": 130.0, "eval": {"sets": sets}})


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(("width", "most"), [(80, 80), (100, 100), (200, 100), (60, 60)])
def test_no_line_is_wider_than_the_terminal_or_100_columns(tmp_path, monkeypatch, terminal, width, most):
    monkeypatch.delenv("COLUMNS", raising=False)
    monitor, out, clock = make_console(tmp_path, terminal, width)
    monitor.folder = Path("runs/a")
    everything_said(watched(monitor), clock)
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out.getvalue())) if line]
    assert [line for line in lines if cell_len(line) > most] == []
    text = "\n".join(line.rstrip() for line in lines)
    assert re.search(r"^(training 3/10000 ·|.*training +3/10000) .*reward 0.400 · success 38 %", text, re.MULTILINE)
    assert "/a/path/in/one/piece" in text
    assert re.search(r"reward +-0.250( \[-0.500, 0.125\])? +-0.250.* +\+0.000", text)
    assert ("[-0.500, 0.125]" in text) == (most == 100)  # the table drops its intervals rather than wrap
    assert "95.2 %" in text
    assert "alarm, step 1: 97 % of completions were cut at 256 tokens" in text


def test_the_live_line_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    for width in (60, 80, 200):
        monitor, _, _ = make_console(tmp_path, True, width)
        monitor.on_stage("training", total=10_000)
        monitor.on_metrics(row(1, **{"loss/kl_per_completion": 12.34, "loss/entropy": 1.25, "rollout/length_mean": 4096.0}))
        assert len(monitor.console.render_lines(monitor.progress.get_renderable())) == 1
        monitor.close()


def test_columns_that_are_asked_for_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monitor, out, _ = make_console(tmp_path, width=200)
    monitor.on_message("word " * 39)
    assert len(out.getvalue().splitlines()) == 1


def test_names_are_text_not_markup(tmp_path):
    monitor, out, _ = make_console(tmp_path)
    monitor.on_evaluation({"step": 0, "sets": {"[red]set[/nope]": {"pass@1": ONE}}})
    monitor.on_message("kept [bold]as is")
    assert "[red]set[/nope]" in out.getvalue()
    assert "kept [bold]as is" in out.getvalue()
    sides = {"before": {"pass@1": ONE}}
    monitor.console.print(make_before_after_table({"sets": {"[x]": sides}}))
    assert "[x]" in out.getvalue()


def test_small_words():
    assert write_with_interval("pass@1", {"value": None, "reason": "none"}) == "–"
    assert write_with_interval("pass@1", {"value": 0.5}) == "50.0 %"
    assert write_with_interval("reward", {"value": -1.5, "low": -2, "high": -1}) == "-1.500 [-2.000, -1.000]"
    assert make_before_after_table({}) is None


# tensorboard, wandb, building ------------------------------------------------------------------------------------


def test_tensorboard_holds_the_scalars(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe = build_recipe({"monitors": {"tensorboard": True, "console": False}})
    with build_monitors(recipe, tmp_path) as monitors:
        monitors.on_evaluation(EVALUATION)
        monitors.on_metrics(row(1, **{"eval/held_out/pass@1": 0.1, "note": None}))
        monitors.on_metrics(row(2))
    assert monitors.failures == {}
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, round(e.value, 4)) for e in events.Scalars("reward/mean")] == [(1, 0.4), (2, 0.4)]
    assert [(e.step, round(e.value, 4)) for e in events.Scalars("eval/held_out/pass@1")] == [(0, 0.541)]


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_a_recipe_error_at_the_start(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if package == "tensorboard" else "wandb", None)
    recipe = build_recipe({"monitors": {package: True}})
    with pytest.raises(RecipeError, match=rf"monitors.{package} = true.*pip install"):
        build_monitors(recipe, tmp_path)


def fake_wandb(calls, broken=False):
    class Run:
        def __init__(self):
            self.summary = {}

        def log(self, numbers, step):
            calls.append((step, numbers))

        def finish(self):
            calls.append("finish")

    def init(**settings):
        if broken:
            raise ConnectionError("no network")
        calls.append(settings)
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    return module


def test_wandb_gets_metrics_under_the_folders_name(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    recipe = build_recipe({"monitors": {"wandb": True, "console": False}})
    folder = tmp_path / "my-run"
    with build_monitors(recipe, folder) as monitors:
        monitors.on_metrics({"step": 3, "reward/mean": 0.4})
        monitors.on_evaluation(EVALUATION)
        monitors.on_finish(SUMMARY)
    assert monitors.failures == {}
    assert (calls[0]["project"], calls[0]["id"], calls[0]["resume"]) == ("cohort", "my-run", "allow")
    assert calls[1] == (3, {"reward/mean": 0.4})
    assert calls[2][1]["eval/held_out/pass@1"] == 0.541
    assert calls[-1] == "finish"


def test_wandb_that_cannot_start_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb([], broken=True))
    with pytest.raises(RecipeError, match="WANDB_MODE=offline"):
        build_monitors(build_recipe({"monitors": {"wandb": True}}), tmp_path)


WRITTEN = [
    {"step": 1, "group": g, "prompt": f"p{g}", "completion": f"c{g}{i}", "reward": i / 2, "success": i == 1, "reward/a": i / 2}
    for g in range(3)
    for i in range(30)
]


def fake_tracker(name, calls):
    module = fake_wandb(calls)
    module.__name__ = name
    module.Table = lambda columns, data: ("table", columns, data)
    return module


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_get_metrics_and_completions_as_a_table_where_that_is_asked_for(tmp_path, monkeypatch, name):
    """64 rows at most; completions are only sent if the recipe says so."""
    for completions in (False, True):
        calls = []
        monkeypatch.setitem(sys.modules, name, fake_tracker(name, calls))
        recipe = build_recipe(
            {"monitors": {"also": [name], "completions": completions, "console": False, "wandb_project": "p"}}
        )
        with build_monitors(recipe, tmp_path / "my-run") as monitors:
            monitors.on_metrics({"step": 1, "reward/mean": 0.4, "evidence": ["c00"]})
            monitors.on_rollouts(1, WRITTEN)
            monitors.on_evaluation(EVALUATION)
            monitors.on_finish(SUMMARY)
        assert monitors.failures == {}
        assert (calls[0]["project"], calls[0]["name"], calls[0]["resume"]) == ("p", "my-run", "allow")
        assert calls[0]["config"]["train"]["group_size"] == 8
        assert calls[1] == (1, {"reward/mean": 0.4})
        assert calls[-1] == "finish"
        assert ("c00" in repr(calls)) == completions
        if completions:
            step, logged = calls[2]
            kind, columns, data = logged["completions"]
            assert (step, kind, len(data)) == (1, "table", 64)
            first = dict(zip(columns, data[1], strict=True))
            assert (first["prompt"], first["completion"], first["reward"], first["reward/a"]) == ("p0", "c01", 0.5, 0.5)


def test_completions_that_nobody_would_take_are_refused():
    for settings, words in (
        ({}, "no monitor receives them"),
        ({"also": ["tensorboard"]}, "no monitor receives them"),
        ({"wandb": True, "show_every": 0}, "show_every is 0"),
    ):
        with pytest.raises(RecipeError, match=words):
            build_recipe({"monitors": {"completions": True, **settings}})


def test_a_missing_trackio_and_one_that_cannot_start_say_how_to_go_on(tmp_path, monkeypatch):
    recipe = build_recipe({"monitors": {"also": ["trackio"], "console": False}})
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(RecipeError, match=r"monitors.also names trackio, but .*pip install 'cohort-rl\[trackio\]'"):
        build_monitors(recipe, tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", fake_wandb([], broken=True))
    with pytest.raises(RecipeError, match=r"Trackio could not be started .*no network"):
        build_monitors(recipe, tmp_path)


def test_resuming_goes_on_where_the_checkpoint_was(tmp_path):
    recipe = build_recipe({"monitors": {"console": True}})
    first = JsonlMonitor(tmp_path)
    for step in range(1, 6):
        first.on_metrics(row(step))
    with build_monitors(recipe, tmp_path, resume_step=3) as monitors:
        assert [r["step"] for r in monitors.monitors[-1].rows] == [1, 2, 3]
        monitors.on_metrics(row(4))
    assert [r["step"] for r in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


# by name ---------------------------------------------------------------------------------------------------------


class Named(Recorder):
    """Made for a run, as one of the table is."""

    lacks = ""

    @classmethod
    def missing(cls):
        return cls.lacks

    @classmethod
    def for_run(cls, run):
        made = cls()
        made.made_for = (run.recipe.seed, run.folder, run.resume_step)
        return made


class Demanding(Recorder):
    def __init__(self, project):
        super().__init__()


class Misspelt:
    def on_metricks(self, row):
        pass


def asking(*names, **words):
    return build_recipe({"seed": 7, "monitors": {"console": False, "also": list(names), **words}})


def test_a_recipe_names_monitors_of_the_table_and_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setitem(MONITORS, "named", f"{__name__}:Named")
    with build_monitors(asking(f"{__name__}:Light", "named", "named"), tmp_path, resume_step=3) as monitors:
        monitors.on_metrics({"step": 4})
    jsonl, named, light = monitors.monitors
    assert named.made_for == (7, tmp_path, 3)
    assert (named.calls, light.steps) == ([4, "closed"], [4])
    assert read_rows(jsonl.metrics) == [{"step": 4}]
    assert monitors.failures == {}


def test_a_name_beside_its_own_word_is_one_monitor(tmp_path):
    with build_monitors(asking("console", console=True), tmp_path) as monitors:
        assert [type(monitor) for monitor in monitors.monitors] == [JsonlMonitor, ConsoleMonitor]
    with build_monitors(asking("console"), tmp_path) as monitors:
        assert [type(monitor) for monitor in monitors.monitors] == [JsonlMonitor, ConsoleMonitor]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorbord", "monitors.also: unknown monitor 'tensorbord'; did you mean 'tensorboard'? Built in: tensorboard, wandb, trackio, console."),
        ("no_such_module:Class", "monitors.also names no_such_module:Class, but cannot import no_such_module:Class"),
        (f"{__name__}:Demanding", "it could not be started (TypeError: Demanding.__init__() missing 1 required"),
        (f"{__name__}:Misspelt", "did you mean 'on_metrics'?"),
        (f"{__name__}:Named", "but the figment is not installed. Fetch it, or remove it from monitors.also."),
    ],
)  # fmt: skip
def test_a_monitor_that_cannot_watch_is_an_error_before_the_run(tmp_path, monkeypatch, name, words):
    monkeypatch.setattr(Named, "lacks", "the figment is not installed. Fetch it")
    with pytest.raises(RecipeError) as error:
        build_monitors(asking(name), tmp_path)
    assert words in str(error.value)


def test_problems_are_told_without_starting_anything(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(Named, "lacks", "the figment is not installed. Fetch it")
    monkeypatch.setattr(Named, "for_run", pytest.fail)
    first, second, third = find_monitor_problems(asking(f"{__name__}:Named", "nothing", "console", wandb=True))
    assert first.startswith("monitors.wandb = true, but the wandb package is not installed. Install it with `pip install")
    assert first.endswith("or set monitors.wandb = false.")
    assert "the figment is not installed" in second
    assert "unknown monitor 'nothing'" in third
    assert find_monitor_problems(asking("console")) == []


def test_reading_a_recipe_or_a_run_imports_no_monitor(tmp_path, monkeypatch):
    """A recipe may be a stranger's: its code runs when a run starts, not when somebody looks."""
    from cohort.observe.report.page import write_report
    from cohort.observe.run_folder import RunFolder

    monkeypatch.chdir(tmp_path)
    (tmp_path / "strangers_code.py").write_text(
        "from pathlib import Path\nPath('executed').touch()\nclass Watch:\n    close = print\n"
    )
    recipe = build_recipe({"name": "run", "monitors": {"console": False, "also": ["strangers_code:Watch"]}})
    folder = RunFolder.create(recipe)
    assert folder.recipe().monitors.also == ["strangers_code:Watch"]
    write_report(folder.root)
    assert not (tmp_path / "executed").exists()
    build_monitors(recipe, folder.root).close()
    assert (tmp_path / "executed").exists()


def test_the_table_imports_none_of_its_monitors():
    code = (
        "import sys, cohort.observe.monitors as m\n"
        "modules = {spec.partition(':')[0] for spec in m.MONITORS.values()} | {'torch', 'rich', 'wandb', 'tensorboard'}\n"
        "sys.exit(bool(modules & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_reader_that_leaves_ends_no_run(tmp_path):
    """`cohort train | head`: the console falls silent, and what follows it is still done."""
    program = (
        "import pathlib, sys; from cohort.observe.monitors.console import ConsoleMonitor\n"
        "monitor = ConsoleMonitor(sys.argv[1], {}); sys.stdin.read()\n"
        "for text in ('one', 'two'): monitor.on_message(text)\n"
        "print('three'); monitor.close(); pathlib.Path(sys.argv[1], 'done').write_text(str(monitor.console.quiet))\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], **pipes)
    child.stdout.close()
    child.stdin.close()
    said = child.stderr.read()
    child.stderr.close()
    assert (child.wait(), said) == (0, b"")
    assert (tmp_path / "done").read_text() == "True"
