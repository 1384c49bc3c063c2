"""A backbone with a linear head of one number and float32 masters: what a critic and a reward model are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.model.backbone import ModuleBackbone
from cohort.model.optim import Adding, MasterWeights
from cohort.ops.attention import attention_configs
from cohort.ops.layout import Layout, Selection, take
from cohort.ops.products import run_steadily

if TYPE_CHECKING:
    from cohort.model.sharding import Shards


class ScalarModel:
    """Hidden states in, one number for each out. Always in eval mode, like the policy."""

    weights: MasterWeights
    """Made by the subclass, once nothing reads the parameters as they were loaded any more."""

    def __init__(self, model: Any, backbone: Any, head: nn.Linear, own_attention: bool, checkpointing: bool):
        """`own_attention`: the architecture is proven to run on our attention (model/policy.py); others keep the one they have."""
        self.model, self.head = model.eval(), head
        self.attention_configs = attention_configs(model) if own_attention else []
        self.backbone = ModuleBackbone(backbone, self.attention_configs, checkpointing)
        self.device = head.weight.device
        self.shards: Shards | None = None
        """Where the ranks share the model out."""

    def make_weights(self, compute_dtype: torch.dtype, adding: Adding | None) -> MasterWeights:
        if adding is None or adding.sharding is None:
            return MasterWeights(self.model, compute_dtype, adding)
        from cohort.model.sharding import ShardedWeights, Shards

        # A view would lose the hook that FSDP lays on what is given back, if anybody wrote into it.
        self.shards = Shards(adding.sharding, self.model, self.backbone.backbone, lambda *args: self.compute(*args).clone())
        return ShardedWeights(self.shards, adding)

    def collect_weights(self) -> dict[str, Tensor]:
        """Of a model that is shared out: its weights, on the main process; of any other nothing, for it has them."""
        return (
            self.shards.collect({name: self.shards.read_slice(name) for name in self.shards.parameters}) if self.shards else {}
        )

    def read_values(self, layout: Layout, selection: Selection) -> Tensor:
        """One number for each of the chosen tokens of a layout."""
        return self.compute(layout, selection) if self.shards is None else self.shards(layout, selection)

    def compute(self, layout: Layout, selection: Selection) -> Tensor:
        return self.read_head(take(self.backbone(layout), selection))

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
