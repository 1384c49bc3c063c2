"""The whole algorithm, top to bottom.

    data source -> reward -> gradient coefficient -> update

Each line is one stage. Which of GRPO, PPO, DPO or SFT is running is decided inside the stages, by the choices of the recipe:
where completions come from (training/sources.py), what each token is credited with (training/experience.py), how far an update may go and what
holds it back (training/objective.py). Losses are per token and weights are fixed over the optimizer batch beforehand, so the innermost
lines only multiply, sum and call backward; nothing here asks which algorithm it is.
"""

from __future__ import annotations

from cohort.base.stopwatch import Stopwatch
from cohort.model.packing import pack
from cohort.training.experience import make_batch
from cohort.training.objective import compares_pairs, pushes_on_all_tokens, token_loss, weigh_tokens
from cohort.training.parts import Parts
from cohort.training.state import TrainState
from cohort.training.updates import UpdateMeter


def train(parts: Parts, state: TrainState, until: int) -> None:
    """Train until `until` steps are finished, from wherever `state` stands."""
    recipe, algorithm = parts.recipe, parts.recipe.algorithm
    for step in range(state.step + 1, until + 1):
        watch = Stopwatch(parts.policy.wait)

        if state.batch is None:  # a run resumed inside a step goes on with the batch it had
            collected = parts.source.collect(state.cursor, step, state.policy_version, watch)
            state.begin_batch(make_batch(collected, parts.models, recipe, step, state.kl_coef, watch))

        for members in state.remaining_minibatches():
            minibatch = pack(
                members,
                aggregation=weigh_tokens(algorithm),
                max_completion_tokens=parts.sampling.max_completion_tokens,
                micro_batch_tokens=recipe.train.micro_batch_tokens,
                skip_zero_advantage=not pushes_on_all_tokens(algorithm),
                keep_groups=compares_pairs(algorithm),
                share_prompts=parts.policy.share_prompts,
                layouts=state.layouts,
            )
            watch.lap("pack")
            meter = UpdateMeter(algorithm)
            for micro in minibatch.micro_batches:
                micro = micro.to(parts.policy.device)
                scores = parts.policy.compute_logprobs(micro, entropy_gradient=algorithm.entropy_coef > 0)
                loss = token_loss(scores, micro, algorithm, state.kl_coef)
                (loss.loss_M * micro.loss_weights_M).sum().backward()
                parts.critic.backward(micro)
                meter.add(scores, micro, loss)
            parts.check_before_update(meter, state)
            watch.lap("update")
            state.update(meter, minibatch, parts.critic)
            watch.lap("optimizer")

        parts.observe(state, watch)
        parts.finish_step(state)
        parts.save_if_due(state)
