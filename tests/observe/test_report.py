"""The report on a synthetic run: numbers, escaping, self-containment, and every kind of incomplete folder."""

import json
import math
import random
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cohort.base.text import CONTROLS
from cohort.errors import RunError
from cohort.observe.report.charts import (
    COLOURS,
    Chart,
    Series,
    draw_chart,
    find_ticks,
    smooth_points,
    stack_series,
    thin_points,
)
from cohort.observe.report.data import RunData
from cohort.observe.report.frame import render_part, render_section
from cohort.observe.report.page import show_timing, write_report
from cohort.observe.report.plots import list_stage_series
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe, dump_recipe

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"
STEERING = "\x1b]0;title\x07\x1b[2J\u202e\ud800"
"""Escapes of a terminal, a mark that turns the line round, half a surrogate pair."""


def interval(value, half=0.03):
    return {"value": value, "low": max(0.0, value - half), "high": min(1.0, value + half)}


def make_numbers(value):
    return {
        "pass@1": interval(value),
        "pass@2": interval(min(1, value * 1.2)),
        "pass@4": interval(min(1, value * 1.4)),
        "pass@8": interval(min(1, value * 1.6)),
        "maj@8": interval(min(1, value * 1.1)),
        "mean@8": interval(value),
        "greedy": interval(min(1, value * 1.05)),
        "reward": {"value": value * 1.1, "low": value, "high": value * 1.2},
        "problems": 512,
        "completions": 4096,
        "unscored": 0,
    }


def make_row(step, rng, steps):
    progress = step / steps
    success = 0.54 + 0.42 * (1 - math.exp(-4 * progress)) + rng.gauss(0, 0.03)
    rollout, update = 3.2 + rng.random(), 1.6 + 0.3 * rng.random()
    row = {
        "step": step, "rollout/completions": 256, "rollout/length_mean": 31 + 6 * progress + rng.random(), "rollout/length_max": 58 + rng.random() * 6,
        "rollout/truncated": max(0, 0.04 - 0.04 * progress), "rollout/distinct": 0.7 - 0.4 * progress + rng.random() * 0.05,
        "reward/mean": success, "reward/success": success, "reward/math_answer/mean": success, "reward/think_format/mean": 0.8 + 0.2 * progress,
        "advantage/useful_groups": 0.75 - 0.5 * progress + rng.random() * 0.1, "loss/policy": 1e-9, "loss/kl_per_completion": 1.8 * progress + rng.random() * 0.1,
        "loss/entropy": 0.32 - 0.2 * progress + rng.random() * 0.01, "optim/grad_norm": 0.5 + rng.random() * 0.3, "optim/learning_rate": 3e-4 * (1 - progress),
        "time/rollout": rollout, "time/reward": 0.3, "time/prepare": 0.6, "time/update": update, "time/step": rollout + update + 0.9,
        "perf/tokens_per_second": 8000 + rng.random() * 900,
    }  # fmt: skip
    if step % 25 == 0:
        row["time/checkpoint"] = 1.5
        row["time/step"] += 1.5
    return row


def make_samples(before):
    completions = (
        [("1+3=4, 2+4=7 -> 47", 0.0, False), (EVIL, 0.0, False), ("46", 1.0, True), ("64", 0.0, False)]
        if before
        else [("2+4=6, 1+3=4 -> 46", 1.0, True)] * 4
    )
    said = [{"text": t, "reward": r, "success": s} for t, r, s in completions]
    chat = [{"role": "system", "content": "Think first."}, {"role": "user", "content": "What is 70 + 8? <b>"}]
    return [
        {"set": "held_out", "prompt": "12+34=", "answer": "46", "completions": said},
        {"set": "held_out", "prompt": chat, "answer": None, "completions": said[:2]},
    ]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(folder, steps=200):
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = build_recipe({"name": folder.name, "prompts": {"template": "</pre><script>recipe()</script>"}})
    (folder / "recipe.toml").write_text(dump_recipe(recipe))
    write_lines(folder / "metrics.jsonl", [make_row(step, rng, steps) for step in range(1, steps + 1)])
    evaluations = [{"step": 0, "label": "before", "sets": {"held_out": make_numbers(0.541), "<hard>": make_numbers(0.2)}}]
    for step in range(25, steps, 25):
        value = 0.541 + 0.411 * (1 - math.exp(-4 * step / steps))
        evaluations.append({"step": step, "label": "during", "sets": {"held_out": make_numbers(value)}})
    evaluations.append(
        {"step": steps, "label": "after", "sets": {"held_out": make_numbers(0.952), "<hard>": make_numbers(0.44)}}
    )
    for evaluation, right in ((evaluations[0], 541), (evaluations[-1], 952)):
        rows = [("1" * (right // 100 + (i < right % 100))).ljust(10, "0") for i in range(100)]
        evaluation["per_problem"] = {
            "held_out": {"problem": [f"problem {i}" for i in range(100)], "success": rows, "greedy": ""}
        }
    write_lines(folder / "evaluations.jsonl", evaluations)
    write_lines(folder / "samples" / "before.jsonl", make_samples(True))
    write_lines(folder / "samples" / "after.jsonl", make_samples(False))
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "steps": steps, "seconds": 1234.5}))
    return folder


class Page(HTMLParser):
    """Tags with attributes, visible text, and a check that every opened element is closed in order."""

    VOID = {"meta", "line", "polyline", "polygon", "circle", "img", "br"}

    def __init__(self, source):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(source)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "demo-<run>")
    path = write_report(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


def test_the_verdict_and_the_table_say_the_numbers(source):
    text = Page(source).text
    assert "pass@1 on held-out problems rose from 54.1 % to 95.2 %." in text
    assert (
        "A change of +41.1 points (95 % interval +40.5 to +41.7, paired over 100 problems, p < 0.001), after 200 steps and 21 min."
        in text
    )
    assert "54.1 % [51.1, 57.1] 95.2 % [92.2, 98.2] +41.1" in text
    assert "maj@8" in text
    assert "mean@8" not in text
    assert "The policy loss is 0, as expected." in text
    assert "demo-<run>" in text


def test_all_plots_are_there(source):
    titles = re.findall(r"<h3>(.*?)</h3>", source)
    assert titles == [
        "Held-out pass@1", "Reward and success", "Parts of the reward", "Useful groups", "KL to the reference", "Entropy",
        "Completion length", "Truncated completions", "Step time by stage", "Throughput", "Gradient norm", "Learning rate",
    ]  # fmt: skip
    assert "nan" not in re.sub(r"<style>.*?</style>", "", source).lower().replace("finance", "")


def timed_run(folder, stages):
    """A run of 11 steps: the first is slow, every fifth also saves."""
    rows = []
    for step in range(1, 12):
        seconds = dict(stages) | ({"checkpoint": 1.0} if step % 5 == 0 else {})
        row = {"step": step} | {f"time/{stage}": 50 * value if step == 1 else value for stage, value in seconds.items()}
        rows.append(row | {"time/step": sum(row[f"time/{stage}"] for stage in seconds), "perf/update_mfu": 0.41})
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunData(folder)


def test_the_table_of_stages_gives_medians_and_shares(tmp_path):
    """10 steps of 2 s and 2 saves of 1 s, the first step left out: 22 s, of which rollout has 10."""
    run = timed_run(tmp_path / "run", {"rollout": 1.0, "reward": 0.25, "update": 0.7, "optimizer": 0.05})
    words = Page(render_section(show_timing, run)).text
    assert "45.5 % of the time of 10 steps was spent on sampling completions." in words
    for line in ("rollout 1.00 s 45.5 %", "reward 250 ms 11.4 %", "update 700 ms 31.8 %", "optimizer 50 ms 2.3 %"):
        assert line in words
    assert "checkpoint 1.00 s 9.1 %" in words
    assert "(only in 2 of 10 steps)" in words
    assert "without the first step" in words
    assert "MFU 41.0 %" in words


def test_the_chart_of_stages_adds_up_to_the_step(tmp_path):
    """More stages than colours: the smallest go into one layer, and the highest layer is the time of the step."""
    names = ("rollout", "reward", "prepare", "old", "reference", "pack", "update", "optimizer", "observe")
    run = timed_run(tmp_path / "run", {name: 0.1 * (place + 1) for place, name in enumerate(names)})
    series = list_stage_series(run)
    assert len(series) == COLOURS
    assert series[-1].label == "others"
    assert [one.label for one in series[:-1]] == ["prepare", "old", "reference", "pack", "update", "optimizer", "observe"]
    assert [value for _, value in stack_series(series)[-1]] == pytest.approx(
        [value for _, value in run.find_series("time/step")]
    )


def test_model_output_is_text_and_never_markup(source):
    page = Page(source)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag in ("img", "b", "iframe") and tag != "b"]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert EVIL.replace(" ", "") in page.text.replace(" ", "")  # shown, as text
    assert "<script>recipe()" in page.text
    assert "<hard>" in page.text


@pytest.mark.parametrize(
    "evil", [EVIL, "</script><script>alert(1)</script>", "]]><svg onload=alert(1)>", "{{ 7 * 7 }}", STEERING]
)
def test_strange_text_is_harmless_wherever_it_stands(tmp_path, evil):
    """Names of sets and of reward parts (which go into the JSON of the charts), errors, recipes, completions, words of the model."""
    folder = make_run(tmp_path / "run", steps=30)
    numbers = {"held_out": make_numbers(0.5), evil: make_numbers(0.4) | {evil: interval(0.5)}}
    write_lines(folder / "evaluations.jsonl", [{"step": 30, "label": label, "sets": numbers} for label in ("before", "after")])
    write_lines(
        folder / "metrics.jsonl",
        [{"step": step, f"reward/{evil.replace('/', '')}/mean": 1, "reward/b/mean": 0} for step in range(9)],
    )
    said = [{"text": evil, "reward": 0.0, "success": False}]
    write_lines(folder / "samples" / "after.jsonl", [{"set": evil, "prompt": evil, "answer": evil, "completions": said}])
    failure = {"type": evil, "where": evil}
    (folder / "summary.json").write_text(json.dumps({"status": "failed", "error": evil, "failure": failure, "stopped": evil}))
    (folder / "recipe.toml").write_text(f"[model]\nsource = {json.dumps(evil)}\n".replace("\\ud800", ""))
    source = write_report(folder).read_text(encoding="utf-8")
    page = Page(source)
    assert "could not be written" not in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not CONTROLS.search(source)
    assert "7 * 7" in source or "7 * 7" not in evil  # the text of a template is no template
    charts = [json.loads(attributes["data-chart"]) for _, attributes in page.tags if "data-chart" in attributes]
    labels = {series["label"] for chart in charts for series in chart["series"]}
    assert evil.replace("/", "") in labels


def test_the_file_is_self_contained_and_locked(source):
    page = Page(source)
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "data", "action"} & set(attributes), (tag, attributes)
    assert "@import" not in source
    assert "url(" not in source
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert len(source) < 400_000


def test_completions_stand_side_by_side(source):
    text = Page(source).text
    assert "before: 1 of 4 right, 3 shown" in text
    assert "after: 4 of 4 right, 3 shown" in text
    assert "reference answer: 46" in text
    assert "user: What is 70 + 8? <b>" in text


@pytest.mark.parametrize(
    "missing", ["recipe.toml", "metrics.jsonl", "evaluations.jsonl", "summary.json", "samples/before.jsonl"]
)
def test_any_file_may_be_missing(tmp_path, missing):
    folder = make_run(tmp_path / "run", steps=30)
    (folder / missing).unlink()
    page = Page(write_report(folder).read_text())
    assert "could not be written" not in page.text


def test_a_run_killed_on_this_host_is_not_called_running(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.25}\n')
    (tmp_path / "summary.json").write_text('{"status": "running"}')
    assert RunData(tmp_path).status == "running"  # on another host, perhaps: it wrote just now
    folder = RunFolder(tmp_path)
    folder.lock()
    assert RunData(tmp_path).status == "running"
    folder.unlock()
    assert RunData(tmp_path).status == "unfinished"


def test_an_empty_folder_and_a_run_that_just_started(tmp_path):
    assert "There is no training step yet." in Page(write_report(tmp_path).read_text()).text
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.25}\n{"step": 2, "rew')
    page = Page(write_report(tmp_path).read_text())
    assert "There was no evaluation on held-out problems; the training reward of its one step is 0.25." in page.text
    assert "unfinished" in page.text
    assert "cohort resume" in page.text
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "reward/mean": 0.{step}}}\n' for step in range(1, 6)))
    told = Page(write_report(tmp_path).read_text()).text
    assert "over 5 steps the training reward went from 0.15 to 0.45." in told  # 0.1 and 0.2, 0.4 and 0.5


def test_baseline_only_and_summary_only(tmp_path):
    write_lines(tmp_path / "evaluations.jsonl", [{"step": 0, "label": "before", "sets": {"held_out": make_numbers(0.5)}}])
    assert "started from a pass@1 of 50.0 % on held-out problems" in Page(write_report(tmp_path).read_text()).text
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps({"step": 25, "label": "during", "sets": {"held_out": make_numbers(0.6)}}) + "\n")
    assert "no final evaluation yet (at step 25: 60.0 %, on 512 problems)" in Page(write_report(tmp_path).read_text()).text
    (tmp_path / "evaluations.jsonl").unlink()
    summary = {
        "status": "finished",
        "steps": 10,
        "eval": {"before": {"pass@1": interval(0.5)}, "after": {"pass@1": interval(0.4)}},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    text = Page(write_report(tmp_path).read_text()).text  # nothing to pair, so nothing is said to have fallen
    assert (
        "pass@1 on held-out problems went from 50.0 % to 40.0 %. A change of -10.0 points; the evaluations share no problems"
        in text
    )


def test_a_difference_within_noise_is_called_that(tmp_path):
    evaluations = []
    for step, label, rows in ((0, "before", ["10", "01", "11", "00"]), (9, "after", ["11", "00", "11", "10"])):
        evaluations.append({"step": step, "label": label, "sets": {"held_out": make_numbers(0.5 + step / 90)}})
        evaluations[-1]["per_problem"] = {"held_out": {"problem": ["a", "b", "c", "d"], "success": rows, "greedy": ""}}
    write_lines(tmp_path / "evaluations.jsonl", evaluations)
    text = Page(write_report(tmp_path).read_text()).text
    assert "no clear change; the difference is within the noise of the evaluation" in text
    assert "paired over 4 problems, p = 1; 4 problems are too few for an interval; it takes 6" in text


def test_files_of_an_unexpected_shape_cost_a_section_at_most(tmp_path):
    (tmp_path / "summary.json").write_text("[1, 2")
    (tmp_path / "recipe.toml").write_text("not = = toml <x>")
    (tmp_path / "metrics.jsonl").write_text('{"step": "x"}\n[1]\n{"step": 3, "reward/mean": "high", "loss/entropy": NaN}\n')
    (tmp_path / "evaluations.jsonl").write_text('{"step": 1, "label": "after", "sets": {"a": 3}}\n{"step": 2, "sets": []}\n')
    write_lines(tmp_path / "samples" / "after.jsonl", [{"completions": "text"}, {"prompt": 3, "completions": [4]}])
    page = Page(write_report(tmp_path).read_text())
    assert "could not be written" not in page.text
    assert "not = = toml <x>" in page.text


def test_not_a_folder(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        write_report(tmp_path / "nothing")


def test_a_wheel_holds_what_the_pages_are_made_of():
    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["cohort"]
    package = root / "src" / "cohort"
    files = [file for file in (package / "observe" / "report").iterdir() if file.is_file() and file.suffix != ".py"]
    assert {file.suffix for file in files} == {".html", ".j2", ".css", ".js", ".svg"}
    assert [file for file in files if not any(file.relative_to(package).match(pattern) for pattern in patterns)] == []


# Charts ----------------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_inside():
    assert find_ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert find_ticks(1, 200, 6) == [50, 100, 150, 200]
    assert find_ticks(0, 3.1e-4, 5) == pytest.approx([0, 1e-4, 2e-4, 3e-4])


def test_thin_keeps_ends_and_means():
    points = [(float(i), float(i)) for i in range(10_001)]
    few = thin_points(points)
    assert len(few) <= 401
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert all(x == y for x, y in few)
    assert thin_points(points[:50]) == points[:50]


def test_smoothed_is_a_trailing_mean():
    assert smooth_points([(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)], 2) == [(0, 1.0), (1, 2.0), (2, 4.0), (3, 6.0)]


def test_stack_adds_up_and_fills_missing_steps_with_nothing():
    layers = stack_series([Series("a", [(1, 2.0), (2, 3.0)]), Series("b", [(2, 4.0)])])
    assert layers == [[(1, 2.0), (2, 3.0)], [(1, 2.0), (2, 7.0)]]


def test_two_identical_lines_become_one(source):
    assert "reward = success" in Page(source).text


def test_line_goes_where_the_values_are():
    svg = render_part("figure", draw_chart(Chart("t", "c", (Series("a", [(0, 0.0), (10, 1.0)]),), share=True)))
    assert 'points="52.0,202.0 546.0,12.0"' in svg
    single = render_part("figure", draw_chart(Chart("t", "c", (Series("a", [(5, 0.0)]),))))
    assert "<circle" in single
    assert "nan" not in single
