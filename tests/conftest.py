"""Tiny models and examples that every test can afford."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Without a GPU Triton's kernels are interpreted; it must know before anything imports it.
    os.environ["TRITON_INTERPRET"] = "1"

os.environ.pop("COLUMNS", None)  # workers of pytest-xdist set it, and the console obeys it

from cohort.model.examples import Example
from cohort.model.packing import pack
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.schema import Recipe, ScratchConfig
from cohort.training.experience import Models, make_batch
from cohort.training.objective import compares_pairs, reads_logprobs, token_loss, weigh_tokens
from cohort.training.rollouts import Collected
from cohort.training.state import Batch
from cohort.types import UNSCORED, Completion, End, Outcome, Prompt, Rollout

# Tiny models gain nothing from threads and lose much when the machine is shared.
torch.set_num_threads(1)

with contextlib.suppress(ImportError):  # the tests for a GPU do without it
    from hypothesis import HealthCheck, settings

    # On a shared machine any example may take its time. The examples are the same in every run: a change is judged by what it
    # changes, not by the draw. `--hypothesis-profile default --hypothesis-seed N` draws others.
    settings.register_profile(
        "shared", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("shared")

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real servers are skipped where there is no vLLM to serve with."""
    python = Path(os.environ.get("COHORT_VLLM_PYTHON", Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"))
    for item in items:
        if item.get_closest_marker("vllm") and not python.exists():
            item.add_marker(pytest.mark.skip(reason=f"there is no {python}: `make vllm` makes it"))


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
    group_size: int = 4,
    per_token: bool = False,
    pairs: bool = False,
    mismatch: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> list[Example]:
    """Random examples of (prompt length, completion length). off_policy > 0 shifts the old log-probs by noise of that size.

    per_token gives every token an advantage of its own, pairs makes groups of two with advantages +1 and -1, and mismatch
    puts sampling log-probs that far from the old ones (from the current ones, where there are no old ones).
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = policy.model.config.vocab_size

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocabulary, (count,), generator=generator).tolist())

    def noise(count: int) -> torch.Tensor:
        return torch.randn(count, generator=generator, dtype=dtype)

    examples = []
    for place, (prompt_length, length) in enumerate(shapes):
        prompt_ids, completion_ids = ids(prompt_length), ids(length)
        advantages_T = torch.full((length,), float(torch.randn((), generator=generator, dtype=dtype)), dtype=dtype)
        if pairs:
            advantages_T = torch.full((length,), 1.0 if place % 2 == 0 else -1.0, dtype=dtype)
        elif per_token:
            advantages_T = noise(length)
        examples.append(
            Example(
                rollout=place,
                group=place // (2 if pairs else group_size),
                prompt_ids=prompt_ids,
                completion_ids=completion_ids,
                loss_mask_T=torch.ones(length, dtype=torch.bool),
                advantages_T=advantages_T,
                sampling_logprobs_T=torch.zeros(length, dtype=dtype),
            )
        )
    if not (off_policy or reference or mismatch):
        return examples
    # Around the model's own log-probs: ratios land on both sides of both clips.
    moved = []
    for example, current_T in zip(examples, policy.score_examples(examples, 10_000), strict=True):
        logprobs_T = current_T.to(dtype)
        changes: dict[str, Any] = {}
        for field, size in (("old_logprobs_T", off_policy), ("ref_logprobs_T", 0.3 if reference else 0.0)):
            if size:
                changes[field] = logprobs_T + size * noise(len(logprobs_T))
        if mismatch:
            changes["sampling_logprobs_T"] = changes.get("old_logprobs_T", logprobs_T) + mismatch * noise(len(logprobs_T))
        moved.append(replace(example, **changes))
    return moved


def examples_for(policy: Policy, algorithm: AlgorithmConfig, seed: int = 0, **options: Any) -> list[Example]:
    """Random examples with what an algorithm trains on: pairs for dpo, credit per token, a reference, stale log-probs."""
    choices: dict[str, Any] = {
        "off_policy": 0.3
        if algorithm.chosen.region.traits.needs_ratio or reads_logprobs(algorithm) or algorithm.kl_corrected
        else 0.0,
        "reference": algorithm.kl_coef > 0,
        "per_token": algorithm.chosen.advantage.traits.per_token,
        "pairs": compares_pairs(algorithm),
        "mismatch": 0.0 if not algorithm.weighs_mismatch and not algorithm.chosen.region.traits.corrects_mismatch else 0.3,
    }
    return ragged_examples(policy, seed, **(choices | options))


def rollout(
    group: int,
    sample: int,
    reward: float | None,
    *,
    length: int = 3,
    end: End = "stop",
    mask: tuple[bool, ...] | None = None,
    success: bool | None = None,
    token_ids: tuple[int, ...] = (),
    text: str = "t",
    steps: tuple[tuple[int, float], ...] = (),
) -> Rollout:
    """One rollout by hand: prompt ids 5, 6, completion ids 7, 8, ... and success above a reward of 0.5, unless given."""
    token_ids = token_ids or tuple(range(7, 7 + length))
    logprobs = tuple(-0.5 - place for place in range(len(token_ids)))
    completion = Completion(token_ids, logprobs, end=end, text=text, sampled_mask=mask)
    outcome = UNSCORED
    if reward is not None:
        outcome = Outcome({"r": reward}, reward, reward > 0.5 if success is None else success, steps=steps)
    return Rollout(Prompt(index=group, content="q", columns={}, token_ids=(5, 6)), group, sample, completion, outcome, 0)


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
    algorithm: AlgorithmConfig | None = None,
    *,
    kl_coef: float | None = None,
    max_completion_tokens: int = 8,
    micro_batch_tokens: int = 10_000,
    skip_zero_advantage: bool = False,
    **choices: Any,
) -> tuple[float, torch.Tensor]:
    """The innermost lines of the loop on one minibatch: pack, compute_logprobs, token_loss, weights, backward.

    The objective is `algorithm`, or GRPO without KL changed by `choices` (`name="gspo"` starts from that preset instead).
    kl_coef, given beside an algorithm, is the coefficient of the moment, as an adaptive one would be.
    """
    if algorithm is None:
        if kl_coef is not None or "name" not in choices:
            choices["kl_coef"] = kl_coef or 0.0
        algorithm = AlgorithmConfig(**choices)
    elif choices:
        raise TypeError(f"give an algorithm or its choices, not both: {sorted(choices)}")
    minibatch = pack(
        examples,
        aggregation=weigh_tokens(algorithm),
        max_completion_tokens=max_completion_tokens,
        micro_batch_tokens=micro_batch_tokens,
        skip_zero_advantage=skip_zero_advantage,
        keep_groups=compares_pairs(algorithm),
    )
    coefficient = algorithm.kl_coef if kl_coef is None else kl_coef
    policy.model.zero_grad(set_to_none=True)
    total = 0.0
    for micro in minibatch.micro_batches:
        scores = policy.compute_logprobs(micro, entropy_gradient=algorithm.entropy_coef > 0)
        loss = (token_loss(scores, micro, algorithm, coefficient).loss_M * micro.loss_weights_M).sum()
        loss.backward()
        total += float(loss.detach())
    return total, gradients(policy)


def relative_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Largest difference in units of the largest entry."""
    return float((left - right).abs().max() / right.abs().max().clamp(min=1e-300))


def count_kept_bytes(model: torch.nn.Module, compute: Callable[[], Any]) -> int:
    """What autograd keeps of a computation for its backward, the model's own parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, Any] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        compute()
    return sum(storage.nbytes() for storage in storages.values())


def collect_batch(collected: Collected, models: Models, recipe: Recipe, step: int, kl_coef: float) -> Batch:
    """Two lines of the loop: an advantage on every token, then the batch."""
    return make_batch(collected, models, recipe, step, kl_coef)
