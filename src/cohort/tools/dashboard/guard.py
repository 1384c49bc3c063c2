"""Checks every request before the routes see it, and sets the security headers of every response.

Another website open in the same browser can send requests here, and through DNS rebinding even read the responses. So the Host header must
name this machine, only GET and HEAD are allowed, and a server that other machines can reach requires a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.tools.dashboard.view import write_address

MAX_PATH, MAX_QUERY, MAX_FIELDS = 512, 4096, 64
"""Bytes of a path, bytes of a query, and fields in a query."""
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
COOKIE = "cohort_token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Guard:
    """ASGI middleware that refuses invalid requests."""

    def __init__(self, app: ASGIApp, token: str = "", names: Collection[str] = ()) -> None:
        self.app = app
        self.token = token
        """Required from other machines; with "" only loopback addresses are served."""
        self.names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = [*HEADERS, (b"cache-control", b"no-store")]
                message = {**message, "headers": [*message["headers"], *(one for one in more if one[0] not in given)]}
            await send(message)

        refusal = self.find_refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send_guarded)
        else:
            status, text, headers = refusal
            body = b"" if scope["method"] == "HEAD" else text.encode()
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *headers]
            await send_guarded({"type": "http.response.start", "status": status, "headers": headers})
            await send_guarded({"type": "http.response.body", "body": body})

    def find_refusal(self, scope: Scope) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """(status, message, headers) of a refused request; None if it is allowed."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self.is_own_host(hosts[0]):
            return 421, "Wrong host name. Open the address that cohort dashboard printed.\n", []
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "The dashboard is read-only: only GET and HEAD are allowed.\n", [(b"allow", b"GET, HEAD")]
        query = scope["query_string"]
        if len(scope.get("raw_path") or b"") > MAX_PATH or len(query) > MAX_QUERY or query.count(b"&") >= MAX_FIELDS:
            return 414, "The address is too long.\n", []
        return self.check_token(scope) if self.token else None

    def is_own_host(self, host: str) -> bool:
        """Whether a Host header names this machine. With a token any IP address is accepted, because DNS cannot redirect one."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        if host.partition(":")[0].lower() in self.names:
            return True
        try:
            address = ipaddress.ip_address(found[1] or found[2])
        except ValueError:
            return False
        return bool(self.token) or address.is_loopback

    def check_token(self, scope: Scope) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """Accepts the cookie. A request with the token in the address gets the cookie and a redirect to the same address without the token."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        given = next((value for key, value in query if key == "token"), None)
        if given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            rest = write_address(scope["path"], [(key, value) for key, value in query if key != "token"])
            # A single slash, because two would redirect to another host.
            place = "/" + rest.lstrip("/")
            cookie = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
            return 303, "", [(b"location", place.encode("ascii")), (b"set-cookie", cookie.encode("ascii"))]
        header = b"; ".join(value for name, value in scope["headers"] if name == b"cookie")
        try:
            held = SimpleCookie(header.decode("latin-1")).get(COOKIE)
        except CookieError:
            held = None
        if held is not None and hmac.compare_digest(held.value.encode("utf-8", "replace"), self.token.encode()):
            return None
        return 401, "Open the address that cohort dashboard printed: it contains the token.\n", []
