"""Compares the names and shapes that a trainer sends with a server's model, before a weight is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cohort_vllm.transfer import Entry

DTYPES = ("float64", "float32", "bfloat16", "float16")
MOST_NAMED = 3


def list_parameters(config: Any) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of the server's model, as transformers builds it. Nothing is allocated."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def find_difference(entries: Sequence[Entry], own: dict[str, tuple[int, ...]]) -> str:
    """Why these tensors are not the weights of this server's model; "" if they are."""
    sent = {name: tuple(shape) for name, _, shape in entries}
    missing, unknown = [name for name in own if name not in sent], [name for name in sent if name not in own]
    other = [
        f"{name} of shape {list(sent[name])}, here {list(own[name])}"
        for name in sent
        if own.get(name, sent[name]) != sent[name]
    ]
    unsupported = [f"{name} as {dtype}" for name, dtype, _ in entries if dtype not in DTYPES]
    found = {"it lacks": missing, "it also has": unknown, "it sends": other or unsupported}
    differences = [
        f"{kind} {', '.join(names[:MOST_NAMED])}{' ...' * (len(names) > MOST_NAMED)}" for kind, names in found.items() if names
    ]
    if not differences:
        return ""
    return f"the trainer's model is not this server's: {'; '.join(differences)}. Serve the model of the recipe."
