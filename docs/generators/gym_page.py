"""docs/gym-tasks.md, written from the lists and the guards."""

from __future__ import annotations

from cohort.rewards.gym.catalogue import FIXED_HASH_TASKS, JAILED_TASKS, REFUSED_TASKS, SAFE_TASKS, SERVED_TASKS
from cohort.rewards.gym.golds import WITHOUT_ANSWER
from cohort.rewards.gym.guards import GUARDS
from pages import format_row

MADE = ("boxnet", "graph_color", "rubiks_cube")

TEXT = """# Tasks of reasoning-gym

{served} of the package's {all} tasks are served by name; {refused} are refused, with the reason below. This page is written by
`make docs` from the code that decides, and a test holds it against that code.

    [prompts]
    source = "gym:countdown"
    args = {{ count = 2000 }}          # and anything the task's own config takes

    [[rewards]]
    function = "cohort.rewards.gym.rows:gym_verifier"

## How an answer is scored

1. The final answer is found: the last `<answer>..</answer>`, else the last match of the argument `pattern`, else the last
   `\\boxed{{..}}`, else the whole text.
2. The guard of the task, in the trusted process, decides whether the verifier may see it. {runs} tasks have modules that can run
   text as code (`eval`, `exec`, sympy's parsers). A jail does not help against an answer that is executed beside the
   verdict: it could forge it, and those of the answers after it. So each of these tasks has a grammar of what an honest
   answer can look like, and nothing else reaches the verifier. Other guards close holes: what the verifier would have
   paid for is in the table.
3. The package's own verifier scores what is left, 0 to 1, in a jailed worker process with limits on CPU time ({cpu:g} s for one
   answer) and memory. The part's `timeout_s` limits the wall clock.

| verdict | score | when |
|---|---|---|
| `right` | 1.0 | the verifier gives full marks |
| `wrong` | 0.0, or part marks | the verifier or the guard says so. A verifier that raises is named in the column `verifier_error`, as is one that gives a number outside of 0 to 1 |
| `no_answer` | 0.0 | the final answer is empty |
| `unparsed` | 0.0 | the grammar refuses it |
| `timeout`, `memory`, `crash` ... | 0.0 | the answer ran into a limit of the jail |
| `infrastructure` | none: a fault | the row is not the task's, or the machinery failed |

Without a jail on the machine, the {safe} tasks whose modules cannot run text are scored in ordinary worker processes, which are
killed at the time limit; the {runs} others are refused when their rows are loaded.

## Rows

Rows depend on the seed alone. {hashed} tasks draw from sets, whose order changes from process to process; their rows are made in a
process with a fixed hash seed (marked "fixed" below). Rows are left out where the right answer is the empty text, or is none
that the guard admits: an integral that the package could not solve, for instance.

The column `answer` holds the right answer: the stored one, or for {made}, which store none, one made from
the entry. {without} has none: any moves that reach the exit are right.

Worth knowing: in `string_insertion` nine strings of ten have nothing to insert, and copying them is right; tasks with two
possible answers (`course_schedule`, `ransom_note`, `syllogism` and others) pay half for a fixed one. These are right verdicts
on easy problems, and the task's own settings can make them harder. A row of `knight_swap` takes about a second to make.

## All tasks

| task | served | can run text | rows | what an answer must be | what the verifier alone would pay for |
|---|---|---|---|---|---|
{table}
"""


def make_page() -> str:
    """The text of docs/gym-tasks.md."""
    from cohort.rewards.gym.verifier import LIMITS

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
        table="\n".join(format_task(name) for name in sorted([*SERVED_TASKS, *REFUSED_TASKS])),
    )


def format_task(name: str) -> str:
    """The row of one task."""
    if name in REFUSED_TASKS:
        return f"| `{name}` | **no**: {REFUSED_TASKS[name]} | | | | |"
    guard = GUARDS.get(name)
    return format_row(
        f"`{name}`",
        "yes",
        f"`{JAILED_TASKS[name]}`" if name in JAILED_TASKS else "",
        "fixed" if name in FIXED_HASH_TASKS else "",
        guard.grammar if guard else "",
        guard.closes if guard else "",
    )
