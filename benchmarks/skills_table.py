"""The tables of the demonstration, from the JSON files of its stages: `python benchmarks/skills_table.py OUT > TABLES.md`.

Everything is worked out from verdicts of single problems, so that before and after are paired: a problem is compared with itself, and intervals
are over problems. Over several seeds a problem's success is averaged first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cohort.base.text import write_percent
from cohort.data.skills import LEVELS
from cohort.evaluation.estimators import PairedDifference, paired_test
from cohort.evaluation.evaluate import ProblemVerdicts, list_ks
from cohort.evaluation.scaling import fit_scaling, forecast_error

SHARE, VOTES = 0.4, 16
SEEDS = ("grpo-0", "grpo-1", "grpo-2")
MAXRL_SEEDS = ("maxrl", "maxrl-1", "maxrl-2")
TAUGHT, UNSEEN = ("fraction_simplification", "binary_alternation"), ("lcm", "decimal_chain_sum")
"""Tasks with demonstrations that GRPO never sees, and tasks without any."""
Stage = Mapping[str, Any]
Rates = dict[str, float]
"""Problem -> a number of it."""


def read_stages(out: Path) -> dict[str, Stage]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((out / "results").glob("*.json"))}


def read_verdicts(stage: Stage, name: str, kind: str = "passes") -> ProblemVerdicts:
    return ProblemVerdicts.from_json(stage[kind]["per_problem"][name])


def average_rates(stages: Sequence[Stage], read: Callable[[Stage], Rates]) -> Rates:
    """A problem's number, averaged over the stages."""
    found = [read(stage) for stage in stages]
    return {problem: fmean(one[problem] for one in found) for problem in found[0]}


def pair_rates(before: Rates, after: Rates) -> PairedDifference:
    common = [problem for problem in before if problem in after]
    return paired_test([before[problem] for problem in common], [after[problem] for problem in common], 0)


def write_change(before: Rates, after: Rates) -> str:
    """30.1 → 52.4 (+22.3 [18.0, 26.9])."""
    paired = pair_rates(before, after)
    ends = f"{100 * fmean(before.values()):.1f} → {100 * fmean(after.values()):.1f}"
    interval = "" if paired.low is None or paired.high is None else f" [{100 * paired.low:.1f}, {100 * paired.high:.1f}]"
    return f"{ends} ({100 * paired.difference:+.1f}{interval})"


def write_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


# -- groups of sets ----------------------------------------------------------------------------------------------------


def sort_sets(start: Stage) -> dict[str, list[str]]:
    """What GRPO was trained on, a harder level, tasks that were only taught, tasks never seen -> the sets of task and level."""
    names = list(start["passes"]["per_problem"])
    levels = {
        task: sorted(int(name.rpartition("_")[2]) for name in names if name.rpartition("_")[0] == task) for task in LEVELS
    }
    trained = [task for task in LEVELS if task not in (*TAUGHT, *UNSEEN)]
    return {
        "problems of the trained levels": [f"{task}_{level}" for task in trained for level in levels[task][:-1]],
        "a harder level": [f"{task}_{levels[task][-1]}" for task in trained],
        "tasks without GRPO": [f"{task}_{level}" for task in TAUGHT for level in levels[task]],
        "tasks never seen": [f"{task}_{level}" for task in UNSEEN for level in levels[task]],
    }


def join_rates(stage: Stage, names: Sequence[str], k: int) -> Rates:
    """pass@k of every problem of several sets; a problem that two levels hold counts once."""
    return {problem: rate for name in names for problem, rate in read_verdicts(stage, name).success_rates(k).items()}


def join_greedy(stage: Stage, names: Sequence[str]) -> Rates:
    return {problem: rate for name in names for problem, rate in read_verdicts(stage, name, "votes").greedy_verdicts().items()}


# -- tables ------------------------------------------------------------------------------------------------------------


def show_groups(start: Stage, runs: Sequence[Stage]) -> Iterator[str]:
    """Before → after by group of sets, at 1, 16 and the largest k."""
    samples = count_samples(start)
    ks = [k for k in list_ks(samples) if k in (1, 16, samples)]
    rows = []
    for group, names in sort_sets(start).items():
        cells = []
        for k in ks:
            read = lambda stage, k=k, names=names: join_rates(stage, names, k)  # noqa: E731
            cells.append(write_change(read(start), average_rates(runs, read)))
        greedy = lambda stage, names=names: join_greedy(stage, names)  # noqa: E731
        rows.append(
            [group, str(len(join_rates(start, names, 1))), *cells, write_change(greedy(start), average_rates(runs, greedy))]
        )
    yield from write_table(["held out", "problems", *(f"pass@{k}" for k in ks), "greedy"], rows)


def show_tasks(start: Stage, runs: Sequence[Stage]) -> Iterator[str]:
    """Every task and level: pass@1 with its paired interval, the other k, maj@16, greedy."""
    samples = count_samples(start)
    ks = [k for k in list_ks(samples) if k in (1, 4, 16, 64, 256)]
    votes = start["votes"]["sets"]
    vote = next(what for what in next(iter(votes.values())) if what.startswith("maj@") and what != "maj@8")
    rows = []
    for names in sort_sets(start).values():
        for name in names:
            cells = [write_change(join_rates(start, [name], 1), average_rates(runs, lambda s, n=name: join_rates(s, [n], 1)))]
            for k in ks[1:]:
                after = average_rates(runs, lambda s, n=name, k=k: join_rates(s, [n], k))
                cells.append(f"{100 * fmean(join_rates(start, [name], k).values()):.0f} → {100 * fmean(after.values()):.0f}")
            for what in (vote, "greedy"):
                ends = [
                    start["votes"]["sets"][name][what]["value"],
                    fmean(run["votes"]["sets"][name][what]["value"] for run in runs),
                ]
                cells.append(" → ".join(f"{100 * value:.0f}" for value in ends))
            rows.append([name, str(len(join_rates(start, [name], 1))), *cells])
    yield from write_table(["task and level", "problems", *(f"pass@{k}" for k in ks), vote, "greedy"], rows)


def show_crossing(start: Stage, runs: Sequence[Stage]) -> Iterator[str]:
    """pass@k for every k before and after, and where the curves cross: more reach, or the same reach sooner."""
    ks = list_ks(count_samples(start))
    rows = []
    for group, names in sort_sets(start).items():
        before = [fmean(join_rates(start, names, k).values()) for k in ks]
        after = [fmean(average_rates(runs, lambda s, k=k, names=names: join_rates(s, names, k)).values()) for k in ks]
        below = [k for k, old, new in zip(ks, before, after, strict=True) if new < old]
        cross = (
            "not up to here"
            if not below
            else f"below the start from k = {below[0]}"
            if len(below) < len(ks)
            else "below at every k"
        )
        rows.append([group, *(f"{100 * old:.0f} → {100 * new:.0f}" for old, new in zip(before, after, strict=True)), cross])
    yield from write_table(["held out", *(f"k = {k}" for k in ks), "crossing"], rows)


def show_newly_solved(start: Stage, runs: Sequence[Stage]) -> Iterator[str]:
    """Problems without a success before that have one after, and the other way round, run by run."""
    samples = count_samples(start)
    rows = []
    for group, names in sort_sets(start).items():
        before = join_rates(start, names, 1)
        none = [problem for problem, rate in before.items() if rate == 0]
        gained, lost = [], []
        for run in runs:
            after = join_rates(run, names, 1)
            gained.append(sum(after[problem] > 0 for problem in none))
            lost.append(sum(after[problem] == 0 for problem, rate in before.items() if rate > 0))
        # A problem of a small rate is found by chance in one of two samples: by the start's own rates, without any training.
        chance = sum((1 - rate) ** samples for rate in before.values() if rate > 0)
        rows.append([group, str(len(none)), ", ".join(map(str, gained)), ", ".join(map(str, lost)), f"{chance:.1f}"])
    heads = [
        "held out",
        f"0 of {samples} before",
        "solved at least once after, by seed",
        "solved before and 0 after",
        "lost by chance alone",
    ]
    yield from write_table(heads, rows)


def show_runs(start: Stage, stages: Mapping[str, Stage]) -> Iterator[str]:
    """Every run of GRPO: where it ended, how far it went, what it took."""
    groups = sort_sets(start)
    trained, harder = groups["problems of the trained levels"], groups["a harder level"]
    rows, most = [], count_samples(start)
    for name, stage in stages.items():
        if "metrics" not in stage:
            continue
        metrics = stage["metrics"]
        entropy, kl = (
            [value for value in metrics[key] if value is not None] for key in ("loss/entropy", "loss/kl_per_completion")
        )
        ends = lambda values: f"{fmean(values[:5]):.3f} → {fmean(values[-5:]):.3f}" if values else "–"  # noqa: E731
        rows.append([
            name, f"{stage['learning_rate']:g}",
            *(write_change(join_rates(start, sets, k), join_rates(stage, sets, k)) for sets, k in ((trained, 1), (trained, most), (harder, 1))),
            f"{fmean(kl[-5:]):.2f}" if kl else "–", ends(entropy), f"{stage['curve'][-1]['seconds']:.0f}",
        ])  # fmt: skip
    heads = [
        "run",
        "learning rate",
        "pass@1, trained levels",
        f"pass@{most}, trained levels",
        "pass@1, harder level",
        "KL at the end, nats",
        "entropy, nats",
        "seconds of training",
    ]
    yield from write_table(heads, rows)


def show_maxrl(start: Stage, stages: Mapping[str, Stage]) -> Iterator[str]:
    """Means of GRPO's and of MaxRL's seeds, paired by problem: the same prompts, noise and rate, another weight of hard problems."""
    if not all(name in stages for name in (*SEEDS, *MAXRL_SEEDS)):
        return
    most, rows = count_samples(start), []
    for title, names in sort_sets(start).items():
        cells = []
        for k in (1, VOTES, most):
            of_grpo, of_maxrl = (
                average_rates([stages[seed] for seed in seeds], lambda stage, k=k, names=names: join_rates(stage, names, k))
                for seeds in (SEEDS, MAXRL_SEEDS)
            )
            cells.append(f"{100 * fmean(join_rates(start, names, k).values()):.1f}: {write_change(of_grpo, of_maxrl)}")
        rows.append([title, *cells])
    yield from write_table(["held out", *(f"pass@{k}, start: GRPO → MaxRL" for k in (1, VOTES, most))], rows)


def show_rates(stages: Mapping[str, Stage]) -> Iterator[str]:
    """Success on training prompts at the end of a short run, for each learning rate that was tried."""
    rows = [
        [name, ", ".join(f"{one['rate']:g}: {write_percent(one['success'], 1)}" for one in tried)]
        for name, tried in stages.get("rates", {}).get("rates", {}).items()
    ]
    yield from write_table(["run", "learning rate: success on training prompts"], rows)


def show_curves(runs: Mapping[str, Stage]) -> Iterator[str]:
    """ScaleRL's curve fitted on the first 40 % of the compute, and how far it is off at the end."""
    rows = []
    for name, stage in runs.items():
        points = [(look["tokens"], look["value"]) for look in stage["curve"]]
        start = points[0][1]
        try:
            early, error = forecast_error(points[1:], start, SHARE)
            whole = fit_scaling(points[1:], start)
        except ValueError as problem:
            rows.append([name, str(len(points) - 1), str(problem), "", "", ""])
            continue
        forecast = f"{100 * (error + points[-1][1]):.1f} against {100 * points[-1][1]:.1f}"
        rows.append(
            [
                name,
                str(len(points) - 1),
                early.asymptote.written(),
                f"{forecast} ({100 * error:+.1f})",
                whole.asymptote.written(),
                whole.verdict,
            ]
        )
    heads = ["run", "looks", "A from the first 40 %", "forecast of the end against the end", "A from all", "more steps?"]
    yield from write_table(heads, rows)


def show_primes(start: Stage, runs: Sequence[Stage]) -> Iterator[str]:
    """prime_factorization with primes apart: answering with the number itself is right for those alone."""
    from cohort.data.rows import load_rows
    from cohort.evaluation.evaluate import make_problem_key
    from cohort.recipe.built_in import find_recipe
    from cohort.types import Prompt

    evaluation, rows = find_recipe(start["recipe"], []).evaluation, []
    for name in sorted(name for name in start["passes"]["per_problem"] if name.startswith("prime_factorization_")):
        problems = load_rows(evaluation.sets[name], evaluation.problems_seed)
        primes = {make_problem_key(Prompt(0, one["prompt"], one, ())): "×" not in one["answer"] for one in problems}
        before = read_verdicts(start, name).success_rates()
        after = average_rates(runs, lambda run, name=name: read_verdicts(run, name).success_rates())  # type: ignore[misc]
        for prime in (True, False):
            chosen = [problem for problem in before if primes.get(problem) == prime]
            if chosen:
                ends = [write_percent(fmean(rates[problem] for problem in chosen), 1) for rates in (before, after)]
                rows.append([name, "primes" if prime else "composite", str(len(chosen)), " → ".join(ends)])
    yield from write_table(["task and level", "numbers", "problems", "pass@1"], rows)


def count_samples(stage: Stage) -> int:
    return max(len(row) for row in next(iter(stage["passes"]["per_problem"].values()))["success"])


def show_spent(stages: Mapping[str, Stage]) -> Iterator[str]:
    rows = [
        [name, stage["device"], f"{stage['spent']['wall']:.0f}", f"{stage['spent']['cpu']:.0f}", stage["commit"]]
        for name, stage in stages.items()
    ]
    yield from write_table(["stage", "device", "seconds by the clock", "CPU seconds", "commit"], rows)


def write_tables(stages: Mapping[str, Stage]) -> list[str]:
    start = stages["start"]
    seeds = {name: stages[name] for name in SEEDS if name in stages}
    others = {name: stage for name, stage in stages.items() if "metrics" in stage}
    trained = sort_sets(start)["problems of the trained levels"]
    rate = write_percent(fmean(join_rates(start, trained, 1).values()), 1)
    lines = [
        f"Start: pass@1 {rate} on the trained levels. Means over {len(seeds)} seed{'' if len(seeds) == 1 else 's'} of GRPO.",
        "",
    ]
    for title, show in (
        ("Before and after", lambda: show_groups(start, list(seeds.values()))),
        ("Task by task", lambda: show_tasks(start, list(seeds.values()))),
        ("Primes apart", lambda: show_primes(start, list(seeds.values()))),
        ("Where pass@k crosses", lambda: show_crossing(start, list(seeds.values()))),
        ("Newly solved", lambda: show_newly_solved(start, list(seeds.values()))),
        ("Run by run", lambda: show_runs(start, stages)),
        ("MaxRL beside GRPO", lambda: show_maxrl(start, stages)),
        ("Rates that were tried", lambda: show_rates(stages)),
        ("Compute and result", lambda: show_curves(others)),
        ("What it took", lambda: show_spent(stages)),
    ):
        lines += [f"### {title}", "", *show()]
    return lines


def main(arguments: Sequence[str]) -> int:
    stages = read_stages(Path(arguments[0]))
    if "start" not in stages or not any(name in stages for name in SEEDS):
        sys.exit(
            f"{arguments[0]}/results: needs start.json and one of {', '.join(SEEDS)} at least; there are {', '.join(stages) or 'none'}"
        )
    print("\n".join(write_tables(stages)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
