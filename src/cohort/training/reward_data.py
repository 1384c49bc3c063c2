"""The data of a reward model: completions labelled by the verifier, and a replay of older ones.

The policy moves, so a reward model fitted only on its current completions forgets earlier mistakes, and the policy may return to
them. A share of older data in every fit prevents this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from cohort.base.keyed import keyed_permutation, keyed_share
from cohort.errors import CheckpointError, InvariantError
from cohort.types import Rollout


@dataclass(frozen=True, slots=True)
class Labelled:
    """One completion and its verdict."""

    prompt_index: int
    """Row number of the prompt in its source."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    group: int
    """Number of its group in its iteration: right and wrong completions are compared within a group."""
    right: bool
    iteration: int
    """The iteration that labelled it, from 1."""

    @property
    def group_key(self) -> tuple[int, int]:
        return self.iteration, self.group


def label(rollouts: Iterable[Rollout], iteration: int) -> list[Labelled]:
    """Rollouts with a verdict as labelled data."""
    return [
        Labelled(
            prompt_index=rollout.prompt.index,
            prompt_ids=rollout.prompt.token_ids,
            completion_ids=rollout.completion.token_ids,
            group=rollout.group,
            right=rollout.outcome.success,
            iteration=iteration,
        )
        for rollout in rollouts
        if rollout.outcome.success is not None
    ]


def list_groups(data: Sequence[Labelled]) -> list[list[int]]:
    """Places of the members of each group, in order of first appearance."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, item in enumerate(data):
        groups.setdefault(item.group_key, []).append(place)
    return list(groups.values())


def list_pairs(rights_B: Sequence[bool], groups: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """All (right, wrong) pairs of places within groups."""
    return [
        (right, wrong) for members in groups for right in members if rights_B[right] for wrong in members if not rights_B[wrong]
    ]


def is_held_back(item: Labelled, share: float, seed: int) -> bool:
    """Whether its prompt is excluded from every fit of the run.

    It depends only on the prompt, so a prompt held back in one iteration is not trained on when it is replayed; and on its token ids,
    so two rows with the same text are on the same side.
    """
    return keyed_share("reward model, held back", seed, *item.prompt_ids) < share


class Replay:
    """Labelled data of all iterations."""

    def __init__(self) -> None:
        self.items: list[Labelled] = []

    def mix(self, fresh: Sequence[Labelled], share: float, seed: int, iteration: int) -> list[Labelled]:
        """`fresh`, followed by round(share x len(fresh)) older completions, rounded up to whole groups.

        Groups are chosen in an order keyed by (seed, iteration), and kept whole because a part could lose all its pairs. `fresh` is kept
        for later iterations and replaces what an interrupted attempt of the same iteration kept, so a repeated iteration is the same.
        """
        strays = sum(item.iteration != iteration for item in fresh)
        if strays:
            raise InvariantError(f"{strays} of {len(fresh)} completions to mix were not labelled in iteration {iteration}")
        older = [item for item in self.items if item.iteration < iteration]
        self.items = [*older, *fresh]
        wanted, groups, chosen = round(share * len(fresh)), list_groups(older), list[int]()
        for place in keyed_permutation(len(groups), "replay", seed, iteration):
            if len(chosen) >= wanted:
                break
            chosen += groups[place]
        return [*fresh, *(older[place] for place in sorted(chosen))]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything as flat int64 vectors, and the number of completions."""
        tensors = {
            "prompt_ids": whole([token for item in self.items for token in item.prompt_ids]),
            "prompt_lengths": whole([len(item.prompt_ids) for item in self.items]),
            "completion_ids": whole([token for item in self.items for token in item.completion_ids]),
            "completion_lengths": whole([len(item.completion_ids) for item in self.items]),
        }
        tensors |= {name: whole([int(getattr(item, name)) for item in self.items]) for name in PLAIN_FIELDS}
        return tensors, {"completions": len(self.items)}

    def load_state(self, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        prompts = cut(tensors["prompt_ids"], tensors["prompt_lengths"])
        completions = cut(tensors["completion_ids"], tensors["completion_lengths"])
        columns = [tensors[name].tolist() for name in PLAIN_FIELDS]
        sizes = {len(column) for column in (prompts, completions, *columns)}
        if sizes != {document["completions"]}:
            raise CheckpointError(f"the replay has {sorted(sizes)} completions, but {document['completions']} were saved")
        self.items = [
            Labelled(index, prompt_ids, completion_ids, group, bool(right), iteration)
            for prompt_ids, completion_ids, index, group, right, iteration in zip(prompts, completions, *columns, strict=True)
        ]


PLAIN_FIELDS = ("prompt_index", "group", "right", "iteration")


def whole(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def cut(flat: Tensor, lengths: Tensor) -> list[tuple[int, ...]]:
    """Rows of the given lengths from flat ids."""
    ids, bounds = flat.tolist(), [0, *accumulate(lengths.tolist())]
    if bounds[-1] != len(ids):
        raise CheckpointError(f"the replay holds {len(ids)} token ids where its lengths add up to {bounds[-1]}")
    return [tuple(ids[low:high]) for low, high in pairwise(bounds)]
