"""Exact resume for the whole family: every algorithm, and every choice that carries state of its own from step to step.

Each run is stopped twice, by SIGTERM between two minibatches of a step (so that the batch is in the checkpoint) and by
SIGKILL later, and must end with the bits of the run that was not stopped: policy, optimizer, critic, reference, reward model,
metrics and rollouts.
"""

from __future__ import annotations

import shutil
import signal

import pytest

from cohort.algorithms.named import PRESETS
from cohort.recipe.algorithm import AlgorithmConfig
from session_tools import Trap, differences, fork_server, prove_others, rows_of, train_tiny, tree

ANSWER = {"function": "math_answer", "args": {"pattern": r">(\d+)\s*$"}}
DIGITS = {"function": "session_tools:digit_share", "weight": 0.5}
STEPS = {"function": "cohort.data.column_addition:check_steps"}

SHORT = {
    "cold_start.num_steps": 0,
    "train.num_steps": 4,
    "train.prompts_per_step": 4,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "evaluation.every_steps": 0,
    "evaluation.max_problems": 4,
    "evaluation.samples": 2,
    "evaluation.greedy": False,
    "checkpoints.every_steps": 3,
}

TEACHER = "the teacher's folder"
NEEDS = {
    "grpo_process": {"rewards": [ANSWER, STEPS]},
    "ppo": {"critic.learning_rate": 1e-3},
    "gdpo": {"rewards": [ANSWER, DIGITS]},
    "opd": {"teacher.source": TEACHER},
}
"""Further settings of a preset."""


def preset(name: str) -> dict[str, object]:
    """The tiny recipe with this algorithm; its KL stays off where the preset has none."""
    off = {} if AlgorithmConfig(name=name).kl_coef else {"algorithm.kl_coef": 0.0}
    return {"algorithm.name": name, **off, **NEEDS.get(name, {})}


FAMILY: dict[str, dict[str, object]] = {
    **{name: preset(name) for name in PRESETS if name != "dpo"},
    "dpo from rollouts of the start": {"algorithm.name": "dpo", "algorithm.data": "start"},
    "dpo from rollouts of the policy": {"algorithm.name": "dpo", "algorithm.data": "policy"},
    "a teacher beside GRPO": {"teacher.source": TEACHER, "teacher.coef": 0.5},
    "adaptive KL": {"algorithm.kl_target": 0.05},
    "refreshed reference": {"algorithm.reference_every": 2},
    "moving reference": {"algorithm.reference_decay": 0.9},
    "informative prompts": {"algorithm.prompt_choice": "informative"},
    "mismatch weights, masked": {"algorithm.mismatch_weight": "sequence_mask", "algorithm.region": "dual_clip"},
    "reward model and moving reference": {
        "reward_model.iterations": 2,
        "reward_model.prompts": 16,
        "algorithm.reference_decay": 0.9,
        "checkpoints.every_steps": 0,
    },
    "reward model": {"reward_model.iterations": 2, "reward_model.prompts": 16, "reward_model.learning_rate": 1e-3},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(fork server, folder, the model that a cold start left). Beside it lies a teacher."""
    folder = tmp_path_factory.mktemp("family")
    cold = train_tiny(folder, "cold", **{"train.num_steps": 0, "evaluation.samples": 0})
    train_tiny(folder, "teacher", **{"train.num_steps": 0, "evaluation.samples": 0, "seed": 1, "cold_start.num_steps": 32})
    with fork_server(folder) as server:
        yield server, folder, cold.folder / "model"


@pytest.mark.parametrize(
    "name",
    prove_others(
        FAMILY,
        "grpo",
        "grpo_process",
        "ppo",
        "opd",
        "dpo from rollouts of the policy",
        "informative prompts",
        "reward model and moving reference",
    ),
)
def test_a_stopped_run_ends_with_the_same_bits(world, name):
    import tomli_w

    server, folder, start = world
    recipe = folder / "family.toml"
    own = {key: str(folder / "teacher" / "model") if value == TEACHER else value for key, value in FAMILY[name].items()}
    recipe.write_text(tomli_w.dumps(tree(**{**SHORT, "model.source": str(start), **own})), encoding="utf-8")
    whole, run = folder / "whole", folder / "stopped"
    for path in (whole, run):
        shutil.rmtree(path, ignore_errors=True)
    child = server.run("train", recipe, "name=whole", f"runs_folder={folder}")
    assert child.wait() == 0, child.output

    # The reward model has an optimizer of its own, so its updates are not counted here.
    inside_step_2 = Trap("cohort.training.state:TrainState.update", 3, signal=signal.SIGTERM, after=True)
    child = server.run("train", recipe, "name=stopped", f"runs_folder={folder}", traps=[inside_step_2])
    assert child.wait() == 130, child.output
    assert (run / "checkpoints" / "step-1.1").is_dir()
    child = server.run("resume", run, traps=[Trap("cohort.training.state:TrainState.finish_step", 3)])
    assert child.wait() == -signal.SIGKILL, child.output
    child = server.run("resume", run)
    assert child.wait() == 0, child.output

    assert differences(run, whole) == []
    if "reward model" in name:
        assert (run / "reward_model" / "model.safetensors").is_file()
    rows = rows_of(whole)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sum(row["optim/grad_norm"] > 0 for row in rows) >= 2, "a run that learns nothing resumes trivially"


def test_a_fit_is_saved_at_once_and_not_made_again(world):
    """Killed right after the first fit, the run resumes from it: same step number, another checkpoint."""
    import tomli_w

    server, folder, start = world
    recipe = folder / "fit.toml"
    choices = {**SHORT, "model.source": str(start), **FAMILY["reward model"]}
    recipe.write_text(tomli_w.dumps(tree(**choices)), encoding="utf-8")
    run = folder / "fitted"
    child = server.run("train", recipe, "name=fitted", f"runs_folder={folder}", traps=[Trap("cohort.loop_iterative:train", 1)])
    assert child.wait() == -signal.SIGKILL, child.output
    assert (run / "checkpoints" / "step-0.0").is_dir()
    # Two fits are owed in all, and one is done: a second call of `fit` never comes.
    child = server.run("resume", run, traps=[Trap("cohort.training.reward_model:RewardModel.fit", 2)])
    assert child.wait() == 0, child.output
