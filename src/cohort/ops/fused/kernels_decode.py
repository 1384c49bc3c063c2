"""Triton kernels of one decode step, and the decoder that calls them: eight kernels per layer, none of which waits for the
host.

The speed of a step depends on memory reads, so each kernel reads its data once:

- `attend` gives one program a slot and one of its key/value heads, with all queries of that head as the rows of a small
  matrix product. Keys and values are read once, in place, and only up to the row's length. (The usual kernel has a
  program per query head, and reads the keys of a group of seven seven times.)
- `sample` reads the logits once for the log-sum-exp, the noise and the winner together. The noise is computed where it is used.
- Rows that are finished, or only fill up a bucket, read nothing.

No kernel uses atomics or waits for the host, so a step can be captured in a CUDA graph, and its bits are reproducible. The
sampler's reference implementation is in engine/scheduler.py, the others' are in the tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from cohort.ops.cached_attention import KVBlocks, KVShape, StackedKV
from cohort.ops.fused.family import FusedModel
from cohort.ops.fused.training import prefill
from cohort.ops.noise import LARGEST_UNIFORM, MULTIPLY_1, MULTIPLY_2, SPREAD_INDEX, SPREAD_POSITION

# mypy: allow-untyped-defs, allow-incomplete-defs


INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Tests run the kernels on a CPU with Triton's interpreter."""
KEYS_AT_ONCE = 64
PROGRAMS_WANTED = 264
"""Two per multiprocessor of a large GPU. With fewer, rows are split along their keys."""
MOST_SPLITS = 16
VOCABULARY_AT_ONCE = 2048
VOCABULARY_SPLIT = 16384
"""Vocabulary entries per program of the sampler."""


def round_to_power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


# -- elementwise -------------------------------------------------------------------------------------------------------


@triton.jit
def _add_norm(hidden, delta, weight, normed, width, epsilon, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(hidden + row * width + at, mask=inside, other=0.0)
    if HAS_DELTA:
        value = value + tl.load(delta + row * width + at, mask=inside, other=0.0)
        tl.store(hidden + row * width + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    rounded = (wide * scale).to(normed.dtype.element_ty)
    tl.store(normed + row * width + at, rounded * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


def add_norm(hidden_BH: Tensor, delta_BH: Tensor | None, weight_H: Tensor, epsilon: float) -> Tensor:
    """Add delta to hidden in place, and return its RMSNorm."""
    rows, width = hidden_BH.shape
    normed_BH = torch.empty_like(hidden_BH)
    block = round_to_power_of_two(width)
    _add_norm[(rows,)](
        hidden_BH,
        delta_BH,
        weight_H,
        normed_BH,
        width,
        epsilon,
        delta_BH is not None,
        block,
        num_warps=min(16, max(1, block // 256)),
    )
    return normed_BH


@triton.jit
def _apply_swiglu(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def apply_swiglu(gate_up_BI: Tensor) -> Tensor:
    """Return silu(gate) * up for rows of [gate, up]."""
    rows, width = gate_up_BI.shape[0], gate_up_BI.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up_BI.dtype, device=gate_up_BI.device)
    _apply_swiglu[(rows, triton.cdiv(width, 1024))](gate_up_BI, out, width, 1024, num_warps=4)
    return out


# -- rotary embedding and cache ----------------------------------------------------------------------------------------


@triton.jit
def _rotate_heads(source, cosine, sine, head, at, inside, weight, epsilon, half, HAS_NORM: tl.constexpr):
    """Return two halves of the heads at `source`, normalised if the family does that, and rotated."""
    first = tl.load(source + head * 2 * half + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + head * 2 * half + half + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * half)
        scale = tl.rsqrt(mean + epsilon)[:, None]
        kind = source.dtype.element_ty
        first = ((first * scale).to(kind) * tl.load(weight + at, mask=at < half, other=0.0)).to(tl.float32)
        second = ((second * scale).to(kind) * tl.load(weight + half + at, mask=at < half, other=0.0)).to(tl.float32)
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def _rotate_and_store(
    qkv, positions, cosines, sines, query_norm, key_norm, query_out, keys, values, slot_stride, head_stride, epsilon,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HEADS_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    at = tl.arange(0, HALF_BLOCK)[None, :]
    cosine = tl.load(cosines + position * HALF + at, mask=at < HALF, other=0.0)
    sine = tl.load(sines + position * HALF + at, mask=at < HALF, other=0.0)
    source = qkv + row * (QUERY_HEADS + 2 * KV_HEADS) * 2 * HALF

    head = tl.arange(0, HEADS_BLOCK)[:, None]
    inside = (head < QUERY_HEADS) & (at < HALF)
    first, second = _rotate_heads(source, cosine, sine, head, at, inside, query_norm, epsilon, HALF, HAS_NORM)
    target = query_out + row * QUERY_HEADS * 2 * HALF + head * 2 * HALF + at
    tl.store(target, first, mask=inside)
    tl.store(target + HALF, second, mask=inside)

    head = tl.arange(0, KV_BLOCK)[:, None]
    inside = (head < KV_HEADS) & (at < HALF)
    source += QUERY_HEADS * 2 * HALF
    first, second = _rotate_heads(source, cosine, sine, head, at, inside, key_norm, epsilon, HALF, HAS_NORM)
    offset = row * slot_stride + head * head_stride + position * 2 * HALF + at
    tl.store(keys + offset, first, mask=inside)
    tl.store(keys + offset + HALF, second, mask=inside)
    source += KV_HEADS * 2 * HALF + head * 2 * HALF + at
    tl.store(values + offset, tl.load(source, mask=inside, other=0.0), mask=inside)
    tl.store(values + offset + HALF, tl.load(source + HALF, mask=inside, other=0.0), mask=inside)


def rotate_and_store(
    qkv_BX: Tensor,
    positions_B: Tensor,
    cosines_TD: Tensor,
    sines_TD: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys_SKTD: Tensor,
    values_SKTD: Tensor,
    query_heads: int,
) -> Tensor:
    """Rotate queries and keys, store keys and values in row b at its position, and return the queries [B, heads, D]."""
    rows, (_, kv_heads, _, dim) = len(qkv_BX), keys_SKTD.shape
    query_BHD = torch.empty(rows, query_heads, dim, dtype=qkv_BX.dtype, device=qkv_BX.device)
    half = dim // 2
    _rotate_and_store[(rows,)](
        qkv_BX, positions_B, cosines_TD, sines_TD, norms[0] if norms else None, norms[1] if norms else None, query_BHD,
        keys_SKTD, values_SKTD, keys_SKTD.stride(0), keys_SKTD.stride(1), epsilon,
        query_heads, kv_heads, half, round_to_power_of_two(query_heads), round_to_power_of_two(kv_heads), round_to_power_of_two(half), norms is not None,
        num_warps=4,
    )  # fmt: skip
    return query_BHD


# -- attention over the slots ------------------------------------------------------------------------------------------


@triton.jit
def _attend(
    query, keys, values, positions, done, out, partial, slot_stride, head_stride, scaling, window, softcap,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    end = tl.load(positions + row) + 1
    begin = tl.maximum(0, end - window)
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(end - begin, SPLITS), KEYS) * KEYS
        begin = begin + split * share
        end = tl.minimum(end, begin + share)
    if tl.load(done + row) != 0:
        end = begin

    member = tl.arange(0, GROUP_BLOCK)
    at = tl.arange(0, DIM_BLOCK)
    inside = (member[:, None] < GROUP) & (at[None, :] < DIM)
    query_at = (row * KV_HEADS + kv_head) * GROUP * DIM + member[:, None] * DIM + at[None, :]
    queries = tl.load(query + query_at, mask=inside, other=0.0)
    base = row * slot_stride + kv_head * head_stride

    largest = tl.full([GROUP_BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    mixed = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < end
        key_at = base + key[:, None] * DIM + at[None, :]
        mask = seen[:, None] & (at[None, :] < DIM)
        block = tl.load(keys + key_at, mask=mask, other=0.0)
        if EXACT:
            scores = tl.dot(queries, tl.trans(block), input_precision="ieee") * scaling
        else:
            scores = tl.dot(queries, tl.trans(block)) * scaling
        if softcap > 0:
            scores = (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * softcap
        scores = tl.where(seen[None, :], scores, -float("inf"))
        newest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - newest[:, None])
        shrink = tl.exp(largest - newest)
        total = total * shrink + tl.sum(weights, 1)
        block = tl.load(values + key_at, mask=mask, other=0.0)
        if EXACT:
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(block.dtype), block, input_precision="ieee")
        else:
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(block.dtype), block)
        largest = newest

    if SPLITS == 1:
        tl.store(out + query_at, mixed / tl.maximum(total, 1e-38)[:, None], mask=inside)
    else:
        # A row of `partial` has the mixture, its largest score and its total.
        target = partial + ((((row * KV_HEADS + kv_head) * SPLITS + split) * GROUP + member[:, None]) * (DIM + 2))
        tl.store(target + at[None, :], mixed, mask=inside)
        real = (member < GROUP)[:, None]
        tl.store(target + DIM, largest[:, None], mask=real)
        tl.store(target + DIM + 1, total[:, None], mask=real)


@triton.jit
def _join(
    partial, out, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, SPLITS: tl.constexpr
):
    """Combine the splits of a query by their shares of the sum."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    at = tl.arange(0, DIM_BLOCK)
    source = partial + (((row * (HEADS // GROUP) + head // GROUP) * SPLITS + split) * GROUP + head % GROUP) * (DIM + 2)
    largest = tl.load(source + DIM)
    factor = tl.exp(largest - tl.max(largest, 0))
    # All splits of a finished row are empty: -inf minus -inf is NaN, so such a row gets weight 0.
    factor = tl.where(largest == -float("inf"), 0.0, factor)
    total = tl.sum(tl.load(source + DIM + 1) * factor, 0)
    mixed = tl.load(source[:, None] + at[None, :], mask=at[None, :] < DIM, other=0.0)
    result = tl.sum(mixed * factor[:, None], 0) / tl.maximum(total, 1e-38)
    tl.store(out + (row * HEADS + head) * DIM + at, result, mask=at < DIM)


def choose_splits(rows: int, kv_heads: int, length: int) -> int:
    """Return into how many parts to split the keys of a row, so that few rows occupy the whole GPU."""
    wanted = -(-PROGRAMS_WANTED // (rows * kv_heads))
    return min(MOST_SPLITS, round_to_power_of_two(wanted), round_to_power_of_two(-(-length // KEYS_AT_ONCE)))


def attend(
    query_BHD: Tensor,
    keys_SKTD: Tensor,
    values_SKTD: Tensor,
    positions_B: Tensor,
    done_B: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Attend from one query per row to the row's keys up to its position; returns [B, heads, D], zeros for finished rows."""
    (rows, heads, dim), (_, kv_heads, length, _) = query_BHD.shape, keys_SKTD.shape
    group, splits = heads // kv_heads, choose_splits(rows, kv_heads, length)
    out_BHD = torch.empty_like(query_BHD)
    partial: Any = out_BHD
    if splits > 1:
        partial = torch.empty(rows * heads * splits * (dim + 2), dtype=torch.float32, device=out_BHD.device)
    dim_block = max(16, round_to_power_of_two(dim))
    _attend[(rows, kv_heads, splits)](
        query_BHD, keys_SKTD, values_SKTD, positions_B, done_B, out_BHD, partial,
        keys_SKTD.stride(0), keys_SKTD.stride(1), scaling, window or (1 << 30), softcap,
        group, kv_heads, dim, max(16, round_to_power_of_two(group)), dim_block, KEYS_AT_ONCE, splits, query_BHD.dtype == torch.float32,
        num_warps=4, num_stages=3 if dim_block < 128 else 2,  # measured on an H200: deeper pipelines exceed the shared memory
    )  # fmt: skip
    if splits > 1:
        _join[(rows, heads)](partial, out_BHD, heads, group, dim, dim_block, splits, num_warps=1)
    return out_BHD


# -- sampling ----------------------------------------------------------------------------------------------------------


@triton.jit
def _log(value):
    # Not tl.log, whose last bits are approximate: the noise must be equal in all engines.
    if INTERPRETED:
        result = tl.log(value)
    else:
        result = libdevice.log(value)
    return result


@triton.jit
def _log1p(value):
    if INTERPRETED:  # the interpreter has no libdevice; (1 + x) - 1 undoes the rounding of 1 + x
        above = 1.0 + value
        result = tl.where(above == 1.0, value, tl.log(above) * value / tl.where(above == 1.0, 1.0, above - 1.0))
    else:
        result = libdevice.log1p(value)
    return result


@triton.jit
def _mix(bits, M1: tl.constexpr, M2: tl.constexpr):
    bits = (bits ^ (bits >> 16)) * M1
    bits = (bits ^ (bits >> 15)) * M2
    return bits ^ (bits >> 16)


@triton.jit
def _scan_vocabulary(
    logits, slot_of_row, row_keys, counts, partial, vocabulary, temperature, largest_uniform,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, GREEDY: tl.constexpr, M1: tl.constexpr, M2: tl.constexpr, SPREAD_P: tl.constexpr,
    SPREAD_I: tl.constexpr,
):  # fmt: skip
    """Scan a part of a row's vocabulary: largest scaled logit, sum of exponentials, and the winner with its noise."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slot_of_row + row)
    first = tl.load(row_keys + 2 * slot).to(tl.uint32, bitcast=True)
    second = tl.load(row_keys + 2 * slot + 1).to(tl.uint32, bitcast=True)
    spread = tl.load(counts + slot).to(tl.uint32) * SPREAD_P
    outer = _mix(_mix(spread + first, M1, M2) ^ second, M1, M2)
    inner = _mix(_mix(spread ^ second, M1, M2) + first, M1, M2)

    offset = tl.arange(0, BLOCK)
    largest = -float("inf")
    total = 0.0
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    best_index = tl.zeros([BLOCK], tl.int32)
    best_value = tl.zeros([BLOCK], tl.float32)
    for start in range(part * SPLIT, tl.minimum(vocabulary, (part + 1) * SPLIT), BLOCK):
        index = start + offset
        inside = index < vocabulary
        value = tl.load(logits + row * vocabulary + index, mask=inside, other=-float("inf")).to(tl.float32)
        if not GREEDY:
            value = value / temperature
        newest = tl.maximum(largest, tl.max(value, 0))
        total = total * tl.exp(largest - newest) + tl.sum(tl.exp(value - newest), 0)
        largest = newest
        score = value
        if not GREEDY:
            bits = (index.to(tl.uint32) * SPREAD_I) ^ outer
            bits = (bits ^ (bits >> 16)) * M1 + inner
            bits = (bits ^ (bits >> 15)) * M2
            bits = (bits ^ (bits >> 16)) & 0x7FFFFFFF
            uniform = tl.minimum((bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10, largest_uniform)
            score = value - _log(-_log1p(-uniform))
        better = inside & (score > best)
        best = tl.where(better, score, best)
        best_index = tl.where(better, index, best_index)
        best_value = tl.where(better, value, best_value)
    winner = tl.max(best, 0)
    # The first of equal scores wins, as in torch.
    chosen = tl.min(tl.where(best == winner, best_index, 2147483647), 0)
    value = tl.sum(tl.where((best == winner) & (best_index == chosen), best_value, 0.0), 0)
    target = partial + (row * tl.num_programs(1) + part) * 5
    tl.store(target, largest)
    tl.store(target + 1, total)
    tl.store(target + 2, winner)
    tl.store(target + 3, chosen.to(tl.float32, bitcast=True))
    tl.store(target + 4, value)


@triton.jit
def _write_token(
    partial, slot_of_row, owners, counts, positions, done, tokens, limits, stop_ids, token_ids, logprobs, width,
    PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr, STOPS: tl.constexpr, STOPS_BLOCK: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """Combine the parts of a row, store the token, and determine whether the completion is finished."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_of_row + row)
    if tl.load(done + slot) == 0:
        part = tl.arange(0, PARTS_BLOCK)
        inside = part < PARTS
        source = partial + (row * PARTS + part) * 5
        largest = tl.load(source, mask=inside, other=-float("inf"))
        top = tl.max(largest, 0)
        total = tl.sum(tl.load(source + 1, mask=inside, other=0.0) * tl.exp(largest - top), 0)
        score = tl.load(source + 2, mask=inside, other=-float("inf"))
        index = tl.load(source + 3, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        value = tl.load(source + 4, mask=inside, other=0.0)
        best = tl.max(score, 0)
        chosen = tl.min(tl.where(inside & (score == best), index, 2147483647), 0)
        # A row without a finite logit has no winner. It gets token 0 with a log-prob of NaN, which stops the run.
        chosen = tl.where(chosen == 2147483647, 0, chosen)
        value = tl.sum(tl.where((score == best) & (index == chosen), value, 0.0), 0)

        owner = tl.load(owners + slot).to(tl.int64)
        count = tl.load(counts + slot)
        tl.store(token_ids + owner * width + count, chosen)
        # The maximum is subtracted first: a log-prob near 0 would otherwise be rounded at the scale of the logits.
        tl.store(logprobs + owner * width + count, (value - top) - tl.log(total))
        tl.store(tokens + slot, chosen.to(tl.int64))
        tl.store(counts + slot, count + 1)
        if ADVANCE:
            tl.store(positions + slot, tl.load(positions + slot) + 1)
        over = count + 1 >= tl.load(limits + owner)
        if STOPS > 0:
            stop = tl.arange(0, STOPS_BLOCK)
            ids = tl.load(stop_ids + stop, mask=stop < STOPS, other=-1)
            over = over | (tl.sum((ids == chosen).to(tl.int32), 0) > 0)
        tl.store(done + slot, over.to(tl.int32))


def sample(logits_BV: Tensor, slot_of_row_B: Tensor, state: Any, temperature: float, advance: bool) -> None:
    """Sample the next token of each unfinished row and store it with its log-prob in `state` (engine/scheduler.py); temperature 0
    is greedy.
    """
    rows, vocabulary = logits_BV.shape
    parts, stops = -(-vocabulary // VOCABULARY_SPLIT), len(state.stop_ids)
    partial = torch.empty(rows * parts * 5, dtype=torch.float32, device=logits_BV.device)
    _scan_vocabulary[(rows, parts)](
        logits_BV, slot_of_row_B, state.keys_S2, state.counts_S, partial, vocabulary, temperature, LARGEST_UNIFORM,
        VOCABULARY_SPLIT, VOCABULARY_AT_ONCE, temperature == 0,
        MULTIPLY_1, MULTIPLY_2 & 0xFFFFFFFF, SPREAD_POSITION & 0xFFFFFFFF, SPREAD_INDEX & 0xFFFFFFFF,
        num_warps=8,
    )  # fmt: skip
    _write_token[(rows,)](
        partial, slot_of_row_B, state.owners_S, state.counts_S, state.positions_S, state.done_S, state.tokens_S, state.limits_N,
        state.stop_ids, state.token_ids_NT, state.logprobs_NT,
        state.token_ids_NT.shape[1], parts, round_to_power_of_two(parts), stops, round_to_power_of_two(max(1, stops)), advance,
        num_warps=1,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# One step
# ---------------------------------------------------------------------------------------------------------------------


class FusedDecoder:
    """Decodes with the policy's own parameters: a step after an update uses the new policy."""

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
        """Return hidden states [B, H] after the final norm. The tokens' keys and values are in the cache afterwards."""
        fused = self.fused
        rows = len(tokens_B)
        hidden_BH = F.embedding(tokens_B, fused.embedding)
        delta_BH = None
        for layer, keys, values in zip(fused.layers, self.blocks.keys, self.blocks.values, strict=True):
            normed_BH = add_norm(hidden_BH, delta_BH, layer.input_norm, fused.epsilon)
            qkv_BX = layer.qkv.multiply(normed_BH)[0]
            norms = (layer.query_norm, layer.key_norm) if layer.query_norm is not None and layer.key_norm is not None else None
            query_BHD = rotate_and_store(
                qkv_BX, positions_B, self.cosines_TD, self.sines_TD, norms, fused.epsilon, keys, values, fused.query_heads
            )
            mixed_BHD = attend(query_BHD, keys, values, positions_B, done_B, fused.scaling, layer.window)
            delta_BH = layer.out.multiply(mixed_BHD.view(rows, -1))[0]
            normed_BH = add_norm(hidden_BH, delta_BH, layer.post_norm, fused.epsilon)
            gate_up_BJ = layer.gate_up.multiply(normed_BH)[0]
            delta_BH = layer.down.multiply(apply_swiglu(gate_up_BJ))[0]
        return add_norm(hidden_BH, delta_BH, fused.norm, fused.epsilon)
