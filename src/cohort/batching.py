"""pack(): the only place that pads, shifts, masks and normalises.

A batch is what one step collected. Each pass over it is cut into minibatches (one optimizer step each), each minibatch
into micro-batches (one forward-backward each) under a budget of padded tokens. Weights are fixed over the minibatch
before anything runs, so micro-batches only bound memory.

Rows are right-padded: under a causal mask padding after the end is never seen, so no attention mask is needed at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms.aggregation import AGGREGATIONS
from cohort.errors import InvariantError
from cohort.types import Rollout


@dataclass(frozen=True)
class Example:
    """One completion as the trainer sees it. Vectors are over the completion's tokens, aligned to the token they describe."""

    rollout: int
    """Place of its rollout in the step."""
    group: int
    """Number of its group in the step; the two completions of a pair share one."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    loss_mask_T: Tensor
    """True exactly on tokens the policy sampled and we train on."""
    advantages_T: Tensor
    sampling_logprobs_T: Tensor
    old_logprobs_T: Tensor | None = None
    """None: exactly on-policy, the ratio is 1 by construction."""
    ref_logprobs_T: Tensor | None = None
    old_values_T: Tensor | None = None
    """PPO: what the critic expected before each token, and the return it should have expected."""
    returns_T: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def trained_tokens(self) -> int:
        return int(self.loss_mask_T.sum())

    @property
    def has_gradient(self) -> bool:
        """Whether the policy term can push on any of its tokens."""
        return bool((self.advantages_T[self.loss_mask_T] != 0).any())


@dataclass(frozen=True)
class MicroBatch:
    """One forward-backward. B rows, T positions, M trained tokens laid flat in row order."""

    token_ids_BT: Tensor
    row_M: Tensor
    position_M: Tensor
    """Position of each trained token in its row; the hidden state one before predicts it."""
    loss_weights_M: Tensor
    advantages_M: Tensor
    sampling_logprobs_M: Tensor
    old_logprobs_M: Tensor | None
    ref_logprobs_M: Tensor | None
    old_values_M: Tensor | None
    returns_M: Tensor | None
    group_B: Tensor
    """Number of each row's group."""
    examples: tuple[int, ...]
    """Place of each row in the list that was packed."""

    @property
    def token_ids_M(self) -> Tensor:
        return self.token_ids_BT[self.row_M, self.position_M]

    def to(self, device: torch.device | str) -> MicroBatch:
        moved: dict[str, Any] = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class Minibatch:
    """One optimizer step."""

    micro_batches: list[MicroBatch]
    completions: int
    """Completions counted in the denominators, forwarded or not."""
    trained_tokens: int


def make_examples(
    rollouts: Sequence[Rollout],
    *,
    left_out: AbstractSet[int] = frozenset(),
    mask_truncated: bool = False,
) -> list[Example]:
    """Rollouts with a reward, as examples, not credited yet. Unscored ones and groups that are `left_out` are in no mean at all."""
    examples = []
    for index, rollout in enumerate(rollouts):
        if rollout.outcome.reward is None or rollout.group in left_out:
            continue
        completion = rollout.completion
        mask_T = torch.tensor(completion.mask, dtype=torch.bool)
        if mask_truncated and completion.end == "length":
            mask_T = torch.zeros_like(mask_T)
        examples.append(
            Example(
                rollout=index,
                group=rollout.group,
                prompt_ids=rollout.prompt.token_ids,
                completion_ids=completion.token_ids,
                loss_mask_T=mask_T,
                advantages_T=torch.zeros(len(completion.token_ids), dtype=torch.float32),
                sampling_logprobs_T=torch.tensor(completion.sampling_logprobs, dtype=torch.float32),
            )
        )
    return examples


def pack(
    examples: Sequence[Example],
    *,
    aggregation: str,
    max_completion_tokens: int,
    micro_batch_tokens: int,
    skip_zero_advantage: bool,
    keep_groups: bool = False,
    pad_id: int = 0,
) -> Minibatch:
    """One minibatch: weights over all examples, then micro-batches of those that are forwarded.

    keep_groups puts all rows of a group into one micro-batch, for losses that compare rows.

    skip_zero_advantage leaves out the forward of examples that nothing pushes on. They stay in the denominators, so the
    gradient is the same; it may only be set when no KL or entropy term acts on them.
    """
    lengths_N = [example.trained_tokens for example in examples]
    weights_N = AGGREGATIONS[aggregation](lengths_N, [example.group for example in examples], max_completion_tokens)
    forwarded = [
        index
        for index, example in enumerate(examples)
        if lengths_N[index] and (example.has_gradient or not skip_zero_advantage)
    ]
    num_tokens = [example.num_tokens for example in examples]
    unit_of = (lambda index: examples[index].group) if keep_groups else None
    micro_batches = [
        _micro_batch([(index, examples[index]) for index in rows], weights_N, pad_id)
        for rows in token_budget_rows(forwarded, num_tokens, micro_batch_tokens, unit_of)
    ]
    return Minibatch(micro_batches, completions=sum(length > 0 for length in lengths_N), trained_tokens=sum(lengths_N))


def minibatch_members(groups_N: Sequence[int], minibatches: int, passes: int, seed: int, step: int) -> list[list[int]]:
    """Which examples belong to each optimizer step of a step: whole groups, in a keyed order, as equal as they come."""
    plan = []
    for number in range(passes):
        groups = sorted(set(groups_N))
        if minibatches > 1:
            random.Random(f"minibatches:{seed}:{step}:{number}").shuffle(groups)
        parts = min(minibatches, max(1, len(groups)))
        bounds = [len(groups) * part // parts for part in range(parts + 1)]
        for low, high in pairwise(bounds):
            chosen = set(groups[low:high])
            plan.append([index for index, group in enumerate(groups_N) if group in chosen])
    return plan


def token_budget_rows(
    rows: Sequence[int], num_tokens: Sequence[int], budget: int, unit_of: Callable[[int], int] | None = None
) -> list[list[int]]:
    """Cut rows, longest first, into lists whose padded size (rows x longest) stays within the budget; one unit always fits.

    A unit is one row, or with `unit_of` all rows that share its value.
    """
    units: dict[int, list[int]] = {}
    for row in rows:
        units.setdefault(unit_of(row) if unit_of else row, []).append(row)
    longest = {unit: max(num_tokens[row] for row in members) for unit, members in units.items()}
    batches: list[list[int]] = []
    width = 0
    for unit in sorted(units, key=lambda unit: (-longest[unit], unit)):
        if not batches or width * (len(batches[-1]) + len(units[unit])) > budget:
            batches.append([])
            width = longest[unit]
        batches[-1] += units[unit]
    return batches


def _micro_batch(rows: Sequence[tuple[int, Example]], weights_N: Sequence[float], pad_id: int) -> MicroBatch:
    examples = [example for _, example in rows]
    width = max(example.num_tokens for example in examples)
    token_ids_BT = torch.full((len(examples), width), pad_id, dtype=torch.long)
    row_M, position_M = [], []
    for row, example in enumerate(examples):
        token_ids_BT[row, : example.num_tokens] = torch.tensor(example.prompt_ids + example.completion_ids)
        positions = example.loss_mask_T.nonzero().squeeze(1) + len(example.prompt_ids)
        position_M.append(positions)
        row_M.append(torch.full_like(positions, row))

    def flat(vectors: Sequence[Tensor | None]) -> Tensor | None:
        chosen = [vector[example.loss_mask_T] for vector, example in zip(vectors, examples, strict=True) if vector is not None]
        if chosen and len(chosen) < len(examples):
            raise InvariantError("a minibatch mixes examples with and without old log-probs, reference log-probs or values")
        return torch.cat(chosen) if chosen else None

    advantages_M = flat([example.advantages_T for example in examples])
    sampling_logprobs_M = flat([example.sampling_logprobs_T for example in examples])
    assert advantages_M is not None
    assert sampling_logprobs_M is not None
    weights_M = [torch.full((example.trained_tokens,), weights_N[index], dtype=torch.float64) for index, example in rows]
    return MicroBatch(
        token_ids_BT=token_ids_BT,
        row_M=torch.cat(row_M),
        position_M=torch.cat(position_M),
        loss_weights_M=torch.cat(weights_M),
        advantages_M=advantages_M,
        sampling_logprobs_M=sampling_logprobs_M,
        old_logprobs_M=flat([example.old_logprobs_T for example in examples]),
        ref_logprobs_M=flat([example.ref_logprobs_T for example in examples]),
        old_values_M=flat([example.old_values_T for example in examples]),
        returns_M=flat([example.returns_T for example in examples]),
        group_B=torch.tensor([example.group for example in examples]),
        examples=tuple(index for index, _ in rows),
    )
