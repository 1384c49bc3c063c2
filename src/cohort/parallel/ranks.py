"""The ranks that torchrun started, as one World, over torch.distributed.

Every exchange begins with a meeting over the launcher's key-value store: each rank writes a note (number and kind of the exchange, a
small payload) and reads the notes of the others. So the loss of a rank gives a clear error: a rank that is late but has a heartbeat is
waited for, however long its rewards or its disk take; one without a heartbeat for `limit_s` is named. Large payloads and tensors follow
in collectives (gloo for host memory, NCCL for GPUs), once all ranks have arrived.

Payloads are pickles from processes of the same run, as in torch.distributed itself: keep the ports of launcher and ranks on a private
network.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cohort import errors
from cohort.base.interrupts import allow_interrupts, pass_on, raise_when_free, read_pending, was_signalled
from cohort.base.world import World
from cohort.errors import CohortError, Interrupted, RankError, describe_problem
from cohort.parallel.rendezvous import RUN_KEY, Room, find_room, read_rank, shorten

T = TypeVar("T")
Number = TypeVar("Number", int, float)

SMALL = 1 << 14
"""Largest payload, in bytes, that is part of the note."""
BUCKET = 1 << 26
"""Bytes of gradients that are summed in one collective."""
TRANSPORT = re.compile(r"gloo|nccl|connection (closed|reset)", re.IGNORECASE)
"""Matches torch's errors about a lost peer."""
FAILED = "failed"
"""Kind of the note of a rank that ends with an error."""
REPORTED = "reported"
"""Key under which the main rank records that it ends with an error and reports it."""
HEARTBEAT_S = 1.0
FIRST_LOOK_S = 2.0
"""Waiting time before the heartbeats of late ranks are checked."""
PATIENCE_AFTER_FAILURE_S = 8.0
REPORT_S = 5.0
"""Time for the main rank to receive an error of another rank, or to meet the same one."""
LONGEST_PAUSE_S = 0.02
KILLERS = {"SIGKILL": ": often the kernel, when memory runs out (see dmesg)"}
"""What usually sends a signal."""


class Heartbeats:
    """A thread in every rank that counts up in the store, which tells a slow rank from a dead one."""

    def __init__(self, store: dist.Store, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.seen: dict[int, tuple[bytes, float]] = {}
        """Rank -> its last heartbeat, and when this process first saw it."""
        self.ended = threading.Event()
        self.killed: dict[int, str] = {}
        """Rank of this host -> the signal that ended its process."""
        store.set(f"who/{rank}", f"rank {rank} (process {os.getpid()} on {socket.gethostname()})")

    def begin(self) -> None:
        self.store.set(f"life/{self.rank}", "0")
        threading.Thread(target=self._beat, daemon=True, name="heartbeats").start()
        threading.Thread(target=self._watch_host, daemon=True, name="ranks of this host").start()

    def _watch_host(self) -> None:
        """Wait for the end of the other processes of this host. Only Linux shows how a process ended, until its parent has asked."""
        opened: dict[int, tuple[int, int]] = {}  # file descriptor -> (rank, process)
        with contextlib.suppress(RuntimeError, OSError, AttributeError):  # the store is gone; no such call
            for rank in set(range(self.size)) - {self.rank}:
                _, pid, _, host = re.findall(r"[^ ()]+", self.store.get(f"who/{rank}").decode())[2:6]
                if host == socket.gethostname() and pid != str(os.getpid()):
                    opened[os.pidfd_open(int(pid))] = rank, int(pid)
        waiting = select.poll()
        for descriptor in opened:
            waiting.register(descriptor, select.POLLIN)
        while opened and not self.ended.is_set():
            for descriptor, _ in waiting.poll(1000 * HEARTBEAT_S):
                rank, pid = opened.pop(descriptor)
                if name := read_exit_signal(pid):
                    self.killed[rank] = name
                waiting.unregister(descriptor)
                os.close(descriptor)
        for descriptor in opened:
            os.close(descriptor)

    def _beat(self) -> None:
        count = 0
        with contextlib.suppress(RuntimeError):  # the store is gone, which the main thread will report
            while not self.ended.wait(HEARTBEAT_S):
                count += 1
                self.store.set(f"life/{self.rank}", str(count))
                # Pass on a signal that one rank received, since others may be in long work before their next exchange.
                if name := read_pending():
                    self.store.compare_set("signal", "", name_signal(name, self.rank))
                elif self.store.check(["signal"]):
                    pass_on(self.store.get("signal").decode())

    def find_silent(self, ranks: Sequence[int], limit_s: float) -> list[int]:
        """The ranks whose last new heartbeat is older than `limit_s`."""
        with contextlib.suppress(RuntimeError):
            return self._pick_silent(ranks, limit_s)
        return []

    def _pick_silent(self, ranks: Sequence[int], limit_s: float) -> list[int]:
        beats, now = self.store.multi_get([f"life/{rank}" for rank in ranks]), time.monotonic()
        for rank, beat in zip(ranks, beats, strict=True):
            if rank not in self.seen or self.seen[rank][0] != beat:
                self.seen[rank] = (beat, now)
        return [rank for rank in ranks if now - self.seen[rank][1] > limit_s]

    def find_lost(self) -> list[int] | None:
        """The other ranks without a heartbeat in the next few seconds; None if the store cannot be reached."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._pick_silent(others, 0.0)
            time.sleep(3 * HEARTBEAT_S)
            return self._pick_silent(others, 2 * HEARTBEAT_S)
        except RuntimeError:
            return None

    def describe(self, ranks: Sequence[int]) -> str:
        """The ranks with their processes and hosts."""
        try:
            return ", ".join(self.store.get(f"who/{rank}").decode() for rank in ranks)
        except RuntimeError:
            return ", ".join(f"rank {rank}" for rank in ranks)

    def describe_end(self, ranks: Sequence[int]) -> str:
        """Which ranks were killed, and by which signal."""
        name = self.killed[ranks[0]]
        return f"{self.describe(ranks)} was killed by {name}{KILLERS.get(name, '')}"


def read_exit_signal(pid: int) -> str:
    """Name of the signal that killed an ended child of another process; "" if none did, or the parent has already collected it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[49]
        return signal.Signals(int(status) & 0x7F).name
    return ""


def name_signal(name: str, rank: int) -> str:
    """A signal with the rank that received it, even if it was passed on."""
    return name if " on rank " in name else f"{name} on rank {rank}"


class Ranks(World):
    """All ranks of a run. Each calls the same methods in the same order."""

    launched = True

    def __init__(self, rank: int, size: int, limit_s: float, room: Room):
        self.rank, self.size, self.limit_s, self.hosts = rank, size, limit_s, room.hosts
        self.waited = 0.0
        self.problem: Exception | None = None
        """An error of this rank's own work, which the other ranks raise as well."""
        self.lost = ""
        """The reason why communication stopped; "" while every rank is alive."""
        self.store, self.meeting, self.room = room.store, -1, room
        self.run = ""
        self.earlier_run = room.earlier_run
        self.heartbeats = Heartbeats(room.store, rank, size)
        for parity in range(2):
            self._leave_note(parity - 2, ("", b"", 0, "", ""))
        self.heartbeats.begin()

    # -- exchanges -------------------------------------------------------------------------------------------------------

    def gather(self, mine: Sequence[T]) -> list[T]:
        return [one for theirs in self._exchange("gather", list(mine)) for one in theirs]

    def compute(self, work: Callable[[], Sequence[T]]) -> list[T]:
        return [one for theirs in self._exchange("compute", *self._try(lambda: list(work()))) for one in theirs]

    def on_main(self, work: Callable[[], T]) -> T:
        if self.lost:  # the main rank can still save the state
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
        """(result, pickled error). A signal stops the work and is raised in the exchange."""
        try:
            with allow_interrupts():
                return work(), ""
        except Interrupted:
            return None, ""
        except Exception as problem:
            self.problem = problem
            return None, pickle.dumps(make_shareable(problem, self.rank))

    def remember_run(self, root: str) -> None:
        self.run = root
        if self.is_main:
            self.room.lobby.set(RUN_KEY, root)

    # -- ending ----------------------------------------------------------------------------------------------------------

    def explain(self, problem: Exception) -> Exception:
        """Name the lost rank in errors of FSDP's own collectives; ours do it themselves."""
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
            self._write_failure(self.meeting + 1, problem)
            if isinstance(problem, CohortError) and not self.is_main:
                with contextlib.suppress(RuntimeError):  # whether the main rank reports this error, or its own
                    self.store.wait([REPORTED], timedelta(seconds=REPORT_S))
                    problem.reported = True

    def close(self) -> None:
        if not self.lost:
            with contextlib.suppress(RankError):  # everything is done, so a rank lost now does not matter
                self._exchange("close", None)  # no rank leaves while another still reads
        with contextlib.suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", "")
            if self.hosts:  # the store must exist until the other ranks have left
                patience = timedelta(seconds=PATIENCE_AFTER_FAILURE_S if self.lost else self.limit_s)
                self.store.wait([f"left/{rank}" for rank in range(self.size)], patience)
        self.heartbeats.ended.set()
        if not self.lost and dist.is_initialized():
            dist.destroy_process_group()

    # -- meetings --------------------------------------------------------------------------------------------------------

    def _exchange(self, about: str, mine: Any, problem: str | bytes = "") -> list[Any]:
        """The values of all ranks, in order, once all have arrived. A signal that any rank received is raised in all."""
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
        # Two keys in turn: no rank reaches the meeting after next before all have read this one.
        self.store.set(f"note/{self.rank}/{meeting % 2}", pickle.dumps((meeting, *note)))  # type: ignore[arg-type]

    def _await_notes(self, about: str) -> list[tuple[Any, ...]]:
        keys = [f"note/{rank}/{self.meeting % 2}" for rank in range(self.size)]
        began, pause = time.monotonic(), 1e-4
        while True:
            killed = dict(self.heartbeats.killed)  # before its last note is read
            with self._name_loss():
                notes = [pickle.loads(one) for one in self.store.multi_get(keys)]
            for number, what, payload, *_ in notes:
                if number == self.meeting and what == FAILED:
                    problem = pickle.loads(payload)
                    self.lost = describe_problem(problem)
                    if self.is_main:
                        self.store.set(REPORTED, "")
                    raise self._leave_to_main(problem)
            late = [rank for rank, one in enumerate(notes) if one[0] != self.meeting]
            waited = time.monotonic() - began
            if not late:
                self.waited += waited
                if others := {rank: one[1] for rank, one in enumerate(notes) if one[1] != about}:
                    rank, kind = next(iter(others.items()))
                    what = f"rank {self.rank} came to exchange {self.meeting} to {about}, and rank {rank} to {kind}"
                    self._lose(f"{what}: the ranks have diverged", [])
                return [one[1:] for one in notes]
            if dead := [rank for rank in late if rank in killed]:
                self._lose(self.heartbeats.describe_end(dead), dead)
            # A launcher that has lost a rank signals the others: then waiting longer is pointless.
            limit_s = min(self.limit_s, PATIENCE_AFTER_FAILURE_S) if was_signalled() else self.limit_s
            if waited > FIRST_LOOK_S and (gone := self.heartbeats.find_silent(late, limit_s)):
                self._lose(
                    f"{self.heartbeats.describe(gone)} gave no sign of life for {limit_s:.0f} s and counts as lost (parallel.limit_s)",
                    gone,
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _gather_bytes(self, payload: bytes, lengths: Sequence[int]) -> list[bytes]:
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        theirs = [torch.empty_like(padded) for _ in lengths]
        with self._name_loss():
            dist.all_gather(theirs, padded)
        return [one[:length].numpy().tobytes() for one, length in zip(theirs, lengths, strict=True)]

    @contextlib.contextmanager
    def _name_loss(self) -> Iterator[None]:
        """Replace torch's errors, which name an address, by errors that name the lost rank."""
        try:
            yield
        except RuntimeError as problem:
            time.sleep(0.1)  # until the thread has seen the end of the process
            if dead := sorted(self.heartbeats.killed):
                self._lose(self.heartbeats.describe_end(dead), dead, problem)
            gone = self.heartbeats.find_lost()
            if gone is None:
                where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
                text = f"the launcher's store at {where} cannot be reached: rank 0, its host or the network is gone"
            else:
                who = self.heartbeats.describe(gone) if gone else "the connection to another rank"
                text = f"{who} is lost ({shorten(problem)})"
            self._lose(text, gone or [], problem)

    def _lose(self, why: str, gone: Sequence[int], cause: BaseException | None = None) -> None:
        resume = f"cohort resume {self.run}" if self.run else "`cohort resume`"
        self.lost = f"{why}. Checkpoints stay valid: {resume}, with any number of ranks."
        problem = RankError(self.lost)
        problem.reported = bool(gone) and any(rank not in gone for rank in range(self.rank))  # a lower rank reports it
        for meeting in (self.meeting, self.meeting + 1):  # other ranks may still be at this exchange, or past it
            self._write_failure(meeting, problem)
        raise problem from cause

    def _write_failure(self, meeting: int, problem: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone with its host
            self._leave_note(meeting, (FAILED, pickle.dumps(make_shareable(problem, self.rank)), 0, "", ""))
            if self.is_main:
                self.store.set(REPORTED, "")

    def _leave_to_main(self, problem: Exception) -> Exception:
        """Let only the main rank print an error that all ranks have; unexpected errors keep their traceback where they arose."""
        if isinstance(problem, CohortError):
            problem.reported = not self.is_main
        return problem


def make_shareable(problem: BaseException, rank: int) -> CohortError:
    """The error in a form that every rank can raise: one of ours keeps its class; the text names the rank."""
    known = isinstance(problem, CohortError) and getattr(errors, type(problem).__name__, None) is type(problem)
    text = str(problem) if known else describe_problem(problem) if isinstance(problem, Exception) else repr(problem)
    kind: type[CohortError] = type(problem) if known else RankError  # type: ignore[assignment]
    return kind(text if "(rank " in text else f"{text} (rank {rank} on {socket.gethostname()})")


def fill_buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive tensors of one dtype and device, up to BUCKET bytes each; a larger tensor has its own bucket."""
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
    """Meet the other ranks of this launch, once for each training in this process."""
    rank, size = read_rank()
    room = find_room(rank, size, limit_s)
    try:
        ranks = Ranks(rank, size, limit_s, room)
        groups = dist.PrefixStore("groups", room.store)
        dist.init_process_group(choose_backend(), store=groups, rank=rank, world_size=size, timeout=timedelta(seconds=limit_s))
    except (RuntimeError, ValueError) as problem:
        raise RankError(
            f"rank {rank} of {size} has met the others, but cannot exchange tensors with them ({shorten(problem)}). Their hosts must reach "
            "each other on every port (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME name the interface): see docs/scale.md."
        ) from problem
    return ranks


def choose_backend() -> str:
    """NCCL between GPUs; gloo if ranks share a GPU, and on CPUs. Does not initialise CUDA."""
    gpus = torch.cuda.device_count()
    if not gpus:
        return "gloo"
    return "cpu:gloo,cuda:nccl" if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= gpus else "cpu:gloo,cuda:gloo"
