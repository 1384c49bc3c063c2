"""A backbone with a linear head of one number and float32 masters: what a critic and a reward model are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.model.backbone import ModuleBackbone
from cohort.model.optim import MasterWeights
from cohort.ops.attention import attention_configs
from cohort.ops.rounding import run_steadily


class ScalarModel:
    """Hidden states in, one number for each out. Always in eval mode, like the policy."""

    weights: MasterWeights
    """Made by the subclass, once nothing reads the parameters as they were loaded any more."""

    def __init__(self, model: Any, backbone: Any, head: nn.Linear, own_attention: bool, checkpointing: bool):
        """`own_attention`: the architecture is proven to run on our attention (model/policy.py); others keep the one they have."""
        self.model, self.head = model.eval(), head
        self.attention_configs = attention_configs(model) if own_attention else []
        self.backbone = ModuleBackbone(backbone, self.attention_configs, checkpointing)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def read_head(self, hidden_MH: Tensor) -> Tensor:
        """One number for each hidden state, in float32 at least: in bfloat16 two near 4 differ by 1/64 or not at all."""
        dtype = torch.promote_types(hidden_MH.dtype, torch.float32)
        weight, bias = self.head.weight.to(dtype), self.head.bias.to(dtype) if self.head.bias is not None else None
        return run_steadily(lambda rows_MH: F.linear(rows_MH, weight, bias), hidden_MH.to(dtype))[:, 0]


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those of a checkpoint's tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def add_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}
