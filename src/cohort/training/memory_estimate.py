"""How much memory a run needs, from the numbers of a model's config and of the recipe. Imports no torch.

What is counted by formula is exact: parameters, masters, gradients, moments, keys and values. Activations are an estimate:
what the backward of each layer reads again, for the fused kernels of the Llama and Qwen families; other modules keep more.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

MOMENT_BYTES = {32: 8.0, 8: 2.0 + 8.0 / 256.0}
"""Both moments of one element; in 8 bits two codes, and two float32 scales for every 256 elements."""
FOUR_BIT_BYTES = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0)
"""One weight in nf4: half a byte of code, a scale of one byte for every 64, and a float32 for every 256 of those."""
HEAD_CHUNK_ELEMENTS = 1 << 24
HEAD_GPU_BYTES, HEAD_GPU_SHARE, HEAD_GPU_ROWS = 5 << 28, 16, 256
"""Sizes of the loss head, as in ops/logprobs.py, which imports torch."""
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
    tied: bool = False
    """Input embedding and head are one matrix."""
    attention_bias: bool = False
    """Biases of the query, key and value projections (Qwen2)."""
    head_norms: bool = False
    """Norms of query and key heads (Qwen3)."""
    counted: int = 0
    """Parameters as counted in the model itself; 0: by the formula of the families."""
    counted_linear: int = 0
    """Those of them in linear layers below the head; 0: by the formula."""

    @property
    def projection_sizes(self) -> Mapping[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of one decoder layer."""
        queries, keys = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.width, queries),
            "k_proj": (self.width, keys),
            "v_proj": (self.width, keys),
            "o_proj": (queries, self.width),
            "gate_proj": (self.width, self.intermediate),
            "up_proj": (self.width, self.intermediate),
            "down_proj": (self.intermediate, self.width),
        }

    @property
    def parameters(self) -> int:
        if self.counted:
            return self.counted
        per_layer = sum(inputs * outputs for inputs, outputs in self.projection_sizes.values()) + 2 * self.width
        if self.attention_bias:
            per_layer += (self.query_heads + 2 * self.kv_heads) * self.head_dim
        if self.head_norms:
            per_layer += 2 * self.head_dim
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * per_layer + embeddings + self.width

    @property
    def linear_parameters(self) -> int:
        """What a base in 4 bits holds in 4 bits."""
        return self.counted_linear or self.layers * sum(inputs * outputs for inputs, outputs in self.projection_sizes.values())

    def adapter_parameters(self, rank: int) -> int:
        """Of low-rank adapters on every linear layer but the head."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.projection_sizes.values())


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
class Estimate:
    """Bytes by what they hold. `held` stay for the whole run, `training` and `sampling` take turns."""

    held: Mapping[str, float]
    training: Mapping[str, float]
    sampling: Mapping[str, float]
    model: ModelNumbers
    run: RunNumbers

    @property
    def peak(self) -> float:
        return sum(self.held.values()) + max(sum(self.training.values()), sum(self.sampling.values()))

    @property
    def parts(self) -> Mapping[str, float]:
        return {**self.held, **self.training, **self.sampling}


def activation_bytes(model: ModelNumbers, tokens: int, element: int, checkpointing: bool) -> float:
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


def head_bytes(model: ModelNumbers, run: RunNumbers) -> float:
    """A chunk of logits, and what the backward needs of them; at most, as if every token of a micro-batch were trained.

    A trained head keeps the gradients of a block of logits in the compute dtype, and makes its own gradient beside the one
    that is added up; a frozen one needs the gradients of a chunk at a time.
    """
    vocabulary = model.vocabulary
    if not run.gpu_bytes:
        return 2.0 * 4.0 * max(HEAD_CHUNK_ELEMENTS, vocabulary)
    chunk = max(1, HEAD_GPU_BYTES // (4 * vocabulary))
    chunk -= chunk % HEAD_GPU_ROWS if chunk > HEAD_GPU_ROWS else 0
    logits = 4.0 * min(chunk, run.micro_batch_tokens) * vocabulary
    if run.lora_rank:
        return logits + float(run.element) * min(chunk, run.micro_batch_tokens) * vocabulary
    block = chunk * max(1, int(run.gpu_bytes) // HEAD_GPU_SHARE // (run.element * vocabulary * chunk))
    kept = float(run.element) * min(block, run.micro_batch_tokens) * vocabulary
    return logits + kept + (run.element if run.micro_batch_tokens <= block else 4.0) * vocabulary * model.width


def kv_bytes_per_slot(model: ModelNumbers, longest: int, element: int) -> float:
    """Keys and values of one sequence."""
    return 2.0 * element * model.layers * model.kv_heads * model.head_dim * longest


def estimate(model: ModelNumbers, run: RunNumbers) -> Estimate:
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
    kept = activation_bytes(model, run.micro_batch_tokens, run.element, run.activation_checkpointing)
    # The reward model is fitted between two steps: its gradients and the policy's take turns.
    gradients = 4.0 * max(trained * (2 if run.critic else 1), count if run.reward_model else 0)
    training = {
        "gradients": gradients,
        "activations": kept * (1.0 if run.own_kernels else MODULE_FACTOR),
        "loss head": head_bytes(model, run),
    }
    cache = kv_bytes_per_slot(model, run.longest, run.cache_element or run.element)
    sampling = {"keys and values": run.slots * cache}
    return Estimate(held, training, sampling, model, run)


def words(needed: Estimate, free_bytes: float) -> str:
    """Whether it fits into `free_bytes` (an empty device's), and which setting to change first where it does not."""
    largest = sorted(needed.parts.items(), key=lambda part: -part[1])
    detail = ", ".join(f"{name} {size / GIB:.1f}" for name, size in largest if size >= 0.05 * GIB)
    text = f"about {needed.peak / GIB:.1f} GiB at the peak{f' ({detail})' if detail else ''}; {free_bytes / GIB:.1f} GiB are there for it"
    if needed.peak <= free_bytes:
        return f"{text}: it fits."
    fitting = made_to_fit(needed, free_bytes)
    if fitting is None:
        return f"{text}: it does not fit, and no setting makes it fit: use a smaller model, or a larger device."
    changed = [f"{field} = {spelled(field, value)}" for field, value in differences(needed.run, fitting)]
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


def differences(before: RunNumbers, after: RunNumbers) -> list[tuple[str, int]]:
    return [(field, getattr(after, name)) for name, field in FIELDS.items() if getattr(after, name) != getattr(before, name)]


def spelled(field: str, value: int) -> str:
    return '"nf4"' if field == FIELDS["four_bit"] else str(value).lower()


def made_to_fit(needed: Estimate, free_bytes: float) -> RunNumbers | None:
    """The first change, or the first pair or three of them, with which the run fits; None: none does."""

    def checkpointed(run: RunNumbers) -> RunNumbers:
        return replace(run, activation_checkpointing=True)

    def eight_bits(run: RunNumbers) -> RunNumbers:
        return replace(run, state_bits=8) if not run.lora_rank else run

    def adapted(run: RunNumbers) -> RunNumbers:
        return run if run.lora_rank else replace(run, lora_rank=ADVISED_RANK, own_kernels=False)  # PEFT's layers are modules

    def rounded(run: RunNumbers) -> RunNumbers:
        return replace(run, four_bit=True)

    attempts: list[list[Callable[[RunNumbers], RunNumbers]]] = [
        [],
        [checkpointed],
        [eight_bits],
        [checkpointed, eight_bits],
        [adapted],
        [checkpointed, adapted],
        [adapted, rounded],
        [checkpointed, adapted, rounded],
    ]
    for attempt in attempts:
        run = needed.run
        for change in attempt:
            run = change(run)
        run = sized(needed.model, run, free_bytes)
        if estimate(needed.model, run).peak <= free_bytes:
            return run
    return None


def sized(model: ModelNumbers, run: RunNumbers, free_bytes: float) -> RunNumbers:
    """With micro-batches and slots as they are where they fit, else as large as fit: one sequence at least."""
    needed = estimate(model, run)
    room = free_bytes - sum(needed.held.values())

    def fits(tokens: int) -> bool:
        return sum(estimate(model, replace(run, micro_batch_tokens=tokens)).training.values()) <= room

    if not fits(run.micro_batch_tokens):
        sizes = range(TOKEN_MULTIPLE, run.micro_batch_tokens, TOKEN_MULTIPLE)
        fitting = bisect.bisect_left(sizes, True, key=lambda tokens: not fits(tokens)) * TOKEN_MULTIPLE
        run = replace(run, micro_batch_tokens=min(run.micro_batch_tokens, max(fitting, run.longest)))
    return replace(run, slots=fitting_slots(needed, free_bytes))


def fitting_slots(needed: Estimate, free_bytes: float) -> int:
    """The slots of the run, or as many of them as have room beside what is held: one at least."""
    room, cache = free_bytes - sum(needed.held.values()), sum(needed.sampling.values())
    return needed.run.slots if cache <= room else max(1, int(needed.run.slots * max(0.0, room) / cache))


def table(models: Mapping[str, ModelNumbers]) -> list[str]:
    """The rows of docs/memory.md: GiB of each part, for each model; tokens and slots are those of its text."""
    rows: list[tuple[str, Callable[[ModelNumbers], float]]] = []

    def weights(run: RunNumbers) -> Callable[[ModelNumbers], float]:
        return lambda model: sum(estimate(model, run).held.values()) + estimate(model, run).training["gradients"]

    def kept(tokens: int, checkpointing: bool) -> Callable[[ModelNumbers], float]:
        return lambda model: activation_bytes(model, tokens, 2, checkpointing)

    rows.append(("full training", weights(RunNumbers())))
    rows.append(("full training, 8-bit moments", weights(RunNumbers(state_bits=8))))
    rows.append(("adapters of rank 16", weights(RunNumbers(lora_rank=16))))
    rows.append(("the same over a base in 4 bits", weights(RunNumbers(lora_rank=16, four_bit=True))))
    rows.append(("reference for the KL (none with adapters)", lambda model: 2.0 * model.parameters))
    rows.append(("activations of 16,384 tokens", kept(16384, False)))
    rows.append(("the same, checkpointed", kept(16384, True)))
    rows.append(
        ("loss head of 16,384 tokens on a GPU of 140 GiB", lambda model: head_bytes(model, RunNumbers(gpu_bytes=140 * GIB)))
    )
    rows.append(("the same with adapters", lambda model: head_bytes(model, RunNumbers(gpu_bytes=140 * GIB, lora_rank=16))))
    rows.append(("keys and values of 256 slots of 640 tokens", lambda model: 256 * kv_bytes_per_slot(model, 640, 2)))
    rows.append(("keys and values of 32 slots of 16,512 tokens", lambda model: 32 * kv_bytes_per_slot(model, 16512, 2)))
    return [
        f"| {what} | " + " | ".join(f"{measure(model) / GIB:.2f}" for model in models.values()) + " |" for what, measure in rows
    ]
