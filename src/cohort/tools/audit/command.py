"""`cohort audit REWARD`: reads the arguments and rows, prints the report and writes its JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import CohortError
from cohort.rewards import BUILT_IN
from cohort.tools.audit.kinds import audit
from cohort.tools.audit.report import AuditReport, print_reports
from cohort.tools.audit.running import AuditError

CLEAN, FLAWED, IMPOSSIBLE = 0, 1, 2
"""Exit codes: nothing found, flaws found, could not audit."""
READ_ROWS = 256
"""Rows read from a source; the audited ones are drawn from these."""
OPTION_NAMES = {"columns": "--column", "timeout_s": "--timeout"}
"""Field of AuditOptions -> command-line option, if the names differ."""


def run_audit(arguments: Sequence[str], *, json_file: Path | None = None, **given: Any) -> int:
    """Audit, print the reports, and return the exit code. Cohort's errors are printed without a traceback.

    given    the options on the command line: `rows` and fields of AuditOptions, `columns` as PARAMETER=COLUMN.
    """
    from rich.console import Console

    from cohort.observe.terminal import print_error

    try:
        if not arguments or "=" in arguments[0]:
            raise AuditError(
                f"audit: name the reward first: a built-in one ({', '.join(BUILT_IN)}), package.module:function, or a recipe file."
            )
        target, *settings = arguments
        recipe = find_recipe(target)
        if recipe is not None:
            own = [name for name in given if name not in ("reference", "template", "limit")]
            refuse_options(own, "the recipe sets this; change the recipe, or audit the function without it.")
            reports = audit_recipe(recipe, settings, **given)
        else:
            if "rows" not in given:
                named = [name for name in ("reference", "prompt", "columns") if name in given]
                refuse_options(named, "it names a column of the rows, so give --rows too.")
            else:
                given["rows"] = read_rows(given["rows"], given.get("prompt", "prompt"))
            given["columns"] = read_pairs(given.get("columns", ()))
            reports = [audit(target, args=read_arguments(settings), **given)]
        clean = all(report.clean for report in reports)
        if json_file is not None:
            data = {
                "clean": clean,
                "exit_code": CLEAN if clean else FLAWED,
                "reports": [report.as_data() for report in reports],
            }
            json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except CohortError as problem:
        print_error(str(problem))
        return IMPOSSIBLE
    except OSError as problem:
        print_error(f"{problem.strerror or problem}{f': {problem.filename}' if problem.filename else ''}")
        return IMPOSSIBLE
    print_reports(reports, Console(highlight=False))
    return CLEAN if clean else FLAWED


def read_arguments(settings: Sequence[str]) -> dict[str, Any]:
    """Arguments such as `tolerance=0.01`, with TOML values."""
    from cohort.recipe.file import parse_value

    pairs = [setting.partition("=") for setting in settings]
    for (name, separator, _), setting in zip(pairs, settings, strict=True):
        if not separator or not name.strip():
            raise AuditError(f"argument {setting!r}: write name=value, for example tolerance=0.01.")
    return {name.strip(): parse_value(text.strip()) for name, _, text in pairs}


def read_pairs(columns: Sequence[str]) -> dict[str, str]:
    """The columns by parameter, from PARAMETER=COLUMN."""
    pairs = [entry.partition("=") for entry in columns]
    for pair in pairs:
        if not all(pair):
            raise AuditError(f"--column {''.join(pair)!r}: write PARAMETER=COLUMN, for example answer=solution.")
    return {parameter: column for parameter, _, column in pairs}


def refuse_options(names: Iterable[str], reason: str) -> None:
    """Raise AuditError for options that would be ignored."""
    for name in names:
        raise AuditError(f"{OPTION_NAMES.get(name, f'--{name}')}: {reason}")


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def read_rows(source: str, prompt: str) -> list[dict[str, Any]]:
    """The first rows of a file, or of any other source that prompts.source accepts. The prompt column may be missing."""
    from cohort.data.rows import open_source
    from cohort.recipe.schema import PromptsConfig

    _, numbered = open_source(PromptsConfig(source=source, prompt_column=prompt), 0, None)
    found = []
    for place, row in itertools.islice(numbered, READ_ROWS):
        if not isinstance(row, Mapping):
            raise AuditError(f"{source}, {place}: expected an object with named columns, got {type(row).__name__}.")
        found.append({str(column): value for column, value in row.items()})
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Recipes
# ---------------------------------------------------------------------------------------------------------------------


def find_recipe(target: str) -> Path | None:
    """The path of the recipe with this name; None if the name is a reward."""
    from cohort.recipe.file import find_recipe_path, list_built_in

    if target in BUILT_IN or ":" in target:
        return None
    if target.endswith(".toml") or (Path(target) / "recipe.toml").is_file() or target in list_built_in():
        return find_recipe_path(target)
    return None


def audit_recipe(path: Path, overrides: Sequence[str], **given: Any) -> list[AuditReport]:
    """Audit every reward of the recipe, with the recipe's rows, arguments, threshold and time limit."""
    from cohort.data.rows import load_rows, render
    from cohort.recipe.file import load_recipe
    from cohort.recipe.rules import name_reward

    recipe = load_recipe(path, overrides)
    prompts = recipe.prompts.model_copy(update={"limit": min(recipe.prompts.limit or READ_ROWS, READ_ROWS)})
    rows = []
    for number, row in enumerate(load_rows(prompts, recipe.seed)):
        rest = {name: value for name, value in row.items() if name != prompts.prompt_column}
        rows.append({**rest, "prompt": render(row, prompts, f"row {number}")})
    outcome = next((place for place, part in enumerate(recipe.rewards) if part.outcome), 0)
    reports = []
    for place, part in enumerate(recipe.rewards):
        if part.function.startswith("python:"):
            raise AuditError(f"rewards.{place}.function: {part.function!r} stands for a Python function; audit it from Python.")
        reports.append(
            audit(
                part.function,
                rows,
                args=part.args,
                columns=part.columns,
                demonstration=recipe.cold_start.completion_column,
                threshold=part.threshold if place == outcome else None,
                outcome=place == outcome,
                timeout_s=part.timeout_s,
                seed=recipe.seed,
                name=name_reward(part),
                **given,
            )
        )
    return reports
