"""Causal attention with the same arithmetic in training, prefill and decoding.

It differs from the functions of transformers in two ways:

- No mask. Rows are right-padded, so plain causal attention is correct, and grouped queries never repeat keys and values.
- On a CPU in float32 the products are accumulated in float64. Decoding one token and reading a whole sequence multiply the
  same numbers in another order. Rounded to float32 the results differ in the last bit, and a few layers later a log-ratio
  that should be 0 is 2e-5. Accumulated in float64 and rounded once, they have the same bits. If every other
  operation also gives each row the same bits (ops/products.py), so do the log-probs.

Unsupported features are refused by name, because ignoring an argument would compute a different model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from cohort.errors import EngineError

CAUSAL_ATTENTION = "cohort_causal"
"""The name of the trainer's attention in transformers; ops/packed_attention.py registers it."""

REFUSED_ARGUMENTS = {
    "s_aux": "attention sinks (s_aux)",
    "position_bias": "a position bias",
    "indices": "sparse attention indices",
    "block_indices": "sparse attention indices",
    "cu_seq_lens_q": "packed sequences",
    "cu_seq_lens_k": "packed sequences",
}
HARMLESS_ARGUMENTS = frozenset(
    [
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "layer_idx",
        "layer_type",
        "position_embeddings",
        "deterministic",
    ]
)


def register_attention(name: str, read: Callable[..., Tensor]) -> None:
    """Register an attention function in transformers: `read(module, query, key, value, scaling, window, softcap)`.

    Queries are [B, H, T, D], as in the modules; the result is [B, T, H, D]. Anything but plain causal self-attention is refused.
    """

    def attend_plainly(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        for argument, given in others.items():
            if given is not None and given is not False and argument not in HARMLESS_ARGUMENTS:
                raise EngineError(f"its attention uses {REFUSED_ARGUMENTS.get(argument, f'an argument {argument!r}')}")
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        if attention_mask is not None or dropout or not causal or getattr(module, "is_cross_attention", False):
            raise EngineError("its attention is not plain causal self-attention")
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        return read(module, query, key, value, scale, sliding_window, softcap or 0.0), None

    AttentionInterface.register(name, attend_plainly)


def choose_accumulation_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    return torch.float64 if dtype == torch.float32 and device.type == "cpu" else dtype


def attend_causally(query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float) -> Tensor:
    """Attend from [B, H, T, D] queries to [B, kv_heads, T, D] keys and values at the same positions; returns [B, T, H, D]."""
    dtype = choose_accumulation_dtype(query.dtype, query.device)
    wide_query, wide_key, wide_value = query.to(dtype), key.to(dtype), value.to(dtype)
    length = query.shape[2]
    if softcap or (window is not None and window < length):
        # Queries have the layout of decoding, [B, kv_heads, group * T, D], so one function serves both.
        at = torch.arange(length, device=query.device)
        bias_TT = make_bias(find_visible(at[:, None], at[None], window), dtype)
        group = query.shape[1] // key.shape[1]
        grouped = wide_query.reshape(query.shape[0], key.shape[1], group * length, query.shape[3])
        out = attention(grouped, wide_key, wide_value, bias_TT.repeat(group, 1)[None, None], scaling, softcap)
        out = out.reshape(query.shape)
    else:
        grouped_query = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(
            wide_query, wide_key, wide_value, is_causal=True, scale=scaling, enable_gqa=grouped_query
        )
    return out.transpose(1, 2).to(query.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float, softcap: float) -> Tensor:
    """Return softmax(cap(scaling * q k) + bias) v for [B, kv_heads, *, D]."""
    if query.is_cuda and not softcap:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    # Written out where no kernel is better: none has a soft-cap, and for a few queries per row the fused CPU kernel takes 1.2
    # to 2 times as long (256 rows, 2 kv heads of 32, 16 to 48 keys).
    scores = torch.matmul(query * scaling, key.transpose(2, 3))
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    softmax_dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.matmul((scores + bias).softmax(-1, dtype=softmax_dtype).to(query.dtype), value)


def find_visible(query_at: Tensor, key_at: Tensor, window: int | None) -> Tensor:
    seen = key_at <= query_at
    return seen if window is None else seen & (key_at > query_at - window)


def make_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


@contextmanager
def use_attention(configs: Sequence[Any], name: str) -> Iterator[None]:
    """Switch a model's modules, through their configs, to the attention of that name, and restore the old one at the end.

    Only for the duration of a call: transformers builds no mask for our attention, so a padded batch from elsewhere would be
    read without its mask.
    """
    # The public setter also overwrites sub-configs (of a vision tower, for example) and could not restore them.
    before = [config._attn_implementation_internal for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, previous in zip(configs, before, strict=True):
            config._attn_implementation_internal = previous


def attention_configs(model: Any) -> list[Any]:
    """Return every config object from which a module of the model reads its attention's name."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation_internal")]
