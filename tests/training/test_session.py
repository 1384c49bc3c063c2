"""Whole tiny runs: what must hold at step 1 of each, what stops a run and what does not, and what is left in the folder."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cohort import session
from cohort.errors import CohortError, InvariantError, ModelError, RewardError, RunError
from cohort.model.policy import Policy
from cohort.training import build, checkpoint, objective, stages
from cohort.training.build import Materials
from cohort.training.updates import check_same_policy
from conftest import tiny_policy
from session_tools import FAST, bits, differences, digit_share, rows_of, run_with, stop_at, summary_of, tiny, train_tiny


def start_weights(runs: Any, **overrides: Any) -> dict[str, torch.Tensor]:
    recipe = tiny(runs, **FAST | overrides)
    policy = build.load_policy(recipe, build.load_data(recipe, Materials()))
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in AutoModelForCausalLM.from_pretrained(model).named_parameters()}


def largest_change(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    assert before.keys() == after.keys()
    return max(float((before[name] - after[name]).abs().max()) for name in before)


# -- step 1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("engine", ["local", "hf"])
def test_engine_trainer_and_reference_agree_before_the_first_update(tmp_path, engine, temperature):
    """The largest |log ratio| over all sampled tokens is at most 1e-5, the KL to the reference exactly 0."""
    settings = {"sampling.engine": engine, "sampling.temperature": temperature, "algorithm.kl_coef": 0.04}
    row = rows_of(run_with(digit_share, tmp_path, **settings).folder)[0]
    assert row["rollout/mismatch_max"] <= 1e-5
    assert row["rollout/mismatch_p95"] <= 1e-5
    assert row["loss/kl"] == 0.0
    assert row["loss/ratio_max"] == 1.0
    assert row["advantage/useful_groups"] > 0
    assert row["optim/grad_norm"] > 0


def test_the_kl_is_exactly_0_at_any_width(tmp_path, monkeypatch):
    """The reference scores the very micro-batches that are trained, so on a CPU no width excuses a difference."""
    seen = []
    monkeypatch.setattr(stages, "check_same_policy", lambda *args: seen.append(args[2]) or check_same_policy(*args))
    wide = {
        "model.scratch.hidden_size": 640,
        "model.scratch.num_layers": 1,
        "train.num_steps": 1,
        "train.micro_batch_tokens": 40,
    }
    row = rows_of(run_with(digit_share, tmp_path, **wide, **{"algorithm.kl_coef": 0.04}).folder)[0]
    assert seen == [0.0]
    assert row["loss/kl"] == 0.0
    assert row["optim/grad_norm"] > 0


def test_own_kernels_that_fail_on_this_gpu_are_a_reason_and_not_a_crash(monkeypatch):
    """Stood in for: a GPU on which a kernel does not compile."""

    def broken(*args: Any) -> None:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(Policy, "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr("cohort.model.policy.has_kernels", lambda device: True)
    monkeypatch.setattr("cohort.model.policy.FusedBackbone", broken)
    policy = tiny_policy()
    assert policy.prepare("auto") == (
        "training with the modules of transformers (RuntimeError: out of resource: shared memory)"
    )
    with pytest.raises(ModelError, match=r'model\.kernels = "fused" is not possible: RuntimeError: out of resource'):
        policy.prepare("fused")


def test_the_summary_names_the_code_that_ran_and_why(tmp_path, monkeypatch):
    def differs(self: Any, modules: Any) -> None:
        raise CohortError("its hidden states differ")

    fast = summary_of(run_with(digit_share, tmp_path, "fast").folder)["paths"]
    monkeypatch.setattr("cohort.ops.fused.training.FusedBackbone.prove", differs)
    slow = summary_of(run_with(digit_share, tmp_path, "slow", **{"sampling.engine": "hf"}).folder)["paths"]
    # A machine without a compiler or prebuilt code trains with the modules.
    assert (fast["training"]["code"] == "compiled code") == (fast["training"]["choice"] == "training with own compiled code")
    assert fast["sampling"]["code"] in ("compiled code", "plain PyTorch")
    assert slow["training"]["code"] == slow["sampling"]["code"] == "modules"
    assert slow["training"]["choice"] == "training with the modules of transformers (its hidden states differ)"
    assert slow["sampling"]["choice"].startswith("engine hf")


def test_a_resumed_run_does_not_keep_what_it_read(tmp_path, monkeypatch):
    """The weights are in the policy by then: a second copy would stay in the host's memory to the end."""
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        assert train_tiny(tmp_path, **FAST | {"train.num_steps": 3}).status == "interrupted"
    held = []
    original = session.Session._train
    monkeypatch.setattr(
        session.Session, "_train", lambda self, *args: held.append(self.found.snapshot.tensors) or original(self, *args)
    )
    assert session.resume(tmp_path / "run").status == "finished"
    assert held == [{}]


def test_it_holds_after_a_cold_start_and_with_several_minibatches(tmp_path):
    run = train_tiny(tmp_path, **{"train.num_steps": 2, "evaluation.samples": 0})
    for row in rows_of(run.folder):
        assert row["rollout/mismatch_max"] <= 1e-5
        assert row["rollout/distinct"] > 1 / 4


def sabotage_stale(monkeypatch: Any) -> None:
    """An engine with its own copy of the weights, taken when it was built."""
    import copy
    from dataclasses import replace

    original = build.build_engine

    def with_copy(name: str, setup: Any) -> Any:
        return original(name, replace(setup, model=copy.deepcopy(setup.model)))

    monkeypatch.setattr(build, "build_engine", with_copy)


def test_stale_weights_after_a_cold_start_stop_the_run_before_any_update(tmp_path, monkeypatch):
    sabotage_stale(monkeypatch)
    with pytest.raises(InvariantError, match="did not come from the policy that is being trained"):
        train_tiny(tmp_path, **{"evaluation.samples": 0, "cold_start.num_steps": 4})
    assert summary_of(tmp_path / "run")["status"] == "failed"
    assert "engine and trainer disagree" in summary_of(tmp_path / "run")["error"]
    found = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert (found.folder.name, found.snapshot.document["optimizer"]["updates"]) == ("step-0", 0)


def test_weights_that_go_stale_with_the_first_update_stop_the_run_before_the_second(tmp_path, monkeypatch):
    sabotage_stale(monkeypatch)
    with pytest.raises(InvariantError, match="did not come from the policy"):
        run_with(digit_share, tmp_path)
    assert len(rows_of(tmp_path / "run")) == 1


def test_another_temperature_in_scoring_stops_the_run(tmp_path, monkeypatch):
    original = build.load_policy

    def other(recipe: Any, *args: Any) -> Policy:
        policy = original(recipe, *args)
        return Policy(policy.model, policy.tokenizer, 0.9)

    monkeypatch.setattr(build, "load_policy", other)
    with pytest.raises(InvariantError, match="log ratio"):
        run_with(digit_share, tmp_path)


def test_perturbed_sampling_logprobs_stop_the_run(tmp_path, monkeypatch):
    """One token of one completion, off by 1e-4: the maximum sees it, a mean would not."""
    from cohort.engine.local import LocalEngine

    original = LocalEngine.generate

    def perturbed(self: Any, *args: Any, **kwargs: Any) -> Any:
        completions = original(self, *args, **kwargs)
        for place, completion in enumerate(completions):
            first, *others = completion.sampling_logprobs
            completions[place] = dataclasses.replace(completion, sampling_logprobs=(first - 1e-4, *others))
        return completions

    monkeypatch.setattr(LocalEngine, "generate", perturbed)
    with pytest.raises(InvariantError, match="log ratio"):
        run_with(digit_share, tmp_path)


def test_a_reference_with_other_weights_stops_the_run(tmp_path, monkeypatch):
    original = Policy.make_frozen_copy

    def other(self: Policy) -> Policy:
        reference = original(self)
        with torch.no_grad():
            reference.split.backbone.norm.weight.mul_(1.001)
        return reference

    monkeypatch.setattr(Policy, "make_frozen_copy", other)
    with pytest.raises(InvariantError, match="KL to the reference"):
        run_with(digit_share, tmp_path, **{"algorithm.kl_coef": 0.04})


def test_without_kl_no_reference_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(Policy, "make_frozen_copy", lambda self: pytest.fail("a reference at kl_coef 0"))
    row = rows_of(run_with(digit_share, tmp_path, **{"algorithm.kl_coef": 0.0}).folder)[0]
    assert "loss/kl" not in row


def test_after_one_step_with_a_huge_learning_rate_the_engine_writes_something_else(tmp_path):
    """Rollouts of step 2 on the same prompts: they follow the new weights, and the trainer agrees with them."""
    import pyarrow.parquet as pq

    one_prompt = {"prompts.limit": 1, "train.prompts_per_step": 1, "optimizer.learning_rate": 0.3, "evaluation.held_out": 0.0}
    run = run_with(digit_share, tmp_path, **one_prompt | {"train.group_size": 8})
    first, second = (pq.read_table(run.folder / "rollouts" / f"step-00000{step}.parquet") for step in (1, 2))
    assert first["prompt_ids"].to_pylist() == second["prompt_ids"].to_pylist()
    assert math.fsum(first["sampling_logprobs"][0].as_py()) != math.fsum(second["sampling_logprobs"][0].as_py())
    assert rows_of(run.folder)[1]["rollout/mismatch_max"] <= 1e-5


# -- rewards -----------------------------------------------------------------------------------------------------------


def test_too_many_faults_stop_the_run_with_the_traceback_and_a_mended_reward_goes_on(tmp_path):
    """The resumed run is bitwise the one whose reward never failed."""
    settings = {
        **FAST,
        "cold_start.num_steps": 10,
        "train.num_steps": 4,
        "rewards": [{"function": "session_tools:broken_until_mended", "args": {"mended": str(tmp_path / "mended")}}],
    }
    with pytest.raises(RewardError) as problem:
        train_tiny(tmp_path, "broken", **settings)
    assert "Traceback" in str(problem.value)
    assert "the verifier lost its dictionary" in str(problem.value)
    assert "failed on 24 of 24 completions" in str(problem.value)
    summary = summary_of(tmp_path / "broken")
    assert (summary["status"], summary["steps"]) == ("failed", 2)
    assert "lost its dictionary" in summary["error"]
    assert summary["failure"] == {"type": "RewardError", "where": ""}
    report = (tmp_path / "broken" / "report.html").read_text()
    assert "ValueError: the verifier lost its dictionary" in report
    assert "after 2 finished steps" in report
    assert checkpoint.latest(tmp_path / "broken" / "checkpoints").folder.name == "step-2"
    (tmp_path / "mended").touch()
    assert session.resume(tmp_path / "broken").status == "finished"
    assert differences(tmp_path / "broken", train_tiny(tmp_path, "whole", **settings).folder) == []


def test_a_few_faults_are_counted_and_the_run_goes_on(tmp_path):
    def sometimes(completions, **columns):
        return [math.nan, *digit_share(completions[1:])]

    rows = rows_of(run_with(sometimes, tmp_path).folder)
    assert [row["reward/faults"] for row in rows] == [1, 1]
    assert [row["reward/unscored"] for row in rows] == [1, 1]


def test_unscored_completions_are_counted_and_no_score_at_all_is_a_no_op(tmp_path):
    """None from every call: nothing is trained, it is counted, and the run does not end as if it had learned."""
    with pytest.raises(RewardError, match="no completion of the first 2 steps has a score"):
        run_with(lambda completions, **columns: [None] * len(completions), tmp_path, **{"algorithm.kl_coef": 0.04})
    assert len(rows_of(tmp_path / "run")) == 2
    for row in rows_of(tmp_path / "run"):
        assert row["reward/unscored"] == row["rollout/completions"] == 24
        assert row["advantage/dropped_groups"] == 6
        assert row.get("loss/trained_tokens", 0) == 0
        assert "reward/mean" not in row
    saved = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-2").tensors["weights"]
    assert largest_change(start_weights(tmp_path), dict(saved)) == 0.0


@pytest.mark.parametrize("zero_variance", ["keep", "drop"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
def test_equal_rewards_everywhere_leave_only_the_decay_that_the_recipe_asks_for(tmp_path, zero_variance, kl_coef):
    settings = {"algorithm.zero_variance": zero_variance, "algorithm.kl_coef": kl_coef, "optimizer.weight_decay": 0.1}
    run = run_with(lambda completions, **columns: [0.35] * len(completions), tmp_path, **settings)
    for row in rows_of(run.folder):
        assert row["advantage/zero_variance_groups"] == 6
        assert row["advantage/useful_groups"] == 0.0
        assert row["reward/mean"] == pytest.approx(0.35)
    before, after = start_weights(tmp_path), weights_of(run.model)
    if zero_variance == "drop":  # no completion counts in the loss: no update
        assert largest_change(before, after) == 0.0
    elif kl_coef:  # pulls back what decay has moved
        assert largest_change(before, after) < 1e-3
    else:
        for name, weight in before.items():
            torch.testing.assert_close(after[name], weight * (1 - 1e-3 * 0.1 * (weight.dim() >= 2)) ** 2, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("kl_coef", [0.0, 1e-30])
def test_a_step_without_signal_is_the_same_whether_its_groups_are_forwarded_or_not(tmp_path, monkeypatch, kl_coef):
    """Momentum of step 1 and decay act in steps 2 and 3, where all rewards are equal: bit for bit what a run does that puts every
    group through the model, and so does a KL term too small to matter, which forwards them all."""

    def once(completions, **columns):
        step = columns["trainer_state"].global_step
        return digit_share(completions) if step == 0 else [0.35] * len(completions)

    settings = {"train.num_steps": 3, "optimizer.weight_decay": 0.1}
    skipping = run_with(once, tmp_path, "skipping", **settings, **{"algorithm.kl_coef": kl_coef})
    assert [row["optim/grad_norm"] > 0 for row in rows_of(skipping.folder)] == [True, *[kl_coef > 0] * 2]
    monkeypatch.setattr(objective, "pushes_on_all_tokens", lambda algorithm: True)
    forwarding = run_with(once, tmp_path, "forwarding", **settings, **{"algorithm.kl_coef": 0.0})
    assert [row["loss/trained_tokens"] > 0 for row in rows_of(forwarding.folder)] == [True] * 3
    assert largest_change(weights_of(skipping.model), weights_of(forwarding.model)) == 0.0
    before_last = checkpoint.load(forwarding.folder / "checkpoints" / "step-2").tensors["weights"]
    assert largest_change(dict(before_last), weights_of(forwarding.model)) > 1e-4


def test_a_step_moves_every_kind_of_parameter(tmp_path):
    """Lost to rounding, frozen by mistake or skipped: each would leave a parameter where it was."""
    run = run_with(digit_share, tmp_path)
    before, after = start_weights(tmp_path), weights_of(run.model)
    first, second = rows_of(run.folder)
    assert first["optim/weight_change"] == pytest.approx(1e-3, rel=0.01)  # AdamW's first step is the learning rate
    assert "optim/weight_change" not in second
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert still == []
    assert largest_change(before, after) <= 2 * 1e-3 * 1.01  # two AdamW steps at 1e-3


def test_a_reward_that_cannot_be_imported_leaves_the_folder_unlocked(tmp_path):
    (tmp_path / "run").mkdir()  # somebody else's, so it stays
    with pytest.raises(RewardError, match="nowhere"):
        train_tiny(tmp_path, **FAST | {"rewards": [{"function": "nowhere:reward"}]})
    from cohort.observe.run_folder import RunFolder

    RunFolder.open(tmp_path / "run").lock()


def test_a_closure_is_asked_for_again_on_resume(tmp_path):
    def closure(completions, trainer_state, **columns):
        if trainer_state.global_step == 1 and len(completions) > 1:
            raise KeyError("many at once")
        return digit_share(completions)

    # The call of step 2 fails, is repeated one by one, and the run goes on.
    run = run_with(closure, tmp_path)
    assert rows_of(run.folder)[1]["reward/reward/retried"] == 24
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RewardError, match="has to be passed again"):
        session.resume(tmp_path / "run")


# -- the rest of the path ----------------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_the_one_with_the_best_held_out_reward(tmp_path):
    import json

    words = {"checkpoints.best": "held_out/reward", "checkpoints.keep": 1}
    run = train_tiny(tmp_path, **words, **{"train.num_steps": 4, "evaluation.every_steps": 1})
    during = {row["step"]: row["eval/held_out/reward"] for row in rows_of(run.folder) if "eval/held_out/reward" in row}
    last = json.loads((run.folder / "evaluations.jsonl").read_text().splitlines()[-1])
    assert (last["label"], len(last["per_problem"]["held_out"]["reward"])) == ("after", 8)
    during[4] = sum(last["per_problem"]["held_out"]["reward"][:4]) / 4  # the looks before it were at the first 4 problems
    best = json.loads((run.folder / "checkpoints" / "best.json").read_text())
    step = max(during, key=lambda step: (during[step], -step))
    chosen = {"set": "held_out", "measure": "reward", "value": during[step]}
    assert best == {"checkpoint": f"step-{step}", **chosen}
    assert {"best.json", f"step-{step}", "step-4"} == {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert run.summary["best"] == {"step": step, **chosen}
    checkpoint.verify(run.folder / "checkpoints" / f"step-{step}")


def test_few_held_out_problems_are_said_in_the_first_lines():
    """Of 50 rows the hash holds out 3 with this seed, and the minimum adds 13."""
    from types import SimpleNamespace

    from cohort.recipe.file import load_recipe
    from cohort.training.preflight import check_problem_counts
    from cohort.types import Prompt

    rows = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(50)]
    recipe = load_recipe(values={"prompts.source": "python:rows", "seed": 1})
    data = build.load_data(recipe, Materials(rows))
    assert len(data.sets["held_out"][1]) == 16
    assert data.notes[0].startswith(
        "held_out: 16 of 50 prompts are held out. Rows are split by hash (evaluation.held_out = 0.1); 13 were added to have enough, and can move"
    )
    problems = [Prompt(number, f"{number}+1=", {}, (1,)) for number in range(50)]

    def told(**sets: int) -> list[str]:
        few = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"max_problems": 20})})
        return [
            check.text
            for check in check_problem_counts(
                SimpleNamespace(recipe=few, evaluation_sets={n: problems[:c] for n, c in sets.items()})
            )
        ]

    assert told(held_out=30) == []
    assert told(held_out=16, named=20) == [
        "held_out has 16 problems, named has 20 problems: one is up to 6.2 points of greedy accuracy, and few changes will be clear; give "
        "each 30 or more: rows, a larger evaluation.held_out, or a set under [evaluation.sets]."
    ]
    assert told(named=20) == [
        "named has 20 problems: one is 5.0 points of greedy accuracy, and few changes will be clear; raise evaluation.max_problems from 20."
    ]
    assert "and 2 problems are too few for an interval; it takes 6; give" in told(held_out=2)[0]


def test_the_final_checkpoint_and_the_exported_model_hold_the_same_weights(tmp_path):
    run = run_with(digit_share, tmp_path)
    saved = bits(run.folder / "checkpoints/step-2/weights.safetensors")
    assert bits(run.model / "model.safetensors") == saved


def test_evaluation_prompts_in_training_are_refused_at_start(tmp_path):
    shared = {"source": "task:column_addition", "args": {"digits": 1}, "max_prompt_tokens": 8}
    with pytest.raises(CohortError, match="8 of its prompts also occur in training"):
        train_tiny(tmp_path, **FAST | {"evaluation.samples": 2, "evaluation.sets": {"held_out": shared}})


def test_positions_that_the_model_does_not_have_stop_the_run_at_start(tmp_path):
    with pytest.raises(RunError, match=r"the model has 32\. Lower sampling\.max_completion_tokens"):
        train_tiny(tmp_path, **FAST | {"sampling.max_completion_tokens": 40})


def test_the_supervised_stage_alone_improves_and_says_before_and_after(tmp_path):
    """train.num_steps = 0: the cold start is the run. 65 sums teach the form of an answer, and too little to add."""
    settings = {"train.num_steps": 0, "cold_start.num_steps": 80, "evaluation.samples": 4, "checkpoints.every_steps": 0}
    sets = {"held_out": {"source": "task:column_addition", "args": {"digits": 1}, "split": "held_out", "max_prompt_tokens": 8}}
    run = train_tiny(tmp_path, **settings | {"evaluation.sets": sets, "evaluation.max_problems": 16})
    assert run.status == "finished"
    assert run.summary["steps"] == 0
    labels = [(row["label"], row["step"]) for row in rows_of(run.folder, "evaluations.jsonl")]
    assert labels == [("before", 0), ("after", 0)]
    before, after = (run.summary["eval"]["sets"]["held_out"][when] for when in ("before", "after"))
    assert after["truncated"] < before["truncated"]  # it has learned to stop
    assert (run.folder / "samples/before.jsonl").read_text() != (run.folder / "samples/after.jsonl").read_text()
    assert (run.model / "model.safetensors").exists()


def test_the_cold_start_stops_at_the_success_it_is_asked_for(tmp_path):
    settings = {"cold_start.num_steps": 400, "cold_start.until_success": 0.2, "cold_start.check_every": 5}
    run = train_tiny(tmp_path, **FAST | settings | {"train.num_steps": 1})
    found = checkpoint.latest(run.folder / "checkpoints").snapshot.document
    assert found["cold_steps"] < 400
    assert found["cold_steps"] % 5 == 0


def test_the_seed_decides_everything(tmp_path):
    same = run_with(digit_share, tmp_path, "a"), run_with(digit_share, tmp_path, "b")
    assert differences(same[1].folder, same[0].folder) == []
    other = run_with(digit_share, tmp_path, "c", seed=3)
    assert differences(other.folder, same[0].folder)
