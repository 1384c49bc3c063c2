"""From finished run folders to numbers: per run, per contender over seeds, and paired against the first contender."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cohort.base.files import read_object
from cohort.base.text import write_estimate
from cohort.evaluation.estimators import PairedDifference, paired_test
from cohort.evaluation.evaluate import Evaluation
from cohort.evaluation.scaling import ScalingFit, fit_scaling, why_no_fit
from cohort.observe.report.data import RunData, as_dict, as_number
from cohort.observe.report.plots import list_held_out
from cohort.recipe.schema import Recipe
from cohort.recipe.words import find_differing, list_used
from cohort.tools.compare.contenders import BUDGET, Contender, Field, flatten
from cohort.tools.compare.plan import VERSION, Plan, PlannedRun

LAST_STEPS = 10
RESAMPLES = 10_000
FIT = "reward_model"
"""Area of the metrics that tell what labelling and fitting a reward model took, once per iteration."""
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """One run. None: not measured, because it does not exist for this run or the run did not get so far."""

    name: str
    seed: int
    status: str
    reason: str
    """Why there is no result, or no KL; "" when all is there."""
    sets: Mapping[str, Mapping[str, Entry]]
    """Set -> before / after -> pass@1, maj@k, pass@k as {value, low, high}, and length_mean and truncated."""
    sampled_tokens: int
    """For training, and for the labels of a reward model where there is one."""
    trained_tokens: int
    training_seconds: float
    """All steps, and the fits of a reward model where there is one."""
    whole_seconds: float | None
    peak_memory_gib: float | None
    last_reward: float | None
    """Mean training reward of the last 10 steps."""
    kl: Mapping[str, Any] | None
    """KL(policy || start): per_completion and per_token in nats."""
    success_curve: Sequence[tuple[float, float]]
    evaluation_curve: Sequence[tuple[float, float]]
    compute_curve: Sequence[tuple[float, float]]
    """Held-out pass@1 of the first set against the tokens sampled until then."""
    after: Evaluation | None

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    def find_number(self, side: str, what: str, name: str = "") -> float | None:
        """The value of one number of a set (the first one unless named)."""
        numbers = self.sets.get(name or next(iter(self.sets), ""), {}).get(side, {})
        entry = numbers.get(what)
        return as_number(as_dict(entry).get("value")) if isinstance(entry, Mapping) else as_number(entry)

    def find_kl(self, per: str) -> float | None:
        return as_number(as_dict((self.kl or {}).get(per)).get("value"))

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "after"}


@dataclass(frozen=True)
class Standing:
    """One contender over its seeds."""

    contender: Contender
    runs: tuple[Measured, ...]
    against_first: Mapping[str, PairedDifference]
    """Set -> after pass@1 minus the first contender's, paired over problems; empty for the first itself."""
    unlike: frozenset[str] = frozenset()
    """Sets whose problems are not the same in all runs: nothing of them is averaged."""

    @property
    def label(self) -> str:
        return self.contender.label

    @property
    def finished(self) -> list[Measured]:
        return [run for run in self.runs if run.finished]

    def summarise_seeds(self, side: str, what: str, name: str = "") -> dict[str, float] | None:
        if (name or next((name for run in self.runs for name in run.sets), "")) in self.unlike:
            return None
        values = [value for run in self.finished if (value := run.find_number(side, what, name)) is not None]
        return {"mean": fmean(values), "min": min(values), "max": max(values), "seeds": len(values)} if values else None

    def average(self, read: Callable[[Measured], float | None]) -> float | None:
        """The mean over those finished runs that have the number."""
        known = [value for run in self.finished if (value := read(run)) is not None]
        return fmean(known) if known else None

    @property
    def kl(self) -> float | None:
        return self.average(lambda run: run.find_kl("per_completion"))

    @functools.cached_property
    def outlook(self) -> ScalingFit | str:
        """Compute against result over all seeds, or why no curve is fitted."""
        if self.unlike:
            return "the runs were evaluated on different problems, so no curve is fitted through all of them"
        points = [point for run in self.finished for point in run.compute_curve]
        starts = [result for compute, result in points if compute == 0]
        if reason := why_no_fit([compute for compute, _ in points]) or ("" if starts else "the start was not evaluated"):
            return reason
        return fit_scaling(points, fmean(starts))

    def to_json(self, votes: int, names: Sequence[str]) -> dict[str, Any]:
        numbers = list_headline_measures(votes)
        return {
            "label": self.label,
            "word": self.contender.word,
            "note": self.contender.note,
            "algorithm": self.contender.recipe.algorithm.model_dump(),
            "runs": [run.to_json() for run in self.runs],
            "over_seeds": {
                name: {side: {what: self.summarise_seeds(side, what, name) for what in numbers} for side in ("before", "after")}
                for name in names
            },
            "kl_per_completion": self.kl,
            "outlook": self.outlook if isinstance(self.outlook, str) else self.outlook.to_json(),
            "against_first": {name: paired.to_json() for name, paired in self.against_first.items()},
        }


@dataclass(frozen=True)
class Contest:
    """Everything that is printed, plotted and written."""

    field: Field
    seeds: tuple[int, ...]
    jobs: int
    standings: tuple[Standing, ...]
    unlike: Mapping[str, str]
    """Set -> in words, how the runs were evaluated on different problems of it."""

    @property
    def votes(self) -> int:
        """k of maj@k and pass@k: 8, or all samples where there are fewer."""
        return min(8, self.field.base.evaluation.samples)

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(name for standing in self.standings for run in standing.runs for name in run.sets))

    @property
    def failures(self) -> dict[str, list[str]]:
        """Reason -> the runs it holds for: a mistake in a recipe fails every seed in the same words."""
        found: dict[str, list[str]] = {}
        for standing in self.standings:
            for run in standing.runs:
                if run.reason:
                    found.setdefault(run.reason, []).append(run.name)
        return found

    @property
    def budget(self) -> dict[str, Any]:
        flat = flatten(self.field.base.model_dump())
        return {word: flat[word] for word in BUDGET if word in flat}

    def list_choices(self) -> dict[str, dict[str, Any]]:
        """Contender -> the choices in which contenders differ: those of [algorithm] by their own name, others with theirs."""
        rows = [list_settings(standing.contender.recipe) for standing in self.standings]
        keys = find_differing(rows) if rows else []
        return {
            standing.label: {key: row[key] for key in keys if key in row}
            for standing, row in zip(self.standings, rows, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "base": self.field.base_name,
            "seeds": list(self.seeds),
            "jobs": self.jobs,
            "budget": self.budget,
            "choices": self.list_choices(),
            "different_problems": dict(self.unlike),
            "contenders": [standing.to_json(self.votes, self.sets) for standing in self.standings],
        }


def list_headline_measures(votes: int) -> tuple[str, str, str]:
    return ("pass@1", f"maj@{votes}", f"pass@{votes}")


def list_settings(recipe: Recipe) -> dict[str, Any]:
    """What acts, by the names a person compares: the algorithm's choices undotted, other sections dotted."""
    rest = recipe.model_dump(exclude={"name", "runs_folder", "seed", "algorithm", "monitors", "checkpoints"})
    return flatten(list_used(recipe.algorithm.model_dump(), recipe.algorithm.own)) | flatten(rest)


# -- reading -----------------------------------------------------------------------------------------------------------


def measure_plan(plan: Plan, failed: Mapping[str, str], jobs: int = 1) -> Contest:
    runs = {run.name: measure_run(plan, run, failed) for run in plan.runs}
    first = [runs[run.name] for run in plan.list_runs(plan.field.contenders[0].label)]
    unlike = find_different_problems(list(runs.values()))
    standings = []
    for place, contender in enumerate(plan.field.contenders):
        mine = tuple(runs[run.name] for run in plan.list_runs(contender.label))
        standings.append(Standing(contender, mine, compare_standings(first, mine) if place else {}, frozenset(unlike)))
    return Contest(plan.field, plan.seeds, jobs, tuple(standings), unlike)


def measure_run(plan: Plan, planned: PlannedRun, failed: Mapping[str, str]) -> Measured:
    run = RunData(plan.folder(planned.name))
    status = run.status if run.summary else "not run"
    reason = failed.get(planned.name, "")
    if not reason and status != "finished":
        reason = str(run.summary.get("error") or status)
    kl = (read_object(plan.divergence_file(planned.name)) or None) if status == "finished" else None
    if not reason and kl is None:
        reason = f"KL to the start was not measured: {failed.get(f'{planned.name} divergence', 'interrupted')}"
    memory = as_number(run.summary.get("peak_memory_gib"))
    rewards = run.find_last_values("reward/mean", LAST_STEPS)
    sets = list_numbers(run, min(8, plan.field.base.evaluation.samples))
    looks = next((series.points for series in list_held_out(run) if series.label == next(iter(sets), "")), [])
    labelled_tokens, fit_seconds = sum_iterations(run, f"{FIT}/tokens"), sum_iterations(run, f"{FIT}/seconds")
    return Measured(
        name=planned.name,
        seed=planned.seed,
        status=status,
        reason=reason,
        sets=sets,
        sampled_tokens=int(sum(value for _, value in run.find_series("rollout/tokens")) + labelled_tokens),
        trained_tokens=int(sum(value for _, value in run.find_series("loss/trained_tokens"))),
        training_seconds=sum(value for _, value in run.find_series("time/step")) + fit_seconds,
        whole_seconds=as_number(run.summary.get("seconds")),
        peak_memory_gib=memory or max((value for _, value in run.find_series("perf/peak_memory_gib")), default=None),
        last_reward=fmean(rewards) if rewards else None,
        kl=kl,
        success_curve=run.find_series("reward/success"),
        evaluation_curve=looks,
        compute_curve=join_compute(run, looks),
        after=run.find_evaluation("after") if status == "finished" else None,
    )


def join_compute(run: RunData, looks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(tokens sampled in training until then, pass@1) of every held-out look."""
    sampled = run.find_series("rollout/tokens")
    return [(sum(tokens for at, tokens in sampled if at <= step), value) for step, value in looks]


def sum_iterations(run: RunData, name: str) -> float:
    """Sum over iterations of a metric that stands with the same value in the row of every step of its iteration."""
    values = {row.get(f"{FIT}/iteration"): value for row in run.rows if (value := as_number(row.get(name))) is not None}
    return sum(values.values())


def list_numbers(run: RunData, votes: int) -> dict[str, dict[str, dict[str, Any]]]:
    wanted = (*list_headline_measures(votes), "length_mean", "truncated", "problems")
    sets: dict[str, dict[str, dict[str, Any]]] = {}
    for side in ("before", "after"):
        for name, numbers in run.find_numbers(side).items():
            sets.setdefault(name, {})[side] = {what: numbers[what] for what in wanted if what in numbers}
    return sets


def find_different_problems(runs: Sequence[Measured]) -> dict[str, str]:
    """Set -> what differs, for every set of which not all finished runs hold the same problems; known by their content."""
    found: dict[str, dict[frozenset[str], list[Measured]]] = {}
    for run in runs:
        for name, verdicts in run.after.per_problem.items() if run.after else ():
            found.setdefault(name, {}).setdefault(frozenset(verdicts.problems), []).append(run)
    words = {}
    for name, groups in found.items():
        if len(groups) > 1:
            told = "; ".join(describe_members(name, len(problems), members) for problems, members in groups.items())
            common = len(frozenset.intersection(*groups))
            words[name] = (
                f"{name}: not all runs were evaluated on the same problems ({common} are in all), so no mean is taken. {told}"
            )
    return words


def describe_members(name: str, problems: int, members: Sequence[Measured]) -> str:
    """The runs that were evaluated on the same problems, with what each of them reached."""
    ends = ((run.name, write_estimate(run.find_number("after", "pass@1", name), None, None)[0]) for run in members)
    return f"{problems} problems: " + ", ".join(f"{run} {value}" for run, value in ends)


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare_standings(first: Sequence[Measured], other: Sequence[Measured]) -> dict[str, PairedDifference]:
    """Set -> after pass@1 of `other` minus that of `first`, on the problems that both met under the same seed.

    A problem that several seeds share is one problem: its success is averaged over them first. The interval is about other
    problems, not about other seeds; what a seed changes is shown by min and max.
    """
    pairs = [(a.after, b.after) for a in first for b in other if a.seed == b.seed and a.after and b.after]
    found = {}
    for name in dict.fromkeys(name for a, _ in pairs for name in a.per_problem):
        sides: dict[str, list[tuple[float, float]]] = {}
        for a, b in pairs:
            if name in a.per_problem and name in b.per_problem:
                left, right = a.per_problem[name].success_rates(), b.per_problem[name].success_rates()
                for place in left:
                    if place in right:
                        sides.setdefault(place, []).append((left[place], right[place]))
        if sides:
            lefts = [fmean(a for a, _ in values) for values in sides.values()]
            rights = [fmean(b for _, b in values) for values in sides.values()]
            found[name] = paired_test(lefts, rights, 0, RESAMPLES)
    return found
