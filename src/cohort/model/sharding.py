"""A model sharded over ranks (FSDP2): each rank holds a slice of every parameter, its gradient and its moments.

Differences from calling `fully_shard` on a model and training it:

- the root is our own module around the computation (`Root`), since hooks only run on calls and nothing here calls the whole
  model. Inside that call every tensor of the root is whole, so tied embeddings work, and the head computes log-probs in chunks with
  its own backward, as without sharding: there is never a tensor of tokens x vocabulary;
- gradients are summed, not averaged, because token weights include the denominators of the whole batch. With exact sums, each
  turn is reduced in float64 and added to a float64 shard: 8 bytes per trained parameter over all ranks together;
- slices are of the float32 masters; whole layers are in the compute dtype and exist only while they are used;
- a policy also keeps a plain tree of modules (`PolicyShards`). Its parameters are empty while the model is trained, and whole, in the
  compute dtype, while other code reads them: the engine with its own kernels, an export, a digest, a copy. This needs one gather
  per phase and no hooks during decoding, unlike layers that are gathered and freed under an engine.

All ranks call everything here together and equally often. Imported only for parallel.shard = "full".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from cohort.base.text import write_count
from cohort.base.world import ALONE, World
from cohort.errors import CheckpointError, ModelError
from cohort.model import four_bit, lora
from cohort.model.backbone import ModuleBackbone, list_layers
from cohort.model.optim import Adding, MasterWeights, refuse_other_shapes
from cohort.model.packing import MicroBatch
from cohort.model.policy import Policy, score_trained_tokens
from cohort.ops.attention import attention_configs
from cohort.ops.logprobs import LOW_PRECISION

STEP = "|step"
"""Suffix of AdamW's step count, the only moment that is a number and not a tensor of the parameter's shape."""
LARGE = 1 << 30
"""Bytes of weights and moments, in float32, above which every rank writes its own slices to a checkpoint."""
LANES = 16
"""Maximum number of floats in a CPU vector."""


class Root(nn.Module):
    """The module whose call triggers the hooks: a model, and the computation that needs its whole tensors."""

    def __init__(self, model: nn.Module, compute: Callable[..., Any]):
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, *args: Any) -> Any:
        return self.compute(*args)


class Sharding:
    """How the models of a run are sharded."""

    def __init__(
        self, mesh: DeviceMesh, compute_dtype: torch.dtype, *, exact: bool, offload: bool = False, world: World = ALONE
    ):
        """world: the ranks of the mesh."""
        self.mesh, self.compute_dtype, self.exact, self.offload, self.world = mesh, compute_dtype, exact, offload, world
        self.size, self.rank = int(mesh.size()), int(mesh.get_local_rank())

    def split(self, root: Root, backbone: Any) -> list[Any]:
        """Replace every parameter by this rank's slice. Returns the units that are gathered together, the root last."""
        if any(four_bit.is_four_bit(parameter) for parameter in root.parameters()):
            raise ModelError('parallel.shard: a 4-bit base cannot be sharded. Set model.lora.base_dtype = "auto".')
        low = self.compute_dtype if self.compute_dtype in LOW_PRECISION else None
        options: dict[str, Any] = {
            "mesh": self.mesh,
            # Inputs of a layer keep the dtype that they have in the plain model.
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=low, reduce_dtype=torch.float64 if self.exact else torch.float32, cast_forward_inputs=False
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.mesh.device_type != "cpu") if self.offload else OffloadPolicy(),
        }
        units = [*list_layers(backbone, "parallel.shard"), *list_own_embedding(root, backbone)]
        for unit in units:
            fully_shard(unit, reshard_after_forward=True, **options)
        # The root stays whole between forward and backward, because the backward starts with the head.
        fully_shard(root, reshard_after_forward=False, **options)
        return [*units, root]


def list_own_embedding(model: nn.Module, backbone: Any) -> list[nn.Module]:
    """The embedding as a separate unit, unless the head shares it: one buffer for both would be the largest of all."""
    embedding = backbone.get_input_embeddings()
    owners = [module for module in model.modules() for value in module.parameters(recurse=False) if value is embedding.weight]
    return [embedding] if len(owners) == 1 else []


class Shards:
    """A sharded model: this rank's slices by name, and a call that computes with the whole parameters."""

    def __init__(self, sharding: Sharding, model: Any, backbone: Any, compute: Callable[..., Any]):
        """compute: called through this object, with the parameters of `model` whole."""
        self.sharding = sharding
        for value in model.parameters():
            if value.is_floating_point() and sharding.compute_dtype in LOW_PRECISION:
                value.data = value.data.to(torch.float32 if value.requires_grad else sharding.compute_dtype)
        self.root: Any = Root(model, compute)
        self.units = sharding.split(self.root, backbone)
        self.parameters: dict[str, Any] = dict(model.named_parameters())
        """The slices as FSDP's tensors. The modules only have them while nothing is gathered."""
        self.before_use: list[Callable[[], None]] = []
        """Called before each computation, to free gathered copies."""
        self.sums: dict[int, Tensor] = {}
        """Unit -> this rank's shard of the float64 sum of its gradients since the last update; only with exact sums."""
        for number, unit in enumerate(self.units):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            if sharding.exact:
                own = [value for value in self._list_of(unit) if value.requires_grad]
                unit.set_all_reduce_hook(self._make_hook(number, own))

    def _list_of(self, unit: nn.Module) -> list[Any]:
        others = [module for module in unit.modules() if module is not unit and module in self.units]
        inner = {id(value) for other in others for value in other.parameters()}
        return [value for value in unit.parameters() if id(value) not in inner]

    def _make_hook(self, number: int, parameters: list[Any]) -> Callable[[Tensor], None]:
        """A hook between the reduction of a turn and its rounding: it replaces the turn's gradient by the sum since the last update.

        Each gradient is then rounded once, for any number of turns and ranks.
        """

        def add_turn(reduced: Tensor) -> None:
            total = self.sums.get(number)
            if total is None:
                self.sums[number] = reduced.to(parameters[0].to_local().device, copy=True)
            else:
                total += reduced.to(total.device)
                reduced.copy_(total)
            for parameter in parameters:
                parameter.grad = None

        return add_turn

    def __call__(self, *args: Any) -> Any:
        for free in self.before_use:
            free()
        result = self.root(*args)
        if not torch.is_grad_enabled():
            self.root.reshard()  # as a backward does; a root that stays whole would not see the next update
        return result

    # -- slices and whole tensors --------------------------------------------------------------------------------------

    def read_slice(self, name: str) -> Tensor:
        """This rank's slice of a parameter, not a copy."""
        local: Tensor = self.parameters[name].detach().to_local()
        return local

    def gather(self, name: str, own: Tensor) -> Tensor:
        """A whole tensor from the slices of all ranks, sliced like the parameter; on every rank, on its device."""
        if self.sharding.world.lost:
            raise CheckpointError("a rank was lost, so its slices cannot be gathered; the previous checkpoint is kept")
        whole: Tensor = self.mark(name, own.to(self.sharding.mesh.device_type)).full_tensor()
        return whole

    def mark(self, name: str, own: Tensor) -> Any:
        """A slice as a DTensor, which knows the whole tensor's shape."""
        like = self.parameters[name]
        return DTensor.from_local(
            own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This rank's slice of a whole tensor; a view."""
        like = self.read_slice(name)
        parts = whole.chunk(self.sharding.size, dim=0)
        rank = self.sharding.rank
        return parts[rank] if rank < len(parts) else whole[:0].reshape(like.shape)

    def gather_each(self, names: Iterable[str], dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters, one after the other, without a second model in memory."""
        for name in names:
            own = self.read_slice(name)
            yield name, self.gather(name, own.to(dtype) if dtype else own)

    @property
    def is_large(self) -> bool:
        """Whether the trained weights and moments are too large for one rank to write."""
        return 12 * sum(value.numel() for value in self.parameters.values() if value.requires_grad) > LARGE

    @torch.no_grad()
    def gather_tensors(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a checkpoint from slices by name or name|kind: whole ones, or DTensors of the slices for a large model."""
        if self.is_large:
            return {key: own if key.endswith(STEP) else self.mark(key.partition("|")[0], own) for key, own in slices.items()}
        return self.collect(slices)

    @torch.no_grad()
    def collect(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors in host memory, on the first rank only, which writes them."""
        whole = {}
        for key, own in slices.items():
            one = own if key.endswith(STEP) else self.gather(key.partition("|")[0], own)
            if self.sharding.rank == 0:
                whole[key] = one.cpu()
        return whole

    def take_slices(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's slices of whole tensors, by the same names."""
        own = {}
        for key, whole in tensors.items():
            name = key.partition("|")[0]
            own[key] = whole if key.endswith(STEP) or name not in self.parameters else self.cut(name, whole).clone()
        return own

    def reduce(self, value: Tensor, operation: Any) -> Tensor:
        """Combine a value of every rank with this dist.ReduceOp."""
        value = value.to(self.sharding.mesh.device_type)
        dist.all_reduce(value, operation, group=self.sharding.mesh.get_group())
        return value


class PolicyShards(Shards):
    """A sharded policy: the trained tree, and the plain tree of `policy.model`.

    The trained tree takes over the parameters without a copy. The plain tree is filled with NaN, which exposes code that reads it
    without `gather_weights`.
    """

    def __init__(self, policy: Policy, sharding: Sharding):
        self.policy, self.gathered = policy, True
        self.plain: dict[str, nn.Parameter] = dict(policy.model.named_parameters())
        taken = {id(value): nn.Parameter(value.data, requires_grad=value.requires_grad) for value in self.plain.values()}
        trained = copy.deepcopy(policy.model, taken)
        if policy.adapter:
            lora.switch_adapters(trained, True)  # a rank holds only slices, so it cannot check whether an adapter is all zero
        places = {id(module): name for name, module in policy.model.named_modules()}
        backbone, projection = (
            trained.get_submodule(places[id(part)]) for part in (policy.split.backbone, policy.split.projection)
        )
        self.split = replace(policy.split, backbone=backbone, projection=projection)
        self.attention_configs = attention_configs(trained) if policy.attention_configs else []
        self.backbone = ModuleBackbone(backbone, self.attention_configs, policy.checkpointing)
        self.dtype = sharding.compute_dtype
        self.free_gathered()
        super().__init__(sharding, trained, backbone, self.compute)
        self.before_use.append(self.free_gathered)
        policy.shards = self

    def compute(self, micro: MicroBatch, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        return score_trained_tokens(self.backbone, self.split, micro, temperature, entropy_gradient)

    def prepare(self, checkpointing: bool) -> str:
        self.backbone = ModuleBackbone(self.split.backbone, self.attention_configs, checkpointing)
        return f"training with the modules of transformers, sharded over {write_count(self.sharding.size, 'rank')}"

    def gather_weights(self) -> None:
        """Gather the plain tree in the compute dtype, unless it is whole already."""
        if self.gathered:
            return
        self.gathered = True
        for name, whole in self.gather_each(self.plain, self.dtype):
            self.plain[name].data = whole

    def free_gathered(self) -> None:
        if self.gathered:
            self.gathered = False
            for value in self.plain.values():
                value.data = torch.full((), torch.nan, dtype=self.dtype, device=value.device).expand(value.shape)


class ShardedWeights(MasterWeights):
    """MasterWeights as this rank's slices for the optimizer, and as whole tensors by name for a checkpoint.

    On a CPU, the last elements of a tensor that do not fill a vector are updated by other instructions, which give other last bits. A
    slice that ends inside a matrix is therefore updated in a copy that is padded to whole vectors.
    """

    def __init__(self, shards: Shards, adding: Adding | None = None):
        self.shards, self.adding = shards, adding or Adding(shards.sharding.exact)
        self.parameters: dict[str, Any] = {name: value for name, value in shards.parameters.items() if value.requires_grad}
        self.masters = {name: pad_slice(shards.read_slice(name)) for name in self.parameters}

    @torch.no_grad()
    def join_gradients(self) -> None:
        """Attach the gradients, which are already summed over the ranks, to the slices."""
        for name, parameter in self.parameters.items():
            master, own = self.masters[name], self.shards.read_slice(name)
            if master.shape == own.shape:
                master.data = own  # FSDP may have moved it at its first forward
            master.grad = None if parameter.grad is None else pad_slice(parameter.grad.to_local())

    @torch.no_grad()
    def copy_back(self) -> None:
        for name, master in self.masters.items():
            own = self.shards.read_slice(name)
            if master.shape != own.shape:
                own.copy_(cut_padding(master, own))

    def measure_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of the whole gradient in float64, the same on every rank. If no group had signal, no rank has a gradient."""
        if not gradients:
            return torch.zeros(())
        squares = [norm.square() for norm in torch._foreach_norm(gradients, 2.0, dtype=torch.float64)]
        return self.shards.reduce(torch.stack(squares).sum(), dist.ReduceOp.SUM).sqrt()

    def measure_change(self, probe: Tensor) -> float:
        largest = (self.probe() - probe).abs().max() if len(probe) else torch.zeros(())
        return float(self.shards.reduce(largest.double(), dist.ReduceOp.MAX))

    def tensors(self) -> dict[str, Tensor]:
        return self.shards.gather_tensors({name: self.shards.read_slice(name) for name in self.masters})

    def gather_tensors(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = {key: self.shards.read_slice(key.partition("|")[0]) for key in slices}
        return self.shards.gather_tensors(
            {key: value if key.endswith(STEP) else cut_padding(value, own[key]) for key, value in slices.items()}
        )

    def take_slices(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = self.shards.take_slices(tensors)
        return {key: value if key.endswith(STEP) else pad_slice(value) for key, value in own.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        refuse_other_shapes(self.parameters, tensors)
        for name, own in self.shards.take_slices(tensors).items():
            self.shards.read_slice(name).copy_(own)
            self.masters[name].copy_(pad_slice(own))
        for free in self.shards.before_use:
            free()

    @torch.no_grad()
    def restore_masters(self, held: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            master.copy_(held[name])
            self.shards.read_slice(name).copy_(cut_padding(master, self.shards.read_slice(name)))

    def drop_gradients(self) -> None:
        self.shards.sums.clear()
        for value in [*self.masters.values(), *self.parameters.values()]:
            value.grad = None


def pad_slice(own: Tensor) -> Tensor:
    """The slice itself if it fills whole vectors; otherwise a copy padded with zeros, which AdamW leaves at zero."""
    missing = -own.numel() % LANES
    if not missing:
        return own
    padded = F.pad(own.flatten(), (0, missing))
    return padded if own.dim() < 2 else padded[None]  # matrices decay, vectors do not


def cut_padding(padded: Tensor, own: Tensor) -> Tensor:
    return padded if padded.shape == own.shape else padded.flatten()[: own.numel()].view(own.shape)
