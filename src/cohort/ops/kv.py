"""Keys and values: those of a prefilled batch of prompts, and those of the slots, which lie in few large tensors.

Starting a completion copies its prompt's keys and values into a slot, and closing a gap moves a row. Layer by layer that
would be some hundred small copies; with all layers of one shape in one tensor each is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 8
"""Cache lengths are multiples of this: fused kernels on CUDA want aligned rows of the bias."""
BYTES_AT_ONCE = 2**28
"""Rows on their way from one place to another take about this much more memory, whatever their number."""


@dataclass(frozen=True, slots=True)
class KVShape:
    heads: int
    dim: int


StackedKV = dict[KVShape, Tensor]
"""By shape: [2 (keys, values), layers of that shape, P, kv_heads, T, D]."""


class KVBlocks:
    """Preallocated keys and values, [slots, kv_heads, T, D] per layer; live rows are always the first ones."""

    def __init__(self, layers: Sequence[KVShape], slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = -(-length // ALIGNMENT) * ALIGNMENT
        self.dtype = dtype
        self.members: dict[KVShape, list[int]] = {}
        """Layers by their shape: those of one shape share a block."""
        for number, shape in enumerate(layers):
            self.members.setdefault(shape, []).append(number)
        # Zeros, not empty memory: what a row does not see still enters the products, and 0 * NaN is NaN.
        self.blocks = {
            shape: torch.zeros(2, len(numbers), slots, shape.heads, self.length, shape.dim, dtype=dtype, device=device)
            for shape, numbers in self.members.items()
        }
        place = {number: (shape, at) for shape, numbers in self.members.items() for at, number in enumerate(numbers)}
        self.keys = [self.blocks[shape][0, at] for shape, at in (place[number] for number in range(len(layers)))]
        self.values = [self.blocks[shape][1, at] for shape, at in (place[number] for number in range(len(layers)))]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks.values())

    def stack(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> StackedKV:
        """Keys and values of a batch of prompts, [P, kv_heads, T, D] per layer, as `load` wants them."""
        return {
            shape: torch.stack([torch.stack([tensors[number] for number in numbers]) for tensors in (keys, values)]).to(
                self.dtype
            )
            for shape, numbers in self.members.items()
        }

    def load(self, rows: Tensor, prompts: StackedKV, prompt_rows: Tensor) -> None:
        """Copy prompts into slots. Padding comes along: it is never seen and soon written over."""
        for shape, stacked in prompts.items():
            copy_rows(stacked, prompt_rows, self.blocks[shape][:, :, :, :, : stacked.shape[4]], rows)

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows into other rows."""
        for block in self.blocks.values():
            live = block[:, :, :, :, :length]
            copy_rows(live, sources, live, targets)


def copy_rows(source: Tensor, source_rows: Tensor, target: Tensor, target_rows: Tensor) -> None:
    """Rows (dimension 2) of one tensor into another, or into other rows of the same."""
    at_once = max(1, BYTES_AT_ONCE // max(1, source[:, :, :1].numel() * source.itemsize))
    for sources, targets in zip(source_rows.split(at_once), target_rows.split(at_once), strict=True):
        target.index_copy_(2, targets, source.index_select(2, sources))


def kv_bytes(layers: Sequence[KVShape], dtype: torch.dtype) -> int:
    """Bytes of keys and values of one token."""
    return 2 * dtype.itemsize * sum(layer.heads * layer.dim for layer in layers)
