"""A KL coefficient that adapts until the policy stays a given distance from the reference.

Ziegler et al. 2019 (arXiv 1909.08593, section 2.2): a proportional controller on the logarithm of the coefficient,

    error = clip(kl / target - 1, -0.2, 0.2)        coef <- coef * (1 + error / horizon)

so that too much KL raises the coefficient, too little lowers it, and one odd step moves it by 2 % at most (horizon 10, the
paper's gain of 0.1). A coefficient that is wrong by a factor of 100 is put right in about 230 steps.

One thing is added. While the KL stays below its target, as it does for as long as little is learned, the coefficient
would shrink without end, and be far from where it is needed when the KL does arrive. It therefore stays within a
factor of 1000 of where it began.
"""

from __future__ import annotations

import math

LARGEST_ERROR = 0.2
WIDEST_FACTOR = 1000.0
HORIZON = 10.0
"""Steps in which a steady error of e changes the coefficient by a factor of about exp(e)."""


def move_coefficient(start: float, target: float, coef: float, kl_per_completion: float | None) -> float:
    """The coefficient after a step: `start` is that of the recipe, which sets the bounds, `coef` the one of now.

    target and KL are in nats summed over a completion. target 0: the coefficient is a constant. A KL that is None or not finite was
    not measured, and moves nothing.
    """
    if not target or kl_per_completion is None or not math.isfinite(kl_per_completion):
        return coef
    error = min(LARGEST_ERROR, max(-LARGEST_ERROR, kl_per_completion / target - 1.0))
    return min(start * WIDEST_FACTOR, max(start / WIDEST_FACTOR, coef * (1.0 + error / HORIZON)))
