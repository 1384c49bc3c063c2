"""Decoders compute one decode step for the scheduler; every decoder is proven on the model before use.

`ModuleDecoder` runs transformers' modules over the slot cache and serves any proven model. `fused.decoding` and `fused.cpu` are the fast
decoders of the Llama and Qwen families.

The proof compares logits with the plain forward pass on a few tokens. A model that fails is refused with the reason. Rotary frequencies
that depend on the length, which a short run cannot show, are fixed beforehand (model/architecture.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from cohort.engine.sampling import sampling_mode
from cohort.errors import CohortError, EngineError, describe_problem
from cohort.model.backbone import PROOF_STEPS, ProofRows, cache_prompts, compare_logits, compute_logits, find_unsupported
from cohort.model.head import SplitModel, split
from cohort.ops.attention import attention, attention_configs, choose_accumulation_dtype, find_visible, make_bias, use_attention
from cohort.ops.cached_attention import (
    ALIGNMENT,
    SLOT_ATTENTION,
    KVBlocks,
    KVShape,
    RaggedCache,
    StackedKV,
    hidden_states,
    prefill,
)
from cohort.ops.fused import has_kernels, training
from cohort.ops.fused.cpu import CpuDecoder, DecodeMemory, intra_op_threads
from cohort.ops.fused.cpu_native import NativeDecoder
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.family import FusedModel

LOGITS_TO_SHARE = 2**18
"""With fewer logits per step, waking a second thread for a logarithm takes longer than the logarithm."""
SLOT_CACHE = "the slot cache"


@dataclass(frozen=True)
class LocalModel:
    """A model that is proven to run on the slot cache."""

    parts: SplitModel
    configs: list[Any]
    layers: tuple[KVShape, ...]
    dtype: torch.dtype
    """Dtype of keys and values."""


class Decoder(Protocol):
    """The keys and values of the slots, and one decode step over the first rows."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        """Run a batch of prompts: keys and values as `load` expects them, and the last hidden states [P, H]."""
        ...

    def load(self, rows: Tensor, prompts: Any, prompt_rows: Tensor) -> None:
        """Copy rows of a prefilled batch into slots."""
        ...

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None: ...

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        """Feed one token per row; returns the hidden states [B, H] for the head. longest: length of the longest row."""
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
    """The fast steps of a CPU (ops/fused/cpu.py). Prompts run through the operations of training: compiled ones, or the modules."""

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
        """Set the threads per operation outside of `step` and `prefill`, given the number of logits per step."""
        return intra_op_threads(1 if self.decoder.small and logits < LOGITS_TO_SHARE else self.decoder.threads)


def make_fused_decoder(
    fused: FusedModel, local: LocalModel, slots: int, length: int, memory: DecodeMemory, operations: NativeOperations | None
) -> Decoder:
    """operations: compiled operations of a CPU, if available."""
    if fused.device.type == "cuda":
        from cohort.ops.fused.kernels_decode import FusedDecoder

        return FusedDecoder(fused, slots, length)
    if operations is not None:
        return CpuSteps(local, NativeDecoder(fused, slots, length, operations.native, memory), operations)
    return CpuSteps(local, CpuDecoder(fused, slots, length, memory), None)


# -- the slot cache ----------------------------------------------------------------------------------------------------


class SlotCache(RaggedCache):
    """The keys and values of the slots (ops/cached_attention.py) as a cache for transformers' modules (ops/cached_attention.py).

    Differences from the usual caches:

    - a *slot* is one row of a preallocated cache. Rows have their own lengths; nothing is left-padded or concatenated: a token is
      written in place, at its row and position;
    - on a GPU a kernel reads each row up to its length; elsewhere one additive bias per step, shared by all layers, masks the rows;
    - grouped queries have the layout [B, kv_heads, group, D], so keys and values are never repeated.
    """

    def __init__(self, layers: Sequence[KVShape], slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.blocks = KVBlocks(layers, slots, length, choose_accumulation_dtype(dtype, device), device)
        self.dtype, self.length = self.blocks.dtype, self.blocks.length
        self.with_kernels = has_kernels(device)
        self.heads = [layer.heads for layer in layers]
        # Start of row r of head h in a cache viewed as [slots * kv_heads * T, D].
        slot, start = torch.arange(slots, device=device)[:, None], {}
        for heads in set(self.heads):
            start[heads] = (slot * heads + torch.arange(heads, device=device)) * self.length
        self.start_SK = start
        self.flat_keys = [keys.view(-1, keys.shape[-1]) for keys in self.blocks.keys]
        self.flat_values = [values.view(-1, values.shape[-1]) for values in self.blocks.values]
        self.at_T = torch.arange(self.length, device=device)
        self.rows, self.live_length = 0, 0
        self.positions_B = self.done_B = self.at_T
        self.written: dict[int, Tensor] = {}
        self.biases: dict[int | None, Tensor] = {}

    def begin_step(self, positions_B: Tensor, done_B: Tensor, longest: int) -> None:
        """Called before each decode step: the position that each row writes, the finished rows, and the longest row's length."""
        self.rows = len(positions_B)
        self.live_length = min(-(-longest // ALIGNMENT) * ALIGNMENT, self.length)
        self.positions_B, self.done_B = positions_B, done_B
        self.written = {k: (start[: self.rows] + positions_B[:, None]).flatten() for k, start in self.start_SK.items()}
        self.biases.clear()

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        at, dim = self.written[self.heads[layer]], key.shape[-1]
        self.flat_keys[layer].index_copy_(0, at, key.reshape(-1, dim).to(self.dtype))
        self.flat_values[layer].index_copy_(0, at, value.reshape(-1, dim).to(self.dtype))
        keys, values = self.blocks.keys[layer], self.blocks.values[layer]
        if self.with_kernels:
            return keys, values
        return keys[: self.rows, :, : self.live_length], values[: self.rows, :, : self.live_length]

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
    ) -> Tensor:
        rows, query_heads, _, dim = query.shape
        if self.with_kernels:
            from cohort.ops.fused.kernels_decode import attend

            one = query.to(self.dtype).reshape(rows, query_heads, dim)
            out = attend(one, key, value, self.positions_B, self.done_B, scaling, window, softcap)
            return out.to(query.dtype).reshape(rows, 1, query_heads, dim)
        if window not in self.biases:
            seen_BT = find_visible(self.positions_B[:, None], self.at_T[None, : self.live_length], window)
            self.biases[window] = make_bias(seen_BT, self.dtype)[:, None, None]
        grouped = query.to(self.dtype).reshape(rows, key.shape[1], query_heads // key.shape[1], dim)
        out = attention(grouped, key, value, self.biases[window], scaling, softcap)
        return out.to(query.dtype).reshape(rows, 1, query_heads, dim)


# -- proofs ------------------------------------------------------------------------------------------------------------


class DecoderProof:
    """Two rows and the logits of the plain forward pass for them. A decoder has to give the same logits through its cache."""

    def __init__(self, model: Any, parts: SplitModel, through: str) -> None:
        self.rows, self.parts, self.dtype, self.through = ProofRows.make(model), parts, model.dtype, through
        self.expected = compute_logits(model, self.rows.token_ids)

    def decode(self, decoder: Decoder, lengths: tuple[int, int] | None = None) -> Any:
        """Decode a few steps after prompts of these lengths; returns what `prefill` returned.

        The rows are loaded in reverse order, which exposes a module that mixes up rows.
        """
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
        """Feed one token per slot; places: (row, position) of each."""
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
    """Turn any exception inside into an EngineError that names the model. failure: what its modules cannot do."""
    name = type(model).__name__
    try:
        with torch.no_grad(), sampling_mode(model):
            yield
    except CohortError as problem:
        raise EngineError(str(problem) if name in str(problem) else f"{name}: {problem}.") from problem
    except Exception as problem:
        # Any exception of a foreign modeling file is a reason, not a crash: auto then uses a slower engine.
        raise EngineError(f"{name}: {failure} ({describe_problem(problem)}).") from problem


def prove_local(model: Any) -> LocalModel:
    """Check and try a model on the slot cache. Raises EngineError with the reason if it cannot be served exactly."""
    with name_problems(model, "its modules do not run on the slot cache"):
        reason = find_unsupported(model)
        if reason:
            raise EngineError(reason)
        parts, configs = split(model), attention_configs(model)
        proof = DecoderProof(model, parts, SLOT_CACHE)
        with use_attention(configs, SLOT_ATTENTION):
            keys, _ = cache_prompts(model, parts, proof.rows).all()
            layers = tuple(KVShape(key.shape[1], key.shape[3]) for key in keys)
            local = LocalModel(parts, configs, layers, keys[-1].dtype)
            proof.decode(ModuleDecoder(local, 2, proof.rows.lengths[0] + PROOF_STEPS, model.device))
    return local


@torch.no_grad()
def prove_decoder(model: Any, local: LocalModel, make: Callable[[int, int], Decoder]) -> None:
    """Raise EngineError unless the decoder of `make(slots, length)` gives the same logits."""
    with sampling_mode(model):
        proof = DecoderProof(model, local.parts, SLOT_CACHE)
        with use_attention(local.configs, SLOT_ATTENTION):
            proof.decode(make(2, proof.rows.lengths[0] + PROOF_STEPS))
