"""An advantage and a trust region of your own, trained with the library's pieces. About ten seconds on a CPU.

    python examples/custom_loss.py

A recipe chooses among the advantages and regions that exist, and any of them can be combined (docs/algorithms.md). It has no
word for one of your own. That needs no change to the library: everything around the formula is a plain function, and a
loop that calls them is short. Below, two functions are new,

    median_centered()    reward minus the median of its group: one odd reward does not move the baseline
    soft_clip()          a trust region without an edge: the further a ratio is from 1, the less a token is pushed

and all the rest is Cohort's: the engine samples groups, `pack` pads and fixes the weight of every token over the whole batch,
the policy scores, AdamW on float32 masters takes the step. Losses are per token, so micro-batches still cannot
change the gradient. The task: count on from a digit, 3 -> 456. Nothing is downloaded. The mean reward rises from 0.08 to about
0.85 and stays there: some prompts settle on a wrong first digit and count on correctly from it, which earns two of three.

These are building blocks and not the public names of `import cohort`: they may change from version to version.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from cohort.algorithms.regions import ratio
from cohort.engine import build_engine, sample_groups
from cohort.model.optim import MasterWeights, Optimizer
from cohort.model.packing import Example, make_examples, pack
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import OptimizerConfig, ScratchConfig
from cohort.training.drawing import as_groups
from cohort.types import NoiseKey, Outcome, Prompt, Sampling

LENGTH = 3
GROUP_SIZE = 8
UPDATES_PER_STEP = 2  # more than one, so that ratios leave 1 and the region has work
MODEL = ScratchConfig(
    hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=2, max_positions=16, characters="0123456789"
)


# -- what is new -------------------------------------------------------------------------------------------------------


def median_centered(rewards_PG: Tensor) -> Tensor:
    """r - median of the group. Where all rewards are equal it is exactly 0, as it must be."""
    return rewards_PG - rewards_PG.quantile(0.5, dim=1, keepdim=True)


def soft_clip(policy_logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, sharpness: float = 10.0) -> Tensor:
    """-A (4 / s) sigmoid(s (rho - 1)): the plain policy gradient at rho = 1, fading on both sides to 0.42 of it at 0.8 and 1.2."""
    gate_M = torch.sigmoid(sharpness * (ratio(policy_logprobs_M, old_logprobs_M) - 1.0))
    return -advantages_M * gate_M * 4.0 / sharpness


# -- what is not -------------------------------------------------------------------------------------------------------


def count_reward(first: str, text: str) -> float:
    """Share of the LENGTH digits that are their predecessor plus one."""
    right = sum(
        token == str((int(before) + 1) % 10) for before, token in zip(first + text, text, strict=False) if before.isdigit()
    )
    return right / LENGTH


def train(num_steps: int = 60, prompts_per_step: int = 10, seed: int = 0, report: bool = True) -> list[float]:
    """Returns the mean reward of every step."""
    policy = Policy(*build_scratch(MODEL, (), seed))
    optimizer = Optimizer(
        MasterWeights(policy.model, torch.float32), OptimizerConfig(learning_rate=5e-3), num_steps * UPDATES_PER_STEP
    )
    engine, _ = build_engine("auto", policy.model, policy.codec.decode)
    sampling = Sampling(GROUP_SIZE, 1.0, LENGTH, stop_ids=(policy.tokenizer.eos_token_id,))
    prompts = [
        Prompt(place % 10, str(place % 10), {}, policy.codec.encode(str(place % 10))) for place in range(prompts_per_step)
    ]
    history = []
    for step in range(1, num_steps + 1):
        # data source -> reward
        completions_PG = sample_groups(engine, prompts, sampling, NoiseKey(seed, "train", step))
        rewards = [
            count_reward(str(prompt.content), completion.text)
            for prompt, group in zip(prompts, completions_PG, strict=True)
            for completion in group
        ]
        outcomes = [Outcome(parts={}, reward=reward, success=reward == 1.0) for reward in rewards]
        rollouts = [rollout for group in as_groups(prompts, completions_PG, outcomes, step - 1) for rollout in group]
        # -> gradient coefficient
        advantages_N = median_centered(torch.tensor(rewards).view(len(prompts), -1)).flatten()
        examples = credited(make_examples(rollouts), advantages_N, policy)
        # -> update
        batch = pack(
            examples,
            aggregation="token_mean",
            max_completion_tokens=LENGTH,
            micro_batch_tokens=256,
            skip_zero_advantage=True,
        )
        for _ in range(UPDATES_PER_STEP):
            for micro in batch.micro_batches:
                assert micro.old_logprobs_M is not None
                logprobs_M = policy.compute_logprobs(micro).logprobs_M
                loss_M = soft_clip(logprobs_M, micro.old_logprobs_M, micro.advantages_M)
                (loss_M * micro.loss_weights_M).sum().backward()
            optimizer.clip_and_step()
        history.append(sum(rewards) / len(rewards))
        if report and (step == 1 or step % 10 == 0):
            print(f"step {step:3d}  reward {history[-1]:.3f}  3 -> {completions_PG[3][0].text}")
    return history


def credited(examples: list[Example], advantages_N: Tensor, policy: Policy) -> list[Example]:
    """Each example with its advantage on every token, and the log-probs from before this step's first update."""
    old = policy.score_examples(examples, micro_batch_tokens=4096)
    return [
        replace(
            example,
            advantages_T=torch.full_like(example.advantages_T, float(advantages_N[example.rollout])),
            old_logprobs_T=old_T,
        )
        for example, old_T in zip(examples, old, strict=True)
    ]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)  # the model is so small that threads would only wait for each other
    try:
        train()
    except KeyboardInterrupt:  # nothing is kept here, so there is nothing to save or to say
        raise SystemExit(130) from None
