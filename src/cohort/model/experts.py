"""What is said of a mixture of experts, since nothing in its loss says it."""

from __future__ import annotations

from typing import Any

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
