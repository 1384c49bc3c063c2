"""An engine over a copy of the policy's weights: it samples from what the policy was, while the policy is trained.

Engines that read the policy's own parameters (local, cached, hf) cannot sample in one thread while another changes these very
parameters. Over a frozen copy they can: `sync` copies the weights in, and until the next `sync` nothing else does. With LoRA the copy is of
the adapter alone, over the same frozen base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from cohort.engine.local import LocalEngine
from cohort.engine.protocol import Capabilities, Engine, OnFinish
from cohort.model.policy import Policy
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

TRIED_TOKENS = 8
"""Enough that steps are captured, where they can be."""


class SnapshotEngine:
    """`engine` serves `policy`, a frozen copy that nobody else reads or writes."""

    def __init__(self, policy: Policy, engine: Engine) -> None:
        self.policy, self.engine = policy, engine
        self.name, self.slots = engine.name, engine.slots
        device = policy.device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        """Of its own: on the stream of training, a step of one would wait for what the other has begun."""
        if isinstance(engine, LocalEngine) and engine.cuda_graphs:
            self._try_graphs(engine)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.engine.capabilities, shares_weights=False)

    @property
    def last(self) -> dict[str, float]:
        return getattr(self.engine, "last", {})

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        with self._use_stream():
            return self.engine.generate(requests, sampling, noise, on_finish)

    def choose_slots(self, longest: int) -> int:
        return self.engine.choose_slots(longest)

    @torch.no_grad()
    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        for name, mine in self.policy.list_own_parameters().items():
            mine.copy_(weights[name])
        self.policy.notice_new_weights()
        self.policy.wait()  # another thread, on another stream, reads them next
        self.engine.sync(weights, version)

    def close(self) -> None:
        self.engine.close()

    def _try_graphs(self, engine: LocalEngine) -> None:
        """Whether steps can be captured is found out here, while nobody else works on the GPU (graphs.py)."""
        request = Request(Prompt(0, "", {}, (0,)), 0, 0)
        self.generate([request], Sampling(1, 1.0, TRIED_TOKENS, ()), NoiseKey(0, "preflight", 0))
        engine.cuda_graphs, engine.watches_graphs = engine.last["graphs"] > 0, False
        engine.close()

    @contextmanager
    def _use_stream(self) -> Iterator[None]:
        """A thread begins on the first GPU and on the stream of everybody."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            yield
