"""How tokens become one number: the weight of each trained token, over the whole optimizer batch.

The weights of all micro-batches together are fixed before any backward, so the loop only multiplies, sums and calls
backward, and the size of a micro-batch cannot change the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


def sequence_mean(lengths_N: Sequence[int], groups_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """GRPO: 1 / (N |o_i|). Every completion weighs the same, so long wrong answers are punished less per token."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / (count * length) if length else 0.0 for length in lengths_N]


def token_mean(lengths_N: Sequence[int], groups_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """DAPO: 1 / sum |o_i|. Every token weighs the same."""
    total = sum(lengths_N)
    return [1.0 / total if length else 0.0 for length in lengths_N]


def constant(lengths_N: Sequence[int], groups_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """Dr. GRPO: 1 / (N max_completion_tokens). No length appears, so none is favoured."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / (count * max_completion_tokens) if length else 0.0 for length in lengths_N]


def sequence_sum(lengths_N: Sequence[int], groups_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """RLOO, REINFORCE: 1 / N. The log-probability of a completion is the sum over its tokens, so long ones push harder."""
    count = sum(length > 0 for length in lengths_N)
    return [1.0 / count if length else 0.0 for length in lengths_N]


def prompt_mean(lengths_N: Sequence[int], groups_N: Sequence[int], max_completion_tokens: int) -> list[float]:
    """DAPO as printed: the token mean inside each group, then the mean over groups. For DPO a group is a pair."""
    tokens: Counter[int] = Counter()
    for length, group in zip(lengths_N, groups_N, strict=True):
        tokens[group] += length
    groups = sum(total > 0 for total in tokens.values())
    return [1.0 / (groups * tokens[group]) if length else 0.0 for length, group in zip(lengths_N, groups_N, strict=True)]


Aggregation = Callable[[Sequence[int], Sequence[int], int], list[float]]
"""(trained tokens of each completion, its group, max_completion_tokens) -> weight of one token of each completion.

A length of 0 is a completion whose tokens are all masked: it is in neither the numerator nor the denominator.
"""

AGGREGATIONS: dict[str, Aggregation] = {
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant": constant,
    "sequence_sum": sequence_sum,
    "prompt_mean": prompt_mean,
}
