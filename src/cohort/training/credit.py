"""An advantage on every token: what the chosen function names is read from the rollouts, and what it says is laid on their tokens."""

from __future__ import annotations

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
from cohort.errors import RecipeError
from cohort.model.examples import Example, Examples, join_examples
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.step_rewards import locate_steps
from cohort.types import Rollout


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
