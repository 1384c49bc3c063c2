"""Decode steps captured in CUDA graphs, one for each number of rows.

A step is some two hundred kernels of a few microseconds; launched one by one the host is slower than the GPU. A graph is
captured for a *bucket* of rows the first time so many are live. It reads and writes the same memory every time: state, cache
and the policy's own parameters, so it stays right after an optimizer step, and is thrown away when any of these moves.

A step that makes the host wait cannot be captured (experts that ask which tokens are theirs, for one). A capture that fails
leaves stream and allocator in the middle of it, so the first step, outside a graph, is watched for waits instead: where there
are some, steps are launched one by one. The watch is one of the whole process: where others work on the GPU meanwhile (snapshot.py), it is
left to a step that was run before them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Rows a step is captured for. Rows that fill up a bucket read no keys, so coarse steps cost little."""
WAITING = "synchronizing CUDA operation"
"""What torch says of an operation that makes the host wait."""
MOST_WAITS = 2
"""First steps that may wait before capturing is given up: the very first may only have been a module setting itself up."""


def round_to_bucket(live: int, slots: int) -> int:
    return min((bucket for bucket in BUCKETS if bucket >= live), default=slots) if live < slots else slots


class GraphedSteps:
    def __init__(self, watched: bool = True) -> None:
        """watched: first steps are watched for waits; else they are known to have none."""
        self.step: Callable[[int], None] | None = None
        """Decodes one token for the first rows; reads only memory that stays where it is, and notes tokens down last."""
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.waits = 0
        self.watched = watched

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
        """A step outside a graph, in which kernels are compiled and libraries choose their algorithms; then the capture."""
        assert self.step is not None
        waits = self.waits
        side = find_side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            try:
                with refuse_waits() if self.watched else nullcontext():
                    self.step(rows)
            except RuntimeError as problem:
                if WAITING not in str(problem):
                    raise
                self.waits += 1
                self.step(rows)  # nothing was noted down yet: it is the same step again
        torch.cuda.current_stream().wait_stream(side)
        if self.waits == waits:
            graph = torch.cuda.CUDAGraph()
            # What other threads ask of the driver meanwhile is their own affair.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.step(rows)
            self.graphs[rows] = graph


@cache
def find_side_stream() -> torch.cuda.Stream:
    """One for all first steps: what a stream has allocated, and the workspaces of libraries, stay with it for good."""
    return torch.cuda.Stream()


@contextmanager
def refuse_waits() -> Iterator[None]:
    """An operation that makes the host wait for the GPU is an error."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that it may overlook some
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
