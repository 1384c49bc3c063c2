"""The library that multiplies float32 matrices on a CPU: MKL, PyTorch's default, or oneDNN.

On CPUs with AVX-512, oneDNN takes about half of MKL's time. PyTorch uses it only where it may round float32 inputs to bfloat16, which
oneDNN does on CPUs with matrix units for bfloat16 and not on others. So a run measures the error against float64 first, and takes
oneDNN only for results that are still those of float32. It also checks that a row of a product has the same bits in any batch, which
sampling and training rely on (rounding.py). No timing is involved: the same machine always makes the same choice.

The setting belongs to the process. It is set for the products of the CPU only and restored when the run ends.
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


# ---------------------------------------------------------------------------------------------------------------------
# x
# ---------------------------------------------------------------------------------------------------------------------

MKL, ONEDNN = "mkl", "onednn"
LEAST_WEIGHTS = 2**21
"""Weights of a layer from which on oneDNN is considered. Smaller models keep the compiled step for all layers, which calls MKL."""
TOLERANCE = 4
"""oneDNN's error against float64 may be this many times MKL's. Measured: 1.0 to 2.2. With inputs rounded to tf32 it is 1,200 to 2,000,
to bfloat16 9,700 to 16,000."""
OUTPUTS = 192
"""Columns of a product in the probe; its error depends on the numbers that are added up, not on these."""
ROWS = (STEADY_ROWS, 37, 300)
_library: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def uses_onednn() -> bool:
    return bool(_library.fp32_precision == "bf16")


@contextmanager
def restore_products() -> Iterator[None]:
    """Whatever is chosen inside ends here."""
    before = _library.fp32_precision
    try:
        yield
    finally:
        _library.fp32_precision = before


def choose_products(model: nn.Module, dtype: torch.dtype) -> str:
    """The library for this model on this machine; "" where it does not compute in float32 on a CPU."""
    if dtype != torch.float32 or not is_on_cpu(model):
        return ""
    linears = find_linears(model)
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 1)  # type: ignore[union-attr, operator]
    large = sum(linear.weight.numel() for linear in linears) >= LEAST_WEIGHTS * layers
    return ONEDNN if large and not explain_refusal(linears) else MKL


def use_products(name: str, model: nn.Module, owner: str) -> None:
    """Multiply with this library from now on. owner: whose choice it is, for the error where this machine cannot follow it."""
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
    """The layers' matrices: without the head, whose size says nothing of a layer."""
    head = model.get_output_embeddings()
    return [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]


def explain_refusal(linears: list[nn.Linear]) -> str:
    """Why oneDNN's products cannot replace MKL's here; "" where they can."""
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
