"""The reference: when it stays, how it follows, and that a larger KL coefficient gives less distance."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from cohort.model.frozen import Reference
from conftest import tiny_policy
from session_tools import rows_of, train_tiny

ONE_UPDATE = {"train.minibatches_per_step": 1, "train.passes_per_step": 1, "evaluation.samples": 0}


def moved(policy, by: float):
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(by)
    return policy


def first_weight(policy) -> float:
    return next(policy.model.parameters()).flatten()[0].item()


def test_a_refreshed_reference_becomes_the_policy_every_n_steps_and_not_between():
    policy = tiny_policy()
    start = first_weight(policy)
    reference = Reference(policy.make_frozen_copy(), every=3)
    moved(policy, 1.0)
    for step in (1, 2):
        reference.follow(policy, step)
        assert first_weight(reference.policy) == start
    reference.follow(policy, 3)
    assert first_weight(reference.policy) == first_weight(policy) == start + 1.0
    assert not any(parameter.requires_grad for parameter in reference.policy.model.parameters())


def test_a_moving_reference_is_the_average_of_the_definition():
    policy = tiny_policy()
    start = first_weight(policy)
    reference = Reference(policy.make_frozen_copy(), decay=0.75)
    moved(policy, 8.0)
    reference.follow(policy, 1)
    assert first_weight(reference.policy) == pytest.approx(start + 2.0, rel=1e-6)
    reference.follow(policy, 2)
    assert first_weight(reference.policy) == pytest.approx(start + 3.5, rel=1e-6)


def test_averages_are_kept_in_float32_under_bfloat16_parameters():
    """A step of 1e-4 is lost in a bfloat16 parameter near 1, and must add up all the same."""
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.fill_(1.0)
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's bfloat16 kernels end the process on some CPUs
        reference = Reference(policy.make_frozen_copy(), decay=0.999)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.fill_(1.25)
    for step in range(1, 1001):
        reference.follow(policy, step)
    expected = 1.25 - 0.25 * 0.999**1000
    assert first_weight(reference.policy) == pytest.approx(expected, abs=0.005)


def test_a_reference_that_stays_is_not_saved_and_one_that_moves_is():
    policy = tiny_policy()
    assert Reference(policy.make_frozen_copy()).state() == ({}, {})
    reference = Reference(policy.make_frozen_copy(), every=1)
    reference.follow(moved(policy, 2.0), 1)
    tensors, document = reference.state()
    other = Reference(tiny_policy().make_frozen_copy(), every=1)
    other.load_state(tensors, document)
    assert first_weight(other.policy) == first_weight(policy)


def test_a_reference_refreshed_every_step_is_at_distance_zero_in_every_step(tmp_path):
    rows = rows_of(train_tiny(tmp_path, "fresh", **ONE_UPDATE, **{"algorithm.reference_every": 1}).folder)
    assert [row["loss/kl"] for row in rows] == [0.0] * 5
    rows = rows_of(train_tiny(tmp_path, "every two", **ONE_UPDATE, **{"algorithm.reference_every": 2}).folder)
    assert [row["loss/kl"] == 0.0 for row in rows] == [True, False, True, False, True]


@pytest.mark.parametrize(
    "choices",
    [
        {"algorithm.name": "grpo", "algorithm.kl_estimator": "k3"},
        pytest.param({"algorithm.name": "grpo", "algorithm.kl_estimator": "k2"}, marks=pytest.mark.prove),
        pytest.param(
            {"algorithm.name": "grpo", "algorithm.kl_estimator": "k1", "algorithm.kl_corrected": True}, marks=pytest.mark.prove
        ),
        pytest.param({"algorithm.name": "rloo"}, marks=pytest.mark.prove),
        pytest.param({"algorithm.name": "reinforce++"}, marks=pytest.mark.prove),
    ],
    ids=["k3", "k2", "k1 corrected", "k1 in the reward", "k1 per token"],
)
def test_a_larger_coefficient_keeps_the_policy_closer(tmp_path, choices):
    """The sign of the KL, in every place where it can be used."""
    common = {**ONE_UPDATE, "train.num_steps": 12, "optimizer.learning_rate": 3e-3, "train.prompts_per_step": 8, **choices}
    last = {}
    for coef in (0.001, 2.0):
        rows = rows_of(train_tiny(tmp_path, f"coef {coef}", **common, **{"algorithm.kl_coef": coef}).folder)
        last[coef] = sum(row["loss/kl_per_completion"] for row in rows[-4:])
    assert last[2.0] < 0.7 * last[0.001]


def timed(name: str) -> bool:
    return name.startswith(("time/", "perf/")) or name.endswith("seconds")


@pytest.mark.parametrize("stale", [False, pytest.param(True, marks=pytest.mark.prove)], ids=["one update", "two passes"])
def test_the_kl_can_be_monitored_without_a_penalty(tmp_path, stale):
    """The same training bits with and without the KL monitor, and the same KL as with a negligible coefficient."""
    passes = {"train.passes_per_step": 2, "algorithm.kl_in": "loss"} if stale else {}
    common = {**ONE_UPDATE, "train.num_steps": 4, "optimizer.learning_rate": 3e-3, "algorithm.name": "dr_grpo", **passes}
    plain = train_tiny(tmp_path, "plain", **common).folder
    watched = train_tiny(tmp_path, "watched", **common, **{"monitors.kl": True}).folder
    held = rows_of(train_tiny(tmp_path, "held", **common, **{"algorithm.kl_coef": 1e-12}).folder)
    drop_monitors, rows = rows_of(plain), rows_of(watched)
    assert all("loss/kl" not in row for row in drop_monitors)
    assert rows[0]["loss/kl"] == 0.0 or stale  # the second pass has moved
    assert rows[-1]["loss/kl_per_completion"] > 1e-6
    assert rows[-1]["loss/kl_coef"] == 0.0
    assert "loss/kl_term" not in rows[-1]
    for before, after in zip(drop_monitors, rows, strict=True):
        assert {name: after[name] for name in before if not timed(name)} == {
            name: value for name, value in before.items() if not timed(name)
        }
    same = load_file(plain / "model" / "model.safetensors"), load_file(watched / "model" / "model.safetensors")
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])
    assert rows[1]["loss/kl"] == pytest.approx(held[1]["loss/kl"], rel=0.5)  # that one has every completion in it


def test_an_adaptive_coefficient_moves_towards_its_target(tmp_path):
    common = {**ONE_UPDATE, "train.num_steps": 6, "optimizer.learning_rate": 3e-3}
    tight = rows_of(train_tiny(tmp_path, "tight", **common, **{"algorithm.kl_target": 1e-4}).folder)
    loose = rows_of(train_tiny(tmp_path, "loose", **common, **{"algorithm.kl_target": 100.0}).folder)
    assert tight[0]["loss/kl_coef"] == loose[0]["loss/kl_coef"] == 0.02
    assert tight[-1]["loss/kl_coef"] > 0.02 * 1.05
    assert loose[-1]["loss/kl_coef"] < 0.02 * 0.95


def test_a_moving_reference_that_is_refreshed_starts_its_average_over():
    """Otherwise the next step would pull it back to where it was, and a checkpoint would hold the old one."""
    policy = tiny_policy()
    reference = Reference(policy.make_frozen_copy(), decay=0.75)
    reference.become(moved(policy, 4.0))
    assert first_weight(reference.policy) == first_weight(policy)
    tensors, _ = reference.state()
    assert next(iter(tensors.values())).flatten()[0].item() == pytest.approx(first_weight(policy), rel=1e-6)
    reference.follow(policy, 1)
    assert first_weight(reference.policy) == pytest.approx(first_weight(policy), rel=1e-6)


@pytest.mark.parametrize("choices", [{"algorithm.name": "dpo", "algorithm.data": "start"}, {"algorithm.name": "sft"}])
def test_another_reference_stops_the_run_also_where_nothing_was_sampled_from_the_policy(tmp_path, monkeypatch, choices):
    from cohort.errors import InvariantError
    from cohort.model.policy import Policy

    copy = Policy.make_frozen_copy

    def scaled(self):
        return moved(copy(self), 0.01)

    monkeypatch.setattr(Policy, "make_frozen_copy", scaled)
    with pytest.raises(InvariantError, match="KL to the reference"):
        train_tiny(tmp_path, "other", **ONE_UPDATE, **choices, **{"algorithm.kl_coef": 0.1})
