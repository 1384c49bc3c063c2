"""Station 3: a policy of four words, one update. The loss is 0 and the probabilities move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.algorithms.named import find_named
from cohort.recipe.algorithm import AlgorithmConfig


def push_words(
    probabilities_V: Sequence[float], drawn_G: Sequence[int], right: int, learning_rate: float, name: str = "grpo"
) -> dict[str, Any]:
    """One on-policy update of a policy over V words, from a group of completions of one word each.

    Advantage, region and aggregation are those of the preset, without its KL; the gradient goes through a softmax into the logits,
    and the update is plain gradient descent.
    """
    import torch

    from cohort.algorithms.regions import Tokens

    words = AlgorithmConfig(name=name)
    advantage, region, aggregation = (
        find_named("advantage", words.advantage),
        find_named("region", words.region),
        find_named("aggregation", words.aggregation),
    )
    rewards_G = [float(word == right) for word in drawn_G]
    rewards_PG = torch.tensor([rewards_G], dtype=torch.float64)
    scored_PG = torch.ones_like(rewards_PG, dtype=torch.bool)
    inputs = {"rewards_PG": rewards_PG, "scored_PG": scored_PG, "success_PG": rewards_PG > 0}
    advantages_G = advantage.call(words.read_parameters(advantage), **inputs)[0]
    size = len(drawn_G)
    weights_G = aggregation.call(
        words.read_parameters(aggregation), lengths_N=[1] * size, groups_N=[0] * size, max_completion_tokens=1
    )
    logits_V = torch.tensor(probabilities_V, dtype=torch.float64).log().requires_grad_()
    logprobs_G = torch.log_softmax(logits_V, 0)[torch.tensor(list(drawn_G))]
    tokens = Tokens(logprobs_G, logprobs_G.detach(), logprobs_G.detach(), advantages_G, torch.arange(size), size)
    surrogate = region.call(words.read_parameters(region), tokens=tokens)
    loss = (surrogate.loss_M * torch.tensor(weights_G, dtype=torch.float64)).sum()
    loss.backward()
    assert logits_V.grad is not None
    moved_V = torch.softmax(logits_V.detach() - learning_rate * logits_V.grad, 0)
    return {
        "before": torch.softmax(logits_V.detach(), 0).tolist(),
        "after": moved_V.tolist(),
        "drawn": list(drawn_G),
        "right": right,
        "rewards": rewards_G,
        "advantages": advantages_G.tolist(),
        "loss": float(loss.detach()),
        "gradient": logits_V.grad.tolist(),
        "norm": float(logits_V.grad.norm()),
        "undrawn": [word for word in range(len(probabilities_V)) if word not in drawn_G],
    }
