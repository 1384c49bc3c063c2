"""The weights of a layer as a decode step on a CPU reads them: transposed and together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.ops.fused.family import FusedLayer, FusedModel
from cohort.ops.fused.projection import Adapters


@dataclass(frozen=True)
class PackedLayer:
    """The weights of a layer as a step reads them."""

    input_norm: Tensor
    qkv: Tensor
    """[H, (query heads + 2 kv heads) * D]; without `head_norm`, dimensions of queries and keys in pairs."""
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    """[query heads + kv heads, D], in the order of the model: the sum in a norm does care about it."""
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    window: int | None
    adapters: Mapping[str, Adapters]
    """By the name of the projection they are added to; where there are some."""

    def multiply(self, name: str, rows: Tensor, into: Tensor) -> None:
        """The projection of this name, with its bias and its adapters."""
        torch.mm(rows, getattr(self, name), out=into)
        if name == "qkv" and self.qkv_bias is not None:
            into.add_(self.qkv_bias)
        if name in self.adapters:
            self.adapters[name].add_to(into, rows)


def pack_layer(fused: FusedModel, layer: FusedLayer, order_D: Tensor) -> PackedLayer:
    """With the dimensions of queries and keys in this order, where no norm of theirs comes between."""
    dim, turned = fused.head_dim, fused.query_heads + fused.kv_heads
    head_norm = None
    if layer.query_norm is not None and layer.key_norm is not None:
        norms = (
            layer.query_norm.detach().expand(fused.query_heads, dim),
            layer.key_norm.detach().expand(fused.kv_heads, dim),
        )
        head_norm = torch.cat(norms)

    def pair_dimensions(rows: Tensor, first: int = 0) -> Tensor:
        """Of rows that begin with those of head `first`."""
        if head_norm is not None:
            return rows.detach()
        heads, count = rows.detach().reshape(-1, dim, *rows.shape[1:]), max(0, turned - first)
        return torch.cat([heads[:count, order_D], heads[count:]]).reshape(rows.shape)

    def pair_adapters(adapters: Adapters) -> Adapters:
        parts = [
            replace(part, up=pair_dimensions(part.up, columns.start // dim))
            for part, columns in zip(adapters.parts, adapters.columns, strict=True)
        ]
        return replace(adapters, parts=parts)

    def transposed(weight: Tensor) -> Tensor:
        return weight.detach().t().contiguous()

    projections = {"qkv": layer.qkv, "out": layer.out, "gate_up": layer.gate_up, "down": layer.down}
    adapters = {name: one.adapters for name, one in projections.items() if one.adapters is not None}
    if "qkv" in adapters:
        adapters["qkv"] = pair_adapters(adapters["qkv"])
    return PackedLayer(
        input_norm=layer.input_norm.detach(),
        qkv=transposed(pair_dimensions(layer.qkv.read_weight())),
        qkv_bias=None if layer.qkv.bias is None else pair_dimensions(layer.qkv.bias),
        head_norm=head_norm,
        out=transposed(layer.out.read_weight()),
        post_norm=layer.post_norm.detach(),
        gate_up=transposed(layer.gate_up.read_weight()),
        down=transposed(layer.down.read_weight()),
        window=layer.window,
        adapters=adapters,
    )
