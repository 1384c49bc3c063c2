"""Whether what a trainer sends are the weights of a server's model: names and shapes, before a weight is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cohort_vllm.transfer import Entry

DTYPES = ("float64", "float32", "bfloat16", "float16")
MOST_NAMED = 3


def list_parameters(config: Any) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of the model that a server holds, as transformers builds it. Nothing is allocated."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def find_difference(entries: Sequence[Entry], own: dict[str, tuple[int, ...]]) -> str:
    """Why these tensors are not all the weights of this server's model; "" where they are."""
    sent = {name: tuple(shape) for name, _, shape in entries}
    missing, unknown = [name for name in own if name not in sent], [name for name in sent if name not in own]
    other = [
        f"{name} of shape {list(sent[name])}, here {list(own[name])}"
        for name in sent
        if own.get(name, sent[name]) != sent[name]
    ]
    strange = [f"{name} as {dtype}" for name, dtype, _ in entries if dtype not in DTYPES]
    found = {"it lacks": missing, "it has besides": unknown, "it sends": other or strange}
    said = [
        f"{what} {', '.join(names[:MOST_NAMED])}{' ...' * (len(names) > MOST_NAMED)}" for what, names in found.items() if names
    ]
    return (
        f"the trainer's model is another than this server's: {'; '.join(said)}. Serve the model of the recipe." if said else ""
    )
