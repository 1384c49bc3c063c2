"""Which models the local engine serves exactly: what model/own_attention.py reads, then a few tokens decoded over slots.

Whatever fails is refused with the reason, by name. Frequencies that change with the length, which a short run cannot show, are held
still before (model/rotary.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cohort.engine.decoders import Decoder, LocalModel, ModuleDecoder
from cohort.engine.sampling import sampling_mode
from cohort.errors import CohortError, EngineError
from cohort.model.head import SplitModel, split
from cohort.model.own_attention import PROOF_STEPS, Trial, cache_prompts, compare, reason_by_reading
from cohort.ops.attention import attending, attention_configs
from cohort.ops.cached_attention import SLOT_ATTENTION, PrefixCache
from cohort.ops.kv import KVShape

THROUGH = "the slot cache"


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


@torch.no_grad()
def prove_by_running(model: Any) -> LocalModel:
    """Two ragged prompts, decoded for a few steps through the cache, must give the logits of the plain forward."""
    trial = Trial.of(model)
    with sampling_mode(model):
        parts, configs = split(model), attention_configs(model)
        expected = trial.expected(model)
        with attending(configs, SLOT_ATTENTION):
            local = local_model(model, parts, configs, cache_prompts(model, parts, trial))
            decoder = ModuleDecoder(local, 2, trial.longest + PROOF_STEPS, model.device)
            decode_trial(trial, decoder, local, expected, model.dtype)
    return local


@torch.no_grad()
def prove_decoder(model: Any, local: LocalModel, make: Callable[[int, int], Decoder]) -> None:
    """Another decoder, made by `make(slots, length)`, must give these logits too; EngineError where it does not."""
    trial = Trial.of(model)
    with sampling_mode(model):
        expected = trial.expected(model)
        with attending(local.configs, SLOT_ATTENTION):
            decode_trial(trial, make(2, trial.longest + PROOF_STEPS), local, expected, model.dtype)


def decode_trial(trial: Trial, decoder: Decoder, local: LocalModel, expected: list[Tensor], dtype: torch.dtype) -> None:
    """Prompts through `decoder.prefill`, then a few steps: each must give the expected logits."""
    prompts, last_hidden_PH = decoder.prefill(trial.prompts)
    compare(local.parts.logits(last_hidden_PH), [expected[p][trial.lengths[p] - 1] for p in (0, 1)], dtype, THROUGH)
    # Crossed over, so that a module that mixes up rows is found out.
    rows, prompt_of_row = torch.tensor([1, 0], device=trial.device), [1, 0]
    decoder.load(rows, prompts, torch.tensor([0, 1], device=trial.device))
    positions_B = torch.tensor([trial.lengths[p] for p in prompt_of_row], device=trial.device)
    done_B = torch.zeros(2, dtype=torch.int32, device=trial.device)
    for step in range(PROOF_STEPS):
        tokens_B = torch.tensor([trial.token_ids[p][trial.lengths[p] + step] for p in prompt_of_row], device=trial.device)
        hidden_BH = decoder.step(tokens_B, positions_B, done_B, trial.longest + step + 1)
        compare(local.parts.logits(hidden_BH), [expected[p][trial.lengths[p] + step] for p in prompt_of_row], dtype, THROUGH)
        positions_B = positions_B + 1


def local_model(model: Any, parts: SplitModel, configs: list[Any], prefix: PrefixCache) -> LocalModel:
    keys, _ = prefix.all()
    layers = tuple(KVShape(key.shape[1], key.shape[3]) for key in keys)
    return LocalModel(parts, configs, layers, keys[-1].dtype)
