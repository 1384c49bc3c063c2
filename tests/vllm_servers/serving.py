"""Real vLLM servers for tests: started by `cohort serve` on a free loopback port, monitored, and ended by their process group.

They need the environment that `make vllm` makes; COHORT_VLLM_PYTHON names the Python of another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.base.processes import children_of

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("COHORT_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
CACHE_BYTES = 256 << 20
"""Size of the key-value cache, all of it touched at the start: a server then takes 2.2 GB instead of 3."""
READY_S = 300.0
"""Half a minute on an idle machine, and many times that under load."""


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def pid(self) -> int:
        """The process that responds; the engine's core and its workers are its children."""
        return self.process.pid

    def list_below(self) -> list[int]:
        """The processes of the engine, with the workers last."""
        found, todo = [], [self.pid]
        while todo:
            todo = [child for parent in todo for child in children_of(parent)]
            found += todo
        return found

    def list_workers(self) -> list[int]:
        """The processes that hold the weights; with a single worker this may be the core itself."""
        titled = [pid for pid in self.list_below() if "VLLM::" in read_title(pid)]
        return [pid for pid in titled if "Worker" in read_title(pid)] or titled

    def signal_workers(self, number: int) -> None:
        for pid in self.list_workers():
            os.kill(pid, number)

    def ask(self, path: str, body: object = None, limit_s: float = 10.0) -> Any:
        """GET, or POST with a body; the response as JSON, None if it is empty."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def wait_ready(self, limit_s: float = READY_S) -> Server:
        """Wait until the engine itself responds; on failure, raise with the last lines of the log."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.read_log()}")
            with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
                self.ask("/weight_info", limit_s=5.0)
                return self
            time.sleep(0.5)
        raise AssertionError(f"the server was not ready within {limit_s:g} s:\n{self.read_log()}")

    def read_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-6000:]

    def end(self, number: int = signal.SIGTERM) -> None:
        """End all of its processes, with SIGTERM first unless another signal is given."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)  # one that was stopped would hear nothing
            os.killpg(self.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(20)


def read_title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(
    folder: Path,
    words: Sequence[str],
    *,
    more: Sequence[str] = (),
    port: int = 0,
    address: str = "127.0.0.1",
    enter: Sequence[str] = (),
) -> Server:
    """Start to serve a recipe, with arguments as for train. It is not ready yet, so several can start in parallel.

    enter: the words of a command that starts it elsewhere, where that address is.
    """
    port = port or find_free_port()
    command = [*enter, sys.executable, "-m", "cohort", "serve", *words, "--host", address, "--port", str(port)]
    command += ["--python", str(PYTHON)]
    command += ["--", "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(CACHE_BYTES), *more]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"server-{port}.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("TRITON_INTERPRET", None)  # for kernels under test, not for a server
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, env=environment
        )
    return Server(process, f"http://{address}:{port}", log)


@contextlib.contextmanager
def serve_many(folder: Path, words: Sequence[str], count: int = 1, *, more: Sequence[str] = ()) -> Iterator[list[Server]]:
    """Ready servers. At the end of the block, those in the list are ended in any case."""
    servers: list[Server] = []
    try:
        servers += [start_server(folder, words, more=more) for _ in range(count)]
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            server.end()
