"""Checks that sample from the starting policy: what the first rollouts show, and the invariants of step 1. `cohort doctor` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from cohort.algorithms.registry import SAMPLED
from cohort.engine.sampling import find_mismatch_limit
from cohort.errors import CohortError
from cohort.evaluation.estimators import predict_useful_share
from cohort.model.critic import NoCritic
from cohort.model.examples import make_examples
from cohort.recipe.rules import measures_kl
from cohort.training.build import EncodedData
from cohort.training.drawing import Collected
from cohort.training.experience import Models, credit_tokens, make_batch, measure_rollouts
from cohort.training.objective import needs_critic, pack_minibatch, score_tokens, token_loss
from cohort.training.parts import Parts
from cohort.training.preflight import Check, Level
from cohort.training.stages import sample_rollouts
from cohort.types import NoiseKey, Rollout

TRIAL_PROMPTS = 32
OWN_PROMPTS = 8


def run_trial_checks(parts: Parts, encoded: EncodedData) -> list[Check]:
    """Rollouts on a few prompts with the starting policy, and the invariants that must hold at step 1."""
    prompts = parts.stream.take(0, TRIAL_PROMPTS)
    parts.engine.sync(parts.policy.read_weights(), 0)
    rollouts = sample_rollouts(parts, prompts, parts.sampling, NoiseKey(parts.recipe.seed, "preflight", 0), 1)
    return [*check_rollouts(parts, rollouts), check_invariants(parts, rollouts)]


def check_rollouts(parts: Parts, rollouts: Sequence[Rollout]) -> Iterator[Check]:
    size = parts.sampling.group_size
    metrics = measure_rollouts(rollouts, 0)
    groups = [rollouts[at : at + size] for at in range(0, len(rollouts), size)]
    rates = [sum(bool(rollout.outcome.success) for rollout in group) / len(group) for group in groups]
    mean = sum(rates) / len(rates)
    # A rate of 0 or 1 out of `size` draws is not a probability of 0 or 1: each is pulled towards the mean of all prompts,
    # with the weight of two draws, and the mean itself away from 0 and 1 by half a draw.
    pooled = (mean * len(rollouts) + 0.5) / (len(rollouts) + 1)
    predicted = sum(predict_useful_share((rate * size + 2 * pooled) / (size + 2), size) for rate in rates) / len(rates)
    seen = sum(0 < rate < 1 for rate in rates)
    cut = f"{metrics['rollout/truncated']:.0%} of completions were cut at {parts.sampling.max_completion_tokens} tokens; mean length {metrics['rollout/length_mean']:.0f}"
    untrained = parts.recipe.cold_start.num_steps > 0
    if metrics["rollout/truncated"] > 0.3 and not untrained:
        yield Check("warning", "truncation", f"{cut}. Raise sampling.max_completion_tokens.")
    else:
        yield Check("ok", "truncation", cut + (" (before the cold start)" if untrained else ""))
    text = f"{mean:.1%} success on {len(groups)} prompts x {size}; groups with signal: {seen} of {len(groups)} seen, {predicted:.0%} predicted"
    if untrained:
        yield Check("ok", "success", f"{text} (before the cold start, which comes first)")
    elif seen == 0 and mean < 0.5:
        hint = "Too hard or not parsed: try easier prompts, a cold start, or look at a completion."
        yield Check("warning", "success", f"{text}. {hint}")
    elif seen == 0:
        yield Check("warning", "success", f"{text}. Too easy: nothing is left to learn from.")
    else:
        yield Check("ok", "success", text)
    distinct = metrics["rollout/distinct"]
    level: Level = "ok" if distinct > 1.5 / size or size == 1 else "warning"
    yield Check(level, "diversity", f"{distinct:.0%} of the completions of a group are distinct")
    best = max(rollouts, key=lambda rollout: (rollout.outcome.reward or 0.0, -rollout.completion.length))
    shown = f"{best.prompt.content!r} -> {best.completion.text[:200]!r} (reward {best.outcome.reward})"
    yield Check("ok", "example", shown)


@torch.no_grad()
def check_invariants(parts: Parts, rollouts: Sequence[Rollout]) -> Check:
    """Ratio 1 between engine and trainer, log-probs <= 0, KL 0 to a copy of the weights."""
    scored = [rollout for rollout in rollouts if rollout.outcome.reward is not None]
    examples = make_examples(scored)
    if not examples:
        return Check("failure", "step 1", "no completion was scored, so nothing could be compared")
    policy = parts.policy.score_examples(examples, parts.recipe.train.micro_batch_tokens)
    again = parts.policy.score_examples(examples, parts.recipe.train.micro_batch_tokens)
    compared = zip(policy, examples, strict=True)
    mismatch = torch.cat([(ours - one.sampling_logprobs_T)[one.loss_mask_T].abs() for ours, one in compared])
    drift = max(float((ours - twice).abs().max()) for ours, twice in zip(policy, again, strict=True))
    limit = find_mismatch_limit(parts.policy.model, parts.engine.capabilities.rounding)
    largest, highest = float(mismatch.max()), max(float(ours.max()) for ours in policy)
    text = f"max |log ratio| engine to trainer {largest:.1e} (limit {limit:.0e}), largest log-prob {highest:.1e}, KL to equal weights {drift:.1e}"
    held = largest <= limit and highest <= 1e-6 and drift == 0.0
    return Check("ok" if held else "failure", "step 1", text)


# -- functions of a user's own -----------------------------------------------------------------------------------------


def check_own_functions(parts: Parts) -> list[Check]:
    """One sentence on the user's own functions, tried on the starting policy, or what is wrong with what they gave. No weight moves."""
    algorithm = parts.recipe.algorithm
    names = ", ".join(choice.name for choice in algorithm.own.values())
    if not names:
        return []
    if needs_critic(algorithm) or algorithm.data not in SAMPLED:
        return [Check("ok", "algorithm", f"{names}: not tried here; they need a critic, or rows that are not sampled")]
    try:
        return [Check("ok", "algorithm", f"{names}: {try_functions(parts)}")]
    except CohortError as problem:
        return [Check("failure", "algorithm", str(problem))]


def try_functions(parts: Parts) -> str:
    recipe, policy = parts.recipe, parts.policy
    prompts = parts.stream.take(0, OWN_PROMPTS)
    rollouts = sample_rollouts(parts, prompts, parts.sampling, NoiseKey(recipe.seed, "preflight", 1), 1)
    # At the start the reference is the policy itself.
    models = Models(policy, policy if measures_kl(recipe) else None, NoCritic())
    credited = credit_tokens(Collected(rollouts, {}, len(prompts), 0), models, recipe, 1, recipe.algorithm.kl_coef)
    advantages_N = make_batch(credited).advantages_N
    said = f"advantages from {min(advantages_N):.3g} to {max(advantages_N):.3g} on {len(rollouts)} completions"
    members = credited.examples.select(credited.plan[0] if credited.plan else [])
    minibatch = pack_minibatch(members, recipe, policy, credited.layouts)
    if not minibatch.micro_batches:
        return f"{said}; no token is pushed on them, so the region was not called"
    micro = minibatch.micro_batches[0].to(policy.device)
    loss = token_loss(score_tokens(policy, micro, recipe.algorithm), micro, recipe.algorithm, recipe.algorithm.kl_coef)
    return f"{said}, a finite loss for each of {loss.loss_M.numel()} tokens"
