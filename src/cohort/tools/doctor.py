"""`cohort doctor RECIPE`: every check of preflight, printed, and what other numbers of ranks would give; True when none failed.

Under torchrun all processes look together: they compare what they were started with, measure how fast they talk, and the first one
prints what any of them found.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.table import make_table
from cohort.base.world import World
from cohort.errors import EngineError, RankError, RunError
from cohort.observe.run_folder import RunFolder
from cohort.recipe.rules import list_warnings
from cohort.recipe.schema import Recipe
from cohort.rewards.of_run import RunRewards
from cohort.tools.prediction import HEADS, Table, predict_ranks
from cohort.tools.set_up import check_processes, join_checks, make_shared_folder
from cohort.training import launch

if TYPE_CHECKING:
    from cohort.training.preflight import Check
    from cohort.training.run import Run

MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "failure": "[bold red]FAILURE[/]"}


def run_doctor(recipe: Recipe, name: str = "", ranks: int = 0, network_gbit: float = 400.0) -> bool:
    """name: as the person wrote it; the steps of a run of that name are what a prediction for `ranks` begins with."""
    started = time.monotonic()
    world = launch.find_world(lambda: recipe.parallel.limit_s)
    with launch.end_together(world):
        try:
            checks, table = examine(world, recipe, name, ranks, network_gbit)
        except RankError as problem:
            from cohort.training.preflight import Check

            checks, table = [Check("failure", "ranks", str(problem))], None
        # The others wait until it is said: a launcher ends all processes once the first has left with a failure.
        world.on_main(lambda: print_checks(checks, table, time.monotonic() - started))
    return not any(check.level == "failure" for check in checks)


def examine(world: World, recipe: Recipe, name: str, ranks: int, network_gbit: float) -> tuple[list[Check], Table | None]:
    launch.compare_ranks(world, lambda: launch.list_launch_facts(recipe))
    ranks = ranks or (world.size if world.size > 1 else 0)
    rows = read_steps(name) if ranks else []
    with (
        make_shared_folder(world, Path(recipe.runs_folder)) as scratch,
        RunRewards.for_run(recipe) as rewards,
    ):
        from cohort.observe.monitors import drop_monitors, find_monitor_problems
        from cohort.session import Session
        from cohort.training.preflight import (
            Check,
            check_memory,
            check_own_functions,
            check_teacher,
            run_cheap_checks,
            run_trial_checks,
        )

        rewards.world = world
        shared = recipe.parallel.shard == "full" and not world.launched
        whole = recipe.parallel.model_copy(update={"shard": "none", "offload": False}) if shared else recipe.parallel
        looked_at = drop_monitors(recipe).model_copy(update={"parallel": whole})
        session = Session(RunFolder(scratch), looked_at, rewards, None, world)
        parts, _, encoded = session.assemble()
        parts = replace(parts, recipe=parts.recipe.model_copy(update={"parallel": recipe.parallel}))
        processes, link = check_processes(world, parts) if world.size > 1 else ([], None)
        if shared:
            text = 'parallel.shard = "full" is for ranks that torchrun starts, and this process is alone: it holds the whole model to look.'
            processes = [Check("warning", "ranks", text)]
        checks = [*processes, *(Check("warning", "recipe", warning) for warning in list_warnings(session.recipe))]
        checks += [Check("failure", "monitors", problem) for problem in find_monitor_problems(recipe)]
        checks += check_ahead(parts, max(ranks, world.size))
        checks += run_cheap_checks(parts, encoded)
        # Rollouts would only run into what has failed already, and their error would hide the checks.
        if not world.agree(any(check.level == "failure" for check in checks)):
            checks += [*run_trial_checks(parts, encoded), *check_own_functions(parts)]
        table = None
        if ranks not in (0, world.size):
            checks.append(check_memory(parts, encoded, check_teacher(parts, encoded)[1], ranks))
        if ranks:
            table = predict_ranks(parts, encoded, rows, ranks, network_gbit, link)
        return join_checks(world, checks), table


def check_ahead(parts: Run, ranks: int) -> list[Check]:
    """Whether what is looked at alone can be sampled ahead by so many ranks."""
    from cohort.training.build import refuse_ahead
    from cohort.training.preflight import Check

    try:
        refuse_ahead(parts.recipe, parts.engine, ranks <= 1 and parts.recipe.parallel.shard == "none")
    except EngineError as problem:
        return [Check("failure", "ahead", str(problem))]
    return []


def read_steps(name: str) -> list[dict[str, Any]]:
    """The rows of a run of one rank; none where `name` is a recipe."""
    run = RunFolder(Path(name))
    rows = run.metrics() if name else []
    ranks = run.read_summary().get("ranks", 1) if rows else 1
    if ranks != 1:
        raise RunError(
            f"{name}: it ran on {ranks} ranks, and predictions begin with a run on one: name its folder, or a recipe."
        )
    if any("ahead/staleness_max" in row for row in rows):
        raise RunError(
            f"{name}: it sampled ahead, beside training, so its seconds do not add up to those of a step that ranks share out. Name a run with "
            "ahead.lag = 0, or a recipe."
        )
    return rows


def print_checks(checks: list[Check], table: Table | None, seconds: float) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        console.print(f"{MARKS[check.level]} {check.name:15} {escape(check.text)}")
    if table:
        console.print(make_table(HEADS, table.rows, texts=2))
        for sentence in table.sources:
            console.print(escape(sentence))
    failed = sum(check.level == "failure" for check in checks)
    warned = sum(check.level == "warning" for check in checks)
    verdict = f"{failed} checks failed; training would not be trustworthy"
    if not failed:
        verdict = (
            "ready to train" if not warned else f"it would train, but look at the {warned} warning{'s' * (warned > 1)} first"
        )
    console.print(f"{verdict} ({seconds:.0f} s)")
    console.print("The rewards themselves: `cohort audit RECIPE` attacks them before the policy does.")
