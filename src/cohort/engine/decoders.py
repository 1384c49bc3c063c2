"""What the scheduler asks of whoever computes a decode step, and the decoder that serves any proven model.

`ModuleDecoder` drives the modules of transformers over the slot cache; `fused.decoding` and `fused.cpu` are the fast ones of
the Llama and Qwen families. All are proven against the plain forward of the model before they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from cohort.engine.slot_cache import SlotCache
from cohort.model.head import SplitModel
from cohort.ops.cached_attention import KVShape, StackedKV, hidden_states, prefill
from cohort.ops.fused import training
from cohort.ops.fused.cpu import CpuDecoder, DecodeMemory, intra_op_threads
from cohort.ops.fused.cpu_native import NativeDecoder
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.family import FusedModel

LOGITS_TO_SHARE = 2**18
"""With fewer logits a step, waking a second thread for a logarithm takes longer than the logarithm."""


@dataclass(frozen=True)
class LocalModel:
    """A model that was proven to run on the slot cache."""

    parts: SplitModel
    configs: list[Any]
    layers: tuple[KVShape, ...]
    dtype: torch.dtype
    """Of keys and values."""


class Decoder(Protocol):
    """Keys and values of the slots, and one step over the first rows of them."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        """Run a batch of prompts: keys and values in the form that `load` wants, and the last hidden states [P, H]."""
        ...

    def load(self, rows: Tensor, prompts: Any, prompt_rows: Tensor) -> None:
        """Copy prompts, by their place in the batch, into slots."""
        ...

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None: ...

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        """Feed one token per row: hidden states [B, H], ready for the head. `longest`: how far the longest row reaches."""
        ...


class ModuleDecoder:
    def __init__(self, local: LocalModel, slots: int, length: int, device: torch.device) -> None:
        self.backbone, self.device = local.parts.backbone, device
        self.cache = SlotCache(local.layers, slots, length, local.dtype, device)
        self.load, self.move = self.cache.blocks.load, self.cache.blocks.move

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[StackedKV, Tensor]:
        cache, last_hidden_PH = prefill(self.backbone, len(self.cache.heads), prompts, self.device)
        return self.cache.blocks.stack(*cache.all()), last_hidden_PH

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        self.cache.begin_step(positions_B, done_B, longest)
        return hidden_states(self.backbone, self.cache, tokens_B[:, None], positions_B[:, None])[:, 0]


class CpuSteps:
    """The fast steps of a CPU (ops/fused/cpu.py). Prompts run through what trains: compiled operations, else the modules."""

    def __init__(self, local: LocalModel, decoder: CpuDecoder, operations: NativeOperations | None) -> None:
        self.backbone, self.layers, self.decoder, self.operations = local.parts.backbone, len(local.layers), decoder, operations
        self.load, self.move, self.step, self.close = decoder.load, decoder.move, decoder.step, decoder.close

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        with intra_op_threads(self.decoder.threads):
            if self.operations is not None:
                (keys, values), last_hidden_PH = training.prefill(self.decoder.fused, prompts, self.operations)
                return self.decoder.stack(list(keys), list(values)), last_hidden_PH
            cache, last_hidden_PH = prefill(self.backbone, self.layers, prompts, torch.device("cpu"))
        return self.decoder.stack(*cache.all()), last_hidden_PH

    def share_threads(self, logits: int) -> AbstractContextManager[None]:
        """How many threads share an operation outside of `step` and `prefill`, where so many logits are sampled from."""
        return intra_op_threads(1 if self.decoder.small and logits < LOGITS_TO_SHARE else self.decoder.threads)


def make_fused_decoder(
    fused: FusedModel, local: LocalModel, slots: int, length: int, memory: DecodeMemory, operations: NativeOperations | None
) -> Decoder:
    """`operations`: those of a CPU, where they are compiled."""
    if fused.device.type == "cuda":
        from cohort.ops.fused.kernels_decode import FusedDecoder

        return FusedDecoder(fused, slots, length)
    if operations is not None:
        return CpuSteps(local, NativeDecoder(fused, slots, length, operations.native, memory), operations)
    return CpuSteps(local, CpuDecoder(fused, slots, length, memory), None)
