"""The engine for what the local one refuses: batched decoding with the cache that transformers keeps for the architecture.

Linear attention, state spaces, latent attention, attention sinks: such models are decoded by their own modules over their own cache,
many completions side by side, with the scheduler, the noise and the sampler of the local engine. Prompts are run once per group, in
batches of one length and without padding: a recurrent state that has read padding is another state. After that rows of all lengths
decode together where that is proven (cache_rows.py), and a waiting completion takes the place of one that has finished. Where rows must
be of one length, each batch begins and ends together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.engine.cache_rows import CacheRows
from cohort.engine.protocol import Capabilities, EngineSetup, OnFinish
from cohort.engine.sampling import sampling_mode
from cohort.engine.slot_engine import MOST_SLOTS, SlotEngine, Workspace
from cohort.engine.slots import SlotState
from cohort.errors import CohortError, EngineError
from cohort.model.head import SplitModel, split
from cohort.model.own_attention import Trial, compare
from cohort.types import Completion, NoiseKey, Request, Sampling

THROUGH = "its own cache"
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
        return joined.take(back), torch.cat(states_PH)[back]

    def load(self, rows: Tensor, prompts: CacheRows, prompt_rows: Tensor) -> None:
        new, held, places = prompts.take(prompt_rows), self.held, rows.tolist()
        if held is None:
            self.held, order, first = new, [], 0
        else:
            self.held, order, first = held.join(new), list(range(held.rows)), held.rows
        order += [0] * (1 + max(places) - len(order))
        for number, place in enumerate(places):
            order[place] = first + number
        if order != list(range(self.held.rows)):
            self.held = self.held.take(torch.tensor(order, device=self.device))

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        assert self.held is not None
        self.held.overwrite(sources, targets)

    def step(self, tokens_B: Tensor, positions_B: Tensor, done_B: Tensor, longest: int) -> Tensor:
        assert self.held is not None
        held = self.held.first(len(tokens_B))
        if self.ragged:
            held = held.ending(longest - 1)
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

    def __init__(
        self,
        model: Any,
        decode: Callable[[Sequence[int]], str],
        slots: int = 0,
        *,
        decode_all: Callable[[Sequence[Sequence[int]]], list[str]] | None = None,
    ) -> None:
        super().__init__(model, decode, slots, decode_all)
        self.parts, self.sample, self.why_equal = prove_cached(model)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            keyed_noise=True,
            shares_weights=True,
            own_kernels=False,
            most_slots=MOST_SLOTS.get(self.model.device.type, 512),
            cache_itemsize=self.model.dtype.itemsize * COPIES,
            rounding=STEP_ROUNDING,
        )

    def close(self) -> None:
        pass

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
            count = self.slots_for(longest, len(numbers))
            for at in range(0, len(numbers), count):
                batch = numbers[at : at + count]
                done = super()._decode(
                    [requests[number] for number in batch], sampling, noise, [most[number] for number in batch], on_finish
                )
                found.update(zip(batch, done, strict=True))
        return [found[number] for number in range(len(requests))]

    def _workspace(self, longest: int, completions: int, sampling: Sampling, columns: int = 0) -> Workspace:
        slots, device = self.slots_for(longest, completions), self.model.device
        state = SlotState.empty(slots, completions, sampling, device, columns=columns)
        decoder = CacheDecoder(self.parts, device, self.why_equal is None)
        return Workspace(decoder, state, None, self.slots, slots, longest, completions, sampling, ())

    def _slot_bytes(self, length: int) -> int:
        return COPIES * self.sample.bytes_of(length)


def make_cached(setup: EngineSetup) -> tuple[CachedEngine, str]:
    """EngineError where the model's own cache cannot be taken apart into rows, or does not give its plain forward."""
    engine = CachedEngine(setup.model, setup.decode, setup.slots, decode_all=setup.decode_all)
    return engine, f"engine cached: batched decoding with the cache of transformers, {engine.describe()}"


# -- proofs ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def prove_cached(model: Any) -> tuple[SplitModel, CacheRows, str | None]:
    """(halves, a few rows to weigh, why rows must be of one length or None); EngineError where no batch can be decoded exactly."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise EngineError(f"{name}: it is an encoder-decoder.")
    if getattr(model.config.get_text_config(), "index_topk", None):
        raise EngineError(
            f"{name}: its attention chooses keys by scores (index_topk), and equal scores are not chosen alike in a batch."
        )
    try:
        with sampling_mode(model):
            parts, trial = split(model), Trial.of(model)
            expected = trial.expected(model)
            sample = prove_equal(parts, trial, expected, model.dtype)
            why_equal = sample.why_not_ragged or chunks_of(model.config.get_text_config())
            if why_equal is None:
                try:
                    prove_ragged(parts, trial, expected, model.dtype)
                except Exception as problem:
                    why_equal = reason_of(problem)
    except CohortError as problem:
        raise EngineError(str(problem) if name in str(problem) else f"{name}: {problem}.") from problem
    except Exception as problem:
        # Whatever a foreign modeling file raises on its cache is a reason, not a crash: auto then takes the slow engine.
        raise EngineError(f"{name}: its modules do not decode with their own cache ({reason_of(problem)}).") from problem
    return parts, sample, why_equal


def chunks_of(config: Any) -> str | None:
    """Chunks are counted from the first place on, as filling is; a short trial does not reach the second one."""
    size = getattr(config, "attention_chunk_size", None)
    return f"its attention reads chunks of {size} tokens" if size else None


def reason_of(problem: Exception) -> str:
    return str(problem) if isinstance(problem, CohortError) else f"{type(problem).__name__}: {problem}"


def prove_equal(parts: SplitModel, trial: Trial, expected: list[Tensor], dtype: torch.dtype) -> CacheRows:
    """Two prompts of one length, decoded crossed over, so that a module that mixes up rows is found out."""
    shortest, device = min(trial.lengths), trial.device
    decoder = CacheDecoder(parts, device, ragged=False)
    prompts, hidden_PH = decoder.prefill([ids[:shortest] for ids in trial.token_ids])
    compare(parts.logits(hidden_PH), [expected[p][shortest - 1] for p in (0, 1)], dtype, THROUGH)
    decoder.load(torch.tensor([1, 0], device=device), prompts, torch.tensor([0, 1], device=device))
    for at in range(shortest, len(trial.token_ids[1])):
        step_trial(decoder, parts, trial, expected, dtype, [(1, at), (0, at)])
    return prompts


def prove_ragged(parts: SplitModel, trial: Trial, expected: list[Tensor], dtype: torch.dtype) -> None:
    """The shorter prompt decodes, the longer one joins it, and takes its place when it has gone."""
    decoder, (longer, shorter), device = CacheDecoder(parts, trial.device, ragged=True), trial.lengths, trial.device
    prompts, hidden_PH = decoder.prefill(trial.prompts)
    compare(parts.logits(hidden_PH), [expected[p][trial.lengths[p] - 1] for p in (0, 1)], dtype, THROUGH)
    decoder.load(torch.tensor([0], device=device), prompts, torch.tensor([1], device=device))
    step_trial(decoder, parts, trial, expected, dtype, [(1, shorter)])
    step_trial(decoder, parts, trial, expected, dtype, [(1, shorter + 1)])
    decoder.load(torch.tensor([1], device=device), prompts, torch.tensor([0], device=device))
    step_trial(decoder, parts, trial, expected, dtype, [(1, shorter + 2), (0, longer)])
    decoder.move(torch.tensor([1], device=device), torch.tensor([0], device=device), longer + 1)
    step_trial(decoder, parts, trial, expected, dtype, [(0, longer + 1)])


def step_trial(
    decoder: CacheDecoder,
    parts: SplitModel,
    trial: Trial,
    expected: list[Tensor],
    dtype: torch.dtype,
    rows: Sequence[tuple[int, int]],
) -> None:
    """One token for (prompt, position) of each row: it must give the expected logits."""
    tokens_B = torch.tensor([trial.token_ids[prompt][at] for prompt, at in rows], device=trial.device)
    positions_B = torch.tensor([at for _, at in rows], device=trial.device)
    hidden_BH = decoder.step(tokens_B, positions_B, torch.zeros_like(tokens_B), 1 + max(at for _, at in rows))
    compare(parts.logits(hidden_BH), [expected[prompt][at] for prompt, at in rows], dtype, THROUGH)
