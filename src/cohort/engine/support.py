"""Which models the local engine serves exactly: read from config and class, then proven on a few tokens.

Reading finds what a short run cannot show (a window of 4096 tokens, chunks, frequencies that change with length); the run
finds what reading cannot (a module that ignores position ids). Whatever fails either is refused with the reason, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.engine.decoders import Decoder, LocalModel, ModuleDecoder
from cohort.engine.sampling import sampling_mode
from cohort.engine.slot_cache import SLOT_ATTENTION, PrefixCache, prefill
from cohort.errors import CohortError, EngineError
from cohort.model.head import SplitModel, split
from cohort.ops.attention import attending, attention_configs
from cohort.ops.kv import KVShape

LAYER_TYPES = {"full_attention", "sliding_attention"}
PROOF_STEPS = 3
LONGEST_PROOF_WINDOW = 32
"""Sliding windows up to this are crossed in the proof; longer ones are checked by what the layers ask for."""


def why_not_local(model: Any) -> str | None:
    """The reason why the local engine cannot serve this model exactly, or None."""
    try:
        prove_local(model)
    except CohortError as problem:
        return str(problem)
    return None


def prove_local(model: Any) -> LocalModel:
    """Inspect and try out a model; EngineError with the reason where it cannot be served exactly."""
    name = type(model).__name__
    reason = reason_by_reading(model)
    if reason:
        raise EngineError(f"{name}: {reason}.")
    try:
        return prove_by_running(model)
    except EngineError as problem:
        raise EngineError(f"{name}: {problem}.") from problem
    except CohortError as problem:  # from split(), which names the model itself
        raise EngineError(str(problem)) from problem
    except Exception as problem:
        # Whatever a foreign modeling file raises on our cache is a reason, not a crash: auto then takes the slow engine.
        raise EngineError(
            f"{name}: its modules do not run on the slot cache ({type(problem).__name__}: {problem})."
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


@torch.no_grad()
def prove_by_running(model: Any) -> LocalModel:
    """Two ragged prompts, decoded for a few steps through the cache, must give the logits of the plain forward."""
    trial = Trial.of(model)
    with sampling_mode(model):
        parts, configs = split(model), attention_configs(model)
        expected = trial.expected(model)
        with attending(configs, SLOT_ATTENTION):
            layers = model.config.get_text_config().num_hidden_layers
            prefix, _ = prefill(parts.backbone, layers, trial.prompts, model.device)
            local = local_model(model, parts, configs, prefix)
            trial.decode(ModuleDecoder(local, 2, trial.longest + PROOF_STEPS, model.device), local, expected, model.dtype)
    return local


@torch.no_grad()
def prove_decoder(model: Any, local: LocalModel, make: Callable[[int, int], Decoder]) -> None:
    """Another decoder, made by `make(slots, length)`, must give these logits too; EngineError where it does not."""
    trial = Trial.of(model)
    with sampling_mode(model):
        expected = trial.expected(model)
        with attending(local.configs, SLOT_ATTENTION):
            trial.decode(make(2, trial.longest + PROOF_STEPS), local, expected, model.dtype)


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
        rows = [torch.tensor([ids], device=self.device) for ids in self.token_ids]
        return [model(input_ids=row, use_cache=False).logits[0].float() for row in rows]

    def decode(self, decoder: Decoder, local: LocalModel, expected: list[Tensor], dtype: torch.dtype) -> None:
        prompts, last_hidden_PH = decoder.prefill(self.prompts)
        compare(local.parts.logits(last_hidden_PH), [expected[p][self.lengths[p] - 1] for p in (0, 1)], dtype)
        # Crossed over, so that a module that mixes up rows is found out.
        rows, prompt_of_row = torch.tensor([1, 0], device=self.device), [1, 0]
        decoder.load(rows, prompts, torch.tensor([0, 1], device=self.device))
        positions_B = torch.tensor([self.lengths[p] for p in prompt_of_row], device=self.device)
        done_B = torch.zeros(2, dtype=torch.int32, device=self.device)
        for step in range(PROOF_STEPS):
            tokens_B = torch.tensor([self.token_ids[p][self.lengths[p] + step] for p in prompt_of_row], device=self.device)
            hidden_BH = decoder.step(tokens_B, positions_B, done_B, self.longest + step + 1)
            compare(local.parts.logits(hidden_BH), [expected[p][self.lengths[p] + step] for p in prompt_of_row], dtype)
            positions_B = positions_B + 1


def compare(ours_BV: Tensor, expected_BV: list[Tensor], dtype: torch.dtype) -> None:
    reference_BV = torch.stack(expected_BV)
    # Same sums in another order and another batch: a few roundings of the compute dtype, relative to the largest logit.
    tolerance = max(1e-4, 8 * torch.finfo(dtype).eps) * max(1.0, reference_BV.abs().max().item())
    difference = (ours_BV - reference_BV).abs().max().item()
    if not difference <= tolerance:
        raise EngineError(
            f"on a few tokens its logits through the slot cache differ from its plain forward by {difference:.2g} "
            f"(tolerance {tolerance:.2g})"
        )


def local_model(model: Any, parts: SplitModel, configs: list[Any], prefix: PrefixCache) -> LocalModel:
    config = model.config.get_text_config()
    layers, dtype = [], model.dtype
    for number, key in enumerate(prefix.keys):
        if key is None:
            raise EngineError(f"layer {number} keeps no keys and values")
        layers.append(KVShape(key.shape[1], key.shape[3]))
        dtype = key.dtype
    check_windows(config, prefix.windows)
    return LocalModel(parts, configs, tuple(layers), dtype, exact_length(config))


def check_windows(config: Any, windows: list[int | None]) -> None:
    """A layer that gets its sliding window only through the mask would be given full attention here, unnoticed."""
    window, layer_types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if layer_types:
        expected = [window if kind == "sliding_attention" else None for kind in layer_types]
        if [asked or None for asked in windows] != [size or None for size in expected]:
            raise EngineError(f"its layers ask for sliding windows {windows} where its config says {expected}")
    elif window and getattr(config, "use_sliding_window", True) and not any(windows):
        raise EngineError(f"its sliding window of {window} is not passed to the attention function")


def exact_length(config: Any) -> int | None:
    """Rotary frequencies that change with the length of the sequence make cached keys stale beyond this length."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    limits = [
        kind.get("original_max_position_embeddings") or config.max_position_embeddings
        for kind in kinds
        if kind.get("rope_type") == "longrope" or "dynamic" in str(kind.get("rope_type"))
    ]
    return min(limits, default=None)
