"""What a step would take on other numbers of ranks: every formula against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.observe.scaling import (
    MEETING_MESSAGES,
    METER_BYTES,
    ROLLOUT_BYTES,
    SCORE_BYTES,
    UNPICKLE_SECONDS,
    Link,
    Work,
    choose_link,
    count_step_rows,
    estimate_seconds,
    expect_mfu,
    predict_step,
    read_work,
    share_decoding,
    share_out,
    time_all_gather,
    time_all_reduce,
)
from cohort.ops.flops import Accelerator, Dimensions

SLOW = Link(bandwidth=100.0, latency=0.5)
NO_WAY = Link(bandwidth=float("inf"), latency=0.0)
SECONDS = {"rollout": 8.0, "reward": 2.0, "prepare": 0.5, "reference": 4.0, "pack": 0.25, "update": 12.0, "optimizer": 1.0}
WORK = Work(SECONDS, tokens=1000, prompts=8, micro_batches=12, trained=50, parameters=60)


def test_a_ring_by_hand():
    """600 bytes, 3 ranks: 4 turns of 200 bytes at 100 bytes a second, and 4 times half a second; gathered: 2 turns."""
    assert time_all_reduce(600, 3, SLOW) == pytest.approx(4 * (2 + 0.5))
    assert time_all_gather(600, 3, SLOW) == pytest.approx(2 * (2 + 0.5))
    assert time_all_reduce(600, 1, SLOW) == time_all_gather(600, 1, SLOW) == 0


def test_beyond_a_host_the_network_counts():
    inside = Link(450e9, 1e-5)
    assert choose_link(8, inside, 400) == inside
    assert choose_link(16, inside, 400) == Link(50e9, 50e-6)
    assert choose_link(16, Link(1e9, 1e-4), 400) == Link(1e9, 1e-4)  # hosts never talk faster than their processes


def test_whoever_has_most_decides():
    assert [share_out(12, ranks) for ranks in (1, 2, 4, 8, 12, 16)] == pytest.approx([1, 1 / 2, 1 / 4, 1 / 6, 1 / 12, 1 / 12])
    assert share_out(9, 8) == pytest.approx(2 / 9)
    assert share_out(0.4, 4) == 1.0  # less than one is one


def test_fewer_rows_do_not_make_fewer_decode_steps():
    """8 prompts of 25 tokens each in 10 rows' worth of fixed cost a step: 25 x 10 + 200 alone, 25 x 10 + 100 with half of them."""
    work = Work({}, tokens=200, prompts=8, micro_batches=1, decode_steps=25, longest=25, step_rows=10)
    assert share_decoding(work, 2) == pytest.approx(350 / 450)
    assert share_decoding(work, 8) == pytest.approx((250 + 25) / 450)
    # Four rounds through slots that are too few become two: steps halve as the tokens do.
    waiting = replace(work, decode_steps=100)
    assert share_decoding(waiting, 2) == pytest.approx(0.5)
    assert share_decoding(waiting, 8) == pytest.approx((25 * 10 + 25) / (100 * 10 + 200))
    assert share_decoding(replace(work, step_rows=0.0), 4) == pytest.approx(0.25)


def test_stages_are_shared_out_or_not():
    step = predict_step(WORK, 4, NO_WAY)
    assert step.own == pytest.approx(
        {"rollout": 2, "reward": 0.5, "prepare": 0.5, "reference": 1, "pack": 0.25, "update": 3, "optimizer": 1}
    )
    assert step.step == pytest.approx(8.25 + UNPICKLE_SECONDS * 1000)
    assert step.tokens_per_second == pytest.approx(1000 / step.step)
    # Two minibatches of 6 micro-batches: 2 of 6 on each of 4 ranks, where the scoring pass deals out all 12.
    halves = predict_step(replace(WORK, updates=2), 4, NO_WAY)
    assert (halves.own["update"], halves.own["reference"]) == (pytest.approx(4), pytest.approx(1))
    # Two passes over the batch have 24 micro-batches, a scoring pass 12.
    twice = predict_step(replace(WORK, micro_batches=24, passes=2, updates=2), 8, NO_WAY)
    assert (twice.own["update"], twice.own["reference"]) == (pytest.approx(2), pytest.approx(4 / 6))


def test_alone_nothing_is_said():
    assert predict_step(WORK, 1, SLOW).seconds == SECONDS


def test_what_ranks_tell_each_other_by_hand():
    """2 ranks: each exchange is a meeting of 3 messages, and what is pickled goes once round; gradients twice."""
    talk = predict_step(WORK, 2, SLOW).talk
    meeting = MEETING_MESSAGES * 0.5

    def half(size: float) -> float:
        return size / 2 / 100 + 0.5

    assert talk == pytest.approx(
        {
            "rollout": meeting + half(ROLLOUT_BYTES * 1000) + UNPICKLE_SECONDS * 1000,
            "reward": meeting,
            "prepare": 0,
            "reference": meeting + half(SCORE_BYTES * 1000),
            "pack": 0,
            "update": meeting + half(METER_BYTES * 1000),
            "optimizer": 2 * meeting + 2 * half(4 * 50),
        }
    )
    exact = predict_step(replace(WORK, exact=True, updates=2, micro_batches=24), 2, SLOW).talk
    assert exact["optimizer"] == pytest.approx(2 * (2 * meeting + 2 * half(8 * 50)))


def test_shares_of_the_weights_travel_for_every_micro_batch():
    """60 parameters of 2 bytes, 4 units: once for the engine, twice for each of 6 turns, whose 50 gradients are scattered."""
    work = replace(WORK, shard=True, units=4, overlaps=False)
    plain, shared = predict_step(WORK, 2, SLOW), predict_step(work, 2, SLOW)
    fetch, scatter = 60 / 100 + 4 * 0.5, 4 * 50 / 2 / 100 + 4 * 0.5
    assert shared.talk["rollout"] - plain.talk["rollout"] == pytest.approx(fetch)
    assert shared.talk["update"] - plain.talk["update"] == pytest.approx(6 * (2 * fetch + scatter))
    assert shared.talk["reference"] - plain.talk["reference"] == pytest.approx(6 * fetch)
    assert shared.talk["optimizer"] == pytest.approx(2 * MEETING_MESSAGES * 0.5)
    assert shared.own["optimizer"] == pytest.approx(0.5)
    # Fetched while the device computes, what is longer than its 6 seconds counts.
    overlapped = predict_step(replace(work, overlaps=True), 2, SLOW)
    assert overlapped.talk["update"] - plain.talk["update"] == pytest.approx(6 * (2 * fetch + scatter) - 6)


@pytest.mark.parametrize(
    ("work", "ranks", "link", "words"),
    [
        (WORK, 1, NO_WAY, "update"),
        (WORK, 4, NO_WAY, "update"),
        (replace(WORK, micro_batches=2), 8, NO_WAY, "update (fewer micro-batches than ranks)"),
        (
            replace(WORK, step_rows=1000, decode_steps=9, longest=9),
            4,
            NO_WAY,
            "rollout (a decode step takes as long with fewer rows)",
        ),
        (WORK, 4, SLOW, "the link"),
        (replace(WORK, seconds=SECONDS | {"prepare": 9.0}), 8, NO_WAY, "prepare"),
    ],
)
def test_what_bounds_a_step_is_said(work, ranks, link, words):
    assert predict_step(work, ranks, link).bound == words


def test_a_run_is_read_by_its_medians_without_the_first_step():
    def row(step: int, update: float) -> dict[str, float]:
        counts = {"rollout/tokens": 100.0 * step, "rollout/length_max": 9, "rollout/rounds": 2, "perf/engine_decode_steps": 20}
        return {
            "step": step,
            "time/update": update,
            "time/evaluate": 50.0,
            "time/step": update + 50,
            "perf/micro_batches": 6,
            **counts,
        }

    work = read_work([row(1, 99.0), row(2, 1.0), row(3, 3.0), row(4, 2.0)], prompts=4, trained=7)
    assert work == Work(
        {"update": 2.0}, tokens=300, prompts=4, micro_batches=6, trained=7, longest=18, decode_steps=20
    )  # evaluations come when the recipe says so
    assert read_work([{"step": 1}], prompts=4) is None
    without = read_work([{"time/update": 2.0, "time/step": 2.0}], prompts=4, micro_batches=3)
    assert without is not None
    assert (without.micro_batches, without.tokens) == (3, 0)


# -- without a run -----------------------------------------------------------------------------------------------------


TOY = Dimensions(hidden=8, intermediate=16, layers=2, query_heads=2, kv_heads=1, head_dim=4, vocabulary=10, tied=True)
GPU = Accelerator(peak_flops=1e6, flops=5e5, bandwidth=1e6, measured=True)


def test_a_decode_step_by_hand():
    """TOY: 2 x (2 x 64 + 2 x 32 + 384) + 80 = 1,232 parameters; 2 bytes each against 2 FLOPs each; 32 bytes of keys a token."""
    fixed = 2 * 35e-6 + 1232 * 2 / 1e6
    row = 2 * 1232 / 5e5 + 10 * 32 / 1e6
    assert count_step_rows(TOY, GPU, 10) == pytest.approx(fixed / row)


def test_a_step_without_a_run_by_hand():
    seconds = estimate_seconds(
        TOY, GPU, prompt_tokens=4, length=12, prompts=3, group=2, slots=4, micro_batches=2, trained=1000, scoring=["reference"]
    )
    fixed, row = 2 * 35e-6 + 1232 * 2 / 1e6, 2 * 1232 / 5e5 + 10 * 32 / 1e6
    tokens = 6 * 12
    assert seconds["rollout"] == pytest.approx(24 * fixed + tokens * row)  # 6 completions through 4 slots: twice 12 steps
    pairs = (
        6 * 16 * 17 // 2
    )  # of tokens that attend to each other, each 4 x 2 layers x 2 heads of 4, and three times that trained
    flops = 6 * (1152 * (tokens + 12) + 80 * tokens) + 3 * 64 * pairs
    assert seconds["update"] == pytest.approx(flops / (0.1 * 1e6))
    assert seconds["reference"] == pytest.approx(flops / 3 / (0.1 * 1e6))
    assert seconds["optimizer"] == pytest.approx(70 * 1000 / 1e6)
    # The host has to issue every micro-batch: 2 layers of 3.5 ms each.
    many = estimate_seconds(
        TOY, GPU, prompt_tokens=4, length=12, prompts=3, group=2, slots=4, micro_batches=10_000, trained=0, passes=2
    )
    assert many["update"] == pytest.approx(10_000 * 2 * 3.5e-3)


def test_the_table_of_the_documentation(monkeypatch):
    """Every row of docs/scale.md is what the benchmark prints."""
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root / "benchmarks")
    import predict_scale

    text = (root / "docs" / "scale.md").read_text(encoding="utf-8")
    for line in predict_scale.tabulate_gpus((1, 2, 8, 16)):
        assert line in text, line


def test_mfu_is_what_was_measured():
    assert expect_mfu(0.494e9) == pytest.approx(0.38, abs=0.01)
    assert expect_mfu(1.54e9) == pytest.approx(0.48, abs=0.01)
    assert expect_mfu(7.6e9) == expect_mfu(70e9) == 0.56
