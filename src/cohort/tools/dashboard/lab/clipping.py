"""Station 4: what every region makes of a token whose ratio has moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.algorithms.named import NAMED, PRESETS
from cohort.algorithms.registry import Choice
from cohort.recipe.algorithm import AlgorithmConfig

HIGHEST_RATIO = 4.0
POINTS = 161
"""Of a curve, from a ratio of almost 0 to the highest."""


def choose_words(region: Choice, given: Mapping[str, float]) -> AlgorithmConfig:
    """The words a region is told: those of the first preset that uses it (gspo's clip is a thousand times narrower), then what is given."""
    preset = next((name for name, row in PRESETS.items() if row["region"] == region.name), "")
    named = {name: value for name, value in given.items() if name in region.parameters}
    if not preset:
        return AlgorithmConfig(**named)
    # gspo's own range is kept: 0.2 around a geometric mean would never be met.
    return AlgorithmConfig(name=preset, **({} if region.name == "sequence" else named))


def trace_regions(
    ratios_K: Sequence[float],
    advantage: float,
    words: Mapping[str, float],
    probability: float = 0.2,
    length: int = 1,
) -> dict[str, dict[str, Any]]:
    """Surrogate, slope and silence of one token at each ratio, under every region of the registry.

    The token had `probability` when it was sampled; the other length - 1 tokens of its completion have not moved. A preference
    compares it with another completion of its group that has not moved either. The slope is the gradient coefficient as training
    has it, -d loss / d log pi of this token before any aggregation: what pushes it. It is silenced where the slope is 0 though the
    advantage is not.
    """
    return {
        name: trace_region(region, ratios_K, advantage, words, probability, length) for name, region in NAMED["region"].items()
    }


def trace_region(
    region: Choice, ratios_K: Sequence[float], advantage: float, given: Mapping[str, float], probability: float, length: int
) -> dict[str, Any]:
    import torch

    from cohort.algorithms.regions import Tokens

    words = choose_words(region, given)
    count = len(ratios_K)
    # Two completions for each ratio: the token's own, whose first token it is, and the other of its group.
    old_M = torch.full((count, 2 * length), math.log(probability), dtype=torch.float64)
    moved_M = torch.zeros_like(old_M)
    moved_M[:, 0] = torch.tensor(ratios_K, dtype=torch.float64).log()
    advantages_M = torch.full_like(old_M, advantage)
    advantages_M[:, length:] = -advantage
    row_M = torch.arange(2 * count).repeat_interleave(length)
    policy_M = (old_M + moved_M).flatten().requires_grad_()
    old_M = old_M.flatten()
    tokens = Tokens(
        policy_M, old_M, old_M, advantages_M.flatten(), row_M, 2 * count, old_M, torch.arange(count).repeat_interleave(2)
    )
    surrogate = region.call(words.tell(region), tokens=tokens)
    slopes_M = -torch.autograd.grad(surrogate.loss_M.sum(), policy_M)[0]
    first = slice(None, None, 2 * length)
    slopes_K = slopes_M[first]
    return {
        "says": region.sentence,
        "told": {name: value for name, value in words.tell(region).items() if isinstance(value, int | float)},
        "surrogate": (-surrogate.loss_M.detach()[first]).tolist(),
        "slope": slopes_K.tolist(),
        "ratio": surrogate.ratio_M.detach()[first].tolist(),
        "silenced": ((slopes_K == 0) & (advantage != 0)).tolist(),
        "cut": (surrogate.below_M | surrogate.above_M)[first].tolist(),
    }


def list_ratios(probability: float) -> list[float]:
    """The ratios a curve is drawn at: a token that had this probability cannot become likelier than certain."""
    highest = min(HIGHEST_RATIO, 1.0 / probability)
    return [0.02 + (highest - 0.02) * place / (POINTS - 1) for place in range(POINTS)]
