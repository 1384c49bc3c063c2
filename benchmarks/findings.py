"""The value of a run's findings: how many failing runs they detect, how early, and how many alarms on healthy runs are false.

    python benchmarks/findings.py --out runs/findings                       all of it, about an hour on one core
    python benchmarks/findings.py --out runs/findings --only coin --seed 100
    python benchmarks/findings.py --out runs/findings --table               the table of what is there already

The runs are in findings_table.py. Each writes a file in OUT/results, and a second call does the missing ones. Run folders are removed
after they are read, unless --keep is given.

Findings are those of the console: `diagnose` on the rows and evaluations available after each step. Independently, every fifth
checkpoint solves the same held-out problems with an honest verifier, at temperature 1 and full length. Held-out performance *fell* at the
first evaluation from which it stays below its previous best by 5 points and by three standard errors, problem by problem. If it never
falls, the lead counts to the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # workers see modules as this process does
    sys.path.insert(0, str(HERE))

from findings_table import COLD_START, HEALTHY, PATHOLOGIES, STARTS, Case, make_base  # noqa: E402

Record = dict[str, Any]
NO_WORDS: Mapping[str, Any] = {}
LEAST_FALL = 0.05
LEAST_RISE = 0.02
ERRORS = 3.0
TRUTH_SAMPLES = 4
SOLVED_OF, SOLVED_SAMPLES = 400, 8
"""Problems, and completions of each, among which those are looked for that the policy always solves."""


@dataclass(frozen=True)
class Planned:
    """One run to make."""

    key: str
    name: str
    kind: str
    case: Case
    seed: int
    start_seed: int


def plan_runs(seed: int = 0, only: Sequence[str] = ()) -> list[Planned]:
    """Every pathology has this seed; every healthy run has its own seed and one of two cold starts of its task."""
    planned = [Planned(f"{name}.{seed}", name, "pathology", case, seed, seed) for name, case in PATHOLOGIES.items()]
    for place, (name, case) in enumerate(HEALTHY.items()):
        own = seed + place
        planned.append(Planned(f"{name}.{own}", name, "healthy", case, own, seed + place % 2))
    return [one for one in planned if not only or one.name in only or one.kind in only]


# -- running -----------------------------------------------------------------------------------------------------------


def make_recipe(case: Case, changes: Mapping[str, Any], **more: Any) -> Any:
    """The base of the task with the changes of a case."""
    from cohort.recipe.file import assign, build_recipe

    tree = make_base(case.task)
    for key, value in {**changes, **more}.items():
        assign(tree, key, value)
    return build_recipe(tree)


def find_start(out: Path, task: str, seed: int, size: Mapping[str, Any]) -> Path:
    """The starting model of a task: one cold start per seed, made when first needed."""
    from cohort.session import start

    task = STARTS.get(task, task)
    folder = out / "starts" / f"{task}-{seed}"
    if not (folder / "model").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        words = {"cold_start": COLD_START, **size, "train.num_steps": 0, "seed": seed, "evaluation.samples": 0}
        start(make_recipe(Case("", task=task), words, runs_folder=str(folder.parent), name=folder.name))
    return folder / "model"


def write_solved_rows(out: Path, model: Path, seed: int) -> Path:
    """A file of the training problems that this model solves in every one of a few tries."""
    import cohort
    from cohort.data.column_addition import column_addition

    file = out / "starts" / f"solved-{seed}.jsonl"
    if not file.is_file():
        rows = column_addition("train", seed, 2, SOLVED_OF)
        base = make_base("addition")
        done = cohort.evaluate(
            str(model), rows, base["rewards"], samples=SOLVED_SAMPLES, greedy=False, resamples=100,
            **{"sampling.max_completion_tokens": base["sampling"]["max_completion_tokens"]},
        )  # fmt: skip
        verdicts = done.per_problem["prompts"].success
        solved = [row for row, tries in zip(rows, verdicts, strict=True) if all(tries)]
        file.write_text("".join(json.dumps(row) + "\n" for row in solved), encoding="utf-8")
    return file


def run_case(planned: Planned, out: Path, size: Mapping[str, Any] = NO_WORDS) -> Record:
    """Train, replay the findings, evaluate the checkpoints; returns plain data. size: settings that make it another size."""
    from cohort.errors import CohortError
    from cohort.observe.run_folder import RunFolder
    from cohort.session import start

    model = find_start(out, planned.case.task, planned.start_seed, size)
    changes = dict(planned.case.changes)
    if changes.get("prompts") == "solved":
        source = str(write_solved_rows(out, model, planned.start_seed))
        changes["prompts"] = {"source": source, "args": {}}
    folder = out / "runs" / planned.key
    shutil.rmtree(folder, ignore_errors=True)
    fixed = {"cold_start.num_steps": 0, "model.source": str(model), "seed": planned.seed}
    recipe = make_recipe(planned.case, changes, **size, **fixed, runs_folder=str(folder.parent), name=folder.name)
    began, ended = time.process_time(), "finished"
    try:
        if start(recipe).status == "interrupted":
            raise SystemExit(f"{planned.key} was interrupted; the same command resumes it")
    except CohortError as problem:  # a run that stops itself has been found out, in its own words
        ended = str(problem)
    run = RunFolder.open(folder)
    looks = judge_checkpoints(run, planned.case.task)
    return {
        "name": planned.name,
        "kind": planned.kind,
        "words": planned.case.words,
        "seed": planned.seed,
        "start_seed": planned.start_seed,
        "ended": ended,
        "steps": len(run.metrics()),
        "seconds": round(time.process_time() - began, 1),
        "held_out": {str(step): round(fmean(rates.values()), 4) for step, rates in looks.items()},
        "fell": find_fall(looks),
        "rose": has_risen(looks),
        "expected": list(planned.case.expected),
        "found": replay_findings(run),
    }


def replay_findings(run: Any) -> dict[str, Record]:
    """Finding -> its worst level, the step at which it was first said, the one at which it was first an alarm, and what it said."""
    from cohort.observe.diagnosis.checks import diagnose

    rows, evaluations, recipe = run.metrics(), run.evaluations(), run.recipe()
    found: dict[str, Record] = {}
    for count in range(1, len(rows) + 1):
        last = count == len(rows)
        known = [one for one in evaluations if last or (one["step"] <= count and one.get("label") != "after")]
        for finding in diagnose(rows[:count], recipe, known):
            step = rows[count - 1]["step"]
            one = found.setdefault(finding.name, {"step": step, "level": finding.level, "alarm": None, "what": finding.what})
            if finding.level == "alarm" and one["alarm"] is None:
                one |= {"level": "alarm", "alarm": step, "what": finding.what}
    return found


# -- judging apart -----------------------------------------------------------------------------------------------------


def judge_checkpoints(run: Any, task: str) -> dict[int, dict[str, float]]:
    """Step -> the success rate of every held-out problem, by an honest verifier, whatever the run was rewarded for."""
    from rich.console import Console

    from cohort.recipe.file import build_recipe
    from cohort.rewards.runner import RewardRunner
    from cohort.tools.evaluate import Problems, evaluate_target, load_problems
    from cohort.training import build, checkpoint
    from cohort.training.run_weights import find_weights

    recipe = run.recipe()
    tree = make_base(task)
    tree["evaluation"] |= {"sets": recipe.model_dump()["evaluation"]["sets"], "samples": TRUTH_SAMPLES}
    tree["sampling"]["max_completion_tokens"] = max(32, recipe.sampling.max_completion_tokens)
    honest = build_recipe(tree)
    problems, quiet = Problems("held out", honest, None), Console(quiet=True)
    looks: dict[int, dict[str, float]] = {}
    with RewardRunner.for_run(honest) as rewards:
        data = build.Data([], load_problems(problems).sets, None)
        names = [one.name for one in checkpoint.list_checkpoints(run.checkpoints)]
        steps = sorted({int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdecimal()})
        for step in [0, *steps]:
            target = replace(find_weights(run, str(step) if step else "start", recipe), folder=None)
            judged = evaluate_target(quiet, target, problems, data, rewards).evaluation
            looks[step] = next(iter(judged.per_problem.values())).success_rates()
    return looks


def compare_looks(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """(mean change, its standard error), problem by problem."""
    changes = [after[key] - before[key] for key in before]
    return fmean(changes), stdev(changes) / math.sqrt(len(changes))


def find_fall(looks: Mapping[int, Mapping[str, float]]) -> int | None:
    """The first step from which every evaluation is clearly below the best earlier one, or None."""
    steps = sorted(looks)
    fallen: int | None = None
    for place, step in enumerate(steps[1:], 1):
        best = max(steps[:place], key=lambda one: fmean(looks[one].values()))
        change, error = compare_looks(looks[best], looks[step])
        if change <= -LEAST_FALL and change < -ERRORS * error:
            fallen = step if fallen is None else fallen
        else:
            fallen = None
    return fallen


def has_risen(looks: Mapping[int, Mapping[str, float]]) -> bool:
    """Whether the last look is clearly above the first."""
    change, error = compare_looks(looks[min(looks)], looks[max(looks)])
    return change >= LEAST_RISE and change > ERRORS * error


# -- what it comes to --------------------------------------------------------------------------------------------------


def choose_finding(record: Record) -> tuple[str, Record] | None:
    """The first expected finding that was an alarm or a warning.

    Nor does a fall that no later look bears out: healthy runs are warned of one too.
    """
    named = [(name, record["found"][name]) for name in record["expected"] if name in record["found"]]
    named = [(name, one) for name, one in named if name != "held_out_falls" or record["fell"] is not None]
    told = [(name, one) for name, one in named if one["level"] in ("alarm", "warning")]
    return min(told, key=lambda pair: pair[1]["step"], default=None)


def measure_lead(record: Record) -> int | None:
    """Steps between the finding and the fall of held-out performance, or the end; None where nothing was found."""
    found = choose_finding(record)
    harmed = record["fell"] if record["fell"] is not None else record["steps"]
    return None if found is None else harmed - found[1]["step"]


def has_failed(record: Record) -> bool:
    """Whether the run did what it was made for: held-out performance fell, or never rose. A flaw that no policy found is not a failure."""
    return record["fell"] is not None or not record["rose"]


def list_alarms(record: Record) -> list[str]:
    return [name for name, one in record["found"].items() if one["level"] == "alarm"]


def summarize(records: Sequence[Record]) -> Record:
    """The figures of docs/results.md."""
    made = [one for one in records if one["kind"] == "pathology"]
    failed = [one for one in made if has_failed(one)]
    healthy = [one for one in records if one["kind"] == "healthy"]
    found = [one for one in failed if choose_finding(one)]
    leads = sorted(lead for one in found if (lead := measure_lead(one)) is not None)
    alarmed = [one for one in healthy if list_alarms(one)]
    return {
        "made_to_fail": len(made),
        "learned_all_the_same": [f"{one['name']}.{one['seed']}" for one in made if not has_failed(one)],
        "pathologies": len({one["name"] for one in failed}),
        "runs": len(failed),
        "found": len(found),
        "pathologies_found": len({one["name"] for one in failed} - {one["name"] for one in failed if not choose_finding(one)}),
        "found_by_alarm": sum(any(one["found"][name]["level"] == "alarm" for name in one["expected"] if name in one["found"]) for one in failed),
        "missed": [f"{one['name']}.{one['seed']}" for one in failed if not choose_finding(one)],
        "fell": sum(one["fell"] is not None for one in failed),
        "never_rose": sum(one["fell"] is None and not one["rose"] for one in failed),
        "median_lead": leads[len(leads) // 2] if leads else None,
        "found_before_the_fall": sum(one["fell"] is not None and (measure_lead(one) or 0) > 0 for one in found),
        "found_and_fell": sum(one["fell"] is not None for one in found),
        "healthy": len(healthy),
        "healthy_rose": sum(one["rose"] for one in healthy),
        "false_alarms": len(alarmed),
        "alarmed": {f"{one['name']}.{one['seed']}": list_alarms(one) for one in alarmed},
        "bound": round(3 / len(healthy), 3) if healthy and not alarmed else None,
    }  # fmt: skip


def write_table(records: Iterable[Record]) -> str:
    """A row for each run that was made to fail, as in docs/results.md."""
    lines = [
        "| pathology | seed | finding | level | step found | held-out before → best → end | fell at | lead |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in records:
        looks = {int(step): value for step, value in one["held_out"].items()}
        found = choose_finding(one)
        name, level, step = (f"`{found[0]}`", found[1]["level"], found[1]["step"]) if found else ("**missed**", "", "")
        if found and found[1]["level"] == "alarm" and found[1]["alarm"] != step:
            level = f"warning, alarm at {found[1]['alarm']}"
        curve = " → ".join(f"{100 * value:.0f}" for value in (looks[min(looks)], max(looks.values()), looks[max(looks)]))
        lead = measure_lead(one)
        fell = one["fell"] if one["fell"] is not None else "rose" if one["rose"] else "never rose"
        lines.append(
            f"| `{one['name']}`: {one['words']} | {one['seed']} | {name} | {level} | {step} | {curve} % | {fell} | {'' if lead is None else lead} |"
        )
    return "\n".join(lines)


def write_healthy_table(records: Iterable[Record]) -> str:
    lines = ["| healthy run | seed | held-out before → end | alarms | warnings |", "|---|---|---|---|---|"]
    for one in records:
        looks = {int(step): value for step, value in one["held_out"].items()}
        warnings = [name for name, finding in one["found"].items() if finding["level"] == "warning"]
        lines.append(
            f"| {one['words']} | {one['seed']} | {100 * looks[min(looks)]:.0f} → {100 * looks[max(looks)]:.0f} % | "
            f"{', '.join(list_alarms(one)) or 'none'} | {', '.join(warnings) or 'none'} |"
        )
    return "\n".join(lines)


def read_results(out: Path, planned: Sequence[Planned]) -> list[Record]:
    """What was noted of the runs that are planned, in their order."""
    files = [out / "results" / f"{one.key}.json" for one in planned]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def make_runs(planned: Sequence[Planned], out: Path, keep: bool = False) -> None:
    """Those that are missing, one after the other; each is noted as soon as it is there."""
    results = out / "results"
    results.mkdir(parents=True, exist_ok=True)
    for one in planned:
        file = results / f"{one.key}.json"
        if file.is_file():
            continue
        record = run_case(one, out)
        found = choose_finding(record)
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        told = {name: [one["level"], one["step"]] for name, one in record["found"].items() if one["level"] != "info"}
        print(f"{one.key}: {record['seconds']} s, held-out {list(record['held_out'].values())}, fell {record['fell']}, "
              f"found {found and found[0]}, lead {measure_lead(record)}; {told} {record['ended'][:200]}", flush=True)  # fmt: skip
        if not keep:
            shutil.rmtree(out / "runs" / one.key, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of their results")
    parser.add_argument("--only", nargs="+", default=[], help="names of runs, or pathology, or healthy")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the pathologies, and the first of the healthy runs; from 100 on to try things"
    )
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--keep", action="store_true", help="keep the run folders")
    parser.add_argument("--json", type=Path, help="also write all results and figures here")
    chosen = parser.parse_args()
    out, planned = chosen.out.resolve(), plan_runs(chosen.seed, chosen.only)
    if not chosen.table:
        make_runs(planned, out, chosen.keep)
    records = read_results(out, planned)
    figures = summarize(records)
    print(write_table(one for one in records if one["kind"] == "pathology"))
    print()
    print(write_healthy_table(one for one in records if one["kind"] == "healthy"))
    print(json.dumps(figures, indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps({"figures": figures, "runs": records}, indent=1) + "\n", encoding="utf-8")
    missing = len(planned) - len(records)
    return 0 if not missing and not figures["false_alarms"] else 1


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
