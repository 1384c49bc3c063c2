"""AdamW on float32 master weights, a schedule without state, clipping, and a guard against non-finite gradients.

The module holds its parameters in the compute dtype. If that is float32, the parameters are the masters. If it is
bfloat16, the masters are kept here: the gradients of all micro-batches are summed in float32, the step is taken in float32,
and the result is copied back. (AdamW in pure bfloat16 with a learning rate of 1e-6 changes nothing.)

With exact sums, the gradients of micro-batches and the norm are summed in float64 and rounded once. A gradient has 24 bits and a sum
53, so the result does not depend on the order of the sum, nor on the number of ranks that share the micro-batches. It can only
differ if micro-batches differ by more than 2^26 in an element and their sum is within 2^-53 of the middle between two floats.

An update reads one number back from the device, the norm of the gradient; everything else is queued.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cohort.base.interrupts import defer_interrupts
from cohort.base.world import ALONE, World
from cohort.errors import CheckpointError, InvariantError
from cohort.ops.adam8 import SMALLEST, Adam8
from cohort.recipe.schema import OptimizerConfig

if TYPE_CHECKING:
    from cohort.model.sharding import Sharding

MAX_SKIPPED_IN_A_ROW = 3
PROBED_ELEMENTS = 4096


@dataclass(frozen=True)
class StepReport:
    learning_rate: float
    grad_norm: float
    clipped: bool
    skipped: bool


def find_learning_rate(update: int, total: int, config: OptimizerConfig) -> float:
    """Learning rate of update number `update` (from 0), as a pure function: the schedule has no state to save."""
    if update < config.warmup_steps:
        return config.learning_rate * (update + 1) / config.warmup_steps
    progress = min(1.0, (update - config.warmup_steps) / max(1, total - config.warmup_steps))
    if config.schedule == "linear":
        share = 1.0 - progress
    elif config.schedule == "cosine":
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        return config.learning_rate
    return config.learning_rate * (config.final_share + (1.0 - config.final_share) * share)


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the parameters only: `model.to(dtype)` would also round buffers such as rotary frequencies, which stay in float32."""
    for parameter in model.parameters():
        if parameter.is_floating_point():  # not the codes of a 4-bit base
            parameter.data = parameter.data.to(dtype)


@dataclass(frozen=True)
class Adding:
    """How the gradients of micro-batches are summed: over which processes, in float64 (`exact`) or in float32."""

    exact: bool = False
    world: World = ALONE
    sharding: Sharding | None = None
    """How the ranks shard models, if they do."""


class MasterWeights:
    """The float32 master of each trained parameter: the parameter itself if it is in float32."""

    def __init__(self, model: nn.Module, compute_dtype: torch.dtype, adding: Adding | None = None):
        self.adding = adding or Adding()
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.masters: dict[str, Tensor] = dict(self.parameters)
        self.sums: dict[str, Tensor] = {}
        """Float64 sums of the gradients since the last update, for exact sums."""
        self.joined = False
        """Whether the masters already have the gradient of all ranks."""
        if compute_dtype in (torch.bfloat16, torch.float16):
            # The cast gives each parameter a new tensor, so the loaded float32 tensor becomes the master without a copy.
            self.masters = {name: value.detach().float() for name, value in self.parameters.items()}
            cast_parameters(model, compute_dtype)
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is not parameter and parameter.data_ptr() == master.data_ptr():
                raise InvariantError(f"{name}: the parameter and its float32 master share memory")
            if self.adding.exact or master is not parameter:
                parameter.register_post_accumulate_grad_hook(self._make_hook(name))

    def _make_hook(self, name: str) -> Any:
        """A hook that moves a gradient to its float64 sum, or to its master."""

        def add(parameter: Tensor) -> None:
            assert parameter.grad is not None
            total = self.sums.get(name) if self.adding.exact else self.masters[name].grad
            if total is not None:
                total.add_(parameter.grad)  # converts element by element, without a wider copy of the gradient
            elif self.adding.exact:
                self.sums[name] = parameter.grad.double()
            else:
                self.masters[name].grad = parameter.grad.float()
            parameter.grad = None

        return add

    @torch.no_grad()
    def join_gradients(self) -> None:
        """Sum the gradient of every master over all micro-batches and ranks; exact sums are rounded once."""
        if self.joined:
            return
        exact, world = self.adding.exact, self.adding.world
        summed = self.sums if exact else {name: value.grad for name, value in self.masters.items() if value.grad is not None}
        if world.size > 1:
            # A rank that has no gradient for a parameter contributes zeros. If no rank has one, there is none, as in one process.
            reached = set(world.gather(sorted(summed)))
            for name, master in self.masters.items():
                if name in reached and name not in summed:
                    summed[name] = torch.zeros_like(master, dtype=torch.float64 if exact else None, requires_grad=False)
            world.add_up(summed[name] for name in self.masters if name in reached)
        for name in [*summed]:  # free each sum after rounding it: 8 bytes per parameter at the peak, not 12
            self.masters[name].grad = summed.pop(name).to(self.masters[name].dtype)
        self.joined = True

    @torch.no_grad()
    def copy_back(self) -> None:
        apart = [
            (self.parameters[name], master) for name, master in self.masters.items() if master is not self.parameters[name]
        ]
        if apart:
            torch._foreach_copy_([parameter for parameter, _ in apart], [master for _, master in apart])

    def probe(self) -> Tensor:
        """A copy of the first values of each master: enough to see whether an update changed anything."""
        return torch.cat([master.detach().flatten()[:PROBED_ELEMENTS] for master in self.masters.values()])

    def measure_change(self, probe: Tensor) -> float:
        """Largest |change| of any probed element."""
        return float((self.probe() - probe).abs().max())

    def measure_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients together. Exact sums use float64, so that the order of the sum leaves no trace."""
        if not gradients:
            return torch.zeros(())
        if self.adding.exact:
            return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0, dtype=torch.float64)))
        return torch.nn.utils.get_total_norm(gradients)

    def copy_masters(self) -> dict[str, Tensor]:
        """A copy of the masters in host memory."""
        return {name: master.detach().to("cpu", copy=True) for name, master in self.masters.items()}

    @torch.no_grad()
    def restore_masters(self, held: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            master.copy_(held[name])
        self.copy_back()

    def gather_tensors(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors from this process's slices, by name or name|kind; here they are whole already."""
        return dict(held)

    def take_slices(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This process's slices of whole tensors."""
        return dict(whole)

    def tensors(self) -> dict[str, Tensor]:
        return {name: master.detach() for name, master in self.masters.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        refuse_other_shapes(self.masters, tensors)
        for name, master in self.masters.items():
            master.copy_(tensors[name])
        self.copy_back()

    def drop_gradients(self) -> None:
        self.sums, self.joined = {}, False
        for value in [*self.masters.values(), *self.parameters.values()]:
            value.grad = None


def refuse_other_shapes(ours: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for weights of another model; copy_ would silently broadcast some of them."""
    shapes = {
        name: [tuple(one[name].shape) if name in one else "missing" for one in (saved, ours)] for name in {**ours, **saved}
    }
    for name, (there, here) in shapes.items():
        if there != here:
            raise CheckpointError(
                f"the checkpoint belongs to another model: {name} is {there} in the checkpoint and {here} in the model of the recipe "
                "(model.source, [model.scratch]). Restore the model that the run was started with, or start a new run."
            )


class Adam32:
    """torch's fused AdamW; matrices decay, vectors do not."""

    def __init__(self, masters: Mapping[str, Tensor], config: OptimizerConfig):
        self.masters = dict(masters)
        groups = [
            {"params": [master for master in masters.values() if master.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [master for master in masters.values() if master.dim() < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )

    def step(self, rate: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()

    def state(self) -> dict[str, Tensor]:
        tensors = {}
        for name, master in self.masters.items():
            for kind, value in self.adamw.state.get(master, {}).items():
                tensors[f"{name}|{kind}"] = value if value.dim() else value.reshape(1)
        return tensors

    def load(self, name: str, parts: Mapping[str, Tensor]) -> None:
        if set(parts) != {"step", "exp_avg", "exp_avg_sq"}:
            raise CheckpointError(
                f"the checkpoint has no float32 moments for {name} but {', '.join(sorted(parts))}: it was written with "
                "another optimizer.state_bits. Resume with the value that the run was started with."
            )
        master = self.masters[name]
        for kind, value in parts.items():
            value = value.to(master.device)
            self.adamw.state[master][kind] = value.reshape(()) if kind == "step" else value.reshape(master.shape)


def make_moments(masters: Mapping[str, Tensor], config: OptimizerConfig) -> list[Adam32 | Adam8]:
    """AdamW over the masters. With optimizer.state_bits = 8, large ones have 8-bit moments; all others have float32 moments."""
    large = {}
    if config.state_bits == 8:
        large = {name: master for name, master in masters.items() if master.numel() >= SMALLEST and master.is_contiguous()}
    small = {name: master for name, master in masters.items() if name not in large}
    moments: list[Adam32 | Adam8] = [Adam32(small, config)] if small else []
    return [*moments, Adam8(large, config)] if large else moments


class Optimizer:
    def __init__(self, weights: MasterWeights, config: OptimizerConfig, total_updates: int):
        self.weights = weights
        self.config = config
        self.total_updates = total_updates
        self.updates = 0
        """Attempted updates. Skipped ones count, so that the schedule does not depend on them."""
        self.skipped_in_a_row = 0
        self.moments = make_moments(weights.masters, config)

    def clip_and_step(self, tokens_counted: bool = False) -> StepReport:
        """Take one step with the accumulated gradients. A non-finite gradient changes no weight and is counted.

        tokens_counted: whether any token counted in the loss. If so and there is no gradient (no token had an advantage), the gradient is
        zero, and momentum and weight decay act as if the tokens had been forwarded. If no token counted, nothing changes.
        """
        with defer_interrupts():
            self.weights.join_gradients()
            if tokens_counted and all(master.grad is None for master in self.weights.masters.values()):
                for master in self.weights.masters.values():
                    master.grad = torch.zeros_like(master, requires_grad=False)
            masters = [master for master in self.weights.masters.values() if master.grad is not None]
            gradients = [master.grad for master in masters if master.grad is not None]
            norm = self.weights.measure_norm(gradients)
            grad_norm = float(norm)  # the only wait for the device
            rate = find_learning_rate(self.updates, self.total_updates, self.config)
            skipped = not math.isfinite(grad_norm)
            clipped = not skipped and 0 < self.config.max_grad_norm < grad_norm
            if clipped:
                torch.nn.utils.clip_grads_with_norm_(masters, self.config.max_grad_norm, norm)
            if gradients and not skipped:
                for moments in self.moments:
                    moments.step(rate)
                self.weights.copy_back()
            self.weights.drop_gradients()
            self.updates += 1
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        return StepReport(rate, grad_norm, clipped, skipped)

    def check_finite(self, section: str = "optimizer") -> None:
        """Raise InvariantError after three skipped updates in a row. Called after the update is recorded.

        section: the section of the recipe with its learning rate.
        """
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            whose = "" if section == "optimizer" else f" of the {section.replace('_', ' ')}"
            raise InvariantError(
                f"{MAX_SKIPPED_IN_A_ROW} updates{whose} in a row had a non-finite gradient; the weights have not changed since. "
                f"Lower {section}.learning_rate or the temperature, or check the last rollouts for broken rewards."
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The moments by parameter name, and the counters."""
        tensors = {name: tensor for moments in self.moments for name, tensor in moments.state().items()}
        return self.weights.gather_tensors(tensors), {"updates": self.updates, "skipped_in_a_row": self.skipped_in_a_row}

    def load_state(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in self.weights.take_slices(tensors).items():
            name, _, kind = key.rpartition("|")
            parts.setdefault(name, {})[kind] = value
        owners = {name: moments for moments in self.moments for name in moments.masters}
        for name, own in parts.items():
            if name not in owners:
                raise CheckpointError(f"the checkpoint has moments of {name}, which is not a trained parameter of this model.")
            owners[name].load(name, own)
        self.updates, self.skipped_in_a_row = counters["updates"], counters["skipped_in_a_row"]
