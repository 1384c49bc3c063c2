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
from cohort.engine.protocol import Capabilities, EngineSetup, OnFinish
from cohort.engine.scheduler import SlotState, Workspace
from cohort.engine.slot_engine import MOST_SLOTS, SlotEngine
from cohort.errors import EngineError, describe_problem
from cohort.model.head import SplitModel, split
from cohort.types import Completion, NoiseKey, Request, Sampling

CACHE_WORDS = ("past_key_values", "cache_params")
"""What modeling files call the cache, in their arguments and in what they return."""
COPIES = 3
"""Of the cache, at most, while a row begins: what is there, what is added, both together."""
STEP_ROUNDING = 100.0
"""A recurrent step is another formula than the scan over a sequence, and a router may turn on the difference: up to 1.4e-4 nats were seen
in float32 on gated delta rules and state spaces of width 32 with experts, 2e-6 without a recurrence."""


class CacheDecoder:
    """A decoder (decoders.py) over a cache of transformers. Its rows are the first slots, and as many as were ever taken at once."""

    def __init__(self, parts: SplitModel, device: torch.device, ragged: bool) -> None:
        self.backbone, self.device, self.ragged = parts.backbone, device, ragged
        self.takes = inspect.signature(parts.backbone.forward).parameters
        self.word = next((word for word in CACHE_WORDS if word in self.takes), "")
        self.held: CacheRows | None = None

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[CacheRows, Tensor]:
        by_length: dict[int, list[int]] = {}
        for number, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt), []).append(number)
        joined, states_PH = None, []
        for length, numbers in by_length.items():
            token_ids_PT = torch.tensor([list(prompts[number]) for number in numbers], device=self.device)
            output = self.backbone(input_ids=token_ids_PT, use_cache=True)
            cache = getattr(output, self.word, None) if self.word else None
            if not hasattr(cache, "layers"):
                raise EngineError(f"it keeps no cache that could be taken apart into rows ({type(cache).__name__})")
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
        words: dict[str, Any] = {self.word: held.cache}
        if "position_ids" in self.takes:
            words["position_ids"] = positions_B[:rows, None]
        if held.grows and self.ragged and "attention_mask" in self.takes:
            places_T = torch.arange(held.length + 1, device=self.device)
            words["attention_mask"] = (places_T >= held.length - positions_B[:rows, None]).long()
        output = self.backbone(input_ids=tokens_B[:rows, None], use_cache=True, **words)
        # Not every modeling file writes into the cache that it was given.
        self.held = CacheRows(getattr(output, self.word), rows, held.length + 1)
        # Slots without a row come along where a number of rows is rounded up; nobody reads what they get.
        hidden_BH: Tensor = F.pad(output.last_hidden_state[:, -1], (0, 0, 0, len(tokens_B) - rows))
        return hidden_BH


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
        )

    def describe(self) -> str:
        """How rows stand together, for the console."""
        return "rows of all lengths together" if self.why_equal is None else f"rows of one length together ({self.why_equal})"

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        most: Sequence[int],
        on_finish: OnFinish | None,
    ) -> list[Completion]:
        if self.why_equal is None:
            return super()._decode(requests, sampling, noise, most, on_finish)
        by_length: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            by_length.setdefault(len(request.context_ids), []).append(number)
        found: dict[int, Completion] = {}
        for numbers in by_length.values():
            longest = max(len(requests[number].prompt.token_ids) for number in numbers) + sampling.max_completion_tokens
            count = self.fit_slots(longest, len(numbers))
            for at in range(0, len(numbers), count):
                batch = numbers[at : at + count]
                done = super()._decode(
                    [requests[number] for number in batch], sampling, noise, [most[number] for number in batch], on_finish
                )
                found.update(zip(batch, done, strict=True))
        return [found[number] for number in range(len(requests))]

    def _make_workspace(self, longest: int, completions: int, sampling: Sampling, columns: int = 0) -> Workspace:
        slots, device = self.fit_slots(longest, completions), self.model.device
        state = SlotState(slots, completions, sampling, device, columns=columns)
        decoder = CacheDecoder(self.parts, device, self.why_equal is None)
        return Workspace(decoder, state, None, self.slots, slots, longest, completions, sampling, ())

    def _count_slot_bytes(self, length: int) -> int:
        return COPIES * self.sample.estimate_bytes(length)


def make_cached(setup: EngineSetup) -> tuple[CachedEngine, str]:
    """EngineError where the model's own cache cannot be taken apart into rows, or does not give its plain forward."""
    engine = CachedEngine(setup)
    return engine, f"engine cached: batched decoding with the cache of transformers, {engine.describe()}"


# -- proofs ------------------------------------------------------------------------------------------------------------


def prove_cached(model: Any) -> tuple[SplitModel, CacheRows, str | None]:
    """(halves, a few rows to weigh, why rows must be of one length or None); EngineError where no batch can be decoded exactly."""
    config = model.config.get_text_config()
    with name_problems(model, "its modules do not decode with their own cache"):
        if getattr(model.config, "is_encoder_decoder", False):
            raise EngineError("it is an encoder-decoder")
        if getattr(config, "index_topk", None):
            raise EngineError(
                "its attention chooses keys by scores (index_topk), and equal scores are not chosen alike in a batch"
            )
        parts = split(model)
        proof = DecoderProof(model, parts, "its own cache")
        shortest = min(proof.rows.lengths)
        sample: CacheRows = proof.decode(CacheDecoder(parts, model.device, ragged=False), (shortest, shortest))
        why_equal = sample.why_not_ragged
        if why_equal is None and getattr(config, "attention_chunk_size", None):
            # Chunks are counted from the first place on, as filling is; a short proof does not reach the second one.
            why_equal = f"its attention reads chunks of {config.attention_chunk_size} tokens"
        if why_equal is None:
            try:
                prove_ragged(proof, CacheDecoder(parts, model.device, ragged=True))
            except Exception as problem:
                why_equal = describe_problem(problem)
    return parts, sample, why_equal


def prove_ragged(proof: DecoderProof, decoder: CacheDecoder) -> None:
    """The shorter prompt decodes, the longer one joins it, and takes its place when it has gone."""
    (longer, shorter), device = proof.rows.lengths, proof.rows.device
    prompts = proof.prefill(decoder, proof.rows.lengths)
    proof.load(decoder, [0], prompts, [1])
    proof.step(decoder, [(1, shorter)])
    proof.step(decoder, [(1, shorter + 1)])
    proof.load(decoder, [1], prompts, [0])
    proof.step(decoder, [(1, shorter + 2), (0, longer)])
    decoder.move(torch.tensor([1], device=device), torch.tensor([0], device=device), longer + 1)
    proof.step(decoder, [(0, longer + 1)])


# -- rows of a cache --------------------------------------------------------------------------------------------------


GROWING = ("keys", "values")
"""[rows, heads, tokens, width]; whatever else has two dimensions or more is a state, [rows, ...]."""
RAGGED_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
"""Layers in which what a mask hides has no effect, at any length. Compressed and sparse keys are counted from the first place on: filling
moves them, and a short trial cannot show it."""

Change = Callable[[Any, str, Tensor], Tensor]
"""(layer, name, tensor) -> what stands there instead."""


class CacheRows:
    """Rows of a cache that all end after `length` tokens, filling included."""

    def __init__(self, cache: Any, rows: int, length: int) -> None:
        self.cache, self.rows, self.length = cache, rows, length

    @property
    def why_not_ragged(self) -> str | None:
        """Why rows of different lengths cannot stand side by side; None where they can."""
        others = sorted({type(layer).__name__ for layer in self.cache.layers} - RAGGED_LAYERS)
        return f"its cache has layers of the kind {', '.join(others)}" if others else None

    @property
    def grows(self) -> bool:
        """Whether any layer keeps keys and values; states alone need no mask, and their modules misread one."""
        return any(name in GROWING for layer in self.cache.layers for _, name, _ in list_tensors(layer))

    def take_rows(self, rows: Tensor) -> CacheRows:
        """A copy of these rows, in this order; one may be taken more than once."""
        return self._change_tensors(lambda layer, name, tensor: tensor.index_select(0, rows), len(rows), self.length)

    def take_first(self, rows: int) -> CacheRows:
        return self if rows >= self.rows else self._change_tensors(lambda layer, name, tensor: tensor[:rows], rows, self.length)

    def fit_length(self, length: int) -> CacheRows:
        """The same rows, filled up or cut on their left to this length."""

        def fit(layer: Any, name: str, tensor: Tensor) -> Tensor:
            if name not in GROWING:
                return tensor
            window = getattr(layer, "sliding_window", None)  # such a layer keeps one token less than its window
            missing = (length if window is None else min(length, window - 1)) - tensor.shape[-2]
            # Zeros, not empty memory: what a row does not see still enters the products, and 0 * NaN is NaN.
            return F.pad(tensor, (0, 0, missing, 0)) if missing > 0 else tensor[..., -missing:, :]

        return self if length == self.length else self._change_tensors(fit, self.rows, length)

    def join(self, other: CacheRows) -> CacheRows:
        """These rows and then the others."""
        length = max(self.length, other.length)
        added = iter([tensor for layer in other.fit_length(length).cache.layers for _, _, tensor in list_tensors(layer)])

        def with_more(layer: Any, name: str, tensor: Tensor) -> Tensor:
            more = next(added, None)
            if more is None or more.shape[1:] != tensor.shape[1:]:
                raise EngineError(f"its cache keeps {name} in another shape for another prompt")
            return torch.cat((tensor, more))

        return self.fit_length(length)._change_tensors(with_more, self.rows + other.rows, length)

    def overwrite_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Rows change their place, in the tensors that are there."""
        for layer in self.cache.layers:
            for _, _, tensor in list_tensors(layer):
                tensor[targets] = tensor[sources]

    def estimate_bytes(self, length: int) -> int:
        """What one row would take at this length."""
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
    """A layer that can be given other tensors without the first one noticing."""
    twin = copy.copy(layer)
    vars(twin).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    return twin


def list_tensors(layer: Any) -> Iterator[tuple[dict[Any, Any], Any, Tensor]]:
    """(what holds it, its name there, the tensor) of everything that has a row for each row of the batch."""
    fields = vars(layer)
    for holder in [fields, *(value for value in fields.values() if isinstance(value, dict))]:
        for name, value in list(holder.items()):
            if isinstance(value, Tensor) and value.dim() > 1:
                yield holder, name, value
