"""An advantage on every token: what the chosen function names is read from the rollouts, and what it says is laid on their tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms.advantages import Steps, TokenCredit
from cohort.algorithms.kl import k1
from cohort.algorithms.named import find_named
from cohort.algorithms.registry import SAMPLED, Choice
from cohort.base.stopwatch import Stopwatch
from cohort.errors import RecipeError
from cohort.model.examples import Example, Examples, join_examples
from cohort.model.packing import Layouts
from cohort.model.teacher import Teacher
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.types import Completion, Rollout


@dataclass(frozen=True)
class Credit:
    """Puts an advantage on every token of every example, by the recipe's choice."""

    rollouts: Sequence[Rollout]
    counted_PG: Tensor
    """Completions that count in means and deviations: scored, and in a group that is not left out."""
    algorithm: AlgorithmConfig
    kl_coef: float
    decode: Callable[[Sequence[int]], str]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the reward parts, by name."""

    def advantages(self, examples: Sequence[Example]) -> Examples:
        """The examples, credited. The function reads what it names and nothing else is computed."""
        examples = join_examples(examples)
        choice = find_named("advantage", self.algorithm.advantage, self.algorithm.own)
        # Rewards of tokens arrive on trained tokens; what is masked altogether has none.
        rows = examples.select(np.flatnonzero(examples.trained_N).tolist()) if "token_rewards_N" in choice.reads else examples
        found = choice.call(self.algorithm.tell(choice), **{name: self._read(name, rows) for name in choice.reads})
        if isinstance(found, Tensor) == choice.traits.per_token:
            raise RecipeError(
                f"algorithm.advantage: {choice.name!r} gave a {type(found).__name__}. One that credits "
                "single tokens gives a list with a vector for each completion and says so, with @advantage(per_token=True); any "
                "other gives one tensor [prompts, group_size]."
            )
        if isinstance(found, Tensor):
            check_shape(found, self.counted_PG, choice)
            return lay_on_completions(found, examples)
        if choice.digest:
            check_rows(found, rows, choice)
        credit = found if isinstance(found, TokenCredit) else TokenCredit(list(found), [])
        return lay_on_tokens(credit, rows, examples, choice)

    # -- what an advantage may name (registry.READABLE) ------------------------------------------------------------------

    def _read(self, name: str, examples: Examples) -> Any:
        """What the chosen function is given under this name; nothing else is computed."""
        readers: dict[str, Callable[[], Any]] = {
            "rewards_PG": lambda: self._read_rewards(examples),
            "scored_PG": lambda: self.counted_PG.clone(),
            "success_PG": lambda: torch.tensor([bool(one.outcome.success) for one in self.rollouts]).view_as(self.counted_PG),
            "parts_PG": lambda: read_parts(self.rollouts),
            # Of every part that somebody spoke in; a penalty that is no function of the recipe weighs 1.
            "weights": lambda: {name: self.weights.get(name, 1.0) for name in read_parts(self.rollouts)},
            "token_rewards_N": lambda: [self._token_rewards(example) for example in examples],
            "values_N": lambda: [self._read_values(example) for example in examples],
            "steps_N": lambda: [self._read_steps(self.rollouts[rollout]) for rollout in examples.rollout_N],
            "lengths_N": lambda: examples.length_N.tolist(),
            "groups_N": lambda: list(examples.group_N),
        }
        return readers[name]()

    def _read_rewards(self, examples: Sequence[Example]) -> Tensor:
        """Rewards, less the KL of the completion where that is part of the reward."""
        rewards_PG = stack_rewards(self.rollouts)[0]
        rewards_N = rewards_PG.flatten().clone()
        for example in examples if self._kl_in_reward else ():
            rewards_N[example.rollout] -= self._kl_rewards(example).sum()
        return rewards_N.view_as(rewards_PG)

    def _read_values(self, example: Example) -> Tensor:
        assert example.old_values_T is not None
        return example.old_values_T[example.loss_mask_T].double()

    def _read_steps(self, rollout: Rollout) -> Steps:
        """Step rewards placed on tokens. A completion without steps has one: its reward, at its end."""
        if rollout.outcome.steps:
            return locate_steps(rollout.completion, rollout.outcome.steps, self.decode)
        return ((len(rollout.completion.token_ids) - 1, rollout.outcome.reward or 0.0),)

    # -- the KL as a part of the reward ----------------------------------------------------------------------------------

    @property
    def _kl_in_reward(self) -> bool:
        return self.kl_coef != 0 and self.algorithm.kl_in != "loss"

    def _kl_rewards(self, example: Example) -> Tensor:
        """kl_coef * k1 of each trained token, where the KL is part of the reward; elsewhere 0."""
        trained = example.loss_mask_T
        if not self._kl_in_reward:
            return torch.zeros(example.trained_tokens, dtype=torch.float64)
        assert example.old_logprobs_T is not None
        assert example.ref_logprobs_T is not None
        return self.kl_coef * k1(example.old_logprobs_T[trained].double(), example.ref_logprobs_T[trained].double())

    def _token_rewards(self, example: Example) -> Tensor:
        """The reward arrives with the last trained token; the KL costs each token its own share, or all of it at the end."""
        kl_M = self._kl_rewards(example)
        rewards_M = -kl_M if self.algorithm.kl_in == "token_reward" else torch.zeros_like(kl_M)
        rewards_M[-1] += self.rollouts[example.rollout].outcome.reward or 0.0
        if self.algorithm.kl_in == "completion_reward":
            rewards_M[-1] -= kl_M.sum()
        return rewards_M


# -- what rollouts say ----------------------------------------------------------------------------------------------------


def stack_rewards(rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor]:
    """(rewards_PG, scored_PG). Rollouts are in group order, every group of the same size."""
    num_groups = rollouts[-1].group + 1
    rewards_N = torch.tensor([rollout.outcome.reward or 0.0 for rollout in rollouts], dtype=torch.float64)
    scored_N = torch.tensor([rollout.outcome.reward is not None for rollout in rollouts])
    return rewards_N.view(num_groups, -1), scored_N.view(num_groups, -1)


def count_completions(rollouts: Sequence[Rollout], advantage: Choice, data: str) -> Tensor:
    """[P, G] Completions that an advantage can judge: scored ones; where it reads success, what nobody judged is neither."""
    scored_PG = stack_rewards(rollouts)[1]
    if advantage.reads_success and data in SAMPLED:
        scored_PG = scored_PG & torch.tensor([rollout.outcome.success is not None for rollout in rollouts]).view_as(scored_PG)
    return scored_PG


def read_parts(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Name of a reward part -> its values before weighting, [P, G] in float64; NaN where it abstained."""
    shape = stack_rewards(rollouts)[0].shape
    names = {name: None for rollout in rollouts for name in rollout.outcome.parts}
    nan = float("nan")

    def value(rollout: Rollout, name: str) -> float:
        found = rollout.outcome.parts.get(name)
        return nan if found is None else found

    return {name: torch.tensor([value(one, name) for one in rollouts], dtype=torch.float64).view(shape) for name in names}


# -- what an advantage says -----------------------------------------------------------------------------------------------


def check_shape(advantages_PG: Tensor, counted_PG: Tensor, choice: Choice) -> None:
    if advantages_PG.shape != counted_PG.shape or not bool(advantages_PG.isfinite().all()):
        wrong = "values that are not finite" if advantages_PG.shape == counted_PG.shape else f"{tuple(advantages_PG.shape)}"
        raise RecipeError(
            f"algorithm.advantage: {choice.name!r} gave {wrong} where a finite number for each of {tuple(counted_PG.shape)} "
            "(prompts, group_size) is expected."
        )


def check_rows(found: Any, rows: Sequence[Example], choice: Choice) -> None:
    """Vectors that a user's function gave: as many as there are completions, as long as each, finite."""
    name = f"algorithm.advantage: {choice.name!r}"
    if choice.reads_values and not isinstance(found, TokenCredit):
        raise RecipeError(
            f"{name} reads values_N, so a critic is trained: it gives cohort.algorithms.advantages.TokenCredit(advantages_N, "
            "returns_N), what the tokens are credited with and what the critic should have said."
        )
    lists = [found.advantages_N, found.returns_N] if isinstance(found, TokenCredit) else [found]
    for vectors in lists if choice.reads_values else lists[:1]:
        if not isinstance(vectors, list | tuple) or len(vectors) != len(rows):
            count = len(vectors) if isinstance(vectors, list | tuple) else f"a {type(vectors).__name__}"
            raise RecipeError(
                f"{name} gave {count} where a list with a vector for each of {len(rows)} completions is expected."
            )
        for values, example in zip(vectors, rows, strict=True):
            lengths = {len(example.completion_ids), example.trained_tokens}
            if not isinstance(values, Tensor) or values.dim() != 1 or len(values) not in lengths:
                given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise RecipeError(f"{name} gave {given} for a completion of {' or '.join(map(str, sorted(lengths)))} tokens.")
            if not bool(values.isfinite().all()):
                raise RecipeError(f"{name} gave values that are not finite.")


def lay_on_completions(advantages_PG: Tensor, examples: Examples) -> Examples:
    """One advantage per completion, the same on each of its tokens."""
    advantages_N = advantages_PG.flatten()[list(examples.rollout_N)].to(examples.advantages_C.dtype)
    return replace(examples, advantages_C=advantages_N.repeat_interleave(torch.from_numpy(examples.length_N)))


def lay_on_tokens(credit: TokenCredit, rows: Examples, examples: Examples, choice: Choice) -> Examples:
    """A vector for each of `rows`, over all of its tokens or over the trained ones; the rest stays as it is."""
    if len(credit.advantages_N) != len(rows):
        raise RecipeError(
            f"algorithm.advantage: {choice.name!r} gave {len(credit.advantages_N)} rows for {len(rows)} completions."
        )
    advantages_C = spread_over_rows(credit.advantages_N, examples.advantages_C, rows, examples)
    if not choice.reads_values:
        return replace(examples, advantages_C=advantages_C)
    returns_C = torch.zeros_like(advantages_C)  # a minibatch holds the same fields throughout, also for what is masked
    if credit.returns_N:
        returns_C = spread_over_rows(credit.returns_N, returns_C, rows, examples)
    return replace(examples, advantages_C=advantages_C, returns_C=returns_C)


def spread_over_rows(values_N: Sequence[Tensor], before_C: Tensor, rows: Examples, examples: Examples) -> Tensor:
    """`before_C` with the values of these rows in the places of their tokens: of all tokens, or of the trained ones, the rest then 0."""
    place_of = {rollout: place for place, rollout in enumerate(examples.rollout_N)}
    found_C = before_C.clone()
    for values, rollout in zip(values_N, rows.rollout_N, strict=True):
        place = place_of[rollout]
        span = slice(int(examples.start_N[place]), int(examples.start_N[place] + examples.length_N[place]))
        own_T = found_C[span]  # written through
        whole = len(values) == len(own_T)
        own_T.zero_()
        own_T[slice(None) if whole else examples.loss_mask_C[span]] = values.detach().to(own_T)
    return found_C


# -- step rewards ------------------------------------------------------------------------------------------------------
#

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
"""What bytes that do not make a character, or do not make one yet, decode to."""
BYTES = 4
"""The most bytes, and so the most tokens, of one character."""
WINDOW = 64
"""Tokens between two cuts: prefixes of a window are cheap to decode, prefixes of a long completion are not."""
WINDOW_SLACK = 16
"""How many tokens later a cut may come, so as not to fall into a character."""


def locate_steps(completion: Completion, steps: Sequence[tuple[int, float]], decode: Decode) -> tuple[tuple[int, float], ...]:
    """`Outcome.steps` with token indices in place of characters: of the token with which the text reaches the end of the step.

    A token that ends one step and begins the next belongs to the one it ends; two steps may end with the same token. A step that
    ends with the text belongs to the last token, the stop token included: to stop there was a part of that step. The cost does not
    grow with the square of the completion.
    """
    text, ids = completion.text, completion.token_ids
    cuts = find_cuts(completion, decode) if steps else []
    characters = [character for _, character in cuts]
    found: list[tuple[int, float]] = []
    for position, reward in steps:
        check_position(completion, position)
        token = len(ids) - 1
        if position < len(text):
            cut = bisect_left(characters, position) - 1
            start, character = cuts[cut]
            end = cuts[cut + 1][0] if cut + 1 < len(cuts) else len(ids)
            token = start + find_end(ids[start:end], text[character:position], decode)
        found.append((token, reward))
    return tuple(found)


def find_end(ids: Sequence[int], wanted: str, decode: Decode) -> int:
    """Index of the first token with which the ids have decoded to `wanted`, by binary search over their prefixes.

    To compare the text and not its length matters where a character is split over tokens: its first bytes decode to one
    or several replacement characters, so that the length of a prefix can reach the goal too early, or even shrink.
    """

    def reached(index: int) -> bool:
        return decode(ids[: index + 1]).startswith(wanted)

    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    # Some decoders show a whole run of bytes as replacement characters while its last character is not complete, and
    # the search may have met that: look for an earlier end, across the tokens that one character can be short of.
    while (earlier := next((i for i in range(low - 1, low - BYTES - 1, -1) if i >= 0 and reached(i)), None)) is not None:
        low = earlier
    # A replacement character that is really in the text looks like its own first byte: go on to its last.
    while wanted.endswith(REPLACEMENT) and low + 1 < len(ids) and decode(ids[: low + 2]) == wanted:
        low += 1
    return low


def find_cuts(completion: Completion, decode: Decode) -> list[tuple[int, int]]:
    """(tokens, characters) before places at which ids and text can be cut alike: the pieces decode to the whole text.

    Where they do not, as with decoders that drop the space a text begins with, there is one piece, the completion.
    """
    text, ids = completion.text, completion.token_ids
    cuts = [(0, 0)]
    while (following := find_next_cut(text, ids, cuts[-1], decode)) is not None:
        cuts.append(following)
    start, character = cuts[-1]
    return cuts if decode(ids[start:]) == text[character:] else cuts[:1]


def find_next_cut(text: str, ids: Sequence[int], cut: tuple[int, int], decode: Decode) -> tuple[int, int] | None:
    start, character = cut
    for end in range(start + WINDOW, min(start + WINDOW + WINDOW_SLACK, len(ids))):
        piece = decode(ids[start:end])
        if text.startswith(piece, character) and not piece.endswith(REPLACEMENT):
            return end, character + len(piece)
    return None


def check_position(completion: Completion, position: int) -> None:
    length = len(completion.text)
    if not completion.token_ids or not min(1, length) <= position <= length:
        raise ValueError(
            f"position {position} is not in a completion of {length} characters and {len(completion.token_ids)} tokens; "
            f"a step ends at a character of the text, from {min(1, length)} to {length}."
        )


# -- teacher -----------------------------------------------------------------------------------------------------------
#


@dataclass(frozen=True)
class Lesson:
    """What the teacher said of the completions of one step."""

    terms: Mapping[int, Tensor] = field(default_factory=dict)
    """Rollout -> what is added to the advantages of its tokens, 0 where a token is not trained."""
    metrics: dict[str, float] = field(default_factory=dict)

    def add_to(self, examples: Sequence[Example]) -> Examples:
        """The examples with the teacher's credit on top of their own; as they are, where there is no teacher."""
        examples = join_examples(examples)
        if not self.terms:
            return examples
        terms_C = torch.cat([self.terms[rollout] for rollout in examples.rollout_N])
        advantages_C = (examples.advantages_C.double() + terms_C).to(examples.advantages_C.dtype)
        return replace(examples, advantages_C=advantages_C)


def hear_teacher(
    teacher: Teacher | None,
    examples: Sequence[Example],
    micro_batch_tokens: int,
    watch: Stopwatch | None = None,
    layouts: Layouts | None = None,
) -> Lesson:
    """Score the completions with the teacher, all of them: a group of equal rewards is taught too."""
    if teacher is None:
        return Lesson()
    trained = int((join_examples(examples).trained_N > 0).sum())
    if not trained:
        return Lesson()
    watch = watch or Stopwatch()
    watch.lap("prepare")
    scores = teacher.policy.score_examples(examples, micro_batch_tokens, layouts=layouts)
    terms, gaps_N = {}, []
    for example, logprobs_T in zip(examples, scores, strict=True):
        gap_T = k1(example.sampling_logprobs_T.double(), logprobs_T.double()).masked_fill(~example.loss_mask_T, 0.0)
        terms[example.rollout] = -teacher.coef * gap_T
        gaps_N.append(gap_T[example.loss_mask_T])
    watch.lap("teacher")
    gap_M = torch.cat(gaps_N)
    metrics = {"teacher/gap": float(gap_M.mean()), "teacher/gap_per_completion": float(gap_M.sum()) / trained}
    return Lesson(terms, metrics)
