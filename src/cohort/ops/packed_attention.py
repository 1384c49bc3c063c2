"""Causal attention over a flat layout of rows (ops/layout.py): each token sees only the earlier tokens of its own row.

There are three implementations:

- Padded: rows are gathered side by side and passed to `attend_causally`. Works everywhere, with the bits of decoding where
  that is exact (ops/attention.py). The only one for soft-caps, float32 and CPUs.
- Rectangle: rows of one length on a GPU need no gathering, and cuDNN's kernel is the fastest for them.
- Segments: a varlen kernel in bfloat16 or float16 on a GPU. With shared prompts it is called twice: for every segment causally, and
  for each completion over all of its prompt. The softmax over both parts is

      lse = log(exp(lse_own) + exp(lse_prompt)),   out = out_own exp(lse_own - lse) + out_prompt exp(lse_prompt - lse)

The backward of a flash kernel recomputes its probabilities from the scores and lse, and needs the output only for delta =
sum(grad_out * out). With the joint lse and output, each of two backward calls gives its exact share of the gradients, and the
shares add up.

Kernels whose backward uses atomics follow `torch.use_deterministic_algorithms` (ops/determinism.py). In that mode runs are
reproducible, and cuDNN, which has no such mode, is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cohort.errors import InvariantError
from cohort.ops.attention import CAUSAL_ATTENTION, attend_causally, register_attention
from cohort.ops.layout import Layout, SharedPrompts, give_back, take

FLASH_HEAD_DIMS = range(8, 257, 8)
FLASH_CAPABILITY = (8, 0)


def attend(
    layout: Layout,
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Attend from [T, H, D] queries to [T, kv_heads, D] keys and values; returns [T, H, D]. Differentiable."""
    if window is not None and window >= layout.longest_row:
        window = None
    # The window of a completion would end inside its prompt, at another position for every token, which two calls cannot
    # express.
    if softcap or (window is not None and layout.shared is not None) or not can_use_flash(query_THD, value_TKD):
        return attend_padded(layout, query_THD, key_TKD, value_TKD, scaling, window, softcap)
    if layout.equal_rows and window is None and not torch.are_deterministic_algorithms_enabled():
        return attend_rectangle(layout, query_THD, key_TKD, value_TKD, scaling)
    return attend_segments(layout, query_THD, key_TKD, value_TKD, scaling, window, FlashKernel())


def can_use_flash(query_THD: Tensor, value_TKD: Tensor) -> bool:
    head_dim = query_THD.shape[2]
    return (
        query_THD.is_cuda
        and query_THD.dtype in (torch.bfloat16, torch.float16)
        and head_dim in FLASH_HEAD_DIMS
        and value_TKD.shape[2] == head_dim
        and torch.cuda.get_device_capability(query_THD.device) >= FLASH_CAPABILITY
    )


# -- padded ------------------------------------------------------------------------------------------------------------


def attend_padded(
    layout: Layout, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float, window: int | None, softcap: float
) -> Tensor:
    padding = layout.padding
    sizes = [rows * width for rows, width in padding.shapes]

    def side_by_side(flat: Tensor) -> list[Tensor]:
        places = flat if padding.rows is None else take(flat, padding.rows)
        return [
            block.reshape(rows, width, *flat.shape[1:]).transpose(1, 2)
            for block, (rows, width) in zip(places.split(sizes), padding.shapes, strict=True)
        ]

    blocks = zip(side_by_side(query_THD), side_by_side(key_TKD), side_by_side(value_TKD), strict=True)
    outs = [attend_causally(*block, scaling, window, softcap).flatten(0, 1) for block in blocks]
    out = torch.cat(outs) if len(outs) > 1 else outs[0]
    return out if padding.flat is None else take(out, padding.flat)


# -- equal lengths -----------------------------------------------------------------------------------------------------


def attend_rectangle(layout: Layout, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float) -> Tensor:
    def rectangle(flat: Tensor) -> Tensor:
        return flat.unflatten(0, (layout.num_rows, layout.longest_row)).transpose(1, 2)

    grouped = query_THD.shape[1] != key_TKD.shape[1]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        out = F.scaled_dot_product_attention(
            rectangle(query_THD), rectangle(key_TKD), rectangle(value_TKD), is_causal=True, scale=scaling, enable_gqa=grouped
        )
    return out.transpose(1, 2).flatten(0, 1)


# -- segments ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of queries and keys: span i of the queries sees span i of the keys, with `causal` only up to its own position."""

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
    scaling: float
    causal: bool = False
    window: int | None = None
    """Tokens that a token sees, including itself; None: all."""


class Inputs(NamedTuple):
    """Query [queries, H, D], key and value [keys, kv_heads, D]."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend_segments(
    layout: Layout,
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    scaling: float,
    window: int | None,
    kernel: FlashKernel,
) -> Tensor:
    out: Tensor = _SegmentAttention.apply(query_THD, key_TKD, value_TKD, layout, scaling, window, kernel)
    return out


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float, window: int | None,
        kernel: FlashKernel,
    ) -> Tensor:  # fmt: skip
        inputs, starts, longest = Inputs(query, key, value), layout.segment_starts, layout.longest_segment
        own = Spans(starts, starts, longest, longest, scaling, causal=True, window=window)
        out, lse = kernel.forward(inputs, own)
        over_prompts = None
        if layout.shared is not None:
            shared, begin = layout.shared, layout.shared.num_tokens
            longest_pair = (shared.longest_completion, shared.longest)
            over_prompts = Spans(shared.completion_starts, shared.copy_starts, *longest_pair, scaling)
            prompt_out, prompt_lse = kernel.forward(copy_prompts(inputs, layout.shared), over_prompts)
            own_lse = lse[:, begin:]
            joint_lse = torch.logaddexp(own_lse, prompt_lse)
            own_share = (own_lse - joint_lse).exp().t()[..., None]
            prompt_share = (prompt_lse - joint_lse).exp().t()[..., None]
            # The shares are float32, so the sum is rounded once.
            torch.add(out[begin:] * own_share, prompt_out * prompt_share, out=out[begin:])
            lse[:, begin:] = joint_lse
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.own, ctx.over_prompts, ctx.shared, ctx.kernel = own, over_prompts, layout.shared, kernel
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_out, (*saved, out, lse) = grad_outputs[0].contiguous(), ctx.saved_tensors
        inputs, kernel, shared = Inputs(*saved), ctx.kernel, ctx.shared
        grad_query, grad_key, grad_value = kernel.backward(grad_out, inputs, out, lse, ctx.own)
        if shared is not None:
            begin = shared.num_tokens
            joint = (out[begin:], lse[:, begin:].contiguous())
            more = kernel.backward(grad_out[begin:], copy_prompts(inputs, shared), *joint, ctx.over_prompts)
            grad_query[begin:] += more[0]
            grad_key[:begin] += give_back(more[1], shared.copies)
            grad_value[:begin] += give_back(more[2], shared.copies)
        return grad_query, grad_key, grad_value, None, None, None, None


def copy_prompts(inputs: Inputs, shared: SharedPrompts) -> Inputs:
    """Return the completions' queries, and the prompts' keys and values, repeated for each completion.

    The backward of a flash kernel has one program per block of keys, which loops over all queries. A prompt has one or two
    blocks, so if a whole group shared it, a few programs would run long. The copies are small and not kept.
    """
    index_N = shared.copies.index_N
    key, value = inputs.key.index_select(0, index_N), inputs.value.index_select(0, index_N)
    return Inputs(inputs.query[shared.num_tokens :], key, value)


class FlashKernel:
    """PyTorch's flash attention over sequences of different lengths, by spans of queries and keys."""

    def forward(self, inputs: Inputs, spans: Spans) -> tuple[Tensor, Tensor]:
        """Return the output [queries, H, D], and the natural log-sum-exp [H, queries] of the scaled scores."""
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *inputs, *self._list_spans(spans), 0.0, spans.causal, False, **self._list_options(spans)
        )
        return out, lse

    def backward(
        self, grad_out: Tensor, inputs: Inputs, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value. `out` and `lse` may include keys outside these spans."""
        # The random state for dropout, which is not used.
        seed = torch.empty(2, dtype=torch.uint64, device=out.device)
        unused = torch.empty(0, device=out.device)
        tensors, rest = (grad_out, *inputs, out, lse), (0.0, spans.causal, seed, unused)
        grad_query, grad_key, grad_value = torch.ops.aten._flash_attention_backward(
            *tensors, *self._list_spans(spans), *rest, **self._list_options(spans)
        )
        return grad_query, grad_key, grad_value

    def _list_spans(self, spans: Spans) -> tuple[Tensor, Tensor, int, int]:
        # The longest query only sizes the grid. With 1 the kernel would switch to decoding, which returns lse in another
        # layout.
        return spans.query_starts, spans.key_starts, max(2, spans.longest_query), spans.longest_key

    def _list_options(self, spans: Spans) -> dict[str, Any]:
        window = {} if spans.window is None else {"window_size_left": spans.window - 1, "window_size_right": 0}
        return {"scale": spans.scaling, **window}


# -- for modules of transformers ---------------------------------------------------------------------------------------

_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextmanager
def use_layout(layout: Layout) -> Iterator[None]:
    """Set the layout for modules called inside; their attention function has no argument for it."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def read_layout(
    module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
) -> Tensor:
    """Attend in a batch of one. Tokens beyond the layout are padding and attend to nothing."""
    layout = _LAYOUT.get()
    if layout is None or query.shape[0] != 1 or not query.shape[2] == key.shape[2] >= layout.num_tokens:
        raise InvariantError(f"the trainer's attention reads one flat layout, not a batch of {tuple(query.shape)}.")
    flat = [tensor[0].transpose(0, 1)[: layout.num_tokens] for tensor in (query, key, value)]
    out_THD = attend(layout, flat[0], flat[1], flat[2], scaling, window, softcap)
    return F.pad(out_THD, (0, 0, 0, 0, 0, query.shape[2] - layout.num_tokens))[None]


register_attention(CAUSAL_ATTENTION, read_layout)
