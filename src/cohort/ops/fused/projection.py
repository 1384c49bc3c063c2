"""Linear layers with the same input as one product, and their LoRA adapters.

    y = W x + s B (A x)        A is [rank, inputs], B is [outputs, rank]; W is frozen then

W has the rows of all layers in one tensor, and the model's own parameters become views of it; likewise the A. Each B is added
to the columns of its layer in place, so y is written once and added to once. W and B A are never merged. A merged weight would
have to be recomputed after every update, would need the memory of the base again, would lose values below 1/256 of a weight in
bfloat16, and sampling and training would no longer compute the same sums.

In the backward only the product for the rows has the size of W. It reads A x, which is kept: at rank 16 that is one number per
five hundred other activations of a 7B model, and recomputing it would read all rows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.errors import EngineError
from cohort.ops.products import count_missing_rows


def is_four_bit(weight: Any) -> bool:
    return getattr(weight, "quant_state", None) is not None


@torch.no_grad()
def restore_weight(layer: Any) -> Tensor:
    """Return the weight of a linear layer as its products use it, dequantised if bitsandbytes holds it in 4 bits."""
    if not is_four_bit(layer.weight):
        weight: Tensor = layer.weight
        return weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(layer.compute_dtype)


MADE_UP_SPREAD = 0.02
"""Scale of the values that replace those of an all-zero adapter during a comparison."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """The adapter of one layer."""

    down: Tensor
    """A."""
    up: Tensor
    """B."""
    scale: float


@dataclass(frozen=True)
class Adapters:
    """The adapters of a projection; some layers may have none."""

    down_RI: Tensor
    """All A stacked, detached."""
    parts: Sequence[LowRank]
    columns: Sequence[slice]
    """The output columns of each adapter's layer."""

    @property
    def reduced(self) -> list[slice]:
        """Return the columns of each adapter in A x."""
        return cut_places([len(part.down) for part in self.parts])

    def add_to(self, projected_TP: Tensor, rows_TI: Tensor) -> Tensor:
        """Add the adapters' output in place; returns A x [T, R]."""
        reduced_TR = F.linear(rows_TI, self.down_RI)
        for part, place, columns in zip(self.parts, self.reduced, self.columns, strict=True):
            projected_TP[:, columns].addmm_(reduced_TR[:, place], part.up.t(), alpha=part.scale)
        return reduced_TR

    def reduce_gradient(self, d_projected_TP: Tensor) -> Tensor:
        """Return the gradient of A x."""
        d_reduced_TR = d_projected_TP.new_empty(len(d_projected_TP), len(self.down_RI))
        for part, place, columns in zip(self.parts, self.reduced, self.columns, strict=True):
            d_reduced_TR[:, place].addmm_(d_projected_TP[:, columns], part.up, beta=0, alpha=part.scale)
        return d_reduced_TR

    def differentiate(
        self, d_projected_TP: Tensor, d_reduced_TR: Tensor, rows_TI: Tensor | None, reduced_TR: Tensor, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """Return the gradients of all A, then of all B."""
        ranks = [len(part.down) for part in self.parts]
        d_downs = split_product(d_reduced_TR, rows_TI, ranks, needed[: len(ranks)])
        d_ups = [
            torch.addmm(part.up, d_projected_TP[:, columns].t(), reduced_TR[:, place], beta=0, alpha=part.scale)
            if need
            else None
            for part, place, columns, need in zip(self.parts, self.reduced, self.columns, needed[len(ranks) :], strict=True)
        ]
        return [*d_downs, *d_ups]


@dataclass(frozen=True)
class Projection:
    """Rows of several linear layers in one detached tensor, and the parameters that are views of it; the same for their biases.

    A 4-bit base has no such tensor; its weights are dequantised for each product.
    """

    weight: Tensor | None
    parts: Sequence[Tensor]
    bias: Tensor | None = None
    bias_parts: Sequence[Tensor] = ()
    adapters: Adapters | None = None
    layers: Mapping[str, Any] = field(default_factory=dict)
    """The layers it was read from, by name."""

    @classmethod
    def lay_together(cls, layers: Mapping[str, Any]) -> Projection:
        """Fuse layers that all have a bias, or none. Raises EngineError if one is not a readable linear layer."""
        bases = [read_base(name, layer) for name, layer in layers.items()]
        found = [read_adapter(name, layer) for name, layer in layers.items()]
        in_bits = {is_four_bit(base.weight) for base in bases}
        if len(in_bits) > 1:
            raise EngineError(f"some, not all, of {', '.join(layers)} are in 4 bits")
        weights = [] if True in in_bits else [base.weight for base in bases]
        biases = [base.bias for base in bases if base.bias is not None]
        places = cut_places([base.out_features for base in bases])
        parts = [adapter for adapter in found if adapter is not None]
        for part in parts:
            lay_together([part.up])  # compiled code reads it row by row
        columns = [place for place, adapter in zip(places, found, strict=True) if adapter is not None]
        return cls(
            lay_together(weights) if weights else None,
            weights,
            lay_together(biases) if biases else None,
            biases,
            Adapters(lay_together([part.down for part in parts]), parts, columns) if parts else None,
            layers,
        )

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters that may be trained: weights, biases, all A, all B."""
        adapters = [] if self.adapters is None else self.adapters.parts
        return [*self.parts, *self.bias_parts, *(part.down for part in adapters), *(part.up for part in adapters)]

    @property
    def outputs(self) -> list[int]:
        """The number of rows of each layer's weight."""
        return [len(part) for part in self.parts]

    def read_weight(self) -> Tensor:
        if self.weight is not None:
            return self.weight
        restored = [restore_weight(get_base(layer)) for layer in self.layers.values()]
        return restored[0] if len(restored) == 1 else torch.cat(restored)

    def multiply(self, rows_TI: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the projection of rows, and A x. On a CPU a row has the same bits in any batch."""
        count = len(rows_TI)
        if missing := count_missing_rows(count, rows_TI.device):
            rows_TI = F.pad(rows_TI, (0, 0, 0, missing))
        projected_TP = F.linear(rows_TI, self.read_weight(), self.bias)
        reduced_TR = None if self.adapters is None else self.adapters.add_to(projected_TP, rows_TI)
        return projected_TP[:count], None if reduced_TR is None else reduced_TR[:count]

    def needs_rows(self, needed: Sequence[bool]) -> bool:
        """Return whether a gradient needs the multiplied rows: that of a weight or of an A."""
        first = len(self.parts) + len(self.bias_parts)
        downs = 0 if self.adapters is None else len(self.adapters.parts)
        return any(needed[: len(self.parts)]) or any(needed[first : first + downs])

    def needs_bias(self, needed: Sequence[bool]) -> bool:
        return any(needed[len(self.parts) :][: len(self.bias_parts)])

    def reduce_gradient(self, d_projected_TP: Tensor) -> Tensor | None:
        return None if self.adapters is None else self.adapters.reduce_gradient(d_projected_TP)

    def differentiate_rows(self, d_projected_TP: Tensor, d_reduced_TR: Tensor | None) -> Tensor:
        d_rows_TI = d_projected_TP @ self.read_weight()
        if d_reduced_TR is not None and self.adapters is not None:
            d_rows_TI.addmm_(d_reduced_TR, self.adapters.down_RI)
        return d_rows_TI

    def differentiate_parameters(
        self,
        d_projected_TP: Tensor,
        d_bias_P: Tensor | None,
        d_reduced_TR: Tensor | None,
        rows_TI: Tensor | None,
        reduced_TR: Tensor | None,
        needed: Sequence[bool],
    ) -> list[Tensor | None]:
        """Return the gradient of each of `parameters`, or None. `rows_TI`: the multiplied rows, where needed."""
        weights, first = len(self.parts), len(self.parts) + len(self.bias_parts)
        d_weights = split_product(d_projected_TP, rows_TI, self.outputs, needed[:weights])
        biases = self.outputs if self.parts else [len(bias) for bias in self.bias_parts]
        d_biases = split_needed(d_bias_P, biases, needed[weights:first])
        if self.adapters is None or d_reduced_TR is None or reduced_TR is None:
            return [*d_weights, *d_biases]
        return [
            *d_weights,
            *d_biases,
            *self.adapters.differentiate(d_projected_TP, d_reduced_TR, rows_TI, reduced_TR, needed[first:]),
        ]


def split_product(
    d_projected_TP: Tensor, rows_TI: Tensor | None, outputs: list[int], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradient of each part of a weight, with a single product if all are needed."""
    if rows_TI is None or not any(needed):
        return [None] * len(needed)
    if all(needed):
        return split_needed(d_projected_TP.t() @ rows_TI, outputs, needed)
    d_parts = d_projected_TP.split(outputs, dim=1)
    return [part_TP.t() @ rows_TI if need else None for part_TP, need in zip(d_parts, needed, strict=True)]


def split_needed(whole: Tensor | None, sizes: list[int], needed: Sequence[bool]) -> list[Tensor | None]:
    if whole is None or not needed:
        return [None] * len(needed)
    return [part if need else None for part, need in zip(whole.split(sizes), needed, strict=True)]


def cut_places(sizes: Sequence[int]) -> list[slice]:
    return [slice(low, high) for low, high in pairwise(accumulate(sizes, initial=0))]


# -- reading layers ----------------------------------------------------------------------------------------------------


@cache
def is_lora_kind(kind: type) -> bool:
    """Return whether the class is PEFT's linear layer, over a plain or a 4-bit weight."""
    if not kind.__module__.startswith("peft."):
        return False
    from peft.tuners import lora

    return kind in (lora.Linear, getattr(lora, "Linear4bit", None))


def is_adapted(layer: Any) -> bool:
    kind: Any = type(layer)
    return is_lora_kind(kind)


def get_base(layer: Any) -> Any:
    return layer.get_base_layer() if is_adapted(layer) else layer


def read_base(name: str, layer: Any) -> Any:
    """Return the linear layer under its adapters."""
    base = get_base(layer)
    if type(base) is not nn.Linear and not is_four_bit(getattr(base, "weight", None)):
        kind = f"{type(base).__module__.partition('.')[0]}.{type(base).__name__}"
        raise EngineError(f"{name} is a {kind}, not a plain linear layer")
    return base


def read_adapter(name: str, layer: Any) -> LowRank | None:
    """Return the active adapter, if any. Raises EngineError if it computes anything but B A."""
    if not is_adapted(layer) or layer.disable_adapters:
        return None
    if layer.merged:
        raise EngineError(f"the adapter of {name} is merged into its weight; unmerge it")
    active = [adapter for adapter in layer.active_adapters if adapter in layer.lora_A]
    if len(active) > 1:
        raise EngineError(f"{name} has several adapters switched on ({', '.join(active)})")
    if not active:
        return None
    (adapter,) = active
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    if adapter in layer.lora_variant or layer.fan_in_fan_out or up.bias is not None:
        raise EngineError(f"the adapter of {name} is a variant of LoRA or has a bias")
    if getattr(layer.lora_dropout[adapter], "p", 0.0):
        raise EngineError(f"the adapter of {name} has dropout")
    base = layer.get_base_layer()
    first, second = down.weight, up.weight
    dtype = base.weight.dtype if type(base) is nn.Linear else base.compute_dtype
    if first.dtype != dtype or second.dtype != dtype:
        raise EngineError(f"the adapter of {name} is in {second.dtype}, what it is added to in {dtype}")
    return LowRank(first, second, float(layer.scaling[adapter]))


@contextmanager
def fill_zero_adapters(adapters: Sequence[Adapters], spread: float = MADE_UP_SPREAD) -> Iterator[None]:
    """Fill all-zero adapters with values inside, and zero them again: a comparison would not see them otherwise."""
    zero = [part.up for one in adapters for part in one.parts if not part.up.any()]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for up in zero:
                up.copy_(spread * torch.randn(up.shape, generator=generator))
        yield
    finally:
        with torch.no_grad():
            for up in zero:
                up.zero_()


# -- one tensor --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def lay_together(parameters: Sequence[Any]) -> Tensor:
    """Return one tensor with the rows of all parameters, which become views of it. Parameters that are adjacent already stay
    where they are.
    """
    first, rows = parameters[0], sum(parameter.shape[0] for parameter in parameters)
    if lie_adjacent(parameters):
        shape, data = (rows, *first.shape[1:]), first.detach()
        return data.as_strided(shape, data.stride(), data.storage_offset())
    together = torch.cat([parameter.detach() for parameter in parameters])
    at = 0
    for parameter in parameters:
        parameter.data = together[at : at + parameter.shape[0]]
        at += parameter.shape[0]
    return together


def lie_adjacent(parameters: Sequence[Tensor]) -> bool:
    """Return whether the parameters are adjacent in one storage."""
    storage, end = parameters[0].untyped_storage().data_ptr(), parameters[0].storage_offset()
    for parameter in parameters:
        place = (parameter.untyped_storage().data_ptr(), parameter.storage_offset())
        if place != (storage, end) or not parameter.is_contiguous():
            return False
        end += parameter.numel()
    return True
