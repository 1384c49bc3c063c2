"""Stations 3, 4, 6 and 7: one update of a toy policy, every region, every aggregation, and the KL estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from cohort.algorithms.named import NAMED, PRESETS, find_named
from cohort.algorithms.registry import Choice
from cohort.recipe.algorithm import AlgorithmConfig

HIGHEST_RATIO, RATIO_POINTS = 4.0, 161
"""The highest ratio of a curve, and its number of points."""
DRIFTS = tuple(place / 10 for place in range(31))
"""Drifts of the policy, in logits of one word, at the points of a curve."""
GAPS = tuple((place - 20) / 10 for place in range(41))
"""Log-ratios at which estimators are drawn."""

# -- one update --------------------------------------------------------------------------------------------------------


def push_words(
    probabilities_V: Sequence[float], drawn_G: Sequence[int], right: int, learning_rate: float, name: str = "grpo"
) -> dict[str, Any]:
    """One on-policy update of a policy over V words, from a group of one-word completions.

    Advantage, region and aggregation are those of the preset, without its KL. The gradient passes through a softmax into the logits, and
    the update is plain gradient descent.
    """
    import torch

    from cohort.algorithms.regions import Tokens

    config = AlgorithmConfig(name=name)
    advantage, region = find_named("advantage", config.advantage), find_named("region", config.region)
    aggregation = find_named("aggregation", config.aggregation)
    rewards_PG = torch.tensor([[float(word == right) for word in drawn_G]], dtype=torch.float64)
    inputs = {
        "rewards_PG": rewards_PG,
        "scored_PG": torch.ones_like(rewards_PG, dtype=torch.bool),
        "success_PG": rewards_PG > 0,
    }
    advantages_G = advantage.call(config.read_parameters(advantage), **inputs)[0]
    size = len(drawn_G)
    weights_G = aggregation.call(
        config.read_parameters(aggregation), lengths_N=[1] * size, groups_N=[0] * size, max_completion_tokens=1
    )
    logits_V = torch.tensor(probabilities_V, dtype=torch.float64).log().requires_grad_()
    logprobs_G = torch.log_softmax(logits_V, 0)[torch.tensor(list(drawn_G))]
    tokens = Tokens(logprobs_G, logprobs_G.detach(), logprobs_G.detach(), advantages_G, torch.arange(size), size)
    surrogate = region.call(config.read_parameters(region), tokens=tokens)
    loss = (surrogate.loss_M * torch.tensor(weights_G, dtype=torch.float64)).sum()
    loss.backward()
    assert logits_V.grad is not None
    return {
        "before": torch.softmax(logits_V.detach(), 0).tolist(),
        "after": torch.softmax(logits_V.detach() - learning_rate * logits_V.grad, 0).tolist(),
        "drawn": list(drawn_G),
        "right": right,
        "rewards": rewards_PG[0].tolist(),
        "advantages": advantages_G.tolist(),
        "loss": float(loss.detach()),
        "gradient": logits_V.grad.tolist(),
        "norm": float(logits_V.grad.norm()),
        "undrawn": [word for word in range(len(probabilities_V)) if word not in drawn_G],
    }


# -- regions -----------------------------------------------------------------------------------------------------------


def configure_region(region: Choice, given: Mapping[str, float]) -> AlgorithmConfig:
    """The settings of a region: those of the first preset that uses it, with the given ones on top.

    Settings that the region does not take are ignored. GSPO keeps its own clip range: a range of 0.2 would never be reached by a
    geometric mean.
    """
    preset = next((name for name, row in PRESETS.items() if row["region"] == region.name), None)
    taken = {name: value for name, value in given.items() if name in region.parameters and region.name != "sequence"}
    return AlgorithmConfig(**({"name": preset} if preset else {}), **taken)


def trace_regions(
    ratios_K: Sequence[float], advantage: float, clip: Mapping[str, float], probability: float = 0.2, length: int = 1
) -> dict[str, dict[str, Any]]:
    """Surrogate and slope of one token at each ratio, and whether it is silenced, under every region of the registry.

    The token had `probability` when it was sampled; the other length - 1 tokens of its completion are unchanged. A preference region
    compares the completion with another one that is unchanged. The slope is -d loss / d log pi, for a preference of the loss of the pair,
    before aggregation. The token is silenced if the slope is 0 although the advantage is not.
    """
    return {
        name: trace_region(region, ratios_K, advantage, clip, probability, length) for name, region in NAMED["region"].items()
    }


def trace_region(
    region: Choice, ratios_K: Sequence[float], advantage: float, clip: Mapping[str, float], probability: float, length: int
) -> dict[str, Any]:
    import torch

    from cohort.algorithms.regions import Tokens

    count = len(ratios_K)
    # Two completions for each ratio: the token's own, in which it comes first, and another of its group.
    old_M = torch.full((count, 2 * length), math.log(probability), dtype=torch.float64)
    moved_M = torch.zeros_like(old_M)
    moved_M[:, 0] = torch.tensor(ratios_K, dtype=torch.float64).log()
    advantages_M = torch.full_like(old_M, advantage)
    advantages_M[:, length:] = -advantage
    row_M = torch.arange(2 * count).repeat_interleave(length)
    policy_M = (old_M + moved_M).flatten().requires_grad_()
    old_M = old_M.flatten()
    groups = torch.arange(count).repeat_interleave(2)
    tokens = Tokens(policy_M, old_M, old_M, advantages_M.flatten(), row_M, 2 * count, old_M, groups)
    surrogate = region.call(configure_region(region, clip).read_parameters(region), tokens=tokens)
    first = slice(None, None, 2 * length)
    # A preference has one loss per pair, which every token of the pair repeats.
    whole = surrogate.loss_M[first] if region.traits.preference else surrogate.loss_M
    slopes_K = -torch.autograd.grad(whole.sum(), policy_M)[0][first]
    return {
        "surrogate": (-surrogate.loss_M.detach()[first]).tolist(),
        "slope": slopes_K.tolist(),
        "silenced": ((slopes_K == 0) & (advantage != 0)).tolist(),
    }


def list_ratios(probability: float) -> list[float]:
    """The ratios of a curve, up to the one at which the token's probability is 1."""
    highest = min(HIGHEST_RATIO, 1.0 / probability)
    return [0.02 + (highest - 0.02) * place / (RATIO_POINTS - 1) for place in range(RATIO_POINTS)]


# -- lengths -----------------------------------------------------------------------------------------------------------


def weigh_lengths(lengths_N: Sequence[int], groups_N: Sequence[int], longest: int) -> dict[str, Any]:
    """The weight of a token of each completion, and each completion's share of all weight, under every aggregation.

    `relative` is a token's weight as a multiple of the mean weight of the batch's tokens.
    """
    config, rows = AlgorithmConfig(), []
    for name, choice in NAMED["aggregation"].items():
        weights_N = choice.call(
            config.read_parameters(choice), lengths_N=list(lengths_N), groups_N=list(groups_N), max_completion_tokens=longest
        )
        whole_N = [weight * length for weight, length in zip(weights_N, lengths_N, strict=True)]
        mean = sum(whole_N) / sum(lengths_N)
        rows.append(
            {
                "name": name,
                "describes": choice.sentence,
                "token": list(weights_N),
                "relative": [weight / mean for weight in weights_N],
                "share": [whole / sum(whole_N) for whole in whole_N],
            }
        )
    return {"lengths": list(lengths_N), "groups": list(groups_N), "rows": rows}


# -- KL ----------------------------------------------------------------------------------------------------------------


def measure_drift(reference_V: Sequence[float], toward: int, drift: float) -> dict[str, Any]:
    """The estimators after the logit of one word has risen by `drift`, and along the curve from no drift on."""
    reference_V = tuple(reference_V)
    curve, shape = trace_drifts(reference_V, toward), trace_shape()
    return measure_estimators(reference_V, toward, drift) | {"drift": drift, "curve": curve, "shape": shape}


@cache
def trace_shape() -> dict[str, list[float]]:
    """Every estimator as a function of log policy - log reference."""
    import torch

    gap_K = torch.tensor(GAPS, dtype=torch.float64)
    inputs = {"policy_logprobs_M": gap_K, "ref_logprobs_M": torch.zeros_like(gap_K)}
    return {"gap": list(GAPS), **{name: choice.call({}, **inputs).tolist() for name, choice in NAMED["kl"].items()}}


@lru_cache(maxsize=32)
def trace_drifts(reference_V: tuple[float, ...], toward: int) -> dict[str, Any]:
    along = [measure_estimators(reference_V, toward, drift) for drift in DRIFTS]
    fields = {
        field: {name: [point["estimators"][name][field] for point in along] for name in NAMED["kl"]}
        for field in ("mean", "deviation", "loss_error")
    }
    return {"drift": list(DRIFTS), "exact": [point["exact"] for point in along], **fields}


def measure_estimators(reference_V: tuple[float, ...], toward: int, drift: float) -> dict[str, Any]:
    """The exact KL and its gradient, and each estimator's values, mean, std and the error of its expected gradient.

    Gradients are with respect to the policy's logits. An error is relative to the KL's own gradient: 0 is exact, 1 is as bad as no gradient.
    It is given for the three uses in a recipe: in the loss, in the loss corrected by the ratio, and in the reward.
    """
    import torch

    from cohort.algorithms.regions import corrected, ratio

    log_ref_V = torch.tensor(reference_V, dtype=torch.float64).log().log_softmax(0)
    shift_V = torch.zeros_like(log_ref_V)
    shift_V[toward] = drift
    logits_V = (log_ref_V + shift_V).requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, 0)
    fixed_V = logprobs_V.detach()
    chances_V = fixed_V.exp()
    exact = (logprobs_V.exp() * (logprobs_V - log_ref_V)).sum()

    def differentiate(terms_V: Any) -> Any:
        return torch.autograd.grad(terms_V.sum(), logits_V, retain_graph=True)[0]

    wanted_V = differentiate(exact)
    size = float(wanted_V.norm())

    def measure_error(found_V: Any) -> float:
        return float((found_V - wanted_V).norm()) / size if size > 1e-12 else 0.0

    estimators: dict[str, Any] = {}
    for name, choice in NAMED["kl"].items():
        values_V = choice.call({}, policy_logprobs_M=logprobs_V, ref_logprobs_M=log_ref_V)
        fixed_values_V = values_V.detach()
        mean = float((chances_V * fixed_values_V).sum())
        variance = float((chances_V * (fixed_values_V - mean).square()).sum())
        in_loss_V = differentiate(chances_V * values_V)
        estimators[name] = {
            "values": fixed_values_V.tolist(),
            "mean": mean,
            "deviation": variance**0.5,
            "gradient": in_loss_V.tolist(),
            "loss_error": measure_error(in_loss_V),
            "corrected_error": measure_error(differentiate(chances_V * corrected(values_V, ratio(logprobs_V, fixed_V)))),
            "reward_error": measure_error(differentiate(chances_V * fixed_values_V * logprobs_V)),
        }
    return {
        "policy": chances_V.tolist(),
        "reference": log_ref_V.exp().tolist(),
        "exact": float(exact.detach()),
        "gradient": wanted_V.tolist(),
        "estimators": estimators,
    }
