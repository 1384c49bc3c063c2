"""Checks for one method each: DPO, a learned reward model, dynamic sampling, PPO's critic. No torch.

Most of these failures occurred in the comparison of algorithms (docs/results.md). Each looks like progress in the loss or the reward; or,
because PPO whitens its advantages, nothing shows at all.
"""

from __future__ import annotations

from statistics import median

from cohort.base.text import write_percent
from cohort.observe.diagnosis.finding import PATIENCE, WINDOW, Finding, History, write_finding

DISPLACED = -3.0
"""Nats that chosen completions may lose before a finding; the margin can still look fine at that point."""
SPREAD = 0.5
"""Share of the run's largest reward/std below which returns hardly differ, so that there is little to explain. With rewards 0 and 1 this
excludes success above 93 % and below 7 %."""
CRITIC_STEPS = 3 * WINDOW
"""Steps that a critic may take to become useful. Its head starts at zero while the policy moves: healthy runs have shown explained
variances of -1 to -10 in the first ten steps, and good ones by the twentieth."""
LEARNED = 0.02
"""Explained variance that any critic exceeds once it has learned something; with a far too small learning rate it stays at 0.00."""
DIVERGED = -1.0
"""Explained variance below which the values scatter more than the returns they should predict."""


def check_chosen_displaced(history: History) -> Finding | None:
    """DPO makes right answers less likely, only less so than wrong ones."""
    chosen, preferred = history.mean_now("loss/chosen_gain"), history.mean_now("loss/preferred")
    if chosen is None or chosen > DISPLACED:
        return None
    look_right = "" if preferred is None else f", while {write_percent(preferred)} of pairs look right"
    return write_finding("chosen_displaced", "alarm", lost=-chosen, look_right=look_right)


def check_reward_model_outgrown(history: History) -> Finding | None:
    """The learned reward no longer agrees with the verifier."""
    agreement = history.mean_now("reward/verifier_agreement")
    if agreement is None or agreement > 0.7:
        return None
    return write_finding("reward_model_outgrown", "alarm" if agreement < 0.6 else "warning", agreement=agreement)


def check_lost_unseen(history: History) -> Finding | None:
    """Dynamic sampling drops the very groups that show that a kind of problem now always fails."""
    first = history.rows[:3]  # a kind of problem can be lost within ten steps
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
    """The critic's values scatter more than the returns, or exceed any possible return."""
    explained, value, reward = read_critic(history)
    scatters = explained is not None and explained <= DIVERGED
    beyond = value is not None and reward is not None and abs(value - reward) > measure_reward_reach(history, reward) > 0
    if not history.long_enough or not (scatters or beyond):
        return None
    rate = history.quote_setting("critic.learning_rate")
    return write_finding("critic_diverges", "alarm", numbers=describe_critic(history), rate=rate)


def check_critic_explains_nothing(history: History) -> Finding | None:
    """After many steps the critic is no better than a constant: it lags behind, or it is noise."""
    explained = median_explained_variance(history, 2 * WINDOW)
    steps = sum(bool(history.read_values("critic/loss", [row])) for row in history.rows)
    if explained is None or steps < CRITIC_STEPS or check_critic_diverges(history):
        return None
    _, value, reward = read_critic(history)
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
    """Median over the last steps with different returns; a batch of nearly equal returns can give any value."""
    recent = history.rows[-count:]
    spreads = history.read_values("reward/std", [*history.rows[:WINDOW], *recent])
    largest = max(spreads, default=0.0)
    if spreads and not largest:  # only the KL in the reward differs
        return None
    differ = [row for row in recent if min(history.read_values("reward/std", [row]), default=largest) >= SPREAD * largest]
    values = history.read_values("critic/explained_variance", differ)
    return median(values) if len(values) >= PATIENCE else None


def measure_reward_reach(history: History, reward: float) -> float:
    """How far the critic's mean value may be from the mean reward; discounting keeps returns well within it.

    A KL in the reward is part of the returns, but not of reward/mean.
    """
    spreads = [spread for spread in (history.mean_at_start("reward/std"), history.mean_now("reward/std")) if spread is not None]
    reach = max(3 * max(spreads, default=0.0), 2 * abs(reward))
    held = 0.0 if history.read_setting("algorithm.kl_in") == "loss" else history.mean_now("loss/kl_coef") or 0.0
    return reach + 2 * held * (history.mean_now("loss/kl_per_completion") or 0.0) if reach else 0.0


def describe_critic(history: History) -> str:
    """The known ones of its explained variance, values and loss, with the names of the metrics."""
    explained, value, reward = read_critic(history)
    loss = history.find_trend("critic/loss", WINDOW)
    facts = [] if explained is None else [f"its explained variance is {explained:.2g} (critic/explained_variance)"]
    if value is not None:
        average = "" if reward is None else f" where rewards average {reward:.3g}"
        facts.append(f"its values average {value:.3g}{average} (critic/value_mean)")
    if loss is not None and loss.rises(loss.start):
        facts.append(f"its loss rose from {loss.start:.2g} to {loss.now:.2g} (critic/loss)")
    return ", ".join(facts)


def read_critic(history: History) -> tuple[float | None, float | None, float | None]:
    """(explained variance, mean value, mean reward) of the last steps."""
    return median_explained_variance(history, WINDOW), history.mean_now("critic/value_mean"), history.mean_now("reward/mean")
