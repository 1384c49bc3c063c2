"""The CPU decode step with what lies between the matrix products compiled (native/decode.c); cpu.py is its twin.

Products and the exponential of the activation stay those of PyTorch, which have bits of their own. Where its library shows
them, a lane takes one call a step: the compiled code calls them itself. Elsewhere it takes nine calls a layer instead of some
thirty, which matters twice: threads take turns to start them, and what a call leaves in the cache the next one would have to
fetch. Heads keep the dimensions in the model's order: the kernel turns halves.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.errors import EngineError
from cohort.ops.fused.cpu import FLOATS_AT_ONCE, CpuDecoder, DecodeMemory, PackedLayer, activate, intra_op_threads, normalized
from cohort.ops.fused.family import FusedModel
from cohort.ops.fused.native import LANES, LayerPointers, Native, Rows, Stack

VECTOR = 16
"""Floats that the activation takes at once (decode.c); none may reach from row to row."""
MADE_UP_ROWS = 37
"""Rows on which the two ways through the layers are compared: more than a block of any product, and odd."""
_whole_steps: dict[tuple[int, ...], bool] = {}
"""By shape: whether one call for all layers gave the bits of one call after the other, in this process."""


@dataclass(frozen=True)
class NativeLane:
    """The rows that one thread takes through the layers; `arguments` are theirs for the kernel."""

    rows: slice
    live_length: int
    arguments: Rows
    reference: Any
    """ctypes' pointer to `arguments`."""
    caches: list[tuple[int, int]]
    """Per layer where keys and values of the first row begin."""
    hidden: Tensor
    normed: Tensor
    squares: Tensor
    delta: Tensor
    scale: Tensor
    qkv: Tensor
    queries_keys: Tensor
    """View [B, query heads + kv heads, D] of `qkv`."""
    mixed: Tensor
    gate: Tensor
    up: Tensor
    gate_up: Tensor
    activated: Tensor
    layers: Any
    """Weights and caches of all layers, for `stack`."""
    stack: Stack


class NativeDecoder(CpuDecoder):
    """A CpuDecoder with the same bits: float32 keys and values, of which each row reads its own."""

    def __init__(self, fused: FusedModel, slots: int, length: int, native: Native, memory: DecodeMemory | None = None) -> None:
        self.native = native
        super().__init__(fused, slots, length, memory, exact=False)
        with torch.no_grad():
            self.cosines_sines_TD = torch.cat(fused.rotary(torch.arange(self.length)), -1).contiguous()
        self.whole_steps = self.can_take_whole_steps()

    @staticmethod
    def order(dim: int) -> Tensor:
        return torch.arange(dim)

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        fused = self.fused
        heads, kv_heads, dim, hidden = fused.query_heads, fused.kv_heads, fused.head_dim, fused.embedding.shape[1]
        group = heads // kv_heads
        floats: dict[str, tuple[int, ...]] = {
            "cache": (len(self.layers), 2, self.rows, kv_heads, self.length, dim),
            "hidden": (self.rows, hidden),
            "normed": (self.rows, hidden),
            "squares": (self.rows, max(hidden, 2 * dim)),
            "delta": (self.rows, hidden),
            "scale": (self.rows, 1),
            "qkv": (self.rows, (heads + 2 * kv_heads) * dim),
            "mixed": (self.rows, heads * dim),
            "gate_up": (self.rows, 2 * fused.intermediate),
            "activated": (self.rows, fused.intermediate),
        }
        wanted = {name: (shape, fused.dtype) for name, shape in floats.items()}
        return wanted | {"scores": ((self.threads, group * (self.length + LANES)), torch.float64)}

    def clean(self, length: int) -> None:
        """Nothing is read that was not written."""

    def reach(self, longest: int) -> int:
        return self.length

    def lane(self, number: int, rows: slice, live_length: int) -> Any:
        fused = self.fused
        heads, kv_heads, dim, count = fused.query_heads, fused.kv_heads, fused.head_dim, rows.stop - rows.start
        scores = self.scratch["scores"][number]
        scratch = {name: whole[rows] for name, whole in self.scratch.items() if name != "scores"}
        hidden = scratch["hidden"].shape[1]
        arguments = Rows(
            **{name: scratch[name].data_ptr() for name in ("hidden", "delta", "normed", "squares", "qkv", "mixed")},
            scores=scores.data_ptr(),
            turns=self.cosines_sines_TD.data_ptr(),
            count=count,
            width=hidden,
            kv_heads=kv_heads,
            length=self.length,
            sum_lanes=self.native.sum_lanes,
            scaling=fused.scaling,
            epsilon=fused.epsilon,
        )
        start = rows.start * kv_heads * self.length * dim * self.cache.element_size()
        caches = [(keys.data_ptr() + start, values.data_ptr() + start) for keys, values in self.cache]
        layers = (LayerPointers * len(self.layers))(*(self.pointers(*both) for both in zip(self.layers, caches, strict=True)))
        stack = Stack(
            rows=ctypes.addressof(arguments),
            layers=ctypes.addressof(layers),
            count=len(self.layers),
            query_width=heads * dim,
            intermediate=fused.intermediate,
            gate_up=scratch["gate_up"].data_ptr(),
            activated=scratch["activated"].data_ptr(),
            embedding=self.embedding.data_ptr(),
            norm=self.norm.data_ptr(),
            **({} if self.native.borrowed is None else vars(self.native.borrowed)),
        )
        return NativeLane(
            rows=rows,
            live_length=live_length,
            arguments=arguments,
            reference=ctypes.byref(arguments),
            caches=caches,
            hidden=scratch["hidden"],
            normed=scratch["normed"],
            squares=scratch["squares"][:, :hidden],
            delta=scratch["delta"],
            scale=scratch["scale"],
            qkv=scratch["qkv"],
            queries_keys=scratch["qkv"].view(count, heads + 2 * kv_heads, dim)[:, : heads + kv_heads],
            mixed=scratch["mixed"],
            gate=scratch["gate_up"][:, : fused.intermediate],
            up=scratch["gate_up"][:, fused.intermediate :],
            gate_up=scratch["gate_up"],
            activated=scratch["activated"],
            layers=layers,
            stack=stack,
        )

    @staticmethod
    def pointers(layer: PackedLayer, cache: tuple[int, int]) -> LayerPointers:
        names = ("input_norm", "qkv", "qkv_bias", "out", "post_norm", "gate_up", "down")
        weights = {name: weight.data_ptr() for name in names if (weight := getattr(layer, name)) is not None}
        return LayerPointers(**weights, keys=cache[0], values=cache[1], window=layer.window or 0)

    def can_take_whole_steps(self) -> bool:
        """Whether one call takes rows through all layers with the bits of one call after the other.

        Found out with the model's own weights, once per shape: the functions that are borrowed from PyTorch are not part of its
        interface. An odd number of rows, so that the activation has a rest after full vectors wherever it can have one.
        """
        fused = self.fused
        if (
            self.native.borrowed is None
            or fused.intermediate % VECTOR
            # In narrower registers PyTorch has another rest after full vectors: so few numbers that a comparison may miss it.
            or (fused.intermediate % FLOATS_AT_ONCE and torch.backends.cpu.get_cpu_capability() != "AVX512")
            or not self.embedding.is_contiguous()
            or any(layer.head_norm is not None for layer in self.layers)
        ):
            return False
        shape = (fused.embedding.shape[1], fused.intermediate, fused.query_heads, fused.kv_heads, fused.head_dim)
        if shape not in _whole_steps:
            rows = (min(self.rows, MADE_UP_ROWS) - 1) // 2 * 2 + 1
            tokens_B, positions_B = torch.arange(rows) % len(self.embedding), torch.zeros(rows, dtype=torch.int64)
            lane = self.lane(0, slice(0, rows), self.length)
            with intra_op_threads(1):
                self.run_operations(lane, tokens_B, positions_B)
                expected_BH = lane.normed.clone()
                for left in (lane.hidden, lane.normed, lane.delta, lane.qkv, lane.mixed, lane.gate_up, lane.activated):
                    left.fill_(torch.nan)  # or what is not computed would be found as the other way left it
                self.run_whole(lane, tokens_B, positions_B)
            _whole_steps[shape] = torch.equal(lane.normed, expected_BH)
        return _whole_steps[shape]

    def run(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        # Threads that share the operations of a large layer share its products, which a call for all layers takes alone.
        whole = self.whole_steps and torch.get_num_threads() == 1
        (self.run_whole if whole else self.run_operations)(lane, tokens_B, positions_B)

    def run_whole(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        tokens_B, positions_B = tokens_B.contiguous(), positions_B.contiguous()
        lane.arguments.positions, lane.stack.tokens = positions_B.data_ptr(), tokens_B.data_ptr()
        self.check(lane, self.native.decode_layers(ctypes.byref(lane.stack)))

    def check(self, lane: Any, outside: int) -> None:
        if outside >= 0:
            raise EngineError(f"row {lane.rows.start + outside} is at a position outside of its {self.length}")

    @torch.no_grad()
    def run_operations(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        attend, rows = self.native.attend, lane.reference
        positions_B = positions_B.contiguous()
        lane.arguments.positions = positions_B.data_ptr()
        torch.index_select(self.embedding, 0, tokens_B, out=lane.hidden)
        for number, (layer, (keys, values)) in enumerate(zip(self.layers, lane.caches, strict=True)):
            self.add_and_normalize(lane, layer.input_norm, number > 0)
            torch.mm(lane.normed, layer.qkv, out=lane.qkv)
            if layer.qkv_bias is not None:
                lane.qkv.add_(layer.qkv_bias)
            if layer.head_norm is not None:
                lane.queries_keys.copy_(normalized(lane.queries_keys, layer.head_norm, self.fused.epsilon))
            self.check(lane, attend(rows, keys, values, layer.window or 0))
            torch.mm(lane.mixed, layer.out, out=lane.delta)
            self.add_and_normalize(lane, layer.post_norm, True)
            torch.mm(lane.normed, layer.gate_up, out=lane.gate_up)
            activate(lane.gate, lane.activated)
            torch.mm(lane.activated.mul_(lane.up), layer.down, out=lane.delta)
        self.add_and_normalize(lane, self.norm, True)

    def add_and_normalize(self, lane: Any, weight: Tensor, with_delta: bool) -> None:
        if self.native.sum_lanes:
            self.native.normalize(lane.reference, weight.data_ptr(), with_delta)
            return
        if with_delta:
            lane.hidden.add_(lane.delta)
        self.normalize(lane, weight)
