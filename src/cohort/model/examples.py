"""The completions that a step trains on, as arrays: N completions, and C tokens of all of them one after the other.

    examples = make_examples(rollouts)
    examples = replace(examples, advantages_C=...)       # credit all of them at once
    examples[3].advantages_T                             # the fourth one: a view, created on access

With one object per completion, a step of a thousand short completions would spend more time on objects than on tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from cohort.errors import InvariantError
from cohort.ops.layout import Indices, list_ranges
from cohort.types import Rollout

VECTORS = ("loss_mask", "advantages", "sampling_logprobs", "old_logprobs", "ref_logprobs", "old_values", "returns", "fresh")
"""Values per token: `NAME_C` of all examples, `NAME_T` of one."""


@dataclass(frozen=True)
class Example:
    """One completion for the trainer. Vectors are over the completion's tokens, aligned to the token they describe."""

    rollout: int
    """Index of its rollout in the step."""
    group: int
    """Number of its group in the step; the two completions of a pair share one."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    loss_mask_T: Tensor
    """True exactly on tokens the policy sampled and we train on."""
    advantages_T: Tensor
    sampling_logprobs_T: Tensor
    old_logprobs_T: Tensor | None = None
    """None: exactly on-policy, so the ratio is 1."""
    ref_logprobs_T: Tensor | None = None
    old_values_T: Tensor | None = None
    """PPO: the critic's value before each token. `returns_T`: the returns that it should predict."""
    returns_T: Tensor | None = None
    fresh_T: Tensor | None = None
    """Tokens sampled with the weights from the start of the step. None: all of them."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @cached_property
    def trained_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask_T.numpy()))


@dataclass(frozen=True, eq=False)
class Examples(Sequence[Example]):
    """Examples as arrays, and a sequence of Example, with the same fields."""

    rollout_N: Sequence[int]
    group_N: Sequence[int]
    prompt_ids_N: Sequence[tuple[int, ...]]
    completion_ids_N: Sequence[tuple[int, ...]]
    loss_mask_C: Tensor
    advantages_C: Tensor
    sampling_logprobs_C: Tensor
    old_logprobs_C: Tensor | None = None
    ref_logprobs_C: Tensor | None = None
    old_values_C: Tensor | None = None
    returns_C: Tensor | None = None
    fresh_C: Tensor | None = None

    @cached_property
    def length_N(self) -> Indices:
        """Tokens of each completion."""
        return np.fromiter(map(len, self.completion_ids_N), np.int64, len(self))

    @cached_property
    def start_N(self) -> Indices:
        """Index of each completion's first token among all tokens."""
        return np.cumsum(self.length_N) - self.length_N

    @cached_property
    def num_tokens_N(self) -> Indices:
        """Tokens of each prompt and completion together."""
        return np.fromiter(map(len, self.prompt_ids_N), np.int64, len(self)) + self.length_N

    @cached_property
    def trained_N(self) -> Indices:
        """Trained tokens of each completion."""
        return self._count(self.loss_mask_C.numpy())

    @cached_property
    def has_gradient_N(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the policy term has a gradient for any token of each example."""
        return self._count((self.advantages_C.numpy() != 0) & self.loss_mask_C.numpy()) > 0

    def _count(self, true_C: np.ndarray[Any, np.dtype[np.bool_]]) -> Indices:
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(true_C)])
        return before[self.start_N + self.length_N] - before[self.start_N]

    def __len__(self) -> int:
        return len(self.rollout_N)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> Examples: ...
    def __getitem__(self, place: int | slice) -> Example | Examples:
        if isinstance(place, slice):
            return self.select(range(len(self))[place])
        place = range(len(self))[place]  # also negative places
        start = int(self.start_N[place])
        return self._make_example(place, [values_C[start : start + int(self.length_N[place])] for values_C in self._present])

    def __iter__(self) -> Iterator[Example]:
        pieces = zip(*(values_C.split(self.length_N.tolist()) for values_C in self._present), strict=True)
        return (self._make_example(place, vectors) for place, vectors in enumerate(pieces if len(self) else ()))

    @cached_property
    def _names(self) -> list[str]:
        """Names of the vectors that are not None."""
        return [name for name in VECTORS if getattr(self, f"{name}_C") is not None]

    @property
    def _present(self) -> list[Tensor]:
        return [getattr(self, f"{name}_C") for name in self._names]

    @property
    def _plain(self) -> tuple[Any, ...]:
        return self.rollout_N, self.group_N, self.prompt_ids_N, self.completion_ids_N

    def _make_example(self, place: int, vectors: Sequence[Tensor]) -> Example:
        named: Any = {f"{name}_T": values_T for name, values_T in zip(self._names, vectors, strict=True)}
        return Example(*(values_N[place] for values_N in self._plain), **named)

    def select(self, places: Sequence[int]) -> Examples:
        """The examples at these places, in this order."""
        if list(places) == list(range(len(self))):
            return self
        chosen = np.fromiter(places, np.int64, len(places))
        index_C = torch.from_numpy(list_ranges(self.start_N[chosen], self.length_N[chosen]))
        vectors: Any = {f"{name}_C": values_C[index_C] for name, values_C in zip(self._names, self._present, strict=True)}
        plain: Any = ([values_N[place] for place in places] for values_N in self._plain)
        return Examples(*plain, **vectors)


def join_examples(examples: Sequence[Example]) -> Examples:
    """Examples as arrays; `Examples` are returned unchanged."""
    if isinstance(examples, Examples):
        return examples
    vectors: dict[str, Any] = {}
    for name in VECTORS:
        found = [getattr(example, f"{name}_T") for example in examples]
        present = [values_T for values_T in found if values_T is not None]
        if present and len(present) < len(found):
            raise InvariantError("a minibatch mixes examples with and without old log-probs, reference log-probs or values.")
        vectors[f"{name}_C"] = torch.cat(present) if present else None
    nothing: dict[str, Any] = {"loss_mask_C": torch.zeros(0, dtype=torch.bool)}
    nothing |= dict.fromkeys(("advantages_C", "sampling_logprobs_C"), torch.zeros(0))
    return Examples(
        [example.rollout for example in examples],
        [example.group for example in examples],
        [example.prompt_ids for example in examples],
        [example.completion_ids for example in examples],
        **vectors if examples else nothing,
    )


def make_examples(
    rollouts: Sequence[Rollout],
    *,
    left_out: AbstractSet[int] = frozenset(),
    mask_truncated: bool = False,
) -> Examples:
    """Examples of the rollouts with a reward, without advantages. Unscored rollouts and `left_out` groups are in no mean."""
    places = [i for i, one in enumerate(rollouts) if one.outcome.reward is not None and one.group not in left_out]
    kept = [rollouts[place] for place in places]
    completions = [rollout.completion for rollout in kept]
    token_ids = [completion.token_ids for completion in completions]
    count = sum(map(len, token_ids))
    logprobs = chain.from_iterable([completion.sampling_logprobs for completion in completions])
    mask_C = np.ones(count, np.bool_)
    if any(completion.sampled_mask is not None for completion in completions):
        mask_C = np.fromiter(chain.from_iterable(completion.mask for completion in completions), np.bool_, count)
    if mask_truncated:
        whole_N = np.array([completion.end != "length" for completion in completions], np.bool_)
        mask_C &= whole_N.repeat([len(ids) for ids in token_ids])
    return Examples(
        places,
        [rollout.group for rollout in kept],
        [rollout.prompt.token_ids for rollout in kept],
        token_ids,
        loss_mask_C=torch.from_numpy(mask_C),
        advantages_C=torch.zeros(count),
        sampling_logprobs_C=torch.from_numpy(np.fromiter(logprobs, np.float32, count)),
    )
