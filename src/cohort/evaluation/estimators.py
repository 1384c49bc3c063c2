"""Success rates with intervals: pass@k, maj@k, mean@k, bootstrap, paired test. No torch, no config.

An evaluation draws n completions per problem. pass@k is the chance that at least one of k is right, maj@k that the majority answer of
k is right, mean@k the share that is right. Each is estimated *per problem*, without bias, from all n completions, then averaged over
problems. Intervals and tests resample problems: completions of one problem are not independent, and treating them as independent would
make intervals several times too narrow.

Textbook shortcuts avoided here: 1 - (1 - c/n)^k for pass@k (biased low), breaking ties of a vote by sampling order, and an interval of
zero width if all problems have the same value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cohort.base.text import write_count, write_estimate

CHUNK = 2_000_000
"""Numbers in memory at once while resampling; no effect on the result."""

SAME = 1e-9
"""Values this close are equal, such as 0.3 - 0.2 and 0.2 - 0.1."""

EXACT_FLIPS = 14
"""Up to this many non-zero differences, all 2^n sign flips are enumerated, so the p-value is exact."""

FEWEST_FOR_INTERVAL = 6
"""Problems needed for an interval. Resampling fewer values gives intervals that are far too narrow; and n problems that all change in
the same direction have p = 2 / 2^n, which is below 0.05 from 6 on."""

FEW_PROBLEMS = 30
"""An evaluation with fewer problems gets a note."""

SIGNIFICANT = 0.05
"""Changes with a lower p-value are called "rose" or "fell"."""

UNCLEAR = "no clear change"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; `reason` explains a value or interval that is None."""

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""

    def to_json(self) -> dict[str, float | str | None]:
        return {name: value for name, value in asdict(self).items() if name != "reason" or value}

    def written(self, share: bool = True) -> str:
        """`54.1 % [50.2, 58.0]`, or `0.541` for a number that is not a share."""
        return " ".join(filter(None, write_estimate(self.value, self.low, self.high, share)))


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """b minus a on the same problems. low and high are None with too few problems for an interval."""

    difference: float
    low: float | None
    high: float | None
    p_value: float
    """Two-sided: how often randomly swapping a and b within problems moves the mean at least this far."""
    problems: int

    @property
    def verdict(self) -> str:
        """rose or fell if both the test and the interval agree, else "no clear change"."""
        if self.low is None or self.high is None or self.p_value >= SIGNIFICANT or self.low <= 0 <= self.high:
            return UNCLEAR
        return "rose" if self.difference > 0 else "fell"

    @property
    def reason(self) -> str:
        """Why there is no interval; "" if there is one."""
        return why_no_interval(self.problems) if self.low is None else ""

    @property
    def sureness(self) -> str:
        """How certain the change is: "95 % interval +3.1 to +9.0, paired over 64 problems, p = 0.002"."""
        sure = f"paired over {write_count(self.problems, 'problem')}, p {'< 0.001' if self.p_value < 0.001 else f'= {self.p_value:.2g}'}"
        if self.low is None or self.high is None:
            return f"{sure}; {self.reason}"
        return f"95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}, {sure}"

    def to_json(self) -> dict[str, float | int | str | None]:
        reason = {"reason": self.reason} if self.reason else {}
        return {**asdict(self), "verdict": self.verdict, **reason}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> PairedDifference:
        return PairedDifference(*(plain[name] for name in ("difference", "low", "high", "p_value", "problems")))


def pass_at_k(correct: int, total: int, k: int) -> float:
    """Chance that k completions drawn without replacement from `total` hold a correct one: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. (arXiv 2107.03374), as a product of k factors in [0, 1], which cannot overflow.
    """
    if not 0 <= correct <= total:
        raise ValueError(f"correct must be between 0 and total, got {correct} of {total}")
    if not 1 <= k <= total:
        raise ValueError(f"k must be between 1 and total, got k = {k} with {total} completions")
    if total - correct < k:
        return 1.0
    all_wrong = 1.0
    for drawn in range(k):
        all_wrong *= (total - correct - drawn) / (total - drawn)
    return 1.0 - all_wrong


def mean_at_k(successes: Sequence[bool]) -> float:
    """Share of the k completions of one problem that succeed; its expectation is pass@1."""
    if not successes:
        raise ValueError("mean@k needs at least one completion")
    return sum(successes) / len(successes)


def maj_at_k(answers: Sequence[str | None], successes: Sequence[bool], k: int) -> float:
    """Chance that a majority vote of k completions, drawn without replacement from all n, picks a correct answer.

    - None does not vote. If none of the k completions votes, the vote is wrong.
    - A tie gives the share of tied answers that are correct, the expectation of a random choice. Choosing the first would make the number
      depend on the sampling order.
    - For k < n this is the exact average over all C(n, k) subsets, by counting them.
    - Equal answers normally share a verdict; if not, the answer's credit is the mean of its verdicts.
    """
    if len(answers) != len(successes):
        raise ValueError(f"{len(answers)} answers but {len(successes)} verdicts")
    if not 1 <= k <= len(answers):
        raise ValueError(f"k must be between 1 and the number of completions, got k = {k} with {len(answers)}")
    verdicts: dict[str, list[bool]] = {}
    for answer, success in zip(answers, successes, strict=True):
        if answer is not None:
            verdicts.setdefault(answer, []).append(success)
    counts = [len(votes) for votes in verdicts.values()]
    credits = [sum(votes) / len(votes) for votes in verdicts.values()]
    if k == len(answers):  # the common case: one subset, one vote
        most = max(counts, default=0)
        tied = [credit for count, credit in zip(counts, credits, strict=True) if count == most]
        return sum(tied) / len(tied) if tied else 0.0
    silent = len(answers) - sum(counts)
    # Answers with equally many votes have equal chances.
    wins = {count: compute_win_chance(count, counts, silent, k) for count in set(counts)}
    return sum(wins[count] * credit for count, credit in zip(counts, credits, strict=True))


def compute_win_chance(mine: int, counts: Sequence[int], silent: int, k: int) -> float:
    """Expected share of the win, over all k-subsets, of one answer with `mine` votes among `counts` and `silent` None."""
    others = list(counts)
    others.remove(mine)
    total = 0.0
    for votes in range(1, min(mine, k) + 1):
        # ways[(drawn, tied)]: choices from the other answers with no one above `votes` and `tied` of them at it.
        ways = {(0, 0): 1}
        for size in others:
            grown: dict[tuple[int, int], int] = {}
            for (drawn, tied), number in ways.items():
                for take in range(min(size, votes, k - votes - drawn) + 1):
                    key = (drawn + take, tied + (take == votes))
                    grown[key] = grown.get(key, 0) + number * math.comb(size, take)
            ways = grown
        own = math.comb(mine, votes)
        for (drawn, tied), number in ways.items():
            total += own * number * math.comb(silent, k - votes - drawn) / (tied + 1)
    return total / math.comb(sum(counts) + silent, k)


def bootstrap_interval(
    values_per_problem: Sequence[float], resamples: int, seed: int, *, bounds: tuple[float, float] | None = (0.0, 1.0)
) -> tuple[float, float]:
    """95 % percentile interval of the mean, resampling problems with replacement.

    bounds: the lowest and highest value a problem can have, if known. If all n values are equal, resampling would give an interval of zero
    width. Then the exact binomial (Clopper-Pearson) bound is used: if less than a share s = 0.025^(1/n) of all problems had that value,
    n of n would show it less than 2.5 % of the time. So at least s of them have it, and the others can be anywhere within the bounds.
    """
    values = np.asarray(values_per_problem, dtype=np.float64)
    if values.size == 0:
        raise ValueError("an interval needs at least one problem")
    if bounds is not None and float(np.ptp(values)) <= SAME:
        value = float(values[0])
        unseen = 1.0 - 0.025 ** (1.0 / values.size)
        return value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value)
    rng = np.random.default_rng(seed)
    rows = max(1, CHUNK // values.size)
    means = np.concatenate(
        [
            values[rng.integers(values.size, size=(min(rows, resamples - done), values.size))].mean(axis=1)
            for done in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def estimate(values_per_problem: Sequence[float], resamples: int, seed: int, *, proportion: bool = True) -> Estimate:
    """Mean over problems with its bootstrap interval; None with a reason if there are too few problems.

    proportion: the values are known to be in [0, 1].
    """
    if not values_per_problem:
        return Estimate(None, None, None, "no problem has enough scored completions")
    if reason := why_no_interval(len(values_per_problem)):
        return Estimate(float(np.mean(values_per_problem)), None, None, reason)
    low, high = bootstrap_interval(values_per_problem, resamples, seed, bounds=(0.0, 1.0) if proportion else None)
    return Estimate(float(np.mean(values_per_problem)), low, high)


def why_no_interval(problems: int) -> str:
    """Why this many problems have no interval; "" if they have one."""
    few = f"{write_count(problems, 'problem')} {'is' if problems == 1 else 'are'}"
    return f"{few} too few for an interval; it takes {FEWEST_FOR_INTERVAL}" if problems < FEWEST_FOR_INTERVAL else ""


def paired_test(
    a_per_problem: Sequence[float], b_per_problem: Sequence[float], seed: int, resamples: int = 10_000
) -> PairedDifference:
    """Mean of b - a over the same problems, its bootstrap interval, and a sign-flip permutation p-value.

    Both sides are shares in [0, 1], so a difference is in [-1, 1]. If all differences are equal, the interval is the binomial one of
    `bootstrap_interval`: 6 problems that all went from 0 to 1 give [+0.08, 1]. Below 6 there is no interval; p is exact there, and never
    below 0.05.

    Pairing removes the differences in difficulty between problems, usually most of the variance. The null hypothesis is that a and b are
    exchangeable within each problem, so that every difference is as likely with the opposite sign.
    """
    if len(a_per_problem) != len(b_per_problem):
        raise ValueError(f"a paired test needs the same problems on both sides: {len(a_per_problem)} and {len(b_per_problem)}")
    differences = np.asarray(b_per_problem, dtype=np.float64) - np.asarray(a_per_problem, dtype=np.float64)
    if differences.size == 0:
        raise ValueError("a paired test needs at least one problem")
    low = high = None
    if not why_no_interval(differences.size):
        low, high = bootstrap_interval(differences.tolist(), resamples, seed, bounds=(-1.0, 1.0))
    p_value = compute_p_value(differences, seed, resamples)
    return PairedDifference(float(differences.mean()), low, high, p_value, int(differences.size))


def compute_p_value(differences: np.ndarray, seed: int, resamples: int) -> float:
    """Exact for few non-zero differences, else sampled as (hits + 1) / (resamples + 1), which is never 0."""
    moved = differences[differences != 0.0]
    if moved.size == 0:
        return 1.0
    # Sums that differ only by rounding count as ties, or p would depend on the order of summation.
    observed = abs(float(moved.sum())) - 1e-9 * float(np.abs(moved).sum())
    if moved.size <= EXACT_FLIPS:
        bits = (np.arange(2**moved.size)[:, None] >> np.arange(moved.size)) & 1
        return float((np.abs((1.0 - 2.0 * bits) @ moved) >= observed).mean())
    rng = np.random.default_rng([seed, 1])
    rows = max(1, CHUNK // moved.size)
    hits = 0
    for done in range(0, resamples, rows):
        signs = 1.0 - 2.0 * rng.integers(2, size=(min(rows, resamples - done), moved.size))
        hits += int((np.abs(signs @ moved) >= observed).sum())
    return (hits + 1) / (resamples + 1)


def predict_useful_share(p: float, group_size: int) -> float:
    """Expected share of groups with both a success and a failure, 1 - p^G - (1-p)^G. Other groups have no gradient.

    predict_useful_share(0.18, 2) = 0.30, predict_useful_share(0.18, 8) = 0.80: small groups waste most samples of a hard task.
    """
    if not 0.0 <= p <= 1.0 or group_size < 1:
        raise ValueError(f"p must be in [0, 1] and group_size at least 1, got {p} and {group_size}")
    return 1.0 - p**group_size - (1.0 - p) ** group_size
