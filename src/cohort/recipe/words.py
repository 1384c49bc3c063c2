"""An algorithm in one sentence: what its name stands for, and what the recipe changed of it. Imports no torch."""

from __future__ import annotations

from typing import Any

from cohort.algorithms.fitting import explain_idle
from cohort.algorithms.registry import SAMPLED, Choice, Kind
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.choices import written
from cohort.recipe.schema import PromptsConfig, Recipe, TeacherConfig

NO_TEACHER = TeacherConfig()
DATA_WORDS = {
    "policy": "samples of the policy",
    "start": "samples of the starting policy",
    "demonstrations": "demonstrations",
    "pairs": "chosen and rejected completions",
}


def describe(algorithm: AlgorithmConfig, teacher: TeacherConfig = NO_TEACHER) -> str:
    """grpo: samples of the policy -> advantage group_normalized -> clip 0.2/0.2 -> sequence_mean, k3 0.04 in the loss"""
    taught = bool(teacher.source)
    text = (
        f"{algorithm.name}: {DATA_WORDS[algorithm.data]} -> {choice_words(algorithm, 'advantage')} -> {region_words(algorithm)} -> "
        f"{choice_words(algorithm, 'aggregation')}; {kl_words(algorithm)}"
    )
    text += f"; every token also by teacher {teacher.source}, coef {teacher.coef:g}" if taught else ""
    extras, changed, ignored = extra_words(algorithm), changes(algorithm, taught), without_effect(algorithm, taught)
    text += f"; {extras}" if extras else ""
    text += f" (changed from the preset: {changed})" if changed else ""
    return text + (f"; without effect here: {ignored}" if ignored else "")


def template_words(prompts: PromptsConfig) -> str:
    """chat template of prompts.chat_template, told enable_thinking no; "" where the tokenizer's is rendered as it comes."""
    whose = "of prompts.chat_template" if prompts.chat_template else "of the tokenizer"
    told = ", ".join(f"{name} {written(value)}" for name, value in prompts.template_args.items())
    return f"chat template {whose}{f', told {told}' if told else ''}" if prompts.chat_template or told else ""


def first_line(recipe: Recipe) -> str:
    """What is about to begin, in 80 columns, said before anything large is loaded."""
    train = recipe.train
    work = ["cold start"] if recipe.cold_start.num_steps else []
    each = f" x {train.group_size} completions" if recipe.algorithm.data in SAMPLED else ""
    if train.num_steps:
        work.append(f"{train.num_steps} steps of {train.prompts_per_step} prompts{each} ({recipe.algorithm.name})")
    return f"{', then '.join(work)}; loading ..."


def describe_own(choice: Choice) -> str:
    """What a user's function says of itself, and which source it was."""
    return f"{choice.kind} {choice.name}: {choice.sentence or 'says nothing of itself'} (source {choice.digest[:12]})"


def choice_words(algorithm: AlgorithmConfig, kind: Kind) -> str:
    """group_normalized, or my_module:function (tau 0.5): a user's own with what it is told, by name."""
    choice: Choice = getattr(algorithm.chosen, kind)
    told = algorithm.tell(choice) if choice.digest else {}
    listed = ", ".join(f"{name} {written(value)}" for name, value in told.items())
    return f"{choice.name} ({listed})" if listed else choice.name


def region_words(algorithm: AlgorithmConfig) -> str:
    """clip 0.2/0.28: the region with the words it is told."""
    region = algorithm.chosen.region
    if region.digest:
        return choice_words(algorithm, "region")
    values = "/".join(f"{value:g}" for value in region.shown(algorithm.tell(region)).values())
    return f"{region.name} {values}" if values else f"region {region.name}"


def kl_words(algorithm: AlgorithmConfig) -> str:
    if not algorithm.kl_coef:
        return "no KL"
    if algorithm.chosen.region.traits.preference:
        return f"implicit KL, beta {algorithm.kl_coef:g}"
    where = {"loss": "in the loss", "token_reward": "in each token's reward", "completion_reward": "in the reward"}
    words = f"{algorithm.kl_estimator} {algorithm.kl_coef:g} {where[algorithm.kl_in]}"
    words += ", corrected" if algorithm.kl_corrected else ""
    return words + (f", adapted to {algorithm.kl_target:g} nats" if algorithm.kl_target else "")


def extra_words(algorithm: AlgorithmConfig) -> str:
    """What acts beside data, advantage, region, aggregation and KL."""
    without = explain_idle(algorithm.model_dump(), algorithm.own)
    words = {
        "refill_rounds": f"dynamic sampling, {algorithm.refill_rounds} more rounds at most",
        "overlong_share": f"soft overlong penalty over the last {algorithm.overlong_share:.0%}",
        "mask_truncated": "cut completions masked",
        "prompt_choice": f"{algorithm.prompt_choice} prompts",
        "reference_every": f"reference refreshed every {algorithm.reference_every} steps",
        "reference_decay": f"reference a moving average with decay {algorithm.reference_decay:g}",
        "mismatch_weight": f"mismatch weight {algorithm.mismatch_weight} {algorithm.mismatch_cap:g}",
        "entropy_coef": f"entropy bonus {algorithm.entropy_coef:g}",
    }
    off = {"prompt_choice": "stream", "mismatch_weight": "off"}
    return ", ".join(
        said
        for choice, said in words.items()
        if choice not in without and getattr(algorithm, choice) not in (0, off.get(choice))
    )


def changes(algorithm: AlgorithmConfig, taught: bool = False) -> str:
    """Choices that act and are not those of the preset: "kl_coef 0.005 instead of 0.04"."""
    own, without = algorithm.model_dump(), explain_idle(algorithm.model_dump(), algorithm.own, taught=taught)
    preset = differences(algorithm)
    if algorithm.chosen.known:  # said with the functions that take them
        preset.pop("args", None)
    return ", ".join(f"{choice} {own[choice]} instead of {value}" for choice, value in preset.items() if choice not in without)


def without_effect(algorithm: AlgorithmConfig, taught: bool = False) -> str:
    """Choices that are not those of the preset and change nothing, each with the reason; those with one reason together."""
    without = explain_idle(algorithm.model_dump(), algorithm.own, taught=taught)
    by_reason: dict[str, list[str]] = {}
    for choice in differences(algorithm):
        if choice in without:
            by_reason.setdefault(without[choice], []).append(choice)
    return ", ".join(f"{' and '.join(named)} ({reason})" for reason, named in by_reason.items())


def differences(algorithm: AlgorithmConfig) -> dict[str, Any]:
    """Choice -> the value it has in the preset, wherever the algorithm has another."""
    own = algorithm.model_dump()
    return {
        choice: value for choice, value in AlgorithmConfig(name=algorithm.name).model_dump().items() if own[choice] != value
    }
