"""The asynchronous loop: samples and scores later steps during training.

    step k:  begin to sample batch k + lag with the current weights -> take batch k -> train on it -> wait until sampling has ended

With ahead.in_flight there is no wait: weights are swapped during generation (training/in_flight.py).

Stages and updates are those of loop.py. The batches are `ahead.lag` steps older (training/ahead.py), and tokens sampled by an older
policy are marked (training/experience.py).
"""

from __future__ import annotations

from cohort.base.stopwatch import Stopwatch
from cohort.loop import update_policy
from cohort.training.ahead import Ahead
from cohort.training.experience import make_batch
from cohort.training.in_flight import InFlight
from cohort.training.run import TrainingRun
from cohort.training.stages import finish_step, observe_step, save_if_due
from cohort.training.state import TrainState


def train_ahead(run: TrainingRun, state: TrainState, until: int) -> None:
    """Train until `until` steps are finished, starting from the step that `state` is at."""
    ahead: Ahead | InFlight = InFlight(run, state) if run.recipe.ahead.in_flight else Ahead(run, state)
    state.attach(ahead.name, ahead)
    for message in (*ahead.describe(), *drop_other_batches(state)):
        run.monitors.on_message(message)
    try:
        for step in state.remaining_steps(until):
            watch = Stopwatch(run.policy.wait, run.world)

            if state.batch is None:  # a run resumed inside a step already has its batch
                ahead.begin(step, until)
                collected = ahead.take(step, watch)
                state.begin_batch(make_batch(collected, run.models, run.recipe, step, state.kl_coef, watch))

            update_policy(run, state, watch)
            ahead.finish_sampling(watch)
            observe_step(run, state, watch)
            finish_step(run, state)
            save_if_due(run, state)
    finally:
        ahead.close()  # its batches can still be saved
    del state.components[ahead.name]


def drop_other_batches(state: TrainState) -> list[str]:
    """Drop batches that the other way to sample ahead has saved; returns a warning if there were any."""
    dropped = [name for name in (Ahead.name, InFlight.name) if state.unattached.pop(name, None)]
    return ["warning: ahead.in_flight was changed: batches sampled ahead are dropped and sampled again"] if dropped else []
