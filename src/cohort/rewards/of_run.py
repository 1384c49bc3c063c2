"""The rewards of a run: those of training, and those that evaluation sets have of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from cohort.rewards.base import RewardRunner

if TYPE_CHECKING:
    from cohort.recipe.schema import Recipe


class RunRewards(RewardRunner):
    """Scores what is trained on; `for_set` gives the runner of an evaluation set. All of them share the same workers."""

    sets: Mapping[str, RewardRunner] = {}
    """Of the sets that have rewards of their own."""

    @classmethod
    def for_run(cls, recipe: Recipe, functions: Mapping[str, Callable[..., Any]] | None = None) -> Self:
        share, runner = recipe.train.max_fault_share, cls.from_recipe(recipe.rewards, functions, recipe.train.max_fault_share)
        own = {name: one.rewards for name, one in recipe.evaluation.sets.items() if one.rewards and recipe.evaluation.samples}
        runner.sets = {
            name: RewardRunner.from_recipe(rewards, functions, share, f"evaluation.sets.{name}.rewards")
            for name, rewards in own.items()
        }
        for one in runner.sets.values():
            one._pool, one.notes = runner._pool, runner.notes
        return runner

    def start(self) -> Self:
        super().start()
        try:
            for runner in self.sets.values():
                runner.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for runner in self.sets.values():
            runner.close()
        super().close()

    def for_set(self, name: str) -> RewardRunner:
        """The rewards that score an evaluation set."""
        own = self.sets.get(name, self)
        own.world, own.on_progress = self.world, self.on_progress
        return own

    @property
    def needs_jail(self) -> bool:
        return super().needs_jail or any(runner.needs_jail for runner in self.sets.values())
