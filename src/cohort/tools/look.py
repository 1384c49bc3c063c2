"""`cohort look RUN`: the completions of a step in the terminal, read from rollouts/, also while the run is training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cohort.base.text import make_printable
from cohort.errors import CohortError, RunError
from cohort.observe.rollouts import list_kept_steps, read_rollouts
from cohort.observe.run_folder import RunFolder
from cohort.observe.terminal import (
    BRIEF,
    Row,
    group_rows,
    make_console,
    pick_best_and_worst,
    print_group,
    print_whole,
    print_wrapped,
)

GROUPS = 3
"""Groups shown by default."""
WRONG = 8
"""Wrong completions shown by default, from as many groups as possible."""


def run_look(root: Path, step: int | None, wrong: bool, group: int | None, full: bool, as_json: bool) -> None:
    folder, console = RunFolder.open(root), make_console()
    rows = read_step(folder, step, console)
    if group is not None:
        known = group_rows(rows)
        if group not in known:
            raise RunError(f"--group {group}: step {rows[0]['step']} has groups {min(known)} to {max(known)}.")
        rows = known[group]
    chosen = [row for row in rows if row["success"] is False] if wrong else rows
    if wrong and not chosen:
        unjudged = sum(row["success"] is None for row in rows)
        more = f"; {unjudged} have no verdict" if unjudged else ""
        raise RunError(f"--wrong: none of the {len(rows)} completions of step {rows[0]['step']} was wrong{more}.")
    if as_json:
        for row in chosen:
            print(json.dumps(row, default=str))
        return
    show_groups(console, rows, chosen if wrong else None, group is not None, 0 if full else BRIEF)


def show_groups(console: Console, rows: Sequence[Row], wrong: Sequence[Row] | None, whole: bool, most: int) -> None:
    """Print all completions of a single group (whole), or the best and worst, or wrong ones, of several."""
    groups = group_rows(rows)
    if wrong is not None:
        picked = group_rows(wrong if whole else spread_rows(wrong, WRONG))
        for number, members in picked.items():
            print_group(console, groups[number], [(f"row {row['row']}", row) for row in members], most)
        left_out = len(wrong) - sum(map(len, picked.values()))
        more = f", {left_out} not shown (--group G shows those of a group)" if left_out else ""
        print_wrapped(console, Text(f"{len(wrong)} of {len(rows)} completions of step {rows[0]['step']} are wrong{more}"))
        return
    shown = list(groups.values()) if whole else list(groups.values())[:GROUPS]
    for members in shown:
        labelled = [(f"row {row['row']}", row) for row in members] if whole else pick_best_and_worst(members)
        print_group(console, members, labelled, most)
    if len(shown) < len(groups):
        first, last = min(groups), max(groups)
        others = f"show others with --group {first} to {last}, wrong completions with --wrong"
        print_wrapped(console, Text(f"{len(shown)} of {len(groups)} groups shown; {others}"))


def spread_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """Up to `most` rows, spread evenly over the groups, in the order of the rows."""
    turns = [row for turn in zip_longest(*group_rows(rows).values()) for row in turn if row is not None]
    return sorted(turns[:most], key=lambda row: int(row["row"]))


def read_step(folder: RunFolder, step: int | None, console: Console) -> list[Row]:
    """The completions of a step with their row numbers. Without a step, damaged files are reported and skipped."""
    kept = list_kept_steps(folder.rollouts)
    if not kept:
        raise RunError(f"{folder.root}: no completions are saved{explain_missing(folder, None, kept)}")
    if step is not None and step not in kept:
        near = sorted(kept, key=lambda other: abs(other - step))[:3]
        raise RunError(
            f"--step {step}: its completions are not saved{explain_missing(folder, step, kept)} Saved: {describe_steps(kept)}; the nearest "
            f"{'is' if len(near) == 1 else 'are'} {', '.join(map(str, sorted(near)))}."
        )
    candidates = [step] if step is not None else kept[::-1]
    for number in candidates:
        try:
            rows = read_rollouts(folder.rollouts_file(number))
        except RunError as problem:
            if number == candidates[-1]:
                raise
            print_whole(console, make_printable(f"{problem} Showing the previous step."))
            continue
        if rows:
            return [{**row, "row": place} for place, row in enumerate(rows)]
    raise RunError(f"{folder.rollouts}: the files hold no completions; nothing was sampled.")


def explain_missing(folder: RunFolder, step: int | None, kept: Sequence[int]) -> str:
    """Why a step, or (None) the run, has no completions; "." if unknown."""
    if step is not None and step < 1:
        return ": steps count from 1."
    if step is not None and step > kept[-1]:
        return f": the last saved step is {kept[-1]}."
    try:
        every = folder.recipe().monitors.rollouts_every
    except CohortError:
        return "."
    if step is None and every:
        return ": no step is finished yet."
    return f": monitors.rollouts_every is {every}." if every != 1 else "."


def describe_steps(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
