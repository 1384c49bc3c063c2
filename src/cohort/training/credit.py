"""The advantage of every token: from the recipe's advantage function, from rewards of single steps, and from a teacher."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms.advantages import Steps, TokenCredit
from cohort.algorithms.named import find_named
from cohort.algorithms.regions import k1
from cohort.algorithms.registry import SAMPLED, Choice
from cohort.base.stopwatch import Stopwatch
from cohort.errors import RecipeError
from cohort.model.examples import Example, Examples, join_examples
from cohort.model.frozen import Teacher
from cohort.model.packing import Layouts
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.types import Completion, Rollout


@dataclass(frozen=True)
class Credit:
    """Computes the advantages that the recipe chooses."""

    rollouts: Sequence[Rollout]
    counted_PG: Tensor
    """Completions that count in means and deviations: scored, and in a group that is trained on."""
    algorithm: AlgorithmConfig
    kl_coef: float
    decode: Callable[[Sequence[int]], str]
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of the reward parts, by name."""
    environment_weight: float = 0.0
    """Weight of the environment's reward."""

    def advantages(self, examples: Sequence[Example]) -> Examples:
        """The examples with their advantages. Only inputs that the advantage function names are computed."""
        examples = join_examples(examples)
        choice = find_named("advantage", self.algorithm.advantage, self.algorithm.own)
        # Token rewards exist for trained tokens only, so completions without one are left out.
        rows = examples.select(np.flatnonzero(examples.trained_N).tolist()) if "token_rewards_N" in choice.reads else examples
        found = choice.call(self.algorithm.read_parameters(choice), **{name: self._read(name, rows) for name in choice.reads})
        if isinstance(found, Tensor) == choice.traits.per_token:
            raise RecipeError(
                f"algorithm.advantage: {choice.name!r} returned a {type(found).__name__}. An advantage per token returns a list with one "
                "vector per completion and is declared with @advantage(per_token=True); any other returns one tensor [prompts, group_size]."
            )
        if isinstance(found, Tensor):
            check_shape(found, self.counted_PG, choice)
            return broadcast_to_tokens(found, examples)
        if choice.digest:
            check_rows(found, rows, choice)
        credit = found if isinstance(found, TokenCredit) else TokenCredit(list(found), [])
        return scatter_to_tokens(credit, rows, examples, choice)

    # -- inputs of an advantage function (registry.READABLE) -------------------------------------------------------------

    # -- what an advantage may name (registry.READABLE) ------------------------------------------------------------------

    def _read(self, name: str, examples: Examples) -> Any:
        """The input of this name."""
        readers: dict[str, Callable[[], Any]] = {
            "rewards_PG": lambda: self._read_rewards(examples),
            "scored_PG": lambda: self.counted_PG.clone(),
            "success_PG": lambda: torch.tensor([bool(one.outcome.success) for one in self.rollouts]).view_as(self.counted_PG),
            "parts_PG": lambda: read_parts(self.rollouts),
            # Of every part with a value; a penalty that is no reward function weighs 1.
            "weights": lambda: {name: self.weights.get(name, 1.0) for name in read_parts(self.rollouts)},
            "token_rewards_N": lambda: [self._token_rewards(example) for example in examples],
            "values_N": lambda: [self._read_values(example) for example in examples],
            "steps_N": lambda: [self._read_steps(self.rollouts[rollout]) for rollout in examples.rollout_N],
            "turns_N": lambda: [read_turns(self.rollouts[one], self.environment_weight) for one in examples.rollout_N],
            "lengths_N": lambda: examples.length_N.tolist(),
            "groups_N": lambda: list(examples.group_N),
        }
        return readers[name]()

    def _read_rewards(self, examples: Sequence[Example]) -> Tensor:
        """Rewards, minus the completion's KL if it is part of the reward."""
        rewards_PG = stack_rewards(self.rollouts)[0]
        rewards_N = rewards_PG.flatten().clone()
        for example in examples if self._kl_in_reward else ():
            rewards_N[example.rollout] -= self._kl_rewards(example).sum()
        return rewards_N.view_as(rewards_PG)

    def _read_values(self, example: Example) -> Tensor:
        assert example.old_values_T is not None
        return example.old_values_T[example.loss_mask_T].double()

    def _read_steps(self, rollout: Rollout) -> Steps:
        """Step rewards at token positions. A completion without steps has one: its reward, at the last token."""
        if rollout.outcome.steps:
            return locate_steps(rollout.completion, rollout.outcome.steps, self.decode)
        return ((len(rollout.completion.token_ids) - 1, rollout.outcome.reward or 0.0),)

    # -- the KL as part of the reward ------------------------------------------------------------------------------------

    @property
    def _kl_in_reward(self) -> bool:
        return self.kl_coef != 0 and self.algorithm.kl_in != "loss"

    def _kl_rewards(self, example: Example) -> Tensor:
        """kl_coef * k1 of each trained token if the KL is part of the reward, else 0."""
        trained = example.loss_mask_T
        if not self._kl_in_reward:
            return torch.zeros(example.trained_tokens, dtype=torch.float64)
        assert example.old_logprobs_T is not None
        assert example.ref_logprobs_T is not None
        return self.kl_coef * k1(example.old_logprobs_T[trained].double(), example.ref_logprobs_T[trained].double())

    def _token_rewards(self, example: Example) -> Tensor:
        """The reward counts at the last trained token; the KL counts at each token, or in total at the last one."""
        kl_M = self._kl_rewards(example)
        rewards_M = -kl_M if self.algorithm.kl_in == "token_reward" else torch.zeros_like(kl_M)
        rewards_M[-1] += self.rollouts[example.rollout].outcome.reward or 0.0
        if self.algorithm.kl_in == "completion_reward":
            rewards_M[-1] -= kl_M.sum()
        return rewards_M


# -- rewards of rollouts -------------------------------------------------------------------------------------------------


def stack_rewards(rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor]:
    """(rewards_PG, scored_PG). Rollouts are in group order; all groups have the same size."""
    num_groups = rollouts[-1].group + 1
    rewards_N = torch.tensor([rollout.outcome.reward or 0.0 for rollout in rollouts], dtype=torch.float64)
    scored_N = torch.tensor([rollout.outcome.reward is not None for rollout in rollouts])
    return rewards_N.view(num_groups, -1), scored_N.view(num_groups, -1)


def count_completions(rollouts: Sequence[Rollout], advantage: Choice, data: str) -> Tensor:
    """[P, G] Completions that get an advantage: scored ones; with a verdict, if the advantage reads success."""
    scored_PG = stack_rewards(rollouts)[1]
    if advantage.reads_success and data in SAMPLED:
        scored_PG = scored_PG & torch.tensor([rollout.outcome.success is not None for rollout in rollouts]).view_as(scored_PG)
    return scored_PG


def read_parts(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Name of a reward part -> its unweighted values, [P, G] in float64; NaN where it abstained."""
    shape = stack_rewards(rollouts)[0].shape
    names = {name: None for rollout in rollouts for name in rollout.outcome.parts}
    nan = float("nan")

    def value(rollout: Rollout, name: str) -> float:
        found = rollout.outcome.parts.get(name)
        return nan if found is None else found

    return {name: torch.tensor([value(one, name) for one in rollouts], dtype=torch.float64).view(shape) for name in names}


def read_turns(rollout: Rollout, weight: float) -> Steps:
    """(last token, reward) of each turn: the change of the environment's reward in it. The rest of the reward counts in the last turn."""
    episode, total = rollout.completion.episode, rollout.outcome.reward or 0.0
    if episode is None:
        return ((len(rollout.completion.token_ids) - 1, total),)
    found, before = [], 0.0
    for turn in episode.turns:
        now = before if turn.reward is None else weight * turn.reward
        found.append((turn.end - 1, now - before))
        before = now
    end, last = found[-1]
    return (*found[:-1], (end, last + total - before))


# -- results of an advantage function ------------------------------------------------------------------------------------


def check_shape(advantages_PG: Tensor, counted_PG: Tensor, choice: Choice) -> None:
    if advantages_PG.shape != counted_PG.shape or not bool(advantages_PG.isfinite().all()):
        wrong = "values that are not finite" if advantages_PG.shape == counted_PG.shape else f"{tuple(advantages_PG.shape)}"
        raise RecipeError(
            f"algorithm.advantage: {choice.name!r} returned {wrong}; expected a finite number for each of {tuple(counted_PG.shape)} "
            "(prompts, group_size)."
        )


def check_rows(found: Any, rows: Sequence[Example], choice: Choice) -> None:
    """Check the vectors of a user's function: one per completion, as long as the completion, finite."""
    name = f"algorithm.advantage: {choice.name!r}"
    if choice.reads_values and not isinstance(found, TokenCredit):
        raise RecipeError(
            f"{name} reads values_N, so a critic is trained and it must return cohort.algorithms.advantages.TokenCredit(advantages_N, "
            "returns_N): the advantages of tokens, and the targets of the critic."
        )
    lists = [found.advantages_N, found.returns_N] if isinstance(found, TokenCredit) else [found]
    for vectors in lists if choice.reads_values else lists[:1]:
        if not isinstance(vectors, list | tuple) or len(vectors) != len(rows):
            count = len(vectors) if isinstance(vectors, list | tuple) else f"a {type(vectors).__name__}"
            raise RecipeError(f"{name} returned {count}; expected a list with one vector for each of {len(rows)} completions.")
        for values, example in zip(vectors, rows, strict=True):
            lengths = {len(example.completion_ids), example.trained_tokens}
            if not isinstance(values, Tensor) or values.dim() != 1 or len(values) not in lengths:
                given = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise RecipeError(
                    f"{name} returned {given} for a completion of {' or '.join(map(str, sorted(lengths)))} tokens."
                )
            if not bool(values.isfinite().all()):
                raise RecipeError(f"{name} returned values that are not finite.")


def broadcast_to_tokens(advantages_PG: Tensor, examples: Examples) -> Examples:
    """The examples with the advantage of each completion on all of its tokens."""
    advantages_N = advantages_PG.flatten()[list(examples.rollout_N)].to(examples.advantages_C.dtype)
    return replace(examples, advantages_C=advantages_N.repeat_interleave(torch.from_numpy(examples.length_N)))


def scatter_to_tokens(credit: TokenCredit, rows: Examples, examples: Examples, choice: Choice) -> Examples:
    """The examples with a vector for each of `rows`, over all or over the trained tokens; other examples are unchanged."""
    if len(credit.advantages_N) != len(rows):
        count = len(credit.advantages_N)
        raise RecipeError(f"algorithm.advantage: {choice.name!r} returned {count} rows for {len(rows)} completions.")
    advantages_C = spread_over_rows(credit.advantages_N, examples.advantages_C, rows, examples)
    if not choice.reads_values:
        return replace(examples, advantages_C=advantages_C)
    returns_C = torch.zeros_like(advantages_C)  # all examples of a minibatch have the same fields, masked ones too
    if credit.returns_N:
        returns_C = spread_over_rows(credit.returns_N, returns_C, rows, examples)
    return replace(examples, advantages_C=advantages_C, returns_C=returns_C)


def spread_over_rows(values_N: Sequence[Tensor], before_C: Tensor, rows: Examples, examples: Examples) -> Tensor:
    """A copy of `before_C` with new values for the tokens of `rows`: of all tokens, or of the trained ones with 0 elsewhere."""
    place_of = {rollout: place for place, rollout in enumerate(examples.rollout_N)}
    found_C = before_C.clone()
    for values, rollout in zip(values_N, rows.rollout_N, strict=True):
        place = place_of[rollout]
        span = slice(int(examples.start_N[place]), int(examples.start_N[place] + examples.length_N[place]))
        own_T = found_C[span]  # a view
        whole = len(values) == len(own_T)
        own_T.zero_()
        own_T[slice(None) if whole else examples.loss_mask_C[span]] = values.detach().to(own_T)
    return found_C


# -- step rewards: from characters to tokens -----------------------------------------------------------------------------

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
"""Decoded from bytes that do not form a complete character."""
BYTES = 4
"""The largest number of bytes, and so of tokens, of one character."""
WINDOW = 64
"""Tokens between two cuts: decoding prefixes of a window is cheap, prefixes of a long completion are not."""
WINDOW_SLACK = 16
"""Extra tokens within which a cut may move to the end of a character."""


def locate_steps(completion: Completion, steps: Sequence[tuple[int, float]], decode: Decode) -> tuple[tuple[int, float], ...]:
    r"""`Outcome.steps` with token indices instead of character positions: the first token at which the decoded text reaches the position.

        completion  "3+9=12\n>12"  sampled as  3 · + · 9 · = · 12 · \n · > · 12 · <eos>
        Outcome.steps  ((7, 1.0), (10, 0.0))   ->   ((5, 1.0), (8, 0.0))

    A token that ends one step and begins the next belongs to the first one; two steps may end at the same token. A step that ends with
    the text includes the stop token: stopping there was part of it. Nothing is tokenised again: sampled ids are decoded in windows, so
    the cost is not quadratic in the length.
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
    """Index of the first token at which the decoded ids begin with `wanted`, by binary search over prefixes.

    It compares the text, not its length: the first bytes of a split character decode to one or more replacement characters, so the
    length of a prefix may reach the goal too early, or even shrink.
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
    # Some decoders show a whole run of bytes as replacement characters until its last character is complete, which may have
    # misled the search: look for an earlier end within the tokens of one character.
    while (earlier := next((i for i in range(low - 1, low - BYTES - 1, -1) if i >= 0 and reached(i)), None)) is not None:
        low = earlier
    # A real replacement character in the text looks like its own first byte: continue to its last byte.
    while wanted.endswith(REPLACEMENT) and low + 1 < len(ids) and decode(ids[: low + 2]) == wanted:
        low += 1
    return low


def find_cuts(completion: Completion, decode: Decode) -> list[tuple[int, int]]:
    """(tokens, characters) of places where ids and text can both be cut: the pieces decode to the whole text.

    If they do not, as with decoders that drop a leading space, the only piece is the whole completion.
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


# -- teacher: on-policy distillation -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TeacherCredit:
    """A teacher's addition to the advantage of every sampled token: on-policy distillation.

        A_t += coef (log pi_teacher(o_t) - log mu(o_t))        mu: the probability when it was sampled

    Both at the sampling temperature. A token gets only its own gap, no return-to-go: the expected gradient is that of coef times the
    reverse KL of each next token, on the policy's own completions. It is added after all normalisation and whitening.
    """

    terms: Mapping[int, Tensor] = field(default_factory=dict)
    """Rollout -> the addition for each of its tokens, 0 for tokens that are not trained."""
    metrics: dict[str, float] = field(default_factory=dict)

    def add_to(self, examples: Sequence[Example]) -> Examples:
        """The examples with the teacher's credit added to their advantages."""
        examples = join_examples(examples)
        if not self.terms:
            return examples
        terms_C = torch.cat([self.terms[rollout] for rollout in examples.rollout_N])
        advantages_C = (examples.advantages_C.double() + terms_C).to(examples.advantages_C.dtype)
        return replace(examples, advantages_C=advantages_C)


def score_with_teacher(
    teacher: Teacher | None,
    examples: Sequence[Example],
    micro_batch_tokens: int,
    watch: Stopwatch | None = None,
    layouts: Layouts | None = None,
) -> TeacherCredit:
    """The teacher's credit for all completions, including groups with equal rewards."""
    trained = int((join_examples(examples).trained_N > 0).sum()) if teacher else 0
    if teacher is None or not trained:
        return TeacherCredit()
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
    return TeacherCredit(terms, metrics)
