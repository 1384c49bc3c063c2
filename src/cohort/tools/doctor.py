"""`cohort doctor RECIPE`: every check of preflight, printed; True when none failed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cohort.recipe.rules import list_warnings
from cohort.recipe.schema import Recipe
from cohort.rewards.base import RewardRunner

MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "failure": "[bold red]FAILURE[/]"}


def run_doctor(recipe: Recipe) -> bool:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="cohort-doctor-") as scratch,
        RewardRunner.from_recipe(recipe.rewards, max_fault_share=recipe.train.max_fault_share) as rewards,
    ):
        from cohort.observe.monitors import drop_monitors, find_monitor_problems
        from cohort.observe.run_folder import RunFolder
        from cohort.session import Session
        from cohort.training.preflight import Check, check_own_functions, run_cheap_checks, run_trial_checks

        session = Session(RunFolder(Path(scratch)), drop_monitors(recipe), rewards, None)
        parts, _, encoded = session.assemble()
        checks = [Check("warning", "recipe", warning) for warning in list_warnings(session.recipe)]
        checks += [Check("failure", "monitors", problem) for problem in find_monitor_problems(recipe)]
        checks += run_cheap_checks(parts, encoded)
        # Rollouts would only run into what has failed already, and their error would hide the checks.
        if not any(check.level == "failure" for check in checks):
            checks += [*run_trial_checks(parts, encoded), *check_own_functions(parts)]
    for check in checks:
        console.print(f"{MARKS[check.level]} {check.name:15} {escape(check.text)}")
    failed = sum(check.level == "failure" for check in checks)
    warned = sum(check.level == "warning" for check in checks)
    verdict = f"{failed} checks failed; training would not be trustworthy"
    if not failed:
        verdict = (
            "ready to train" if not warned else f"it would train, but look at the {warned} warning{'s' * (warned > 1)} first"
        )
    console.print(f"{verdict} ({time.monotonic() - started:.0f} s)")
    console.print("The rewards themselves: `cohort audit RECIPE` attacks them before the policy does.")
    return failed == 0
