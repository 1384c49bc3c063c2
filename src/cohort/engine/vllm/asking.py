"""The requests of one call, put to the servers: so many side by side at each, and elsewhere when a server is lost.

A seed belongs to a completion and not to a server, so what is asked again elsewhere is the same completion. Each server is watched
while it has requests: one that gives no label within the limit, or samples no token for a long time, is lost, and what it was asked
for moves on. That is the deadline of a request, which may otherwise be as long as its completion.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.engine.vllm.answers import BYTES_PER_TOKEN, GENERATE, AnswerReader, BadAnswer, OtherWeights
from cohort.engine.vllm.client import MOST_BYTES, Server, ServerLost, ServerRefused
from cohort.engine.vllm.fleet import TOKENS, WAITING, Fleet
from cohort.errors import EngineError
from cohort.types import Completion, Request

TRIES = 3
"""Of a request that a living server fails to answer."""
FIRST_LOOK_S, LOOK_EVERY_S = 0.2, 1.0
STALLED = 4
"""Limits without a single token, while requests wait, after which a server that still gives its label is lost too."""
MOST_LOSSES = 10
"""Of servers, one after the other, while they complete one and the same prompt: then it is the prompt, or the address, that is at fault."""
LONGEST_S = 7 * 86400.0
"""Of a request; the watch over its server ends it long before."""


@dataclass(eq=False)
class Job:
    """One completion that is asked for."""

    place: int
    request: Request
    body: dict[str, Any]
    most_tokens: int
    failures: int = 0
    losses: int = 0
    moved: bool = False


@dataclass
class Seen:
    """What one server did in a call."""

    tokens: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    """Most requests that waited for their turn there."""


@dataclass
class Asking:
    """One call of `generate`. Jobs that nobody is left to do are left undone."""

    fleet: Fleet
    slots: int
    """Requests side by side at each server."""
    reader: AnswerReader
    find_versions: Callable[[Server], range]
    """Versions that may sample what this server is asked for now."""
    finish: Callable[[Job, Completion], None]
    seen: dict[Server, Seen] = field(default_factory=dict)
    moved: int = 0

    async def ask_all(self, jobs: Sequence[Job]) -> None:
        self.began = time.monotonic()
        self.turns = {server: asyncio.Semaphore(self.slots) for server in self.fleet.servers}
        self.running: dict[Server, set[asyncio.Task[Any]]] = {server: set() for server in self.fleet.servers}
        tasks = [asyncio.create_task(self.complete(job)) for job in jobs]
        watchers = [asyncio.create_task(self.watch(server)) for server in self.fleet.servers]
        done = asyncio.gather(*tasks)
        all_of_them: list[asyncio.Future[Any]] = [done, *watchers]
        try:
            # A watch ends only by what nobody has foreseen, or by a signal that came while it looked.
            for ended in (await asyncio.wait(all_of_them, return_when=asyncio.FIRST_COMPLETED))[0]:
                ended.result()
        finally:
            for task in (*tasks, *watchers):
                task.cancel()
            await asyncio.gather(*tasks, *watchers, done, return_exceptions=True)

    async def complete(self, job: Job) -> None:
        while (server := self.fleet.choose(job.request.draw)) is not None:
            self.moved += job.moved
            async with self.turns[server]:
                if server.ready:
                    if await self.try_server(job, server):
                        return
                    if not server.ready:
                        self.count_loss(job, server)
            job.moved = not server.ready

    def count_loss(self, job: Job, server: Server) -> None:
        """A server was lost with this job on it; one after the other, and the run would never end."""
        job.losses += 1
        if job.losses == MOST_LOSSES:
            raise EngineError(
                f"servers were lost {MOST_LOSSES} times while they completed prompt {job.request.prompt.index}, the last one so: {server.lost}. Look "
                "into its log; each address of sampling.servers must lead to one server and always to the same."
            )

    async def try_server(self, job: Job, server: Server) -> bool:
        """Whether it gave the completion. If not, it may be asked again, or it is lost."""
        versions = self.find_versions(server)
        try:
            answer = await self.ask(job, server)
            newest = self.find_versions(server)
            known = range(versions.start, max(versions.stop, newest.stop))
            completion = self.reader.read(answer, job.request, job.most_tokens, known)
        except OtherWeights as problem:
            if problem.foreign:
                raise EngineError(explain_other_trainer(server, str(problem))) from None
            self.lose(server, f"{server.address} was started anew: {problem}")
            return False
        except ServerRefused as problem:
            if problem.status < 500:
                raise EngineError(f"a server refuses what it is asked for: {problem}") from None
            await self.count_failure(job, server, str(problem))
            return False
        except (ServerLost, BadAnswer) as problem:
            named = (
                str(problem) if isinstance(problem, ServerLost) else f"{server.address}: the answer cannot be used: {problem}"
            )
            await self.count_failure(job, server, named)
            return False
        seen = self.seen.setdefault(server, Seen())
        seen.tokens += len(completion.token_ids)
        seen.seconds = time.monotonic() - self.began
        self.finish(job, completion)
        return True

    async def ask(self, job: Job, server: Server) -> Any:
        """The answer to one request; ServerLost also where the watch has given the server up."""
        most = MOST_BYTES + job.most_tokens * BYTES_PER_TOKEN
        task = asyncio.create_task(server.call(GENERATE, job.body, LONGEST_S, most))
        self.running[server].add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if server.ready or not task.cancelled():
                raise
            raise ServerLost(server.lost) from None
        finally:
            self.running[server].discard(task)
            task.cancel()

    async def count_failure(self, job: Job, server: Server, why: str) -> None:
        """Whoever still gives the label of its weights is alive, and may be asked again; but not for ever."""
        if not server.ready:
            return
        try:
            said = await server.call("/weight_info", limit_s=self.fleet.limit_s)
        except (ServerLost, ServerRefused):
            self.lose(server, why)
            return
        job.failures += 1
        if job.failures == TRIES:
            raise EngineError(f"a server failed {TRIES} times to complete prompt {job.request.prompt.index}: {why}")
        label = str(said.get("weight_version", "")) if isinstance(said, dict) else ""
        if label.rpartition(".")[0] != self.reader.token:
            self.lose(server, f"{server.address} has other weights than it was given")

    def lose(self, server: Server, why: str) -> None:
        self.fleet.lose(server, why)
        for task in list(self.running[server]):
            task.cancel()

    async def watch(self, server: Server) -> None:
        """Lose the server when it hangs; note how many requests wait there."""
        tokens, moved_at, pause = -1.0, time.monotonic(), FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause)
            pause = LOOK_EVERY_S
            if not server.ready:
                for task in list(self.running[server]):  # another thread has lost it
                    task.cancel()
            if not server.ready or not self.running[server] or self.fleet.pushing:
                moved_at = time.monotonic()
                continue
            try:
                await server.call("/weight_info", limit_s=self.fleet.limit_s)
                metrics = (await server.fetch("/metrics", limit_s=self.fleet.limit_s)).body
            except (ServerLost, ServerRefused) as problem:
                if not self.fleet.pushing:
                    self.lose(server, str(problem))
                continue
            waiting, counted = sum(map(float, WAITING.findall(metrics))), sum(map(float, TOKENS.findall(metrics)))
            seen = self.seen.setdefault(server, Seen())
            seen.waiting = max(seen.waiting, waiting)
            if counted != tokens:
                tokens, moved_at = counted, time.monotonic()
            elif time.monotonic() - moved_at > STALLED * self.fleet.limit_s:
                self.lose(
                    server,
                    f"{server.address} has sampled nothing for {STALLED * self.fleet.limit_s:g} s, with requests waiting",
                )


def explain_other_trainer(server: Server, found: str) -> str:
    return f"{server.address}: {found}, which this run has not pushed. Another trainer uses this server: give each its own."
