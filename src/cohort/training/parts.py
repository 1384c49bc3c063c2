"""What a run is made of, side by side: frozen, and complete before the phase that uses it begins.

`Parts` serve every phase. `TrainingParts` are those of the loop: made once the cold start is over, since the reference and the
critic begin as copies of the policy as it is then. What changes while a run goes on is in `TrainState`; what is done with both
are functions of the two (stages.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.base.world import World
from cohort.data.prompts import PromptStream
from cohort.engine.protocol import Engine
from cohort.model.critic import Critic, NoCritic
from cohort.model.policy import Policy
from cohort.model.reference import Reference
from cohort.model.teacher import Teacher
from cohort.observe.monitors.base import Monitors
from cohort.observe.run_folder import RunFolder
from cohort.recipe.rules import measures_kl
from cohort.recipe.schema import Recipe
from cohort.rewards.runner import RewardRunner
from cohort.training.experience import Models
from cohort.training.judging import Judge
from cohort.training.sources import Source
from cohort.types import Prompt, Sampling


@dataclass(frozen=True)
class Clock:
    """Seconds that a run takes, over all processes that took it up."""

    base: float = 0.0
    """Seconds the run had already taken when this process took it up."""
    started: float = field(default_factory=time.monotonic)

    def read(self) -> float:
        return self.base + time.monotonic() - self.started


@dataclass(frozen=True)
class Parts:
    """What every phase of a run may need: cold start, evaluation, training, the doctor."""

    recipe: Recipe
    folder: RunFolder
    policy: Policy
    engine: Engine
    engine_words: str
    """Which one it is, why, and what that costs."""
    rewards: RewardRunner
    stream: PromptStream
    sampling: Sampling
    evaluation_sets: Mapping[str, Sequence[Prompt]]
    monitors: Monitors
    clock: Clock
    world: World
    """The processes that train this policy together."""


@dataclass(frozen=True)
class TrainingParts(Parts):
    """What the loop needs beside: who writes completions, who judges them, and what an update is held against."""

    source: Source
    judge: Judge
    reference: Reference | None
    critic: Critic | NoCritic
    teacher: Teacher | None

    @property
    def models(self) -> Models:
        """Who scores a batch. A reference may be there to sample from alone."""
        scoring = self.reference.policy if self.reference and measures_kl(self.recipe) else None
        return Models(self.policy, scoring, self.critic, self.teacher)
