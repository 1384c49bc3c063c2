"""The asynchronous loop: samples and scores later steps during training.

    step k:  begin batch k + lag with the weights as they are -> take batch k -> train on it -> wait until nothing is being sampled

With ahead.in_flight nobody waits there either: weights are swapped under what is being sampled (training/in_flight.py).

The stages are those of loop.py, and so are the updates. What is trained on is `ahead.lag` steps older than there (training/ahead.py), and
tokens that are older than the policy are told apart (training/experience.py).
"""

from __future__ import annotations

from cohort.base.stopwatch import Stopwatch
from cohort.loop import update_policy
from cohort.training.ahead import Ahead
from cohort.training.experience import credit_tokens, make_batch
from cohort.training.in_flight import InFlight
from cohort.training.run import TrainingRun
from cohort.training.stages import finish_step, observe_step, save_if_due
from cohort.training.state import TrainState


def train_ahead(run: TrainingRun, state: TrainState, until: int) -> None:
    """Train until `until` steps are finished, from wherever `state` stands."""
    ahead: Ahead | InFlight = InFlight(run, state) if run.recipe.ahead.in_flight else Ahead(run, state)
    state.attach(ahead.name, ahead)
    for sentence in (*ahead.describe(), *leave_others(state)):
        run.monitors.on_message(sentence)
    try:
        for step in state.remaining_steps(until):
            watch = Stopwatch(run.policy.wait, run.world)

            if state.batch is None:  # a run resumed inside a step goes on with the batch it had
                ahead.begin(step, until)
                collected = ahead.take(step, watch)
                credited = credit_tokens(collected, run.models, run.recipe, step, state.kl_coef, watch)
                state.begin_batch(make_batch(credited, watch))

            update_policy(run, state, watch)
            ahead.settle(watch)
            observe_step(run, state, watch)
            finish_step(run, state)
            save_if_due(run, state)
    finally:
        ahead.close()  # what it holds can still be saved
    state.detach(ahead.name)


def leave_others(state: TrainState) -> list[str]:
    """What a checkpoint holds of the other way to sample ahead is of no use to this one."""
    left = [name for name in (Ahead.name, InFlight.name) if state.found.pop(name, None)]
    return ["warning: ahead.in_flight was changed: what had been sampled ahead is left out, and sampled anew"] if left else []
