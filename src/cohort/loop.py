"""The whole algorithm: GRPO, PPO, DPO or SFT.

    prompts -> rollouts -> rewards -> advantages -> batch -> loss -> optimizer step -> metrics

Each line is one stage. The loop never checks which algorithm is running; the recipe decides inside the stages: where completions
come from and how they are scored (training/rollouts.py), which advantage each token gets (training/credit.py) and what the loss is
(training/objective.py). Losses stay per token, and the weights of all tokens are fixed before the first backward pass. So the
innermost lines only multiply, sum and call backward, and the micro-batch size cannot change the gradient.
"""

from __future__ import annotations

from cohort.base.stopwatch import Stopwatch
from cohort.training.experience import make_batch
from cohort.training.objective import pack_minibatch, score_tokens, token_loss
from cohort.training.rollouts import begin_collection, finish_collection
from cohort.training.run import TrainingRun
from cohort.training.stages import check_before_update, finish_step, observe_step, report_shortfall, save_if_due
from cohort.training.state import TrainState
from cohort.training.updates import UpdateMeter


def train(run: TrainingRun, state: TrainState, until: int) -> None:
    """Train until `until` steps are finished, starting from the step that `state` is at."""
    recipe, source = run.recipe, run.source
    for step in state.remaining_steps(until):
        watch = Stopwatch(run.policy.wait, run.world)

        if state.batch is None:  # a run resumed inside a step already has its batch
            source.sync(state.policy_version)
            groups = begin_collection(recipe, state.cursor, state.policy_version)
            while groups.missing:  # one round; with dynamic sampling, more until enough groups are useful
                prompts = groups.next_prompts(run.stream)
                score_early = run.scorer.start_early_scoring(prompts, step)  # while other completions are sampled
                completions_PG = source.complete(prompts, step, groups.drawn, watch, score_early)
                scored = run.scorer.score(prompts, completions_PG, step, watch)
                groups = groups.add_round(prompts, completions_PG, scored, source.metrics())
            report_shortfall(run, state, groups)
            collected = finish_collection(groups, state.policy_version, sampled=source.samples, keyed=source.keyed)
            batch = make_batch(collected, run.models, recipe, step, state.kl_coef, watch)  # adds advantages and log-probs
            state.begin_batch(batch)

        update_policy(run, state, watch)
        observe_step(run, state, watch)
        finish_step(run, state)
        save_if_due(run, state)


def update_policy(run: TrainingRun, state: TrainState, watch: Stopwatch) -> None:
    """Take the remaining optimizer steps of this step, one per minibatch."""
    algorithm = run.recipe.algorithm
    for members in state.remaining_minibatches():
        minibatch = pack_minibatch(members, run.recipe, run.policy, state.layouts)
        watch.lap("pack")
        meter = UpdateMeter(algorithm, keeps_tokens=run.recipe.monitors.tokens_every > 0)
        for micro in minibatch.deal(run.world):  # all micro-batches, or this rank's share
            micro = micro.to(run.policy.device)
            scores = score_tokens(run.policy, micro, algorithm)
            loss = token_loss(scores, micro, algorithm, state.kl_coef)
            (loss.loss_M * micro.loss_weights_M).sum().backward()
            run.critic.backward(micro)
            meter.add(scores, micro, loss)
        meter.join(run.world)
        check_before_update(run, state, meter)
        watch.lap("update", meter.own_tokens)
        state.update(meter, minibatch, run.critic)
        watch.lap("optimizer")
