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


@dataclass(frozen=True)
class SplitModel:
    backbone: nn.Module
    projection: nn.Module
    softcap: float
    scale: float

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of hidden states [..., H]."""
        logits = self.projection(hidden).float()
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
    token_ids = torch.arange(4, device=model.device)[None] % config.vocab_size
    was_training = model.training
    model.eval()
    with torch.no_grad():
        whole = model(input_ids=token_ids, use_cache=False).logits.float()
        ours = parts.logits(backbone(input_ids=token_ids, use_cache=False).last_hidden_state)
    model.train(was_training)
    # The same operations in another order: a few roundings of the compute dtype, far below any scale or cap forgotten.
    tolerance = 64 * torch.finfo(model.dtype).eps * max(1.0, whole.abs().max().item())
    if whole.shape != ours.shape or (whole - ours).abs().max().item() > tolerance:
        raise ModelError(f"{name}: its logits are not projection(hidden) with the known scale and soft-cap; it cannot be trained exactly.")
    return parts
