"""What goes wrong with single methods, in words: DPO's displaced answers, an outgrown reward model, a skill lost unseen, a
critic that is no help.

Most were met while the algorithms were compared (docs/results.md); each looks like progress in the loss or the reward, or,
as PPO's advantages are whitened, like nothing at all.
"""

from __future__ import annotations

from statistics import median

from cohort.base.text import write_percent
from cohort.observe.diagnosis.finding import PATIENCE, WINDOW, Finding, History, write_finding

DISPLACED = -3.0
"""Nats that chosen completions may lose before it is worth a word; the margin can still look fine at that point."""
SPREAD = 0.5
"""Share of the run's largest reward/std below which returns hardly differ: then there is next to nothing to explain. For right
and wrong alone this leaves out success above 93 % and below 7 %."""
CRITIC_STEPS = 3 * WINDOW
"""Steps that a critic may take to become useful. Its head starts at zero and the policy moves away under it: explained
variances of -1 to -10 in the first ten steps were seen in runs whose critic was fine by the twentieth."""
LEARNED = 0.02
"""Explained variance that a critic reaches as soon as it has learned anything; one with far too small a rate stays at 0.00."""
DIVERGED = -1.0
"""Explained variance from which on the values scatter more widely than the returns that they are to predict."""


def check_chosen_displaced(history: History) -> Finding | None:
    """DPO: right answers become unlikely, only less so than wrong ones."""
    chosen, preferred = history.mean_now("loss/chosen_gain"), history.mean_now("loss/preferred")
    if chosen is None or chosen > DISPLACED:
        return None
    look_right = "" if preferred is None else f", while {write_percent(preferred)} of pairs look right"
    return write_finding("chosen_displaced", "alarm", lost=-chosen, look_right=look_right)


def check_reward_model_outgrown(history: History) -> Finding | None:
    """The learned reward rises and the verifier does not agree any more."""
    agreement = history.mean_now("reward/verifier_agreement")
    if agreement is None or agreement > 0.7:
        return None
    return write_finding("reward_model_outgrown", "alarm" if agreement < 0.6 else "warning", agreement=agreement)


def check_lost_unseen(history: History) -> Finding | None:
    """Dynamic sampling throws away just the groups that show that a kind of problem is always wrong now."""
    first = history.rows[:3]  # the lock may close within ten steps
    drawn, drawn_before = (sum(history.read_values("rollout/groups_drawn", rows)) for rows in (history.rows[-WINDOW:], first))
    if not history.long_enough or not drawn or not drawn_before:
        return None
    now = sum(history.last_values("rollout/groups_too_hard")) / drawn
    start = sum(history.read_values("rollout/groups_too_hard", first)) / drawn_before
    if now < 0.25 or now < start + 0.1:
        return None
    return write_finding("lost_unseen", "warning", now=now, start=start)


# -- PPO's critic ------------------------------------------------------------------------------------------------------


def check_critic_diverges(history: History) -> Finding | None:
    """Values that scatter more widely than the returns, or lie beyond anything that the rewards can add up to."""
    explained, value, reward = (
        median_explained_variance(history, WINDOW),
        history.mean_now("critic/value_mean"),
        history.mean_now("reward/mean"),
    )
    scatters = explained is not None and explained <= DIVERGED
    beyond = value is not None and reward is not None and abs(value - reward) > measure_reward_reach(history, reward) > 0
    if not history.long_enough or not (scatters or beyond):
        return None
    rate = history.quote_setting("critic.learning_rate")
    return write_finding("critic_diverges", "alarm", numbers=describe_critic(history), rate=rate)


def check_critic_explains_nothing(history: History) -> Finding | None:
    """Long after the start the critic is no better than a constant: it lags behind, or it is noise."""
    explained = median_explained_variance(history, 2 * WINDOW)
    steps = sum(bool(history.read_values("critic/loss", [row])) for row in history.rows)
    if explained is None or steps < CRITIC_STEPS or check_critic_diverges(history):
        return None
    value, reward = history.mean_now("critic/value_mean"), history.mean_now("reward/mean")
    lags = value is not None and reward is not None and abs(value) < 0.5 * abs(reward) and explained < LEARNED
    if explained > 0 and not lags:
        return None
    return write_finding(
        "critic_explains_nothing",
        "warning",
        variant="lags" if lags else "",
        steps=steps,
        numbers=describe_critic(history),
        rate=history.quote_setting("critic.learning_rate"),
    )


def median_explained_variance(history: History, count: int) -> float | None:
    """Over the last steps whose returns differ. The median, for one batch of nearly equal returns can give any number."""
    recent = history.rows[-count:]
    spreads = history.read_values("reward/std", [*history.rows[:WINDOW], *recent])
    largest = max(spreads, default=0.0)
    if spreads and not largest:  # a KL in the reward is all that differs
        return None
    differ = [row for row in recent if min(history.read_values("reward/std", [row]), default=largest) >= SPREAD * largest]
    values = history.read_values("critic/explained_variance", differ)
    return median(values) if len(values) >= PATIENCE else None


def measure_reward_reach(history: History, reward: float) -> float:
    """How far the mean value may be from the mean reward; discounts keep returns well within it. A KL in the reward is part of
    the returns and not of reward/mean."""
    spreads = [spread for spread in (history.mean_at_start("reward/std"), history.mean_now("reward/std")) if spread is not None]
    reach = max(3 * max(spreads, default=0.0), 2 * abs(reward))
    held = 0.0 if history.read_setting("algorithm.kl_in") == "loss" else history.mean_now("loss/kl_coef") or 0.0
    return reach + 2 * held * (history.mean_now("loss/kl_per_completion") or 0.0) if reach else 0.0


def describe_critic(history: History) -> str:
    """What is known of explained variance, values and loss, with the names of the metrics."""
    explained, value, reward = (
        median_explained_variance(history, WINDOW),
        history.mean_now("critic/value_mean"),
        history.mean_now("reward/mean"),
    )
    loss = history.find_trend("critic/loss", WINDOW)
    said = [] if explained is None else [f"its explained variance is {explained:.2g} (critic/explained_variance)"]
    if value is not None:
        beside = "" if reward is None else f" where rewards average {reward:.3g}"
        said.append(f"its values average {value:.3g}{beside} (critic/value_mean)")
    if loss is not None and loss.rises(loss.start):
        said.append(f"its loss rose from {loss.start:.2g} to {loss.now:.2g} (critic/loss)")
    return ", ".join(said)
