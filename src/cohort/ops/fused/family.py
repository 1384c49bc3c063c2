"""A Llama, Mistral, Qwen2 or Qwen3 model as plain tensors.

Queries, keys and values are one matrix product instead of three, gate and up one instead of two. For that their weights are
laid into one tensor, of which the model's own parameters become views: there is no second copy, and whatever updates the
parameters in place (an optimizer step, a loaded checkpoint) has updated the fused tensor. Something that gives a parameter
new storage instead would leave the fused tensor behind; `FusedModel.is_current` finds that out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cohort.errors import EngineError

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose frequencies do not depend on the length of the sequence."""


@dataclass(frozen=True)
class Projection:
    """Rows of several linear layers in one tensor, detached, and the parameters that are views of it; the same of their biases."""

    weight: Tensor
    parts: Sequence[Tensor]
    bias: Tensor | None = None
    bias_parts: Sequence[Tensor] = ()

    @classmethod
    def lay_together(cls, layers: Sequence[nn.Linear]) -> Projection:
        """Of layers that all have a bias, or none."""
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers if layer.bias is not None]
        return cls(lay_together(weights), weights, lay_together(biases) if biases else None, biases)

    def is_current(self) -> bool:
        """Whether the parameters still are the views they were made into."""
        return all(
            parts[0].data_ptr() == whole.data_ptr() and _lie_adjacent(parts)
            for whole, parts in ((self.weight, self.parts), (self.bias, self.bias_parts))
            if whole is not None
        )


@dataclass(frozen=True)
class FusedLayer:
    input_norm: Tensor
    qkv: Projection
    """[(query heads + 2 kv heads) * D, H]; rows of all queries, then keys, then values."""
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    post_norm: Tensor
    gate_up: Projection
    """[2 I, H]; rows of gate, then up."""
    down: Tensor
    window: int | None


@dataclass(frozen=True)
class FusedModel:
    embedding: Tensor
    padding: int | None
    """Token whose embedding gets no gradient."""
    layers: tuple[FusedLayer, ...]
    norm: Tensor
    epsilon: float
    query_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    frequencies: Tensor
    """[D / 2] float32 inverse frequencies of the rotary embedding."""
    rotary_scale: float
    """Factor on cosine and sine (yarn)."""
    scaling: float
    """Factor on the scores of attention."""

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def is_current(self) -> bool:
        """Whether the model's parameters still are the views they were made into."""
        return all(layer.qkv.is_current() and layer.gate_up.is_current() for layer in self.layers)

    def rotary(self, positions_T: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, D / 2] of the angles at these positions."""
        angles_TD = positions_T[:, None].float() * self.frequencies
        return (angles_TD.cos() * self.rotary_scale).to(dtype), (angles_TD.sin() * self.rotary_scale).to(dtype)


def fuse(model: Any) -> FusedModel:
    """Lay a model's projections together and read it; EngineError with the reason where it is not one of the families."""
    backbone, config = model.base_model, model.config.get_text_config()
    _check_family(backbone, config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotary = backbone.rotary_emb
    if rotary.inv_freq.shape != (head_dim // 2,):
        raise EngineError(f"its rotary embedding turns {2 * len(rotary.inv_freq)} of {head_dim} dimensions")
    modules = backbone.layers[: config.num_hidden_layers]
    layers = tuple(_read_layer(number, layer, config) for number, layer in enumerate(modules))
    return FusedModel(
        embedding=backbone.embed_tokens.weight,
        padding=backbone.embed_tokens.padding_idx,
        layers=layers,
        norm=backbone.norm.weight,
        epsilon=float(config.rms_norm_eps),
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate=config.intermediate_size,
        frequencies=rotary.inv_freq.float(),
        rotary_scale=float(rotary.attention_scaling),
        scaling=float(backbone.layers[0].self_attn.scaling),
    )


def _check_family(backbone: Any, config: Any) -> None:
    name = type(backbone).__name__
    if name not in FAMILIES:
        raise EngineError(f"{name} is none of {', '.join(FAMILIES)}")
    if config.hidden_act not in ("silu", "swish"):
        raise EngineError(f"its activation is {config.hidden_act}, not silu")
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind not in ROTARY_TYPES:
        raise EngineError(f"its rotary embedding is of the kind {kind!r}, whose frequencies follow the length")
    for module_name, module in backbone.named_modules():
        if isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            raise EngineError(f"{module_name} is a {type(module).__name__}, not a plain linear layer")
        if module._forward_hooks or module._forward_pre_hooks:
            raise EngineError(f"{module_name or 'the backbone'} has a forward hook, which own kernels would not call")


def _read_layer(number: int, layer: Any, config: Any) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    others = [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    for name, linear in zip(LINEAR_LAYERS, [*projections, *others], strict=True):
        if type(linear) is not nn.Linear:
            kind = f"{type(linear).__module__.partition('.')[0]}.{type(linear).__name__}"
            raise EngineError(f"{name} of layer {number} is a {kind}, not a plain linear layer")
        if linear.bias is not None and linear in others:
            raise EngineError(f"{name} of layer {number} has a bias")
    if len({linear.bias is None for linear in projections}) > 1:
        raise EngineError(f"some, not all, of layer {number}'s query, key and value projections have a bias")
    normed = hasattr(attention, "q_norm")
    return FusedLayer(
        input_norm=layer.input_layernorm.weight,
        qkv=Projection.lay_together(projections),
        query_norm=attention.q_norm.weight if normed else None,
        key_norm=attention.k_norm.weight if normed else None,
        out=attention.o_proj.weight,
        post_norm=layer.post_attention_layernorm.weight,
        gate_up=Projection.lay_together([mlp.gate_proj, mlp.up_proj]),
        down=mlp.down_proj.weight,
        window=_read_window(attention, config),
    )


def _read_window(attention: Any, config: Any) -> int | None:
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window or None
    return (getattr(config, "sliding_window", None) or None) if config.model_type == "mistral" else None


@torch.no_grad()
def lay_together(parameters: Sequence[Any]) -> Tensor:
    """One tensor with the rows of all; the parameters become views of it. Parameters that lie so already stay where they are."""
    first, rows = parameters[0], sum(parameter.shape[0] for parameter in parameters)
    if _lie_adjacent(parameters):
        shape, data = (rows, *first.shape[1:]), first.detach()
        return data.as_strided(shape, data.stride(), data.storage_offset())
    together = torch.cat([parameter.detach() for parameter in parameters])
    at = 0
    for parameter in parameters:
        parameter.data = together[at : at + parameter.shape[0]]
        at += parameter.shape[0]
    return together


def _lie_adjacent(parameters: Sequence[Tensor]) -> bool:
    """Whether the parameters lie in one storage, one after the other."""
    storage, end = parameters[0].untyped_storage().data_ptr(), parameters[0].storage_offset()
    for parameter in parameters:
        place = (parameter.untyped_storage().data_ptr(), parameter.storage_offset())
        if place != (storage, end) or not parameter.is_contiguous():
            return False
        end += parameter.numel()
    return True
