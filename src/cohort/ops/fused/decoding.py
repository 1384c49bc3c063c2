"""One decode step of the Llama and Qwen families on a GPU: eight kernels a layer, none of which waits for the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.ops.fused import kernels_decode as kernels
from cohort.ops.fused.family import FusedModel
from cohort.ops.fused.training import prefill
from cohort.ops.kv import KVBlocks, KVShape, StackedKV


class FusedDecoder:
    """Reads the policy's own parameters: a step after an update is a step of the new policy."""

    def __init__(self, fused: FusedModel, slots: int, length: int) -> None:
        self.fused = fused
        self.shape = KVShape(fused.kv_heads, fused.head_dim)
        self.blocks = KVBlocks([self.shape] * len(fused.layers), slots, length, fused.dtype, fused.device)
        self.load, self.move = self.blocks.load, self.blocks.move
        self.cosines_TD, self.sines_TD = fused.rotary(torch.arange(self.blocks.length, device=fused.device))

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[StackedKV, Tensor]:
        padded, last_hidden_PH = prefill(self.fused, prompts)
        return {self.shape: padded}, last_hidden_PH

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        """Hidden states [B, H] after the final norm; keys and values of the tokens are in the cache afterwards."""
        fused = self.fused
        rows = len(tokens_B)
        hidden_BH = F.embedding(tokens_B, fused.embedding)
        delta_BH = None
        for layer, keys, values in zip(fused.layers, self.blocks.keys, self.blocks.values, strict=True):
            normed_BH = kernels.add_norm(hidden_BH, delta_BH, layer.input_norm, fused.epsilon)
            qkv_BX = layer.qkv.multiply(normed_BH)[0]
            norms = (layer.query_norm, layer.key_norm) if layer.query_norm is not None and layer.key_norm is not None else None
            query_BHD = kernels.rotate_and_store(
                qkv_BX, positions_B, self.cosines_TD, self.sines_TD, norms, fused.epsilon, keys, values, fused.query_heads
            )
            mixed_BHD = kernels.attend(query_BHD, keys, values, positions_B, done_B, fused.scaling, layer.window)
            delta_BH = layer.out.multiply(mixed_BHD.view(rows, -1))[0]
            normed_BH = kernels.add_norm(hidden_BH, delta_BH, layer.post_norm, fused.epsilon)
            gate_up_BJ = layer.gate_up.multiply(normed_BH)[0]
            delta_BH = layer.down.multiply(kernels.apply_swiglu(gate_up_BJ))[0]
        return kernels.add_norm(hidden_BH, delta_BH, fused.norm, fused.epsilon)
