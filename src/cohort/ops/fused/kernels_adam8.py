"""The kernel of an AdamW update with 8-bit moments. The reference implementation is `adam8.update_pieces`.

Read per element: master 4 bytes, gradient 4, codes 2; written: master 4, codes 2; scales are 1/32 of a byte each way. A block
of 256 elements is one row of a tile and belongs to one program, so its new scale is a maximum within the program: no atomics,
no second pass. Square roots and divisions are correctly rounded, so the codes are those of the reference, except that fused
multiply-adds move about one value in 10^4 across the random threshold.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.ops.adam8 import BLOCK, FIRST_LEVELS, SECOND_LEVELS, Moments, Rule
from cohort.ops.noise import MULTIPLY_1, MULTIPLY_2, SPREAD_INDEX

ROWS = 8
"""Blocks per program: 16 elements per thread."""
_MULTIPLY_1 = tl.constexpr(MULTIPLY_1)
_MULTIPLY_2 = tl.constexpr(MULTIPLY_2 % (1 << 32))
_SPREAD = tl.constexpr(SPREAD_INDEX % (1 << 32))
_FIRST = tl.constexpr(float(FIRST_LEVELS))
_SECOND = tl.constexpr(float(SECOND_LEVELS))


@triton.jit
def _fourth_power(codes):  # type: ignore[no-untyped-def]
    root = codes * (1.0 / _SECOND)
    square = root * root
    return square * square


@triton.jit(do_not_specialize=["key_1", "key_2"])
def _adam8_kernel(  # type: ignore[no-untyped-def]
    master_ptr, gradient_ptr, first_codes_ptr, first_scales_ptr, second_codes_ptr, second_scales_ptr, size, shrink, step_size,
    beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, inverse_correction2_root, bound, key_1, key_2,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = at < size
    scaled = row * BLOCK < size

    gradient = tl.load(gradient_ptr + at, mask=inside, other=0.0).to(tl.float32)
    root = tl.load(first_codes_ptr + at, mask=inside, other=0).to(tl.float32) * (1.0 / _FIRST)
    first = root * tl.abs(root) * tl.load(first_scales_ptr + row, mask=scaled, other=0.0)[:, None]
    second = _fourth_power(tl.load(second_codes_ptr + at, mask=inside, other=0).to(tl.float32))
    second = second * tl.load(second_scales_ptr + row, mask=scaled, other=0.0)[:, None]

    first = first * beta1 + gradient * one_minus_beta1
    second = second * beta2 + gradient * gradient * one_minus_beta2
    root = tl.sqrt_rn(second)
    limit = root * bound
    first = tl.minimum(tl.maximum(first, -limit), limit)
    change = tl.div_rn(first, root * inverse_correction2_root + epsilon)
    master = tl.load(master_ptr + at, mask=inside, other=0.0)
    tl.store(master_ptr + at, master * shrink - change * step_size, mask=inside)

    bits = at.to(tl.uint32) * _SPREAD ^ key_1.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * _MULTIPLY_1 + key_2.to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * _MULTIPLY_2
    bits = bits ^ (bits >> 16)

    scale = tl.max(tl.abs(first), axis=1)
    tl.store(first_scales_ptr + row, scale, mask=scaled)
    share = tl.div_rn(tl.abs(first), tl.where(scale > 0, scale, 1.0)[:, None])
    low = tl.minimum(tl.floor(tl.sqrt_rn(share) * _FIRST), _FIRST - 1.0)
    chance = tl.div_rn(share * (_FIRST * _FIRST) - low * low, 2.0 * low + 1.0)
    codes = low + ((bits & 0xFFFF).to(tl.float32) * (1.0 / 65536.0) < chance).to(tl.float32)
    tl.store(first_codes_ptr + at, tl.where(first < 0, -codes, codes).to(tl.int8), mask=inside)

    scale = tl.max(second, axis=1)
    tl.store(second_scales_ptr + row, scale, mask=scaled)
    share = tl.div_rn(second, tl.where(scale > 0, scale, 1.0)[:, None])
    low = tl.minimum(tl.floor(tl.sqrt_rn(tl.sqrt_rn(share)) * _SECOND), _SECOND - 1.0)
    bottom = _fourth_power(low)
    chance = tl.div_rn(share - bottom, _fourth_power(low + 1.0) - bottom)
    codes = low + ((bits >> 16).to(tl.float32) * (1.0 / 65536.0) < chance).to(tl.float32)
    codes = tl.maximum(codes, (second > 0).to(tl.float32))
    tl.store(second_codes_ptr + at, codes.to(tl.uint8), mask=inside)


def update_fused(master: Tensor, gradient: Tensor, moments: Moments, rule: Rule, key: tuple[int, int]) -> None:
    """Do `adam8.update_pieces` in one launch. Master and gradient must be contiguous."""
    assert master.is_contiguous()
    assert gradient.is_contiguous()
    size = master.numel()
    with torch.cuda.device_of(master):  # Triton launches on the current device, which may be another one
        _adam8_kernel[(triton.cdiv(size, ROWS * BLOCK),)](
            master, gradient, moments.first_codes, moments.first_scales, moments.second_codes, moments.second_scales, size,
            1.0 - rule.rate * rule.decay, rule.rate / rule.correction1, rule.beta1, 1.0 - rule.beta1, rule.beta2,
            1.0 - rule.beta2, rule.epsilon, 1.0 / rule.correction2_root, rule.bound, key[0], key[1], ROWS=ROWS, BLOCK=BLOCK,
        )  # fmt: skip
