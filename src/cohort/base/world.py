"""The processes of a run, and what they do together. Here is the one process that is alone.

Every process holds the whole batch: rollouts are gathered, so nothing that is computed from the batch takes a sum. What is
shared out are draws (`block`) and micro-batches (`deal`), and what is joined are completions, scores and meters (`gather`),
gradients (`add_up`) and decisions (`agree`): one process that must stop, skip or save takes the others along. Several
processes are another class with these words (parallel/ranks.py), which is imported where torchrun has started this process
(training/launch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Number = TypeVar("Number", int, float)


class World:
    rank, size = 0, 1
    launched = False
    """Whether torchrun, or whoever does its work, has started this process."""
    waited = 0.0
    """Seconds that this process has waited for others, so far."""
    in_step = False
    """Whether all processes must take equally many turns: where they share a model out, none computes with it alone."""
    lost = ""
    """Why nothing more is exchanged; "": all are there."""
    earlier_run = ""
    """Folder of the run that the processes had in the life before this one; "": they are in their first."""

    @property
    def is_main(self) -> bool:
        """Whether this process owns the run folder and speaks to people."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether this process holds the policy whole and trains it without others."""
        return self.size == 1 and not self.in_step

    def block(self, count: int) -> slice:
        """This process's share of `count` things: one slice of them, and the shares in the order of ranks are all of them."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def deal(self, sizes: Sequence[int]) -> list[int]:
        """Which of the things of these sizes are this process's to do: their places, in order."""
        return deal_out(sizes, self.size)[self.rank]

    def list_turns(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Places of the things that are this process's to do, with the weight 1; with 0 the smallest, where it only keeps step."""
        dealt = deal_out(sizes, self.size)
        idle = max(map(len, dealt)) - len(dealt[self.rank]) if self.in_step else 0
        return [(place, 1.0) for place in dealt[self.rank]] + [(sizes.index(min(sizes)), 0.0) for _ in range(idle)]

    def gather(self, mine: Sequence[T]) -> list[T]:
        """What every process has, in the order of ranks, on every process."""
        return list(mine)

    def compute(self, work: Callable[[], Sequence[T]]) -> list[T]:
        """What `work` gives on every process, gathered. A problem of one process is raised on all of them."""
        return list(work())

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` gives on the main process, on every process. No other does it; its problem is raised on all of them."""
        return work()

    def add_up(self, tensors: Iterable[Any]) -> None:
        """Each tensor becomes the sum of what the processes have in its place."""

    def sum(self, mine: Number) -> Number:
        return mine

    def max(self, mine: Number) -> Number:
        return mine

    def agree(self, flag: bool) -> bool:
        """Whether any process says so: then all of them do."""
        return flag

    def remember_run(self, root: str) -> None:
        """The processes work on the run in this folder: in another life they go on with it."""

    def explain(self, problem: Exception) -> Exception:
        """A problem as people should hear it: what torch says of a broken connection is the loss of a rank."""
        return problem

    def fail(self, problem: BaseException) -> None:
        """This process ends with a problem: the others are told, and from now on nobody waits for anybody."""

    def close(self) -> None:
        """The run has ended on every process."""


ALONE = World()


def deal_out(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Places of things of these sizes, shared out so that the sums are near each other: the largest first, to whoever has least."""
    dealt: list[list[int]] = [[] for _ in range(hands)]
    held = [0] * hands
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        hand = min(range(hands), key=lambda hand: (held[hand], hand))
        dealt[hand].append(place)
        held[hand] += sizes[place]
    return [sorted(places) for places in dealt]
