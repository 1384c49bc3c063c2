"""Sends the requests of one `generate` call to the servers and validates their replies.

A seed belongs to a completion, not to a server, so a request that is repeated on another server gives the same completion. Every server
is monitored while it has requests. A server that does not report the label of its weights within the limit, or samples no token for a long
time, is lost, and its requests move to other servers. This replaces a deadline per request, since completions have no fixed duration.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.base.keyed import keyed_hash
from cohort.base.text import make_printable
from cohort.engine.requests import count_left
from cohort.engine.vllm.servers import MOST_BYTES, TOKENS, WAITING, Fleet, Server, ServerLost, ServerRefused
from cohort.errors import EngineError
from cohort.types import Completion, End, NoiseKey, Request, Sampling

GENERATE = "/inference/v1/generate"
BYTES_PER_TOKEN = 512
"""Upper bound on a reply's bytes per token: its id, log-prob and formatting take some hundred bytes."""
ROUNDED_UP = 1e-3
"""How far above 0 a log-prob may be because of rounding."""
TRIES = 3
"""Attempts of a request on servers that respond."""
FIRST_POLL_S, POLL_EVERY_S = 0.2, 1.0
STALLED = 4
"""A server that still responds is lost if it samples no token for this many times the limit while it has requests."""
MOST_LOSSES = 10
"""Servers lost in a row while they complete the same prompt; then the prompt or the address is the likely cause."""
LONGEST_S = 7 * 86400.0
"""Limit of a request; monitoring of its server ends it much earlier."""


# -- requests and replies ----------------------------------------------------------------------------------------------


class BadReply(Exception):
    """A reply that a correct server of this run cannot give."""


class OtherWeights(Exception):
    """A reply sampled with weights that this run has not pushed. foreign: another trainer has pushed them."""

    def __init__(self, message: str, foreign: bool) -> None:
        super().__init__(message)
        self.foreign = foreign


def is_foreign(token: str, own: str) -> bool:
    """Whether this is the token of another trainer. The label of pushed weights is token.version; vLLM's own labels have no token."""
    return token.partition("-")[0] not in ("", own.partition("-")[0])


def find_seed(noise: NoiseKey, request: Request) -> int:
    """The seed of a completion: the same on every server, and a new one when a completion continues after a prefix."""
    start = request.position + len(request.prefix_ids)
    return keyed_hash("vllm", noise.seed, noise.stream, noise.step, request.draw, request.sample, start) >> 8


def write_request(request: Request, sampling: Sampling, noise: NoiseKey, model: str) -> dict[str, Any]:
    """The body of a request. It sets every parameter that vLLM would otherwise take from the model's generation_config."""
    sampling = sampling.for_sample(request.sample)
    parameters = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": find_seed(noise, request),
        "max_tokens": count_left(request, sampling),
        "min_tokens": 0,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    body: dict[str, Any] = {"token_ids": list(request.context_ids), "sampling_params": parameters}
    return {**body, "model": model} if model else body


@dataclass(frozen=True)
class ReplyReader:
    """Validates and reads the replies of one `generate` call."""

    token: str
    """Token in the labels of this run's weights."""
    vocabulary: int
    stop_ids: Sequence[int]
    decode: Callable[[Sequence[int]], str]

    def read(self, reply: Any, request: Request, most_tokens: int, versions: range) -> Completion:
        """The tokens sampled after the request's prefix, with their versions. Raises BadReply and OtherWeights."""
        try:
            [choice] = reply["choices"]
            ids = tuple(choice["token_ids"])
            entries, spans = choice["logprobs"]["content"], choice["weight_versions"]
            logprobs = tuple(float(entry["logprob"]) for entry in entries)
            named = [entry["token_id"] for entry in entries]
            reason = choice["finish_reason"]
            spans = [(str(span["version"]), span["start"], span["end"]) for span in spans]
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise BadReply("it is not a completion with log-probs and weight versions") from None
        if reason == "abort":
            raise BadReply("the request was aborted")
        if not ids or len(ids) > most_tokens or not all(type(id) is int and 0 <= id < self.vocabulary for id in ids):
            raise BadReply(f"its {len(ids)} token ids are not 1 to {most_tokens} ids of a vocabulary of {self.vocabulary}")
        if named != list(ids) or not all(math.isfinite(value) and value <= ROUNDED_UP for value in logprobs):
            raise BadReply("its log-probs are not one finite number per token")
        if any(id in self.stop_ids for id in ids[:-1]):
            raise BadReply("it continues after a stop token")
        end: End = "stop" if ids[-1] in self.stop_ids else "length"
        if end == "length" and len(ids) != most_tokens:
            raise BadReply(f"it ends after {len(ids)} tokens, without a stop token and before the limit of {most_tokens}")
        spanned = self.read_spans(spans, len(ids), versions)
        return Completion(ids, logprobs, end, self.decode([*request.prefix_ids, *ids]), None, spanned)

    def read_spans(self, spans: Sequence[tuple[str, Any, Any]], count: int, versions: range) -> tuple[tuple[int, int], ...]:
        """(version, tokens) of each span. Every version must be one that this run pushed, not older than the request."""
        starts, edges = [start for _, start, _ in spans], [0, *(end for _, _, end in spans)]
        numbers = all(type(edge) is int for edge in (*starts, *edges))
        if not numbers or starts != edges[:-1] or edges[-1] != count or edges != sorted(set(edges)):
            raise BadReply(f"its spans of weight versions do not cover its {count} tokens")
        found: list[tuple[int, int]] = []
        for label, start, end in spans:
            token, _, version = label.rpartition(".")
            if token != self.token or not version.isdecimal() or len(version) > 18:
                raise OtherWeights(f"its weights have the label {make_printable(label[:60])!r}", is_foreign(token, self.token))
            if int(version) not in versions:
                raise BadReply(f"version {version} sampled it; expected {versions.start} to {versions.stop - 1}")
            if found and int(version) < found[-1][0]:
                raise BadReply(f"version {version} sampled tokens after version {found[-1][0]}")
            found.append((int(version), end - start))
        return tuple(found)


# -- one call of generate ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Job:
    """One requested completion."""

    place: int
    request: Request
    body: dict[str, Any]
    most_tokens: int
    failures: int = 0
    losses: int = 0
    moved: bool = False


@dataclass
class ServerFigures:
    """Figures of one server in a call."""

    tokens: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    """Maximum number of requests in its queue."""


@dataclass
class GenerationCall:
    """One call of `generate`. Jobs are left open when no server is ready."""

    fleet: Fleet
    slots: int
    """Parallel requests per server."""
    reader: ReplyReader
    find_versions: Callable[[Server], range]
    """Versions that this server may sample with now."""
    finish: Callable[[Job, Completion], None]
    figures: dict[Server, ServerFigures] = field(default_factory=dict)
    moved: int = 0

    async def run(self, jobs: Sequence[Job]) -> None:
        self.began = time.monotonic()
        self.turns = {server: asyncio.Semaphore(self.slots) for server in self.fleet.servers}
        self.running: dict[Server, set[asyncio.Task[Any]]] = {server: set() for server in self.fleet.servers}
        tasks = [asyncio.create_task(self.complete(job)) for job in jobs]
        monitors = [asyncio.create_task(self.monitor(server)) for server in self.fleet.servers]
        done = asyncio.gather(*tasks)
        everything: list[asyncio.Future[Any]] = [done, *monitors]
        try:
            # A monitor only ends with an unexpected exception, or with a signal that arrived while it ran.
            for ended in (await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED))[0]:
                ended.result()
        finally:
            for task in (*tasks, *monitors):
                task.cancel()
            await asyncio.gather(*tasks, *monitors, done, return_exceptions=True)

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
        """Count a server that was lost during this job. Without a limit the run might never end."""
        job.losses += 1
        if job.losses == MOST_LOSSES:
            raise EngineError(
                f"servers were lost {MOST_LOSSES} times while they completed prompt {job.request.prompt.index}; the last time: {server.lost}. "
                "Check the log of that server. Each address in sampling.servers must always lead to the same, single server."
            )

    async def try_server(self, job: Job, server: Server) -> bool:
        """Whether this server gave the completion. If not, it may be tried again, or it is lost."""
        versions = self.find_versions(server)
        try:
            reply = await self.send(job, server)
            newest = self.find_versions(server)
            expected = range(versions.start, max(versions.stop, newest.stop))
            completion = self.reader.read(reply, job.request, job.most_tokens, expected)
        except OtherWeights as problem:
            if problem.foreign:
                raise EngineError(explain_other_trainer(server, str(problem))) from None
            self.mark_lost(server, f"{server.address} was restarted: {problem}")
            return False
        except ServerRefused as problem:
            if problem.status < 500:
                raise EngineError(f"a server refuses a request: {problem}") from None
            await self.count_failure(job, server, str(problem))
            return False
        except (ServerLost, BadReply) as problem:
            unusable = isinstance(problem, BadReply)
            await self.count_failure(job, server, f"{server.address}: unusable reply: {problem}" if unusable else str(problem))
            return False
        figures = self.figures.setdefault(server, ServerFigures())
        figures.tokens += len(completion.token_ids)
        figures.seconds = time.monotonic() - self.began
        self.finish(job, completion)
        return True

    async def send(self, job: Job, server: Server) -> Any:
        """The reply to one request. Raises ServerLost also if the monitor marks the server as lost."""
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

    async def count_failure(self, job: Job, server: Server, reason: str) -> None:
        """A server that still reports the label of its weights may be tried again, a few times."""
        if not server.ready:
            return
        try:
            reply = await server.call("/weight_info", limit_s=self.fleet.limit_s)
        except (ServerLost, ServerRefused):
            self.mark_lost(server, reason)
            return
        job.failures += 1
        if job.failures == TRIES:
            raise EngineError(f"a server failed {TRIES} times to complete prompt {job.request.prompt.index}: {reason}")
        label = str(reply.get("weight_version", "")) if isinstance(reply, dict) else ""
        if label.rpartition(".")[0] != self.reader.token:
            self.mark_lost(server, f"{server.address} has other weights than the pushed ones")

    def mark_lost(self, server: Server, reason: str) -> None:
        self.fleet.mark_lost(server, reason)
        self.cancel_requests(server)

    def cancel_requests(self, server: Server) -> None:
        for task in list(self.running[server]):
            task.cancel()

    async def monitor(self, server: Server) -> None:
        """Mark the server as lost when it hangs, and record the length of its queue."""
        tokens, moved_at, pause = -1.0, time.monotonic(), FIRST_POLL_S
        while True:
            await asyncio.sleep(pause)
            pause = POLL_EVERY_S
            if not server.ready:
                self.cancel_requests(server)  # another thread marked it as lost
            if not server.ready or not self.running[server] or self.fleet.pushing:
                moved_at = time.monotonic()
                continue
            try:
                await server.call("/weight_info", limit_s=self.fleet.limit_s)
                metrics = (await server.fetch("/metrics", limit_s=self.fleet.limit_s)).body
            except (ServerLost, ServerRefused) as problem:
                if not self.fleet.pushing:
                    self.mark_lost(server, str(problem))
                continue
            waiting, counted = sum(map(float, WAITING.findall(metrics))), sum(map(float, TOKENS.findall(metrics)))
            figures = self.figures.setdefault(server, ServerFigures())
            figures.waiting = max(figures.waiting, waiting)
            stalled_s = STALLED * self.fleet.limit_s
            if counted != tokens:
                tokens, moved_at = counted, time.monotonic()
            elif time.monotonic() - moved_at > stalled_s:
                self.mark_lost(server, f"{server.address} has sampled no token for {stalled_s:g} s while it had requests")


def explain_other_trainer(server: Server, found: str) -> str:
    return f"{server.address}: {found}, which this run has not pushed. Another trainer uses this server: give each trainer its own."
