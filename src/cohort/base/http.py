"""A minimal HTTP/1.1 client over asyncio: one GET or POST per connection, with limits on time and size.

Written by hand because no dependency is an HTTP client, and because it must be strict: it follows no redirects (the key goes only to
the named host), reads at most a given number of bytes, and never shows the key in a message. Proxies are not used.
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
"""Per address: the first address of a host may not answer."""
SHOWN_CHARS = 200
HEADER_WORD = re.compile(r"[\x21-\x7e]*")
"""Valid characters of a path or a key; others could end the header line."""
FAILURES = (OSError, EOFError, asyncio.LimitOverrunError, ValueError)
"""Exceptions of `send` if there is no response, or an unacceptable one."""


@dataclass
class Endpoint:
    """The address of a server, and the key that is sent only to it."""

    host: str
    port: int
    path: str
    tls: bool
    key: str = field(default="", repr=False)
    max_bytes: int = 1_000_000
    """Limit for the body of a response."""
    addresses: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, address: str, suffix: str, key_word: str, example: str) -> Endpoint:
        """Parse an address. `suffix`: appended to the path if missing; `key_word`: where a key belongs instead; `example`: a valid
        address for messages. Raises ValueError."""
        try:
            parts = urlsplit(address)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except (ValueError, UnicodeError) as problem:
            raise ValueError(f'not an address ({problem}); write one like "{example}".') from None
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"it contains a name or password, which would be visible in the recipe; use {key_word}.")
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError(f'{address!r} is not like "{example}" (http or https, no query).')
        if not HEADER_WORD.fullmatch(parts.path):
            raise ValueError(f"the path of {address!r} has invalid characters.")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix(suffix) + suffix
        return cls(host, port or (443 if tls else 80), path, tls)

    def clean(self, text: str, length: int | None = SHOWN_CHARS) -> str:
        """Text from the server without the key. Redact before truncating, or part of the key could leak."""
        if self.key:
            text = text.replace(self.key, "[key]")
        return text if length is None else make_printable(text[:length])


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


def find_addresses(endpoint: Endpoint, limit_s: float) -> list[str]:
    """The addresses of the host. Runs in a thread that can be abandoned: a resolver has no time limit, and asyncio would wait for
    its own threads at exit."""
    look_up = functools.partial(socket.getaddrinfo, endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    try:
        found = run_with_limit(look_up, min(limit_s, 2 * CONNECT_S))
    except TimeoutError:
        raise OSError("the look-up timed out") from None
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
        writer.transport.abort()  # a server that does not read would block a graceful close


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """The trusted certificates of this machine, loaded once."""
    return ssl.create_default_context()


async def post(endpoint: Endpoint, body: bytes) -> Response:
    return await send(endpoint, endpoint.path, body)


async def send(endpoint: Endpoint, path: str, body: bytes | None = None, max_bytes: int = 0) -> Response:
    """Send one request, a POST of JSON or a GET if there is no body, and return the response. Raises one of FAILURES. The caller sets
    the time limit (asyncio.timeout). max_bytes: limit for this response instead of the endpoint's."""
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
        with contextlib.suppress(ConnectionError):  # a server may answer before it has read everything
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
    """The next line; readuntil raises beyond the limit of the stream."""
    return (await reader.readuntil(b"\n")).decode("latin-1").rstrip("\r\n")


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str], max_bytes: int) -> bytes:
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ValueError("the response is compressed, which was not requested")
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
            raise ValueError("a chunk of the response does not have its stated length")
    return bytes(body)  # trailers are ignored, and the connection is closed


def read_length(digits: str, base: int, max_bytes: int, had: int = 0) -> int:
    if not re.fullmatch(r"[0-9a-fA-F]{1,12}", digits):
        raise ValueError("the length of the response is not a number")
    length = int(digits, base)
    if had + length > max_bytes:
        raise too_large(max_bytes)
    return length


def too_large(max_bytes: int) -> ValueError:
    return ValueError(f"the response is larger than {max_bytes} bytes")


def run_in_loop(task: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
    """The result of a coroutine in a new event loop; in another thread if this one already runs a loop, as in notebooks."""

    def run() -> T:
        caught: list[BaseException] = []

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            """Event loops log exceptions of callbacks and continue, except for KeyboardInterrupt; an interrupt must not be lost."""
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
