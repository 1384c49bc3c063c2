"""Hidden states of a packed micro-batch, with gradients: the backbone of the Llama and Qwen families, without their modules.

A layer hands on the residual stream and the last block's output side by side; the next block's norm adds them while it reads
them anyway. With checkpointing a layer hands on their sum instead, one tensor, and that is all it keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cohort.errors import EngineError
from cohort.ops.fused import native
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.family import FusedLayer, FusedModel, fuse
from cohort.ops.fused.functions import (
    Heads,
    Norm,
    Projection,
    Rotary,
    add_norm,
    attention_inputs,
    linear,
    norm_linear,
    swiglu_down,
)
from cohort.ops.layout import Layout
from cohort.ops.packed_attention import attend

if TYPE_CHECKING:
    from cohort.model.backbone import Backbone


class FusedBackbone:
    """A backbone (model/backbone.py) of own kernels, proven against the one of modules before it is used."""

    def __init__(self, model: Any, checkpointing: bool = False):
        self.model, self.checkpointing = model, checkpointing
        self.fused = fuse(model)
        self.using = compiled_operations(self.fused)

    def __call__(self, layout: Layout) -> Tensor:
        if not self.fused.is_current():  # somebody gave the parameters new storage
            self.fused = fuse(self.model)
        return hidden_states(self.fused, layout, checkpointing=self.checkpointing, using=self.using)

    @torch.no_grad()
    def prove(self, modules: Backbone) -> None:
        """Two ragged sequences must have the hidden states that the modules give them; EngineError where they do not."""
        vocabulary, device = len(self.fused.embedding), self.fused.device
        rows = [[(7 * at + 11 * row + 3) % vocabulary for at in range(length)] for row, length in enumerate((37, 5))]
        layout = Layout.of(rows).to(device)
        expected, found = modules(layout).float(), self(layout).float()
        # Same sums in another order: a few roundings of the compute dtype, relative to the largest state.
        tolerance = max(1e-4, 8 * torch.finfo(self.fused.dtype).eps) * max(1.0, float(expected.abs().max()))
        difference = float((found - expected).abs().max())
        if not difference <= tolerance:
            raise EngineError(
                f"on a few tokens its hidden states through own kernels differ from its modules by {difference:.2g} "
                f"(tolerance {tolerance:.2g})"
            )


def compiled_operations(fused: FusedModel) -> Any:
    """The operations of a CPU; EngineError where they cannot be had. None on a GPU, whose kernels need nothing of the model."""
    if fused.device.type != "cpu":
        return None
    if fused.dtype != torch.float32:
        raise EngineError(f"on a CPU they compute in float32, not in {fused.dtype}")
    width = fused.embedding.shape[1]
    try:
        operations = NativeOperations(native.load(fused.head_dim, fused.query_heads // fused.kv_heads, width))
        operations.compare(Heads(fused.query_heads, fused.kv_heads, fused.head_dim), width)
        return operations
    except native.NoNative as problem:
        raise EngineError(f"nothing is compiled: {problem}") from problem


def hidden_states(fused: FusedModel, layout: Layout, *, checkpointing: bool = False, using: Any = None) -> Tensor:
    """States [T, H] after the final norm. With checkpointing each layer is computed again in the backward.

    `using`: operations to take instead of those of the device (functions.py).
    """
    angles = fused.rotary(layout.positions_T)
    hidden_TH: Tensor = F.embedding(layout.token_ids_T, fused.embedding, padding_idx=fused.padding)
    delta_TH: Tensor | None = None

    def whole_layer(hidden_TH: Tensor, layer: FusedLayer) -> Tensor:
        hidden_TH, query_THD, key_TKD, value_TKD = _queries_keys_values(fused, layer, angles, hidden_TH, None, using)
        hidden_TH, delta_TH = _rest_of_layer(fused, layer, layout, hidden_TH, query_THD, key_TKD, value_TKD, using)
        return hidden_TH + delta_TH

    for layer in fused.layers:
        if checkpointing and torch.is_grad_enabled():
            # Nothing in a layer is random, so there is no state of a generator to keep.
            hidden_TH = checkpoint(whole_layer, hidden_TH, layer, use_reentrant=False, preserve_rng_state=False)
            continue
        hidden_TH, query_THD, key_TKD, value_TKD = _queries_keys_values(fused, layer, angles, hidden_TH, delta_TH, using)
        hidden_TH, delta_TH = _rest_of_layer(fused, layer, layout, hidden_TH, query_THD, key_TKD, value_TKD, using)
    return add_norm(hidden_TH, delta_TH, Norm(fused.norm, fused.epsilon), using)[1]


@torch.no_grad()
def prompt_states(fused: FusedModel, layout: Layout) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """States after the final norm, and every layer's turned keys and values [T, kv_heads, D], without gradients."""
    angles = fused.rotary(layout.positions_T)
    hidden_TH: Tensor = F.embedding(layout.token_ids_T, fused.embedding)
    delta_TH: Tensor | None = None
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for layer in fused.layers:
        hidden_TH, query_THD, key_TKD, value_TKD = _queries_keys_values(fused, layer, angles, hidden_TH, delta_TH)
        # Copies: views would keep the queries of every layer in memory.
        keys.append(key_TKD.contiguous())
        values.append(value_TKD.contiguous())
        hidden_TH, delta_TH = _rest_of_layer(fused, layer, layout, hidden_TH, query_THD, keys[-1], values[-1])
    return add_norm(hidden_TH, delta_TH, Norm(fused.norm, fused.epsilon))[1], keys, values


def _queries_keys_values(
    fused: FusedModel,
    layer: FusedLayer,
    angles: tuple[Tensor, Tensor],
    hidden_TH: Tensor,
    delta_TH: Tensor | None,
    using: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads = Heads(fused.query_heads, fused.kv_heads, fused.head_dim)
    return attention_inputs(
        hidden_TH,
        delta_TH,
        Norm(layer.input_norm, fused.epsilon),
        Projection(layer.qkv, layer.qkv_parts, layer.qkv_bias, layer.qkv_bias_parts or ()),
        Rotary(*angles, heads, layer.query_norm, layer.key_norm),
        using,
    )


def _rest_of_layer(
    fused: FusedModel,
    layer: FusedLayer,
    layout: Layout,
    hidden_TH: Tensor,
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    using: Any = None,
) -> tuple[Tensor, Tensor]:
    """The residual stream after attention, and what the feed-forward block adds to it."""
    attend_by = attend if using is None else using.attend
    attended_THD = attend_by(layout, query_THD, key_TKD, value_TKD, fused.scaling, layer.window)
    delta_TH = linear(attended_THD.flatten(1), layer.out)
    hidden_TH, gate_up_TJ = norm_linear(
        hidden_TH, delta_TH, Norm(layer.post_norm, fused.epsilon), Projection(layer.gate_up, layer.gate_up_parts), using
    )
    return hidden_TH, swiglu_down(gate_up_TJ, layer.down, using)
