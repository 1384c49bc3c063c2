"""Where completions come from: the first arrow of data source -> reward -> gradient coefficient -> update.

    algorithm.data = "policy"          sampled from the policy as it is now, in groups, judged by the reward functions
                     "start"           the same from the policy the run started from: offline, and never out of samples
                     "demonstrations"  written in the rows; the reward of a demonstration is 1 by definition
                     "pairs"           chosen (1) and rejected (0) completions written in the rows

A source is a pure function of the prompts, the step and the weights: a resumed run is given the same again. "start" needs no
file of samples for the same reason: the noise is keyed by the step, so sampling when a step comes is sampling beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from cohort.base.stopwatch import Stopwatch
from cohort.base.world import ALONE, World
from cohort.engine import sample_groups
from cohort.engine.protocol import Engine
from cohort.observe.perf import make_engine_metrics
from cohort.rewards.early_scoring import OnCompletion
from cohort.types import Completion, NoiseKey, Prompt, Sampling


@dataclass(frozen=True)
class SampledSource:
    """Groups of completions from an engine."""

    seed: int
    engine: Engine
    sampling: Sampling
    weights: Callable[[], Mapping[str, Tensor]]
    """Of the policy that the engine samples from, by name."""
    world: World = ALONE
    samples = True
    """Whether completions are sampled, or stand in the rows."""

    @property
    def keyed(self) -> bool:
        """Whether asking again would give the same."""
        return self.engine.capabilities.keyed_noise

    def sync(self, policy_version: int) -> None:
        """The policy has become this version; what is sampled from now on is of it."""
        self.engine.sync(self.weights(), policy_version)

    def complete(
        self, prompts: Sequence[Prompt], step: int, first_draw: int, watch: Stopwatch, hear: OnCompletion | None = None
    ) -> list[list[Completion]]:
        """Groups in the order of the prompts. `hear`: told of each completion as it is finished."""
        noise = NoiseKey(self.seed, "train", step)
        completions_PG = sample_groups(self.engine, prompts, self.sampling, noise, first_draw, world=self.world, on_finish=hear)
        own_PG = completions_PG[self.world.block(len(prompts))]
        watch.lap("rollout", sum(completion.length for group in own_PG for completion in group))
        return completions_PG

    def metrics(self) -> dict[str, float]:
        """What the last call cost."""
        return make_engine_metrics(self.engine)


@dataclass(frozen=True)
class WrittenSource:
    """Completions that stand in the rows: one demonstration per group, or a chosen and a rejected one."""

    completions: Mapping[int, tuple[tuple[int, ...], ...]]
    """Prompt -> its completions, best first, each ended by the stop token."""
    decode: Callable[[Sequence[int]], str]
    samples = False
    keyed = True

    def sync(self, policy_version: int) -> None:
        """Nobody samples."""

    def complete(
        self, prompts: Sequence[Prompt], step: int, first_draw: int, watch: Stopwatch, hear: OnCompletion | None = None
    ) -> list[list[Completion]]:
        # Not sampled, so there are no sampling log-probs; nothing reads them (algorithms/compatibility.py).
        return [
            [Completion(ids, (0.0,) * len(ids), "stop", self.decode(ids)) for ids in self.completions[prompt.index]]
            for prompt in prompts
        ]

    def metrics(self) -> dict[str, float]:
        return {}


Source = SampledSource | WrittenSource
"""Prompts in, groups of completions out."""
