"""Least time of rollouts on a known GPU, and FLOPs of training with attention: the cost model of docs/speed.md. No torch.

A decode step reads every weight once, and the live keys and values of each row. Bytes and FLOPs are assumed to overlap perfectly,
so the step takes at least the larger of both. Sampling, norms and launches cost nothing here.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.ops.flops import PEAK_FLOPS, Dimensions, count_training_flops


def count_parameters(dimensions: Dimensions) -> int:
    """All parameters of a Llama without biases: matrices, norms, embedding, and the head if it has its own weights."""
    norms = (2 * dimensions.layers + 1) * dimensions.hidden
    return dimensions.body_parameters + norms + dimensions.head_parameters * (1 if dimensions.tied else 2)


def count_attention_flops(dimensions: Dimensions, context: int) -> int:
    """FLOPs of attention scores and weighted values for tokens whose contexts add up to `context`."""
    return 4 * dimensions.layers * dimensions.query_heads * dimensions.head_dim * context


@dataclass(frozen=True)
class Accelerator:
    """Rates of a GPU in dense bfloat16."""

    peak_flops: float
    """From the data sheet: the denominator of MFU."""
    flops: float
    """Attainable in a large matrix product."""
    bandwidth: float
    """Bytes per second."""


BANDWIDTH = {
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA H100 NVL": 3.9e12,
    "NVIDIA H100": 3.35e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
    "NVIDIA A100 80GB PCIe": 1.935e12,
    "NVIDIA A100": 1.555e12,
    "NVIDIA L40S": 0.864e12,
    "NVIDIA L4": 0.300e12,
    "NVIDIA GeForce RTX 4090": 1.008e12,
}
ACCELERATORS = {
    "NVIDIA H200": Accelerator(PEAK_FLOPS["NVIDIA H200"], 790e12, 4.3e12),  # both rates measured
    **{
        name: Accelerator(peak, peak, bandwidth)  # data sheets
        for name, bandwidth in BANDWIDTH.items()
        for peak in [PEAK_FLOPS.get(name) or PEAK_FLOPS["NVIDIA A100"]]
    },
}
"""By the start of the driver's device name. The first match counts, so longer names come first."""


def find_accelerator(name: str) -> Accelerator | None:
    return next((known for start, known in ACCELERATORS.items() if name == start or name.startswith(f"{start} ")), None)


@dataclass(frozen=True)
class Limit:
    """The least time of a rollout on a GPU."""

    seconds: float
    tokens_per_second: float
    steps: int
    bytes_seconds: float
    """If only bytes took time; the larger of this and flops_seconds is the bottleneck."""
    flops_seconds: float


def decode_limit(
    dimensions: Dimensions,
    prompt_tokens: int,
    lengths: Sequence[int],
    slots: int,
    accelerator: Accelerator,
    bytes_per_element: int = 2,
) -> Limit:
    """The limit for decoding completions of these lengths in `slots` rows that are refilled at once.

    Each step is max(bytes / bandwidth, FLOPs / rate). Prefill is left out: it runs once per group and is short in comparison.
    """
    live, context = count_live_rows(prompt_tokens, lengths, slots)
    parameters = dimensions.body_parameters + dimensions.head_parameters
    kv_bytes = 2 * dimensions.layers * dimensions.kv_heads * dimensions.head_dim * bytes_per_element
    seconds = bytes_seconds = flops_seconds = 0.0
    for rows, tokens in zip(live, context, strict=True):
        by_bytes = (parameters * bytes_per_element + tokens * kv_bytes) / accelerator.bandwidth
        by_flops = (2 * parameters * rows + count_attention_flops(dimensions, tokens)) / accelerator.flops
        seconds += max(by_bytes, by_flops)
        bytes_seconds += by_bytes
        flops_seconds += by_flops
    return Limit(seconds, sum(lengths) / seconds, len(live), bytes_seconds, flops_seconds)


def count_live_rows(prompt_tokens: int, lengths: Sequence[int], slots: int) -> tuple[list[int], list[int]]:
    """For each decode step, the number of live rows and the context tokens that they read together.

    Rows start in the given order as soon as a slot is free. Token j of a completion attends to the prompt and the j tokens before it.
    """
    free = [0] * min(slots, len(lengths))
    starts = []
    for length in lengths:
        starts.append(heapq.heappop(free))
        heapq.heappush(free, starts[-1] + length)
    steps = max(free, default=0)
    rows, offset = [0] * (steps + 1), [0] * (steps + 1)
    for start, length in zip(starts, lengths, strict=True):
        rows[start] += 1
        rows[start + length] -= 1
        offset[start] += prompt_tokens - start
        offset[start + length] -= prompt_tokens - start
    live, context, count, total = [], [], 0, 0
    for step in range(steps):
        count, total = count + rows[step], total + offset[step]
        live.append(count)
        context.append(total + count * step)
    return live, context


def estimate_training_cost(dimensions: Dimensions, prompt_tokens: int, lengths: Sequence[int], group: int) -> float:
    """FLOPs of training on completions of these lengths, with attention; training time should be proportional to them.

    A prompt counts once per group. Attention over n tokens has n(n + 1) / 2 pairs, three times that with the backward pass.
    """
    body = sum(lengths) + prompt_tokens * (len(lengths) // group)
    pairs = sum((prompt_tokens + n) * (prompt_tokens + n + 1) // 2 for n in lengths)
    return count_training_flops(dimensions, body, sum(lengths)) + 3.0 * count_attention_flops(dimensions, pairs)
