"""What the sections of a recipe say about each other: what cannot learn, what is needed, what is worth a warning. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cohort.algorithms.effects import LOWERED
from cohort.algorithms.registry import SAMPLED

if TYPE_CHECKING:
    from cohort.recipe.algorithm import AlgorithmConfig
    from cohort.recipe.schema import Recipe, RewardConfig

OVERLONG_PART = "overlong"
"""The part of the reward that algorithm.overlong_share adds."""
SIZES: tuple[tuple[tuple[str, ...], int, str, int], ...] = (
    (("train.prompts_per_step", "train.group_size"), 2**20, "completions in a step", 2000),
    (("reward_model.prompts", "train.group_size"), 2**20, "completions to fit on", 2000),
    (("evaluation.samples",), 2**20, "completions of each problem", 2000),
    (("train.minibatches_per_step", "train.passes_per_step"), 2**20, "updates on each batch", 2000),
    (("cold_start.batch_size",), 2**20, "demonstrations in a batch", 2000),
    (("reward_model.batch_size",), 2**20, "completions in a batch", 2000),
    (("evaluation.resamples",), 2**20, "resamples of each figure", 800),
    (("sampling.slots",), 2**20, "completions side by side", 8000),
    (("sampling.max_completion_tokens",), 2**24, "tokens of each completion", 64),
    (("evaluation.max_completion_tokens",), 2**24, "tokens of each completion", 64),
    (("model.scratch.hidden_size", "model.scratch.hidden_size", "model.scratch.num_layers"), 2**33, "weights of attention", 16),
    (("model.scratch.hidden_size", "model.scratch.intermediate_size", "model.scratch.num_layers"), 2**33, "weights", 16),
    (("model.scratch.num_layers",), 2**12, "layers, each of a dozen modules", 2**16),
    (("model.lora.rank",), 2**16, "columns of every adapter", 2**14),
)
"""Words whose product is a number of things that are held at once, how many are far beyond any use, what they are, and the bytes that
one of them takes at the very least (of a completion: ids, log-probs, outcome, and its place in the batch)."""


def why_choices_are_refused(recipe: Recipe) -> str:
    """What the facts of the choices forbid beside the rest of the recipe; asked again when a user's functions are resolved."""
    algorithm = recipe.algorithm
    if recipe.monitors.kl and (algorithm.data != "policy" or algorithm.chosen.region.traits.preference):
        return (
            "monitors.kl: the KL is measured on what the policy samples, and here it is not trained on that (algorithm.data "
            f"{algorithm.data!r}, region {algorithm.region!r}). Leave it out."
        )
    rules = (why_nothing_is_learned, why_parts_are_mixed_up, why_no_reward_model, why_no_teacher, why_nobody_to_trust)
    return next((reason for rule in rules if (reason := rule(recipe))), "")


def why_too_large(recipe: Recipe) -> str:
    """Which numbers of the recipe no machine could hold, with what they would take; "" when all are possible."""
    for words, most, what, size in SIZES:
        values: list[int] = [reach_value(recipe, word) for word in words]
        count = math.prod(values)
        if count > most:
            named = dict(zip(words, values, strict=True))
            shown = " × ".join(f"{word} = {value:,}" for word, value in named.items())
            return (
                f"{words[0]}: {shown} makes {count:,} {what}, and those take {math.ceil(count * size / 2**30):,} GiB at the very least; at "
                f"most {most:,} are accepted. Lower {' or '.join(named)}."
            )
    return ""


def reach_value(recipe: Recipe, word: str) -> Any:
    """train.group_size of the recipe."""
    value: Any = recipe
    for name in word.split("."):
        value = getattr(value, name)
    return value


def why_parts_are_mixed_up(recipe: Recipe) -> str:
    """Why an advantage that reads parts would take the overlong penalty for one of the recipe; "" when it would not."""
    names = [reward_name(reward) for reward in recipe.rewards]
    reads_parts = "parts_PG" in recipe.algorithm.chosen.advantage.reads
    if not (recipe.algorithm.overlong_share and reads_parts and OVERLONG_PART in names):
        return ""
    return (
        f"rewards: {OVERLONG_PART!r} is the part that algorithm.overlong_share adds, and advantage {recipe.algorithm.advantage!r} would "
        "read it in place of yours; give yours another `name`, or set algorithm.overlong_share = 0."
    )


def why_nothing_is_learned(recipe: Recipe) -> str:
    """Why a group of one teaches nothing here; "" when it does, and while a user's advantage is not resolved."""
    algorithm, advantage = recipe.algorithm, recipe.algorithm.chosen.advantage
    alone = recipe.train.num_steps > 0 and algorithm.data in SAMPLED and recipe.train.group_size == 1
    if not (alone and advantage.known and advantage.traits.compares_group):
        return ""
    return (
        f"train.group_size: with advantage {advantage.name!r} the group is its own baseline, and a group of one always has "
        "advantage 0. Use a group_size of at least 2 (8 is usual)."
    )


def gold_column(rewards: Sequence[RewardConfig]) -> str:
    """The column that holds the right answer: the one that `answer` is fed from, by the part that decides success if it says so."""
    parts = sorted(rewards, key=lambda part: not part.outcome)
    return next((part.columns["answer"] for part in parts if "answer" in part.columns), "answer")


def measures_kl(recipe: Recipe) -> bool:
    """Whether batches are scored by a reference: for the loss or the reward, or to watch the KL alone."""
    return recipe.algorithm.kl_coef > 0 or recipe.monitors.kl


def needs_reference(recipe: Recipe) -> bool:
    return measures_kl(recipe) or recipe.algorithm.data == "start"


def why_no_reward_model(recipe: Recipe) -> str:
    """Why these choices would never read a learned reward, or read it wrongly; "" when they do."""
    algorithm, iterations = recipe.algorithm, recipe.reward_model.iterations
    if not iterations:
        return ""
    if algorithm.data != "policy":
        return (
            f"reward_model.iterations: algorithm.data {algorithm.data!r} is not sampled anew, so a reward model that is fitted "
            "on the policy's completions has nothing to judge. Use data = 'policy', or iterations = 0."
        )
    if not algorithm.chosen.advantage.reads_reward:
        return (
            f"reward_model.iterations: advantage {algorithm.advantage!r} reads step rewards, parts or success, never the learned "
            "reward of a completion. Use a group advantage such as 'group_normalized', or iterations = 0."
        )
    if algorithm.overlong_share:
        return (
            "reward_model.iterations: a learned score has no scale, so the overlong penalty of 0 to 1 may drown it or drown "
            "in it. Set algorithm.overlong_share = 0."
        )
    if iterations > recipe.train.num_steps:
        return (
            f"reward_model.iterations: {iterations} fits for train.num_steps = {recipe.train.num_steps} steps; some would train "
            "nothing. Use at most one per step."
        )
    return ""


def why_no_teacher(recipe: Recipe) -> str:
    """Why a teacher would have nothing to say here, or why nobody would; "" when it makes sense."""
    algorithm, teacher = recipe.algorithm, recipe.teacher
    region = algorithm.chosen.region
    if not teacher.source:
        idle = [name for name in ("revision", "coef") if getattr(teacher, name) != type(teacher).model_fields[name].default]
        if idle:
            return f"teacher.{idle[0]}: there is no teacher. Set teacher.source to a folder or hub id, or leave {idle[0]} out."
        if algorithm.chosen.advantage.traits.needs_teacher and recipe.train.num_steps:
            return (
                f"algorithm.advantage: {algorithm.advantage!r} credits no completion, so without a teacher nothing is learned. Set "
                "teacher.source to the folder or hub id of a model with the same tokenizer, or use an advantage that reads rewards."
            )
        return ""
    if algorithm.data != "policy":
        return (
            f"teacher.source: a teacher judges what the policy samples, and data {algorithm.data!r} is not sampled from it. Use data = "
            "'policy', or no teacher; its written completions are learned by data = 'demonstrations'."
        )
    if region.traits.preference:
        return (
            f"teacher.source: region {region.name!r} compares whole completions, and a teacher credits single tokens. Use region = "
            "'clip' with an advantage that compares rewards, or no teacher."
        )
    if region.traits.one_value:
        return (
            f"teacher.source: region {region.name!r} gives a completion one value, which fits one advantage per completion, and a "
            "teacher credits single tokens. Use region = 'clip'."
        )
    return ""


def leaves_stale(algorithm: AlgorithmConfig) -> bool:
    """Whether nothing corrects for completions of a policy some updates ago."""
    region = algorithm.chosen.region
    return region.known and not region.traits.needs_ratio and not region.traits.preference


def unread_rewards(recipe: Recipe) -> list[str]:
    """Rewards with weight that the advantage does not see: all but the one that decides success, where it reads that alone."""
    advantage = recipe.algorithm.chosen.advantage
    if recipe.algorithm.data not in SAMPLED or not advantage.reads_success or LOWERED & {*advantage.reads}:
        return []
    outcome = next((reward for reward in recipe.rewards if reward.outcome), recipe.rewards[0])
    return [reward_name(reward) for reward in recipe.rewards if reward is not outcome and reward.weight]


def reward_name(reward: RewardConfig) -> str:
    return reward.name or reward.function.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


def trusted_sources(recipe: Recipe) -> list[str]:
    """Models of which code runs in this process, by the word of the recipe and by name."""
    return [f"{word}.source {source}" for word, (trusted, source) in trust(recipe).items() if trusted]


def trust(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Section -> (whether code that ships with its model may run, where that comes from; "" for nowhere)."""
    model = "" if recipe.model.source == "scratch" else recipe.model.source
    return {
        "model": (recipe.model.trust_remote_code, model),
        "teacher": (recipe.teacher.trust_remote_code, recipe.teacher.source),
        "reward_model": (recipe.reward_model.trust_remote_code, recipe.reward_model.source),
    }


def why_nobody_to_trust(recipe: Recipe) -> str:
    for word, (trusted, source) in trust(recipe).items():
        if trusted and not source:
            return f"{word}.trust_remote_code: there is no {word}.source whose code could run. Leave it out."
    return ""


def recipe_warnings(recipe: Recipe) -> list[str]:
    """Values outside the ranges that are known to work. Ranges are for pretrained models; from scratch none apply."""
    warnings = []
    stale = recipe.train.minibatches_per_step * recipe.train.passes_per_step > 1
    if recipe.train.num_steps and stale and recipe.algorithm.data == "policy" and leaves_stale(recipe.algorithm):
        warnings.append(
            f"algorithm.region = {recipe.algorithm.region} corrects nothing on stale data, and with several minibatches or passes all but the first "
            "are stale: set train.minibatches_per_step = train.passes_per_step = 1, or use region = clip"
        )
    unread = unread_rewards(recipe)
    if recipe.train.num_steps and unread:
        warnings.append(
            f"algorithm.advantage = {recipe.algorithm.advantage} reads success alone, so these rewards are measured and without effect: "
            f"{', '.join(unread)}. Give them weight = 0 to say so, or use an advantage that reads rewards, such as group_normalized"
        )
    if recipe.model.source == "scratch" or recipe.train.num_steps == 0:
        return warnings

    def check(path: str, value: float, low: float, high: float, why: str) -> None:
        if not low <= value <= high:
            warnings.append(f"{path} = {value:g} is outside {low:g} to {high:g}: {why}")

    if recipe.algorithm.chosen.advantage.traits.compares_group:
        why = "small groups are often without signal, large ones cost rollouts"
        check("train.group_size", recipe.train.group_size, 4, 64, why)
    check(
        "sampling.temperature",
        recipe.sampling.temperature,
        0.6,
        1.0,
        "too low and a group holds copies, too high and it holds noise",
    )
    region = recipe.algorithm.chosen.region
    if "clip_low" in region.parameters and not region.traits.one_value:  # a whole completion's ratio moves by far less
        check("algorithm.clip_low", recipe.algorithm.clip_low, 0.1, 0.3, "the trust region of PPO and GRPO is about 0.2")
        check("algorithm.clip_high", recipe.algorithm.clip_high, 0.1, 0.3, "DAPO's clip-higher is 0.28")
    check(
        "algorithm.kl_coef", recipe.algorithm.kl_coef, 0.0, 0.04, "more KL than DeepSeekMath used holds the policy at its start"
    )
    if recipe.model.lora.rank:
        why = (
            "a rule of thumb: LoRA needs about ten times the rate of full training, 1e-5 to 1e-4 where that takes 1e-6 to 1e-5"
        )
        check("optimizer.learning_rate", recipe.optimizer.learning_rate, 1e-5, 1e-3, why)
    else:
        why = "full fine-tuning with RL works around 1e-6"
        check("optimizer.learning_rate", recipe.optimizer.learning_rate, 1e-7, 1e-5, why)
    return warnings
