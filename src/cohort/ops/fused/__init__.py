"""Own code for the Llama and Qwen families, where driving the modules of transformers leaves the hardware idle.

`family.py` reads a model into plain tensors (the model's own parameters, no copy). `decoding.py` samples with them,
`training.py` computes hidden states with gradients; `kernels_*.py` hold the Triton kernels of both, each with a twin in plain
torch that the tests compare it with. A model outside these families, or with an option that is not honoured here, is refused
with the reason, and the modules of transformers do the work instead.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

from cohort.errors import ModelError, describe_problem

if TYPE_CHECKING:
    import torch


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton kernels serve this device; elsewhere what they do is spelled out in torch."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def make_fused_error(problem: Exception) -> ModelError:
    """What is said where model.kernels asks for own code and it cannot be had."""
    return ModelError(f'model.kernels = "fused" is not possible: {describe_problem(problem)}. Use "auto" or "modules".')
