"""The curve of compute against result: known curves are found again, flat ones and short ones are called so."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.evaluation.scaling import fit_scaling, forecast_error, shape_curve, why_no_fit

COMPUTES = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0]


def draw_curve(top: float, steepness: float, middle: float, start: float = 0.3, noise: float = 0.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [
        (c, start + (top - start) * float(shape_curve(c, steepness, middle)) + noise * float(rng.standard_normal()))
        for c in COMPUTES
    ]


def test_the_curve_is_the_formula():
    assert shape_curve(8.0, 2.0, 8.0) == 0.5
    assert shape_curve(24.0, 2.0, 8.0) == pytest.approx(0.9)  # 1 / (1 + (1/3)^2)


@pytest.mark.parametrize(("top", "steepness", "middle"), [(0.8, 1.5, 5.0), (0.6, 3.0, 9.0), (0.95, 0.8, 3.0)])
def test_exact_points_give_the_numbers_they_were_made_with(top, steepness, middle):
    fit = fit_scaling(draw_curve(top, steepness, middle), 0.3, resamples=20)
    assert fit.asymptote.value == pytest.approx(top, abs=0.01)
    assert fit.steepness.value == pytest.approx(steepness, rel=0.05)
    assert fit.middle.value == pytest.approx(middle, rel=0.05)
    assert fit.noise < 1e-3
    assert fit.predict(20.0) == pytest.approx(draw_curve(top, steepness, middle)[-1][1], abs=2e-3)


def test_intervals_hold_the_true_top_of_noisy_curves_about_as_often_as_they_say():
    held = 0
    for seed in range(20):
        fit = fit_scaling(draw_curve(0.7, 2.0, 4.0, noise=0.01, seed=seed), 0.3, resamples=60, seed=seed)
        held += fit.asymptote.low <= 0.7 <= fit.asymptote.high
    assert held >= 16


def test_a_curve_that_has_arrived_is_not_worth_more_and_one_on_its_way_is():
    arrived = fit_scaling(draw_curve(0.7, 3.0, 2.0, noise=0.002), 0.3)
    assert arrived.gain.high < 0.01
    assert "more steps are not worth it" in arrived.verdict
    climbing = fit_scaling(draw_curve(0.9, 1.5, 20.0, noise=0.002), 0.3)
    assert climbing.gain.low > 0.01
    assert climbing.verdict.endswith("more steps are worth it")


def test_a_flat_curve_says_so():
    fit = fit_scaling([(c, r) for c, r in draw_curve(0.3, 2.0, 4.0, noise=0.01)], 0.3)
    assert fit.is_flat
    assert fit.verdict.startswith("flat")


def test_a_falling_curve_is_no_reason_for_more():
    fit = fit_scaling(draw_curve(0.1, 2.0, 4.0, noise=0.002), 0.3)
    assert fit.asymptote.value == pytest.approx(0.1, abs=0.02)
    assert "not worth it" in fit.verdict


def test_too_few_points_are_refused_in_words():
    assert why_no_fit(COMPUTES) == ""
    assert "evaluation.every_steps" in why_no_fit([0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="2 held-out looks after the start are too few"):
        fit_scaling([(0.0, 0.3), (1.0, 0.4), (2.0, 0.5)], 0.3)


def test_a_forecast_from_the_first_part_is_held_against_the_end():
    points = [(c, draw[1]) for c, draw in zip(COMPUTES, draw_curve(0.8, 1.5, 5.0), strict=True)]
    fit, error = forecast_error(points, 0.3, share=0.5)
    assert fit.points == 7
    assert fit.last == 10.0
    assert error == pytest.approx(0.0, abs=0.01)


def test_the_same_points_give_the_same_intervals():
    points = draw_curve(0.7, 2.0, 4.0, noise=0.01)
    assert fit_scaling(points, 0.3, seed=3) == fit_scaling(points, 0.3, seed=3)
