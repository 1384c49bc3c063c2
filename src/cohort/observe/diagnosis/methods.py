"""What goes wrong with single methods, in words: DPO's displaced answers, an outgrown reward model, a skill lost unseen, a
critic that is no help.

Most were met while the algorithms were compared (docs/results.md); each looks like progress in the loss or the reward, or,
as PPO's advantages are whitened, like nothing at all.
"""

from __future__ import annotations

from statistics import median

from cohort.base.text import write_percent
from cohort.observe.diagnosis.history import PATIENCE, WINDOW, Finding, History

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


def chosen_displaced(history: History) -> Finding | None:
    """DPO: right answers become unlikely, only less so than wrong ones."""
    chosen, preferred = history.now("loss/chosen_gain"), history.now("loss/preferred")
    if chosen is None or chosen > DISPLACED:
        return None
    look_right = "" if preferred is None else f", while {write_percent(preferred)} of pairs look right"
    return Finding(
        "chosen_displaced",
        "alarm",
        f"Chosen completions have lost {-chosen:.1f} nats against the reference{look_right}.",
        "DPO fixes the difference between chosen and rejected alone. Where the two share most of their text, pushing one down "
        "drags the other along, and sampled answers get worse.",
        "Raise algorithm.kl_coef (DPO's beta), lower optimizer.learning_rate, take pairs from the policy as it is "
        "(algorithm.data = policy), or use a method that rewards the right answer itself.",
    )


def reward_model_outgrown(history: History) -> Finding | None:
    """The learned reward rises and the verifier does not agree any more."""
    agreement = history.now("reward/verifier_agreement")
    if agreement is None or agreement > 0.7:
        return None
    return Finding(
        "reward_model_outgrown",
        "alarm" if agreement < 0.6 else "warning",
        f"The learned reward agrees with the verifier no better than {agreement:.2f} (0.5 is chance).",
        "The policy has found what the reward model likes and the verifier does not; from here on, more reward is not more success.",
        "Shorten the iterations (more reward_model.iterations), raise algorithm.kl_coef, or give the reward model more prompts.",
    )


def lost_unseen(history: History) -> Finding | None:
    """Dynamic sampling throws away just the groups that show that a kind of problem is always wrong now."""
    hard, drawn = sum(history.last("rollout/groups_too_hard")), sum(history.last("rollout/groups_drawn"))
    first = history.rows[:3]  # the lock may close within ten steps
    before, drawn_before = (
        sum(history.values("rollout/groups_too_hard", first)),
        sum(history.values("rollout/groups_drawn", first)),
    )
    if not history.long_enough or not drawn or not drawn_before:
        return None
    now, start = hard / drawn, before / drawn_before
    if now < 0.25 or now < start + 0.1:
        return None
    return Finding(
        "lost_unseen",
        "warning",
        f"{write_percent(now)} of the groups drawn are all wrong, up from {write_percent(start)}, and dynamic sampling leaves them out.",
        "A kind of problem may have been lost altogether: once every completion of it fails, its groups are never trained on, and "
        "without KL nothing else pulls back.",
        "Look at the failures by kind of problem. A small algorithm.kl_coef (0.005) or algorithm.refill_rounds = 0 avoids the lock.",
    )


# -- PPO's critic ------------------------------------------------------------------------------------------------------


def critic_diverges(history: History) -> Finding | None:
    """Values that scatter more widely than the returns, or lie beyond anything that the rewards can add up to."""
    explained, value, reward = explained_now(history, WINDOW), history.now("critic/value_mean"), history.now("reward/mean")
    scatters = explained is not None and explained <= DIVERGED
    beyond = value is not None and reward is not None and abs(value - reward) > reach_of_rewards(history, reward) > 0
    if not history.long_enough or not (scatters or beyond):
        return None
    return Finding(
        "critic_diverges",
        "alarm",
        f"The critic diverges: {critic_numbers(history)}.",
        "Its errors are larger than what it is to explain, and every advantage holds them: the policy follows noise.",
        f"Lower critic.learning_rate{critic_rate(history)}, give both networks a warm-up (optimizer.warmup_steps), and look for "
        f"rewards of a large scale. {WITHOUT_CRITIC}",
    )


def critic_explains_nothing(history: History) -> Finding | None:
    """Long after the start the critic is no better than a constant: it lags behind, or it is noise."""
    explained = explained_now(history, 2 * WINDOW)
    steps = sum(bool(history.values("critic/loss", [row])) for row in history.rows)
    if explained is None or steps < CRITIC_STEPS or critic_diverges(history):
        return None
    value, reward = history.now("critic/value_mean"), history.now("reward/mean")
    lags = value is not None and reward is not None and abs(value) < 0.5 * abs(reward) and explained < LEARNED
    if explained > 0 and not lags:
        return None
    fix = (
        f"Its values have hardly left 0, where they start: raise critic.learning_rate{critic_rate(history)}."
        if lags
        else f"Its values move and predict nothing: lower critic.learning_rate{critic_rate(history)}, set a warm-up "
        "(optimizer.warmup_steps, for policy and critic), or take more completions per step."
    )
    return Finding(
        "critic_explains_nothing",
        "warning",
        f"After {steps} steps the critic explains nothing: {critic_numbers(history)}.",
        "A baseline that is no better than a constant makes PPO REINFORCE with noise, at the price of a second network.",
        f"{fix} {WITHOUT_CRITIC}",
    )


WITHOUT_CRITIC = 'Or use algorithm.name = "grpo": the mean of the group is its baseline, and there is no critic to go wrong.'


def explained_now(history: History, count: int) -> float | None:
    """Over the last steps whose returns differ. The median, for one batch of nearly equal returns can give any number."""
    recent = history.rows[-count:]
    spreads = history.values("reward/std", [*history.rows[:WINDOW], *recent])
    largest = max(spreads, default=0.0)
    if spreads and not largest:  # a KL in the reward is all that differs
        return None
    differ = [row for row in recent if min(history.values("reward/std", [row]), default=largest) >= SPREAD * largest]
    values = history.values("critic/explained_variance", differ)
    return median(values) if len(values) >= PATIENCE else None


def reach_of_rewards(history: History, reward: float) -> float:
    """How far the mean value may be from the mean reward; discounts keep returns well within it. A KL in the reward is part of
    the returns and not of reward/mean."""
    spreads = [spread for spread in (history.start("reward/std"), history.now("reward/std")) if spread is not None]
    reach = max(3 * max(spreads, default=0.0), 2 * abs(reward))
    held = 0.0 if history.setting("algorithm.kl_in") == "loss" else history.now("loss/kl_coef") or 0.0
    return reach + 2 * held * (history.now("loss/kl_per_completion") or 0.0) if reach else 0.0


def critic_numbers(history: History) -> str:
    """What is known of explained variance, values and loss, with the names of the metrics."""
    explained, value, reward = explained_now(history, WINDOW), history.now("critic/value_mean"), history.now("reward/mean")
    loss = history.trend("critic/loss", WINDOW)
    said = [] if explained is None else [f"its explained variance is {explained:.2g} (critic/explained_variance)"]
    if value is not None:
        beside = "" if reward is None else f" where rewards average {reward:.3g}"
        said.append(f"its values average {value:.3g}{beside} (critic/value_mean)")
    if loss is not None and loss.rises(loss.start):
        said.append(f"its loss rose from {loss.start:.2g} to {loss.now:.2g} (critic/loss)")
    return ", ".join(said)


def critic_rate(history: History) -> str:
    rate = history.setting("critic.learning_rate")
    return f" (now {rate:g})" if isinstance(rate, int | float) else ""


METHOD_CHECKS = (chosen_displaced, reward_model_outgrown, lost_unseen, critic_diverges, critic_explains_nothing)
