"""Several ranks of one run as real processes, quickly: forks of a process with torch imported, with the environment of torchrun.

    with fork_server(folder) as server:
        launch = start_ranks(server, 3, "train", recipe, traps={1: [Trap(...)]})
        assert launch.wait() == [0, 0, 0], launch.output

What torchrun does beside it is here too: once a rank has ended badly the others get SIGTERM (`wait`).
"""

from __future__ import annotations

import hashlib
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from session_tools import Child, ForkServer, Trap, bits


@dataclass
class Launch:
    """The processes of one run, by rank."""

    ranks: list[Child]
    codes: dict[int, int] = field(default_factory=dict)
    """Rank -> its exit code, of those that have ended and were asked; negative: the signal that ended it."""

    def look(self) -> dict[int, int]:
        """Exit codes by rank of those that have ended by now."""
        for rank, child in enumerate(self.ranks):
            if rank not in self.codes:
                code = child.server.ask({"wait": child.pid, "timeout": 0.0})["code"]
                if code is not None:
                    self.codes[rank] = int(code)
        return self.codes

    def wait(self, timeout: float = 300.0, *, tell: bool = True) -> list[int]:
        """Exit codes in the order of ranks, once all have ended. tell: SIGTERM to the others when one has ended badly, as torchrun does."""
        deadline, told = time.monotonic() + timeout, not tell
        while len(codes := self.look()) < len(self.ranks):
            if not told and any(codes.values()):
                told = True
                self.send(signal.SIGTERM)
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"still running after {timeout} s: {codes}\n{self.output}")
            time.sleep(0.01)
        return [codes[rank] for rank in range(len(self.ranks))]

    def send(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """A signal to these ranks, or to all, as far as they still run."""
        for rank, child in enumerate(self.ranks):
            if (ranks is None or rank in ranks) and rank not in self.codes:
                child.send(number)

    @property
    def output(self) -> str:
        return "\n".join(f"-- rank {rank}\n{child.output}" for rank, child in enumerate(self.ranks))


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_environment(rank: int, size: int, port: int, address: str = "127.0.0.1") -> dict[str, str]:
    """What torchrun tells a process, on one host."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {name: str(value) for name, value in told.items()} | {"MASTER_ADDR": address}


def start_ranks(
    server: ForkServer,
    size: int,
    *arguments: object,
    traps: Mapping[int, Sequence[Trap]] | None = None,
    env: Mapping[int, Mapping[str, str]] | None = None,
    own: Mapping[int, Sequence[object]] | None = None,
) -> Launch:
    """`cohort ARGUMENTS` on `size` ranks. By rank: traps, more environment, and more arguments of its own."""
    port = find_free_port()
    ranks = []
    for rank in range(size):
        told = make_environment(rank, size, port) | dict((env or {}).get(rank, {}))
        words = [*arguments, *(own or {}).get(rank, ())]
        ranks.append(server.run(*words, traps=(traps or {}).get(rank, ()), env=told))
    return Launch(ranks)


def run_ranks(server: ForkServer, size: int, *arguments: object, notes: Path | None = None) -> Launch:
    """Run the ranks to their successful end. size 0: one process without a launcher. notes: a file for observations of rank 0."""
    env = {"NOTES": str(notes)} if notes else {}
    launch = start_ranks(server, size, *arguments, env={0: env}) if size else Launch([server.run(*arguments, env=env)])
    codes = launch.wait()
    assert not any(codes), f"{codes}\n{launch.output}"
    return launch


def hash_weights(run: Path) -> str:
    """Of the exported model, by names, shapes and bits."""
    digest = hashlib.sha256()
    for name, (dtype, shape, data) in sorted(bits(run / "model" / "model.safetensors").items()):
        digest.update(f"{name} {dtype} {shape}".encode() + data)
    return digest.hexdigest()[:16]
