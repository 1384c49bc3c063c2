"""Early stopping on a condition of the recipe or on an alarm. No torch.

Checked once per step with its new metrics row. The result depends only on the rows and the recipe, so a run that was killed and resumed
stops at the same step. Times are not allowed in conditions, since they vary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cohort.errors import RecipeError
from cohort.evaluation.evaluate import list_ks
from cohort.observe.diagnosis.checks import diagnose, is_checked
from cohort.observe.diagnosis.finding import PATIENCE
from cohort.observe.metrics import AREAS, METRICS, find_metric
from cohort.observe.run_folder import RunFolder, read_known_functions
from cohort.recipe.rules import OVERLONG_PART, name_reward
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.values import Condition, parse_conditions

HELD_OUT = "held_out"
"""The evaluation set of a recipe without named sets."""


def find_reason_to_stop(recipe: Recipe, folder: RunFolder, row: Mapping[str, Any]) -> str:
    """Why the run stops after the step of this row; "" if it continues."""
    step, last = row["step"], recipe.train.num_steps
    if step >= last:
        return ""
    for conditions in parse_conditions(recipe.train.stop_when):
        resolved = [resolve_set(recipe, condition) for condition in conditions]
        if all(condition.holds(row) for condition in resolved):
            seen = " and ".join(f"{condition.metric} is {row[condition.metric]:.4g}" for condition in resolved)
            return f'stopped early, at step {step} of {last}: {seen} (train.stop_when = "{recipe.train.stop_when}")'
    # Before PATIENCE steps, a few unlucky batches could stop the run.
    if recipe.train.on_alarm == "stop" and is_checked(step) and step >= PATIENCE:
        own, _ = read_known_functions(folder.root, recipe.model_dump())
        for finding in diagnose(folder.metrics(), recipe, folder.evaluations(), own):
            if finding.level == "alarm":
                return f'stopped early, at step {step} of {last}: {finding.what} (train.on_alarm = "stop")'
    return ""


def name_absent_metrics(recipe: Recipe, row: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each metric of the conditions that is missing from the first row that should have it."""
    first = {"eval": recipe.evaluation.every_steps}
    named = {resolve_set(recipe, condition).metric for one in parse_conditions(recipe.train.stop_when) for condition in one}
    for metric in sorted(named):
        if row["step"] == first.get(metric.partition("/")[0], 1) and metric not in row:
            yield f"train.stop_when: step {row['step']} has no {metric}; the condition cannot be met while the metric is missing"


def resolve_set(recipe: Recipe, condition: Condition) -> Condition:
    """The condition with eval/pass@1 expanded to that of the first set."""
    area, _, what = condition.metric.partition("/")
    if area != "eval" or "/" in what:
        return condition
    return replace(condition, metric=f"eval/{find_first_set(recipe)}/{what}")


def find_first_set(recipe: Recipe) -> str:
    return next(iter(recipe.evaluation.sets), HELD_OUT)


def read_best(recipe: Recipe) -> tuple[str, str]:
    """(evaluation set, measure) of checkpoints.best."""
    given = recipe.checkpoints.best if isinstance(recipe.checkpoints.best, str) else ""
    name, _, measure = given.rpartition("/")
    return name or find_first_set(recipe), measure or "pass@1"


def list_training_sets(recipe: Recipe) -> list[str]:
    """The sets that are evaluated during training: the first, and the one of checkpoints.best."""
    return list(dict.fromkeys([find_first_set(recipe), read_best(recipe)[0]]))


def check_best(recipe: Recipe) -> None:
    """Refuse a checkpoints.best that the run does not measure."""
    name, measure = read_best(recipe)
    sets, samples = list(recipe.evaluation.sets) or [HELD_OUT], recipe.evaluation.samples
    measures = ["reward", *(f"pass@{k}" for k in list_ks(samples))] if samples else []
    if isinstance(recipe.checkpoints.best, str) and (name not in sets or measure not in measures):
        raise RecipeError(
            f"checkpoints.best: {recipe.checkpoints.best!r} is not a SET/MEASURE of this run; sets: {', '.join(sets)}; measures: "
            f"{', '.join(measures) or 'none, since evaluation.samples is 0'}."
        )


def check_conditions(recipe: Recipe) -> None:
    """Refuse conditions that no step can meet, before the run starts."""
    check_best(recipe)
    for conditions in parse_conditions(recipe.train.stop_when):
        for condition in conditions:
            metric = resolve_set(recipe, condition).metric
            if reason := explain_never_met(recipe, metric) or explain_no_share(metric, condition):
                raise RecipeError(f"train.stop_when: {condition.metric}: {reason}")


def explain_no_share(metric: str, condition: Condition) -> str:
    """Why a share is compared with an impossible value, usually a percentage; "" if the value is possible."""
    row = find_metric(metric)
    if row is None or row.unit != "share" or (condition.limit <= 1 and (condition.sign, condition.limit) != (">", 1)):
        return ""
    met = "always" if condition.sign.startswith("<") else "never"
    percent = f"; write {condition.limit:g} % as {condition.limit / 100:g}" if 1 < condition.limit <= 100 else ""
    return f"it is a share from 0 to 1, so {condition.sign} {condition.limit:g} is {met} met{percent}."


def explain_never_met(recipe: Recipe, metric: str) -> str:
    """Why no step has this metric, or why it is not reproducible after a resume; "" if there is no objection."""
    area, _, rest = metric.partition("/")
    known = list(list_metric_names(recipe))
    if find_metric(metric) is None or area not in AREAS:
        if metric in ("step", "steps"):
            return "the number of steps is not a metric; set train.num_steps."
        measured = [name for name in known if not name.startswith(("time/", "perf/", "ranks/"))]
        ending = sorted((name for name in measured if name.endswith(f"/{metric}")), key=len)
        meant = f"; did you mean {ending[0]!r}?" if ending else suggest_nearest(metric, measured) or "."
        return f"no metric has this name{meant} docs/metrics.md lists all metrics."
    if area in ("time", "perf", "ranks") or rest.endswith("seconds"):
        return "times vary between machines, so a resumed run would stop at another step. Use a training metric."
    if area == "eval":
        measured = [name for name in known if name.startswith("eval/")]
        unknown = (
            f"the evaluation does not measure it{suggest_nearest(metric, known) or '.'} It measures {', '.join(measured)}."
        )
        return explain_never_evaluated(recipe, *rest.split("/", 1)) or ("" if metric in known else unknown)
    if area == "reward" and "/" in rest and rest.split("/")[0] not in (parts := list_part_names(recipe)):
        return f"the recipe has no reward part {rest.split('/')[0]!r}{suggest_nearest(rest.split('/')[0], parts) or '.'} Parts: {', '.join(parts)}."
    return ""


def explain_never_evaluated(recipe: Recipe, name: str, what: str) -> str:
    settings = recipe.evaluation
    if not settings.samples:
        return "evaluation.samples is 0, so nothing is evaluated. Set it to 8, for example, or use a training metric."
    if not settings.every_steps:
        return "it is measured only before and after training. Set evaluation.every_steps to measure it during training."
    if name not in (known := list_training_sets(recipe)):
        return f"training evaluates only {' and '.join(map(repr, known))}; write eval/{known[0]}/{what}, or set checkpoints.best to the set."
    return "greedy accuracy is measured only before and after training; use eval/pass@1." if what == "greedy" else ""


def list_part_names(recipe: Recipe) -> list[str]:
    learned = ["reward_model"] if recipe.reward_model.iterations else []
    overlong = [OVERLONG_PART] if recipe.algorithm.overlong_share else []
    return [*map(name_reward, recipe.rewards), *overlong, *learned]


def list_metric_names(recipe: Recipe) -> Iterator[str]:
    """The metric names of this run, except those known only during the run."""
    samples = recipe.evaluation.samples
    sizes = {"pass": list_ks(samples), "maj": sorted({samples, min(8, samples)}), "mean": (samples,)}
    for metric in METRICS:
        names = list(dict.fromkeys(metric.name.replace("<set>", name) for name in list_training_sets(recipe)))
        if "<part>" in metric.name:
            names = [metric.name.replace("<part>", part) for part in list_part_names(recipe)]
        if found := re.search(r"(\w+)@<k>", metric.name):
            names = [name.replace("<k>", str(size)) for name in names for size in sizes[found[1]]]
        yield from (name for name in names if "<" not in name)
