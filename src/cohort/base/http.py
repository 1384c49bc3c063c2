"""HTTP/1.1 over asyncio, as much as a trainer needs: one GET or POST on one connection, bounded in time and size.

Written by hand because no HTTP client is among the dependencies, and because what matters here is what it refuses: it follows
no redirect (the key goes to the named host alone), reads no more than a bound, and says nothing of the key in any message. Proxies
are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cohort.base.text import make_printable
from cohort.base.threads import run_with_limit

T = TypeVar("T")

MAX_LINE_BYTES = 32_768
MAX_HEADERS = 200
CONNECT_S = 5.0
"""For one address: a host may have several, of which the first is dead."""
SHOWN_CHARS = 200
HEADER_WORD = re.compile(r"[\x21-\x7e]*")
"""What a path, or a key, may consist of: anything else could end the line that it stands in."""
FAILURES = (OSError, EOFError, asyncio.LimitOverrunError, ValueError)
"""What `send` raises where there is no response, or none that may be read."""


@dataclass
class Endpoint:
    """Where requests go, and the key that this server alone is told."""

    host: str
    port: int
    path: str
    tls: bool
    key: str = field(default="", repr=False)
    max_bytes: int = 1_000_000
    """Of a response's body."""
    addresses: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, address: str, suffix: str, key_word: str, example: str) -> Endpoint:
        """`suffix`: what the path ends in, given or not; `key_word`: where a key is told instead; `example`: an address that
        would do, for messages. Raises ValueError."""
        try:
            parts = urlsplit(address)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except (ValueError, UnicodeError) as problem:
            raise ValueError(f'not an address ({problem}); it is like "{example}".') from None
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"it holds a name or password, which would stand in the recipe; use {key_word}.")
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError(f'{address!r} is not like "{example}" (http or https, no query).')
        if not HEADER_WORD.fullmatch(parts.path):
            raise ValueError(f"the path of {address!r} holds characters that an address cannot have.")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix(suffix) + suffix
        return cls(host, port or (443 if tls else 80), path, tls)

    def clean(self, text: str, length: int | None = SHOWN_CHARS) -> str:
        """Text of the server without the key. First that, then the cut: half a key is a secret too."""
        if self.key:
            text = text.replace(self.key, "[key]")
        return text if length is None else make_printable(text[:length])


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


def find_addresses(endpoint: Endpoint, limit_s: float) -> list[str]:
    """Addresses of the host. In a thread that may be left behind: a resolver has no time limit, and asyncio would wait for
    its own threads at the end."""
    look_up = functools.partial(socket.getaddrinfo, endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    try:
        found = run_with_limit(look_up, min(limit_s, 2 * CONNECT_S))
    except TimeoutError:
        raise OSError("the look-up took too long") from None
    except UnicodeError as problem:
        raise OSError(str(problem)) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@contextlib.asynccontextmanager
async def open_connection(endpoint: Endpoint) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = trusted_certificates() if endpoint.tls else None
    name = endpoint.host if context else None
    problem: Exception = OSError("the host has no address")
    for address in endpoint.addresses:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address, endpoint.port, limit=MAX_LINE_BYTES, ssl=context, server_hostname=name
                )
            break
        except TimeoutError:
            problem = OSError(f"no connection to {address} within {CONNECT_S:g} s")
        except OSError as failed:
            problem = failed
    else:
        raise problem
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # at once: a server that does not read would keep a polite close waiting


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """The certificates of this machine, read once."""
    return ssl.create_default_context()


async def post(endpoint: Endpoint, body: bytes) -> Response:
    return await send(endpoint, endpoint.path, body)


async def send(endpoint: Endpoint, path: str, body: bytes | None = None, max_bytes: int = 0) -> Response:
    """The response to one request: a POST of JSON, or a GET where there is no body. Raises one of FAILURES; how long it may take
    is the caller's to say (asyncio.timeout). max_bytes: of this response, in place of the endpoint's."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    usual = endpoint.port == (443 if endpoint.tls else 80)
    head = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        f"Host: {host}" if usual else f"Host: {host}:{endpoint.port}",
        *([] if body is None else ["Content-Type: application/json", f"Content-Length: {len(body)}"]),
        "Accept: application/json",
        "Accept-Encoding: identity",
        "User-Agent: cohort-rl",
        "Connection: close",
        *([f"Authorization: Bearer {endpoint.key}"] if endpoint.key else []),
    ]
    async with open_connection(endpoint) as (reader, writer):
        writer.write("\r\n".join([*head, "", ""]).encode("ascii") + (body or b""))
        with contextlib.suppress(ConnectionError):  # a server may refuse before it has read everything
            await writer.drain()
        status = 100
        while status < 200:
            status, headers = await read_head(reader)
        return Response(status, headers, await read_body(reader, headers, max_bytes or endpoint.max_bytes))


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    version, _, rest = (await read_line(reader)).partition(" ")
    if not version.startswith("HTTP/1.") or not re.fullmatch(r"[1-5]\d\d", rest[:3]):
        raise ValueError("the response is not HTTP")
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = await read_line(reader)
        if not line:
            return int(rest[:3]), headers
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError("the response has too many headers")


async def read_line(reader: asyncio.StreamReader) -> str:
    """Up to the limit of the stream, beyond which readuntil raises."""
    return (await reader.readuntil(b"\n")).decode("latin-1").rstrip("\r\n")


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str], max_bytes: int) -> bytes:
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ValueError("the response is compressed, which was not asked for")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await read_chunks(reader, max_bytes)
    if "content-length" in headers:
        return await reader.readexactly(read_length(headers["content-length"], 10, max_bytes))
    try:
        await reader.readexactly(max_bytes + 1)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise too_large(max_bytes)


async def read_chunks(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    body = bytearray()
    while size := read_length((await read_line(reader)).partition(";")[0].strip(), 16, max_bytes, len(body)):
        body += await reader.readexactly(size)
        if await read_line(reader):
            raise ValueError("the response has a chunk of another length than it says")
    return bytes(body)  # trailers are of no interest, and the connection is not used again


def read_length(digits: str, base: int, max_bytes: int, had: int = 0) -> int:
    if not re.fullmatch(r"[0-9a-fA-F]{1,12}", digits):
        raise ValueError("the response has a length that is no number")
    length = int(digits, base)
    if had + length > max_bytes:
        raise too_large(max_bytes)
    return length


def too_large(max_bytes: int) -> ValueError:
    return ValueError(f"the response is larger than {max_bytes} bytes")


def run_in_loop(task: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
    """The result of a coroutine, in a loop of its own; in a notebook, where this thread has one running, in another thread."""

    def run() -> T:
        caught: list[BaseException] = []

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            """A loop logs what its callbacks raise and goes on, but for KeyboardInterrupt; a signal that comes there is no less one."""
            problem = context.get("exception")
            if "handle" not in context or problem is None or isinstance(problem, Exception):
                loop.default_exception_handler(context)
                return
            caught.append(problem)
            raise KeyboardInterrupt

        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(handle)
            try:
                return runner.run(task())
            except KeyboardInterrupt:
                raise caught[0] if caught else KeyboardInterrupt from None

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    return run_with_limit(run, limit_s)
