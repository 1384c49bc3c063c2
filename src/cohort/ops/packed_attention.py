"""Causal attention over a flat layout of rows (ops/layout.py): each token sees the earlier tokens of its own row, and no others.

Three ways to the same numbers:

- padded: rows are gathered side by side and given to `causal_attention`. Everywhere, and exact to the bits of decoding where
  that is (ops/attention.py); the only way with a soft-cap, in float32 and on a CPU.
- rows of one length on a GPU: the flat tokens are a rectangle already, and cuDNN's kernel is the fastest there is for it.
- segments, with a varlen kernel in bfloat16 or float16 on a GPU. With shared prompts in two calls: every segment causally by
  itself, and each completion over all of its prompt. A softmax over both parts is

      lse = log(exp(lse_own) + exp(lse_prompt)),   out = out_own exp(lse_own - lse) + out_prompt exp(lse_prompt - lse)

  The backward of a flash kernel makes its probabilities again from the scores and lse, and reads the output only in
  delta = sum(grad_out * out). Given the joint lse and output, each of two backward calls therefore gives its exact share of
  the gradients; they add up.

Kernels whose backward adds up with atomics follow `torch.use_deterministic_algorithms` (ops/determinism.py): with it on, runs are
the same to the bit, and cuDNN, which has no such mode, is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface

from cohort.errors import InvariantError
from cohort.ops.attention import CAUSAL_ATTENTION, causal_attention, check_plain_causal
from cohort.ops.gather import give_back, take
from cohort.ops.layout import Layout

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
    """[T, H, D] queries over [T, kv_heads, D] keys and values; gives [T, H, D]. Differentiable."""
    if window is not None and window >= layout.longest_row:
        window = None
    # The window of a completion would end inside its prompt, at another place for every token: two calls cannot say that.
    if softcap or (window is not None and layout.shared is not None) or not flash_serves(query_THD, value_TKD):
        return padded_attention(layout, query_THD, key_TKD, value_TKD, scaling, window, softcap)
    if layout.equal_rows and window is None and not torch.are_deterministic_algorithms_enabled():
        return rectangle_attention(layout, query_THD, key_TKD, value_TKD, scaling)
    return segment_attention(layout, query_THD, key_TKD, value_TKD, scaling, window, FlashKernel())


def flash_serves(query_THD: Tensor, value_TKD: Tensor) -> bool:
    head_dim = query_THD.shape[2]
    return (
        query_THD.is_cuda
        and query_THD.dtype in (torch.bfloat16, torch.float16)
        and head_dim in FLASH_HEAD_DIMS
        and value_TKD.shape[2] == head_dim
        and torch.cuda.get_device_capability(query_THD.device) >= FLASH_CAPABILITY
    )


# -- padded ------------------------------------------------------------------------------------------------------------


def padded_attention(
    layout: Layout,
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    scaling: float,
    window: int | None,
    softcap: float,
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
    outs = [causal_attention(*block, scaling, window, softcap).flatten(0, 1) for block in blocks]
    out = torch.cat(outs) if len(outs) > 1 else outs[0]
    return out if padding.flat is None else take(out, padding.flat)


# -- rows of one length ------------------------------------------------------------------------------------------------


def rectangle_attention(layout: Layout, query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scaling: float) -> Tensor:
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
    """Which keys the queries of a call see: those of the same number, of (start, next start), up to their own if causal."""

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int
    causal: bool
    window: int | None
    """Tokens that a token sees, itself included; None: all."""


class Kernel(Protocol):
    """Attention over spans. out is [queries, H, D] and lse [H, queries], natural and with the scale."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float) -> tuple[Tensor, Tensor]: ...

    def backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        spans: Spans,
        scaling: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(grad_query, grad_key, grad_value) from an output and lse that may be those of more keys than these."""
        ...


def segment_attention(
    layout: Layout,
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    scaling: float,
    window: int | None,
    kernel: Kernel,
) -> Tensor:
    out: Tensor = _SegmentAttention.apply(query_THD, key_TKD, value_TKD, layout, scaling, window, kernel)
    return out


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        scaling: float,
        window: int | None,
        kernel: Kernel,
    ) -> Tensor:
        starts, longest = layout.segment_starts, layout.longest_segment
        own = Spans(starts, starts, longest, longest, causal=True, window=window)
        out, lse = kernel.forward(query, key, value, own, scaling)
        over_prompts = None
        if layout.shared is not None:
            shared, begin = layout.shared, layout.shared.num_tokens
            over_prompts = Spans(
                shared.completion_starts,
                shared.copy_starts,
                shared.longest_completion,
                shared.longest,
                causal=False,
                window=None,
            )
            copies = copies_of_prompts(key, value, layout)
            prompt_out, prompt_lse = kernel.forward(query[begin:], *copies, over_prompts, scaling)
            own_lse = lse[:, begin:]
            joint_lse = torch.logaddexp(own_lse, prompt_lse)
            own_share = (own_lse - joint_lse).exp().t()[..., None]
            prompt_share = (prompt_lse - joint_lse).exp().t()[..., None]
            # Shares are float32, so the products are too, and the sum is rounded once.
            torch.add(out[begin:] * own_share, prompt_out * prompt_share, out=out[begin:])
            lse[:, begin:] = joint_lse
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.own, ctx.over_prompts, ctx.layout, ctx.scaling, ctx.kernel = own, over_prompts, layout, scaling, kernel
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_out = grad_outputs[0].contiguous()
        query, key, value, out, lse = ctx.saved_tensors
        kernel: Kernel = ctx.kernel
        grad_query, grad_key, grad_value = kernel.backward(grad_out, query, key, value, out, lse, ctx.own, ctx.scaling)
        if ctx.over_prompts is not None:
            begin = ctx.layout.shared.num_tokens
            more_query, more_key, more_value = kernel.backward(
                grad_out[begin:],
                query[begin:],
                *copies_of_prompts(key, value, ctx.layout),
                out[begin:],
                lse[:, begin:].contiguous(),
                ctx.over_prompts,
                ctx.scaling,
            )
            grad_query[begin:] += more_query
            grad_key[:begin] += give_back(more_key, ctx.layout.shared.copies)
            grad_value[:begin] += give_back(more_value, ctx.layout.shared.copies)
        return grad_query, grad_key, grad_value, None, None, None, None


def copies_of_prompts(key: Tensor, value: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Keys and values of the prompts, once for each of their completions.

    The backward of a flash kernel has a program for a block of keys, which walks through all queries. A prompt is a block or
    two: read by a whole group it would keep a few programs busy for long. Copies are small beside the rest, and are not kept.
    """
    assert layout.shared is not None
    index_N = layout.shared.copies.index_N
    return key.index_select(0, index_N), value.index_select(0, index_N)


class FlashKernel:
    """PyTorch's flash attention in its varlen form."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *self._spans(spans), 0.0, spans.causal, False, scale=scaling, **self._window(spans)
        )
        return out, lse

    def backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        spans: Spans,
        scaling: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # State of the random numbers for dropout, of which there is none.
        seed = torch.empty(2, dtype=torch.uint64, device=query.device)
        unused = torch.empty(0, device=query.device)
        grad_query, grad_key, grad_value = torch.ops.aten._flash_attention_backward(
            grad_out, query, key, value, out, lse, *self._spans(spans), 0.0, spans.causal, seed, unused,
            scale=scaling, **self._window(spans),
        )  # fmt: skip
        return grad_query, grad_key, grad_value

    def _spans(self, spans: Spans) -> tuple[Tensor, Tensor, int, int]:
        # The longest query only sizes the grid. Told that it is 1, the kernel takes its way for decoding, which returns lse
        # in another layout.
        return spans.query_starts, spans.key_starts, max(2, spans.longest_query), spans.longest_key

    def _window(self, spans: Spans) -> dict[str, int]:
        return {} if spans.window is None else {"window_size_left": spans.window - 1, "window_size_right": 0}


class TorchKernel:
    """The slow twin of FlashKernel: the same two functions spelled out, one span after the other, in float32 at least."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float) -> tuple[Tensor, Tensor]:
        wide_query, wide_key, wide_value = map(_wide, (query, key, value))
        out, lse = torch.zeros_like(query), wide_query.new_zeros(query.shape[1], query.shape[0])
        for mine, theirs in self._each(spans):
            scores = self._scores(wide_query[mine], wide_key[theirs], spans, scaling)
            lse[:, mine] = scores.logsumexp(-1)
            probabilities = (scores - lse[:, mine, None]).exp()
            out[mine] = torch.einsum("hqk,khd->qhd", probabilities, self._expanded(wide_value[theirs], query)).to(out.dtype)
        return out, lse

    def backward(
        self,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        spans: Spans,
        scaling: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = query.dtype
        grad_query, grad_key, grad_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        grad_out, query, key, value, out = map(_wide, (grad_out, query, key, value, out))
        for mine, theirs in self._each(spans):
            scores = self._scores(query[mine], key[theirs], spans, scaling)
            probabilities = (scores - lse[:, mine, None]).exp()
            delta = (grad_out[mine] * out[mine]).sum(-1).t()
            grad_probabilities = torch.einsum("qhd,khd->hqk", grad_out[mine], self._expanded(value[theirs], query))
            grad_scores = probabilities * (grad_probabilities - delta[..., None]) * scaling
            grad_query[mine] = torch.einsum("hqk,khd->qhd", grad_scores, self._expanded(key[theirs], query)).to(dtype)
            grad_key[theirs] = self._reduced(torch.einsum("hqk,qhd->khd", grad_scores, query[mine]), key).to(dtype)
            grad_value[theirs] = self._reduced(torch.einsum("hqk,qhd->khd", probabilities, grad_out[mine]), value).to(dtype)
        return grad_query, grad_key, grad_value

    def _each(self, spans: Spans) -> Iterator[tuple[slice, slice]]:
        queries, keys = spans.query_starts.tolist(), spans.key_starts.tolist()
        for number in range(len(queries) - 1):
            yield slice(queries[number], queries[number + 1]), slice(keys[number], keys[number + 1])

    def _scores(self, query: Tensor, key: Tensor, spans: Spans, scaling: float) -> Tensor:
        scores = torch.einsum("qhd,khd->hqk", query, self._expanded(key, query)) * scaling
        if spans.causal:
            at = torch.arange(len(query), device=query.device)
            behind = at[:, None] - at
            hidden = (behind < 0) | (behind >= (spans.window or len(query)))
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores

    def _expanded(self, keys: Tensor, query: Tensor) -> Tensor:
        return keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)

    def _reduced(self, gradient: Tensor, like: Tensor) -> Tensor:
        return gradient.unflatten(1, (like.shape[1], -1)).sum(2)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


# -- for the modules of transformers -----------------------------------------------------------------------------------

_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextmanager
def laid_out(layout: Layout) -> Iterator[None]:
    """The layout of the tokens that modules read meanwhile: their attention function has no argument for it."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def trainer_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """[1, H, T, D] as modules have it; gives [1, T, H, D]. Tokens beyond the layout's are filling and attend to nothing."""
    scale = check_plain_causal(module, query, attention_mask, dropout, scaling, is_causal, kwargs)
    layout = _LAYOUT.get()
    if layout is None or query.shape[0] != 1 or not query.shape[2] == key.shape[2] >= layout.num_tokens:
        raise InvariantError(f"the trainer's attention reads one flat layout, not a batch of {tuple(query.shape)}.")
    flat = [tensor[0].transpose(0, 1)[: layout.num_tokens] for tensor in (query, key, value)]
    out_THD = attend(layout, flat[0], flat[1], flat[2], scale, sliding_window, softcap or 0.0)
    return F.pad(out_THD, (0, 0, 0, 0, 0, query.shape[2] - layout.num_tokens))[None], None


AttentionInterface.register(CAUSAL_ATTENTION, trainer_attention)
