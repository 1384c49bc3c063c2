"""Groups sampled all the time, with weights that are swapped under those on their way.

    asked -> sampled -> scored -> trained on              places: numbers of the prompts in the stream, one for each group

Nobody drains: a group may begin with one version of the policy and end with another, and says which of its tokens are of which. What bounds
its age is pacing: `prompts_per_step * (1 + max_staleness)` groups are on their way or in training at a time, and the next is asked for only when one has
been trained on. Where that is not enough, because one group takes longer than all others, it is dropped and counted: no token that
is trained on is more than `max_staleness` steps older than the policy. Groups that are sampled are part of a checkpoint; those that are not are
asked for again.
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
from cohort.training.ahead import ScoredAlone, measure_staleness
from cohort.training.drawing import Collected, Drawn, finish_drawing, merge_metrics
from cohort.training.encoding import decode_rollouts, encode_rollouts
from cohort.training.judging import RewardJudge
from cohort.training.parts import TrainingParts
from cohort.training.sources import SampledSource
from cohort.training.state import TrainState
from cohort.types import UNSCORED, NoiseKey, Prompt, Rollout

MOST_THREADS = 256
"""Groups that are waited for at a time; more of them wait here and not at the engine."""


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
    """From asking to the last token."""
    chunk: Chunk | None = None
    """None: not scored yet."""


@dataclass
class Holdings:
    """All groups that are begun and not trained on, by how far they are. Each is in one of these."""

    next_place: int = 0
    asked: list[int] = field(default_factory=list)
    sampled: list[SampledGroup] = field(default_factory=list)
    scoring: list[SampledGroup] = field(default_factory=list)
    scored: list[SampledGroup] = field(default_factory=list)
    training: list[SampledGroup] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.asked) + len(self.sampled) + len(self.scoring) + len(self.scored) + len(self.training)


class InFlight:
    """Of several processes the main one asks and scores; all of them call the same methods."""

    name = "in_flight"

    def __init__(self, parts: TrainingParts, state: TrainState) -> None:
        assert isinstance(parts.source, SampledSource)
        recipe = parts.recipe
        self.parts, self.run, self.source = parts, state, parts.source
        self.max_staleness, self.limit_s = recipe.ahead.max_staleness, recipe.ahead.limit_s
        self.wanted = recipe.train.prompts_per_step
        self.most = self.wanted * (1 + self.max_staleness)
        self.judge = RewardJudge(ScoredAlone(parts.rewards), recipe)
        self.held = Holdings(next_place=state.cursor)
        self.steps_of: dict[int, int] = {}
        """Version -> steps that it has been trained."""
        self.step = 0
        self.dropped = 0
        """Groups that were too old, since the last step was taken."""
        self.problem: BaseException | None = None
        self.changed = threading.Condition()
        self.asking = Worker("sampler", min(self.most, MOST_THREADS))
        self.scorer = Worker("scorer")
        self.restored = self.closed = False

    # -- what the loop calls ---------------------------------------------------------------------------------------------

    def begin(self, step: int, until: int) -> None:
        """New weights for what is on its way, and as many more groups as pacing allows."""
        self.steps_of[self.run.policy_version] = self.run.step
        self.source.sync(self.run.policy_version)
        if self.parts.world.is_main:
            with defer_interrupts(), self.changed:
                self.step, self.held.training = step, []
                if self.restored:  # its threads ended with the process that asked for them
                    self.restored = False
                    for place in self.held.asked:
                        self._submit(place)
                self._ask_more(until)
                self._score_if_enough()  # the step before may have left fewer that are scored than this one needs

    def take(self, step: int, watch: Stopwatch) -> Collected:
        """The oldest of the groups that are scored, waited for where they are too few."""
        version = self.run.policy_version
        collected = self.parts.world.on_main(lambda: self._take(step, version))
        watch.lap("wait")
        return collected

    def settle(self, watch: Stopwatch) -> None:
        """Nobody is waited for: weights are swapped under what is on its way."""

    def describe(self) -> list[str]:
        """What the first lines of a process say of it."""
        return [
            f"ahead: groups are sampled all the time, up to {write_count(self.max_staleness, 'step')} before they are trained on, and weights are "
            "swapped under those on their way; runs like this are not equal to the bit"
        ]

    def close(self) -> None:
        """The threads end with what they have begun; what nobody has taken up is not begun any more."""
        self.closed = True
        self.asking.close()
        self.scorer.close()

    # -- in this thread --------------------------------------------------------------------------------------------------

    def _ask_more(self, until: int) -> None:
        needed = self.wanted * (until - self.run.step)
        for _ in range(min(self.most, needed) - self.held.count):
            self.held.asked.append(self.held.next_place)
            self._submit(self.held.next_place)
            self.held.next_place += 1

    def _submit(self, place: int) -> None:
        [prompt] = self.parts.stream.take(place, 1)
        work = functools.partial(self._sample, place, prompt, self.run.policy_version)
        self.asking.submit(functools.partial(self._guard, work))

    def _take(self, step: int, version: int) -> Collected:
        deadline = time.monotonic() + self.limit_s
        with self.changed:
            while True:
                self._drop_old(step)
                if len(self.held.scored) >= self.wanted:
                    break
                if self.problem is not None:
                    raise self.problem
                if not self.changed.wait(deadline - time.monotonic()):
                    raise RunError(
                        f"ahead.limit_s: step {step} has {len(self.held.scored)} of its {self.wanted} groups after {self.limit_s:g} s: "
                        f"{len(self.held.asked)} are being sampled and {len(self.held.sampled) + len(self.held.scoring)} scored, in the background. Look at what samples and "
                        "scores; if it only takes so long, raise ahead.limit_s. Then go on with: cohort resume"
                    )
            with defer_interrupts():
                self.held.scored.sort(key=lambda group: group.place)  # those asked for first have the least time left
                groups, self.held.scored = self.held.scored[: self.wanted], self.held.scored[self.wanted :]
                self.held.training, dropped, self.dropped = groups, self.dropped, 0
            on_their_way = self.held.count - len(groups)
        row = join_metrics(groups)
        drawn = Drawn(
            self.run.cursor, self.wanted, 0, version, tuple(group.rollouts for group in groups), ((self.wanted, row),)
        )
        collected = finish_drawing(drawn, version, sampled=True, keyed=True)  # held here until its first update
        metrics = {
            "ahead/groups": float(on_their_way),
            "ahead/dropped_groups": float(dropped),
            "ahead/staleness_steps": float(max((self._find_age(group, step) for group in groups), default=0)),
            "ahead/sample_seconds": max(group.seconds for group in groups),
            "ahead/score_seconds": max(group.chunk.seconds for group in groups if group.chunk),
            **measure_staleness(collected.rollouts, version),
        }
        return replace(collected, metrics=collected.metrics | metrics, prompts_taken=collected.prompts_taken + dropped)

    def _find_age(self, group: SampledGroup, step: int) -> int:
        """Steps that its oldest token is behind the policy that `step` begins with."""
        versions = {version for rollout in group.rollouts for version, _ in rollout.versions}
        if unknown := versions - self.steps_of.keys():
            raise InvariantError(f"tokens of version {min(unknown)}, which this run never sampled with.")
        return step - 1 - min(self.steps_of[version] for version in versions)

    def _drop_old(self, step: int) -> None:
        """Groups of which nothing more may be trained on make room for others."""
        fresh = [group for group in self.held.scored if self._find_age(group, step) <= self.max_staleness]
        dropped = len(self.held.scored) - len(fresh)
        if dropped:
            self.held.scored, self.dropped = fresh, self.dropped + dropped
            self._ask_more(self.parts.recipe.train.num_steps)
            self._score_if_enough()

    # -- in the other threads --------------------------------------------------------------------------------------------

    def _guard(self, work: Any) -> None:
        """A problem is raised where the groups are waited for."""
        try:
            if not self.closed:
                work()
        except BaseException as problem:
            with self.changed:
                self.problem = self.problem or problem
                self.changed.notify_all()

    def _sample(self, place: int, prompt: Prompt, version: int) -> None:
        """One group. Its noise is that of its place, whichever step trains on it."""
        began, source = time.monotonic(), self.source
        requests = make_requests([prompt], source.sampling.group_size, place % self.wanted)
        completions = source.engine.generate(
            requests, source.sampling, NoiseKey(source.seed, "train", place // self.wanted + 1)
        )
        rollouts = [Rollout(prompt, 0, sample, one, UNSCORED, version) for sample, one in enumerate(completions)]
        with self.changed:
            self.held.asked.remove(place)
            self.held.sampled.append(SampledGroup(place, rollouts, time.monotonic() - began))
            self._score_if_enough()
            self.changed.notify_all()

    def _score_if_enough(self) -> None:
        """Groups are scored by the step, or by what a step still lacks: the share that faults may have is one of a call."""
        held = self.held
        lacking = self.wanted - len(held.scored) - len(held.scoring)
        count = lacking if lacking > 0 else self.wanted
        if len(held.sampled) >= count:
            held.sampled.sort(key=lambda group: group.place)
            chosen, held.sampled = held.sampled[:count], held.sampled[count:]
            held.scoring += chosen
            self.scorer.submit(functools.partial(self._guard, functools.partial(self._score, chosen)))

    def _score(self, groups: Sequence[SampledGroup]) -> None:
        began = time.monotonic()
        prompts = [group.rollouts[0].prompt for group in groups]
        completions_PG = [[rollout.completion for rollout in group.rollouts] for group in groups]
        scored = self.judge.score(prompts, completions_PG, self.step, Stopwatch())
        chunk, outcomes = Chunk(scored.metrics, time.monotonic() - began), iter(scored.outcomes)
        done = [
            replace(group, chunk=chunk, rollouts=[replace(rollout, outcome=next(outcomes)) for rollout in group.rollouts])
            for group in groups
        ]
        with self.changed:
            self.held.scoring = self.held.scoring[len(groups) :]  # one thread scores, in their order
            self.held.scored += done
            self._score_if_enough()
            self.changed.notify_all()

    # -- in a checkpoint -------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Every group that is sampled and that no update was made on, and the places of those that must be asked for again."""
        with self.changed:
            held = self.held
            # Of a step that is finished they are still here until the next begins; of one with an update they are in its batch.
            untouched = self.step > self.run.step and not self.run.update_metrics
            groups = [*(held.training if untouched else []), *held.scored, *held.scoring, *held.sampled]
            document: dict[str, Any] = {
                "next_place": held.next_place,
                "asked": list(held.asked),
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
        if not self.parts.world.is_main:
            return
        prompts = {prompt.index: prompt for prompt in self.parts.stream.prompts}
        rollouts = iter(decode_rollouts(tensors, document["rollouts"], prompts.__getitem__))
        chunks = [Chunk(*chunk) for chunk in document["chunks"]]
        groups = [
            SampledGroup(place, [next(rollouts) for _ in range(size)], seconds, chunks[chunk] if chunk >= 0 else None)
            for place, size, seconds, chunk in document["groups"]
        ]
        self.held = Holdings(
            next_place=document["next_place"],
            asked=list(document["asked"]),
            sampled=[group for group in groups if group.chunk is None],
            scored=[group for group in groups if group.chunk is not None],
        )
        self.dropped, self.restored = document["dropped"], True


def join_metrics(groups: Sequence[SampledGroup]) -> dict[str, float]:
    """What the calls that scored these groups had to say, each by how many of them it scored; of rewards the mean over all."""
    counts: dict[int, tuple[Chunk, int]] = {}
    for group in groups:
        assert group.chunk is not None
        counts[id(group.chunk)] = group.chunk, counts.get(id(group.chunk), (None, 0))[1] + 1
    row = merge_metrics([(count, chunk.metrics) for chunk, count in counts.values()])
    rewards = [rollout.outcome.reward for group in groups for rollout in group.rollouts]
    return row | mean_and_std("reward", [reward for reward in rewards if reward is not None])
