"""The scheduler: assigns completions to slots, from the first prompt to the last token.

Live rows are rows 0 to live - 1 of the slots. The host keeps its own copy of owners and lengths and needs only one thing from the device:
which rows have finished. On a GPU it never waits for that, since a finished row that idles for a few steps costs less than a wait.

Everything that changes from step to step is in tensors over slots (`SlotState`), so that many steps can follow each other without the
host. A row that reaches a stop token or its limit is marked done and neither advances nor writes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.engine.decoders import Decoder
from cohort.engine.graphs import GraphedSteps, round_to_bucket
from cohort.engine.sampling import choose_tokens
from cohort.model.head import SplitModel
from cohort.ops.fused import has_kernels
from cohort.ops.noise import make_gumbel
from cohort.ops.products import count_missing_rows
from cohort.types import Request, Sampling

PREFILL_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Padded tokens in one prefill: enough to use the whole machine, few enough to keep activations small."""
STEPS_BETWEEN_CHECKS = 4
"""Decode steps on a GPU between two checks for finished rows, if a stop token may come at any time."""


class SlotState:
    """State of S slots and N completions on the device: the sampled tokens, and the next token to feed."""

    def __init__(
        self,
        slots: int,
        completions: int,
        sampling: Sampling,
        device: torch.device,
        columns: int,
        noise: Callable[[Tensor, Tensor, int], Tensor] = make_gumbel,
    ) -> None:
        """columns: noise positions that tokens may have. noise(row keys, positions, vocabulary): make_gumbel or a faster equivalent."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.make_noise = noise
        self.with_kernels = has_kernels(device)
        """Whether Triton kernels can sample."""
        self.tokens_S = zeros(slots, dtype=torch.int64)
        """The token to feed next."""
        self.positions_S = zeros(slots, dtype=torch.int64)
        """Its position in the sequence."""
        self.counts_S = zeros(slots)
        """Noise position of the next token: the number of sampled tokens, unless the request's noise starts at another position."""
        self.owners_S = zeros(slots)
        """The completion that each row belongs to."""
        self.keys_S2 = zeros(slots, 2)
        self.done_S = zeros(slots) + 1
        self.keys_N2 = zeros(completions, 2)
        self.limits_N = zeros(completions)
        """Noise position at which each completion is full."""
        self.greedy_N = zeros(completions, dtype=torch.bool)
        self.token_ids_NT = zeros(completions + 1, columns)
        """One row more than there are completions: without kernels, finished rows write to the last row."""
        self.logprobs_NT = zeros(completions + 1, columns, dtype=torch.float32)
        self.stop_ids = torch.tensor(sampling.stop_ids, dtype=torch.int32, device=device)
        self.rows_S = torch.arange(slots, dtype=torch.int32, device=device)

    def start_call(self, keys: Sequence[tuple[int, int]], limits: Sequence[int], greedy: Sequence[bool] = ()) -> None:
        """Reset for a new call: all slots are free. greedy: which completions are greedy, if only some are."""
        self.done_S.fill_(1)
        self.positions_S.zero_()
        self.keys_N2[: len(keys)] = torch.tensor(keys, dtype=torch.int32)
        self.limits_N[: len(limits)] = torch.tensor(limits, dtype=torch.int32)
        self.greedy_N[: len(greedy)] = torch.tensor(greedy, dtype=torch.bool)
        self.logprobs_NT.zero_()

    def admit(self, rows: Tensor, owners: Tensor, positions: Tensor, counts: Tensor) -> None:
        """Start completions in these rows. Their next token has the noise of `counts` and will be fed at `positions`."""
        self.owners_S[rows], self.keys_S2[rows] = owners, self.keys_N2[owners.long()]
        self.positions_S[rows] = positions
        self.counts_S[rows], self.done_S[rows] = counts, 0

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for state in (self.tokens_S, self.positions_S, self.counts_S, self.owners_S, self.keys_S2, self.done_S):
            state[targets] = state[sources]

    def retire(self, live: int) -> None:
        """Mark the rows from `live` on as empty. If they are part of a step, they write at position 0."""
        self.done_S[live:] = 1
        self.positions_S[live:] = 0

    def sample_tokens(self, rows: slice | Tensor, logits_BV: Tensor, sampling: Sampling, advance: bool) -> None:
        """Sample and store the next token of each row that is not done. advance: these rows have just fed a token."""
        if self.with_kernels and not sampling.top_k and sampling.top_p == 1.0 and not sampling.with_greedy:
            self._sample_with_kernels(rows, logits_BV, sampling, advance)
        else:
            self._sample_in_torch(rows, logits_BV, sampling, advance)

    def _sample_with_kernels(self, rows: slice | Tensor, logits_BV: Tensor, sampling: Sampling, advance: bool) -> None:
        from cohort.ops.fused.kernels_decode import sample

        slot_of_row_B = self.rows_S[rows] if isinstance(rows, slice) else rows.int()
        sample(logits_BV, slot_of_row_B, self, 0.0 if sampling.greedy else sampling.temperature, advance)

    def _sample_in_torch(self, rows: slice | Tensor, logits_BV: Tensor, sampling: Sampling, advance: bool) -> None:
        counts_B, done_B, owners_B = self.counts_S[rows], self.done_S[rows], self.owners_S[rows]
        noise_BV = None if sampling.greedy else self.make_noise(self.keys_S2[rows], counts_B, logits_BV.shape[-1])
        greedy_B = self.greedy_N[owners_B.long()] if sampling.with_greedy else None
        ids_B, logprobs_B = choose_tokens(logits_BV, sampling, noise_BV, greedy_B)
        last = self.token_ids_NT.shape[0] - 1
        live_B = 1 - done_B
        # A finished row writes to the spare row, at a column that exists.
        at = (torch.where(done_B > 0, last, owners_B).long(), (counts_B * live_B).long())
        self.token_ids_NT.index_put_(at, ids_B.int())
        self.logprobs_NT.index_put_(at, logprobs_B)
        self.tokens_S[rows] = ids_B
        counts_B = counts_B + live_B
        self.counts_S[rows] = counts_B
        if advance:
            self.positions_S[rows] += live_B
        stopped_B = (ids_B[:, None] == self.stop_ids).any(-1)
        over_B = stopped_B | (counts_B >= self.limits_N[owners_B.long()])
        self.done_S[rows] = done_B | over_B.int()


@dataclass
class Workspace:
    """Slots, their state and the captured steps over them. The memory may be used again by the next call; its contents are not."""

    decoder: Decoder
    state: SlotState
    steps: GraphedSteps | None
    requested: int
    """Requested number of slots; 0: the engine chose."""
    slots: int
    length: int
    completions: int
    sampling: Sampling
    signature: tuple[Any, ...]
    width: int = 0
    """Width of the MLP's activation, which decides whether finished rows have to take part in a step (ops/products.py)."""

    def can_serve(self, requested: int, length: int, completions: int, sampling: Sampling, signature: tuple[Any, ...]) -> bool:
        fits = self.requested == requested and self.length >= length and self.completions >= completions
        return fits and self.sampling == sampling and self.signature == signature


@dataclass(frozen=True)
class Work:
    """The contexts of a call, each run once, and the completions that start from each context."""

    contexts: Sequence[tuple[int, ...]]
    """A prompt, and the prefix of its completions."""
    members: Sequence[Sequence[int]]
    """The completions of each context."""
    begun_N: np.ndarray
    """Length of each completion's prefix."""
    first_N: np.ndarray
    """Noise position at which each completion starts."""

    @staticmethod
    def group_requests(requests: Sequence[Request]) -> Work:
        """Group consecutive requests with the same draw and prefix."""
        contexts: list[tuple[int, ...]] = []
        members: list[list[int]] = []
        before: tuple[Any, ...] = ()
        for number, request in enumerate(requests):
            group = (id(request.prompt), request.draw, request.prefix_ids)
            if group != before:
                contexts.append(request.context_ids)
                members.append([])
            members[-1].append(number)
            before = group
        begun = [len(request.prefix_ids) for request in requests]
        return Work(contexts, members, np.array(begun), np.array([request.position for request in requests]))


@dataclass
class PrefilledBatch:
    """A batch of contexts after prefill, kept until its last completion has a slot."""

    stacked: Any
    last_hidden_PH: Tensor
    lengths_P: np.ndarray
    waiting: np.ndarray
    """[W, 2]: (row of the batch, completion) of the completions without a slot."""


class Decoding:
    """Decodes the completions of one call.

    On a GPU the host checks for finished rows with a delay: the next steps are already queued while it reads the status of the previous
    ones and reassigns the slots of finished rows. Rows may have moved in between, so the status is matched by owner, not by row.
    """

    def __init__(
        self,
        parts: SplitModel,
        workspace: Workspace,
        work: Work,
        sampling: Sampling,
        slots: int,
        on_finish: Callable[[np.ndarray], None] | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """on_finish(completions): called when a check finds completions finished; their `lengths_N` are then known.

        on_progress(completions): called after each check with the completions done, open ones as the share of the limit they reached.
        """
        self.on_progress = on_progress
        self.parts, self.decoder, self.state, self.steps = parts, workspace.decoder, workspace.state, workspace.steps
        self.sampling, self.slots, self.work, self.on_finish = sampling, slots, work, on_finish
        self.width = workspace.width
        self.device = self.state.tokens_S.device
        # Longest first: the prompts of a prefill have similar lengths, and the slowest rows start early.
        self.queue = sorted(range(len(work.contexts)), key=lambda number: -len(work.contexts[number]))
        self.prefilled: PrefilledBatch | None = None
        self.live = 0
        completions = len(work.begun_N)
        self.owners_S = np.zeros(slots, dtype=np.int64)
        self.begun_S = np.zeros(slots, dtype=np.int64)
        """Position of each row's first completion token: the length of its prompt."""
        self.counts_S = np.zeros(slots, dtype=np.int64)
        """Upper bound on the tokens of each row; rows that stopped have fewer."""
        self.row_of_N = np.full(completions, -1)
        """Current row of each completion; -1: none."""
        self.lengths_N = np.zeros(completions, dtype=np.int64)
        self.num_steps = self.num_checks = self.num_prefills = 0

    def run(self) -> np.ndarray:
        """Decode everything; returns the length of each completion."""
        self.fill_slots(np.zeros(0, dtype=np.int64))
        before: RowStatus | None = None
        while self.live:
            now = self.advance() if before is None or self.can_continue() else None
            if self.device.type != "cpu":
                before, now = now, before
            if now is not None:
                self.fill_slots(self.find_finished(now))
            if self.on_progress is not None:
                reached = self.counts_S[: self.live].sum() / self.sampling.max_completion_tokens
                self.on_progress(float((self.lengths_N > 0).sum() + reached))
        return self.lengths_N

    def can_continue(self) -> bool:
        """Whether any live row may still get a token."""
        return bool(self.counts_S[: self.live].min() < self.sampling.max_completion_tokens)

    def advance(self) -> RowStatus:
        """Decode a few tokens for every live row (one on a CPU, where checks are free), and return the status of the rows."""
        if self.device.type == "cpu":
            times = 1
            self.step(self.live)
        else:
            # The buckets are those of the workspace, so that calls of different sizes share their graphs.
            rows, times = round_to_bucket(self.live, len(self.state.tokens_S)), self.count_steps_until_check()
            if self.steps is not None:
                self.steps.run(rows, times)
            else:
                for fed in range(times):
                    self.step(rows, fed)
        self.counts_S[: self.live] += times
        self.num_steps += times
        self.num_checks += 1
        return RowStatus(self.state, self.live)

    def count_steps_until_check(self) -> int:
        """Steps until the first row can be full, but at most a few, since a stop token may come at any time."""
        left = self.sampling.max_completion_tokens - self.counts_S[: self.live]
        return max(1, min(int(left[left > 0].min(initial=STEPS_BETWEEN_CHECKS)), STEPS_BETWEEN_CHECKS))

    def step(self, rows: int, fed_before: int = 0) -> None:
        """Decode one token for the first rows, `fed_before` steps after the last check.

        Only `longest` comes from the host, and the kernels do not read it, so a captured step stays valid.
        """
        state = self.state
        # On a CPU finished rows may take part to make the products steady; each writes at position 0 of its slot.
        fed = rows + count_missing_rows(rows, self.device, self.width)
        longest = fed_before + int((self.begun_S[: self.live] + self.counts_S[: self.live]).max())
        hidden_BH = self.decoder.step(state.tokens_S[:fed], state.positions_S[:fed], state.done_S[:fed], longest)
        state.sample_tokens(slice(0, rows), self.parts.logits(hidden_BH[:rows]), self.sampling, advance=True)

    def find_finished(self, status: RowStatus) -> np.ndarray:
        """Current rows of the completions that this status shows as finished for the first time."""
        owners, counts, done = status.read()
        over = owners[done > 0]
        new = self.row_of_N[over] >= 0
        over, counts = over[new], counts[done > 0][new]
        self.lengths_N[over] = counts - self.work.first_N[over]
        rows = self.row_of_N[over]
        self.row_of_N[over] = -1
        if self.on_finish is not None and len(over):
            self.on_finish(over)
        return rows

    def fill_slots(self, finished: np.ndarray) -> None:
        """Give the slots of finished rows, and unused slots, to waiting completions; then close the gaps."""
        waiting = self.queue or self.prefilled
        if not len(finished) and (self.live == self.slots or not waiting):
            return
        free = [*finished.tolist(), *range(self.live, self.slots)]
        while free and (self.queue or self.prefilled):
            free = self.admit(free)
        self.compact(free)

    def admit(self, free: list[int]) -> list[int]:
        """Start as many completions of one prefilled batch as there are free slots; returns the remaining free slots.

        The first token comes from the prompt's hidden state. The next check notices a completion that ends with it.
        """
        batch = self.prefilled or self.prefill_next()
        admitted, batch.waiting = batch.waiting[: len(free)], batch.waiting[len(free) :]
        self.prefilled = batch if len(batch.waiting) else None
        taken, free = np.array(free[: len(admitted)]), free[len(admitted) :]

        lengths, begun = batch.lengths_P[admitted[:, 0]], self.work.begun_N[admitted[:, 1]]
        counts = self.work.first_N[admitted[:, 1]] + begun
        numbers = np.stack((taken, admitted[:, 0], admitted[:, 1], lengths, counts))
        rows, batch_rows, owners, positions, noise_positions = self.send_to_device(numbers)
        self.decoder.load(rows, batch.stacked, batch_rows)
        self.state.admit(rows, owners.int(), positions, noise_positions.int())
        self.owners_S[taken], self.begun_S[taken], self.counts_S[taken] = admitted[:, 1], lengths - begun, begun + 1
        self.row_of_N[admitted[:, 1]] = taken
        self.live = max(self.live, 1 + int(taken.max()))

        logits_BV = self.parts.logits(batch.last_hidden_PH[batch_rows])
        self.state.sample_tokens(rows, logits_BV, self.sampling, advance=False)
        return free

    def send_to_device(self, numbers: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def prefill_next(self) -> PrefilledBatch:
        """Run the next contexts, as many as fit in one prefill, through the backbone."""
        width = len(self.work.contexts[self.queue[0]])
        count = max(1, PREFILL_TOKENS[self.device.type] // width)
        numbers, self.queue = self.queue[:count], self.queue[count:]
        contexts = [self.work.contexts[number] for number in numbers]
        stacked, last_hidden_PH = self.decoder.prefill(contexts)
        waiting = [(row, completion) for row, number in enumerate(numbers) for completion in self.work.members[number]]
        self.num_prefills += 1
        return PrefilledBatch(stacked, last_hidden_PH, np.array(list(map(len, contexts))), np.array(waiting))

    def compact(self, free: list[int]) -> None:
        """Move the last live rows into the gaps, so that the live rows are the first rows again."""
        gaps = {row for row in free if row < self.live}
        if not gaps:
            return
        live = self.live - len(gaps)
        targets = sorted(row for row in gaps if row < live)
        sources = [row for row in range(live, self.live) if row not in gaps]
        self.live = live
        if sources:
            for host_S in (self.owners_S, self.begun_S, self.counts_S):
                host_S[targets] = host_S[sources]
            self.row_of_N[self.owners_S[targets]] = targets
            reached = int((self.begun_S[targets] + self.counts_S[targets]).max())
            source_rows, target_rows = self.send_to_device(np.array([sources, targets]))
            self.state.move(source_rows, target_rows)
            self.decoder.move(source_rows, target_rows, reached)
        self.state.retire(live)


class RowStatus:
    """Status of the live rows at one moment, copied from the device without waiting."""

    def __init__(self, state: SlotState, live: int) -> None:
        self.status = torch.stack((state.owners_S[:live], state.counts_S[:live], state.done_S[:live]))
        self.copied: Any = None
        if self.status.is_cuda:
            pinned = torch.empty(self.status.shape, dtype=self.status.dtype, pin_memory=True)
            self.status = pinned.copy_(self.status, non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record()

    def read(self) -> np.ndarray:
        """Owners, counts and done flags."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.status.numpy().astype(np.int64)
