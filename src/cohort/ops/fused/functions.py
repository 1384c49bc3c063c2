"""The blocks of a layer as autograd functions that keep as little as the backward can do with.

Between the matrix products, which stay with torch, each block calls the operations of `kernels_train.py` on a GPU, those of
`cpu_training.py` on a CPU where they could be compiled, and those of `Twins`, the same formulas in plain torch, elsewhere. What
autograd would keep and these do not: normed activations (made again from the residual stream and one number per row, in the
pass that needs both anyway), the product of gate and up (made again from the two), and projections before the rotary
embedding (a rotation is undone without its input).

Weights that lie in one tensor are multiplied as one. Their own parameters are arguments too, only so that autograd knows
where the gradients belong: each gets the rows of one product, and a parameter that needs no gradient costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cohort.ops.rounding import steady_rows

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_forced: list[bool] = []


@dataclass(frozen=True)
class Heads:
    """How the columns of fused projections are cut: all queries, then keys, then values."""

    query: int
    kv: int
    dim: int

    @property
    def width(self) -> int:
        return (self.query + 2 * self.kv) * self.dim

    def queries(self, columns_TP: Tensor) -> Tensor:
        return columns_TP[:, : self.query * self.dim].unflatten(1, (self.query, self.dim))

    def keys(self, columns_TP: Tensor) -> Tensor:
        start = self.query * self.dim
        return columns_TP[:, start : start + self.kv * self.dim].unflatten(1, (self.kv, self.dim))

    def values(self, columns_TP: Tensor) -> Tensor:
        start = (self.query + self.kv) * self.dim
        return columns_TP[:, start : start + self.kv * self.dim].unflatten(1, (self.kv, self.dim))


@dataclass(frozen=True)
class Norm:
    """An RMSNorm; `weight` takes part in autograd."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True)
class Projection:
    """Rows of several linear layers in one tensor, and the parameters that are views of it."""

    weight: Tensor
    parts: Sequence[Tensor]
    bias: Tensor | None = None
    bias_parts: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Rotary:
    """Cosine and sine [T, D / 2] in float32, and the norms of queries and keys before the rotation, where a model has them."""

    cosine: Tensor
    sine: Tensor
    heads: Heads
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


class Twins:
    """The operations of `kernels_train.py` in plain torch: the slow twins of the tests, and what runs without a GPU."""

    @staticmethod
    def add_norm_forward(
        hidden_TH: Tensor, delta_TH: Tensor | None, weight_H: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        total_TH = hidden_TH if delta_TH is None else hidden_TH + delta_TH
        unit_TH, inverse_T1 = _normalised(total_TH, epsilon)
        return total_TH, unit_TH.to(total_TH.dtype) * weight_H, inverse_T1.squeeze(1)

    @staticmethod
    def add_norm_backward(
        d_normed_TH: Tensor,
        d_total_TH: Tensor | None,
        total_TH: Tensor,
        inverse_T: Tensor,
        weight_H: Tensor,
        want_normed: bool,
        want_weight: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inverse_T1 = inverse_T[:, None]
        unit_TH = total_TH.to(inverse_T.dtype) * inverse_T1
        rounded_TH = unit_TH.to(total_TH.dtype)
        d_input_TH = _norm_backward(d_normed_TH.to(inverse_T.dtype) * weight_H, unit_TH, inverse_T1)
        if d_total_TH is not None:
            d_input_TH += d_total_TH
        d_weight_H = (d_normed_TH.to(inverse_T.dtype) * rounded_TH).sum(0).to(weight_H.dtype) if want_weight else None
        return d_input_TH.to(total_TH.dtype), rounded_TH * weight_H if want_normed else None, d_weight_H

    @staticmethod
    def rotary_forward(
        qkv_TP: Tensor,
        cosine_TD: Tensor,
        sine_TD: Tensor,
        heads: Heads,
        query_norm_D: Tensor | None,
        key_norm_D: Tensor | None,
        epsilon: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        query_THD, key_TKD = heads.queries(qkv_TP), heads.keys(qkv_TP)
        if query_norm_D is not None and key_norm_D is not None:
            query_THD = _normalised(query_THD, epsilon)[0].to(qkv_TP.dtype) * query_norm_D
            key_TKD = _normalised(key_TKD, epsilon)[0].to(qkv_TP.dtype) * key_norm_D
        query_THD, key_TKD = _turned(query_THD, cosine_TD, sine_TD), _turned(key_TKD, cosine_TD, sine_TD)
        return query_THD.to(qkv_TP.dtype), key_TKD.to(qkv_TP.dtype), heads.values(qkv_TP)

    @staticmethod
    def rotary_backward(
        d_query_THD: Tensor,
        d_key_TKD: Tensor,
        d_value_TKD: Tensor,
        qkv_TP: Tensor | None,
        cosine_TD: Tensor,
        sine_TD: Tensor,
        heads: Heads,
        query_norm_D: Tensor | None,
        key_norm_D: Tensor | None,
        epsilon: float,
        want_bias: bool,
        want_norm: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        dtype = d_query_THD.dtype
        wide = _wide(dtype)
        d_qkv_TP = torch.empty(d_query_THD.shape[0], heads.width, dtype=wide, device=d_query_THD.device)
        norm_gradients: list[Tensor | None] = []
        for cut, gradient_THD, norm_D in (
            (heads.queries, d_query_THD, query_norm_D),
            (heads.keys, d_key_TKD, key_norm_D),
        ):
            # Turning by the opposite angle is the transpose of a rotation.
            back_THD = _turned(gradient_THD.to(wide), cosine_TD, -sine_TD)
            if norm_D is not None and qkv_TP is not None:
                unit_THD, inverse_TH1 = _normalised(cut(qkv_TP), epsilon)
                if want_norm:
                    norm_gradients.append((back_THD * unit_THD.to(dtype)).sum((0, 1)).to(dtype))
                back_THD = _norm_backward(back_THD * norm_D, unit_THD, inverse_TH1)
            cut(d_qkv_TP).copy_(back_THD)
        heads.values(d_qkv_TP).copy_(d_value_TKD)
        d_query_norm_D, d_key_norm_D = norm_gradients or (None, None)
        return d_qkv_TP.to(dtype), d_qkv_TP.sum(0).to(dtype) if want_bias else None, d_query_norm_D, d_key_norm_D

    @staticmethod
    def swiglu_forward(gate_up_TJ: Tensor) -> Tensor:
        gate_TI, up_TI = gate_up_TJ.to(_wide(gate_up_TJ.dtype)).chunk(2, dim=1)
        return (F.silu(gate_TI) * up_TI).to(gate_up_TJ.dtype)

    @staticmethod
    def swiglu_backward(d_activation_TI: Tensor, gate_up_TJ: Tensor, want_activation: bool) -> tuple[Tensor, Tensor | None]:
        wide = _wide(gate_up_TJ.dtype)
        gate_TI, up_TI = gate_up_TJ.to(wide).chunk(2, dim=1)
        sigmoid_TI = gate_TI.sigmoid()
        silu_TI = gate_TI * sigmoid_TI
        d_gate_up_TJ = torch.empty_like(gate_up_TJ)
        d_gate_TI, d_up_TI = d_gate_up_TJ.chunk(2, dim=1)
        d_gate_TI.copy_(d_activation_TI.to(wide) * up_TI * (sigmoid_TI + silu_TI * (1 - sigmoid_TI)))
        d_up_TI.copy_(d_activation_TI.to(wide) * silu_TI)
        return d_gate_up_TJ, (silu_TI * up_TI).to(gate_up_TJ.dtype) if want_activation else None


def operations(tensor: Tensor) -> Any:
    """The kernels where a GPU can run them, their twins elsewhere."""
    wanted = _forced[-1] if _forced else tensor.is_cuda and _has_triton()
    if not wanted or tensor.dtype not in KERNEL_DTYPES:
        return Twins
    from cohort.ops.fused import kernels_train

    return kernels_train


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@contextmanager
def forced(kernels: bool) -> Iterator[None]:
    """Use the kernels (on a CPU they need Triton's interpreter) or the twins, whatever the device."""
    _forced.append(kernels)
    try:
        yield
    finally:
        _forced.pop()


def add_norm(hidden_TH: Tensor, delta_TH: Tensor | None, norm: Norm, using: Any = None) -> tuple[Tensor, Tensor]:
    """hidden + delta, and its norm. `using`, here and below: operations to take instead of those of the device."""
    total_TH, normed_TH = _AddNorm.apply(using or operations(hidden_TH), norm.epsilon, hidden_TH, delta_TH, norm.weight)
    return total_TH, normed_TH


def norm_linear(
    hidden_TH: Tensor, delta_TH: Tensor | None, norm: Norm, projection: Projection, using: Any = None
) -> tuple[Tensor, Tensor]:
    """hidden + delta, and the projection of its norm."""
    total_TH, projected_TP = _NormLinear.apply(
        using or operations(hidden_TH),
        norm.epsilon,
        hidden_TH,
        delta_TH,
        norm.weight,
        projection.weight,
        projection.bias,
        *projection.parts,
        *projection.bias_parts,
    )
    return total_TH, projected_TP


def attention_inputs(
    hidden_TH: Tensor, delta_TH: Tensor | None, norm: Norm, projection: Projection, rotary: Rotary, using: Any = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden + delta, and the turned queries [T, heads, D], turned keys and values [T, kv_heads, D] of its norm."""
    total_TH, query_THD, key_TKD, value_TKD = _AttentionInputs.apply(
        using or operations(hidden_TH),
        norm.epsilon,
        rotary,
        hidden_TH,
        delta_TH,
        norm.weight,
        projection.weight,
        projection.bias,
        rotary.query_norm,
        rotary.key_norm,
        *projection.parts,
        *projection.bias_parts,
    )
    return total_TH, query_THD, key_TKD, value_TKD


def swiglu_down(gate_up_TJ: Tensor, down_HI: Tensor, using: Any = None) -> Tensor:
    """The down projection of silu(gate) * up."""
    result: Tensor = _SwigluDown.apply(using or operations(gate_up_TJ), gate_up_TJ, down_HI)
    return result


def linear(rows_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    return steady_rows(lambda rows: F.linear(rows, weight_OI, bias_O), rows_TI)


class _AddNorm(Function):
    @staticmethod
    def forward(ctx: Any, using: Any, epsilon: float, hidden_TH: Tensor, delta_TH: Tensor | None, weight_H: Tensor) -> Any:
        ctx.operations = using
        total_TH, normed_TH, inverse_T = ctx.operations.add_norm_forward(hidden_TH, delta_TH, weight_H, epsilon)
        ctx.save_for_backward(total_TH, inverse_T, weight_H)
        ctx.set_materialize_grads(False)
        return total_TH, normed_TH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total_TH: Tensor | None, d_normed_TH: Tensor | None) -> Any:
        total_TH, inverse_T, weight_H = ctx.saved_tensors
        _, _, needs_hidden, needs_delta, needs_weight = ctx.needs_input_grad
        d_weight_H, d_input_TH = None, d_total_TH
        if d_normed_TH is not None:
            d_input_TH, _, d_weight_H = ctx.operations.add_norm_backward(
                d_normed_TH, d_total_TH, total_TH, inverse_T, weight_H, False, needs_weight
            )
        return None, None, d_input_TH if needs_hidden else None, d_input_TH if needs_delta else None, d_weight_H


class _NormLinear(Function):
    @staticmethod
    def forward(
        ctx: Any,
        using: Any,
        epsilon: float,
        hidden_TH: Tensor,
        delta_TH: Tensor | None,
        norm_H: Tensor,
        weight_PH: Tensor,
        bias_P: Tensor | None,
        *parts: Tensor,
    ) -> Any:
        ctx.operations, ctx.epsilon, ctx.rows = using, epsilon, _rows(parts, bias_P)
        total_TH, normed_TH, inverse_T = ctx.operations.add_norm_forward(hidden_TH, delta_TH, norm_H, epsilon)
        ctx.save_for_backward(total_TH, inverse_T, norm_H, weight_PH)
        ctx.set_materialize_grads(False)
        return total_TH, linear(normed_TH, weight_PH, bias_P)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total_TH: Tensor | None, d_projected_TP: Tensor | None) -> Any:
        _, _, needs_hidden, needs_delta, needs_norm, _, _, *needs_parts = ctx.needs_input_grad
        if d_projected_TP is None:
            return _passed_on(ctx, d_total_TH, 2)
        needs_weights, needs_biases = needs_parts[: len(ctx.rows)], needs_parts[len(ctx.rows) :]
        d_input_TH, d_norm_H, d_weights = _norm_linear_backward(
            ctx, ctx.saved_tensors, d_total_TH, d_projected_TP, needs_hidden or needs_delta, needs_norm, needs_weights
        )
        d_biases = _cut(d_projected_TP.sum(0), ctx.rows, needs_biases) if any(needs_biases) else [None] * len(needs_biases)
        d_hidden_TH, d_delta_TH = d_input_TH if needs_hidden else None, d_input_TH if needs_delta else None
        return None, None, d_hidden_TH, d_delta_TH, d_norm_H, None, None, *d_weights, *d_biases


class _AttentionInputs(Function):
    @staticmethod
    def forward(
        ctx: Any,
        using: Any,
        epsilon: float,
        rotary: Rotary,
        hidden_TH: Tensor,
        delta_TH: Tensor | None,
        norm_H: Tensor,
        weight_PH: Tensor,
        bias_P: Tensor | None,
        query_norm_D: Tensor | None,
        key_norm_D: Tensor | None,
        *parts: Tensor,
    ) -> Any:
        ctx.operations, ctx.epsilon, ctx.rows = using, epsilon, _rows(parts, bias_P)
        ctx.heads = rotary.heads
        total_TH, normed_TH, inverse_T = ctx.operations.add_norm_forward(hidden_TH, delta_TH, norm_H, epsilon)
        qkv_TP = linear(normed_TH, weight_PH, bias_P)
        query_THD, key_TKD, value_TKD = ctx.operations.rotary_forward(
            qkv_TP, rotary.cosine, rotary.sine, rotary.heads, query_norm_D, key_norm_D, epsilon
        )
        # A rotation is undone without its input, a norm is not.
        kept_TP = None if query_norm_D is None else qkv_TP
        ctx.save_for_backward(
            total_TH, inverse_T, norm_H, weight_PH, kept_TP, rotary.cosine, rotary.sine, query_norm_D, key_norm_D
        )
        ctx.set_materialize_grads(False)
        return total_TH, query_THD, key_TKD, value_TKD

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_total_TH: Tensor | None,
        d_query_THD: Tensor | None,
        d_key_TKD: Tensor | None,
        d_value_TKD: Tensor | None,
    ) -> Any:
        total_TH, inverse_T, norm_H, weight_PH, qkv_TP, cosine, sine, query_norm_D, key_norm_D = ctx.saved_tensors
        _, _, _, needs_hidden, needs_delta, needs_norm, _, _, needs_query, needs_key, *needs_parts = ctx.needs_input_grad
        if d_query_THD is None and d_key_TKD is None and d_value_TKD is None:
            return _passed_on(ctx, d_total_TH, 3)
        needs_weights, needs_biases = needs_parts[: len(ctx.rows)], needs_parts[len(ctx.rows) :]
        shape = (total_TH.shape[0], ctx.heads.kv, ctx.heads.dim)
        d_qkv_TP, d_bias_P, d_query_norm_D, d_key_norm_D = ctx.operations.rotary_backward(
            total_TH.new_zeros(shape[0], ctx.heads.query, ctx.heads.dim) if d_query_THD is None else d_query_THD,
            total_TH.new_zeros(shape) if d_key_TKD is None else d_key_TKD,
            total_TH.new_zeros(shape) if d_value_TKD is None else d_value_TKD,
            qkv_TP,
            cosine,
            sine,
            ctx.heads,
            query_norm_D,
            key_norm_D,
            ctx.epsilon,
            any(needs_biases),
            needs_query or needs_key,
        )
        d_input_TH, d_norm_H, d_weights = _norm_linear_backward(
            ctx,
            (total_TH, inverse_T, norm_H, weight_PH),
            d_total_TH,
            d_qkv_TP,
            needs_hidden or needs_delta,
            needs_norm,
            needs_weights,
        )
        d_biases = [None] * len(needs_biases) if d_bias_P is None else _cut(d_bias_P, ctx.rows, needs_biases)
        return (
            *(None, None, None, d_input_TH if needs_hidden else None, d_input_TH if needs_delta else None),
            *(d_norm_H, None, None),
            *(d_query_norm_D if needs_query else None, d_key_norm_D if needs_key else None),
            *d_weights,
            *d_biases,
        )


class _SwigluDown(Function):
    @staticmethod
    def forward(ctx: Any, using: Any, gate_up_TJ: Tensor, down_HI: Tensor) -> Tensor:
        ctx.operations = using
        ctx.save_for_backward(gate_up_TJ, down_HI)
        return linear(ctx.operations.swiglu_forward(gate_up_TJ), down_HI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_TH: Tensor) -> Any:
        gate_up_TJ, down_HI = ctx.saved_tensors
        _, needs_input, needs_down = ctx.needs_input_grad
        if not needs_input:
            return None, None, d_out_TH.t() @ ctx.operations.swiglu_forward(gate_up_TJ)
        d_gate_up_TJ, activation_TI = ctx.operations.swiglu_backward(d_out_TH @ down_HI, gate_up_TJ, needs_down)
        return None, d_gate_up_TJ, d_out_TH.t() @ activation_TI if needs_down else None


def _norm_linear_backward(
    ctx: Any,
    saved: Sequence[Tensor],
    d_total_TH: Tensor | None,
    d_projected_TP: Tensor,
    needs_input: bool,
    needs_norm: bool,
    needs_weights: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, list[Tensor | None]]:
    """Gradients of the residual stream, of the norm, and of each part of the projection."""
    total_TH, inverse_T, norm_H, weight_PH = saved
    d_input_TH, normed_TH, d_norm_H = None, None, None
    if needs_input or needs_norm:
        d_input_TH, normed_TH, d_norm_H = ctx.operations.add_norm_backward(
            d_projected_TP @ weight_PH, d_total_TH, total_TH, inverse_T, norm_H, any(needs_weights), needs_norm
        )
    elif any(needs_weights):
        _, normed_TH, _ = ctx.operations.add_norm_forward(total_TH, None, norm_H, ctx.epsilon)
    if normed_TH is None:
        return d_input_TH, d_norm_H, [None] * len(needs_weights)
    if all(needs_weights):
        return d_input_TH, d_norm_H, _cut(d_projected_TP.t() @ normed_TH, ctx.rows, needs_weights)
    gradients = [
        part_TP.t() @ normed_TH if needed else None
        for part_TP, needed in zip(d_projected_TP.split(ctx.rows, dim=1), needs_weights, strict=True)
    ]
    return d_input_TH, d_norm_H, gradients


def _rows(parts: Sequence[Tensor], bias_P: Tensor | None) -> list[int]:
    """Rows of each weight; the biases, where there are any, follow the weights."""
    return [part.shape[0] for part in (parts if bias_P is None else parts[: len(parts) // 2])]


def _cut(whole: Tensor, rows: list[int], needed: Sequence[bool]) -> list[Tensor | None]:
    return [part if need else None for part, need in zip(whole.split(rows), needed, strict=True)]


def _passed_on(ctx: Any, d_total_TH: Tensor | None, first: int) -> tuple[Tensor | None, ...]:
    """Where only the residual stream is used further on, its gradient is all there is, for the two arguments from `first` on."""
    return tuple(d_total_TH if at in (first, first + 1) and needed else None for at, needed in enumerate(ctx.needs_input_grad))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _normalised(rows: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Rows over their root mean square, not rounded yet, and one over it."""
    wide = rows.to(_wide(rows.dtype))
    inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return wide * inverse, inverse


def _norm_backward(d_unit: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """The gradient of a row loses its part along the row, whose length the norm takes away."""
    return (d_unit - unit * (d_unit * unit).mean(-1, keepdim=True)) * inverse


def _turned(rows_THD: Tensor, cosine_TD: Tensor, sine_TD: Tensor) -> Tensor:
    """The first half of each head is turned with the second, as transformers pairs them."""
    cosine_T1D, sine_T1D = cosine_TD[:, None], sine_TD[:, None]
    first, second = rows_THD.chunk(2, dim=-1)
    return torch.cat([first * cosine_T1D - second * sine_T1D, second * cosine_T1D + first * sine_T1D], dim=-1)
