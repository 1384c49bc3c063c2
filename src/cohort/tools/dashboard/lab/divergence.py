"""Station 7: k1, k2 and k3 on a vocabulary of four words, where every expectation is a sum: value, variance and error of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from cohort.algorithms.named import NAMED

if TYPE_CHECKING:
    from torch import Tensor

CURVE = tuple(place / 10 for place in range(31))
"""How far the policy has drifted, in logits of one word, at the points of a curve."""
GAPS = tuple((place - 20) / 10 for place in range(41))
"""Log-ratios at which an estimator is drawn."""


def measure_drift(reference_V: Sequence[float], toward: int, drift: float) -> dict[str, Any]:
    """The estimators where the logit of one word has risen by `drift`, and along the curve from no drift on."""
    now = measure_at(tuple(reference_V), toward, drift)
    return now | {"drift": drift, "toward": toward, "curve": trace_curve(tuple(reference_V), toward), "shape": trace_shape()}


@cache
def trace_shape() -> dict[str, list[float]]:
    """Every estimator as a function of log policy - log reference."""
    import torch

    gap_K = torch.tensor(GAPS, dtype=torch.float64)
    shape = {
        name: choice.call({}, policy_logprobs_M=gap_K, ref_logprobs_M=torch.zeros_like(gap_K))
        for name, choice in NAMED["kl"].items()
    }
    return {"gap": list(GAPS), **{name: values_K.tolist() for name, values_K in shape.items()}}


@lru_cache(maxsize=32)
def trace_curve(reference_V: tuple[float, ...], toward: int) -> dict[str, Any]:
    along = [measure_at(reference_V, toward, amount) for amount in CURVE]
    fields = {
        field: {name: [point["estimators"][name][field] for point in along] for name in NAMED["kl"]}
        for field in ("mean", "deviation", "loss_error")
    }
    return {"drift": list(CURVE), "exact": [point["exact"] for point in along], **fields}


def measure_at(reference_V: tuple[float, ...], toward: int, drift: float) -> dict[str, Any]:
    import torch

    log_ref_V = torch.tensor(reference_V, dtype=torch.float64).log().log_softmax(0)
    shift_V = torch.zeros_like(log_ref_V)
    shift_V[toward] = drift
    return measure_estimators(log_ref_V + shift_V, log_ref_V)


def measure_estimators(logits_V: Tensor, log_ref_V: Tensor) -> dict[str, Any]:
    """Exact KL and gradient; of every estimator its value at each word, mean, variance, and the error of its expected gradient.

    The gradient is to the logits of the policy. An error is a share of the KL's own gradient: 0 is right, 1 is as good as none.
    In the loss, corrected by the ratio, and in the reward are the three places in which a recipe can put it.
    """
    import torch

    from cohort.algorithms.regions import corrected, ratio

    logits_V = logits_V.detach().clone().requires_grad_()

    logprobs_V = torch.log_softmax(logits_V, 0)
    held_V = logprobs_V.detach()
    chances_V = held_V.exp()
    exact = (logprobs_V.exp() * (logprobs_V - log_ref_V)).sum()
    wanted_V = torch.autograd.grad(exact, logits_V, retain_graph=True)[0]
    size = float(wanted_V.norm())

    def measure_error(found_V: Tensor) -> float:
        return float((found_V - wanted_V).norm()) / size if size > 1e-12 else 0.0

    estimators: dict[str, Any] = {}
    for name, choice in NAMED["kl"].items():
        fresh_V = torch.log_softmax(logits_V, 0)
        values_V = choice.call({}, policy_logprobs_M=fresh_V, ref_logprobs_M=log_ref_V)
        held_values_V = values_V.detach()
        mean = float((chances_V * held_values_V).sum())
        variance = float((chances_V * (held_values_V - mean).square()).sum())
        in_loss_V = torch.autograd.grad((chances_V * values_V).sum(), logits_V, retain_graph=True)[0]
        corrected_V = torch.autograd.grad(
            (chances_V * corrected(values_V, ratio(fresh_V, held_V))).sum(), logits_V, retain_graph=True
        )[0]
        in_reward_V = torch.autograd.grad((chances_V * held_values_V * fresh_V).sum(), logits_V)[0]
        estimators[name] = {
            "says": choice.sentence,
            "values": held_values_V.tolist(),
            "mean": mean,
            "bias": mean - float(exact.detach()),
            "variance": variance,
            "deviation": variance**0.5,
            "gradient": in_loss_V.tolist(),
            "loss_error": measure_error(in_loss_V),
            "corrected_error": measure_error(corrected_V),
            "reward_error": measure_error(in_reward_V),
        }
    return {
        "policy": chances_V.tolist(),
        "reference": log_ref_V.exp().tolist(),
        "exact": float(exact.detach()),
        "gradient": wanted_V.tolist(),
        "estimators": estimators,
    }
