"""The blocks of a layer as autograd functions that keep little memory for the backward.

Matrix products remain torch's. Between them each block calls the operations of `kernels_train.py` on a GPU, those of
`cpu_training.py` on a CPU where they could be compiled, and elsewhere those of `TorchOperations`, the same formulas in plain
torch. Autograd would keep three things that these functions recompute: normed activations (from the residual stream and one
number per row, in a pass that reads both anyway), the product of gate and up, and projections before the rotary embedding (a
rotation can be inverted).

Weights in one tensor are multiplied as one (projection.py). Their own parameters are arguments too, so that autograd knows
where the gradients belong. Each gets the rows of one product, and a parameter without a gradient costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cohort.ops.fused import has_kernels
from cohort.ops.fused.projection import Projection
from cohort.ops.products import run_steadily

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Heads:
    """The columns of a fused projection: all queries, then keys, then values."""

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
    """An RMSNorm. `weight` takes part in autograd."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True)
class Rotary:
    """Cosine and sine [T, D / 2] in float32, and the norms of queries and keys before the rotation, if the model has them."""

    cosine: Tensor
    sine: Tensor
    heads: Heads
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    epsilon: float = 0.0
    """Epsilon of the two norms."""


class NormInputs(NamedTuple):
    """The inputs of a norm's backward: the rows, 1 / root mean square of each in float32, and the weight."""

    total_TH: Tensor
    inverse_T: Tensor
    weight_H: Tensor


class TorchOperations:
    """The operations of `kernels_train.py` in plain torch: the reference in tests, and the fallback without a GPU."""

    @staticmethod
    def add_norm_forward(
        hidden_TH: Tensor, delta_TH: Tensor | None, weight_H: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        total_TH = hidden_TH if delta_TH is None else hidden_TH + delta_TH
        unit_TH, inverse_T1 = _normalise_rows(total_TH, epsilon)
        return total_TH, unit_TH.to(total_TH.dtype) * weight_H, inverse_T1.squeeze(1)

    @staticmethod
    def add_norm_backward(
        d_normed_TH: Tensor, d_total_TH: Tensor | None, inputs: NormInputs, want_normed: bool, want_weight: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        total_TH, inverse_T, weight_H = inputs
        inverse_T1 = inverse_T[:, None]
        unit_TH = total_TH.to(inverse_T.dtype) * inverse_T1
        rounded_TH = unit_TH.to(total_TH.dtype)
        d_input_TH = _differentiate_norm(d_normed_TH.to(inverse_T.dtype) * weight_H, unit_TH, inverse_T1)
        if d_total_TH is not None:
            d_input_TH += d_total_TH
        d_weight_H = (d_normed_TH.to(inverse_T.dtype) * rounded_TH).sum(0).to(weight_H.dtype) if want_weight else None
        return d_input_TH.to(total_TH.dtype), rounded_TH * weight_H if want_normed else None, d_weight_H

    @staticmethod
    def rotary_forward(qkv_TP: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        turned = []
        for cut, norm_D in ((rotary.heads.queries, rotary.query_norm), (rotary.heads.keys, rotary.key_norm)):
            heads_THD = cut(qkv_TP)
            if norm_D is not None:
                heads_THD = _normalise_rows(heads_THD, rotary.epsilon)[0].to(qkv_TP.dtype) * norm_D
            turned.append(_rotate_halves(heads_THD, rotary.cosine, rotary.sine).to(qkv_TP.dtype))
        return turned[0], turned[1], rotary.heads.values(qkv_TP)

    @staticmethod
    def rotary_backward(
        d_heads: Sequence[Tensor], qkv_TP: Tensor | None, rotary: Rotary, want_bias: bool, want_norm: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        d_query_THD, d_key_TKD, d_value_TKD = d_heads
        dtype, heads = d_query_THD.dtype, rotary.heads
        wide = _widen_dtype(dtype)
        d_qkv_TP = torch.empty(d_query_THD.shape[0], heads.width, dtype=wide, device=d_query_THD.device)
        norm_gradients: list[Tensor | None] = []
        for cut, gradient_THD, norm_D in (
            (heads.queries, d_query_THD, rotary.query_norm),
            (heads.keys, d_key_TKD, rotary.key_norm),
        ):
            # Rotating by the opposite angle is the transpose of a rotation.
            back_THD = _rotate_halves(gradient_THD.to(wide), rotary.cosine, -rotary.sine)
            if norm_D is not None and qkv_TP is not None:
                unit_THD, inverse_TH1 = _normalise_rows(cut(qkv_TP), rotary.epsilon)
                if want_norm:
                    norm_gradients.append((back_THD * unit_THD.to(dtype)).sum((0, 1)).to(dtype))
                back_THD = _differentiate_norm(back_THD * norm_D, unit_THD, inverse_TH1)
            cut(d_qkv_TP).copy_(back_THD)
        heads.values(d_qkv_TP).copy_(d_value_TKD)
        d_query_norm_D, d_key_norm_D = norm_gradients or (None, None)
        return d_qkv_TP.to(dtype), d_qkv_TP.sum(0).to(dtype) if want_bias else None, d_query_norm_D, d_key_norm_D

    @staticmethod
    def swiglu_forward(gate_up_TJ: Tensor) -> Tensor:
        gate_TI, up_TI = gate_up_TJ.to(_widen_dtype(gate_up_TJ.dtype)).chunk(2, dim=1)
        return (F.silu(gate_TI) * up_TI).to(gate_up_TJ.dtype)

    @staticmethod
    def swiglu_backward(d_activation_TI: Tensor, gate_up_TJ: Tensor, want_activation: bool) -> tuple[Tensor, Tensor | None]:
        wide = _widen_dtype(gate_up_TJ.dtype)
        gate_TI, up_TI = gate_up_TJ.to(wide).chunk(2, dim=1)
        sigmoid_TI = gate_TI.sigmoid()
        silu_TI = gate_TI * sigmoid_TI
        d_gate_up_TJ = torch.empty_like(gate_up_TJ)
        d_gate_TI, d_up_TI = d_gate_up_TJ.chunk(2, dim=1)
        d_gate_TI.copy_(d_activation_TI.to(wide) * up_TI * (sigmoid_TI + silu_TI * (1 - sigmoid_TI)))
        d_up_TI.copy_(d_activation_TI.to(wide) * silu_TI)
        return d_gate_up_TJ, (silu_TI * up_TI).to(gate_up_TJ.dtype) if want_activation else None


def choose_operations(tensor: Tensor) -> Any:
    """Return the kernels if a GPU can run them, else TorchOperations."""
    if not has_kernels(tensor.device) or tensor.dtype not in KERNEL_DTYPES:
        return TorchOperations
    from cohort.ops.fused import kernels_train

    return kernels_train


def add_norm(hidden_TH: Tensor, delta_TH: Tensor | None, norm: Norm, using: Any = None) -> tuple[Tensor, Tensor]:
    """Return hidden + delta, and its norm. `using`, here and below: operations to use instead of the device's."""
    operations = using or choose_operations(hidden_TH)
    total_TH, normed_TH = _AddNorm.apply(operations, norm.epsilon, hidden_TH, delta_TH, norm.weight)
    return total_TH, normed_TH


def norm_linear(
    hidden_TH: Tensor,
    delta_TH: Tensor | None,
    norm: Norm,
    projection: Projection,
    rotary: Rotary | None = None,
    using: Any = None,
) -> tuple[Tensor, ...]:
    """Return hidden + delta, and the projection of its norm.

    With `rotary` the projection is split into rotated queries [T, heads, D], and rotated keys and values [T, kv_heads, D].
    """
    outputs: tuple[Tensor, ...] = _NormLinear.apply(
        using or choose_operations(hidden_TH), norm.epsilon, rotary, projection, hidden_TH, delta_TH, norm.weight,
        *((None, None) if rotary is None else (rotary.query_norm, rotary.key_norm)), *projection.parameters,
    )  # fmt: skip
    return outputs


def swiglu_down(gate_up_TJ: Tensor, down: Projection, using: Any = None) -> Tensor:
    """Return the down projection of silu(gate) * up."""
    result: Tensor = _SwigluDown.apply(using or choose_operations(gate_up_TJ), down, gate_up_TJ, *down.parameters)
    return result


def project(rows_TI: Tensor, projection: Projection) -> Tensor:
    """Return the projection of rows. Without a trainable adapter, autograd keeps none of them under a frozen weight."""
    if projection.adapters is None and projection.weight is not None:
        return run_steadily(lambda rows: F.linear(rows, projection.parts[0]), rows_TI)
    result: Tensor = _Project.apply(projection, rows_TI, *projection.parameters)
    return result


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
        _, _, needs_hidden, needs_delta, needs_weight = ctx.needs_input_grad
        d_weight_H, d_input_TH = None, d_total_TH
        if d_normed_TH is not None:
            d_input_TH, _, d_weight_H = ctx.operations.add_norm_backward(
                d_normed_TH, d_total_TH, NormInputs(*ctx.saved_tensors), False, needs_weight
            )
        return None, None, d_input_TH if needs_hidden else None, d_input_TH if needs_delta else None, d_weight_H


class _NormLinear(Function):
    @staticmethod
    def forward(
        ctx: Any, using: Any, epsilon: float, rotary: Rotary | None, projection: Projection, hidden_TH: Tensor,
        delta_TH: Tensor | None, norm_H: Tensor, query_norm_D: Tensor | None, key_norm_D: Tensor | None, *parameters: Tensor,
    ) -> Any:  # fmt: skip
        ctx.operations, ctx.epsilon, ctx.rotary, ctx.projection = using, epsilon, rotary, projection
        total_TH, normed_TH, inverse_T = using.add_norm_forward(hidden_TH, delta_TH, norm_H, epsilon)
        projected_TP, reduced_TR = projection.multiply(normed_TH)
        outputs = (projected_TP,) if rotary is None else using.rotary_forward(projected_TP, rotary)
        # A rotation can be inverted without its input, a norm cannot.
        kept_TP = None if query_norm_D is None else projected_TP
        # Parameters are kept too, so that autograd notices if they change before the backward.
        ctx.save_for_backward(total_TH, inverse_T, norm_H, kept_TP, reduced_TR, *parameters)
        ctx.set_materialize_grads(False)
        return total_TH, *outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total_TH: Tensor | None, *d_outputs: Tensor | None) -> Any:
        _, _, _, _, needs_hidden, needs_delta, needs_norm, needs_query, needs_key, *needed = ctx.needs_input_grad
        if all(gradient is None for gradient in d_outputs):  # only the residual stream is used further on
            d_stream = (d_total_TH if needs_hidden else None, d_total_TH if needs_delta else None)
            return (*[None] * 4, *d_stream, *[None] * (3 + len(needed)))
        (*kept, qkv_TP, reduced_TR), projection = ctx.saved_tensors[:5], ctx.projection
        inputs = NormInputs(*kept)
        d_projected_TP, d_bias_P, d_query_norm_D, d_key_norm_D = _differentiate_outputs(
            ctx, d_outputs, qkv_TP, projection.needs_bias(needed), needs_query or needs_key
        )
        d_reduced_TR, needs_rows = projection.reduce_gradient(d_projected_TP), projection.needs_rows(needed)
        d_input_TH, normed_TH, d_norm_H = None, None, None
        if needs_hidden or needs_delta or needs_norm:
            d_normed_TH = projection.differentiate_rows(d_projected_TP, d_reduced_TR)
            d_input_TH, normed_TH, d_norm_H = ctx.operations.add_norm_backward(
                d_normed_TH, d_total_TH, inputs, needs_rows, needs_norm
            )
        elif needs_rows:
            _, normed_TH, _ = ctx.operations.add_norm_forward(inputs.total_TH, None, inputs.weight_H, ctx.epsilon)
        return (
            *(None, None, None, None, d_input_TH if needs_hidden else None, d_input_TH if needs_delta else None, d_norm_H),
            *(d_query_norm_D if needs_query else None, d_key_norm_D if needs_key else None),
            *projection.differentiate_parameters(d_projected_TP, d_bias_P, d_reduced_TR, normed_TH, reduced_TR, needed),
        )


class _SwigluDown(Function):
    @staticmethod
    def forward(ctx: Any, using: Any, down: Projection, gate_up_TJ: Tensor, *parameters: Tensor) -> Tensor:
        ctx.operations, ctx.projection = using, down
        out_TH, reduced_TR = down.multiply(using.swiglu_forward(gate_up_TJ))
        ctx.save_for_backward(gate_up_TJ, reduced_TR, *parameters)
        return out_TH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_TH: Tensor) -> Any:
        (gate_up_TJ, reduced_TR), projection = ctx.saved_tensors[:2], ctx.projection
        _, _, needs_input, *needed = ctx.needs_input_grad
        d_reduced_TR, needs_rows = projection.reduce_gradient(d_out_TH), projection.needs_rows(needed)
        d_gate_up_TJ, activation_TI = None, None
        if needs_input:
            d_activation_TI = projection.differentiate_rows(d_out_TH, d_reduced_TR)
            d_gate_up_TJ, activation_TI = ctx.operations.swiglu_backward(d_activation_TI, gate_up_TJ, needs_rows)
        elif needs_rows:
            activation_TI = ctx.operations.swiglu_forward(gate_up_TJ)
        d_parameters = projection.differentiate_parameters(d_out_TH, None, d_reduced_TR, activation_TI, reduced_TR, needed)
        return None, None, d_gate_up_TJ, *d_parameters


class _Project(Function):
    @staticmethod
    def forward(ctx: Any, projection: Projection, rows_TI: Tensor, *parameters: Tensor) -> Tensor:
        ctx.projection = projection
        out_TP, reduced_TR = projection.multiply(rows_TI)
        kept_TI = rows_TI if projection.needs_rows(ctx.needs_input_grad[2:]) else None
        ctx.save_for_backward(kept_TI, reduced_TR, *parameters)
        return out_TP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_TP: Tensor) -> Any:
        (rows_TI, reduced_TR), projection = ctx.saved_tensors[:2], ctx.projection
        _, needs_input, *needed = ctx.needs_input_grad
        d_reduced_TR = projection.reduce_gradient(d_out_TP)
        d_rows_TI = projection.differentiate_rows(d_out_TP, d_reduced_TR) if needs_input else None
        return None, d_rows_TI, *projection.differentiate_parameters(d_out_TP, None, d_reduced_TR, rows_TI, reduced_TR, needed)


def _differentiate_outputs(
    ctx: Any, d_outputs: Sequence[Tensor | None], qkv_TP: Tensor | None, want_bias: bool, want_norm: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of the projection, its bias, and the norms of queries and keys."""
    rotary: Rotary | None = ctx.rotary
    if rotary is None:
        (d_projected_TP,) = d_outputs
        assert d_projected_TP is not None
        return d_projected_TP, d_projected_TP.sum(0) if want_bias else None, None, None
    heads, like = rotary.heads, next(gradient for gradient in d_outputs if gradient is not None)
    d_heads = [
        like.new_zeros(like.shape[0], count, heads.dim) if gradient is None else gradient
        for gradient, count in zip(d_outputs, (heads.query, heads.kv, heads.kv), strict=True)
    ]
    gradients: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] = ctx.operations.rotary_backward(
        d_heads, qkv_TP, rotary, want_bias, want_norm
    )
    return gradients


def _widen_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _normalise_rows(rows: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the rows divided by their root mean square, not rounded yet, and 1 / root mean square."""
    wide = rows.to(_widen_dtype(rows.dtype))
    inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return wide * inverse, inverse


def _differentiate_norm(d_unit: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Return the gradient of rows before a norm: it has no part along the row, whose length the norm removes."""
    return (d_unit - unit * (d_unit * unit).mean(-1, keepdim=True)) * inverse


def _rotate_halves(rows_THD: Tensor, cosine_TD: Tensor, sine_TD: Tensor) -> Tensor:
    """Rotate the first half of each head with the second, the pairing of transformers."""
    cosine_T1D, sine_T1D = cosine_TD[:, None], sine_TD[:, None]
    first, second = rows_THD.chunk(2, dim=-1)
    return torch.cat([first * cosine_T1D - second * sine_T1D, second * cosine_T1D + first * sine_T1D], dim=-1)
