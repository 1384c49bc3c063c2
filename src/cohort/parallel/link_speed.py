"""Measures the speed of the link between ranks with the sums and meetings of a run, by the formula of a ring."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from cohort.base.world import World

FIRST_BYTES = 1 << 18
MOST_BYTES = {"cpu": 1 << 26, "cuda": 1 << 28}
LONG_ENOUGH_S = 0.05
"""Duration of one sum at which the link dominates over its latency."""
REPEATS = 3


def measure_link(world: World, device: torch.device) -> tuple[float, float, float]:
    """(bytes per second one way, seconds per message, seconds per meeting) of the slowest rank, on every rank.

    A sum of B bytes over N ranks takes 2 (N - 1) messages of B / N bytes, one after the other.
    """
    turns = 2 * (world.size - 1)
    started = time_sum(world, torch.zeros(1, device=device))
    count = FIRST_BYTES
    while True:
        seconds = time_sum(world, torch.zeros(count // 4, device=device))
        if seconds >= LONG_ENOUGH_S or count >= MOST_BYTES[device.type]:
            break
        count *= 4
    bandwidth = turns * count / world.size / max(1e-9, seconds - started)
    return bandwidth, started / turns, time_work(world, lambda: world.agree(False))


def time_sum(world: World, tensor: torch.Tensor) -> float:
    def add_up() -> None:
        dist.all_reduce(tensor)
        if tensor.device.type == "cuda":
            torch.cuda.synchronize(tensor.device)

    return time_work(world, add_up)


def time_work(world: World, work: Callable[[], object]) -> float:
    """Median seconds after a warm-up, of the slowest rank, so that all ranks continue alike."""
    seconds = []
    for _ in range(1 + REPEATS):
        started = time.monotonic()
        work()
        seconds.append(time.monotonic() - started)
    return world.max(median(seconds[1:]))
