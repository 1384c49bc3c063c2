"""What stands before every route: who may ask, how, and what a browser may do with the answer.

A page of a stranger that is open in the same browser can send requests here, and with a name that first leads to it and then to this
machine even read the answers. So the Host of every request must be this machine's, whatever the method; nothing but GET and HEAD is
answered; and where the server is heard by other machines, a token is asked for.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cohort.tools.dashboard.view import write_address

MAX_PATH, MAX_QUERY, MAX_WORDS = 512, 4096, 64
"""Bytes of a path and of a query, and words in one."""
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
    """An ASGI application before another one."""

    def __init__(self, app: ASGIApp, token: str = "", names: Collection[str] = ()) -> None:
        self.app = app
        self.token = token
        """"": the machine itself is the wall, and only its own addresses are answered."""
        self.names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets: there is nothing to say on one
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
        """(status, words, headers) of what is not passed on."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self.knows_host(hosts[0]):
            return 421, "This server answers to the address that it printed when it was started, and to no other name.\n", []
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Nothing can be changed here: GET and HEAD alone are answered.\n", [(b"allow", b"GET, HEAD")]
        query = scope["query_string"]
        if len(scope.get("raw_path") or b"") > MAX_PATH or len(query) > MAX_QUERY or query.count(b"&") >= MAX_WORDS:
            return 414, "The address is too long.\n", []
        return self.check_token(scope) if self.token else None

    def knows_host(self, host: str) -> bool:
        """Whether a Host header names this machine. A number cannot be made to lead elsewhere, so with a token each will do."""
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
        """Lets pass who has the cookie; whoever brings the token in the address is given it, and sent on without."""
        words = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_WORDS)
        brought = next((value for key, value in words if key == "token"), None)
        if brought is not None and is_same(brought, self.token):
            rest = write_address(scope["path"], [(key, value) for key, value in words if key != "token"])
            # One slash: two would lead to another host.
            place = "/" + rest.lstrip("/")
            cookie = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
            return 303, "", [(b"location", place.encode("ascii")), (b"set-cookie", cookie.encode("ascii"))]
        header = b"; ".join(value for name, value in scope["headers"] if name == b"cookie")
        try:
            held = SimpleCookie(header.decode("latin-1")).get(COOKIE)
        except CookieError:
            held = None
        if held is not None and is_same(held.value, self.token):
            return None
        return 401, "Open the address that `cohort dashboard` printed: it holds the token.\n", []


def is_same(given: str, token: str) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def make_token() -> str:
    return secrets.token_urlsafe(32)


def list_own_names() -> set[str]:
    """What this machine is called."""
    return {socket.gethostname(), socket.getfqdn()}
