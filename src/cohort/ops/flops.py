"""What a piece of work must cost: matrix parameters, FLOPs, bytes, and the time that a machine needs at least. No torch.

Conventions, all of them on the strict side:

- matrix parameters are those that multiply every token: projections and MLPs, never the input embedding (a lookup), and the
  output head only for tokens whose logits are needed;
- training costs 6 FLOPs per matrix parameter and token (2 forward, 4 backward), 4 where the base is frozen (LoRA: no gradient
  of the weights); what is computed again in the backward is not counted, nor are attention scores, norms or the adapters;
- a decode step reads every weight once and the live keys and values of each row; bytes and FLOPs are assumed to overlap
  perfectly, so its least time is the larger of both. Sampling, norms and launches are free.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dimensions:
    """The numbers of a Llama or Qwen config that cost anything."""

    hidden: int
    intermediate: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @classmethod
    def from_config(cls, config: Any) -> Dimensions:
        """From a transformers config, or anything with its field names."""
        heads = config.num_attention_heads
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            query_heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )

    @property
    def layer_parameters(self) -> int:
        """Matrix parameters of one layer: q and o, k and v, gate, up and down."""
        attention = 2 * self.hidden * self.query_heads * self.head_dim + 2 * self.hidden * self.kv_heads * self.head_dim
        return attention + 3 * self.hidden * self.intermediate

    @property
    def body_parameters(self) -> int:
        """Matrix parameters of all layers: what every token is multiplied with."""
        return self.layers * self.layer_parameters

    @property
    def head_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def total_parameters(self) -> int:
        """All parameters of a Llama without biases: matrices, norms, embedding, and the head where it has its own."""
        norms = (2 * self.layers + 1) * self.hidden
        return self.body_parameters + norms + self.head_parameters * (1 if self.tied else 2)

    def kv_bytes(self, bytes_per_element: int) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element

    def attention_flops(self, context: int) -> int:
        """Scores and weighted values of all tokens of a step together, `context` the sum of their contexts."""
        return 4 * self.layers * self.query_heads * self.head_dim * context


TRAIN_FACTOR = 6
FROZEN_BASE_FACTOR = 4


def count_training_flops(dimensions: Dimensions, executed_tokens: int, scored_tokens: int, frozen_base: bool = False) -> int:
    """FLOPs of forward and backward: the body on executed tokens, the head on scored ones."""
    factor = FROZEN_BASE_FACTOR if frozen_base else TRAIN_FACTOR
    return factor * (dimensions.body_parameters * executed_tokens + dimensions.head_parameters * scored_tokens)


@dataclass(frozen=True)
class Accelerator:
    """Rates of a GPU in bfloat16, dense."""

    peak_flops: float
    """Of the data sheet: what MFU is a share of."""
    flops: float
    """Attainable in a large matrix product: what the decode limit is computed with."""
    bandwidth: float
    """Bytes per second, attainable where measured, else of the data sheet."""
    measured: bool
    """Whether `flops` and `bandwidth` were measured."""


def read_data_sheet(tera_flops: float, tera_bytes: float) -> Accelerator:
    return Accelerator(tera_flops * 1e12, tera_flops * 1e12, tera_bytes * 1e12, measured=False)


ACCELERATORS = {
    "NVIDIA H200": Accelerator(989e12, 790e12, 4.3e12, measured=True),
    "NVIDIA H100 PCIe": read_data_sheet(756, 2.0),
    "NVIDIA H100 NVL": read_data_sheet(835, 3.9),
    "NVIDIA H100": read_data_sheet(989, 3.35),
    "NVIDIA A100-SXM4-80GB": read_data_sheet(312, 2.039),
    "NVIDIA A100 80GB PCIe": read_data_sheet(312, 1.935),
    "NVIDIA A100": read_data_sheet(312, 1.555),
    "NVIDIA L40S": read_data_sheet(362, 0.864),
    "NVIDIA L4": read_data_sheet(121, 0.300),
    "NVIDIA GeForce RTX 4090": read_data_sheet(165, 1.008),
}
"""By the beginning of the name that the driver gives; the first that fits counts, so longer names stand first."""


def find_accelerator(name: str) -> Accelerator | None:
    return next((known for start, known in ACCELERATORS.items() if name == start or name.startswith(f"{start} ")), None)


def mfu(flops: float, seconds: float, accelerator: Accelerator) -> float:
    """Share of the data sheet's peak."""
    return flops / seconds / accelerator.peak_flops


@dataclass(frozen=True)
class Limit:
    """The least time of a rollout on a machine."""

    seconds: float
    tokens_per_second: float
    steps: int
    bytes_seconds: float
    """If only bytes cost anything; with flops_seconds it says which of the two binds."""
    flops_seconds: float


def decode_limit(
    dimensions: Dimensions,
    prompt_tokens: int,
    lengths: Sequence[int],
    slots: int,
    accelerator: Accelerator,
    bytes_per_element: int = 2,
) -> Limit:
    """Limit of decoding completions of these lengths through `slots` rows, refilled at once.

    Each step is max(bytes / bandwidth, FLOPs / rate). The prompts' own forward is left out: it is run once per group and
    small beside the rest.
    """
    live, context = count_live_rows(prompt_tokens, lengths, slots)
    parameters = dimensions.body_parameters + dimensions.head_parameters
    kv_bytes = dimensions.kv_bytes(bytes_per_element)
    seconds = bytes_seconds = flops_seconds = 0.0
    for rows, tokens in zip(live, context, strict=True):
        by_bytes = (parameters * bytes_per_element + tokens * kv_bytes) / accelerator.bandwidth
        by_flops = (2 * parameters * rows + dimensions.attention_flops(tokens)) / accelerator.flops
        seconds += max(by_bytes, by_flops)
        bytes_seconds += by_bytes
        flops_seconds += by_flops
    return Limit(seconds, sum(lengths) / seconds, len(live), bytes_seconds, flops_seconds)


def count_live_rows(prompt_tokens: int, lengths: Sequence[int], slots: int) -> tuple[list[int], list[int]]:
    """For each decode step: the rows that are live, and the tokens of context that they read together.

    Rows start in the order given, as soon as a slot is free. The token sampled as number j of a completion attends to the
    prompt and the j tokens before it.
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
    """FLOPs of training on completions of these lengths, attention included: what time should be proportional to.

    The prompt counts once per group. Attention over n tokens costs n(n + 1) / 2 pairs, forward and backward three times that.
    """
    body = sum(lengths) + prompt_tokens * (len(lengths) // group)
    pairs = sum((prompt_tokens + n) * (prompt_tokens + n + 1) // 2 for n in lengths)
    return count_training_flops(dimensions, body, sum(lengths)) + 3.0 * dimensions.attention_flops(pairs)
