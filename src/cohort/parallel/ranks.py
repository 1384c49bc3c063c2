"""The processes that torchrun has started, as one World: torch.distributed, and nothing of our own beside it.

Every exchange begins with a meeting over the launcher's key-value store: each rank leaves a note (its number of the exchange,
what it is about, a small payload) and reads those of the others. Meetings are what makes a lost rank a sentence and not a
riddle: a rank that is late but shows signs of life is waited for, however long its rewards or its disk take; one without a sign
for `limit_s` is named. Large payloads and tensors follow by collectives, gloo for the memory of hosts and NCCL for that of GPUs,
once all ranks are known to be there.

The payloads are pickles, which the processes of one run send each other, as those of torch.distributed itself are: the ports of a
launcher and of its ranks belong on a private network.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cohort import errors
from cohort.base.interrupts import allow_interrupts, raise_when_free, read_pending, was_signalled
from cohort.base.world import World
from cohort.errors import CohortError, Interrupted, RankError, describe_problem
from cohort.parallel.joining import Room, find_room, read_place, shorten
from cohort.parallel.life import SignsOfLife, name_signal

T = TypeVar("T")
Number = TypeVar("Number", int, float)

SMALL = 1 << 14
"""Bytes of a payload that travels in the note itself."""
BUCKET = 1 << 26
"""Bytes of gradients that are added up in one collective."""
TRANSPORT = re.compile(r"gloo|nccl|connection (closed|reset)", re.IGNORECASE)
"""What torch says of a collective that has lost a side."""
TOLD = "told"
"""What the note of a rank that ends with a problem is about."""
HEARD = "heard"
"""Where the main rank says that it ends with a problem, and will tell people."""


class Ranks(World):
    """All ranks of a run. Each calls the same methods in the same order."""

    launched = True

    def __init__(self, rank: int, size: int, limit_s: float, room: Room):
        self.rank, self.size, self.limit_s, self.hosts = rank, size, limit_s, room.hosts
        self.waited = 0.0
        self.problem: Exception | None = None
        """Of this rank's own work, which the others are told and raise with it."""
        self.lost = ""
        """Why nothing more is exchanged; "": all are there."""
        self.store, self.meeting, self.room = room.store, -1, room
        self.earlier_run = room.earlier_run
        self.life = SignsOfLife(room.store, rank, size)
        for parity in range(2):
            self._leave_note(parity - 2, ("", b"", 0, "", ""))
        self.life.begin()

    # -- what is shared out and joined -----------------------------------------------------------------------------------

    def gather(self, mine: Sequence[T]) -> list[T]:
        return [one for theirs in self._exchange("gather", list(mine)) for one in theirs]

    def compute(self, work: Callable[[], Sequence[T]]) -> list[T]:
        return [one for theirs in self._exchange("compute", *self._try(lambda: list(work()))) for one in theirs]

    def on_main(self, work: Callable[[], T]) -> T:
        if self.lost:  # what was earned is still saved by whoever can; the others have nothing to go on with
            if self.is_main:
                return work()
            raise RankError(self.lost)
        result: T = self._exchange("on_main", *(self._try(work) if self.is_main else (None, "")))[0]
        return result

    def sum(self, mine: Number) -> Number:
        return sum(self._exchange("sum", mine))

    def max(self, mine: Number) -> Number:
        return max(self._exchange("max", mine))

    def agree(self, flag: bool) -> bool:
        return any(self._exchange("agree", flag))

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self._exchange("add_up", len(tensors))
        with self._name_loss():
            for bucket in fill_buckets(tensors):
                if len(bucket) == 1 and bucket[0].is_contiguous():
                    dist.all_reduce(bucket[0])
                    continue
                flat = torch.cat([tensor.flatten() for tensor in bucket])
                dist.all_reduce(flat)
                for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                    tensor.copy_(summed.view_as(tensor))

    def _try(self, work: Callable[[], T]) -> tuple[T | None, bytes | Literal[""]]:
        """What the work gives, or its problem as it is told to the others. A signal gives it up, and is raised in the exchange."""
        try:
            with allow_interrupts():
                return work(), ""
        except Interrupted:
            return None, ""
        except Exception as problem:
            self.problem = problem
            return None, pickle.dumps(make_shareable(problem, self.rank))

    def remember_run(self, root: str) -> None:
        if self.is_main:
            self.room.remember_run(root)

    # -- ending ----------------------------------------------------------------------------------------------------------

    def explain(self, problem: Exception) -> Exception:
        """Of the collectives that FSDP makes by itself, while it computes; ours say it where they are."""
        if self.lost or not isinstance(problem, RuntimeError) or not TRANSPORT.search(str(problem)):
            return problem
        try:
            with self._name_loss():
                raise problem
        except RankError as named:
            return named

    def fail(self, problem: BaseException) -> None:
        if not self.lost:
            self.lost = describe_problem(problem) if isinstance(problem, Exception) else repr(problem)
            self._tell(self.meeting + 1, problem)
            if isinstance(problem, CohortError) and not self.is_main:
                problem.reported = self._is_heard()

    def close(self) -> None:
        if not self.lost:
            with contextlib.suppress(RankError):  # all is done: who is lost now is missed by nobody
                self._exchange("close", None)  # nobody hangs up while another still reads
        self._leave_store()
        self.life.end()
        if not self.lost and dist.is_initialized():
            dist.destroy_process_group()

    def _leave_store(self) -> None:
        """Where no launcher keeps the store, the rank that does stays until the others have read what it had to say."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", "")
            if self.hosts:
                patience = timedelta(seconds=PATIENCE_WHEN_TOLD_S if self.lost else self.limit_s)
                self.store.wait([f"left/{rank}" for rank in range(self.size)], patience)

    # -- meetings --------------------------------------------------------------------------------------------------------

    def _exchange(self, about: str, mine: Any, problem: str | bytes = "") -> list[Any]:
        """What every rank has brought, in the order of ranks, once all are there. A signal that any of them got is raised in all."""
        if self.lost:
            raise RankError(self.lost)
        payload = pickle.dumps(mine)
        fits = len(payload) <= SMALL
        self.meeting += 1
        note = (about, payload if fits else b"", len(payload), problem, read_pending())
        self._leave_note(self.meeting, note)
        notes = self._await_notes(about)
        payloads = [one[1] for one in notes]
        if any(len(one[1]) != one[2] for one in notes):
            payloads = self._gather_bytes(payload, [one[2] for one in notes])
        for rank, one in enumerate(notes):
            if one[3]:
                raise self._leave_to_main(self.problem if rank == self.rank and self.problem else pickle.loads(one[3]))
        if signals := [name_signal(one[4], rank) for rank, one in enumerate(notes) if one[4]]:
            raise_when_free(signals[0])
        return [pickle.loads(one) for one in payloads]

    def _leave_note(self, meeting: int, note: tuple[Any, ...]) -> None:
        # Two places in turn: nobody comes to the meeting after next before all have read this one.
        self.store.set(f"note/{self.rank}/{meeting % 2}", pickle.dumps((meeting, *note)))  # type: ignore[arg-type]

    def _await_notes(self, about: str) -> list[tuple[Any, ...]]:
        keys = [f"note/{rank}/{self.meeting % 2}" for rank in range(self.size)]
        began, pause = time.monotonic(), 1e-4
        while True:
            with self._name_loss():
                notes = [pickle.loads(one) for one in self.store.multi_get(keys)]
            for number, what, payload, *_ in notes:
                if number == self.meeting and what == TOLD:
                    problem = pickle.loads(payload)
                    self.lost = describe_problem(problem)
                    if self.is_main:
                        self.store.set(HEARD, "")
                    raise self._leave_to_main(problem)
            late = [rank for rank, one in enumerate(notes) if one[0] != self.meeting]
            waited = time.monotonic() - began
            if not late:
                self.waited += waited
                self._refuse_other_ways(about, notes)
                return [one[1:] for one in notes]
            # A launcher that has lost a rank tells the others by a signal: then there is less to wait for.
            limit_s = min(self.limit_s, PATIENCE_WHEN_TOLD_S) if was_signalled() else self.limit_s
            if waited > FIRST_LOOK_S and (gone := self.life.find_gone(late, limit_s)):
                self._lose(f"{self.life.describe(gone)} gave no sign of life for {limit_s:.0f} s and counts as lost", gone)
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _refuse_other_ways(self, about: str, notes: Sequence[tuple[Any, ...]]) -> None:
        ways = {rank: one[1] for rank, one in enumerate(notes) if one[1] != about}
        if ways:
            rank, what = next(iter(ways.items()))
            self._lose(
                f"rank {self.rank} came to exchange {self.meeting} to {about}, and rank {rank} to {what}: the ranks have gone different ways",
                [],
            )

    def _gather_bytes(self, payload: bytes, lengths: Sequence[int]) -> list[bytes]:
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        theirs = [torch.empty_like(padded) for _ in lengths]
        with self._name_loss():
            dist.all_gather(theirs, padded)
        return [one[:length].numpy().tobytes() for one, length in zip(theirs, lengths, strict=True)]

    @contextlib.contextmanager
    def _name_loss(self) -> Iterator[None]:
        """torch's own errors say which address closed a connection; people want to know which rank is gone."""
        try:
            yield
        except RuntimeError as problem:
            gone = self.life.find_silent()
            if gone is None:
                where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
                self._lose(
                    f"the launcher's store at {where} cannot be reached: rank 0, its host or the network is gone", [], problem
                )
            else:
                who = self.life.describe(gone) if gone else "the connection to another rank"
                self._lose(f"{who} is lost ({shorten(problem)})", gone, problem)

    def _lose(self, why: str, gone: Sequence[int], cause: BaseException | None = None) -> None:
        self.lost = (
            f"{why}. What is saved stays: `cohort resume` goes on with any number of ranks (parallel.limit_s is how long a rank may be "
            "silent)."
        )
        problem = RankError(self.lost)
        problem.reported = bool(gone) and any(
            rank not in gone for rank in range(self.rank)
        )  # who misses them as well, and says so
        for meeting in (self.meeting, self.meeting + 1):  # whoever is at this exchange still, or past it already
            self._tell(meeting, problem)
        raise problem from cause

    def _tell(self, meeting: int, problem: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the store went with its host
            self._leave_note(meeting, (TOLD, pickle.dumps(make_shareable(problem, self.rank)), 0, "", ""))
            if self.is_main:
                self.store.set(HEARD, "")

    def _is_heard(self) -> bool:
        """Whether the main rank has a problem too, this one or another, and says it. Before they meet all may have the same."""
        with contextlib.suppress(RuntimeError):
            self.store.wait([HEARD], timedelta(seconds=HEARING_S))
            return True
        return False

    def _leave_to_main(self, problem: Exception) -> Exception:
        """A problem that all ranks know is said by the main one alone; what is nobody's words keeps its traceback where it arose."""
        if isinstance(problem, CohortError):
            problem.reported = not self.is_main
        return problem


FIRST_LOOK_S = 2.0
"""Of waiting, before anybody asks whether those who are late still live."""
PATIENCE_WHEN_TOLD_S = 8.0
HEARING_S = 5.0
"""For the main rank to come upon a problem that another has told it, or to have the same."""
LONGEST_PAUSE_S = 0.02


def make_shareable(problem: BaseException, rank: int) -> CohortError:
    """The problem as an error that every rank can raise: of its kind where it is one of ours, with the rank it comes from."""
    known = isinstance(problem, CohortError) and getattr(errors, type(problem).__name__, None) is type(problem)
    text = str(problem) if known else describe_problem(problem) if isinstance(problem, Exception) else repr(problem)
    kind: type[CohortError] = type(problem) if known else RankError  # type: ignore[assignment]
    return kind(text if "(rank " in text else f"{text} (rank {rank} on {socket.gethostname()})")


def fill_buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbours of one kind together, up to BUCKET bytes; a large one alone."""
    buckets: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if not buckets or size > room or (buckets[-1][0].dtype, buckets[-1][0].device) != (tensor.dtype, tensor.device):
            buckets.append([])
            room = BUCKET
        buckets[-1].append(tensor)
        room -= size
    return buckets


def join_ranks(limit_s: float) -> Ranks:
    """Meet the other processes of this launch; again, where a process trains once more."""
    rank, size = read_place()
    room = find_room(rank, size, limit_s)
    try:
        ranks = Ranks(rank, size, limit_s, room)
        groups = dist.PrefixStore("groups", room.store)
        dist.init_process_group(choose_backend(), store=groups, rank=rank, world_size=size, timeout=timedelta(seconds=limit_s))
    except (RuntimeError, ValueError) as problem:
        raise RankError(
            f"rank {rank} of {size} has met the others, and cannot exchange tensors with them ({shorten(problem)}). Their hosts must reach "
            "each other on every port (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME name the network card): see docs/scale.md."
        ) from problem
    return ranks


def choose_backend() -> str:
    """NCCL between GPUs; gloo, through the host, where ranks must share one, and on hosts. CUDA is not started by asking."""
    gpus = torch.cuda.device_count()
    if not gpus:
        return "gloo"
    return "cpu:gloo,cuda:nccl" if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= gpus else "cpu:gloo,cuda:gloo"
