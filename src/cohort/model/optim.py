"""AdamW on float32 master weights, a schedule without state, clipping, and a guard against non-finite gradients.

The module holds its parameters in the compute dtype. Where that is float32 the parameters are the masters. Where it is
bfloat16 the masters live here: gradients of every micro-batch are added up in float32, the step is taken in float32,
and the result is copied back. (AdamW in pure bfloat16 at a learning rate of 1e-6 moves nothing at all.)

With exact sums the gradients of micro-batches are added in float64 and rounded once, and so is the norm. A gradient has 24 bits
and a sum 53, so that the order of adding, and with it the number of ranks the micro-batches were dealt out to, leaves no trace: a
sum can only come out differently where micro-batches differ by more than 2^26 in an element and their sum then lies within 2^-53
of the middle between two floats.

An update reads one number back from the device, the norm of the gradient: everything else is queued behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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
    """Learning rate of update number `update` (from 0): a pure function, so nothing of it needs saving."""
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
    """Parameters alone: `model.to(dtype)` would also round buffers such as rotary frequencies, which the loaded export has in float32."""
    for parameter in model.parameters():
        if parameter.is_floating_point():  # the codes of a base in 4 bits are no numbers
            parameter.data = parameter.data.to(dtype)


@dataclass(frozen=True)
class Adding:
    """How gradients of micro-batches become one: of this process or of many, in float64 (`exact`) or in float32."""

    exact: bool = False
    world: World = ALONE
    sharding: Sharding | None = None
    """How the ranks share models out, where they do."""


class MasterWeights:
    """The float32 truth behind each trained parameter: the parameter itself where it is computed in float32 already."""

    def __init__(self, model: nn.Module, compute_dtype: torch.dtype, adding: Adding | None = None):
        self.adding = adding or Adding()
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.masters: dict[str, Tensor] = dict(self.parameters)
        self.sums: dict[str, Tensor] = {}
        """Gradients of the micro-batches so far in float64, where they are added exactly."""
        self.joined = False
        """Whether the masters hold the gradient of all ranks already."""
        if compute_dtype in (torch.bfloat16, torch.float16):
            # The cast gives each parameter a tensor of its own, so the one loaded in float32 becomes the master, uncopied.
            self.masters = {name: value.detach().float() for name, value in self.parameters.items()}
            cast_parameters(model, compute_dtype)
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is not parameter and parameter.data_ptr() == master.data_ptr():
                raise InvariantError(f"{name}: the parameter and its float32 master share one memory")
            if self.adding.exact:
                parameter.register_post_accumulate_grad_hook(self._add_to_sum(name))
            elif master is not parameter:
                parameter.register_post_accumulate_grad_hook(_add_to_master(master))

    def _add_to_sum(self, name: str) -> Any:
        def add(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if name in self.sums:  # add_ widens each element on its way: no float64 copy of the gradient is made
                self.sums[name].add_(parameter.grad)
            else:
                self.sums[name] = parameter.grad.double()
            parameter.grad = None

        return add

    @torch.no_grad()
    def join_gradients(self) -> None:
        """The gradient of every master over all micro-batches of all ranks, rounded once where sums are exact."""
        if self.joined:
            return
        exact, world = self.adding.exact, self.adding.world
        summed = self.sums if exact else {name: value.grad for name, value in self.masters.items() if value.grad is not None}
        if world.size > 1:
            # A rank without a micro-batch that reaches a parameter brings zeros; one that no rank reaches has no gradient, as alone.
            reached = set(world.gather(sorted(summed)))
            for name, master in self.masters.items():
                if name in reached and name not in summed:
                    summed[name] = torch.zeros_like(master, dtype=torch.float64 if exact else None, requires_grad=False)
            world.add_up(summed[name] for name in self.masters if name in reached)
        for name in [*summed]:  # each sum goes as it is rounded: 8 bytes a parameter at the peak, not 12
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
        """A copy of the beginning of each master: enough to see whether an update moved anything, at no cost in memory."""
        return torch.cat([master.detach().flatten()[:PROBED_ELEMENTS] for master in self.masters.values()])

    def measure_change(self, probe: Tensor) -> float:
        """Largest |change| of any probed element."""
        return float((self.probe() - probe).abs().max())

    def measure_norm(self, gradients: list[Tensor]) -> Tensor:
        return measure_norm(gradients, self.adding.exact)

    def copy_held(self) -> dict[str, Tensor]:
        """The masters as they are now, in the memory of the host."""
        return {name: master.detach().to("cpu", copy=True) for name, master in self.masters.items()}

    @torch.no_grad()
    def put_back(self, held: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            master.copy_(held[name])
        self.copy_back()

    def make_whole(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What belongs to masters that this process holds, as it belongs to all of them; by name or name|kind."""
        return dict(held)

    def take_own(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The other way round."""
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
    """Weights of another model cannot be gone on with; some would even be copied, stretched to the shape that is here."""
    shapes = {
        name: [tuple(one[name].shape) if name in one else "missing" for one in (saved, ours)] for name in {**ours, **saved}
    }
    for name, (there, here) in shapes.items():
        if there != here:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} is {there} there, and {here} in the model that the recipe loads now "
                "(model.source, [model.scratch]). Restore the model that the run was started with, or start a new run."
            )


def _add_to_master(master: Tensor) -> Any:
    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:  # add_ widens each element on its way: no float32 copy of the gradient is made
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return add


def measure_norm(gradients: list[Tensor], exact: bool) -> Tensor:
    """Of all gradients together; exact: in float64, which leaves no trace of how the sum was cut up."""
    if not gradients:
        return torch.zeros(())
    if exact:
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0, dtype=torch.float64)))
    return torch.nn.utils.get_total_norm(gradients)


class Update(Protocol):
    """AdamW over some of the masters: takes their gradients, keeps their moments."""

    masters: dict[str, Tensor]

    def step(self, rate: float) -> None: ...

    def state(self) -> dict[str, Tensor]: ...

    def load(self, name: str, parts: Mapping[str, Tensor]) -> None: ...


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
                f"the checkpoint holds no float32 moments for {name} but {', '.join(sorted(parts))}: it was written with "
                "another optimizer.state_bits. Resume with the value the run was started with."
            )
        master = self.masters[name]
        for kind, value in parts.items():
            value = value.to(master.device)
            self.adamw.state[master][kind] = value.reshape(()) if kind == "step" else value.reshape(master.shape)


def make_updates(masters: Mapping[str, Tensor], config: OptimizerConfig) -> list[Update]:
    """One update for all masters, or two: large ones in 8 bits where the recipe says so, the rest in float32."""
    large = {}
    if config.state_bits == 8:
        large = {name: master for name, master in masters.items() if master.numel() >= SMALLEST and master.is_contiguous()}
    small = {name: master for name, master in masters.items() if name not in large}
    updates: list[Update] = [Adam32(small, config)] if small else []
    return [*updates, Adam8(large, config)] if large else updates


class Optimizer:
    def __init__(self, weights: MasterWeights, config: OptimizerConfig, total_updates: int):
        self.weights = weights
        self.config = config
        self.total_updates = total_updates
        self.updates = 0
        """Attempted updates; a skipped one counts, so that the schedule does not depend on luck."""
        self.skipped_in_a_row = 0
        self.moments = make_updates(weights.masters, config)

    def clip_and_step(self, tokens_counted: bool = False) -> StepReport:
        """One update from the accumulated gradients. A non-finite gradient changes nothing and is counted.

        If no gradient exists although tokens counted in the loss (none had an advantage), the gradient is zero: momentum and weight
        decay act, as they would had those tokens been forwarded. If no token counted, as when all are masked, nothing changes.
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
        """Called once the update is written down: three skipped in a row will not mend themselves. section: where its rate is set."""
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            whose = "" if section == "optimizer" else f" of the {section.replace('_', ' ')}"
            raise InvariantError(
                f"{MAX_SKIPPED_IN_A_ROW} updates{whose} in a row had a non-finite gradient; the weights are as before the first of "
                f"them. Lower {section}.learning_rate or the temperature, or look at the last rollouts for broken rewards."
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The moments by parameter name, and the counters."""
        tensors = {name: tensor for moments in self.moments for name, tensor in moments.state().items()}
        return self.weights.make_whole(tensors), {"updates": self.updates, "skipped_in_a_row": self.skipped_in_a_row}

    def load_state(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in self.weights.take_own(tensors).items():
            name, _, kind = key.rpartition("|")
            parts.setdefault(name, {})[kind] = value
        owners = {name: moments for moments in self.moments for name in moments.masters}
        for name, own in parts.items():
            if name not in owners:
                raise CheckpointError(
                    f"the checkpoint holds moments of {name}, which is not a trained parameter of this model."
                )
            owners[name].load(name, own)
        self.updates, self.skipped_in_a_row = counters["updates"], counters["skipped_in_a_row"]
