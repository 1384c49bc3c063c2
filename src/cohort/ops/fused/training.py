"""Hidden states of a packed micro-batch, with gradients: the backbone of the Llama and Qwen families, without their modules.

A layer hands on the residual stream and the last block's output side by side; the next block's norm adds them while it reads
them anyway. With checkpointing a layer hands on their sum instead, one tensor, and that is all it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cohort.errors import EngineError
from cohort.ops.fused import native
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.family import FusedLayer, FusedModel, fuse
from cohort.ops.fused.functions import Heads, Norm, Rotary, add_norm, norm_linear, project, swiglu_down
from cohort.ops.fused.projection import fill_zero_adapters
from cohort.ops.layout import Layout
from cohort.ops.packed_attention import attend
from cohort.ops.products import count_missing_rows

if TYPE_CHECKING:
    from cohort.model.backbone import Backbone


class FusedBackbone:
    """A backbone (model/backbone.py) of own kernels, proven against the one of modules before it is used."""

    def __init__(self, model: Any, checkpointing: bool = False):
        self.model, self.checkpointing = model, checkpointing
        self.fused = fuse(model)
        self.using = load_operations(self.fused)

    def __call__(self, layout: Layout) -> Tensor:
        if not self.fused.is_current():  # somebody gave the parameters new storage, or switched adapters
            self.fused = fuse(self.model)
        return hidden_states(self.fused, layout, checkpointing=self.checkpointing, using=self.using)

    @torch.no_grad()
    def prove(self, modules: Backbone) -> None:
        """Two ragged sequences must have the hidden states that the modules give them; EngineError where they do not."""
        vocabulary, device = len(self.fused.embedding), self.fused.device
        rows = [[(7 * at + 11 * row + 3) % vocabulary for at in range(length)] for row, length in enumerate((37, 5))]
        layout = Layout.from_rows(rows).to(device)
        with fill_zero_adapters(self.fused.adapters):
            expected, found = modules(layout).float(), self(layout).float()
        # Same sums in another order: a few roundings of the compute dtype, relative to the largest state.
        tolerance = max(1e-4, 8 * torch.finfo(self.fused.dtype).eps) * max(1.0, float(expected.abs().max()))
        difference = float((found - expected).abs().max())
        if not difference <= tolerance:
            raise EngineError(
                f"on a few tokens its hidden states through own kernels differ from its modules by {difference:.2g} "
                f"(tolerance {tolerance:.2g})"
            )


def load_operations(fused: FusedModel) -> Any:
    """The operations of a CPU; EngineError where they cannot be had. None on a GPU, whose kernels need nothing of the model."""
    if fused.device.type != "cpu":
        return None
    if fused.dtype != torch.float32:
        raise EngineError(f"on a CPU they compute in float32, not in {fused.dtype}")
    try:
        return load_compiled(fused)
    except native.NoNative as problem:
        raise EngineError(f"nothing is compiled: {problem}") from problem


def load_compiled(fused: FusedModel) -> NativeOperations:
    """The compiled operations for this model; NoNative with the reason where there are none."""
    width = fused.embedding.shape[1]
    operations = NativeOperations(native.load_library(fused.head_dim, fused.query_heads // fused.kv_heads, width))
    operations.compare(Heads(fused.query_heads, fused.kv_heads, fused.head_dim), width)
    return operations


def hidden_states(
    fused: FusedModel,
    layout: Layout,
    *,
    checkpointing: bool = False,
    using: Any = None,
    kept: list[tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """States [T, H] after the final norm. With checkpointing each layer is computed again in the backward.

    `using`: operations to take instead of those of the device (functions.py). `kept` is given every layer's turned keys and values
    [T, kv_heads, D].
    """
    angles = fused.rotary(layout.positions_T)
    hidden_TH: Tensor = F.embedding(layout.token_ids_T, fused.embedding, padding_idx=fused.padding)
    delta_TH: Tensor | None = None

    def run_layer(layer: FusedLayer, hidden_TH: Tensor, delta_TH: Tensor | None) -> tuple[Tensor, Tensor]:
        """The residual stream after attention, and what the feed-forward block adds to it."""
        heads = Heads(fused.query_heads, fused.kv_heads, fused.head_dim)
        rotary = Rotary(*angles, heads, layer.query_norm, layer.key_norm, fused.epsilon)
        norm = Norm(layer.input_norm, fused.epsilon)
        hidden_TH, query_THD, key_TKD, value_TKD = norm_linear(hidden_TH, delta_TH, norm, layer.qkv, rotary, using)
        if kept is not None:
            # Copies: views would keep the queries of every layer in memory.
            key_TKD, value_TKD = key_TKD.contiguous(), value_TKD.contiguous()
            kept.append((key_TKD, value_TKD))
        attend_by = attend if using is None else using.attend
        attended_THD = attend_by(layout, query_THD, key_TKD, value_TKD, fused.scaling, layer.window)
        delta_TH = project(attended_THD.flatten(1), layer.out)
        norm = Norm(layer.post_norm, fused.epsilon)
        hidden_TH, gate_up_TJ = norm_linear(hidden_TH, delta_TH, norm, layer.gate_up, using=using)
        return hidden_TH, swiglu_down(gate_up_TJ, layer.down, using)

    def run_whole_layer(layer: FusedLayer, hidden_TH: Tensor) -> Tensor:
        return torch.add(*run_layer(layer, hidden_TH, None))

    for layer in fused.layers:
        if checkpointing and torch.is_grad_enabled():
            # Nothing in a layer is random, so there is no state of a generator to keep.
            hidden_TH = checkpoint(run_whole_layer, layer, hidden_TH, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden_TH, delta_TH = run_layer(layer, hidden_TH, delta_TH)
    return add_norm(hidden_TH, delta_TH, Norm(fused.norm, fused.epsilon), using)[1]


@torch.no_grad()
def prefill(fused: FusedModel, prompts: Sequence[Sequence[int]], using: Any = None) -> tuple[Tensor, Tensor]:
    """Run prompts, laid flat, as training runs them: the trainer then meets the very same keys and values.

    Keys and values [2, layers, P, kv_heads, longest prompt, D], and the hidden states [P, H] of the last tokens.
    """
    device, width = fused.device, max(map(len, prompts))
    # On a CPU a token's bits must not hang on how many there are: one prompt more makes up the number.
    missing = count_missing_rows(sum(map(len, prompts)), device, fused.intermediate)
    layout = Layout.from_rows([*prompts, *([[0] * missing] if missing else [])]).to(device)
    kept: list[tuple[Tensor, Tensor]] = []
    hidden_TH = hidden_states(fused, layout, using=using, kept=kept)
    length_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
    end_P = length_P.cumsum(0)
    at_W = torch.arange(width, device=device)
    # Padding repeats the last token: it is never seen.
    place_PW = (end_P - length_P)[:, None] + torch.minimum(at_W[None], length_P[:, None] - 1)
    flat = torch.stack([torch.stack(part) for part in zip(*kept, strict=True)])
    padded = flat.index_select(2, place_PW.flatten()).unflatten(2, (len(prompts), width)).transpose(3, 4)
    return padded, hidden_TH[end_P - 1]
