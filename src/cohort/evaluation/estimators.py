"""Numbers about success, with intervals: pass@k, maj@k, mean@k, bootstrap, paired test. No torch, no config.

An evaluation draws n completions for each problem and asks three questions of them. pass@k: would at least one of k be
right? maj@k: would the answer most of k agree on be right? mean@k: what share is right? Each is first estimated *per
problem*, without bias, from all n completions; then averaged over problems. The problems are the sample that intervals
and tests resample: completions of one problem are not independent, so counting them as such would make every interval
several times too narrow.

Textbook shortcuts avoided here: 1 - (1 - c/n)^k for pass@k (biased low), ties of a vote broken by the order of sampling
(makes the number depend on which completion came first), and an interval of width zero when every problem has the same
value (claims certainty from a finite sample).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cohort.base.text import write_estimate

CHUNK = 2_000_000
"""Numbers held at once while resampling: bounds memory, changes no result."""

SAME = 1e-9
"""Values this close are equal: 0.3 - 0.2 and 0.2 - 0.1 are the same difference, whatever their last bits say."""

EXACT_FLIPS = 14
"""Up to this many non-zero differences, all 2^n sign flips are enumerated and the p-value is exact."""

FEWEST_FOR_INTERVAL = 6
"""Below this many problems there is no interval. Resampling can only repeat the few values that it was given, so it is far too
narrow; and n problems that all move the same way have p = 2 / 2^n, which is below 0.05 from 6 on."""

FEW_PROBLEMS = 30
"""Problems below which it is said of an evaluation that they are few."""

SIGNIFICANT = 0.05
""""Rose" and "fell" are said of a change whose p-value is below this."""

UNCLEAR = "no clear change"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval. A value or an interval that is None does not exist, and `reason` says why."""

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""

    def to_json(self) -> dict[str, float | str | None]:
        return {name: value for name, value in asdict(self).items() if name != "reason" or value}

    def written(self, share: bool = True) -> str:
        """`54.1 % [50.2, 58.0]`; a number that is no share stands as it is."""
        return " ".join(filter(None, write_estimate(self.value, self.low, self.high, share)))


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """b minus a on the same problems. low and high are None where there are too few problems for an interval."""

    difference: float
    low: float | None
    high: float | None
    p_value: float
    """Two-sided: how often randomly swapping a and b within problems moves the mean at least this far."""
    problems: int

    @property
    def verdict(self) -> str:
        """rose or fell where both the test and the interval say so; else "no clear change"."""
        if self.low is None or self.high is None or self.p_value >= SIGNIFICANT or self.low <= 0 <= self.high:
            return UNCLEAR
        return "rose" if self.difference > 0 else "fell"

    @property
    def reason(self) -> str:
        """Why there is no interval; "" where there is one."""
        return why_no_interval(self.problems) if self.low is None else ""

    @property
    def sureness(self) -> str:
        """How sure the difference is, in words: "95 % interval +3.1 to +9.0, paired over 64 problems, p = 0.002"."""
        sure = f"paired over {self.problems} problems, p {'< 0.001' if self.p_value < 0.001 else f'= {self.p_value:.2g}'}"
        if self.low is None or self.high is None:
            return f"{sure}; {self.reason}"
        return f"95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}, {sure}"

    def to_json(self) -> dict[str, float | int | str | None]:
        reason = {"reason": self.reason} if self.reason else {}
        return {**asdict(self), "verdict": self.verdict, **reason}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> PairedDifference:
        """As it was stored; an interval of too few problems, which earlier versions wrote, is left out."""
        low, high = (plain["low"], plain["high"]) if plain["problems"] >= FEWEST_FOR_INTERVAL else (None, None)
        return PairedDifference(plain["difference"], low, high, plain["p_value"], plain["problems"])


def pass_at_k(correct: int, total: int, k: int) -> float:
    """Chance that k completions drawn without replacement from `total` hold a correct one: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. (arXiv 2107.03374). Written as a product of k factors, each in [0, 1], so that
    nothing overflows: C(1000, 500) does not fit a float, the product does.
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
    """Share of the k completions of one problem that succeed. Its expectation is pass@1; the name is what papers print."""
    if not successes:
        raise ValueError("mean@k needs at least one completion")
    return sum(successes) / len(successes)


def maj_at_k(answers: Sequence[str | None], successes: Sequence[bool], k: int) -> float:
    """Chance that a majority vote of k completions, drawn without replacement from all n, picks a correct answer.

    - None does not vote: a completion without an answer is no opinion. If none of the k votes, the vote is wrong.
    - A tie gives fractional credit, the share of tied answers that are correct: the expectation of a fair coin. Breaking
      it by first occurrence would make the number depend on the order of sampling, which carries no information.
    - For k < n this is the exact average over all C(n, k) subsets, counted rather than enumerated.
    - Equal answers normally share a verdict; where they do not, the answer's credit is the mean of its verdicts.
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
    # Answers with equally many votes have equal chances, so only distinct counts are worked out.
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

    bounds: the least and the greatest value a problem can have; None: not known. When all n values are equal, resampling
    can only repeat itself and the interval would have no width. There the exact binomial (Clopper-Pearson) bound is used:
    if less than a share s = 0.025^(1/n) of all problems had that value, n of n would show it less than 2.5 % of the time;
    so at least s of them have it, and the rest lie anywhere within the bounds. 0 of 100 is not "0.0 +- 0".
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
    """Mean over problems with its bootstrap interval; null with a reason when there is no problem, or too few for an interval.

    proportion: the values are known to lie in [0, 1].
    """
    if not values_per_problem:
        return Estimate(None, None, None, "no problem has enough scored completions")
    if reason := why_no_interval(len(values_per_problem)):
        return Estimate(float(np.mean(values_per_problem)), None, None, reason)
    low, high = bootstrap_interval(values_per_problem, resamples, seed, bounds=(0.0, 1.0) if proportion else None)
    return Estimate(float(np.mean(values_per_problem)), low, high)


def why_no_interval(problems: int) -> str:
    """Why so few problems have no interval; "" where they have one."""
    few = "1 problem is" if problems == 1 else f"{problems} problems are"
    return f"{few} too few for an interval; it takes {FEWEST_FOR_INTERVAL}" if problems < FEWEST_FOR_INTERVAL else ""


def paired_test(
    a_per_problem: Sequence[float], b_per_problem: Sequence[float], seed: int, resamples: int = 10_000
) -> PairedDifference:
    """Mean of b - a over the same problems, its bootstrap interval, and a sign-flip permutation p-value.

    Both sides are shares in [0, 1], so a difference lies in [-1, 1]. When all differences are equal the interval is the
    binomial one of `bootstrap_interval`, which says what so few problems can say: 6 problems that all went from 0 to 1
    give [+0.08, 1]. Below 6 there is none; p is exact there, and never below 0.05.

    Pairing removes the spread of difficulty between problems, usually most of the variance. Under the null hypothesis
    that a and b are exchangeable within each problem, every difference is as likely with the other sign.
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
    """Exact for few non-zero differences, sampled otherwise; (hits + 1) / (resamples + 1) so that it is never 0."""
    moved = differences[differences != 0.0]
    if moved.size == 0:
        return 1.0
    # Sums that differ only by rounding must count as ties, or an exact p-value would depend on summation order.
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
    """Share of groups expected to hold both a success and a failure: 1 - p^G - (1-p)^G. The others teach nothing.

    predict_useful_share(0.18, 2) = 0.30, predict_useful_share(0.18, 8) = 0.80: small groups waste most of a hard task.
    """
    if not 0.0 <= p <= 1.0 or group_size < 1:
        raise ValueError(f"p must lie in [0, 1] and group_size be at least 1, got {p} and {group_size}")
    return 1.0 - p**group_size - (1.0 - p) ** group_size
