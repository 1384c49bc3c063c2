# mypy: allow-untyped-defs, allow-incomplete-defs
"""Triton kernels of the loss head: one pass over a chunk's logits for scores, one for their gradient.

One program reads a row of logits (600 KB for a vocabulary of 152k). It keeps a running maximum, sum and first moment in every
lane and joins the lanes once at the end. The loop has no reduction across threads and no atomics, so the bits are reproducible.
The entropy uses the moment of z - max, so it does not cancel for large logits. The reference implementations are `score` and
`differentiate` of cohort/ops/logprobs.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.ops.logprobs import ChunkScores, Curve

BLOCK = 2048
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
"""No fused multiply-adds: if only one of the kernels fused them, recomputed rows would differ from kept ones."""
LOWEST = tl.constexpr(-1.0e30)
"""Below every logit but finite: with an infinite start, lanes that read nothing would compute 0 * inf."""


@triton.jit
def _apply_curve(raw, scale, softcap, inverse_temperature, HAS_SOFTCAP: tl.constexpr):
    logits = raw * scale
    if HAS_SOFTCAP:
        tail = tl.exp(-2.0 * tl.abs(logits) / softcap)
        bent = (1.0 - tail) / (1.0 + tail) * softcap
        logits = tl.where(logits < 0, -bent, bent)
    return logits * inverse_temperature


@triton.jit
def _find_slope(curved, scale, softcap, inverse_temperature, HAS_SOFTCAP: tl.constexpr):
    """Return d curved / d raw, from the curved value."""
    if HAS_SOFTCAP:
        share = curved / (inverse_temperature * softcap)
        return (1.0 - share * share) * (scale * inverse_temperature)
    else:  # noqa: RET505 -- Triton compiles both returns of a constexpr branch unless it is written so
        return scale * inverse_temperature


@triton.jit
def _score_kernel(
    logits, token_ids, gradient, logprobs, entropies, peaks, log_sums,
    vocabulary, gradient_stride, scale, softcap, inverse_temperature,
    HAS_SOFTCAP: tl.constexpr, HAS_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    logits += row * vocabulary
    peak = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        places = start + lanes
        inside = places < vocabulary
        raw = tl.load(logits + places, mask=inside, other=0.0)
        curved = tl.where(inside, _apply_curve(raw, scale, softcap, inverse_temperature, HAS_SOFTCAP), LOWEST)
        # Either the old sum shrinks or the new term is below the peak, never both, so one exponential is enough.
        gap = curved - peak
        factor = tl.exp(-tl.abs(gap))
        rises = gap > 0
        shrink = tl.where(rises, factor, 1.0)
        term = tl.where(rises, 1.0, factor)
        moment = (moment - tl.maximum(gap, 0.0) * total) * shrink + term * tl.minimum(gap, 0.0)
        total = total * shrink + term
        peak = tl.maximum(peak, curved)
    top = tl.max(peak, 0)
    drop = peak - top
    shrink = tl.exp(drop)
    mass = tl.sum(total * shrink, 0)
    first = tl.sum((moment + drop * total) * shrink, 0)
    log_sum = tl.log(mass)
    token = tl.load(token_ids + row)
    chosen = _apply_curve(tl.load(logits + token), scale, softcap, inverse_temperature, HAS_SOFTCAP)
    tl.store(logprobs + row, (chosen - top) - log_sum)
    tl.store(entropies + row, log_sum - first / mass)
    tl.store(peaks + row, top)
    tl.store(log_sums + row, log_sum)
    if HAS_GRADIENT:
        gradient += row * gradient_stride
        for start in range(0, vocabulary, BLOCK):
            places = start + lanes
            inside = places < vocabulary
            raw = tl.load(logits + places, mask=inside, other=0.0)
            curved = _apply_curve(raw, scale, softcap, inverse_temperature, HAS_SOFTCAP)
            result = tl.where(places == token, 1.0, 0.0) - tl.exp((curved - top) - log_sum)
            result *= _find_slope(curved, scale, softcap, inverse_temperature, HAS_SOFTCAP)
            tl.store(gradient + places, result.to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def _differentiate_kernel(
    logits, token_ids, gradient, entropies, peaks, log_sums,
    logprob_weights, entropy_weights,
    vocabulary, gradient_stride, scale, softcap, inverse_temperature,
    HAS_SOFTCAP: tl.constexpr, HAS_WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < vocabulary
    raw = tl.load(logits + row * vocabulary + places, mask=inside, other=0.0)
    curved = _apply_curve(raw, scale, softcap, inverse_temperature, HAS_SOFTCAP)
    logprob = (curved - tl.load(peaks + row)) - tl.load(log_sums + row)
    probability = tl.exp(logprob)
    result = tl.where(places == tl.load(token_ids + row), 1.0, 0.0) - probability
    if HAS_WEIGHTS:
        entropy_part = probability * (logprob + tl.load(entropies + row))
        result = tl.load(logprob_weights + row) * result - tl.load(entropy_weights + row) * entropy_part
    result *= _find_slope(curved, scale, softcap, inverse_temperature, HAS_SOFTCAP)
    tl.store(gradient + row * gradient_stride + places, result.to(gradient.dtype.element_ty), mask=inside)


def score(logits_CV: Tensor, token_ids_C: Tensor, curve: Curve, gradient_CV: Tensor | None = None) -> ChunkScores:
    rows, vocabulary = logits_CV.shape
    _check(logits_CV, token_ids_C, gradient_CV)
    scored = ChunkScores(*(logits_CV.new_empty(rows) for _ in ChunkScores._fields))
    if rows == 0:
        return scored
    with torch.cuda.device_of(logits_CV):
        _score_kernel[(rows,)](
            logits_CV, token_ids_C, logits_CV if gradient_CV is None else gradient_CV, *scored,
            vocabulary, vocabulary if gradient_CV is None else gradient_CV.stride(0),
            curve.scale, curve.softcap, 1.0 / curve.temperature,
            HAS_SOFTCAP=curve.softcap != 0, HAS_GRADIENT=gradient_CV is not None, BLOCK=BLOCK, **LAUNCH,
        )  # fmt: skip
    return scored


def differentiate(
    logits_CV: Tensor,
    token_ids_C: Tensor,
    scored: ChunkScores,
    curve: Curve,
    gradient_CV: Tensor,
    weights: tuple[Tensor, Tensor] | None = None,
) -> None:
    rows, vocabulary = logits_CV.shape
    _check(logits_CV, token_ids_C, gradient_CV)
    if rows == 0:
        return
    of_logprob_C, of_entropy_C = (scored.entropy_C, scored.entropy_C) if weights is None else weights
    with torch.cuda.device_of(logits_CV):
        _differentiate_kernel[(rows, triton.cdiv(vocabulary, BLOCK))](
            logits_CV, token_ids_C, gradient_CV, scored.entropy_C.contiguous(), scored.peak_C.contiguous(),
            scored.log_sum_C.contiguous(), of_logprob_C.contiguous(), of_entropy_C.contiguous(),
            vocabulary, gradient_CV.stride(0), curve.scale, curve.softcap, 1.0 / curve.temperature,
            HAS_SOFTCAP=curve.softcap != 0, HAS_WEIGHTS=weights is not None, BLOCK=BLOCK, **LAUNCH,
        )  # fmt: skip


def _check(logits_CV: Tensor, token_ids_C: Tensor, gradient_CV: Tensor | None) -> None:
    if logits_CV.dtype != torch.float32 or not logits_CV.is_contiguous() or not token_ids_C.is_contiguous():
        raise ValueError(f"logits must be contiguous float32, not {logits_CV.dtype} of strides {logits_CV.stride()}")
    if gradient_CV is not None and (gradient_CV.shape != logits_CV.shape or gradient_CV.stride(1) != 1):
        raise ValueError(f"gradient rows {tuple(gradient_CV.shape)} must be contiguous and shaped as {tuple(logits_CV.shape)}")
