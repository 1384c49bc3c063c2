"""`cohort compare`: several algorithms or recipes with the same budget, seeds and starting model.

    command line -> contenders -> plan -> runs (processes) -> results -> table, compare.json, compare.html

Imports no torch: the runs are separate processes, and their folders hold plain text.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from cohort.errors import RecipeError

__all__ = ["run_compare"]


def run_compare(words: Sequence[str], recipe: str, seeds: str, jobs: int, output: Path | None) -> str:
    """Run, print and write a comparison; returns finished, failed or interrupted."""
    from cohort.base.files import write_whole
    from cohort.base.text import make_printable
    from cohort.observe.monitors.jsonl import make_strict
    from cohort.observe.run_folder import make_new_folder
    from cohort.observe.terminal import make_console, print_whole
    from cohort.tools.compare.contenders import find_contenders
    from cohort.tools.compare.output import print_comparison, render_comparison
    from cohort.tools.compare.plan import make_plan, open_output
    from cohort.tools.compare.results import read_results
    from cohort.tools.compare.runner import run_plan

    if jobs < 1:
        raise RecipeError(f"--jobs {jobs}: at least one run at a time, e.g. --jobs 2")
    numbers = parse_seeds(seeds)
    lineup = find_contenders(words, recipe)
    target = output or make_new_folder(Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        plan = make_plan(lineup, numbers, target)
    except Exception:
        if output is None:
            target.rmdir()
        raise
    console = make_console()

    def say(text: str) -> None:
        print_whole(console, f"{time.strftime('%H:%M:%S')}  {make_printable(text)}", indent=10)

    with open_output(plan):
        outcome = run_plan(plan, jobs, say)
        comparison = read_results(plan, outcome.failed, jobs)
        write_whole(target / "compare.json", json.dumps(make_strict(comparison.to_json()), indent=2, allow_nan=False))
        write_whole(target / "compare.html", render_comparison(comparison))
    if outcome.interrupted:
        again = ["cohort", "compare", *words, "--seeds", seeds, "--jobs", str(jobs), "--output", str(target)]
        again += ["--recipe", recipe] if recipe else []
        say(f"Interrupted; the runs have saved their state. Resume with: {shlex.join(again)}")
        return "interrupted"
    console.print()
    print_comparison(console, comparison)
    print_whole(console, f"page  {target / 'compare.html'}")
    return "failed" if outcome.failed else "finished"


def parse_seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RecipeError(f"--seeds {text}: write whole numbers with commas, e.g. --seeds 0,1,2") from None
    if any(not 0 <= seed < 2**63 for seed in seeds):
        raise RecipeError(f"--seeds {text}: a seed is a whole number from 0")
    if len(set(seeds)) < len(seeds):
        raise RecipeError(f"--seeds {text}: a seed occurs twice and would give the same run twice")
    return seeds
