"""docs/gym-tasks.md, generated from the task lists and guards."""

from __future__ import annotations

from cohort.rewards.gym.guards import GUARDS
from cohort.rewards.gym.rows import FIXED_HASH_TASKS, JAILED_TASKS, REFUSED_TASKS, SAFE_TASKS, SERVED_TASKS, WITHOUT_ANSWER
from pages import format_row

MADE = ("boxnet", "graph_color", "rubiks_cube")

TEXT = """# Tasks of reasoning-gym

{served} of the package's {all} tasks are available; {refused} are refused, with the reason below. `make docs` generates this page.

    [prompts]
    source = "gym:countdown"
    args = {{ count = 2000 }}          # and any setting of the task

    [[rewards]]
    function = "cohort.rewards.gym.rows:gym_verifier"

## How an answer is scored

1. Extract the final answer: the last `<answer>..</answer>`, else the last match of the argument `pattern`, else the last `\\boxed{{..}}`, else the whole
   text.
2. Check it with the task's guard, in the trusted process. {runs} tasks have modules that can execute text (`eval`, `exec`, sympy's parsers). An answer
   executed next to the verifier could forge verdicts even inside a jail, so these tasks accept only a grammar of honest answers. Other guards close
   exploits of the verifier, listed in the table.
3. Score it, 0 to 1, with the package's verifier in a jailed worker with limits on memory and CPU time ({cpu:g} s per answer). `timeout_s` limits the wall
   clock.

| verdict | score | when |
|---|---|---|
| `right` | 1.0 | full marks |
| `wrong` | 0.0, or partial marks | by verifier or guard. Verifiers that raise or leave 0 to 1 are named in the column `verifier_error` |
| `no_answer` | 0.0 | the final answer is empty |
| `unparsed` | 0.0 | refused by the grammar |
| `timeout`, `memory`, `crash` ... | 0.0 | hit a limit of the jail |
| `infrastructure` | none: a fault | the row is not the task's, or the verifier failed |

Without a jail the {safe} tasks that cannot execute text run in ordinary worker processes, killed at the time limit; the {runs} others are refused when
their rows load.

## Rows

Rows depend only on the seed. {hashed} tasks sample from Python sets, so their rows are made in a process with a fixed hash seed ("fixed" below). Rows
whose right answer is empty or refused by the guard are dropped, such as integrals that the package could not solve.

`answer` holds the stored answer, or a computed one for {made}. {without} has none: any moves that reach the exit are right.

Some tasks are easy: nine of ten `string_insertion` strings need no insertion, and tasks with two possible answers (`course_schedule`, `ransom_note`,
`syllogism` and others) pay half for a fixed one. The task's settings can make them harder. A `knight_swap` row takes about a second.

## All tasks

Without special rules: {plain}.

| task | can run text | rows | accepted answers | exploit of the unguarded verifier |
|---|---|---|---|---|
{table}

Refused:

{refusals}
"""


def make_page() -> str:
    """The text of docs/gym-tasks.md."""
    from cohort.rewards.gym.rows import LIMITS

    return TEXT.format(
        served=len(SERVED_TASKS),
        all=len(SERVED_TASKS) + len(REFUSED_TASKS),
        refused=len(REFUSED_TASKS),
        runs=len(JAILED_TASKS),
        safe=len(SAFE_TASKS),
        cpu=LIMITS.cpu_s,
        hashed=len(FIXED_HASH_TASKS),
        made=", ".join(f"`{name}`" for name in MADE),
        without=", ".join(f"`{name}`" for name in sorted(WITHOUT_ANSWER)),
        plain=", ".join(f"`{name}`" for name in sorted(SERVED_TASKS) if not has_rules(name)),
        table="\n".join(format_task(name) for name in sorted(SERVED_TASKS) if has_rules(name)),
        refusals="\n".join(f"- `{name}`: {reason}" for name, reason in sorted(REFUSED_TASKS.items())),
    )


def has_rules(name: str) -> bool:
    """Whether a task has a guard, can run text or needs a fixed hash seed."""
    return name in GUARDS or name in JAILED_TASKS or name in FIXED_HASH_TASKS


def format_task(name: str) -> str:
    """The table row of one task."""
    guard = GUARDS.get(name)
    return format_row(
        f"`{name}`",
        f"`{JAILED_TASKS[name]}`" if name in JAILED_TASKS else "",
        "fixed" if name in FIXED_HASH_TASKS else "",
        guard.grammar if guard else "",
        guard.closes if guard else "",
    )
