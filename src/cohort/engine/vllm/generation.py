"""Sends the requests of one `generate` call to the servers, and validates their replies.

A seed belongs to a completion, not to a server, so a request that is repeated on another server gives the same completion. Every server
is monitored while it has requests. A server that does not report its weight label within the limit, or samples no token for a long time,
is lost, and its requests move to other servers. This takes the place of a deadline per request, whose length is not known beforehand.
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
from cohort.engine.vllm.servers import MOST_BYTES, TOKENS, WAITING, Fleet, Server, ServerLost, ServerRefused
from cohort.errors import EngineError
from cohort.types import Completion, End, NoiseKey, Request, Sampling

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


# -- requests and answers ---------------------------------------------------------------------------------------------


GENERATE = "/inference/v1/generate"
BYTES_PER_TOKEN = 512
"""Of an answer: a token is its id, its log-prob and what surrounds them, some hundred bytes."""
ROUNDED_UP = 1e-3
"""How far above 0 a log-prob may be rounded."""


class BadAnswer(Exception):
    """An answer that no server of this run gives."""


class OtherWeights(Exception):
    """An answer sampled by weights that this run has not pushed. `foreign`: another trainer has."""

    def __init__(self, said: str, foreign: bool) -> None:
        super().__init__(said)
        self.foreign = foreign


def write_label(token: str, version: int) -> str:
    """The name of pushed weights on a server: whose they are, and of which version."""
    return f"{token}.{version}"


def is_foreign(token: str, own: str) -> bool:
    """Whether this is the token of another trainer; a label that vLLM itself gives has none."""
    return token.partition("-")[0] not in ("", own.partition("-")[0])


def find_seed(noise: NoiseKey, request: Request) -> int:
    """One for each completion: the same on any server, and another where a completion goes on behind a prefix."""
    began = request.position + len(request.prefix_ids)
    return keyed_hash("vllm", noise.seed, noise.stream, noise.step, request.draw, request.sample, began) >> 8


def write_request(request: Request, sampling: Sampling, noise: NoiseKey, model: str) -> dict[str, Any]:
    """Every parameter that would else be filled in from the model's generation_config is stated."""
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
        "max_tokens": sampling.max_completion_tokens - len(request.prefix_ids),
        "min_tokens": 0,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    body: dict[str, Any] = {"token_ids": list(request.context_ids), "sampling_params": parameters}
    return {**body, "model": model} if model else body


@dataclass(frozen=True)
class AnswerReader:
    """Reads answers of one call of `generate`."""

    token: str
    """Of the labels of this run's weights."""
    vocabulary: int
    stop_ids: Sequence[int]
    decode: Callable[[Sequence[int]], str]

    def read(self, answer: Any, request: Request, most_tokens: int, versions: range) -> Completion:
        """What was sampled behind the request's prefix, by which versions. Raises BadAnswer and OtherWeights."""
        try:
            [choice] = answer["choices"]
            ids = tuple(choice["token_ids"])
            entries, spans = choice["logprobs"]["content"], choice["weight_versions"]
            logprobs = tuple(float(entry["logprob"]) for entry in entries)
            named = [entry["token_id"] for entry in entries]
            reason = choice["finish_reason"]
            spans = [(str(span["version"]), span["start"], span["end"]) for span in spans]
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise BadAnswer("it is not a completion with log-probs and weight versions") from None
        if reason == "abort":
            raise BadAnswer("somebody aborted it")
        if not ids or len(ids) > most_tokens or not all(type(id) is int and 0 <= id < self.vocabulary for id in ids):
            raise BadAnswer(f"its {len(ids)} token ids are not 1 to {most_tokens} of a vocabulary of {self.vocabulary}")
        if named != list(ids) or not all(math.isfinite(value) and value <= ROUNDED_UP for value in logprobs):
            raise BadAnswer("its log-probs are not one finite number for each token")
        if any(id in self.stop_ids for id in ids[:-1]):
            raise BadAnswer("it goes on behind a stop token")
        end: End = "stop" if ids[-1] in self.stop_ids else "length"
        if end == "length" and len(ids) != most_tokens:
            raise BadAnswer(f"it ends after {len(ids)} tokens, without a stop token and short of {most_tokens}")
        spanned = self.read_spans(spans, len(ids), versions)
        return Completion(ids, logprobs, end, self.decode([*request.prefix_ids, *ids]), None, spanned)

    def read_spans(self, spans: Sequence[tuple[str, Any, Any]], count: int, versions: range) -> tuple[tuple[int, int], ...]:
        """(version, tokens) of each span; all of them by weights that this run pushed, and none older than when it was asked."""
        starts, edges = [start for _, start, _ in spans], [0, *(end for _, _, end in spans)]
        numbers = all(type(edge) is int for edge in (*starts, *edges))
        if not numbers or starts != edges[:-1] or edges[-1] != count or edges != sorted(set(edges)):
            raise BadAnswer(f"its spans of weight versions do not cover its {count} tokens")
        found: list[tuple[int, int]] = []
        for label, start, end in spans:
            token, _, version = label.rpartition(".")
            if token != self.token or not version.isdecimal() or len(version) > 18:
                raise OtherWeights(
                    f"it samples with weights labelled {make_printable(label[:60])!r}", is_foreign(token, self.token)
                )
            if int(version) not in versions:
                raise BadAnswer(f"version {version} sampled it, and it was asked of {versions.start} to {versions.stop - 1}")
            if found and int(version) < found[-1][0]:
                raise BadAnswer(f"version {version} sampled it after version {found[-1][0]}")
            found.append((int(version), end - start))
        return tuple(found)
