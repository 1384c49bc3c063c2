"""What a run is made of, side by side: frozen, and complete before the phase that uses it begins.

`Parts` serve every phase. `TrainingParts` are those of the loop: made once the cold start is over, since the reference and the
critic begin as copies of the policy as it is then. What changes while a run goes on is in `TrainState`; what is done with both
are functions of the two (stages.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.algorithms.registry import SAMPLED
from cohort.base.world import ALONE, World
from cohort.data.prompt_choice import InformativeChoice
from cohort.data.prompts import PromptStream
from cohort.engine.protocol import Engine
from cohort.errors import RunError
from cohort.model.critic import Critic, NoCritic
from cohort.model.digest import digest_weights, is_whole, sample_weights
from cohort.model.optim import MasterWeights, Optimizer, cast_parameters
from cohort.model.policy import Policy
from cohort.model.reference import Reference
from cohort.model.teacher import Teacher, load_teacher
from cohort.observe.monitors import Monitors
from cohort.observe.run_folder import RunFolder
from cohort.recipe.materials import Materials
from cohort.recipe.rules import find_ahead, measures_kl, needs_reference
from cohort.recipe.schema import Recipe
from cohort.rewards.contract import Scorer
from cohort.rewards.of_run import RunRewards
from cohort.training import build
from cohort.training.build import EncodedData, make_engine
from cohort.training.experience import Models
from cohort.training.objective import needs_critic
from cohort.training.resume_checks import START, digest_files, refuse_other_files
from cohort.training.rollouts import Judge, RewardScorer, RowScorer, SampledSource, Source, WrittenSource
from cohort.training.state import TrainState
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
class Run:
    """What every phase of a run may need: cold start, evaluation, training, the doctor."""

    recipe: Recipe
    folder: RunFolder
    policy: Policy
    engine: Engine
    engine_words: str
    """Which one it is, why, and what that costs."""
    rewards: RunRewards
    stream: PromptStream
    sampling: Sampling
    evaluation_sets: Mapping[str, Sequence[Prompt]]
    monitors: Monitors
    clock: Clock
    world: World
    """The processes that train this policy together."""


@dataclass(frozen=True)
class TrainingRun(Run):
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


# -- building ----------------------------------------------------------------------------------------------------------
#


def make_training_run(run: Run, state: TrainState, encoded: EncodedData, materials: Materials) -> TrainingRun:
    """The parts of the loop, made from the starting weights and given the state they had."""
    recipe, algorithm = run.recipe, run.recipe.algorithm
    reference, teacher = None, None
    critic: Critic | NoCritic = NoCritic()
    if needs_reference(recipe):
        start = find_start(run, state, materials)
        build.share_out(start, run.policy)
        reference = Reference(start, algorithm.reference_every, algorithm.reference_decay)
        state.attach("reference", reference)
    if recipe.teacher.source:
        teacher = load_teacher(recipe.teacher, run.policy)
        build.share_out(teacher.policy, run.policy)
        state.attach("teacher", teacher)
    if needs_critic(algorithm):
        updates, dtype = count_updates(recipe, "train"), build.compute_dtype(recipe)
        critic = Critic(run.policy, recipe.critic, recipe.optimizer, dtype, updates, state.optimizer.weights.adding)
        state.attach("critic", critic)
    if isinstance(run.stream, InformativeChoice):
        state.attach("prompt_choice", run.stream)
    return TrainingRun(
        **vars(run),
        source=make_source(run, state, encoded, reference),
        judge=make_scorer(run),
        reference=reference,
        critic=critic,
        teacher=teacher,
    )


def find_start(run: Run, state: TrainState, materials: Materials) -> Policy:
    """The policy the run started from: a copy while the weights are still those, else loaded again.

    With LoRA that is the adapter of the start: the base alone, one that the run was given, or what the cold start left.
    """
    recipe = run.recipe
    if state.policy_version == 0:
        state.start_digest = digest_weights(run.policy.read_weights())
        state.files[START] = digest_files(run.folder.start)
        return run.policy.make_frozen_copy()
    if not state.start_digest:
        raise RunError(
            "this run began without a reference (algorithm.kl_coef = 0, monitors.kl = false) and cannot get one in the middle: set "
            "both back in its recipe.toml, or start a new run."
        )
    refuse_other_files({START: state.files.get(START, {})}, {START: digest_files(run.folder.start)})
    folder = run.folder.start if run.folder.start.is_dir() else None
    if run.policy.adapter:
        start = build.restore_first_adapter(recipe, run.policy, folder)
    else:
        start = build.load_policy(recipe, build.load_data(recipe, materials), folder)
        start.hold_lengths(run.policy.longest)
        cast_parameters(start.model.requires_grad_(False), run.policy.model.dtype)
        start.prepare(run.policy.kernels)
        start.world = run.policy.world
    whole = is_whole(state.start_digest)
    if state.start_digest != (digest_weights(start.list_own_parameters()) if whole else sample_weights(start.model)):
        raise RunError(
            f"{folder or recipe.model.lora.adapter or recipe.model.source} no longer holds the weights the run started from, which "
            "are its reference for the KL. Restore them, or start a new run."
        )
    return start


def make_source(run: Run, state: TrainState, encoded: EncodedData, reference: Reference | None) -> Source:
    """Where completions come from, by algorithm.data."""
    recipe, data = run.recipe, run.recipe.algorithm.data
    if data not in SAMPLED:
        rows = encoded.pairs if data == "pairs" else encoded.demonstrations
        return WrittenSource({row.prompt.index: row.completions for row in rows}, run.policy.codec.decode)
    engine, policy = run.engine, run.policy
    if data == "start":
        assert reference is not None
        policy = reference.policy
        engine, _ = make_engine(recipe, policy, run.folder.root, run.monitors.on_message)
        engine.slots = run.engine.slots
    elif samples_ahead(recipe, state):
        build.refuse_ahead(recipe, engine, run.world.is_alone)
        engine = make_snapshot(run) if engine.capabilities.shares_weights else engine
        return SampledSource(recipe.seed, engine, run.sampling, policy.read_weights, ALONE)
    return SampledSource(recipe.seed, engine, run.sampling, policy.read_weights, run.world)


def samples_ahead(recipe: Recipe, state: TrainState) -> bool:
    """Whether steps train on what was sampled before them: by the recipe, or because a checkpoint holds such batches."""
    return bool(find_ahead(recipe)) or not {"ahead", "in_flight"}.isdisjoint({*state.found, *state.components})


def make_snapshot(run: Run) -> Engine:
    """The engine of the run over a copy of the policy, to sample from while the policy is trained."""
    from cohort.engine.snapshot import SnapshotEngine

    copy = run.policy.make_frozen_copy()
    engine, _ = make_engine(run.recipe, copy)
    engine.slots = run.engine.slots
    return SnapshotEngine(copy, engine)


def make_scorer(run: Run, scorer: Scorer | None = None) -> Judge:
    """Who says what completions are worth: the reward functions, a scorer in their place, or the rows themselves."""
    if run.recipe.algorithm.data not in SAMPLED:
        return RowScorer()
    return RewardScorer(scorer or run.rewards, run.recipe)


def make_optimizer(weights: MasterWeights, recipe: Recipe, phase: str) -> Optimizer:
    """AdamW for a phase: the cold start has its own learning rate and no decay; the rest is shared."""
    cold = recipe.cold_start
    own = {"learning_rate": cold.learning_rate, "warmup_steps": cold.warmup_steps, "schedule": "constant"}
    settings = recipe.optimizer if phase == "train" else recipe.optimizer.model_copy(update=own)
    return Optimizer(weights, settings, count_updates(recipe, phase))


def count_updates(recipe: Recipe, phase: str) -> int:
    """Optimizer steps of a phase, which the schedule of the learning rate is stretched over."""
    train = recipe.train
    if phase == "cold_start":
        return recipe.cold_start.num_steps
    # A minibatch holds whole groups, so there are never more of them than prompts.
    return train.num_steps * min(train.minibatches_per_step, train.prompts_per_step) * train.passes_per_step
