"""Stages around an update: the best checkpoint, warnings that come once, and a run without any score."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.algorithms.refill import GroupCounts
from cohort.errors import InvariantError, RewardError
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training import stages
from cohort.training.updates import Measured, UpdateMeter
from session_tools import PROBLEMS, tiny

SETS: dict[str, Any] = {"evaluation.sets": {"near": PROBLEMS | {"split": "held_out"}}}


def evaluated(success: list[str], rewards: list[float | None]) -> Any:
    from cohort.evaluation.evaluate import Evaluation

    verdicts = {"problem": list("abcdefgh")[: len(success)], "success": success, "reward": rewards}
    return Evaluation.from_json({"step": 1, "sets": {"near": {}}, "per_problem": {"near": verdicts}})


def test_the_best_is_chosen_by_pass_at_1_and_ties_by_the_reward(tmp_path):
    """On the first 4 problems, which every look at the set holds."""
    recipe = tiny(tmp_path, **SETS)
    score = stages.score_for_best
    assert score(recipe, evaluated(["10", "00", "11", "0-", "11"], [0.5, 0.0, 1.0, 0.0, 9.0])) == [
        (0.5 + 0 + 1 + 0) / 4,
        1.5 / 4,
    ]
    assert score(recipe, evaluated(["--", "--"], [0.25, None])) == [-1.0, 0.25]  # no verdict: the reward decides
    assert score(recipe, evaluated(["--", "--"], [None, None])) == []
    by_reward = tiny(tmp_path, **SETS | {"checkpoints.best": "reward"})
    assert score(by_reward, evaluated(["00", "00"], [0.25, 0.75]))[0] == 0.5


def test_a_short_batch_is_reported_at_most_every_ten_steps():
    told: list[str] = []
    run: Any = SimpleNamespace(monitors=SimpleNamespace(on_message=told.append))
    state: Any = SimpleNamespace(step=4, quiet_until=0)
    short = SimpleNamespace(is_short=True, counts=GroupCounts(1, 1, 2, 0), wanted=3)
    said = []
    for state.step in range(4, 26):
        stages.report_shortfall(run, state, short)
        said += [state.step + 1] * (len(told) - len(said))
    assert said == [5, 15, 25]
    assert "4 groups drawn at step 5" in told[0]
    assert "the batch has 1 of 3 groups" in told[0]
    stages.report_shortfall(run, SimpleNamespace(step=90, quiet_until=0), SimpleNamespace(is_short=False))
    assert len(told) == 3


def checked(state: Any, ranks: int = 1, batches: int = 1, off: float = 0.0, kl: float | None = None) -> list[str]:
    """The messages of the check before an update with so many micro-batches."""
    told: list[str] = []
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=8)
    model = SimpleNamespace(
        dtype=torch.float32, device=torch.device("cpu"), config=SimpleNamespace(get_text_config=lambda: config)
    )
    run: Any = SimpleNamespace(
        world=SimpleNamespace(size=ranks),
        monitors=SimpleNamespace(on_message=told.append),
        recipe=SimpleNamespace(train=SimpleNamespace(micro_batch_tokens=64)),
        policy=SimpleNamespace(model=model, attention_configs=[config]),
        engine=SimpleNamespace(capabilities=SimpleNamespace(rounding=1.0)),
    )
    measured = Measured(mismatch_M=torch.tensor([off]), kl_max=None if kl is None else torch.tensor(kl))
    stages.check_before_update(run, state, UpdateMeter(AlgorithmConfig(), dict.fromkeys(range(batches), measured)))
    return told


def state_of(**fields: Any) -> Any:
    start = {"warned_of_idle_ranks": False, "policy_version": 0, "updates_checked": 0, "update_metrics": []}
    return SimpleNamespace(**start | fields)


def test_idle_ranks_are_reported_once():
    state = state_of()
    assert checked(state, ranks=2, batches=2) == []
    (text,) = checked(state, ranks=3, batches=1)
    assert text.startswith("warning: an update has 1 micro-batch for 3 ranks, so 2 ranks will be idle.")
    assert checked(state, ranks=3, batches=1) == []
    (text,) = checked(state_of(), ranks=3, batches=2)
    assert text.startswith("warning: an update has 2 micro-batches for 3 ranks, so 1 rank will be idle.")
    assert checked(state_of(), ranks=3, batches=0) == []  # a rank that knows of none says nothing


def test_two_updates_are_checked_and_the_kl_only_before_the_first_step():
    state = state_of()
    for expected in (1, 2, 2):
        checked(state)
        assert state.updates_checked == expected
    assert checked(state, off=1.0) == []  # both are done
    later = state_of(update_metrics=[{}])
    checked(later, off=1.0)
    assert later.updates_checked == 0  # only the first update on a batch
    with pytest.raises(InvariantError, match="engine and trainer disagree"):
        checked(state_of(policy_version=3), off=1.0)
    with pytest.raises(InvariantError, match="KL to the reference"):
        checked(state_of(), kl=1e-9)
    checked(state_of(policy_version=1), kl=1e-9)  # the reference is another policy by now


@pytest.mark.parametrize(
    ("step", "steps", "settings", "stops"),
    [
        (4, 10, {}, False),
        (5, 10, {}, True),
        (3, 3, {}, True),  # the last step of a shorter run
        (2, 10, {"stopped": "its condition"}, True),
        (5, 10, {"scored_steps": 1}, False),
        (5, 10, {"data": "demonstrations"}, False),
        (5, 10, {"teacher": "a model"}, False),
    ],
)
def test_a_run_without_any_score_ends(step, steps, settings, stops):
    recipe: Any = SimpleNamespace(
        train=SimpleNamespace(num_steps=steps),
        algorithm=SimpleNamespace(data=settings.get("data", "policy")),
        teacher=SimpleNamespace(source=settings.get("teacher", "")),
        rewards=[SimpleNamespace(function="math_answer", name="")],
    )
    state: Any = SimpleNamespace(step=step, stopped=settings.get("stopped", ""), scored_steps=settings.get("scored_steps", 0))
    if not stops:
        stages.refuse_unscored_run(recipe, state)
        return
    with pytest.raises(RewardError, match=rf"no completion of the first {step} steps has a score: 'math_answer' returned None"):
        stages.refuse_unscored_run(recipe, state)
