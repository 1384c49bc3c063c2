"""The far end of remote.py: `python -m cohort.sandbox.serve [--host 127.0.0.1] [--port 8088] [--runs N]`.

Runs programs in the jail of its machine for whoever may reach it. It listens on this machine alone unless told otherwise;
with COHORT_SANDBOX_TOKEN set, only to who sends it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hmac
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cohort.sandbox.limits import JailUnavailable, Limits
from cohort.sandbox.program import Call, run_calls, run_checks, run_script
from cohort.sandbox.remote import MAX_BODY_BYTES, TOKEN_VARIABLE
from cohort.sandbox.tiers import find_tier
from cohort.sandbox.values import NotPlain, rebuild, tagged

CEILING = Limits(cpu_s=120, wall_s=120, memory_mb=4096)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], runs: int = 0, ceiling: Limits = CEILING) -> None:
        super().__init__(address, Handler)
        self.ceiling = ceiling
        """The most that a client may ask for, of time and memory."""
        self.slots = threading.BoundedSemaphore(runs or os.cpu_count() or 1)
        """Runs at once: more would only make each of them slower."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 60

    def do_POST(self) -> None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        given = self.headers.get("Authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            self.answer(401, {"error": f"a bearer token is needed ({TOKEN_VARIABLE})"})
            return
        if self.path.rstrip("/") != "/run" and not self.path.endswith("/run"):
            self.answer(404, {"error": "POST /run"})
            return
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 < size <= MAX_BODY_BYTES:
                raise ValueError("Content-Length is missing or too large")
            document = json.loads(self.rfile.read(size))
            with self.server.slots:
                result = run(document, self.server.ceiling)
            self.answer(200, result)  # without a slot: a client may take its time to read
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotPlain) as problem:
            self.answer(400, {"error": f"{type(problem).__name__}: {problem}"})
        except JailUnavailable as problem:
            self.answer(503, {"error": str(problem)})

    def answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a reward asks thousands of times."""


def run(document: dict[str, Any], ceiling: Limits = CEILING) -> dict[str, Any]:
    limits, program = Limits(**document["limits"]), str(document["program"])
    for name in ("cpu_s", "wall_s", "memory_mb"):
        if getattr(limits, name) > getattr(ceiling, name):
            raise ValueError(f"limits.{name}: at most {getattr(ceiling, name):g} here, got {getattr(limits, name):g}")
    packages = bool(document.get("packages", False))
    if document["job"] == "calls":
        calls = [Call(str(name), rebuild(args), rebuild(kwargs)) for name, args, kwargs in document["calls"]]
        result = run_calls(program, calls, limits, packages=packages)
        replies = [
            None if reply is None else {**dataclasses.asdict(reply), "value": tagged(reply.value, 0)}
            for reply in result.replies
        ]
        return {**plain_fields(result, "replies"), "replies": replies}
    if document["job"] == "script":
        return plain_fields(run_script(program, str(document["stdin"]), limits, packages=packages), "")
    if document["job"] == "checks":
        checks = run_checks(program, document["checks"], document["proxies"], str(document["setup"]), limits, packages=packages)
        return {**plain_fields(checks, "checks"), "checks": [dataclasses.asdict(check) for check in checks.checks]}
    raise ValueError(f"job: calls, script or checks is expected, got {document['job']!r}")


def plain_fields(result: Any, but: str) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result) if field.name != but}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cohort.sandbox.serve", description="Run programs in the jail of this machine for trainers elsewhere."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8088)
    parser.add_argument("--runs", type=int, default=0, help="programs at once; 0: one per core")
    parser.add_argument("--max-memory-mb", type=int, default=4096, help="the most that a client may ask for")
    parser.add_argument("--max-wall-s", type=float, default=120.0, help="the longest that a client may ask for")
    options = parser.parse_args()
    tier = find_tier()
    ceiling = Limits(wall_s=options.max_wall_s, cpu_s=options.max_wall_s, memory_mb=options.max_memory_mb)
    with Server((options.host, options.port), options.runs, ceiling) as server:
        print(f"runs programs in a {tier.name} jail: http://{options.host}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
