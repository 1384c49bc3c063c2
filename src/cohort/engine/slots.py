"""What the device knows about each slot, and the noting down of sampled tokens.

Everything that changes from step to step lives in tensors over slots, so that many steps can follow each other without the
host: a row that meets a stop or its limit is marked done, and from then on neither advances nor writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cohort.engine.sampling import choose_tokens
from cohort.ops.fused import has_kernels
from cohort.ops.noise import make_gumbel
from cohort.types import Sampling


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
