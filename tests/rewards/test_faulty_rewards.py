"""A verifier that raises, hangs, returns NaN and lists of the wrong length: the run survives, and counts each kind exactly."""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

import session_tools as tools

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import faulty_reward
import faulty_rewards

SHARES = {"raise": 0.03, "nan": 0.03, "length": 0.03, "hang": 0.015}
"""More than in the benchmark: a tiny run has few completions, and every kind is to occur."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    log = runs / "injected.jsonl"
    part = {
        "function": "faulty_reward:flawed_answer",
        "timeout_s": 1.0,
        "args": {"log": str(log), "shares": SHARES},
    }
    result = tools.train_tiny(
        runs,
        rewards=[part],
        **{"train.num_steps": 12, "train.max_fault_share": 0.6, "evaluation.every_steps": 0, "checkpoints.every_steps": 0},
    )
    return result.folder, log


def test_the_run_finishes_and_each_kind_is_counted_as_often_as_it_was_injected(finished):
    run, log = finished
    figures = faulty_rewards.figures_of(run, log)
    assert figures["status"] == "finished"
    assert figures["steps"] == 12
    assert figures["counted"] == figures["injected"]
    assert set(figures["injected"]) == {"raise", "hang", "nan", "length"}
    assert min(figures["injected"].values()) > 0
    assert figures["holds"]["finished"]
    assert figures["holds"]["each_kind_counted_exactly"]
    assert figures["holds"]["metrics_agree"]


def test_step_by_step_it_is_the_injected_completions_that_are_lost_and_no_others(finished):
    run, log = finished
    expected = Counter()
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        expected[entry["step"], entry["completion"], entry["kind"]] += 1
    found = Counter()
    words = {f"flawed_answer:{word}": kind for kind, word in faulty_reward.FAULTS.items()}
    for file in (run / "rollouts").glob("step-*[0-9].parquet"):
        for row in pq.read_table(file).to_pylist():
            for fault in row["faults"]:
                found[row["step"], row["completion"], words[fault]] += 1
            lost = [words[fault] for fault in row["faults"]]
            assert (row["reward"] is None) == (lost in (["raise"], ["nan"], ["length"]))
            if lost == ["hang"]:
                assert row["reward"] == 0.0  # hanging is the completion's doing: it does not beat being wrong
                assert row["success"] is False
            if row["reward"] is None:
                assert row["success"] is None
                assert row["advantage"] == 0.0
    assert found == expected
    assert {step for step, _, _ in found} <= set(range(2, 13))  # the first step is left alone


def test_what_is_held_out_is_judged_without_faults(finished):
    run, _ = finished
    for evaluation in tools.rows_of(run, "evaluations.jsonl"):
        assert evaluation["sets"]["held_out"]["unscored"] == 0


def call(texts, step=2, shares=None, log=""):
    prompts = ["12+35="] * len(texts)
    return faulty_reward.flawed_answer(prompts, texts, ["47"] * len(texts), SimpleNamespace(global_step=step - 1), log, shares)


def test_the_verifier_without_faults():
    assert call(["2+5+0=7\n1+3+0=4\n>47", ">46", ">47 ", "47", ""]) == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_the_fault_of_a_completion_follows_from_its_text_and_the_step():
    shares = {"raise": 0.25, "nan": 0.25, "length": 0.25}
    kinds = [faulty_reward.kind_of(str(number), 7, shares) for number in range(4000)]
    assert kinds == [faulty_reward.kind_of(str(number), 7, shares) for number in range(4000)]
    for kind in ("raise", "nan", "length", ""):
        assert kinds.count(kind) == pytest.approx(1000, abs=3 * math.sqrt(4000 * 0.25 * 0.75))
    assert kinds != [faulty_reward.kind_of(str(number), 8, shares) for number in range(4000)]


def test_a_list_of_the_wrong_length_costs_its_own_completion_only():
    with pytest.raises(ValueError, match="injected at step 2"):
        call([">47", ">47"], shares={"length": 1.0})
    assert call([">47"], shares={"length": 1.0}) == [1.0, 0.0]
    assert all(math.isnan(score) for score in call([">47", ">46"], shares={"nan": 1.0}))
    assert call([">47"], step=1, shares={"nan": 1.0}) == [1.0]
