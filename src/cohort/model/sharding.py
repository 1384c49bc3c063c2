"""A model shared out over ranks (FSDP2): each holds a slice of every parameter, its gradient and its moments.

Four things differ from calling `fully_shard` on a model and training it:

- the root is a module of our own around whatever is computed (`Root`), since hooks fire on calls alone and nobody here calls a model
  as a whole. Inside that call every tensor of the root is whole, so tied embeddings need no care and log-probs are taken in chunks by
  the head's own backward, as without sharding: there is never a tensor of tokens x vocabulary;
- gradients are summed and never averaged, for the weights of tokens hold the denominators of the whole batch. Under exact sums each
  turn is reduced in float64 and added to a float64 share: 8 bytes a trained parameter over all ranks, and not on each;
- slices are of the float32 masters; whole layers appear in the compute dtype, for as long as they are computed with;
- a policy keeps a plain tree of modules beside the shared one (`PolicyShards`). Its parameters are empty while the model is trained,
  and whole, in the compute dtype, while somebody reads them: the engine with its own kernels, an export, a digest, a copy. Held
  against whole layers that come and go under an engine this needs one gather a phase and lets no hook into decoding.

All ranks call everything here together, and equally often. Imported only where parallel.shard = "full".
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
"""How the name of the one moment of AdamW ends that is a number and no tensor of a parameter's shape."""
LARGE = 1 << 30
"""Bytes of weights and moments, in float32, above which every rank writes its own slices into a checkpoint."""
LANES = 16
"""Floats that a CPU steps at once, at most."""


class Root(nn.Module):
    """The call that hooks see: a model, and what is computed with it while its tensors are whole."""

    def __init__(self, model: nn.Module, compute: Callable[..., Any]):
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, *args: Any) -> Any:
        return self.compute(*args)


class Sharding:
    """How the models of a run are shared out."""

    def __init__(
        self, mesh: DeviceMesh, compute_dtype: torch.dtype, *, exact: bool, offload: bool = False, world: World = ALONE
    ):
        """world: the ranks of the mesh, as the run knows them."""
        self.mesh, self.compute_dtype, self.exact, self.offload, self.world = mesh, compute_dtype, exact, offload, world

    @property
    def size(self) -> int:
        return int(self.mesh.size())

    @property
    def rank(self) -> int:
        return int(self.mesh.get_local_rank())

    def split(self, root: Root, backbone: Any) -> list[Any]:
        """Leave of every parameter this rank's slice; the units that become whole at a time, the root last."""
        if any(four_bit.is_four_bit(parameter) for parameter in root.parameters()):
            raise ModelError('parallel.shard: a base in 4 bits is not shared out. Set model.lora.base_dtype = "auto".')
        low = self.compute_dtype if self.compute_dtype in LOW_PRECISION else None
        options: dict[str, Any] = {
            "mesh": self.mesh,
            # What goes into a layer has the dtype in which the plain model would compute it, and keeps it.
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=low, reduce_dtype=torch.float64 if self.exact else torch.float32, cast_forward_inputs=False
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.mesh.device_type != "cpu") if self.offload else OffloadPolicy(),
        }
        units = [*list_layers(backbone, "parallel.shard"), *list_own_embedding(root, backbone)]
        for unit in units:
            fully_shard(unit, reshard_after_forward=True, **options)
        # The root stays whole between forward and backward: the head is what the backward begins with.
        fully_shard(root, reshard_after_forward=False, **options)
        return [*units, root]


def list_own_embedding(model: nn.Module, backbone: Any) -> list[nn.Module]:
    """The embedding as a unit of its own, where the head does not share it: one buffer for both would be the largest of all."""
    embedding = backbone.get_input_embeddings()
    owners = [module for module in model.modules() for value in module.parameters(recurse=False) if value is embedding.weight]
    return [embedding] if len(owners) == 1 else []


class Shards:
    """A model that was shared out: this rank's slices by name, and the way to compute with all of them."""

    def __init__(self, sharding: Sharding, model: Any, backbone: Any, compute: Callable[..., Any]):
        """`compute` is called through this object from now on, and finds the parameters of `model` whole."""
        self.sharding = sharding
        for value in model.parameters():
            if value.is_floating_point() and sharding.compute_dtype in LOW_PRECISION:
                value.data = value.data.to(torch.float32 if value.requires_grad else sharding.compute_dtype)
        self.root: Any = Root(model, compute)
        self.units = sharding.split(self.root, backbone)
        self.parameters: dict[str, Any] = dict(model.named_parameters())
        """The slices, as FSDP keeps them: modules show them only while nothing is whole."""
        self.before_use: list[Callable[[], None]] = []
        """Called before the model is computed with: whoever holds it whole lets go."""
        self.sums: dict[int, Tensor] = {}
        """Unit -> float64 sum of its gradients over the turns since the last update, this rank's share; exact sums alone."""
        for number, unit in enumerate(self.units):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            if sharding.exact:
                own = [value for value in self._list_of(unit) if value.requires_grad]
                unit.set_all_reduce_hook(self._make_hook(number, own))

    def _list_of(self, unit: nn.Module) -> list[Any]:
        inner = {
            id(value) for other in self.units if other is not unit and is_inside(other, unit) for value in other.parameters()
        }
        return [value for value in unit.parameters() if id(value) not in inner]

    def _make_hook(self, number: int, parameters: list[Any]) -> Callable[[Tensor], None]:
        """Between the reduction of a turn and its rounding: what is rounded is the sum of all turns so far, and it takes the place of
        the one before. So however many turns there are, and on however many ranks, each gradient is rounded once."""

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
        for let_go in self.before_use:
            let_go()
        result = self.root(*args)
        if not torch.is_grad_enabled():
            self.root.reshard()  # a backward would; left whole, the root would not notice the next update
        return result

    # -- slices and whole tensors --------------------------------------------------------------------------------------

    def read_slice(self, name: str) -> Tensor:
        """This rank's slice of a parameter: the memory itself."""
        local: Tensor = self.parameters[name].detach().to_local()
        return local

    def gather(self, name: str, own: Tensor) -> Tensor:
        """A whole tensor from the slices of all ranks, cut as the parameter is; on every rank, on the device that computes."""
        if self.sharding.world.lost:
            raise CheckpointError("the slices of a rank that is lost cannot be gathered; the checkpoint before stays")
        whole: Tensor = self.mark(name, own.to(self.sharding.mesh.device_type)).full_tensor()
        return whole

    def mark(self, name: str, own: Tensor) -> Any:
        """A slice that knows which tensor it is a slice of."""
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

    def list_whole(self, names: Iterable[str], dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters, one after the other: no second model is held."""
        for name in names:
            own = self.read_slice(name)
            yield name, self.gather(name, own.to(dtype) if dtype else own)

    @property
    def is_large(self) -> bool:
        """Whether what is trained, with its moments, is more than one rank should be given to write."""
        return 12 * sum(value.numel() for value in self.parameters.values() if value.requires_grad) > LARGE

    @torch.no_grad()
    def make_whole(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For a checkpoint, from slices by name or by name|kind: whole tensors, or, of a large model, which tensors they are slices of."""
        if self.is_large:
            return {key: own if key.endswith(STEP) else self.mark(key.partition("|")[0], own) for key, own in slices.items()}
        return self.collect(slices)

    @torch.no_grad()
    def collect(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors in the memory of the host; on the first rank alone, which writes them."""
        whole = {}
        for key, own in slices.items():
            one = own if key.endswith(STEP) else self.gather(key.partition("|")[0], own)
            if self.sharding.rank == 0:
                whole[key] = one.cpu()
        return whole

    def take_own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The slices of whole tensors, by the same names."""
        own = {}
        for key, whole in tensors.items():
            name = key.partition("|")[0]
            own[key] = whole if key.endswith(STEP) or name not in self.parameters else self.cut(name, whole).clone()
        return own

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        return self._reduce(value, dist.ReduceOp.SUM)

    def find_largest(self, value: Tensor) -> Tensor:
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: Tensor, operation: Any) -> Tensor:
        value = value.to(self.sharding.mesh.device_type)
        dist.all_reduce(value, operation, group=self.sharding.mesh.get_group())
        return value


def is_inside(inner: nn.Module, outer: nn.Module) -> bool:
    return any(module is inner for module in outer.modules())


class PolicyShards(Shards):
    """A policy that was shared out: what is trained, and the plain tree of `policy.model` beside it.

    The trained tree takes the parameters over, uncopied. Of the plain one NaN is left: whoever reads it without asking notices.
    """

    def __init__(self, policy: Policy, sharding: Sharding):
        self.policy, self.held = policy, True
        self.plain: dict[str, nn.Parameter] = dict(policy.model.named_parameters())
        taken = {id(value): nn.Parameter(value.data, requires_grad=value.requires_grad) for value in self.plain.values()}
        twin = copy.deepcopy(policy.model, taken)
        if policy.adapter:
            lora.switch_adapters(twin, True)  # whether one is all zero is no question that a rank could answer
        places = {id(module): name for name, module in policy.model.named_modules()}
        backbone, projection = (
            twin.get_submodule(places[id(part)]) for part in (policy.split.backbone, policy.split.projection)
        )
        self.split = replace(policy.split, backbone=backbone, projection=projection)
        self.attention_configs = attention_configs(twin) if policy.attention_configs else []
        self.backbone = ModuleBackbone(backbone, self.attention_configs, policy.checkpointing)
        self.dtype = sharding.compute_dtype
        self.let_go()
        super().__init__(sharding, twin, backbone, self.compute)
        self.before_use.append(self.let_go)
        policy.shards = self

    def compute(self, micro: MicroBatch, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        return score_trained_tokens(self.backbone, self.split, micro, temperature, entropy_gradient)

    def prepare(self, checkpointing: bool) -> str:
        self.backbone = ModuleBackbone(self.split.backbone, self.attention_configs, checkpointing)
        return f"training with the modules of transformers, shared out over {write_count(self.sharding.size, 'rank')}"

    def hold_whole(self) -> None:
        """Gather the plain tree, in the compute dtype; nothing where it is held already."""
        if self.held:
            return
        self.held = True
        for name, whole in self.list_whole(self.plain, self.dtype):
            self.plain[name].data = whole

    def let_go(self) -> None:
        if self.held:
            self.held = False
            for value in self.plain.values():
                value.data = torch.full((), torch.nan, dtype=self.dtype, device=value.device).expand(value.shape)


class ShardedWeights(MasterWeights):
    """Masters as this rank's slices, for the optimizer; whole tensors by name, for a checkpoint. See MasterWeights.

    On a CPU the last elements of a tensor, those that fill no vector, are stepped by other instructions and get other last bits. What
    ends inside a matrix of the model must not end inside a vector: such a slice is stepped in a copy, padded to whole ones.
    """

    def __init__(self, shards: Shards, adding: Adding | None = None):
        self.shards, self.adding = shards, adding or Adding(shards.sharding.exact)
        self.parameters: dict[str, Any] = {name: value for name, value in shards.parameters.items() if value.requires_grad}
        self.masters = {name: pad_slice(shards.read_slice(name)) for name in self.parameters}

    @torch.no_grad()
    def join_gradients(self) -> None:
        """Those that the turns have left, beside the slices that they belong to; the ranks have added them up already."""
        for name, parameter in self.parameters.items():
            master, own = self.masters[name], self.shards.read_slice(name)
            if master.shape == own.shape:
                master.data = own  # FSDP may have laid it elsewhere at its first forward
            master.grad = None if parameter.grad is None else pad_slice(parameter.grad.to_local())

    @torch.no_grad()
    def copy_back(self) -> None:
        for name, master in self.masters.items():
            own = self.shards.read_slice(name)
            if master.shape != own.shape:
                own.copy_(cut_padding(master, own))

    def measure_norm(self, gradients: list[Tensor]) -> Tensor:
        """Of the whole gradient, in float64: the same on every rank. Where no group had signal, none of them has a gradient."""
        if not gradients:
            return torch.zeros(())
        squares = [norm.square() for norm in torch._foreach_norm(gradients, 2.0, dtype=torch.float64)]
        return self.shards.sum_over_ranks(torch.stack(squares).sum()).sqrt()

    def measure_change(self, probe: Tensor) -> float:
        largest = (self.probe() - probe).abs().max() if len(probe) else torch.zeros(())
        return float(self.shards.find_largest(largest.double()))

    def tensors(self) -> dict[str, Tensor]:
        return self.shards.make_whole({name: self.shards.read_slice(name) for name in self.masters})

    def make_whole(self, slices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = {key: self.shards.read_slice(key.partition("|")[0]) for key in slices}
        return self.shards.make_whole(
            {key: value if key.endswith(STEP) else cut_padding(value, own[key]) for key, value in slices.items()}
        )

    def take_own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = self.shards.take_own(tensors)
        return {key: value if key.endswith(STEP) else pad_slice(value) for key, value in own.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        refuse_other_shapes(self.parameters, tensors)
        for name, own in self.shards.take_own(tensors).items():
            self.shards.read_slice(name).copy_(own)
            self.masters[name].copy_(pad_slice(own))
        for let_go in self.shards.before_use:
            let_go()

    @torch.no_grad()
    def put_back(self, held: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            master.copy_(held[name])
            self.shards.read_slice(name).copy_(cut_padding(master, self.shards.read_slice(name)))

    def drop_gradients(self) -> None:
        self.shards.sums.clear()
        for value in [*self.masters.values(), *self.parameters.values()]:
            value.grad = None


def pad_slice(own: Tensor) -> Tensor:
    """The slice itself where it ends with a vector; else a copy, filled up with zeros, which AdamW leaves at zero."""
    missing = -own.numel() % LANES
    if not missing:
        return own
    padded = F.pad(own.flatten(), (0, missing))
    return padded if own.dim() < 2 else padded[None]  # matrices decay, vectors do not


def cut_padding(padded: Tensor, own: Tensor) -> Tensor:
    return padded if padded.shape == own.shape else padded.flatten()[: own.numel()].view(own.shape)
