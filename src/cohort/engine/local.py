"""The fast engine: continuous batching over a slot cache, in the same process, with the policy's own parameters.

How it differs from `model.generate`:

- a prompt is run once per group, and its keys and values are copied into the slots of the group's completions;
- rows are ragged and never padded on the left; attention reads a row as far as it is long, or up to the longest live row;
- a finished row makes room: a waiting completion takes its slot, and when none waits the last rows move up, so dead rows
  cost next to nothing (scheduler.py);
- on a GPU a step is a few kernels a layer, captured in a CUDA graph, and the host looks only every few steps (graphs.py);
- noise is keyed (ops/noise.py), so slot count and order change rollouts only at near-ties.

No weight is copied, and no number survives a call: after an optimizer step the next call samples from the new policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from cohort.engine.decoders import CpuSteps, Decoder, ModuleDecoder, fused_decoder, native_for
from cohort.engine.graphs import GraphedSteps
from cohort.engine.protocol import Capabilities, EngineSetup, OnFinish
from cohort.engine.requests import check_prefix, finished_prefix, join_prefix
from cohort.engine.sampling import check_finite, check_request, sampling_mode
from cohort.engine.scheduler import Decoding, Work
from cohort.engine.slots import SlotState
from cohort.engine.support import prove_decoder, prove_local
from cohort.errors import EngineError, ModelError
from cohort.ops.attention import accumulation_dtype, attending
from cohort.ops.cached_attention import SLOT_ATTENTION
from cohort.ops.fused import native, with_kernels
from cohort.ops.fused.cpu import DecodeMemory
from cohort.ops.fused.family import FusedModel, fuse
from cohort.ops.kv import kv_bytes
from cohort.ops.noise import gumbel, row_key
from cohort.ops.rounding import missing_rows
from cohort.types import Completion, End, NoiseKey, Request, Sampling

MOST_SLOTS = {"cpu": 512, "cuda": 1024}
"""Beyond these a step only gets slower: the matrix products are already at full rate."""
MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.8}
"""Part of the free memory that slots may take when the engine chooses their number."""
NEARLY_ALL = 0.95
"""Part of the free memory that a number of slots fixed beforehand may take: what is free can have become less since."""
KEPT_SHARE = 0.15
"""Of a GPU's memory: a smaller workspace stays between calls, a larger one makes room for training."""
SAMPLER_FLOATS = 6
"""Arrays of [slots, V] 4-byte numbers alive at once while sampling (logits, scaled, noise, hash)."""
LENGTH_STEP = 64
"""Slots on a GPU are this much longer than needed, at most, so that the next call fits into them too."""


@dataclass
class Workspace:
    """Slots, their state and the graphs over them. Contents are of one call; the memory may serve the next one."""

    decoder: Decoder
    state: SlotState
    steps: GraphedSteps | None
    asked: int
    """Slots that were asked for; 0: the engine chose."""
    slots: int
    length: int
    completions: int
    sampling: Sampling
    signature: tuple[Any, ...]

    def serves(self, asked: int, length: int, completions: int, sampling: Sampling, signature: tuple[Any, ...]) -> bool:
        fits = self.asked == asked and self.length >= length and self.completions >= completions
        return fits and self.sampling == sampling and self.signature == signature


class LocalEngine:
    name = "local"

    def __init__(
        self,
        model: Any,
        decode: Callable[[Sequence[int]], str],
        slots: int = 0,
        *,
        kernels: str = "auto",
        cuda_graphs: bool = True,
        decode_all: Callable[[Sequence[Sequence[int]]], list[str]] | None = None,
    ) -> None:
        """`decode_all`: many rows at once, where the tokenizer is faster that way."""
        if slots < 0:
            raise EngineError(f"sampling.slots is {slots}; 0 lets the engine choose, otherwise at least 1.")
        self.model, self.slots = model, slots
        self.decode_all = decode_all or (lambda rows: [decode(row) for row in rows])
        self.cuda_graphs = cuda_graphs and model.device.type == "cuda" and with_kernels(model.device)
        self.local = prove_local(model)
        # Frequencies that follow the length are looked up by the host, which a graph cannot wait for.
        self.cuda_graphs = self.cuda_graphs and self.local.exact_length is None
        self.memory = DecodeMemory()
        self.native: native.Native | None = None
        self.why_not_native = ""
        self.fused, self.why_modules = self._fused(kernels)
        self.workspace: Workspace | None = None
        self.version = 0
        self.last: dict[str, float] = {}
        """Figures of the last call."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            keyed_noise=True,
            shares_weights=True,
            own_kernels=True,
            most_slots=MOST_SLOTS.get(self.model.device.type, 512),
            cache_itemsize=self.cache_dtype.itemsize,
        )

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        on_finish: OnFinish | None = None,
        limits: Sequence[int] | None = None,
    ) -> list[Completion]:
        """`limits`: tokens that the completion of each request may have at most; for benchmarks with planned lengths."""
        self.check(requests, sampling)
        most = [sampling.max_completion_tokens] * len(requests)
        if limits is not None:
            most = [min(limit, sampling.max_completion_tokens) for limit in limits]
            if len(most) != len(requests) or min(most, default=1) < 1:
                raise EngineError(f"limits: {len(requests)} of at least 1 are needed, one for each request; found {len(most)}.")
        found = [finished_prefix(request, sampling) for request in requests]
        for request, completion in zip(requests, found, strict=True):
            if completion is not None and on_finish is not None:
                on_finish(request, completion)
        places = [place for place, completion in enumerate(found) if completion is None]
        if places:
            asked = [requests[place] for place in places]
            sampled = self._decode(asked, sampling, noise, [most[place] for place in places], on_finish)
            for place, completion in zip(places, sampled, strict=True):
                found[place] = completion
        return [completion for completion in found if completion is not None]

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        most: Sequence[int],
        on_finish: OnFinish | None,
    ) -> list[Completion]:
        keys = [row_key(noise, request.draw, request.sample) for request in requests]
        longest = max(len(request.prompt.token_ids) for request in requests) + sampling.max_completion_tokens
        columns = max(request.position for request in requests) + sampling.max_completion_tokens
        with sampling_mode(self.model), attending(self.local.configs, SLOT_ATTENTION):
            workspace = self._workspace(longest, len(keys), sampling, columns)
            state = workspace.state
            state.begin(keys, [request.position + limit for request, limit in zip(requests, most, strict=True)])
            slots = min(workspace.slots, len(keys))

            def hand_back(numbers: np.ndarray) -> None:
                assert on_finish is not None
                chosen = [requests[number] for number in numbers]
                rows = torch.from_numpy(numbers).to(state.token_ids_NT.device)
                for request, completion in zip(
                    chosen, self._completions(state, rows, chosen, decoding.lengths_N[numbers], sampling), strict=True
                ):
                    on_finish(request, completion)

            decoding = Decoding(
                self.local,
                workspace.decoder,
                state,
                workspace.steps,
                Work.of(requests),
                sampling,
                slots,
                hand_back if on_finish is not None else None,
            )
            try:
                if workspace.steps is not None:
                    workspace.steps.step = decoding.step
                with self._sharing(workspace):
                    lengths_N = decoding.run()
            finally:
                if isinstance(workspace.decoder, CpuSteps):
                    workspace.decoder.close()
                # A ring of references would hold the cache, after the last use of it, until Python looks for rings.
                decoding.on_finish = None
                if workspace.steps is not None:
                    workspace.steps.step = None
            completions = self._completions(state, slice(0, len(requests)), requests, lengths_N, sampling)
        self._note_figures(decoding, workspace)
        self._keep_or_drop(workspace)
        return completions

    def choose_slots(self, longest: int) -> int:
        return self.slots_for(longest, MOST_SLOTS[self.model.device.type])

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.version = version

    def close(self) -> None:
        self.workspace, self.memory = None, DecodeMemory()

    def check(self, requests: Sequence[Request], sampling: Sampling) -> None:
        prompts = [request.prompt for request in requests]
        check_request(self.model.config.get_text_config(), prompts, sampling)
        for request in requests:
            check_prefix(request)
        longest = max((len(prompt.token_ids) for prompt in prompts), default=0) + sampling.max_completion_tokens
        if self.local.exact_length and longest > self.local.exact_length:
            raise EngineError(
                f"prompt and sampling.max_completion_tokens reach {longest} tokens, but beyond {self.local.exact_length} this "
                "model's rotary frequencies change with the length, and no KV cache is exact. Lower "
                'sampling.max_completion_tokens or prompts.max_prompt_tokens, or set sampling.engine = "hf".'
            )

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of keys and values: the one attention accumulates in, but compiled attention widens them only as it reads."""
        if self.fused is not None and self.native is not None:
            return self.local.dtype
        return accumulation_dtype(self.local.dtype, self.model.device)

    def slots_for(self, length: int, completions: int) -> int:
        """Slots asked for, or as many as fit into a share of the free memory; never more than there are completions.

        Slots asked for that do not fit are fewer then: rollouts are the same, only slower.
        """
        kind = self.model.device.type
        vocabulary_bytes = 4 * SAMPLER_FLOATS * self.model.config.get_text_config().vocab_size
        slot_bytes = self._cache_length(length) * kv_bytes(self.local.layers, self.cache_dtype) + vocabulary_bytes
        free = free_memory(self.model.device)
        share = NEARLY_ALL if self.slots else MEMORY_SHARE.get(kind, 0.5)
        fitting = int(share * free / slot_bytes)
        if fitting < 1:
            raise EngineError(
                f"not even one slot fits: {length} tokens of keys and values need {slot_bytes / 2**20:.0f} MiB and "
                f"{free / 2**20:.0f} MiB are free. Lower sampling.max_completion_tokens or prompts.max_prompt_tokens."
            )
        return min(fitting, self.slots or MOST_SLOTS.get(kind, 512), completions)

    def describe(self) -> str:
        """How steps are computed, for the console."""
        if self.fused is None:
            how = f"the modules of transformers ({self.why_modules})"
        else:
            attention = "native attention" if self.native else f"attention in PyTorch ({self.why_not_native})"
            how = "own kernels" if self.model.device.type == "cuda" else f"fused products, {attention}"
        return how + (", captured in CUDA graphs" if self.cuda_graphs else "")

    # -- the workspace -------------------------------------------------------------------------------------------------

    def _fused(self, kernels: str) -> tuple[FusedModel | None, str]:
        """The model as plain tensors where that is proven to give the same logits; else None and the reason."""
        if kernels == "modules":
            return None, 'model.kernels = "modules"'
        try:
            if self.model.device.type == "cuda" and not with_kernels(self.model.device):
                raise EngineError("Triton is not installed")
            fused = fuse(self.model)
            if fused.device.type == "cpu":
                self.native, self.why_not_native = native_for(fused)
            prove_decoder(self.model, self.local, lambda slots, length: self._fused_decoder(fused, slots, length))
        except Exception as problem:
            # A kernel that does not compile or fit on this GPU is a reason too: the modules then serve the model.
            reason = str(problem) if isinstance(problem, EngineError) else f"{type(problem).__name__}: {problem}"
            if kernels == "fused":
                raise ModelError(f'model.kernels = "fused" is not possible: {reason}. Use "auto" or "modules".') from problem
            return None, reason
        return fused, ""

    def _fused_decoder(self, fused: FusedModel, slots: int, length: int) -> Decoder:
        return fused_decoder(fused, self.local, slots, length, self.memory, self.native)

    def _sharing(self, workspace: Workspace) -> AbstractContextManager[None]:
        if isinstance(workspace.decoder, CpuSteps):
            return workspace.decoder.sharing(workspace.slots * self.model.config.get_text_config().vocab_size)
        return nullcontext()

    def _signature(self) -> tuple[Any, ...]:
        """Changes when a parameter lies elsewhere, or when other adapters are switched on: a graph would not notice."""
        where = tuple(parameter.data_ptr() for parameter in self.model.parameters())
        adapters = tuple(
            (tuple(module.active_adapters), module.disable_adapters)
            for module in self.model.modules()
            if isinstance(getattr(module, "disable_adapters", None), bool)
        )
        return where, adapters

    def _cache_length(self, longest: int) -> int:
        return longest if self.model.device.type == "cpu" else -(-longest // LENGTH_STEP) * LENGTH_STEP

    def _workspace(self, longest: int, completions: int, sampling: Sampling, columns: int = 0) -> Workspace:
        device = self.model.device
        if self.fused is not None and not self.fused.is_current():
            self.fused = fuse(self.model)  # somebody gave the parameters new storage
        signature = (columns, *(self._signature() if device.type == "cuda" else ()))
        kept, self.workspace = self.workspace, None
        if kept and kept.serves(self.slots, longest, completions, sampling, signature):
            return kept
        del kept
        slots = self.slots_for(longest, completions)
        rows = slots + missing_rows(slots, device)
        length = self._cache_length(longest)
        if self.fused is not None:
            decoder = self._fused_decoder(self.fused, rows, length)
        else:
            decoder = ModuleDecoder(self.local, rows, length, device)
        noise = gumbel if self.native is None else self.native.gumbel
        state = SlotState.empty(rows, completions, sampling, device, noise, columns)
        steps = GraphedSteps() if self.cuda_graphs else None
        return Workspace(decoder, state, steps, self.slots, slots, length, completions, sampling, signature)

    def _keep_or_drop(self, workspace: Workspace) -> None:
        """On a CPU only memory is kept, and no number in it: weights are packed for one call."""
        device = self.model.device
        if device.type != "cuda":
            self.memory.trim()
            return
        bytes_held = workspace.slots * workspace.length * kv_bytes(self.local.layers, self.local.dtype)
        if bytes_held <= KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory:
            self.workspace = workspace

    def _note_figures(self, decoding: Decoding, workspace: Workspace) -> None:
        tally = decoding.tally
        self.last = {
            "slots": float(decoding.slots),
            "decode_steps": float(tally.steps),
            "occupancy": float((decoding.lengths_N - decoding.work.begun_N - 1).sum()) / max(1, tally.steps * decoding.slots),
            "looks": float(tally.looks),
            "prefills": float(tally.prefills),
            "graphs": float(len(workspace.steps.graphs)) if workspace.steps else 0.0,
        }

    def _completions(
        self,
        state: SlotState,
        rows: slice | Tensor,
        requests: Sequence[Request],
        lengths_N: np.ndarray,
        sampling: Sampling,
    ) -> list[Completion]:
        """What stands in these rows of the state, whose requests and whole lengths are given."""
        check_finite(state.logprobs_NT[rows])
        token_ids_NT, logprobs_NT = state.token_ids_NT[rows].cpu().numpy(), state.logprobs_NT[rows].cpu().numpy()
        stop_ids = set(sampling.stop_ids)
        spans = [
            slice(request.position + len(request.prefix_ids), request.position + length)
            for request, length in zip(requests, lengths_N.tolist(), strict=True)
        ]
        ids_N = [token_ids_NT[row, span].tolist() for row, span in enumerate(spans)]
        whole_N = [ids if one.prefix is None else [*one.prefix_ids, *ids] for one, ids in zip(requests, ids_N, strict=True)]
        texts_N = self.decode_all(whole_N)
        completions = []
        for row, (request, ids, text) in enumerate(zip(requests, ids_N, texts_N, strict=True)):
            end: End = "stop" if ids[-1] in stop_ids else "length"
            more = Completion(tuple(ids), tuple(logprobs_NT[row, spans[row]].tolist()), end, text)
            completions.append(join_prefix(request, more, self.version))
        return completions


def make_local(setup: EngineSetup) -> tuple[LocalEngine, str]:
    """EngineError where the model cannot be served exactly."""
    engine = LocalEngine(
        setup.model,
        setup.decode,
        setup.slots,
        kernels=setup.kernels,
        cuda_graphs=setup.cuda_graphs,
        decode_all=setup.decode_all,
    )
    return engine, f"engine local: continuous batching with the policy's own weights, {engine.describe()}"


def free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return psutil.virtual_memory().available
    # What torch has reserved but does not use is free to us, though not to the driver.
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
