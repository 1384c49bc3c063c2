"""Hidden states of a packed micro-batch with gradients: the backbone of the Llama and Qwen families without their modules.

A layer passes on the residual stream and the last block's output separately, and the next norm adds them while reading them.
With checkpointing it passes on their sum, the only tensor it keeps.
"""

from __future__ import annotations

import math
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


PROOF_SPREAD = 0.1
"""Scale of made-up adapters in the proof: large enough that one missing in a single layer exceeds the rounding of bfloat16."""


class FusedBackbone:
    """A backbone (model/backbone.py) with our own kernels. It is compared with the modules before it is used."""

    def __init__(self, model: Any, checkpointing: bool = False):
        self.model, self.checkpointing = model, checkpointing
        self.fused = fuse(model)
        self.using = load_operations(self.fused)

    def __call__(self, layout: Layout) -> Tensor:
        if not self.fused.is_current():  # parameters have new storage, or adapters were switched
            self.fused = fuse(self.model)
        return hidden_states(self.fused, layout, checkpointing=self.checkpointing, using=self.using)

    @torch.no_grad()
    def prove(self, modules: Backbone) -> None:
        """Compare the hidden states of two ragged sequences with those of the modules. Raises EngineError if they differ."""
        vocabulary, device = len(self.fused.embedding), self.fused.device
        rows = [[(7 * at + 11 * row + 3) % vocabulary for at in range(length)] for row, length in enumerate((37, 5))]
        layout = Layout.from_rows(rows).to(device)
        with fill_zero_adapters(self.fused.adapters, PROOF_SPREAD):
            expected, found = modules(layout).float(), self(layout).float()
        # Both round after every operation, so they drift apart like a random walk over the layers. The largest of 150,000 differences
        # says little: on 28 layers of random weights with adapters (7B, bfloat16) it was 0.28, while each side was 0.26 and 0.25 from
        # float32. The root mean square was 5.6 % of the states, and 5.2 and 5.4 %; an adapter missing in one layer gives twice that.
        tolerance = max(1e-4, 2 * torch.finfo(self.fused.dtype).eps * math.sqrt(len(self.fused.layers)))
        difference = float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
        if not difference <= tolerance:
            raise EngineError(
                f"on a few tokens its hidden states through own kernels differ from its modules by {difference:.2g} of their size "
                f"(tolerance {tolerance:.2g})"
            )


def load_operations(fused: FusedModel) -> Any:
    """Return the operations for a CPU, or raise EngineError. None on a GPU, whose kernels do not depend on the model."""
    if fused.device.type != "cpu":
        return None
    if fused.dtype != torch.float32:
        raise EngineError(f"on a CPU they compute in float32, not in {fused.dtype}")
    try:
        return load_compiled(fused)
    except native.NoNative as problem:
        raise EngineError(f"nothing is compiled: {problem}") from problem


def load_compiled(fused: FusedModel) -> NativeOperations:
    """Return the compiled operations for this model. Raises NoNative with the reason if there are none."""
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
    """Return states [T, H] after the final norm. With checkpointing the backward recomputes each layer.

    `using`: operations to use instead of the device's (functions.py). `kept` receives every layer's rotated keys and values [T,
    kv_heads, D].
    """
    angles = fused.rotary(layout.positions_T)
    hidden_TH: Tensor = F.embedding(layout.token_ids_T, fused.embedding, padding_idx=fused.padding)
    delta_TH: Tensor | None = None

    def run_layer(layer: FusedLayer, hidden_TH: Tensor, delta_TH: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the residual stream after attention, and the output of the feed-forward block."""
        heads = Heads(fused.query_heads, fused.kv_heads, fused.head_dim)
        rotary = Rotary(*angles, heads, layer.query_norm, layer.key_norm, fused.epsilon)
        norm = Norm(layer.input_norm, fused.epsilon)
        hidden_TH, query_THD, key_TKD, value_TKD = norm_linear(hidden_TH, delta_TH, norm, layer.qkv, rotary, using)
        if kept is not None:
            # Copies, because views would keep the queries of every layer in memory.
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
            # Layers use no random numbers, so no generator state is kept.
            hidden_TH = checkpoint(run_whole_layer, layer, hidden_TH, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden_TH, delta_TH = run_layer(layer, hidden_TH, delta_TH)
    return add_norm(hidden_TH, delta_TH, Norm(fused.norm, fused.epsilon), using)[1]


@torch.no_grad()
def prefill(fused: FusedModel, prompts: Sequence[Sequence[int]], using: Any = None) -> tuple[Tensor, Tensor]:
    """Run prompts in a flat layout, as in training, so that the trainer gets the same keys and values.

    Returns keys and values [2, layers, P, kv_heads, longest prompt, D], and the hidden states [P, H] of the last tokens.
    """
    device, width = fused.device, max(map(len, prompts))
    # On a CPU a token's bits must not depend on the number of tokens, so another prompt fills up the rows.
    missing = count_missing_rows(sum(map(len, prompts)), device, fused.intermediate)
    layout = Layout.from_rows([*prompts, *([[0] * missing] if missing else [])]).to(device)
    kept: list[tuple[Tensor, Tensor]] = []
    hidden_TH = hidden_states(fused, layout, using=using, kept=kept)
    length_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
    end_P = length_P.cumsum(0)
    at_W = torch.arange(width, device=device)
    # Padding repeats the last token; it is never read.
    place_PW = (end_P - length_P)[:, None] + torch.minimum(at_W[None], length_P[:, None] - 1)
    flat = torch.stack([torch.stack(part) for part in zip(*kept, strict=True)])
    padded = flat.index_select(2, place_PW.flatten()).unflatten(2, (len(prompts), width)).transpose(3, 4)
    return padded, hidden_TH[end_P - 1]
