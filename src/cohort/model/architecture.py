"""Details of an architecture that a run has to handle: rotary frequencies, positions, mixtures of experts.

Some rotary frequencies depend on the length of the sequence (LongRoPE, dynamic NTK). transformers picks them again in every forward
pass, from the longest row of the batch. A token would then be sampled with other frequencies than it is scored with once its completion
has grown, and cached keys would not match the queries that read them: the log-prob of a token would not be defined. A run therefore
fixes them once, for the longest sequence it can reach, as inference servers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

HELD = "held"
"""Value of rope_type that marks fixed frequencies; transformers then does not change them."""
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
ASKS_FOR_BALANCE = "though its config asks for it"


def count_positions(config: Any) -> int | None:
    """Maximum number of tokens in a sequence; None: no limit. Dynamic frequencies extend the length of pretraining."""
    most = getattr(config, "max_position_embeddings", None)
    factors = [float(kind.get("factor") or 1.0) for kind in list_rope_kinds(config) if "dynamic" in str(kind.get("rope_type"))]
    return int(most * max(1.0, *factors)) if most and factors else most


def find_exact_length(model: Any) -> int | None:
    """Length up to which the rotary frequencies do not change; None: they never change."""
    config = model.config.get_text_config()
    limits = []
    for kind in list_rope_kinds(config):
        if kind.get("rope_type") == "longrope":
            limits.append(kind.get("original_max_position_embeddings") or config.max_position_embeddings)
        elif "dynamic" in str(kind.get("rope_type")):
            limits.append(config.max_position_embeddings)
    if not limits:
        return None
    held = [module.held_for for module in model.modules() if hasattr(module, "held_for")]
    return min(held or limits)


def hold_frequencies(model: Any, longest: int) -> str | None:
    """Fix the frequencies that transformers picks for this length. Returns a notice if shorter sequences normally have others."""
    limit = find_exact_length(model)
    if limit is None:
        return None
    for module, layer_types in list_length_dependent(model):
        device, extra = next(module.buffers()).device, {}
        position_ids = torch.tensor([[longest - 1]], device=device)
        for layer_type in layer_types:
            extra = {} if layer_type is None else {"layer_type": layer_type}
            module(torch.zeros(1, device=device), position_ids, **extra)
        module.rope_type = HELD if layer_types == [None] else module.rope_type | dict.fromkeys(layer_types, HELD)
        module.held_for = longest
    if longest <= limit:
        return None
    return (
        f"its rotary frequencies change beyond {limit} tokens, and this run reaches {longest}: the frequencies for {longest} tokens are used "
        "at every length, as a server with this limit does"
    )


def list_length_dependent(model: Any) -> Iterator[tuple[Any, list[str | None]]]:
    """Rotary modules whose frequencies depend on the length, with the affected layer types; [None]: one kind for all layers."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds: dict[str | None, Any] = dict(kind) if isinstance(kind, dict) else {None: kind}
        found = [name for name, one in kinds.items() if one == "longrope" or "dynamic" in str(one)]
        if found:
            yield module, found


def list_rope_kinds(config: Any) -> list[dict[str, Any]]:
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(value for value in rope.values() if isinstance(value, dict))]


def describe_experts(config: Any) -> str | None:
    """Notice for mixture-of-experts models: the balance loss is not trained. None for other models.

    The balance loss of transformers is a product of two means over a batch (each expert's share of the tokens, and its mean
    probability). It is not a sum over tokens, so its gradient would depend on train.micro_batch_tokens and on skipped rows.
    """
    found = [getattr(config, name, None) for name in EXPERT_COUNTS]
    count = max((number for number in found if isinstance(number, int)), default=0)
    if count < 2:
        return None
    asked = ""
    if getattr(config, "output_router_logits", False):
        coef = getattr(config, "router_aux_loss_coef", getattr(config, "aux_loss_coef", None))
        asked = f", {ASKS_FOR_BALANCE} (output_router_logits = true, router_aux_loss_coef = {coef})"
    return (
        f"a mixture of {count} experts: its router is trained only by the algorithm's loss, and the balance loss (router_aux_loss_coef) is "
        f"not trained{asked}"
    )
