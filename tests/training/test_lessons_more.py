"""More of what broke silently for users of other tools (see test_lessons.py): lessons whose code no other test would miss.

Each test names the changes of the source that it fails on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort import session
from cohort.base.world import ALONE
from cohort.data.prompts import WrittenRow
from cohort.engine.local import LocalEngine
from cohort.errors import InvariantError
from cohort.model.optim import StepReport
from cohort.model.packing import pack
from cohort.observe.monitors.base import Monitors
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.values import Materials
from cohort.training.cold_start import supervised_update
from cohort.training.objective import token_loss
from cohort.training.preflight import Check, check_invariants
from cohort.training.updates import Measured, UpdateMeter, check_same_policy
from cohort.types import Completion, Outcome, Prompt, Rollout, Sampling
from conftest import gradients, ragged_examples, relative_difference, tiny_policy
from session_tools import FAST, always_right, always_wrong, digit_share, rows_of, run_with, tiny


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything a run says to its monitors."""
    words: list[str] = []
    monkeypatch.setattr(Monitors, "on_message", lambda self, text: words.append(text))
    return words


# -- the policy that sampled must be the policy that is scored ---------------------------------------------------------


def test_the_engine_is_given_the_sampling_of_the_recipe_and_evaluation_its_own(tmp_path, monkeypatch):
    """The effective parameters, where the engine receives them: no cut in training, and evaluation draws as [evaluation] says.

    Fails if make_evaluation_sampling takes the temperature or the length of training, or loses top_p or top_k.
    """
    used: set[Sampling] = set()
    original = LocalEngine.generate

    def noted(self: Any, prompts: Any, sampling: Sampling, *args: Any, **options: Any) -> Any:
        used.add(sampling)
        return original(self, prompts, sampling, *args, **options)

    monkeypatch.setattr(LocalEngine, "generate", noted)
    own = {"samples": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_completion_tokens": 5, "every_steps": 0}
    settings = {f"evaluation.{name}": value for name, value in own.items()} | {"sampling.temperature": 0.8}
    run_with(digit_share, tmp_path, **settings, **{"sampling.engine": "local"})
    (stops,) = {sampling.stop_ids for sampling in used}
    assert stops
    training = Sampling(group_size=4, temperature=0.8, max_completion_tokens=12, stop_ids=stops)
    assert (training.top_p, training.top_k) == (1.0, 0)
    sampled = Sampling(
        group_size=2, temperature=0.5, max_completion_tokens=5, stop_ids=stops, top_p=0.9, top_k=3, with_greedy=True
    )
    greedy = sampled.for_sample(2)
    assert (greedy.temperature, greedy.top_p, greedy.top_k, greedy.max_completion_tokens) == (0.0, 1.0, 0, 5)
    assert used == {training, sampled}


def test_one_token_in_a_thousand_stops_the_run_and_so_do_many_small_differences_and_nan():
    """Fails if check_same_policy looks at the mean alone, at the maximum alone, or lets NaN pass."""

    def check(*off: float) -> None:
        off_M = torch.zeros(1000)
        off_M[: len(off)] = torch.tensor(off)
        check_same_policy(UpdateMeter(AlgorithmConfig(), {0: Measured(mismatch_M=off_M)}), 1e-5, None)

    check(9e-6)
    for off in ([2e-5], [5e-6] * 1000, [float("nan")]):
        with pytest.raises(InvariantError, match="engine and trainer disagree"):
            check(*off)


def test_the_doctors_step_1_sees_one_token_that_is_off():
    """Fails if check_invariants looks at a mean, at no log-prob above 0, or always says ok."""
    policy = tiny_policy(dtype=torch.float32)
    (first, *_) = ragged_examples(policy, dtype=torch.float32)
    (true_T,) = policy.score_examples([replace(first, sampling_logprobs_T=torch.zeros(5))], 100)
    engine = SimpleNamespace(capabilities=SimpleNamespace(rounding=1.0))
    recipe = SimpleNamespace(train=SimpleNamespace(micro_batch_tokens=100))
    parts: Any = SimpleNamespace(policy=policy, recipe=recipe, engine=engine)

    def check(first_T: torch.Tensor, others_T: torch.Tensor) -> Check:
        """The sampling log-probs of one completion in 64, and those of the others."""
        prompt, outcome = Prompt(0, "q", {}, first.prompt_ids), Outcome({"r": 1.0}, 1.0, True)
        rollouts = []
        for sample in range(64):
            logprobs_T = others_T if sample else first_T
            completion = Completion(first.completion_ids, tuple(logprobs_T.tolist()), "stop", "x")
            rollouts.append(Rollout(prompt, 0, sample, completion, outcome, 0))
        return check_invariants(parts, rollouts)

    assert check(true_T, true_T).level == "ok"
    off_T = true_T.clone()
    off_T[2] -= 1e-3
    assert check(off_T, true_T).level == "failure"
    scores = policy.score_examples
    parts.policy.score_examples = lambda *args: [scores_T + 50.0 for scores_T in scores(*args)]
    wrong = check(true_T + 50.0, true_T + 50.0)  # engine and trainer agree, and both are wrong
    assert "engine to trainer 0.0e+00" in wrong.text
    assert wrong.level == "failure"


# -- normalisation -----------------------------------------------------------------------------------------------------


def test_the_micro_batch_size_cannot_change_the_gradient_of_the_cold_start():
    """Fails if the supervised loss is divided by micro-batches, or normalised inside each of them."""
    policy = tiny_policy()
    demonstrations = [
        WrittenRow(Prompt(place, "q", {}, example.prompt_ids), (example.completion_ids,))
        for place, example in enumerate(ragged_examples(policy))
    ]
    found = []

    class Watched:
        def clip_and_step(self) -> StepReport:
            found.append(gradients(policy))
            return StepReport(0.0, 0.0, False, False)

        def check_finite(self) -> None:
            pass

    losses = []
    for budget in (10_000, 24, 12, 1):
        recipe = SimpleNamespace(train=SimpleNamespace(micro_batch_tokens=budget))
        sampling = SimpleNamespace(max_completion_tokens=8)
        parts: Any = SimpleNamespace(policy=policy, recipe=recipe, sampling=sampling, world=ALONE)
        state: Any = SimpleNamespace(optimizer=Watched(), cold_steps=0)
        losses.append(supervised_update(parts, state, demonstrations))
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)
    assert found[0].abs().max() > 0
    assert [relative_difference(found[0], other) < 1e-6 for other in found] == [True] * 4


def test_what_is_measured_has_the_mask_of_what_is_trained():
    """Entropy, KL, clipping and mismatch are means over the trained tokens, whatever stands on masked ones.

    Fails if UpdateMeter divides by rows or by all tokens, or if mismatch_p95 or mismatch_max become a mean.
    """
    policy = tiny_policy()
    algorithm = AlgorithmConfig(kl_coef=0.04)
    examples = ragged_examples(policy, off_policy=0.3, reference=True)
    masks = [torch.arange(len(example.completion_ids)) % 3 != 1 for example in examples]

    def with_mask(example: Any, mask_T: torch.Tensor) -> Any:
        def poisoned(values_T: torch.Tensor) -> torch.Tensor:
            return torch.where(mask_T, values_T, -200.0)  # ratio and KL of a masked token would overflow

        vectors = {
            name: poisoned(getattr(example, name)) for name in ("old_logprobs_T", "ref_logprobs_T", "sampling_logprobs_T")
        }
        return replace(example, loss_mask_T=mask_T, **vectors)

    def measured(chosen: list[Any], budget: int) -> tuple[dict[str, float], torch.Tensor, torch.Tensor]:
        minibatch = pack(
            chosen,
            aggregation=algorithm.aggregation,
            max_completion_tokens=8,
            micro_batch_tokens=budget,
            skip_zero_advantage=False,
        )
        meter, logprobs, entropies = UpdateMeter(algorithm), [], []
        for micro in minibatch.micro_batches:
            scores = policy.compute_logprobs(micro)
            meter.add(scores, micro, token_loss(scores, micro, algorithm, 0.04))
            logprobs.append((scores.logprobs_M - micro.sampling_logprobs_M).abs().detach())
            entropies.append(scores.entropy_M.detach())
        row = meter.metrics(StepReport(0.0, 0.0, False, False), minibatch)
        return row, torch.cat(logprobs), torch.cat(entropies)

    masked = [with_mask(example, mask_T) for example, mask_T in zip(examples, masks, strict=True)]
    row, off_M, entropy_M = measured(masked, 10_000)
    trained = sum(int(mask_T.sum()) for mask_T in masks)
    assert row["loss/trained_tokens"] == trained == len(off_M) < sum(map(len, masks))
    assert row["loss/entropy"] == pytest.approx(float(entropy_M.mean()), rel=1e-6)
    ordered = off_M.sort().values
    assert row["rollout/mismatch_mean"] == pytest.approx(float(off_M.mean()), rel=1e-6)
    assert row["rollout/mismatch_max"] == pytest.approx(float(ordered[-1]), rel=1e-6)
    assert row["rollout/mismatch_p95"] == pytest.approx(float(ordered[-(trained // 20) - 1]), rel=1e-6)
    current = policy.score_examples(masked, 10_000)
    kl = 0.0
    for example, now_T, mask_T in zip(masked, current, masks, strict=True):
        d_T = (example.ref_logprobs_T - now_T)[mask_T]
        kl += float((d_T.exp() - d_T - 1).sum())
    assert row["loss/kl"] == pytest.approx(kl / trained, rel=1e-6)
    assert row["loss/kl_per_completion"] == pytest.approx(kl / len(examples), rel=1e-6)
    assert 1.0 < row["loss/ratio_max"] < 10.0
    other = measured(masked, 12)[0]
    assert {name: other[name] for name in row if name.startswith(("loss/", "rollout/"))} == pytest.approx(
        {name: value for name, value in row.items() if name.startswith(("loss/", "rollout/"))}, rel=1e-6, abs=1e-12
    )


# -- ends and words ----------------------------------------------------------------------------------------------------


def sums(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)][:count]


def test_a_run_says_how_many_prompts_it_leaves_out(tmp_path, said):
    """Fails if the report of the prompts, or that of an evaluation set, stays inside the doctor."""
    for name, rows in (("train", sums(40)), ("test", [{"prompt": f"8+{b}=", "answer": str(8 + b)} for b in range(8)])):
        rows[3]["prompt"] += "0+0+0+0+0="
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    prompts = {"source": str(tmp_path / "train.jsonl"), "max_prompt_tokens": 8, "args": {}}
    held_out = {"source": str(tmp_path / "test.jsonl"), "max_prompt_tokens": 8}
    settings = {"prompts": prompts, "evaluation.sets": {"dev": held_out}, "evaluation.samples": 1, "train.num_steps": 1}
    assert run_with(digit_share, tmp_path, **settings).status == "finished"
    assert any(line.startswith("prompts: 39 prompts") and "1 of 40 left out" in line for line in said)
    assert any(line.startswith("dev: 7 prompts") and "1 of 8 left out" in line for line in said)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (always_right, "64 of 64 answers of other rows score as success"),
        (always_wrong, "0 of 64 reference answers score as success"),
    ],
)
def test_a_run_says_what_is_wrong_with_its_golds_before_it_starts(tmp_path, said, reward, words):
    """Fails if what the preflight of a run finds is not said, or only by `cohort doctor`."""
    run_with(reward, tmp_path, **{"train.num_steps": 1})
    assert any(line.startswith("warning: ") and words in line for line in said), said


def test_without_a_named_set_a_share_of_the_rows_is_held_out_and_never_trained_on(tmp_path):
    """Fails if evaluation.held_out is 0 by default, or if what is evaluated is also sampled in training."""
    import pyarrow.parquet as pq

    settings = FAST | {"prompts": {"source": "python:rows", "args": {}}, "evaluation.sets": {}, "evaluation.every_steps": 0}
    settings |= {"train.num_steps": 20, "train.group_size": 2, "rewards": [{"function": "python:reward", "name": "reward"}]}
    settings |= {"evaluation.samples": 1, "evaluation.max_problems": 60}
    run = session.start(tiny(tmp_path, **settings), Materials(sums(60), {"python:reward": digit_share}))
    (before, after) = [document["sets"] for document in rows_of(run.folder, "evaluations.jsonl")]
    assert before.keys() == after.keys() == {"held_out"}
    files = sorted((run.folder / "rollouts").glob("step-*[0-9].parquet"))
    trained = {prompt for file in files for prompt in pq.read_table(file).column("prompt").to_pylist()}
    evaluated = {example["prompt"] for example in rows_of(run.folder, "samples/after.jsonl")}
    assert evaluated
    assert not evaluated & trained
    assert len(trained) + after["held_out"]["problems"] == 60  # two epochs or more: every other prompt was trained on
