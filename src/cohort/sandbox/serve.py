"""The far end of remote.py: `python -m cohort.sandbox.serve [--host 127.0.0.1] [--port 8088] [--runs N]`.

Runs programs in the jail of its machine for whoever may reach it. It listens on this machine alone unless told otherwise,
and elsewhere only with a token (COHORT_SANDBOX_TOKEN, or a file that COHORT_SANDBOX_TOKEN_FILE names). Nothing of a request
but its head is looked at before the request has a slot, and no more than a small body kept, so that no number of requests
costs more than the slots do.
"""

from __future__ import annotations

import argparse
import dataclasses
import hmac
import ipaddress
import json
import os
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cohort.base.processes import begin_process
from cohort.sandbox.limits import FLOOD_BYTES, JailUnavailable, Limits
from cohort.sandbox.program import run_calls, run_checks, run_script
from cohort.sandbox.remote import FILE_VARIABLE, MAX_BODY_BYTES, TOKEN_VARIABLE, read_token
from cohort.sandbox.results import Call, CallsResult, ChecksResult, Run
from cohort.sandbox.tiers import find_tier
from cohort.sandbox.values import rebuild, tag_value

CEILING = Limits(cpu_s=120.0, wall_s=120.0, memory_mb=4096, output_kb=FLOOD_BYTES // 1024)
"""The most that a client may ask for, field by field, unless the command line says otherwise."""
BODY_LIMIT_S = 30.0
"""For all of a request's body: it is read in a slot, which a client that sends a byte now and then must not keep."""
SMALL_BODY_BYTES = 1 << 16
"""A body of at most so much is waited for without a slot: a client that stalls in the middle of an ordinary one keeps nobody."""
JOBS: dict[str, dict[str, type]] = {
    "calls": {"calls": list},
    "script": {"stdin": str},
    "checks": {"checks": list, "proxies": list, "setup": str},
}
"""What each job has beside its `program`, `limits` and `packages`."""
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What a request that makes no sense raises, somewhere."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], runs: int = 0, ceiling: Limits = CEILING, names: Sequence[str] = ()) -> None:
        self.token = read_token()
        if not self.token and not is_local(address[0]):
            raise ValueError(
                f"--host {address[0] or '(empty)'}: others can reach this address, so a token is needed. Set {TOKEN_VARIABLE} to a long "
                f"random word, or {FILE_VARIABLE} to a file that holds it, here and for the trainer; or listen on 127.0.0.1."
            )
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)
        self.names = {name.lower() for name in (*LOCAL_NAMES, address[0], socket.gethostname(), *names)}
        """What a request may call this server by; beside them the address that it came to."""
        self.ceiling = ceiling
        self.slots = threading.BoundedSemaphore(runs or os.cpu_count() or 1)
        """Runs at once: more would only make each of them slower."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, or is too slow, is nobody's fault."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 60
    server_version, sys_version = "cohort", ""

    def do_POST(self) -> None:
        if refusal := self.find_refusal():
            self.send_answer(*refusal)
            return
        try:
            body = self.read_body() if int(self.headers["Content-Length"]) <= SMALL_BODY_BYTES else b""
            with self.server.slots:
                document = json.loads(body or self.read_body())
                self.check_connection()
                result = run_job(document, self.server.ceiling)
            self.send_answer(200, result)  # without a slot: a client may take its time to read
        except (ConnectionError, TimeoutError):
            raise
        except UNREADABLE as problem:
            self.send_answer(400, {"error": f"{type(problem).__name__}: {problem}"})
        except (JailUnavailable, OSError) as problem:
            self.send_answer(503, {"error": str(problem)})

    def find_refusal(self) -> tuple[int, dict[str, Any]] | None:
        """What is wrong with the head of the request, if anything."""
        given = self.headers.get("Authorization", "")
        if self.server.token and not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return 401, {"error": f"a bearer token is needed ({TOKEN_VARIABLE})"}
        # A page in a browser of this machine can reach it too, under a name of the page's own or with a request of another site.
        name = read_host_name(self.headers.get_all("Host", []))
        if name not in self.server.names and name != self.connection.getsockname()[0]:
            return 421, {
                "error": f"Host: {name[:100]!r} is no name of this server; if it is, start it with --name {name[:100]}"
            }
        if "Origin" in self.headers:
            return 403, {"error": "Origin: requests of web pages are not answered"}
        if repeated := [name for name in ("Authorization", "Content-Length") if len(self.headers.get_all(name, [])) > 1]:
            return 400, {"error": f"{repeated[0]}: given more than once"}
        if not self.path.startswith("/") or not self.path.rstrip("/").endswith("/run"):
            return 404, {"error": "POST /run"}
        if "Transfer-Encoding" in self.headers:
            return 411, {"error": "Transfer-Encoding: not understood here; send the body in one piece, with its Content-Length"}
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdecimal() and len(size) < 12 and 0 < int(size) <= MAX_BODY_BYTES):
            return 413, {"error": f"Content-Length: from 1 to {MAX_BODY_BYTES} bytes are expected, got {size[:20]!r}"}
        return None

    def read_body(self) -> bytes:
        """All of it within one time limit, which a timeout of the socket, begun anew with every byte, is not."""
        body, size, deadline = bytearray(), int(self.headers["Content-Length"]), time.monotonic() + BODY_LIMIT_S
        while len(body) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the body did not come within {BODY_LIMIT_S:g} s")
            self.connection.settimeout(left)
            piece = self.rfile.read1(min(size - len(body), 1 << 16))
            if not piece:
                raise ConnectionAbortedError("hung up")
            body += piece
        self.connection.settimeout(self.timeout)
        return bytes(body)

    def check_connection(self) -> None:
        """Raises where the client has hung up while it waited: nobody would read the answer, and others wait for the slot."""
        self.connection.settimeout(0)
        try:
            if not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError("hung up")
        except BlockingIOError:  # nothing has come, as it should be
            pass
        finally:
            self.connection.settimeout(self.timeout)

    def send_answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        if len(body) > MAX_BODY_BYTES:  # what a program has returned can be longer when it is written again
            body = json.dumps(
                {**document, "end": "output", "detail": "an answer too large to be sent", **drop_values(document)}
            ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a reward asks thousands of times."""


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens there. No name at all stands for every address."""
    found = socket.getaddrinfo(host or "0.0.0.0", 0, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def read_host_name(given: Sequence[str]) -> str:
    """The name in a request's one Host line, without its port; "" where that cannot be read."""
    if len(given) != 1 or any(sign in given[0] for sign in "@/?#\\"):
        return ""
    try:
        return urllib.parse.urlsplit(f"//{given[0]}").hostname or ""
    except ValueError:
        return ""


def drop_values(document: dict[str, Any]) -> dict[str, Any]:
    """The document's long fields, without what is long about them."""
    short: dict[str, Any] = {"stdout": "", "stderr": "", "truncated": True}
    if "replies" in document:
        short["replies"] = [None] * len(document["replies"])
    if "checks" in document:
        short["checks"] = [{"passed": False, "detail": ""}] * len(document["checks"])
    return short


def check_job(document: Any) -> None:
    """Raises where a request is not made of exactly the fields of its job, each of its own type."""
    if not isinstance(document, dict):
        raise ValueError(f"the request must be a JSON object, got {type(document).__name__}")
    job = document.get("job")
    if not isinstance(job, str) or job not in JOBS:
        raise ValueError(f"job: {', '.join(JOBS)} are the jobs here, got {job!r}")
    kinds = {"job": str, "program": str, "limits": dict, "packages": bool, **JOBS[job]}
    if problems := [f"{name}: missing" for name in kinds if name not in document and name != "packages"]:
        raise ValueError("; ".join(problems))
    for name, value in document.items():
        if name not in kinds:
            raise ValueError(f"{name[:100]}: no field of the job {job!r}; its fields are {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise ValueError(f"{name}: {kinds[name].__name__} is expected, got {type(value).__name__}")
    if unknown := sorted(set(document["limits"]) - {field.name for field in dataclasses.fields(Limits)}):
        raise ValueError(f"limits: {unknown[0][:100]} is no limit")
    texts = [*document.get("checks", ()), *document.get("proxies", ())]
    texts += [call[0] if isinstance(call, list) and len(call) == 3 else None for call in document.get("calls", ())]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("checks and proxies: texts are expected; calls: lists of a name, arguments and keyword arguments")


def run_job(document: dict[str, Any], ceiling: Limits = CEILING) -> dict[str, Any]:
    check_job(document)
    limits, program = Limits(**document["limits"]), document["program"]
    for name, most in dataclasses.asdict(ceiling).items():
        if getattr(limits, name) > most:
            raise ValueError(f"limits.{name}: at most {most:g} here, got {getattr(limits, name):g}")
    fields = {name: document[name] for name in JOBS[document["job"]]}
    if document["job"] == "calls":
        fields["calls"] = [Call(name, rebuild(args), rebuild(kwargs)) for name, args, kwargs in document["calls"]]
    runs: dict[str, Callable[..., Run]] = {"calls": run_calls, "script": run_script, "checks": run_checks}
    result = runs[document["job"]](program, **fields, limits=limits, packages=document.get("packages", False))
    answer = dict(vars(result))
    if isinstance(result, CallsResult):
        answer["replies"] = [reply and {**vars(reply), "value": tag_value(reply.value)} for reply in result.replies]
    if isinstance(result, ChecksResult):
        answer["checks"] = [vars(check) for check in result.checks]
    return answer


def main(words: Sequence[str] | None = None) -> None:
    begin_process()
    parser = argparse.ArgumentParser(
        prog="python -m cohort.sandbox.serve", description="Run programs in the jail of this machine for trainers elsewhere."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; any but this machine's own needs a token")
    parser.add_argument("--port", type=int, default=8088)
    parser.add_argument("--name", action="append", default=[], help="another name that trainers reach it by; may be repeated")
    parser.add_argument("--runs", type=int, default=0, help="programs at once; 0: one per core")
    for field in dataclasses.fields(Limits):
        if field.name != "cpu_s":  # the clock on the wall is the longest that one core can work
            option, default = f"--max-{field.name.replace('_', '-')}", getattr(CEILING, field.name)
            parser.add_argument(
                option, type=type(default), default=default, help=f"the most that a client may ask for: {default:g}"
            )
    options = parser.parse_args(words)
    if not 0 <= options.port < 1 << 16:
        parser.error(f"--port: a number from 0 (any that is free) to 65535 is expected, got {options.port}")
    if options.runs < 0:
        parser.error(f"--runs: 1 or more is expected, or 0 for one per core, got {options.runs}")
    try:
        ceiling = {
            field.name: getattr(options, f"max_{field.name}", options.max_wall_s) for field in dataclasses.fields(Limits)
        }
        tier, server = find_tier(), Server((options.host, options.port), options.runs, Limits(**ceiling), options.name)
    except (ValueError, OSError, JailUnavailable) as problem:
        parser.error(str(problem))
    try:
        with server:
            print(f"runs programs in a {tier.name} jail: http://{options.host}:{server.server_port}", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:  # the ordinary way to end it; programs that run end with it
        sys.exit(130)


if __name__ == "__main__":
    main()
