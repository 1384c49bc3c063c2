"""The engine for models that `local` refuses: batched decoding with the model's own cache of transformers.

Linear attention, state spaces, latent attention and attention sinks are decoded by their own modules over their own cache. Many
completions are decoded in parallel, with the scheduler, noise and sampler of the local engine. A prompt runs once per group, in batches of
one length without padding, because padding would change a recurrent state. Where a proof shows that it is exact, rows of all
lengths then decode together, and a waiting completion takes the slot of a finished one. Otherwise every batch has rows of one length, which
start and end together.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.engine.decoders import DecoderProof, name_problems
from cohort.engine.protocol import Capabilities, EngineSetup, OnFinish, Turns
from cohort.engine.scheduler import SlotState, Workspace
from cohort.engine.slot_engine import MOST_SLOTS, SlotEngine
from cohort.errors import EngineError, describe_problem
from cohort.model.head import SplitModel, split
from cohort.types import Completion, NoiseKey, Request, Sampling

CACHE_NAMES = ("past_key_values", "cache_params")
"""Names of the cache in the arguments and outputs of modeling files."""
COPIES = 3
"""Copies of the cache that exist at most while a row starts: the old cache, the added rows, and both joined."""
STEP_ROUNDING = 100.0
"""A recurrent step uses another formula than the scan over a sequence, and the difference can change a router's choice. In float32
differences up to 1.4e-4 nats were measured (gated delta rules and state spaces of width 32 with experts), and 2e-6 without recurrence."""
GROWING = ("keys", "values")
"""[rows, heads, tokens, width]. Any other tensor with two or more dimensions is a state, [rows, ...]."""
RAGGED_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
"""Layers in which masked positions have no effect, at any length. Compressed and sparse keys are counted from the first position, so
padding moves them, which a short proof cannot show."""

Change = Callable[[Any, str, Tensor], Tensor]
"""(layer, name, tensor) -> the tensor that replaces it."""


def make_cached(setup: EngineSetup) -> tuple[CachedEngine, str]:
    """Build the engine and its console message. Raises EngineError if the model's cache has no separable rows or is not exact."""
    engine = CachedEngine(setup)
    return engine, f"engine cached: batched decoding with the cache of transformers, {engine.describe()}"


class CachedEngine(SlotEngine):
    name = "cached"

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self.parts, self.sample, self.why_equal = prove_cached(setup.model)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            most_slots=MOST_SLOTS[self.model.device.type],
            cache_itemsize=self.model.dtype.itemsize * COPIES,
            rounding=STEP_ROUNDING,
            takes_turns=self.why_equal is None,
        )

    def describe(self) -> str:
        """Which rows decode together, for the console."""
        return "rows of all lengths together" if self.why_equal is None else f"rows of one length together ({self.why_equal})"

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        most: Sequence[int],
        on_finish: OnFinish | None,
        turns: Turns | None = None,
    ) -> list[Completion]:
        if self.why_equal is None:
            return super()._decode(requests, sampling, noise, most, on_finish, turns)
        by_length: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            by_length.setdefault(len(request.context_ids), []).append(number)
        found: dict[int, Completion] = {}
        for numbers in by_length.values():
            longest = max(len(requests[number].prompt.token_ids) for number in numbers) + sampling.longest_completion
            count = self.fit_slots(longest, len(numbers))
            for at in range(0, len(numbers), count):
                batch = numbers[at : at + count]
                done = super()._decode(
                    [requests[number] for number in batch], sampling, noise, [most[number] for number in batch], on_finish
                )
                found.update(zip(batch, done, strict=True))
        return [found[number] for number in range(len(requests))]

    def _make_workspace(self, longest: int, completions: int, sampling: Sampling, columns: int) -> Workspace:
        slots, device = self.fit_slots(longest, completions), self.model.device
        state = SlotState(slots, completions, sampling, device, columns)
        decoder = CacheDecoder(self.parts, device, self.why_equal is None)
        return Workspace(decoder, state, None, self.slots, slots, longest, completions, sampling, ())

    def _count_slot_bytes(self, length: int) -> int:
        return COPIES * self.sample.estimate_bytes(length)


class CacheDecoder:
    """A decoder (decoders.py) over a cache of transformers. Its rows are the first slots, as many as were ever in use at once."""

    def __init__(self, parts: SplitModel, device: torch.device, ragged: bool) -> None:
        self.backbone, self.device, self.ragged = parts.backbone, device, ragged
        self.arguments = inspect.signature(parts.backbone.forward).parameters
        self.cache_name = next((name for name in CACHE_NAMES if name in self.arguments), "")
        self.held: CacheRows | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[CacheRows, Tensor]:
        by_length: dict[int, list[int]] = {}
        for number, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt), []).append(number)
        joined, states_PH = None, []
        for length, numbers in by_length.items():
            token_ids_PT = torch.tensor([list(prompts[number]) for number in numbers], device=self.device)
            output = self.backbone(input_ids=token_ids_PT, use_cache=True)
            cache = getattr(output, self.cache_name, None) if self.cache_name else None
            if not hasattr(cache, "layers"):
                raise EngineError(f"its cache cannot be separated into rows ({type(cache).__name__})")
            rows = CacheRows(cache, len(numbers), length)
            joined = rows if joined is None else joined.join(rows)
            states_PH.append(output.last_hidden_state[:, -1])
        assert joined is not None
        order = sorted(range(len(prompts)), key=[number for numbers in by_length.values() for number in numbers].__getitem__)
        back = torch.tensor(order, device=self.device)
        return joined.take_rows(back), torch.cat(states_PH)[back]

    def load(self, rows: Tensor, prompts: CacheRows, prompt_rows: Tensor) -> None:
        new, held, places = prompts.take_rows(prompt_rows), self.held, rows.tolist()
        if held is None:
            self.held, order, first = new, [], 0
        else:
            self.held, order, first = held.join(new), list(range(held.rows)), held.rows
        order += [0] * (1 + max(places) - len(order))
        for number, place in enumerate(places):
            order[place] = first + number
        if order != list(range(self.held.rows)):
            self.held = self.held.take_rows(torch.tensor(order, device=self.device))

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        assert self.held is not None
        self.held.overwrite_rows(sources, targets)

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        assert self.held is not None
        held = self.held.take_first(len(tokens_B))
        if self.ragged:
            held = held.fit_length(longest - 1)
        rows = held.rows
        inputs: dict[str, Any] = {self.cache_name: held.cache}
        if "position_ids" in self.arguments:
            inputs["position_ids"] = positions_B[:rows, None]
        if held.grows and self.ragged and "attention_mask" in self.arguments:
            places_T = torch.arange(held.length + 1, device=self.device)
            inputs["attention_mask"] = (places_T >= held.length - positions_B[:rows, None]).long()
        output = self.backbone(input_ids=tokens_B[:rows, None], use_cache=True, **inputs)
        # Some modeling files return a new cache instead of writing to the one they were given.
        self.held = CacheRows(getattr(output, self.cache_name), rows, held.length + 1)
        # If the number of rows was rounded up, the extra slots have no row here; nothing reads their hidden states.
        hidden_BH: Tensor = F.pad(output.last_hidden_state[:, -1], (0, 0, 0, len(tokens_B) - rows))
        return hidden_BH


# -- rows of a cache ---------------------------------------------------------------------------------------------------


class CacheRows:
    """Rows of a transformers cache that all end after `length` tokens, padding included.

    A layer keeps keys and values, which grow with the sequence, or states of a fixed size (convolutions, recurrences), or both. Shorter
    rows are padded on the left, and a mask hides the padding from attention. States have no positions and must never read
    padding, so every prompt first runs without it.
    """

    def __init__(self, cache: Any, rows: int, length: int) -> None:
        self.cache, self.rows, self.length = cache, rows, length

    @property
    def why_not_ragged(self) -> str | None:
        """Why rows of different lengths cannot be in one batch; None if they can."""
        others = sorted({type(layer).__name__ for layer in self.cache.layers} - RAGGED_LAYERS)
        return f"its cache has {', '.join(others)} layers" if others else None

    @property
    def grows(self) -> bool:
        """Whether any layer keeps keys and values. Without them no mask is needed, and the modules would misread one."""
        return any(name in GROWING for layer in self.cache.layers for _, name, _ in list_tensors(layer))

    def take_rows(self, rows: Tensor) -> CacheRows:
        """A copy of these rows, in this order, repeats included."""
        return self._change_tensors(lambda layer, name, tensor: tensor.index_select(0, rows), len(rows), self.length)

    def take_first(self, rows: int) -> CacheRows:
        return self if rows >= self.rows else self._change_tensors(lambda layer, name, tensor: tensor[:rows], rows, self.length)

    def fit_length(self, length: int) -> CacheRows:
        """The same rows, padded or cut on the left to this length."""

        def fit(layer: Any, name: str, tensor: Tensor) -> Tensor:
            if name not in GROWING:
                return tensor
            window = getattr(layer, "sliding_window", None)  # such a layer keeps one token less than its window
            missing = (length if window is None else min(length, window - 1)) - tensor.shape[-2]
            # Zeros, not uninitialised memory: masked values still enter the products, and 0 * NaN is NaN.
            return F.pad(tensor, (0, 0, missing, 0)) if missing > 0 else tensor[..., -missing:, :]

        return self if length == self.length else self._change_tensors(fit, self.rows, length)

    def join(self, other: CacheRows) -> CacheRows:
        """These rows, followed by the other rows."""
        length = max(self.length, other.length)
        added = iter([tensor for layer in other.fit_length(length).cache.layers for _, _, tensor in list_tensors(layer)])

        def append(layer: Any, name: str, tensor: Tensor) -> Tensor:
            more = next(added, None)
            if more is None or more.shape[1:] != tensor.shape[1:]:
                raise EngineError(f"the shape of {name} in its cache depends on the prompt")
            return torch.cat((tensor, more))

        return self.fit_length(length)._change_tensors(append, self.rows + other.rows, length)

    def overwrite_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows to other rows, in place."""
        for layer in self.cache.layers:
            for _, _, tensor in list_tensors(layer):
                tensor[targets] = tensor[sources]

    def estimate_bytes(self, length: int) -> int:
        """Bytes of one row of this length."""
        total = 0.0
        for layer in self.cache.layers:
            for _, name, tensor in list_tensors(layer):
                total += tensor.nbytes / self.rows * (length / tensor.shape[-2] if name in GROWING else 1.0)
        return int(total)

    def _change_tensors(self, change: Change, rows: int, length: int) -> CacheRows:
        cache = copy.copy(self.cache)
        cache.layers = [copy_layer(layer) for layer in self.cache.layers]
        for layer in cache.layers:
            for holder, name, tensor in list_tensors(layer):
                holder[name] = change(layer, str(name), tensor)
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = length
        return CacheRows(cache, rows, length)


def copy_layer(layer: Any) -> Any:
    """A copy whose tensors can be replaced without changing the original layer."""
    copied = copy.copy(layer)
    vars(copied).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    return copied


def list_tensors(layer: Any) -> Iterator[tuple[dict[Any, Any], Any, Tensor]]:
    """(dict that holds it, its key, tensor) of every tensor with one row per row of the batch."""
    fields = vars(layer)
    for holder in [fields, *(value for value in fields.values() if isinstance(value, dict))]:
        for name, value in list(holder.items()):
            if isinstance(value, Tensor) and value.dim() > 1:
                yield holder, name, value


# -- proofs ------------------------------------------------------------------------------------------------------------


def prove_cached(model: Any) -> tuple[SplitModel, CacheRows, str | None]:
    """(halves, sample rows for estimates, why rows must have one length or None). Raises EngineError if no batch is exact."""
    config = model.config.get_text_config()
    with name_problems(model, "its modules do not decode with their own cache"):
        if getattr(model.config, "is_encoder_decoder", False):
            raise EngineError("it is an encoder-decoder")
        if getattr(config, "index_topk", None):
            raise EngineError(
                "its attention chooses keys by score (index_topk), and the choice among equal scores depends on the batch"
            )
        parts = split(model)
        proof = DecoderProof(model, parts, "its own cache")
        shortest = min(proof.rows.lengths)
        sample: CacheRows = proof.decode(CacheDecoder(parts, model.device, ragged=False), (shortest, shortest))
        why_equal = sample.why_not_ragged
        if why_equal is None and getattr(config, "attention_chunk_size", None):
            # Chunks are counted from the first position, padding included; a short proof does not reach the second chunk.
            why_equal = f"its attention reads chunks of {config.attention_chunk_size} tokens"
        if why_equal is None:
            try:
                prove_ragged(proof, CacheDecoder(parts, model.device, ragged=True))
            except Exception as problem:
                why_equal = describe_problem(problem)
    return parts, sample, why_equal


def prove_ragged(proof: DecoderProof, decoder: CacheDecoder) -> None:
    """Decode the shorter prompt, add the longer one, and then move the longer one into the slot of the shorter one."""
    (longer, shorter), device = proof.rows.lengths, proof.rows.device
    prompts = proof.prefill(decoder, proof.rows.lengths)
    proof.load(decoder, [0], prompts, [1])
    proof.step(decoder, [(1, shorter)])
    proof.step(decoder, [(1, shorter + 1)])
    proof.load(decoder, [1], prompts, [0])
    proof.step(decoder, [(1, shorter + 2), (0, longer)])
    decoder.move(torch.tensor([1], device=device), torch.tensor([0], device=device), longer + 1)
    proof.step(decoder, [(0, longer + 1)])
