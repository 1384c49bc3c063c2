"""Worker processes, whatever they are trusted with: one form of messages, one life.

What a worker is differs by trust, in two classes: the helper of a user's own reward (rewards/pool.py), and the jail of a verifier
that model text could subvert (sandbox/workers.py). How it is spoken to and how a pool keeps it do not: a message is a length of
four bytes and a body; a place of a pool is filled when it is first needed, borrowed by one thread at a time, and filled anew
when its worker has died; a worker that was killed over a question is gone before the next one is asked.
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
    """The process is gone: `kind` says how, in a word, and `detail` in words."""

    def __init__(self, kind: str, detail: str = "", status: int | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.status = kind, detail, status


class PoolClosed(RuntimeError):
    """Nothing can be asked of a pool that was closed."""


@dataclass(frozen=True)
class Answer:
    """What a worker said. A problem of "cpu", "wall", "memory", "output", "files" or "crash" is the question's doing."""

    value: Any = None
    problem: str = ""
    detail: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------------------------------------------------------


def frame_message(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class Channel:
    """The trainer's ends of a process's two pipes: one request at a time goes out, replies come in. Nothing here blocks."""

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
        """What the process has said and nobody has heard yet."""
        return len(self._incoming)

    @property
    def reply_size(self) -> int:
        """Bytes of the reply that comes next; 0 where that is not known yet."""
        return int.from_bytes(self._incoming[:HEADER_BYTES], "big") if len(self._incoming) >= HEADER_BYTES else 0

    @property
    def has_reply(self) -> bool:
        return len(self._incoming) >= HEADER_BYTES + self.reply_size

    def take_reply(self) -> bytes:
        """The reply that is here: only where `has_reply` says so."""
        end = HEADER_BYTES + self.reply_size
        body = bytes(self._incoming[HEADER_BYTES:end])
        del self._incoming[:end]
        return body

    def write_some(self) -> bool:
        """Whether the process may still read: its pipe can take something, or all was written."""
        try:
            self._outgoing = self._outgoing[os.write(self.requests, self._outgoing[:PIECE_BYTES]) :]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def read_some(self) -> bool:
        """Whether the process may still write: it has, or has not closed its pipe."""
        piece = read_piece(self.replies)
        self._incoming += piece or b""
        return piece != b""


def read_piece(descriptor: int) -> bytes | None:
    """What stands in a pipe that does not block; None: nothing yet, empty: nothing any more."""
    try:
        return os.read(descriptor, PIECE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def run_together(task: Callable[[], None], count: int) -> None:
    """Run a task in so many threads at once and wait for all of them; then raise the first error.

    Daemon threads, not an executor, which would join them at exit: a worker that never answers must not keep the process alive.
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
# Lives
# ---------------------------------------------------------------------------------------------------------------------


class AnyWorker(Protocol):
    @property
    def alive(self) -> bool: ...

    def close(self) -> None:
        """End the process if it runs, and leave nothing behind."""


W = TypeVar("W", bound=AnyWorker)


@dataclass(eq=False)
class Place(Generic[W]):
    """Room for one worker of a pool."""

    pool: Pool[W]
    worker: W | None = None

    def fill(self) -> W:
        """The worker of this place. One that has died meanwhile is replaced; one that is started for a closed pool is ended."""
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
    """So many workers of one kind; usable from any thread."""

    closed_error: type[PoolClosed] = PoolClosed

    def __init__(self, size: int = 0) -> None:
        self.owner = os.getpid()
        self.closed = False
        self._places: list[Place[W]] = []
        self._idle: queue.LifoQueue[Place[W]] = queue.LifoQueue()
        self.grow(size)

    @abstractmethod
    def _start(self) -> W:
        """A new worker."""

    @abstractmethod
    def ask(self, message: Any, limits: Any = None) -> Answer:
        """One question to the function of this pool, which any worker can answer."""

    def ask_many(self, messages: Sequence[Any], limits: Any = None) -> list[Answer]:
        """All questions, spread over the workers; answers in order. A slow one holds up its own worker only."""
        answers: dict[int, Answer] = {}
        todo = iter(range(len(messages)))  # shared: taking the next number is one step, which no thread interrupts

        def work() -> None:
            for index in todo:
                answers[index] = self.ask(messages[index], limits)

        run_together(work, min(self.size, len(messages)))
        return [answers[index] for index in range(len(messages))]

    @property
    def size(self) -> int:
        return len(self._places)

    def grow(self, size: int) -> None:
        """Have at least so many places."""
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
            self._idle.put(place)  # of a closed pool too: whoever still waits is told

    @contextlib.contextmanager
    def borrow(self) -> Iterator[W]:
        with self.borrow_place() as place:
            yield place.fill()

    def close(self) -> None:
        """End the idle workers; one that is out is ended by whoever has it."""
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
    """The pool of this process under that key: made on first use, closed at exit."""
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
