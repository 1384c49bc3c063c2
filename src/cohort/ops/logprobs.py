"""Log-probabilities and entropies of chosen tokens in float32, without holding the logits of a whole batch.

`linear_logprobs` has its own backward, which uses more than autograd knows. With p = softmax(z) and the chosen token y, d log
p(y) / dz = onehot(y) - p does not depend on the gradient from the loss, which only scales each row. So these rows are computed
while the logits exist:

- A head that is not trained (LoRA) needs only hidden gradients: the forward computes (onehot - p) @ W, keeps [tokens, H], and
  the backward multiplies rows. Logits are computed once.
- A head that is trained keeps the rows of one block of tokens for the backward, which needs that memory anyway. Logits
  of tokens beyond the first block are recomputed there.

Memory: one chunk of logits (CHUNK_ELEMENTS on a CPU, CUDA_CHUNK_BYTES on a GPU) and one block of their gradients in the compute
dtype (a chunk on a CPU, at most 1 / CUDA_BLOCK_SHARE of a GPU's memory), for any number of tokens and any vocabulary. Blocks
are larger than chunks because each adds its part of the weight gradient to a [V, H] sum in float32, whose traffic must stay
small beside the products.

On CUDA the two passes over a chunk's logits are Triton kernels (cohort/ops/fused/kernels_head.py). `score` and `differentiate`
are their reference implementations, and run on all other devices. Results do not depend on what was kept: recomputed rows use
the same operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from cohort.ops.fused import has_kernels
from cohort.ops.products import run_steadily

CHUNK_ELEMENTS = 1 << 24
"""Logits held at a time on a CPU: 64 MiB in float32."""
CUDA_CHUNK_BYTES = 5 << 28
"""Logits held at a time on a GPU, in float32: 2,048 tokens of a vocabulary of 152k, large enough for a product at full rate."""
CUDA_BLOCK_SHARE = 16
CUDA_ROWS = 256
"""Chunks contain a multiple of this many tokens where possible, for whole tiles of the matrix product."""
LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LinearHead:
    """softcap * tanh(scale * (hidden @ weight.T + bias) / softcap); a softcap of 0 means none."""

    weight_VH: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float = 0.0

    @property
    def trained(self) -> bool:
        return self.weight_VH.requires_grad or (self.bias_V is not None and self.bias_V.requires_grad)


class Curve(NamedTuple):
    """The function applied to a logit between the matrix product and the softmax."""

    scale: float
    softcap: float
    temperature: float


class ChunkScores(NamedTuple):
    """Scores of each token. peak and log_sum add up to the log-sum-exp; they are separate because the sum would be rounded."""

    logprobs_C: Tensor
    entropy_C: Tensor
    peak_C: Tensor
    log_sum_C: Tensor


class Sizes(NamedTuple):
    """Sizes in tokens. A block is a whole number of chunks."""

    chunk: int
    block: int


def linear_logprobs(
    hidden_MH: Tensor,
    token_ids_M: Tensor,
    head: LinearHead,
    *,
    temperature: float,
    entropy_gradient: bool = False,
    sizes: Sizes | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logprobs_M, entropy_M) of softmax(logits / temperature). The logits are divided, not the log-probs.

    Entropies have a gradient only with `entropy_gradient`. That gradient depends on the loss by more than a factor per row, so
    nothing is kept for it and all logits are computed twice.
    """
    inputs = (hidden_MH, head.weight_VH, head.bias_V, token_ids_M.contiguous())
    curve = Curve(head.scale, head.softcap, temperature)
    sizes = sizes or plan_sizes(head.weight_VH.shape[0], hidden_MH.dtype, hidden_MH.device)
    if torch.is_grad_enabled() and (hidden_MH.requires_grad or head.trained):
        logprobs_M, entropy_M = _TokenLogprobs.apply(*inputs, curve, entropy_gradient, sizes)
        return logprobs_M, entropy_M
    work = _Work(*inputs, curve, entropy_gradient, sizes)
    scored = work.make_scores()
    for rows in _each_span(0, hidden_MH.shape[0], sizes.chunk):
        work.score_rows(scored, rows)
    return scored.logprobs_C, scored.entropy_C


def token_logprobs(
    hidden_MH: Tensor,
    token_ids_M: Tensor,
    logits: Callable[[Tensor], Tensor],
    *,
    vocabulary: int,
    temperature: float,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Return the same for any differentiable function of hidden states: for heads that are more than a matrix, and as the
    reference.
    """

    def score_chunk(hidden_CH: Tensor, token_ids_C: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_CV = torch.log_softmax(logits(hidden_CH) / temperature, dim=-1)
        chosen_C = logprobs_CV.gather(1, token_ids_C[:, None]).squeeze(1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(-1)
        return chosen_C, entropy_C

    rows = max(1, chunk_elements // vocabulary)
    if hidden_MH.shape[0] <= rows:
        return score_chunk(hidden_MH, token_ids_M)
    pieces = []
    for hidden_CH, token_ids_C in zip(hidden_MH.split(rows), token_ids_M.split(rows), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(score_chunk, hidden_CH, token_ids_C, use_reentrant=False))
        else:
            pieces.append(score_chunk(hidden_CH, token_ids_C))
    return torch.cat([chosen for chosen, _ in pieces]), torch.cat([entropy for _, entropy in pieces])


def plan_sizes(vocabulary: int, dtype: torch.dtype, device: torch.device) -> Sizes:
    """Choose sizes that keep memory constant. On a GPU they depend only on the device, not on its free memory."""
    if device.type != "cuda":
        rows = max(1, CHUNK_ELEMENTS // vocabulary)
        return Sizes(rows, rows)
    chunk = max(1, CUDA_CHUNK_BYTES // (4 * vocabulary))
    chunk -= chunk % CUDA_ROWS if chunk > CUDA_ROWS else 0
    block_bytes = torch.cuda.get_device_properties(device).total_memory // CUDA_BLOCK_SHARE
    return Sizes(chunk, chunk * max(1, block_bytes // (dtype.itemsize * vocabulary * chunk)))


def project(hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    """Return hidden @ weight.T + bias in float32 or better. On a GPU low-precision products are not rounded to low precision.

    No gradients: the product with another output dtype has none.
    """
    if hidden_CH.is_cuda and hidden_CH.dtype in LOW_PRECISION:
        logits_CV = torch.mm(hidden_CH, weight_VH.t(), out_dtype=torch.float32)
        return logits_CV if bias_V is None else logits_CV.add_(bias_V)
    logits_CV = run_steadily(lambda rows: F.linear(rows, weight_VH, bias_V), hidden_CH)
    return logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))


def scale_and_cap(logits_CV: Tensor, scale: float, softcap: float) -> Tensor:
    """Apply scale and soft-cap to logits."""
    if scale != 1.0:
        logits_CV = logits_CV * scale
    if softcap:
        logits_CV = torch.tanh(logits_CV / softcap) * softcap
    return logits_CV


def score(logits_CV: Tensor, token_ids_C: Tensor, curve: Curve, gradient_CV: Tensor | None = None) -> ChunkScores:
    """Return a chunk's log-probs and entropies. Also writes d log-prob / d logits to gradient_CV if given."""
    bent_CV = scale_and_cap(logits_CV, curve.scale, curve.softcap)
    scaled_CV = bent_CV if curve.temperature == 1.0 else bent_CV / curve.temperature
    logprobs_CV = torch.log_softmax(scaled_CV, dim=-1)
    chosen_C = logprobs_CV.gather(1, token_ids_C[:, None]).squeeze(1)
    # The same bits as log_softmax: at the peak it gives 0 - log_sum.
    peak_C, log_sum_C = scaled_CV.amax(-1), -logprobs_CV.amax(-1)
    if gradient_CV is not None and gradient_CV.dtype == logprobs_CV.dtype:
        probabilities_CV = torch.exp(logprobs_CV, out=gradient_CV)
    else:
        probabilities_CV = logprobs_CV.exp()
    entropy_C = -logprobs_CV.mul_(probabilities_CV).sum(-1)
    if gradient_CV is not None:
        _centre_rows(probabilities_CV, chosen_C, token_ids_C)
        gradient_CV.copy_(_differentiate_curve(probabilities_CV, bent_CV, curve))
    return ChunkScores(chosen_C, entropy_C, peak_C, log_sum_C)


def differentiate(
    logits_CV: Tensor,
    token_ids_C: Tensor,
    scored: ChunkScores,
    curve: Curve,
    gradient_CV: Tensor,
    weights: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write d log-prob / d logits of a chunk that was scored before to gradient_CV, as `score` does.

    With `weights` of log-prob and entropy, the gradient of their weighted sum: w (onehot - p) - v p (log p + entropy).
    """
    bent_CV = scale_and_cap(logits_CV, curve.scale, curve.softcap)
    scaled_CV = bent_CV if curve.temperature == 1.0 else bent_CV / curve.temperature
    logprobs_CV = (scaled_CV - scored.peak_C[:, None]).sub_(scored.log_sum_C[:, None])
    result_CV = logprobs_CV.exp()
    if weights is None:
        _centre_rows(result_CV, scored.logprobs_C, token_ids_C)
    else:
        of_logprob_C1, of_entropy_C1 = weights[0][:, None], weights[1][:, None]
        # -v p (log p + entropy) - w p, then w at the chosen token.
        inner_CV = logprobs_CV.add_(scored.entropy_C[:, None]).mul_(of_entropy_C1).add_(of_logprob_C1)
        result_CV.mul_(inner_CV).neg_().scatter_add_(1, token_ids_C[:, None], of_logprob_C1)
    gradient_CV.copy_(_differentiate_curve(result_CV, bent_CV, curve))


def _centre_rows(probabilities_CV: Tensor, chosen_C: Tensor, token_ids_C: Tensor) -> None:
    """Turn p into onehot - p. The chosen token uses its log-prob, because 1 - p would cancel."""
    probabilities_CV.neg_().scatter_(1, token_ids_C[:, None], -torch.expm1(chosen_C)[:, None])


def _differentiate_curve(gradient_CV: Tensor, bent_CV: Tensor, curve: Curve) -> Tensor:
    if curve.softcap:
        gradient_CV.mul_(1 - (bent_CV / curve.softcap).square())
    slope = curve.scale / curve.temperature
    return gradient_CV if slope == 1.0 else gradient_CV.mul_(slope)


class _Work(NamedTuple):
    """The inputs and options of the scoring."""

    hidden_MH: Tensor
    weight_VH: Tensor
    bias_V: Tensor | None
    token_ids_M: Tensor
    curve: Curve
    entropy_gradient: bool
    sizes: Sizes

    def score_rows(self, scored: ChunkScores, rows: slice, gradient_CV: Tensor | None = None) -> None:
        """Fill `rows` of `scored`. A separate function, so that a chunk's logits are freed before the next ones are computed."""
        logits_CV = project(self.hidden_MH[rows], self.weight_VH, self.bias_V)
        chunk = _choose_passes(logits_CV)[0](logits_CV, self.token_ids_M[rows], self.curve, gradient_CV)
        for whole, part in zip(scored, chunk, strict=True):
            whole[rows] = part

    def differentiate_rows(
        self, scored: ChunkScores, rows: slice, gradient_CV: Tensor, weights: tuple[Tensor, Tensor] | None
    ) -> None:
        """Write the gradient of rows that were scored before to `gradient_CV`. A separate function for the same reason."""
        logits_CV = project(self.hidden_MH[rows], self.weight_VH, self.bias_V)
        chunk = ChunkScores(*(part[rows] for part in scored))
        _choose_passes(logits_CV)[1](logits_CV, self.token_ids_M[rows], chunk, self.curve, gradient_CV, weights)

    def make_scores(self) -> ChunkScores:
        tokens, dtype = self.hidden_MH.shape[0], torch.promote_types(self.hidden_MH.dtype, torch.float32)
        return ChunkScores(*(self.hidden_MH.new_empty(tokens, dtype=dtype) for _ in ChunkScores._fields))


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_MH: Tensor, weight_VH: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        """Takes the fields of `_Work`."""
        work = _Work(hidden_MH, weight_VH, *others)
        tokens, vocabulary = hidden_MH.shape[0], weight_VH.shape[0]
        trains_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        # Gradients of a block are kept for a trained head, and consumed chunk by chunk for a frozen one.
        kept_rows = 0 if work.entropy_gradient else min(tokens, work.sizes.block if trains_head else work.sizes.chunk)
        kept_KV = hidden_MH.new_empty(kept_rows, vocabulary)
        hidden_gradient_MH = None if trains_head or work.entropy_gradient else torch.empty_like(hidden_MH)
        scored = work.make_scores()
        for rows in _each_span(0, tokens, work.sizes.chunk):
            if hidden_gradient_MH is not None:
                gradient_CV = kept_KV[: rows.stop - rows.start]
                work.score_rows(scored, rows, gradient_CV)
                torch.mm(gradient_CV, weight_VH, out=hidden_gradient_MH[rows])
            else:
                work.score_rows(scored, rows, kept_KV[rows] if rows.stop <= kept_rows else None)
        ctx.settings, ctx.dtype = (work.curve, work.entropy_gradient, work.sizes), hidden_MH.dtype
        if not work.entropy_gradient:
            ctx.mark_non_differentiable(scored.entropy_C)
        if hidden_gradient_MH is not None:
            ctx.save_for_backward(hidden_gradient_MH)
        else:
            # Not among the saved tensors, which live until the end of the backward: the backward reuses this memory for
            # recomputed blocks. If a graph is walked twice, it is recomputed too.
            ctx.kept_KV = kept_KV if kept_rows else None
            ctx.save_for_backward(hidden_MH, weight_VH, work.bias_V, work.token_ids_M, *scored)
        ctx.frozen = hidden_gradient_MH is not None
        return scored.logprobs_C, scored.entropy_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_logprobs_M, of_entropy_M = gradients
        if ctx.frozen:
            (hidden_gradient_MH,) = ctx.saved_tensors
            return (hidden_gradient_MH * of_logprobs_M[:, None]).to(ctx.dtype), *[None] * 6
        hidden_MH, weight_VH, bias_V, token_ids_M, *parts = ctx.saved_tensors
        scored, work = ChunkScores(*parts), _Work(hidden_MH, weight_VH, bias_V, token_ids_M, *ctx.settings)
        tokens, vocabulary = hidden_MH.shape[0], weight_VH.shape[0]
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        hidden_gradient_MH = torch.empty_like(hidden_MH) if needs_hidden else None
        weight_gradient = _WeightGradient(weight_VH, tokens <= work.sizes.block) if needs_weight else None
        bias_gradient_V = scored.logprobs_C.new_zeros(vocabulary) if needs_bias else None

        # Rows of d log-prob / d logits are scaled by the loss where that is cheapest and rounds least: after the product, or
        # before it if they are narrower than hidden states. With an entropy gradient they already include the loss.
        narrow = vocabulary < hidden_MH.shape[1] and hidden_MH.dtype not in LOW_PRECISION
        scale_M = None if work.entropy_gradient or narrow else of_logprobs_M
        block_KV, ctx.kept_KV = ctx.kept_KV, None
        made = block_KV is not None
        if block_KV is None:
            block_KV = hidden_MH.new_empty(min(tokens, work.sizes.block), vocabulary)
        for block in _each_span(0, tokens, work.sizes.block):
            gradient_KV = block_KV[: block.stop - block.start]
            if not made:
                for rows in _each_span(block.start, block.stop, work.sizes.chunk):
                    gradient_CV = gradient_KV[rows.start - block.start : rows.stop - block.start]
                    weights = (of_logprobs_M[rows], of_entropy_M[rows]) if work.entropy_gradient else None
                    work.differentiate_rows(scored, rows, gradient_CV, weights)
            made = False
            if narrow and not work.entropy_gradient:
                gradient_KV.mul_(of_logprobs_M[block, None])
            if hidden_gradient_MH is not None and scale_M is None:
                torch.mm(gradient_KV, weight_VH, out=hidden_gradient_MH[block])
            elif hidden_gradient_MH is not None and scale_M is not None:
                hidden_gradient_MH[block] = _multiply_wide(gradient_KV, weight_VH) * scale_M[block, None]
            if weight_gradient is not None:
                hidden_KH = hidden_MH[block]
                weight_gradient.add(
                    gradient_KV, hidden_KH if scale_M is None else (hidden_KH * scale_M[block, None]).to(hidden_KH.dtype)
                )
            if bias_gradient_V is not None:
                for rows in _each_span(block.start, block.stop, work.sizes.chunk):
                    rows_CV = gradient_KV[rows.start - block.start : rows.stop - block.start].to(bias_gradient_V.dtype)
                    bias_gradient_V += rows_CV.sum(0) if scale_M is None else scale_M[rows] @ rows_CV
        weight_gradient_VH = None if weight_gradient is None else weight_gradient.total()
        if bias_gradient_V is not None:
            bias_gradient_V = bias_gradient_V.to(bias_V.dtype)
        return hidden_gradient_MH, weight_gradient_VH, bias_gradient_V, *[None] * 4


class _WeightGradient:
    """The sum of rows.T @ hidden over blocks in float32 or better. A single block is rounded once, by its own product."""

    def __init__(self, weight_VH: Tensor, single: bool):
        self.weight_VH, self.single = weight_VH, single
        self.sum_VH: Tensor | None = None

    def add(self, rows_KV: Tensor, hidden_KH: Tensor) -> None:
        if self.sum_VH is None:
            self.sum_VH = rows_KV.t() @ hidden_KH if self.single else _multiply_wide(rows_KV.t(), hidden_KH)
        elif self.sum_VH.dtype == rows_KV.dtype:
            self.sum_VH.addmm_(rows_KV.t(), hidden_KH)
        elif rows_KV.is_cuda and _adds_in_place(rows_KV.device, rows_KV.dtype):
            torch.addmm(self.sum_VH, rows_KV.t(), hidden_KH, out_dtype=torch.float32, out=self.sum_VH)
        else:
            self.sum_VH += _multiply_wide(rows_KV.t(), hidden_KH)

    def total(self) -> Tensor:
        return torch.zeros_like(self.weight_VH) if self.sum_VH is None else self.sum_VH.to(self.weight_VH.dtype)


def _multiply_wide(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right in float32 or better."""
    if left.is_cuda and left.dtype in LOW_PRECISION:
        return torch.mm(left, right, out_dtype=torch.float32)
    product = left @ right
    return product.to(torch.promote_types(product.dtype, torch.float32))


@functools.lru_cache
def _adds_in_place(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this build of torch can add a low-precision product to a float32 sum in one operation."""
    ones, total = torch.ones(16, 16, device=device, dtype=dtype), torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, ones, ones, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


def _each_span(start: int, stop: int, rows: int) -> Iterator[slice]:
    for place in range(start, stop, rows):
        yield slice(place, min(place + rows, stop))


def _choose_passes(logits_CV: Tensor) -> tuple[Callable[..., ChunkScores], Callable[..., None]]:
    """Return the two passes over a chunk's logits: the kernels where they run, else the functions above (float64, other
    devices).
    """
    if logits_CV.dtype == torch.float32 and has_kernels(logits_CV.device):
        from cohort.ops.fused import kernels_head

        return kernels_head.score, kernels_head.differentiate
    return score, differentiate
