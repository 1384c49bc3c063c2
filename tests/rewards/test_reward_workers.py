"""Limits of a worker, and that it leaves no process behind when it ends, whatever its function has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import test_rewards_zoo as zoo
from test_rewards_runner import completion, is_gone, prompt, rewards, score

from cohort.errors import RewardError
from cohort.rewards import pool, retry_one_by_one
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


# -- processes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hang", 0.0),
        ("group", None),
        pytest.param("x", 1.0, marks=pytest.mark.prove),
        pytest.param("die", None, marks=pytest.mark.prove),
    ],
)
def test_what_a_function_has_started_ends_with_its_worker(text, expected, tmp_path):
    """Closed, at the time limit, by its own end and by a signal to its group; in whatever session the children are."""
    pid_file = tmp_path / "pids"
    part = RewardPart("f", zoo.start_sessions, timeout_s=1.0)
    with RewardRunner([part], workers=1, max_fault_share=1.0) as runner:
        scored = runner.score([prompt(pid_file=str(pid_file))], [completion(text)], step=1, num_steps=1)
    assert rewards(scored) == [expected]
    pids = [int(word) for word in pid_file.read_text().split()]
    assert len(pids) >= 3
    assert [pid for pid in pids if not is_gone(pid)] == []
    if text == "die":  # the guard ends as its worker did
        assert scored.outcomes[0].faults == ("f:crash",)


PARENT = """
import sys
from cohort.rewards.runner import RewardRunner
from cohort.rewards.contract import RewardPart
from cohort.types import Completion, Prompt
with RewardRunner([RewardPart("f", "test_rewards_zoo:start_sessions", timeout_s=60)], workers=1) as runner:
    runner.score([Prompt(0, "q", {"pid_file": sys.argv[1]}, (1,))], [Completion((1,), (0.0,), "stop", "x")], step=1, num_steps=1)
    print(*[place.worker.pid for place in runner._pool._places if place.worker], flush=True)
    sys.stdin.read()
"""


def test_what_a_function_has_started_ends_with_a_trainer_that_is_killed(tmp_path):
    pid_file = tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(zoo.__file__).parent), *sys.path])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(pid_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    pids += [int(word) for word in pid_file.read_text().split()]
    assert len(pids) == 4
    assert [pid for pid in pids if not is_gone(pid)] == []


CHILD_OF_COMPARE = """
import os, sys, time
from pathlib import Path
from cohort.tools.compare.runner import make_environment, start_process
child = "from cohort.base.processes import begin_process; begin_process(); print('begun', flush=True); import time; time.sleep(60)"
log = Path(sys.argv[1])
started = start_process((sys.executable, "-c", child), log, make_environment(1))
while "begun\\n" not in log.read_text():
    time.sleep(0.01)
print(started.pid, flush=True)
sys.stdin.read()
"""


def test_no_child_outlives_a_comparison_that_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD_OF_COMPARE, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid, within_s=0.1)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert is_gone(pid)


# -- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [["x", "large"], pytest.param(["x", "large", "x", "child", "x"], marks=pytest.mark.prove)])
def test_a_completion_that_takes_too_much_memory_scores_zero_and_the_others_keep_their_scores(texts):
    """Small ones leave 60 MB each behind: none of them pays for what stood in the worker before."""
    part = RewardPart("f", zoo.fills_memory, timeout_s=30.0, threshold=0.0, memory_mb=170)
    with RewardRunner([part], workers=1) as runner:
        scored = runner.score([prompt()] * len(texts), [completion(text) for text in texts], step=1, num_steps=1)
    fits = [text == "x" for text in texts]
    assert rewards(scored) == [float(fit) for fit in fits]
    assert [outcome.faults for outcome in scored.outcomes] == [() if fit else ("f:memory",) for fit in fits]
    assert [outcome.success for outcome in scored.outcomes] == fits
    assert scored.metrics["reward/f/verdict/memory"] == fits.count(False)
    assert scored.metrics["reward/faults"] == scored.metrics["reward/unscored"] == scored.metrics["reward/timeouts"] == 0


def test_a_function_that_never_has_enough_memory_stops_the_run_and_one_without_a_worker_has_no_limit(monkeypatch):
    monkeypatch.setattr(retry_one_by_one, "MAX_LIMITS", 2)
    with pytest.raises(RewardError, match=r"'f' runs out of memory: 2 completions .* within memory_mb = 50 MB\."):
        score(zoo.needs_memory, ["x"] * 2, memory_mb=50)
    with pytest.raises(RewardError, match=r"rewards\.0\.memory_mb: 'f' runs in the trainer, not in a worker; leave it out"):
        score(lambda completions, **columns: [1.0], ["x"], memory_mb=50)
    with pytest.raises(
        RewardError, match=r"rewards\.0\.memory_mb: 'f' runs in the trainer, not in a worker; .*args\.memory_mb"
    ):
        score("code_tests", ["x"], columns={"tests": [["assert f(1)"]]}, memory_mb=50)


# -- the terminal --------------------------------------------------------------------------------------------------------


def test_a_worker_has_no_terminal_and_prints_only_so_much(capfd, monkeypatch):
    monkeypatch.setattr(pool, "SHOWN_CHARS", 200)
    with RewardRunner([RewardPart("f", zoo.looks_for_a_terminal)], workers=1) as runner:
        texts = ["one\x1b[2J\x1b]0;title\x07", "two\rthree", "long " * 100 + "four"]
        assert rewards(runner.score([prompt()] * 3, [completion(text) for text in texts], step=1, num_steps=2)) == [1.0] * 3
        said = ""
        while "omitted" not in said:
            said += capfd.readouterr().err
        assert rewards(runner.score([prompt()], [completion("five")], step=2, num_steps=2)) == [1.0]
    said += capfd.readouterr().err
    assert said.startswith("one\\x1b[2J\\x1b]0;title\\x07\ntwo\nthree\nlong long")
    assert said.count("long ") < 40
    assert said.count("[rewards printed more than 200 characters in this step; the rest is omitted]") == 1
    assert "four" not in said
    assert said.endswith("five\n")
