"""What weights are, in one word: a SHA-256 over every bit of them, so that a resumed run notices a single flipped one.

Taken of the tensors in memory and not of files: what is compared is what is computed with, whatever file it came from. Tensors are
hashed side by side (hashlib lets go of the interpreter), which costs about a second per 2 GB and core.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

MOST_THREADS = 8
SAMPLED_VALUES = 256
"""Of each tensor, in digests of checkpoints from before all of it was read."""
WHOLE = "sha256:"
"""How a digest of everything begins; one without was taken of a sample."""


def digest_weights(tensors: Mapping[str, Tensor]) -> str:
    """Of every bit of these tensors, with their names, dtypes and shapes."""
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        lines = pool.map(describe_tensor, tensors, tensors.values())
        return WHOLE + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def describe_tensor(name: str, tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous()
    content = hashlib.sha256(values.flatten().view(torch.uint8).numpy().data).hexdigest()
    return f"{name} {values.dtype} {tuple(values.shape)} {content}"


def is_whole(digest: str) -> bool:
    return digest.startswith(WHOLE)


def sample_weights(model: Any) -> str:
    """The digest that older checkpoints hold of a model: of the first values of every parameter."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + read_first_bytes(parameter))
    return digest.hexdigest()


def read_first_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().flatten()[:SAMPLED_VALUES].float().cpu().contiguous().numpy().tobytes()
