"""Triton kernels of the training backbone: everything between its matrix products, with each tensor read and written once.

Differences from the formulas in torch: a residual addition, its norm and the rounding in between are one pass over memory. The
backward of a norm also adds the gradient of the residual stream, and recomputes the normed activations for the following weight
gradient, so the forward does not keep them. Weight gradients are summed by each program over its own tokens and then over
programs, in a fixed order without atomics, so runs are reproducible.

The formulas are those of `functions.TorchOperations`, the reference implementation; sums and products are in float32. Block
sizes follow from the width by a simple rule, because a search would cost start-up time.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from cohort.ops.fused.functions import Heads, NormInputs, Rotary

COLUMNS_PER_PROGRAM = 1024
"""Columns per program of an element-wise kernel: 4 warps with 8 values, 16 bytes of bfloat16, per thread."""
FORWARD_TILE, BACKWARD_TILE = 2048, 1024
"""Pairs of values that a program of the rotary kernels rotates at once. The backward also keeps sums, and has fewer registers."""
WARPS_PER_PROCESSOR = 32
"""Warps of looping kernels per multiprocessor: half of the maximum, each with several loads in flight."""


@triton.jit
def _add_norm_forward_kernel(
    hidden, delta, weight, total, normed, inverse, epsilon, COLUMNS: tl.constexpr, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < COLUMNS
    at = row * COLUMNS + column
    value = tl.load(hidden + at, mask=inside, other=0.0)
    if HAS_DELTA:
        value = (value.to(tl.float32) + tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)).to(value.dtype)
        tl.store(total + at, value, mask=inside)
    wide = value.to(tl.float32)
    inverse_root = tl.rsqrt(tl.sum(wide * wide, axis=0) / COLUMNS + epsilon)
    tl.store(inverse + row, inverse_root)
    unit = (wide * inverse_root).to(value.dtype).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (unit * scale).to(value.dtype), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _add_norm_backward_kernel(
    d_normed, d_total, total, inverse, weight, d_input, normed, partial, rows, COLUMNS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, WRITE_NORMED: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < COLUMNS
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    weight_gradient = tl.zeros([BLOCK], dtype=tl.float32)
    at = program * COLUMNS + column
    inverse_at = inverse + program
    for _ in range(program, rows, programs):
        value = tl.load(total + at, mask=inside, other=0.0)
        gradient = tl.load(d_normed + at, mask=inside, other=0.0).to(tl.float32)
        inverse_root = tl.load(inverse_at)
        unit = value.to(tl.float32) * inverse_root
        rounded = unit.to(value.dtype).to(tl.float32)
        if WEIGHT_GRADIENT:
            weight_gradient += gradient * rounded
        if WRITE_NORMED:
            tl.store(normed + at, (rounded * scale).to(value.dtype), mask=inside)
        gradient = gradient * scale
        along = tl.sum(gradient * unit, axis=0) / COLUMNS
        result = (gradient - unit * along) * inverse_root
        if HAS_RESIDUAL:
            result += tl.load(d_total + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_input + at, result.to(value.dtype), mask=inside)
        at += programs * COLUMNS
        inverse_at += programs
    if WEIGHT_GRADIENT:
        tl.store(partial + program * COLUMNS + column, weight_gradient, mask=inside)


@triton.jit
def _normalise_heads(first, second, first_scale, second_scale, epsilon, DIM: tl.constexpr):
    """Normalise each head of a tile of two halves. Returns the normed halves, rounded as in the modules, and 1 / root."""
    low, high = first.to(tl.float32), second.to(tl.float32)
    mean = (tl.sum(low * low, axis=2) + tl.sum(high * high, axis=2)) / DIM
    inverse_root = tl.rsqrt(mean + epsilon)[:, :, None]
    low = (low * inverse_root).to(first.dtype).to(tl.float32)
    high = (high * inverse_root).to(first.dtype).to(tl.float32)
    return (low * first_scale).to(first.dtype), (high * second_scale).to(first.dtype), inverse_root


@triton.jit
def _load_head_scale(query_norm, key_norm, head, at, inside, QUERY_HEADS: tl.constexpr):
    """Load the norm weights of each head of a tile: those of queries or of keys."""
    query_scale = tl.load(query_norm + at, mask=inside, other=0.0).to(tl.float32)
    key_scale = tl.load(key_norm + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(head < QUERY_HEADS, query_scale, key_scale)


@triton.jit(do_not_specialize=["tokens"])
def _rotary_forward_kernel(
    qkv, cosine, sine, query_norm, key_norm, out, tokens, epsilon, QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    DIM: tl.constexpr, OUT_WIDTH: tl.constexpr, HAS_NORM: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = DIM // 2
    WIDTH: tl.constexpr = (QUERY_HEADS + 2 * KV_HEADS) * DIM
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None, None].to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[None, :, None]
    place = tl.arange(0, BLOCK)[None, None, :]
    angle_inside = (token < tokens) & (place < HALF)
    inside = angle_inside & (head < QUERY_HEADS + KV_HEADS)
    at = token * WIDTH + head * DIM + place
    first = tl.load(qkv + at, mask=inside, other=0.0)
    second = tl.load(qkv + at + HALF, mask=inside, other=0.0)
    if HAS_NORM:
        first_scale = _load_head_scale(query_norm, key_norm, head, place, place < HALF, QUERY_HEADS)
        second_scale = _load_head_scale(query_norm, key_norm, head, place + HALF, place < HALF, QUERY_HEADS)
        first, second, _ = _normalise_heads(first, second, first_scale, second_scale, epsilon, DIM)
    cos = tl.load(cosine + token * HALF + place, mask=angle_inside, other=0.0)
    sin = tl.load(sine + token * HALF + place, mask=angle_inside, other=0.0)
    low, high = first.to(tl.float32), second.to(tl.float32)
    out_at = token * OUT_WIDTH + head * DIM + place
    tl.store(out + out_at, (low * cos - high * sin).to(first.dtype), mask=inside)
    tl.store(out + out_at + HALF, (high * cos + low * sin).to(first.dtype), mask=inside)


@triton.jit
def _load_heads(query, key, value, query_at, key_at, value_at, shift, is_query, is_key, is_value):
    """Load a tile of heads from three tensors; masked values are not read."""
    tile = tl.load(query + query_at + shift, mask=is_query, other=0.0).to(tl.float32)
    tile += tl.load(key + key_at + shift, mask=is_key, other=0.0).to(tl.float32)
    return tile + tl.load(value + value_at + shift, mask=is_value, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def _rotary_backward_kernel(
    d_query, d_key, d_value, qkv, cosine, sine, query_norm, key_norm, d_qkv, bias_partial, norm_partial, tokens, query_stride,
    query_head_stride, key_stride, key_head_stride, value_stride, value_head_stride, epsilon, QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, HAS_NORM: tl.constexpr, BIAS_GRADIENT: tl.constexpr,
    NORM_GRADIENT: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = DIM // 2
    TURNED: tl.constexpr = QUERY_HEADS + KV_HEADS
    WIDTH: tl.constexpr = (QUERY_HEADS + 2 * KV_HEADS) * DIM
    program, programs = tl.program_id(0), tl.num_programs(0)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[None, :, None]
    place = tl.arange(0, BLOCK)[None, None, :]
    of_head = (head < QUERY_HEADS + 2 * KV_HEADS) & (place < HALF)
    if HAS_NORM:
        first_scale = _load_head_scale(query_norm, key_norm, head, place, place < HALF, QUERY_HEADS)
        second_scale = _load_head_scale(query_norm, key_norm, head, place + HALF, place < HALF, QUERY_HEADS)
    first_bias = tl.zeros([HEADS, BLOCK], dtype=tl.float32)
    second_bias = tl.zeros([HEADS, BLOCK], dtype=tl.float32)
    first_norm = tl.zeros([HEADS, BLOCK], dtype=tl.float32)
    second_norm = tl.zeros([HEADS, BLOCK], dtype=tl.float32)
    for block in range(program, tl.cdiv(tokens, TOKENS), programs):
        token = (block * TOKENS + tl.arange(0, TOKENS))[:, None, None].to(tl.int64)
        inside = of_head & (token < tokens)
        is_query = inside & (head < QUERY_HEADS)
        is_key = inside & (head >= QUERY_HEADS) & (head < TURNED)
        is_value = inside & (head >= TURNED)
        query_at = token * query_stride + head * query_head_stride + place
        key_at = token * key_stride + (head - QUERY_HEADS) * key_head_stride + place
        value_at = token * value_stride + (head - TURNED) * value_head_stride + place
        low = _load_heads(d_query, d_key, d_value, query_at, key_at, value_at, 0, is_query, is_key, is_value)
        high = _load_heads(d_query, d_key, d_value, query_at, key_at, value_at, HALF, is_query, is_key, is_value)
        angle_inside = (token < tokens) & (place < HALF)
        cos = tl.load(cosine + token * HALF + place, mask=angle_inside, other=0.0)
        sin = tl.load(sine + token * HALF + place, mask=angle_inside, other=0.0)
        cos = tl.where(head < TURNED, cos, 1.0)
        sin = tl.where(head < TURNED, sin, 0.0)
        first = low * cos + high * sin
        second = high * cos - low * sin
        at = token * WIDTH + head * DIM + place
        if HAS_NORM:
            turned = inside & (head < TURNED)
            raw_first = tl.load(qkv + at, mask=turned, other=0.0)
            raw_second = tl.load(qkv + at + HALF, mask=turned, other=0.0)
            unit_first, unit_second, inverse_root = _normalise_heads(raw_first, raw_second, 1.0, 1.0, epsilon, DIM)
            if NORM_GRADIENT:
                first_norm += tl.sum(first * unit_first.to(tl.float32), axis=0)
                second_norm += tl.sum(second * unit_second.to(tl.float32), axis=0)
            scaled_first, scaled_second = first * first_scale, second * second_scale
            exact_first = raw_first.to(tl.float32) * inverse_root
            exact_second = raw_second.to(tl.float32) * inverse_root
            along = (tl.sum(scaled_first * exact_first, axis=2) + tl.sum(scaled_second * exact_second, axis=2))[
                :, :, None
            ] / DIM
            first = tl.where(head < TURNED, (scaled_first - exact_first * along) * inverse_root, first)
            second = tl.where(head < TURNED, (scaled_second - exact_second * along) * inverse_root, second)
        if BIAS_GRADIENT:
            first_bias += tl.sum(first, axis=0)
            second_bias += tl.sum(second, axis=0)
        tl.store(d_qkv + at, first.to(d_qkv.dtype.element_ty), mask=inside)
        tl.store(d_qkv + at + HALF, second.to(d_qkv.dtype.element_ty), mask=inside)
    head_row = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    place_row = tl.arange(0, BLOCK)[None, :]
    at_row = program.to(tl.int64) * WIDTH + head_row * DIM + place_row
    row_inside = (head_row < QUERY_HEADS + 2 * KV_HEADS) & (place_row < HALF)
    if BIAS_GRADIENT:
        tl.store(bias_partial + at_row, first_bias, mask=row_inside)
        tl.store(bias_partial + at_row + HALF, second_bias, mask=row_inside)
    if NORM_GRADIENT:
        # Values have no norm: their rows of the partial sums are not written, and not read.
        tl.store(norm_partial + at_row, first_norm, mask=row_inside & (head_row < TURNED))
        tl.store(norm_partial + at_row + HALF, second_norm, mask=row_inside & (head_row < TURNED))


@triton.jit
def _swiglu_forward_kernel(gate_up, activation, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row = (program // BLOCKS).to(tl.int64)
    column = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    at = row * (2 * COLUMNS) + column
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + COLUMNS, mask=inside, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(activation + row * COLUMNS + column, result.to(activation.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward_kernel(
    d_activation, gate_up, d_gate_up, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, WRITE: tl.constexpr, BLOCK: tl.constexpr
):
    program = tl.program_id(0)
    row = (program // BLOCKS).to(tl.int64)
    column = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    at = row * (2 * COLUMNS) + column
    narrow_at = row * COLUMNS + column
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + COLUMNS, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(d_activation + narrow_at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    d_gate = gradient * up * (sigmoid + silu * (1.0 - sigmoid))
    tl.store(d_gate_up + at, d_gate.to(d_gate_up.dtype.element_ty), mask=inside)
    tl.store(d_gate_up + at + COLUMNS, (gradient * silu).to(d_gate_up.dtype.element_ty), mask=inside)
    if WRITE:
        # Only this program reads the gradient at these positions, so its memory can be reused.
        tl.store(d_activation + narrow_at, (silu * up).to(d_activation.dtype.element_ty), mask=inside)


def add_norm_forward(
    hidden_TH: Tensor, delta_TH: Tensor | None, weight_H: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden + delta, its RMSNorm, and 1 / root mean square of each row in float32."""
    if delta_TH is not None and delta_TH.shape != hidden_TH.shape:
        raise ValueError(f"add_norm adds {tuple(delta_TH.shape)} to {tuple(hidden_TH.shape)}")
    hidden_TH = hidden_TH.contiguous()
    rows, columns = hidden_TH.shape
    total_TH = hidden_TH if delta_TH is None else torch.empty_like(hidden_TH)
    normed_TH = torch.empty_like(hidden_TH)
    inverse_T = torch.empty(rows, dtype=torch.float32, device=hidden_TH.device)
    block = triton.next_power_of_2(columns)
    added_TH = hidden_TH if delta_TH is None else delta_TH.contiguous()
    _launch(
        _add_norm_forward_kernel, (rows,), (hidden_TH, added_TH, weight_H, total_TH, normed_TH, inverse_T, epsilon),
        COLUMNS=columns, HAS_DELTA=delta_TH is not None, BLOCK=block, num_warps=_choose_warps(block),
    )  # fmt: skip
    return total_TH, normed_TH, inverse_T


def add_norm_backward(
    d_normed_TH: Tensor, d_total_TH: Tensor | None, inputs: NormInputs, want_normed: bool, want_weight: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradient of the residual stream before the norm, the normed activations, and the gradient of the weight."""
    total_TH, inverse_T, weight_H = inputs.total_TH.contiguous(), inputs.inverse_T, inputs.weight_H
    rows, columns = total_TH.shape
    block = triton.next_power_of_2(columns)
    warps = _choose_warps(block)
    programs = max(1, min(rows, _count_processors(total_TH.device) * max(1, WARPS_PER_PROCESSOR // warps)))
    d_input_TH = torch.empty_like(total_TH)
    normed_TH = torch.empty_like(total_TH) if want_normed else None
    partial_PH = torch.empty(programs, columns, dtype=torch.float32, device=total_TH.device) if want_weight else None
    residual_TH = total_TH if d_total_TH is None else d_total_TH.contiguous()
    outputs = (d_input_TH, total_TH if normed_TH is None else normed_TH, inverse_T if partial_PH is None else partial_PH)
    _launch(
        _add_norm_backward_kernel, (programs,),
        (d_normed_TH.contiguous(), residual_TH, total_TH, inverse_T, weight_H, *outputs, rows), COLUMNS=columns,
        HAS_RESIDUAL=d_total_TH is not None, WRITE_NORMED=want_normed, WEIGHT_GRADIENT=want_weight, BLOCK=block,
        num_warps=warps,
    )  # fmt: skip
    return d_input_TH, normed_TH, None if partial_PH is None else partial_PH.sum(0).to(weight_H.dtype)


def rotary_forward(qkv_TP: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries and keys, and the values, as views. Without head norms `qkv_TP` is rotated in place."""
    heads, tokens, turned = rotary.heads, qkv_TP.shape[0], rotary.heads.query + rotary.heads.kv
    has_norm = rotary.query_norm is not None
    out_TP = torch.empty(tokens, turned * heads.dim, dtype=qkv_TP.dtype, device=qkv_TP.device) if has_norm else qkv_TP
    tile = _choose_tile(heads, turned, FORWARD_TILE)
    _launch(
        _rotary_forward_kernel, (triton.cdiv(tokens, tile["TOKENS"]), triton.cdiv(turned, tile["HEADS"])),
        (qkv_TP, *_list_rotary_inputs(rotary), out_TP, tokens, rotary.epsilon), OUT_WIDTH=out_TP.shape[1], HAS_NORM=has_norm,
        **tile,
    )  # fmt: skip
    return heads.queries(out_TP), heads.keys(out_TP), heads.values(qkv_TP)


def rotary_backward(
    d_heads: Sequence[Tensor], qkv_TP: Tensor | None, rotary: Rotary, want_bias: bool, want_norm: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of the projections [T, P], of their biases [P], and of the two head norms."""
    gradients = [gradient if gradient.stride(-1) == 1 else gradient.contiguous() for gradient in d_heads]
    heads, (tokens, device) = rotary.heads, (gradients[0].shape[0], gradients[0].device)
    d_qkv_TP = torch.empty(tokens, heads.width, dtype=gradients[0].dtype, device=device)
    tile = _choose_tile(heads, heads.query + 2 * heads.kv, BACKWARD_TILE)
    head_programs = triton.cdiv(heads.query + 2 * heads.kv, tile["HEADS"])
    at_once = max(1, _count_processors(device) * WARPS_PER_PROCESSOR // (4 * head_programs))
    programs = max(1, min(triton.cdiv(tokens, tile["TOKENS"]), at_once))
    bias_SP, norm_SP = (
        torch.empty(programs, heads.width, dtype=torch.float32, device=device) if wanted else None
        for wanted in (want_bias, want_norm)
    )
    read_TP = d_qkv_TP if qkv_TP is None else qkv_TP
    sums = [rotary.cosine if partial is None else partial for partial in (bias_SP, norm_SP)]
    strides = [stride for gradient in gradients for stride in gradient.stride()[:2]]
    _launch(
        _rotary_backward_kernel, (programs, head_programs),
        (*gradients, read_TP, *_list_rotary_inputs(rotary), d_qkv_TP, *sums, tokens, *strides, rotary.epsilon),
        HAS_NORM=rotary.query_norm is not None, BIAS_GRADIENT=want_bias, NORM_GRADIENT=want_norm, **tile,
    )  # fmt: skip
    dtype = d_qkv_TP.dtype
    d_norms = [None if norm_SP is None else cut(norm_SP).sum((0, 1)).to(dtype) for cut in (heads.queries, heads.keys)]
    return d_qkv_TP, None if bias_SP is None else bias_SP.sum(0).to(dtype), d_norms[0], d_norms[1]


def swiglu_forward(gate_up_TJ: Tensor) -> Tensor:
    """Return silu(gate) * up of [T, 2 I]."""
    activation_TI = gate_up_TJ.new_empty(gate_up_TJ.shape[0], gate_up_TJ.shape[1] // 2)
    _launch_by_columns(_swiglu_forward_kernel, activation_TI, (gate_up_TJ.contiguous(), activation_TI))
    return activation_TI


def swiglu_backward(d_activation_TI: Tensor, gate_up_TJ: Tensor, want_activation: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of [T, 2 I], and the activation, which overwrites its own gradient."""
    d_activation_TI = d_activation_TI.contiguous()
    d_gate_up_TJ = torch.empty_like(gate_up_TJ, memory_format=torch.contiguous_format)
    arguments = (d_activation_TI, gate_up_TJ.contiguous(), d_gate_up_TJ)
    _launch_by_columns(_swiglu_backward_kernel, d_activation_TI, arguments, WRITE=want_activation)
    return d_gate_up_TJ, d_activation_TI if want_activation else None


def _list_rotary_inputs(rotary: Rotary) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return angles and norms. Any tensor stands in for a missing norm and is not read."""
    norms = [rotary.cosine if norm is None else norm for norm in (rotary.query_norm, rotary.key_norm)]
    return rotary.cosine, rotary.sine, norms[0], norms[1]


def _choose_tile(heads: Heads, served: int, pairs: int) -> dict[str, int]:
    """Return the options of both rotary kernels. A tile of so many pairs has tokens, some of the served heads with few empty
    ones, and the positions of half a head.
    """
    block = triton.next_power_of_2(heads.dim // 2)
    head_block = next(count for count in (16, 8, 4, 2, 1) if triton.cdiv(served, count) * count <= served * 5 // 4)
    return {
        "QUERY_HEADS": heads.query,
        "KV_HEADS": heads.kv,
        "DIM": heads.dim,
        "TOKENS": max(1, pairs // (head_block * block)),
        "HEADS": head_block,
        "BLOCK": block,
        "num_warps": 4,
    }


def _choose_warps(block: int) -> int:
    """Return the number of warps with 8 values, 16 bytes of bfloat16, per thread, for a program that processes one row."""
    return min(16, max(4, block // 256))


@lru_cache
def _count_processors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU. Triton's interpreter on a CPU counts as a small one, so that programs loop there
    too.
    """
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def _launch_by_columns(kernel: Any, rows_TI: Tensor, arguments: Sequence[Any], **options: Any) -> None:
    """Launch an element-wise kernel over all columns of all rows."""
    tokens, columns = rows_TI.shape
    block = min(COLUMNS_PER_PROGRAM, triton.next_power_of_2(columns))
    blocks = triton.cdiv(columns, block)
    _launch(kernel, (tokens * blocks,), arguments, COLUMNS=columns, BLOCKS=blocks, BLOCK=block, num_warps=4, **options)


def _launch(kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], **options: Any) -> None:
    """Launch the kernel on the device of its first argument; Triton would use the current device.

    An empty grid is skipped, because CUDA refuses it.
    """
    if all(grid):
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, **options)
