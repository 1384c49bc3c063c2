"""GRPO from scratch, in one file: PyTorch, a tiny Llama, no trainer.

    python examples/grpo_from_scratch.py

A model with random weights is given a digit and learns to count on from it: 3 -> 4 5 6 7 8 9 0 1. Nobody shows it an
answer. It only samples, and is told how good each sample was:

    1. sample a GROUP of completions for every prompt            sample()
    2. score each completion with a number                       count_reward()
    3. compare each with the mean of its own group               group_advantages()
    4. make good tokens likelier, bad ones less likely,          grpo_loss()
       but not too much at once (the clip), and not too far
       from where we started (the KL)

Shapes are in the names: P prompts, G completions per prompt (the group), B = P * G rows, T tokens of a completion,
V vocabulary. GRPO is from DeepSeekMath, arXiv 2402.03300. Takes well under a minute on a laptop CPU.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

DIGITS = 10
END = 10  # the model may stop early by sampling this
VOCABULARY = 11
MAX_COMPLETION_TOKENS = 8

NUM_STEPS = 60
PROMPTS_PER_STEP = 16
GROUP_SIZE = 8
UPDATES_PER_STEP = 2  # more than one, so that the policy moves away from the one that sampled and the clip has work
LEARNING_RATE = 2e-3
CLIP = 0.2
KL_COEF = 0.01


def build_model() -> LlamaForCausalLM:
    """About 100,000 random parameters. Any causal language model of transformers would do."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        pad_token_id=END,
        bos_token_id=None,
        eos_token_id=END,
    )
    # eval() for good: dropout would make the policy that is trained another one than the policy that sampled.
    return LlamaForCausalLM(config).eval()


# -- 1. sample ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def sample(model: LlamaForCausalLM, prompts_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Completions and their mask: True on every token the model chose itself, the END included, False after it."""
    tokens_BT, mask = prompts_BT, []
    running_B = torch.ones(len(prompts_BT), dtype=torch.bool)
    for _ in range(MAX_COMPLETION_TOKENS):
        logits_BV = model(tokens_BT).logits[:, -1]
        next_B = torch.multinomial(logits_BV.softmax(-1), 1).squeeze(1)
        next_B = torch.where(running_B, next_B, END)  # rows that have ended are padded
        tokens_BT = torch.cat([tokens_BT, next_B[:, None]], dim=1)
        mask.append(running_B)
        running_B = running_B & (next_B != END)
    return tokens_BT[:, prompts_BT.shape[1] :], torch.stack(mask, dim=1)


# -- 2. score ----------------------------------------------------------------------------------------------------------


def count_reward(prompt: int, completion: list[int]) -> float:
    """The share of tokens that are their predecessor plus one. Verifiable: a few lines of code know the truth."""
    right = 0
    for before, token in zip([prompt, *completion], completion, strict=False):
        if before == END or token == END:
            break
        right += token == (before + 1) % DIGITS
    return right / MAX_COMPLETION_TOKENS


# -- 3. compare --------------------------------------------------------------------------------------------------------


def group_advantages(rewards_PG: Tensor) -> Tensor:
    """How much better than its own group each completion was, in standard deviations of the group.

    The mean of the group is the baseline that PPO needs a second network for. Where all rewards of a group are equal
    there is nothing to learn, and the advantage is exactly 0.
    """
    mean_P1 = rewards_PG.mean(dim=1, keepdim=True)
    std_P1 = rewards_PG.std(dim=1, keepdim=True, correction=0)
    equal_P1 = rewards_PG.amax(1, keepdim=True) == rewards_PG.amin(1, keepdim=True)
    return torch.where(equal_P1, 0.0, (rewards_PG - mean_P1) / (std_P1 + 1e-6))


# -- 4. learn ----------------------------------------------------------------------------------------------------------


def completion_logprobs(model: LlamaForCausalLM, prompts_BT: Tensor, completions_BT: Tensor) -> Tensor:
    """Log-probability of each completion token: one forward over prompt and completion together."""
    logits_BTV = model(torch.cat([prompts_BT, completions_BT], dim=1)).logits
    # The output at one position predicts the next token, hence the shift by one.
    logits_BTV = logits_BTV[:, prompts_BT.shape[1] - 1 : -1]
    return logits_BTV.log_softmax(-1).gather(2, completions_BT[:, :, None]).squeeze(2)


def grpo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    clip: float,
    kl_coef: float,
) -> Tensor:
    """Clipped surrogate plus KL, averaged over the tokens of each completion and then over completions."""
    # How much likelier a token is now than when it was sampled. Padding is set to 0 before exp, not after: exp of
    # something huge times a mask of 0 is not 0 but NaN.
    ratio_BT = torch.where(mask_BT, logprobs_BT - old_logprobs_BT, 0.0).exp()
    # The pessimistic one of two numbers: past the clip there is nothing more to gain, so the gradient vanishes there.
    gain_BT = ratio_BT * advantages_B[:, None]
    clipped_gain_BT = ratio_BT.clamp(1 - clip, 1 + clip) * advantages_B[:, None]
    policy_loss_BT = -torch.minimum(gain_BT, clipped_gain_BT)
    # k3, an estimate of KL(policy || reference) from the sampled token alone: 0 where both agree, positive elsewhere.
    difference_BT = torch.where(mask_BT, ref_logprobs_BT - logprobs_BT, 0.0)
    kl_BT = difference_BT.exp() - difference_BT - 1
    token_loss_BT = torch.where(mask_BT, policy_loss_BT + kl_coef * kl_BT, 0.0)
    return (token_loss_BT.sum(dim=1) / mask_BT.sum(dim=1)).mean()


def train(num_steps: int = NUM_STEPS, seed: int = 0, report: bool = True) -> list[float]:
    """The whole algorithm. Returns the mean reward of every step."""
    torch.manual_seed(seed)
    policy = build_model()
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    history, started = [], time.monotonic()
    for step in range(1, num_steps + 1):
        # Every prompt appears GROUP_SIZE times in a row: rows 0..G-1 are the first group, and so on.
        prompts_P = torch.randint(0, DIGITS, (PROMPTS_PER_STEP,))
        prompts_BT = prompts_P.repeat_interleave(GROUP_SIZE)[:, None]
        completions_BT, mask_BT = sample(policy, prompts_BT)

        rewards_B = torch.tensor(
            [
                count_reward(prompt, completion)
                for (prompt,), completion in zip(prompts_BT.tolist(), completions_BT.tolist(), strict=True)
            ]
        )
        advantages_B = group_advantages(rewards_B.view(PROMPTS_PER_STEP, GROUP_SIZE)).flatten()

        with torch.no_grad():
            old_logprobs_BT = completion_logprobs(policy, prompts_BT, completions_BT)
            ref_logprobs_BT = completion_logprobs(reference, prompts_BT, completions_BT)
        for _ in range(UPDATES_PER_STEP):
            logprobs_BT = completion_logprobs(policy, prompts_BT, completions_BT)
            loss = grpo_loss(logprobs_BT, old_logprobs_BT, ref_logprobs_BT, advantages_B, mask_BT, CLIP, KL_COEF)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()

        history.append(rewards_B.mean().item())
        if report and (step == 1 or step % 10 == 0):
            # The loss hovers around 0 from the first step on: advantages of a group sum to 0. Watch the reward.
            example = (
                f"{prompts_P[0]} -> {' '.join('end' if token == END else str(token) for token in completions_BT[0].tolist())}"
            )
            print(f"step {step:3d}  reward {history[-1]:.3f}  loss {loss.item():+.3f}  {example}")
    if report:
        print(f"reward {history[0]:.2f} -> {history[-1]:.2f} in {time.monotonic() - started:.0f} s")
    return history


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)  # the model is so small that threads would only wait for each other
    try:
        train()
    except KeyboardInterrupt:  # nothing is kept here, so there is nothing to save or to say
        raise SystemExit(130) from None
