"""The teaching file is the library in small: same advantages, same loss, same gradients; and it learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from cohort.algorithms.advantages import group_normalized
from conftest import gradients, library_loss_and_gradients, ragged_examples, relative_difference, tiny_policy

FILE = Path(__file__).parents[1] / "examples" / "grpo_from_scratch.py"


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("grpo_from_scratch", FILE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("off_policy", [0.0, 0.3])
def test_loss_and_gradients_are_those_of_the_library(example, kl_coef, off_policy):
    policy = tiny_policy()
    lengths = (5, 2, 7, 1, 6, 3, 3, 4)
    examples = ragged_examples(
        policy, seed=4, shapes=tuple((3, length) for length in lengths), off_policy=off_policy, reference=True
    )
    loss, ours = library_loss_and_gradients(policy, examples, aggregation="sequence_mean", kl_coef=kl_coef)

    def padded(vectors) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(vector) for vector in vectors], batch_first=True)

    prompts_BT = torch.tensor([item.prompt_ids for item in examples])
    completions_BT = padded([item.completion_ids for item in examples])
    mask_BT = padded([item.loss_mask_T for item in examples])
    logprobs_BT = example.completion_logprobs(policy.model, prompts_BT, completions_BT)
    old_BT = padded([item.old_logprobs_T for item in examples]) if off_policy else logprobs_BT.detach()
    ref_BT = padded([item.ref_logprobs_T for item in examples])
    advantages_B = torch.stack([item.advantages_T[0] for item in examples])
    theirs_loss = example.grpo_loss(logprobs_BT, old_BT, ref_BT, advantages_B, mask_BT, 0.2, kl_coef)
    theirs_loss.backward()
    theirs = gradients(policy)
    assert abs(loss - theirs_loss.item()) < 1e-13
    assert relative_difference(ours, theirs) < 1e-12
    assert theirs.abs().max() > 1e-3


def test_advantages_are_those_of_the_library(example):
    rewards_PG = torch.rand(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round(decimals=1)
    rewards_PG[2] = 0.1 + 0.2
    ours = group_normalized(rewards_PG, torch.ones_like(rewards_PG, dtype=torch.bool))
    assert (example.group_advantages(rewards_PG) - ours).abs().max().item() < 1e-13
    assert example.group_advantages(rewards_PG)[2].abs().max() == 0.0


def test_reward_by_hand(example):
    assert example.count_reward(3, [4, 5, 6, 7, 8, 9, 0, 1]) == 1.0
    assert example.count_reward(3, [4, 5, 9, 0, example.END, example.END, example.END, example.END]) == 3 / 8
    assert example.count_reward(3, [example.END] * 8) == 0.0


def test_it_stands_alone_and_learns(example):
    """No import of the package, and the mean reward rises from chance to several times as much within twelve steps."""
    assert "cohort" not in FILE.read_text(encoding="utf-8")
    history = example.train(num_steps=12, report=False)
    assert history[0] < 0.15
    assert min(history[-3:]) > 0.3
    assert min(history[-3:]) > 3 * history[0]
