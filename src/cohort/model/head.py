"""The model in two halves: a backbone that computes hidden states, and a head that turns chosen ones into logits.

Training and sampling need logits at a few positions only, so they never call the model's own forward. That forward may
do more than a matrix product after the last layer (Gemma 2 soft-caps, Cohere scales, Granite divides). `split` rebuilds
the known operations and then compares with the real forward pass on a few tokens. A model whose logits it cannot reproduce is
refused by name, instead of being scored with an almost correct head.

A plain matrix as head is also available as tensors (`linear`). For these, log-probs have their own backward and, on a GPU, logits are
not rounded to bfloat16 between the product and the softmax, in the engine as in the trainer. Any other head (with an adapter or
hooks) is called as a module; `why_not_linear` names the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cohort.errors import ModelError
from cohort.ops.logprobs import LOW_PRECISION, LinearHead, linear_logprobs, project, scale_and_cap, token_logprobs
from cohort.ops.products import run_steadily

LARGE_LOGIT = 100.0
"""Larger than every soft-cap in use (Gemma 2: 30), so that a missing one shows."""


@dataclass(frozen=True)
class SplitModel:
    backbone: nn.Module
    projection: nn.Module
    softcap: float
    scale: float

    @property
    def why_not_linear(self) -> str | None:
        """Why the projection is more than its weight and bias; None if it is not."""
        projection = self.projection
        if type(projection) is not nn.Linear:
            return f"its output projection is a {type(projection).__name__}, not a plain nn.Linear"
        if "forward" in vars(projection):
            return "the forward of its output projection is replaced"
        hooks = (projection._forward_hooks, projection._forward_pre_hooks, projection._backward_hooks)
        if any(hooks) or projection._backward_pre_hooks:
            return "hooks are registered on its output projection"
        for name, tensor in (("weight", projection.weight), ("bias", projection.bias)):
            if tensor is not None and type(tensor) not in (nn.Parameter, Tensor):
                return f"the {name} of its output projection is a {type(tensor).__name__}"
        return None

    @property
    def linear(self) -> LinearHead | None:
        """The head as tensors; None if it is more than a matrix. Checked every time, because hooks may come and go."""
        if self.why_not_linear is not None:
            return None
        projection: Any = self.projection
        return LinearHead(projection.weight, projection.bias, self.scale, self.softcap)

    def fit(self, hidden: Tensor) -> Tensor:
        """Hidden states in the dtype of the projection. Some backbones return float32 sums (Mamba), which their own forward casts here."""
        weight: Any = self.projection.weight
        return hidden.to(weight.dtype) if weight.is_floating_point() else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H], in float32 or higher (float64 stays float64, for tests)."""
        hidden = self.fit(hidden)
        linear = self.linear if hidden.is_cuda and hidden.dtype in LOW_PRECISION else None
        if linear is not None and not (torch.is_grad_enabled() and (hidden.requires_grad or linear.trained)):
            logits = project(hidden.reshape(-1, hidden.shape[-1]), linear.weight_VH, linear.bias_V)
            logits = logits.reshape(*hidden.shape[:-1], -1)
        else:
            logits = run_steadily(self.projection, hidden)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return scale_and_cap(logits, self.scale, self.softcap)

    def token_logprobs(
        self, hidden_MH: Tensor, token_ids_M: Tensor, *, temperature: float, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(logprobs_M, entropy_M) of chosen tokens, from the hidden states before them."""
        hidden_MH, linear = self.fit(hidden_MH), self.linear
        if linear is not None:
            return linear_logprobs(hidden_MH, token_ids_M, linear, temperature=temperature, entropy_gradient=entropy_gradient)
        projection: Any = self.projection
        return token_logprobs(
            hidden_MH,
            token_ids_M,
            self.logits,
            vocabulary=projection.weight.shape[0],
            temperature=temperature,
            entropy_gradient=entropy_gradient,
        )


def split(model: Any) -> SplitModel:
    """Split a causal LM, and verify on a few tokens that the two halves equal the whole model."""
    config = model.config.get_text_config()
    name = type(model).__name__
    # Some classes name another prefix than that of their backbone; the comparison below decides.
    backbone = model.base_model if model.base_model is not model else getattr(model, "model", model)
    projection = model.get_output_embeddings()
    if backbone is model or projection is None:
        raise ModelError(f"{name}: no separate backbone and output projection; only decoder-only causal LMs are supported.")
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    parts = SplitModel(backbone, projection, float(getattr(config, "final_logit_softcapping", None) or 0.0), scale)
    was_training = model.training
    model.eval()
    largest = _compare(model, parts, factor=1.0)
    # The small logits of an untrained model do not show a soft-cap, so the comparison is repeated with large ones.
    _compare(model, parts, factor=LARGE_LOGIT / max(largest, 1e-3))
    model.train(was_training)
    return parts


@torch.no_grad()
def _compare(model: Any, parts: SplitModel, factor: float) -> float:
    """Compare the halves with the whole model, with hidden states multiplied by `factor`. Returns the largest logit."""
    token_ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    hook = parts.projection.register_forward_pre_hook(lambda module, inputs: (inputs[0] * factor, *inputs[1:]))
    try:
        whole = model(input_ids=token_ids, use_cache=False).logits.float()
    finally:
        hook.remove()
    # Without the hook, so that the code path of training and sampling is compared.
    ours = parts.logits(parts.backbone(input_ids=token_ids, use_cache=False).last_hidden_state * factor).float()
    # Both run the same operations in another order: they differ by a few roundings, much less than a missing scale or cap.
    largest = whole.abs().max().item()
    tolerance = 64 * torch.finfo(model.dtype).eps * max(1.0, largest)
    if whole.shape != ours.shape or not (whole - ours).abs().max().item() <= tolerance:
        raise ModelError(
            f"{type(model).__name__}: its logits are not projection(hidden) with the known scale and soft-cap; it cannot be "
            "trained exactly."
        )
    return largest
