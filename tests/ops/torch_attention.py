"""The reference implementation of the attention kernel that runs on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cohort.ops.packed_attention import FlashKernel, Inputs, Spans


class TorchKernel(FlashKernel):
    """FlashKernel in plain torch, one span after another, in float32 at least."""

    def forward(self, inputs: Inputs, spans: Spans) -> tuple[Tensor, Tensor]:
        query, key, value = map(widen, inputs)
        out, lse = torch.zeros_like(inputs.query), query.new_zeros(query.shape[1], query.shape[0])
        for mine, theirs in self._each_span(spans):
            scores = self._score(query[mine], key[theirs], spans)
            lse[:, mine] = scores.logsumexp(-1)
            probabilities = (scores - lse[:, mine, None]).exp()
            out[mine] = torch.einsum("hqk,khd->qhd", probabilities, self._repeat_heads(value[theirs], query)).to(out.dtype)
        return out, lse

    def backward(
        self, grad_out: Tensor, inputs: Inputs, out: Tensor, lse: Tensor, spans: Spans
    ) -> tuple[Tensor, Tensor, Tensor]:
        grad_query, grad_key, grad_value = (torch.zeros_like(tensor) for tensor in inputs)
        dtype, (grad_out, query, key, value, out) = inputs.query.dtype, map(widen, (grad_out, *inputs, out))
        for mine, theirs in self._each_span(spans):
            probabilities = (self._score(query[mine], key[theirs], spans) - lse[:, mine, None]).exp()
            delta = (grad_out[mine] * out[mine]).sum(-1).t()
            grad_probabilities = torch.einsum("qhd,khd->hqk", grad_out[mine], self._repeat_heads(value[theirs], query))
            grad_scores = probabilities * (grad_probabilities - delta[..., None]) * spans.scaling
            grad_query[mine] = torch.einsum("hqk,khd->qhd", grad_scores, self._repeat_heads(key[theirs], query)).to(dtype)
            for gradient, weights, rows in ((grad_key, grad_scores, query), (grad_value, probabilities, grad_out)):
                whole = torch.einsum("hqk,qhd->khd", weights, rows[mine])
                gradient[theirs] = whole.unflatten(1, (gradient.shape[1], -1)).sum(2).to(dtype)
        return grad_query, grad_key, grad_value

    def _each_span(self, spans: Spans) -> Iterator[tuple[slice, slice]]:
        queries, keys = spans.query_starts.tolist(), spans.key_starts.tolist()
        for number in range(len(queries) - 1):
            yield slice(queries[number], queries[number + 1]), slice(keys[number], keys[number + 1])

    def _score(self, query: Tensor, key: Tensor, spans: Spans) -> Tensor:
        scores = torch.einsum("qhd,khd->hqk", query, self._repeat_heads(key, query)) * spans.scaling
        if spans.causal:
            at = torch.arange(len(query), device=query.device)
            behind = at[:, None] - at
            hidden = (behind < 0) | (behind >= (spans.window or len(query)))
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores

    def _repeat_heads(self, keys: Tensor, query: Tensor) -> Tensor:
        return keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)


def widen(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
