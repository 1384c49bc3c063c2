"""The CPU decode step with compiled code between the matrix products (native/decode.c); cpu.py is the reference implementation.

Matrix products and the activation's exponential remain PyTorch's, whose bits cannot be reproduced. If its library exports them,
the compiled code calls them itself, and a lane takes one call per step. Otherwise it takes nine calls per layer instead of
about thirty. That helps twice: threads take turns starting calls, and data stays in the cache. Heads keep the model's order of
dimensions; the kernel rotates halves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cohort.errors import EngineError
from cohort.ops.fused.cpu import (
    FLOATS_AT_ONCE,
    CpuDecoder,
    DecodeMemory,
    Lane,
    PackedLayer,
    Shapes,
    intra_op_threads,
    normalize_heads,
)
from cohort.ops.fused.family import FusedModel
from cohort.ops.fused.native import LANES, Native, fill_structure
from cohort.ops.fused.projection import Adapters, fill_zero_adapters
from cohort.ops.products import uses_onednn

VECTOR = 16
"""Floats per vector of the activation (decode.c). A vector must not span rows."""
MADE_UP_ROWS = 37
"""Rows for comparing the two ways through the layers: odd, and more than a block of any product."""
_whole_steps: dict[tuple[Any, ...], bool] = {}
"""Shape and library -> whether one call for all layers gave the same bits as separate calls, in this process."""


class NativeLane(Lane):
    """A lane with the arguments of the kernel: `arguments` for its rows, `stack` for all layers."""

    def __init__(self, decoder: NativeDecoder, number: int, rows: slice, live_length: int) -> None:
        super().__init__(decoder, number, rows, live_length)
        fused, native, cache = decoder.fused, decoder.native, decoder.cache
        self.arguments = fill_structure(
            "rows",
            **{name: self.scratch[name] for name in ("hidden", "delta", "normed", "squares", "qkv", "mixed")},
            scores=decoder.scratch["scores"][number],
            turns=decoder.cosines_sines_TD,
            count=self.count,
            width=self.hidden.shape[1],
            kv_heads=fused.kv_heads,
            group=fused.query_heads // fused.kv_heads,
            length=decoder.length,
            sum_lanes=native.sum_lanes,
            scaling=fused.scaling,
            epsilon=fused.epsilon,
        )
        start = rows.start * cache.stride(2) * cache.element_size()
        self.caches = [(keys.data_ptr() + start, values.data_ptr() + start) for keys, values in cache]
        """Per layer, the addresses of the first row's keys and values."""
        filled = [fill_layer(*three) for three in zip(decoder.layers, decoder.adapters, self.caches, strict=True)]
        self.layers = (type(filled[0]) * len(filled))(*filled)
        self.stack = fill_structure(
            "stack",
            rows=ctypes.addressof(self.arguments),
            layers=ctypes.addressof(self.layers),
            count=len(filled),
            query_width=fused.query_heads * fused.head_dim,
            intermediate=fused.intermediate,
            **{name: self.scratch[name] for name in ("gate_up", "activated", "reduced")},
            embedding=decoder.embedding,
            norm=decoder.norm,
            **({} if native.borrowed is None else vars(native.borrowed)),
        )


def fill_layer(layer: PackedLayer, adapters: Mapping[str, Any], cache: tuple[int, int]) -> Any:
    names = ("input_norm", "qkv", "qkv_bias", "out", "post_norm", "gate_up", "down")
    weights = {name: getattr(layer, name) for name in names}
    added = {f"{name}_adapters": ctypes.addressof(structure) for name, structure in adapters.items()}
    return fill_structure("layer", **weights, **added, keys=cache[0], values=cache[1], window=layer.window or 0)


def fill_adapters(adapters: Adapters) -> Any:
    filled = [
        fill_structure("part", up=part.up, rank=len(part.down), first=columns.start, outputs=len(part.up), scale=part.scale)
        for part, columns in zip(adapters.parts, adapters.columns, strict=True)
    ]
    parts = (type(filled[0]) * len(filled))(*filled)
    structure = fill_structure(
        "adapters", down=adapters.down_RI, parts=ctypes.addressof(parts), count=len(filled), rank=len(adapters.down_RI)
    )
    structure.filled = parts  # keeps alive what the structure only points to
    return structure


class NativeDecoder(CpuDecoder):
    """A CpuDecoder with the same bits. Keys and values are float32, and each row reads only its own."""

    lane_class = NativeLane

    def __init__(self, fused: FusedModel, slots: int, length: int, native: Native, memory: DecodeMemory | None = None) -> None:
        self.native = native
        super().__init__(fused, slots, length, memory, exact=False)
        with torch.no_grad():
            self.cosines_sines_TD = torch.cat(fused.rotary(torch.arange(self.length)), -1).contiguous()
        self.adapters = [{name: fill_adapters(one) for name, one in layer.adapters.items()} for layer in self.layers]
        self.whole_steps = self.can_take_whole_steps()

    @staticmethod
    def order_dimensions(dim: int) -> Tensor:
        return torch.arange(dim)

    def list_shapes(self) -> Shapes:
        fused, hidden = self.fused, self.embedding.shape[1]
        group = fused.query_heads // fused.kv_heads
        cache = (len(self.layers), 2, self.rows, fused.kv_heads, self.length, fused.head_dim)
        return self.list_plain_shapes() | {
            "cache": (cache, fused.dtype),
            "squares": ((self.rows, max(hidden, 2 * fused.head_dim)), fused.dtype),
            "scores": ((self.threads, group * (self.length + LANES)), torch.float64),
        }

    def zero_positions(self, length: int) -> None:
        """Not needed: nothing unwritten is read."""

    def count_positions(self, longest: int) -> int:
        return self.length

    def can_take_whole_steps(self) -> bool:
        """Return whether one call through all layers gives the same bits as separate calls.

        Tested once per shape, with the model's own weights, because the functions borrowed from PyTorch are not part of its
        interface. The number of rows is odd, so that the activation has a remainder after full vectors wherever it can.
        """
        fused = self.fused
        if (
            self.native.borrowed is None
            or uses_onednn()  # the borrowed product is MKL's
            or fused.intermediate % VECTOR
            # Narrower registers have another remainder after full vectors, of so few numbers that a comparison may miss it.
            or (fused.intermediate % FLOATS_AT_ONCE and torch.backends.cpu.get_cpu_capability() != "AVX512")
            or not self.embedding.is_contiguous()
            or any(layer.head_norm is not None for layer in self.layers)
        ):
            return False
        adapters = [(name, one) for layer in self.layers for name, one in layer.adapters.items()]
        shape = (
            *(fused.embedding.shape[1], fused.intermediate, fused.query_heads, fused.kv_heads, fused.head_dim),
            *((name, *part.up.shape, part.scale) for name, one in adapters for part in one.parts),
            self.native.library._name,
        )
        if shape not in _whole_steps:
            rows = (min(self.rows, MADE_UP_ROWS) - 1) // 2 * 2 + 1
            tokens_B, positions_B = torch.arange(rows) % len(self.embedding), torch.zeros(rows, dtype=torch.int64)
            lane = NativeLane(self, 0, slice(0, rows), self.length)
            with intra_op_threads(1), fill_zero_adapters([one for _, one in adapters]):
                super().run(lane, tokens_B, positions_B)
                expected_BH = lane.normed.clone()
                for left in (lane.hidden, lane.normed, lane.delta, lane.qkv, lane.mixed, lane.gate_up, lane.activated):
                    left.fill_(torch.nan)  # otherwise results that were not computed would be left over from the other way
                self.run_whole(lane, tokens_B, positions_B)
            _whole_steps[shape] = torch.equal(lane.normed, expected_BH)
        return _whole_steps[shape]

    def run(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        # Threads that share a large layer's operations also share its products; one call for all layers would not.
        whole = self.whole_steps and torch.get_num_threads() == 1
        (self.run_whole if whole else super().run)(lane, tokens_B, positions_B)

    def run_whole(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        tokens_B, positions_B = tokens_B.contiguous(), positions_B.contiguous()
        lane.arguments.positions, lane.stack.tokens = positions_B.data_ptr(), tokens_B.data_ptr()
        self.refuse_outside(lane, self.native.decode_layers(ctypes.byref(lane.stack)))

    def refuse_outside(self, lane: Any, outside: int) -> None:
        if outside >= 0:
            raise EngineError(f"row {lane.rows.start + outside} is at a position outside of its {self.length}")

    def find_places(self, lane: Any, positions_B: Tensor) -> Any:
        positions_B = positions_B.contiguous()
        lane.arguments.positions = positions_B.data_ptr()
        return positions_B  # read during the step

    def attend(self, lane: Any, number: int, places: Any) -> None:
        layer = self.layers[number]
        if layer.head_norm is not None:
            lane.queries_keys.copy_(normalize_heads(lane.queries_keys, layer.head_norm, self.fused.epsilon))
        rows, window = ctypes.byref(lane.arguments), layer.window or 0
        self.refuse_outside(lane, self.native.attend(rows, *lane.caches[number], window))

    def add_and_normalize(self, lane: Any, weight: Tensor, with_delta: bool) -> None:
        if self.native.sum_lanes:
            self.native.normalize(ctypes.byref(lane.arguments), weight.data_ptr(), with_delta)
        else:
            super().add_and_normalize(lane, weight, with_delta)
