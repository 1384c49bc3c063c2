"""Which runs a comparison is made of, and the guard that one folder holds one comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cohort.base.files import lock_file, write_whole
from cohort.data.rows import is_function_name
from cohort.errors import RecipeError, RunError
from cohort.recipe.file import dump_recipe
from cohort.recipe.schema import EvaluationConfig, Recipe
from cohort.tools.compare.columns import refuse_missing_columns
from cohort.tools.compare.contenders import Contender, Field, flatten, write_setting

VERSION = 1


@dataclass(frozen=True)
class PlannedRun:
    name: str
    label: str
    """The contender's, or "" for a shared cold start."""
    seed: int
    recipe: Recipe
    start: str = ""
    """Name of the run whose model it starts from; "": it brings its own start."""


@dataclass(frozen=True)
class Plan:
    output: Path
    field: Field
    seeds: tuple[int, ...]
    starts: tuple[PlannedRun, ...]
    """The shared cold starts, one per seed; none where the base has no cold start."""
    runs: tuple[PlannedRun, ...]
    """Seed by seed, so that every contender has its first number early."""

    def list_runs(self, label: str) -> list[PlannedRun]:
        return [run for run in self.runs if run.label == label]

    def folder(self, name: str) -> Path:
        return self.output / name

    def log(self, name: str) -> Path:
        return self.output / "logs" / f"{name}.txt"

    def recipe_file(self, name: str) -> Path:
        return self.output / "recipes" / f"{name}.toml"

    def divergence_file(self, name: str) -> Path:
        return self.output / "divergence" / f"{name}.json"


def make_plan(field: Field, seeds: Sequence[int], output: Path) -> Plan:
    base, starts, runs = field.base, [], []
    for contender in field.contenders:
        refuse_missing_columns(contender, seeds[0])
    evaluation = fix_problems(base.evaluation, seeds[0])
    shared = base.cold_start.num_steps > 0 and any(contender.shares_start for contender in field.contenders)
    for seed in seeds:
        start = f"start-seed-{seed}" if shared else ""
        if start:
            train = base.train.model_copy(update={"num_steps": 0})
            starts.append(PlannedRun(start, "", seed, name_run(base, output, start, seed, train=train, evaluation=evaluation)))
        for contender in field.contenders:
            from_start = start if contender.shares_start else ""
            recipe = start_from(contender.recipe, output / start / "model") if from_start else contender.recipe
            name = f"{contender.slug}-seed-{seed}"
            planned = name_run(recipe, output, name, seed, evaluation=evaluation)
            runs.append(PlannedRun(name, contender.label, seed, planned, from_start))
    return Plan(output, field, tuple(seeds), tuple(starts), tuple(runs))


def fix_problems(evaluation: EvaluationConfig, seed: int) -> EvaluationConfig:
    """The same held-out problems for every seed: numbers of different problems are not to be averaged.

    A user's function may divide its rows by the seed, and held-out rows of one seed be training rows of another: there each
    seed keeps its own, and what is measured says so.
    """
    if evaluation.problems_seed >= 0 or any(is_function_name(config.source) for config in evaluation.sets.values()):
        return evaluation
    return evaluation.model_copy(update={"problems_seed": seed})


def name_run(recipe: Recipe, output: Path, name: str, seed: int, **sections: Any) -> Recipe:
    return recipe.model_copy(update={"name": name, "runs_folder": str(output), "seed": seed, **sections})


def start_from(recipe: Recipe, model: Path) -> Recipe:
    """The recipe from a model that is there already, without a cold start; everything else is kept."""
    changes = {
        "model": recipe.model.model_copy(update={"source": str(model), "revision": ""}),
        "cold_start": recipe.cold_start.model_copy(update={"num_steps": 0}),
    }
    return recipe.model_copy(update=changes)


# -- the folder --------------------------------------------------------------------------------------------------------


def make_document(plan: Plan) -> dict[str, Any]:
    """What two comparisons must agree on to be the same one. No paths of the output, so that it may be moved."""
    return {
        "version": VERSION,
        "seeds": list(plan.seeds),
        "contenders": {
            contender.label: {
                "word": contender.word,
                "recipe": contender.recipe.model_dump(mode="json"),
                **list_digests(contender),
            }
            for contender in plan.field.contenders
        },
        "base": plan.field.base.model_dump(mode="json"),
    }


def list_digests(contender: Contender) -> dict[str, Any]:
    """Digests of the user's functions: a comparison that goes on after an edit would compare a mixture."""
    own = contender.recipe.algorithm.own
    return {"source": {kind: choice.digest for kind, choice in own.items()}} if own else {}


def open_output(plan: Plan) -> IO[str]:
    """Make the folder, or accept it as one left by the same command. The open file that is returned holds it for this process."""
    output, file = plan.output, plan.output / "plan.json"
    if output.exists() and not output.is_dir():
        raise RunError(f"--output {output}: it is a file; name a folder")
    if file.is_file():
        refuse_another_plan(plan, file)
    elif output.is_dir() and any(path.name != "compare.lock" for path in output.iterdir()):
        raise RunError(f"--output {output}: the folder holds something else (no plan.json); name a new folder")
    try:
        for part in ("logs", "recipes", "divergence"):
            (output / part).mkdir(parents=True, exist_ok=True)
        if (held := lock_file(output / "compare.lock")) is None:
            raise RunError(f"--output {output} is in use by another comparison; wait for it or stop it")
        write_whole(file, json.dumps(make_document(plan), indent=2))
        for run in (*plan.starts, *plan.runs):
            write_whole(plan.recipe_file(run.name), dump_recipe(run.recipe))
    except OSError as problem:
        raise RunError(f"--output {output}: cannot be written ({problem.strerror}); name a folder that can") from problem
    return held


def refuse_another_plan(plan: Plan, file: Path) -> None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        there, here = flatten(found), flatten(json.loads(json.dumps(make_document(plan))))
    except (ValueError, OSError, AttributeError, TypeError, KeyError, RecipeError) as problem:
        raise RunError(f"{file} cannot be read ({problem}); name a new --output") from problem
    if list(found.get("contenders", {})) != [contender.label for contender in plan.field.contenders]:
        labels = ", ".join(found.get("contenders", {}))
        raise RunError(f"--output {plan.output} holds a comparison of {labels}; name a new folder, or compare those")
    for path in dict.fromkeys([*here, *there]):
        if here.get(path) != there.get(path):
            raise RunError(
                f"--output {plan.output} holds another comparison: {path} is {write_setting(there.get(path))} there and "
                f"{write_setting(here.get(path))} here; name a new folder, or take the words back"
            )
