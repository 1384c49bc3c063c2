"""Groups of completions of one token each, under any advantage of the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.algorithms.named import NAMED, find_named
from cohort.algorithms.registry import SAMPLED, Choice
from cohort.recipe.algorithm import AlgorithmConfig

SUCCESS_FROM = 0.5
"""A reward from here on counts as a success, where an advantage reads success."""
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Groups:
    """P groups of G completions, each of one token: whatever an advantage may read of them (registry.READABLE)."""

    rewards_PG: Rows
    values_PG: Rows | None = None
    """The critic's, before the one token; 0 where nothing is said."""
    parts_PG: Mapping[str, Rows] = field(default_factory=dict)
    """Without any the reward is its only part."""
    weights: Mapping[str, float] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        """What an advantage is given under this name."""
        import torch

        rewards_PG = torch.tensor(self.rewards_PG, dtype=torch.float64)
        parts = self.parts_PG or {"reward": self.rewards_PG}
        values_PG = self.values_PG or [[0.0] * len(row) for row in self.rewards_PG]
        readers: dict[str, Callable[[], Any]] = {
            "rewards_PG": lambda: rewards_PG,
            "scored_PG": lambda: torch.ones_like(rewards_PG, dtype=torch.bool),
            "success_PG": lambda: rewards_PG >= SUCCESS_FROM,
            "parts_PG": lambda: {part: torch.tensor(rows, dtype=torch.float64) for part, rows in parts.items()},
            "weights": lambda: {part: self.weights.get(part, 1.0) for part in parts},
            "token_rewards_N": lambda: list(rewards_PG.flatten().split(1)),
            "values_N": lambda: list(torch.tensor(values_PG, dtype=torch.float64).flatten().split(1)),
            "steps_N": lambda: [((0, reward),) for reward in rewards_PG.flatten().tolist()],
            "lengths_N": lambda: [1] * rewards_PG.numel(),
            "groups_N": lambda: [group for group, row in enumerate(self.rewards_PG) for _ in row],
        }
        return readers[name]()


def credit_groups(choice: Choice, words: AlgorithmConfig, groups: Groups) -> list[list[float]]:
    """What the advantage says of every completion, group by group."""
    import torch

    found = choice.call(words.read_parameters(choice), **{name: groups.read(name) for name in choice.reads})
    if choice.traits.per_token:
        found = torch.cat(list(getattr(found, "advantages_N", found))).view(len(groups.rewards_PG), -1)
    rows: list[list[float]] = found.double().tolist()
    return rows


def list_comparable() -> dict[str, Choice]:
    """The advantages that judge sampled completions by themselves: neither demonstrations nor a teacher are needed."""
    return {
        name: choice
        for name, choice in NAMED["advantage"].items()
        if choice.traits.fits >= SAMPLED and not choice.traits.needs_teacher
    }


def find_advantage(name: str) -> Choice:
    return find_named("advantage", name)
