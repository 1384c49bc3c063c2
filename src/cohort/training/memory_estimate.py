"""How much memory a rank of a run needs, from the numbers of a model's config and of the recipe.

What is counted by formula is exact: parameters, masters, gradients, moments, keys and values. Activations are an estimate:
what the backward of each layer reads again, for the fused kernels of the Llama and Qwen families; other modules keep more.
Ranks that hold the whole model each need what one needs alone, but for their shares of the slots; with `parallel.shard` they
share out what is held.
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
"""By a rule of thumb: what the modules of transformers keep for the backward, against own kernels."""
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
    """As counted in the model itself."""
    linear_parameters: int = 0
    """Those of them in linear layers below the head: what a base in 4 bits holds in 4 bits."""

    @property
    def layer_parameters(self) -> int:
        """Of the matrices of one layer."""
        queries, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        return 2 * self.width * (queries + keys) + 3 * self.width * self.intermediate

    def adapter_parameters(self, rank: int) -> int:
        """Of low-rank adapters on every linear layer but the head: rank x (inputs + outputs) of each."""
        queries, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.width + queries) + 2 * (self.width + keys)
        return self.layers * rank * (attention + 3 * (self.width + self.intermediate))


@dataclass(frozen=True)
class RunNumbers:
    """What of a recipe decides its memory."""

    element: int = 2
    """Bytes of a number in the compute dtype: 2 for bfloat16, 4 for float32."""
    state_bits: int = 32
    lora_rank: int = 0
    adapter_parameters: int | None = None
    """Trained parameters where `lora_rank` adapts other modules than all linear layers; None counts those."""
    four_bit: bool = False
    """The frozen base holds its linear layers in 4 bits."""
    reference: bool = False
    """A second copy of the weights for the KL; an adapter needs none."""
    teacher_parameters: int = 0
    """Of a frozen model that credits tokens; 0: there is none."""
    ahead: bool = False
    """Completions are sampled from a copy of the weights while training goes on; an adapter is copied alone."""
    critic: bool = False
    reward_model: bool = False
    """A model of the policy's size that is fitted whole, also where the policy has adapters."""
    micro_batch_tokens: int = 16384
    activation_checkpointing: bool = False
    own_kernels: bool = True
    """Whether training runs on the fused kernels."""
    gpu_bytes: float = 0.0
    """Memory of the whole GPU, of which the loss head takes a share; 0: a CPU."""
    slots: int = 256
    longest: int = 640
    """Prompt and completion."""
    cache_element: int = 0
    """Bytes of a cached number; 0: as `element`."""
    ranks: int = 1
    shard: bool = False
    """Weights, moments and gradients are shared out over the ranks (FSDP2)."""
    offload: bool = False
    """With `shard`: the shares rest in the memory of the host."""
    exact: bool = False
    """Gradients are summed in float64, of every trained parameter on every rank."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a run by what they hold. `held` stay for the whole run, `training` and `sampling` take turns (not with ahead.lag), `starting` is over then."""

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
    """What the forward of `tokens` keeps for the backward.

    Per token and layer: the residual stream before attention and before the MLP (both inputs of a norm), the rotated queries,
    keys, values and the output of attention, gate and up. Norms and SwiGLU are computed again from these. Adapters of a rank keep
    A x of each of seven linear layers. Checkpointed, one residual stream per layer stays, and one layer at a time is whole.
    """
    queries, keys = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    whole = element * (2 * model.width + 2 * queries + 2 * keys + 2 * model.intermediate + ADAPTED_LAYERS * rank)
    # One float32 number per norm and row, and one per head for the softmax, are read again too.
    whole += 4 * (2 + model.query_heads)
    if checkpointing:
        return float(tokens) * (model.layers * element * model.width + whole)
    return float(tokens) * model.layers * whole


def count_head_bytes(model: ModelNumbers, run: RunNumbers) -> float:
    """A chunk of logits, and what the backward needs of them; at most, as if every token of a micro-batch were trained.

    A trained head keeps the gradients of a block of logits in the compute dtype, and makes its own gradient beside the one
    that is added up; a frozen one needs the gradients of a chunk at a time.
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


def count_gradient_bytes(run: RunNumbers) -> float:
    """Of one trained parameter on one rank. Shared out, a float64 sum stands beside the gradient that is rounded from it."""
    if run.shard:
        return (12.0 if run.exact else 4.0) / run.ranks
    return 8.0 if run.exact else 4.0


def count_unit_bytes(model: ModelNumbers, run: RunNumbers) -> float:
    """What is whole at a time where the model is shared out: the head, which backward begins with, a layer and the one after it.

    Of the largest of these also the gradient, and a copy of that in the dtype in which ranks add them.
    """
    head = model.vocabulary * model.width
    gradient = 0.0 if run.lora_rank else run.element + (8.0 if run.exact else 4.0)
    return float(run.element) * (head + 2 * model.layer_parameters) + gradient * max(head, model.layer_parameters)


def count_starting_bytes(model: ModelNumbers, run: RunNumbers) -> dict[str, float]:
    """What is whole on every rank until it is shared out: the model as it was read, and a copy of it for others to begin with."""
    if not run.shard:
        return {}
    copied = run.reference or run.critic or run.reward_model
    return {
        "whole model as read": (run.element if run.lora_rank else 4.0) * model.parameters,
        "its copy": float(run.element) * model.parameters if copied else 0.0,
    }


def estimate_memory(model: ModelNumbers, run: RunNumbers) -> MemoryEstimate:
    """Named bytes of a rank."""
    count = model.parameters
    trained = count
    if run.lora_rank:
        trained = model.adapter_parameters(run.lora_rank) if run.adapter_parameters is None else run.adapter_parameters
    apart = 4.0 if run.element < 4 else 0.0
    # A shared-out parameter rests as its float32 master alone; what it computes with is made for a unit at a time.
    computed = 0.0 if run.shard and apart else float(run.element)
    moments = MOMENT_BYTES[run.state_bits]
    saved = (run.element - FOUR_BIT_BYTES) * model.linear_parameters if run.lora_rank and run.four_bit else 0.0
    held = {
        "parameters": computed * trained + (float(run.element) * count if run.lora_rank else 0.0) - saved,
        "masters": apart * trained,
        "moments": moments * trained,
    }
    # With adapters these are over the policy's base, but for slices, which belong to one model.
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
    # The reward model is fitted between two steps: its gradients and the policy's take turns.
    training = {
        "gradients": count_gradient_bytes(run) * max(trained * (2 if run.critic else 1), count if run.reward_model else 0),
        "activations": kept * (1.0 if run.own_kernels else MODULE_FACTOR),
        "loss head": count_head_bytes(model, run),
    }
    cache = count_slot_bytes(model, run.longest, run.cache_element or run.element)
    sampling = {"keys and values": run.slots * cache}
    if run.shard:
        training["units at work"] = count_unit_bytes(model, run)
        sampling["whole model"] = float(run.element) * count
    return MemoryEstimate(held, training, sampling, count_starting_bytes(model, run), model, run)


def describe_memory(needed: MemoryEstimate, free_bytes: float) -> str:
    """Whether it fits into `free_bytes` (an empty device's), and which settings make it fit where it does not."""
    parts = {**needed.held, **needed.training, **needed.sampling, **needed.starting}
    largest = sorted(parts.items(), key=lambda part: -part[1])
    detail = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest if size >= 0.05 * GIB)
    whose = f" on each of {needed.run.ranks} ranks" if needed.run.ranks > 1 else ""
    text = f"about {needed.peak / GIB:.1f} GiB at the peak{whose}{f' ({detail})' if detail else ''}; {free_bytes / GIB:.1f} GiB are there for it"
    if needed.peak <= free_bytes:
        return f"{text}: it fits."
    first, *others = [describe_changes(needed.run, run) for run in list_fitting_runs(needed, free_bytes)] or [""]
    if not first:
        return f"{text}: it does not fit, and no setting makes it fit: use a smaller model, or a larger device."
    also = f" Also enough: {'; or '.join(others)}." if others else ""
    return f"{text}: it does not fit. Set {first}.{also}"


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
"""The settings that make room, the cheapest first: sizes change no result, then time, then precision, then the method."""
WORDS = {FIELDS["four_bit"]: '"nf4"', FIELDS["exact"]: '"fast"', FIELDS["shard"]: '"full"'}
"""How the value is spelled of those that are no numbers and no flags."""
ADVISED_RANK = 16
ADAPTED_LAYERS = 7
"""Linear layers of a layer of the model, as many as can have an adapter."""
TOKEN_MULTIPLE = 256
RANKS_PER_HOST = 8
MOST_RANKS = 64


def list_changes(before: RunNumbers, after: RunNumbers) -> list[tuple[str, int]]:
    return [(field, getattr(after, name)) for name, field in FIELDS.items() if getattr(after, name) != getattr(before, name)]


def spell_value(field: str, value: int) -> str:
    return WORDS.get(field) or str(value).lower()


def describe_changes(before: RunNumbers, after: RunNumbers) -> str:
    """The keys and values to set, and the command where more ranks are needed than there are."""
    changed = " and ".join(f"{field} = {spell_value(field, value)}" for field, value in list_changes(before, after))
    if after.ranks == before.ranks:
        return changed
    return f"{changed} on {after.ranks} ranks ({write_launch(after.ranks, bool(after.gpu_bytes))} -m cohort train RECIPE)"


def write_launch(ranks: int, gpus: bool) -> str:
    """The command that starts so many: a GPU each, eight to a host; on CPUs a host each, for what is shared out is its memory."""
    per_host = min(ranks, RANKS_PER_HOST) if gpus else 1
    if ranks == per_host:
        return f"torchrun --standalone --nproc-per-node {ranks}"
    return f"torchrun --nnodes {ranks // per_host} --nproc-per-node {per_host} --node-rank K --master-addr HOST"


def find_fitting_run(needed: MemoryEstimate, free_bytes: float) -> RunNumbers | None:
    """The first change, or the first few of them together, with which the run fits; None: none does."""
    return next(list_fitting_runs(needed, free_bytes), None)


def list_fitting_runs(needed: MemoryEstimate, free_bytes: float) -> Iterator[RunNumbers]:
    """Every way to make the run fit, the cheapest first, without those that do more than one before them."""
    found: list[set[str]] = []
    for changes in list_remedies(needed.run):
        run = fit_sizes(needed.model, replace(needed.run, **changes), free_bytes)
        settings = {name for name, value in changes.items() if value != getattr(needed.run, name)} - {"own_kernels", "ranks"}
        if not any(settings >= fewer for fewer in found) and estimate_memory(needed.model, run).peak <= free_bytes:
            found.append(settings)
            yield run


def list_remedies(run: RunNumbers) -> Iterator[dict[str, Any]]:
    """What to try, in this order. Ranks that are there share out before precision is given up; ranks that are not come last."""
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
    if not run.shard:  # a base in 4 bits is held whole
        yield from (adapted | rounded, checkpointed | adapted | rounded)
    yield from shares if run.ranks == 1 else ()


def fit_sizes(model: ModelNumbers, run: RunNumbers, free_bytes: float) -> RunNumbers:
    """With micro-batches and slots as they are where they fit, else as large as fit: one sequence at least."""
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
    """The slots of the run, or as many of them as have room beside what is held: one at least."""
    cache = needed.sampling["keys and values"]
    room = free_bytes - sum(needed.held.values()) - sum(needed.sampling.values()) + cache
    return needed.run.slots if cache <= room else max(1, int(needed.run.slots * max(0.0, room) / cache))


def tabulate_memory(models: Mapping[str, ModelNumbers]) -> list[str]:
    """The rows of docs/memory.md: GiB of each part, for each model; tokens and slots are those of its text."""
    adapters, gpu = RunNumbers(lora_rank=ADVISED_RANK), RunNumbers(gpu_bytes=140 * GIB)
    columns = []
    for model in models.values():

        def weights(run: RunNumbers, model: ModelNumbers = model) -> float:
            needed = estimate_memory(model, run)
            return sum(needed.held.values()) + needed.training["gradients"]

        columns.append(
            {
                "full training": weights(RunNumbers()),
                "full training, 8-bit moments": weights(RunNumbers(state_bits=8)),
                "adapters of rank 16": weights(adapters),
                "the same over a base in 4 bits": weights(replace(adapters, four_bit=True)),
                "reference for the KL (none with adapters)": 2.0 * model.parameters,
                "activations of 16,384 tokens": count_activation_bytes(model, 16384, 2, False),
                "the same, checkpointed": count_activation_bytes(model, 16384, 2, True),
                "loss head of 16,384 tokens on a GPU of 140 GiB": count_head_bytes(model, gpu),
                "the same with adapters": count_head_bytes(model, replace(gpu, lora_rank=ADVISED_RANK)),
                "keys and values of 256 slots of 640 tokens": 256 * count_slot_bytes(model, 640, 2),
                "keys and values of 32 slots of 16,512 tokens": 32 * count_slot_bytes(model, 16512, 2),
            }
        )
    return [f"| {what} | " + " | ".join(f"{column[what] / GIB:.2f}" for column in columns) + " |" for what in columns[0]]


# -- numbers of a model and a recipe -----------------------------------------------------------------------------------
#


def measure_room(device: torch.device) -> float:
    """Bytes that this process could hold: what is free, and what it holds already."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks of one host share its memory
    return psutil.virtual_memory().available / beside + psutil.Process().memory_info().rss


def list_base_weights(policy: Policy) -> list[torch.Tensor]:
    """Of the linear layers below the head, without those that an adapter puts beside them."""
    layers: dict[str, Any] = linear_layers(policy.model)
    return [layer.weight for name, layer in layers.items() if ".lora_" not in name]


def read_model_numbers(policy: Policy) -> ModelNumbers:
    config = policy.model.config.get_text_config()
    width, heads = config.hidden_size, getattr(config, "num_attention_heads", None) or 1  # a state space has no heads
    inner = getattr(config, "intermediate_size", None) or 4 * width
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
        linear_parameters=sum(map(count_elements, list_base_weights(policy))),
    )


def read_run_numbers(run: Run, encoded: EncodedData, ranks: int = 1) -> RunNumbers:
    """Of one of so many ranks: each samples its own block of draws."""
    recipe, policy, algorithm = run.recipe, run.policy, run.recipe.algorithm
    device, dtype = policy.device, policy.model.dtype
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + run.sampling.max_completion_tokens
    rows = recipe.train.prompts_per_step * recipe.train.group_size
    # A budget larger than a whole step is never filled, and one row is taken whole however small the budget is.
    most = longest * max(rows, recipe.cold_start.batch_size if recipe.cold_start.num_steps else 0)
    able = run.engine.capabilities
    chosen = (run.engine.slots or able.most_slots) if able.most_slots > 1 else 1
    problems = max(map(len, encoded.sets.values()), default=0)
    adapter = sum(value.numel() for value in policy.list_own_parameters().values()) if policy.adapter else None
    return RunNumbers(
        element=dtype.itemsize,
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
        own_kernels=isinstance(policy.backbone, FusedBackbone) and recipe.parallel.shard == "none",  # slices have modules
        gpu_bytes=float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0.0,
        slots=min(chosen, math.ceil(max(rows, problems * recipe.evaluation.samples) / ranks)),
        longest=longest,
        cache_element=able.cache_itemsize,
        ranks=ranks,
        shard=recipe.parallel.shard == "full",
        offload=recipe.parallel.offload,
        exact=adds_exactly(recipe),
    )
