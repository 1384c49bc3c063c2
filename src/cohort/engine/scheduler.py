"""The scheduler: assigns completions to slots, from the first prompt to the last token.

Live rows are rows 0 to live - 1 of the slots. The host keeps its own copy of owners and lengths and needs only one thing from the device:
which rows have finished. On a GPU it never waits for that, since a finished row that idles for a few steps costs less than a wait.

Everything that changes from step to step is in tensors over slots (`SlotState`), so that many steps can follow each other without the
host. A row that reaches a stop token or its limit is marked done and neither advances nor writes any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.engine.decoders import Decoder
from cohort.engine.graphs import GraphedSteps, round_to_bucket
from cohort.engine.protocol import Turns
from cohort.engine.requests import count_left
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
HOLD_S = 0.005
"""How long a row keeps its slot for a reply while others wait for one. Reading a whole context again takes longer than this."""
READ_TOKENS = 32
"""The longest reply that a row reads token by token, beside rows that sample; a longer one is read at once, in a prefill."""


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
        """slots: rows of the decoder. columns: noise positions that tokens may have. noise(row keys, positions, vocabulary): make_gumbel or
        a faster equivalent."""

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
        self.given_NT: Tensor | None = None
        """Ids of replies that rows read in their slots, -1 where they sample; None: no row reads."""
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
        self.given_NT = None

    def give(self, row: int, owner: int, token_ids: Sequence[int], limit: int) -> None:
        """Let the row of a completion that has ended its turn read these ids, and then sample up to the noise position `limit`."""
        if self.given_NT is None:
            self.given_NT = torch.full_like(self.token_ids_NT, -1)
        begin = int(self.counts_S[row])
        self.given_NT[owner, begin : begin + len(token_ids)] = torch.tensor(token_ids, dtype=torch.int32)
        self.limits_N[owner], self.done_S[row] = limit, 0

    def admit(self, rows: Tensor, owners: Tensor, positions: Tensor, counts: Tensor) -> None:
        """Start completions in these rows. Their next token has the noise of `counts` and will be fed at `positions`."""
        self.owners_S[rows], self.keys_S2[rows] = owners, self.keys_N2[owners.long()]
        self.positions_S[rows] = positions
        self.counts_S[rows], self.done_S[rows] = counts, 0

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for state in (self.tokens_S, self.positions_S, self.counts_S, self.owners_S, self.keys_S2, self.done_S):
            state[targets] = state[sources]

    def retire(self, rows: slice) -> None:
        """Mark these rows as empty. If they are part of a step, they write at position 0."""
        self.done_S[rows] = 1
        self.positions_S[rows] = 0

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
        reads_B: Tensor | None = None
        if self.given_NT is not None:
            given_B = self.given_NT[owners_B.long(), (counts_B * (1 - done_B)).long()]
            reads_B = given_B >= 0
            ids_B, logprobs_B = torch.where(reads_B, given_B, ids_B), logprobs_B.masked_fill(reads_B, 0.0)
        last = self.token_ids_NT.shape[0] - 1
        live_B = 1 - done_B
        # A finished row writes to the spare row, at a column that exists.
        at = (torch.where(done_B > 0, last, owners_B).long(), (counts_B * live_B).long())
        self.token_ids_NT.index_put_(at, ids_B.int())
        self.logprobs_NT.index_put_(at, logprobs_B)
        # A row that ended a turn still has to feed its last token.
        self.tokens_S[rows] = torch.where(done_B > 0, self.tokens_S[rows], ids_B.to(torch.int64))
        counts_B = counts_B + live_B
        self.counts_S[rows] = counts_B
        if advance:
            self.positions_S[rows] += live_B
        stopped_B = (ids_B[:, None] == self.stop_ids).any(-1)
        if reads_B is not None:
            stopped_B &= ~reads_B
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
    parks: bool = False
    """Whether a row can wait in its slot for a reply. Its decoder has one row more than slots, to exchange two rows."""

    def can_serve(self, requested: int, length: int, completions: int, sampling: Sampling, signature: tuple[Any, ...]) -> bool:
        fits = self.requested == requested and self.length >= length and self.completions >= completions
        return fits and self.sampling == sampling and self.signature == signature


@dataclass(frozen=True)
class Work:
    """The contexts of a call, each run once, and the completions that start from each context."""

    requests: list[Request]
    """By number. A continued completion has the request of its last continuation."""
    contexts: list[tuple[int, ...]]
    """A prompt, and the prefix of its completions."""
    members: list[list[int]]
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
        return Work(list(requests), contexts, members, np.array(begun), np.array([one.position for one in requests]))


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
        turns: Turns | None = None,
    ) -> None:
        """on_finish(completions): called when a check finds completions finished; their `lengths_N` are then known.

        on_progress(completions): called after each check with the completions done, open ones as the share of the limit they reached.
        turns: answers completions that have ended a turn, and continues them.
        """
        self.on_progress = on_progress
        self.parts, self.decoder, self.state, self.steps = parts, workspace.decoder, workspace.state, workspace.steps
        self.sampling, self.slots, self.work, self.on_finish = sampling, slots, work, on_finish
        self.width, self.turns, self.parks = workspace.width, turns, workspace.parks and turns is not None
        self.device = self.state.tokens_S.device
        # Longest first: the prompts of a prefill have similar lengths, and the slowest rows start early.
        self.queue = sorted(range(len(work.contexts)), key=lambda number: -len(work.contexts[number]))
        self.prefilled: PrefilledBatch | None = None
        self.live = 0
        completions = len(work.begun_N)
        rows = slots + workspace.parks
        self.owners_S = np.zeros(rows, dtype=np.int64)
        self.begun_S = np.zeros(rows, dtype=np.int64)
        """Position of each row's first completion token: the length of its prompt."""
        self.counts_S = np.zeros(rows, dtype=np.int64)
        """Upper bound on the tokens of each row; rows that stopped have fewer."""
        self.full_S = np.zeros(rows, dtype=np.int64)
        """Tokens at which each row has its maximum length."""
        self.parked: list[int] = []
        """Completions that wait for a reply in the last slots: the first one in the last slot."""
        self.since_N = np.zeros(completions)
        """When each completion ended its last turn."""
        self.reply_s = 0.0
        """Seconds that the latest replies took, as a moving average."""
        self.decoded = 0
        self.row_of_N = np.full(completions, -1)
        """Current row of each completion; -1: none."""
        self.lengths_N = np.zeros(completions, dtype=np.int64)
        self.num_steps = self.num_checks = self.num_prefills = 0

    def run(self) -> np.ndarray:
        """Decode everything; returns the length of each completion."""
        self.fill_slots(np.zeros(0, dtype=np.int64))
        before: RowStatus | None = None
        while self.live or self.waits:
            if self.turns is not None and not self.take_replies():
                continue
            now = self.advance() if before is None or self.can_continue() else None
            if self.device.type != "cpu":
                before, now = now, before
            if now is not None:
                self.fill_slots(self.park(self.find_finished(now)))
            if self.on_progress is not None:
                reached = self.counts_S[: self.live].sum() / self.sampling.max_completion_tokens
                self.on_progress(float((self.lengths_N > 0).sum() + reached))
        return self.lengths_N

    @property
    def waits(self) -> bool:
        """Whether any completion waits for a reply or, behind others that wait, for a slot."""
        return self.turns is not None and bool(self.turns.pending or self.queue or self.prefilled)

    def can_continue(self) -> bool:
        """Whether any live row may still get a token."""
        return bool((self.counts_S < self.full_S)[: self.live].any())

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
        left = (self.full_S - self.counts_S)[: self.live]
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
        lengths = counts[done > 0] - self.work.first_N[over]
        new = (self.row_of_N[over] >= 0) & (lengths > self.work.begun_N[over])  # a late status may be of the turn before
        over = over[new]
        self.decoded += int((lengths[new] - np.maximum(self.lengths_N[over], self.work.begun_N[over]) - 1).sum())
        self.lengths_N[over] = lengths[new]
        self.since_N[over] = time.monotonic()
        rows = self.row_of_N[over]
        self.row_of_N[over] = -1
        if self.on_finish is not None and len(over):
            self.on_finish(over)
        return rows

    def fill_slots(self, finished: np.ndarray) -> None:
        """Give the slots of finished rows, and unused slots, to waiting completions; then close the gaps."""
        waiting = self.queue or self.prefilled
        if waiting and self.parked:
            self.drop_for_others(len(finished))
        if not len(finished) and (self.live == self.top or not waiting):
            return
        free = [*finished.tolist(), *range(self.live, self.top)]
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
        self.full_S[taken] = begun + [count_left(self.work.requests[number], self.sampling) for number in admitted[:, 1]]
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
            self.move(sources, targets)
            self.row_of_N[self.owners_S[targets]] = targets
        self.state.retire(slice(live, self.top))

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows to other rows; no row is both."""
        places, new = list(sources), list(targets)
        for host_S in (self.owners_S, self.begun_S, self.counts_S, self.full_S):
            host_S[new] = host_S[places]
        reached = int((self.begun_S[new] + self.counts_S[new]).max())
        source_rows, target_rows = self.send_to_device(np.array([places, new]))
        self.state.move(source_rows, target_rows)
        self.decoder.move(source_rows, target_rows, reached)

    # -- turns -----------------------------------------------------------------------------------------------------------

    @property
    def top(self) -> int:
        """The first slot of parked rows; live rows are below it."""
        return self.slots - len(self.parked)

    def drop_for_others(self, finished: int) -> None:
        """Take the slots of parked completions, those that wait longest first, for completions without a slot. finished: slots that are free."""
        wanted = sum(len(self.work.members[place]) for place in self.queue)
        wanted += (len(self.prefilled.waiting) if self.prefilled else 0) - finished - (self.top - self.live)
        now = time.monotonic()
        for number in sorted(self.parked, key=self.since_N.__getitem__)[: max(0, wanted)]:
            if self.reply_s > HOLD_S or now - self.since_N[number] > HOLD_S:
                self.drop(number)

    def park(self, finished: np.ndarray) -> np.ndarray:
        """Let rows that ended a turn wait in their slots, unless others need these more; returns the rows that are free."""
        if not self.parks or ((self.queue or self.prefilled) and self.reply_s > HOLD_S):
            return finished
        # From the last row on: the rows before it keep their places.
        for row in sorted(finished.tolist(), reverse=True):
            number, last = int(self.owners_S[row]), self.live - 1
            if self.top - 1 > last:
                self.move([row], [self.top - 1])
                if row != last:
                    self.move([last], [row])
            else:
                self.exchange(row, last)
            if row != last:
                self.row_of_N[self.owners_S[row]] = row
            self.live -= 1
            self.parked.append(number)
            self.since_N[number] = time.monotonic()
        self.state.retire(slice(self.live, self.top))
        return finished[:0]

    def exchange(self, one: int, other: int) -> None:
        """Exchange two rows, through the row beyond the slots."""
        if one != other:
            for source, target in ((one, self.slots), (other, one), (self.slots, other)):
                self.move([source], [target])

    def drop(self, number: int) -> None:
        """Take the slot of a parked completion: the row in the first parked slot moves into it."""
        place, first = self.slots - 1 - self.parked.index(number), self.top
        if place != first:
            self.move([first], [place])
            self.parked[self.parked.index(number)] = self.parked[-1]
        self.parked.pop()
        self.state.retire(slice(first, first + 1))

    def resume(self, number: int, token_ids: Sequence[int], limit: int) -> None:
        """Let a parked completion read a reply in its slot, then sample up to `limit` tokens."""
        self.exchange(self.slots - 1 - self.parked.index(number), self.top)
        self.parked[self.parked.index(number)] = self.parked[-1]
        self.parked.pop()
        row, first = self.live, self.top - 1
        if row != first:
            self.move([first], [row])
            self.state.retire(slice(first, first + 1))
        self.state.give(row, number, token_ids, int(self.work.first_N[number]) + limit)
        self.row_of_N[number], self.counts_S[row], self.full_S[row] = row, self.lengths_N[number], limit
        self.live += 1

    def take_replies(self) -> bool:
        """Continue the completions whose replies have arrived; waits if there is nothing else to do. Whether any row is live."""
        assert self.turns is not None
        waiting = bool(self.queue or self.prefilled)
        for number, request in self.turns.take(0.0 if self.live else HOLD_S if waiting else None):
            parked = number in self.parked
            self.reply_s += 0.1 * (time.monotonic() - self.since_N[number] - self.reply_s)
            if request is None:
                if parked:
                    self.drop(number)
                continue
            before, limit = int(self.lengths_N[number]), len(request.prefix_ids) + count_left(request, self.sampling)
            if parked and len(request.prefix_ids) - before <= READ_TOKENS:
                self.resume(number, request.prefix_ids[before:], limit)
                continue
            if parked:
                self.drop(number)
            self.work.requests[number], self.work.begun_N[number] = request, len(request.prefix_ids)
            self.state.limits_N[number] = int(self.work.first_N[number]) + limit
            self.queue.append(len(self.work.contexts))
            self.work.contexts.append(request.context_ids)
            self.work.members.append([number])
        self.queue.sort(key=lambda place: -len(self.work.contexts[place]))
        self.fill_slots(np.zeros(0, dtype=np.int64))
        return self.live > 0


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
