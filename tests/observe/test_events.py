"""events.jsonl: what a run says, as it says it; and findings, each told once, however often the run is taken up."""

from __future__ import annotations

import json

import pytest

from cohort.errors import Interrupted
from cohort.observe.diagnosis import checks as watching
from cohort.observe.diagnosis.checks import FindingWatch
from cohort.observe.diagnosis.finding import Finding
from cohort.observe.monitors import build_monitors
from cohort.observe.monitors.base import Monitor, Monitors
from cohort.observe.monitors.jsonl import JsonlMonitor, read_rows
from cohort.observe.rollouts import append_rows, list_token_steps, read_index, write_tokens
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe, load_recipe
from conftest import rollout

HOSTILE = "\x1b[2J<script>alert(1)</script>\u202e half \ud800 a pair\n"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def jsonl(tmp_path):
    monitor = JsonlMonitor(tmp_path, clock=Clock())
    monitor.events.touch()
    return monitor


def events_of(monitor, *names):
    return [tuple(row.get(name) for name in names) for row in read_rows(monitor.events)]


# -- what is said ------------------------------------------------------------------------------------------------------


def test_messages_and_stages_know_their_time_and_step(jsonl):
    jsonl.on_message("before")
    jsonl.on_stage("cold start", total=4)
    jsonl.clock.now += 0.25
    jsonl.on_message("while it is cold")
    jsonl.on_stage("training", total=9, done=3)
    jsonl.on_message("in step 4")
    jsonl.on_metrics({"step": 4})
    jsonl.on_message("in step 5")
    jsonl.on_stage("final evaluation")
    jsonl.on_message("at the end")
    jsonl.on_finish({"status": "interrupted"})
    assert events_of(jsonl, "step", "kind", "text", "stage", "total", "done") == [
        (None, "message", "before", None, None, None),
        (None, "stage", None, "cold start", 4, 0),
        (None, "message", "while it is cold", None, None, None),
        (3, "stage", None, "training", 9, 3),
        (4, "message", "in step 4", None, None, None),
        (5, "message", "in step 5", None, None, None),
        (4, "stage", None, "final evaluation", 0, 0),
        (4, "message", "at the end", None, None, None),
        (4, "stage", None, "interrupted", None, None),
    ]
    assert events_of(jsonl, "time")[1:3] == [(1000.0,), (1000.25,)]


def test_progress_is_written_now_and_then_and_at_its_end(jsonl):
    jsonl.on_stage("cold start", total=100)
    for done in range(1, 101):
        jsonl.clock.now += 0.2
        jsonl.on_progress(done, {"loss": 1 / done})
    rows = [row for row in read_rows(jsonl.events) if row["kind"] == "progress"]
    assert [row["done"] for row in rows] == [1, 26, 51, 76, 100]
    assert rows[1] == {
        "time": 1005.2, "step": None, "kind": "progress", "stage": "cold start", "done": 26, "total": 100, "values": {"loss": 1 / 26},
    }  # fmt: skip


def test_scoring_is_mentioned_only_when_it_takes_long(jsonl):
    jsonl.on_stage("training", total=2)
    for done in (1, 63, 64):
        jsonl.clock.now += 1.0
        jsonl.on_scoring("quick", done, 64)
    for done in range(1, 13):
        jsonl.clock.now += 1.0
        jsonl.on_scoring("slow", done, 64)
    found = [row for row in read_rows(jsonl.events) if row["kind"] == "progress"]
    assert [(row["step"], row["part"], row["done"], row["total"]) for row in found] == [(1, "slow", 6, 64), (1, "slow", 11, 64)]


def test_hostile_text_is_one_line_of_text(jsonl):
    jsonl.on_message(HOSTILE)
    [line] = jsonl.events.read_bytes().splitlines()
    assert json.loads(line)["text"].startswith("\x1b[2J<script>")
    assert b"\x1b" not in line


# -- taking it up again ------------------------------------------------------------------------------------------------


def test_a_resumed_run_has_nothing_twice(tmp_path, jsonl):
    jsonl.on_message("at the start")
    jsonl.on_stage("training", total=9)
    for step in range(1, 6):
        jsonl.on_message(f"in step {step}")
        jsonl.on_metrics({"step": step})
        jsonl.on_finding(step, make_finding(f"found {step}"))
        append_rows(tmp_path / "rollouts" / "index.bin", step, [rollout(0, 0, 1.0)], [0.0])
        write_tokens(tmp_path / "rollouts" / f"step-{step:06d}.tokens.parquet", step, [])
    with jsonl.events.open("ab") as stream:
        stream.write(b'{"time": 1, "step": 5, "kind": "mess')
    monitors = build_monitors(build_recipe({"monitors": {"console": False}}), tmp_path, resume_step=3)
    assert events_of(jsonl, "step", "kind") == [
        (None, "message"), (0, "stage"), (1, "message"), (1, "finding"), (2, "message"), (2, "finding"), (3, "message"), (3, "finding"),
    ]  # fmt: skip
    assert monitors.watch.known == {"found 1", "found 2", "found 3"}
    assert [row["step"] for row in monitors.watch.rows] == [1, 2, 3]
    assert read_index(tmp_path / "rollouts" / "index.bin")["step"].tolist() == [1, 2, 3]
    assert list_token_steps(tmp_path / "rollouts") == [1, 2, 3]


def test_a_run_from_before_there_were_events_is_taken_up(tmp_path):
    JsonlMonitor(tmp_path).on_metrics({"step": 1})
    with build_monitors(build_recipe({"monitors": {"console": False}}), tmp_path, resume_step=1) as monitors:
        monitors.on_metrics({"step": 2})
    assert monitors.failures == {}
    assert not (tmp_path / "rollouts").exists()


def test_a_name_that_is_used_again_begins_with_no_events(tmp_path):
    recipe = load_recipe(values={"runs_folder": str(tmp_path), "name": "run"})
    first = RunFolder.create(recipe)
    JsonlMonitor(first.root).on_message("a start that failed at once")
    first.unlock()
    second = RunFolder.create(recipe)
    assert not second.events_file.exists()
    second.unlock()


# -- findings ----------------------------------------------------------------------------------------------------------


def make_finding(name, **more):
    return {"name": name, "level": "alarm", "what": "w", "why": "y", "fix": "f", "evidence": [], "rows": [], "text": "t", "again": False} | more  # fmt: skip


class Told(Monitor):
    def __init__(self):
        self.findings = []

    def on_finding(self, step, finding):
        self.findings.append((step, finding["name"], finding["again"]))


def cut(step):
    return {"step": step, "rollout/truncated": 0.9}


def test_each_finding_is_told_once_and_written_once(tmp_path, jsonl):
    told = Told()
    monitors = Monitors([jsonl, told], report=pytest.fail, watch=FindingWatch({}))
    for step in range(1, 5):
        monitors.on_metrics(cut(step))
    assert told.findings == [(1, "truncation", False)]
    assert [finding.name for finding in monitors.watch.standing] == ["truncation"]
    assert monitors.watch.new == []
    [row] = [row for row in read_rows(jsonl.events) if row["kind"] == "finding"]
    assert (row["step"], row["name"], row["level"], row["rows"]) == (1, "truncation", "alarm", [])
    assert row["what"].startswith("90 % of completions were cut")
    assert "text" not in row
    # Another process of the run: people are told again, the file is not.
    again = Told()
    known = [row["name"] for row in read_rows(jsonl.events) if row["kind"] == "finding"]
    monitors = Monitors([jsonl, again], report=pytest.fail, watch=FindingWatch({}, rows=[cut(1)], known=known))
    monitors.on_metrics(cut(2))
    assert again.findings == [(2, "truncation", True)]
    assert len([row for row in read_rows(jsonl.events) if row["kind"] == "finding"]) == 1


def test_a_finding_that_no_longer_holds_is_withdrawn_and_said_again_if_it_comes_back(jsonl):
    told = Told()
    monitors = Monitors([jsonl, told], report=pytest.fail, watch=FindingWatch({}))
    for step in range(1, 41):
        monitors.on_metrics(cut(step) if step <= 4 or step >= 30 else {"step": step, "rollout/truncated": 0.0})
    assert told.findings == [(1, "truncation", False), (30, "truncation", True)]
    texts = [(row["step"], row["text"]) for row in read_rows(jsonl.events) if row["kind"] == "message"]
    # Step 6 is the last that shows it: it reads three steps.
    assert texts == [(16, "withdrawn at step 16, for it no longer holds: 90 % of completions were cut at the token limit.")]


def test_early_steps_are_all_looked_at_and_later_every_tenth_and_the_last(monkeypatch):
    looked = []
    monkeypatch.setattr(watching, "diagnose", lambda rows, *_: looked.append(rows[-1]["step"]) or [])
    watch = FindingWatch({"train": {"num_steps": 77}})
    for step in range(1, 78):
        watch.add_row({"step": step})
    assert looked == [*range(1, 51), 60, 70, 77]


def test_the_end_of_a_run_is_looked_at_and_that_of_a_part_of_it_is_not(monkeypatch):
    """A run that goes on looks when it would have looked, so that what is new in which step does not depend on kills."""
    monkeypatch.setattr(
        watching, "diagnose", lambda rows, *_: [Finding("late", "info", "w", "y", "")] if len(rows) > 55 else []
    )
    for status, expected in (("interrupted", []), ("failed", []), ("finished", [(57, "late", False)])):
        told = Told()
        monitors = Monitors([told], watch=FindingWatch({}))
        for step in range(1, 58):
            monitors.on_metrics({"step": step})
        monitors.on_finish({"status": status})
        assert told.findings == expected


def test_rows_that_evidence_names_are_those_of_the_step():
    watch = FindingWatch({})
    old = Finding("old", "alarm", "w", "y", "", (), ((8, 3), (9, 4), (9, 1)))
    new = Finding("new", "alarm", "w", "y", "", (), ((9, 4), (9, 7), (7, 2)))
    watch.standing, watch.new = [old, new], [new]
    assert watch.list_named_rows(9) == [4, 1, 7]
    assert watch.list_named_rows(9, new=True) == [4, 7]
    assert watch.list_named_rows(10) == []


def test_a_diagnosis_that_fails_is_reported_once_and_stops_nobody(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a check is wrong")

    monkeypatch.setattr(watching, "diagnose", broken)
    reports, told = [], Told()
    monitors = Monitors([told], report=reports.append, watch=FindingWatch({}))
    monitors.on_metrics({"step": 1})
    monitors.on_metrics({"step": 2})
    assert monitors.failures == {"FindingWatch": 2}
    assert len(reports) == 1
    assert "a check is wrong" in reports[0]
    monkeypatch.setattr(watching, "diagnose", lambda *_: (_ for _ in ()).throw(Interrupted("SIGTERM")))
    with pytest.raises(Interrupted):
        monitors.on_metrics({"step": 3})
