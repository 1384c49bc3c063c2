"""Whole runs in an environment: engine and trainer agree to the bit, a resume gives the same run, records hold the turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cohort
import turns_tools
from cohort import loop
from cohort.errors import CohortError, Interrupted
from cohort.observe.rollouts import list_kept_steps, read_rollouts, write_transcript
from session_tools import differences, rows_of

SETTINGS: dict[str, Any] = {
    "model.scratch": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "max_positions": 160,
        "characters": turns_tools.ALPHABET,
    },
    "sampling.max_completion_tokens": 20,
    "sampling.stop": [".", ",", "=", "0", "1"],
    "environment.max_turns": 3,
    "environment.max_observation_tokens": 48,
    "environment.workers": 1,
    "environment.step_timeout_s": 300.0,
    "environment.episode_timeout_s": 900.0,
    "num_steps": 3,
    "prompts_per_step": 4,
    "group_size": 4,
    "learning_rate": 1e-3,
    "checkpoints.every_steps": 1,
    "evaluation": {"samples": 2, "resamples": 100, "held_out_least": 4},
    "monitors": {"console": False, "tokens_every": 1},
}
ROWS = [{"prompt": f"ab{number}?"} for number in range(24)]


def train(runs: Path, name: str, environment: Any = turns_tools.Echo, prompts: Any = ROWS, **changes: Any) -> Path:
    settings = {**SETTINGS, "runs_folder": str(runs), "name": name, **changes}
    return Path(cohort.train(model="scratch", prompts=prompts, environment=environment, **settings).folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), "whole")


def test_engine_and_trainer_agree_to_the_bit_in_every_step(whole):
    rows = rows_of(whole)
    assert [row["rollout/mismatch_max"] for row in rows] == [0.0] * 3
    for row in rows:
        assert row["turns/mean"] > 1.2
        assert row["turns/read_tokens"] > 0
        assert row["rollout/length_max"] <= 20, "replies count in no length"
        assert row["turns/faults"] == row["tools/calls"] == 0.0
        assert 0 < row["reward/Echo/mean"] == row["reward/mean"]


def test_the_record_tells_what_was_read_from_what_was_written(whole):
    rows = read_rollouts(whole / "rollouts" / "step-000001.parquet")
    several = next(row for row in rows if len(json.loads(row["episode"])["turns"]) > 1)
    episode = json.loads(several["episode"])
    replies = [message["content"] for message in episode["messages"] if message["role"] == "user"]
    assert replies
    assert all(reply.endswith("?") for reply in replies)
    transcript = write_transcript(several)
    assert f"[Echo] {replies[0]}" in transcript
    assert replies[0] not in several["completion"], "the text is what the policy wrote"
    assert list_kept_steps(whole / "rollouts") == [1, 2, 3]


@pytest.mark.parametrize("stage", ["make_batch", "finish_step"])
def test_an_interrupted_run_resumes_to_the_same_bits(whole, tmp_path, stage, monkeypatch):
    calls = []

    def interrupt(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise Interrupted("SIGTERM")
        return original(*given, **named)

    original = getattr(loop, stage)
    monkeypatch.setattr(loop, stage, interrupt)
    run = train(tmp_path, "whole")
    monkeypatch.undo()
    assert rows_of(run) != rows_of(whole)
    cohort.resume(run)
    assert [one for one in differences(run, whole) if one != "summary.json"] == []


def test_sampling_ahead_keeps_the_episodes_of_a_checkpoint(tmp_path, monkeypatch):
    import cohort.loop_async as ahead

    settings = {"ahead.lag": 1, "evaluation": {"samples": 0}}
    expected = train(tmp_path / "one", "run", **settings)
    calls = []

    def interrupt(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise Interrupted("SIGTERM")
        return original(*given, **named)

    original = ahead.observe_step
    monkeypatch.setattr(ahead, "observe_step", interrupt)
    run = train(tmp_path / "two", "run", **settings)
    monkeypatch.undo()
    cohort.resume(run)
    assert [one for one in differences(run, expected) if one not in ("summary.json", "metrics.jsonl")] == []


def test_turns_are_credited_and_an_environment_owns_its_prompts(tmp_path):
    class Count(turns_tools.Echo):
        """Defined in a function: it runs in a thread of the trainer."""

        def reset(self, seed: int) -> str:
            super().reset(seed)
            return f"g{seed}?"

        def step(self, text: str) -> str | None:
            return super().step(text)

    run = train(tmp_path, "turns", Count, None, **{"advantage": "turns", "num_steps": 2, "prompts.limit": 12})
    rows = rows_of(run)
    assert [row["rollout/mismatch_max"] for row in rows] == [0.0, 0.0]
    assert rows[0]["reward/Count/mean"] > 0
    found = read_rollouts(run / "rollouts" / "step-000001.parquet")
    assert {row["prompt"] for row in found} <= {f"g{seed}?" for seed in range(12)}
    assert all(turn["reward"] is not None for row in found for turn in json.loads(row["episode"])["turns"])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"advantage": "process"}, "is wrong where the policy decides how many steps"),
        ({"environment.max_observation_tokens": 400}, "need [0-9]+ positions"),
        ({"ahead.in_flight": True}, "cannot change its policy half-way"),
        ({"rewards": ["exact_match"], "environment.source": ""}, "there is no environment"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_run(tmp_path, changes, fault):
    with pytest.raises(CohortError, match=fault):
        train(tmp_path, "refused", None if "environment.source" in changes else turns_tools.Echo, **changes)
