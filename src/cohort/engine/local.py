"""The fast engine: continuous batching over a slot cache, in this process, with the policy's own parameters.

Differences from `model.generate`:

- a prompt runs once per group, and its keys and values are copied into the slots of the group's completions;
- rows have different lengths and no left padding; attention reads a row up to its own length, or up to the longest live row;
- a waiting completion takes the slot of a finished one; if none waits, the last rows move up, so finished rows cost almost
  nothing (scheduler.py);
- on a GPU a step is a few kernels per layer, captured in a CUDA graph, and the host reads results only every few steps (graphs.py);
- noise is keyed (ops/noise.py), so the number of slots and the order change rollouts only at near-ties.

No weights are copied, and nothing is cached between calls: after an optimizer step the next call samples from the new policy.

`SnapshotEngine` samples while the policy is trained: it runs an engine over a frozen copy of the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cohort.engine.decoders import CpuSteps, Decoder, ModuleDecoder, make_fused_decoder, prove_decoder, prove_local
from cohort.engine.graphs import GraphedSteps
from cohort.engine.protocol import Capabilities, Engine, EngineSetup, OnFinish, Turns
from cohort.engine.scheduler import SlotState, Workspace
from cohort.engine.slot_engine import MOST_SLOTS, SlotEngine
from cohort.errors import EngineError, describe_problem
from cohort.model.architecture import list_length_dependent
from cohort.model.policy import Policy
from cohort.ops.attention import choose_accumulation_dtype, use_attention
from cohort.ops.cached_attention import SLOT_ATTENTION, kv_bytes
from cohort.ops.fused import has_kernels, make_fused_error, native
from cohort.ops.fused.cpu import DecodeMemory
from cohort.ops.fused.cpu_training import NativeOperations
from cohort.ops.fused.family import FusedModel, fuse
from cohort.ops.fused.projection import fill_zero_adapters
from cohort.ops.fused.training import load_compiled
from cohort.ops.noise import make_gumbel
from cohort.ops.products import count_missing_rows, find_activated_width
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

KEPT_SHARE = 0.15
"""A workspace below this share of a GPU's memory is kept between calls; a larger one is freed for training."""
LENGTH_STEP = 64
"""Slot lengths on a GPU are rounded up to a multiple of this, so that the next call fits into them too."""
TRIAL_TOKENS = 8
"""Enough tokens to capture steps, if they can be captured."""


def make_local(setup: EngineSetup) -> tuple[LocalEngine, str]:
    """Build the engine and its console message. Raises EngineError if the model cannot be served exactly."""
    engine = LocalEngine(setup)
    return engine, f"engine local: continuous batching with the policy's own weights, {engine.describe()}"


class LocalEngine(SlotEngine):
    name = "local"

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self.local = prove_local(setup.model)
        self.parts = self.local.parts
        # The host looks up length-dependent rotary frequencies, and a graph cannot wait for the host.
        graphs = setup.cuda_graphs and has_kernels(setup.model.device)
        self.cuda_graphs = graphs and not list(list_length_dependent(setup.model))
        self.detects_waits = True
        """Whether first steps are checked for waits. The check covers the whole process, so other GPU work must not run meanwhile."""
        self.memory = DecodeMemory()
        self.compiled: NativeOperations | None = None
        self.why_not_native = ""
        self.fused, self.why_modules = self._prove_fused(setup.kernels)
        self.workspace: Workspace | None = None
        if setup.concurrent and self.cuda_graphs:
            # Find out now, while nothing else runs on the GPU, whether steps can be captured.
            self.generate(
                [Request(Prompt(0, "", {}, (0,)), 0, 0)], Sampling(1, 1.0, TRIAL_TOKENS, ()), NoiseKey(0, "preflight", 0)
            )
            self.cuda_graphs, self.detects_waits = self.last["graphs"] > 0, False
            self.close()

    @property
    def capabilities(self) -> Capabilities:
        kind = self.model.device.type  # on a GPU the products of a step depend on its number of rows
        return Capabilities(
            MOST_SLOTS[kind], self.cache_dtype.itemsize, steady=kind == "cpu", own_kernels=True, takes_turns=True
        )

    def close(self) -> None:
        self.workspace, self.memory = None, DecodeMemory()

    @property
    def cache_dtype(self) -> torch.dtype:
        """Dtype of cached keys and values: that of attention's sums, except that compiled attention converts them as it reads."""
        if self.fused is not None and self.compiled is not None:
            return self.local.dtype
        return choose_accumulation_dtype(self.local.dtype, self.model.device)

    def describe(self) -> str:
        """How steps are computed, for the console."""
        if self.fused is None:
            how = f"the modules of transformers ({self.why_modules})"
        elif self.model.device.type == "cuda":
            how = "own kernels"
        else:
            how = f"fused products, {'native attention' if self.compiled else f'attention in PyTorch ({self.why_not_native})'}"
        return how + (", captured in CUDA graphs" if self.cuda_graphs else "")

    @property
    def code(self) -> str:  # type: ignore[override]
        if self.fused is None:
            own = "modules"
        elif self.model.device.type == "cuda":
            own = "own kernels"
        else:
            own = "compiled code" if self.compiled else "plain PyTorch"
        return own + (" in CUDA graphs" if self.last.get("graphs", self.cuda_graphs) else "")

    # -- the workspace -------------------------------------------------------------------------------------------------

    def _prove_fused(self, kernels: str) -> tuple[FusedModel | None, str]:
        """The model as plain tensors, if that gives the same logits; otherwise None and the reason."""
        if kernels == "modules":
            return None, 'model.kernels = "modules"'
        try:
            if self.model.device.type == "cuda" and not has_kernels(self.model.device):
                raise EngineError("Triton is not installed")
            fused = fuse(self.model)
            if fused.device.type == "cpu":
                try:
                    self.compiled = load_compiled(fused)
                except native.NoNative as problem:
                    self.why_not_native = str(problem)
            with fill_zero_adapters(fused.adapters):
                prove_decoder(self.model, self.local, lambda slots, length: self._make_decoder(fused, slots, length))
        except Exception as problem:
            # A kernel that does not compile or fit on this GPU is a reason too: the modules then serve the model.
            if kernels == "fused":
                raise make_fused_error(problem) from problem
            return None, describe_problem(problem)
        return fused, ""

    def _make_decoder(self, fused: FusedModel | None, slots: int, length: int) -> Decoder:
        if fused is None:
            return ModuleDecoder(self.local, slots, length, self.model.device)
        return make_fused_decoder(fused, self.local, slots, length, self.memory, self.compiled)

    def _prepare_modules(self) -> AbstractContextManager[None]:
        return use_attention(self.local.configs, SLOT_ATTENTION)

    def _count_slot_bytes(self, length: int) -> int:
        return self._round_length(length) * kv_bytes(self.local.layers, self.cache_dtype)

    @contextmanager
    def _share_threads(self, workspace: Workspace) -> Iterator[None]:
        if not isinstance(workspace.decoder, CpuSteps):
            yield
            return
        try:
            with workspace.decoder.share_threads(workspace.slots * self.model.config.get_text_config().vocab_size):
                yield
        finally:
            workspace.decoder.close()

    def _sign_parameters(self) -> tuple[Any, ...]:
        """Changes when a parameter moves in memory or other adapters are active: a captured graph would then be wrong."""
        places = tuple(parameter.data_ptr() for parameter in self.model.parameters())
        adapters = tuple(
            (tuple(module.active_adapters), module.disable_adapters)
            for module in self.model.modules()
            if isinstance(getattr(module, "disable_adapters", None), bool)
        )
        return places, adapters

    def _round_length(self, longest: int) -> int:
        return longest if self.model.device.type == "cpu" else -(-longest // LENGTH_STEP) * LENGTH_STEP

    def _make_workspace(self, longest: int, completions: int, sampling: Sampling, columns: int) -> Workspace:
        device = self.model.device
        if self.fused is not None and not self.fused.is_current():  # parameters have new storage, or other adapters are active
            self.fused, self.workspace = fuse(self.model), None
        signature = (columns, *(self._sign_parameters() if device.type == "cuda" else ()))
        kept, self.workspace = self.workspace, None
        if kept and kept.can_serve(self.slots, longest, completions, sampling, signature):
            return kept
        del kept
        slots = self.fit_slots(longest, completions)
        width = find_activated_width(self.model.config)
        parks = device.type == "cpu" and sampling.max_reply_tokens > 0
        rows = slots + parks + count_missing_rows(slots, device, width)
        length = self._round_length(longest)
        decoder = self._make_decoder(self.fused, rows, length)
        noise = make_gumbel if self.compiled is None else self.compiled.native.make_gumbel
        state = SlotState(rows, completions, sampling, device, columns, noise)
        steps = GraphedSteps(self.detects_waits) if self.cuda_graphs else None
        return Workspace(decoder, state, steps, self.slots, slots, length, completions, sampling, signature, width, parks)

    def _keep_or_drop(self, workspace: Workspace) -> None:
        """Keep a small workspace on a GPU. On a CPU only memory is kept, without its contents: weights are packed for each call."""
        device = self.model.device
        if device.type != "cuda":
            self.memory.trim()
            return
        bytes_held = workspace.slots * workspace.length * kv_bytes(self.local.layers, self.local.dtype)
        if bytes_held <= KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory:
            self.workspace = workspace


class SnapshotEngine(Engine):
    """Runs `engine` over `policy`, a frozen copy that nothing else reads or writes, while the policy itself is trained.

    Engines that read the policy's own parameters cannot sample in one thread while another thread changes them. Here only `sync`
    changes the weights, by copying them. With LoRA the copy shares the frozen base, and only the adapter is copied.
    """

    def __init__(self, policy: Policy, engine: Engine) -> None:
        self.policy, self.engine = policy, engine
        self.name, self.slots, self.last = engine.name, engine.slots, engine.last
        device = policy.device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        """A separate stream: on the training stream each side would wait for the other's kernels."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.engine.capabilities, shares_weights=False)

    @property
    def code(self) -> str:  # type: ignore[override]
        return self.engine.code

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        with self._use_stream():
            completions = self.engine.generate(requests, sampling, noise, on_finish)
        self.last = self.engine.last
        return completions

    def generate_turns(self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, turns: Turns) -> None:
        with self._use_stream():
            self.engine.generate_turns(requests, sampling, noise, turns)
        self.last = self.engine.last

    @contextmanager
    def _use_stream(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.stream is not None:  # a new thread has the first GPU's default stream
                stack.enter_context(torch.cuda.device(self.stream.device))
                stack.enter_context(torch.cuda.stream(self.stream))
            yield

    def choose_slots(self, longest: int) -> int:
        return self.engine.choose_slots(longest)

    def close(self) -> None:
        self.engine.close()

    @torch.no_grad()
    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        for name, mine in self.policy.list_own_parameters().items():
            mine.copy_(weights[name])
        self.policy.refresh_weights()
        self.policy.wait()  # another thread reads them next, on another stream
        self.engine.sync(weights, version)
