"""What goes wrong with single methods, in words: DPO's displaced answers, an outgrown reward model, a skill lost unseen.

Each was met while the algorithms were compared (docs/results.md); each looks like progress in the loss or the reward.
"""

from __future__ import annotations

from cohort.history import Finding, History, percent

DISPLACED = -3.0
"""Nats that chosen completions may lose before it is worth a word; the margin can still look fine at that point."""


def chosen_displaced(history: History) -> Finding | None:
    """DPO: right answers become unlikely, only less so than wrong ones."""
    chosen, preferred = history.now("loss/chosen_gain"), history.now("loss/preferred")
    if chosen is None or chosen > DISPLACED:
        return None
    return Finding(
        "chosen_displaced",
        "alarm",
        f"Chosen completions have lost {-chosen:.1f} nats against the reference, while {percent(preferred or 0.0)} of pairs look right.",
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
        f"{percent(now)} of the groups drawn are all wrong, up from {percent(start)}, and dynamic sampling leaves them out.",
        "A kind of problem may have been lost altogether: once every completion of it fails, its groups are never trained on, and "
        "without KL nothing else pulls back.",
        "Look at the failures by kind of problem. A small algorithm.kl_coef (0.005) or algorithm.refill_rounds = 0 avoids the lock.",
    )


METHOD_CHECKS = (chosen_displaced, reward_model_outgrown, lost_unseen)
