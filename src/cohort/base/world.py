"""The processes of a run, and what they do together. Here is the one process that is alone.

Every process holds the whole batch: rollouts are gathered, so nothing that is computed from the batch takes a sum. What is
shared out are draws (`block`), and what is joined are completions (`gather`), sums and maxima that were measured apart, and
decisions (`agree`): one process that must stop, skip or save takes the others along. Several processes are another class with
these words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
Number = TypeVar("Number", int, float)


class World:
    rank, size = 0, 1

    def block(self, count: int) -> slice:
        """This process's share of `count` things: one slice of them, and the shares in the order of ranks are all of them."""
        return slice(0, count)

    def gather(self, mine: Sequence[T]) -> list[T]:
        """What every process has, in the order of ranks, on every process."""
        return list(mine)

    def sum(self, mine: Number) -> Number:
        return mine

    def max(self, mine: Number) -> Number:
        return mine

    def agree(self, flag: bool) -> bool:
        """Whether any process says so: then all of them do."""
        return flag


ALONE = World()
