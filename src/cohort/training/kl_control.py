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


class KLControl:
    """Holds `coef`, the weight of the KL term. Its state is that one number: a resumed run is made with the
    kl_coef of the recipe, which sets the bounds, and assigns `coef` as it was.

    target and KL are in nats summed over a completion. target 0: the coefficient is a constant.
    """

    def __init__(self, coef: float, target: float, horizon: float = 10.0) -> None:
        """`horizon`: steps in which a steady error of e changes the coefficient by a factor of about exp(e)."""
        if not (math.isfinite(coef) and coef >= 0):
            raise ValueError(f"kl_coef must be a number of at least 0, got {coef}")
        if not (math.isfinite(target) and target >= 0):
            raise ValueError(f"kl_target must be a number of at least 0, got {target}")
        if target and not coef:
            raise ValueError("kl_target multiplies kl_coef, and 0 stays 0: start from a positive kl_coef (0.01 is usual)")
        if not horizon >= 1:
            raise ValueError(f"horizon must be at least 1 step, got {horizon}: a shorter one overshoots")
        self.coef = coef
        self.target = target
        self.horizon = horizon
        self.lowest, self.highest = coef / WIDEST_FACTOR, coef * WIDEST_FACTOR

    def update(self, kl_per_completion: float | None) -> None:
        """After a step: move the coefficient by what the step measured. None or not finite: nothing was, it stays."""
        if not self.target or kl_per_completion is None or not math.isfinite(kl_per_completion):
            return
        error = min(LARGEST_ERROR, max(-LARGEST_ERROR, kl_per_completion / self.target - 1.0))
        self.coef = min(self.highest, max(self.lowest, self.coef * (1.0 + error / self.horizon)))


def move_coefficient(start: float, target: float, coef: float, kl_per_completion: float | None) -> float:
    """The coefficient after a step: `start` is that of the recipe, which sets the bounds, `coef` the one of now."""
    control = KLControl(start, target)
    control.coef = coef
    control.update(kl_per_completion)
    return control.coef
