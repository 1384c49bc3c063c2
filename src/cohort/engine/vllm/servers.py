"""vLLM servers over HTTP: one `Server`, and the `Fleet` of all servers of a run.

Every call has a deadline and a limit on the bytes read, and failures are reported as readable messages.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.base.http import FAILURES, Endpoint, Response, find_addresses, run_in_loop, send
from cohort.recipe.values import parse_address

MOST_BYTES = 4 << 20
"""Limit for responses without completions."""
ERROR_CHARS = 600
NOT_CONTACTED = "not contacted yet"
TEXT_ROUTES = ("/v1/load_lora_adapter",)
"""Routes that respond with text instead of JSON."""
RECONNECT_S = 3.0
"""Limit for a server that was lost before, so that the others do not wait longer for it."""
DYING_S = 2.0
"""Time from the death of a worker until its server stops responding; half a second was measured."""
NUMBER = rb"([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,2})?)"
WAITING = re.compile(rb"^vllm:num_requests_waiting(?:\{[^}]*\})? " + NUMBER + rb"$", re.MULTILINE)
TOKENS = re.compile(rb"^vllm:(?:generation|prompt)_tokens_total(?:\{[^}]*\})? " + NUMBER + rb"$", re.MULTILINE)


class ServerLost(Exception):
    """A server did not respond, or its response could not be read."""


class ServerRefused(Exception):
    """A server responded with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class Server:
    """A server and its state in this process."""

    address: str
    number: int
    """Its number among the servers of the run, from 1, which the metrics use as its name."""
    endpoint: Endpoint = field(init=False)
    lost: str = NOT_CONTACTED
    """Why it is not used; "" while it responds."""
    label: str = ""
    """Label of its weights in its last response."""
    pushed: tuple[str, str] | None = None
    """Label and fingerprint of the weights that this run pushed to it; None: unknown."""
    proven: bool = False
    """Whether its log-probs have been compared with the policy's."""

    def __post_init__(self) -> None:
        self.endpoint = parse_address(self.address)

    @property
    def ready(self) -> bool:
        return not self.lost and self.pushed is not None

    async def call(self, path: str, body: Any = None, limit_s: float = 30.0, max_bytes: int = MOST_BYTES) -> Any:
        """The JSON response to a POST of `body`, or to a GET. Raises ServerLost and ServerRefused."""
        raw = (await self.fetch(path, body, limit_s, max_bytes)).body
        try:
            return json.loads(raw) if raw.strip() and path not in TEXT_ROUTES else {}
        except (ValueError, RecursionError):
            raise ServerLost(f"{self.address}{path}: the response is not JSON") from None

    async def fetch(self, path: str, body: Any = None, limit_s: float = 30.0, max_bytes: int = MOST_BYTES) -> Response:
        data = None if body is None else json.dumps(body).encode()
        try:
            if not self.endpoint.addresses:
                self.endpoint.addresses = find_addresses(self.endpoint, limit_s)
            async with asyncio.timeout(limit_s):
                response = await send(self.endpoint, path, data, max_bytes)
        except TimeoutError:
            raise ServerLost(f"{self.address}{path}: no response within {limit_s:g} s") from None
        except FAILURES as problem:
            self.endpoint.addresses = []  # a server that comes back may have moved
            refused = isinstance(problem, ConnectionRefusedError)
            failure = "connection refused, nothing is listening there" if refused else f"{type(problem).__name__}: {problem}"
            raise ServerLost(f"{self.address}{path}: {self.endpoint.clean(failure)}") from None
        if response.status != 200:
            error = self.endpoint.clean(read_error(response.body), ERROR_CHARS)
            raise ServerRefused(
                f"{self.address}{path}: status {response.status}{f': {error}' if error else ''}", response.status
            )
        return response


def read_error(body: bytes) -> str:
    """The error message in a response, in any of the known formats."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        text = body[:ERROR_CHARS].decode("utf-8", "replace").strip()
        if not text.startswith("<"):
            return text
        title = re.search(r"<title[^>]*>([^<]*)</title", text, re.IGNORECASE)
        about = f" ({' '.join(title[1].split())})" if title else ""
        return f"a web page{about}, so another program listens there, not a vLLM server"
    for key in ("error", "detail", "message"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return found if isinstance(found, str) else json.dumps(found)


Replies = Mapping[Server, Any]
"""The reply of each server: JSON, or a ServerLost or ServerRefused."""


class Fleet:
    """All servers of a run. Several threads may use it; each state of a server is written in one assignment."""

    def __init__(self, addresses: Sequence[str], limit_s: float, say: Callable[[str], None]):
        self.servers = [Server(address, number) for number, address in enumerate(addresses, start=1)]
        self.limit_s, self.say = limit_s, say
        self.pushing = False
        """Whether weights are being pushed: servers are then paused and may not respond."""
        self.losses = 0

    @property
    def ready(self) -> list[Server]:
        return [server for server in self.servers if server.ready]

    def choose(self, draw: int) -> Server | None:
        """The server for this draw, the same for all completions of a group.

        All servers get the same number of groups of a step. While all are ready, the choice does not depend on timing.
        """
        first = self.servers[draw % len(self.servers)]
        if first.ready:
            return first
        ready = self.ready
        return ready[draw % len(ready)] if ready else None

    def mark_lost(self, server: Server, reason: str) -> None:
        """Stop using a server until the weights have been pushed to it again."""
        before, server.lost, server.pushed = server.lost, reason, None
        if before == NOT_CONTACTED:
            self.say(f"warning: a server is not reachable: {reason}")
        elif not before:
            self.losses += 1
            left = len(self.ready)
            rest = f"The other {left} take over its requests." if left else "None is left."
            self.say(f"warning: lost a server: {reason}. {rest}")

    def call_all(
        self, servers: Sequence[Server], path: str, body: Any = None, limit_s: float = 0.0, bodies: Replies | None = None
    ) -> Replies:
        """Make the same call to several servers in parallel. bodies: a separate body for each server."""

        async def call(server: Server) -> Any:
            limit = min(RECONNECT_S, self.limit_s) if server.lost and not limit_s else limit_s or self.limit_s
            try:
                return await server.call(path, body if bodies is None else bodies[server], limit)
            except (ServerLost, ServerRefused) as problem:
                return problem

        async def call_each() -> list[Any]:
            return await asyncio.gather(*map(call, servers))

        longest = (limit_s or self.limit_s) + RECONNECT_S
        return dict(zip(servers, run_in_loop(call_each, 2 * longest), strict=True))

    def poll(self) -> list[Server]:
        """Ask every server, including lost ones, for the label of its weights; returns the servers that respond.

        /health would not do: a server whose workers hang still reports itself as healthy.
        """
        for server, reply in self.call_all(self.servers, "/weight_info").items():
            if isinstance(reply, Exception):
                lacks_routes = isinstance(reply, ServerRefused) and reply.status == 404
                fix = "; it has no routes for weights: start it with `cohort serve`, or with VLLM_SERVER_DEV_MODE=1"
                self.mark_lost(server, f"{reply}{fix if lacks_routes else ''}")
                continue
            label = str(reply.get("weight_version", "")) if isinstance(reply, dict) else ""
            if server.lost and server.label:
                self.say(f"{server.address} responds again; it gets the weights before it is used")
            server.lost, server.label = "", label
        return [server for server in self.servers if not server.lost]

    def poll_after_refusal(self) -> list[Server]:
        """Wait a moment, then poll: a dying server first responds with errors and only then not at all."""
        time.sleep(DYING_S)
        return self.poll()

    def read_metrics(self, server: Server) -> bytes:
        """Its metrics in Prometheus format; b"" if it does not serve them. Raises ServerLost."""
        try:
            return run_in_loop(lambda: server.fetch("/metrics", limit_s=self.limit_s), 2 * self.limit_s).body
        except ServerRefused as problem:
            if problem.status >= 500:
                raise ServerLost(str(problem)) from None
            return b""
