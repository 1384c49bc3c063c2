"""The trainer's side of environments: worker processes and threads, which run many episodes each, and their time limits.

A worker is a process that can be killed: a call that hangs or crashes takes the worker, and the episodes in it, along. Classes that a
worker cannot import run in a thread of the trainer. A thread cannot be killed: at a time-out it is abandoned with its
episode, and the other episodes go on in a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.base.processes import memory_below
from cohort.environments.episodes import EpisodeHost
from cohort.errors import EnvironmentFailed
from cohort.rewards.pool import MEMORY_MB, LoadFailed, Worker
from cohort_verify.workers import ProcessEnded

OnReply = Callable[[Mapping[str, Any]], None]

SERVE = "cohort.environments.episodes:serve"
GRACE_S = 1.0
"""Time for an async environment to be cancelled in its worker, before the worker counts as hanging."""
CHECK_EVERY_S = 0.2
MOST_ABANDONED = 8
"""Abandoned threads that end the run."""


@dataclass
class Message:
    """A message about an episode, and where its reply goes."""

    body: dict[str, Any]
    is_async: bool
    limit_s: float
    on_reply: OnReply
    sent: float = 0.0
    deadline: float = float("inf")

    def start_clock(self) -> None:
        self.sent = time.monotonic()
        self.deadline = self.sent + self.limit_s + GRACE_S * self.is_async

    @property
    def episode(self) -> int:
        return int(self.body["id"])


class Host:
    """Sends messages, at most one to sync code at a time, and watches their limits."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.episodes: set[int] = set()
        self.lost: dict[int, dict[str, str]] = {}
        """Episodes that the host has lost, with the fault."""
        self.waiting: deque[Message] = deque()
        self.flying: dict[int, Message] = {}

    def submit(self, message: Message) -> None:
        with self.lock:
            fault = self.lost.pop(message.episode, None)
            if fault is None:
                self.episodes.add(message.episode)
                self.waiting.append(message)
                self._send_waiting()
        if fault is not None:
            message.on_reply(fault)

    def _send_waiting(self) -> None:
        busy = any(not message.is_async for message in self.flying.values())
        for message in [*self.waiting]:
            if message.is_async or not busy:
                self.waiting.remove(message)
                busy = busy or not message.is_async
                message.start_clock()
                self.flying[message.episode] = message
                self._send(message.body | ({"limit_s": message.limit_s} if message.is_async else {}))

    def _take_reply(self, reply: Mapping[str, Any]) -> None:
        with self.lock:
            message = self.flying.pop(int(reply["id"]), None)
            if message is None:
                return
            if "fault" in reply or reply.get("done") or message.body.get("drop"):
                self.episodes.discard(message.episode)
            self._send_waiting()
        message.on_reply({**reply, "seconds": time.monotonic() - message.sent})

    def _find_late(self) -> Message | None:
        now = time.monotonic()
        return next((message for message in self.flying.values() if now > message.deadline), None)

    def _next_deadline(self) -> float:
        return min((message.deadline for message in self.flying.values()), default=float("inf"))

    def _send(self, body: dict[str, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class WorkerHost(Host):
    """Episodes in a worker process, which is replaced after its end."""

    def __init__(self) -> None:
        super().__init__()
        self.outgoing: deque[bytes] = deque()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        self.closed = False
        self.worker: Worker | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="environments")
        self.thread.start()

    def _send(self, body: dict[str, Any]) -> None:
        self.outgoing.append(json.dumps(body).encode())
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self.wake_write, b"x")

    def _run(self) -> None:
        while not self.closed:
            try:
                self._serve()
            except ProcessEnded as ended:
                self._lose_all(ended.kind, ended.detail)
            except LoadFailed as problem:
                self._lose_all("crash", f"no worker can be started: {problem}")
            finally:
                if self.worker is not None:
                    self.worker.kill()
                    self.worker = None
        for descriptor in (self.wake_read, self.wake_write):
            os.close(descriptor)

    def _serve(self) -> None:
        """Exchange messages with a worker until it ends. It starts with the first message."""
        while not self.outgoing and not self.closed:
            self._wait_for_wake()
        if self.closed:
            return
        self.worker = worker = Worker()
        worker.load(SERVE)
        with self.lock:  # starting Python and importing the class does not count
            for message in self.flying.values():
                message.start_clock()
        channel = worker.channel
        channel.send(json.dumps({"op": "serve", "spec": SERVE}).encode())
        checked = time.monotonic()
        while not self.closed:
            with self.lock:
                if not channel.is_sending and self.outgoing:
                    channel.send(self.outgoing.popleft())
                late, deadline = self._find_late(), self._next_deadline()
            if late is not None:
                self._lose(late, "timeout", f"no answer within {late.limit_s:g} s")
                raise ProcessEnded(
                    "crash", f"another episode of its worker took longer than {late.limit_s:g} s, so the worker was ended"
                )
            poll = select.poll()
            poll.register(self.wake_read, select.POLLIN)
            poll.register(channel.replies, select.POLLIN)
            if channel.is_sending:
                poll.register(channel.requests, select.POLLOUT)
            patience = min(deadline - time.monotonic(), CHECK_EVERY_S if self.flying else 3600.0)
            events = dict(poll.poll(max(0.0, patience) * 1000))
            if self.wake_read in events:
                os.read(self.wake_read, 1 << 16)
            if channel.requests in events:
                channel.write_some()
            if channel.replies in events and not channel.read_some():
                raise ProcessEnded("crash", worker.describe_end())
            while channel.has_reply:
                try:
                    self._take_reply(json.loads(channel.take_reply()))
                except (ValueError, RecursionError, KeyError, TypeError):
                    raise ProcessEnded("crash", "a reply of the worker is not a message") from None
            if time.monotonic() - checked > CHECK_EVERY_S:
                checked = time.monotonic()
                if memory_below(worker.pid) > MEMORY_MB:
                    raise ProcessEnded("crash", f"more than {MEMORY_MB} MB in use")

    def _wait_for_wake(self) -> None:
        poll = select.poll()
        poll.register(self.wake_read, select.POLLIN)
        if poll.poll():
            os.read(self.wake_read, 1 << 16)

    def _lose(self, message: Message, kind: str, detail: str) -> None:
        with self.lock:
            self.flying.pop(message.episode, None)
            self.episodes.discard(message.episode)
        message.on_reply({"id": message.episode, "fault": kind, "detail": detail})

    def _lose_all(self, kind: str, detail: str) -> None:
        """The worker has ended: the episodes in it are lost; messages of new episodes wait for the next worker."""
        with self.lock:
            fault = {"fault": kind, "detail": detail}
            begun = {one.episode for one in self.waiting if one.body.get("begin")}
            gone = [*self.flying.values(), *(one for one in self.waiting if one.episode not in begun)]
            told = {one.episode for one in gone}
            self.lost = dict.fromkeys(self.episodes - begun - told, fault)
            self.episodes, self.flying = begun, {}
            self.waiting = deque(one for one in self.waiting if one.episode in begun)
            self.outgoing.clear()
        for message in gone:
            message.on_reply({"id": message.episode, **fault})
        with self.lock:
            self._send_waiting()

    def close(self) -> None:
        self.closed = True
        self._wake()
        self.thread.join(30.0)


class ThreadHost(Host):
    """Episodes in a thread of the trainer, for classes that a worker cannot import."""

    def __init__(self, load: Callable[[str], Any]) -> None:
        super().__init__()
        self.host, self.abandoned, self.closed = EpisodeHost(load), 0, False
        self.changed = threading.Condition(self.lock)
        self.loop = self._start_loop()
        threading.Thread(target=self._watch, daemon=True, name="environment limits").start()

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True, name="environments").start()
        return loop

    def _send(self, body: dict[str, Any]) -> None:
        if self.abandoned >= MOST_ABANDONED:
            return
        host, loop = self.host, self.loop

        async def answer() -> None:
            reply = await host.handle(body)
            if loop is self.loop:
                self._take_reply(reply)

        asyncio.run_coroutine_threadsafe(answer(), loop)
        self.changed.notify_all()

    def _watch(self) -> None:
        while not self.closed:
            with self.lock:
                late = self._find_late()
                if late is None:
                    left = self._next_deadline() - time.monotonic()
                    self.changed.wait(min(max(left, 0.0), 3600.0))
                    continue
                gone = self._abandon(late)
            for message in gone:
                message.on_reply(
                    {"id": message.episode, "fault": "timeout", "detail": f"no answer within {message.limit_s:g} s"}
                )
            with self.lock:
                self._send_waiting()

    def _abandon(self, late: Message) -> list[Message]:
        """Leave the thread with the episode that hangs, and those whose coroutines are in it; the others go on in a new one."""
        self.abandoned += 1
        gone = [*self.flying.values()]
        old, self.host = self.host, EpisodeHost(self.host.load)
        lost = {message.episode for message in gone}
        self.host.live = {number: live for number, live in old.live.items() if number not in lost}
        self.host.kinds = dict(old.kinds.items())
        for number in lost & old.live.keys():
            old.live[number].states.abandon()
        self.flying, self.loop = {}, self._start_loop()
        self.episodes -= lost
        return gone

    def check(self) -> None:
        """Raise EnvironmentFailed if too many threads had to be abandoned."""
        if self.abandoned >= MOST_ABANDONED:
            raise EnvironmentFailed(
                f"environment.step_timeout_s: {self.abandoned} calls of environments did not return. They ran in threads of the trainer, which "
                "cannot be stopped, so the run ends. Move the class to the top level of its own module: it then runs in worker "
                "processes, which are killed at the limit. Then resume with: cohort resume"
            )

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.changed.notify_all()
            self.loop.call_soon_threadsafe(self.loop.stop)
