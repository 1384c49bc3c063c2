"""How tokens become one number: the weight of each trained token, over the whole optimizer batch.

The weights of all micro-batches together are fixed before any backward, so the loop only multiplies, sums and calls
backward, and the size of a micro-batch cannot change the gradient. An aggregation is given the trained tokens of each completion
and gives the weight of one token of each. A length of 0 is a completion whose tokens are all masked: it is in neither the
numerator nor the denominator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cohort.algorithms.registry import aggregation


@aggregation()
def sequence_mean(lengths_N: Sequence[int]) -> list[float]:
    """GRPO: 1 / (N |o_i|). Every completion weighs the same, so long wrong answers are punished less per token."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / (count * length) if length else 0.0 for length in lengths_N]


@aggregation()
def token_mean(lengths_N: Sequence[int]) -> list[float]:
    """DAPO: 1 / sum |o_i|. Every token weighs the same."""
    total = sum(lengths_N)
    return [1.0 / total if length else 0.0 for length in lengths_N]


@aggregation()
def constant(lengths_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """Dr. GRPO: 1 / (N max_completion_tokens). No length appears, so none is favoured."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / (count * max_completion_tokens) if length else 0.0 for length in lengths_N]


@aggregation()
def sequence_sum(lengths_N: Sequence[int]) -> list[float]:
    """RLOO, REINFORCE: 1 / N. The log-probability of a completion is the sum over its tokens, so long ones push harder."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / count if length else 0.0 for length in lengths_N]


@aggregation()
def prompt_mean(lengths_N: Sequence[int], groups_N: Sequence[int]) -> list[float]:
    """DAPO as printed: the token mean inside each group, then the mean over groups. For DPO a group is a pair."""
    tokens: Counter[int] = Counter()
    for length, group in zip(lengths_N, groups_N, strict=True):
        tokens[group] += length
    groups = sum(total > 0 for total in tokens.values())
    return [1.0 / (groups * tokens[group]) if length else 0.0 for length, group in zip(lengths_N, groups_N, strict=True)]
