"""One decode step of a Llama or Qwen model on a CPU: few operations, writing into preallocated memory.

Differences from running the modules over a slot cache, the reference implementation in tests:

- Weights are packed once per decoder, transposed and together (query, key and value; gate and up): with a few rows
  the matrix library is up to twice as fast that way. A decoder lives for one call of the engine, so its weights never outlive an
  optimizer step. Adapters are not packed and are multiplied as in training, because a transposed product with fewer than twelve
  columns has other bits.
- Query and key dimensions are reordered so that the two that a rotary angle turns are adjacent, and one complex product turns
  all heads. A score is a sum over these dimensions, so their order does not matter.
- Keys and values are in one tensor, so a step writes both at once, in the dtype in which attention accumulates.
- Threads split the rows, not the operations: each takes its rows through all layers, and they synchronise once per step
  instead of at every operation. A row's bits do not depend on the other rows (ops/products.py), and so not on the number of threads.

The operations are those of the modules, rounded in the same places. Where products give rows the same bits, the results are
equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.errors import EngineError
from cohort.ops.attention import choose_accumulation_dtype, find_visible, make_bias
from cohort.ops.fused.family import FusedLayer, FusedModel
from cohort.ops.fused.projection import Adapters
from cohort.ops.products import FLOATS_AT_ONCE, STEADY_ROWS, count_missing_rows, find_row_step


@dataclass(frozen=True)
class PackedLayer:
    """The weights of a layer in the layout of a decode step: transposed and together."""

    input_norm: Tensor
    qkv: Tensor
    """[H, (query heads + 2 kv heads) * D]; without `head_norm`, query and key dimensions are in pairs."""
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    """[query heads + kv heads, D], in the model's order, because the sum in a norm depends on it."""
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    window: int | None
    adapters: Mapping[str, Adapters]
    """Adapters by the name of their projection."""

    def multiply(self, name: str, rows: Tensor, into: Tensor) -> None:
        """Multiply by the projection of this name, with its bias and adapters."""
        torch.mm(rows, getattr(self, name), out=into)
        if name == "qkv" and self.qkv_bias is not None:
            into.add_(self.qkv_bias)
        if name in self.adapters:
            self.adapters[name].add_to(into, rows)


def pack_layer(fused: FusedModel, layer: FusedLayer, order_D: Tensor) -> PackedLayer:
    """Pack a layer, with query and key dimensions in this order unless they have norms."""
    dim, turned = fused.head_dim, fused.query_heads + fused.kv_heads
    head_norm = None
    if layer.query_norm is not None and layer.key_norm is not None:
        norms = (layer.query_norm.detach().expand(fused.query_heads, dim), layer.key_norm.detach().expand(fused.kv_heads, dim))
        head_norm = torch.cat(norms)

    def pair_dimensions(rows: Tensor, first: int = 0) -> Tensor:
        """Reorder the dimensions of rows that begin with head `first`."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Decoding
# ---------------------------------------------------------------------------------------------------------------------

ALIGNMENT = 8
"""Attention reads a multiple of this many positions, because products over odd lengths are slower."""
WORK_PER_THREAD = 12_000_000
"""Multiply-adds (rows x weights of a layer) below which another thread does not pay: Python starts operations one at a time,
and starting them then takes as long as running them."""
SMALL_LAYER = 2**21
"""A layer with fewer weights stays in the caches. A larger one is read from memory by every thread, which pays from
ROWS_PER_THREAD_LARGE rows on; with fewer rows, threads share the operations instead."""
ROWS_PER_THREAD_LARGE = 128
COMPLEX_VECTOR = 8
"""Complex numbers in the widest vector register."""
KEPT_BYTES = 2**28
"""Limit on memory kept between calls."""
BYTES_APART = 64
"""Alignment of tensors: a cache line."""
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


class DecodeMemory:
    """Memory that outlives a decoder. Its content does not: no weight or key is read again.

    The kernel provides fresh memory page by page at the first touch, which can take a tenth of the decoding time. One decoder
    at a time.
    """

    def __init__(self) -> None:
        self.held = torch.empty(0, dtype=torch.uint8)

    def take_tensors(self, shapes: Shapes) -> dict[str, Tensor]:
        """Return tensors of these shapes and dtypes, with arbitrary content."""
        starts, end = {}, 0
        for name, (shape, dtype) in shapes.items():
            starts[name] = end
            end += -(-torch.Size(shape).numel() * dtype.itemsize // BYTES_APART) * BYTES_APART
        if len(self.held) < end:
            self.held = torch.empty(0, dtype=torch.uint8)  # free the old memory before allocating more
            self.held = torch.empty(end, dtype=torch.uint8)
        taken = {}
        for name, (shape, dtype) in shapes.items():
            count = torch.Size(shape).numel() * dtype.itemsize
            taken[name] = self.held[starts[name] : starts[name] + count].view(dtype).view(shape)
        return taken

    def trim(self) -> None:
        """Free memory beyond KEPT_BYTES, because others may need it."""
        if len(self.held) > KEPT_BYTES:
            self.held = torch.empty(0, dtype=torch.uint8)


class Lane:
    """The rows that one thread takes through the layers, with their part of the scratch memory."""

    def __init__(self, decoder: CpuDecoder, number: int, rows: slice, live_length: int) -> None:
        """Make a lane. `number` counts the lanes of a step; attention reads `live_length` positions."""
        fused, width = decoder.fused, decoder.embedding.shape[1]
        self.rows, self.live_length, self.count = rows, live_length, rows.stop - rows.start
        self.scratch = {name: whole[rows] for name, whole in decoder.scratch.items()}
        self.hidden, self.normed, self.delta = (self.scratch[name] for name in ("hidden", "normed", "delta"))
        self.squares, self.scale = self.scratch["squares"][:, :width], self.scratch["scale"]
        self.qkv, self.mixed = self.scratch["qkv"], self.scratch["mixed"]
        self.heads_BHD = self.qkv.view(self.count, fused.query_heads + 2 * fused.kv_heads, fused.head_dim)
        self.queries_keys = self.heads_BHD[:, : fused.query_heads + fused.kv_heads]
        self.gate_up, self.activated = self.scratch["gate_up"], self.scratch["activated"]
        self.gate, self.up = self.gate_up[:, : fused.intermediate], self.gate_up[:, fused.intermediate :]


class WideLane(Lane):
    """A lane with the wide numbers that attention in PyTorch accumulates in."""

    def __init__(self, decoder: CpuDecoder, number: int, rows: slice, live_length: int) -> None:
        super().__init__(decoder, number, rows, live_length)
        fused = decoder.fused
        heads, kv_heads, dim = fused.query_heads, fused.kv_heads, fused.head_dim
        group, pairs = heads // kv_heads, self.count * kv_heads
        self.pairs = torch.view_as_complex(self.queries_keys.unflatten(-1, (dim // 2, 2)))
        """Queries and keys as complex numbers [B, query heads + kv heads, D / 2]."""
        self.queries, self.keys_values = self.heads_BHD[:, :heads], self.heads_BHD[:, heads:]
        self.wide_queries = self.scratch["wide_queries"].view(pairs, group, dim)
        self.wide_keys_values = self.scratch["wide_keys_values"].view(self.count * 2 * kv_heads, dim)
        self.scores, self.weights = (
            self.scratch[name].view(-1)[: pairs * group * live_length].view(pairs, group, live_length)
            for name in ("scores", "weights")
        )
        self.attended = self.scratch["attended"].view(pairs, group, dim)
        live = [cache[:, rows].view(2, pairs, decoder.length, dim)[:, :, :live_length] for cache in decoder.cache]
        self.keys, self.values = [keys.transpose(1, 2) for keys, _ in live], [values for _, values in live]
        """Per layer [B * kv heads, D, T] and [B * kv heads, T, D]: the positions that the longest row sees."""


class CpuDecoder:
    """Keys, values and scratch memory for `slots` rows of `length` positions, and a step over the first of them.

    `exact` accumulates attention in float64, as the trainer does. Without it attention takes half the time and memory, and
    log-probs differ from the trainer's by rounding: up to 6e-5 in a peaked policy of six layers after 96 tokens.
    """

    lane_class: type[Lane] = WideLane

    def __init__(
        self, fused: FusedModel, slots: int, length: int, memory: DecodeMemory | None = None, *, exact: bool = True
    ) -> None:
        if fused.dtype != torch.float32 or fused.device.type != "cpu":
            raise EngineError(f"the CPU decoder computes in float32 on a CPU, not in {fused.dtype} on {fused.device}")
        if any(projection.weight is None for projection in fused.projections):
            raise EngineError("the CPU decoder needs weights in float32, which a 4-bit base is meant to avoid")
        self.fused = fused
        self.rows = slots + count_missing_rows(slots, fused.device, fused.intermediate)
        self.length = -(-length // ALIGNMENT) * ALIGNMENT
        self.wide = choose_accumulation_dtype(fused.dtype, fused.device) if exact else fused.dtype
        self.threads = torch.get_num_threads()
        heads, kv_heads, dim, hidden = fused.query_heads, fused.kv_heads, fused.head_dim, fused.embedding.shape[1]
        with torch.no_grad():
            self.order_D = self.order_dimensions(dim)
            self.layers = [pack_layer(fused, layer, self.order_D) for layer in fused.layers]
            self.embedding, self.norm = fused.embedding.detach(), fused.norm.detach()
            self.turns_TD = torch.complex(*fused.rotary(torch.arange(self.length)))
        weights = hidden * (2 * (heads + kv_heads) * dim + 3 * fused.intermediate)
        self.small = weights < SMALL_LAYER
        self.least_rows = max(STEADY_ROWS, WORK_PER_THREAD // weights) if self.small else ROWS_PER_THREAD_LARGE

        self.scratch = (memory or DecodeMemory()).take_tensors(self.list_shapes())
        self.cache = self.scratch.pop("cache")
        """[layers, 2 (keys, values), rows, kv heads, T, D]."""
        self.flat_caches = [cache.view(-1, dim) for cache in self.cache]
        self.clean_length = 0
        part, row, head = torch.arange(2)[:, None], torch.arange(self.rows)[:, None, None], torch.arange(kv_heads)
        self.start_B2K = ((part * self.rows + row) * kv_heads + head) * self.length
        self.at_T = torch.arange(self.length)
        self.lanes: list[Any] = []
        self.pool: ThreadPoolExecutor | None = None

    @staticmethod
    def order_dimensions(dim: int) -> Tensor:
        """Return the storage order of a query's or key's dimensions."""
        return torch.arange(dim).view(2, dim // 2).t().flatten()

    def list_shapes(self) -> Shapes:
        """Return the shapes of keys, values and a step's scratch memory."""
        fused = self.fused
        heads, kv_heads, dim = fused.query_heads, fused.kv_heads, fused.head_dim
        wides = {
            "cache": (len(self.layers), 2, self.rows, kv_heads, self.length, dim),
            "wide_queries": (self.rows, heads * dim),
            "wide_keys_values": (self.rows, 2 * kv_heads * dim),
            "scores": (self.rows, heads * self.length),
            "weights": (self.rows, heads * self.length),
            "attended": (self.rows, heads * dim),
        }
        return self.list_plain_shapes() | {name: (shape, self.wide) for name, shape in wides.items()}

    def list_plain_shapes(self) -> Shapes:
        """Return the shapes of tensors that attention does not widen."""
        fused, hidden = self.fused, self.embedding.shape[1]
        heads, kv_heads, dim = fused.query_heads, fused.kv_heads, fused.head_dim
        widths = {
            **dict.fromkeys(("hidden", "normed", "squares", "delta"), hidden),
            "scale": 1,
            "qkv": (heads + 2 * kv_heads) * dim,
            "mixed": heads * dim,
            "gate_up": 2 * fused.intermediate,
            "activated": fused.intermediate,
            "reduced": max([len(one.down_RI) for one in fused.adapters], default=0),
        }
        return {name: ((self.rows, width), fused.dtype) for name, width in widths.items()}

    def stack(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Stack rotated keys and values of a batch of prompts, [P, kv heads, T, D] per layer, for `load`."""
        layers = [torch.stack((key[..., self.order_D], value)) for key, value in zip(keys, values, strict=True)]
        return torch.stack(layers).to(self.wide)

    def load(self, rows: Tensor, prompts: Tensor, prompt_rows: Tensor) -> None:
        """Copy prompts into slots, with their padding, which is hidden and soon overwritten."""
        length = prompts.shape[4]
        self.zero_positions(length)
        self.cache[:, :, :, :, :length].index_copy_(2, rows, prompts.index_select(2, prompt_rows))

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows into other rows. No row may be both source and target.

        Row by row: the positions of a row are contiguous, so a plain copy moves them as one piece.
        """
        live = self.cache[:, :, :, :, :length]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            live[:, :, target].copy_(live[:, :, source])

    def zero_positions(self, length: int) -> None:
        """Zero positions that were not written: hidden positions still enter the products, and 0 * NaN is NaN."""
        if length > self.clean_length:
            self.cache[:, :, :, :, self.clean_length : length] = 0
            self.clean_length = length

    @torch.no_grad()
    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        """Decode one token for rows 0 to B - 1; returns their last hidden states [B, H], which the next step overwrites.

        `longest` is positions_B.max() + 1. Finished rows are computed too; on a CPU their slots are freed before the next step.
        Rows missing for batch-independent products are added. They write at position 0 of slots that no completion uses.
        """
        rows = len(tokens_B)
        if missing := count_missing_rows(rows, self.fused.device, self.fused.intermediate):
            padding = tokens_B.new_zeros(missing)
            tokens_B, positions_B = torch.cat([tokens_B, padding]), torch.cat([positions_B, padding])
        live_length = self.count_positions(longest)
        self.zero_positions(live_length)
        first, *others = self.find_lanes(self.split_rows(len(tokens_B)), live_length)
        with intra_op_threads(1 if others or self.small else self.threads):
            running = [
                self.start_workers().submit(self.run, lane, tokens_B[lane.rows], positions_B[lane.rows]) for lane in others
            ]
            try:
                self.run(first, tokens_B[first.rows], positions_B[first.rows])
            finally:
                for other in running:
                    other.result()
        return self.scratch["normed"][:rows]

    def count_positions(self, longest: int) -> int:
        """Return the number of positions that attention reads."""
        return min(-(-longest // ALIGNMENT) * ALIGNMENT, self.length)

    def split_rows(self, rows: int) -> list[slice]:
        """Return the rows of each thread."""
        count = min(self.threads, rows // self.least_rows)
        count = max(1, count) if self.small or count == self.threads else 1
        step = find_row_step(self.fused.intermediate)
        edges = [rows * number // count // step * step for number in range(count + 1)]
        return [slice(low, high) for low, high in pairwise(edges)]

    def start_workers(self) -> ThreadPoolExecutor:
        if self.pool is None:
            # The number of OpenMP threads is set per thread.
            self.pool = ThreadPoolExecutor(self.threads - 1, "decode", initializer=torch.set_num_threads, initargs=(1,))
        return self.pool

    def close(self) -> None:
        """End the threads. Garbage collection does the same for a decoder that was not closed."""
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None

    def find_lanes(self, parts: list[slice], live_length: int) -> list[Any]:
        if [(lane.rows, lane.live_length) for lane in self.lanes] != [(part, live_length) for part in parts]:
            self.lanes = [self.lane_class(self, number, part, live_length) for number, part in enumerate(parts)]
        return self.lanes

    @torch.no_grad()
    def run(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        """Take a lane's rows through all layers; the result is in `lane.normed`."""
        torch.index_select(self.embedding, 0, tokens_B, out=lane.hidden)
        places = self.find_places(lane, positions_B)
        for number, layer in enumerate(self.layers):
            self.add_and_normalize(lane, layer.input_norm, number > 0)
            layer.multiply("qkv", lane.normed, lane.qkv)
            self.attend(lane, number, places)
            layer.multiply("out", lane.mixed, lane.delta)
            self.add_and_normalize(lane, layer.post_norm, True)
            layer.multiply("gate_up", lane.normed, lane.gate_up)
            apply_silu(lane.gate, lane.activated)
            layer.multiply("down", lane.activated.mul_(lane.up), lane.delta)
        self.add_and_normalize(lane, self.norm, True)

    def find_places(self, lane: Any, positions_B: Tensor) -> Any:
        """Return what attention needs for a step: angles, write positions, and the visible positions by window."""
        turns_B1D = self.turns_TD.index_select(0, positions_B)[:, None]
        written = (self.start_B2K[lane.rows] + positions_B[:, None, None]).flatten()
        biases: dict[int | None, Tensor] = {}
        for window in {layer.window for layer in self.layers}:
            seen_BT = find_visible(positions_B[:, None], self.at_T[None, : lane.live_length], window)
            bias_BHT = make_bias(seen_BT, self.wide)[:, None].expand(-1, self.fused.query_heads, -1)
            biases[window] = bias_BHT.reshape(lane.scores.shape)
        return turns_B1D, written, biases

    def attend(self, lane: Any, number: int, places: Any) -> None:
        """Rotate queries and keys, store keys and values, and attend: from `lane.qkv` to `lane.mixed`."""
        (turns_B1D, written, biases), layer, dim = places, self.layers[number], self.fused.head_dim
        if layer.head_norm is not None:
            normed_BHD = normalize_heads(lane.queries_keys, layer.head_norm, self.fused.epsilon)
            lane.queries_keys.unflatten(-1, (dim // 2, 2)).copy_(normed_BHD.unflatten(-1, (2, dim // 2)).transpose(-1, -2))
        rotate_pairs(lane.pairs, turns_B1D)
        lane.wide_queries.view(lane.queries.shape).copy_(lane.queries)
        lane.wide_keys_values.view(lane.keys_values.shape).copy_(lane.keys_values)
        self.flat_caches[number].index_copy_(0, written, lane.wide_keys_values)
        scaling = self.fused.scaling
        torch.baddbmm(biases[layer.window], lane.wide_queries, lane.keys[number], alpha=scaling, out=lane.scores)
        torch.softmax(lane.scores, -1, out=lane.weights)
        torch.bmm(lane.weights, lane.values[number], out=lane.attended)
        lane.mixed.copy_(lane.attended.view(lane.mixed.shape))

    def add_and_normalize(self, lane: Any, weight: Tensor, with_delta: bool) -> None:
        """Add `lane.delta` to the residual stream and write its RMSNorm to `lane.normed`, in the steps of transformers."""
        if with_delta:
            lane.hidden.add_(lane.delta)
        torch.mul(lane.hidden, lane.hidden, out=lane.squares)
        torch.mean(lane.squares, -1, True, out=lane.scale)
        lane.scale.add_(self.fused.epsilon).rsqrt_()
        torch.mul(lane.hidden, lane.scale, out=lane.normed).mul_(weight)


def rotate_pairs(pairs_BHD: Tensor, turns_B1D: Tensor) -> None:
    """Multiply complex numbers in place, rounding the parts as transformers does: products, then their sum.

    For the remainder after full vectors, torch's complex product uses fused multiply-adds, which round once.
    """
    if pairs_BHD.shape[-1] % COMPLEX_VECTOR == 0:
        pairs_BHD.mul_(turns_B1D)
        return
    first, second, cosine, sine = pairs_BHD.real, pairs_BHD.imag, turns_B1D.real, turns_B1D.imag
    turned = first * cosine - second * sine
    second.copy_(second * cosine + first * sine)
    first.copy_(turned)


def apply_silu(gate_BI: Tensor, into_BI: Tensor) -> None:
    """Apply SiLU. For the remainder of a strided row after full vectors, torch uses another exponential."""
    if gate_BI.shape[-1] % FLOATS_AT_ONCE == 0:
        torch.ops.aten.silu.out(gate_BI, out=into_BI)
    else:
        F.silu(into_BI.copy_(gate_BI), inplace=True)


def normalize_heads(heads_BHD: Tensor, weight_HD: Tensor, epsilon: float) -> Tensor:
    return heads_BHD * torch.rsqrt(heads_BHD.pow(2).mean(-1, keepdim=True) + epsilon) * weight_HD


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Set the number of threads for operations of the calling thread."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
