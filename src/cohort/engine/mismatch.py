"""How far the log-probs of an engine and of the trainer may be apart on equal weights: rounding, and nothing else."""

from __future__ import annotations

from typing import Any

import torch

MISMATCH_LIMITS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1.0, torch.float16: 0.5}
"""Largest |log ratio| between engine and trainer on the same weights, for one token.

In bfloat16 a single token of low probability can be off by several tenths; the mean, limited to a tenth of this, is the
sharper test there.
"""
GPU_FACTOR = 10.0
"""On a GPU float32 sums come in another order for one token than for a sequence: 1.7e-5 was seen on the demo's model."""
LARGE_MODEL = 4096
"""Layers x width up to which the limits hold; rounding grows in proportion beyond."""


def find_mismatch_limit(model: Any, rounding: float = 1.0) -> float:
    """`rounding`: of the engine (Capabilities)."""
    config = model.config.get_text_config()
    limit = MISMATCH_LIMITS[model.dtype] * max(1.0, config.num_hidden_layers * config.hidden_size / LARGE_MODEL)
    if model.dtype == torch.float32:
        limit *= rounding * (GPU_FACTOR if model.device.type != "cpu" else 1.0)
    return limit
