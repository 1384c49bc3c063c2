"""Seconds by stage: each second is charged to the stage that spent it, and the stages add up to the step."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.base import stopwatch
from cohort.base.stopwatch import Laps, Stopwatch
from cohort.base.world import World
from cohort.model.policy import Policy
from cohort.observe.perf import (
    EXECUTED,
    FORWARDED,
    STAGES,
    TRAINABLE,
    Costs,
    count_minibatch_tokens,
    describe_times,
    make_engine_metrics,
    make_speed_metrics,
    make_time_metrics,
    measure_stages,
)
from cohort.training.rollouts import merge_metrics
from conftest import tiny_policy
from session_tools import rows_of, train_tiny

NAMES = [stage.name for stage in STAGES]

FAST: dict[str, Any] = {"cold_start.num_steps": 2, "evaluation.samples": 0, "train.num_steps": 3, "checkpoints.every_steps": 1}


def stages_of(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[f"time/{name}"] for name in NAMES if f"time/{name}" in row}


# -- the stopwatch -----------------------------------------------------------------------------------------------------


def test_laps_add_up_and_begin_again_when_taken(monkeypatch):
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: now.value))
    watch = Stopwatch()
    for stage, seconds in (("rollout", 2.0), ("reward", 0.5), ("rollout", 1.0)):
        now.value += seconds
        watch.lap(stage)
    assert watch.take() == Laps({"rollout": 3.0, "reward": 0.5})
    now.value += 0.25
    watch.lap("observe")
    assert watch.take() == Laps({"observe": 0.25})


def test_a_lap_says_how_much_of_it_was_waiting_and_for_how_many_tokens(monkeypatch):
    now, world = SimpleNamespace(value=100.0), World()
    world.waited = 7.0  # before this watch began
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: now.value))
    watch = Stopwatch(world=world)
    for stage, seconds, waited, tokens in (("rollout", 2.0, 0.5, 30), ("reward", 1.0, 0.0, 0), ("rollout", 1.0, 0.25, 12)):
        now.value += seconds
        world.waited += waited
        watch.lap(stage, tokens)
    assert watch.take() == Laps({"rollout": 3.0, "reward": 1.0}, {"rollout": 0.75}, {"rollout": 42})
    earlier = Laps({"observe": 1.0, "rollout": 1.0}, {"observe": 0.5}, {"rollout": 1})
    earlier.add_all(Laps({"rollout": 3.0}, {"rollout": 0.75}, {"rollout": 42}))
    assert earlier == Laps({"observe": 1.0, "rollout": 4.0}, {"observe": 0.5, "rollout": 0.75}, {"rollout": 43})


@pytest.mark.parametrize(("device", "waits"), [("cpu", 0), ("cuda:1", 2)])
def test_a_lap_waits_for_a_gpu_before_it_reads_the_clock(monkeypatch, device, waits):
    events: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(str(device)))
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: events.append("clock") or 0.0))
    policy = tiny_policy()
    monkeypatch.setattr(Policy, "device", property(lambda self: torch.device(device)))
    watch = Stopwatch(policy.wait)
    watch.lap("rollout")
    watch.lap("reward")
    assert events == ["clock", *(["cuda:1", "clock"] * 2 if waits else ["clock"] * 2)]


# -- a whole run -------------------------------------------------------------------------------------------------------


def test_the_stages_of_every_step_add_up_and_no_second_is_lost(tmp_path, monkeypatch):
    """Within 1 % by the rows alone, and the rows together are the time from the loop's beginning to the last row."""
    from cohort import loop

    ticks = itertools.count()
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    began, taken, original, take = [], [], loop.train, Stopwatch.take

    def train(*arguments: Any, **options: Any) -> None:
        began.append(float(next(ticks)))
        original(*arguments, **options)

    def noted(watch: Stopwatch) -> Laps:
        taken.append(watch.last)
        return take(watch)

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(Stopwatch, "take", noted)
    settings = FAST | {"train.num_steps": 6, "evaluation.samples": 4, "checkpoints.every_steps": 2}
    run = train_tiny(tmp_path, **settings)
    rows = rows_of(run.folder)
    assert not (run.folder / "ranks.jsonl").exists()
    assert run.summary["saving"]["count"] == 5  # in and after the cold start, steps 2, 4 and 6; the end finds it saved
    for row in rows:
        stages = stages_of(row)
        assert sum(stages.values()) == pytest.approx(row["time/step"], rel=0.01)
        assert not any(name.startswith("ranks/") for name in row)
        assert {"rollout", "reward", "prepare", "old", "reference", "pack", "update", "optimizer", "observe"} <= stages.keys()
        assert ("evaluate" in stages) == (row["step"] % 2 == 0 and row["step"] < 6)
        assert row["step"] % 2 == 0 or row["step"] == 1 or "checkpoint" in stages  # after the row of the step before
        assert ("perf/checkpoint_bytes_per_second" in row) == ("perf/checkpoint_seconds" in row)
        assert all(seconds > 0 for seconds in stages.values())
        assert row["perf/slowest_stage_share"] == pytest.approx(max(stages.values()) / row["time/step"])
        assert 0 < row["perf/host_share"] < 1
        assert not any(name.startswith("tokens/") for name in row)
    # The save of step 4 waits for the write of step 2.
    assert any("perf/checkpoint_seconds" in row for row in rows if 3 <= row["step"] <= 5)
    saving = run.summary["saving"]
    assert 0 < saving["longest_stop"] <= saving["stopped_seconds"]
    assert saving["written_seconds"] > 0
    whole, spent = sum(row["time/step"] for row in rows), taken[-1] - began[0]
    assert 0.9 * spent < whole <= spent + 1e-6


def test_each_second_is_charged_to_the_stage_that_spent_it(tmp_path, monkeypatch):
    """A clock that moves only where this test moves it: 3 minibatches in 2 passes, so 6 optimizer steps."""
    from cohort import loop
    from cohort.engine.local import LocalEngine
    from cohort.model.frozen import Reference
    from cohort.model.optim import Optimizer
    from cohort.observe.monitors.base import Monitors
    from cohort.observe.run_folder import RunFolder
    from cohort.rewards.runner import RewardRunner
    from cohort.training import experience
    from cohort.training.state import TrainState
    from cohort.training.updates import UpdateMeter

    now = SimpleNamespace(value=0.0)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: now.value))

    def takes(owner: Any, name: str, seconds: float | dict[str, float]) -> None:
        original = getattr(owner, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            now.value += seconds[arguments[2]] if isinstance(seconds, dict) else seconds
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, slow)

    takes(LocalEngine, "generate", 1.0)
    takes(RewardRunner, "score", 2.0)
    takes(experience, "make_examples", 4.0)
    takes(experience, "_score_by_plan", {"old_logprobs_C": 8.0, "ref_logprobs_C": 16.0})
    takes(experience, "measure_rollouts", 32.0)
    takes(loop, "pack_minibatch", 64.0)
    takes(UpdateMeter, "add", 0.0)
    takes(loop, "check_before_update", 128.0)
    takes(Optimizer, "clip_and_step", 256.0)
    takes(RunFolder, "write_rollouts", 512.0)
    takes(Monitors, "on_metrics", 1024.0)
    takes(Reference, "follow", 2048.0)
    takes(TrainState, "make_snapshot", 4096.0)
    rows = rows_of(train_tiny(tmp_path, **FAST).folder)
    own = {
        "rollout": 1.0,
        "reward": 2.0,
        "prepare": 4.0 + 32.0,
        "old": 8.0,
        "reference": 16.0,
        "pack": 6 * 64.0,
        "update": 6 * 128.0,
        "optimizer": 6 * 256.0,
        "observe": 512.0,
    }
    assert stages_of(rows[0]) == own
    after_the_row = own | {"observe": 512.0 + 1024.0, "reference": 16.0 + 2048.0, "checkpoint": 4096.0}
    assert stages_of(rows[1]) == stages_of(rows[2]) == after_the_row
    assert [row["time/step"] for row in rows] == [sum(own.values()), *[sum(after_the_row.values())] * 2]
    tokens = rows[1]["rollout/tokens"]
    assert rows[1]["perf/rollout_tokens_per_second"] == tokens / 1.0
    assert rows[1]["perf/tokens_per_second"] == pytest.approx(tokens / sum(after_the_row.values()))
    assert rows[1]["perf/train_tokens_per_second"] == pytest.approx(rows[1]["loss/trained_tokens"] / 768.0)
    assert rows[1]["perf/host_share"] == pytest.approx((36 + 384 + 1536) / sum(after_the_row.values()))


def test_a_stage_without_a_row_in_the_table_is_refused():
    with pytest.raises(ValueError, match=r"unknown stages \['nap'\]"):
        make_time_metrics({"rollout": 1.0, "nap": 2.0})


# -- rates and shares --------------------------------------------------------------------------------------------------


def test_rates_and_shares_by_hand():
    row = {"rollout/tokens": 1000, "loss/trained_tokens": 600.0, EXECUTED: 900.0, FORWARDED: 1200.0, TRAINABLE: 800.0}
    speeds = make_speed_metrics(
        row, {"rollout": 2.0, "reward": 1.0, "prepare": 0.25, "pack": 0.25, "update": 4.0, "observe": 0.5}
    )
    assert speeds == {
        "perf/rollout_tokens_per_second": 500.0,
        "perf/tokens_per_second": 125.0,
        "perf/train_tokens_per_second": 150.0,
        "perf/executed_tokens_per_second": 225.0,
        "perf/padding_share": 0.0,
        "perf/shared_share": 0.25,
        "perf/skipped_share": 0.25,
        "perf/host_share": 0.125,
        "perf/slowest_stage_share": 0.5,
    }
    padded = make_speed_metrics(row | {EXECUTED: 1600.0}, {"update": 4.0})
    assert (padded["perf/padding_share"], padded["perf/shared_share"]) == (0.25, 0.0)
    assert make_speed_metrics({}, {"update": 1.0}) == {
        "perf/train_tokens_per_second": 0.0,
        "perf/host_share": 0.0,
        "perf/slowest_stage_share": 1.0,
    }


def test_tokens_of_a_minibatch_are_passed_on():
    minibatch = SimpleNamespace(executed_tokens=90, forwarded_tokens=120, trained_tokens=80, micro_batches=[None] * 3)
    assert count_minibatch_tokens(minibatch) == {"perf/micro_batches": 3, EXECUTED: 90.0, FORWARDED: 120.0, TRAINABLE: 80.0}


QWEN = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
BODY = 24 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864)
HEAD = 151936 * 896


def test_utilisation_counts_the_body_on_every_token_and_the_head_on_scored_ones():
    """Qwen2.5-0.5B on an H200 of 989 TFLOP/s: 358 M parameters per token, 136 M more where a log-prob is taken."""
    costs = Costs.of(SimpleNamespace(**QWEN), "NVIDIA H200", frozen_base=False)
    assert costs is not None
    work = 6 * (BODY * 163_840 + HEAD * 131_072)
    assert costs.utilisation(163_840, 131_072, 0.9) == pytest.approx(work / 0.9 / 989e12)
    row = {"loss/trained_tokens": 131_072.0, EXECUTED: 163_840.0, FORWARDED: 163_840.0}
    assert make_speed_metrics(row, {"update": 0.9}, costs)["perf/update_mfu"] == pytest.approx(0.516, abs=1e-3)
    four = Costs.of(SimpleNamespace(**QWEN), "NVIDIA H200", frozen_base=False, ranks=4)
    assert four is not None
    assert four.utilisation(163_840, 131_072, 0.9) == pytest.approx(work / 4 / 0.9 / 989e12)  # tokens of all, peak of each
    adapter = Costs.of(SimpleNamespace(**QWEN), "NVIDIA H200", frozen_base=True)
    assert adapter is not None
    assert adapter.utilisation(163_840, 131_072, 0.9) == pytest.approx(4 / 6 * work / 0.9 / 989e12)


def test_utilisation_is_left_out_where_it_cannot_be_known():
    assert Costs.of(SimpleNamespace(**QWEN), "Some GPU", frozen_base=False) is None
    assert Costs.of(SimpleNamespace(**QWEN | {"model_type": "gpt2"}), "NVIDIA H200", frozen_base=False) is None


def test_what_an_engine_counts_adds_up_over_rounds_or_is_averaged():
    """Three prompts, then one: 40 + 20 decode steps; occupancy 0.9 for three quarters of the prompts and 0.5 for one."""
    rounds = []
    for prompts, steps, occupancy in ((3, 40, 0.9), (1, 20, 0.5)):
        engine = SimpleNamespace(last={"decode_steps": steps, "occupancy": occupancy, "prefills": 1})
        rounds.append((prompts, make_engine_metrics(engine)))
    assert rounds[0][1] == {"perf/engine_decode_steps": 40.0, "perf/engine_occupancy": 0.9, "perf/engine_prefills": 1.0}
    merged = merge_metrics(rounds)
    assert merged == pytest.approx(
        {"perf/engine_decode_steps": 60.0, "perf/engine_occupancy": 0.8, "perf/engine_prefills": 2.0}
    )
    assert make_engine_metrics(SimpleNamespace(name="hf")) == {}


# -- in words ----------------------------------------------------------------------------------------------------------


def test_stage_times_are_medians_where_a_stage_ran_and_shares_of_everything():
    rows = [{"time/rollout": 1.0, "time/update": 1.0, "time/step": 2.0} for _ in range(3)]
    rows.append({"time/rollout": 2.0, "time/update": 1.0, "time/evaluate": 3.0, "time/step": 6.0})
    found = {time.stage.name: (time.median, time.share, time.steps) for time in measure_stages(rows)}
    assert found == {"rollout": (1.0, 5 / 12, 4), "update": (1.0, 4 / 12, 4), "evaluate": (3.0, 3 / 12, 1)}
    assert measure_stages([]) == []
    assert measure_stages([{"time/rollout": None, "time/step": "x"}]) == []


def test_where_the_time_went_is_one_line_without_the_first_step():
    seconds = {"rollout": 50.0, "update": 30.0, "reward": 10.0, "optimizer": 5.0, "pack": 3.0, "observe": 2.0}
    row = {f"time/{stage}": value for stage, value in seconds.items()} | {"time/step": 100.0}
    slow = {"time/rollout": 9000.0, "time/step": 9000.0}
    line = "rollout 50 % · update 30 % · reward 10 % · optimizer 5.0 % · other 5.0 %"
    assert describe_times([slow, row, row, row]) == line
    assert describe_times([slow, row]) == line  # in a run of two steps too
    assert describe_times([]) == ""
