"""Makes runs on a GPU reproducible bit for bit, also across a resume.

On a CPU runs are reproducible anyway. On CUDA sampling is, given the same slots, but these parts of training are not:

- The backward of fused attention: programs add their share of a query's gradient in the order in which they finish. In
  PyTorch's deterministic mode flash attention adds in a fixed order, and cuDNN's attention, which cannot, is not used.
- index_add (sums over a completion) and the backwards of gather and index_select add atomically. The mode replaces them.
- cuBLAS, if several streams share a workspace. CUBLAS_WORKSPACE_CONFIG fixes that; it is read when CUDA starts.

Our own kernels use no atomics, and the backwards of an embedding and of plain indexing sort.

The strict mode is used. With warn_only=True attention would keep its unordered backward and only print a warning. An operation
without an ordered form therefore ends the run with an error that names it.

The cost is that of the ordered attention backward, and of not using cuDNN's attention; it grows with the length of the
sequences. The same bits also need the same GPU model, driver and versions, because other GPUs round differently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cohort.errors import RunError

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
ACCEPTED = (":4096:8", ":16:8")
"""The two values for which PyTorch considers cuBLAS deterministic."""


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """With `on`, everything inside is reproducible bit for bit or refused. The old settings are restored at the end."""
    if not on:
        yield
        return
    prepare_cublas()
    enabled, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled, searched = memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True, warn_only=False)
        # Filling new tensors with NaN finds reads of unwritten memory. It is a debugging aid and costs one write each.
        memory.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False
        yield
    except RuntimeError as problem:
        if "deterministic" not in str(problem):
            raise
        first_line = str(problem).strip().splitlines()[0]
        raise RunError(
            f"train.deterministic: something in this run has no reproducible form on this device ({first_line}). "
            "Set train.deterministic = false, or do without the part that needs it."
        ) from problem
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        memory.fill_uninitialized_memory = filled
        torch.backends.cudnn.benchmark = searched


def prepare_cublas() -> None:
    """Set the variable that cuBLAS reads when CUDA starts. Refuses if that has already happened."""
    value = os.environ.get(VARIABLE)
    if value in ACCEPTED:
        return
    if value is not None:
        raise RunError(
            f"train.deterministic: the environment has {VARIABLE}={value}, which is not reproducible. Unset it, or use {ACCEPTED[0]}."
        )
    if torch.cuda.is_initialized():
        raise RunError(
            f"train.deterministic: CUDA is already in use in this process, and {VARIABLE} is read when it starts. "
            f"Set {VARIABLE}={ACCEPTED[0]} in the environment, or start the run in a new process."
        )
    os.environ[VARIABLE] = ACCEPTED[0]
