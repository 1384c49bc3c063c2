"""Informative prompts: a stream that prefers prompts from which the policy can learn, based on how often each was solved.

If all completions of a group succeed, or all fail, every advantage is 0. The variance of a success-or-failure reward is p (1 - p), so
a prompt is drawn in proportion to

    weight = max(floor, 4 p (1 - p))        1 at p = 1/2; the floor where p is near 0 or near 1

with p its estimated success rate. A prompt that was never drawn has p = 1/2, so new prompts have the same weight as the best ones.

The estimate is a discounted Beta posterior. Each prompt has two counts, successes and failures, that start at 1 and 1 (the prior,
Beta(1, 1)); a visit halves both and adds its own verdicts, and p = successes / (successes + failures):

    visits, all failed (group_size 8)     none     1       2       3
    p                                      0.5   0.056    0.02   0.009
    weight at floor 0.05                     1    0.21    0.08    0.05

The half-life is one visit: a result n visits ago has weight 2^-n, because the policy changes between two visits to a prompt. For the
same reason a visit counts as at most EVIDENCE verdicts: however large the group, one failed visit leaves a prompt well above a floor
of 0.05, and a third one takes it to the floor. No prompt is dropped: prompts at the floor are still drawn, and one visit with half its
completions right raises a prompt from p = 0 or 1 to a weight of 0.75.

Unlike PromptStream this stream has a history, which checkpoints save. Given the history, `take` is a pure function of (seed, cursor,
count). The weights matter most with many prompts and few per step; a step that takes all prompts has no choice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cohort.base.keyed import keyed_hash
from cohort.data.prompts import PromptStream
from cohort.errors import CheckpointError, PromptError
from cohort.types import Prompt

DECAY = 0.5
"""Factor by which a visit reduces all earlier counts."""
EVIDENCE = 8.0
"""Maximum number of verdicts per visit; a larger group is scaled down."""
SEVERAL_VISITS = 3
"""A prompt is called hopeless only after this many visits."""

Floats = NDArray[np.float64]


class InformativeChoice(PromptStream):
    """The endless sequence of prompts of a run, drawn by weight. Each call draws without replacement.

    `take(cursor, n + m)` starts with `take(cursor, n)`: a step that needs more prompts calls it again with the same cursor and a
    larger count, skips those it has, and gets no prompt twice.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, floor: float) -> None:
        super().__init__(prompts, seed)
        if not 0 < floor <= 1:
            raise ValueError(f"choice_floor must lie in (0, 1], got {floor}: at 0 a prompt might never be drawn again")
        self.floor = floor
        indices_P = np.array([prompt.index for prompt in self.prompts], dtype=np.int64)
        self._places_P = np.argsort(indices_P, kind="stable")
        self._indices_P = indices_P[self._places_P]
        twice = self._indices_P[1:][self._indices_P[1:] == self._indices_P[:-1]]
        if twice.size:
            raise PromptError(f"prompts: two of them have index {twice[0]}, but outcomes are recorded by index; make it unique")
        self._successes_P: Floats = np.ones(len(self.prompts))
        self._failures_P: Floats = np.ones(len(self.prompts))
        self._visits_P: Floats = np.zeros(len(self.prompts))

    # -- choosing ------------------------------------------------------------------------------------------------------

    def take(self, cursor: int, count: int) -> list[Prompt]:
        """`count` prompts for a step that starts at `cursor`; a prompt repeats only after all others were drawn."""
        if cursor < 0 or count < 0:
            raise ValueError(f"cursor and count cannot be negative, got {cursor} and {count}")
        size, weights_P = len(self.prompts), self.weights()
        chosen: list[Prompt] = []
        for lap in range(-(-count // size)):
            times_P = draw_arrival_times(weights_P, keyed_hash("prompt_choice", self.seed, cursor, lap))
            chosen += [self.prompts[place] for place in list_first_arrivals(times_P, min(size, count - lap * size))]
        return chosen

    def freeze(self) -> InformativeChoice:
        frozen = copy.copy(self)
        frozen._successes_P, frozen._failures_P = self._successes_P.copy(), self._failures_P.copy()
        return frozen

    def estimates(self) -> Floats:
        """Estimated success rate of each prompt, in the order of `prompts`; 1/2 before its first visit."""
        return self._successes_P / (self._successes_P + self._failures_P)

    def weights(self) -> Floats:
        rates_P = self.estimates()
        return np.maximum(self.floor, 4.0 * rates_P * (1.0 - rates_P))

    # -- history -------------------------------------------------------------------------------------------------------

    def record(self, outcomes: Mapping[int, tuple[int, int]]) -> None:
        """Record one visit per prompt: prompt index -> (successes, verdicts) of the last step.

        Includes groups that were drawn but not trained on. A group without a verdict is not a visit.
        """
        visits = sorted((index, *tally) for index, tally in outcomes.items())
        for index, successes, verdicts in visits:
            if not 0 <= successes <= verdicts:
                raise ValueError(f"prompt {index}: {successes} successes among {verdicts} verdicts")
        indices = np.array([index for index, _, _ in visits], dtype=np.int64)
        found = np.searchsorted(self._indices_P, indices).clip(max=len(self.prompts) - 1)
        unknown = indices[self._indices_P[found] != indices]
        if unknown.size:
            raise ValueError(f"outcomes name prompt {unknown[0]}, which is not among the {len(self.prompts)} prompts")
        judged = np.array([verdicts > 0 for _, _, verdicts in visits], dtype=bool)
        places = self._places_P[found][judged]
        successes, verdicts = (np.array([visit[at] for visit in visits], dtype=np.float64)[judged] for at in (1, 2))
        share = np.minimum(1.0, EVIDENCE / verdicts)
        self._successes_P[places] = DECAY * self._successes_P[places] + share * successes
        self._failures_P[places] = DECAY * self._failures_P[places] + share * (verdicts - successes)
        self._visits_P[places] += 1.0

    def metrics(self) -> dict[str, float]:
        rates_P, seen_P = self.estimates(), self._visits_P > 0
        floored_P = seen_P & (self.weights() <= self.floor)
        solved_P = floored_P & (rates_P > 0.5)
        hopeless_P = floored_P & (rates_P < 0.5) & (self._visits_P >= SEVERAL_VISITS)
        metrics = {
            "rollout/prompts_seen": float(seen_P.mean()),
            "rollout/prompts_retired": float(solved_P.mean()),
            "rollout/prompts_hopeless": float(hopeless_P.mean()),
        }
        if seen_P.any():
            metrics["rollout/expected_success"] = float(rates_P[seen_P].mean())
        return metrics

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """(arrays, JSON) for a checkpoint; the arrays are copies."""
        arrays = {name: array_P.copy() for name, array_P in self._arrays().items()}
        return arrays, {"prompts": len(self.prompts)}

    def load_state(self, saved: Mapping[str, ArrayLike], document: Mapping[str, Any]) -> None:
        arrays = self._arrays()
        found = {name: np.asarray(saved[name], dtype=np.float64) for name in arrays}
        sizes = {document["prompts"], *(array_P.size for array_P in found.values())}
        if sizes != {len(self.prompts)}:
            raise CheckpointError(
                f"the saved history of prompt_choice = 'informative' has {document['prompts']} prompts, the run has "
                f"{len(self.prompts)}; resume with the prompts that the run was started with"
            )
        for name, array_P in arrays.items():
            array_P[:] = found[name]

    def _arrays(self) -> dict[str, Floats]:
        return {"successes": self._successes_P, "failures": self._failures_P, "visits": self._visits_P}


# ---------------------------------------------------------------------------------------------------------------------
# Weighted sampling without replacement, as a race
# ---------------------------------------------------------------------------------------------------------------------


def draw_arrival_times(weights_P: Floats, key: int) -> Floats:
    """E / weight, with E exponential noise that is a pure function of (key, place).

    The first arrival is place i with probability weight_i / sum, the next is drawn the same way from the rest, and so on. This is
    Gumbel top-k, since log weight + Gumbel = -log(E / weight), with one logarithm instead of three.
    """
    return -np.log1p(-draw_keyed_uniform(len(weights_P), key)) / weights_P


def list_first_arrivals(times_P: Floats, count: int) -> list[int]:
    """Indices of the `count` smallest times, earliest first; ties go to the lower index."""
    if count < len(times_P):
        last = np.partition(times_P, count)[count]
        near = np.flatnonzero(times_P <= last)
    else:
        near = np.arange(len(times_P))
    places: list[int] = near[np.argsort(times_P[near], kind="stable")][:count].tolist()
    return places


def draw_keyed_uniform(size: int, key: int) -> Floats:
    """Uniform numbers strictly between 0 and 1, each a function of (key, place): the splitmix64 generator, random access.

    (52 bits + 1/2) / 2^52 is exact in float64 at both ends, so log(u) and log(1 - u) are finite.
    """
    bits_P = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    bits_P = (bits_P ^ (bits_P >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_P = (bits_P ^ (bits_P >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits_P = bits_P ^ (bits_P >> np.uint64(31))
    return ((bits_P >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
