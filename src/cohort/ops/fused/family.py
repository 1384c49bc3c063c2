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
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose frequencies do not depend on the length of the sequence."""


@dataclass(frozen=True)
class FusedLayer:
    number: int
    input_norm: Tensor
    qkv: Tensor
    """[(query heads + 2 kv heads) * D, H], detached; rows of all queries, then keys, then values."""
    qkv_parts: tuple[Tensor, ...]
    """The parameters of the three projections: views of `qkv`."""
    qkv_bias: Tensor | None
    qkv_bias_parts: tuple[Tensor, ...] | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    """[2 I, H], detached; rows of gate, then up."""
    gate_up_parts: tuple[Tensor, ...]
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

    @property
    def query_size(self) -> int:
        return self.query_heads * self.head_dim

    def is_current(self) -> bool:
        """Whether the model's parameters still are the views they were made into."""
        for layer in self.layers:
            pairs = [(layer.qkv, layer.qkv_parts), (layer.gate_up, layer.gate_up_parts)]
            if layer.qkv_bias is not None and layer.qkv_bias_parts is not None:
                pairs.append((layer.qkv_bias, layer.qkv_bias_parts))
            for whole, parts in pairs:
                if parts[0].data_ptr() != whole.data_ptr() or not _adjacent(parts):
                    return False
        return True

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
    layers = tuple(_layer(number, layer, config) for number, layer in enumerate(backbone.layers[: config.num_hidden_layers]))
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


def _layer(number: int, layer: Any, config: Any) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    for name, linear in [
        *zip(("q_proj", "k_proj", "v_proj"), projections, strict=True),
        *(("o_proj", attention.o_proj), ("gate_proj", mlp.gate_proj), ("up_proj", mlp.up_proj), ("down_proj", mlp.down_proj)),
    ]:
        if type(linear) is not nn.Linear:
            kind = f"{type(linear).__module__.partition('.')[0]}.{type(linear).__name__}"
            raise EngineError(f"{name} of layer {number} is a {kind}, not a plain linear layer")
        if linear.bias is not None and linear not in projections:
            raise EngineError(f"{name} of layer {number} has a bias")
    biases = tuple(linear.bias for linear in projections if linear.bias is not None)
    if biases and len(biases) < len(projections):
        raise EngineError(f"some, not all, of layer {number}'s query, key and value projections have a bias")
    weights = tuple(linear.weight for linear in projections)
    gate_up = (mlp.gate_proj.weight, mlp.up_proj.weight)
    normed = hasattr(attention, "q_norm")
    return FusedLayer(
        number=number,
        input_norm=layer.input_layernorm.weight,
        qkv=lay_together(weights),
        qkv_parts=weights,
        qkv_bias=lay_together(biases) if biases else None,
        qkv_bias_parts=biases or None,
        query_norm=attention.q_norm.weight if normed else None,
        key_norm=attention.k_norm.weight if normed else None,
        out=attention.o_proj.weight,
        post_norm=layer.post_attention_layernorm.weight,
        gate_up=lay_together(gate_up),
        gate_up_parts=gate_up,
        down=mlp.down_proj.weight,
        window=_window(attention, config),
    )


def _window(attention: Any, config: Any) -> int | None:
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window or None
    return (getattr(config, "sliding_window", None) or None) if config.model_type == "mistral" else None


@torch.no_grad()
def lay_together(parameters: Sequence[Any]) -> Tensor:
    """One tensor with the rows of all; the parameters become views of it. Parameters that lie so already stay where they are."""
    first, rows = parameters[0], sum(parameter.shape[0] for parameter in parameters)
    if _adjacent(parameters):
        shape, data = (rows, *first.shape[1:]), first.detach()
        return data.as_strided(shape, data.stride(), data.storage_offset())
    together = torch.cat([parameter.detach() for parameter in parameters])
    at = 0
    for parameter in parameters:
        parameter.data = together[at : at + parameter.shape[0]]
        at += parameter.shape[0]
    return together


def _adjacent(parameters: Sequence[Tensor]) -> bool:
    """Whether the parameters lie in one storage, one after the other."""
    storage, end = parameters[0].untyped_storage().data_ptr(), parameters[0].storage_offset()
    for parameter in parameters:
        if (
            parameter.untyped_storage().data_ptr() != storage
            or parameter.storage_offset() != end
            or not parameter.is_contiguous()
        ):
            return False
        end += parameter.numel()
    return True
