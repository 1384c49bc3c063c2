"""Samples and scores later steps in two threads while this one trains.

    step k      training thread   trains on batch k
                sampling thread   samples batch k + lag, with the weights at the start of step k
                scoring thread    scores finished samples

So batch k is sampled with the weights at the start of step k - lag, and the first batches with the initial weights. Which weights sample
a batch depends only on the schedule, never on timing: sampling ends before the weights change, and only scoring may continue. The
weights that sampled a batch no longer exist when it is trained on, so batches ahead are saved in checkpoints. A batch that is missing,
because sampling failed or the lag has grown, is sampled with the current policy.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.base.stopwatch import Laps, Stopwatch
from cohort.base.text import write_count
from cohort.base.threads import Worker
from cohort.base.world import ALONE
from cohort.data.prompts import PromptStream
from cohort.errors import RunError
from cohort.rewards.contract import Scored
from cohort.rewards.runner import RewardRunner
from cohort.training.rollouts import (
    Collected,
    Collection,
    RewardScorer,
    begin_collection,
    decode_rollouts,
    encode_rollouts,
    finish_collection,
)
from cohort.training.run import TrainingRun
from cohort.training.stages import report_shortfall
from cohort.training.state import TrainState
from cohort.types import UNSCORED, Completion, Prompt, Rollout


@dataclass(frozen=True)
class SampledRound:
    """Groups that are sampled but not scored yet."""

    prompts: Sequence[Prompt]
    completions_PG: Sequence[Sequence[Completion]]
    metrics: dict[str, float]
    """Metrics of the engine."""
    policy_version: int


@dataclass
class BatchAhead:
    """The batch of a later step."""

    step: int
    policy_version: int
    """Version of the policy that samples the remaining groups."""
    stream: PromptStream
    """Frozen when the batch was begun, so that success rates measured meanwhile cannot depend on thread timing."""
    held: tuple[Collection | None, SampledRound | None] = (None, None)
    """(scored groups, groups not scored yet): one tuple, so that other threads never see one without the other."""
    taken: int = 0
    """Number of prompts drawn."""
    sampling: Future[None] | None = None
    scoring: Future[None] | None = None
    laps: Laps = field(default_factory=Laps)

    @property
    def collection(self) -> Collection:
        assert self.held[0] is not None
        return self.held[0]

    @property
    def is_complete(self) -> bool:
        collection, sampled = self.held
        return collection is not None and sampled is None and not collection.missing


class LocalScorer:
    """Calls the reward functions from this process only: the other ranks are busy training."""

    def __init__(self, rewards: RewardRunner) -> None:
        self.rewards = rewards

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored:
        return self.rewards.score(prompts, completions, step=step, num_steps=num_steps, world=ALONE)


class Ahead:
    """Batches ahead. All ranks call the same methods; the main rank samples and scores."""

    name = "ahead"

    def __init__(self, run: TrainingRun, state: TrainState) -> None:
        self.run, self.train_state = run, state
        self.lag, self.limit_s = run.recipe.ahead.lag, run.recipe.ahead.limit_s
        self.refills = run.recipe.algorithm.refill_rounds > 0
        self.scorer = RewardScorer(LocalScorer(run.rewards), run.recipe)
        self.batches: dict[int, BatchAhead] = {}
        """Step -> its batch, in order; the current batch stays until its step is finished."""
        self.timed_out = False
        """Whether a wait has reached the limit: a later save must not wait that long again."""
        self.sampler, self.scoring = Worker("sampler"), Worker("scorer")
        # New threads inherit the last set_num_threads value of any thread, and another number rounds differently.
        self.sampler.submit(functools.partial(torch.set_num_threads, torch.get_num_threads()))

    # -- called by the loop ----------------------------------------------------------------------------------------------

    def begin(self, step: int, until: int) -> None:
        """Begin to sample the missing batches up to `step + lag`, with the weights at the start of `step`."""
        world, state = self.run.world, self.train_state
        for done in [number for number in self.batches if number <= state.step]:
            del self.batches[done]
        missing = world.on_main(lambda: self._list_missing(min(step + self.lag, until)))
        if not missing:
            return
        self._wait_for_sampling()
        self.run.source.sync(state.policy_version)
        if world.is_main:
            with defer_interrupts():
                for number in missing:
                    self._begin_batch(number)

    def take(self, step: int, watch: Stopwatch) -> Collected:
        """The batch of this step, once it is complete."""
        version = self.train_state.policy_version
        collection, metrics = self.run.world.on_main(lambda: self._take(step))
        watch.lap("wait")
        report_shortfall(self.run, self.train_state, collection)
        collected = finish_collection(collection, version, sampled=True, keyed=True)  # held here until its first update
        return replace(collected, metrics=collected.metrics | metrics | measure_staleness(collected.rollouts, version))

    def finish_sampling(self, watch: Stopwatch) -> None:
        """Wait until no sampling is in progress, so that the next batch is sampled with the new weights."""
        self._wait_for_sampling()
        watch.lap("wait")

    def describe(self) -> list[str]:
        """Console messages at the start of training."""
        lag, held = self.lag, len(self.batches)
        copied = " from a second copy of the policy's weights," if self.run.engine.capabilities.shares_weights else ""
        lines = [
            f"ahead: completions are sampled {write_count(lag, 'step')} before they are trained on,{copied} during training"
        ]
        if held > lag + 1 or (held > lag and not self.train_state.batch):
            lines.append(f"ahead.lag is now {lag}; the {held} batches already sampled ahead are trained on first")
        return lines if lag else lines[1:]

    def close(self) -> None:
        """End the threads after their current work; the scoring thread last, because a refill waits for its scores."""
        self.sampler.submit(self.scoring.close)
        self.sampler.close()

    # -- in the training thread ------------------------------------------------------------------------------------------

    def _list_missing(self, last: int) -> list[int]:
        begun = [number for number, batch in self.batches.items() if batch.sampling is not None]
        return [number for number in range(self.train_state.step + 1, last + 1) if number not in begun]

    def _begin_batch(self, step: int) -> None:
        version, stream = self.train_state.policy_version, self.run.stream.freeze()
        batch = self.batches.setdefault(step, BatchAhead(step, version, stream))
        batch.policy_version, batch.stream = version, stream
        self.batches = dict(sorted(self.batches.items()))
        before, cursor = self.batches.get(step - 1), self.train_state.cursor
        batch.sampling = self.sampler.submit(lambda: self._sample(batch, before, cursor))

    def _wait_for_sampling(self) -> None:
        def wait_for_all() -> None:
            for batch in self.batches.values():
                if batch.sampling is not None:
                    self._wait_for(batch.sampling, f"sampling for step {batch.step}")

        self.run.world.on_main(wait_for_all)

    def _take(self, step: int) -> tuple[Collection, dict[str, float]]:
        batch = self.batches[step]
        for name in ("sampling", "scoring"):  # scoring is set once sampling has ended
            if (future := getattr(batch, name)) is not None:
                self._wait_for(future, f"{name} for step {step}")
        return batch.collection, {
            "ahead/sample_seconds": batch.laps.seconds.get("rollout", 0.0),
            "ahead/score_seconds": batch.laps.seconds.get("reward", 0.0),
            "ahead/batches": float(sum(number > step for number in self.batches)),
        }

    def _wait_for(self, future: Future[None], work: str) -> None:
        """Wait, and raise the other thread's error here with its own message."""
        if wait([future], self.limit_s).not_done:
            self.timed_out = True
            raise RunError(
                f"ahead.limit_s: {work}, in the background, has not finished within {self.limit_s:g} s. Check the engine and the "
                "reward functions; if they need that long, raise ahead.limit_s. Then resume with: cohort resume"
            )
        future.result()

    # -- in the other threads --------------------------------------------------------------------------------------------

    def _sample(self, batch: BatchAhead, before: BatchAhead | None, cursor: int) -> None:
        """Sample all rounds of a batch, in the sampling thread. A refill waits for the scores of the round before it."""
        source = self.run.source
        if batch.held[0] is None:
            if before is not None:
                if before.sampling is not None and before.sampling.exception() is not None:
                    before.sampling.result()  # raises: after a failure the next prompts are unknown
                cursor = before.collection.cursor + before.taken
            batch.held = begin_collection(self.run.recipe, cursor, batch.policy_version), None
        while not batch.is_complete:
            collection, sampled = batch.collection, batch.held[1]
            if sampled is None:
                watch = Stopwatch()
                prompts = collection.next_prompts(batch.stream)
                completions_PG = source.complete(prompts, batch.step, collection.drawn, watch)
                batch.laps.add_all(watch.take())
                batch.taken += len(prompts)
                batch.held = collection, SampledRound(prompts, completions_PG, source.metrics(), batch.policy_version)
            batch.scoring = self.scoring.submit(functools.partial(self._score, batch))
            if not self.refills:
                return
            batch.scoring.result()

    def _score(self, batch: BatchAhead) -> None:
        """Score the last sampled round, in the scoring thread."""
        collection, sampled = batch.collection, batch.held[1]
        assert sampled is not None
        watch = Stopwatch()
        scored = self.scorer.score(sampled.prompts, sampled.completions_PG, batch.step, watch)
        batch.laps.add_all(watch.take())
        collection = replace(collection, policy_version=sampled.policy_version)
        batch.held = collection.add_round(sampled.prompts, sampled.completions_PG, scored, sampled.metrics), None

    # -- in a checkpoint -------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All batches without an update, once they are sampled (after a failure: the groups that were sampled). Unscored completions are scored
        again after a resume: a reward may take minutes, and a signal leaves little time."""
        # Errors of sampling are not raised here but by `take`: a save must not fail because of them.
        deadline = time.monotonic() + (0.0 if self.timed_out else self.limit_s)
        for batch in self.batches.values():
            if batch.sampling is not None:
                wait([batch.sampling], max(0.0, deadline - time.monotonic()))
        first = self.train_state.step + (2 if self.train_state.update_metrics else 1)
        tensors: dict[str, Tensor] = {}
        documents = []
        for batch in self.batches.values():
            if batch.step < first:
                continue
            collection, sampled = batch.held  # read once: the scoring thread may replace it
            if collection is None or not (collection.groups or sampled):
                break
            own, document = encode_ahead(batch.step, collection, sampled)
            tensors |= {f"{batch.step}/{name}": value for name, value in own.items()}
            documents.append(document)
        return tensors, {"batches": documents}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        if not self.run.world.is_main:
            return
        prompts = {prompt.index: prompt for prompt in self.run.stream.prompts}
        for one in document["batches"]:
            prefix = f"{one['step']}/"
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            batch = self.batches[one["step"]] = decode_ahead(own, one, prompts, self.run.stream)
            if batch.is_complete:
                batch.sampling = Future()
                batch.sampling.set_result(None)


def measure_staleness(rollouts: Sequence[Rollout], policy_version: int) -> dict[str, float]:
    """Mean and maximum of the age of sampled tokens: how many updates the trained policy is ahead of the one that sampled them."""
    counts: dict[int, int] = {}
    for rollout in rollouts:
        for version, count in rollout.versions:
            counts[policy_version - version] = counts.get(policy_version - version, 0) + count
    tokens = sum(counts.values())
    mean = sum(age * count for age, count in counts.items()) / tokens if tokens else 0.0
    return {"ahead/staleness_mean": mean, "ahead/staleness_max": float(max(counts, default=0))}


def encode_ahead(step: int, collection: Collection, sampled: SampledRound | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    groups = list(collection.groups)
    if sampled is not None:
        groups += [
            [Rollout(prompt, 0, sample, one, UNSCORED, sampled.policy_version) for sample, one in enumerate(completions)]
            for prompt, completions in zip(sampled.prompts, sampled.completions_PG, strict=True)
        ]
    tensors, rows = encode_rollouts([rollout for group in groups for rollout in group])
    return tensors, {
        "step": step,
        "cursor": collection.cursor,
        "wanted": collection.wanted,
        "refill_rounds": collection.refill_rounds,
        "policy_version": collection.policy_version,
        "rounds": collection.rounds,
        "sizes": [len(group) for group in groups],
        "scored": collection.drawn,
        "metrics": sampled.metrics if sampled else {},
        "rollouts": rows,
    }


def decode_ahead(
    tensors: Mapping[str, Tensor], document: Mapping[str, Any], prompts: Mapping[int, Prompt], stream: PromptStream
) -> BatchAhead:
    rollouts = iter(decode_rollouts(tensors, document["rollouts"], prompts.__getitem__))
    groups = [[next(rollouts) for _ in range(size)] for size in document["sizes"]]
    scored, unscored = groups[: document["scored"]], groups[document["scored"] :]
    plain = {name: document[name] for name in ("cursor", "wanted", "refill_rounds", "policy_version")}
    rounds = tuple((count, metrics) for count, metrics in document["rounds"])
    collection, sampled = Collection(**plain, groups=tuple(scored), rounds=rounds), None
    if unscored:
        completions_PG = [[rollout.completion for rollout in group] for group in unscored]
        version = unscored[0][0].policy_version
        sampled = SampledRound([group[0].prompt for group in unscored], completions_PG, document["metrics"], version)
    return BatchAhead(document["step"], collection.policy_version, stream, (collection, sampled), len(groups))
