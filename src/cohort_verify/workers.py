"""Worker processes: their messages, and the pools that keep them.

There are two kinds of workers: helpers that run a user's own reward (cohort/rewards/pool.py), and jailed verifiers that model
text could subvert (sandbox/workers.py). Both use the same messages, a length of four bytes and a body. Both are kept in a pool
with a number of places. A place starts its worker when it is first used, serves one thread at a time, and replaces a worker
that died. A worker that is killed is gone before the next message is sent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

HEADER_BYTES = 4
PIECE_BYTES = 1 << 16


class ProcessEnded(Exception):
    """The process has ended: `kind` is one word for the way, `detail` an explanation."""

    def __init__(self, kind: str, detail: str = "", status: int | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.status = kind, detail, status


class PoolClosed(RuntimeError):
    """The pool was closed and accepts no messages."""


@dataclass(frozen=True)
class Answer:
    """A worker's reply. The problems "cpu", "wall", "memory", "output", "files" and "crash" are caused by the message."""

    value: Any = None
    problem: str = ""
    detail: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------------------------------------------------------


def frame_message(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class Channel:
    """The host's ends of a process's two pipes: one request at a time goes out, replies come in. Nothing blocks."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        os.set_blocking(requests, False)
        os.set_blocking(replies, False)
        self._outgoing, self._incoming = memoryview(b""), bytearray()

    def send(self, body: bytes) -> None:
        self._outgoing = memoryview(frame_message(body))

    @property
    def is_sending(self) -> bool:
        return len(self._outgoing) > 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were received and not read yet."""
        return len(self._incoming)

    @property
    def reply_size(self) -> int:
        """Bytes of the next reply; 0 if not known yet."""
        return int.from_bytes(self._incoming[:HEADER_BYTES], "big") if len(self._incoming) >= HEADER_BYTES else 0

    @property
    def has_reply(self) -> bool:
        return len(self._incoming) >= HEADER_BYTES + self.reply_size

    def take_reply(self) -> bytes:
        """Return the next reply. Only valid while `has_reply` is true."""
        end = HEADER_BYTES + self.reply_size
        body = bytes(self._incoming[HEADER_BYTES:end])
        del self._incoming[:end]
        return body

    def write_some(self) -> bool:
        """Write as much as the pipe takes; False if the process closed it."""
        try:
            self._outgoing = self._outgoing[os.write(self.requests, self._outgoing[:PIECE_BYTES]) :]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def read_some(self) -> bool:
        """Read what the pipe holds; False if the process closed it."""
        piece = read_piece(self.replies)
        self._incoming += piece or b""
        return piece != b""


def read_piece(descriptor: int) -> bytes | None:
    """Read from a non-blocking pipe: None if nothing has arrived yet, empty at the end of the stream."""
    try:
        return os.read(descriptor, PIECE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def run_together(task: Callable[[], None], count: int) -> None:
    """Run the task in `count` threads, wait for all of them, then raise the first error.

    Uses daemon threads because an executor joins its threads at exit: a worker that never replies must not keep the process
    alive.
    """
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            task()
            ended.put(None)
        except BaseException as problem:
            ended.put(problem)

    for _ in range(count):
        threading.Thread(target=run, daemon=True, name="workers").start()
    for problem in [ended.get() for _ in range(count)]:
        if problem is not None:
            raise problem


# ---------------------------------------------------------------------------------------------------------------------
# Pools
# ---------------------------------------------------------------------------------------------------------------------


class AnyWorker(Protocol):
    @property
    def alive(self) -> bool: ...

    def close(self) -> None:
        """End the process if it runs, and leave nothing behind."""


W = TypeVar("W", bound=AnyWorker)


@dataclass(eq=False)
class Place(Generic[W]):
    """A place for one worker of a pool."""

    pool: Pool[W]
    worker: W | None = None

    def fill(self) -> W:
        """Return the worker, starting one if there is none or it died. If the pool is closed, the worker is ended instead."""
        if self.worker is not None and not self.worker.alive:
            self.empty()
        if self.worker is None and not self.pool.closed:
            self.worker = self.pool._start()
        if self.worker is None or self.pool.closed:
            self.empty()
            raise self.pool.closed_error("the pool of workers is closed")
        return self.worker

    def empty(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


class Pool(ABC, Generic[W]):
    """A fixed number of workers of one kind. Safe to use from any thread."""

    closed_error: type[PoolClosed] = PoolClosed

    def __init__(self, size: int = 0) -> None:
        self.owner = os.getpid()
        self.closed = False
        self._places: list[Place[W]] = []
        self._idle: queue.LifoQueue[Place[W]] = queue.LifoQueue()
        self.grow(size)

    @abstractmethod
    def _start(self) -> W:
        """Start a worker."""

    @abstractmethod
    def ask(self, message: Any, limits: Any = None) -> Answer:
        """Send one message to any worker and return its reply."""

    def ask_many(self, messages: Sequence[Any], limits: Any = None) -> list[Answer]:
        """Send all messages, spread over the workers, and return the replies in order. A slow message delays only its own
        worker.
        """
        answers: dict[int, Answer] = {}
        todo = iter(range(len(messages)))  # shared by the threads: next() on it is atomic

        def work() -> None:
            for index in todo:
                answers[index] = self.ask(messages[index], limits)

        run_together(work, min(self.size, len(messages)))
        return [answers[index] for index in range(len(messages))]

    @property
    def size(self) -> int:
        return len(self._places)

    def grow(self, size: int) -> None:
        """Add places until there are `size`."""
        while self.size < size:
            self._places.append(Place(self))
            self._idle.put(self._places[-1])

    @contextlib.contextmanager
    def borrow_place(self) -> Iterator[Place[W]]:
        place = self._idle.get()
        try:
            yield place
        finally:
            if self.closed:
                place.empty()
            self._idle.put(place)  # also if the pool is closed: a waiting thread gets the error

    @contextlib.contextmanager
    def borrow(self) -> Iterator[W]:
        with self.borrow_place() as place:
            yield place.fill()

    def close(self) -> None:
        """End the idle workers. The thread that uses a busy one ends it."""
        self.closed = True
        idle: list[Place[W]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        self._end([place for place in self._places if place not in idle], idle)
        for place in idle:
            self._idle.put(place)

    def _end(self, borrowed: Sequence[Place[W]], idle: Sequence[Place[W]]) -> None:
        for place in idle:
            place.empty()


P = TypeVar("P", bound=Pool[Any])

_pools: dict[Hashable, Pool[Any]] = {}
_lock = threading.Lock()


def keep_pool(key: Hashable, make: Callable[[], P]) -> P:
    """Return this process's pool for the key. Pools are made on first use and closed at exit."""
    with _lock:
        pool = _pools.get(key)
        if pool is None or pool.closed or pool.owner != os.getpid():  # after a fork the workers belong to the parent
            pool = _pools[key] = make()
        return pool  # type: ignore[return-value]


@atexit.register
def close_pools() -> None:
    for pool in list(_pools.values()):
        if pool.owner == os.getpid():
            pool.close()
