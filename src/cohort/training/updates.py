"""Measurements of an update, and the invariants that must hold before the first one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms.regions import k3
from cohort.base.world import World
from cohort.engine.sampling import find_mismatch_limit
from cohort.errors import InvariantError
from cohort.model.optim import StepReport
from cohort.model.packing import MicroBatch, Minibatch
from cohort.model.policy import TokenScores
from cohort.observe.metrics import find_reduction
from cohort.observe.perf import count_minibatch_tokens
from cohort.ops.layout import move_record
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.objective import TokenLoss, compares_pairs

PER_TOKEN = ("entropy", "clip_low", "clip_high", "kl", "mismatch_weight", "mismatch_cut")
PER_PAIR = ("chosen_gain", "rejected_gain")
"""Sums in the area loss/ that are reported as means; the others are weighted already."""


@dataclass(frozen=True)
class TokenValues:
    """Values of every trained token of a micro-batch. The tensors are those of the loss; nothing is computed for them."""

    examples: tuple[int, ...]
    """Place of each row among the examples of the minibatch."""
    logprobs_M: Tensor
    entropy_M: Tensor
    ratio_M: Tensor
    below_M: Tensor
    above_M: Tensor

    def to(self, device: torch.device | str) -> TokenValues:
        return move_record(self, device)


@dataclass
class Measured:
    """Measurements of one micro-batch. Tensors stay on the device until they are read, so nothing waits for it."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    mismatch_M: Tensor | None = None
    """|log ratio| between engine and trainer, of tokens that the current policy sampled."""
    coefficient_M: Tensor | None = None
    ratio_max: Tensor | None = None
    kl_max: Tensor | None = None
    tokens: TokenValues | None = None
    """Values of single tokens, if they are recorded."""


def copy_to_host(seen: Measured) -> Measured:
    return replace(move_record(seen, "cpu"), sums={name: value.cpu() for name, value in seen.sums.items()})


@dataclass
class UpdateMeter:
    """Measurements of the micro-batches of a minibatch, summed in the order of their places, whichever rank computed them."""

    algorithm: AlgorithmConfig
    measured: dict[int, Measured] = field(default_factory=dict)
    keeps_tokens: bool = False
    """Whether values of single tokens are kept."""
    own_tokens: int = 0
    """Tokens that this process ran through the model, prompts included; micro-batches are distributed by this count."""

    @torch.no_grad()
    def add(self, scores: TokenScores, micro: MicroBatch, loss: TokenLoss) -> None:
        if micro.idle:
            return
        weights_M = micro.loss_weights_M
        seen = Measured(ratio_max=loss.surrogate.ratio_M.max(), coefficient_M=loss.coefficient_M)

        def note_sum(name: str, value: Tensor) -> None:
            seen.sums[name] = value.detach().double()

        note_sum("tokens", torch.tensor(float(micro.row_M.numel())))
        note_sum("rows", torch.tensor(float(micro.num_rows)))
        note_sum("loss/total", (loss.loss_M * weights_M).sum())
        note_sum("loss/policy", (loss.policy_loss_M * weights_M).sum())
        note_sum("loss/entropy", scores.entropy_M.sum())
        note_sum("loss/clip_low", loss.surrogate.below_M.sum())
        note_sum("loss/clip_high", loss.surrogate.above_M.sum())
        if loss.kl_loss_M is not None:
            note_sum("loss/kl_term", (loss.kl_loss_M * weights_M).sum())
        if micro.ref_logprobs_M is not None:  # measured by k3, which is never negative, whichever estimator is trained with
            kl_M = k3(scores.logprobs_M, micro.ref_logprobs_M)
            seen.kl_max = kl_M.abs().max()
            own = self.algorithm.data == "policy" and not compares_pairs(self.algorithm)
            for name in ("loss/kl", "loss/kl_per_completion") if own else ():  # other samples are not the policy's own
                note_sum(name, kl_M.sum())
        if loss.surrogate.margin_M is not None:
            note_sum("loss/margin", (loss.surrogate.margin_M * weights_M).sum())
            note_sum("loss/preferred", ((loss.surrogate.margin_M > 0) * weights_M).sum())
            assert micro.ref_logprobs_M is not None
            log_ratio_M = scores.logprobs_M - micro.ref_logprobs_M
            note_sum("loss/chosen_gain", log_ratio_M[micro.advantages_M > 0].sum())
            note_sum("loss/rejected_gain", log_ratio_M[micro.advantages_M < 0].sum())
        if self.algorithm.data == "policy":
            mismatch_M = (scores.logprobs_M - micro.sampling_logprobs_M).abs()
            if micro.fresh_M is not None:  # stale tokens are expected to differ
                mismatch_M = mismatch_M[micro.fresh_M]
            if mismatch_M.numel():
                seen.mismatch_M = mismatch_M
        if loss.mismatch_weights_M is not None:
            masked = self.algorithm.mismatch_weight.endswith("mask")
            cut_M = loss.mismatch_weights_M == 0 if masked else loss.mismatch_weights_M >= self.algorithm.mismatch_cap
            note_sum("loss/mismatch_weight", loss.mismatch_weights_M.sum())
            note_sum("loss/mismatch_cut", cut_M.sum())
        if self.keeps_tokens:
            cut = loss.surrogate
            tensors = (scores.logprobs_M, scores.entropy_M, cut.ratio_M, cut.below_M, cut.above_M)
            seen.tokens = TokenValues(micro.examples, *(values_M.detach() for values_M in tensors))
        self.measured[micro.place] = seen
        self.own_tokens += micro.layout.num_tokens

    def join(self, world: World) -> None:
        """Gather the measurements of all ranks."""
        if world.size > 1:
            mine = [(place, copy_to_host(seen)) for place, seen in self.measured.items()]
            self.measured = dict(sorted(world.gather(mine), key=lambda one: one[0]))

    def _list(self, name: str) -> list[Tensor]:
        values = (getattr(seen, name) for seen in self.measured.values())
        return [value for value in values if value is not None]

    @property
    def mismatch(self) -> list[Tensor]:
        return self._list("mismatch_M")

    @property
    def kl_max(self) -> list[Tensor]:
        return self._list("kl_max")

    def add_up(self) -> dict[str, float]:
        """Sums over all micro-batches."""
        totals: dict[str, Tensor] = {}
        for seen in self.measured.values():
            for name, value in seen.sums.items():
                totals[name] = totals[name] + value if name in totals else value
        return {name: float(value) for name, value in totals.items()}

    def metrics(self, report: StepReport, minibatch: Minibatch) -> dict[str, float]:
        sums = self.add_up()
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
        divisors = {f"loss/{name}": tokens for name in PER_TOKEN} | {f"loss/{name}": rows / 2 for name in PER_PAIR}
        divisors["loss/kl_per_completion"] = rows
        row |= {name: value / divisors[name] if name in divisors else value for name, value in sums.items()}
        row["loss/ratio_max"] = float(torch.stack(self._list("ratio_max")).max())
        coefficient_M = torch.cat(self._list("coefficient_M")).float()
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
    return float(values_M.sort().values[rank - 1])  # kthvalue is not deterministic on a GPU


LARGEST_ROUNDED_KL = 0.02
"""k3 of a token whose log-prob differs by 0.2: not even bfloat16 rounds that much."""


def kl_limit(model: Any, own_attention: bool) -> float:
    """Largest k3 between equal weights: exactly 0 on a CPU with our attention, elsewhere derived from the mismatch limit.

    The reference scores each minibatch in the micro-batches in which it is trained (training/experience.py), so on a CPU the same
    operations get the same numbers at any width. A GPU may use different attention kernels with and without gradients, and so may
    convolutions and scans of a model that keeps its own modules (2e-13 was measured on a Mamba). For small differences d of
    log-probs, k3 is d^2 / 2.
    """
    if model.device.type == "cpu" and own_attention:
        return 0.0
    return min(find_mismatch_limit(model) ** 2 / 2, LARGEST_ROUNDED_KL)


def check_same_policy(meter: UpdateMeter, limit: float, kl_limit: float | None) -> None:
    """Check that the trained policy is the policy that sampled, and the reference (within kl_limit), before the first update."""
    mismatch_M = torch.cat(meter.mismatch) if meter.mismatch else torch.zeros(1)  # this policy sampled nothing
    largest, mean = float(mismatch_M.max()), float(mismatch_M.mean())
    if not (largest <= limit and mean <= max(limit / 10, 1e-6)):
        raise InvariantError(
            f"engine and trainer disagree before any update on this batch: |log ratio| has mean {mean:.2e} and maximum {largest:.2e}, "
            f"above the limit of {limit:.0e}. The rollouts did not come from the policy that is being trained. "
            'Try sampling.engine="hf"; if that works, please report the architecture.'
        )
    if kl_limit is not None and meter.kl_max:
        largest_kl = float(torch.stack(meter.kl_max).max())
        if not largest_kl <= kl_limit:
            allowed = f"at most {kl_limit:.0e} (rounding)" if kl_limit else "exactly 0"
            raise InvariantError(
                f"KL to the reference is {largest_kl:.2e} before any update; for equal weights it must be {allowed}."
            )


def merge_update_metrics(rows: list[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its optimizer steps, merged as docs/metrics.md defines: mean, sum, maximum or first value."""
    merged: dict[str, float] = {}
    for name in {name: None for row in rows for name in row}:
        values = [row[name] for row in rows if name in row]
        reduce = sum if name.startswith("tokens/") else find_reduction(name)  # tokens/ is only used to compute perf/
        merged[name] = reduce(values) if reduce else sum(values) / len(values)
    return merged
