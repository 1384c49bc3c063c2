"""The browser of the tests: Debian's chromium, `cohort dashboard` in its own process, and a record of requests and errors.

playwright's plain interface keeps an event loop running in the thread that started it, in which no other test could call
`asyncio.run`. So the browser lives in a thread of its own, and whatever touches it is called there.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LISTEN = """
window.canaries = [];
window.canary = number => { canaries.push(number); };
document.addEventListener('securitypolicyviolation', event =>
  canaries.push(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""
"""Before anything of a page runs."""
SETTLE_MS = 20_000
"""The most that is waited for something a page should show. Only a page that is broken takes so long."""

Answer = TypeVar("Answer")


class Stage:
    """A browser in a thread of its own."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "browser")
        self.call(self._start)

    def call(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        return self.thread.submit(work, *arguments).result()

    def _start(self) -> None:
        from playwright.sync_api import sync_playwright

        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

    def open(self, base: str, **options: Any) -> Visit:
        """A visitor without a past, to be called in the thread of the browser. options: of a context, `color_scheme="dark"` for instance."""
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        context = self.browser.new_context(**options)
        context.set_default_timeout(SETTLE_MS)
        context.add_init_script(LISTEN)
        return Visit(context, context.new_page(), base)

    def close(self) -> None:
        self.call(self.browser.close)
        self.call(self.playwright.stop)
        self.thread.shutdown()


@dataclass
class Visit:
    """A browser page on the dashboard, and all errors that occurred in it."""

    context: Any
    page: Any
    base: str
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Every address the browser asked for."""

    def __post_init__(self) -> None:
        note = self.problems.append
        self.context.on("request", lambda request: self.note_request(request.url))
        self.page.on("console", lambda message: message.type in ("error", "warning") and note(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: note(f"script: {error}"))
        self.page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("popup", lambda popup: note(f"window: {popup.url}"))

    def note_request(self, url: str) -> None:
        self.asked.append(url)
        if urlsplit(url).scheme not in ("blob", "data") and not url.startswith(self.base):
            self.problems.append(f"asked {url}")

    def go(self, address: str, status: int = 200) -> None:
        answer = self.page.goto(self.base + address)
        assert answer is not None
        assert answer.status == status, f"{address}: {answer.status} {answer.text()[:300]}"

    def check(self) -> None:
        """No console message, no policy violation, no executed payload, no request to another host."""
        sung = self.page.evaluate("canaries")
        found = [*self.problems, *(f"canary: {one}" for one in sung)]
        assert not found, f"{self.page.url}: {found}"

    def read_text(self) -> str:
        """All text of the page, hidden or not."""
        return self.page.evaluate("document.documentElement.textContent")

    def close(self) -> None:
        self.context.close()


@dataclass
class Dashboard:
    """`cohort dashboard` in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def ask(
        self, target: str | bytes, method: str = "GET", headers: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of a request whose target is sent as it is written, nothing resolved or quoted."""
        target = target.encode("latin-1") if isinstance(target, str) else target
        lines = [method.encode() + b" " + target + b" HTTP/1.1"]
        given = (
            list(headers)
            if any(name.lower() == "host" for name, _ in headers)
            else [("Host", f"127.0.0.1:{self.port}"), *headers]
        )
        given += [("Connection", "close"), *([("Content-Length", str(len(body)))] if body else [])]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in given]
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
            link.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            answer = http.client.HTTPResponse(link, method=method)
            try:
                answer.begin()
                return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            except http.client.BadStatusLine:  # uvicorn hangs up on what is no HTTP
                return 400, {}, b""


def start_dashboard(runs: Path, log: Path, *words: str, environment: dict[str, str] | None = None) -> Dashboard:
    """Start it on a free port, and wait until it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cohort", "dashboard", str(runs), "--port", str(port), *words]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
    until = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return Dashboard(process, port, log)
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                raise AssertionError(
                    f"the dashboard did not start: {log.read_text(encoding='utf-8', errors='replace')}"
                ) from None
            time.sleep(0.02)
