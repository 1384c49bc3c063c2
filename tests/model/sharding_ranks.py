"""The processes of tests/model/test_sharding.py: models sharded over one, two and three of them; they write their results to files.

python sharding_ranks.py OUT       starts three ranks and waits for them
"""

from __future__ import annotations

import copy
import functools
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import LlamaConfig, LlamaForCausalLM

from cohort.base.world import World
from cohort.errors import CheckpointError
from cohort.model import lora, sharding
from cohort.model.critic import Critic
from cohort.model.examples import Example
from cohort.model.frozen import Reference
from cohort.model.optim import Adam32, Adding, MasterWeights, Optimizer
from cohort.model.packing import MicroBatch, pack
from cohort.model.policy import Policy
from cohort.model.scratch import build_tokenizer
from cohort.model.sharding import PolicyShards, ShardedWeights, Sharding
from cohort.recipe.schema import CriticConfig, LoraConfig, OptimizerConfig
from cohort.training import checkpoint
from cohort.training.saver import Saver

KINDS = ("untied", "tied", "lora")
STEPS, RATE = 2, 1e-2


def make_policy(kind: str) -> Policy:
    """A new policy each time; the proof that it can be served runs once."""
    return copy.deepcopy(build_policy(kind))


@functools.cache
def build_policy(kind: str) -> Policy:
    tokenizer = build_tokenizer("0123456789+=>/", 64)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=kind == "tied",
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model, adapter = LlamaForCausalLM(config).float().eval(), None
    if kind == "lora":
        adapter = lora.start_adapter(model, LoraConfig(rank=4), 0)
        with torch.no_grad():  # B starts at zero, where A has no gradient
            for name, value in lora.adapter_parameters(model).items():
                value.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    policy = Policy(model, tokenizer, 1.0, adapter)
    policy.prepare("modules")
    return policy


def make_micro_batches(policy: Policy, count: int = 9) -> list[MicroBatch]:
    """Five micro-batches of different sizes, so that neither two nor three ranks have equal work."""
    draw = random.Random(0)
    examples = []
    for number in range(count):
        length = draw.randint(5, 30)

        def noise() -> Tensor:
            return torch.tensor([draw.uniform(-1, 1) for _ in range(length)])  # noqa: B023

        examples.append(
            Example(
                rollout=number,
                group=number // 3,
                prompt_ids=tuple(draw.randrange(3, 17) for _ in range(draw.randint(3, 9))),
                completion_ids=tuple(draw.randrange(3, 17) for _ in range(length)),
                loss_mask_T=torch.ones(length, dtype=torch.bool),
                advantages_T=noise(),
                sampling_logprobs_T=torch.zeros(length),
                old_values_T=noise(),
                returns_T=noise(),
            )
        )
    options: dict[str, Any] = {"aggregation": "token_mean", "max_completion_tokens": 32, "skip_zero_advantage": False}
    packed = pack(examples, micro_batch_tokens=50, share_prompts=policy.share_prompts, **options)
    assert len(packed.micro_batches) == 5
    return packed.micro_batches


def list_turns(micros: list[MicroBatch], rank: int, size: int) -> Iterator[tuple[MicroBatch, float]]:
    """The same number on every rank: a rank without work takes its turn with weight 0."""
    mine = micros[rank::size]
    for turn in range(-(-len(micros) // size)):
        yield (mine[turn], 1.0) if turn < len(mine) else (micros[0], 0.0)


def take_turn(policy: Policy, micro: MicroBatch, weight: float) -> None:
    scores = policy.compute_logprobs(micro)
    (-(scores.logprobs_M * micro.advantages_M * micro.loss_weights_M).sum() * weight).backward()


def train_plain(kind: str) -> dict[str, Any]:
    """The reference implementation: one process, gradients of micro-batches summed in float64 and rounded once."""
    policy = make_policy(kind)
    weights = MasterWeights(policy.model, torch.float32)
    adam, gradients = Adam32(weights.masters, OptimizerConfig()), {}
    for _ in range(STEPS):
        totals: dict[str, Tensor] = {}
        for micro in make_micro_batches(policy):
            take_turn(policy, micro, 1.0)
            for name, master in weights.masters.items():
                assert master.grad is not None
                totals[name] = totals.get(name, 0) + master.grad.double()
                master.grad = None
        for name, master in weights.masters.items():
            master.grad = totals[name].float()
        gradients = gradients or {name: total.float() for name, total in totals.items()}
        adam.step(RATE)
        weights.drop_gradients()
    return {"gradients": gradients, "weights": weights.tensors(), "moments": adam.state()}


def train_shared(kind: str, mesh: DeviceMesh, *, exact: bool = True, checkpointing: bool = False) -> dict[str, Any]:
    policy, size, rank = make_policy(kind), mesh.size(), mesh.get_local_rank()
    how = Sharding(mesh, torch.float32, exact=exact)
    shards = PolicyShards(policy, how)
    weights = ShardedWeights(shards)
    reasons = []

    def compute(*args: Any) -> Any:
        reasons.append(shards.split.why_not_linear)
        return shards.compute(*args)

    shards.root.compute = compute
    reference = policy.make_frozen_copy()
    PolicyShards(reference, how)
    follows = Reference(reference, every=1)
    policy.prepare("modules", checkpointing)
    micros = make_micro_batches(policy)
    adam, gradients, norms = Adam32(weights.masters, OptimizerConfig()), {}, []
    for step in range(STEPS):
        for micro, weight in list_turns(micros, rank, size):
            take_turn(policy, micro, weight)
        weights.join_gradients()
        held = {name: value.grad.to_local() for name, value in weights.parameters.items()}
        if not step:
            gradients = shards.gather_tensors(held)
        norms.append(
            float(weights.measure_norm([master.grad for master in weights.masters.values() if master.grad is not None]))
        )
        adam.step(RATE)
        weights.copy_back()
        weights.drop_gradients()
    with torch.no_grad():
        now = policy.compute_logprobs(micros[0]).logprobs_M
        before = reference.compute_logprobs(micros[0]).logprobs_M
        follows.follow(policy, 1)
        after = reference.compute_logprobs(micros[0]).logprobs_M
        policy.gather_weights()
        plain = policy.compute_plain(micros[0], 1.0, False)[0]
    largest = max(shards.read_slice(name).numel() for name in shards.parameters)
    return {
        "gradients": gradients,
        "weights": weights.tensors(),
        "moments": weights.gather_tensors(adam.state()),
        "norms": norms,
        "reference": [bool(torch.equal(before, now)), bool(torch.equal(after, now))],
        "whole": bool(torch.equal(plain, now)),
        "why_not_linear": reasons,
        "largest_slice": largest,
    }


def load_elsewhere(saved: dict[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
    """A checkpoint of two ranks, loaded by another number of ranks: weights and moments are the same whole tensors."""
    policy = make_policy("untied")
    weights = ShardedWeights(PolicyShards(policy, Sharding(mesh, torch.float32, exact=True)))
    adam = Adam32(weights.masters, OptimizerConfig())
    weights.load(saved["weights"])
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in weights.take_slices(saved["moments"]).items():
        name, _, kind = key.rpartition("|")
        moments.setdefault(name, {})[kind] = value
    for name, parts in moments.items():
        adam.load(name, parts)
    return {"weights": weights.tensors(), "moments": weights.gather_tensors(adam.state())}


def value_shared(mesh: DeviceMesh | None) -> dict[str, Any]:
    """A critic's gradients and values; without a mesh, those of an unsharded critic."""
    policy, rank, size = make_policy("untied"), 0, 1
    adding = None
    if mesh is not None:
        rank, size = mesh.get_local_rank(), mesh.size()
        adding = Adding(True, sharding=Sharding(mesh, torch.float32, exact=True))
    critic = Critic(policy, CriticConfig(), OptimizerConfig(), torch.float32, 10, adding)
    critic.weights.load(build_values() | {"head.weight": torch.linspace(-1, 1, 32)[None]})
    micros = make_micro_batches(policy)
    with torch.no_grad():
        values = torch.cat([critic.read_values(micro.layout, micro.before) for micro in micros])
    totals: dict[str, Tensor] = {}
    for micro, weight in list_turns(micros, rank, size):
        critic.backward(micro if weight else blank(micro))
        if mesh is None:
            for name, master in critic.weights.masters.items():
                totals[name] = totals.get(name, 0) + master.grad.double()
                master.grad = None
    if mesh is not None:
        critic.weights.join_gradients()
        held = {name: value.grad.to_local() for name, value in critic.weights.parameters.items()}
        totals = critic.weights.shards.gather_tensors(held)
    return {"values": values, "gradients": {name: total.float() for name, total in totals.items()}}


def build_values() -> dict[str, Tensor]:
    """The weights of a critic of the untied policy."""
    backbone = build_policy("untied").split.backbone
    return {f"backbone.{name}": value.detach() for name, value in backbone.named_parameters()}


def blank(micro: MicroBatch) -> MicroBatch:
    from dataclasses import replace

    return replace(micro, loss_weights_M=torch.zeros_like(micro.loss_weights_M))


def train_masked(mesh: DeviceMesh) -> bool:
    """A minibatch without work for any rank, and one with work only for the first rank: no rank blocks."""
    policy, rank = make_policy("untied"), mesh.get_local_rank()
    weights = ShardedWeights(PolicyShards(policy, Sharding(mesh, torch.float32, exact=True)))
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=RATE), 10)
    before = weights.copy_masters()
    reports = [optimizer.clip_and_step()]
    still = all(torch.equal(value, before[name]) for name, value in weights.copy_masters().items())
    take_turn(policy, make_micro_batches(policy)[0], float(rank == 0))
    reports.append(optimizer.clip_and_step())
    return still and reports[0].grad_norm == 0 and reports[1].grad_norm > 0


class Few(World):
    """The first ranks of the world, with the methods that a checkpoint needs."""

    def __init__(self, group: Any, size: int):
        self.group, self.rank, self.size = group, dist.get_rank(), size

    def compute(self, work: Callable[[], Sequence[Any]]) -> list[Any]:
        theirs: list[Any] = [None] * self.size
        try:
            mine: Any = list(work())
        except CheckpointError as problem:
            mine = str(problem)
        dist.all_gather_object(theirs, mine, group=self.group)
        for share in theirs:
            if isinstance(share, str):
                raise CheckpointError(share)
        return [one for share in theirs for one in share]

    def on_main(self, work: Callable[[], Any]) -> Any:
        return self.compute(lambda: [work()] if self.rank == 0 else [])[0]


def save_slices(mesh: DeviceMesh, root: Path) -> str:
    """Checkpoint of a large model: each rank writes its slices. Then the second rank finds no space; returns the error."""
    policy = make_policy("untied")
    weights = ShardedWeights(PolicyShards(policy, Sharding(mesh, torch.float32, exact=True)))
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=RATE), 10)
    for micro, weight in list_turns(make_micro_batches(policy), mesh.get_local_rank(), mesh.size()):
        take_turn(policy, micro, weight)
    optimizer.clip_and_step()
    sharding.LARGE = 0
    moments, counters = optimizer.state()
    tensors = {"weights": weights.tensors(), "optimizer": moments}
    sharding.LARGE = 1 << 30
    saver, few = Saver(), Few(mesh.get_group(), mesh.size())
    saver.start(few, root, "step-1", lambda: checkpoint.Snapshot(tensors, counters), lambda: None)
    saver.wait(few)
    write = checkpoint.write_file
    if few.rank == 1:
        checkpoint.write_file = refuse  # type: ignore[assignment]
    saver.start(few, root, "step-2", lambda: checkpoint.Snapshot(tensors, counters), lambda: None)
    try:
        saver.wait(few)
        refused = "nothing"
    except CheckpointError as problem:
        refused = str(problem)
    checkpoint.write_file = write
    saver.close()
    return refused


def refuse(file: Path, *parts: Any) -> Any:
    raise OSError(28, "No space left on device", str(file))


def load_slices(mesh: DeviceMesh, root: Path) -> dict[str, Any]:
    """Another number of ranks loads it, and would save it as whole tensors."""
    snapshot = checkpoint.load(root / "step-1")
    weights = ShardedWeights(PolicyShards(make_policy("untied"), Sharding(mesh, torch.float32, exact=True)))
    optimizer = Optimizer(weights, OptimizerConfig(), 10)
    weights.load(snapshot.tensors["weights"])
    optimizer.load_state(snapshot.tensors["optimizer"], snapshot.document)
    return {"weights": weights.tensors(), "moments": optimizer.state()[0], "updates": optimizer.updates}


def run_rank(rank: int, store: str, out: str) -> None:
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=90), 3, rank)
    groups = {size: dist.new_group(list(range(size))) for size in (1, 2, 3)}
    found: dict[str, Any] = {}
    for size, group in groups.items():
        if rank < size:
            mesh = DeviceMesh.from_group(group, "cpu")
            for kind in KINDS:
                found[f"{kind} {size}"] = train_shared(kind, mesh, checkpointing=size == 2)
            if size > 1:
                found[f"fast {size}"] = train_shared("untied", mesh, exact=False)
                found[f"critic {size}"] = value_shared(mesh)
                found[f"masked {size}"] = train_masked(mesh)
        dist.barrier()
    saved = [found["untied 2"] if rank == 0 else None]
    dist.broadcast_object_list(saved)
    found["loaded 3"] = load_elsewhere(saved[0] or {}, DeviceMesh.from_group(groups[3], "cpu"))
    root = Path(out).parent / "checkpoints"
    if rank < 2:
        found["refused"] = save_slices(DeviceMesh.from_group(groups[2], "cpu"), root)
    dist.barrier()
    found["slices 3"] = load_slices(DeviceMesh.from_group(groups[3], "cpu"), root)
    if rank == 0:
        found |= {f"{kind} plain": train_plain(kind) for kind in KINDS} | {"critic plain": value_shared(None)}
        torch.save(found, out)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Three ranks as separate processes: a fork of a process that had loaded torch once ended with a broken heap."""
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        run_rank(int(sys.argv[2]), sys.argv[3], sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, sys.argv[1]]
        ranks = [subprocess.Popen([*command, str(rank), f"{folder}/store"]) for rank in range(3)]
        codes = [rank.wait() for rank in ranks]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
