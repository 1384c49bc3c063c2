"""What is known of a reward before it is called, and the rows that it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.base.keyed import keyed_permutation
from cohort.recipe.sections import suggest_nearest
from cohort.rewards import BUILT_IN, built_in
from cohort.rewards.contract import importable_name
from cohort.tools.audit import attacks, golds, programs
from cohort.tools.audit.cases import AuditRow
from cohort.tools.audit.running import AuditError, AuditOptions, find_built_in
from cohort.tools.audit.samples import EXACT_ROWS, INSTRUCTION_ROWS, MATH_ROWS, PLAIN_ROWS

DEFAULT_ROWS = 8


@dataclass(frozen=True)
class Profile:
    """What is known of a reward that ships with Cohort."""

    kind: str
    rows: Callable[[], Sequence[AuditRow]]
    forms: tuple[str, ...] = ()
    """Forms that it documents: the golds must be accepted in each."""
    threshold: float = 0.5
    jailed: bool = False


def name_surrounded_forms(*bases: str) -> tuple[str, ...]:
    return tuple(f"{base} {surroundings}".strip() for base in bases for surroundings in attacks.SURROUNDINGS)


def load_task_rows(source: str) -> Sequence[AuditRow]:
    """Rows of a task, for the rewards that only such rows can be scored by."""
    from cohort.data.tasks import load_task
    from cohort.rewards.gym.rows import load_gym

    kind, _, name = source.partition(":")
    load = load_task if kind == "task" else load_gym
    return make_rows(load(name, "train", 0, {"count": DEFAULT_ROWS}))


PROFILES: dict[str, Profile] = {
    "math_answer": Profile("math", lambda: MATH_ROWS, name_surrounded_forms("boxed", "says", "hashes", "tag")),
    "exact_match": Profile("exact", lambda: EXACT_ROWS, ("bare", "bare after thinking")),
    "code_tests": Profile(
        "code",
        lambda: programs.CODE_ROWS,
        ("fence", "fence after thinking", "fence with prose around it", "fence without a word", "bare program"),
        threshold=1.0,  # below it some tests have failed
        jailed=True,
    ),
    "instructions": Profile("shape", lambda: INSTRUCTION_ROWS, threshold=1.0),
    "cohort.rewards.gym.rows:gym_verifier": Profile(
        "exact", lambda: load_task_rows("gym:chain_sum"), ("boxed", "tag", "bare"), threshold=1.0
    ),
    "cohort.data.column_addition:check_steps": Profile("exact", lambda: load_task_rows("task:column_addition"), threshold=1.0),
}
GOLDLESS = Profile("shape", lambda: PLAIN_ROWS)
GOLD_NAMES = ("answer", "tests", "entry", "gold", "solution", "target", "label")


def find_function(function: str | Callable[..., Any]) -> tuple[str, str]:
    """(what to call it, where a worker imports it from)."""
    if isinstance(function, str):
        if ":" in function and function not in BUILT_IN:
            module, _, name = function.partition(":")
            if not module or not name:
                raise AuditError(f'reward: {function!r} is not of the form "package.module:function".')
            return function, function
        return function, str(importable_name(built_in(function)))
    spec = importable_name(function)
    if spec is None:
        raise AuditError(
            f"reward {getattr(function, '__qualname__', repr(function))}: a function that cannot be imported in another process "
            "cannot be audited, for the audit must survive it. Put it at the top level of a module of its own and name it "
            '"module:function"; a lambda, a method, a closure or a function of the main script has no such name.'
        )
    return find_built_in(spec) or spec, spec


def find_profile(label: str, spec: str) -> Profile | None:
    """What is known of it. A built-in reward that names no gold among its parameters is one of the shape."""
    if known := PROFILES.get(spec) or PROFILES.get(find_built_in(spec)):
        return known
    if label not in BUILT_IN:
        return None
    parameters = inspect.signature(BUILT_IN[label]).parameters
    return None if any(name in parameters for name in GOLD_NAMES) else GOLDLESS


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def make_rows(rows: Sequence[Mapping[str, Any]], options: AuditOptions | None = None) -> list[AuditRow]:
    """Rows as the audit uses them. The prompt may be missing; everything else is passed on as it is."""
    words = options or AuditOptions()
    gold, found = words.gold_column, []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise AuditError(f"rows: row {number} is a {type(row).__name__}; each must be an object with named columns.")
        if number == 0 and gold != "answer" and gold not in row:
            columns = ", ".join(map(str, row))
            raise AuditError(f"gold: the rows have no column {gold!r}{suggest_nearest(gold, row)}; they have {columns}.")
        demonstration, program = row.get(words.demonstration), row.get(words.solution)
        found.append(
            AuditRow(
                prompt=row.get(words.prompt, ""),
                columns={str(column): value for column, value in row.items() if column != words.prompt},
                gold="" if "tests" in row and gold == "answer" and gold not in row else golds.read_gold(row.get(gold)),
                demonstration=demonstration if isinstance(demonstration, str) else "",
                solution=program if isinstance(program, str) else "",
            )
        )
    return found


def choose_rows(rows: Sequence[AuditRow], limit: int, seed: int) -> tuple[AuditRow, ...]:
    """`limit` of the rows by the seed, with different golds as far as there are any."""
    order = [rows[index] for index in keyed_permutation(len(rows), "audit", seed)]
    seen: set[str] = set()
    first: list[AuditRow] = []
    later: list[AuditRow] = []
    for row in order:
        (later if row.gold in seen else first).append(row)
        seen.add(row.gold)
    return tuple([*first, *later][:limit])


def guess_kind(rows: Sequence[AuditRow]) -> str:
    """code where there are tests, math where the golds are numbers or LaTeX, else exact."""
    if any("tests" in row.columns for row in rows) and any(row.solution for row in rows):
        return "code"
    numeric = [golds.read_number(row.gold) is not None or "\\" in row.gold or "$" in row.gold for row in rows if row.gold]
    return "math" if numeric and sum(numeric) * 2 >= len(numeric) else "exact"
