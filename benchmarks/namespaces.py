"""Simulated hosts on one machine: network namespaces that can only reach each other. For benchmarks and tests; needs root and `ip`.

    with make_hosts() as [one, other]:
        subprocess.run(one.enter("python", "-c", "..."))

The link between them is a pair of veth devices. With a given rate and delay it is two tun devices, and threads of this process carry
their packets, because not every kernel has netem. Everything is removed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    card: str
    """The network device that leads to the other one."""

    def enter(self, *command: object) -> list[str]:
        """The command that runs this one there; it becomes it, so the process is the same."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]


def explain_no_hosts() -> str:
    """Why none can be made here; "": they can."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and the command ip"
    try:
        with make_hosts():
            return ""
    except subprocess.CalledProcessError as problem:
        return f"network namespaces cannot be made here: {problem}, {str(problem.stderr).strip()}"


@contextmanager
def make_hosts(rate: float = 0.0, delay_s: float = 0.0) -> Iterator[list[Host]]:
    """Two hosts; rate (bit/s) and delay (one way) of the link between them, 0: as fast as this machine is."""
    own = os.getpid()
    hosts = [
        Host(f"cohort-{own}-{side}", f"10.79.{own % 250}.{place}", f"card-{side}") for place, side in enumerate("ab", start=1)
    ]
    ends: list[int] = []
    try:
        for host in hosts:
            call_ip("netns", "add", host.name)
            call_ip("-n", host.name, "link", "set", "lo", "up")
        if rate:
            ends += [open_card(host) for host in hosts]
            for source, target in (ends, ends[::-1]):
                threading.Thread(target=carry_packets, args=(source, target, rate, delay_s), daemon=True).start()
        else:
            one, other = hosts
            pair = ["link", "add", one.card, "netns", one.name, "type", "veth", "peer", "name", other.card, "netns", other.name]
            call_ip(*pair)
        for host in hosts:
            call_ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.card)
            call_ip("-n", host.name, "link", "set", host.card, *(["mtu", "60000"] if rate else []), "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], check=False, stderr=subprocess.DEVNULL)


def call_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def go_inside(host: Host) -> Iterator[None]:
    """This thread is in the namespace, and comes back; what it opens there stays there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        open("/proc/thread-self/ns/net", encoding="ascii") as home,
        open(f"/var/run/netns/{host.name}", encoding="ascii") as there,
    ):
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {host.name}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


def open_card(host: Host) -> int:
    """A tun device in the namespace."""
    with go_inside(host):
        card = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", host.card.encode(), IFF_TUN | IFF_NO_PI))
    return card


def carry_packets(source: int, target: int, rate: float, delay_s: float) -> None:
    """What comes out of one card goes into the other, no faster than `rate` bits a second, and `delay_s` later."""
    under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            due, packet = under_way.get()
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
            with contextlib.suppress(OSError):  # the other end is gone
                os.write(target, packet)

    threading.Thread(target=deliver, daemon=True).start()
    free = 0.0
    while True:
        packet = os.read(source, 1 << 16)
        free = max(free, time.monotonic()) + len(packet) * 8 / rate
        under_way.put((free + delay_s, packet))


def write_launches(hosts: Sequence[Host], port: int, *words: object) -> list[list[str]]:
    """For each host the torchrun that starts one rank there: `cohort WORDS` on all of them together."""
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(hosts)}", "--nproc-per-node=1"]
    launch += [f"--master-addr={hosts[0].address}", f"--master-port={port}"]
    return [
        host.enter(*launch, f"--node-rank={rank}", f"--local-addr={host.address}", "-m", "cohort", *words)
        for rank, host in enumerate(hosts)
    ]
