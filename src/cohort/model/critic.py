"""PPO's value function: a copy of the policy's backbone with a scalar head and its own optimizer.

GRPO saves the cost of this file: a second network of the policy's size with gradients, masters and moments. The value of a token is
the expected return *before* the token is read. It is computed from the hidden state one position earlier, the one that also gives the
token's log-prob. The head starts at zero, so before the first update V is 0 everywhere and GAE with lambda 1 is the plain return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.errors import CheckpointError, InvariantError
from cohort.model.backbone import ModuleBackbone, can_share_prompts, score_tokens
from cohort.model.examples import Example
from cohort.model.optim import Adding, MasterWeights, Optimizer
from cohort.model.packing import Layouts, MicroBatch
from cohort.model.policy import Policy
from cohort.ops.attention import attention_configs
from cohort.ops.layout import Layout, Selection, take
from cohort.ops.products import run_steadily
from cohort.recipe.schema import CriticConfig, OptimizerConfig

if TYPE_CHECKING:
    from cohort.model.sharding import Shards

WEIGHTS, MOMENTS = "weights/", "moments/"
"""Prefixes of the tensors in a checkpoint."""


def value_loss(values_M: Tensor, old_values_M: Tensor, returns_M: Tensor, clip: float) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2), the pessimistic bound; 0.5 (V - R)^2 with clip 0."""
    plain_M = (values_M - returns_M) ** 2
    if not clip:
        return 0.5 * plain_M
    return 0.5 * torch.maximum(plain_M, (_clipped(values_M, old_values_M, clip) - returns_M) ** 2)


def find_clipped(values_M: Tensor, old_values_M: Tensor, returns_M: Tensor, clip: float) -> Tensor:
    """Tokens that get no gradient because of the clip: they already moved towards their return by more than it allows."""
    if not clip:
        return torch.zeros_like(values_M, dtype=torch.bool)
    return (_clipped(values_M, old_values_M, clip) - returns_M).abs() > (values_M - returns_M).abs()


def explained_variance(values_M: Tensor, returns_M: Tensor) -> float | None:
    """1 - Var(R - V) / Var(R): 1 is perfect, 0 no better than a constant, below 0 worse. None if all returns are equal."""
    if not len(returns_M) or bool((returns_M == returns_M[0]).all()):
        return None
    residual = (returns_M.double() - values_M.double()).var(correction=0)
    return float(1.0 - residual / returns_M.double().var(correction=0))


def _clipped(values_M: Tensor, old_values_M: Tensor, clip: float) -> Tensor:
    return torch.clamp(values_M, old_values_M - clip, old_values_M + clip)


class ScalarModel:
    """A backbone with a linear head of one output and float32 masters: a critic or a reward model. Always in eval mode."""

    weights: MasterWeights
    """Set by the subclass, once nothing reads the loaded parameters any more."""

    def __init__(self, model: Any, backbone: Any, head: nn.Linear, own_attention: bool, checkpointing: bool):
        """own_attention: whether the architecture is proven to run on our attention (model/backbone.py)."""
        self.model, self.head = model.eval(), head
        self.attention_configs = attention_configs(model) if own_attention else []
        self.backbone = ModuleBackbone(backbone, self.attention_configs, checkpointing)
        self.device = head.weight.device
        self.shards: Shards | None = None
        """Set if the model is sharded over the ranks."""

    def make_weights(self, compute_dtype: torch.dtype, adding: Adding | None) -> MasterWeights:
        if adding is None or adding.sharding is None:
            return MasterWeights(self.model, compute_dtype, adding)
        from cohort.model.sharding import ShardedWeights, Shards

        # clone: writing to a view of the result would drop the hook that FSDP puts on it.
        self.shards = Shards(adding.sharding, self.model, self.backbone.backbone, lambda *args: self.compute(*args).clone())
        return ShardedWeights(self.shards, adding)

    def collect_weights(self) -> dict[str, Tensor]:
        """The whole weights of a sharded model, on the main process; otherwise nothing, since the model has them."""
        if not self.shards:
            return {}
        return self.shards.collect({name: self.shards.read_slice(name) for name in self.shards.parameters})

    def read_values(self, layout: Layout, selection: Selection) -> Tensor:
        """One number for each selected token of a layout."""
        return self.compute(layout, selection) if self.shards is None else self.shards(layout, selection)

    def compute(self, layout: Layout, selection: Selection) -> Tensor:
        return self.read_head(take(self.backbone(layout), selection))

    def read_head(self, hidden_MH: Tensor) -> Tensor:
        """One number for each hidden state, in float32 or higher: in bfloat16, neighbouring numbers near 4 differ by 1/64."""
        dtype = torch.promote_types(hidden_MH.dtype, torch.float32)
        weight, bias = self.head.weight.to(dtype), self.head.bias.to(dtype) if self.head.bias is not None else None
        return run_steadily(lambda rows_MH: F.linear(rows_MH, weight, bias), hidden_MH.to(dtype))[:, 0]


class Critic(ScalarModel):
    """The value function, its optimizer, and its measurements since the last update."""

    def __init__(
        self,
        policy: Policy,
        config: CriticConfig,
        optimizer: OptimizerConfig,
        compute_dtype: torch.dtype,
        total_updates: int,
        adding: Adding | None = None,
    ):
        # The copied modules share one copied config, so changing it changes the attention of all of them.
        backbone = policy.copy_backbone()
        projection: Any = policy.split.projection
        head = nn.Linear(projection.weight.shape[1], 1, bias=False, device=policy.device, dtype=policy.model.dtype)
        nn.init.zeros_(head.weight)
        model = nn.ModuleDict({"backbone": backbone, "head": head})
        # The copy has the policy's code and shapes, so it runs on our attention exactly if the policy does.
        super().__init__(model, backbone, head, bool(policy.attention_configs), policy.checkpointing)
        self.config = config
        self.share_prompts = can_share_prompts(policy.model, self.attention_configs)
        own = optimizer.model_copy(update={"learning_rate": config.learning_rate})
        self.weights = self.make_weights(compute_dtype, adding)
        self.optimizer = Optimizer(self.weights, own, total_updates)
        self.world = policy.world
        self._measured: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []
        """Place, loss, clipped tokens, values and returns of each micro-batch since the last update."""

    @torch.no_grad()
    def values(self, examples: Sequence[Example], micro_batch_tokens: int, layouts: Layouts | None = None) -> list[Tensor]:
        """V before each completion token (0 where the loss mask is False), without gradients, on the CPU."""
        dtype = torch.promote_types(self.head.weight.dtype, torch.float32)

        def values(micro: MicroBatch) -> Tensor:
            micro = micro.to(self.device)
            return self.read_values(micro.layout, micro.before)

        return score_tokens(
            examples, values, dtype, micro_batch_tokens, share_prompts=self.share_prompts, layouts=layouts, world=self.world
        )

    def backward(self, micro: MicroBatch) -> None:
        """Add the gradient of this micro-batch's weighted value loss to the critic's. The policy is not changed."""
        if micro.old_values_M is None or micro.returns_M is None:
            raise InvariantError("the critic needs old_values_T and returns_T on every example; GAE fills both.")
        values_M = self.read_values(micro.layout, micro.before)
        triple = (values_M, micro.old_values_M, micro.returns_M)
        loss = (value_loss(*triple, self.config.clip) * micro.loss_weights_M).sum()
        loss.backward()
        if micro.idle:
            return
        with torch.no_grad():
            clipped_M = find_clipped(*triple, self.config.clip)
            self._measured.append((micro.place, loss.detach().double(), clipped_M, values_M.detach(), micro.returns_M))

    def join(self) -> None:
        """Sum gradients and gather measurements of all ranks. Separate from `step`, so that a rank lost here changes no weights."""
        self.weights.join_gradients()
        if self.world.size > 1:
            mine = [(place, a.cpu(), b.cpu(), c.cpu(), d.cpu()) for place, a, b, c, d in self._measured]
            self._measured = sorted(self.world.gather(mine), key=lambda one: one[0])

    def step(self) -> dict[str, float]:
        """One update from the joined gradients. Returns the metrics since the last update."""
        report, measured = self.optimizer.clip_and_step(), self._measured
        row = {
            "critic/loss": float(sum(loss for _, loss, *_ in measured)),
            "critic/grad_norm": report.grad_norm if not report.skipped else 0.0,
            "critic/skipped": float(report.skipped),
        }
        if measured:
            clipped_M, values_M, returns_M = (torch.cat(column) for column in list(zip(*measured, strict=True))[2:])
            row["critic/value_mean"] = float(values_M.double().mean())
            row["critic/clipped_share"] = float(clipped_M.double().mean())
            explained = explained_variance(values_M, returns_M)
            if explained is not None:
                row["critic/explained_variance"] = explained
        self._measured = []
        return row

    def check_finite(self) -> None:
        """Called after the update is recorded, as for the policy's optimizer."""
        self.optimizer.check_finite("critic")

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and moments by name, and the counters: the complete state between updates."""
        moments, counters = self.optimizer.state()
        return add_prefix(self.weights.tensors(), WEIGHTS) | add_prefix(moments, MOMENTS), counters

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        try:
            self.weights.load(select_prefix(tensors, WEIGHTS))
        except CheckpointError as problem:
            raise CheckpointError(f"the critic in the checkpoint does not belong to this policy: {problem}") from problem
        self.optimizer.load_state(select_prefix(tensors, MOMENTS), document)


class NoCritic:
    """Stands in for the critic in every algorithm except PPO: nothing to value, nothing to train."""

    def values(self, examples: Sequence[Example], micro_batch_tokens: int, layouts: Layouts | None = None) -> list[Tensor]:
        raise InvariantError('there is no critic to compute values: only advantage = "gae" has one.')

    def backward(self, micro: MicroBatch) -> None:
        pass

    def join(self) -> None:
        pass

    def step(self) -> dict[str, float]:
        return {}

    def check_finite(self) -> None:
        pass


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose names start with `prefix`, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def add_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}
