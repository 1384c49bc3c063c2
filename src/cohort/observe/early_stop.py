"""When a run ends before its last step: on a condition of the recipe, or on an alarm. No torch.

Asked once per step, with the row that the step has just written. The answer follows from the rows and the recipe alone, so a run that
was killed and resumed stops at the same step. Times are no conditions: they would not.
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
"""The set of a recipe that names none."""


def find_reason_to_stop(recipe: Recipe, folder: RunFolder, row: Mapping[str, Any]) -> str:
    """Why the run ends with the step of this row; "" while it goes on."""
    step, last = row["step"], recipe.train.num_steps
    if step >= last:
        return ""
    for conditions in parse_conditions(recipe.train.stop_when):
        resolved = [resolve_set(recipe, condition) for condition in conditions]
        if all(condition.holds(row) for condition in resolved):
            seen = " and ".join(f"{condition.metric} is {row[condition.metric]:.4g}" for condition in resolved)
            return f'stopped early, at step {step} of {last}: {seen} (train.stop_when = "{recipe.train.stop_when}")'
    if recipe.train.on_alarm == "stop" and is_checked(step) and step >= PATIENCE:  # before, a few unlucky batches would end it
        own, _ = read_known_functions(folder.root, recipe.model_dump())
        for finding in diagnose(folder.metrics(), recipe, folder.evaluations(), own):
            if finding.level == "alarm":
                return f'stopped early, at step {step} of {last}: {finding.what} (train.on_alarm = "stop")'
    return ""


def name_absent_metrics(recipe: Recipe, row: Mapping[str, Any]) -> Iterator[str]:
    """Metrics of the conditions that the first row does not have which could: a condition on them may never be met."""
    first = {"eval": recipe.evaluation.every_steps}
    named = {resolve_set(recipe, condition).metric for one in parse_conditions(recipe.train.stop_when) for condition in one}
    for metric in sorted(named):
        if row["step"] == first.get(metric.partition("/")[0], 1) and metric not in row:
            yield f"train.stop_when: step {row['step']} has no {metric}; as long as none has, that condition is not met"


def resolve_set(recipe: Recipe, condition: Condition) -> Condition:
    """eval/pass@1 is that of the first set, the one that is looked at on the way."""
    area, _, what = condition.metric.partition("/")
    if area != "eval" or "/" in what:
        return condition
    return replace(condition, metric=f"eval/{find_first_set(recipe)}/{what}")


def find_first_set(recipe: Recipe) -> str:
    return next(iter(recipe.evaluation.sets), HELD_OUT)


def read_best(recipe: Recipe) -> tuple[str, str]:
    """(evaluation set, measure) by which checkpoints.best chooses."""
    given = recipe.checkpoints.best if isinstance(recipe.checkpoints.best, str) else ""
    name, _, measure = given.rpartition("/")
    return name or find_first_set(recipe), measure or "pass@1"


def list_sets_on_the_way(recipe: Recipe) -> list[str]:
    """The sets that are evaluated while training: the first, and the one that checkpoints.best names."""
    return list(dict.fromkeys([find_first_set(recipe), read_best(recipe)[0]]))


def check_best(recipe: Recipe) -> None:
    """Refuse a checkpoints.best that nothing measures."""
    name, measure = read_best(recipe)
    sets, samples = list(recipe.evaluation.sets) or [HELD_OUT], recipe.evaluation.samples
    measures = ["reward", *(f"pass@{k}" for k in list_ks(samples))] if samples else []
    if isinstance(recipe.checkpoints.best, str) and (name not in sets or measure not in measures):
        raise RecipeError(
            f"checkpoints.best: {recipe.checkpoints.best!r} is no SET/MEASURE that this run evaluates; sets: {', '.join(sets)}; measures: "
            f"{', '.join(measures) or 'none, for evaluation.samples is 0'}."
        )


def check_conditions(recipe: Recipe) -> None:
    """Refuse a condition that no step could ever meet, before anything is spent."""
    check_best(recipe)
    for conditions in parse_conditions(recipe.train.stop_when):
        for condition in conditions:
            metric = resolve_set(recipe, condition).metric
            if reason := explain_never_met(recipe, metric) or explain_no_share(metric, condition):
                raise RecipeError(f"train.stop_when: {condition.metric}: {reason}")


def explain_no_share(metric: str, condition: Condition) -> str:
    """Why a share is held against what no share can be, usually per cent; "" for others and for possible ones."""
    row = find_metric(metric)
    if row is None or row.unit != "share" or (condition.limit <= 1 and (condition.sign, condition.limit) != (">", 1)):
        return ""
    met = "always" if condition.sign.startswith("<") else "never"
    percent = f"; {condition.limit:g} % is written as {condition.limit / 100:g}" if 1 < condition.limit <= 100 else ""
    return f"it is a share, from 0 to 1, so {condition.sign} {condition.limit:g} is {met} met{percent}."


def explain_never_met(recipe: Recipe, metric: str) -> str:
    """Why no step has this metric, or none that a resumed run would have too; "" where nothing is known against it."""
    area, _, rest = metric.partition("/")
    known = list(list_metric_names(recipe))
    if find_metric(metric) is None or area not in AREAS:
        if metric in ("step", "steps"):
            return "the number of steps is no metric; the last step is train.num_steps."
        measured = [name for name in known if not name.startswith(("time/", "perf/", "ranks/"))]
        ending = sorted((name for name in measured if name.endswith(f"/{metric}")), key=len)
        meant = f"; did you mean {ending[0]!r}?" if ending else suggest_nearest(metric, measured) or "."
        return f"no metric has this name{meant} All of them: docs/metrics.md"
    if area in ("time", "perf", "ranks") or rest.endswith("seconds"):
        return "times differ from machine to machine, so a resumed run would stop elsewhere. Take a metric of the training."
    if area == "eval":
        return explain_never_evaluated(recipe, *rest.split("/", 1)) or (
            "" if metric in known else describe_unknown(metric, known)
        )
    if area == "reward" and "/" in rest and rest.split("/")[0] not in (parts := list_part_names(recipe)):
        return f"the recipe has no part {rest.split('/')[0]!r}{suggest_nearest(rest.split('/')[0], parts) or '.'} Parts: {', '.join(parts)}."
    return ""


def explain_never_evaluated(recipe: Recipe, name: str, what: str) -> str:
    settings = recipe.evaluation
    if not settings.samples:
        return "evaluation.samples is 0, so nothing is evaluated. Set it to 8, say, or take a metric of the training."
    if not settings.every_steps:
        return "it is measured before and after the run alone. Set evaluation.every_steps to look at it on the way."
    if name not in (known := list_sets_on_the_way(recipe)):
        return f"steps evaluate only {' and '.join(map(repr, known))}; write eval/{known[0]}/{what}, or name the set in checkpoints.best."
    return "greedy accuracy is measured before and after the run alone; take eval/pass@1." if what == "greedy" else ""


def describe_unknown(metric: str, known: list[str]) -> str:
    measured = ", ".join(name for name in known if name.startswith("eval/"))
    return f"evaluation does not measure it{suggest_nearest(metric, known) or '.'} It measures {measured}."


def list_part_names(recipe: Recipe) -> list[str]:
    learned = ["reward_model"] if recipe.reward_model.iterations else []
    overlong = [OVERLONG_PART] if recipe.algorithm.overlong_share else []
    return [*map(name_reward, recipe.rewards), *overlong, *learned]


def list_metric_names(recipe: Recipe) -> Iterator[str]:
    """The names that metrics have in this run, those aside that only the run itself knows."""
    samples = recipe.evaluation.samples
    sizes = {"pass": list_ks(samples), "maj": sorted({samples, min(8, samples)}), "mean": (samples,)}
    for metric in METRICS:
        names = list(dict.fromkeys(metric.name.replace("<set>", name) for name in list_sets_on_the_way(recipe)))
        if "<part>" in metric.name:
            names = [metric.name.replace("<part>", part) for part in list_part_names(recipe)]
        if found := re.search(r"(\w+)@<k>", metric.name):
            names = [name.replace("<k>", str(size)) for name in names for size in sizes[found[1]]]
        yield from (name for name in names if "<" not in name)
