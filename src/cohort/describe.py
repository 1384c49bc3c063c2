"""An algorithm in one sentence: what its name stands for, and what the recipe changed of it. Imports no torch."""

from __future__ import annotations

from typing import Any

from cohort.config import AlgorithmConfig

DATA_WORDS = {
    "policy": "samples of the policy",
    "start": "samples of the starting policy",
    "demonstrations": "demonstrations",
    "pairs": "chosen and rejected completions",
}


def describe(algorithm: AlgorithmConfig) -> str:
    """grpo: samples of the policy -> advantage group_normalized -> clip 0.2/0.2 -> sequence_mean, k3 0.04 in the loss"""
    text = (
        f"{algorithm.name}: {DATA_WORDS[algorithm.data]} -> {algorithm.advantage} -> {region_words(algorithm)} -> "
        f"{algorithm.aggregation}; {kl_words(algorithm)}"
    )
    extras = extra_words(algorithm)
    changed = changes(algorithm)
    return text + (f"; {extras}" if extras else "") + (f" (changed from the preset: {changed})" if changed else "")


def region_words(algorithm: AlgorithmConfig) -> str:
    region = algorithm.region
    if region in ("clip", "dual_clip", "sequence", "sequence_product"):
        words = f"{region} {algorithm.clip_low:g}/{algorithm.clip_high:g}"
        return f"{words}/{algorithm.dual_clip:g}" if region == "dual_clip" else words
    return f"cispo {algorithm.ratio_cap:g}" if region == "cispo" else f"region {region}"


def kl_words(algorithm: AlgorithmConfig) -> str:
    if not algorithm.kl_coef:
        return "no KL"
    if algorithm.region == "dpo":
        return f"implicit KL, beta {algorithm.kl_coef:g}"
    where = {"loss": "in the loss", "token_reward": "in each token's reward", "completion_reward": "in the reward"}
    words = f"{algorithm.kl_estimator} {algorithm.kl_coef:g} {where[algorithm.kl_in]}"
    words += ", corrected" if algorithm.kl_corrected else ""
    return words + (f", adapted to {algorithm.kl_target:g} nats" if algorithm.kl_target else "")


def extra_words(algorithm: AlgorithmConfig) -> str:
    words = []
    if algorithm.refill_rounds:
        words.append(f"dynamic sampling, {algorithm.refill_rounds} more rounds at most")
    if algorithm.overlong_share:
        words.append(f"soft overlong penalty over the last {algorithm.overlong_share:.0%}")
    if algorithm.mask_truncated:
        words.append("cut completions masked")
    if algorithm.prompt_choice != "stream":
        words.append(f"{algorithm.prompt_choice} prompts")
    if algorithm.reference_every:
        words.append(f"reference refreshed every {algorithm.reference_every} steps")
    if algorithm.reference_decay:
        words.append(f"reference a moving average with decay {algorithm.reference_decay:g}")
    if algorithm.mismatch_weight != "off":
        words.append(f"mismatch weight {algorithm.mismatch_weight} {algorithm.mismatch_cap:g}")
    if algorithm.entropy_coef:
        words.append(f"entropy bonus {algorithm.entropy_coef:g}")
    return ", ".join(words)


def changes(algorithm: AlgorithmConfig) -> str:
    """Choices that are not those of the preset: "kl_coef 0.005 instead of 0.04"."""
    preset: dict[str, Any] = AlgorithmConfig(name=algorithm.name).model_dump()
    own = algorithm.model_dump()
    return ", ".join(f"{choice} {own[choice]} instead of {value}" for choice, value in preset.items() if own[choice] != value)
