"""The fast engine: continuous batching over a slot cache, in the same process, with the policy's own parameters.

How it differs from `model.generate`:

- a prompt is run once per group, and its keys and values are copied into the slots of the group's completions;
- rows are ragged and never padded on the left; attention reads up to the longest live row only;
- a finished row makes room at once: a waiting completion takes its slot, and when none waits the last rows move up, so
  dead rows cost nothing;
- noise is keyed (noise.py), so slot count and order change rollouts only at near-ties.

No weight is copied and nothing is kept between calls: after an optimizer step the next call samples from the new policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from cohort.attention import accumulation_dtype, attending
from cohort.errors import EngineError
from cohort.noise import gumbel, row_key
from cohort.rollout.sampling import check_finite, check_request, next_tokens, sampling_mode
from cohort.rollout.slot_cache import SLOT_ATTENTION, PrefixCache, SlotCache, hidden_states, prefill
from cohort.rollout.support import LocalModel, prove_local
from cohort.steady import missing_rows
from cohort.types import Completion, NoiseKey, Prompt, Sampling

MOST_SLOTS = {"cpu": 512, "cuda": 1024}
"""Beyond these a step only gets slower: the matrix products are already at full rate."""
MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.8}
"""Part of the free memory that slots may take when the engine chooses their number."""
PREFILL_TOKENS = {"cpu": 2048, "cuda": 8192}
"""Padded tokens in one prefill; enough to fill the machine, little enough to keep its activations small."""
SAMPLER_FLOATS = 6
"""Arrays of [slots, V] 4-byte numbers alive at once while sampling (logits, scaled, noise, hash)."""


class LocalEngine:
    name = "local"

    def __init__(self, model: Any, decode: Callable[[Sequence[int]], str], slots: int = 0) -> None:
        if slots < 0:
            raise EngineError(f"sampling.slots is {slots}; 0 lets the engine choose, otherwise at least 1.")
        self.model, self.decode, self.slots = model, decode, slots
        self.local = prove_local(model)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, noise: NoiseKey, first_draw: int = 0
    ) -> list[list[Completion]]:
        self.check(list(prompts), sampling)
        if not prompts or sampling.group_size < 1:
            return [[] for _ in prompts]
        keys = [
            row_key(noise, draw, sample)
            for draw in range(first_draw, first_draw + len(prompts))
            for sample in range(sampling.group_size)
        ]
        longest = max(len(prompt.token_ids) for prompt in prompts) + sampling.max_completion_tokens
        with sampling_mode(self.model), attending(self.local.configs, SLOT_ATTENTION):
            decoding = Decoding(
                self.local, prompts, sampling, keys, self.slots_for(longest, len(keys)), longest, self.model.device
            )
            completions = decoding.run(self.decode)
        return [completions[at : at + sampling.group_size] for at in range(0, len(completions), sampling.group_size)]

    def check(self, prompts: list[Prompt], sampling: Sampling) -> None:
        check_request(self.model.config.get_text_config(), prompts, sampling)
        longest = max((len(prompt.token_ids) for prompt in prompts), default=0) + sampling.max_completion_tokens
        if self.local.exact_length and longest > self.local.exact_length:
            raise EngineError(
                f"prompt and sampling.max_completion_tokens reach {longest} tokens, but beyond {self.local.exact_length} this "
                "model's rotary frequencies change with the length, and no KV cache is exact. Lower "
                'sampling.max_completion_tokens or prompts.max_prompt_tokens, or set sampling.engine = "hf".'
            )

    def slots_for(self, length: int, completions: int) -> int:
        """Slots asked for, or as many as fit into free memory; never more than there are completions."""
        if self.slots:
            return min(self.slots, completions)
        kind = self.model.device.type
        element = accumulation_dtype(self.local.dtype, self.model.device).itemsize
        kv_bytes = 2 * length * element * sum(layer.heads * layer.dim for layer in self.local.layers)
        slot_bytes = kv_bytes + 4 * SAMPLER_FLOATS * self.model.config.get_text_config().vocab_size
        free = free_memory(self.model.device)
        fitting = int(MEMORY_SHARE.get(kind, 0.5) * free / slot_bytes)
        if fitting < 1:
            raise EngineError(
                f"not even one slot fits: {length} tokens of keys and values need {slot_bytes / 2**20:.0f} MiB and "
                f"{free / 2**20:.0f} MiB are free. Lower sampling.max_completion_tokens or prompts.max_prompt_tokens."
            )
        return min(fitting, MOST_SLOTS.get(kind, 512), completions)


def free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return psutil.virtual_memory().available
    # What torch has reserved but does not use is free to us, though not to the driver.
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


@dataclass
class Prefix:
    """A prefilled batch of prompts, kept until the last completion of its groups has a slot."""

    cache: PrefixCache
    last_hidden_PH: Tensor
    lengths_P: np.ndarray
    waiting: np.ndarray
    """[W, 2]: (row of the batch, completion) of those without a slot yet."""


class Decoding:
    """One call of the engine. Completion n is sample n % G of prompt n // G.

    Live rows are rows 0 to live - 1 of the slots. What the device needs each step lives there as tensors over slots; the
    host keeps its own copy of lengths and owners, so that the only thing it ever waits for is which rows have finished.
    """

    def __init__(
        self,
        local: LocalModel,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        keys: list[tuple[int, int]],
        slots: int,
        longest: int,
        device: torch.device,
    ) -> None:
        self.local, self.sampling, self.slots, self.device = local, sampling, slots, device
        self.backbone, self.head = local.parts.backbone, local.parts.logits
        self.prompts = [prompt.token_ids for prompt in prompts]
        # Longest first: prompts of one prefill are of nearly one length, and the slowest rows start early.
        self.queue = sorted(range(len(prompts)), key=lambda number: -len(self.prompts[number]))
        self.prefix: Prefix | None = None
        rows = slots + missing_rows(slots, device)
        self.cache = SlotCache(local.layers, rows, longest, local.dtype, device)
        self.live = 0

        total, most = len(keys), sampling.max_completion_tokens
        self.keys_N2 = torch.tensor(keys, dtype=torch.int32, device=device)
        self.token_ids_NT = torch.zeros(total, most, dtype=torch.int32, device=device)
        self.logprobs_NT = torch.zeros(total, most, device=device)
        self.stop_ids = torch.tensor(sampling.stop_ids, dtype=torch.int64, device=device)

        def per_slot(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        self.tokens_S = per_slot()  # the token to feed next
        self.positions_S = per_slot()  # its position in the sequence
        self.counts_S = per_slot()  # tokens sampled so far = position, in the completion, of the next one
        self.owners_S = per_slot()  # the completion that the row belongs to
        self.keys_S2 = per_slot(2, dtype=torch.int32)
        self.host_positions_S = np.zeros(slots, dtype=np.int64)
        self.host_counts_S = np.zeros(slots, dtype=np.int64)
        self.host_owners_S = np.zeros(slots, dtype=np.int64)
        self.lengths_N = np.zeros(total, dtype=np.int64)

    def run(self, decode: Callable[[Sequence[int]], str]) -> list[Completion]:
        self.make_room([])
        while self.live:
            self.make_room(self.step())
        return self.completions(decode)

    def step(self) -> list[int]:
        """One token for every live row; gives the rows that finished with it."""
        live = slice(0, self.live)
        # Dead rows may come along to make the products steady; they write at position 0 of their own slots.
        rows = slice(0, self.live + missing_rows(self.live, self.device))
        positions_B = self.positions_S[rows].clone()
        positions_B[self.live :] = 0
        self.cache.begin_step(positions_B, int(self.host_positions_S[live].max()) + 1)
        hidden_BTH = hidden_states(self.backbone, self.cache, self.tokens_S[rows, None], positions_B[:, None])
        self.positions_S[live] += 1
        self.host_positions_S[live] += 1
        self.host_counts_S[live] += 1
        return self.sample(live, self.head(hidden_BTH[live, 0])).nonzero().flatten().tolist()

    def sample(self, rows: slice | Tensor, logits_BV: Tensor) -> Tensor:
        """Sample the next token of `rows` and note it down; gives which of them have finished."""
        counts_B = self.counts_S[rows]
        noise_BV = None if self.sampling.greedy else gumbel(self.keys_S2[rows], counts_B, logits_BV.shape[-1])
        ids_B, logprobs_B = next_tokens(logits_BV, self.sampling, noise_BV)
        at = (self.owners_S[rows], counts_B)
        self.token_ids_NT.index_put_(at, ids_B.int())
        self.logprobs_NT.index_put_(at, logprobs_B)
        self.tokens_S[rows] = ids_B
        self.counts_S[rows] = counts_B + 1
        stopped_B = (ids_B[:, None] == self.stop_ids).any(-1)
        return stopped_B | (self.counts_S[rows] >= self.sampling.max_completion_tokens)

    def make_room(self, finished: list[int]) -> None:
        """Give the slots of finished rows, and those not yet used, to waiting completions; then close the gaps."""
        if not finished and (self.live == self.slots or not (self.queue or self.prefix)):
            return
        self.note_lengths(finished)
        free = [*finished, *range(self.live, self.slots)]
        while free and (self.queue or self.prefix):
            free = self.admit(free)
        self.compact(free)

    def note_lengths(self, rows: Sequence[int]) -> None:
        self.lengths_N[self.host_owners_S[rows]] = self.host_counts_S[rows]

    def admit(self, free: list[int]) -> list[int]:
        """Start as many waiting completions as one prefilled batch and the free slots allow; gives the slots still free.

        The first token comes from the prompt's hidden state, so a completion may be over before it ever decodes.
        """
        prefix = self.prefix or self.prefill_next()
        admitted, prefix.waiting = prefix.waiting[: len(free)], prefix.waiting[len(free) :]
        self.prefix = prefix if len(prefix.waiting) else None
        taken, free = free[: len(admitted)], free[len(admitted) :]

        rows = torch.tensor(taken, device=self.device)
        prefix_rows, owners = torch.from_numpy(np.ascontiguousarray(admitted.T)).to(self.device)
        lengths = prefix.lengths_P[admitted[:, 0]]
        self.cache.load(rows, prefix.cache, prefix_rows)
        self.owners_S[rows], self.keys_S2[rows] = owners, self.keys_N2[owners]
        self.positions_S[rows] = torch.from_numpy(lengths).to(self.device)
        self.counts_S[rows] = 0
        self.host_owners_S[taken], self.host_positions_S[taken], self.host_counts_S[taken] = admitted[:, 1], lengths, 1

        finished = self.sample(rows, self.head(prefix.last_hidden_PH[prefix_rows]))
        over = rows[finished].tolist()
        self.note_lengths(over)
        self.live = max(self.live, 1 + max(taken))
        return [*over, *free]

    def prefill_next(self) -> Prefix:
        """Run the next prompts, as many as one prefill holds, through the backbone."""
        width = len(self.prompts[self.queue[0]])
        count = max(1, PREFILL_TOKENS.get(self.device.type, 2048) // width)
        numbers, self.queue = self.queue[:count], self.queue[count:]
        prompts = [self.prompts[number] for number in numbers]
        cache, last_hidden_PH = prefill(self.backbone, len(self.local.layers), prompts, self.device)
        size = self.sampling.group_size
        waiting = [(row, number * size + sample) for row, number in enumerate(numbers) for sample in range(size)]
        return Prefix(cache, last_hidden_PH, np.array([len(prompt) for prompt in prompts]), np.array(waiting))

    def compact(self, free: list[int]) -> None:
        """Move the last live rows into the gaps, so that live rows are the first rows again."""
        gaps = {row for row in free if row < self.live}
        live = self.live - len(gaps)
        targets = sorted(row for row in gaps if row < live)
        sources = [row for row in range(live, self.live) if row not in gaps]
        self.live = live
        if not sources:
            return
        for host in (self.host_positions_S, self.host_counts_S, self.host_owners_S):
            host[targets] = host[sources]
        source_rows, target_rows = torch.tensor(sources, device=self.device), torch.tensor(targets, device=self.device)
        for state in (self.tokens_S, self.positions_S, self.counts_S, self.owners_S, self.keys_S2):
            state[target_rows] = state[source_rows]
        self.cache.move(source_rows, target_rows, int(self.host_positions_S[targets].max()))

    def completions(self, decode: Callable[[Sequence[int]], str]) -> list[Completion]:
        check_finite(self.logprobs_NT)
        token_ids_NT, logprobs_NT = self.token_ids_NT.cpu().numpy(), self.logprobs_NT.cpu().numpy()
        stop_ids, completions = set(self.sampling.stop_ids), []
        for token_ids_T, logprobs_T, length in zip(token_ids_NT, logprobs_NT, self.lengths_N.tolist(), strict=True):
            token_ids = token_ids_T[:length].tolist()
            end: Any = "stop" if token_ids[-1] in stop_ids else "length"
            completions.append(Completion(tuple(token_ids), tuple(logprobs_T[:length].tolist()), end, decode(token_ids)))
        return completions
