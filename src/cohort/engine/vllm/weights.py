"""Pushes weights to servers: over a process group, as files, or only an adapter as files.

Servers are paused before every push and resumed after it, in any case: a push during requests would crash a server, and a server
that stays paused answers no requests. Requests in progress continue with the new weights, on recomputed keys and values. A push
that fails midway leaves servers with half of the weights. A complete push repairs them, so it is repeated with the remaining servers
before any server is resumed.
"""

from __future__ import annotations

import dataclasses
import queue
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cohort.base.threads import Ended, start_thread
from cohort.engine.protocol import RemoteSetup
from cohort.engine.vllm import transfer
from cohort.engine.vllm.servers import Fleet, Replies, Server, ServerRefused
from cohort.errors import EngineError
from cohort.model import lora
from cohort.model.policy import Policy

TRIES = 3
"""Attempts of a push, each with the remaining servers."""
READ_S = 600.0
"""Time for a server to read all weights from files, in addition to its limit."""
LOADING_S = 60.0
"""Time for a server to load the last tensors, in addition to its limit."""
MOST_WORKERS = 4096


class PushFailed(Exception):
    """A push failed midway: the remaining servers have half of the weights. server: the one that failed, if known."""

    def __init__(self, message: str, server: Server | None = None) -> None:
        super().__init__(message)
        self.server = server


def push_weights(
    fleet: Fleet, pusher: Pusher, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]
) -> list[Server]:
    """The servers that now have the weights under this label; the others are lost. Raises EngineError if a push fails every time."""
    with pause_servers(fleet, servers):
        problem, blamed = "", set[Server | None]()
        for _ in range(TRIES):
            servers = [server for server in servers if not server.lost]
            if not servers:
                return []
            try:
                pusher.push(servers, label, unchanged)
                return [server for server in servers if not server.lost]
            except PushFailed as failed:
                problem = str(failed)
                fleet.poll_after_refusal()
                if failed.server is not None and failed.server in blamed:
                    fleet.mark_lost(failed.server, problem)  # so that the push does not fail for the others a third time
                blamed.add(failed.server)
        for server in servers:
            fleet.mark_lost(server, f"{server.address} has half of the weights: {problem}")
        raise EngineError(f"the weights could not be pushed to the servers in {TRIES} attempts: {problem}")


@contextmanager
def pause_servers(fleet: Fleet, servers: Sequence[Server]) -> Iterator[None]:
    """Pause servers, and resume them afterwards. Servers that do not respond are lost."""
    fleet.pushing = True
    try:
        mark_silent_lost(fleet, fleet.call_all(servers, "/pause?mode=keep", {}))
        yield
    finally:
        try:
            mark_silent_lost(fleet, fleet.call_all(servers, "/resume", {}))
        finally:
            fleet.pushing = False


def mark_silent_lost(fleet: Fleet, replies: Replies) -> None:
    for server, reply in replies.items():
        if isinstance(reply, Exception):
            fleet.mark_lost(server, str(reply))


def check_replies(replies: Replies) -> None:
    for server, reply in replies.items():
        if isinstance(reply, Exception):
            raise PushFailed(str(reply), server)


def make_pusher(fleet: Fleet, remote: RemoteSetup, token: str) -> Pusher:
    policy, settings = remote.policy, remote.settings
    if settings.push == "group":
        return GroupPusher(fleet, policy, settings.address, remote.keep)
    return (FilePusher if settings.push == "files" else AdapterPusher)(fleet, policy, remote.folder, token)


# -- over a process group ----------------------------------------------------------------------------------------------


class GroupPusher:
    """Sends the weights over a process group: the trainer is rank 0, and every worker of the servers is a rank.

    The group is created again when the servers change.
    """

    model = ""
    """Name under which the servers serve the pushed weights; "": their own model."""

    def __init__(self, fleet: Fleet, policy: Policy, address: str, keep: bool):
        """keep: keep a copy of the weights in host memory, so that they can be pushed again after the policy was trained."""
        self.fleet, self.policy, self.address, self.can_repeat = fleet, policy, address, keep
        self.kept: dict[str, Tensor] = {}
        self.device = policy.device if policy.device.type == "cuda" else torch.device("cpu")
        self.group: Any = None
        self.members: list[Server] = []
        refuse_converted(policy)

    def save_weights(self, label: str) -> None:
        """Copy the policy's weights as they are now, if they have to be kept."""
        if self.can_repeat:
            weights = self.policy.merge_model().named_parameters()
            self.kept = {name: value.detach().to("cpu", copy=True) for name, value in weights}

    def push(self, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]) -> None:
        """Push to paused servers. Raises PushFailed, also if the policy is no longer `unchanged` at the end."""
        weights = self.kept or dict(self.policy.merge_model().named_parameters())
        entries: list[transfer.Entry] = [
            (name, str(value.dtype).split(".")[-1], list(value.shape)) for name, value in weights.items()
        ]
        try:
            if self.group is None or self.members != list(servers):
                self.form_group(servers, entries)
            self.send(servers, weights, entries)
            if not unchanged():
                raise PushFailed("the policy was trained on while its weights were sent")
            check_replies(self.fleet.call_all(servers, "/finish_weight_update", {"weight_version": label}))
        except PushFailed:
            self.close()  # so that workers stop waiting for more
            raise

    def form_group(self, servers: Sequence[Server], entries: Sequence[transfer.Entry]) -> None:
        """Check on the servers that the weights fit, before any of theirs is changed; then create the group."""
        self.close()
        info = {"entries": entries, "device": self.device.type}
        fits = self.fleet.call_all(servers, "/init_weight_transfer_engine", {"init_info": info})
        if refused := {server: reply for server, reply in fits.items() if isinstance(reply, ServerRefused)}:
            self.fleet.poll_after_refusal()
            for server, reply in refused.items():
                if not server.lost:  # it still runs, so it was not a dying server
                    raise EngineError(
                        f"{reply} (a server needs the plugin cohort-vllm and the model of the recipe: start it with `cohort serve`)"
                    )
        check_replies(fits)
        sizes = self.fleet.call_all(servers, "/get_world_size")
        check_replies(sizes)
        workers = [read_workers(server, reply) for server, reply in sizes.items()]
        endpoint, limit_s = servers[0].endpoint, self.fleet.limit_s
        try:
            address = self.address or transfer.find_own_address(endpoint.host, endpoint.port)
            listener = transfer.listen(address)
        except OSError as problem:
            raise EngineError(
                f"vllm.address: this trainer cannot accept connections from {servers[0].address} ({problem}). Set it to an address of this "
                "machine that the servers can reach."
            ) from None
        port, size = listener.getsockname()[1], 1 + sum(workers)
        ranks = [1 + sum(workers[:place]) for place in range(len(workers))]
        bodies = {
            server: {
                "init_info": {**info, "address": address, "port": port, "size": size, "first_rank": first, "limit_s": limit_s}
            }
            for server, first in zip(servers, ranks, strict=True)
        }
        with self.calling(servers, "/init_weight_transfer_engine", bodies):
            self.group = transfer.join_group(address, port, 0, size, self.device, limit_s, listener)
        self.members = list(servers)

    def send(self, servers: Sequence[Server], weights: dict[str, Tensor], entries: Sequence[transfer.Entry]) -> None:
        begun = self.fleet.call_all(servers, "/start_weight_update", {})
        if still_open := [server for server, reply in begun.items() if isinstance(reply, ServerRefused)]:
            # A trainer that died during a push left its session open, which has to end before another can start.
            self.fleet.call_all(still_open, "/update_weights", {"update_info": {"abandon": True}})
            begun = {**begun, **self.fleet.call_all(still_open, "/start_weight_update", {})}
        check_replies(begun)
        with self.calling(servers, "/update_weights", {server: {"update_info": {}} for server in servers}):
            for bucket in transfer.fill_buckets(entries):
                transfer.send_bucket(self.group, [weights[name] for name, _, _ in bucket], self.device)

    @contextmanager
    def calling(self, servers: Sequence[Server], path: str, bodies: Replies) -> Iterator[None]:
        """Call the servers in a thread while the body of the `with` runs. A failure on either side is a PushFailed."""
        ended: Ended[Replies] = queue.SimpleQueue()
        wait_s = 2 * self.fleet.limit_s + READ_S
        start_thread(lambda: self.fleet.call_all(servers, path, limit_s=wait_s, bodies=bodies), ended)
        try:
            yield
        except RuntimeError as problem:  # torch raises it for every failure of a group
            raise PushFailed(f"the process group with the servers failed: {str(problem).splitlines()[0][:200]}") from problem
        try:
            _, replies, failed = ended.get(timeout=self.fleet.limit_s + LOADING_S)
        except queue.Empty:
            raise PushFailed(f"the servers did not respond to {path} within {self.fleet.limit_s + LOADING_S:g} s") from None
        if failed is not None or replies is None:
            raise PushFailed(str(failed))
        check_replies(replies)

    def close(self) -> None:
        self.group, self.members = None, []


def read_workers(server: Server, reply: Any) -> int:
    count = reply.get("world_size") if isinstance(reply, dict) else None
    if type(count) is not int or not 1 <= count <= MOST_WORKERS:
        raise PushFailed(f"{server.address} does not report its number of workers", server)
    return count


def refuse_converted(policy: Policy) -> None:
    """Raise EngineError for models whose files hold other tensors than their modules (mixtures of experts): vLLM expects those of files."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    if get_model_conversion_mapping(policy.model, add_legacy=False):
        raise EngineError(
            f"vllm.push: the files of {type(policy.model).__name__} hold other tensors than its modules, and vLLM needs those of the files. "
            'Use push = "files".'
        )


# -- as files ----------------------------------------------------------------------------------------------------------


class FilePusher:
    """Saves each version in a folder that the servers read. Older versions are deleted; other files are not touched."""

    model = ""
    can_repeat = True

    def __init__(self, fleet: Fleet, policy: Policy, folder: Path | None, token: str):
        self.fleet, self.policy = fleet, policy
        self.folder = (folder or Path(tempfile.gettempdir())) / f"cohort-weights-{token}"

    def push(self, servers: Sequence[Server], label: str, unchanged: Callable[[], bool]) -> None:
        path, body = self.write_call(self.folder / label)
        check_replies(self.fleet.call_all(servers, path, body, limit_s=self.fleet.limit_s + READ_S))
        check_replies(self.fleet.call_all(servers, "/update_weight_version", {"new_version": label}))

    def save_weights(self, label: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.write(self.folder / label)

    def write(self, place: Path) -> None:
        self.policy.merge_model().save_pretrained(place)

    def write_call(self, place: Path) -> tuple[str, dict[str, Any]]:
        return "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(place)}}

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class AdapterPusher(FilePusher):
    """Saves only the adapter of a LoRA policy, in PEFT's format: the servers have the base already."""

    def __init__(self, fleet: Fleet, policy: Policy, folder: Path | None, token: str):
        super().__init__(fleet, policy, folder, token)
        self.model = f"cohort-{token}"

    def write(self, place: Path) -> None:
        assert self.policy.adapter is not None
        adapter = dataclasses.replace(self.policy.adapter, base=self.policy.adapter.base or "base")
        lora.save_adapter(self.policy.model, adapter, place)

    def write_call(self, place: Path) -> tuple[str, dict[str, Any]]:
        return "/v1/load_lora_adapter", {"lora_name": self.model, "lora_path": str(place), "load_inplace": True}


Pusher = GroupPusher | FilePusher
