"""One vLLM server over HTTP: every call has a deadline and a bound on what is read, and says in words what went wrong."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from dataclasses import dataclass, field
from typing import Any

from cohort.base.http import FAILURES, Endpoint, Response, find_addresses, send
from cohort.recipe.values import parse_address

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
