"""From run folders to numbers: per run, per contender over seeds, and paired against the first contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cohort.base.text import write_estimate
from cohort.evaluation.estimators import PairedDifference, paired_test
from cohort.evaluation.evaluate import Evaluation
from cohort.observe.report.data import RunData, as_number
from cohort.observe.report.plots import list_held_out
from cohort.recipe.describe import find_differing, list_used
from cohort.recipe.schema import Recipe
from cohort.tools.compare.contenders import Contender, Lineup, flatten
from cohort.tools.compare.plan import VERSION, Plan, PlannedRun

LAST_STEPS = 10
RESAMPLES = 10_000
FIT = "reward_model"
"""Area of the metrics on labelling for and fitting a reward model, once per iteration."""


@dataclass(frozen=True)
class RunResult:
    """One run. None means not measured: it does not exist for this run, or the run ended before."""

    name: str
    seed: int
    status: str
    reason: str
    """Why there is no result; "" if there is one."""
    sets: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Set -> before / after -> pass@1, maj@k, pass@k as {value, low, high}, and length_mean and truncated."""
    sampled_tokens: int
    """For training, and for the labels of a reward model."""
    trained_tokens: int
    training_seconds: float
    """All steps, and the fits of a reward model."""
    whole_seconds: float | None
    peak_memory_gib: float | None
    last_reward: float | None
    """Mean training reward of the last 10 steps."""
    success_curve: Sequence[tuple[float, float]]
    evaluation_curve: Sequence[tuple[float, float]]
    after: Evaluation | None

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    def find_number(self, side: str, what: str, name: str = "") -> float | None:
        """The value of one number of a set (default: the first set)."""
        entry = self.sets.get(name or next(iter(self.sets), ""), {}).get(side, {}).get(what)
        return as_number(entry.get("value") if isinstance(entry, Mapping) else entry)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "after"}


@dataclass(frozen=True)
class ContenderResult:
    """One contender over its seeds."""

    contender: Contender
    runs: tuple[RunResult, ...]
    against_first: Mapping[str, PairedDifference]
    """Set -> pass@1 after training minus the first contender's, paired over problems; empty for the first itself."""
    different: frozenset[str] = frozenset()
    """Sets whose problems differ between runs, so that their numbers are not averaged."""

    @property
    def label(self) -> str:
        return self.contender.label

    @property
    def finished(self) -> list[RunResult]:
        return [run for run in self.runs if run.finished]

    def summarise_seeds(self, side: str, what: str, name: str = "") -> dict[str, float] | None:
        if (name or next((name for run in self.runs for name in run.sets), "")) in self.different:
            return None
        values = [value for run in self.finished if (value := run.find_number(side, what, name)) is not None]
        return {"mean": fmean(values), "min": min(values), "max": max(values), "seeds": len(values)} if values else None

    def average(self, read: Callable[[RunResult], float | None]) -> float | None:
        """The mean over the finished runs that have the number."""
        known = [value for run in self.finished if (value := read(run)) is not None]
        return fmean(known) if known else None

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
            "against_first": {name: paired.to_json() for name, paired in self.against_first.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """Everything that is printed, plotted and written."""

    lineup: Lineup
    seeds: tuple[int, ...]
    jobs: int
    contenders: tuple[ContenderResult, ...]
    different: Mapping[str, str]
    """Set -> a sentence on how its problems differ between runs."""

    @property
    def votes(self) -> int:
        """k of maj@k and pass@k: 8, or all samples if there are fewer."""
        return min(8, self.lineup.base.evaluation.samples)

    @property
    def sets(self) -> list[str]:
        return list(dict.fromkeys(name for contender in self.contenders for run in contender.runs for name in run.sets))

    @property
    def notes(self) -> list[str]:
        """Sentences about sets, contenders and failed runs. A mistake in a recipe fails every seed for the same reason."""
        failures: dict[str, list[str]] = {}
        for run in (run for contender in self.contenders for run in contender.runs if run.reason):
            failures.setdefault(run.reason, []).append(run.name)
        noted = [f"{one.label} {one.contender.note}" for one in self.contenders if one.contender.note]
        return [*self.different.values(), *noted, *(f"{', '.join(names)}: {reason}" for reason, names in failures.items())]

    def list_choices(self) -> dict[str, dict[str, Any]]:
        """Contender -> the settings in which contenders differ: those of [algorithm] undotted, others by their path."""
        rows = [list_settings(one.contender.recipe) for one in self.contenders]
        keys = find_differing(rows)
        return {
            one.label: {key: row[key] for key in keys if key in row} for one, row in zip(self.contenders, rows, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "base": self.lineup.base_name,
            "seeds": list(self.seeds),
            "jobs": self.jobs,
            "choices": self.list_choices(),
            "different_problems": dict(self.different),
            "contenders": [one.to_json(self.votes, self.sets) for one in self.contenders],
        }


def list_headline_measures(votes: int) -> tuple[str, str, str]:
    return ("pass@1", f"maj@{votes}", f"pass@{votes}")


def list_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that act: the algorithm's choices undotted, other sections dotted."""
    rest = recipe.model_dump(exclude={"name", "runs_folder", "seed", "algorithm", "monitors", "checkpoints"})
    return flatten(list_used(recipe.algorithm.model_dump(), recipe.algorithm.own)) | flatten(rest)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_results(plan: Plan, failed: Mapping[str, str], jobs: int = 1) -> Comparison:
    by_label: dict[str, list[RunResult]] = {}
    for run in plan.runs:
        by_label.setdefault(run.label, []).append(read_run(plan, run, failed))
    different = find_different_problems([run for runs in by_label.values() for run in runs])
    first = by_label[plan.lineup.contenders[0].label]
    contenders = []
    for place, contender in enumerate(plan.lineup.contenders):
        runs = tuple(by_label[contender.label])
        contenders.append(ContenderResult(contender, runs, compare_runs(first, runs) if place else {}, frozenset(different)))
    return Comparison(plan.lineup, plan.seeds, jobs, tuple(contenders), different)


def read_run(plan: Plan, planned: PlannedRun, failed: Mapping[str, str]) -> RunResult:
    run = RunData(plan.folder(planned.name))
    status = run.status if run.summary else "not run"
    reason = failed.get(planned.name, "")
    if not reason and status != "finished":
        reason = str(run.summary.get("error") or status)

    def sum_steps(name: str) -> float:
        return sum(value for _, value in run.find_series(name))

    def sum_iterations(name: str) -> float:
        """Sum of a metric that has the same value in all steps of an iteration."""
        values = {row.get(f"{FIT}/iteration"): value for row in run.rows if (value := as_number(row.get(name))) is not None}
        return sum(values.values())

    memory = [value for _, value in run.find_series("perf/peak_memory_gib")]
    rewards = run.find_last_values("reward/mean", LAST_STEPS)
    sets = read_numbers(run, min(8, plan.lineup.base.evaluation.samples))
    first_set = next(iter(sets), "")
    return RunResult(
        name=planned.name,
        seed=planned.seed,
        status=status,
        reason=reason,
        sets=sets,
        sampled_tokens=int(sum_steps("rollout/tokens") + sum_iterations(f"{FIT}/tokens")),
        trained_tokens=int(sum_steps("loss/trained_tokens")),
        training_seconds=sum_steps("time/step") + sum_iterations(f"{FIT}/seconds"),
        whole_seconds=as_number(run.summary.get("seconds")),
        peak_memory_gib=as_number(run.summary.get("peak_memory_gib")) or max(memory, default=None),
        last_reward=fmean(rewards) if rewards else None,
        success_curve=run.find_series("reward/success"),
        evaluation_curve=next((series.points for series in list_held_out(run) if series.label == first_set), []),
        after=run.find_evaluation("after") if status == "finished" else None,
    )


def read_numbers(run: RunData, votes: int) -> dict[str, dict[str, dict[str, Any]]]:
    wanted = (*list_headline_measures(votes), "length_mean", "truncated", "problems")
    sets: dict[str, dict[str, dict[str, Any]]] = {}
    for side in ("before", "after"):
        for name, numbers in run.find_numbers(side).items():
            sets.setdefault(name, {})[side] = {what: numbers[what] for what in wanted if what in numbers}
    return sets


def find_different_problems(runs: Sequence[RunResult]) -> dict[str, str]:
    """Set -> a sentence on what differs, for sets whose problems (by content) are not the same in all finished runs."""
    found: dict[str, dict[frozenset[str], list[RunResult]]] = {}
    for run in runs:
        for name, verdicts in run.after.per_problem.items() if run.after else ():
            found.setdefault(name, {}).setdefault(frozenset(verdicts.problems), []).append(run)
    sentences = {}
    for name, groups in found.items():
        if len(groups) > 1:
            parts = []
            for problems, members in groups.items():
                ends = (
                    f"{run.name} {write_estimate(run.find_number('after', 'pass@1', name), None, None)[0]}" for run in members
                )
                parts.append(f"{len(problems)} problems: {', '.join(ends)}")
            common = len(frozenset.intersection(*groups))
            sentences[name] = (
                f"{name}: not all runs were evaluated on the same problems ({common} are in all), so no mean is taken. {'; '.join(parts)}"
            )
    return sentences


def compare_runs(first: Sequence[RunResult], other: Sequence[RunResult]) -> dict[str, PairedDifference]:
    """Set -> pass@1 after training of `other` minus that of `first`, on the problems that both met under the same seed.

    A problem that several seeds share is one problem: its success is averaged over them first. The interval is about other
    problems, not about other seeds, whose effect the minimum and maximum show.
    """
    pairs = [(a.after, b.after) for a in first for b in other if a.seed == b.seed and a.after and b.after]
    found = {}
    for name in dict.fromkeys(name for a, _ in pairs for name in a.per_problem):
        sides: dict[str, list[tuple[float, float]]] = {}
        for a, b in pairs:
            if name in a.per_problem and name in b.per_problem:
                left, right = a.per_problem[name].success_rates(), b.per_problem[name].success_rates()
                for problem in (problem for problem in left if problem in right):
                    sides.setdefault(problem, []).append((left[problem], right[problem]))
        if sides:
            lefts, rights = ([fmean(pair[side] for pair in values) for values in sides.values()] for side in (0, 1))
            found[name] = paired_test(lefts, rights, 0, RESAMPLES)
    return found
