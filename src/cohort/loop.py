"""The whole algorithm, top to bottom.

    prompts -> rollouts -> rewards -> advantages -> batch -> loss -> optimizer step -> observe

Each line is one stage. Which of GRPO, PPO, DPO or SFT is running is decided inside the stages, by the choices of the recipe:
where completions come from (training/rollouts.py), who judges them (training/rollouts.py), what each token is credited with
(training/credit.py), how far an update may go and what holds it back (training/objective.py). Losses are per token and weights
are fixed over the optimizer batch beforehand, so the innermost lines only multiply, sum and call backward; nothing here asks
which algorithm it is.
"""

from __future__ import annotations

from cohort.base.stopwatch import Stopwatch
from cohort.training.experience import credit_tokens, make_batch
from cohort.training.objective import pack_minibatch, score_tokens, token_loss
from cohort.training.rollouts import begin_drawing, finish_drawing, why_not_full
from cohort.training.run import TrainingRun
from cohort.training.stages import check_before_update, finish_step, observe_step, save_if_due, say_why_not_full
from cohort.training.state import TrainState
from cohort.training.updates import UpdateMeter


def train(run: TrainingRun, state: TrainState, until: int) -> None:
    """Train until `until` steps are finished, from wherever `state` stands."""
    recipe, source = run.recipe, run.source
    for step in state.remaining_steps(until):
        watch = Stopwatch(run.policy.wait, run.world)

        if state.batch is None:  # a run resumed inside a step goes on with the batch it had
            source.sync(state.policy_version)
            drawn = begin_drawing(recipe, state.cursor, state.policy_version)
            while drawn.missing:  # once; with dynamic sampling until enough groups differ
                prompts = drawn.next_prompts(run.stream)
                hear = run.judge.listen(prompts, step)  # what can be judged while others are sampled
                completions_PG = source.complete(prompts, step, len(drawn.groups), watch, hear)
                figures = source.metrics()
                scored = run.judge.score(prompts, completions_PG, step, watch)
                drawn = drawn.add_round(prompts, completions_PG, scored, figures)
            say_why_not_full(run, state, why_not_full(drawn, step))
            rollouts = finish_drawing(drawn, state.policy_version, sampled=source.samples, keyed=source.keyed)
            credited = credit_tokens(rollouts, run.models, recipe, step, state.kl_coef, watch)
            state.begin_batch(make_batch(credited, watch))

        update_policy(run, state, watch)
        observe_step(run, state, watch)
        finish_step(run, state)
        save_if_due(run, state)


def update_policy(run: TrainingRun, state: TrainState, watch: Stopwatch) -> None:
    """The updates that the step still owes, one for each minibatch of its batch."""
    recipe = run.recipe
    for members in state.remaining_minibatches():
        minibatch = pack_minibatch(members, recipe, run.policy, state.layouts)
        watch.lap("pack")
        meter = UpdateMeter(recipe.algorithm, keeps_tokens=recipe.monitors.tokens_every > 0)
        for micro in minibatch.deal(run.world):  # all of them, or this rank's share
            micro = micro.to(run.policy.device)
            scores = score_tokens(run.policy, micro, recipe.algorithm)
            loss = token_loss(scores, micro, recipe.algorithm, state.kl_coef)
            (loss.loss_M * micro.loss_weights_M).sum().backward()
            run.critic.backward(micro)
            meter.add(scores, micro, loss)
        meter.join(run.world)
        check_before_update(run, state, meter)
        watch.lap("update", meter.own_tokens)
        state.update(meter, minibatch, run.critic)
        watch.lap("optimizer")
