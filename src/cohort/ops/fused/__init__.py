"""Our own code for the Llama and Qwen families, where the modules of transformers would leave the hardware idle.

`family.py` reads a model into plain tensors, which are the model's own parameters. `training.py` computes hidden states with
gradients, and `kernels_decode.py` samples on a GPU, `cpu.py` on a CPU. The Triton kernels (`kernels_*.py`) have reference
implementations in plain torch, which tests compare them with. A model outside these families, or with an unsupported option, is
refused with the reason and runs with the modules of transformers.
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
    """Return whether Triton kernels run on this device. Elsewhere the same operations run in torch."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def make_fused_error(problem: Exception) -> ModelError:
    """Return the error for model.kernels = "fused" where that is impossible."""
    return ModelError(f'model.kernels = "fused" is not possible: {describe_problem(problem)}. Use "auto" or "modules".')
