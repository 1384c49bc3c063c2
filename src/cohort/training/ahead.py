"""What is sampled and scored before its step comes, by two threads beside the one that trains.

    step k      this thread     trains on batch k
                the sampler     batch k + lag, with the weights that step k begins with
                the scorer      what the sampler has finished

So batch k is of the weights that step k - lag began with, and the first ones of those that the run began with. Which weights sample a
batch depends on the schedule alone and never on how long anything takes: sampling has ended before the weights change, and scoring
may go on. The weights that sampled a batch are gone when it is trained on, so batches ahead are part of the checkpoint. One that is
missing, because sampling failed or the lag has grown since, is sampled by the policy as it is.
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
from cohort.training.drawing import Collected, Drawn, begin_drawing, finish_drawing, why_not_full
from cohort.training.encoding import decode_rollouts, encode_rollouts
from cohort.training.judging import RewardJudge
from cohort.training.parts import TrainingParts
from cohort.training.stages import say_why_not_full
from cohort.training.state import TrainState
from cohort.types import UNSCORED, Completion, Prompt, Rollout


@dataclass(frozen=True)
class SampledRound:
    """Groups that are sampled and not scored yet."""

    prompts: Sequence[Prompt]
    completions_PG: Sequence[Sequence[Completion]]
    figures: dict[str, float]
    """What the engine had to say."""
    policy_version: int


@dataclass
class BatchAhead:
    """The batch of a step to come."""

    step: int
    policy_version: int
    """Of the policy that samples what is still to be sampled."""
    stream: PromptStream
    """As it was when the batch was begun: what is learned of prompts meanwhile must not depend on who is faster."""
    held: tuple[Drawn | None, SampledRound | None] = (None, None)
    """What is drawn and scored, and what is sampled and not scored; both together, so that nobody sees one without the other."""
    taken: int = 0
    """Prompts drawn so far."""
    sampling: Future[None] | None = None
    scoring: Future[None] | None = None
    laps: Laps = field(default_factory=Laps)

    @property
    def drawn(self) -> Drawn:
        assert self.held[0] is not None
        return self.held[0]

    @property
    def is_whole(self) -> bool:
        drawn, sampled = self.held
        return drawn is not None and sampled is None and not drawn.missing

    @property
    def next_cursor(self) -> int:
        return self.drawn.cursor + self.taken


class ScoredAlone:
    """The reward functions, asked by this process alone: the others are busy training."""

    def __init__(self, rewards: RewardRunner) -> None:
        self.rewards = rewards

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored:
        return self.rewards.score(prompts, completions, step=step, num_steps=num_steps, world=ALONE)


class Ahead:
    """Batches ahead. Of several processes the main one samples and scores; all of them call the same methods."""

    name = "ahead"

    def __init__(self, parts: TrainingParts, state: TrainState) -> None:
        self.parts, self.run = parts, state
        self.lag, self.limit_s = parts.recipe.ahead.lag, parts.recipe.ahead.limit_s
        self.refills = parts.recipe.algorithm.refill_rounds > 0
        self.judge = RewardJudge(ScoredAlone(parts.rewards), parts.recipe)
        self.batches: dict[int, BatchAhead] = {}
        """By step, in their order; the one that is trained now stays until its step is finished."""
        self.given_up = False
        """Whether the limit has been waited for once: nobody waits for the same a second time."""
        self.sampler, self.scorer = Worker("sampler"), Worker("scorer")
        # A thread begins with as many threads to compute with as any thread has set last; another number rounds differently.
        self.sampler.submit(functools.partial(torch.set_num_threads, torch.get_num_threads()))

    # -- what the loop calls ---------------------------------------------------------------------------------------------

    def begin(self, step: int, until: int) -> None:
        """The weights have become those that `step` begins with: whatever is missing up to `step + lag` is begun with them."""
        world, run = self.parts.world, self.run
        for done in [number for number in self.batches if number <= run.step]:
            del self.batches[done]
        missing = world.on_main(lambda: self._list_missing(min(step + self.lag, until)))
        if not missing:
            return
        self._drain()
        self.parts.source.sync(run.policy_version)
        if world.is_main:
            with defer_interrupts():
                for number in missing:
                    self._begin_batch(number)

    def take(self, step: int, watch: Stopwatch) -> Collected:
        """The batch of this step, waited for where it is not whole."""
        parts, version = self.parts, self.run.policy_version
        drawn, metrics = parts.world.on_main(lambda: self._take(step))
        watch.lap("wait")
        say_why_not_full(parts, self.run, why_not_full(drawn, step))
        collected = finish_drawing(drawn, version, sampled=True, keyed=True)  # held here until its first update
        return replace(collected, metrics=collected.metrics | metrics | measure_staleness(collected.rollouts, version))

    def settle(self, watch: Stopwatch) -> None:
        """Return when nothing is being sampled: the weights have changed, and whoever samples next has the new ones."""
        self._drain()
        watch.lap("wait")

    def describe(self) -> list[str]:
        """What the first lines of a process say of it."""
        lag, held = self.lag, len(self.batches)
        copied = " from a second copy of the policy's weights," if self.parts.engine.capabilities.shares_weights else ""
        lines = [
            f"ahead: completions are sampled {write_count(lag, 'step')} before they are trained on,{copied} while training goes on"
        ]
        if held > lag + 1 or (held > lag and not self.run.batch):
            lines.append(f"ahead.lag is {lag} now; the {held} batches that were sampled ahead are trained on first")
        return lines if lag else lines[1:]

    def close(self) -> None:
        """The threads end with what they have begun; the scorer last, for a refill waits for what it says."""
        self.sampler.submit(self.scorer.close)
        self.sampler.close()

    # -- in this thread --------------------------------------------------------------------------------------------------

    def _list_missing(self, last: int) -> list[int]:
        begun = [number for number, batch in self.batches.items() if batch.sampling is not None]
        return [number for number in range(self.run.step + 1, last + 1) if number not in begun]

    def _begin_batch(self, step: int) -> None:
        version, stream = self.run.policy_version, self.parts.stream.freeze()
        found = self.batches.setdefault(step, BatchAhead(step, version, stream))
        found.policy_version, found.stream = version, stream
        self.batches = dict(sorted(self.batches.items()))
        before = self.batches.get(step - 1)
        cursor = self.run.cursor
        found.sampling = self.sampler.submit(lambda: self._sample(found, before, cursor))

    def _drain(self) -> None:
        def drain() -> None:
            for batch in self.batches.values():
                if batch.sampling is not None:
                    self._wait_for(batch.sampling, f"sampling for step {batch.step}")

        self.parts.world.on_main(drain)

    def _take(self, step: int) -> tuple[Drawn, dict[str, float]]:
        batch = self.batches[step]
        for what in ("sampling", "scoring"):  # the second is there once the first has ended
            if (future := getattr(batch, what)) is not None:
                self._wait_for(future, f"{what} for step {step}")
        seconds = batch.laps.seconds
        metrics = {
            "ahead/sample_seconds": seconds.get("rollout", 0.0),
            "ahead/score_seconds": seconds.get("reward", 0.0),
            "ahead/batches": float(sum(number > step for number in self.batches)),
        }
        return batch.drawn, metrics

    def _wait_for(self, future: Future[None], what: str) -> None:
        """A problem in the other thread is raised in this one, with its own words."""
        if wait([future], self.limit_s).not_done:
            self.given_up = True
            raise RunError(
                f"ahead.limit_s: {what}, in the background, has not ended within {self.limit_s:g} s. Look at what samples and scores; if "
                "it only takes so long, raise ahead.limit_s. Then go on with: cohort resume"
            )
        future.result()

    # -- in the other threads --------------------------------------------------------------------------------------------

    def _sample(self, batch: BatchAhead, before: BatchAhead | None, cursor: int) -> None:
        """The sampler's: all rounds of a batch. A refill waits for what the scorer says of the round before."""
        recipe, source = self.parts.recipe, self.parts.source
        if batch.held[0] is None:
            if before is not None:
                if before.sampling is not None and before.sampling.exception() is not None:
                    before.sampling.result()  # which prompts come next is not known: nothing is drawn after a failure
                cursor = before.next_cursor
            batch.held = begin_drawing(recipe, cursor, batch.policy_version), None
        while not batch.is_whole:
            drawn, sampled = batch.held
            assert drawn is not None
            if sampled is None:
                watch = Stopwatch()
                prompts = drawn.next_prompts(batch.stream)
                completions_PG = source.complete(prompts, batch.step, len(drawn.groups), watch)
                batch.laps.add_all(watch.take())
                batch.taken += len(prompts)
                batch.held = drawn, SampledRound(prompts, completions_PG, source.metrics(), batch.policy_version)
            batch.scoring = self.scorer.submit(functools.partial(self._score, batch))
            if not self.refills:
                return
            batch.scoring.result()

    def _score(self, batch: BatchAhead) -> None:
        """The scorer's: the round that was sampled last."""
        drawn, sampled = batch.held
        assert drawn is not None
        assert sampled is not None
        watch = Stopwatch()
        scored = self.judge.score(sampled.prompts, sampled.completions_PG, batch.step, watch)
        batch.laps.add_all(watch.take())
        drawn = replace(drawn, policy_version=sampled.policy_version)
        batch.held = drawn.add_round(sampled.prompts, sampled.completions_PG, scored, sampled.figures), None

    # -- in a checkpoint -------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Every batch that no update was made on, once it is sampled; where that fails, as far as it has come. What is not scored by then is
        scored again by whoever goes on: a reward may take minutes, and a signal leaves few."""
        self._wait_quietly()
        first = self.run.step + (2 if self.run.update_metrics else 1)
        tensors: dict[str, Tensor] = {}
        documents = []
        for batch in self.batches.values():
            if batch.step < first:
                continue
            drawn, sampled = batch.held  # read once: the scorer goes on
            if drawn is None or not (drawn.groups or sampled):
                break
            own, document = encode_ahead(batch.step, drawn, sampled)
            tensors |= {f"{batch.step}/{name}": value for name, value in own.items()}
            documents.append(document)
        return tensors, {"batches": documents}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        if not self.parts.world.is_main:
            return
        prompts = {prompt.index: prompt for prompt in self.parts.stream.prompts}
        for one in document["batches"]:
            prefix = f"{one['step']}/"
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            batch = self.batches[one["step"]] = decode_ahead(own, one, prompts, self.parts.stream)
            if batch.is_whole:
                batch.sampling = Future()
                batch.sampling.set_result(None)

    def _wait_quietly(self) -> None:
        """What goes wrong meanwhile is raised where it is waited for; a save is no place for it."""
        deadline = time.monotonic() + (0.0 if self.given_up else self.limit_s)
        for batch in self.batches.values():
            if batch.sampling is not None:
                wait([batch.sampling], max(0.0, deadline - time.monotonic()))


def measure_staleness(rollouts: Sequence[Rollout], policy_version: int) -> dict[str, float]:
    """By how many updates the sampled tokens are older than the policy that trains on them."""
    counts: dict[int, int] = {}
    for rollout in rollouts:
        for version, count in rollout.versions:
            counts[policy_version - version] = counts.get(policy_version - version, 0) + count
    tokens = sum(counts.values())
    mean = sum(age * count for age, count in counts.items()) / tokens if tokens else 0.0
    return {"ahead/staleness_mean": mean, "ahead/staleness_max": float(max(counts, default=0))}


def encode_ahead(step: int, drawn: Drawn, sampled: SampledRound | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    groups = list(drawn.groups)
    if sampled is not None:
        groups += [
            [Rollout(prompt, 0, sample, one, UNSCORED, sampled.policy_version) for sample, one in enumerate(completions)]
            for prompt, completions in zip(sampled.prompts, sampled.completions_PG, strict=True)
        ]
    tensors, rows = encode_rollouts([rollout for group in groups for rollout in group])
    return tensors, {
        "step": step,
        "cursor": drawn.cursor,
        "wanted": drawn.wanted,
        "refill_rounds": drawn.refill_rounds,
        "policy_version": drawn.policy_version,
        "rounds": [[count, metrics] for count, metrics in drawn.rounds],
        "sizes": [len(group) for group in groups],
        "scored": len(drawn.groups),
        "figures": sampled.figures if sampled else {},
        "rollouts": rows,
    }


def decode_ahead(
    tensors: Mapping[str, Tensor], document: Mapping[str, Any], prompts: Mapping[int, Prompt], stream: PromptStream
) -> BatchAhead:
    rollouts = iter(decode_rollouts(tensors, document["rollouts"], prompts.__getitem__))
    groups = [[next(rollouts) for _ in range(size)] for size in document["sizes"]]
    scored, unscored = groups[: document["scored"]], groups[document["scored"] :]
    drawn = Drawn(
        document["cursor"],
        document["wanted"],
        document["refill_rounds"],
        document["policy_version"],
        tuple(scored),
        tuple((count, metrics) for count, metrics in document["rounds"]),
    )
    sampled = None
    if unscored:
        asked, versions = [group[0].prompt for group in unscored], unscored[0][0].policy_version
        completions_PG = [[rollout.completion for rollout in group] for group in unscored]
        sampled = SampledRound(asked, completions_PG, document["figures"], versions)
    return BatchAhead(document["step"], drawn.policy_version, stream, (drawn, sampled), len(groups))
