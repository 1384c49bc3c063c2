"""Matrix products in float32 on a CPU: rows with the same bits in any batch, and the choice between MKL and oneDNN.

For fewer than about 16 rows the CPU's matrix library uses kernels that add in another order, so a row would get other bits
alone than in a batch. Up to a width of a few hundred, 16 rows are always enough (tested), and padding with zeros costs nothing
there. Together with attention in float64 (ops/attention.py) a token's log-prob then has the same bits whether it is decoded
alone or read as part of a sequence. Wider models on several threads keep rounding differences.

An activation over all rows is computed in full vectors, and the remainder at the end number by number, with another
exponential. If a row is not a whole number of vectors, rows are added until all of them together are.

On CPUs with AVX-512, oneDNN takes about half of MKL's time, PyTorch's default. PyTorch uses it only where it may round float32
inputs to bfloat16, which oneDNN does on CPUs with bfloat16 matrix units and not on others. So a run first measures the error
against float64, and uses oneDNN only if the results are still those of float32 and rows have the same bits in any batch. No
timing is involved, so the same machine always makes the same choice. The setting applies to the process; it is set only for
products on the CPU and restored when the run ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.errors import RunError

STEADY_ROWS = 16
FLOATS_AT_ONCE = 32
"""Float32 numbers in the two widest vector registers, which torch's elementwise loops process at once."""


def count_missing_rows(rows: int, device: torch.device, width: int = 0) -> int:
    """Return how many rows to add so that results do not depend on the number of rows. width: numbers per row of an activation."""
    if device.type != "cpu":
        return 0
    step = find_row_step(width)
    return -(-max(rows, STEADY_ROWS) // step) * step - rows


def find_row_step(width: int) -> int:
    """Return the smallest number of rows of that width that fill whole vectors; 1 without a width."""
    return FLOATS_AT_ONCE // math.gcd(FLOATS_AT_ONCE, width)


def find_activated_width(config: Any) -> int:
    """Return the width of the MLP's activation if the transformers config has one for all layers, else 0."""
    width = getattr(config.get_text_config(), "intermediate_size", 0)
    return width if isinstance(width, int) else 0


def run_steadily(function: Callable[[Tensor], Tensor], rows_NH: Tensor) -> Tensor:
    """Return function(rows), computed with enough rows."""
    missing = count_missing_rows(rows_NH.shape[:-1].numel(), rows_NH.device)
    if not missing:
        return function(rows_NH)
    flat_NH = rows_NH.reshape(-1, rows_NH.shape[-1])
    result_NV = function(F.pad(flat_NH, (0, 0, 0, missing)))[: flat_NH.shape[0]]
    return result_NV.reshape(*rows_NH.shape[:-1], -1)


# ---------------------------------------------------------------------------------------------------------------------
# MKL or oneDNN
# ---------------------------------------------------------------------------------------------------------------------

MKL, ONEDNN = "mkl", "onednn"
LEAST_WEIGHTS = 2**21
"""Weights per layer from which on oneDNN is considered. Smaller models keep the compiled step for all layers, which calls MKL."""
TOLERANCE = 4
"""Largest accepted ratio of oneDNN's error to MKL's, both against float64. Measured: 1.0 to 2.2; 1,200 to 2,000 with inputs
rounded to tf32; 9,700 to 16,000 with bfloat16."""
OUTPUTS = 192
"""Columns of the probe's product. They do not affect the error, only the summed numbers do."""
ROWS = (STEADY_ROWS, 37, 300)
_library: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def uses_onednn() -> bool:
    return bool(_library.fp32_precision == "bf16")


@contextmanager
def restore_products() -> Iterator[None]:
    """Restore the library at the end."""
    before = _library.fp32_precision
    try:
        yield
    finally:
        _library.fp32_precision = before


def choose_products(model: nn.Module, dtype: torch.dtype) -> str:
    """Return the library for this model on this machine, or "" if it does not compute in float32 on a CPU."""
    if dtype != torch.float32 or not is_on_cpu(model):
        return ""
    linears = find_linears(model)
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 1)  # type: ignore[union-attr, operator]
    large = sum(linear.weight.numel() for linear in linears) >= LEAST_WEIGHTS * layers
    return ONEDNN if large and not explain_refusal(linears) else MKL


def use_products(name: str, model: nn.Module, owner: str) -> None:
    """Multiply with this library from now on. owner: the subject of the error message if this machine cannot."""
    if name != ONEDNN or not is_on_cpu(model):
        return
    if reason := explain_refusal(find_linears(model)):
        raise RunError(
            f"{owner} multiplies float32 matrices with oneDNN, and on this machine {reason}. Continue on the kind of CPU and the PyTorch "
            "version it was started with, or export the model (`cohort export`) and start from that folder."
        )
    _library.fp32_precision = "bf16"


def is_on_cpu(model: nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


def find_linears(model: Any) -> list[nn.Linear]:
    """Return the layers' linear modules, without the head."""
    head = model.get_output_embeddings()
    return [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]


def explain_refusal(linears: list[nn.Linear]) -> str:
    """Return why oneDNN cannot replace MKL here, or ""."""
    if not torch.backends.mkldnn.is_available():
        return "PyTorch has no oneDNN"
    generator, differs = torch.Generator().manual_seed(0), False
    for width in sorted({linear.in_features for linear in linears}):
        rows_NI = torch.randn(max(ROWS), width, generator=generator)
        weight_OI = torch.randn(OUTPUTS, width, generator=generator)
        with restore_products():
            _library.fp32_precision = "ieee"
            plain = F.linear(rows_NI, weight_OI)
            _library.fp32_precision = "bf16"
            found = F.linear(rows_NI, weight_OI)
            packed_IO = weight_OI.t().contiguous()
            steady = all(torch.equal(torch.mm(rows_NI[:count], packed_IO), found[:count]) for count in ROWS)
        differs |= not torch.equal(found, plain)
        exact = rows_NI.double() @ weight_OI.double().t()
        worse = measure_error(found, exact) / measure_error(plain, exact)
        if not worse <= TOLERANCE:
            return f"its error over {width} inputs is {worse:.3g} times that of MKL (at most {TOLERANCE} is accepted)"
        if not steady:
            return f"the bits of its results over {width} inputs depend on the number of rows"
    return "" if differs else "PyTorch does not use oneDNN for float32"


def measure_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt())
