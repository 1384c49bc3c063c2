"""Estimates the memory of a rank from the model's config and the recipe, and suggests settings that fit.

Parameters, masters, gradients, moments, keys and values are computed exactly. Activations are an estimate: what the backward pass of
each layer reads, for the fused kernels of the Llama and Qwen families; other modules keep more. A rank that holds the whole model needs
as much as a single process, except for its share of the slots; with `parallel.shard` the held memory is divided by the ranks.
"""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch

from cohort.model.four_bit import count_elements
from cohort.model.lora import linear_layers
from cohort.model.policy import Policy
from cohort.ops.fused.training import FusedBackbone
from cohort.ops.logprobs import CHUNK_ELEMENTS, CUDA_BLOCK_SHARE, CUDA_CHUNK_BYTES, CUDA_ROWS
from cohort.recipe.rules import needs_reference
from cohort.training.build import EncodedData, adds_exactly
from cohort.training.objective import needs_critic
from cohort.training.run import Run

MOMENT_BYTES = {32: 8.0, 8: 2.0 + 8.0 / 256.0}
"""Both moments of one element; in 8 bits two codes, and two float32 scales for every 256 elements."""
FOUR_BIT_BYTES = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0)
"""One weight in nf4: half a byte of code, a scale of one byte for every 64, and a float32 for every 256 of those."""
MODULE_FACTOR = 2.0
"""Rule of thumb: activations kept by the modules of transformers, relative to the fused kernels."""
GIB = 2.0**30


@dataclass(frozen=True)
class ModelNumbers:
    """The shape of a model of the Llama and Qwen families."""

    layers: int
    width: int
    query_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    parameters: int
    """Counted in the model."""
    linear_parameters: int = 0
    """Parameters in linear layers below the head, which a base in 4 bits holds in 4 bits."""

    @property
    def layer_parameters(self) -> int:
        """Number of parameters in the matrices of one layer."""
        queries, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        return 2 * self.width * (queries + keys) + 3 * self.width * self.intermediate

    def adapter_parameters(self, rank: int) -> int:
        """Number of parameters of low-rank adapters on every linear layer except the head: rank x (inputs + outputs) each."""
        queries, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.width + queries) + 2 * (self.width + keys)
        return self.layers * rank * (attention + 3 * (self.width + self.intermediate))


@dataclass(frozen=True)
class RunNumbers:
    """The settings of a recipe that determine its memory."""

    element: int = 2
    """Bytes of a number in the compute dtype: 2 for bfloat16, 4 for float32."""
    state_bits: int = 32
    lora_rank: int = 0
    adapter_parameters: int | None = None
    """Trained parameters, if only some linear layers have adapters; None: all have."""
    four_bit: bool = False
    """The frozen base holds its linear layers in 4 bits."""
    reference: bool = False
    """A second copy of the weights for the KL; an adapter needs none."""
    teacher_parameters: int = 0
    """Parameters of a frozen model that credits tokens; 0: no teacher."""
    ahead: bool = False
    """Completions are sampled from a copy of the weights during training; of an adapter only the adapter is copied."""
    critic: bool = False
    reward_model: bool = False
    """A model of the policy's size whose weights are all trained, even if the policy has adapters."""
    micro_batch_tokens: int = 16384
    activation_checkpointing: bool = False
    own_kernels: bool = True
    """Whether training runs on the fused kernels."""
    gpu_bytes: float = 0.0
    """Memory of the whole GPU, part of which the loss head uses; 0: a CPU."""
    slots: int = 256
    longest: int = 640
    """Prompt and completion."""
    cache_element: int = 0
    """Bytes of a cached number; 0: the same as `element`."""
    ranks: int = 1
    shard: bool = False
    """Weights, moments and gradients are sharded over the ranks (FSDP2)."""
    offload: bool = False
    """With `shard`: the shards stay in host memory."""
    exact: bool = False
    """Gradients are summed in float64, of every trained parameter on every rank."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose. `held` is kept for the whole run; `training` and `sampling` alternate (not with ahead.lag); `starting` comes before."""

    held: Mapping[str, float]
    training: Mapping[str, float]
    sampling: Mapping[str, float]
    starting: Mapping[str, float]
    model: ModelNumbers
    run: RunNumbers

    @property
    def peak(self) -> float:
        stages = (sum(self.training.values()), sum(self.sampling.values()))
        going = sum(self.held.values()) + (sum(stages) if self.run.ahead else max(stages))
        return max(going, sum(self.starting.values()))


def count_activation_bytes(model: ModelNumbers, tokens: int, element: int, checkpointing: bool, rank: int = 0) -> float:
    """Activations that the forward pass of `tokens` keeps for the backward pass.

    Per token and layer: the residual stream before attention and before the MLP (both inputs of a norm), the rotated queries, keys,
    values and the output of attention, gate and up. Norms and SwiGLU are recomputed from these. Adapters keep A x of each of seven
    linear layers. With checkpointing one residual stream per layer is kept, and one layer at a time is complete.
    """
    queries, keys = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    whole = element * (2 * model.width + 2 * queries + 2 * keys + 2 * model.intermediate + ADAPTED_LAYERS * rank)
    # One float32 number per norm and row, and one per head for the softmax, are kept as well.
    whole += 4 * (2 + model.query_heads)
    if checkpointing:
        return float(tokens) * (model.layers * element * model.width + whole)
    return float(tokens) * model.layers * whole


def count_head_bytes(model: ModelNumbers, run: RunNumbers) -> float:
    """A chunk of logits with its gradients; an upper bound, as if every token of a micro-batch were trained.

    A trained head keeps the gradients of a block of logits in the compute dtype, and its own gradient besides the accumulated one; a
    frozen head needs the gradients of one chunk at a time.
    """
    vocabulary = model.vocabulary
    if not run.gpu_bytes:
        return 2.0 * 4.0 * max(CHUNK_ELEMENTS, vocabulary)
    chunk = max(1, CUDA_CHUNK_BYTES // (4 * vocabulary))
    chunk -= chunk % CUDA_ROWS if chunk > CUDA_ROWS else 0
    logits = 4.0 * min(chunk, run.micro_batch_tokens) * vocabulary
    if run.lora_rank:
        return logits + float(run.element) * min(chunk, run.micro_batch_tokens) * vocabulary
    block = chunk * max(1, int(run.gpu_bytes) // CUDA_BLOCK_SHARE // (run.element * vocabulary * chunk))
    kept = float(run.element) * min(block, run.micro_batch_tokens) * vocabulary
    return logits + kept + (run.element if run.micro_batch_tokens <= block else 4.0) * vocabulary * model.width


def count_slot_bytes(model: ModelNumbers, longest: int, element: int) -> float:
    """Keys and values of one sequence."""
    return 2.0 * element * model.layers * model.kv_heads * model.head_dim * longest


def count_unit_bytes(model: ModelNumbers, run: RunNumbers) -> float:
    """The units of a sharded model that are gathered at a time: the head, which backward begins with, a layer and the next one.

    For the largest of them also the gradient, and a copy in the dtype in which ranks sum it.
    """
    head = model.vocabulary * model.width
    gradient = 0.0 if run.lora_rank else run.element + (8.0 if run.exact else 4.0)
    return float(run.element) * (head + 2 * model.layer_parameters) + gradient * max(head, model.layer_parameters)


def estimate_memory(model: ModelNumbers, run: RunNumbers) -> MemoryEstimate:
    """The memory of a rank."""
    count = model.parameters
    trained = count
    if run.lora_rank:
        trained = model.adapter_parameters(run.lora_rank) if run.adapter_parameters is None else run.adapter_parameters
    apart = 4.0 if run.element < 4 else 0.0
    # A sharded parameter is held as its float32 master only; its compute dtype is created for one unit at a time.
    computed = 0.0 if run.shard and apart else float(run.element)
    moments = MOMENT_BYTES[run.state_bits]
    saved = (run.element - FOUR_BIT_BYTES) * model.linear_parameters if run.lora_rank and run.four_bit else 0.0
    held = {
        "parameters": computed * trained + (float(run.element) * count if run.lora_rank else 0.0) - saved,
        "masters": apart * trained,
        "moments": moments * trained,
    }
    # With adapters these models use the policy's base, unless it is sharded: shards belong to one model.
    base = float(run.element) * count if run.shard and run.lora_rank else 0.0
    if run.reference and (base or not run.lora_rank):
        held["reference"] = float(run.element) * count
    if run.ahead and not run.lora_rank:
        held["copy to sample from"] = float(run.element) * count
    if run.critic:
        held["critic"] = (computed + apart + moments) * trained + base
    if run.reward_model:
        held["reward model"] = (computed + apart + moments) * count
    if run.shard:
        rests_elsewhere = run.offload and run.gpu_bytes > 0
        held = {name: 0.0 if rests_elsewhere else size / run.ranks for name, size in held.items()}
    if run.teacher_parameters:
        held["teacher"] = float(run.element) * run.teacher_parameters
    kept = count_activation_bytes(model, run.micro_batch_tokens, run.element, run.activation_checkpointing, run.lora_rank)
    # With shards, a float64 sum exists besides the gradient that is rounded from it.
    gradient = (12.0 if run.exact else 4.0) / run.ranks if run.shard else 8.0 if run.exact else 4.0
    # The reward model is fitted between steps, so its gradients never exist together with the policy's.
    training = {
        "gradients": gradient * max(trained * (2 if run.critic else 1), count if run.reward_model else 0),
        "activations": kept * (1.0 if run.own_kernels else MODULE_FACTOR),
        "loss head": count_head_bytes(model, run),
    }
    cache = count_slot_bytes(model, run.longest, run.cache_element or run.element)
    sampling = {"keys and values": run.slots * cache}
    if run.shard:
        training["units at work"] = count_unit_bytes(model, run)
        sampling["whole model"] = float(run.element) * count
    starting = {}
    if run.shard:  # before it is sharded, every rank holds the loaded model, and a copy that other models begin with
        starting["whole model as read"] = (run.element if run.lora_rank else 4.0) * count
        starting["its copy"] = float(run.element) * count if run.reference or run.critic or run.reward_model else 0.0
    return MemoryEstimate(held, training, sampling, starting, model, run)


def describe_memory(needed: MemoryEstimate, free_bytes: float) -> str:
    """Whether the run fits into `free_bytes`, and if not, which settings make it fit."""
    parts = {**needed.held, **needed.training, **needed.sampling, **needed.starting}
    largest = sorted(parts.items(), key=lambda part: -part[1])
    detail = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest if size >= 0.05 * GIB)
    ranks = f" on each of {needed.run.ranks} ranks" if needed.run.ranks > 1 else ""
    text = f"about {needed.peak / GIB:.1f} GiB at the peak{ranks}{f' ({detail})' if detail else ''}; {free_bytes / GIB:.1f} GiB available"
    if needed.peak <= free_bytes:
        return f"{text}: fits."
    first, *others = [describe_changes(needed.run, run) for run in list_fitting_runs(needed, free_bytes)] or [""]
    if not first:
        return f"{text}: does not fit with any setting: use a smaller model or a larger device."
    also = f" Also enough: {'; or '.join(others)}." if others else ""
    return f"{text}: does not fit. Set {first}.{also}"


FIELDS = {
    "micro_batch_tokens": "train.micro_batch_tokens",
    "slots": "sampling.slots",
    "activation_checkpointing": "train.activation_checkpointing",
    "exact": "parallel.sums",
    "state_bits": "optimizer.state_bits",
    "shard": "parallel.shard",
    "offload": "parallel.offload",
    "lora_rank": "model.lora.rank",
    "four_bit": "model.lora.base_dtype",
}
"""Settings that save memory, the cheapest first: sizes do not change results; then come time, precision and method."""
NAMED_VALUES = {FIELDS["four_bit"]: '"nf4"', FIELDS["exact"]: '"fast"', FIELDS["shard"]: '"full"'}
"""Values of the settings that are neither numbers nor flags."""
ADVISED_RANK = 16
ADAPTED_LAYERS = 7
"""Linear layers in a layer of the model that can have an adapter."""
TOKEN_MULTIPLE = 256
RANKS_PER_HOST = 8
MOST_RANKS = 64


def describe_changes(before: RunNumbers, after: RunNumbers) -> str:
    """The settings to change, and the torchrun command if more ranks are needed."""
    values = {field: getattr(after, name) for name, field in FIELDS.items() if getattr(after, name) != getattr(before, name)}
    changed = " and ".join(f"{field} = {NAMED_VALUES.get(field) or str(value).lower()}" for field, value in values.items())
    if after.ranks == before.ranks:
        return changed
    # One GPU per rank, eight per host; on CPUs one rank per host, because the host's memory is shared.
    per_host = min(after.ranks, RANKS_PER_HOST) if after.gpu_bytes else 1
    command = f"torchrun --standalone --nproc-per-node {after.ranks}"
    if after.ranks > per_host:
        hosts = after.ranks // per_host
        command = f"torchrun --nnodes {hosts} --nproc-per-node {per_host} --node-rank K --master-addr HOST"
    return f"{changed} on {after.ranks} ranks ({command} -m cohort train RECIPE)"


def list_fitting_runs(needed: MemoryEstimate, free_bytes: float) -> Iterator[RunNumbers]:
    """All changes that make the run fit, the cheapest first, except supersets of earlier ones."""
    found: list[set[str]] = []
    for changes in list_remedies(needed.run):
        run = fit_sizes(needed.model, replace(needed.run, **changes), free_bytes)
        settings = {name for name, value in changes.items() if value != getattr(needed.run, name)} - {"own_kernels", "ranks"}
        if not any(settings >= fewer for fewer in found) and estimate_memory(needed.model, run).peak <= free_bytes:
            found.append(settings)
            yield run


def list_remedies(run: RunNumbers) -> Iterator[dict[str, Any]]:
    """Changes to try, in order. Existing ranks shard the model before precision is reduced; more ranks come last."""
    is_adapted = run.lora_rank > 0
    checkpointed: dict[str, Any] = {"activation_checkpointing": True}
    fast: dict[str, Any] = {"exact": False} if run.exact else {}
    eight_bits = fast if is_adapted else fast | {"state_bits": 8}
    adapted = fast if is_adapted else fast | {"lora_rank": ADVISED_RANK}
    rounded: dict[str, Any] = {"four_bit": True}
    sharded = fast | {"shard": True, "own_kernels": False}
    numbers = [run.ranks] if run.ranks > 1 else [2**power for power in range(1, MOST_RANKS.bit_length())]
    shares = [
        sharded | {"ranks": ranks} | more
        for more in ({}, checkpointed, {"offload": True}, checkpointed | {"offload": True})
        for ranks in numbers
        if not run.four_bit and (run.gpu_bytes or "offload" not in more)
    ]
    yield from ({}, checkpointed, fast, checkpointed | fast)
    yield from shares if run.ranks > 1 else ()
    yield from (eight_bits, checkpointed | eight_bits, adapted, checkpointed | adapted)
    if not run.shard:  # a base in 4 bits cannot be sharded
        yield from (adapted | rounded, checkpointed | adapted | rounded)
    yield from shares if run.ranks == 1 else ()


def fit_sizes(model: ModelNumbers, run: RunNumbers, free_bytes: float) -> RunNumbers:
    """Reduce micro-batches and slots to the largest sizes that fit, at least one sequence."""
    needed = estimate_memory(model, run)
    room = free_bytes - sum(needed.held.values())

    def fits(tokens: int) -> bool:
        return sum(estimate_memory(model, replace(run, micro_batch_tokens=tokens)).training.values()) <= room

    if not fits(run.micro_batch_tokens):
        sizes = range(TOKEN_MULTIPLE, run.micro_batch_tokens, TOKEN_MULTIPLE)
        fitting = bisect.bisect_left(sizes, True, key=lambda tokens: not fits(tokens)) * TOKEN_MULTIPLE
        run = replace(run, micro_batch_tokens=min(run.micro_batch_tokens, max(fitting, run.longest)))
    return replace(run, slots=fit_slots(needed, free_bytes))


def fit_slots(needed: MemoryEstimate, free_bytes: float) -> int:
    """The slots of the run, or as many as fit, at least one."""
    cache = needed.sampling["keys and values"]
    room = free_bytes - sum(needed.held.values()) - sum(needed.sampling.values()) + cache
    return needed.run.slots if cache <= room else max(1, int(needed.run.slots * max(0.0, room) / cache))


# -- numbers of a model and a recipe -----------------------------------------------------------------------------------


def measure_room(device: torch.device) -> float:
    """Bytes that this process could use: free memory, and the memory it has already."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # they share the memory of the host
    return psutil.virtual_memory().available / ranks + psutil.Process().memory_info().rss


def read_model_numbers(policy: Policy) -> ModelNumbers:
    config = policy.model.config.get_text_config()
    width, heads = config.hidden_size, getattr(config, "num_attention_heads", None) or 1  # a state-space model has no heads
    inner = getattr(config, "intermediate_size", None) or 4 * width
    layers: dict[str, Any] = linear_layers(policy.model)
    base = [layer.weight for name, layer in layers.items() if ".lora_" not in name]
    own = sum(value.numel() for value in policy.list_own_parameters().values()) if policy.adapter else 0
    return ModelNumbers(
        layers=config.num_hidden_layers,
        width=width,
        query_heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        intermediate=max(inner) if isinstance(inner, (list, tuple)) else inner,
        vocabulary=config.vocab_size,
        parameters=policy.num_parameters - own,
        linear_parameters=sum(map(count_elements, base)),
    )


def read_run_numbers(run: Run, encoded: EncodedData, ranks: int = 1) -> RunNumbers:
    """The settings for one rank of this many: each samples its own block of draws."""
    recipe, policy, algorithm = run.recipe, run.policy, run.recipe.algorithm
    device = policy.device
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + run.sampling.longest_completion
    rows = recipe.train.prompts_per_step * recipe.train.group_size
    # A micro-batch never exceeds a whole step, and always holds at least one row.
    most = longest * max(rows, recipe.cold_start.batch_size if recipe.cold_start.num_steps else 0)
    able = run.engine.capabilities
    chosen = (run.engine.slots or able.most_slots) if able.most_slots > 1 else 1
    problems = max(map(len, encoded.sets.values()), default=0)
    adapter = sum(value.numel() for value in policy.list_own_parameters().values()) if policy.adapter else None
    return RunNumbers(
        element=policy.model.dtype.itemsize,
        state_bits=recipe.optimizer.state_bits,
        lora_rank=recipe.model.lora.rank,
        four_bit=recipe.model.lora.base_dtype == "nf4",
        adapter_parameters=adapter,
        reference=needs_reference(recipe),
        ahead=recipe.ahead.lag > 0 and able.shares_weights,
        critic=needs_critic(algorithm),
        reward_model=recipe.reward_model.iterations > 0,
        micro_batch_tokens=max(longest, min(recipe.train.micro_batch_tokens, most)),
        activation_checkpointing=recipe.train.activation_checkpointing,
        own_kernels=isinstance(policy.backbone, FusedBackbone) and recipe.parallel.shard == "none",  # shards use modules
        gpu_bytes=float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0.0,
        slots=min(chosen, math.ceil(max(rows, problems * recipe.evaluation.samples) / ranks)),
        longest=longest,
        cache_element=able.cache_itemsize,
        ranks=ranks,
        shard=recipe.parallel.shard == "full",
        offload=recipe.parallel.offload,
        exact=adds_exactly(recipe),
    )
