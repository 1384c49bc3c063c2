"""The family once more, as slowly and as obviously as possible. Shares no code with the package.

Python loops over groups, completions and tokens, float64, one forward of the whole model per completion, no padding, no
micro-batches, no chunks; sums by `math.fsum`; trust regions as the cases of their definitions and not as minima of
products. What the library computes must be this, to the last few bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# -- advantages --------------------------------------------------------------------------------------------------------


def mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def std_of(values: Sequence[float], ddof: int) -> float:
    if all(value == values[0] for value in values):
        return 0.0
    mean = mean_of(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def advantages(
    name: str, groups: Sequence[Sequence[float | None]], *, ddof: int = 0, epsilon: float = 1e-6
) -> list[list[float]]:
    """The advantage of every completion of a batch, from rewards; None is an unscored completion."""
    raw = [reward for group in groups for reward in group if reward is not None]
    centred = []
    for group in groups:
        scored = [reward for reward in group if reward is not None]
        if len(scored) >= 2:
            centred += [reward - mean_of(scored) for reward in scored]
    return [group_advantages(name, group, raw, centred, ddof, epsilon) for group in groups]


def group_advantages(
    name: str, group: Sequence[float | None], raw: Sequence[float], centred: Sequence[float], ddof: int, epsilon: float
) -> list[float]:
    scored = [reward for reward in group if reward is not None]
    if len(scored) < 2 or all(reward == scored[0] for reward in scored):
        return [0.0 for _ in group]
    best, worst = max(scored), min(scored)
    found = []
    for place, reward in enumerate(group):
        if reward is None:
            found.append(0.0)
        elif name == "group_normalized":
            found.append((reward - mean_of(scored)) / (std_of(scored, ddof) + epsilon))
        elif name == "group_centered":
            found.append(reward - mean_of(scored))
        elif name == "batch_std":
            found.append((reward - mean_of(scored)) / (std_of(raw, ddof) + epsilon))
        elif name == "batch_whitened":
            found.append((reward - mean_of(scored) - mean_of(centred)) / (std_of(centred, ddof) + epsilon))
        elif name == "leave_one_out":
            others = [other for elsewhere, other in enumerate(group) if elsewhere != place and other is not None]
            found.append(reward - mean_of(others))
        elif name == "best_and_worst":
            first_best, first_worst = list(group).index(best), list(group).index(worst)
            found.append(1.0 if place == first_best else -1.0 if place == first_worst else 0.0)
        else:
            raise ValueError(name)
    return found


def success_advantages(groups: Sequence[Sequence[bool | None]]) -> list[list[float]]:
    """MaxRL: (s - mean) / mean; None is a completion that nobody judged."""
    found = []
    for group in groups:
        judged = [float(success) for success in group if success is not None]
        mean = mean_of(judged) if judged else 0.0
        found.append([0.0 if success is None or mean == 0 or len(judged) < 2 else (success - mean) / mean for success in group])
    return found


def part_advantages(
    parts: dict[str, Sequence[Sequence[float | None]]],
    weights: dict[str, float],
    scored: Sequence[Sequence[bool]],
    *,
    ddof: int = 0,
    epsilon: float = 1e-6,
) -> list[list[float]]:
    """GDPO: part by part inside each group, weighted, added, and whitened over all completions that are compared."""
    sums = []
    for place, row in enumerate(scored):
        totals = [0.0 for _ in row]
        for name, groups in parts.items():
            values = [value if counts else None for value, counts in zip(groups[place], row, strict=True)]
            inside = group_advantages("group_normalized", values, [], [], ddof, epsilon)
            totals = [total + weights[name] * value for total, value in zip(totals, inside, strict=True)]
        sums.append(totals)
    compared = [
        total
        for totals, row in zip(sums, scored, strict=True)
        for total, counts in zip(totals, row, strict=True)
        if counts and sum(row) >= 2
    ]
    if not compared or all(total == compared[0] for total in compared):
        return [[0.0 for _ in totals] for totals in sums]
    mean, scale = mean_of(compared), std_of(compared, ddof) + epsilon
    return [
        [(total - mean) / scale if counts and sum(row) >= 2 else 0.0 for total, counts in zip(totals, row, strict=True)]
        for totals, row in zip(sums, scored, strict=True)
    ]


def process_advantages(
    steps: Sequence[Sequence[tuple[int, float]] | None], lengths: Sequence[int], *, ddof: int = 0, epsilon: float = 1e-6
) -> list[list[float]]:
    """(last token, reward) of each step of each completion of one group -> the advantage of every token."""
    every = [reward for own in steps if own is not None for _, reward in own]
    found = []
    for own, length in zip(steps, lengths, strict=True):
        tokens = []
        for token in range(length):
            later = [reward for end, reward in own or () if end >= token]
            if not every or all(reward == every[0] for reward in every):
                tokens.append(0.0)
            else:
                scale = std_of(every, ddof) + epsilon
                tokens.append(math.fsum((reward - mean_of(every)) / scale for reward in later))
        found.append(tokens)
    return found


def gae_advantages(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The definition, as the sum over all later surprises: sum_l (gamma lambda)^l (r + gamma V' - V)."""
    following = [*values[1:], 0.0]
    surprises = [r + gamma * after - value for r, value, after in zip(rewards, values, following, strict=True)]
    return [
        math.fsum((gamma * lam) ** (later - token) * surprises[later] for later in range(token, len(rewards)))
        for token in range(len(rewards))
    ]


def token_returns(rewards: Sequence[float], gamma: float = 1.0) -> list[float]:
    return [
        math.fsum(gamma ** (later - token) * rewards[later] for later in range(token, len(rewards)))
        for token in range(len(rewards))
    ]


def whitened(rows: Sequence[Sequence[float]], *, ddof: int = 0, epsilon: float = 1e-6) -> list[list[float]]:
    flat = [value for row in rows for value in row]
    if not flat or all(value == flat[0] for value in flat):
        return [[0.0 for _ in row] for row in rows]
    mean, scale = mean_of(flat), std_of(flat, ddof) + epsilon
    return [[(value - mean) / scale for value in row] for row in rows]


# -- losses ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choices:
    region: str = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    ratio_cap: float = 5.0
    soft_up: float = 1.0
    soft_down: float = 1.05
    divergence_limit: float = 0.15
    divergence_cap: float = 0.0
    mismatch_weight: str = "off"
    mismatch_cap: float = 2.0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_in: str = "loss"
    kl_corrected: bool = False
    entropy_coef: float = 0.0


@dataclass
class Sample:
    """One completion: what was asked, what was written, and what each of its tokens is trained with."""

    prompt: Sequence[int]
    completion: Sequence[int]
    trained: Sequence[bool]
    advantage: Sequence[float]
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    sampling_logprobs: Sequence[float] | None = None
    group: int = 0


@dataclass
class Token:
    """One trained token: its log-probability now, with gradient, and the numbers it is trained with."""

    logprob: Tensor
    advantage: float
    old: float | None = None
    ref: float | None = None
    sampling: float | None = None
    entropy: Tensor | float = 0.0

    @property
    def before(self) -> Tensor:
        """log pi_old; exactly on-policy the current one, without gradient."""
        return self.logprob.detach() if self.old is None else torch.tensor(self.old, dtype=torch.float64)

    @property
    def engine(self) -> Tensor:
        """log mu: with which the engine sampled it; where none is given, engine and trainer are one."""
        return self.before if self.sampling is None else torch.tensor(self.sampling, dtype=torch.float64)


def faded(token: Token, choices: Choices) -> Tensor:
    """SAPO's gate on the ratio, from the exponential."""
    tau = choices.soft_up if token.advantage > 0 else choices.soft_down
    ratio = torch.exp(token.logprob - token.before)
    return 4 / tau * token.advantage / (1 + torch.exp(-tau * (ratio - 1)))


def within(token: Token, choices: Choices) -> Tensor:
    """DPPO's surrogate of one token, case by case: nothing where its probability has gone too far and is pushed further."""
    now, sampled = math.exp(token.logprob.item()), math.exp(token.engine.item())
    if token.advantage > 0 and now - sampled > choices.divergence_limit:
        return torch.tensor(0.0, dtype=torch.float64)
    if token.advantage < 0 and sampled - now > choices.divergence_limit:
        return torch.tensor(0.0, dtype=torch.float64)
    if choices.divergence_cap and now / sampled > choices.divergence_cap:  # the weight stops, the gradient of log pi stays
        moving = token.logprob - token.logprob.detach()
        return choices.divergence_cap * token.advantage * (1 + moving)
    return torch.exp(token.logprob - token.engine) * token.advantage


def clipped(ratio: Tensor, advantage: float, choices: Choices) -> Tensor:
    """The surrogate of one ratio, case by case: rho A, unless it already gained all that the clip allows."""
    rho = ratio.item()
    if advantage > 0 and rho > 1 + choices.clip_high:
        return torch.tensor((1 + choices.clip_high) * advantage, dtype=torch.float64)
    if advantage < 0 and rho < 1 - choices.clip_low:
        return torch.tensor((1 - choices.clip_low) * advantage, dtype=torch.float64)
    if choices.region == "dual_clip" and advantage < 0 and rho > choices.dual_clip:
        return torch.tensor(choices.dual_clip * advantage, dtype=torch.float64)
    return ratio * advantage


def surrogates(tokens: Sequence[Token], choices: Choices) -> list[Tensor]:
    """What each token of one completion gains (the negative of its loss), before any weight."""
    if not tokens:
        return []
    if choices.region in ("sequence", "sequence_product"):
        total = sum(token.logprob - token.before for token in tokens)
        ratio = torch.exp(total / len(tokens) if choices.region == "sequence" else total)
        return [clipped(ratio, token.advantage, choices) for token in tokens]
    found = []
    for token in tokens:
        ratio = torch.exp(token.logprob - token.before)
        if choices.region in ("clip", "dual_clip"):
            found.append(clipped(ratio, token.advantage, choices))
        elif choices.region == "cispo":
            found.append(min(ratio.item(), choices.ratio_cap) * token.advantage * token.logprob)
        elif choices.region == "soft":
            found.append(faded(token, choices))
        elif choices.region == "divergence":
            found.append(within(token, choices))
        elif choices.region == "none":
            found.append(token.advantage * token.logprob)
        else:
            raise ValueError(choices.region)
    return found


def engine_weights(tokens: Sequence[Token], choices: Choices) -> list[float]:
    """pi_old / pi_engine of each token, or of the whole completion, cut or masked."""
    if choices.mismatch_weight == "off":
        return [1.0 for _ in tokens]
    logs = [token.before.item() - float(token.sampling or 0.0) for token in tokens]
    if choices.mismatch_weight.startswith("sequence"):
        logs = [math.fsum(logs) for _ in logs]
    found = []
    for log in logs:
        weight, cap = math.exp(log), choices.mismatch_cap
        if choices.mismatch_weight.endswith("truncate"):
            found.append(cap if weight > cap else weight)
        else:
            found.append(0.0 if weight > cap or weight < 1 / cap else weight)
    return found


def kl_estimate(token: Token, choices: Choices) -> Tensor:
    assert token.ref is not None
    gap = token.logprob - token.ref
    if choices.kl_estimator == "k1":
        estimate = gap
    elif choices.kl_estimator == "k2":
        estimate = gap * gap / 2
    else:
        estimate = torch.exp(-gap) + gap - 1
    return torch.exp(token.logprob - token.before) * estimate if choices.kl_corrected else estimate


def completion_losses(tokens: Sequence[Token], choices: Choices) -> list[Tensor]:
    """The loss of each token of one completion."""
    gains, weights = surrogates(tokens, choices), engine_weights(tokens, choices)
    losses = []
    for token, gain, weight in zip(tokens, gains, weights, strict=True):
        loss = -gain * weight
        if token.ref is not None and choices.kl_in == "loss":
            loss = loss + choices.kl_coef * kl_estimate(token, choices)
        losses.append(loss - choices.entropy_coef * token.entropy)
    return losses


def pair_loss(chosen: Sequence[Token], rejected: Sequence[Token], beta: float) -> Tensor:
    """DPO, from the two probabilities: sigmoid(margin) = 1 / (1 + exp(-margin)) is how surely the chosen one is preferred."""
    preference = sum(token.logprob - token.ref for token in chosen) - sum(token.logprob - token.ref for token in rejected)
    return -torch.log(1 / (1 + torch.exp(-beta * preference)))


# -- batches -----------------------------------------------------------------------------------------------------------


def aggregate(rows: Sequence[Sequence[Any]], groups: Sequence[int], aggregation: str, max_completion_tokens: int) -> Any:
    """Tokens of completions of groups, as one number. Completions without a single trained token count nowhere."""
    kept = [(row, group) for row, group in zip(rows, groups, strict=True) if row]
    if not kept:
        return 0.0
    if aggregation == "sequence_mean":
        return sum(sum(row) / len(row) for row, _ in kept) / len(kept)
    if aggregation == "token_mean":
        return sum(sum(row) for row, _ in kept) / sum(len(row) for row, _ in kept)
    if aggregation == "constant":
        return sum(sum(row) for row, _ in kept) / (len(kept) * max_completion_tokens)
    if aggregation == "sequence_sum":
        return sum(sum(row) for row, _ in kept) / len(kept)
    if aggregation == "prompt_mean":
        means = []
        for wanted in dict.fromkeys(group for _, group in kept):
            inside = [value for row, group in kept if group == wanted for value in row]
            means.append(sum(inside) / len(inside))
        return sum(means) / len(means)
    raise ValueError(aggregation)


def trained_tokens(model: Any, sample: Sample, temperature: float) -> list[Token]:
    """log softmax(logits / temperature) of each trained token, from the model's own forward."""
    token_ids = [*sample.prompt, *sample.completion]
    logits_TV = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]

    def number(values: Sequence[float] | None, place: int) -> float | None:
        return None if values is None else float(values[place])

    tokens = []
    for place, token in enumerate(sample.completion):
        if not sample.trained[place]:
            continue
        logits_V = logits_TV[len(sample.prompt) + place - 1] / temperature
        logprobs_V = logits_V - torch.logsumexp(logits_V, 0)
        tokens.append(
            Token(
                logprob=logprobs_V[token],
                advantage=float(sample.advantage[place]),
                old=number(sample.old_logprobs, place),
                ref=number(sample.ref_logprobs, place),
                sampling=number(sample.sampling_logprobs, place),
                entropy=-(logprobs_V.exp() * logprobs_V).sum(),
            )
        )
    return tokens


def batch_loss(
    model: Any,
    samples: Sequence[Sample],
    *,
    aggregation: str,
    max_completion_tokens: int,
    temperature: float = 1.0,
    **choices: Any,
) -> Tensor:
    """The whole objective."""
    chosen = Choices(**choices)
    rows = [trained_tokens(model, sample, temperature) for sample in samples]
    groups = [sample.group for sample in samples]
    if chosen.region == "dpo":
        pairs: dict[int, dict[bool, list[Token]]] = {}
        for row, group in zip(rows, groups, strict=True):
            if row:
                pairs.setdefault(group, {})[row[0].advantage > 0] = row
        losses = [pair_loss(pair[True], pair[False], chosen.kl_coef) for pair in pairs.values()]
        return torch.as_tensor(sum(losses) / len(losses) if losses else 0.0, dtype=torch.float64)
    per_completion = [completion_losses(row, chosen) for row in rows]
    return torch.as_tensor(aggregate(per_completion, groups, aggregation, max_completion_tokens), dtype=torch.float64)
