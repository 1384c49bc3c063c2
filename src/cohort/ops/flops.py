"""FLOPs of training a model, and the peak rates of known GPUs. No torch.

- Matrix parameters multiply every token: projections and MLPs, never the input embedding (a lookup); the output head counts only
  for tokens whose logits are needed.
- Training costs 6 FLOPs per matrix parameter and token (2 forward, 4 backward), 4 with a frozen base (LoRA: no weight gradients).
  Recomputation in the backward pass, attention scores, norms and adapters are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dimensions:
    """The sizes in a Llama or Qwen config that determine its cost."""

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
        """Read a transformers config, or any object with the same field names."""
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
        """Matrix parameters of all layers."""
        return self.layers * self.layer_parameters

    @property
    def head_parameters(self) -> int:
        return self.vocabulary * self.hidden


TRAIN_FACTOR = 6
FROZEN_BASE_FACTOR = 4


def count_training_flops(dimensions: Dimensions, executed_tokens: int, scored_tokens: int, frozen_base: bool = False) -> int:
    """FLOPs of forward and backward: the body on executed tokens, the head on scored ones."""
    factor = FROZEN_BASE_FACTOR if frozen_base else TRAIN_FACTOR
    return factor * (dimensions.body_parameters * executed_tokens + dimensions.head_parameters * scored_tokens)


PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 4090": 165e12,
}
"""Data-sheet rates in dense bfloat16, by the start of the driver's device name. The first match counts, so longer names come first."""


def find_peak_flops(name: str) -> float | None:
    """Data-sheet FLOP/s of a GPU by its driver name, the denominator of MFU; None for an unknown GPU."""
    names = (start for start in PEAK_FLOPS if name == start or name.startswith((f"{start} ", f"{start}-")))
    return PEAK_FLOPS.get(next(names, ""))
