"""The engine of servers: requests go out over HTTP, weights are pushed, and every token says which version sampled it.

How it differs from the engines in this process:

- it keeps a copy of the weights, elsewhere: `sync` pushes them where a server has others, and says so in the label of the weights, which
  comes back with every completion;
- noise is keyed by a seed for each completion, not for each token: the same completion on any server, but for rounding at near-ties,
  which depends on what is decoded beside it;
- servers are lost and come back: their requests move on, and nobody is used before it has the weights.

`generate` may be called by several threads at once, and while another is in `sync`: completions then say which of their tokens are of
which version. Of several ranks the main one pushes, and all of them ask.
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
from cohort.engine.protocol import Capabilities, EngineSetup, OnFinish
from cohort.engine.requests import check_prefix, find_finished_prefix, join_prefix
from cohort.engine.sampling import check_request
from cohort.engine.vllm.checks import ROUNDING, check_server, prove_server
from cohort.engine.vllm.generation import (
    LONGEST_S,
    AnswerReader,
    Asking,
    Job,
    explain_other_trainer,
    is_foreign,
    write_label,
    write_request,
)
from cohort.engine.vllm.servers import Fleet, Server, ServerLost
from cohort.engine.vllm.weights import make_courier, push_weights
from cohort.errors import EngineError
from cohort.recipe.servers import read_servers
from cohort.types import Completion, NoiseKey, Request, Sampling

SLOTS = 256
"""Requests side by side at each server, where the recipe says nothing: what it does not decode at once waits there."""
WAIT_STEP_S = 1.0
PROCESS = secrets.token_hex(6)
"""Of this trainer in the labels of weights: whoever pushes others to its servers is found out."""
ENGINES_MADE = itertools.count(1)
"""A run may have two of them, for the policy and for the one it started from, which take turns on the same servers."""
UNGIVEN = "those that answer do not have the weights that are asked for, and the policy has been trained on since"
FINGERPRINTED = 64
"""Values of each tensor that tell whether weights have changed: an update moves all of them."""


def make_vllm(setup: EngineSetup) -> tuple[VllmEngine, str]:
    if setup.remote is None:
        raise EngineError(
            'sampling.engine: "vllm" needs the policy itself, to push its weights; an engine of a bare model has none.'
        )
    engine = VllmEngine(setup)
    count = len(engine.fleet.servers)
    push = setup.remote.settings.push
    how = {"group": "pushed over a process group", "files": "read from files", "adapter": "the adapter's, read from files"}[
        push
    ]
    return engine, f"engine vllm: {count} server{'s' * (count > 1)}, weights {how}"


class VllmEngine:
    name = "vllm"

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
        self.courier = make_courier(self.fleet, setup.remote, self.token)
        self.model = self.courier.model
        self.config = self.policy.model.config.get_text_config()
        self.label, self.fingerprint, self.version = "", "", -1
        self.pushing = threading.Lock()
        self.push_seconds = 0.0
        self.last: dict[str, float] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            most_slots=SLOTS, cache_itemsize=0, keyed_noise=False, shares_weights=False, rounding=ROUNDING, swaps_in_flight=True
        )

    def choose_slots(self, longest: int) -> int:
        return 0

    def close(self) -> None:
        self.courier.close()

    # -- weights -------------------------------------------------------------------------------------------------------

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Called on every rank; the main one pushes, the others learn who is ready."""
        world = self.policy.world
        fingerprint = make_fingerprint(weights) if world.is_main else ""
        self.token, self.label, self.model, ready = world.on_main(lambda: self.give_weights(fingerprint, version))
        if not world.is_main:
            self.version = version
            for server in self.fleet.servers:
                server.lost = "" if server.number in ready else server.lost or "the main rank does not use it"
                server.given = (self.label, "") if server.number in ready else None

    def give_weights(self, fingerprint: str, version: int) -> tuple[str, str, str, list[int]]:
        """Push where a server has other weights; wait where there is none. (token, label, model, numbers of those that are ready)."""
        label = write_label(self.token, version)
        if (label, fingerprint) != (self.label, self.fingerprint):
            with self.pushing:
                self.courier.take(label)
                self.label, self.fingerprint = label, fingerprint
        self.version = max(self.version, version)
        self.find_ready()
        return self.token, self.label, self.model, [server.number for server in self.fleet.ready]

    def find_ready(self) -> None:
        """Return when some server has the weights: those that are there, or the first that comes."""
        began, waited = time.monotonic(), False
        while not self.try_servers():
            left = began + self.wait_s - time.monotonic()
            if left <= 0:
                raise EngineError(self.explain_absence())
            if not waited:
                how = "start one with `cohort serve`, and the run goes on" if self.fleet.all_lost else UNGIVEN
                self.say(f"waiting up to {self.wait_s:g} s (vllm.wait_s) for a server: {how}")
            waited = True
            self.fleet.wait(min(WAIT_STEP_S, left))

    def try_servers(self) -> bool:
        """Whether some server is ready, once those that answer have been given the weights."""
        with self.pushing:
            there = self.fleet.look()
            self.refuse_other_trainers(there)
            target = (self.label, self.fingerprint)
            for server in there:
                if server.seen.rpartition(".")[0] != self.token:  # started anew, and perhaps as another; or another trainer's
                    server.given, server.proven = None, False
            behind = [server for server in there if server.given != target or server.seen != self.label or not server.proven]
            if not self.policy.world.is_main or not self.has_weights():
                # Not ours to push, or no longer there to be pushed: who still has the weights is ready.
                for server in behind:
                    server.given = target if server.seen == self.label else None
                return bool(self.fleet.ready)
            if behind:
                self.push_to(behind)
        return bool(self.fleet.ready)

    def refuse_other_trainers(self, servers: Sequence[Server]) -> None:
        """Who has worked for this run and now has weights of somebody else is in other hands: both would train on either's samples."""
        for server in servers:
            if server.proven and is_foreign(server.seen.rpartition(".")[0], self.token):
                raise EngineError(
                    explain_other_trainer(server, f"it has weights labelled {make_printable(server.seen[:60])!r}")
                )

    def push_to(self, servers: Sequence[Server]) -> None:
        began, target = time.monotonic(), (self.label, self.fingerprint)
        for server in servers:
            if not server.proven:
                with lose_silent(self.fleet, server):
                    check_server(self.fleet, server, min(self.policy.longest, self.longest or self.policy.longest))
        there = [server for server in servers if not server.lost]
        given = push_weights(self.fleet, self.courier, there, self.label, self.has_weights)
        self.push_seconds = time.monotonic() - began
        for server in given:
            if not server.proven and self.is_unchanged():  # else at the next sync
                with lose_silent(self.fleet, server):
                    server.proven = self.prove(server)
            if not server.lost:
                server.given = target

    def prove(self, server: Server) -> bool:
        """Whether its answers are the policy's own. False: an update came in between, and what was compared says nothing."""
        version = int(self.label.rpartition(".")[2])
        try:
            prove_server(self.fleet, server, self.policy, self.make_reader(()), self.model, version)
        except EngineError:
            if self.is_unchanged():
                raise
            return False
        return True

    def has_weights(self) -> bool:
        """Whether the weights of the last sync can still be given to somebody."""
        return self.courier.holds or self.is_unchanged()

    def is_unchanged(self) -> bool:
        """Whether the policy still has the weights of the last sync, or has been trained on."""
        return make_fingerprint(self.policy.list_own_parameters()) == self.fingerprint

    def name_losses(self) -> str:
        return "; ".join(dict.fromkeys(server.lost for server in self.fleet.servers if server.lost)) or UNGIVEN

    def explain_absence(self) -> str:
        return (
            f"no server is left: {self.name_losses()}. Waited {self.wait_s:g} s (vllm.wait_s). What was trained is saved: start servers again "
            "(`cohort serve`), at these addresses or with others in sampling.servers of the run's recipe.toml, and go on with `cohort resume`."
        )

    # -- completions ---------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        if not self.label:
            raise EngineError("the servers have no weights yet: `sync` comes before `generate`.")
        check_request(self.config, [request.prompt for request in requests], sampling)
        found: dict[int, Completion] = {}

        def finish(place: int, completion: Completion) -> None:
            found[place] = completion
            if on_finish is not None:
                on_finish(requests[place], completion)

        jobs = []
        for place, request in enumerate(requests):
            check_prefix(request)
            whole = find_finished_prefix(request, sampling)
            if whole is not None:
                finish(place, whole)
                continue
            most = sampling.max_completion_tokens - len(request.prefix_ids)
            jobs.append(Job(place, request, write_request(request, sampling, noise, self.model), most))
        asking = Asking(
            self.fleet,
            self.slots or SLOTS,
            self.make_reader(sampling.stop_ids),
            self.find_versions,
            lambda job, completion: finish(job.place, join_prefix(job.request, completion, self.version)),
        )
        losses = self.fleet.losses
        while left := [job for job in jobs if job.place not in found]:
            run_in_loop(lambda left=left: asking.ask_all(left), LONGEST_S)  # type: ignore[misc]
            if any(job.place not in found for job in jobs):
                self.find_ready()
        self.note_figures(asking, losses)
        return [found[place] for place in range(len(requests))]

    def make_reader(self, stop_ids: Sequence[int]) -> AnswerReader:
        return AnswerReader(self.token, self.config.vocab_size, stop_ids, self.decode)

    def find_versions(self, server: Server) -> range:
        """From the version that the server was given to the newest that is, or is being, pushed."""
        given = server.given[0] if server.given else self.label
        return range(int(given.rpartition(".")[2]), self.version + 1)

    def note_figures(self, asking: Asking, losses: int) -> None:
        figures = {
            "servers/ready": float(len(self.fleet.ready)),
            "servers/lost": float(self.fleet.losses - losses),
            "servers/moved": float(asking.moved),
            "servers/push_seconds": self.push_seconds,
        }
        for server, seen in asking.seen.items():
            figures[f"servers/{server.number}/waiting"] = seen.waiting
            if seen.seconds:
                figures[f"servers/{server.number}/tokens_per_second"] = seen.tokens / seen.seconds
        self.last = figures


@contextmanager
def lose_silent(fleet: Fleet, server: Server) -> Iterator[None]:
    """What a server leaves unanswered makes it lost, and is no error of the run."""
    try:
        yield
    except ServerLost as problem:
        fleet.lose(server, str(problem))


@torch.no_grad()
def make_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Changes with any update of the weights, and costs next to nothing."""
    firsts = [value[(0,) * (value.dim() - 1)][:FINGERPRINTED].double() for value in weights.values()]
    return hashlib.blake2b(torch.cat(firsts).cpu().numpy().tobytes(), digest_size=16).hexdigest()
