"""pack(): the only place that shifts, masks and normalises.

A batch is what one step collected. Each pass over it is cut into minibatches (one optimizer step each), each minibatch
into micro-batches (one forward-backward each) under a budget of tokens. Weights are fixed over the minibatch before
anything runs, so micro-batches only bound memory.

Rows are laid flat, one after the other, and never padded; a group's prompt stands once where that saves enough (ops/layout.py).
Everything up to the tensors is numpy: a step on a fast GPU takes two seconds, and thousands of small tensor operations on the
host would be felt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms.named import find_named
from cohort.base.world import World
from cohort.errors import InvariantError
from cohort.ops.gather import Indices, Selection, list_ranges, move_record
from cohort.ops.layout import Layout, lay_out
from cohort.types import Rollout

Weigh = Callable[[Sequence[int], Sequence[int], int], Sequence[float]]
"""(trained tokens of each completion, its group, max_completion_tokens) -> weight of one token of each completion."""
VECTORS = ("advantages", "sampling_logprobs", "old_logprobs", "ref_logprobs", "old_values", "returns", "fresh")
"""What a micro-batch takes from its examples, token by token."""
SHARING_PAYS = 0.05
"""Share of the tokens that prompts standing once must save: attention over them is a second call, and its merge is not free."""


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
    fresh_T: Tensor | None = None
    """Which tokens the policy sampled as it was at the start of the step. None: all of them."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @cached_property
    def trained_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask_T.numpy()))

    @cached_property
    def has_gradient(self) -> bool:
        """Whether the policy term can push on any of its tokens."""
        return bool(self.advantages_T.numpy()[self.loss_mask_T.numpy()].any())


@dataclass(frozen=True)
class LaidOut:
    """The rows of a micro-batch in their places: all of it that does not change while a step credits and scores its examples.

    B rows, each a prompt and a completion; M trained tokens in row order.
    """

    layout: Layout
    before: Selection
    """Of the layout's tokens: those whose hidden states predict the trained ones, one earlier in the same row."""
    token_ids_M: Tensor
    row_M: Tensor
    group_B: Tensor
    """Number of each row's group."""
    examples: tuple[int, ...]
    """Place of each row in the list that was packed."""
    trained_M: Indices
    """Of all tokens of all completions, one after the other."""


@dataclass(frozen=True)
class MicroBatch(LaidOut):
    """One forward-backward."""

    loss_weights_M: Tensor
    advantages_M: Tensor
    sampling_logprobs_M: Tensor
    old_logprobs_M: Tensor | None
    ref_logprobs_M: Tensor | None
    old_values_M: Tensor | None
    returns_M: Tensor | None
    fresh_M: Tensor | None
    place: int = 0
    """Its number in the minibatch, the same on every rank; -1: it counts nowhere (`make_idle`)."""

    @property
    def before_M(self) -> Tensor:
        return self.before.index_N

    @property
    def num_rows(self) -> int:
        return len(self.examples)

    @property
    def idle(self) -> bool:
        return self.place < 0

    def make_idle(self) -> MicroBatch:
        """The same without weight: for a process that takes a turn only because the others do."""
        return replace(self, loss_weights_M=torch.zeros_like(self.loss_weights_M), place=-1)

    def to(self, device: torch.device | str) -> MicroBatch:
        return move_record(self, device)


@dataclass(frozen=True)
class Minibatch:
    """One optimizer step."""

    micro_batches: list[MicroBatch]
    completions: int
    """Completions counted in the denominators, forwarded or not."""
    trained_tokens: int
    forwarded_tokens: int
    """Prompt and completion of every row that is forwarded, each counted whole."""
    weights_N: Sequence[float] = ()
    """Of one token of each example, forwarded or not."""

    def deal(self, world: World) -> list[MicroBatch]:
        """Those that are this process's to do; and turns in which it only keeps step, where it must."""
        turns = world.list_turns([micro.layout.num_tokens for micro in self.micro_batches])
        return [self.micro_batches[place] if weight else self.micro_batches[place].make_idle() for place, weight in turns]

    @property
    def executed_tokens(self) -> int:
        """Tokens that go through the model: a shared prompt counts once."""
        return sum(micro.layout.num_tokens for micro in self.micro_batches)


def make_examples(
    rollouts: Sequence[Rollout],
    *,
    left_out: AbstractSet[int] = frozenset(),
    mask_truncated: bool = False,
) -> list[Example]:
    """Rollouts with a reward, as examples, not credited yet. Unscored ones and groups that are `left_out` are in no mean at all."""
    kept = [(i, one) for i, one in enumerate(rollouts) if one.outcome.reward is not None and one.group not in left_out]
    # Tensors of all tokens, of which every example has its piece: a thousand small ones take longer than the rest of this.
    lengths = [len(rollout.completion.token_ids) for _, rollout in kept]
    logprobs = chain.from_iterable(rollout.completion.sampling_logprobs for _, rollout in kept)
    logprobs_T = torch.from_numpy(np.fromiter(logprobs, np.float32, sum(lengths)))
    pieces = (torch.ones(sum(lengths), dtype=torch.bool), torch.zeros(sum(lengths), dtype=torch.float32), logprobs_T)
    examples = []
    for (index, rollout), mask_T, zeros_T, own_T in zip(kept, *(values_T.split(lengths) for values_T in pieces), strict=True):
        completion = rollout.completion
        if completion.sampled_mask is not None:
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
                advantages_T=zeros_T,
                sampling_logprobs_T=own_T,
            )
        )
    return examples


def weigh_by(aggregation: str) -> Weigh:
    """The built-in aggregation of that name."""
    choice = find_named("aggregation", aggregation)
    return lambda lengths_N, groups_N, most: choice.call({}, lengths_N=lengths_N, groups_N=groups_N, max_completion_tokens=most)


def pack(
    examples: Sequence[Example],
    *,
    aggregation: str | Weigh,
    max_completion_tokens: int,
    micro_batch_tokens: int,
    skip_zero_advantage: bool,
    keep_groups: bool = False,
    share_prompts: bool = False,
    layouts: Layouts | None = None,
) -> Minibatch:
    """One minibatch: weights over all examples, then micro-batches of those that are forwarded.

    aggregation is a built-in one by name, or what weighs tokens instead.

    keep_groups puts all rows of a group into one micro-batch, for losses that compare rows.

    share_prompts says that the model can read a prompt once for all completions of its group; done where it pays.

    skip_zero_advantage leaves out the forward of examples that nothing pushes on. They stay in the denominators, so the
    gradient is the same; it may only be set when no KL or entropy term acts on them.

    layouts holds what was laid out already for examples of the same step.
    """
    lengths_N = [example.trained_tokens for example in examples]
    weigh = weigh_by(aggregation) if isinstance(aggregation, str) else aggregation
    weights_N = weigh(lengths_N, [example.group for example in examples], max_completion_tokens)
    forwarded = [
        index
        for index, example in enumerate(examples)
        if lengths_N[index] and (example.has_gradient or not skip_zero_advantage)
    ]
    layouts = layouts or Layouts()
    laid_out = layouts.find(examples, forwarded, micro_batch_tokens, keep_groups, share_prompts)
    micro_batches = [_make_micro_batch(examples, rows, weights_N, place) for place, rows in enumerate(laid_out)]
    return Minibatch(
        micro_batches,
        completions=sum(length > 0 for length in lengths_N),
        trained_tokens=sum(lengths_N),
        forwarded_tokens=sum(examples[index].num_tokens for index in forwarded),
        weights_N=weights_N,
    )


def plan_minibatches(groups_N: Sequence[int], minibatches: int, passes: int, seed: int, step: int) -> list[list[int]]:
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


@dataclass(frozen=True)
class Unit:
    """Rows that stay together in a micro-batch."""

    rows: tuple[int, ...]
    tokens: int
    longest: int


def cut_rows(
    examples: Sequence[Example], rows: Sequence[int], budget: int, keep_groups: bool, share_prompts: bool
) -> tuple[bool, list[list[int]]]:
    """(whether prompts are shared, the rows of each micro-batch)."""
    num_tokens = {row: examples[row].num_tokens for row in rows}
    if share_prompts:
        units = make_sharing_units(examples, rows, budget, keep_groups)
        if sum(unit.tokens for unit in units) <= (1.0 - SHARING_PAYS) * sum(num_tokens.values()):
            return True, fill_batches(units, budget)
    return False, cut_by_tokens(rows, num_tokens, budget, (lambda row: examples[row].group) if keep_groups else None)


def cut_by_tokens(
    rows: Sequence[int],
    num_tokens: Sequence[int] | Mapping[int, int],
    budget: int,
    unit_of: Callable[[int], int] | None = None,
) -> list[list[int]]:
    """Cut rows, longest first, into lists whose tokens stay within the budget; one unit always fits.

    A unit is one row, or with `unit_of` all rows that share its value.
    """
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(unit_of(row) if unit_of else row, []).append(row)
    units = []
    for _, unit_rows in sorted(members.items()):
        lengths = [num_tokens[row] for row in unit_rows]
        units.append(Unit(tuple(unit_rows), sum(lengths), max(lengths)))
    return fill_batches(units, budget)


def make_sharing_units(examples: Sequence[Example], rows: Sequence[int], budget: int, keep_groups: bool) -> list[Unit]:
    """Rows of one prompt, cut where they exceed the budget; with `keep_groups` all rows of a group, prompt by prompt."""
    by_prompt: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row in rows:
        by_prompt.setdefault((examples[row].group, examples[row].prompt_ids), []).append(row)
    of_group: dict[int, list[Unit]] = {}
    for (group, prompt_ids), members in by_prompt.items():
        parts: list[list[int]] = []
        tokens = 0
        for row in members:
            length = len(examples[row].completion_ids)
            if not parts or (tokens + length > budget and not keep_groups):
                parts.append([])
                tokens = len(prompt_ids)
            parts[-1].append(row)
            tokens += length
        for part in parts:
            lengths = [len(examples[row].completion_ids) for row in part]
            unit = Unit(tuple(part), len(prompt_ids) + sum(lengths), len(prompt_ids) + max(lengths))
            of_group.setdefault(group if keep_groups else len(of_group), []).append(unit)
    return [join_units(units) for _, units in sorted(of_group.items())]


def join_units(units: Sequence[Unit]) -> Unit:
    rows = tuple(row for unit in units for row in unit.rows)
    return Unit(rows, sum(unit.tokens for unit in units), max(unit.longest for unit in units))


def fill_batches(units: Sequence[Unit], budget: int) -> list[list[int]]:
    """Whole units, longest first, into lists within the budget: rows of like lengths stand together. One unit always fits."""
    batches: list[list[int]] = []
    tokens = 0
    for unit in sorted(units, key=lambda unit: -unit.longest):
        if not batches or tokens + unit.tokens > budget:
            batches.append([])
            tokens = 0
        batches[-1] += unit.rows
        tokens += unit.tokens
    return batches


class Layouts:
    """What one step has laid out: a minibatch once, for old, reference and values, and for every pass that trains on it.

    On the host alone: a device gets copies, which go when their micro-batch is done.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, list[LaidOut]] = {}

    def find(
        self, examples: Sequence[Example], forwarded: Sequence[int], budget: int, keep_groups: bool, share_prompts: bool
    ) -> list[LaidOut]:
        """`forwarded` rows of these examples, laid out. Within a step an example is known by its rollout."""
        names = tuple(example.rollout for example in examples)
        key = (names, tuple(forwarded), budget, keep_groups, share_prompts)
        if key not in self.made:
            shared, batches = cut_rows(examples, forwarded, budget, keep_groups, share_prompts)
            self.made[key] = [_lay_out_rows(examples, rows, shared) for rows in batches]
        return self.made[key]


def _lay_out_rows(examples: Sequence[Example], rows: Sequence[int], share_prompts: bool) -> LaidOut:
    chosen = [examples[row] for row in rows]
    if not all(example.prompt_ids for example in chosen):
        raise InvariantError("a prompt without tokens: nothing predicts the first token of its completion.")
    layout = lay_out(
        [(example.prompt_ids, example.completion_ids) for example in chosen],
        [(example.group, example.prompt_ids) for example in chosen] if share_prompts else None,
    )
    length_B = np.array([len(example.completion_ids) for example in chosen])
    mask_C = np.concatenate([example.loss_mask_T.numpy() for example in chosen])  # C: all tokens of all completions
    row_C = np.repeat(np.arange(len(chosen)), length_B)
    here_C = list_ranges(layout.rows.completion_start_B, length_B)
    before_C = here_C - 1  # the only shift in the project
    before_C[np.cumsum(length_B) - length_B] = layout.rows.before_completion_B
    trained_M = np.flatnonzero(mask_C)
    return LaidOut(
        layout=layout,
        before=Selection.from_index(before_C[trained_M], layout.num_tokens),
        token_ids_M=layout.token_ids_T[torch.from_numpy(here_C[trained_M])],
        row_M=torch.from_numpy(row_C[trained_M]),
        group_B=torch.tensor([example.group for example in chosen]),
        examples=tuple(rows),
        trained_M=trained_M,
    )


def _make_micro_batch(examples: Sequence[Example], laid_out: LaidOut, weights_N: Sequence[float], place: int) -> MicroBatch:
    chosen = [examples[row] for row in laid_out.examples]

    def join_vectors(name: str) -> Tensor | None:
        vectors = [getattr(example, name) for example in chosen]
        present = [vector.numpy() for vector in vectors if vector is not None]
        if present and len(present) < len(vectors):
            raise InvariantError("a minibatch mixes examples with and without old log-probs, reference log-probs or values")
        return torch.from_numpy(np.concatenate(present)[laid_out.trained_M]) if present else None

    weights_B = np.array([weights_N[row] for row in laid_out.examples], dtype=np.float64)
    weights_M = torch.from_numpy(weights_B[laid_out.row_M.numpy()])
    vectors: dict[str, Any] = {f"{name}_M": join_vectors(f"{name}_T") for name in VECTORS}
    return MicroBatch(**vars(laid_out), loss_weights_M=weights_M, place=place, **vectors)
