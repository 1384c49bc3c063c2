"""The components of a run, created before the phase that uses them begins, and frozen from then on.

Every phase uses a `Run`. The loop uses a `TrainingRun`, which is created after the cold start, because reference and critic begin as
copies of the policy. Whatever changes during a run is in `TrainState`; the stages (stages.py) are functions of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.algorithms.registry import SAMPLED
from cohort.base.world import ALONE, World
from cohort.data.prompt_choice import InformativeChoice
from cohort.data.prompts import PromptStream
from cohort.engine.protocol import Engine
from cohort.environments.engine import EpisodeEngine
from cohort.errors import RunError
from cohort.model.critic import Critic, NoCritic
from cohort.model.frozen import Reference, Teacher, digest_weights, load_teacher
from cohort.model.optim import MasterWeights, Optimizer, cast_parameters
from cohort.model.policy import Policy
from cohort.observe.monitors import Monitors
from cohort.observe.run_folder import RunFolder
from cohort.recipe.rules import find_ahead, measures_kl, needs_reference
from cohort.recipe.schema import Recipe
from cohort.recipe.values import Materials
from cohort.rewards.runner import RewardRunner
from cohort.training import build
from cohort.training.build import EncodedData, make_engine
from cohort.training.experience import Models
from cohort.training.objective import needs_critic
from cohort.training.resume_checks import START, digest_files, refuse_changed_files
from cohort.training.rollouts import RewardScorer, SampledSource, WrittenRows
from cohort.training.state import TrainState
from cohort.types import Prompt, Sampling


@dataclass(frozen=True)
class Run:
    """What every phase may use: cold start, evaluation, training, the doctor."""

    recipe: Recipe
    folder: RunFolder
    policy: Policy
    engine: Engine
    engine_description: str
    """Which engine it is, why it was chosen, and its cost."""
    rewards: RewardRunner
    stream: PromptStream
    sampling: Sampling
    evaluation_sets: Mapping[str, Sequence[Prompt]]
    monitors: Monitors
    began: float
    """The time.monotonic() at which the run would have started without interruptions."""
    world: World
    """The ranks that train this policy together."""


@dataclass(frozen=True)
class TrainingRun(Run):
    """What the loop uses in addition: the source of completions, their scorer, and the other models."""

    source: SampledSource | WrittenRows
    scorer: RewardScorer | WrittenRows
    reference: Reference | None
    critic: Critic | NoCritic
    teacher: Teacher | None

    @property
    def models(self) -> Models:
        """The models that score a batch. With kl_coef = 0 a reference may only serve as the policy to sample from."""
        scoring = self.reference.policy if self.reference and measures_kl(self.recipe) else None
        return Models(self.policy, scoring, self.critic, self.teacher)


# -- construction ------------------------------------------------------------------------------------------------------


def make_training_run(run: Run, state: TrainState, encoded: EncodedData, materials: Materials) -> TrainingRun:
    """Create the components of the loop from the starting weights, and restore their saved state."""
    recipe, algorithm = run.recipe, run.recipe.algorithm
    reference, teacher = None, None
    critic: Critic | NoCritic = NoCritic()
    if needs_reference(recipe):
        start = find_start(run, state, materials)
        build.shard_like(start, run.policy)
        reference = Reference(start, algorithm.reference_every, algorithm.reference_decay)
        state.attach("reference", reference)
    if recipe.teacher.source:
        teacher = load_teacher(recipe.teacher, run.policy)
        build.shard_like(teacher.policy, run.policy)
        state.attach("teacher", teacher)
    if needs_critic(algorithm):
        updates, dtype = count_updates(recipe, "train"), build.compute_dtype(recipe)
        critic = Critic(run.policy, recipe.critic, recipe.optimizer, dtype, updates, state.optimizer.weights.adding)
        state.attach("critic", critic)
    if isinstance(run.stream, InformativeChoice):
        state.attach("prompt_choice", run.stream)
    source = make_source(run, state, encoded, reference)
    scorer = source if isinstance(source, WrittenRows) else RewardScorer(run.rewards, recipe)
    return TrainingRun(**vars(run), source=source, scorer=scorer, reference=reference, critic=critic, teacher=teacher)


def find_start(run: Run, state: TrainState, materials: Materials) -> Policy:
    """The policy that the run started from: a copy before the first update, loaded again after it.

    With LoRA this is the initial adapter: a new one, the given one, or the result of the cold start.
    """
    recipe = run.recipe
    if state.policy_version == 0:
        state.start_digest = digest_weights(run.policy.read_weights())
        state.files[START] = digest_files(run.folder.start)
        return run.policy.make_frozen_copy()
    if not state.start_digest:
        raise RunError(
            "this run began without a reference (algorithm.kl_coef = 0, monitors.kl = false), and one cannot be added later: set both "
            "back in its recipe.toml, or start a new run."
        )
    refuse_changed_files({START: state.files.get(START, {})}, {START: digest_files(run.folder.start)})
    folder = run.folder.start if run.folder.start.is_dir() else None
    if run.policy.adapter:
        start = build.restore_first_adapter(recipe, run.policy, folder)
    else:
        start = build.load_policy(recipe, build.load_data(recipe, materials), folder)
        start.set_longest(run.policy.longest)
        cast_parameters(start.model.requires_grad_(False), run.policy.model.dtype)
        start.prepare(run.policy.kernels)
        start.world = run.policy.world
    if state.start_digest != digest_weights(start.list_own_parameters()):
        raise RunError(
            f"{folder or recipe.model.lora.adapter or recipe.model.source} has changed: it no longer holds the weights that the run "
            "started from, the reference for the KL. Restore them, or start a new run."
        )
    return start


def make_source(run: Run, state: TrainState, encoded: EncodedData, reference: Reference | None) -> SampledSource | WrittenRows:
    """The source of completions that algorithm.data names."""
    recipe, data = run.recipe, run.recipe.algorithm.data
    if data not in SAMPLED:
        rows = encoded.pairs if data == "pairs" else encoded.demonstrations
        return WrittenRows({row.prompt.index: row.completions for row in rows}, run.policy.codec.decode)
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
    """Whether batches are sampled ahead: by the recipe, or because the checkpoint holds such batches."""
    return bool(find_ahead(recipe)) or not {"ahead", "in_flight"}.isdisjoint({*state.unattached, *state.components})


def make_snapshot(run: Run) -> Engine:
    """The run's engine over a copy of the policy, which can sample while the policy is trained."""
    from cohort.engine.local import SnapshotEngine

    copy, own = run.policy.make_frozen_copy(), run.engine
    engine, _ = make_engine(run.recipe, copy, concurrent=True)
    engine.slots = own.slots
    snapshot = SnapshotEngine(copy, engine)
    if isinstance(own, EpisodeEngine):
        return build.wrap_engine(run.recipe, run.policy, snapshot, own.environments)
    return snapshot


def make_optimizer(weights: MasterWeights, recipe: Recipe, phase: str) -> Optimizer:
    """AdamW for a phase. The cold start has its own learning rate and no decay; the other settings are shared."""
    cold = recipe.cold_start
    own = {"learning_rate": cold.learning_rate, "warmup_steps": cold.warmup_steps, "schedule": "constant"}
    settings = recipe.optimizer if phase == "train" else recipe.optimizer.model_copy(update=own)
    return Optimizer(weights, settings, count_updates(recipe, phase))


def count_updates(recipe: Recipe, phase: str) -> int:
    """Number of optimizer steps of a phase, the length of the learning-rate schedule."""
    train = recipe.train
    if phase == "cold_start":
        return recipe.cold_start.num_steps
    # A minibatch holds whole groups, so there are never more minibatches than prompts.
    return train.num_steps * min(train.minibatches_per_step, train.prompts_per_step) * train.passes_per_step
