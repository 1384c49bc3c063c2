"""Samples groups continuously and swaps weights during generation.

    requested -> sampled -> scored -> trained on          each group is identified by its prompt's place in the stream

Sampling never pauses: a group may begin with one policy version and end with another, and records which version sampled which tokens.
Pacing limits its age: at most `prompts_per_step * (1 + max_staleness)` groups are in flight or in training, and a new one is requested
only when one has been trained on. A group that is too slow for pacing to help is dropped and counted: no trained token is more
than `max_staleness` steps older than the policy. Sampled groups are saved in checkpoints; the others are requested again.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.base.stopwatch import Stopwatch
from cohort.base.text import write_count
from cohort.base.threads import Worker
from cohort.engine import make_requests
from cohort.errors import InvariantError, RunError
from cohort.rewards.outcomes import mean_and_std
from cohort.training.ahead import LocalScorer, measure_staleness
from cohort.training.rollouts import (
    Collected,
    Collection,
    RewardScorer,
    SampledSource,
    decode_rollouts,
    encode_rollouts,
    finish_collection,
    merge_metrics,
)
from cohort.training.run import TrainingRun
from cohort.training.state import TrainState
from cohort.types import UNSCORED, NoiseKey, Prompt, Rollout

MOST_THREADS = 256
"""Groups requested from the engine at a time; more of them wait in this process."""


@dataclass(frozen=True)
class Chunk:
    """Groups that were scored in one call."""

    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class SampledGroup:
    place: int
    rollouts: list[Rollout]
    seconds: float = 0.0
    """Time from the request to the last token."""
    chunk: Chunk | None = None
    """None: not scored yet."""


@dataclass
class Holdings:
    """All groups that are requested and not trained on. Each is in one of these lists."""

    next_place: int = 0
    requested: list[int] = field(default_factory=list)
    sampled: list[SampledGroup] = field(default_factory=list)
    scoring: list[SampledGroup] = field(default_factory=list)
    scored: list[SampledGroup] = field(default_factory=list)
    training: list[SampledGroup] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.requested) + len(self.sampled) + len(self.scoring) + len(self.scored) + len(self.training)


class InFlight:
    """All ranks call the same methods; the main rank requests and scores the groups."""

    name = "in_flight"

    def __init__(self, run: TrainingRun, state: TrainState) -> None:
        assert isinstance(run.source, SampledSource)
        self.run, self.train_state, self.source = run, state, run.source
        self.max_staleness, self.limit_s = run.recipe.ahead.max_staleness, run.recipe.ahead.limit_s
        self.wanted = run.recipe.train.prompts_per_step
        self.most = self.wanted * (1 + self.max_staleness)
        self.scorer = RewardScorer(LocalScorer(run.rewards), run.recipe)
        self.held = Holdings(next_place=state.cursor)
        self.steps_of: dict[int, int] = {}
        """Policy version -> finished steps when it began to sample."""
        self.step = 0
        self.dropped = 0
        """Groups dropped as too old since the last step."""
        self.problem: BaseException | None = None
        self.changed = threading.Condition()
        self.sampler, self.scoring = Worker("sampler", min(self.most, MOST_THREADS)), Worker("scorer")
        self.restored = self.closed = False

    # -- called by the loop ----------------------------------------------------------------------------------------------

    def begin(self, step: int, until: int) -> None:
        """Give the engine the new weights, and request as many groups as pacing allows."""
        self.steps_of[self.train_state.policy_version] = self.train_state.step
        self.source.sync(self.train_state.policy_version)
        if self.run.world.is_main:
            with defer_interrupts(), self.changed:
                self.step, self.held.training = step, []
                if self.restored:  # the requests of the earlier process ended with it
                    self.restored = False
                    for place in self.held.requested:
                        self._submit(place)
                self._request_more(until)
                self._score_if_enough()  # the step before may have left too few scored groups for this one

    def take(self, step: int, watch: Stopwatch) -> Collected:
        """The oldest scored groups, once there are enough for a step."""
        version = self.train_state.policy_version
        collected = self.run.world.on_main(lambda: self._take(step, version))
        watch.lap("wait")
        return collected

    def finish_sampling(self, watch: Stopwatch) -> None:
        """Return at once: weights are swapped during generation."""

    def describe(self) -> list[str]:
        """Console messages at the start of training."""
        return [
            f"ahead: groups are sampled continuously, up to {write_count(self.max_staleness, 'step')} before they are trained on, and "
            "weights are swapped during generation; such runs are not bitwise reproducible"
        ]

    def close(self) -> None:
        """End the threads after their current work; waiting requests are not started."""
        self.closed = True
        self.sampler.close()
        self.scoring.close()

    # -- in the training thread ------------------------------------------------------------------------------------------

    def _request_more(self, until: int) -> None:
        needed = self.wanted * (until - self.train_state.step)
        for _ in range(min(self.most, needed) - self.held.count):
            self.held.requested.append(self.held.next_place)
            self._submit(self.held.next_place)
            self.held.next_place += 1

    def _submit(self, place: int) -> None:
        [prompt] = self.run.stream.take(place, 1)
        work = functools.partial(self._sample, place, prompt, self.train_state.policy_version)
        self.sampler.submit(functools.partial(self._guard, work))

    def _take(self, step: int, version: int) -> Collected:
        deadline, held = time.monotonic() + self.limit_s, self.held
        with self.changed:
            while True:
                self._drop_old(step)
                if len(held.scored) >= self.wanted:
                    break
                if self.problem is not None:
                    raise self.problem
                if not self.changed.wait(deadline - time.monotonic()):
                    raise RunError(
                        f"ahead.limit_s: step {step} has {len(held.scored)} of its {self.wanted} groups after {self.limit_s:g} s: "
                        f"{len(held.requested)} are being sampled and {len(held.sampled) + len(held.scoring)} scored, in the background. "
                        "Check the engine and the reward functions; if they need that long, raise ahead.limit_s. Then resume with: "
                        "cohort resume"
                    )
            with defer_interrupts():
                held.scored.sort(key=lambda group: group.place)  # the oldest requests expire first
                groups, held.scored = held.scored[: self.wanted], held.scored[self.wanted :]
                held.training, dropped, self.dropped = groups, self.dropped, 0
            in_flight = held.count - len(groups)
        rollouts, rounds = tuple(group.rollouts for group in groups), ((self.wanted, join_metrics(groups)),)
        collection = Collection(self.train_state.cursor, self.wanted, 0, version, rollouts, rounds)
        collected = finish_collection(collection, version, sampled=True, keyed=True)  # held here until its first update
        metrics = {
            "ahead/groups": float(in_flight),
            "ahead/dropped_groups": float(dropped),
            "ahead/staleness_steps": float(max((self._find_age(group, step) for group in groups), default=0)),
            "ahead/sample_seconds": max(group.seconds for group in groups),
            "ahead/score_seconds": max(group.chunk.seconds for group in groups if group.chunk),
            **measure_staleness(collected.rollouts, version),
        }
        return replace(collected, metrics=collected.metrics | metrics, prompts_taken=collected.prompts_taken + dropped)

    def _find_age(self, group: SampledGroup, step: int) -> int:
        """Steps between its oldest token and the policy at the start of `step`."""
        versions = {version for rollout in group.rollouts for version, _ in rollout.versions}
        if unknown := versions - self.steps_of.keys():
            raise InvariantError(f"tokens of policy version {min(unknown)}, which this run never sampled with.")
        return step - 1 - min(self.steps_of[version] for version in versions)

    def _drop_old(self, step: int) -> None:
        """Drop groups that are too old to train on, and request others."""
        fresh = [group for group in self.held.scored if self._find_age(group, step) <= self.max_staleness]
        if dropped := len(self.held.scored) - len(fresh):
            self.held.scored, self.dropped = fresh, self.dropped + dropped
            self._request_more(self.run.recipe.train.num_steps)
            self._score_if_enough()

    # -- in the other threads --------------------------------------------------------------------------------------------

    def _guard(self, work: Any) -> None:
        """Do the work; keep its error for the thread that waits for groups."""
        try:
            if not self.closed:
                work()
        except BaseException as problem:
            with self.changed:
                self.problem = self.problem or problem
                self.changed.notify_all()

    def _sample(self, place: int, prompt: Prompt, version: int) -> None:
        """Sample one group. The place keys its noise, whichever step trains on it."""
        began, source = time.monotonic(), self.source
        requests = make_requests([prompt], source.sampling.group_size, place % self.wanted)
        noise = NoiseKey(source.seed, "train", place // self.wanted + 1)
        completions = source.engine.generate(requests, source.sampling, noise)
        rollouts = [Rollout(prompt, 0, sample, one, UNSCORED, version) for sample, one in enumerate(completions)]
        with self.changed:
            self.held.requested.remove(place)
            self.held.sampled.append(SampledGroup(place, rollouts, time.monotonic() - began))
            self._score_if_enough()
            self.changed.notify_all()

    def _score_if_enough(self) -> None:
        """Score as many groups as a step has or still needs in one call: the allowed share of faults is per call."""
        held = self.held
        lacking = self.wanted - len(held.scored) - len(held.scoring)
        count = lacking if lacking > 0 else self.wanted
        if len(held.sampled) >= count:
            held.sampled.sort(key=lambda group: group.place)
            chosen, held.sampled = held.sampled[:count], held.sampled[count:]
            held.scoring += chosen
            self.scoring.submit(functools.partial(self._guard, functools.partial(self._score, chosen)))

    def _score(self, groups: Sequence[SampledGroup]) -> None:
        began = time.monotonic()
        prompts = [group.rollouts[0].prompt for group in groups]
        completions_PG = [[rollout.completion for rollout in group.rollouts] for group in groups]
        scored = self.scorer.score(prompts, completions_PG, self.step, Stopwatch())
        chunk, outcomes = Chunk(scored.metrics, time.monotonic() - began), iter(scored.outcomes)
        done = [
            replace(group, chunk=chunk, rollouts=[replace(rollout, outcome=next(outcomes)) for rollout in group.rollouts])
            for group in groups
        ]
        with self.changed:
            self.held.scoring = self.held.scoring[len(groups) :]  # one thread scores them in order
            self.held.scored += done
            self._score_if_enough()
            self.changed.notify_all()

    # -- in a checkpoint -------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All sampled groups without an update, and the places of the groups to request again."""
        with self.changed:
            held = self.held
            # Groups of a finished step stay here until the next step begins; those of a step with an update are saved in its batch.
            untouched = self.step > self.train_state.step and not self.train_state.update_metrics
            groups = [*(held.training if untouched else []), *held.scored, *held.scoring, *held.sampled]
            document: dict[str, Any] = {
                "next_place": held.next_place,
                "requested": list(held.requested),
                "dropped": self.dropped,
                "steps_of": [[version, steps] for version, steps in self.steps_of.items()],
            }
        chunks = list({id(group.chunk): group.chunk for group in groups if group.chunk is not None}.values())
        tensors, rows = encode_rollouts([rollout for group in groups for rollout in group.rollouts])
        document["chunks"] = [[chunk.metrics, chunk.seconds] for chunk in chunks]
        document["groups"] = [
            [group.place, len(group.rollouts), group.seconds, chunks.index(group.chunk) if group.chunk else -1]
            for group in groups
        ]
        return tensors, document | {"rollouts": rows}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        self.steps_of = dict(document["steps_of"])
        if not self.run.world.is_main:
            return
        prompts = {prompt.index: prompt for prompt in self.run.stream.prompts}
        rollouts = iter(decode_rollouts(tensors, document["rollouts"], prompts.__getitem__))
        chunks = [Chunk(*chunk) for chunk in document["chunks"]]
        groups = [
            SampledGroup(place, [next(rollouts) for _ in range(size)], seconds, chunks[chunk] if chunk >= 0 else None)
            for place, size, seconds, chunk in document["groups"]
        ]
        self.held = Holdings(
            next_place=document["next_place"],
            requested=list(document["requested"]),
            sampled=[group for group in groups if group.chunk is None],
            scored=[group for group in groups if group.chunk is not None],
        )
        self.dropped, self.restored = document["dropped"], True


def join_metrics(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """Metrics of the scoring calls, weighted by the groups that each scored; rewards: mean and deviation over all groups."""
    counts: dict[int, tuple[Chunk, int]] = {}
    for group in groups:
        assert group.chunk is not None
        counts[id(group.chunk)] = group.chunk, counts.get(id(group.chunk), (None, 0))[1] + 1
    row = merge_metrics([(count, chunk.metrics) for chunk, count in counts.values()])
    rewards = [rollout.outcome.reward for group in groups for rollout in group.rollouts]
    return row | mean_and_std("reward", [reward for reward in rewards if reward is not None])
