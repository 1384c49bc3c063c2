"""How much memory a run needs, from the numbers of a model's config and of the recipe.

What is counted by formula is exact: parameters, masters, gradients, moments, keys and values. Activations are an estimate:
what the backward of each layer reads again, for the fused kernels of the Llama and Qwen families; other modules keep more.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
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
from cohort.training.build import EncodedData
from cohort.training.objective import needs_critic
from cohort.training.parts import Parts

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


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a run by what they hold. `held` stay for the whole run, `training` and `sampling` take turns."""

    held: Mapping[str, float]
    training: Mapping[str, float]
    sampling: Mapping[str, float]
    model: ModelNumbers
    run: RunNumbers

    @property
    def peak(self) -> float:
        return sum(self.held.values()) + max(sum(self.training.values()), sum(self.sampling.values()))


def count_activation_bytes(model: ModelNumbers, tokens: int, element: int, checkpointing: bool) -> float:
    """What the forward of `tokens` keeps for the backward.

    Per token and layer: the residual stream before attention and before the MLP (both inputs of a norm), the rotated queries,
    keys, values and the output of attention, gate and up. Norms and SwiGLU are computed again from these. Checkpointed, one
    residual stream per layer stays, and one layer at a time is whole.
    """
    queries, keys = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    whole = element * (2 * model.width + 2 * queries + 2 * keys + 2 * model.intermediate)
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


def estimate_memory(model: ModelNumbers, run: RunNumbers) -> MemoryEstimate:
    """Named bytes of a run."""
    count = model.parameters
    trained = count
    if run.lora_rank:
        trained = model.adapter_parameters(run.lora_rank) if run.adapter_parameters is None else run.adapter_parameters
    apart = 4.0 if run.element < 4 else 0.0
    moments = MOMENT_BYTES[run.state_bits]
    saved = (run.element - FOUR_BIT_BYTES) * model.linear_parameters if run.lora_rank and run.four_bit else 0.0
    held = {
        "parameters": float(run.element) * (count + (trained if run.lora_rank else 0)) - saved,
        "masters": apart * trained,
        "moments": moments * trained,
    }
    if run.reference and not run.lora_rank:
        held["reference"] = float(run.element) * count
    if run.teacher_parameters:
        held["teacher"] = float(run.element) * run.teacher_parameters
    if run.critic:  # with adapters it is one over the policy's base
        held["critic"] = (run.element + apart + moments) * trained
    if run.reward_model:
        held["reward model"] = (run.element + apart + moments) * count
    kept = count_activation_bytes(model, run.micro_batch_tokens, run.element, run.activation_checkpointing)
    # The reward model is fitted between two steps: its gradients and the policy's take turns.
    gradients = 4.0 * max(trained * (2 if run.critic else 1), count if run.reward_model else 0)
    training = {
        "gradients": gradients,
        "activations": kept * (1.0 if run.own_kernels else MODULE_FACTOR),
        "loss head": count_head_bytes(model, run),
    }
    cache = count_slot_bytes(model, run.longest, run.cache_element or run.element)
    sampling = {"keys and values": run.slots * cache}
    return MemoryEstimate(held, training, sampling, model, run)


def describe_memory(needed: MemoryEstimate, free_bytes: float) -> str:
    """Whether it fits into `free_bytes` (an empty device's), and which setting to change first where it does not."""
    largest = sorted({**needed.held, **needed.training, **needed.sampling}.items(), key=lambda part: -part[1])
    detail = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest if size >= 0.05 * GIB)
    text = f"about {needed.peak / GIB:.1f} GiB at the peak{f' ({detail})' if detail else ''}; {free_bytes / GIB:.1f} GiB are there for it"
    if needed.peak <= free_bytes:
        return f"{text}: it fits."
    fitting = find_fitting_run(needed, free_bytes)
    if fitting is None:
        return f"{text}: it does not fit, and no setting makes it fit: use a smaller model, or a larger device."
    changed = [f"{field} = {spell_value(field, value)}" for field, value in list_changes(needed.run, fitting)]
    return f"{text}: it does not fit. Set {' and '.join(changed)}."


FIELDS = {
    "micro_batch_tokens": "train.micro_batch_tokens",
    "slots": "sampling.slots",
    "activation_checkpointing": "train.activation_checkpointing",
    "state_bits": "optimizer.state_bits",
    "lora_rank": "model.lora.rank",
    "four_bit": "model.lora.base_dtype",
}
"""The settings that make room, the cheapest first: sizes change no result, then time, then precision, then the method."""
ADVISED_RANK = 16
TOKEN_MULTIPLE = 256


def list_changes(before: RunNumbers, after: RunNumbers) -> list[tuple[str, int]]:
    return [(field, getattr(after, name)) for name, field in FIELDS.items() if getattr(after, name) != getattr(before, name)]


def spell_value(field: str, value: int) -> str:
    return '"nf4"' if field == FIELDS["four_bit"] else str(value).lower()


def find_fitting_run(needed: MemoryEstimate, free_bytes: float) -> RunNumbers | None:
    """The first change, or the first pair or three of them, with which the run fits; None: none does."""
    is_adapted = needed.run.lora_rank > 0
    checkpointed: dict[str, Any] = {"activation_checkpointing": True}
    eight_bits: dict[str, Any] = {} if is_adapted else {"state_bits": 8}
    adapted: dict[str, Any] = (
        {} if is_adapted else {"lora_rank": ADVISED_RANK, "own_kernels": False}
    )  # PEFT's layers are modules
    rounded: dict[str, Any] = {"four_bit": True}
    for changes in (
        {},
        checkpointed,
        eight_bits,
        checkpointed | eight_bits,
        adapted,
        checkpointed | adapted,
        adapted | rounded,
        checkpointed | adapted | rounded,
    ):
        run = fit_sizes(needed.model, replace(needed.run, **changes), free_bytes)
        if estimate_memory(needed.model, run).peak <= free_bytes:
            return run
    return None


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
    room, cache = free_bytes - sum(needed.held.values()), sum(needed.sampling.values())
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


# -- the numbers of a run ----------------------------------------------------------------------------------------------


def measure_room(device: torch.device) -> float:
    """Bytes that this process could hold: what is free, and what it holds already."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    return float(psutil.virtual_memory().available + psutil.Process().memory_info().rss)


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


def read_run_numbers(parts: Parts, encoded: EncodedData) -> RunNumbers:
    recipe, policy, algorithm = parts.recipe, parts.policy, parts.recipe.algorithm
    device, dtype = policy.device, policy.model.dtype
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + parts.sampling.max_completion_tokens
    rows = recipe.train.prompts_per_step * recipe.train.group_size
    # A budget larger than a whole step is never filled, and one row is taken whole however small the budget is.
    most = longest * max(rows, recipe.cold_start.batch_size if recipe.cold_start.num_steps else 0)
    able = parts.engine.capabilities
    chosen = (parts.engine.slots or able.most_slots) if able.most_slots > 1 else 1
    problems = max(map(len, encoded.sets.values()), default=0)
    adapter = sum(value.numel() for value in policy.list_own_parameters().values()) if policy.adapter else None
    return RunNumbers(
        element=dtype.itemsize,
        state_bits=recipe.optimizer.state_bits,
        lora_rank=recipe.model.lora.rank,
        four_bit=recipe.model.lora.base_dtype == "nf4",
        adapter_parameters=adapter,
        reference=needs_reference(recipe),
        critic=needs_critic(algorithm),
        reward_model=recipe.reward_model.iterations > 0,
        micro_batch_tokens=max(longest, min(recipe.train.micro_batch_tokens, most)),
        activation_checkpointing=recipe.train.activation_checkpointing,
        own_kernels=isinstance(policy.backbone, FusedBackbone),
        gpu_bytes=float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0.0,
        slots=min(chosen, max(rows, problems * recipe.evaluation.samples)),
        longest=longest,
        cache_element=able.cache_itemsize,
    )
