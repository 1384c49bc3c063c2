"""The engine for vLLM servers: sends requests over HTTP, pushes weights, and records which version sampled every token.

Differences from the engines in this process:

- it has a copy of the weights, on the servers. `sync` pushes weights to servers that have others. Their version is part of the label
  of the weights, which every completion reports;
- noise is keyed by one seed per completion, not per token. A completion is the same on every server except for rounding at near-ties, which
  depends on what is decoded in parallel;
- servers can be lost and come back. Their requests move to other servers, and no server is used before it has the weights.

Several threads may call `generate` at once, also during a `sync`; completions then record the version of each token. With several
ranks the main rank pushes weights, and all ranks send requests.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cohort.base.http import run_in_loop
from cohort.base.text import make_printable
from cohort.engine.protocol import Capabilities, Engine, EngineSetup, OnFinish
from cohort.engine.requests import check_prefix, count_left, find_finished_prefix, join_prefix
from cohort.engine.sampling import check_request
from cohort.engine.vllm.checks import ROUNDING, check_server, prove_server
from cohort.engine.vllm.generation import (
    LONGEST_S,
    GenerationCall,
    Job,
    ReplyReader,
    explain_other_trainer,
    is_foreign,
    write_request,
)
from cohort.engine.vllm.servers import Fleet, Server, ServerLost
from cohort.engine.vllm.weights import make_pusher, push_weights
from cohort.errors import EngineError
from cohort.recipe.values import read_servers
from cohort.types import Completion, NoiseKey, Request, Sampling

SLOTS = 256
"""Default number of parallel requests per server; vLLM queues what it cannot decode at once."""
WAIT_STEP_S = 1.0
PROCESS = secrets.token_hex(6)
"""Identifies this trainer in the labels of weights, so that other trainers on its servers are detected."""
ENGINES_MADE = itertools.count(1)
"""A run may have two engines, for the policy and for its start, which take turns on the same servers."""
NO_WEIGHTS = "the servers that respond do not have the requested weights, and the policy has been trained since"
FINGERPRINTED = 64
"""Values per tensor that show whether weights have changed: an update changes all of them."""


def make_vllm(setup: EngineSetup) -> tuple[VllmEngine, str]:
    if setup.remote is None:
        raise EngineError('sampling.engine: "vllm" needs a policy whose weights it can push; it cannot serve a bare model.')
    engine = VllmEngine(setup)
    count = len(engine.fleet.servers)
    ways = {"group": "pushed over a process group", "files": "read from files", "adapter": "of the adapter read from files"}
    return engine, f"engine vllm: {count} server{'s' * (count > 1)}, weights {ways[setup.remote.settings.push]}"


class VllmEngine(Engine):
    name = "vllm"
    code = "servers"

    def __init__(self, setup: EngineSetup) -> None:
        assert setup.remote is not None
        self.slots, self.decode, self.policy = setup.slots, setup.decode, setup.remote.policy
        settings, self.say, self.longest = setup.remote.settings, setup.remote.say, setup.remote.longest
        try:
            addresses = read_servers(setup.remote.servers)
        except ValueError as problem:
            raise EngineError(f"sampling.servers: {problem}") from None
        self.fleet, self.wait_s = Fleet(addresses, settings.limit_s, self.say), settings.wait_s
        self.token = f"{PROCESS}-{next(ENGINES_MADE)}"
        self.pusher = make_pusher(self.fleet, setup.remote, self.token)
        self.model = self.pusher.model
        self.config = self.policy.model.config.get_text_config()
        self.label, self.fingerprint, self.version = "", "", -1
        self.was_ready = False
        """Whether a server has ever had the weights."""
        self.pushing = threading.Lock()
        self.push_seconds = 0.0
        self.last: dict[str, float] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            most_slots=SLOTS,
            cache_itemsize=0,
            keyed_noise=False,
            shares_weights=False,
            rounding=ROUNDING,
            swaps_in_flight=True,
            parallel_calls=True,
        )

    def close(self) -> None:
        self.pusher.close()

    # -- weights -------------------------------------------------------------------------------------------------------

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Called on every rank: the main rank pushes, and the others learn which servers are ready."""
        world = self.policy.world
        fingerprint = make_fingerprint(weights) if world.is_main else ""
        self.token, self.label, self.model, ready = world.on_main(lambda: self.update_servers(fingerprint, version))
        if not world.is_main:
            self.version = version
            for server in self.fleet.servers:
                server.lost = "" if server.number in ready else server.lost or "the main rank does not use it"
                server.pushed = (self.label, "") if server.number in ready else None

    def update_servers(self, fingerprint: str, version: int) -> tuple[str, str, str, list[int]]:
        """Push to servers with other weights, and wait for a ready one. Returns (token, label, model, numbers of ready servers)."""
        label = f"{self.token}.{version}"
        if (label, fingerprint) != (self.label, self.fingerprint):
            with self.pushing:
                self.pusher.save_weights(label)
                self.label, self.fingerprint = label, fingerprint
        self.version = max(self.version, version)
        self.wait_for_server()
        return self.token, self.label, self.model, [server.number for server in self.fleet.ready]

    def wait_for_server(self) -> None:
        """Return as soon as a server has the weights. Raises EngineError after vllm.wait_s."""
        began, waited = time.monotonic(), False
        while not self.try_servers():
            left = began + self.wait_s - time.monotonic()
            if left <= 0:
                losses = dict.fromkeys(server.lost for server in self.fleet.servers if server.lost)
                fix = (
                    "The training state is saved: start servers again (`cohort serve`) at the same addresses, or set sampling.servers in the "
                    "run's recipe.toml to other ones, and continue with `cohort resume`."
                    if self.was_ready
                    else "No server was ready since this command began: check sampling.servers, start one (`cohort serve`), then repeat the command."
                )
                raise EngineError(
                    f"no server is left: {'; '.join(losses) or NO_WEIGHTS}. Waited {self.wait_s:g} s (vllm.wait_s). {fix}"
                )
            if not waited:
                all_lost = all(server.lost for server in self.fleet.servers)
                fix = "start one with `cohort serve`, and the run continues" if all_lost else NO_WEIGHTS
                self.say(f"waiting up to {self.wait_s:g} s (vllm.wait_s) for a server: {fix}")
            waited = True
            time.sleep(min(WAIT_STEP_S, left))
        self.was_ready = True

    def try_servers(self) -> bool:
        """Push the weights to the servers that respond; whether any server is ready."""
        with self.pushing:
            responding = self.fleet.poll()
            self.refuse_other_trainers(responding)
            target = (self.label, self.fingerprint)
            for server in responding:
                if server.label.rpartition(".")[0] != self.token:  # restarted, perhaps with another model; or another trainer's
                    server.pushed, server.proven = None, False
            behind = [one for one in responding if one.pushed != target or one.label != self.label or not one.proven]
            if not self.policy.world.is_main or not self.has_weights():
                # This process does not push, or no longer has the weights: servers that still have them are ready.
                for server in behind:
                    server.pushed = target if server.label == self.label else None
                return bool(self.fleet.ready)
            if behind:
                self.push_to(behind)
        return bool(self.fleet.ready)

    def refuse_other_trainers(self, servers: Sequence[Server]) -> None:
        """Raise EngineError if a server of this run got weights from another trainer: both would train on the other's samples."""
        for server in servers:
            if server.proven and is_foreign(server.label.rpartition(".")[0], self.token):
                found = f"its weights have the label {make_printable(server.label[:60])!r}"
                raise EngineError(explain_other_trainer(server, found))

    def push_to(self, servers: Sequence[Server]) -> None:
        began, target = time.monotonic(), (self.label, self.fingerprint)
        for server in servers:
            if not server.proven:
                with mark_lost_if_silent(self.fleet, server):
                    check_server(self.fleet, server, min(self.policy.longest, self.longest or self.policy.longest))
        responding = [server for server in servers if not server.lost]
        pushed = push_weights(self.fleet, self.pusher, responding, self.label, self.has_weights)
        self.push_seconds = time.monotonic() - began
        for server in pushed:
            if not server.proven and self.is_unchanged():  # otherwise at the next sync
                with mark_lost_if_silent(self.fleet, server):
                    server.proven = self.prove(server)
            if not server.lost:
                server.pushed = target

    def prove(self, server: Server) -> bool:
        """Compare the server's log-probs with the policy's. False: the policy changed meanwhile, so the comparison says nothing."""
        version = int(self.label.rpartition(".")[2])
        try:
            prove_server(self.fleet, server, self.policy, self.make_reader(()), self.model, version)
        except EngineError:
            if self.is_unchanged():
                raise
            return False
        return True

    def has_weights(self) -> bool:
        """Whether the weights of the last sync can still be pushed."""
        return self.pusher.can_repeat or self.is_unchanged()

    def is_unchanged(self) -> bool:
        """Whether the policy still has the weights of the last sync."""
        return make_fingerprint(self.policy.list_own_parameters()) == self.fingerprint

    # -- completions ---------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        if not self.label:
            raise EngineError("the servers have no weights yet: call `sync` before `generate`.")
        check_request(self.config, [request.prompt for request in requests], sampling)
        found: dict[int, Completion] = {}

        def finish(place: int, completion: Completion) -> None:
            found[place] = completion
            if on_finish is not None:
                on_finish(requests[place], completion)
            if self.on_progress is not None:
                self.on_progress(len(found) / len(requests))

        jobs = []
        for place, request in enumerate(requests):
            check_prefix(request)
            finished = find_finished_prefix(request, sampling)
            if finished is not None:
                finish(place, finished)
                continue
            most = count_left(request, sampling)
            jobs.append(Job(place, request, write_request(request, sampling, noise, self.model), most))
        call = GenerationCall(
            self.fleet,
            self.slots or SLOTS,
            self.make_reader(sampling.stop_ids),
            self.find_versions,
            lambda job, completion: finish(job.place, join_prefix(job.request, completion, self.version)),
        )
        losses = self.fleet.losses
        while left := [job for job in jobs if job.place not in found]:
            run_in_loop(lambda left=left: call.run(left), LONGEST_S)  # type: ignore[misc]
            if any(job.place not in found for job in jobs):
                self.wait_for_server()
        self.last = {
            "servers/ready": float(len(self.fleet.ready)),
            "servers/lost": float(self.fleet.losses - losses),
            "servers/moved": float(call.moved),
            "servers/push_seconds": self.push_seconds,
        }
        for server, figures in call.figures.items():
            self.last[f"servers/{server.number}/waiting"] = figures.waiting
            if figures.seconds:
                self.last[f"servers/{server.number}/tokens_per_second"] = figures.tokens / figures.seconds
        return [found[place] for place in range(len(requests))]

    def make_reader(self, stop_ids: Sequence[int]) -> ReplyReader:
        return ReplyReader(self.token, self.config.vocab_size, stop_ids, self.decode)

    def find_versions(self, server: Server) -> range:
        """From the version that was pushed to the server to the newest version that is, or is being, pushed."""
        pushed = server.pushed[0] if server.pushed else self.label
        return range(int(pushed.rpartition(".")[2]), self.version + 1)


@contextmanager
def mark_lost_if_silent(fleet: Fleet, server: Server) -> Iterator[None]:
    """Mark the server as lost on a ServerLost inside, instead of failing the run."""
    try:
        yield
    except ServerLost as problem:
        fleet.mark_lost(server, str(problem))


@torch.no_grad()
def make_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """A cheap hash of the weights that changes with every update."""
    firsts = [value[(0,) * (value.dim() - 1)][:FINGERPRINTED].double() for value in weights.values()]
    return hashlib.blake2b(torch.cat(firsts).cpu().numpy().tobytes(), digest_size=16).hexdigest()
