"""Functions of a user's own, called once before a night is spent on them: `cohort doctor` does, on the starting policy."""

from __future__ import annotations

from cohort.algorithms.registry import SAMPLED
from cohort.engine import sample_groups
from cohort.errors import CohortError
from cohort.model.critic import NoCritic
from cohort.model.packing import pack
from cohort.recipe.schema import needs_reference
from cohort.training.experience import Models, make_batch
from cohort.training.objective import compares_pairs, needs_critic, pushes_on_all_tokens, token_loss, weigh_tokens
from cohort.training.parts import Parts
from cohort.training.preflight import Check
from cohort.training.sources import Collected, as_groups
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
    completions_PG = sample_groups(parts.engine, prompts, parts.sampling, NoiseKey(recipe.seed, "preflight", 1))
    outcomes = parts.score(prompts, completions_PG, 1).outcomes
    rollouts = [rollout for group in as_groups(prompts, completions_PG, outcomes, 0) for rollout in group]
    # At the start the reference is the policy itself.
    models = Models(policy, policy if needs_reference(recipe) else None, NoCritic())
    batch = make_batch(Collected(rollouts, {}, len(prompts), 0), models, recipe, 1, recipe.algorithm.kl_coef)
    minibatch = pack(
        batch.examples,
        aggregation=weigh_tokens(recipe.algorithm),
        max_completion_tokens=parts.sampling.max_completion_tokens,
        micro_batch_tokens=recipe.train.micro_batch_tokens,
        skip_zero_advantage=not pushes_on_all_tokens(recipe.algorithm),
        keep_groups=compares_pairs(recipe.algorithm),
        share_prompts=policy.share_prompts,
    )
    said = f"advantages from {min(batch.advantages_N):.3g} to {max(batch.advantages_N):.3g} on {len(rollouts)} completions"
    if not minibatch.micro_batches:
        return f"{said}; no token is pushed on them, so the region was not called"
    micro = minibatch.micro_batches[0].to(policy.device)
    loss = token_loss(policy.compute_logprobs(micro), micro, recipe.algorithm, recipe.algorithm.kl_coef)
    return f"{said}, a finite loss for each of {loss.loss_M.numel()} tokens"
