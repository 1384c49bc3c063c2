"""Functions of a user's own, called once before a night is spent on them: `cohort doctor` does, on the starting policy."""

from __future__ import annotations

from cohort.algorithms.registry import SAMPLED
from cohort.errors import CohortError
from cohort.model.critic import NoCritic
from cohort.recipe.rules import measures_kl
from cohort.training.drawing import Collected
from cohort.training.experience import Models, credit_tokens, make_batch
from cohort.training.objective import needs_critic, pack_minibatch, score_tokens, token_loss
from cohort.training.parts import Parts
from cohort.training.preflight import Check
from cohort.training.stages import sample_rollouts
from cohort.types import NoiseKey

PROMPTS = 8


def own_checks(parts: Parts) -> list[Check]:
    """One sentence on the functions, or what is wrong with what they gave. No weight moves."""
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
    prompts = parts.stream.take(0, PROMPTS)
    rollouts = sample_rollouts(parts, prompts, parts.sampling, NoiseKey(recipe.seed, "preflight", 1), 1)
    # At the start the reference is the policy itself.
    models = Models(policy, policy if measures_kl(recipe) else None, NoCritic())
    credited = credit_tokens(Collected(rollouts, {}, len(prompts), 0), models, recipe, 1, recipe.algorithm.kl_coef)
    advantages_N = make_batch(credited).advantages_N
    said = f"advantages from {min(advantages_N):.3g} to {max(advantages_N):.3g} on {len(rollouts)} completions"
    members = [credited.examples[place] for place in credited.plan[0]] if credited.plan else []
    minibatch = pack_minibatch(members, recipe, policy, credited.layouts)
    if not minibatch.micro_batches:
        return f"{said}; no token is pushed on them, so the region was not called"
    micro = minibatch.micro_batches[0].to(policy.device)
    loss = token_loss(score_tokens(policy, micro, recipe.algorithm), micro, recipe.algorithm, recipe.algorithm.kl_coef)
    return f"{said}, a finite loss for each of {loss.loss_M.numel()} tokens"
