"""One decode step of the Llama and Qwen families on a GPU: eight kernels a layer, none of which waits for the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.ops.fused import kernels_decode as kernels
from cohort.ops.fused.family import FusedModel
from cohort.ops.fused.training import hidden_states
from cohort.ops.kv import KVBlocks, KVShape, StackedKV
from cohort.ops.layout import Layout


class FusedDecoder:
    """Reads the policy's own parameters: a step after an update is a step of the new policy."""

    def __init__(self, fused: FusedModel, slots: int, length: int) -> None:
        self.fused = fused
        self.shape = KVShape(fused.kv_heads, fused.head_dim)
        self.blocks = KVBlocks([self.shape] * len(fused.layers), slots, length, fused.dtype, fused.device)
        self.load, self.move = self.blocks.load, self.blocks.move
        self.cosines_TD, self.sines_TD = fused.rotary(torch.arange(self.blocks.length, device=fused.device))

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[StackedKV, Tensor]:
        """Run prompts, laid flat, with the kernels of training: the trainer then meets the very same keys and values."""
        device, width = self.fused.device, max(map(len, prompts))
        kept: list[tuple[Tensor, Tensor]] = []
        hidden_TH = hidden_states(self.fused, Layout.from_rows(prompts).to(device), kept=kept)
        length_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        end_P = length_P.cumsum(0)
        at_W = torch.arange(width, device=device)
        # Padding repeats the last token: it is never seen.
        place_PW = (end_P - length_P)[:, None] + torch.minimum(at_W[None], length_P[:, None] - 1)
        flat = torch.stack([torch.stack(part) for part in zip(*kept, strict=True)])
        padded = flat.index_select(2, place_PW.flatten()).unflatten(2, (len(prompts), width)).transpose(3, 4)
        return {self.shape: padded}, hidden_TH[end_P - 1]

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        """Hidden states [B, H] after the final norm; keys and values of the tokens are in the cache afterwards."""
        fused = self.fused
        rows = len(tokens_B)
        hidden_BH = F.embedding(tokens_B, fused.embedding)
        delta_BH = None
        for layer, keys, values in zip(fused.layers, self.blocks.keys, self.blocks.values, strict=True):
            normed_BH = kernels.add_norm(hidden_BH, delta_BH, layer.input_norm, fused.epsilon)
            qkv_BX = project(normed_BH, layer.qkv.weight, layer.qkv.bias)
            norms = (layer.query_norm, layer.key_norm) if layer.query_norm is not None and layer.key_norm is not None else None
            query_BHD = kernels.rotate_and_store(
                qkv_BX, positions_B, self.cosines_TD, self.sines_TD, norms, fused.epsilon, keys, values, fused.query_heads
            )
            mixed_BHD = kernels.attend(query_BHD, keys, values, positions_B, done_B, fused.scaling, layer.window)
            delta_BH = project(mixed_BHD.view(rows, -1), layer.out)
            normed_BH = kernels.add_norm(hidden_BH, delta_BH, layer.post_norm, fused.epsilon)
            delta_BH = project(kernels.apply_swiglu(project(normed_BH, layer.gate_up.weight)), layer.down)
        return kernels.add_norm(hidden_BH, delta_BH, fused.norm, fused.epsilon)


def project(rows_BH: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.mm(rows_BH, weight.t()) if bias is None else torch.addmm(bias, rows_BH, weight.t())
