"""Weights on their way to servers: over a process group, as files, or an adapter as files.

Whichever way, servers are paused first and resumed at the end, whatever happens in between: a push beside running requests would kill
a server, and one that stays paused answers nobody. Requests that are under way go on afterwards with the new weights, on keys and
values computed anew. A push that breaks off leaves the survivors with half of the weights, which a whole push heals: so it is tried
again with those that are left before anybody is resumed.
"""

from __future__ import annotations

import dataclasses
import queue
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from cohort.base.threads import Ended, start_thread
from cohort.engine.protocol import RemoteSetup
from cohort.engine.vllm import transfer
from cohort.engine.vllm.servers import Fleet, Said, Server, ServerRefused
from cohort.errors import EngineError
from cohort.model import lora
from cohort.model.policy import Policy

TRIES = 3
"""Of a push, each with the servers that are left."""
READ_S = 600.0
"""For a server to read all weights from files, beside its limit."""


class PushFailed(Exception):
    """A push broke off: the servers that are left have half of the weights. `server`: the one that refused, where it is known."""

    def __init__(self, said: str, server: Server | None = None) -> None:
        super().__init__(said)
        self.server = server


class Courier(Protocol):
    """Brings the policy's weights, as they are now, to paused servers."""

    model: str
    """What the servers call the model that has them; "": the one they serve."""

    holds: bool
    """Whether it can bring them again when the policy has been trained on."""

    def take(self, label: str) -> None:
        """Get hold of the policy's weights as they are now, where it does not read them on the way."""
        ...

    def deliver(self, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]) -> None:
        """Raises PushFailed. unchanged: whether the weights that were meant can still be had, asked before they count."""
        ...

    def close(self) -> None: ...


def push_weights(
    fleet: Fleet, courier: Courier, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]
) -> list[Server]:
    """The servers that have the weights, under that label; the others are lost. Raises EngineError where none could be given them."""
    with hold_still(fleet, servers):
        problem, blamed = "", set[Server | None]()
        for _ in range(TRIES):
            servers = [server for server in servers if not server.lost]
            if not servers:
                return []
            try:
                courier.deliver(servers, label, unchanged)
                return [server for server in servers if not server.lost]
            except PushFailed as failed:
                problem = str(failed)
                fleet.look_again()
                if failed.server is not None and failed.server in blamed:
                    fleet.lose(failed.server, problem)  # the others need not fail for it a third time
                blamed.add(failed.server)
        for server in servers:
            fleet.lose(server, f"{server.address} has half of the weights: {problem}")
        raise EngineError(f"weights could not be pushed to the servers, tried {TRIES} times: {problem}")


@contextmanager
def hold_still(fleet: Fleet, servers: Sequence[Server]) -> Iterator[None]:
    """Pause, and resume in the end. Who does not answer to that is lost."""
    fleet.pushing = True
    try:
        lose_silent(fleet, fleet.call_all(servers, "/pause?mode=keep", {}))
        yield
    finally:
        try:
            lose_silent(fleet, fleet.call_all(servers, "/resume", {}))
        finally:
            fleet.pushing = False


def lose_silent(fleet: Fleet, said: Said) -> None:
    for server, answer in said.items():
        if isinstance(answer, Exception):
            fleet.lose(server, str(answer))


def fail_where_refused(said: Said) -> None:
    for server, answer in said.items():
        if isinstance(answer, Exception):
            raise PushFailed(str(answer), server)


def make_courier(fleet: Fleet, remote: RemoteSetup, token: str) -> Courier:
    policy, settings = remote.policy, remote.settings
    if settings.push == "group":
        return GroupCourier(fleet, policy, settings.address, remote.keep)
    return (FileCourier if settings.push == "files" else AdapterCourier)(fleet, policy, remote.folder, token)


# -- a process group ---------------------------------------------------------------------------------------------------


class GroupCourier:
    """The trainer is rank 0 of a group with every worker of the servers; it is made anew when other servers are pushed to."""

    model = ""

    def __init__(self, fleet: Fleet, policy: Policy, address: str, keep: bool):
        """keep: a copy of the weights, in the memory of the host."""
        self.fleet, self.policy, self.address, self.holds = fleet, policy, address, keep
        self.kept: dict[str, Tensor] = {}
        self.device = policy.device if policy.device.type == "cuda" else torch.device("cpu")
        self.group: Any = None
        self.members: list[Server] = []
        refuse_converted(policy)

    def take(self, label: str) -> None:
        if self.holds:
            weights = self.policy.merge_model().named_parameters()
            self.kept = {name: value.detach().to("cpu", copy=True) for name, value in weights}

    def deliver(self, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]) -> None:
        weights = self.kept or dict(self.policy.merge_model().named_parameters())
        entries: list[transfer.Entry] = [
            (name, str(value.dtype).split(".")[-1], list(value.shape)) for name, value in weights.items()
        ]
        try:
            if self.group is None or self.members != list(servers):
                self.meet(servers, entries)
            self.send(servers, weights, entries)
            if not unchanged():
                raise PushFailed("the policy was trained on while its weights were sent")
            fail_where_refused(self.fleet.call_all(servers, "/finish_weight_update", {"weight_version": label}))
        except PushFailed:
            self.close()  # the workers that wait for more are let go
            raise

    def meet(self, servers: Sequence[Server], entries: Sequence[transfer.Entry]) -> None:
        """First the servers are asked whether the weights fit, when nothing is touched yet; then the group is made."""
        self.close()
        told = {"entries": entries, "device": self.device.type}
        fits = self.fleet.call_all(servers, "/init_weight_transfer_engine", {"init_info": told})
        if refused := {server: answer for server, answer in fits.items() if isinstance(answer, ServerRefused)}:
            self.fleet.look_again()
            for server, answer in refused.items():
                if not server.lost:  # it lives on, so it means what it says
                    raise EngineError(
                        f"{answer} (a server needs the plugin cohort-vllm and the model of the recipe: start it with `cohort serve`)"
                    )
        fail_where_refused(fits)
        sizes = self.fleet.call_all(servers, "/get_world_size")
        fail_where_refused(sizes)
        workers = [read_workers(server, answer) for server, answer in sizes.items()]
        address = self.address or find_way(servers[0])
        door, limit_s = open_door(address), self.fleet.limit_s
        port, size = door.getsockname()[1], 1 + sum(workers)
        places = [1 + sum(workers[:place]) for place in range(len(workers))]
        meetings = {
            server: {
                "init_info": {**told, "address": address, "port": port, "size": size, "first_rank": first, "limit_s": limit_s}
            }
            for server, first in zip(servers, places, strict=True)
        }
        with self.calling(servers, "/init_weight_transfer_engine", meetings):
            self.group = transfer.join_group(address, port, 0, size, self.device, limit_s, door)
        self.members = list(servers)

    def send(self, servers: Sequence[Server], weights: dict[str, Tensor], entries: Sequence[transfer.Entry]) -> None:
        begun = self.fleet.call_all(servers, "/start_weight_update", {})
        if open_still := [server for server, answer in begun.items() if isinstance(answer, ServerRefused)]:
            # A trainer that died in a push has left its session open there, and nobody may begin another before it is ended.
            self.fleet.call_all(open_still, "/update_weights", {"update_info": {"abandon": True}})
            begun = {**begun, **self.fleet.call_all(open_still, "/start_weight_update", {})}
        fail_where_refused(begun)
        with self.calling(servers, "/update_weights", {server: {"update_info": {}} for server in servers}):
            for bucket in transfer.fill_buckets(entries):
                transfer.send_bucket(self.group, [weights[name] for name, _, _ in bucket], self.device)

    @contextmanager
    def calling(self, servers: Sequence[Server], path: str, bodies: Said) -> Iterator[None]:
        """Servers are told something, and it is done with them inside. What breaks on either side is a PushFailed."""
        ended: Ended[Said] = queue.SimpleQueue()
        wait_s = 2 * self.fleet.limit_s + READ_S
        start_thread(lambda: self.fleet.call_all(servers, path, limit_s=wait_s, bodies=bodies), ended)
        try:
            yield
        except RuntimeError as problem:  # torch's word for all that happens to a group
            raise PushFailed(f"the group with the servers' workers broke: {str(problem).splitlines()[0][:200]}") from problem
        try:
            _, said, failed = ended.get(timeout=self.fleet.limit_s + LOADING_S)
        except queue.Empty:
            raise PushFailed(f"the servers did not answer to {path} within {self.fleet.limit_s + LOADING_S:g} s") from None
        if failed is not None or said is None:
            raise PushFailed(str(failed))
        fail_where_refused(said)

    def close(self) -> None:
        self.group, self.members = None, []


MOST_WORKERS = 4096
LOADING_S = 60.0
"""For a server to put the last tensors in their place, beside its limit."""


def find_way(server: Server) -> str:
    try:
        return transfer.find_own_address(server.endpoint.host, server.endpoint.port)
    except OSError as problem:
        raise EngineError(
            f"vllm.address: no way leads to {server.address} ({problem}); name the address of this trainer."
        ) from None


def open_door(address: str) -> socket.socket:
    try:
        return transfer.listen(address)
    except OSError as problem:
        raise EngineError(
            f"vllm.address: this trainer cannot be met at {address} ({problem}); name an address that it has."
        ) from None


def read_workers(server: Server, answer: Any) -> int:
    count = answer.get("world_size") if isinstance(answer, dict) else None
    if type(count) is not int or not 1 <= count <= MOST_WORKERS:
        raise PushFailed(f"{server.address}: it does not say how many workers it has", server)
    return count


def refuse_converted(policy: Policy) -> None:
    """Models of which files hold other tensors than the modules, mixtures of experts above all: vLLM reads what files hold."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    if get_model_conversion_mapping(policy.model, add_legacy=False):
        raise EngineError(
            f'vllm.push: the files of {type(policy.model).__name__} hold other tensors than its modules, and vLLM reads those of files. Use push = "files".'
        )


# -- files -------------------------------------------------------------------------------------------------------------


class FileCourier:
    """Saves a folder for each version; servers read it, and the one before is removed. What else lies beside them is not ours."""

    model = ""
    holds = True

    def __init__(self, fleet: Fleet, policy: Policy, folder: Path | None, token: str):
        self.fleet, self.policy = fleet, policy
        self.folder = (folder or Path(tempfile.gettempdir())) / f"cohort-weights-{token}"

    def deliver(self, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]) -> None:
        path, body = self.write_call(self.folder / label)
        said = self.fleet.call_all(servers, path, body, limit_s=self.fleet.limit_s + READ_S)
        fail_where_refused(said)
        fail_where_refused(self.fleet.call_all(servers, "/update_weight_version", {"new_version": label}))

    def take(self, label: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.write(self.folder / label)

    def write(self, place: Path) -> None:
        self.policy.merge_model().save_pretrained(place)

    def write_call(self, place: Path) -> tuple[str, dict[str, Any]]:
        return "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(place)}}

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class AdapterCourier(FileCourier):
    """Of a LoRA policy the adapter alone, in PEFT's format: the servers hold the base already."""

    def __init__(self, fleet: Fleet, policy: Policy, folder: Path | None, token: str):
        super().__init__(fleet, policy, folder, token)
        self.model = f"cohort-{token}"

    def write(self, place: Path) -> None:
        assert self.policy.adapter is not None
        adapter = dataclasses.replace(self.policy.adapter, base=self.policy.adapter.base or "base")
        lora.save_adapter(self.policy.model, adapter, place)

    def write_call(self, place: Path) -> tuple[str, dict[str, Any]]:
        return "/v1/load_lora_adapter", {"lora_name": self.model, "lora_path": str(place), "load_inplace": True}
