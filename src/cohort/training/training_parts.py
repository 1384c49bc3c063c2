"""What training needs beside the policy: source, judge, reference, critic, teacher, optimizer."""

from __future__ import annotations

from cohort.algorithms.registry import SAMPLED
from cohort.base.world import ALONE
from cohort.data.prompt_choice import InformativeChoice
from cohort.engine.protocol import Engine
from cohort.errors import RunError
from cohort.model.critic import Critic, NoCritic
from cohort.model.frozen import Reference, digest_weights, load_teacher
from cohort.model.optim import MasterWeights, Optimizer, cast_parameters
from cohort.model.policy import Policy
from cohort.recipe.rules import find_ahead, needs_reference
from cohort.recipe.schema import Recipe
from cohort.recipe.values import Materials
from cohort.rewards.contract import Scorer
from cohort.training import build
from cohort.training.build import EncodedData, make_engine
from cohort.training.judging import Judge, RewardJudge, RowJudge
from cohort.training.objective import needs_critic
from cohort.training.parts import Parts, TrainingParts
from cohort.training.read_again import START, digest_files, refuse_other_files
from cohort.training.sources import SampledSource, Source, WrittenSource
from cohort.training.state import TrainState


def make_training_parts(parts: Parts, state: TrainState, encoded: EncodedData, materials: Materials) -> TrainingParts:
    """The parts of the loop, made from the starting weights and given the state they had."""
    recipe, algorithm = parts.recipe, parts.recipe.algorithm
    reference, teacher = None, None
    critic: Critic | NoCritic = NoCritic()
    if needs_reference(recipe):
        start = find_start(parts, state, materials)
        build.share_out(start, parts.policy)
        reference = Reference(start, algorithm.reference_every, algorithm.reference_decay)
        state.attach("reference", reference)
    if recipe.teacher.source:
        teacher = load_teacher(recipe.teacher, parts.policy)
        build.share_out(teacher.policy, parts.policy)
        state.attach("teacher", teacher)
    if needs_critic(algorithm):
        updates, dtype = count_updates(recipe, "train"), build.compute_dtype(recipe)
        critic = Critic(parts.policy, recipe.critic, recipe.optimizer, dtype, updates, state.optimizer.weights.adding)
        state.attach("critic", critic)
    if isinstance(parts.stream, InformativeChoice):
        state.attach("prompt_choice", parts.stream)
    return TrainingParts(
        **vars(parts),
        source=make_source(parts, state, encoded, reference),
        judge=make_judge(parts),
        reference=reference,
        critic=critic,
        teacher=teacher,
    )


def find_start(parts: Parts, state: TrainState, materials: Materials) -> Policy:
    """The policy the run started from: a copy while the weights are still those, else loaded again.

    With LoRA that is the adapter of the start: the base alone, one that the run was given, or what the cold start left.
    """
    recipe = parts.recipe
    if state.policy_version == 0:
        state.start_digest = digest_weights(parts.policy.read_weights())
        state.files[START] = digest_files(parts.folder.start)
        return parts.policy.make_frozen_copy()
    if not state.start_digest:
        raise RunError(
            "this run began without a reference (algorithm.kl_coef = 0, monitors.kl = false) and cannot get one in the middle: set "
            "both back in its recipe.toml, or start a new run."
        )
    refuse_other_files({START: state.files.get(START, {})}, {START: digest_files(parts.folder.start)})
    folder = parts.folder.start if parts.folder.start.is_dir() else None
    if parts.policy.adapter:
        start = build.restore_first_adapter(recipe, parts.policy, folder)
    else:
        start = build.load_policy(recipe, build.load_data(recipe, materials), folder)
        start.set_longest(parts.policy.longest)
        cast_parameters(start.model.requires_grad_(False), parts.policy.model.dtype)
        start.prepare(parts.policy.kernels)
        start.world = parts.policy.world
    if state.start_digest != digest_weights(start.list_own_parameters()):
        raise RunError(
            f"{folder or recipe.model.lora.adapter or recipe.model.source} no longer holds the weights the run started from, which "
            "are its reference for the KL. Restore them, or start a new run."
        )
    return start


def make_source(parts: Parts, state: TrainState, encoded: EncodedData, reference: Reference | None) -> Source:
    """Where completions come from, by algorithm.data."""
    recipe, data = parts.recipe, parts.recipe.algorithm.data
    if data not in SAMPLED:
        rows = encoded.pairs if data == "pairs" else encoded.demonstrations
        return WrittenSource({row.prompt.index: row.completions for row in rows}, parts.policy.codec.decode)
    engine, policy = parts.engine, parts.policy
    if data == "start":
        assert reference is not None
        policy = reference.policy
        engine, _ = make_engine(recipe, policy, parts.folder.root, parts.monitors.on_message)
        engine.slots = parts.engine.slots
    elif samples_ahead(recipe, state):
        build.refuse_ahead(recipe, engine, parts.world.is_alone)
        engine = make_snapshot(parts) if engine.capabilities.shares_weights else engine
        return SampledSource(recipe.seed, engine, parts.sampling, policy.read_weights, ALONE)
    return SampledSource(recipe.seed, engine, parts.sampling, policy.read_weights, parts.world)


def samples_ahead(recipe: Recipe, state: TrainState) -> bool:
    """Whether steps train on what was sampled before them: by the recipe, or because a checkpoint holds such batches."""
    return bool(find_ahead(recipe)) or not {"ahead", "in_flight"}.isdisjoint({*state.found, *state.components})


def make_snapshot(parts: Parts) -> Engine:
    """The engine of the run over a copy of the policy, to sample from while the policy is trained."""
    from cohort.engine.local import SnapshotEngine

    copy = parts.policy.make_frozen_copy()
    engine, _ = make_engine(parts.recipe, copy, concurrent=True)
    engine.slots = parts.engine.slots
    return SnapshotEngine(copy, engine)


def make_judge(parts: Parts, scorer: Scorer | None = None) -> Judge:
    """Who says what completions are worth: the reward functions, a scorer in their place, or the rows themselves."""
    if parts.recipe.algorithm.data not in SAMPLED:
        return RowJudge()
    return RewardJudge(scorer or parts.rewards, parts.recipe)


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
