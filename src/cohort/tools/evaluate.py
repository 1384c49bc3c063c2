"""`cohort evaluate`: any run or model, on held-out problems, with intervals; several targets are compared in pairs.

A pair needs the same problem on both sides. So all targets are evaluated on the problems of the first one (or of
--recipe), with its rewards, evaluation settings and seed; each brings its own model. That includes what another run may
have been trained on, which is counted and said.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.text import make_printable, write_estimate, write_percent
from cohort.data.rows import suggest_file
from cohort.errors import CohortError, RunError
from cohort.evaluation.estimators import FEW_PROBLEMS, PairedDifference
from cohort.observe.changes import write_difference
from cohort.observe.run_folder import MODEL_FILES, RunFolder, make_paths_absolute, open_run_at
from cohort.recipe.file import is_section_value, load_recipe, parse_value, resolve_undotted
from cohort.recipe.materials import Materials
from cohort.recipe.schema import Recipe
from cohort.training.run_weights import Target, find_weights, follow_products, load_weights

if TYPE_CHECKING:
    from cohort.evaluation.evaluate import Evaluation
    from cohort.rewards.of_run import RunRewards
    from cohort.training.build import Data
    from cohort.types import Prompt


DIFFERENCES = {"rose": "higher", "fell": "lower"}
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Problems:
    """What every target is evaluated on: prompts, rewards, evaluation settings and seed."""

    label: str
    recipe: Recipe
    folder: RunFolder | None
    """The run they come from, which may hold rows that were handed in from Python."""


@dataclass(frozen=True)
class TargetResult:
    target: Target
    evaluation: Evaluation
    seen: Mapping[str, int] = field(default_factory=dict)
    """Set -> how many of its problems the target was trained on."""


def run_evaluation(targets: Sequence[str], recipe: str, checkpoint: str, overrides: Sequence[str], output: Path | None) -> None:
    from rich.console import Console

    from cohort.evaluation.evaluate import compare

    for target in targets:
        refuse_setting(target)
    problems = find_problems(targets[0], recipe, overrides)
    found = [find_target(target, checkpoint, overrides, problems) for target in targets]
    refuse_lost_rewards(problems)
    refuse_unwritable(output)
    file = output.absolute() if output else None
    console = Console(highlight=False)
    if len(found) > 1:
        shared = (
            f"all targets are evaluated on the problems of {problems.label}, with its rewards, evaluation settings and seed"
        )
        say(console, f"{shared}; each with its own model")
    results = evaluate_targets(console, found, problems)
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


# -- what to evaluate, and on what -------------------------------------------------------------------------------------


def refuse_setting(target: str) -> None:
    """`evaluation.samples=8` stands behind the recipe of `cohort train`; here every bare word is a target."""
    if "=" in target and not Path(target).exists():
        raise RunError(f"{target!r} is neither a run nor a model. A setting is given with --set: --set {target}")


def find_problems(first: str, recipe: str, overrides: Sequence[str]) -> Problems:
    """Those of --recipe where it is given, else those of the first target, which must then be a run."""
    from cohort.recipe.built_in import find_recipe

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
    """A run has a recipe of its own, of which the model counts here; a model is loaded as the problems' recipe says."""
    folder = open_run_at(Path(target))
    if folder is None:
        refuse_missing_model(target)
        source = str(Path(target).absolute()) if Path(target).is_dir() else target
        return Target(target, source, None, problems.recipe, None)
    recipe = make_paths_absolute(load_recipe(folder.recipe_file, select_model_words(overrides), values))
    found = find_weights(folder, checkpoint, folder.use_kept_base(recipe))
    return replace(found, label=target + found.label.removeprefix(str(folder.root)))


def refuse_missing_model(target: str) -> None:
    """Found out before the first target is evaluated. Whether the hub has a name is known only when it is asked."""
    path = Path(target)
    if path.is_dir():
        if not any((path / name).is_file() for name in MODEL_FILES):
            raise RunError(
                f"{target} is neither a run (it has no recipe.toml) nor a model (it has no {' or '.join(MODEL_FILES)})."
            )
    elif path.exists() and path.suffix.lower() != ".gguf":
        raise RunError(f"{target} is a file; name the folder of a run or of a model.")
    elif not path.exists() and (not HUB_ID.fullmatch(target) or ("/" in target and any(path.parent.glob("*/recipe.toml")))):
        # runs/nmae would do as a hub id, but not where runs/ holds runs.
        hint = suggest_file(path) or "."
        raise RunError(f"{target}: no such folder{hint} Name a run, a model folder or a hub id (owner/name).")


def select_model_words(overrides: Sequence[str]) -> list[str]:
    """The overrides that concern the model; the others were meant for the problems and may not fit another recipe."""

    def section(override: str) -> str:
        key, _, text = (word.strip() for word in override.partition("="))
        whole = "." in key or is_section_value(key, parse_value(text))
        return (key if whole else resolve_undotted(key)).partition(".")[0]

    return [override for override in overrides if section(override) == "model"]


def refuse_lost_rewards(problems: Problems, functions: Container[str] = ()) -> None:
    """A closure, a lambda or a function of a notebook was never written down; only the person still has it."""
    for place, part in problems.recipe.list_rewards().items():
        if part.function.startswith("python:") and part.function not in functions:
            raise RunError(
                f"{problems.label}: the reward {part.name or part.function!r} was a Python function that cannot be imported by name "
                "(a closure, a lambda, a notebook cell), and evaluation needs the function. From Python: cohort.evaluate(run, "
                "rewards=[function]), or for an unfinished run cohort.resume(run, rewards=[function]). Or put it into a "
                f"module and name it: --set {place}.function=package.module:function"
            )


def refuse_busy_servers(problems: Problems) -> None:
    """Servers have the weights of one at a time: an evaluation there would end the run that samples from them."""
    servers, folder = problems.recipe.sampling.servers, problems.folder
    if servers and folder is not None and folder.is_in_use:
        raise RunError(
            f"{problems.label} is being trained, and its servers ({', '.join(servers)}) would be given other weights. Wait for it, or sample in this "
            "process: --set sampling.servers=[] --set sampling.engine=auto"
        )


def refuse_unwritable(output: Path | None) -> None:
    """Found out before the evaluation, which may take an hour, and not after it."""
    if output is None:
        return
    existed = output.exists()
    try:
        output.open("a").close()
        if not existed:
            output.unlink()
    except OSError as problem:
        reason = f"the folder {output.parent} does not exist" if not output.parent.exists() else problem.strerror
        raise RunError(f"--output {output}: cannot be written ({reason}); name a file in a folder that can.") from problem


def read_kept_rows(recipe: Recipe, folder: RunFolder | None) -> Materials:
    return Materials() if folder is None else folder.read_kept_rows(recipe)


def load_problems(problems: Problems) -> Data:
    from cohort.training import build

    data = build.load_data(problems.recipe, read_kept_rows(problems.recipe, problems.folder))
    if not data.sets:
        raise RunError("the recipe has no evaluation: set evaluation.samples and evaluation.held_out or [evaluation.sets].")
    return data


# -- evaluating --------------------------------------------------------------------------------------------------------


def evaluate_targets(console: Any, targets: Sequence[Target], problems: Problems) -> list[TargetResult]:
    """One after another, each printed as soon as it is there."""
    from cohort.rewards.of_run import RunRewards

    refuse_busy_servers(problems)
    recipe = problems.recipe
    results = []
    # Reward workers start before torch is imported, as in training.
    with RunRewards.for_run(recipe) as rewards:
        data = load_problems(problems)
        for target in targets:
            say(console, f"evaluating {target.label}{f': {target.description}' if target.description else ''}")
            results.append(evaluate_target(console, target, problems, data, rewards))
            print_table(console, target, results[-1].evaluation)
    return results


def evaluate_target(console: Any, target: Target, problems: Problems, data: Data, rewards: RunRewards) -> TargetResult:
    """Load, sample, score. Of the target's own recipe the model alone counts."""
    from cohort.evaluation.evaluate import evaluate
    from cohort.training import build
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
    policy.hold_lengths(build.find_longest_sequence(recipe, encoded, sampling))
    seen = count_seen_problems(console, target, problems, sets)
    with follow_products(target.folder, policy, build.compute_dtype(target.recipe)):
        engine, _ = build.make_engine(recipe, policy, report=functools.partial(say, console))
        engine.sync(policy.read_weights(), 0)
        evaluation = evaluate(
            engine,
            sets,
            {name: rewards.for_set(name) for name in sets},
            sampling=make_evaluation_sampling(recipe, sampling),
            seed=recipe.seed,
            greedy=recipe.evaluation.greedy,
            resamples=recipe.evaluation.resamples,
            label=target.label,
        )
        engine.close()
    return TargetResult(target, evaluation, seen)


def count_seen_problems(
    console: Any, target: Target, problems: Problems, sets: Mapping[str, Sequence[Prompt]]
) -> dict[str, int]:
    """How many problems of each set a run was trained on: what one run holds out, another with its own split may train on."""
    from cohort.data.prompts import make_content_key
    from cohort.data.rows import render
    from cohort.training import build

    if target.folder is None or target.recipe == problems.recipe:  # its own problems: held out, and checked when encoded
        return {}
    try:
        own = build.load_data(target.recipe, read_kept_rows(target.recipe, target.folder))
    except (CohortError, OSError) as problem:
        say(console, f"note: whether {target.label} was trained on some of these problems is not known: {problem}")
        return {}
    used = [(target.recipe.prompts, own.train), *([own.demonstrations] if own.demonstrations else [])]
    trained = {make_content_key(render(row, config, "prompts")) for config, rows in used for row in rows}
    seen = {name: sum(make_content_key(prompt.content) in trained for prompt in prompts) for name, prompts in sets.items()}
    seen = {name: count for name, count in seen.items() if count}
    for name, count in seen.items():
        overlap = f"{target.label} was trained on {count} of the {len(sets[name])} problems of {name}"
        say(console, f"warning: {overlap}; on those its score is memory, not skill")
    return seen


# -- printing ----------------------------------------------------------------------------------------------------------


def say(console: Any, text: str) -> None:
    """One line stays one line, however narrow the log is."""
    console.print(make_printable(text), markup=False, soft_wrap=True)


def print_comparison(
    console: Any, first: TargetResult, other: TargetResult, comparison: Mapping[str, Mapping[str, PairedDifference]]
) -> None:
    pair = f"{other.target.label} against {first.target.label}"
    for name in first.evaluation.sets:
        for what, paired in comparison.get(name, {}).items():
            verdict = DIFFERENCES.get(paired.verdict, "no clear difference")
            say(console, f"{name} {what}: {pair} {write_difference(paired)[0]} points ({paired.sureness}): {verdict}")
        if name not in comparison:
            say(console, f"{name}: {pair}: no problem with a verdict on both sides, so nothing to compare")


def print_table(console: Any, target: Target, result: Evaluation) -> None:
    from cohort.base.table import make_table

    for name, estimates in result.sets.items():
        counts = result.counts[name]
        # A reward is no share: shaping takes it anywhere.
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
        if counts["problems"] < FEW_PROBLEMS:
            say(console, f"note: {name} has fewer than {FEW_PROBLEMS} problems, so few differences will be clear")
