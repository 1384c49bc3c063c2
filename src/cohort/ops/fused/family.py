"""Reads a Llama, Mistral, Qwen2 or Qwen3 model into plain tensors.

Queries, keys and values are one matrix product instead of three, gate and up one instead of two. Their weights are in one
tensor, and the model's parameters become views of it. So there is no second copy, and in-place updates of the parameters (an
optimizer step, a loaded checkpoint) also update the fused tensor. Replacing a parameter's storage, or the parameter of a
module, would leave the fused tensor stale; `FusedModel.is_current` detects that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cohort.errors import EngineError
from cohort.ops.fused.projection import Adapters, Projection, is_four_bit, read_base

Entry = tuple[Mapping[str, Any], str, Any]
"""A dict of a module, a key in it, and the value at the time of the capture."""


class CapturedWeights:
    """Detects weights that were replaced after they were read into tensors.

    Checked for every micro-batch, so it walks flat lists: a lookup by name in torch's modules would cost more than all comparisons.
    """

    def __init__(self, root: nn.Module) -> None:
        modules = list(root.modules())
        self.children: list[Entry] = [(one._modules, name, child) for one in modules for name, child in one._modules.items()]
        self.parameters: list[Entry] = [
            (one._parameters, name, value) for one in modules for name, value in one._parameters.items()
        ]
        self.places = [find_place(value) for _, _, value in self.parameters]
        self.adapted = [one for one in modules if hasattr(one, "lora_A")]
        self.switches = [read_switches(one) for one in self.adapted]

    def are_current(self) -> bool:
        """Whether modules and parameters are the same objects in the same memory, and the same adapters are switched on."""
        return (
            all(table.get(name) is one for table, name, one in self.children)
            and all(table.get(name) is one for table, name, one in self.parameters)
            and all(find_place(value) == place for (_, _, value), place in zip(self.parameters, self.places, strict=True))
            and all(read_switches(one) == before for one, before in zip(self.adapted, self.switches, strict=True))
        )


def find_place(parameter: Tensor | None) -> tuple[int, bool] | None:
    """The address of a parameter, and whether it is contiguous. The fused tensor keeps the storage, so no other tensor can reuse it."""
    return None if parameter is None else (parameter.data_ptr(), parameter.is_contiguous())


def read_switches(layer: Any) -> tuple[bool, list[str], list[str], dict[str, float]]:
    """The state of a layer with PEFT adapters: whether they are disabled, which are active and merged, and their scales."""
    return layer.disable_adapters, list(layer.active_adapters), list(layer.merged_adapters), dict(layer.scaling)


FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose frequencies do not depend on the sequence length."""


@dataclass(frozen=True)
class FusedLayer:
    input_norm: Tensor
    qkv: Projection
    """[(query heads + 2 kv heads) * D, H]: rows of all queries, then keys, then values."""
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Projection
    post_norm: Tensor
    gate_up: Projection
    """[2 I, H]: rows of gate, then up."""
    down: Projection
    window: int | None

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True)
class FusedModel:
    captured: CapturedWeights
    embedding: Tensor
    padding: int | None
    """The token whose embedding gets no gradient."""
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
        """Return whether the parameters are still the views made here, and the same adapters are switched on."""
        return self.captured.are_current()

    @property
    def projections(self) -> list[Projection]:
        return [projection for layer in self.layers for projection in layer.projections]

    @property
    def adapters(self) -> list[Adapters]:
        """The active adapters."""
        return [projection.adapters for projection in self.projections if projection.adapters is not None]

    def rotary(self, positions_T: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [T, D / 2] of the angles at these positions."""
        angles_TD = positions_T[:, None].float() * self.frequencies
        return (angles_TD.cos() * self.rotary_scale).to(dtype), (angles_TD.sin() * self.rotary_scale).to(dtype)


def fuse(model: Any) -> FusedModel:
    """Fuse a model's projections and read it. Raises EngineError with the reason if the model is not supported."""
    backbone, config = model.base_model, model.config.get_text_config()
    _check_family(backbone, config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotary = backbone.rotary_emb
    if rotary.inv_freq.shape != (head_dim // 2,):
        raise EngineError(f"its rotary embedding turns {2 * len(rotary.inv_freq)} of {head_dim} dimensions")
    modules = backbone.layers[: config.num_hidden_layers]
    layers = tuple(_read_layer(number, layer, config) for number, layer in enumerate(modules))
    return FusedModel(
        captured=CapturedWeights(backbone),  # once its parameters are views of the fused tensors
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
        if isinstance(module, nn.Linear) and type(module) is not nn.Linear and not is_four_bit(module.weight):
            raise EngineError(f"{module_name} is a {type(module).__name__}, not a plain linear layer")
        if module._forward_hooks or module._forward_pre_hooks:
            raise EngineError(f"{module_name or 'the backbone'} has a forward hook, which own kernels would not call")


def _list_linear_layers(number: int, layer: Any) -> tuple[dict[str, Any], ...]:
    """Return the linear layers of each projection, by name."""

    def name_layers(owner: Any, *names: str) -> dict[str, Any]:
        return {f"{name} of layer {number}": getattr(owner, name) for name in names}

    attention, mlp = layer.self_attn, layer.mlp
    return (
        name_layers(attention, "q_proj", "k_proj", "v_proj"),
        name_layers(attention, "o_proj"),
        name_layers(mlp, "gate_proj", "up_proj"),
        name_layers(mlp, "down_proj"),
    )


def _list_norms(layer: Any) -> tuple[Any, Any, Any, Any]:
    """Return the norm weights: before attention, of queries and keys if any, and after attention."""
    attention, normed = layer.self_attn, hasattr(layer.self_attn, "q_norm")
    heads = (attention.q_norm.weight, attention.k_norm.weight) if normed else (None, None)
    return layer.input_layernorm.weight, *heads, layer.post_attention_layernorm.weight


def _read_layer(number: int, layer: Any, config: Any) -> FusedLayer:
    projections, out, gate_up, down = _list_linear_layers(number, layer)
    for name, linear in (out | gate_up | down).items():
        if read_base(name, linear).bias is not None:
            raise EngineError(f"{name} has a bias")
    if len({read_base(name, linear).bias is None for name, linear in projections.items()}) > 1:
        raise EngineError(f"some, not all, of layer {number}'s query, key and value projections have a bias")
    input_norm, query_norm, key_norm, post_norm = _list_norms(layer)
    return FusedLayer(
        input_norm=input_norm,
        qkv=Projection.lay_together(projections),
        query_norm=query_norm,
        key_norm=key_norm,
        out=Projection.lay_together(out),
        post_norm=post_norm,
        gate_up=Projection.lay_together(gate_up),
        down=Projection.lay_together(down),
        window=_read_window(layer.self_attn, config),
    )


def _read_window(attention: Any, config: Any) -> int | None:
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window or None
    return (getattr(config, "sliding_window", None) or None) if config.model_type == "mistral" else None
