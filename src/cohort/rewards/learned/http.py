"""HTTP/1.1 over asyncio, as much as a judge needs: one POST on one connection, bounded in time and size.

Written by hand because no HTTP client is among the dependencies, and because what matters here is what it refuses: it follows
no redirect (the key goes to the named host alone), reads no more than a bound, and says nothing of the key in any message.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cohort.base.text import printable
from cohort.base.threads import with_limit
from cohort.errors import RewardError

MAX_BODY_BYTES = 1_000_000
"""Of a response: an answer of some thousand tokens has a hundredth of that."""
MAX_LINE_BYTES = 32_768
MAX_HEADERS = 200
CONNECT_S = 5.0
"""For one address: a host may have several, of which the first is dead."""
SHOWN_CHARS = 200
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Target:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: bool
    key: str = field(repr=False)
    addresses: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, endpoint: str, api_key_env: str) -> Target:
        try:
            parts = urlsplit(endpoint)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except (ValueError, UnicodeError) as problem:
            raise RewardError(f'endpoint: not an address ({problem}); it is like "http://localhost:8000/v1".') from None
        if parts.username is not None or parts.password is not None:
            raise RewardError("endpoint: it holds a name or password, which would stand in the recipe; use api_key_env.")
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise RewardError(f'endpoint: {endpoint!r} is not like "http://localhost:8000/v1" (http or https, no query).')
        if not re.fullmatch(r"[\x21-\x7e]*", parts.path):
            raise RewardError(f"endpoint: the path of {endpoint!r} holds characters that an address cannot have.")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        return cls(host, port or (443 if tls else 80), path, tls, read_key(api_key_env))

    @property
    def shown(self) -> str:
        return f"judge at {self.host}:{self.port}"

    def clean(self, text: str, length: int | None = SHOWN_CHARS) -> str:
        """Text of the server without the key. First that, then the cut: half a key is a secret too."""
        if self.key:
            text = text.replace(self.key, "[key]")
        return text if length is None else printable(text[:length])


def read_key(variable: str) -> str:
    """The key in that environment variable. No message shows what was given: it might be the key itself."""
    if not variable:
        return ""
    if not VARIABLE.fullmatch(variable):
        raise RewardError(
            "api_key_env: it is the NAME of an environment variable, such as JUDGE_KEY, and never the key itself."
        )
    named = f"the environment variable {variable}" if variable == variable.upper() and len(variable) <= 64 else "that variable"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise RewardError(f"api_key_env: {named} is not set, or empty. Give the name of the variable that holds the key.")
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise RewardError(f"api_key_env: {named} holds characters that a key cannot have (spaces, line ends).")
    return key


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


def resolved(target: Target, limit_s: float) -> list[str]:
    """Addresses of the host. In a thread that may be left behind: a resolver has no time limit, and asyncio would wait for
    its own threads at the end."""
    look_up = functools.partial(socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM)
    try:
        found = with_limit(look_up, min(limit_s, 2 * CONNECT_S))
    except TimeoutError:
        raise OSError("the look-up took too long") from None
    except UnicodeError as problem:
        raise OSError(str(problem)) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@contextlib.asynccontextmanager
async def connection(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = trusted() if target.tls else None
    problem: Exception = OSError("the host has no address")
    for address in target.addresses:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address, target.port, limit=MAX_LINE_BYTES, ssl=context, server_hostname=target.host if context else None
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
def trusted() -> ssl.SSLContext:
    """The certificates of this machine, read once."""
    return ssl.create_default_context()


async def post(target: Target, body: bytes) -> Response:
    host = f"[{target.host}]" if ":" in target.host else target.host
    usual = target.port == (443 if target.tls else 80)
    head = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {host}" if usual else f"Host: {host}:{target.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Accept: application/json",
        "Accept-Encoding: identity",
        "User-Agent: cohort-rl",
        "Connection: close",
        *([f"Authorization: Bearer {target.key}"] if target.key else []),
    ]
    async with connection(target) as (reader, writer):
        writer.write("\r\n".join([*head, "", ""]).encode("ascii") + body)
        with contextlib.suppress(ConnectionError):  # a server may refuse before it has read everything
            await writer.drain()
        return await read_response(reader)


async def read_response(reader: asyncio.StreamReader) -> Response:
    while True:
        status, headers = await read_head(reader)
        if status >= 200:
            break
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ValueError("the response is compressed, which was not asked for")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Response(status, headers, await read_chunks(reader))
    if "content-length" in headers:
        length = whole(headers["content-length"], 10)
        return Response(status, headers, await reader.readexactly(length))
    return Response(status, headers, await read_to_end(reader))


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


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = whole((await read_line(reader)).partition(";")[0].strip(), 16)
        if not size:
            return bytes(body)  # trailers are of no interest, and the connection is not used again
        if len(body) + size > MAX_BODY_BYTES:
            raise too_large()
        body += await reader.readexactly(size)
        if await read_line(reader):
            raise ValueError("the response has a chunk of another length than it says")


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while piece := await reader.read(65_536):
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise too_large()
    return bytes(body)


def whole(digits: str, base: int) -> int:
    if not re.fullmatch(r"[0-9a-fA-F]{1,12}", digits):
        raise ValueError("the response has a length that is no number")
    length = int(digits, base)
    if length > MAX_BODY_BYTES:
        raise too_large()
    return length


def too_large() -> ValueError:
    return ValueError(f"the response is larger than {MAX_BODY_BYTES} bytes")
