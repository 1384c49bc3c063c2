"""User code that changes the current folder: a run, an evaluation and their results stay where they were started."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import cohort
from cohort.errors import RunError
from cohort.observe.monitors.base import METHODS
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import load_recipe
from session_tools import differences, digit_share, fork_server, rows_of
from test_api import ROWS, SETTINGS, model  # noqa: F401

FILES = {
    "recipe.toml",
    "metrics.jsonl",
    "evaluations.jsonl",
    "events.jsonl",
    "summary.json",
    "report.html",
    "model",
    "checkpoints",
}
PLAIN = SETTINGS | {"name": "run", "num_steps": 2}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder to start in; where the test left the process does not matter to the next."""
    start = tmp_path / "home"
    start.mkdir()
    monkeypatch.chdir(start)
    return start


def go_away():
    """As `with TemporaryDirectory()` with a chdir in it does: the current folder no longer exists."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)


def go_elsewhere():
    os.chdir(tempfile.mkdtemp())


def moving_reward(move):
    def reward(completions, **columns):
        move()
        return [float(len(text) % 3) for text in completions]

    return reward


class MovingMonitor:
    """Leaves for a folder that is removed, in every method that a run calls."""

    def __init__(self):
        self.called = set()

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(name)

        def hear(*_, **__):
            self.called.add(name)
            go_away()

        return hear


def check_whole(run, home, name="run"):
    folder = home / "runs" / name
    assert run.folder == folder
    assert run.folder.is_absolute()
    assert run.status == "finished"
    assert {file.name for file in folder.iterdir()} >= FILES
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
    assert [row["step"] for row in rows_of(folder)] == [1, 2]
    assert [path.name for path in home.iterdir()] == ["runs"]
    assert [path.name for path in (home / "runs").iterdir()] == [name]


@pytest.mark.parametrize("move", [go_away, go_elsewhere])
def test_a_reward_that_changes_the_folder(model, home, move):  # noqa: F811
    check_whole(cohort.train(model, ROWS, [moving_reward(move)], **PLAIN), home)


def test_a_monitor_that_changes_the_folder_whenever_it_is_called(model, home):  # noqa: F811
    monitor = MovingMonitor()
    settings = {key: value for key, value in PLAIN.items() if key != "monitors"}
    run = cohort.train(model, ROWS, [digit_share], monitors=[monitor], console=False, show_every=1, **settings)
    check_whole(run, home)
    assert monitor.called >= {"on_stage", "on_metrics", "on_rollouts", "on_evaluation", "on_message", "on_finish", "close"}


def test_a_prompts_function_that_changes_the_folder_before_other_relative_sources_are_read(model, home, monkeypatch):  # noqa: F811
    (home / "moving_rows.py").write_text(
        "import os\ndef rows():\n    os.chdir('/')\n    return [{'prompt': f'{n} plus', 'answer': '1'} for n in range(20)]\n"
    )
    (home / "held.json").write_text(json.dumps([{"prompt": "3 minus"}]))
    shutil.copytree(model, home / "model")
    monkeypatch.syspath_prepend(str(home))
    run = cohort.train("model", "moving_rows:rows", [digit_share], evaluate_on="held.json", **PLAIN)
    assert (run.status, run.folder) == ("finished", home / "runs" / "run")


def test_a_worker_that_is_replaced_starts_where_the_run_was_started(home, monkeypatch):
    from cohort.rewards.pool import HelperPool

    (home / "where_am_i.py").write_text("import os\ndef answer(message):\n    return os.getcwd()\n")
    monkeypatch.syspath_prepend("")  # as in a notebook: the current folder, by no name
    pool = HelperPool(1, "where_am_i:answer")
    try:
        go_away()
        with pool.borrow() as worker:
            worker.kill()
        assert pool.ask("", _Limits()).value == str(home)
    finally:
        pool.close()


class _Limits:
    wall_s = 60.0


def interrupted_run(model, home, reward):  # noqa: F811
    from cohort.errors import Interrupted

    class Stopping:
        def on_metrics(self, row):
            raise Interrupted("SIGTERM")

    settings = {key: value for key, value in PLAIN.items() if key != "monitors"}
    run = cohort.train(model, ROWS, [reward], monitors=[Stopping()], console=False, **settings)
    assert (run.status, run.folder) == ("interrupted", home / "runs" / "run")
    return run


def test_a_resumed_run_stays_where_it_is(model, home):  # noqa: F811
    interrupted_run(model, home, moving_reward(lambda: None))
    os.chdir(home)
    run = cohort.resume("runs/../runs/run", rewards=[moving_reward(go_away)])
    assert (run.status, run.folder.is_absolute(), run.folder.resolve()) == ("finished", True, home / "runs" / "run")
    assert [file.name for file in (home / "runs").iterdir()] == ["run"]
    os.chdir(home)
    assert cohort.resume("runs/run").folder == home / "runs" / "run"  # it is finished: nothing runs


def test_a_runs_folder_behind_a_link(model, home):  # noqa: F811
    (home / "real").mkdir()
    (home / "link").symlink_to("real")
    run = cohort.train(model, ROWS, [moving_reward(go_elsewhere)], **PLAIN | {"runs_folder": "real/../link"})
    assert run.folder.resolve() == home / "real" / "run"
    assert {file.name for file in run.folder.iterdir()} >= FILES


def test_a_run_that_fails_elsewhere_says_so_in_its_folder(model, home):  # noqa: F811
    def reward(completions, trainer_state, **columns):
        go_away()
        if trainer_state.global_step == 1:
            raise ValueError("the second step")
        return [0.0] * len(completions)

    with pytest.raises(cohort.errors.RewardError, match="the second step"):
        cohort.train(model, ROWS, [reward], **PLAIN | {"evaluation": {"samples": 0}})
    summary = json.loads((home / "runs" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 1)


def test_an_evaluation_of_relative_paths(model, home):  # noqa: F811
    """A model, which is read after the rows, and a run; their names stay as they were given."""
    shutil.copytree(model, home / "model")

    def rows():
        go_away()
        yield from ROWS[:4]

    words = {"samples": 2, "max_completion_tokens": 8, "resamples": 100}
    moved = cohort.evaluate("model", rows(), [moving_reward(go_away)], **words)
    os.chdir(home)
    assert moved.label == "model"
    assert moved.sets == cohort.evaluate("model", ROWS[:4], [moving_reward(lambda: None)], **words).sets
    cohort.train(model, ROWS, [moving_reward(lambda: None)], **PLAIN)
    assert cohort.evaluate("runs/run", rewards=[moving_reward(go_away)], checkpoint="last", **words).label == "runs/run@last"


def test_the_commands_with_a_module_that_changes_the_folder(model, home):  # noqa: F811
    """`cohort train`, `resume`, `evaluate` of two targets with --output, `report` and `export`, all by relative names."""
    (home / "moving.py").write_text(
        "import os, shutil, tempfile\n"
        "def rows():\n    go()\n    return [{'prompt': f'{n} plus', 'answer': '1'} for n in range(20)]\n"
        "def go():\n    folder = tempfile.mkdtemp()\n    os.chdir(folder)\n    shutil.rmtree(folder)\n"
        "def reward(completions, wall_s, **columns):\n    go()\n    return [float(len(text) % 2) for text in completions]\n"
        "reward.supervised = True\n"  # it runs in the trainer's process
    )
    shutil.copytree(model, home / "start")
    (home / "my.toml").write_text(
        'name = "run"\nmodel.source = "start"\nprompts.source = "moving:rows"\nrewards = [{function = "moving:reward"}]\n'
        "train = {num_steps = 1, prompts_per_step = 4, group_size = 4}\nsampling.max_completion_tokens = 8\n"
        "evaluation = {samples = 2, max_problems = 4, resamples = 100}\nmonitors.console = false\n"
    )
    with fork_server(home) as server:
        for command in (
            "train my.toml",
            "resume runs/run",
            "evaluate runs/run start --output out.json",
            "report runs/run",
            "export runs/run exported --checkpoint last",
        ):
            child = server.run(*command.split())
            assert child.wait() == 0, (command, child.output)
    assert list(json.loads((home / "out.json").read_text()))[:2] == ["runs/run", "start"]
    assert (home / "exported" / "config.json").is_file()
    assert (home / "runs" / "run" / "report.html").is_file()
    assert [file.name for file in (home / "runs").iterdir()] == ["run"]


def test_a_start_in_a_folder_that_is_gone_is_answered_in_words(model):  # noqa: F811
    go_away()
    with pytest.raises(RunError, match="the current folder no longer exists; change to another one, or give an absolute path"):
        cohort.train(model, ROWS, [digit_share], **PLAIN)


def test_an_absolute_runs_folder_needs_no_current_folder(model, tmp_path):  # noqa: F811
    go_away()
    run = cohort.train(model, ROWS, [moving_reward(go_elsewhere)], **PLAIN | {"runs_folder": str(tmp_path / "runs")})
    assert run.folder == tmp_path / "runs" / "run"
    assert run.status == "finished"


def test_a_run_folder_is_absolute_however_it_is_opened(home):
    made = RunFolder.create(load_recipe(values={"name": "run"}))
    made.unlock()
    assert made.root == RunFolder.open("runs/run").root == RunFolder.watch("runs/run").root == home / "runs" / "run"
    assert RunFolder(Path("runs/run")).checkpoints == home / "runs" / "run" / "checkpoints"


def test_a_reward_that_counts_in_its_row_resumes_to_the_same_bits(model, home):  # noqa: F811
    """And what a monitor or the caller changes in the rows meanwhile changes nothing either."""
    rows = [row | {"info": {"seen": 0, "tests": [1, 2, 3]}} for row in ROWS]

    def counting(completions, info, **columns):
        for one in info:
            one["seen"] += 1
            one["tests"].pop()
        return [one["seen"] + len(one["tests"]) + len(text) % 3 for one, text in zip(info, completions, strict=True)]

    whole = cohort.train(model, rows, [counting], **PLAIN | {"name": "whole"})
    assert rows[0]["info"] == {"seen": 0, "tests": [1, 2, 3]}

    class Spoiling:
        def on_stage(self, *_):
            for row in rows:
                row["info"]["tests"].clear()

    from cohort.errors import Interrupted

    class Stopping(Spoiling):
        def on_metrics(self, row):
            raise Interrupted("SIGTERM")

    settings = {key: value for key, value in PLAIN.items() if key != "monitors"} | {"console": False, "name": "parts"}
    run = cohort.train(model, rows, [counting], monitors=[Stopping()], **settings)
    assert run.status == "interrupted"
    run = cohort.resume(run, rewards=[counting], monitors=[Spoiling()])
    assert differences(run.folder, whole.folder) == []
