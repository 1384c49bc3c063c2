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
from cohort.ops.rounding import count_missing_rows
from cohort.types import Request, Sampling

PREFILL_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Padded tokens in one prefill; enough to fill the machine, little enough to keep its activations small."""
STEPS_BETWEEN_LOOKS = 4
"""Decode steps on a GPU between two looks at which rows have finished, where a stop may come at any token."""


@dataclass
class Prefix:
    """A prefilled batch of prompts, kept until the last completion of its groups has a slot."""

    stacked: Any
    last_hidden_PH: Tensor
    lengths_P: np.ndarray
    waiting: np.ndarray
    """[W, 2]: (row of the batch, completion) of those without a slot yet."""


@dataclass
class Workspace:
    """Slots, their state and the graphs over them. Contents are of one call; the memory may serve the next one."""

    decoder: Decoder
    state: SlotState
    steps: GraphedSteps | None
    asked: int
    """Slots that were asked for; 0: the engine chose."""
    slots: int
    length: int
    completions: int
    sampling: Sampling
    signature: tuple[Any, ...]
    width: int = 0
    """Numbers in a row of the MLP's activation, where dead rows may come along to make up for an odd one."""

    def can_serve(self, asked: int, length: int, completions: int, sampling: Sampling, signature: tuple[Any, ...]) -> bool:
        fits = self.asked == asked and self.length >= length and self.completions >= completions
        return fits and self.sampling == sampling and self.signature == signature


@dataclass
class CallTally:
    """What a call did, for the metrics."""

    steps: int = 0
    looks: int = 0
    prefills: int = 0


@dataclass(frozen=True)
class Work:
    """What a call decodes: contexts, each run once, and the completions that begin with each."""

    contexts: Sequence[tuple[int, ...]]
    """A prompt, and what is there already of the completion."""
    members: Sequence[Sequence[int]]
    """Of each context."""
    begun_N: np.ndarray
    """Tokens that each completion begins with."""
    first_N: np.ndarray
    """Where in its noise each completion begins."""

    @staticmethod
    def group_requests(requests: Sequence[Request]) -> Work:
        """Requests of one draw and prefix that follow each other share a context."""
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


class Decoding:
    """One call of the engine.

    On a GPU looks lag behind: the next steps are already on their way while the host reads how the ones before them ended and
    gives the slots of finished rows away. Rows may have moved in between, so what is read is matched by owner, not by row.
    """

    def __init__(
        self,
        parts: SplitModel,
        workspace: Workspace,
        work: Work,
        sampling: Sampling,
        slots: int,
        on_finish: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        """`on_finish` is told which completions a look saw finished for the first time; their `lengths_N` are known then."""
        self.parts, self.decoder, self.state, self.steps = parts, workspace.decoder, workspace.state, workspace.steps
        self.sampling, self.slots, self.work, self.on_finish = sampling, slots, work, on_finish
        self.width = workspace.width
        self.device = self.state.tokens_S.device
        # Longest first: prompts of one prefill are of nearly one length, and the slowest rows start early.
        self.queue = sorted(range(len(work.contexts)), key=lambda number: -len(work.contexts[number]))
        self.prefix: Prefix | None = None
        self.live = 0
        completions = len(work.begun_N)
        self.owners_S = np.zeros(slots, dtype=np.int64)
        self.begun_S = np.zeros(slots, dtype=np.int64)
        """Position at which each row's first completion token stands: the length of its prompt."""
        self.counts_S = np.zeros(slots, dtype=np.int64)
        """Tokens each row has at most; rows that stopped have fewer."""
        self.row_of_N = np.full(completions, -1)
        """Row of each completion that has one now."""
        self.lengths_N = np.zeros(completions, dtype=np.int64)
        self.tally = CallTally()

    def run(self) -> np.ndarray:
        """Decode everything; gives the length of each completion."""
        self.make_room(np.zeros(0, dtype=np.int64))
        before: Look | None = None
        while self.live:
            now = self.advance_and_look() if before is None or self.can_go_on() else None
            if self.device.type != "cpu":
                before, now = now, before
            if now is not None:
                self.make_room(self.find_finished(now))
        return self.lengths_N

    def can_go_on(self) -> bool:
        """Whether any live row can still have a token to come."""
        return bool(self.counts_S[: self.live].min() < self.sampling.max_completion_tokens)

    def advance_and_look(self) -> Look:
        """A few tokens for every live row; one on a CPU, where looking costs nothing."""
        if self.device.type == "cpu":
            times = 1
            self.step(self.live)
        else:
            # Buckets are those of the workspace, so that calls of many sizes share their graphs.
            rows, times = round_to_bucket(self.live, len(self.state.tokens_S)), self.count_steps_until_look()
            if self.steps is not None:
                self.steps.run(rows, times)
            else:
                for fed in range(times):
                    self.step(rows, fed)
        self.counts_S[: self.live] += times
        self.tally.steps += times
        self.tally.looks += 1
        return Look(self.state, self.live)

    def count_steps_until_look(self) -> int:
        """Until the first row can be full, but no more than a few where a stop may come at any time."""
        left = self.sampling.max_completion_tokens - self.counts_S[: self.live]
        return max(1, min(int(left[left > 0].min(initial=STEPS_BETWEEN_LOOKS)), STEPS_BETWEEN_LOOKS))

    def step(self, rows: int, fed_before: int = 0) -> None:
        """One token for the first rows, `fed_before` since the last look.

        Everything but `longest` lives on the device, and the kernels do not read it: a captured step needs no other.
        """
        state = self.state
        # On a CPU dead rows come along to make the products steady; they write at position 0 of their own slots.
        fed = rows + count_missing_rows(rows, self.device, self.width)
        longest = fed_before + int((self.begun_S[: self.live] + self.counts_S[: self.live]).max())
        hidden_BH = self.decoder.step(state.tokens_S[:fed], state.positions_S[:fed], state.done_S[:fed], longest)
        state.sample_tokens(slice(0, rows), self.parts.logits(hidden_BH[:rows]), self.sampling, advance=True)

    def find_finished(self, look: Look) -> np.ndarray:
        """Rows, as they lie now, of the completions that this look saw finished for the first time."""
        owners, counts, done = look.read()
        over = owners[done > 0]
        new = self.row_of_N[over] >= 0
        over, counts = over[new], counts[done > 0][new]
        self.lengths_N[over] = counts - self.work.first_N[over]
        rows = self.row_of_N[over]
        self.row_of_N[over] = -1
        if self.on_finish is not None and len(over):
            self.on_finish(over)
        return rows

    def make_room(self, finished: np.ndarray) -> None:
        """Give the slots of finished rows, and those not yet used, to waiting completions; then close the gaps."""
        waiting = self.queue or self.prefix
        if not len(finished) and (self.live == self.slots or not waiting):
            return
        free = [*finished.tolist(), *range(self.live, self.slots)]
        while free and (self.queue or self.prefix):
            free = self.admit(free)
        self.compact(free)

    def admit(self, free: list[int]) -> list[int]:
        """Start as many waiting completions as one prefilled batch and the free slots allow; gives the slots still free.

        The first token comes from the prompt's hidden state; a completion that ends with it is noticed at the next look.
        """
        prefix = self.prefix or self.prefill_next()
        admitted, prefix.waiting = prefix.waiting[: len(free)], prefix.waiting[len(free) :]
        self.prefix = prefix if len(prefix.waiting) else None
        taken, free = np.array(free[: len(admitted)]), free[len(admitted) :]

        lengths, begun = prefix.lengths_P[admitted[:, 0]], self.work.begun_N[admitted[:, 1]]
        counts = self.work.first_N[admitted[:, 1]] + begun
        numbers = np.stack((taken, admitted[:, 0], admitted[:, 1], lengths, counts))
        rows, prefix_rows, owners, positions, noise_positions = self.send_to_device(numbers)
        self.decoder.load(rows, prefix.stacked, prefix_rows)
        self.state.admit(rows, owners.int(), positions, noise_positions.int())
        self.owners_S[taken], self.begun_S[taken], self.counts_S[taken] = admitted[:, 1], lengths - begun, begun + 1
        self.row_of_N[admitted[:, 1]] = taken
        self.live = max(self.live, 1 + int(taken.max()))

        logits_BV = self.parts.logits(prefix.last_hidden_PH[prefix_rows])
        self.state.sample_tokens(rows, logits_BV, self.sampling, advance=False)
        return free

    def send_to_device(self, numbers: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def prefill_next(self) -> Prefix:
        """Run the next prompts, as many as one prefill holds, through the backbone."""
        width = len(self.work.contexts[self.queue[0]])
        count = max(1, PREFILL_TOKENS[self.device.type] // width)
        numbers, self.queue = self.queue[:count], self.queue[count:]
        prompts = [self.work.contexts[number] for number in numbers]
        stacked, last_hidden_PH = self.decoder.prefill(prompts)
        waiting = [(row, completion) for row, number in enumerate(numbers) for completion in self.work.members[number]]
        self.tally.prefills += 1
        lengths = np.array([len(prompt) for prompt in prompts])
        return Prefix(stacked, last_hidden_PH, lengths, np.array(waiting))

    def compact(self, free: list[int]) -> None:
        """Move the last live rows into the gaps, so that live rows are the first rows again."""
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


class Look:
    """How the slots stood at one moment: taken without waiting, read when it has arrived."""

    def __init__(self, state: SlotState, live: int) -> None:
        standing = torch.stack((state.owners_S[:live], state.counts_S[:live], state.done_S[:live]))
        self.arrived: Any = None
        if standing.is_cuda:
            self.standing = torch.empty(standing.shape, dtype=standing.dtype, pin_memory=True)
            self.standing.copy_(standing, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()
        else:
            self.standing = standing

    def read(self) -> np.ndarray:
        """Owners, counts and done flags."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.standing.numpy().astype(np.int64)


class SlotState:
    """S slots, N completions of at most T tokens."""

    def __init__(
        self,
        slots: int,
        completions: int,
        sampling: Sampling,
        device: torch.device,
        noise: Callable[[Tensor, Tensor, int], Tensor] = make_gumbel,
        columns: int = 0,
    ) -> None:
        """`noise` of (row keys, positions, vocabulary): gumbel, or what gives the same bits faster.

        `columns`: positions that tokens may have, where noise does not begin at 0; 0: max_completion_tokens of them.
        """
        columns = columns or sampling.max_completion_tokens

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.make_noise = noise
        self.with_kernels = has_kernels(device)
        """Whether Triton is there to note tokens down with."""
        self.tokens_S = zeros(slots, dtype=torch.int64)
        """The token to feed next."""
        self.positions_S = zeros(slots, dtype=torch.int64)
        """Its position in the sequence."""
        self.counts_S = zeros(slots)
        """The position of the next token in the noise of its completion: the tokens so far, unless the noise began elsewhere."""
        self.owners_S = zeros(slots)
        """The completion that the row belongs to."""
        self.keys_S2 = zeros(slots, 2)
        self.done_S = zeros(slots) + 1
        self.keys_N2 = zeros(completions, 2)
        self.limits_N = zeros(completions)
        """The position at which each completion is full."""
        self.greedy_N = zeros(completions, dtype=torch.bool)
        self.token_ids_NT = zeros(completions + 1, columns)
        """One row more than there are completions: finished rows of the plain torch path write there."""
        self.logprobs_NT = zeros(completions + 1, columns, dtype=torch.float32)
        self.stop_ids = torch.tensor(sampling.stop_ids, dtype=torch.int32, device=device)
        self.rows_S = torch.arange(slots, dtype=torch.int32, device=device)
        """0, 1, 2, ...: the rows of a decode step."""

    def start_call(self, keys: Sequence[tuple[int, int]], limits: Sequence[int], greedy: Sequence[bool] = ()) -> None:
        """A new call: no slot is taken, nothing is written down. greedy: which completions are, where only some may be."""
        self.done_S.fill_(1)
        self.positions_S.zero_()
        self.keys_N2[: len(keys)] = torch.tensor(keys, dtype=torch.int32)
        self.limits_N[: len(limits)] = torch.tensor(limits, dtype=torch.int32)
        self.greedy_N[: len(greedy)] = torch.tensor(greedy, dtype=torch.bool)
        self.logprobs_NT.zero_()

    def admit(self, rows: Tensor, owners: Tensor, positions: Tensor, counts: Tensor) -> None:
        """Rows begin completions: their next token has the noise of `counts`, and will be fed at `positions`."""
        self.owners_S[rows], self.keys_S2[rows] = owners, self.keys_N2[owners.long()]
        self.positions_S[rows] = positions
        self.counts_S[rows], self.done_S[rows] = counts, 0

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Rows change their place."""
        for state in (self.tokens_S, self.positions_S, self.counts_S, self.owners_S, self.keys_S2, self.done_S):
            state[targets] = state[sources]

    def retire(self, live: int) -> None:
        """Rows from `live` on are empty; where they come along they write at position 0."""
        self.done_S[live:] = 1
        self.positions_S[live:] = 0

    def sample_tokens(self, rows: slice | Tensor, logits_BV: Tensor, sampling: Sampling, advance: bool) -> None:
        """Sample the next token of each row that is not done, and write it down. `advance`: these rows have just fed one."""
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
        # A row that is done writes into the spare row, at a place that exists.
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
