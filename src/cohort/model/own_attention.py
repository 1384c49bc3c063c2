"""Which models run on our attention, for training as for sampling: read from config and class, then proven on a few tokens.

Reading finds what a short run cannot show (a window of 4096 tokens, chunks); the run finds what reading cannot (a module that
ignores position ids, or that asks a cache for one length). Whatever fails either keeps the attention of transformers.
What decoding over slots needs besides is proven by the engine (engine/support.py), on the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.errors import EngineError, ModelError, describe_problem
from cohort.model.backbone import ModuleBackbone
from cohort.model.head import SplitModel
from cohort.ops.attention import attention_configs, use_attention
from cohort.ops.cached_attention import SLOT_ATTENTION, PrefixCache, prefill
from cohort.ops.layout import lay_out

LAYER_TYPES = {"full_attention", "sliding_attention"}
PROOF_STEPS = 3
LONGEST_PROOF_WINDOW = 32
"""Sliding windows up to this are crossed in the proof; longer ones are checked by what the layers ask for."""


@torch.no_grad()
def explain_not_own_attention(model: Any, parts: SplitModel) -> str | None:
    """The reason why this model, in eval mode, is not read with our attention; None where it is."""
    reason = find_reason_by_reading(model)
    if reason:
        return reason
    try:
        proof, configs = ProofRows.make(model), attention_configs(model)
        with use_attention(configs, SLOT_ATTENTION):
            cache_prompts(model, parts, proof)
        # Two completions of one prompt, which stands once: a module that counts positions itself is found out.
        prompt, completions = proof.prompts[0], [ids[-PROOF_STEPS:] for ids in proof.token_ids]
        expected = compute_logits(model, [[*prompt, *completion] for completion in completions])
        layout = lay_out([(prompt, completion) for completion in completions], keys=[0, 0])
        hidden_TH = ModuleBackbone(parts.backbone, configs)(layout.to(proof.device))
        for start, wanted_TV in zip(layout.rows.completion_start_B.tolist(), expected, strict=True):
            logits_BV = parts.logits(hidden_TH[start : start + PROOF_STEPS])
            compare_logits(logits_BV, wanted_TV[-PROOF_STEPS:], model.dtype, "rows laid flat")
    except EngineError as problem:
        return str(problem)
    except Exception as problem:
        # Whatever a foreign modeling file raises on our attention is a reason, not a crash: the model then keeps its own.
        return f"its modules do not run on our attention ({describe_problem(problem)})"
    return None


@torch.no_grad()
def prove_padded(model: Any, parts: SplitModel) -> None:
    """A model that keeps its attention is trained in rows padded after their end: they must give its plain forward, or ModelError."""
    try:
        proof = ProofRows.make(model)
        layout = lay_out([(ids[:1], ids[1:]) for ids in proof.token_ids], keys=None).to(proof.device)
        hidden = ModuleBackbone(parts.backbone, [])(layout).split([len(ids) for ids in proof.token_ids])
        for states_TH, wanted_TV in zip(hidden, compute_logits(model, proof.token_ids), strict=True):
            compare_logits(parts.logits(states_TH), wanted_TV, model.dtype, "rows padded after their end")
    except EngineError as problem:
        raise ModelError(
            f"{type(model).__name__}: {problem}. A token's logits must hang on nothing that stands behind it or in another row: is it an "
            "encoder, or attention that is not causal? It cannot be trained exactly."
        ) from problem


def find_reason_by_reading(model: Any) -> str | None:
    config = model.config.get_text_config()
    other_layers = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    reasons = {
        "it is an encoder-decoder": getattr(model.config, "is_encoder_decoder", False),
        f"it has {', '.join(other_layers)} layers; only full and sliding attention are served": other_layers,
        "its layers carry a recurrent state (SSM or linear attention)": getattr(model, "_is_stateful", False),
        "its modules do not take an attention function from outside (_supports_attention_backend is not set)": not getattr(
            model, "_supports_attention_backend", False
        ),
        "multi-head latent attention (kv_lora_rank) has another cache layout": getattr(config, "kv_lora_rank", None),
        "chunked attention (attention_chunk_size) is not honoured": getattr(config, "attention_chunk_size", None),
        "its layers share keys and values (num_kv_shared_layers)": getattr(config, "num_kv_shared_layers", None),
        "its attention is not causal": getattr(config, "is_causal", True) is False,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def cache_prompts(model: Any, parts: SplitModel, proof: ProofRows) -> PrefixCache:
    """Keys and values of the prompts of these rows (inside `use_attention`), once every layer asked for the window of its config."""
    config = model.config.get_text_config()
    prefix, _ = prefill(parts.backbone, config.num_hidden_layers, proof.prompts, model.device)
    for number, key in enumerate(prefix.keys):
        if key is None:
            raise EngineError(f"layer {number} keeps no keys and values")
    check_windows(config, prefix.windows)
    return prefix


def check_windows(config: Any, windows: list[int | None]) -> None:
    """A layer that gets its sliding window only through the mask would be given full attention here, unnoticed."""
    window, layer_types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if layer_types:
        expected = [window if kind == "sliding_attention" else None for kind in layer_types]
        if [asked or None for asked in windows] != [size or None for size in expected]:
            raise EngineError(f"its layers ask for sliding windows {windows} where its config says {expected}")
    elif window and getattr(config, "use_sliding_window", True) and not any(windows):
        raise EngineError(f"its sliding window of {window} is not passed to the attention function")


@dataclass(frozen=True)
class ProofRows:
    """Two rows of token ids, of which the first `lengths` are the prompts."""

    token_ids: list[list[int]]
    lengths: tuple[int, int]
    device: torch.device

    @staticmethod
    def make(model: Any) -> ProofRows:
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or 0
        longest = 5 + (window if window <= LONGEST_PROOF_WINDOW else 0)
        if getattr(config, "max_position_embeddings", None):
            longest = max(2, min(longest, config.max_position_embeddings - PROOF_STEPS))
        lengths = (longest, longest - 1)
        token_ids = [
            [(7 * at + 11 * row + 3) % config.vocab_size for at in range(n + PROOF_STEPS)] for row, n in enumerate(lengths)
        ]
        return ProofRows(token_ids, lengths, model.device)

    @property
    def prompts(self) -> list[list[int]]:
        return [ids[:n] for ids, n in zip(self.token_ids, self.lengths, strict=True)]


def compute_logits(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits [T, V] of the plain forward, row by row."""
    inputs = [torch.tensor([ids], device=model.device) for ids in rows]
    return [model(input_ids=row, use_cache=False).logits[0].float() for row in inputs]


def compare_logits(ours_BV: Tensor, reference_BV: Tensor, dtype: torch.dtype, through: str) -> None:
    """EngineError where logits computed `through` something differ by more than rounding."""
    # Same sums in another order and another batch: a few roundings of the compute dtype, relative to the largest logit.
    tolerance = max(1e-4, 8 * torch.finfo(dtype).eps) * max(1.0, reference_BV.abs().max().item())
    difference = (ours_BV - reference_BV).abs().max().item()
    if not difference <= tolerance:
        raise EngineError(
            f"on a few tokens its logits through {through} differ from its plain forward by {difference:.2g} "
            f"(tolerance {tolerance:.2g})"
        )
