"""`cohort evaluate`: any run or model, on a run's held-out sets, with intervals; several targets are compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.config import Recipe, load_recipe
from cohort.errors import RunError
from cohort.run import RunFolder


@dataclass(frozen=True)
class Target:
    """Something that can be evaluated: a model folder or hub id, or a checkpoint whose weights go into `source`."""

    label: str
    source: str
    checkpoint: Path | None
    recipe: Recipe


def run_evaluation(targets: Sequence[str], recipe: str, checkpoint: str, overrides: Sequence[str], output: Path | None) -> None:
    from rich.console import Console

    from cohort.evaluate import compare

    found = [find_target(target, recipe, checkpoint, overrides) for target in targets]
    console = Console(highlight=False)
    results: list[tuple[Target, Any]] = []
    for target in found:
        console.print(f"evaluating {target.label}", markup=False)
        results.append((target, evaluate_target(target)))
        print_table(console, *results[-1])
    comparisons: dict[str, Any] = {}
    for target, result in results[1:]:
        first, base = results[0]
        difference = compare(base, result)
        comparisons[f"{target.label} against {first.label}"] = difference.to_json()
        for name, values in difference.sets.items():
            for what, paired in values.items():
                console.print(
                    f"{name} {what}: {target.label} against {first.label} {100 * paired.difference:+.1f} points "
                    f"[{100 * paired.low:+.1f}, {100 * paired.high:+.1f}], p = {paired.p_value:.3g} on {paired.problems} paired problems",
                    markup=False,
                )
    if output:
        document = {target.label: result.to_json() for target, result in results} | (
            {"paired": comparisons} if comparisons else {}
        )
        output.write_text(json.dumps(document, indent=2), encoding="utf-8")
        console.print(f"written to {output}", markup=False)


def find_target(target: str, recipe: str, checkpoint: str, overrides: Sequence[str]) -> Target:
    """A run folder brings its recipe; for a model the recipe is asked for."""
    from cohort.recipes import find_recipe

    path = Path(target)
    if (path / "recipe.toml").is_file() and not (path / "config.json").is_file():
        folder = RunFolder.open(path)
        resolved = find_recipe(recipe, overrides) if recipe else load_recipe(folder.recipe_file, overrides)
        return run_target(folder, checkpoint, resolved)
    if not recipe:
        raise RunError(f"{target} is not a run folder. For a model, name the problems and rewards with --recipe RECIPE.")
    return Target(target, target, None, find_recipe(recipe, overrides))


def run_target(folder: RunFolder, checkpoint: str, recipe: Recipe) -> Target:
    if checkpoint == "final":
        if not (folder.model / "config.json").is_file():
            raise RunError(
                f"{folder.root} has no model/ yet. Finish it with `cohort resume {folder.root}`, or name a --checkpoint."
            )
        return Target(str(folder.root), str(folder.model), None, recipe)
    base = str(folder.start) if folder.start.is_dir() else recipe.model.source
    label = f"{folder.root}@{checkpoint}"
    if checkpoint == "start":
        return Target(label, base, None, recipe)
    name = checkpoint
    if checkpoint == "best":
        pointer = folder.checkpoints / "best.json"
        if not pointer.is_file():
            raise RunError(f"{folder.root} has no best checkpoint: set evaluation.every_steps to evaluate while training.")
        name = json.loads(pointer.read_text(encoding="utf-8"))["checkpoint"]
    where = folder.checkpoints / name
    if not where.is_dir():
        known = ", ".join(sorted(entry.name for entry in folder.checkpoints.glob("step-*"))) or "none"
        raise RunError(f"{folder.root} has no checkpoint {name!r}; it has: {known}.")
    return Target(label, base, where, recipe)


def evaluate_target(target: Target) -> Any:
    """Load, sample, score. Uses the evaluation half of the recipe only."""
    from cohort.rewards.base import RewardRunner

    recipe = target.recipe
    with RewardRunner.from_recipe(recipe.rewards, max_fault_share=recipe.train.max_fault_share) as rewards:
        from cohort import build, checkpoint
        from cohort.evaluate import evaluate
        from cohort.optim import MasterWeights
        from cohort.parts import evaluation_sampling

        data = build.load_data(recipe, build.Materials())
        policy = build.load_policy(recipe, data, None if target.source == "scratch" else target.source)
        sampling = build.training_sampling(recipe, policy)
        sets = build.encode_data(recipe, data, policy, sampling).sets
        if not sets:
            raise RunError("the recipe has no evaluation: set evaluation.samples and evaluation.held_out or [evaluation.sets].")
        weights = MasterWeights(policy.model, build.compute_dtype(recipe))
        if target.checkpoint is not None:
            weights.load(checkpoint.load(target.checkpoint).tensors["weights"])
        engine, _ = build.make_engine(recipe, policy)
        return evaluate(
            engine,
            sets,
            rewards,
            sampling=evaluation_sampling(recipe, sampling),
            seed=recipe.seed,
            greedy=recipe.evaluation.greedy,
            resamples=recipe.evaluation.resamples,
            answers=rewards.has_answers,
            label=target.label,
        )


def print_table(console: Any, target: Target, result: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    for name, estimates in result.sets.items():
        counts = result.counts[name]
        table = Table(title=Text(f"{target.label} on {name}: {counts['problems']:.0f} problems"), title_justify="left")
        table.add_column("")
        table.add_column("value", justify="right")
        table.add_column("95 % interval", justify="right")
        for what, estimate in estimates.items():
            if estimate.value is None:
                table.add_row(what, "-", estimate.reason)
            elif what == "reward":  # not a share: shaping can take it anywhere
                table.add_row(what, f"{estimate.value:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}")
            else:
                table.add_row(what, f"{100 * estimate.value:.1f} %", f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}")
        table.add_row("truncated", f"{100 * counts['truncated']:.1f} %", "")
        table.add_row("mean length", f"{counts['length_mean']:.1f}", "tokens")
        console.print(table)
