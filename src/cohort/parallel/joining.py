"""How the processes of a launch find each other, in this life of theirs: over the key-value store that the launcher keeps.

A launcher restarts its processes with the same store in it, and of several launchers each counts its own restarts. So nobody
relies on counts: every process that comes leaves a token of its own, and the main rank of this life answers it with the name of a
room, a part of the store that is as new as that rank. What an earlier life has left is never read: gloo would try to connect to
addresses of processes that are gone.
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
_times = 0
"""How often this process has joined: it may train more than once."""
_lasting: dist.Store | None = None


@dataclass(frozen=True)
class Room:
    """Where the ranks of this life meet."""

    store: dist.Store
    lasting: dist.Store
    """Of all lives."""
    run_key: str
    """Where the folder of the run is noted for the next life."""
    earlier_run: str
    hosts: bool
    """Whether this process keeps the store, and no launcher does."""

    def remember_run(self, root: str) -> None:
        self.lasting.set(self.run_key, root)


def read_place() -> tuple[int, int]:
    """Rank and number of ranks, as the launcher has told them."""
    told = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    for name, text in told.items():
        if not text.isdecimal():
            raise RankError(
                f"{name}={text} in the environment is no number: torchrun sets it; unset it to train with one process."
            )
    rank, size = int(told["RANK"]), int(told["WORLD_SIZE"])
    if rank >= size:
        raise RankError(
            f"RANK={rank} with WORLD_SIZE={size}: ranks count from 0, so the last one is {size - 1}. torchrun sets both."
        )
    return rank, size


def find_room(rank: int, size: int, limit_s: float) -> Room:
    """The part of the store where the ranks of this life are, once all of them are there."""
    global _times, _lasting
    told, limit = os.environ, timedelta(seconds=limit_s)
    if "GLOO_SOCKET_IFNAME" not in told and (card := find_network_card(told["MASTER_ADDR"], int(told["MASTER_PORT"]))):
        told["GLOO_SOCKET_IFNAME"] = card
    hosts = told.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    where = f"{told['MASTER_ADDR']}:{told['MASTER_PORT']}"
    try:
        # Without waiting for the others: how many have come is said below.
        lasting = _lasting or dist.TCPStore(
            told["MASTER_ADDR"], int(told["MASTER_PORT"]), size, hosts, limit, wait_for_workers=False
        )
        limit_silence(int(told["MASTER_PORT"]), limit_s)
        lobby = dist.PrefixStore(f"cohort/{told.get('TORCHELASTIC_RUN_ID', '')}/{_times}", lasting)
        meet = receive_others if rank == 0 else follow_main
        name, earlier_run = meet(lobby, rank, size, Patience(size, limit_s, where))
    except (RuntimeError, ValueError) as problem:
        who = "keep the store of the ranks" if hosts else "find the store of the ranks"
        raise RankError(
            f"rank {rank} of {size} cannot {who} at {where} ({shorten(problem)}). The launcher, or rank 0, must run on that host, and all "
            "hosts must reach it: see docs/scale.md."
        ) from problem
    _times, _lasting = _times + 1, lasting
    return Room(dist.PrefixStore(name, lobby), lobby, "run", earlier_run, hosts)


def limit_silence(port: int, limit_s: float) -> None:
    """End connections to the store that nobody answers for limit_s: torch would wait as long as the kernel does, a quarter of an hour."""
    with contextlib.suppress(OSError):  # only Linux lists them
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.fromfd(int(entry), socket.AF_INET, socket.SOCK_STREAM) as own:
                if own.getpeername()[1] == port:
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * limit_s))


class Patience:
    """How long ranks wait for each other at the beginning."""

    def __init__(self, size: int, limit_s: float, where: str):
        self.size, self.limit_s, self.where, self.until = size, limit_s, where, time.monotonic() + limit_s

    def wait(self, find_missing: Callable[[], Iterable[int]]) -> None:
        """A moment; after limit_s an error that says who is missing."""
        if time.monotonic() > self.until and (missing := sorted(find_missing())):
            names = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} are"
            raise RankError(
                f"only {self.size - len(missing)} of {self.size} ranks have come to {self.where} within {self.limit_s:.0f} s (parallel.limit_s): "
                f"{names} missing. Start all of them with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT; see docs/scale.md."
            )
        time.sleep(PAUSE_S)


def receive_others(lobby: dist.Store, rank: int, size: int, patience: Patience) -> tuple[str, str]:
    """The main rank opens a room, answers every token with it, and waits until all are in. (room, folder of the earlier run)"""
    name = f"room/{uuid.uuid4().hex}"
    earlier_run = lobby.get("run").decode() if lobby.check(["run"]) else ""
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
    """The others leave a token, enter the room that the main rank answers with, and wait until all are in."""
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
        problem.reported = True  # the main rank has waited for the same ones
        raise
    return name, earlier_run


def refuse_sizes(size: int, other: int, others_size: int) -> NoReturn:
    raise RankError(
        f"rank 0 was told WORLD_SIZE={size}, and rank {other} WORLD_SIZE={others_size}: they do not belong to one launch."
    )


def shorten(problem: BaseException) -> str:
    """What torch says of a connection, without the places in its source and its good wishes."""
    first_line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", first_line).split(". ")[0].rstrip(".")


def find_network_card(address: str, port: int) -> str:
    """Name of the network card that leads to `address`; "" where that cannot be told. gloo would take whatever the hostname says."""
    import fcntl
    import struct

    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        if family != socket.AF_INET:
            return ""
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # nothing is sent: the kernel only chooses the way
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    asked = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                    if socket.inet_ntoa(asked[20:24]) == own:
                        return name
    except OSError:
        return ""
    return ""
