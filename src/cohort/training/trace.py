"""Values of single tokens in the updates of a step, kept until the step is recorded, and their rows in a file.

An example may take part in several updates of a step, one per pass; the last one counts. Every rank holds all values, since meters are
joined before an update. The vectors are those of the loss, so keeping them takes no time, and 17 bytes per trained token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms.named import find_named
from cohort.algorithms.registry import SAMPLED
from cohort.model.chat import TokenTextReader
from cohort.model.examples import Example, Examples, join_examples
from cohort.observe.rollouts import TokenRow
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.objective import has_ratio
from cohort.training.updates import Measured
from cohort.types import Rollout

Vector = np.ndarray[Any, np.dtype[np.float64]]

VECTORS = ("policy_logprob", "entropy", "ratio", "clipped", "coefficient")
"""Values of a token in an update, by column."""


@dataclass(frozen=True)
class Traced:
    """The rows of a micro-batch in one update."""

    update: int
    rollouts: tuple[int, ...]
    lengths: tuple[int, ...]
    """Trained tokens of each row."""
    vectors: Mapping[str, Tensor]
    """One entry for each of VECTORS, over the trained tokens of all rows."""

    def read_row(self, rollout: int) -> dict[str, Vector]:
        place = self.rollouts.index(rollout)
        start = sum(self.lengths[:place])
        span = slice(start, start + self.lengths[place])
        return {name: values_M[span].double().cpu().numpy() for name, values_M in self.vectors.items()}


@dataclass
class TokenTrace:
    """The updates of an unfinished step."""

    traced: list[Traced] = field(default_factory=list)
    newest: dict[int, int] = field(default_factory=dict)
    """Rollout -> the last update with its example, counted from 1, even if it was left out of the forward pass."""
    weights: dict[int, float] = field(default_factory=dict)
    """Rollout -> the aggregation's weight of each of its tokens in that update."""

    def note_update(
        self, update: int, members: Sequence[Example], weights_N: Sequence[float], measured: Iterable[Measured]
    ) -> None:
        """Keep the values of an update, and drop older ones that no row needs any more."""
        members = join_examples(members)
        self.newest |= dict.fromkeys(members.rollout_N, update)
        self.weights |= zip(members.rollout_N, weights_N, strict=True)
        for seen in measured:
            assert seen.tokens is not None
            assert seen.coefficient_M is not None
            places, trained = seen.tokens.examples, members.trained_N.tolist()
            vectors = {
                "policy_logprob": seen.tokens.logprobs_M,
                "entropy": seen.tokens.entropy_M,
                "ratio": seen.tokens.ratio_M,
                "clipped": seen.tokens.above_M.to(torch.int8) - seen.tokens.below_M.to(torch.int8),
                "coefficient": seen.coefficient_M,
            }
            names, lengths = (tuple(of[place] for place in places) for of in (members.rollout_N, trained))
            self.traced.append(Traced(update, names, lengths, vectors))
        self.traced = [one for one in self.traced if any(self.newest[rollout] == one.update for rollout in one.rollouts)]

    def find(self, rollout: int) -> dict[str, Vector] | None:
        """Values of the rollout's trained tokens in its last update; None if it was left out of the forward pass."""
        found = (one for one in self.traced if one.update == self.newest.get(rollout) and rollout in one.rollouts)
        return next((one.read_row(rollout) for one in found), None)

    # -- in the checkpoint of an unfinished step ------------------------------------------------------------------------

    def encode(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors over all rows of all updates, other values as JSON)."""
        vectors = {name: torch.cat([one.vectors[name].cpu() for one in self.traced]) for name in VECTORS if self.traced}
        rows = [{"update": one.update, "rollouts": one.rollouts, "lengths": one.lengths} for one in self.traced]
        members = [[rollout, update, self.weights[rollout]] for rollout, update in self.newest.items()]
        return vectors, {"traced": rows, "members": members}

    @classmethod
    def decode(cls, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> TokenTrace:
        rows = document["traced"]
        ends = np.cumsum([0, *(sum(row["lengths"]) for row in rows)]).tolist()
        traced = [
            Traced(
                row["update"],
                tuple(row["rollouts"]),
                tuple(row["lengths"]),
                {name: tensors[name][start:end] for name in VECTORS},
            )
            for row, (start, end) in zip(rows, pairwise(ends), strict=True)
        ]
        members = document["members"]
        return cls(traced, {one[0]: one[1] for one in members}, {one[0]: one[2] for one in members})


# -- rows of a file ----------------------------------------------------------------------------------------------------


def make_token_rows(
    chosen: Mapping[int, int],
    rollouts: Sequence[Rollout],
    examples: Examples,
    trace: TokenTrace,
    updates: int,
    algorithm: AlgorithmConfig,
    reader: TokenTextReader,
) -> list[TokenRow]:
    """Rows of a token file. chosen: rollout -> number of its tokens to write."""
    place_of = {rollout: place for place, rollout in enumerate(examples.rollout_N)}
    texts = reader.read_texts([rollouts[row].completion.token_ids[:count] for row, count in chosen.items()])
    rows = []
    for (row, count), text in zip(chosen.items(), texts, strict=True):
        rollout, example = rollouts[row], examples[place_of[row]] if row in place_of else None
        mask_T = np.zeros(count, bool) if example is None else example.loss_mask_T.numpy()[:count]
        numbers = {} if example is None else list_numbers(example, trace, algorithm)
        rows.append(
            TokenRow(
                group=rollout.group,
                sample=rollout.sample,
                row=row,
                update=trace.newest.get(row),
                updates=updates,
                pieces=text,
                token_ids=rollout.completion.token_ids[:count],
                mask=mask_T.tolist(),
                numbers={name: values_T[:count] for name, values_T in numbers.items()},
                length=len(rollout.completion.token_ids),
            )
        )
    return rows


def list_numbers(example: Example, trace: TokenTrace, algorithm: AlgorithmConfig) -> dict[str, Any]:
    """Columns over all tokens of a completion, NaN for tokens that are not trained. Values that were not computed are left out."""
    seen, trained = trace.find(example.rollout), example.trained_tokens
    vectors: dict[str, Vector] = {"advantage": read_trained(example, example.advantages_T)}
    if algorithm.data in SAMPLED:
        vectors["sampling_logprob"] = read_trained(example, example.sampling_logprobs_T)
    if example.rollout in trace.weights:
        vectors["weight"] = np.full(trained, trace.weights[example.rollout])
    if seen is not None:
        vectors |= seen
        if not find_named("region", algorithm.region, algorithm.own).traits.needs_ratio:
            del vectors["ratio"]
        if example.old_logprobs_T is not None:
            vectors["old_logprob"] = read_trained(example, example.old_logprobs_T)
        elif has_ratio(algorithm):  # exactly on-policy: the policy has not changed since it sampled
            vectors["old_logprob"] = seen["policy_logprob"]
        if example.ref_logprobs_T is not None:
            vectors["ref_logprob"] = read_trained(example, example.ref_logprobs_T)
    elif example.rollout in trace.newest:  # left out of the forward pass, since no loss term acts on it
        vectors |= {"coefficient": np.zeros(trained), "clipped": np.zeros(trained)}
    columns = {name: np.full(len(example.completion_ids), np.nan) for name in vectors}
    for name, column_T in columns.items():
        column_T[example.loss_mask_T.numpy()] = vectors[name]
    return columns


def read_trained(example: Example, values_T: Tensor) -> Vector:
    found: Vector = values_T.double().numpy()[example.loss_mask_T.numpy()]
    return found
