"""Signs of life: a thread of every rank counts up in the store, so that one who is slow is told from one who is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence

import torch.distributed as dist

from cohort.base.interrupts import pass_on, read_pending

EVERY_S = 1.0


class SignsOfLife:
    def __init__(self, store: dist.Store, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.seen: dict[int, tuple[bytes, float]] = {}
        """Rank -> its last sign, and when it was first seen here."""
        self.ended = threading.Event()
        store.set(f"who/{rank}", f"rank {rank} (process {os.getpid()} on {socket.gethostname()})")

    def begin(self) -> None:
        self.store.set(f"life/{self.rank}", "0")
        threading.Thread(target=self._beat, daemon=True, name="signs of life").start()

    def end(self) -> None:
        self.ended.set()

    def _beat(self) -> None:
        count = 0
        with contextlib.suppress(RuntimeError):  # the store is gone, and the main thread will say so
            while not self.ended.wait(EVERY_S):
                count += 1
                self.store.set(f"life/{self.rank}", str(count))
                self._share_signal()

    def _share_signal(self) -> None:
        """A signal that one rank has got reaches those who are in long work of their own before they come to an exchange."""
        if name := read_pending():
            self.store.compare_set("signal", "", name_signal(name, self.rank))
        elif self.store.check(["signal"]):
            pass_on(self.store.get("signal").decode())

    def find_gone(self, late: Sequence[int], limit_s: float) -> list[int]:
        """Those of the ranks that have shown no new sign for `limit_s`, as far as this process has watched them."""
        try:
            return self._pick_silent(late, limit_s)
        except RuntimeError:
            return []

    def _pick_silent(self, ranks: Sequence[int], limit_s: float) -> list[int]:
        now = self._read_signs(ranks)
        return [rank for rank in ranks if now - self.seen[rank][1] > limit_s]

    def _read_signs(self, ranks: Sequence[int]) -> float:
        """Look at the signs of these ranks; when that was."""
        signs, now = self.store.multi_get([f"life/{rank}" for rank in ranks]), time.monotonic()
        for rank, sign in zip(ranks, signs, strict=True):
            if rank not in self.seen or self.seen[rank][0] != sign:
                self.seen[rank] = (sign, now)
        return now

    def find_silent(self) -> list[int] | None:
        """The other ranks that show no sign within a few beats from now; None: the store itself is out of reach."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._read_signs(others)
            time.sleep(3 * EVERY_S)
            return self._pick_silent(others, 2 * EVERY_S)
        except RuntimeError:
            return None

    def describe(self, ranks: Sequence[int]) -> str:
        """The ranks with their processes and hosts."""
        try:
            return ", ".join(self.store.get(f"who/{rank}").decode() for rank in ranks)
        except RuntimeError:
            return ", ".join(f"rank {rank}" for rank in ranks)


def name_signal(name: str, rank: int) -> str:
    """A signal with the rank that got it, also where it was passed on."""
    return name if " on rank " in name else f"{name} on rank {rank}"
