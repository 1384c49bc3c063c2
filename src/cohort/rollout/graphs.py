"""Decode steps captured in CUDA graphs, one for each number of rows.

A step is some two hundred kernels of a few microseconds; launched one by one the host is slower than the GPU. A graph is
captured for a *bucket* of rows the first time so many are live. It reads and writes the same memory every time: state, cache
and the policy's own parameters, so it stays right after an optimizer step, and is thrown away when any of these moves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
"""Rows a step is captured for. Rows that fill up a bucket read no keys, so coarse steps cost little."""


def bucket_for(live: int, slots: int) -> int:
    return min((bucket for bucket in BUCKETS if bucket >= live), default=slots) if live < slots else slots


class GraphedSteps:
    def __init__(self) -> None:
        self.step: Callable[[int], None] | None = None
        """Decodes one token for the first rows; waits for nothing, and reads only memory that stays where it is."""
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, rows: int, times: int) -> None:
        graph = self.graphs.get(rows)
        assert self.step is not None
        if graph is None:
            # The first step outside a graph: kernels are compiled and libraries choose their algorithms. It counts.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step(rows)
            torch.cuda.current_stream().wait_stream(side)
            times -= 1
            graph = self.graphs[rows] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                self.step(rows)
        for _ in range(times):
            graph.replay()
