"""How the ranks of a launch find each other, over the launcher's key-value store.

A launcher restarts its processes with the old entries still in the store, and each of several launchers counts its own restarts, so
counts cannot tell restarts apart. Instead every arriving process writes a new token, and the main rank answers each token with the
name of a room: a part of the store that is as new as the main rank. Entries from before a restart are never read; gloo would
connect to addresses of dead processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NoReturn

import torch.distributed as dist

from cohort.errors import RankError

PAUSE_S = 0.01
RUN_KEY = "run"
"""Holds the run folder for the processes after a restart."""
_times = 0
"""How often this process has met the others: it may train more than once."""
_store: dist.Store | None = None


@dataclass(frozen=True)
class Room:
    """The part of the store where the ranks meet."""

    store: dist.Store
    lobby: dist.Store
    """Common to all restarts."""
    earlier_run: str
    hosts: bool
    """Whether this process hosts the store, instead of a launcher."""


def read_rank() -> tuple[int, int]:
    """(rank, number of ranks) from the environment."""
    values = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    for name, text in values.items():
        if not text.isdecimal():
            raise RankError(
                f"{name}={text} in the environment is not a number. torchrun sets it; unset it to train with one process."
            )
    rank, size = int(values["RANK"]), int(values["WORLD_SIZE"])
    if rank >= size:
        raise RankError(
            f"RANK={rank} with WORLD_SIZE={size}: ranks count from 0, so the last is {size - 1}. torchrun sets both."
        )
    return rank, size


def find_room(rank: int, size: int, limit_s: float) -> Room:
    """The room of these ranks, once all of them have arrived."""
    global _times, _store
    settings, limit = os.environ, timedelta(seconds=limit_s)
    address, port = settings["MASTER_ADDR"], int(settings["MASTER_PORT"])
    if "GLOO_SOCKET_IFNAME" not in settings and (interface := find_network_interface(address, port)):
        settings["GLOO_SOCKET_IFNAME"] = interface
    hosts = settings.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    where = f"{address}:{port}"
    try:
        # Without waiting for workers: our own error names the missing ranks.
        store = _store or dist.TCPStore(address, port, size, hosts, limit, wait_for_workers=False)
        limit_silence(port, limit_s)
        lobby = dist.PrefixStore(f"cohort/{settings.get('TORCHELASTIC_RUN_ID', '')}/{_times}", store)
        meet = receive_others if rank == 0 else follow_main
        name, earlier_run = meet(lobby, rank, size, Patience(size, limit_s, where))
    except (RuntimeError, ValueError) as problem:
        verb = "host" if hosts else "reach"
        raise RankError(
            f"rank {rank} of {size} cannot {verb} the store of the ranks at {where} ({shorten(problem)}). The launcher, or rank 0, must "
            "run on that host, and all hosts must reach it: see docs/scale.md."
        ) from problem
    _times, _store = _times + 1, store
    return Room(dist.PrefixStore(name, lobby), lobby, earlier_run, hosts)


def limit_silence(port: int, limit_s: float) -> None:
    """Close connections to the store that get no answer for limit_s; torch would wait as long as the kernel, a quarter of an hour."""
    with contextlib.suppress(OSError):  # only Linux lists them
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.fromfd(int(entry), socket.AF_INET, socket.SOCK_STREAM) as own:
                if own.getpeername()[1] == port:
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * limit_s))


class Patience:
    """The time that ranks wait for each other at the start."""

    def __init__(self, size: int, limit_s: float, where: str):
        self.size, self.limit_s, self.where, self.until = size, limit_s, where, time.monotonic() + limit_s

    def wait(self, find_missing: Callable[[], Iterable[int]]) -> None:
        """Wait a moment; after limit_s raise an error that names the missing ranks."""
        if time.monotonic() > self.until and (missing := sorted(find_missing())):
            names = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} are"
            raise RankError(
                f"only {self.size - len(missing)} of {self.size} ranks reached {self.where} within {self.limit_s:.0f} s "
                f"(parallel.limit_s): {names} missing. Start all of them with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT; see "
                "docs/scale.md."
            )
        time.sleep(PAUSE_S)


def receive_others(lobby: dist.Store, rank: int, size: int, patience: Patience) -> tuple[str, str]:
    """Open a room, answer every token with it, and wait until all are in, on the main rank. Returns (room, earlier run folder)."""
    name = f"room/{uuid.uuid4().hex}"
    earlier_run = lobby.get(RUN_KEY).decode() if lobby.check([RUN_KEY]) else ""
    answered: dict[int, str] = {}
    missing = set(range(1, size))
    while missing:
        for other in sorted(missing):
            if not lobby.check([f"come/{other}"]):
                continue
            token, others_size = json.loads(lobby.get(f"come/{other}"))
            if answered.get(other) != token:
                answered[other] = token
                lobby.set(f"answer/{token}", json.dumps([name, earlier_run, size]))
                if others_size != size:
                    refuse_sizes(size, other, others_size)
        missing -= {other for other in missing if lobby.check([f"{name}/in/{other}"])}
        patience.wait(partial(set, missing))
    lobby.set(f"{name}/all", "")
    return name, earlier_run


def follow_main(lobby: dist.Store, rank: int, size: int, patience: Patience) -> tuple[str, str]:
    """Write a token, enter the room that the main rank answers with, and wait until all are in, on the other ranks."""
    token = uuid.uuid4().hex
    lobby.set(f"come/{rank}", json.dumps([token, size]))
    others = range(1, size)
    while not lobby.check([f"answer/{token}"]):
        patience.wait(lambda: [0, *(other for other in others if not lobby.check([f"come/{other}"]))])
    name, earlier_run, mains_size = json.loads(lobby.get(f"answer/{token}"))
    if mains_size != size:
        refuse_sizes(mains_size, rank, size)
    lobby.set(f"{name}/in/{rank}", "")
    try:
        while not lobby.check([f"{name}/all"]):
            patience.wait(lambda: [other for other in others if not lobby.check([f"{name}/in/{other}"])])
    except RankError as problem:
        problem.reported = True  # the main rank reports the same missing ranks
        raise
    return name, earlier_run


def refuse_sizes(size: int, other: int, others_size: int) -> NoReturn:
    raise RankError(
        f"rank 0 has WORLD_SIZE={size}, but rank {other} has WORLD_SIZE={others_size}: they do not belong to one launch."
    )


def shorten(problem: BaseException) -> str:
    """The first sentence of a torch error, without source locations."""
    first_line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", first_line).split(". ")[0].rstrip(".")


def find_network_interface(address: str, port: int) -> str:
    """Name of the network interface that leads to `address`; "" if unknown. gloo would use the one of the hostname."""
    import fcntl
    import struct

    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        if family != socket.AF_INET:
            return ""
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: the kernel only chooses the route
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    reply = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                    if socket.inet_ntoa(reply[20:24]) == own:
                        return name
    except OSError:
        return ""
    return ""
