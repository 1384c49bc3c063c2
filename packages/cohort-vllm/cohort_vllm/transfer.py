"""The weight transfer between a trainer and the workers of vLLM servers: the process group, and tensors in buckets. Needs only torch.

The packages cohort and cohort_vllm both contain this file, since they must not import each other; a test compares the copies.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Entry = tuple[str, str, Sequence[int]]
"""Name, dtype and shape of a tensor, as in JSON."""
BUCKET_BYTES = 64 << 20


def find_own_address(peer: str, port: int) -> str:
    """The address of this host on the interface that leads to the peer. Nothing is sent."""
    family, kind, _, _, place = socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def listen(address: str) -> socket.socket:
    """A socket for the workers to connect to, on a free port of this address only."""
    family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    listener.bind(place)
    listener.listen()
    return listener


def join_group(
    address: str, port: int, rank: int, size: int, device: torch.device, limit_s: float, listener: socket.socket | None = None
) -> Any:
    """A process group in addition to the default one. The trainer is rank 0 and passes the listening socket."""
    timeout = timedelta(seconds=limit_s)
    listening: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach()}
    store: Any = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=timeout, wait_for_workers=False, **listening)
    store = dist.PrefixStore("weights", store)
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    # By default gloo listens on the address of the host name, which is often loopback.
    own = address if rank == 0 else find_own_address(address, port)
    options._devices = [gloo.create_device(hostname=own)]
    return gloo(store, rank, size, options)


def broadcast(group: Any, tensor: Tensor) -> None:
    """Broadcast from rank 0, within the time limit of the group."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor], options).wait()


def fill_buckets(entries: Sequence[Entry], most: int = BUCKET_BYTES) -> Iterator[list[Entry]]:
    """Consecutive tensors of one dtype that are sent as one tensor, of at most this many bytes unless a single one is larger."""
    bucket: list[Entry] = []
    size = 0
    for entry in entries:
        _, dtype, shape = entry
        own = math.prod(shape) * getattr(torch, dtype).itemsize
        if bucket and (size + own > most or dtype != bucket[0][1]):
            yield bucket
            bucket, size = [], 0
        bucket.append(entry)
        size += own
    if bucket:
        yield bucket


def send_bucket(group: Any, tensors: Sequence[Tensor], device: torch.device) -> None:
    broadcast(group, torch.cat([tensor.detach().to(device).flatten() for tensor in tensors]))


def receive_bucket(group: Any, bucket: Sequence[Entry], device: torch.device) -> list[tuple[str, Tensor]]:
    sizes = [math.prod(shape) for _, _, shape in bucket]
    flat = torch.empty(sum(sizes), dtype=getattr(torch, bucket[0][1]), device=device)
    broadcast(group, flat)
    return [(name, piece.view(*shape)) for (name, _, shape), piece in zip(bucket, flat.split(sizes), strict=True)]
