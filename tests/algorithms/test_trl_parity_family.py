"""The rest of the family against TRL 1.16, live: engine mismatch weights, `RLOOTrainer`, `DPOTrainer`, on-policy distillation.

Tolerances as in algorithms/test_trl_parity.py: 1e-6 on losses and advantages and 1e-5 on gradients through TRL's float32 head, 1e-12
where TRL's code is given float64 log-probs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.algorithms.advantages import batch_whitened
from cohort.model.examples import Example, make_examples
from cohort.model.frozen import Teacher
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.schema import TeacherConfig
from cohort.training.credit import score_with_teacher
from cohort.training.experience import Credit
from cohort.types import Completion, Outcome, Prompt, Rollout
from conftest import gradients, ragged_examples, relative_difference, tiny_policy
from trl_bench import (
    PROMPTS,
    TEMPERATURE,
    Bench,
    Trl,
    dpo_bench,
    drifted,
    float64_head,
    grpo_bench,
    holed_examples,
    loss_difference,
    loss_unit,
    our_loss_and_gradients,
    rloo_bench,
    trl_inputs,
    trl_loss_and_gradients,
)

# -- mismatch between engine and trainer -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return grpo_bench(tmp_path_factory.mktemp("grpo"))


def compare_mismatch(
    bench: Bench,
    patch: pytest.MonkeyPatch,
    mode: str,
    trl: Trl,
    *,
    drift: float = 1e-3,
    cap: float = 1.5,
    both_sides: bool = True,
    float64: bool = True,
    seed: int = 1,
    **changed: Any,
) -> tuple[float, float]:
    """As `trl_bench.compare`, with completions and sampling log-probs handed to TRL as those of an engine.

    TRL itself scores them under the policy that sampled (weights that lie `drift` away), forms its importance ratios and
    advantages, and then computes its loss under the current weights.
    """
    trainer, policy = bench.trainer, bench.policy
    bench.use_float64(float64)
    examples = holed_examples(policy, seed, reference=True)
    with drifted(policy.model, drift):
        old = policy.score_examples(examples, 10_000)
    generator = torch.Generator().manual_seed(seed)
    # TRL keeps the engine's log-probs in float32, so they are chosen there.
    engine = [(row_T + 0.4 * torch.randn(len(row_T), generator=generator, dtype=torch.float64)).float() for row_T in old]
    rollouts = {
        "prompt_ids": [list(example.prompt_ids) for example in examples],
        "completion_ids": [list(example.completion_ids) for example in examples],
        "logprobs": [row_T.tolist() for row_T in engine],
        "env_mask": [example.loss_mask_T.long().tolist() for example in examples],
    }
    for name, value in {
        "use_vllm": True,
        "_last_loaded_step": trainer.state.global_step,  # nothing to send to an engine
        "rollout_func": lambda prompts, trainer: rollouts,
        "scale_rewards": "group",
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_max": cap,
        "vllm_importance_sampling_clip_min": 1 / cap if both_sides and mode.endswith("mask") else None,
    }.items():
        patch.setattr(trainer, name, value, raising=False)
    bench.scripted_rewards = [1.0, 0.0, 0.5, 0.25, 0.0, 1.0, 1.0, -0.5]
    Trl("grpo", 0.0, corrected=False).configure(trainer)  # no reference is needed for scoring
    with drifted(trainer.model, drift):
        inputs = trainer._generate_and_score_completions([dict(row) for row in PROMPTS])
    trl.configure(trainer)
    inputs["ref_per_token_logps"] = trl_inputs(examples, 0)["ref_per_token_logps"]
    trl_loss, theirs = trl_loss_and_gradients(bench, inputs)
    examples = [
        replace(
            example,
            advantages_T=torch.full_like(example.advantages_T, float(inputs["advantages"][place])),
            old_logprobs_T=old[place],
            sampling_logprobs_T=engine[place].double(),
        )
        for place, example in enumerate(examples)
    ]
    choices = {**trl.in_our_words(), "mismatch_weight": mode, "mismatch_cap": cap, **changed}
    loss, ours = our_loss_and_gradients(policy, examples, **choices)
    return loss_difference(loss, trl_loss, loss_unit(bench, trl, examples)), relative_difference(ours, theirs)


MODES = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
WITH_KL = Trl("grpo", 0.5, corrected=False)
"""A large KL term, which neither side multiplies by the weight."""


@pytest.mark.parametrize("mode", MODES)
def test_mismatch_weights_agree_with_trl(grpo, monkeypatch, mode):
    """On both sides the weight multiplies the surrogate and not the KL, and what is masked stays in the denominators."""
    of_losses, of_gradients = compare_mismatch(grpo, monkeypatch, mode, WITH_KL, float64=False)
    assert of_losses < 1e-6
    assert of_gradients < 1e-5
    for trl in (WITH_KL, Trl("dapo", 0.0, corrected=False, epsilon_high=0.28), Trl("cispo", 0.04, True, epsilon_high=1.2)):
        assert max(compare_mismatch(grpo, monkeypatch, mode, trl)) < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_the_comparison_of_mismatch_weights_can_fail(grpo, monkeypatch, mode):
    for wrong in ({"mismatch_weight": "off"}, {"mismatch_cap": 1.6}, *({"mismatch_weight": other} for other in MODES)):
        if wrong != {"mismatch_weight": mode}:
            assert compare_mismatch(grpo, monkeypatch, mode, WITH_KL, **wrong)[1] > 1e-4, wrong


@pytest.mark.parametrize("mode", ["token_mask", "sequence_mask"])
def test_masks_have_no_lower_side_in_trl_by_default(grpo, monkeypatch, mode):
    """`vllm_importance_sampling_clip_min` is None there; our masks end at 1 / mismatch_cap."""
    assert compare_mismatch(grpo, monkeypatch, mode, WITH_KL, both_sides=False)[1] > 1e-4


@pytest.mark.prove
@pytest.mark.parametrize("mode", MODES)
def test_mismatch_weights_agree_with_trl_on_the_whole_grid(grpo, monkeypatch, mode):
    worst = {False: [0.0, 0.0], True: [0.0, 0.0]}
    objectives = [Trl(name, beta, False) for name in ("grpo", "dr_grpo", "dapo") for beta in (0.0, 0.5)]
    objectives += [Trl("grpo", 0.5, False, level="sequence"), Trl("cispo", 0.5, True, epsilon_high=1.2)]
    for trl in objectives:
        for drift, cap, seed in ((0.0, 2.0, 0), (5e-4, 1.5, 1), (1e-3, 3.0, 2), (2e-3, 1.1, 3)):
            for float64, largest in worst.items():
                options: dict[str, Any] = {"drift": drift, "cap": cap, "seed": seed, "float64": float64}
                found = compare_mismatch(grpo, monkeypatch, mode, trl, **options)
                worst[float64] = [max(pair) for pair in zip(largest, found, strict=True)]
    print(f"{mode}: (loss, gradient) differ by {worst[False]} through TRL's head, {worst[True]} in float64")
    assert worst[False][0] < 1e-6
    assert worst[False][1] < 1e-5
    assert max(worst[True]) < 1e-12


# -- RLOO --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rloo(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return rloo_bench(tmp_path_factory.mktemp("rloo"))


def trl_scores(
    bench: Bench, rewards: list[float | None], beta: float, *, normalize: bool = False, seed: int = 1
) -> dict[str, Tensor]:
    """Real generations under scripted rewards: TRL's old log-probs, KL and advantages."""
    trainer = bench.trainer
    torch.manual_seed(seed)
    trainer.beta, trainer.normalize_advantages, bench.scripted_rewards = beta, normalize, rewards
    trainer.epsilon_low = trainer.epsilon_high = 0.2
    return trainer._generate_and_score_completions([dict(row) for row in PROMPTS])


def our_examples(bench: Bench, scores: dict[str, Tensor], rewards: list[float | None], **choices: Any) -> list[Example]:
    """The completions that TRL sampled, credited by the recipe's choices; unscored ones are left out."""
    rollouts = []
    for place, reward in enumerate(rewards):
        prompt_ids, ids = (
            tuple(scores[f"{part}_ids"][place][scores[f"{part}_mask"][place].bool()].tolist())
            for part in ("prompt", "completion")
        )
        completion = Completion(ids, (0.0,) * len(ids), "length", "")
        outcome = Outcome({}, reward, None)
        rollouts.append(Rollout(Prompt(place // 4, "1+2=", {}, prompt_ids), place // 4, place % 4, completion, outcome, 0))
    algorithm = AlgorithmConfig(**{"name": "rloo", **choices})
    examples = make_examples(rollouts)
    assert bench.reference is not None
    for name, model in (("old_logprobs_T", bench.policy), ("ref_logprobs_T", bench.reference)):
        scored = model.score_examples(examples, 10_000)
        examples = [replace(example, **{name: row_T}) for example, row_T in zip(examples, scored, strict=True)]
    counted_PG = torch.tensor([[rollout.outcome.reward is not None for rollout in rollouts]]).view(rollouts[-1].group + 1, -1)
    return Credit(rollouts, counted_PG, algorithm, algorithm.kl_coef, lambda ids: "").advantages(examples)


ROLLOUT_REWARDS: list[list[float | None]] = [
    [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    [0.0, 0.95, 0.95, 0.95, 0.25, 0.5, 0.75, 1.0],
    [1.0, None, 0.0, 0.5, None, 0.0, 0.25, 1.0],
    [0.35, 0.35, 0.35, 0.35, -2.0, 3.0, 0.1, 0.2],
]


def difference_of_advantages(bench: Bench, rewards: list[float | None], beta: float, **choices: Any) -> float:
    bench.use_float64(False)
    scores = trl_scores(bench, rewards, beta)
    examples = our_examples(bench, scores, rewards, **{"kl_coef": beta, **choices})
    theirs = [scores["advantages"][example.rollout] for example in examples]
    unscored = [scores["advantages"][place] for place, reward in enumerate(rewards) if reward is None]
    assert all(value == 0 for value in unscored)
    return max(abs(float(example.advantages_T[0] - value)) for example, value in zip(examples, theirs, strict=True))


@pytest.mark.parametrize("rewards", ROLLOUT_REWARDS)
def test_leave_one_out_with_the_kl_in_the_reward_agrees_with_trl(rloo, rewards):
    """Rewards less beta times the summed k1 of each completion, against the mean of the others; abstentions included."""
    for beta in (0.0, 0.05):
        assert difference_of_advantages(rloo, rewards, beta) < 1e-6


def test_the_comparison_of_leave_one_out_can_fail(rloo):
    rewards = ROLLOUT_REWARDS[1]
    assert difference_of_advantages(rloo, rewards, 0.05, advantage="group_centered") > 1e-4
    assert difference_of_advantages(rloo, rewards, 0.05, kl_coef=0.04) > 1e-4


def test_normalized_advantages_of_rloo_agree_with_trl(rloo):
    """`normalize_advantages` is our batch_whitened: the factor G / (G - 1) of leave-one-out cancels, but for epsilon."""
    rloo.use_float64(False)
    for rewards in (ROLLOUT_REWARDS[0], ROLLOUT_REWARDS[1]):
        theirs = trl_scores(rloo, rewards, 0.0, normalize=True)["advantages"]
        rewards_PG = torch.tensor(rewards, dtype=torch.float64).view(2, 4)
        ours = batch_whitened(rewards_PG, torch.ones(2, 4, dtype=torch.bool), std_ddof=1, std_epsilon=1e-4 * 3 / 4)
        assert (ours.flatten() - theirs).abs().max().item() < 1e-6


def compare_rloo(
    bench: Bench, drift: float, *, float64: bool = True, epsilon: float = 0.2, seed: int = 1, **choices: Any
) -> tuple[float, float]:
    """Loss and gradients on completions that TRL sampled under weights that lie `drift` away from the current ones."""
    bench.use_float64(float64)
    rewards = ROLLOUT_REWARDS[1]
    with drifted(bench.trainer.model, drift), drifted(bench.policy.model, drift):
        scores = trl_scores(bench, rewards, 0.05, seed=seed)
        examples = our_examples(bench, scores, rewards, kl_coef=0.05)
    bench.trainer.epsilon_low = bench.trainer.epsilon_high = epsilon
    trl_loss, theirs = trl_loss_and_gradients(bench, scores)
    examples = [
        replace(example, advantages_T=torch.full((len(example.completion_ids),), float(advantage), dtype=torch.float64))
        for example, advantage in zip(examples, scores["advantages"], strict=True)
    ]
    loss, ours = our_loss_and_gradients(bench.policy, examples, **{"name": "rloo", "kl_coef": 0.05, **choices})
    return loss_difference(loss, trl_loss), relative_difference(ours, theirs)


PRODUCT = {"region": "sequence_product", "aggregation": "sequence_mean", "clip_low": 0.2, "clip_high": 0.2}


@pytest.mark.parametrize("drift", [0.0, 2e-3])
@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_rloo_loss_and_gradients_agree_with_trl(rloo, drift, epsilon):
    """TRL clips the ratio of the whole completion: our sequence_product."""
    choices = {**PRODUCT, "clip_low": epsilon, "clip_high": epsilon}
    of_losses, of_gradients = compare_rloo(rloo, drift, float64=False, epsilon=epsilon, **choices)
    assert of_losses < 1e-6
    assert of_gradients < 1e-5
    for seed in (1, 2):
        assert max(compare_rloo(rloo, drift, epsilon=epsilon, seed=seed, **choices)) < 1e-12


def test_on_policy_the_rloo_preset_has_the_gradient_of_trl(rloo):
    """Region `none` has no ratio: another loss value, and the same gradient as long as the data is fresh."""
    of_losses, of_gradients = compare_rloo(rloo, 0.0)
    assert of_gradients < 1e-12
    assert of_losses > 1e-4
    assert compare_rloo(rloo, 2e-3)[1] > 1e-4


@pytest.mark.parametrize("wrong", [{"region": "sequence"}, {"clip_low": 0.5}, {"clip_high": 0.01}])
def test_the_comparison_of_rloo_can_fail(rloo, wrong):
    assert max(compare_rloo(rloo, 2e-3, seed=seed, **{**PRODUCT, **wrong})[1] for seed in (0, 1, 2)) > 1e-4


@pytest.mark.prove
def test_rloo_agrees_with_trl_on_the_whole_grid(rloo):
    worst = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for drift, epsilon, seed in product((0.0, 1e-4, 2e-4, 5e-4), (0.05, 0.2, 0.3), range(5)):
        for float64, largest in worst.items():
            choices = {**PRODUCT, "clip_low": epsilon, "clip_high": epsilon}
            found = compare_rloo(rloo, drift, float64=float64, epsilon=epsilon, seed=seed, **choices)
            worst[float64] = [max(pair) for pair in zip(largest, found, strict=True)]
    print(f"rloo: (loss, gradient) differ by {worst[False]} through TRL's head, {worst[True]} in float64")
    assert worst[False][0] < 2e-6  # TRL's ratio is a difference of two sums over a completion, each rounded to float32
    assert worst[False][1] < 1e-5
    assert max(worst[True]) < 1e-12


# -- DPO ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dpo(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return dpo_bench(tmp_path_factory.mktemp("dpo"))


def pairs_with_reference(bench: Bench, seed: int) -> list[Example]:
    """Pairs of completions of one prompt, the chosen one first, scored by the reference."""
    examples = ragged_examples(bench.policy, seed=seed, pairs=True)
    examples = [replace(example, prompt_ids=examples[place // 2 * 2].prompt_ids) for place, example in enumerate(examples)]
    assert bench.reference is not None
    scored = bench.reference.score_examples(examples, 10_000)
    return [replace(example, ref_logprobs_T=row_T) for example, row_T in zip(examples, scored, strict=True)]


def compare_dpo(bench: Bench, beta: float, seed: int, *, float64: bool = True, **changed: Any) -> tuple[float, float]:
    """TRL's own collator and sigmoid loss, with its own forward of the reference."""
    trainer, examples = bench.trainer, pairs_with_reference(bench, seed)
    trainer.beta = beta
    inputs = trainer.data_collator([trl_pair(examples[place], examples[place + 1]) for place in range(0, len(examples), 2)])
    trainer.model.zero_grad(set_to_none=True)
    with pytest.MonkeyPatch.context() as patch:
        if float64:
            patch.setattr(trainer, "ref_model", float64_head(trainer.ref_model))
        model = float64_head(trainer.model) if float64 else trainer.model
        trl_loss = trainer._compute_loss(model, inputs, return_outputs=False)
    trl_loss.backward()
    theirs = gradients(trainer)
    assert theirs.abs().max() > 1e-3
    loss, ours = our_loss_and_gradients(bench.policy, examples, **{"name": "dpo", "kl_coef": beta, **changed})
    return loss_difference(loss, trl_loss.item()), relative_difference(ours, theirs)


def trl_pair(chosen: Example, rejected: Example) -> dict[str, Sequence[int]]:
    assert float(chosen.advantages_T[0]) == 1.0
    assert float(rejected.advantages_T[0]) == -1.0
    return {
        "prompt_ids": list(chosen.prompt_ids),
        "chosen_ids": list(chosen.completion_ids),
        "rejected_ids": list(rejected.completion_ids),
    }


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_loss_and_gradients_agree_with_trl(dpo, beta):
    """Log-probs are summed over a completion, losses averaged over pairs, on both sides."""
    of_losses, of_gradients = compare_dpo(dpo, beta, seed=1, float64=False)
    assert of_losses < 1e-6
    assert of_gradients < 1e-5
    assert max(compare_dpo(dpo, beta, seed=1)) < 1e-12


def test_the_comparison_of_dpo_can_fail(dpo):
    assert compare_dpo(dpo, 0.1, seed=1, kl_coef=0.11)[1] > 1e-4


@pytest.mark.prove
def test_dpo_loss_and_gradients_agree_with_trl_on_the_whole_grid(dpo):
    worst = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for beta, seed in product((0.01, 0.1, 0.5), range(10)):
        for float64, largest in worst.items():
            found = compare_dpo(dpo, beta, seed, float64=float64)
            worst[float64] = [max(pair) for pair in zip(largest, found, strict=True)]
    print(f"dpo: (loss, gradient) differ by {worst[False]} through TRL's head, {worst[True]} in float64")
    assert worst[False][0] < 1e-6
    assert worst[False][1] < 1e-5
    assert max(worst[True]) < 1e-12


# -- on-policy distillation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mismatch", [0.0, 0.4])
@pytest.mark.parametrize("coef", [1.0, 0.5])
def test_distillation_on_sampled_tokens_is_that_of_trl(mismatch, coef):
    """`IWOPDTrainer`'s loss without its importance weights (iw_opd_gamma 0), on the same tokens with the same rollout log-probs.

    TRL has no coefficient: half of its loss is ours at 0.5. Its own loss is called, on float64 logits.
    """
    from trl.experimental.iw_opd import IWOPDTrainer

    policy, other = (tiny_policy(seed=seed, temperature=TEMPERATURE, spread=3.0) for seed in (0, 7))
    # Float32 is what an engine gives, and what a rollout keeps.
    examples = [
        replace(example, advantages_T=torch.zeros_like(example.advantages_T), sampling_logprobs_T=row_T.float().double())
        for example, row_T in zip(*engine_scores(policy, mismatch), strict=True)
    ]
    taught = score_with_teacher(Teacher(other, TeacherConfig(source="elsewhere", coef=coef)), examples, 25).add_to(examples)
    loss, ours = our_loss_and_gradients(policy, taught, name="opd")

    width = max(len(example.completion_ids) for example in examples)

    def padded(rows: Sequence[Sequence[float]], fill: float) -> Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])

    def logits_of(model: Any) -> Tensor:
        rows = []
        for example in examples:
            ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
            states_TV = model(ids, use_cache=False).logits[0, len(example.prompt_ids) - 1 : -1]
            rows.append(torch.cat([states_TV, states_TV.new_zeros(width - len(states_TV), states_TV.shape[1])]))
        return torch.stack(rows)

    token_ids = padded([example.completion_ids for example in examples], 0)
    masks = [example.loss_mask_T.tolist() for example in examples]
    labels = token_ids.masked_fill(~padded(masks, False).bool(), -100)
    with torch.no_grad():
        theirs_BT = torch.log_softmax(logits_of(other.model) / TEMPERATURE, -1).gather(2, token_ids[..., None])[..., 0]
    rollout_BT = padded([example.sampling_logprobs_T.tolist() for example in examples], 0.0).double()
    trainer = SimpleNamespace(
        temperature=TEMPERATURE, iw_opd_gamma=0.0, iw_opd_epsilon=1e-8, model=policy.model, _metrics={"eval": defaultdict(list)}
    )
    trl_loss = IWOPDTrainer._compute_iw_opd_loss(trainer, logits_of(policy.model), token_ids, labels, theirs_BT, rollout_BT)
    (coef * trl_loss).backward()
    assert loss == pytest.approx(coef * trl_loss.item(), rel=1e-12)
    assert relative_difference(ours, gradients(policy)) < 1e-12
    assert abs(loss) > 1e-3


def engine_scores(policy: Any, mismatch: float) -> tuple[list[Example], list[Tensor]]:
    """(examples with a hole, the log-probs of an engine that far from the policy)."""
    examples = holed_examples(policy, 1)
    generator = torch.Generator().manual_seed(1)
    scores = policy.score_examples(examples, 10_000)
    return examples, [row_T + mismatch * torch.randn(len(row_T), generator=generator, dtype=torch.float64) for row_T in scores]
