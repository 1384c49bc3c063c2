"""Keeping a matrix product out of the kernels that round differently.

Below a handful of rows the CPU's matrix library picks kernels that add up in another order, so the same row gives other
bits alone than in a batch. Up to a width of a few hundred, 16 rows are always enough (tested); extra rows of zeros cost
nothing there. With attention accumulated in float64 (ops/attention.py) this makes a token's log-prob the same bits whether it
is decoded in a batch of one or read as part of a sequence. Wider models on several threads keep differences of rounding.

An activation over all rows is computed in full vectors, and what is left at the end of the last row number by number, with
another exponential. Where a row is not full vectors wide, rows are added until all of them together are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

STEADY_ROWS = 16
FLOATS_AT_ONCE = 32
"""Float32 numbers in the two widest vector registers that torch's elementwise loops take at once."""


def count_missing_rows(rows: int, device: torch.device, width: int = 0) -> int:
    """How many rows are missing for results that do not depend on their number. width: numbers in a row of an activation."""
    if device.type != "cpu":
        return 0
    step = find_row_step(width)
    return -(-max(rows, STEADY_ROWS) // step) * step - rows


def find_row_step(width: int) -> int:
    """Rows of so many numbers that are full vectors together; 1 where each is, or where no width is given."""
    return FLOATS_AT_ONCE // math.gcd(FLOATS_AT_ONCE, width)


def find_activated_width(config: Any) -> int:
    """Numbers in a row of the MLP's activation, as far as a config of transformers says it of all layers; else 0."""
    width = getattr(config.get_text_config(), "intermediate_size", 0)
    return width if isinstance(width, int) else 0


def run_steadily(function: Callable[[Tensor], Tensor], rows_NH: Tensor) -> Tensor:
    """function(rows), computed with enough rows."""
    missing = count_missing_rows(rows_NH.shape[:-1].numel(), rows_NH.device)
    if not missing:
        return function(rows_NH)
    flat_NH = rows_NH.reshape(-1, rows_NH.shape[-1])
    result_NV = function(F.pad(flat_NH, (0, 0, 0, missing)))[: flat_NH.shape[0]]
    return result_NV.reshape(*rows_NH.shape[:-1], -1)
