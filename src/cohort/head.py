"""The model in two halves: a backbone that gives hidden states and a head that turns chosen ones into logits.

Training and sampling need logits at a few positions only, so they never call the model's own forward. That forward may
do more than a matrix product after the last layer (Gemma 2 soft-caps, Cohere scales, Granite divides): `split` rebuilds
what it knows and then compares with the real forward on a few tokens. A model whose logits it cannot reproduce is
refused by name; it is never scored with almost the right head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cohort.errors import ModelError
from cohort.steady import steady_rows

LARGE_LOGIT = 100.0
"""Above every soft-cap in use (Gemma 2: 30), so that one that is forgotten shows."""


@dataclass(frozen=True)
class SplitModel:
    backbone: nn.Module
    projection: nn.Module
    softcap: float
    scale: float

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H], in float32 at least (float64 stays, for tests that need it)."""
        logits = steady_rows(self.projection, hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


def split(model: Any) -> SplitModel:
    """Split a causal LM, and prove on a few tokens that both halves together are the whole."""
    config = model.config.get_text_config()
    name = type(model).__name__
    backbone, projection = model.base_model, model.get_output_embeddings()
    if backbone is model or projection is None:
        raise ModelError(f"{name}: no separate backbone and output projection; only decoder-only causal LMs are supported.")
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    parts = SplitModel(backbone, projection, float(getattr(config, "final_logit_softcapping", None) or 0.0), scale)
    was_training = model.training
    model.eval()
    largest = _check(model, parts, factor=1.0)
    # A soft-cap is invisible on the small logits of an untrained model, so the comparison is repeated on large ones.
    _check(model, parts, factor=LARGE_LOGIT / max(largest, 1e-3))
    model.train(was_training)
    return parts


@torch.no_grad()
def _check(model: Any, parts: SplitModel, factor: float) -> float:
    """Compare both halves with the whole, hidden states multiplied by `factor`; the largest logit."""
    token_ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    hook = parts.projection.register_forward_pre_hook(lambda module, inputs: (inputs[0] * factor, *inputs[1:]))
    try:
        whole = model(input_ids=token_ids, use_cache=False).logits.float()
        ours = parts.logits(parts.backbone(input_ids=token_ids, use_cache=False).last_hidden_state).float()
    finally:
        hook.remove()
    # The same operations in another order: a few roundings of the compute dtype, far below any scale or cap forgotten.
    largest = whole.abs().max().item()
    tolerance = 64 * torch.finfo(model.dtype).eps * max(1.0, largest)
    if whole.shape != ours.shape or not (whole - ours).abs().max().item() <= tolerance:
        raise ModelError(
            f"{type(model).__name__}: its logits are not projection(hidden) with the known scale and soft-cap; it cannot be "
            "trained exactly."
        )
    return largest
