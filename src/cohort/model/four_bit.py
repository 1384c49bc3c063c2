"""A frozen 4-bit base under adapters (QLoRA), through bitsandbytes.

    W  ->  16 levels of a normal distribution (nf4), one scale per 64 weights, the scales in 8 bits: 4.13 bits per weight

The linear layers below the head are quantised; embeddings, norms and head keep the compute dtype. Each product first converts its weights
to that dtype, so sampling, scoring, training and merging use the same rounded base. bitsandbytes is imported only here.
"""

from __future__ import annotations

import importlib.util
import logging
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
"""Attributes by which transformers recognises a quantised model."""


# On import it advises `pip install kernels`, for a product that `make_steady` replaces.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def make_loading_options(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Options of from_pretrained that quantise each weight as it is read, so the full-precision model is never in memory."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            f'model.lora.base_dtype: "{NAME}" needs the package bitsandbytes. '
            """Run `pip install 'cohort-rl[qlora]'`, or set it to "auto" for a base that is not quantised."""
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
    """Name -> layer with a 4-bit weight."""
    return {name: part for name, part in model.named_modules() if is_four_bit(part._parameters.get("weight"))}


def make_steady(model: nn.Module) -> None:
    """Make every product convert its weight and multiply as usual, for any number of rows, with or without gradients.

    bitsandbytes chooses kernels by the number of rows, and on some CPUs repacks a layer at its first call without gradients.
    Sampling would then differ from training by more than rounding.
    """
    for layer in find_four_bit_layers(model).values():
        layer.forward = partial(multiply_steadily, layer)


def count_elements(parameter: Tensor) -> int:
    """Number of weights of a parameter; in 4 bits a byte holds two."""
    return int(parameter.quant_state.shape.numel()) if is_four_bit(parameter) else parameter.numel()  # type: ignore[attr-defined]


def list_stored_parts(name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a parameter: itself, or in 4 bits its codes, their scales, and the scales of those."""
    yield name, parameter.as_subclass(Tensor)  # only the codes: their own class would move the scales too
    state, depth = getattr(parameter, "quant_state", None), 0
    while state is not None:
        yield f"{name} scales {depth}", state.absmax
        if state.offset is not None:
            yield f"{name} offset {depth}", state.offset
        state, depth = state.state2, depth + 1


class Product(torch.autograd.Function):
    """x W^T + b with a frozen 4-bit W. The backward converts W again; keeping it would use the memory that 4 bits save."""

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
    """A plain linear layer with this weight and the bias of `layer`."""
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = layer.bias
    return plain


def forget_bits(model: Any) -> None:
    """Remove the attributes of a quantised model once its layers are plain, so that it is saved and loaded normally."""
    for mark in MARKS:
        model.__dict__.pop(mark, None)
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
