"""Estimators against brute force over all subsets, closed forms, and simulated coverage."""

import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cohort.evaluation.estimators import (
    PairedDifference,
    bootstrap_interval,
    compute_p_value,
    estimate,
    maj_at_k,
    mean_at_k,
    paired_test,
    pass_at_k,
    predict_useful_share,
)


@pytest.mark.parametrize("total", [1, 2, 5, 8])
def test_pass_at_k_is_the_average_over_all_subsets(total):
    for correct in range(total + 1):
        flags = [True] * correct + [False] * (total - correct)
        for k in range(1, total + 1):
            subsets = list(itertools.combinations(flags, k))
            assert pass_at_k(correct, total, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_does_not_overflow_and_matches_the_binomials():
    exact = 1 - math.comb(1990, 1000) / math.comb(2000, 1000)  # Python divides the big integers exactly
    assert pass_at_k(10, 2000, 1000) == pytest.approx(exact, rel=1e-12)
    assert pass_at_k(0, 10_000, 5_000) == 0.0


def test_pass_at_k_is_unbiased_where_the_plug_in_is_not():
    p, n, k = 0.2, 8, 4
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert sum(w * pass_at_k(c, n, k) for c, w in enumerate(weights)) == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights)) < 1 - (1 - p) ** k - 0.02


@pytest.mark.parametrize(("correct", "total", "k"), [(3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)])
def test_pass_at_k_refuses_invalid_numbers(correct, total, k):
    with pytest.raises(ValueError, match="must be between"):
        pass_at_k(correct, total, k)


def vote(answers, successes):
    """The reference implementation: one vote, fractional credit for ties."""
    counts = Counter(a for a in answers if a is not None)
    if not counts:
        return 0.0
    tied = [a for a, c in counts.items() if c == max(counts.values())]
    verdict = dict(zip(answers, successes, strict=True))
    return sum(verdict[a] for a in tied) / len(tied)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=8), st.sets(st.sampled_from("abcd")), st.data()
)
def test_maj_at_k_is_the_average_vote_over_all_subsets(answers, right, data):
    k = data.draw(st.integers(1, len(answers)))
    successes = [a in right for a in answers]
    votes = [vote([answers[i] for i in s], [successes[i] for i in s]) for s in itertools.combinations(range(len(answers)), k)]
    assert maj_at_k(answers, successes, k) == pytest.approx(sum(votes) / len(votes), abs=1e-12)


def test_maj_at_k_by_hand():
    assert maj_at_k(["1", "1", "2"], [True, True, False], 3) == 1.0
    assert maj_at_k(["1", "2", "2"], [True, False, False], 3) == 0.0
    assert maj_at_k(["1", "2"], [True, False], 2) == 0.5  # a tie is worth half, in either order
    assert maj_at_k([None, None, "2", "1", "1"], [False, False, False, True, True], 5) == 1.0  # None does not vote
    assert maj_at_k([None, None], [False, False], 2) == 0.0
    assert maj_at_k(["1", None], [True, False], 1) == 0.5
    assert maj_at_k([str(i) for i in range(64)], [i < 16 for i in range(64)], 8) == pytest.approx(0.25)  # stays fast


def test_mean_at_k():
    assert mean_at_k([True, False, False, True]) == 0.5
    with pytest.raises(ValueError, match="at least one"):
        mean_at_k([])


def test_bootstrap_matches_the_normal_interval_on_many_problems():
    values = np.random.default_rng(0).random(2000)
    low, high = bootstrap_interval(values.tolist(), 4000, seed=1)
    half = 1.96 * values.std() / math.sqrt(values.size)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert bootstrap_interval(values.tolist(), 500, seed=1) == bootstrap_interval(values.tolist(), 500, seed=1)


def test_bootstrap_covers_the_truth_about_95_times_in_100():
    """Problems of varying difficulty, 8 completions each: the interval over problems must cover the true pass@1."""
    rng = np.random.default_rng(7)
    trials, covered = 400, 0
    for trial in range(trials):
        difficulty = rng.beta(0.7, 1.4, size=80)  # mean 1/3
        values = rng.binomial(8, difficulty) / 8
        low, high = bootstrap_interval(values.tolist(), 400, seed=trial)
        covered += low <= 1 / 3 <= high
    assert 0.90 <= covered / trials <= 0.98


def test_an_interval_of_equal_values_is_not_a_point():
    low, high = bootstrap_interval([0.0] * 100, 200, seed=0)
    assert (low, high) == (0.0, pytest.approx(stats.binomtest(0, 100).proportion_ci(0.95, method="exact").high))
    low, high = bootstrap_interval([1.0] * 20, 200, seed=0)
    assert (low, high) == (pytest.approx(stats.binomtest(20, 20).proportion_ci(0.95, method="exact").low), 1.0)
    low, high = bootstrap_interval([0.5] * 5, 200, seed=0)
    assert 0.0 < low < 0.3
    assert low + high == pytest.approx(1.0)
    assert bootstrap_interval([0.5] * 5, 200, seed=0, bounds=None) == (0.5, 0.5)  # nothing is known of what was not seen


def test_estimate_of_no_problems_is_none_with_a_reason():
    nothing = estimate([], 100, 0)
    assert nothing.value is None
    assert "no problem" in nothing.to_json()["reason"]
    with pytest.raises(ValueError, match="at least one problem"):
        bootstrap_interval([], 100, 0)


def test_paired_test_is_exact_for_few_differences():
    a, b = [0.0, 0.25, 0.5, 0.5, 1.0], [0.5, 0.5, 0.75, 0.5, 0.75]
    result = paired_test(a, b, seed=0)
    d = np.array(b) - np.array(a)
    reference = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert result.difference == pytest.approx(0.15)
    assert result.p_value == pytest.approx(reference.pvalue)
    assert (result.low, result.high, result.problems) == (None, None, 5)


def test_sampled_p_value_agrees_with_the_exact_one():
    d = np.random.default_rng(3).normal(0.3, 1.0, size=14)
    exact = compute_p_value(d, 0, 10_000)
    sampled = compute_p_value(np.concatenate([d, [1e-12] * 5]), 0, 20_000)  # too many to enumerate, same question
    assert sampled == pytest.approx(exact, abs=0.015)


def test_paired_test_ends():
    assert paired_test([0.5] * 30, [0.5] * 30, seed=0).p_value == 1.0
    improved = paired_test([0.0] * 40, [1.0] * 40, seed=0)
    assert improved.p_value == pytest.approx(1 / 10_001)  # never 0
    with pytest.raises(ValueError, match="same problems"):
        paired_test([0.0], [0.0, 1.0], seed=0)


def test_equal_differences_give_the_interval_that_so_few_problems_allow():
    seven = paired_test([0] * 7, [1] * 7, seed=0)
    exact = stats.binomtest(7, 7).proportion_ci(0.95, method="exact").low
    assert (seven.low, seven.high) == (pytest.approx(2 * exact - 1), 1.0)  # the others may all have gone from 1 to 0
    for n in range(6, 12):  # interval and p-value agree on whether anything was shown
        up, down = paired_test([0] * n, [1] * n, seed=0), paired_test([1] * n, [0] * n, seed=0)
        assert up.p_value == 2 / 2**n
        assert (up.low > 0, up.verdict, down.verdict) == (True, "rose", "fell")
        assert (down.low, down.high) == (-up.high, -up.low)
    same = [paired_test([0.5] * n, [0.5] * n, seed=0) for n in (6, 40, 400)]
    assert all(result.low == -result.high for result in same)
    assert [round(result.high, 3) for result in same] == [0.459, 0.088, 0.009]
    tenths = paired_test([0.1, 0.2, 0.3] * 2, [0.2, 0.3, 0.4] * 2, seed=0)  # equal but for the last bits
    assert tenths.low < -0.3
    assert tenths.high > 0.5


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_than_six_problems_have_no_interval_and_never_rise(n):
    """Two problems that go from 68.8 % to 87.5 % must not be reported as a rise."""
    up = paired_test([0] * n, [1] * n, seed=0)
    assert (up.low, up.high, up.difference, up.p_value, up.verdict) == (None, None, 1.0, 2 / 2**n, "no clear change")
    words = f"{n} problem{' is' if n == 1 else 's are'} too few for an interval; it takes 6"
    assert up.reason == words
    assert up.sureness == f"paired over {n} problem{'' if n == 1 else 's'}, p = {2 / 2**n:.2g}; {words}"
    assert up.to_json() == {"difference": 1.0, "low": None, "high": None, "p_value": 2 / 2**n, "problems": n,
                            "verdict": "no clear change", "reason": words}  # fmt: skip
    one = estimate([0.25] * n, 100, 0)
    assert one.to_json() == {"value": 0.25, "low": None, "high": None, "reason": words}


def test_a_change_is_named_where_test_and_interval_agree():
    """Six of eight problems gained: p = 2 / 2^6 by hand. With one of them lost, 2 (1 + 7) / 2^7 of all flips are as far."""
    six = paired_test([0] * 8, [1] * 6 + [0] * 2, seed=0)
    assert (six.p_value, six.verdict) == (2 / 2**6, "rose")
    lost = paired_test([0] * 7 + [1], [1] * 6 + [0] * 2, seed=0)  # six up, one down: sums of +-7, +-5 are as far as 5
    assert (lost.p_value, lost.verdict) == (2 * (1 + 7) / 2**7, "no clear change")
    assert PairedDifference.from_json(json.loads(json.dumps(six.to_json()))) == six
    assert PairedDifference(0.1, 0.01, 0.2, 0.06, 50).verdict == "no clear change"  # the test disagrees
    assert PairedDifference(0.1, -0.01, 0.2, 0.04, 50).verdict == "no clear change"  # the interval disagrees
    assert six.sureness.startswith("95 % interval +")
    assert six.sureness.endswith(", paired over 8 problems, p = 0.031")


def test_paired_intervals_cover_a_rare_change():
    """One problem in fifty changes: most sets of 30 show no change at all, and the interval must allow for it."""
    rng = np.random.default_rng(5)
    trials, covered = 300, 0
    for trial in range(trials):
        result = paired_test(np.zeros(30), (rng.random(30) < 0.02).astype(float), seed=trial, resamples=400)
        covered += result.low <= 0.02 <= result.high
    assert covered / trials >= 0.95


def test_paired_intervals_cover_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(9)
    trials, covered = 300, 0
    for trial in range(trials):
        difficulty = rng.beta(0.7, 1.4, size=80)  # mean 1/3; b solves half of what a does not, so the mean gain is 1/3
        a, b = rng.binomial(8, difficulty) / 8, rng.binomial(8, (1 + difficulty) / 2) / 8
        result = paired_test(a, b, seed=trial, resamples=400)
        covered += result.low <= 1 / 3 <= result.high
    assert 0.90 <= covered / trials <= 0.98


def test_p_values_are_uniform_when_nothing_changed():
    rng = np.random.default_rng(11)
    rejected = sum(
        paired_test(rng.binomial(8, 0.4, 50) / 8, rng.binomial(8, 0.4, 50) / 8, seed=i, resamples=500).p_value < 0.05
        for i in range(300)
    )
    assert rejected / 300 < 0.085  # 5 % expected, 3 sigma above is 8.8 %


def test_useful_share_matches_enumeration_and_the_documented_numbers():
    for p, size in [(0.18, 4), (0.5, 3), (0.9, 5)]:
        outcomes = itertools.product([True, False], repeat=size)
        mixed = sum(math.prod(p if x else 1 - p for x in o) for o in outcomes if 0 < sum(o) < size)
        assert predict_useful_share(p, size) == pytest.approx(mixed)
    assert predict_useful_share(0.18, 2) == pytest.approx(0.295, abs=0.001)
    assert predict_useful_share(0.18, 8) == pytest.approx(0.796, abs=0.001)
    assert predict_useful_share(0.0, 8) == predict_useful_share(1.0, 8) == predict_useful_share(0.5, 1) == 0.0
    with pytest.raises(ValueError, match="p must be in"):
        predict_useful_share(1.2, 8)
