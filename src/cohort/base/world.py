"""The processes of a run and their collective operations; this class is for a single process.

Every process holds the whole batch: rollouts are gathered, so nothing computed from the batch needs a sum over processes. Draws
(`block`) and micro-batches (`deal`) are split over the processes; completions, scores and metrics (`gather`), gradients (`add_up`) and
decisions (`agree`) are combined: if one process must stop, skip or save, all do. parallel/ranks.py has the class for several processes,
which is imported if torchrun started this process (training/launch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Number = TypeVar("Number", int, float)


class World:
    rank, size = 0, 1
    launched = False
    """Whether torchrun, or a similar launcher, started this process."""
    waited = 0.0
    """Seconds that this process has waited for others so far."""
    in_step = False
    """Whether all processes must run the same number of passes, because the model is sharded."""
    lost = ""
    """Why communication has ended; "" while all processes are alive."""
    earlier_run = ""
    """Run folder of these processes before they were restarted; "" if they were not."""

    @property
    def is_main(self) -> bool:
        """Whether this process owns the run folder and prints to the console."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether this process holds the whole policy and trains it without others."""
        return self.size == 1 and not self.in_step

    def block(self, count: int) -> slice:
        """This process's slice of `count` items; the slices of all ranks, in order, cover all items."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def deal(self, sizes: Sequence[int]) -> list[int]:
        """Indices of the items, with these sizes, that this process handles."""
        return deal_out(sizes, self.size)[self.rank]

    def list_turns(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """(index, weight) of the items that this process handles: weight 1, and weight 0 for the smallest item where it only keeps step."""
        dealt = deal_out(sizes, self.size)
        idle = max(map(len, dealt)) - len(dealt[self.rank]) if self.in_step else 0
        return [(place, 1.0) for place in dealt[self.rank]] + [(sizes.index(min(sizes)), 0.0) for _ in range(idle)]

    def gather(self, mine: Sequence[T]) -> list[T]:
        """The items of all processes, in the order of ranks, on every process."""
        return list(mine)

    def compute(self, work: Callable[[], Sequence[T]]) -> list[T]:
        """The gathered results of `work` on every process. An error on one process is raised on all."""
        return list(work())

    def on_main(self, work: Callable[[], T]) -> T:
        """The result of `work`, which runs only on the main process, on every process. Its error is raised on all."""
        return work()

    def add_up(self, tensors: Iterable[Any]) -> None:
        """Replace each tensor with its sum over all processes."""

    def sum(self, mine: Number) -> Number:
        return mine

    def max(self, mine: Number) -> Number:
        return mine

    def agree(self, flag: bool) -> bool:
        """Whether the flag is true on any process."""
        return flag

    def remember_run(self, root: str) -> None:
        """Remember the run folder, so that restarted processes resume this run."""

    def explain(self, problem: Exception) -> Exception:
        """The error to show to people: torch's error about a broken connection means that a rank was lost."""
        return problem

    def fail(self, problem: BaseException) -> None:
        """Inform the other processes that this one ends with an error; nobody waits for anybody from then on."""

    def close(self) -> None:
        """End communication after the run."""


ALONE = World()


def deal_out(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Distribute items by size, so that the sums are nearly equal: the largest first, to the process with the least."""
    dealt: list[list[int]] = [[] for _ in range(hands)]
    held = [0] * hands
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        hand = min(range(hands), key=lambda hand: (held[hand], hand))
        dealt[hand].append(place)
        held[hand] += sizes[place]
    return [sorted(places) for places in dealt]
