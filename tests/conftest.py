"""Tiny models and examples that every test can afford."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from cohort.batching import Example, pack
from cohort.config import AlgorithmConfig, ScratchConfig
from cohort.objective import token_loss
from cohort.policy import Policy
from cohort.scratch import build_scratch

# Tiny models gain nothing from threads and lose much when the machine is shared.
torch.set_num_threads(1)

CHARACTERS = "0123456789+=>/"


def tiny_policy(seed: int = 0, dtype: torch.dtype = torch.float64, temperature: float = 1.0, spread: float = 8.0) -> Policy:
    """A Llama of two layers and width 16 over 17 characters; `spread` makes its weights large, so that tokens differ clearly."""
    scratch = ScratchConfig(
        hidden_size=16, intermediate_size=24, num_layers=2, num_heads=2, num_kv_heads=1, max_positions=64, characters=CHARACTERS
    )
    model, tokenizer = build_scratch(scratch, (), seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(spread)
    model = model.to(dtype)
    if dtype is torch.float64:
        make_norms_float64(model)
    return Policy(model, tokenizer, temperature)


def make_norms_float64(model: Any) -> None:
    """Llama's norm computes in float32 whatever it is given; torch's own is the same formula in the dtype of its input."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)


@pytest.fixture
def plain_bfloat16() -> Iterator[None]:
    """oneDNN's bfloat16 kernels use instructions that some virtual machines announce and do not have."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def ragged_examples(
    policy: Policy,
    seed: int = 0,
    *,
    shapes: tuple[tuple[int, int], ...] = ((3, 5), (3, 2), (3, 7), (3, 1), (4, 6), (4, 3), (4, 3), (4, 4)),
    off_policy: float = 0.0,
    reference: bool = False,
    dtype: torch.dtype = torch.float64,
) -> list[Example]:
    """Random examples of (prompt length, completion length). off_policy > 0 shifts the old log-probs by noise of that size."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = policy.model.config.vocab_size

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocabulary, (count,), generator=generator).tolist())

    examples = []
    for place, (prompt_length, length) in enumerate(shapes):
        vectors: dict[str, Any] = {}
        # Around -log(vocabulary), where a random model's log-probs are: ratios land on both sides of both clips.
        if off_policy:
            vectors["old_logprobs_T"] = torch.zeros(length, dtype=dtype)
        if reference:
            vectors["ref_logprobs_T"] = torch.zeros(length, dtype=dtype)
        examples.append(
            Example(
                rollout=place,
                prompt_ids=ids(prompt_length),
                completion_ids=ids(length),
                loss_mask_T=torch.ones(length, dtype=torch.bool),
                advantages_T=torch.full((length,), float(torch.randn((), generator=generator, dtype=dtype)), dtype=dtype),
                sampling_logprobs_T=torch.zeros(length, dtype=dtype),
                **vectors,
            )
        )
    if not (off_policy or reference):
        return examples
    current = policy.score_examples(examples, 10_000)
    moved = []
    for example, logprobs_T in zip(examples, current, strict=True):
        changes: dict[str, Any] = {}
        for field, size in (("old_logprobs_T", off_policy), ("ref_logprobs_T", 0.3 if reference else 0.0)):
            if size:
                changes[field] = logprobs_T.to(dtype) + size * torch.randn(len(logprobs_T), generator=generator, dtype=dtype)
        moved.append(replace(example, **changes))
    return moved


def gradients(owner: Any) -> torch.Tensor:
    """All gradients of `owner.model` as one vector, zeros where nothing flowed; the gradients are cleared."""
    parts = []
    for parameter in owner.model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts.append(gradient.detach().flatten().clone())
        parameter.grad = None
    return torch.cat(parts)


def library_loss_and_gradients(
    policy: Policy,
    examples: list[Example],
    *,
    aggregation: str = "sequence_mean",
    kl_coef: float = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    entropy_coef: float = 0.0,
    max_completion_tokens: int = 8,
    micro_batch_tokens: int = 10_000,
    skip_zero_advantage: bool = False,
) -> tuple[float, torch.Tensor]:
    """The innermost lines of the loop on one minibatch: pack, compute_logprobs, token_loss, weights, backward."""
    algorithm = AlgorithmConfig(
        kl_coef=kl_coef, clip_low=clip_low, clip_high=clip_high, entropy_coef=entropy_coef, aggregation=aggregation
    )
    minibatch = pack(
        examples,
        aggregation=aggregation,
        max_completion_tokens=max_completion_tokens,
        micro_batch_tokens=micro_batch_tokens,
        skip_zero_advantage=skip_zero_advantage,
    )
    policy.model.zero_grad(set_to_none=True)
    total = 0.0
    for micro in minibatch.micro_batches:
        scores = policy.compute_logprobs(micro, entropy_gradient=entropy_coef > 0)
        loss = (token_loss(scores, micro, algorithm).loss_M * micro.loss_weights_M).sum()
        loss.backward()
        total += float(loss.detach())
    return total, gradients(policy)


def relative_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Largest difference in units of the largest entry."""
    return float((left - right).abs().max() / right.abs().max().clamp(min=1e-300))
