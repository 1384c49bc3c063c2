"""The weight of a linear layer that bitsandbytes holds in 4 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_four_bit(weight: Any) -> bool:
    return getattr(weight, "quant_state", None) is not None


@torch.no_grad()
def restore_weight(layer: Any) -> Tensor:
    """The weight of a linear layer as its products see it."""
    if not is_four_bit(layer.weight):
        weight: Tensor = layer.weight
        return weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(layer.compute_dtype)
