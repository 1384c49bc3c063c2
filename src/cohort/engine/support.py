"""Which models an engine serves exactly: what model/own_attention.py reads, then a few tokens that its decoder decodes.

Whatever fails is refused with the reason, by name. Frequencies that change with the length, which a short run cannot show, are held
still before (model/rotary.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cohort.engine.decoders import Decoder, LocalModel, ModuleDecoder
from cohort.engine.sampling import sampling_mode
from cohort.errors import CohortError, EngineError, describe_problem
from cohort.model.head import SplitModel, split
from cohort.model.own_attention import (
    PROOF_STEPS,
    ProofRows,
    cache_prompts,
    compare_logits,
    compute_logits,
    find_reason_by_reading,
)
from cohort.ops.attention import attention_configs, use_attention
from cohort.ops.cached_attention import SLOT_ATTENTION, KVShape

THROUGH = "the slot cache"


class DecoderProof:
    """Two rows, and what the plain forward gives for each of their tokens: a decoder must give the same, through its cache."""

    def __init__(self, model: Any, parts: SplitModel, through: str) -> None:
        self.rows, self.parts, self.dtype, self.through = ProofRows.make(model), parts, model.dtype, through
        self.expected = compute_logits(model, self.rows.token_ids)

    def decode(self, decoder: Decoder, lengths: tuple[int, int] | None = None) -> Any:
        """Prompts of these lengths, and a few steps; gives what `prefill` gave. Crossed over: a module that mixes up rows is found out."""
        lengths = lengths or self.rows.lengths
        prompts = self.prefill(decoder, lengths)
        self.load(decoder, [1, 0], prompts, [0, 1])
        for step in range(PROOF_STEPS):
            self.step(decoder, [(1, lengths[1] + step), (0, lengths[0] + step)])
        return prompts

    def prefill(self, decoder: Decoder, lengths: tuple[int, int]) -> Any:
        prompts, hidden_PH = decoder.prefill([ids[:n] for ids, n in zip(self.rows.token_ids, lengths, strict=True)])
        self.compare(hidden_PH, [(row, length - 1) for row, length in enumerate(lengths)])
        return prompts

    def load(self, decoder: Decoder, slots: list[int], prompts: Any, rows: list[int]) -> None:
        device = self.rows.device
        decoder.load(torch.tensor(slots, device=device), prompts, torch.tensor(rows, device=device))

    def step(self, decoder: Decoder, places: Sequence[tuple[int, int]]) -> None:
        """One token for (row, position) of each slot."""
        device = self.rows.device
        tokens_B = torch.tensor([self.rows.token_ids[row][at] for row, at in places], device=device)
        positions_B = torch.tensor([at for _, at in places], device=device)
        done_B = torch.zeros(len(places), dtype=torch.int32, device=device)
        self.compare(decoder.step(tokens_B, positions_B, done_B, 1 + max(at for _, at in places)), places)

    def compare(self, hidden_BH: Tensor, places: Sequence[tuple[int, int]]) -> None:
        expected_BV = torch.stack([self.expected[row][at] for row, at in places])
        compare_logits(self.parts.logits(hidden_BH), expected_BV, self.dtype, self.through)


@contextmanager
def name_problems(model: Any, failure: str) -> Iterator[None]:
    """What goes wrong inside is an EngineError that names the model; `failure`: what its modules do not do."""
    name = type(model).__name__
    try:
        with torch.no_grad(), sampling_mode(model):
            yield
    except CohortError as problem:
        raise EngineError(str(problem) if name in str(problem) else f"{name}: {problem}.") from problem
    except Exception as problem:
        # Whatever a foreign modeling file raises on a cache is a reason, not a crash: auto then takes a slower engine.
        raise EngineError(f"{name}: {failure} ({describe_problem(problem)}).") from problem


def prove_local(model: Any) -> LocalModel:
    """Inspect and try out a model; EngineError with the reason where it cannot be served exactly."""
    with name_problems(model, "its modules do not run on the slot cache"):
        reason = find_reason_by_reading(model)
        if reason:
            raise EngineError(reason)
        parts, configs = split(model), attention_configs(model)
        proof = DecoderProof(model, parts, THROUGH)
        with use_attention(configs, SLOT_ATTENTION):
            keys, _ = cache_prompts(model, parts, proof.rows).all()
            layers = tuple(KVShape(key.shape[1], key.shape[3]) for key in keys)
            local = LocalModel(parts, configs, layers, keys[-1].dtype)
            proof.decode(ModuleDecoder(local, 2, proof.rows.lengths[0] + PROOF_STEPS, model.device))
    return local


@torch.no_grad()
def prove_decoder(model: Any, local: LocalModel, make: Callable[[int, int], Decoder]) -> None:
    """Another decoder, made by `make(slots, length)`, must give these logits too; EngineError where it does not."""
    with sampling_mode(model):
        proof = DecoderProof(model, local.parts, THROUGH)
        with use_attention(local.configs, SLOT_ATTENTION):
            proof.decode(make(2, proof.rows.lengths[0] + PROOF_STEPS))
