"""Runs on a GPU that come out with the same bits twice, and the same after a resume as without one.

On a CPU they do so by themselves. On CUDA the sampling half does, given the same slots; these parts of training do not:

- the backward of fused attention: programs add their share of a query's gradient in the order in which they finish. With
  PyTorch's deterministic mode flash attention adds in a fixed order, and cuDNN's attention, which cannot, is not chosen;
- index_add (sums over a completion) and the backwards of gather and index_select, which add atomically: replaced in that mode;
- cuBLAS, where several streams share a workspace: fixed by CUBLAS_WORKSPACE_CONFIG, which is read when CUDA starts.

Our own kernels use no atomics, and the backward of an embedding or of plain indexing sorts: they need nothing.

The mode is the strict one. With warn_only=True attention would keep its unordered backward and print a warning, so the run
would look reproducible and not be. An operation that has no ordered form therefore ends the run, by name.

The cost is that of the ordered attention backward, and of doing without cuDNN's attention where that is faster; it grows with
the length of the sequences. The same device model, driver and versions are needed for the same bits: another GPU rounds
differently.
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
"""The two values with which PyTorch trusts cuBLAS to be deterministic."""


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """With `on`, everything inside is reproducible bit for bit or refused; afterwards all is as before. Else nothing changes."""
    if not on:
        yield
        return
    prepare_cublas()
    enabled, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled, searched = memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True, warn_only=False)
        # Filling every new tensor with NaN finds reads of unwritten memory; it is a debugging aid and costs a write each.
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
    """Set the variable that cuBLAS reads when CUDA starts; too late afterwards."""
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
