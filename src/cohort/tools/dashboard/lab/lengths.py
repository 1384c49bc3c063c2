"""Station 6: how much a token weighs under every aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.algorithms.named import NAMED
from cohort.recipe.algorithm import AlgorithmConfig


def weigh_lengths(lengths_N: Sequence[int], groups_N: Sequence[int], longest: int) -> dict[str, Any]:
    """The weight of one token of each completion, and of the whole completion, under every aggregation of the registry.

    `relative` is a token's weight as a multiple of what an average token of the batch weighs: 1 where no length is favoured.
    """
    words, rows = AlgorithmConfig(), []
    for name, choice in NAMED["aggregation"].items():
        weights_N = choice.call(
            words.read_parameters(choice), lengths_N=list(lengths_N), groups_N=list(groups_N), max_completion_tokens=longest
        )
        whole_N = [weight * length for weight, length in zip(weights_N, lengths_N, strict=True)]
        mean = sum(whole_N) / sum(lengths_N)
        rows.append(
            {
                "name": name,
                "says": choice.sentence,
                "token": list(weights_N),
                "completion": whole_N,
                "relative": [weight / mean for weight in weights_N],
                "share": [whole / sum(whole_N) for whole in whole_N],
            }
        )
    return {"lengths": list(lengths_N), "groups": list(groups_N), "longest": longest, "rows": rows}
