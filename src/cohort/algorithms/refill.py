"""Dynamic sampling (DAPO, arXiv 2503.14476): which groups are useful, how many prompts to draw next, and the message when
the batch cannot be filled.

A group is useful if it has a success and a failure. Rounds of prompts are drawn until the batch has as many useful
groups as a step trains on, or the maximum number of rounds is reached:

    counts = count_groups(verdicts of every group drawn in the step so far)
    more = count_prompts_to_draw(wanted - counts.useful, counts.useful, counts.drawn, most)

Success is decided by the outcome part. With a shaped reward (a length penalty, points for the format) nearly every group
has some spread, and a filter on the reward would keep groups in which all are right or all are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdicts = Sequence[bool | None]
"""Success of each completion of a group; None if the outcome part abstained."""

Kind = Literal["useful", "too_easy", "too_hard", "unjudged"]

ONE_SIDED = 0.75
"""If at least this share of the groups without signal is of one kind, the task is called too easy or too hard."""


def classify_group(verdicts: Verdicts) -> Kind:
    """useful: successes and failures; too_easy: only successes; too_hard: only failures; unjudged: no verdict."""
    right, wrong = True in verdicts, False in verdicts
    if right and wrong:
        return "useful"
    if right:
        return "too_easy"
    return "too_hard" if wrong else "unjudged"


def choose_groups(groups: Iterable[Verdicts], wanted: int) -> list[int]:
    """Indices of the groups to train on: the first `wanted` useful ones, in the order in which they were drawn."""
    return [place for place, verdicts in enumerate(groups) if classify_group(verdicts) == "useful"][:wanted]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Numbers of groups by kind, over all rounds of one step."""

    useful: int = 0
    too_easy: int = 0
    too_hard: int = 0
    unjudged: int = 0

    @property
    def drawn(self) -> int:
        return self.useful + self.too_easy + self.too_hard + self.unjudged


def count_groups(groups: Iterable[Verdicts]) -> GroupCounts:
    kinds = [classify_group(verdicts) for verdicts in groups]
    return GroupCounts(kinds.count("useful"), kinds.count("too_easy"), kinds.count("too_hard"), kinds.count("unjudged"))


def count_prompts_to_draw(missing: int, useful_so_far: int, drawn_so_far: int, most: int) -> int:
    """Prompts of the next round: missing / (share of useful groups), rounded up; at least `missing`, at most `most`.

    The share is (useful + 1) / (drawn + 2), the posterior mean with a Beta(1, 1) prior: 1/2 before the first draw, and small
    but not 0 after a round without a useful group.
    """
    if not 0 <= useful_so_far <= drawn_so_far or most < 1:
        raise ValueError(f"{useful_so_far} useful of {drawn_so_far} groups drawn, at most {most} per round: impossible")
    if missing <= 0:
        return 0
    expected = -(-missing * (drawn_so_far + 2) // (useful_so_far + 1))  # whole numbers: exact, and rounded up
    return min(most, max(missing, expected))


def make_refill_metrics(counts: GroupCounts, rounds: int, wanted: int) -> dict[str, float]:
    """Metrics of dynamic sampling. `rounds` includes the first round; surplus groups are useful but did not fit into the batch."""
    return {
        "rollout/rounds": rounds,
        "rollout/groups_drawn": counts.drawn,
        "rollout/groups_too_easy": counts.too_easy,
        "rollout/groups_too_hard": counts.too_hard,
        "rollout/groups_surplus": max(0, counts.useful - wanted),
    }


def explain_difficulty(counts: GroupCounts, step: int, wanted: int) -> str:
    """The message when all rounds are used and the batch is not full: the cause and what to do."""
    silent = counts.too_easy + counts.too_hard + counts.unjudged
    groups = f"{counts.drawn} groups drawn at step {step}"
    batch = f"the batch has {min(counts.useful, wanted)} of {wanted} groups"
    unjudged = f", {counts.unjudged} without a verdict" if counts.unjudged else ""
    if silent and counts.unjudged >= ONE_SIDED * silent:
        return (
            f"the reward does not judge these completions: {counts.unjudged} of {groups} have no verdict ({counts.too_easy} all "
            f"right, {counts.too_hard} all failed, {counts.useful} mixed); {batch}. Check why the outcome part of "
            "[[rewards]] abstains or fails: dynamic sampling depends on it."
        )
    if silent and counts.too_hard >= ONE_SIDED * silent:
        return (
            f"the task is too hard for this policy: in {counts.too_hard} of {groups} every completion failed "
            f"({counts.too_easy} all right, {counts.useful} mixed{unjudged}); {batch}. "
            "Use easier prompts, a larger group_size, or a cold start."
        )
    if silent and counts.too_easy >= ONE_SIDED * silent:
        return (
            f"the task is too easy for this policy: in {counts.too_easy} of {groups} every completion was right "
            f"({counts.too_hard} all failed, {counts.useful} mixed{unjudged}); {batch}. Use harder prompts, or "
            'prompt_choice = "informative", which draws solved prompts less often; if all are solved, the run is done.'
        )
    return (
        f"too few prompts are of the right difficulty for this policy: of {groups}, {counts.too_easy} were all right and "
        f"{counts.too_hard} all failed ({counts.useful} mixed{unjudged}); {batch}. Use prompt_choice = "
        '"informative", which prefers prompts of medium difficulty, a larger group_size, or more refill_rounds.'
    )
