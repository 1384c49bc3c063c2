"""Which models run on our attention, for training as for sampling: read from config and class, then proven on a few tokens.

Reading finds what a short run cannot show (a window of 4096 tokens, chunks); the run finds what reading cannot (a module that
ignores position ids, or that asks a cache for one length). Whatever fails either keeps the attention of transformers.
What decoding over slots needs besides is proven by the engine (engine/support.py), on the same trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.errors import EngineError, ModelError
from cohort.model.backbone import ModuleBackbone
from cohort.model.head import SplitModel
from cohort.ops.attention import attending, attention_configs
from cohort.ops.cached_attention import SLOT_ATTENTION, PrefixCache, prefill
from cohort.ops.layout import lay_out

LAYER_TYPES = {"full_attention", "sliding_attention"}
PROOF_STEPS = 3
LONGEST_PROOF_WINDOW = 32
"""Sliding windows up to this are crossed in the proof; longer ones are checked by what the layers ask for."""


@torch.no_grad()
def why_not_own_attention(model: Any, parts: SplitModel) -> str | None:
    """The reason why this model, in eval mode, is not read with our attention; None where it is."""
    reason = reason_by_reading(model)
    if reason:
        return reason
    try:
        trial, configs = Trial.of(model), attention_configs(model)
        with attending(configs, SLOT_ATTENTION):
            cache_prompts(model, parts, trial)
        # Two completions of one prompt, which stands once: a module that counts positions itself is found out.
        prompt, completions = trial.prompts[0], [ids[-PROOF_STEPS:] for ids in trial.token_ids]
        expected = plain_logits(model, [[*prompt, *completion] for completion in completions])
        layout = lay_out([(prompt, completion) for completion in completions], keys=[0, 0])
        hidden_TH = ModuleBackbone(parts.backbone, configs)(layout.to(trial.device))
        for start, wanted_TV in zip(layout.rows.completion_start_B.tolist(), expected, strict=True):
            logits_BV = parts.logits(hidden_TH[start : start + PROOF_STEPS])
            compare(logits_BV, list(wanted_TV[-PROOF_STEPS:]), model.dtype, "rows laid flat")
    except EngineError as problem:
        return str(problem)
    except Exception as problem:
        # Whatever a foreign modeling file raises on our attention is a reason, not a crash: the model then keeps its own.
        return f"its modules do not run on our attention ({type(problem).__name__}: {problem})"
    return None


@torch.no_grad()
def prove_padded(model: Any, parts: SplitModel) -> None:
    """A model that keeps its attention is trained in rows padded after their end: they must give its plain forward, or ModelError."""
    try:
        trial = Trial.of(model)
        layout = lay_out([(ids[:1], ids[1:]) for ids in trial.token_ids], keys=None).to(trial.device)
        hidden = ModuleBackbone(parts.backbone, [])(layout).split([len(ids) for ids in trial.token_ids])
        for states_TH, wanted_TV in zip(hidden, trial.expected(model), strict=True):
            compare(parts.logits(states_TH), list(wanted_TV), model.dtype, "rows padded after their end")
    except EngineError as problem:
        raise ModelError(
            f"{type(model).__name__}: {problem}. A token's logits must hang on nothing that stands behind it or in another row: is it an "
            "encoder, or attention that is not causal? It cannot be trained exactly."
        ) from problem


def reason_by_reading(model: Any) -> str | None:
    config = model.config.get_text_config()
    other_layers = sorted(set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES)
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if other_layers:
        return f"it has {', '.join(other_layers)} layers; only full and sliding attention are served"
    if getattr(model, "_is_stateful", False):
        return "its layers carry a recurrent state (SSM or linear attention)"
    if not getattr(model, "_supports_attention_backend", False):
        return "its modules do not take an attention function from outside (_supports_attention_backend is not set)"
    if getattr(config, "kv_lora_rank", None):
        return "multi-head latent attention (kv_lora_rank) has another cache layout"
    if getattr(config, "attention_chunk_size", None):
        return "chunked attention (attention_chunk_size) is not honoured"
    if getattr(config, "num_kv_shared_layers", None):
        return "its layers share keys and values (num_kv_shared_layers)"
    if getattr(config, "is_causal", True) is False:
        return "its attention is not causal"
    return None


def cache_prompts(model: Any, parts: SplitModel, trial: Trial) -> PrefixCache:
    """Keys and values of the prompts of a trial (inside `attending`), once every layer asked for the window of its config."""
    config = model.config.get_text_config()
    prefix, _ = prefill(parts.backbone, config.num_hidden_layers, trial.prompts, model.device)
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
class Trial:
    """Two rows of token ids, of which the first `lengths` are the prompts."""

    token_ids: list[list[int]]
    lengths: tuple[int, int]
    device: torch.device

    @staticmethod
    def of(model: Any) -> Trial:
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None) or 0
        longest = 5 + (window if window <= LONGEST_PROOF_WINDOW else 0)
        if getattr(config, "max_position_embeddings", None):
            longest = max(2, min(longest, config.max_position_embeddings - PROOF_STEPS))
        lengths = (longest, longest - 1)
        token_ids = [
            [(7 * at + 11 * row + 3) % config.vocab_size for at in range(n + PROOF_STEPS)] for row, n in enumerate(lengths)
        ]
        return Trial(token_ids, lengths, model.device)

    @property
    def longest(self) -> int:
        return self.lengths[0]

    @property
    def prompts(self) -> list[list[int]]:
        return [ids[:n] for ids, n in zip(self.token_ids, self.lengths, strict=True)]

    def expected(self, model: Any) -> list[Tensor]:
        """Logits [T, V] of the plain forward, row by row."""
        return plain_logits(model, self.token_ids)


def plain_logits(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    inputs = [torch.tensor([ids], device=model.device) for ids in rows]
    return [model(input_ids=row, use_cache=False).logits[0].float() for row in inputs]


def compare(ours_BV: Tensor, expected_BV: list[Tensor], dtype: torch.dtype, through: str) -> None:
    """EngineError where logits computed `through` something differ by more than rounding."""
    reference_BV = torch.stack(expected_BV)
    # Same sums in another order and another batch: a few roundings of the compute dtype, relative to the largest logit.
    tolerance = max(1e-4, 8 * torch.finfo(dtype).eps) * max(1.0, reference_BV.abs().max().item())
    difference = (ours_BV - reference_BV).abs().max().item()
    if not difference <= tolerance:
        raise EngineError(
            f"on a few tokens its logits through {through} differ from its plain forward by {difference:.2g} "
            f"(tolerance {tolerance:.2g})"
        )
