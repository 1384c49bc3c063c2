"""The runs of a comparison, and the check that one folder holds one comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cohort.base.files import lock_file, write_whole
from cohort.data.prompts import CHOSEN, REJECTED, read_demonstration, read_preference
from cohort.data.rows import READERS, is_function_name, load_rows
from cohort.errors import PromptError, RunError
from cohort.recipe.file import dump_recipe
from cohort.recipe.schema import EvaluationConfig, Recipe
from cohort.tools.compare.contenders import Contender, Lineup, flatten, write_setting
from cohort.types import Prompt

VERSION = 1
FIRST_ROWS = 4


@dataclass(frozen=True)
class PlannedRun:
    name: str
    label: str
    """The contender's, or "" for a shared cold start."""
    seed: int
    recipe: Recipe
    start: str = ""
    """Name of the run whose model it starts from; "" if it makes its own."""


@dataclass(frozen=True)
class Plan:
    output: Path
    lineup: Lineup
    seeds: tuple[int, ...]
    starts: tuple[PlannedRun, ...]
    """The shared cold starts, one per seed; empty if the base has no cold start."""
    runs: tuple[PlannedRun, ...]
    """Seed by seed, so that every contender has its first number early."""

    def folder(self, name: str) -> Path:
        return self.output / name

    def log(self, name: str) -> Path:
        return self.output / "logs" / f"{name}.txt"

    def recipe_file(self, name: str) -> Path:
        return self.output / "recipes" / f"{name}.toml"


def make_plan(lineup: Lineup, seeds: Sequence[int], output: Path) -> Plan:
    base, starts, runs = lineup.base, [], []
    for contender in lineup.contenders:
        refuse_missing_columns(contender, seeds[0])
    evaluation = fix_problems(base.evaluation, seeds[0])
    shared = base.cold_start.num_steps > 0 and any(contender.shares_start for contender in lineup.contenders)

    def name_run(recipe: Recipe, name: str, seed: int, **sections: Any) -> Recipe:
        own = {"name": name, "runs_folder": str(output), "seed": seed, "evaluation": evaluation}
        return recipe.model_copy(update=own | sections)

    for seed in seeds:
        start = f"start-seed-{seed}" if shared else ""
        if start:
            train = base.train.model_copy(update={"num_steps": 0})
            starts.append(PlannedRun(start, "", seed, name_run(base, start, seed, train=train)))
        for contender in lineup.contenders:
            from_start = start if contender.shares_start else ""
            recipe = start_from(contender.recipe, output / start / "model") if from_start else contender.recipe
            name = f"{contender.slug}-seed-{seed}"
            runs.append(PlannedRun(name, contender.label, seed, name_run(recipe, name, seed), from_start))
    return Plan(output, lineup, tuple(seeds), tuple(starts), tuple(runs))


def fix_problems(evaluation: EvaluationConfig, seed: int) -> EvaluationConfig:
    """Settings that give every seed the same held-out problems, so that their numbers can be averaged.

    A user's function may split its rows by the seed, and held-out rows of one seed would be training rows of another. There each
    seed keeps its own problems, and the results report it.
    """
    if evaluation.problems_seed >= 0 or any(is_function_name(config.source) for config in evaluation.sets.values()):
        return evaluation
    return evaluation.model_copy(update={"problems_seed": seed})


def start_from(recipe: Recipe, model: Path) -> Recipe:
    """The recipe with an existing model and no cold start."""
    changes = {
        "model": recipe.model.model_copy(update={"source": str(model), "revision": ""}),
        "cold_start": recipe.cold_start.model_copy(update={"num_steps": 0}),
    }
    return recipe.model_copy(update=changes)


def refuse_missing_columns(contender: Contender, seed: int) -> None:
    """Check the columns of pairs and demonstrations in the first rows of a task or file, before hours of other runs.

    Rows from the hub or from code are checked when the run begins.
    """
    recipe = contender.recipe
    data, own = recipe.algorithm.data, recipe.cold_start.source
    if data not in ("pairs", "demonstrations"):
        return
    config = recipe.prompts if data == "pairs" or isinstance(own, str) else own
    path = Path(config.source).expanduser()
    if not (config.source.startswith(("task:", "gym:")) or path.suffix in READERS or path.exists()):
        return
    first = min(config.limit or FIRST_ROWS, FIRST_ROWS)
    try:
        for index, row in enumerate(load_rows(config.model_copy(update={"limit": first}), seed)):
            prompt = Prompt(index, "", {name: value for name, value in row.items() if name != config.prompt_column}, ())
            if data == "pairs":
                for column in (CHOSEN, REJECTED):
                    read_preference(prompt, column)
            else:
                read_demonstration(prompt, recipe.cold_start.completion_column)
    except PromptError as problem:
        raise PromptError(f"contender {contender.label}: {problem}") from None


# -- the folder --------------------------------------------------------------------------------------------------------


def make_document(plan: Plan) -> dict[str, Any]:
    """plan.json: what two comparisons must agree on to be the same. It holds no output paths, so that the folder can be moved."""
    contenders = {}
    for contender in plan.lineup.contenders:
        entry = {"word": contender.word, "recipe": contender.recipe.model_dump(mode="json")}
        if own := contender.recipe.algorithm.own:  # an edited function would make the comparison a mixture
            entry["source"] = {kind: choice.digest for kind, choice in own.items()}
        contenders[contender.label] = entry
    base = plan.lineup.base.model_dump(mode="json")
    return {"version": VERSION, "seeds": list(plan.seeds), "contenders": contenders, "base": base}


def open_output(plan: Plan) -> IO[str]:
    """Make the folder, or accept one left by the same command. The returned file holds the lock on it."""
    output, file = plan.output, plan.output / "plan.json"
    if output.exists() and not output.is_dir():
        raise RunError(f"--output {output}: it is a file; name a folder")
    if file.is_file():
        refuse_another_plan(plan, file)
    elif output.is_dir() and any(path.name != "compare.lock" for path in output.iterdir()):
        raise RunError(f"--output {output}: the folder holds something else (no plan.json); name a new folder")
    try:
        for part in ("logs", "recipes"):
            (output / part).mkdir(parents=True, exist_ok=True)
        if (lock := lock_file(output / "compare.lock")) is None:
            raise RunError(f"--output {output} is in use by another comparison; wait for it or stop it")
        write_whole(file, json.dumps(make_document(plan), indent=2))
        for run in (*plan.starts, *plan.runs):
            write_whole(plan.recipe_file(run.name), dump_recipe(run.recipe))
    except OSError as problem:
        raise RunError(f"--output {output}: cannot be written ({problem.strerror}); name a writable folder") from problem
    return lock


def refuse_another_plan(plan: Plan, file: Path) -> None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        labels, there = list(found["contenders"]), flatten(found)
    except (ValueError, OSError, AttributeError, TypeError, KeyError) as problem:
        raise RunError(f"{file} cannot be read ({problem}); name a new --output") from problem
    if labels != [contender.label for contender in plan.lineup.contenders]:
        raise RunError(f"--output {plan.output} holds a comparison of {', '.join(labels)}; name a new folder, or compare those")
    here = flatten(json.loads(json.dumps(make_document(plan))))
    for path in dict.fromkeys([*here, *there]):
        if here.get(path) != there.get(path):
            raise RunError(
                f"--output {plan.output} holds another comparison: {path} is {write_setting(there.get(path))} there and "
                f"{write_setting(here.get(path))} here; name a new folder, or take the setting back"
            )
