"""Decode steps captured in CUDA graphs, one graph per number of rows.

A step is about two hundred kernels of a few microseconds each; launched one by one they make the host slower than the GPU. A graph is
captured for a *bucket* of rows when that many rows are first live. It always uses the same memory (state, cache and the policy's
own parameters), so it stays valid after an optimizer step, and it is dropped when any of that memory moves.

A step that makes the host wait cannot be captured (for example experts that look up their tokens on the host), and a failed capture
leaves the stream and the allocator in an undefined state. The first step therefore runs outside a graph and is checked for waits. If it
has any, steps are launched one by one. The check covers the whole process, so where other threads use the GPU, it is made
beforehand (EngineSetup.concurrent).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Numbers of rows to capture. The extra rows of a bucket read no keys, so a coarse grid costs little."""
WAITING = "synchronizing CUDA operation"
"""Part of torch's error message for an operation that makes the host wait."""
MOST_WAITS = 2
"""First steps with waits before capturing is given up. The very first one may only be a module initialising itself."""


def round_to_bucket(live: int, slots: int) -> int:
    return min((bucket for bucket in BUCKETS if bucket >= live), default=slots) if live < slots else slots


class GraphedSteps:
    def __init__(self, detect_waits: bool = True) -> None:
        """detect_waits: check first steps for waits; otherwise they are known to have none."""
        self.step: Callable[[int], None] | None = None
        """Decodes one token for the first rows. It reads only memory that does not move, and stores the tokens last."""
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.waits = 0
        self.detect_waits = detect_waits

    def run(self, rows: int, times: int) -> None:
        assert self.step is not None
        if rows not in self.graphs and self.waits < MOST_WAITS:
            self.run_first_step(rows)
            times -= 1
        graph = self.graphs.get(rows)
        for _ in range(times):
            if graph is None:
                self.step(rows)
            else:
                graph.replay()

    def run_first_step(self, rows: int) -> None:
        """Run a step outside a graph, which compiles kernels and lets libraries choose algorithms; then capture it."""
        assert self.step is not None
        waits = self.waits
        side = find_side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            try:
                with forbid_waits() if self.detect_waits else nullcontext():
                    self.step(rows)
            except RuntimeError as problem:
                if WAITING not in str(problem):
                    raise
                self.waits += 1
                self.step(rows)  # no token was stored yet, so this repeats the same step
        torch.cuda.current_stream().wait_stream(side)
        if self.waits == waits:
            graph = torch.cuda.CUDAGraph()
            # thread_local: calls to the driver by other threads do not break the capture.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.step(rows)
            self.graphs[rows] = graph


@cache
def find_side_stream() -> torch.cuda.Stream:
    """One stream for all first steps, because memory that a stream has allocated and the workspaces of libraries stay with it."""
    return torch.cuda.Stream()


@contextmanager
def forbid_waits() -> Iterator[None]:
    """Raise an error for operations that make the host wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that it may miss some
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
