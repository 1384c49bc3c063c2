"""The report beyond its numbers: failed runs, histograms, several runs in one page, and room for every column."""

from __future__ import annotations

import json
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import CHROMIUM, find_overflow
from test_report import EVIL, Page, interval, make_run, write_lines
from typer.testing import CliRunner

from cohort.base.stopwatch import Laps
from cohort.cli import app
from cohort.errors import RewardError, RunError
from cohort.observe.outcome import describe_failure
from cohort.observe.ranks import make_record
from cohort.observe.report.charts import Chart, Series, draw_chart
from cohort.observe.report.data import RunData
from cohort.observe.report.frame import render_section
from cohort.observe.report.overlay import write_overlay
from cohort.observe.report.page import write_report
from cohort.observe.report.plots import count_shares, draw_histograms, find_edges

NOTE = "no reward function exposes an extracted answer (`extract`), so there is nothing to vote on"
LONG_NAME = "problems_of_my_own_task_without_a_single_space_" * 3


def change_lines(file, change):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        change(row)
    write_lines(file, rows)


def write_rollouts(folder, step, rewards, lengths):
    (folder / "rollouts").mkdir(exist_ok=True)
    table = pa.table({"reward": rewards, "length": lengths, "completion": ["x"] * len(rewards)})
    pq.write_table(table, folder / "rollouts" / f"step-{step:06d}.parquet")


# -- a failed run ------------------------------------------------------------------------------------------------------


def failed(folder, checkpoints, **summary):
    make_run(folder, steps=summary.get("steps", 3))
    if checkpoints:
        (folder / "checkpoints").mkdir()
    (folder / "summary.json").write_text(json.dumps({"status": "failed", "steps": 3, **summary}))
    return Page(write_report(folder).read_text())


def test_the_report_of_a_failed_run_says_why_where_and_what_to_do(tmp_path):
    found = {
        "error": f"the verifier lost its dictionary\n{EVIL}",
        "failure": {"type": "<b>ValueError", "where": "mine.py, line 7, in f"},
    }
    page = failed(tmp_path / "runs" / "a", True, **found)
    assert "<b>ValueError The run failed. the verifier lost its dictionary </pre><script>alert(1)" in page.text
    assert "It occurred in mine.py, line 7, in f after 3 finished steps." in page.text
    assert "The progress is saved: fix the cause, then resume with: cohort resume runs/a" in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1
    early = failed(tmp_path / "runs" / "b", False, error="no such file", steps=0)
    assert (
        "error The run failed. no such file It occurred before the first step finished. There was no progress to save"
        in early.text
    )
    assert "The run failed" not in failed(tmp_path / "runs" / "c", False, status="interrupted", error="x").text


def test_what_is_kept_of_an_error():
    def raise_it(problem):
        try:
            raise problem
        except Exception as caught:
            return describe_failure(caught)

    plain = raise_it(KeyError("answer"))
    assert plain["error"] == "'answer'"
    assert plain["failure"]["type"] == "KeyError"
    assert re.fullmatch(r"test_report_more\.py, line \d+, in raise_it", plain["failure"]["where"])
    assert raise_it(RewardError("no key")) == {"error": "no key", "failure": {"type": "RewardError", "where": ""}}
    assert raise_it(AssertionError())["error"] == "AssertionError"


def test_a_stacked_area_that_is_high_enough_has_its_name_in_it():
    steps = [float(step) for step in range(1, 40)]
    series = tuple(Series(label, [(x, y) for x in steps]) for label, y in (("rollout", 6.0), ("save", 0.1), ("update", 3.0)))
    drawn = draw_chart(Chart("Time", "", series, stacked=True))
    named = [(text, float(attributes["y"])) for tag, attributes, text in drawn.marks if attributes["class"] == "within"]
    assert [text for text, _ in named] == ["rollout", "update"]
    assert named[0][1] > named[1][1], "as they lie on each other"


# -- histograms --------------------------------------------------------------------------------------------------------


def test_bars_hold_every_value_once_and_are_few():
    rng = random.Random(0)
    for values in (
        [0.0, 1.0],
        [1.0],
        [-1.0, 0.0, 0.5],
        [rng.gauss(-3, 1) for _ in range(500)],
        [float(rng.randint(1, 512)) for _ in range(500)],
        [0.0, 1e-9, 1.0],
        [1e6 * rng.random() for _ in range(50)],
        [5.0, 5.0 + 1e-7, 5.0 + 3e-7] * 9,
    ):
        edges, _ = find_edges([values, values[:1]])
        shares = count_shares(values, edges)
        assert sum(shares) == pytest.approx(1.0)
        assert edges[0] <= min(values) <= max(values) <= edges[-1] + 1e-9
        assert 1 <= len(shares) <= 60
    edges, marks = find_edges([[0.0, 1.0, 1.0, 1.0]])
    assert (edges, marks) == ([-0.5, 0.5, 1.5], [0.0, 1.0])
    assert count_shares([0.0, 1.0, 1.0, 1.0], edges) == [0.25, 0.75]


def test_first_and_last_steps_stand_beside_each_other(tmp_path):
    folder = make_run(tmp_path / "run", steps=30)
    for step in range(1, 31):
        right = step > 15
        write_rollouts(folder, step, [float(right), float(right), None, float(not right)], [10 + step] * 4)
    (folder / "rollouts" / "step-000002.parquet").write_bytes(b"torn")
    source = render_section(draw_histograms, RunData(folder))
    page = Page(source)
    labels = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    assert labels == [
        "Rewards, first 10 saved steps: median 0 over 27; last 10: median 1 over 30",
        "Lengths, first 10 saved steps: median 16 over 36; last 10: median 35.5 over 40",
    ]
    assert "first 10 saved steps (left)" in page.text
    assert "first 10 saved steps: 66.7 % from -0.5 to 0.5" in page.text
    assert "last 10: 66.7 % from 0.5 to 1.5" in page.text
    for step in range(2, 31):
        (folder / "rollouts" / f"step-{step:06d}.parquet").unlink()
    assert draw_histograms(RunData(folder)) is None


# -- several runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    first, second = make_run(tmp_path / "one" / "run", steps=30), make_run(tmp_path / "two" / "run", steps=20)
    third = make_run(tmp_path / "two" / f"third {EVIL.replace('/', '')}", steps=10)
    change_lines(first / "metrics.jsonl", lambda row: row.pop("loss/entropy"))

    def worse(row):
        if row["label"] == "after":
            row["sets"]["held_out"]["pass@1"] = interval(0.802)
            row["per_problem"]["held_out"]["success"] = ["1" * 8 + "00"] * 98 + ["1" * 9 + "0"] * 2

    change_lines(second / "evaluations.jsonl", worse)
    recipe = third / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('function = "math_answer"', 'function = "exact_match"'))
    (third / "summary.json").write_text(json.dumps({"status": "failed", "error": EVIL, "steps": 10}))
    return [first, second, third]


def test_several_runs_share_a_page(runs, tmp_path):
    source = write_overlay(runs, tmp_path / "runs.html").read_text()
    page = Page(source)
    assert "one/run finished grpo" in page.text
    assert "two/run 512 problems 54.1 % [51.1, 57.1] 80.2 % [77.2, 83.2] +26.1" in page.text
    difference = re.search(r"\+26\.1 (\S+) \[(\S+), (\S+)\]", page.text)
    assert float(difference[1]) == pytest.approx(-15.0)
    assert float(difference[2]) <= -15.0 <= float(difference[3])
    assert page.text.count("rewards differ") == 2  # a success there is not a success here
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "Failed runs" in page.text
    charts = {}
    for chart in re.findall(r'<figure class="card chart".*?</figure>', source, re.DOTALL):
        charts[re.search(r"<h3>(.*?)</h3>", chart)[1]] = re.findall(r'<svg class="key (c\d)"', chart)
    assert charts["Reward"] == ["c0", "c1", "c2"]
    assert charts["Entropy"] == ["c1", "c2"]  # the first has none; the others keep their colours
    assert charts["pass@1 on held-out problems"] == ["c0", "c1", "c2"]


def test_the_command_lays_runs_over_each_other(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def report(*words):
        result = CliRunner().invoke(app, ["report", *map(str, words)])
        return result.exit_code, result.output.strip()

    assert report(*runs) == (0, "runs.html")
    assert report(*runs[:2], "--output", "two.html") == (0, "two.html")
    assert "<title>one/run · two/run · Cohort runs</title>" in (tmp_path / "two.html").read_text()
    assert report(runs[0]) == (0, str(runs[0] / "report.html"))
    assert "a run is named twice" in report(runs[0], runs[0])[1]
    assert "leave the option out" in report(runs[0], "--output", "x.html")[1]
    assert "is not a run folder" in report(runs[0], tmp_path)[1]
    with pytest.raises(RunError, match="a chart can show at most 8 runs, not 9"):
        write_overlay([tmp_path / str(n) for n in range(9)], tmp_path / "runs.html")


# -- room --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_no_card_is_wider_inside_than_outside(tmp_path, runs):
    """On a screen and on a phone: long notes, names and numbers may not push a column out of its card."""

    def stretch(row):
        for numbers in row["sets"].values():
            numbers["maj@8"] = {"value": None, "low": None, "high": None, "reason": NOTE}
            numbers["reward"] = {"value": -1234.567, "low": -2345.678, "high": -345.789}
            numbers["pass@1"] = {"value": 1.0, "low": 1.0, "high": 1.0}
        row["sets"][LONG_NAME] = row["sets"]["held_out"]

    folder = make_run(tmp_path / "run", steps=30)
    change_lines(folder / "evaluations.jsonl", stretch)
    change_lines(folder / "metrics.jsonl", lambda row: row.update({f"reward/{LONG_NAME}/mean": 0.5}))
    for step in (1, 2):
        write_rollouts(folder, step, [0.0, 1.0], [3, 9])
    error = {
        "status": "failed",
        "steps": 30,
        "error": f"{LONG_NAME}: {NOTE}",
        "failure": {"type": LONG_NAME, "where": LONG_NAME},
    }
    (folder / "summary.json").write_text(json.dumps(error))
    ranks = [make_record(rank, f"{rank}{LONG_NAME}", Laps({"rollout": 1234.5, "update": 0.1}), 123.45) for rank in range(20)]
    (folder / "ranks.jsonl").write_text(json.dumps({"step": 30, "ranks": ranks}) + "\n")
    pages = [write_report(folder).read_text(), write_overlay([folder, *runs], tmp_path / "runs.html").read_text()]
    for boxes, wide in find_overflow(pages, (1280, 390), tmp_path):
        assert boxes > 10
        assert wide == []


def test_a_report_shows_how_to_open_the_run_in_the_dashboard(tmp_path):
    folder = tmp_path / "runs" / "a & b"
    folder.mkdir(parents=True)
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<code>cohort dashboard runs/a &amp; b</code>" in page
    assert [file.name for file in folder.iterdir()] == ["report.html"]
