"""Saves checkpoints while training continues: the state is copied between two steps, and a thread writes the copy.

At most one write is open. The next save, the end of the run and a signal wait for it, and its error is raised in all ranks after the
next step. Every rank of a sharded model writes its own files; the main rank renames the folder once all ranks report theirs as written.
A thread is enough, because writing, hashing and syncing release the interpreter's lock, and after CUDA has started no process may fork.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor

from cohort.base.threads import Worker
from cohort.base.world import World
from cohort.errors import CheckpointError
from cohort.training import checkpoint
from cohort.training.checkpoint import HostTensor, Snapshot, Tensors, is_sharded

BLOCK = 2**26
"""Bytes of a block of host memory: a power of two, because torch rounds pinned memory up to one."""
Parts = dict[str, Tensors]
"""The sets of tensors of a checkpoint by name."""
FREE_SHARE = 0.5
"""Share of the free host memory that the copy of a checkpoint may take; a larger one is written without a copy."""


class Write(NamedTuple):
    seconds: float
    size: int
    """Bytes; 0 if the checkpoint existed already."""


@dataclass
class OpenWrite:
    """A write that has not ended, or whose end this process has not noted yet."""

    name: str
    folder: Path
    own: Future[Any] | None
    """The work of this rank's thread; None if it has none."""
    complete: Callable[[Mapping[str, Any]], Write] | None = None
    """With files of all ranks: the work that follows on the main rank, given their manifest entries."""

    def poll(self, block: bool) -> Any:
        """The result of this rank's work; None if it has not ended."""
        assert self.own is not None
        return self.own.result() if block or self.own.done() else None


class Saver:
    """The saves of one run in this process. All ranks call its methods in the same order, between two steps."""

    def __init__(self) -> None:
        self.memory = HostMemory()
        self.worker: Worker | None = None
        self.open: OpenWrite | None = None
        self.name = ""
        """The last checkpoint that this process has written."""
        self.writes: list[Write] = []
        self.noted = 0
        """Number of writes that a row of metrics has reported."""
        self.stops: list[float] = []
        """Seconds of each time that saving stopped training."""
        self.resume = "cohort resume"
        """The command that resumes the run, for error messages."""
        self.warn: Callable[[str], None] = lambda message: None

    def start(
        self, world: World, root: Path, name: str, make_snapshot: Callable[[], Snapshot], afterwards: Callable[[], None]
    ) -> None:
        """Copy the state and begin to write it. afterwards: called on the main rank once the checkpoint is complete."""
        if name == self.name:  # a name identifies one state
            world.on_main(afterwards)
            return
        snapshot = make_snapshot()
        shards: Parts = {part: own for part, tensors in snapshot.tensors.items() if (own := checkpoint.select_shards(tensors))}
        whole: Parts = {
            part: {key: value for key, value in tensors.items() if not is_sharded(value)}
            for part, tensors in snapshot.tensors.items()
            if part not in shards or any(not is_sharded(value) for value in tensors.values())
        }
        document = json.dumps(snapshot.document) if world.is_main else ""
        if shards and not world.on_main(lambda: checkpoint.begin(root, name)):
            world.on_main(afterwards)
            return
        (shards, whole), copied = self._copy([shards, whole if world.is_main else {}])
        began, folder = time.monotonic(), checkpoint.name_temporary(root, name)

        def complete(written: Mapping[str, Any]) -> Write:
            found = checkpoint.finish(root, name, whole, document, written)
            afterwards()
            return Write(time.monotonic() - began, sum(size for size, _ in checkpoint.list_files(found).values()))

        def write_own() -> dict[str, Any]:
            return {
                f"{stem}.safetensors": checkpoint.write_tensors(folder, stem, own)
                for part, own in shards.items()
                for stem in [f"{part}.{world.rank}-of-{world.size}"]
            }

        def write_alone() -> Write:
            if checkpoint.begin(root, name):
                return complete({})
            afterwards()
            return Write(time.monotonic() - began, 0)

        if shards:
            self.open = OpenWrite(name, folder, self._submit(folder, write_own), complete)
        else:
            self.open = OpenWrite(name, folder, self._submit(folder, write_alone) if world.is_main else None)
        if world.agree(not copied):  # the tensors themselves are written, so they must not change meanwhile
            self.wait(world)

    def check(self, world: World, block: bool = False) -> None:
        """Note the end of the open write. Raises its error on all ranks."""
        while self.open is not None and self._advance(world, self.open, block):
            pass

    def _advance(self, world: World, now: OpenWrite, block: bool) -> bool:
        """Whether a part of the write has ended."""
        try:
            if now.complete is None:
                write = world.on_main(lambda: now.poll(block))
                if write is not None:
                    self.open, self.name = None, now.name
                    self.writes.append(write)
                return write is not None
            complete, found = now.complete, world.compute(lambda: [now.poll(block)])
            if None not in found:
                written = {name: entry for files in found for name, entry in files.items()}
                last = self._submit(now.folder, lambda: complete(written)) if world.is_main else None
                self.open = OpenWrite(now.name, now.folder, last)
            return None not in found
        except Exception:
            self.open = None
            if now.own is not None:
                wait([now.own])
            if world.is_main:
                shutil.rmtree(now.folder, ignore_errors=True)
            raise

    def wait(self, world: World) -> None:
        """Wait until nothing is being written. Raises the error of the open write on all ranks."""
        self.check(world, block=True)

    def close(self) -> None:
        """End the thread and free the copy. A write that a second signal left open is not waited for."""
        if self.worker is not None:
            # A thread that still frees tensors while the interpreter ends would abort the process.
            self.worker.close(wait=self.open is None)
        self.worker, self.memory = None, HostMemory()

    def take_new_write(self) -> Write | None:
        """The last write, unless a row of metrics has reported it."""
        new = self.writes[self.noted :]
        self.noted = len(self.writes)
        return new[-1] if new else None

    def _copy(self, groups: list[Parts]) -> tuple[list[Parts], bool]:
        """(the tensors in host memory, whether they are copies)"""
        size = sum(checkpoint.count_bytes(value) for parts in groups for own in parts.values() for value in own.values())
        missing = max(0, size - BLOCK * len(self.memory.blocks))
        free = psutil.virtual_memory().available
        if missing > FREE_SHARE * free:
            self.warn(
                f"warning: a copy of the state needs {missing / 2**30:.1f} GiB of host memory, and {free / 2**30:.1f} GiB are free: saving "
                "stops training until the checkpoint is written"
            )
            return groups, False
        return self.memory.copy(groups), True

    def _submit(self, folder: Path, work: Callable[[], Any]) -> Future[Any]:
        """Run the work in the thread. An error names the file, the free bytes and the command to resume."""

        def run() -> Any:
            try:
                return work()
            except OSError as problem:
                free = shutil.disk_usage(folder.parent).free if folder.parent.is_dir() else 0
                raise CheckpointError(
                    f"cannot write {problem.filename or folder}: {problem.strerror or problem} ({free:,} bytes are free there). Earlier "
                    f"checkpoints are kept. Make room or make the folder writable, then resume with: {self.resume}"
                ) from problem

        self.worker = self.worker or Worker("checkpoint")
        return self.worker.submit(run)


class HostMemory:
    """Blocks of host memory for the copy of a checkpoint, kept for the next one: pinned, if the state is on a GPU."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []

    @torch.no_grad()
    def copy(self, groups: list[Parts]) -> list[Parts]:
        """Copies of named sets of tensors; they are overwritten by the next copy."""
        used, room, on_gpu = 0, torch.empty(0, dtype=torch.uint8), False

        def hold(value: Any) -> HostTensor:
            nonlocal used, room, on_gpu
            left, pieces = checkpoint.read_bytes(value), []
            while len(left):
                if not len(room):
                    if used == len(self.blocks):
                        self.blocks.append(make_block(value.is_cuda))
                    room, used = self.blocks[used], used + 1
                size = min(len(left), len(room))
                pieces.append(room[:size].copy_(left[:size], non_blocking=value.is_cuda))
                room, left = room[size:], left[size:]
            on_gpu = on_gpu or value.is_cuda
            return HostTensor(value.dtype, tuple(value.shape), pieces)

        held: list[Parts] = [{part: {key: hold(own[key]) for key in own} for part, own in parts.items()} for parts in groups]
        if on_gpu:
            torch.cuda.synchronize()
        return held


def make_block(pinned: bool) -> Tensor:
    try:
        return torch.empty(BLOCK, dtype=torch.uint8, pin_memory=pinned)
    except RuntimeError:  # the host allows no more pinned memory; copies into other memory are slower
        return torch.empty(BLOCK, dtype=torch.uint8)
