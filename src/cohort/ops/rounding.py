"""Keeping a matrix product out of the kernels that round differently.

Below a handful of rows the CPU's matrix library picks kernels that add up in another order, so the same row gives other
bits alone than in a batch. Up to a width of a few hundred, 16 rows are always enough (tested); extra rows of zeros cost
nothing there. With attention accumulated in float64 (ops/attention.py) this makes a token's log-prob the same bits whether it
is decoded in a batch of one or read as part of a sequence. Wider models on several threads keep differences of rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

STEADY_ROWS = 16


def count_missing_rows(rows: int, device: torch.device) -> int:
    """How many rows are missing for a product that does not depend on their number."""
    return max(0, STEADY_ROWS - rows) if device.type == "cpu" else 0


def run_steadily(function: Callable[[Tensor], Tensor], rows_NH: Tensor) -> Tensor:
    """function(rows), computed with enough rows."""
    missing = count_missing_rows(rows_NH.shape[:-1].numel(), rows_NH.device)
    if not missing:
        return function(rows_NH)
    flat_NH = rows_NH.reshape(-1, rows_NH.shape[-1])
    result_NV = function(F.pad(flat_NH, (0, 0, 0, missing)))[: flat_NH.shape[0]]
    return result_NV.reshape(*rows_NH.shape[:-1], -1)
