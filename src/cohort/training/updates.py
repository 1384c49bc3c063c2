"""What is measured while a minibatch is trained, and the invariants that must hold before its first update."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms.kl import k3
from cohort.errors import InvariantError
from cohort.model.optim import StepReport
from cohort.model.packing import MicroBatch, Minibatch
from cohort.model.policy import TokenScores
from cohort.observe.metrics import find_reduction
from cohort.observe.perf import count_minibatch_tokens
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.objective import TokenLoss, compares_pairs

PER_TOKEN = (
    "loss/entropy",
    "loss/clip_low",
    "loss/clip_high",
    "loss/kl",
    "loss/mismatch_weight",
    "loss/mismatch_cut",
)
PER_PAIR = ("loss/chosen_gain", "loss/rejected_gain")
"""Sums that are shown as means; the others are weighted already."""


@dataclass
class UpdateMeter:
    """Sums over the micro-batches of one minibatch. Tensors stay on the device until `metrics`, so nothing waits."""

    algorithm: AlgorithmConfig
    sums: dict[str, Tensor] = field(default_factory=dict)
    mismatch: list[Tensor] = field(default_factory=list)
    coefficients: list[Tensor] = field(default_factory=list)
    ratio_max: list[Tensor] = field(default_factory=list)
    kl_max: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def add(self, scores: TokenScores, micro: MicroBatch, loss: TokenLoss) -> None:
        weights_M = micro.loss_weights_M
        self._sum("tokens", torch.tensor(float(micro.row_M.numel())))
        self._sum("rows", torch.tensor(float(micro.num_rows)))
        self._sum("loss/total", (loss.loss_M * weights_M).sum())
        self._sum("loss/policy", (loss.policy_loss_M * weights_M).sum())
        self._sum("loss/entropy", scores.entropy_M.sum())
        self._sum("loss/clip_low", loss.surrogate.below_M.sum())
        self._sum("loss/clip_high", loss.surrogate.above_M.sum())
        self.ratio_max.append(loss.surrogate.ratio_M.max())
        self.coefficients.append(loss.coefficient_M)
        if loss.kl_loss_M is not None:
            self._sum("loss/kl_term", (loss.kl_loss_M * weights_M).sum())
        if micro.ref_logprobs_M is not None:  # measured by k3 whichever estimator is trained with: it is never negative
            kl_M = k3(scores.logprobs_M, micro.ref_logprobs_M)
            self.kl_max.append(kl_M.abs().max())
            own = self.algorithm.data == "policy" and not compares_pairs(self.algorithm)
            for name in ("loss/kl", "loss/kl_per_completion") if own else ():  # elsewhere these are not its own samples
                self._sum(name, kl_M.sum())
        if loss.surrogate.margin_M is not None:
            self._sum("loss/margin", (loss.surrogate.margin_M * weights_M).sum())
            self._sum("loss/preferred", ((loss.surrogate.margin_M > 0) * weights_M).sum())
            assert micro.ref_logprobs_M is not None
            log_ratio_M = scores.logprobs_M - micro.ref_logprobs_M
            self._sum("loss/chosen_gain", log_ratio_M[micro.advantages_M > 0].sum())
            self._sum("loss/rejected_gain", log_ratio_M[micro.advantages_M < 0].sum())
        if self.algorithm.data == "policy":
            mismatch_M = (scores.logprobs_M - micro.sampling_logprobs_M).abs()
            if micro.fresh_M is not None:  # older tokens differ for a reason
                mismatch_M = mismatch_M[micro.fresh_M]
            if mismatch_M.numel():
                self.mismatch.append(mismatch_M)
        if loss.mismatch_weights_M is not None:
            masked = self.algorithm.mismatch_weight.endswith("mask")
            cut_M = loss.mismatch_weights_M == 0 if masked else loss.mismatch_weights_M >= self.algorithm.mismatch_cap
            self._sum("loss/mismatch_weight", loss.mismatch_weights_M.sum())
            self._sum("loss/mismatch_cut", cut_M.sum())

    def _sum(self, name: str, value: Tensor) -> None:
        value = value.detach().double()
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def metrics(self, report: StepReport, minibatch: Minibatch) -> dict[str, float]:
        sums = {name: float(value) for name, value in self.sums.items()}
        tokens, rows = sums.pop("tokens", 0.0), sums.pop("rows", 0.0)
        row = {
            "loss/total": 0.0,
            "loss/policy": 0.0,
            "loss/trained_tokens": tokens,
            "optim/learning_rate": report.learning_rate,
            "optim/grad_norm": report.grad_norm if not report.skipped else 0.0,
            "optim/clipped": float(report.clipped),
            "optim/skipped": float(report.skipped),
        } | count_minibatch_tokens(minibatch)
        if not tokens:
            return row
        divisors = dict.fromkeys(PER_TOKEN, tokens) | dict.fromkeys(PER_PAIR, rows / 2) | {"loss/kl_per_completion": rows}
        row |= {name: value / divisors[name] if name in divisors else value for name, value in sums.items()}
        row["loss/ratio_max"] = float(torch.stack(self.ratio_max).max())
        coefficient_M = torch.cat(self.coefficients).float()
        row["loss/coefficient_mean"] = float(coefficient_M.mean())
        row["loss/coefficient_p05"] = quantile(coefficient_M, 0.05)
        row["loss/coefficient_p95"] = quantile(coefficient_M, 0.95)
        row["loss/coefficient_abs_max"] = float(coefficient_M.abs().max())
        if self.mismatch:
            mismatch_M = torch.cat(self.mismatch).float()
            row["rollout/mismatch_mean"] = float(mismatch_M.mean())
            row["rollout/mismatch_p95"] = quantile(mismatch_M, 0.95)
            row["rollout/mismatch_max"] = float(mismatch_M.max())
        return row


def quantile(values_M: Tensor, share: float) -> float:
    """Nearest-rank quantile; torch.quantile refuses more than 16 million values."""
    rank = max(1, math.ceil(share * values_M.numel()))
    return float(values_M.sort().values[rank - 1])  # not kthvalue, which has no reproducible form on a GPU


MISMATCH_LIMITS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1.0, torch.float16: 0.5}
"""Largest |log ratio| between engine and trainer on the same weights, for one token.

In bfloat16 a single token of low probability can be off by several tenths; the mean, limited to a tenth of this, is the
sharper test there.
"""
GPU_FACTOR = 10.0
"""On a GPU float32 sums come in another order for one token than for a sequence: 1.7e-5 was seen on the demo's model."""
LARGE_MODEL = 4096
"""Layers x width up to which the limits hold; rounding grows in proportion beyond."""


def find_mismatch_limit(model: Any, rounding: float = 1.0) -> float:
    """`rounding`: of the engine (Capabilities)."""
    config = model.config.get_text_config()
    limit = MISMATCH_LIMITS[model.dtype] * max(1.0, config.num_hidden_layers * config.hidden_size / LARGE_MODEL)
    if model.dtype == torch.float32:
        limit *= rounding * (GPU_FACTOR if model.device.type != "cpu" else 1.0)
    return limit


LARGEST_ROUNDED_KL = 0.02
"""k3 of a token whose log-prob is off by 0.2: more is no rounding, not even in bfloat16."""


def kl_limit(model: Any, own_attention: bool) -> float:
    """Largest k3 between equal weights: exactly 0 on a CPU where our attention reads the model, elsewhere that of the mismatch limit.

    The reference scores each minibatch in the very micro-batches in which it is trained (training/experience.py), so on a CPU the same
    operations meet the same numbers, at any width. A GPU may run another attention kernel for a forward without gradients than
    for one with them, and so may the convolutions and scans of a model that keeps its own modules for everything (2e-13 was seen on a
    Mamba). For small differences d of log-probs k3 is d^2 / 2.
    """
    if model.device.type == "cpu" and own_attention:
        return 0.0
    return min(find_mismatch_limit(model) ** 2 / 2, LARGEST_ROUNDED_KL)


def check_same_policy(meter: UpdateMeter, limit: float, kl_limit: float | None) -> None:
    """Before the first update: the policy that is scored is the policy that sampled, and it is the reference (kl_limit: how exactly)."""
    mismatch_M = torch.cat(meter.mismatch) if meter.mismatch else torch.zeros(1)  # nothing was sampled by this policy
    largest, mean = float(mismatch_M.max()), float(mismatch_M.mean())
    if not (largest <= limit and mean <= max(limit / 10, 1e-6)):
        raise InvariantError(
            f"engine and trainer disagree before any update on this batch: |log ratio| has mean {mean:.2e} and maximum {largest:.2e}, "
            f"the limit is {limit:.0e}. The rollouts did not come from the policy that is being trained. "
            'Try sampling.engine="hf"; if that passes, please report the architecture.'
        )
    if kl_limit is not None and meter.kl_max:
        largest_kl = float(torch.stack(meter.kl_max).max())
        if not largest_kl <= kl_limit:
            allowed = f"at most {kl_limit:.0e}, which is rounding," if kl_limit else "exactly 0"
            raise InvariantError(
                f"KL to the reference is {largest_kl:.2e} before any update; it must be {allowed} for equal weights."
            )


def merge_update_metrics(rows: list[dict[str, float]]) -> dict[str, float]:
    """The step's metrics from those of its optimizer steps, as the table of metrics says: means, sums, maxima, first values."""
    merged: dict[str, float] = {}
    for name in {name: None for row in rows for name in row}:
        values = [row[name] for row in rows if name in row]
        reduce = sum if name.startswith("tokens/") else find_reduction(name)  # tokens/ is counted for perf/ and not written
        merged[name] = reduce(values) if reduce else sum(values) / len(values)
    return merged
