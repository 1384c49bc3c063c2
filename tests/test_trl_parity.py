"""The same tensors through TRL 1.16's own `GRPOTrainer._compute_loss`, live: loss and gradients agree.

A real trainer is built on a tiny random model; nothing is recorded. Names: TRL's grpo is our sequence_mean, bnpo and (in
one window) dapo our token_mean, dr_grpo our constant. TRL's `grpo` counts a fully masked completion in its mean and ours
does not, so no sample here is fully masked. `use_bias_correction_kl` is switched off: the objective is plain k3.

TRL's own head computes log-probs in float32, which limits how closely gradients can agree (1e-5 of the largest entry).
Given float64 log-probs instead, TRL's loss and ours are the same function: 1e-12.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from cohort.algorithms.advantages import group_centered, group_normalized
from cohort.batching import Example
from cohort.policy import Policy
from conftest import gradients, library_loss_and_gradients, ragged_examples, relative_difference, tiny_policy

TEMPERATURE = 0.7
MAX_COMPLETION = 8
OUR_NAME = {"grpo": "sequence_mean", "bnpo": "token_mean", "dapo": "token_mean", "dr_grpo": "constant"}


@dataclass
class Bench:
    trainer: Any
    policy: Policy
    scripted_rewards: list[float | None] = field(default_factory=list)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    policy = tiny_policy(temperature=TEMPERATURE, spread=3.0)
    bench = Bench(None, policy)

    def scripted(completions: list[str], **columns: Any) -> list[float | None]:
        return bench.scripted_rewards

    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")), per_device_train_batch_size=8, num_generations=4,
        max_completion_length=MAX_COMPLETION, beta=0.0, use_bias_correction_kl=False, temperature=TEMPERATURE,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], gradient_accumulation_steps=1,
    )  # fmt: skip
    bench.trainer = GRPOTrainer(
        model=plain_copy(policy.model), reward_funcs=scripted, args=args, processing_class=policy.tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "1+2="}] * 8),
    )  # fmt: skip
    bench.trainer.current_gradient_accumulation_steps = 1
    bench.trainer.model.train()  # its normalisers differ in evaluation; there is no dropout
    assert bench.trainer.model is not policy.model
    assert bench.trainer.args.steps_per_generation == 1
    assert bench.trainer.args.use_bias_correction_kl is False
    return bench


def plain_copy(model: Any) -> Any:
    """The same weights with the attention of transformers, which knows what to do with padding on the left."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("sdpa")
    return model


def trl_inputs(examples: list[Example], pad_id: int) -> dict[str, torch.Tensor]:
    """TRL's layout: prompts padded on the left, completions on the right."""
    prompt_width = max(len(example.prompt_ids) for example in examples)
    width = max(len(example.completion_ids) for example in examples)

    def right(values: Any, dtype: torch.dtype, fill: float = 0) -> torch.Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in values], dtype=dtype)

    def left(values: Any, fill: int) -> torch.Tensor:
        return torch.tensor([[*[fill] * (prompt_width - len(row)), *row] for row in values])

    inputs = {
        "prompt_ids": left([example.prompt_ids for example in examples], pad_id),
        "prompt_mask": left([[1] * len(example.prompt_ids) for example in examples], 0),
        "completion_ids": right([example.completion_ids for example in examples], torch.long, pad_id),
        "completion_mask": right([[1] * len(example.completion_ids) for example in examples], torch.long),
        # TRL masks tool output with a second mask; holes in ours are the same thing.
        "tool_mask": right([example.loss_mask_T.long().tolist() for example in examples], torch.long),
        "advantages": torch.stack([example.advantages_T[0] for example in examples]),
        "num_items_in_batch": torch.tensor(float(sum(example.trained_tokens for example in examples))),
    }
    if examples[0].old_logprobs_T is not None:
        inputs["old_per_token_logps"] = right([example.old_logprobs_T.tolist() for example in examples], torch.float64)
    if examples[0].ref_logprobs_T is not None:
        inputs["ref_per_token_logps"] = right([example.ref_logprobs_T.tolist() for example in examples], torch.float64)
    return inputs


def float64_logprobs(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **options: Any):
    """Stands in for TRL's float32 head, with positions counted from the first real token."""
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, -logits_to_keep - 1 : -1] / TEMPERATURE, -1)
    chosen = logprobs.gather(2, input_ids[:, -logits_to_keep:, None]).squeeze(2)
    return chosen, torch.zeros_like(chosen), None


def compare(
    bench: Bench,
    loss_type: str,
    beta: float,
    epsilons: tuple[float, float],
    off_policy: float,
    seed: int,
    *,
    float64: bool = False,
) -> tuple[float, float]:
    """(difference of the losses, largest difference of the gradients relative to the largest entry)"""
    trainer, policy = bench.trainer, bench.policy
    trainer.__dict__.pop("_get_per_token_logps_and_entropies", None)
    if float64:
        trainer._get_per_token_logps_and_entropies = float64_logprobs
    examples = ragged_examples(policy, seed=seed, off_policy=off_policy, reference=beta > 0)
    examples[2].loss_mask_T[3:5] = False
    trainer.loss_type, trainer.beta = loss_type, beta
    trainer.epsilon_low, trainer.epsilon_high = epsilons
    trainer.model.zero_grad(set_to_none=True)
    trl_loss = trainer._compute_loss(trainer.model, trl_inputs(examples, policy.tokenizer.pad_token_id))
    trl_loss.backward()
    theirs = gradients(trainer)
    loss, ours = library_loss_and_gradients(
        policy, examples, aggregation=OUR_NAME[loss_type], kl_coef=beta, clip_low=epsilons[0], clip_high=epsilons[1],
        max_completion_tokens=MAX_COMPLETION, micro_batch_tokens=25,
    )  # fmt: skip
    assert theirs.abs().max() > 1e-3
    return abs(loss - trl_loss.item()), relative_difference(ours, theirs)


SYMMETRIC, CLIP_HIGHER = (0.2, 0.2), (0.2, 0.28)


@pytest.mark.parametrize(
    ("loss_type", "beta", "epsilons", "off_policy"),
    [
        ("grpo", 0.0, SYMMETRIC, 0.0),
        ("grpo", 0.04, CLIP_HIGHER, 0.3),
        ("dr_grpo", 0.0, SYMMETRIC, 0.3),
        ("dr_grpo", 0.04, SYMMETRIC, 0.0),
        ("bnpo", 0.04, CLIP_HIGHER, 0.3),
        ("bnpo", 0.0, SYMMETRIC, 0.0),
        ("dapo", 0.0, CLIP_HIGHER, 0.3),
        ("dapo", 0.04, SYMMETRIC, 0.0),
    ],
)
def test_loss_and_gradients_agree_with_trl(bench, loss_type, beta, epsilons, off_policy):
    loss_difference, gradient_difference = compare(bench, loss_type, beta, epsilons, off_policy, seed=1)
    assert loss_difference < 1e-6
    assert gradient_difference < 1e-5
    loss_difference, gradient_difference = compare(bench, loss_type, beta, epsilons, off_policy, seed=1, float64=True)
    assert loss_difference < 1e-12
    assert gradient_difference < 1e-12


@pytest.mark.prove
@pytest.mark.parametrize("loss_type", sorted(OUR_NAME))
def test_loss_and_gradients_agree_with_trl_on_the_whole_grid(bench, loss_type):
    """Every loss type x beta x clip x drift x five batches, with TRL's head and with float64 log-probs."""
    worst = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for beta in (0.0, 0.04):
        for epsilons in (SYMMETRIC, CLIP_HIGHER, (0.1, 0.3)):
            for off_policy in (0.0, 0.05, 0.3, 1.0):
                for seed in range(5):
                    for float64, largest in worst.items():
                        found = compare(bench, loss_type, beta, epsilons, off_policy, seed, float64=float64)
                        worst[float64] = [max(pair) for pair in zip(largest, found, strict=True)]
    print(f"{loss_type}: (loss, gradient) differ by {worst[False]} through TRL's head, {worst[True]} in float64")
    assert worst[False][0] < 1e-6
    assert worst[False][1] < 1e-5
    assert max(worst[True]) < 1e-12


def test_the_comparison_can_fail(bench):
    """With TRL's bias correction on, the two differ by far more than the tolerance."""
    bench.trainer.args.use_bias_correction_kl = True
    try:
        assert compare(bench, "grpo", 0.04, SYMMETRIC, 0.3, seed=1, float64=True)[1] > 1e-4
    finally:
        bench.trainer.args.use_bias_correction_kl = False


@pytest.mark.parametrize(
    "rewards",
    [
        [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
        [0.0, 0.95, 0.95, 0.95, 0.25, 0.5, 0.75, 1.0],
        [1.0, None, 0.0, 0.5, None, 0.0, 0.25, 1.0],
        [0.35, 0.35, 0.35, 0.35, -2.0, 3.0, 0.1, 0.2],
    ],
)
def test_advantages_agree_with_trl(bench, rewards):
    """Real generations, scripted rewards, TRL's own normalisation (ddof 1, epsilon 1e-4), abstentions included."""
    bench.scripted_rewards = rewards
    bench.trainer.__dict__.pop("_get_per_token_logps_and_entropies", None)
    bench.trainer.loss_type, bench.trainer.beta = "grpo", 0.0
    rewards_PG = torch.tensor([0.0 if reward is None else reward for reward in rewards], dtype=torch.float64).view(2, 4)
    scored_PG = torch.tensor([reward is not None for reward in rewards]).view(2, 4)
    for scale, ours in (
        ("group", group_normalized(rewards_PG, scored_PG, ddof=1, epsilon=1e-4)),
        ("none", group_centered(rewards_PG, scored_PG)),
    ):
        bench.trainer.scale_rewards = scale
        theirs = bench.trainer._generate_and_score_completions([{"prompt": "1+2="}] * 8)["advantages"]
        assert (ours.flatten() - theirs).abs().max().item() < 1e-6
