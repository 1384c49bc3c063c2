"""Two real servers under faults: the trainer's side, long requests, and a network that can be slowed and cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import serving
import torch

from cohort.engine.vllm.engine import VllmEngine
from cohort.model.policy import Policy
from cohort.recipe.file import find_recipe
from cohort.recipe.values import Materials
from cohort.training import build
from cohort.types import Completion, NoiseKey, Prompt, Request, Sampling

WORDS = (
    "column_addition",
    "model.scratch.num_layers=2",
    "model.scratch.max_positions=1024",
    "prompts.max_prompt_tokens=64",
    "sampling.max_completion_tokens=900",
)
LIMIT_S = 8.0
"""Limit for a response: long enough for servers that share two cores."""


def make_policy() -> Policy:
    recipe = find_recipe(WORDS[0], WORDS[1:])
    return build.load_policy(recipe, build.load_data(recipe, Materials()))


@dataclass
class Trainer:
    """A run's use of servers: the policy changes, is pushed, and the servers complete prompts."""

    servers: Sequence[str]
    policy: Policy = field(default_factory=make_policy)
    wait_s: float = 2.0
    limit_s: float = LIMIT_S
    said: list[str] = field(default_factory=list)
    version: int = 0

    def __post_init__(self) -> None:
        words = [
            *WORDS[1:],
            f"sampling.servers={','.join(self.servers)}",
            f"vllm.wait_s={self.wait_s}",
            f"vllm.limit_s={self.limit_s}",
        ]
        engine, _ = build.make_engine(find_recipe(WORDS[0], words), self.policy, report=self.said.append)
        assert isinstance(engine, VllmEngine)
        self.engine = engine

    def sync(self) -> None:
        self.engine.sync(self.policy.list_own_parameters(), self.version)

    @torch.no_grad()
    def step(self) -> None:
        """Change the weights as an update does, and push them."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        for value in self.policy.list_own_parameters().values():
            value.add_(0.01 * torch.randn(value.shape, generator=generator))
        self.policy.refresh_weights()
        self.sync()

    def generate(self, tokens: int = 600, prompts: int = 8, step: int = 0) -> list[Completion]:
        """Prompts that alternate between two servers; without stop tokens they take seconds."""
        requests = [
            Request(Prompt(place, "", {}, (5, 6, 7, 3 + place)), place, sample)
            for place in range(prompts)
            for sample in range(2)
        ]
        return self.engine.generate(requests, Sampling(2, 1.0, tokens, ()), NoiseKey(0, "train", step))

    def check_policy(self, completions: Sequence[Completion], tokens: int = 40) -> float:
        """Largest difference between these log-probs and the current policy's."""
        worst = 0.0
        for place, completion in enumerate(completions):
            ids = torch.tensor([[5, 6, 7, 3 + place // 2, *completion.token_ids[:tokens]]])
            with torch.no_grad():
                logprobs = self.policy.model(input_ids=ids).logits[0, 3:-1].log_softmax(-1)
            own = logprobs.gather(-1, ids[0, 4:, None])[:, 0]
            theirs = torch.tensor(completion.sampling_logprobs[:tokens])
            worst = max(worst, float((own - theirs).abs().max()))
        return worst


@dataclass
class Pair:
    """Two servers; one that a test has ended is restarted at the same address."""

    folder: Path
    words: Sequence[str]
    servers: list[serving.Server]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def start_again(self, number: int) -> None:
        old = self.servers[number]
        old.end()
        self.servers[number] = serving.start_server(self.folder, self.words, port=int(old.url.rpartition(":")[2]))

    def revive(self) -> None:
        """After any previous test: both respond, and neither is paused."""
        for number, server in enumerate(self.servers):
            if server.process.poll() is not None or not answers(server):
                self.start_again(number)
        for server in self.servers:
            server.wait_ready()


def answers(server: serving.Server) -> bool:
    with contextlib.suppress(OSError, ValueError):
        server.ask("/weight_info", limit_s=10)
        return True
    return False


def is_paused(server: serving.Server) -> bool:
    return bool(server.ask("/is_paused")["is_paused"])


def read_label(server: serving.Server) -> str:
    return str(server.ask("/weight_info")["weight_version"])


def count_running(server: serving.Server) -> float:
    """Number of requests that it is decoding now."""
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


@contextlib.contextmanager
def once_busy(server: serving.Server, fault: Callable[[], Any]) -> Iterator[list[str]]:
    """While the block asks for completions: the fault strikes as soon as the server decodes. Yields what happened, in the end."""
    happened: list[str] = []
    over = threading.Event()

    def strike() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                if count_running(server) > 0:
                    fault()
                    happened.append("struck")
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    try:
        yield happened
    finally:
        over.set()
        thread.join(30)


@dataclass
class Network:
    """A proxy between a trainer and a server that can delay, slow down or cut the traffic."""

    target: int
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: without delay."""

    def __post_init__(self) -> None:
        self.door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.door.getsockname()[1]}"
        self.links: list[socket.socket] = []
        self.passed = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.door.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.links += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                time.sleep(self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0.0))
                self.passed += len(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Close every open connection at once; new ones are accepted."""
        links, self.links = self.links, []
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.door.close()
        self.cut()
