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
"""What a rotary module says of its kind once its frequencies stay as they are; transformers then leaves them alone."""


def count_positions(config: Any) -> int | None:
    """Tokens that a sequence may have; None: any number. Dynamic frequencies reach further than the length of training."""
    most = getattr(config, "max_position_embeddings", None)
    factors = [float(kind.get("factor") or 1.0) for kind in list_rope_kinds(config) if "dynamic" in str(kind.get("rope_type"))]
    return int(most * max(1.0, *factors)) if most and factors else most


def find_exact_length(model: Any) -> int | None:
    """Longest sequence at whose length the frequencies are still the first ones; None: no length changes them."""
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
    """Let transformers choose for sequences of this length, and stay with that; a sentence where it is not what short ones have."""
    limit = find_exact_length(model)
    if limit is None:
        return None
    for module, layer_types in list_length_dependent(model):
        where, at = next(module.buffers()).device, {}
        position_ids = torch.tensor([[longest - 1]], device=where)
        for layer_type in layer_types:
            at = {} if layer_type is None else {"layer_type": layer_type}
            module(torch.zeros(1, device=where), position_ids, **at)
        module.rope_type = HELD if layer_types == [None] else module.rope_type | dict.fromkeys(layer_types, HELD)
        module.held_for = longest
    if longest <= limit:
        return None
    return (
        f"its rotary frequencies change beyond {limit} tokens and this run reaches {longest}: they are those of {longest} tokens at every "
        "length, as a server with this limit has them"
    )


def list_length_dependent(model: Any) -> Iterator[tuple[Any, list[str | None]]]:
    """Rotary modules whose frequencies follow the length, and for which types of layers; [None] where it has one kind for all."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds: dict[str | None, Any] = dict(kind) if isinstance(kind, dict) else {None: kind}
        found = [name for name, one in kinds.items() if one == "longrope" or "dynamic" in str(one)]
        if found:
            yield module, found


def list_rope_kinds(config: Any) -> list[dict[str, Any]]:
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(value for value in rope.values() if isinstance(value, dict))]


# -- mixture of experts -----------------------------------------------------------------------------------------------


COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")

ASKED_FOR = "though its config asks for it"


def describe_experts(config: Any) -> str | None:
    """A sentence on how the experts of a model are trained; None where it has none.

    The balance loss of transformers is a product of two means over a batch, the share of tokens that each expert gets and its mean
    probability: no sum over tokens, so its gradient would change with train.micro_batch_tokens, and with every row that is skipped.
    """
    found = [getattr(config, name, None) for name in COUNTS]
    count = max((number for number in found if isinstance(number, int)), default=0)
    if count < 2:
        return None
    asked = ""
    if getattr(config, "output_router_logits", False):
        coef = getattr(config, "router_aux_loss_coef", getattr(config, "aux_loss_coef", None))
        asked = f", {ASKED_FOR} (output_router_logits = true, router_aux_loss_coef = {coef})"
    return (
        f"a mixture of {count} experts: its router learns from the loss of the algorithm alone, and the balance loss (router_aux_loss_coef) is "
        f"not trained{asked}"
    )
