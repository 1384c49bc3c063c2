"""`cohort evaluate` and `cohort.evaluate`: runs and models on held-out problems, with intervals; several targets in pairs.

A pair needs the same problems on both sides. So all targets are evaluated on the problems of the first one (or of --recipe), with its
rewards, evaluation settings and seed; each brings only its model. Another run may have been trained on some of these problems, which
is counted and printed.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Container, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.text import make_printable, write_estimate, write_percent
from cohort.data.rows import load_rows, suggest_file
from cohort.errors import CohortError, RecipeError, RunError
from cohort.evaluation.estimators import FEW_PROBLEMS, PairedDifference
from cohort.observe.outcome import write_difference
from cohort.observe.run_folder import MODEL_FILES, RunFolder, make_paths_absolute, open_run_at
from cohort.recipe.file import is_section_value, load_recipe, parse_value, resolve_undotted
from cohort.recipe.schema import EvaluationConfig, Recipe
from cohort.recipe.trl_names import TRL_NAMES
from cohort.recipe.values import Materials
from cohort.training.python_inputs import save_python_model
from cohort.training.run_weights import Target, find_weights, follow_products, load_weights

if TYPE_CHECKING:
    from cohort.evaluation.evaluate import Evaluation
    from cohort.rewards.runner import RewardRunner
    from cohort.training.build import Data
    from cohort.types import Prompt

DIFFERENCES = {"rose": "higher", "fell": "lower"}
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
EVALUATED = {"evaluation", "prompts", "sampling", "model", "seed", "train.max_fault_share"}
"""Sections and keys of a recipe that an evaluation reads."""
NOT_EVALUATED = {
    "evaluation.every_steps",
    "evaluation.every_problems",
    "prompts.shuffle",
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
}
"""Keys of these sections that it does not read."""


@dataclass(frozen=True)
class Problems:
    """What every target is evaluated on: prompts, rewards, evaluation settings and seed."""

    label: str
    recipe: Recipe
    folder: RunFolder | None
    """The run they come from, which may hold rows that were passed from Python."""

    def read_kept_rows(self) -> Materials:
        return self.folder.read_kept_rows(self.recipe) if self.folder else Materials()


@dataclass(frozen=True)
class TargetResult:
    target: Target
    evaluation: Evaluation
    seen: Mapping[str, int] = field(default_factory=dict)
    """Set -> how many of its problems the target was trained on."""


def run_evaluation(targets: Sequence[str], recipe: str, checkpoint: str, overrides: Sequence[str], output: Path | None) -> None:
    """`cohort evaluate`: evaluate the targets in turn, print their numbers and compare each with the first."""
    from rich.console import Console

    from cohort.evaluation.evaluate import compare
    from cohort.rewards.runner import RewardRunner

    for target in targets:
        if "=" in target and not Path(target).exists():
            raise RunError(f"{target!r} is neither a run nor a model. Give settings with --set: --set {target}")
    problems = find_problems(targets[0], recipe, overrides)
    found = [find_target(target, checkpoint, overrides, problems) for target in targets]
    refuse_lost_rewards(problems)
    refuse_unwritable(output)
    file = output.absolute() if output else None
    console = Console(highlight=False)
    if len(found) > 1:
        say(console, f"all targets are evaluated on the problems of {problems.label}, with its rewards, settings and seed")
    refuse_busy_servers(problems)
    results: list[TargetResult] = []
    with RewardRunner.for_run(problems.recipe) as rewards:  # reward workers start before torch is imported
        data = load_problems(problems)
        for found_target in found:
            say(console, f"evaluating {describe_target(found_target)}")
            results.append(evaluate_target(console, found_target, problems, data, rewards))
            print_table(console, found_target, results[-1].evaluation)
    comparisons: dict[str, Any] = {}
    for result in results[1:]:
        comparison = compare(results[0].evaluation, result.evaluation)
        comparisons[f"{result.target.label} against {results[0].target.label}"] = {
            name: {what: paired.to_json() for what, paired in values.items()} for name, values in comparison.items()
        }
        print_comparison(console, results[0], result, comparison)
    if file:
        document: dict[str, Any] = {result.target.label: result.evaluation.to_json() for result in results}
        seen = {result.target.label: dict(result.seen) for result in results if result.seen}
        document |= ({"paired": comparisons} if comparisons else {}) | ({"seen_in_training": seen} if seen else {})
        file.write_text(json.dumps(document, indent=2), encoding="utf-8")
        say(console, f"written to {output}")


def evaluate_from_python(
    source: str,
    materials: Materials,
    recipe: Path | None,
    values: dict[str, Any],
    settings: Mapping[str, Any],
    checkpoint: str,
) -> Evaluation:
    """`cohort.evaluate`: one model, on rows from Python or on the problems of its run or recipe."""
    from rich.console import Console

    from cohort.rewards.runner import RewardRunner

    run = open_run_at(Path(source)) if source and materials.model is None else None
    if checkpoint and run is None:
        raise RunError(f"checkpoint: {source or 'the model'} is not a run folder, so it has no checkpoints; leave it out.")
    file = recipe or (run.recipe_file if run else None)
    for argument, key in (("prompts", "prompts.source"), ("rewards", "rewards")):
        if file is None and key not in values:
            raise RecipeError(f"cohort.evaluate needs {argument}=...; or a run as model, or recipe=, that has them.")
    has_rows = "prompts.source" in values
    keys = resolve_settings(settings, has_rows)
    if has_rows:  # the source and its settings are replaced; how a row becomes a prompt stays
        values |= {"prompts.args": {}, "prompts.limit": 0, "prompts.split": "train", "evaluation.sets": {}}
    resolved = make_paths_absolute(load_recipe(file, values=values | keys))
    problems = Problems(source or "prompts", resolved, None if has_rows else run)
    refuse_lost_rewards(problems, materials.functions)
    console = Console(stderr=True, highlight=False)
    model_keys = {key: value for key, value in keys.items() if key.startswith("model")}
    target = find_target(source, checkpoint, [], problems, model_keys) if materials.model is None else None
    with (
        tempfile.TemporaryDirectory(prefix="cohort-evaluate-") as scratch,
        RewardRunner.for_run(resolved, materials.functions) as rewards,  # reward workers start before torch is imported
    ):
        from cohort.training import build

        if has_rows:
            rows = load_rows(resolved.prompts, resolved.seed, materials.rows)
            data = build.Data([], {"prompts": (resolved.prompts, rows)}, None)
            if "evaluation.max_problems" not in keys:
                whole = resolved.evaluation.model_copy(update={"max_problems": len(rows)})
                problems = replace(problems, recipe=resolved.model_copy(update={"evaluation": whole}))
        else:
            data = load_problems(problems)
        if target is None:
            assert materials.model is not None
            save_python_model(*materials.model, Path(scratch) / "model")
            target = Target(type(materials.model[0]).__name__, str(Path(scratch) / "model"), None, resolved, None)
        elif target.description:
            say(console, f"evaluating {describe_target(target)}")
        return evaluate_target(console, target, problems, data, rewards).evaluation


def resolve_settings(settings: Mapping[str, Any], has_rows: bool) -> dict[str, Any]:
    """Settings by their full key; undotted ones of [evaluation] come first. Raises RecipeError for keys that are not read."""
    keys: dict[str, Any] = {}
    for key, value in settings.items():
        if "." in key or is_section_value(key, value):
            keys |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, Mapping) else {key: value}
            continue
        # Other tools' names of [evaluation] keys; in training the same name may mean another key.
        ours = TRL_NAMES.get(key, "").rpartition(".")[2]
        ours = "samples" if ours == "group_size" else ours
        if ours in EvaluationConfig.model_fields:
            raise RecipeError(f"{key}: cohort.evaluate calls it {ours}.")
        keys[f"evaluation.{key}" if key in EvaluationConfig.model_fields else resolve_undotted(key)] = value
    for key in keys:
        ignored = key in NOT_EVALUATED or not {key, key.partition(".")[0]} & EVALUATED
        if ignored or (has_rows and key in ("evaluation.held_out", "evaluation.sets")):
            raise RecipeError(f"{key}: an evaluation of these problems does not read it; leave it out.")
    return keys


# -- problems and targets ----------------------------------------------------------------------------------------------


def find_problems(first: str, recipe: str, overrides: Sequence[str]) -> Problems:
    """The problems of --recipe if it is given, else those of the first target, which must then be a run."""
    from cohort.recipe.file import find_recipe

    if recipe:
        path = Path(recipe)
        found = make_paths_absolute(find_recipe(recipe, overrides))
        return Problems(recipe, found, open_run_at(path if path.is_dir() else path.parent))
    folder = open_run_at(Path(first))
    if folder is None:
        raise RunError(f"{first} is not a run folder. For a model, name the problems and rewards with --recipe RECIPE.")
    return Problems(first, folder.use_kept_base(make_paths_absolute(load_recipe(folder.recipe_file, overrides))), folder)


def find_target(
    target: str, checkpoint: str, overrides: Sequence[str], problems: Problems, values: Mapping[str, Any] | None = None
) -> Target:
    """The model of a run by the run's own recipe, or a model loaded with the settings of the problems' recipe."""
    folder = open_run_at(Path(target))
    if folder is None:
        refuse_missing_model(target)
        source = str(Path(target).absolute()) if Path(target).is_dir() else target
        return Target(target, source, None, problems.recipe, None)
    recipe = make_paths_absolute(load_recipe(folder.recipe_file, select_model_overrides(overrides), values))
    found = find_weights(folder, checkpoint, folder.use_kept_base(recipe))
    return replace(found, label=target + found.label.removeprefix(str(folder.root)))


def refuse_missing_model(target: str) -> None:
    """Raise RunError, before anything is evaluated, for a target that cannot be a run, a model folder or a hub id."""
    path = Path(target)
    if path.is_dir():
        if not any((path / name).is_file() for name in MODEL_FILES):
            raise RunError(
                f"{target} is neither a run (it has no recipe.toml) nor a model (it has no {' or '.join(MODEL_FILES)})."
            )
    elif path.exists() and path.suffix.lower() != ".gguf":
        raise RunError(f"{target} is a file; name the folder of a run or of a model.")
    elif not path.exists() and (not HUB_ID.fullmatch(target) or ("/" in target and any(path.parent.glob("*/recipe.toml")))):
        # runs/nmae could be a hub id, but not if runs/ holds runs.
        hint = suggest_file(path) or "."
        raise RunError(f"{target}: no such folder{hint} Name a run, a model folder or a hub id (owner/name).")


def select_model_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides of [model]; the others are for the problems and may not fit another recipe."""

    def find_section(override: str) -> str:
        key, _, text = (part.strip() for part in override.partition("="))
        whole = "." in key or is_section_value(key, parse_value(text))
        return (key if whole else resolve_undotted(key)).partition(".")[0]

    return [override for override in overrides if find_section(override) == "model"]


def refuse_lost_rewards(problems: Problems, functions: Container[str] = ()) -> None:
    """Raise RunError for rewards that were closures, lambdas or notebook functions, which a recipe cannot store."""
    for place, part in problems.recipe.list_rewards().items():
        if part.function.startswith("python:") and part.function not in functions:
            raise RunError(
                f"{problems.label}: the reward {part.name or part.function!r} was a Python function that cannot be imported by name "
                "(a closure, a lambda, a notebook cell), and evaluation needs the function. From Python: cohort.evaluate(run, "
                "rewards=[function]), or for an unfinished run cohort.resume(run, rewards=[function]). Or put it into a "
                f"module and name it: --set {place}.function=package.module:function"
            )


def refuse_busy_servers(problems: Problems) -> None:
    """Raise RunError if the servers are in use by a training run: an evaluation would replace their weights and end that run."""
    servers, folder = problems.recipe.sampling.servers, problems.folder
    if servers and folder is not None and folder.is_in_use:
        raise RunError(
            f"{problems.label} is being trained, and an evaluation would replace the weights on its servers ({', '.join(servers)}). Wait for "
            "the run, or sample in this process: --set sampling.servers=[] --set sampling.engine=auto"
        )


def refuse_unwritable(output: Path | None) -> None:
    """Raise RunError before the evaluation, which may take an hour, if its output cannot be written."""
    if output is None:
        return
    existed = output.exists()
    try:
        output.open("a").close()
        if not existed:
            output.unlink()
    except OSError as problem:
        reason = f"the folder {output.parent} does not exist" if not output.parent.exists() else problem.strerror
        raise RunError(f"--output {output}: cannot be written ({reason}); name a file in a writable folder.") from problem


def load_problems(problems: Problems) -> Data:
    from cohort.training import build

    data = build.load_data(problems.recipe, problems.read_kept_rows())
    if not data.sets:
        raise RunError("the recipe has no evaluation: set evaluation.samples and evaluation.held_out or [evaluation.sets].")
    return data


# -- evaluating --------------------------------------------------------------------------------------------------------


def evaluate_target(console: Any, target: Target, problems: Problems, data: Data, rewards: RewardRunner) -> TargetResult:
    """Load the target's model, sample and score. Everything else comes from the problems' recipe."""
    from cohort.evaluation.evaluate import evaluate
    from cohort.observe.monitors.console import ConsoleMonitor
    from cohort.training import build
    from cohort.training.preflight import explain_plain_prompts
    from cohort.training.stages import make_evaluation_sampling

    recipe = problems.recipe.model_copy(update={"model": target.recipe.model})
    if recipe.model.trust_remote_code:
        say(console, f"trust_remote_code: Python code that ships with {target.source} runs here, with your rights")
    policy = load_weights(target)
    sampling = build.make_training_sampling(recipe, policy)
    encoded = build.encode_data(recipe, data, policy, sampling)
    sets = encoded.sets
    for name in sets:
        if encoded.reports[name].too_long:
            say(console, f"warning: {name}: {encoded.reports[name]}")
        settings = data.sets[name][0]
        place = "prompts" if settings == recipe.prompts else f"evaluation.sets.{name}"
        if text := explain_plain_prompts(policy, sets[name], settings, place):
            say(console, f"warning: {name}: {text}")
    policy.set_longest(build.find_longest_sequence(recipe, encoded, sampling))
    seen = count_seen_problems(console, target, problems, sets)
    drawn = make_evaluation_sampling(recipe, sampling)
    total = sum(map(len, sets.values())) * (drawn.completions + recipe.evaluation.greedy)
    progress = ConsoleMonitor(".", {}, console=console)
    with follow_products(target.folder, policy, build.compute_dtype(target.recipe)), closing(progress):
        engine, _ = build.make_engine(recipe, policy, report=functools.partial(say, console), environments=data.environments)
        engine.sync(policy.read_weights(), 0)
        progress.on_stage("evaluation", total=total)
        evaluation = evaluate(
            engine,
            sets,
            {name: rewards.for_set(name) for name in sets},
            sampling=drawn,
            seed=recipe.seed,
            greedy=recipe.evaluation.greedy,
            resamples=recipe.evaluation.resamples,
            label=target.label,
            on_progress=lambda share: progress.on_progress(int(share * total), {}),
        )
        engine.close()
    return TargetResult(target, evaluation, seen)


def count_seen_problems(
    console: Any, target: Target, problems: Problems, sets: Mapping[str, Sequence[Prompt]]
) -> dict[str, int]:
    """Set -> how many of its problems another run was trained on: its split may differ from that of the problems."""
    from cohort.data.prompts import make_content_key
    from cohort.data.rows import render
    from cohort.training import build

    if target.folder is None or target.recipe == problems.recipe:  # its own problems are held out
        return {}
    try:
        own = build.load_data(target.recipe, target.folder.read_kept_rows(target.recipe))
    except (CohortError, OSError) as problem:
        say(
            console, f"note: {target.label} may have been trained on some of these problems; its rows cannot be read: {problem}"
        )
        return {}
    used = [(target.recipe.prompts, own.train), *([own.demonstrations] if own.demonstrations else [])]
    trained = {make_content_key(render(row, config, "prompts")) for config, rows in used for row in rows}
    seen = {name: sum(make_content_key(prompt.content) in trained for prompt in prompts) for name, prompts in sets.items()}
    seen = {name: count for name, count in seen.items() if count}
    for name, count in seen.items():
        overlap = f"{target.label} was trained on {count} of the {len(sets[name])} problems of {name}"
        say(console, f"warning: {overlap}; its score on those shows memory, not skill")
    return seen


# -- printing ----------------------------------------------------------------------------------------------------------


def say(console: Any, text: str) -> None:
    from cohort.observe.terminal import print_whole

    print_whole(console, make_printable(text))


def describe_target(target: Target) -> str:
    return f"{target.label}: {target.description}" if target.description else target.label


def print_comparison(
    console: Any, first: TargetResult, other: TargetResult, comparison: Mapping[str, Mapping[str, PairedDifference]]
) -> None:
    pair = f"{other.target.label} against {first.target.label}"
    for name in first.evaluation.sets:
        for what, paired in comparison.get(name, {}).items():
            verdict = DIFFERENCES.get(paired.verdict, "no clear difference")
            say(console, f"{name} {what}: {pair} {write_difference(paired)[0]} points ({paired.sureness}): {verdict}")
        if name not in comparison:
            say(console, f"{name}: {pair}: no problem has a verdict on both sides, so there is nothing to compare")


def print_table(console: Any, target: Target, result: Evaluation) -> None:
    from cohort.base.text import make_table

    for name, estimates in result.sets.items():
        counts = result.counts[name]
        # A reward is not a share: shaping rewards can take it anywhere.
        written = {
            what: write_estimate(one.value, one.low, one.high, share=what != "reward") for what, one in estimates.items()
        }
        rows = [(what, value, interval.strip("[]").replace(", ", " to ")) for what, (value, interval) in written.items()]
        rows.append(("truncated", write_percent(counts["truncated"], 1), ""))
        rows.append(("mean length", f"{counts['length_mean']:.1f}", "tokens"))
        say(console, f"{target.label} on {name}: {counts['problems']:.0f} problems")
        console.print(make_table(("", "value", "95 % interval"), rows))
        missing: dict[str, list[str]] = {}
        for what, (_, interval) in written.items():
            if not interval and estimates[what].reason:
                missing.setdefault(estimates[what].reason, []).append(what)
        for reason, figures in missing.items():
            say(console, f"note: {', '.join(figures)}: {reason}")
    few = [name for name, counts in result.counts.items() if counts["problems"] < FEW_PROBLEMS]
    if few:
        have = "has" if len(few) == 1 else "have"
        say(
            console,
            f"note: {', '.join(few)} {have} fewer than {FEW_PROBLEMS} problems, so only large differences will be clear",
        )
