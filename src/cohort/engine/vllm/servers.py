"""vLLM servers over HTTP: one `Server`, and the `Fleet` of all servers of a run.

Every call has a deadline and a limit on the bytes read, and failures are reported as readable messages.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.base.http import FAILURES, Endpoint, Response, find_addresses, run_in_loop, send
from cohort.recipe.servers import parse_address

MOST_BYTES = 4 << 20
"""Of an answer that holds no completion."""


UNASKED = "nobody has asked it yet"

WORDS = ("/v1/load_lora_adapter",)
"""Routes that answer in words, for people."""


class ServerLost(Exception):
    """A server gave no answer, or none that could be read."""


class ServerRefused(Exception):
    """A server answered that it will not, or cannot."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


@dataclass(eq=False)
class Server:
    """A server, and what this process knows of it."""

    address: str
    number: int
    """Its place among the servers of the run, from 1: its name in the metrics."""
    endpoint: Endpoint = field(init=False)
    lost: str = UNASKED
    """Why it is not used; "": it answers."""
    seen: str = ""
    """The label that it gave for its weights when it was last asked."""
    given: tuple[str, str] | None = None
    """Label and fingerprint of the weights that it was given whole by this run; None: not known to have any."""
    proven: bool = False
    """Whether its answers have been compared with the policy's own."""

    def __post_init__(self) -> None:
        self.endpoint = parse_address(self.address)
        if is_number(self.endpoint.host):
            self.endpoint.addresses = [self.endpoint.host]

    @property
    def ready(self) -> bool:
        return not self.lost and self.given is not None

    async def call(self, path: str, body: Any = None, limit_s: float = 30.0, max_bytes: int = MOST_BYTES) -> Any:
        """What it answers, read as JSON: to a POST of `body`, or to a GET. Raises ServerLost and ServerRefused."""
        raw = (await self.fetch(path, body, limit_s, max_bytes)).body
        try:
            return json.loads(raw) if raw.strip() and path not in WORDS else {}
        except (ValueError, RecursionError):
            raise ServerLost(f"{self.address}{path}: the answer is not JSON") from None

    async def fetch(self, path: str, body: Any = None, limit_s: float = 30.0, max_bytes: int = MOST_BYTES) -> Response:
        data = None if body is None else json.dumps(body).encode()
        try:
            if not self.endpoint.addresses:
                self.endpoint.addresses = find_addresses(self.endpoint, limit_s)
            async with asyncio.timeout(limit_s):
                response = await send(self.endpoint, path, data, max_bytes)
        except TimeoutError:
            raise ServerLost(f"{self.address}{path}: no answer within {limit_s:g} s") from None
        except FAILURES as problem:
            if not is_number(self.endpoint.host):
                self.endpoint.addresses = []  # a server that comes back may have moved
            raise ServerLost(f"{self.address}{path}: {self.endpoint.clean(describe_failure(problem))}") from None
        if response.status != 200:
            said = self.endpoint.clean(read_error(response.body), SAID_CHARS)
            raise ServerRefused(f"{self.address}{path}: status {response.status}{f': {said}' if said else ''}", response.status)
        return response


SAID_CHARS = 600


def is_number(host: str) -> bool:
    """Whether a host is named by its address, so that nobody needs to be asked for it."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def describe_failure(problem: Exception) -> str:
    if isinstance(problem, ConnectionRefusedError):
        return "nothing listens there"
    return f"{type(problem).__name__}: {problem}"


def read_error(body: bytes) -> str:
    """What a server says in its refusal, in whatever form; "" where it says nothing that can be read."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body[:SAID_CHARS].decode("utf-8", "replace")
    for key in ("error", "detail", "message"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return found if isinstance(found, str) else json.dumps(found)


LOOK_S = 3.0
"""For a server that was lost before: the others do not wait longer for it."""
DYING_S = 2.0
"""From the death of a worker until its server is silent; half a second where it was measured."""
NUMBER = rb"([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,2})?)"
WAITING = re.compile(rb"^vllm:num_requests_waiting(?:\{[^}]*\})? " + NUMBER + rb"$", re.MULTILINE)
TOKENS = re.compile(rb"^vllm:(?:generation|prompt)_tokens_total(?:\{[^}]*\})? " + NUMBER + rb"$", re.MULTILINE)
Said = Mapping[Server, Any]
"""What each server answered: JSON, or a ServerLost or ServerRefused."""


class Fleet:
    """Several threads may use it: what they share are words about servers, each written at once."""

    def __init__(self, addresses: Sequence[str], limit_s: float, say: Callable[[str], None]):
        self.servers = [Server(address, number) for number, address in enumerate(addresses, start=1)]
        self.limit_s, self.say = limit_s, say
        self.pushing = False
        """Whether weights are on their way: servers are paused then, and silent for a reason."""
        self.losses = 0

    @property
    def ready(self) -> list[Server]:
        return [server for server in self.servers if server.ready]

    @property
    def all_lost(self) -> bool:
        return all(server.lost for server in self.servers)

    def choose(self, draw: int) -> Server | None:
        """Who completes this draw: a group shares its prompt and stays on one server, and all have equally many groups of a step, in
        evaluation nearly so. Which server it is does not depend on timing while all are there."""
        first = self.servers[draw % len(self.servers)]
        if first.ready:
            return first
        ready = self.ready
        return ready[draw % len(ready)] if ready else None

    def lose(self, server: Server, why: str) -> None:
        """It is not used any more until it has been given weights again."""
        known, server.lost, server.given = server.lost, why, None
        if known == UNASKED:
            self.say(f"warning: a server is not there: {why}")
        elif not known:
            self.losses += 1
            left = len(self.ready)
            self.say(f"warning: lost a server: {why}. {f'Its work goes to the {left} others.' if left else 'None is left.'}")

    def call_all(
        self, servers: Sequence[Server], path: str, body: Any = None, limit_s: float = 0.0, bodies: Said | None = None
    ) -> Said:
        """The same call to several servers side by side; bodies: where each is told something else."""

        async def ask(server: Server) -> Any:
            lasts = min(LOOK_S, self.limit_s) if server.lost and not limit_s else limit_s or self.limit_s
            try:
                return await server.call(path, body if bodies is None else bodies[server], lasts)
            except (ServerLost, ServerRefused) as problem:
                return problem

        async def ask_each() -> list[Any]:
            return await asyncio.gather(*map(ask, servers))

        longest = (limit_s or self.limit_s) + LOOK_S
        return dict(zip(servers, run_in_loop(ask_each, 2 * longest), strict=True))

    def look(self) -> list[Server]:
        """Ask every server for the label of its weights: those that answer, however long they were away.

        Not for its health: a server of which the workers hang is healthy to the last.
        """
        for server, said in self.call_all(self.servers, "/weight_info").items():
            if isinstance(said, Exception):
                self.lose(server, explain_look(said))
                continue
            label = str(said.get("weight_version", "")) if isinstance(said, dict) else ""
            if server.lost and server.seen:
                self.say(f"{server.address} answers again; it is given the weights before it is used")
            server.lost, server.seen = "", label
        return [server for server in self.servers if not server.lost]

    def read_metrics(self, server: Server) -> bytes:
        """What it counts, in the form of Prometheus; nothing where it has no such route. Raises ServerLost."""
        try:
            return run_in_loop(lambda: server.fetch("/metrics", limit_s=self.limit_s), 2 * self.limit_s).body
        except ServerRefused as problem:
            if problem.status >= 500:
                raise ServerLost(str(problem)) from None
            return b""

    def look_again(self) -> list[Server]:
        """A moment after something was refused: a server that dies answers that it cannot, and only then no more."""
        self.wait(DYING_S)
        return self.look()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def explain_look(problem: Exception) -> str:
    if isinstance(problem, ServerRefused) and problem.status == 404:
        return f"{problem}; it lacks the routes of weights: start it with `cohort serve`, or with VLLM_SERVER_DEV_MODE=1"
    return str(problem)
