"""A frozen base in 4 bits under adapters (QLoRA), through bitsandbytes.

    W  ->  16 levels of a normal distribution (nf4), one scale for every 64 weights, the scales in 8 bits: 4.13 bits a weight

The linear layers below the head are held so; embeddings, norms and head keep the compute dtype. Each product takes its weights back to
that dtype first, so what is sampled, scored, trained and merged is one and the same rounded base. bitsandbytes is imported only here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.errors import ModelError
from cohort.ops.fused.projection import is_four_bit, restore_weight

NAME = "nf4"
MARKS = ("hf_quantizer", "quantization_method", "is_quantized", "is_loaded_in_4bit")
"""By which transformers knows a quantised model."""


def make_loading_options(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What transformers is told so that each weight is rounded as it is read: the model in full precision is never held."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            f'model.lora.base_dtype: "{NAME}" needs the package bitsandbytes. Install it with '
            """`pip install 'cohort-rl[qlora]'`, or leave the base as it is with "auto"."""
        )
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=NAME,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def find_four_bit_layers(model: nn.Module) -> dict[str, Any]:
    """Name -> layer that holds its weight in 4 bits."""
    return {name: part for name, part in model.named_modules() if is_four_bit(part._parameters.get("weight"))}


def make_steady(model: nn.Module) -> None:
    """Let every product take its weight back and be the plain one, for one row or a thousand, with gradients or without.

    bitsandbytes' own has kernels by the number of rows, and on some CPUs packs a layer anew at its first call without gradients:
    what an engine samples would then differ from what is trained by more than rounding.
    """
    for layer in find_four_bit_layers(model).values():
        layer.forward = partial(multiply_steadily, layer)


def count_elements(parameter: Tensor) -> int:
    """Of the matrix that a parameter stands for; two of them share a byte in 4 bits."""
    return int(parameter.quant_state.shape.numel()) if is_four_bit(parameter) else parameter.numel()  # type: ignore[attr-defined]


def list_stored_parts(name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """All that a parameter is made of: itself; in 4 bits its codes, their scales, and the scales of those."""
    yield name, parameter.as_subclass(Tensor)  # the codes alone: their own class would move the scales along
    state, depth = getattr(parameter, "quant_state", None), 0
    while state is not None:
        yield f"{name} scales {depth}", state.absmax
        if state.offset is not None:
            yield f"{name} offset {depth}", state.offset
        state, depth = state.state2, depth + 1


class Product(torch.autograd.Function):
    """x W^T + b over a frozen W in 4 bits. W is made again for the backward: kept, it would take the memory that 4 bits save."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, layer: Any) -> Tensor:
        context.layer = layer
        return F.linear(inputs, restore_weight(layer), layer.bias)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0] @ restore_weight(context.layer), None


def multiply_steadily(layer: Any, inputs: Tensor) -> Tensor:
    output: Tensor = Product.apply(inputs.to(layer.compute_dtype), layer)
    return output.to(inputs.dtype)


def make_full_layer(layer: Any, weight: Tensor) -> nn.Linear:
    """A plain layer in the place of one that may be in 4 bits, with this weight and its bias."""
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = layer.bias
    return plain


def forget_bits(model: Any) -> None:
    """Take away the marks of a model whose layers are plain again: it is saved and loaded as any other."""
    for mark in MARKS:
        model.__dict__.pop(mark, None)
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
