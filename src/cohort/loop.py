"""The whole algorithm, top to bottom.

    prompts -> rollouts -> rewards -> advantages -> batch -> loss -> optimizer step -> observe

Each line is one stage. Which of GRPO, PPO, DPO or SFT is running is decided inside the stages, by the choices of the recipe:
where completions come from (training/sources.py), who judges them (training/judging.py), what each token is credited with
(training/credit.py), how far an update may go and what holds it back (training/objective.py). Losses are per token and weights
are fixed over the optimizer batch beforehand, so the innermost lines only multiply, sum and call backward; nothing here asks
which algorithm it is.
"""

from __future__ import annotations

from cohort.base.stopwatch import Stopwatch
from cohort.training.drawing import begin_drawing, finish_drawing, why_not_full
from cohort.training.experience import credit_tokens, make_batch
from cohort.training.objective import pack_minibatch, score_tokens, token_loss
from cohort.training.parts import TrainingParts
from cohort.training.stages import check_before_update, finish_step, observe_step, save_if_due, say_why_not_full
from cohort.training.state import TrainState
from cohort.training.updates import UpdateMeter


def train(parts: TrainingParts, state: TrainState, until: int) -> None:
    """Train until `until` steps are finished, from wherever `state` stands."""
    recipe, source = parts.recipe, parts.source
    for step in state.remaining_steps(until):
        watch = Stopwatch(parts.policy.wait, parts.world)

        if state.batch is None:  # a run resumed inside a step goes on with the batch it had
            source.sync(state.policy_version)
            drawn = begin_drawing(recipe, state.cursor, state.policy_version)
            while drawn.missing:  # once; with dynamic sampling until enough groups differ
                prompts = drawn.next_prompts(parts.stream)
                hear = parts.judge.listen(prompts, step)  # what can be judged while others are sampled
                completions_PG = source.complete(prompts, step, len(drawn.groups), watch, hear)
                figures = source.metrics()
                scored = parts.judge.score(prompts, completions_PG, step, watch)
                drawn = drawn.add_round(prompts, completions_PG, scored, figures)
            say_why_not_full(parts, state, why_not_full(drawn, step))
            rollouts = finish_drawing(drawn, state.policy_version, sampled=source.samples, keyed=source.keyed)
            credited = credit_tokens(rollouts, parts.models, recipe, step, state.kl_coef, watch)
            state.begin_batch(make_batch(credited, watch))

        update_policy(parts, state, watch)
        observe_step(parts, state, watch)
        finish_step(parts, state)
        save_if_due(parts, state)


def update_policy(parts: TrainingParts, state: TrainState, watch: Stopwatch) -> None:
    """The updates that the step still owes, one for each minibatch of its batch."""
    recipe = parts.recipe
    for members in state.remaining_minibatches():
        minibatch = pack_minibatch(members, recipe, parts.policy, state.layouts)
        watch.lap("pack")
        meter = UpdateMeter(recipe.algorithm, keeps_tokens=recipe.monitors.tokens_every > 0)
        for micro in minibatch.deal(parts.world):  # all of them, or this rank's share
            micro = micro.to(parts.policy.device)
            scores = score_tokens(parts.policy, micro, recipe.algorithm)
            loss = token_loss(scores, micro, recipe.algorithm, state.kl_coef)
            (loss.loss_M * micro.loss_weights_M).sum().backward()
            parts.critic.backward(micro)
            meter.add(scores, micro, loss)
        meter.join(parts.world)
        check_before_update(parts, state, meter)
        watch.lap("update", meter.own_tokens)
        state.update(meter, minibatch, parts.critic)
        watch.lap("optimizer")
