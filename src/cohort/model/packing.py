"""pack(): the only place that shifts, masks and normalises.

A batch holds the examples of one step. Each pass over it is split into minibatches (one optimizer step each), and each minibatch
into micro-batches (one forward-backward each) with a budget of tokens. Token weights are computed over the whole minibatch
first, so micro-batches only limit memory.

Rows are flat, one after the other, without padding. A group's prompt is stored once where that saves enough (ops/layout.py).
Everything before the tensors is numpy: a step on a fast GPU takes two seconds, and thousands of small tensor operations on the
host would slow it down.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms.named import find_named
from cohort.base.world import World
from cohort.errors import InvariantError
from cohort.model.examples import VECTORS, Example, Examples, join_examples
from cohort.ops.layout import Indices, Layout, Selection, lay_out, list_ranges, move_record

Weigh = Callable[[Sequence[int], Sequence[int], int], Sequence[float]]
"""(trained tokens of each completion, its group, max_completion_tokens) -> weight of one token of each completion."""
SHARING_PAYS = 0.05
"""Share of the tokens that shared prompts must save: attention over them is a second call, whose merge has a cost."""


@dataclass(frozen=True)
class RowLayout:
    """The parts of a micro-batch that do not change while a step credits and scores its examples.

    B rows, each a prompt and a completion; M trained tokens in row order.
    """

    layout: Layout
    before: Selection
    """The layout's tokens whose hidden states predict the trained tokens: those one earlier in the same row."""
    token_ids_M: Tensor
    row_M: Tensor
    group_B: Tensor
    """Number of each row's group."""
    examples: tuple[int, ...]
    """Index of each row in the packed examples."""
    trained_M: Indices
    """Indices of the trained tokens among all completion tokens of the packed examples, in the order of the rows."""


@dataclass(frozen=True)
class MicroBatch(RowLayout):
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
    """Its number in the minibatch, the same on every rank; -1: it does not count (`make_idle`)."""

    @property
    def num_rows(self) -> int:
        return len(self.examples)

    @property
    def idle(self) -> bool:
        return self.place < 0

    def make_idle(self) -> MicroBatch:
        """A copy with zero weights, for a process that only has to take part in a collective turn."""
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
    """Prompt and completion tokens of all forwarded rows; shared prompts count once per row."""
    weights_N: Sequence[float] = ()
    """Weight of one token of each example, forwarded or not."""

    def deal(self, world: World) -> list[MicroBatch]:
        """The micro-batches of this process, and idle ones for turns in which all processes have to take part."""
        turns = world.list_turns([micro.layout.num_tokens for micro in self.micro_batches])
        return [self.micro_batches[place] if weight else self.micro_batches[place].make_idle() for place, weight in turns]

    @property
    def executed_tokens(self) -> int:
        """Tokens that the model processes; a shared prompt counts once."""
        return sum(micro.layout.num_tokens for micro in self.micro_batches)


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
    """One minibatch: weights over all examples, then micro-batches of the examples that are forwarded.

    aggregation: the name of a built-in aggregation, or a function that weighs tokens.

    keep_groups: put all rows of a group into one micro-batch, for losses that compare rows.

    share_prompts: the model can read a prompt once for all completions of its group. This is done if it saves enough.

    skip_zero_advantage: do not forward examples whose advantages are all zero. They stay in the denominators, so the
    gradient is the same. Only valid without a KL or entropy term.

    layouts: the layouts that this step has already computed.
    """
    examples = join_examples(examples)
    lengths_N = examples.trained_N.tolist()
    if isinstance(aggregation, str):
        inputs = {"lengths_N": lengths_N, "groups_N": list(examples.group_N), "max_completion_tokens": max_completion_tokens}
        weights_N = find_named("aggregation", aggregation).call({}, **inputs)
    else:
        weights_N = aggregation(lengths_N, list(examples.group_N), max_completion_tokens)
    trained_N = examples.trained_N > 0
    forwarded = np.flatnonzero(trained_N & examples.has_gradient_N if skip_zero_advantage else trained_N)
    layouts = layouts or Layouts()
    found = layouts.find(examples, forwarded.tolist(), micro_batch_tokens, keep_groups, share_prompts)
    return Minibatch(
        [_make_micro_batch(examples, rows, weights_N, place) for place, rows in enumerate(found)],
        completions=int(trained_N.sum()),
        trained_tokens=int(examples.trained_N.sum()),
        forwarded_tokens=int(examples.num_tokens_N[forwarded].sum()),
        weights_N=weights_N,
    )


def plan_minibatches(groups_N: Sequence[int], minibatches: int, passes: int, seed: int, step: int) -> list[list[int]]:
    """The examples of each optimizer step: whole groups, in a keyed order, in minibatches of nearly equal size."""
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
    """Rows that must be in the same micro-batch."""

    rows: tuple[int, ...]
    tokens: int
    longest: int


def cut_rows(
    examples: Examples, rows: Sequence[int], budget: int, keep_groups: bool, share_prompts: bool
) -> tuple[bool, list[list[int]]]:
    """(whether prompts are shared, the rows of each micro-batch)"""
    num_tokens = examples.num_tokens_N.tolist()
    if share_prompts:
        units = make_sharing_units(examples, rows, budget, keep_groups)
        if sum(unit.tokens for unit in units) <= (1.0 - SHARING_PAYS) * sum(num_tokens[row] for row in rows):
            return True, fill_batches(units, budget)
    return False, cut_by_tokens(rows, num_tokens, budget, examples.group_N.__getitem__ if keep_groups else None)


def cut_by_tokens(
    rows: Sequence[int],
    num_tokens: Sequence[int] | Mapping[int, int],
    budget: int,
    unit_of: Callable[[int], int] | None = None,
) -> list[list[int]]:
    """Split rows, longest first, into lists within the token budget. A unit is never split, even if it exceeds the budget.

    A unit is one row, or with `unit_of` all rows with the same value.
    """
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(unit_of(row) if unit_of else row, []).append(row)
    units = []
    for _, unit_rows in sorted(members.items()):
        lengths = [num_tokens[row] for row in unit_rows]
        units.append(Unit(tuple(unit_rows), sum(lengths), max(lengths)))
    return fill_batches(units, budget)


def make_sharing_units(examples: Examples, rows: Sequence[int], budget: int, keep_groups: bool) -> list[Unit]:
    """Units of the rows of one prompt, split if they exceed the budget; with `keep_groups`, of all rows of a group."""
    length_N = examples.length_N.tolist()
    by_prompt: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for row in rows:
        by_prompt.setdefault((examples.group_N[row], examples.prompt_ids_N[row]), []).append(row)
    of_group: dict[int, list[Unit]] = {}
    for (group, prompt_ids), members in by_prompt.items():
        parts: list[list[int]] = []
        tokens = 0
        for row in members:
            if not parts or (tokens + length_N[row] > budget and not keep_groups):
                parts.append([])
                tokens = len(prompt_ids)
            parts[-1].append(row)
            tokens += length_N[row]
        for part in parts:
            lengths = [length_N[row] for row in part]
            unit = Unit(tuple(part), len(prompt_ids) + sum(lengths), len(prompt_ids) + max(lengths))
            of_group.setdefault(group if keep_groups else len(of_group), []).append(unit)
    return [
        Unit(
            tuple(row for unit in units for row in unit.rows),
            sum(unit.tokens for unit in units),
            max(unit.longest for unit in units),
        )
        for _, units in sorted(of_group.items())
    ]


def fill_batches(units: Sequence[Unit], budget: int) -> list[list[int]]:
    """Put whole units, longest first, into lists within the budget, so that rows of similar length are together."""
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
    """Cache of one step's layouts: a minibatch has the same layout for old log-probs, reference, values and every training pass.

    They are on the host. The device gets copies, which are freed after their micro-batch.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, list[RowLayout]] = {}

    def find(
        self, examples: Examples, forwarded: Sequence[int], budget: int, keep_groups: bool, share_prompts: bool
    ) -> list[RowLayout]:
        """The layouts of the `forwarded` rows. Within a step, rollouts identify examples."""
        key = (tuple(examples.rollout_N), tuple(forwarded), budget, keep_groups, share_prompts)
        if key not in self.made:
            shared, batches = cut_rows(examples, forwarded, budget, keep_groups, share_prompts)
            self.made[key] = [_lay_out_rows(examples, rows, shared) for rows in batches]
        return self.made[key]


def _lay_out_rows(examples: Examples, rows: Sequence[int], share_prompts: bool) -> RowLayout:
    prompts, groups = [examples.prompt_ids_N[row] for row in rows], [examples.group_N[row] for row in rows]
    if not all(prompts):
        raise InvariantError("a prompt has no tokens, so nothing predicts the first token of its completion.")
    layout = lay_out(
        list(zip(prompts, [examples.completion_ids_N[row] for row in rows], strict=True)),
        list(zip(groups, prompts, strict=True)) if share_prompts else None,
    )
    length_B = examples.length_N[rows]
    token_C = list_ranges(examples.start_N[rows], length_B)  # C: tokens of all completions, here of these rows
    row_C = np.repeat(np.arange(len(rows)), length_B)
    here_C = list_ranges(layout.rows.completion_start_B, length_B)
    before_C = here_C - 1  # the only shift in the project
    before_C[np.cumsum(length_B) - length_B] = layout.rows.before_completion_B
    trained_M = np.flatnonzero(examples.loss_mask_C.numpy()[token_C])
    return RowLayout(
        layout=layout,
        before=Selection.from_index(before_C[trained_M], layout.num_tokens),
        token_ids_M=layout.token_ids_T[torch.from_numpy(here_C[trained_M])],
        row_M=torch.from_numpy(row_C[trained_M]),
        group_B=torch.tensor(groups),
        examples=tuple(rows),
        trained_M=token_C[trained_M],
    )


def _make_micro_batch(examples: Examples, layout: RowLayout, weights_N: Sequence[float], place: int) -> MicroBatch:
    weights_B = np.array([weights_N[row] for row in layout.examples], dtype=np.float64)
    vectors: dict[str, Any] = {"loss_weights_M": torch.from_numpy(weights_B[layout.row_M.numpy()])}
    for name in VECTORS[1:]:  # without the loss mask: these are the tokens where it is true
        values_C = getattr(examples, f"{name}_C")
        vectors[f"{name}_M"] = None if values_C is None else torch.from_numpy(values_C.numpy()[layout.trained_M])
    return MicroBatch(**vars(layout), place=place, **vectors)
