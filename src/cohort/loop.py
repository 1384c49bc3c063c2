"""The whole algorithm, top to bottom.

    prompts -> rollouts -> rewards -> advantages -> batch -> loss -> optimizer step -> observe

Each line is one stage. Losses are per token and weights are fixed over the optimizer batch beforehand, so the innermost
lines only multiply, sum and call backward. Everything optional (several minibatches, KL, masks) is decided in the stage
it belongs to; nothing here asks which algorithm is running.
"""

from __future__ import annotations

from cohort.batching import pack
from cohort.experience import add_logprobs, as_rollouts, make_batch
from cohort.objective import pushes_on_all_tokens, token_loss
from cohort.parts import Parts
from cohort.state import TrainState
from cohort.types import NoiseKey
from cohort.updates import UpdateMeter


def train(parts: Parts, state: TrainState) -> None:
    """Train until `num_steps` steps are finished, from wherever `state` stands."""
    recipe, algorithm = parts.recipe, parts.recipe.algorithm
    skip_zero_advantage = not pushes_on_all_tokens(algorithm)
    for step in range(state.step + 1, recipe.train.num_steps + 1):
        watch = parts.stopwatch()

        if state.batch is None:  # a run resumed inside a step goes on with the batch it had
            prompts = parts.stream.take(state.cursor, recipe.train.prompts_per_step)
            completions_PG = parts.engine.generate(prompts, parts.sampling, NoiseKey(recipe.seed, "train", step))
            watch.lap("rollout")
            scored = parts.score(prompts, completions_PG, step)
            watch.lap("reward")
            rollouts = as_rollouts(prompts, completions_PG, scored.outcomes, state.policy_version)
            batch = make_batch(rollouts, scored.metrics, recipe, step)
            batch = add_logprobs(batch, parts.policy, parts.reference, recipe.train.micro_batch_tokens, skip_zero_advantage)
            state.begin_batch(batch)
            watch.lap("prepare")

        for members in state.remaining_minibatches():
            minibatch = pack(
                members,
                aggregation=algorithm.aggregation,
                max_completion_tokens=parts.sampling.max_completion_tokens,
                micro_batch_tokens=recipe.train.micro_batch_tokens,
                skip_zero_advantage=skip_zero_advantage,
            )
            meter = UpdateMeter(algorithm)
            for micro in minibatch.micro_batches:
                micro = micro.to(parts.policy.device)
                scores = parts.policy.compute_logprobs(micro, entropy_gradient=algorithm.entropy_coef > 0)
                loss = token_loss(scores, micro, algorithm)
                (loss.loss_M * micro.loss_weights_M).sum().backward()
                meter.add(scores, micro, loss)
            parts.check_before_update(meter, state)
            state.update(meter, minibatch)
        watch.lap("update")

        parts.observe(state, watch)
        state.finish_step(recipe.train.prompts_per_step)
        parts.save_if_due(state)
