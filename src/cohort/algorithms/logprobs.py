"""Log-probabilities and entropies of chosen tokens, in float32, never holding the logits of a whole batch.

Logits are made and consumed in chunks; when gradients flow, a chunk's logits are thrown away after the forward and made
again in the backward, so the memory of the loss head does not grow with vocabulary x tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 24
"""Logits alive at a time: 64 MiB in float32."""


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
    """(logprobs_M, entropy_M) of softmax(logits(hidden) / temperature); the logits are divided, not the log-probs."""

    def one_chunk(hidden_CH: Tensor, token_ids_C: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_CV = torch.log_softmax(logits(hidden_CH) / temperature, dim=-1)
        chosen_C = logprobs_CV.gather(1, token_ids_C[:, None]).squeeze(1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(-1)
        return chosen_C, entropy_C

    rows = max(1, chunk_elements // vocabulary)
    if hidden_MH.shape[0] <= rows:
        return one_chunk(hidden_MH, token_ids_M)
    pieces = []
    for hidden_CH, token_ids_C in zip(hidden_MH.split(rows), token_ids_M.split(rows), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(one_chunk, hidden_CH, token_ids_C, use_reentrant=False))
        else:
            pieces.append(one_chunk(hidden_CH, token_ids_C))
    return torch.cat([chosen for chosen, _ in pieces]), torch.cat([entropy for _, entropy in pieces])
