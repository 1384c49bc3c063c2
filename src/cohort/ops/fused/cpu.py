"""One decode step of a Llama or Qwen model on a CPU: few operations, written into memory that is there already.

How it differs from running the modules over a slot cache (the slow twin, with which the tests compare it):

- weights are laid out once per decoder, transposed and together (query, key and value; gate and up): with a handful of rows
  the matrix library is up to twice as fast that way. A decoder lives for one call of the engine, so no weight outlives an
  optimizer step;
- query and key dimensions are reordered so that the two a rotary angle turns stand side by side: one complex product turns
  all heads. A score is a sum over these dimensions and does not care about their order;
- keys and values lie in one tensor, so a step writes both at once, and already in the dtype attention accumulates in;
- several threads share the rows, not the operations: each takes its rows through all layers alone, and they wait for each
  other once per step instead of at every operation. A row's bits do not depend on its company (ops/rounding.py), nor therefore on
  the number of threads.

The operations are those of the modules, rounded in the same places; where a product's rows are steady the bits are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.errors import EngineError
from cohort.ops.attention import accumulation_dtype, additive, visible
from cohort.ops.fused.family import FusedLayer, FusedModel
from cohort.ops.rounding import STEADY_ROWS

ALIGNMENT = 8
"""Attention reads a multiple of this many positions: products over rows of odd lengths are slower."""
WORK_PER_THREAD = 12_000_000
"""Multiply-adds in a layer's products, rows x weights, below which a thread of its own does not pay: starting the operations,
for which threads take turns (Python runs one at a time), then takes as long as the operations."""
SMALL_LAYER = 2**21
"""A layer of fewer weights than this stays in the caches. A larger one is read from memory by every thread that has rows of
its own, which pays from ROWS_PER_THREAD_LARGE rows on; with fewer, the threads share the operations instead."""
ROWS_PER_THREAD_LARGE = 128
COMPLEX_VECTOR = 8
"""Complex numbers in the widest vector register."""
FLOATS_AT_ONCE = 32
"""Float32 numbers in the two widest vector registers that torch's elementwise loops take at once."""
KEPT_BYTES = 2**28
"""Memory that is held on to between calls, at most."""
BYTES_APART = 64
"""Tensors begin at multiples of this: a cache line."""


class DecodeMemory:
    """Memory that outlives a decoder, and nothing else: no weight and no key is read again by the next one.

    Fresh memory of this size comes from the kernel page by page at the first touch, which can take a tenth as long
    as the decoding done in it. One decoder at a time.
    """

    def __init__(self) -> None:
        self.held = torch.empty(0, dtype=torch.uint8)

    def take(self, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Tensor]:
        """Tensors of these shapes and dtypes; what they hold is arbitrary."""
        starts, end = {}, 0
        for name, (shape, dtype) in shapes.items():
            starts[name] = end
            end += -(-torch.Size(shape).numel() * dtype.itemsize // BYTES_APART) * BYTES_APART
        if len(self.held) < end:
            self.held = torch.empty(0, dtype=torch.uint8)  # first give back, then ask for more
            self.held = torch.empty(end, dtype=torch.uint8)
        taken = {}
        for name, (shape, dtype) in shapes.items():
            count = torch.Size(shape).numel() * dtype.itemsize
            taken[name] = self.held[starts[name] : starts[name] + count].view(dtype).view(shape)
        return taken

    def trim(self) -> None:
        """Give back what is too much to hold while others need memory."""
        if len(self.held) > KEPT_BYTES:
            self.held = torch.empty(0, dtype=torch.uint8)


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


@dataclass(frozen=True)
class Lane:
    """The rows that one thread takes through the layers, and the part of the scratch memory that is theirs."""

    rows: slice
    live_length: int
    hidden: Tensor
    normed: Tensor
    squares: Tensor
    delta: Tensor
    scale: Tensor
    qkv: Tensor
    queries_keys: Tensor
    """View [B, query heads + kv heads, D] of `qkv`."""
    pairs: Tensor
    """The same as complex numbers [B, query heads + kv heads, D / 2]."""
    queries: Tensor
    """View [B, query heads, D] of `qkv`."""
    keys_values: Tensor
    wide_queries: Tensor
    wide_keys_values: Tensor
    scores: Tensor
    weights: Tensor
    attended: Tensor
    mixed: Tensor
    gate: Tensor
    up: Tensor
    gate_up: Tensor
    activated: Tensor
    keys: list[Tensor]
    """Per layer [B * kv heads, D, T]: the keys that the longest row can see."""
    values: list[Tensor]


class CpuDecoder:
    """Keys, values and scratch memory for `slots` rows of `length` positions, and a step over the first of them.

    `exact` accumulates attention in float64, as the trainer does. Without it attention takes half the time and memory, and
    log-probs differ from the trainer's by rounding: up to 6e-5 in a peaked policy of six layers, 96 tokens on.
    """

    def __init__(
        self, fused: FusedModel, slots: int, length: int, memory: DecodeMemory | None = None, *, exact: bool = True
    ) -> None:
        if fused.dtype != torch.float32 or fused.device.type != "cpu":
            raise EngineError(f"the CPU decoder computes in float32 on a CPU, not in {fused.dtype} on {fused.device}")
        self.fused = fused
        self.rows = max(slots, STEADY_ROWS)
        self.length = -(-length // ALIGNMENT) * ALIGNMENT
        self.wide = accumulation_dtype(fused.dtype, fused.device) if exact else fused.dtype
        self.threads = torch.get_num_threads()
        heads, kv_heads, dim, hidden = fused.query_heads, fused.kv_heads, fused.head_dim, fused.embedding.shape[1]
        with torch.no_grad():
            self.order_D = self.order(dim)
            self.layers = [self.pack(layer) for layer in fused.layers]
            self.embedding, self.norm = fused.embedding.detach(), fused.norm.detach()
            self.turns_TD = torch.complex(*fused.rotary(torch.arange(self.length)))
        weights = hidden * (2 * (heads + kv_heads) * dim + 3 * fused.intermediate)
        self.small = weights < SMALL_LAYER
        self.least_rows = max(STEADY_ROWS, WORK_PER_THREAD // weights) if self.small else ROWS_PER_THREAD_LARGE

        self.scratch = (memory or DecodeMemory()).take(self.shapes())
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
    def order(dim: int) -> Tensor:
        """The dimensions of a query or key in the order in which they are stored."""
        return torch.arange(dim).view(2, dim // 2).t().flatten()

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Keys and values, and the scratch memory of a step."""
        fused = self.fused
        heads, kv_heads, dim, hidden = fused.query_heads, fused.kv_heads, fused.head_dim, fused.embedding.shape[1]
        wides: dict[str, tuple[int, ...]] = {
            "cache": (len(self.layers), 2, self.rows, kv_heads, self.length, dim),
            "wide_queries": (self.rows, heads * dim),
            "wide_keys_values": (self.rows, 2 * kv_heads * dim),
            "scores": (self.rows, heads * self.length),
            "weights": (self.rows, heads * self.length),
            "attended": (self.rows, heads * dim),
        }
        floats: dict[str, tuple[int, ...]] = {
            "hidden": (self.rows, hidden),
            "normed": (self.rows, hidden),
            "squares": (self.rows, hidden),
            "delta": (self.rows, hidden),
            "scale": (self.rows, 1),
            "qkv": (self.rows, (heads + 2 * kv_heads) * dim),
            "mixed": (self.rows, heads * dim),
            "gate_up": (self.rows, 2 * fused.intermediate),
            "activated": (self.rows, fused.intermediate),
        }
        wanted = {name: (shape, self.wide) for name, shape in wides.items()}
        return wanted | {name: (shape, fused.dtype) for name, shape in floats.items()}

    def pack(self, layer: FusedLayer) -> PackedLayer:
        fused, dim = self.fused, self.fused.head_dim
        turned = fused.query_heads + fused.kv_heads
        head_norm = None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = (
                layer.query_norm.detach().expand(fused.query_heads, dim),
                layer.key_norm.detach().expand(fused.kv_heads, dim),
            )
            head_norm = torch.cat(norms)

        def in_pairs(rows: Tensor) -> Tensor:
            if head_norm is not None:
                return rows.detach()
            heads = rows.detach().reshape(-1, dim, *rows.shape[1:])
            return torch.cat([heads[:turned, self.order_D], heads[turned:]]).reshape(rows.shape)

        def transposed(weight: Tensor) -> Tensor:
            return weight.detach().t().contiguous()

        return PackedLayer(
            input_norm=layer.input_norm.detach(),
            qkv=transposed(in_pairs(layer.qkv)),
            qkv_bias=None if layer.qkv_bias is None else in_pairs(layer.qkv_bias),
            head_norm=head_norm,
            out=transposed(layer.out),
            post_norm=layer.post_norm.detach(),
            gate_up=transposed(layer.gate_up),
            down=transposed(layer.down),
            window=layer.window,
        )

    def stack(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Turned keys and values of a batch of prompts, [P, kv heads, T, D] per layer, as `load` wants them."""
        layers = [torch.stack((key[..., self.order_D], value)) for key, value in zip(keys, values, strict=True)]
        return torch.stack(layers).to(self.wide)

    def load(self, rows: Tensor, prompts: Tensor, prompt_rows: Tensor) -> None:
        """Copy prompts into slots. Padding comes along: it is never seen and soon written over."""
        length = prompts.shape[4]
        self.clean(length)
        self.cache[:, :, :, :, :length].index_copy_(2, rows, prompts.index_select(2, prompt_rows))

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows into other rows; no row is both.

        One by one: positions of a row lie side by side, and a plain copy moves them as one piece.
        """
        live = self.cache[:, :, :, :, :length]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            live[:, :, target].copy_(live[:, :, source])

    def clean(self, length: int) -> None:
        """Zeros where nothing was written yet: what a row does not see still enters the products, and 0 * NaN is NaN."""
        if length > self.clean_length:
            self.cache[:, :, :, :, self.clean_length : length] = 0
            self.clean_length = length

    @torch.no_grad()
    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        """One token for rows 0 to B - 1: their last hidden states [B, H], which the next step overwrites.

        `longest` is positions_B.max() + 1. A row that is done is computed like the others: on a CPU its slot is free again
        before the next step. Rows that are missing for products that do not depend on their number are made up; like every
        row from B on they belong to nobody, and write at position 0 of their own slots.
        """
        rows = len(tokens_B)
        if rows < STEADY_ROWS:
            padding = tokens_B.new_zeros(STEADY_ROWS - rows)
            tokens_B, positions_B = torch.cat([tokens_B, padding]), torch.cat([positions_B, padding])
        live_length = self.reach(longest)
        self.clean(live_length)
        own, *others = self.lanes_for(self.parts(len(tokens_B)), live_length)
        with intra_op_threads(1 if others or self.small else self.threads):
            running = [self.workers().submit(self.run, lane, tokens_B[lane.rows], positions_B[lane.rows]) for lane in others]
            try:
                self.run(own, tokens_B[own.rows], positions_B[own.rows])
            finally:
                for other in running:
                    other.result()
        return self.scratch["normed"][:rows]

    def reach(self, longest: int) -> int:
        """Positions that attention reads."""
        return min(-(-longest // ALIGNMENT) * ALIGNMENT, self.length)

    def parts(self, rows: int) -> list[slice]:
        """The rows of each thread."""
        count = min(self.threads, rows // self.least_rows)
        count = max(1, count) if self.small or count == self.threads else 1
        edges = [rows * number // count for number in range(count + 1)]
        return [slice(low, high) for low, high in pairwise(edges)]

    def workers(self) -> ThreadPoolExecutor:
        if self.pool is None:
            # A thread has a number of OpenMP threads of its own.
            self.pool = ThreadPoolExecutor(self.threads - 1, "decode", initializer=torch.set_num_threads, initargs=(1,))
        return self.pool

    def close(self) -> None:
        """End the threads. A decoder that is forgotten instead ends them when it is collected."""
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None

    def lanes_for(self, parts: list[slice], live_length: int) -> list[Any]:
        if [(lane.rows, lane.live_length) for lane in self.lanes] != [(part, live_length) for part in parts]:
            self.lanes = [self.lane(number, part, live_length) for number, part in enumerate(parts)]
        return self.lanes

    def lane(self, number: int, rows: slice, live_length: int) -> Any:
        fused = self.fused
        heads, kv_heads, dim, count = fused.query_heads, fused.kv_heads, fused.head_dim, rows.stop - rows.start
        group, pairs = heads // kv_heads, count * kv_heads
        scratch = {name: whole[rows] for name, whole in self.scratch.items()}
        heads_BHD = scratch["qkv"].view(count, heads + 2 * kv_heads, dim)
        turned_BHD = heads_BHD[:, : heads + kv_heads]

        def scores(whole: Tensor) -> Tensor:
            return whole.view(-1)[: pairs * group * live_length].view(pairs, group, live_length)

        def live(cache: Tensor) -> Tensor:
            return cache[rows].view(pairs, self.length, dim)[:, :live_length]

        return Lane(
            rows=rows,
            live_length=live_length,
            hidden=scratch["hidden"],
            normed=scratch["normed"],
            squares=scratch["squares"],
            delta=scratch["delta"],
            scale=scratch["scale"],
            qkv=scratch["qkv"],
            queries_keys=turned_BHD,
            pairs=torch.view_as_complex(turned_BHD.unflatten(-1, (dim // 2, 2))),
            queries=heads_BHD[:, :heads],
            keys_values=heads_BHD[:, heads:],
            wide_queries=scratch["wide_queries"].view(pairs, group, dim),
            wide_keys_values=scratch["wide_keys_values"].view(count * 2 * kv_heads, dim),
            scores=scores(scratch["scores"]),
            weights=scores(scratch["weights"]),
            attended=scratch["attended"].view(pairs, group, dim),
            mixed=scratch["mixed"],
            gate=scratch["gate_up"][:, : fused.intermediate],
            up=scratch["gate_up"][:, fused.intermediate :],
            gate_up=scratch["gate_up"],
            activated=scratch["activated"],
            keys=[live(cache[0]).transpose(1, 2) for cache in self.cache],
            values=[live(cache[1]) for cache in self.cache],
        )

    @torch.no_grad()
    def run(self, lane: Any, tokens_B: Tensor, positions_B: Tensor) -> None:
        """Take the rows of a lane through all layers; `lane.normed` holds the result."""
        fused, count = self.fused, len(tokens_B)
        heads, kv_heads, dim = fused.query_heads, fused.kv_heads, fused.head_dim
        wide_queries_BHD = lane.wide_queries.view(count, heads, dim)
        wide_keys_values_BHD = lane.wide_keys_values.view(count, 2 * kv_heads, dim)
        attended_BH = lane.attended.view(count, heads * dim)
        torch.index_select(self.embedding, 0, tokens_B, out=lane.hidden)
        turns_B1D = self.turns_TD.index_select(0, positions_B)[:, None]
        written = (self.start_B2K[lane.rows] + positions_B[:, None, None]).flatten()
        biases: dict[int | None, Tensor] = {}
        for window in {layer.window for layer in self.layers}:
            seen_BT = visible(positions_B[:, None], self.at_T[None, : lane.live_length], window)
            biases[window] = additive(seen_BT, self.wide)[:, None].expand(-1, heads, -1).reshape(lane.scores.shape)
        for layer, flat_cache, keys, values in zip(self.layers, self.flat_caches, lane.keys, lane.values, strict=True):
            self.normalize(lane, layer.input_norm)
            torch.mm(lane.normed, layer.qkv, out=lane.qkv)
            if layer.qkv_bias is not None:
                lane.qkv.add_(layer.qkv_bias)
            if layer.head_norm is not None:
                normed_BHD = normalized(lane.queries_keys, layer.head_norm, fused.epsilon)
                lane.queries_keys.unflatten(-1, (dim // 2, 2)).copy_(normed_BHD.unflatten(-1, (2, dim // 2)).transpose(-1, -2))
            turn(lane.pairs, turns_B1D)
            wide_queries_BHD.copy_(lane.queries)
            wide_keys_values_BHD.copy_(lane.keys_values)
            flat_cache.index_copy_(0, written, lane.wide_keys_values)
            torch.baddbmm(biases[layer.window], lane.wide_queries, keys, alpha=fused.scaling, out=lane.scores)
            torch.softmax(lane.scores, -1, out=lane.weights)
            torch.bmm(lane.weights, values, out=lane.attended)
            lane.mixed.copy_(attended_BH)
            lane.hidden.add_(torch.mm(lane.mixed, layer.out, out=lane.delta))
            self.normalize(lane, layer.post_norm)
            torch.mm(lane.normed, layer.gate_up, out=lane.gate_up)
            activate(lane.gate, lane.activated)
            lane.hidden.add_(torch.mm(lane.activated.mul_(lane.up), layer.down, out=lane.delta))
        self.normalize(lane, self.norm)

    def normalize(self, lane: Any, weight: Tensor) -> None:
        """RMSNorm of the residual stream into `lane.normed`, in the steps in which transformers takes it."""
        torch.mul(lane.hidden, lane.hidden, out=lane.squares)
        torch.mean(lane.squares, -1, True, out=lane.scale)
        lane.scale.add_(self.fused.epsilon).rsqrt_()
        torch.mul(lane.hidden, lane.scale, out=lane.normed).mul_(weight)


def turn(pairs_BHD: Tensor, turns_B1D: Tensor) -> None:
    """Multiply complex numbers in place, each part of a product rounded as transformers rounds it: products, then their sum.

    What is left of a row after full vectors, torch's complex product computes with fused multiply-adds, which round once.
    """
    if pairs_BHD.shape[-1] % COMPLEX_VECTOR == 0:
        pairs_BHD.mul_(turns_B1D)
        return
    first, second, cosine, sine = pairs_BHD.real, pairs_BHD.imag, turns_B1D.real, turns_B1D.imag
    turned = first * cosine - second * sine
    second.copy_(second * cosine + first * sine)
    first.copy_(turned)


def activate(gate_BI: Tensor, into_BI: Tensor) -> None:
    """silu. What is left of a strided row after full vectors, torch computes with another exponential."""
    if gate_BI.shape[-1] % FLOATS_AT_ONCE == 0:
        torch.ops.aten.silu.out(gate_BI, out=into_BI)
    else:
        F.silu(into_BI.copy_(gate_BI), inplace=True)


def normalized(heads_BHD: Tensor, weight_HD: Tensor, epsilon: float) -> Tensor:
    return heads_BHD * torch.rsqrt(heads_BHD.pow(2).mean(-1, keepdim=True) + epsilon) * weight_HD


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Operations of the calling thread are shared by so many threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
