"""Station 8 for an address: finds the run, its recorded steps and groups, and applies every algorithm to one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cohort.errors import NotFound
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.rollouts import list_kept_steps, list_token_steps
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.rules import name_reward
from cohort.recipe.schema import RewardConfig
from cohort.tools.dashboard.group_queries import find_group_starts, load_rows, split_groups
from cohort.tools.dashboard.lab.algorithms import Applied, GroupRecord, Settings, apply_algorithms, count_agreeing
from cohort.tools.dashboard.lab.run_examples import answer_for_run, read_step_tokens
from cohort.tools.dashboard.run_index import RunIndex, ShownRun
from cohort.tools.dashboard.step_files import find_step_file, read_step_rows
from cohort.tools.dashboard.token_values import read_pieces, show_piece
from cohort.tools.dashboard.view import View

MOST_TOKENS = 512
"""Tokens of a completion that are shown."""
MOST_ROWS = 16_384
"""Completions of a step that are read."""
MOST_STEPS = 400
"""Steps in the menu."""


def answer_run(run_index: RunIndex, view: View) -> dict[str, Any]:
    """One group of a run under every algorithm, and one of its completions token by token."""
    return answer_for_run(run_index, view, lambda run: compare_algorithms(run, view), "problem", recorded=True)


def compare_algorithms(run: ShownRun, view: View) -> dict[str, Any]:
    recorded, kept = list_token_steps(run.folder.rollouts), list_kept_steps(run.folder.rollouts)
    steps = [step for step in recorded if step in set(kept)] or kept
    if not steps:
        raise NotFound("This run has saved no completions (monitors.rollouts_every).")
    step = view.read_number("step", steps[-1])
    if step not in kept:
        raise NotFound(f"The completions of step {step} are not saved in this run.")
    groups = list_groups(run, step)
    group = view.read_number("group", next(iter(groups)))
    files = (run.folder.rollouts_file(step), run.folder.tokens_file(step), run.folder.recipe_file)
    stamp = tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
    record, note, found = apply_once(run, step, group, stamp)
    members = record.members
    sample = min(view.read_number("sample", choose_sample(found, members)), len(members) - 1)
    row = members[sample]
    entry = record.tokens.get(row)
    ids = record.ids[row][0]
    pieces = entry["pieces"] if entry is not None and len(entry["pieces"]) == len(ids) else read_pieces(run, ids)[0]
    agree, others = count_agreeing(found)
    return {
        "steps": steps[-MOST_STEPS:],
        "step": step,
        "groups": [[number, label] for number, label in groups.items()],
        "group": group,
        "sample": sample,
        "samples": [
            {name: record.rows[place].get(name) for name in ("reward", "success", "length", "end")} for place in members
        ],
        "pieces": [show_piece(str(piece)).text for piece in pieces[:MOST_TOKENS]],
        "left_out": max(0, len(ids) - MOST_TOKENS),
        "note": note,
        "algorithms": [show_applied(one, members, row) for one in found],
        "agree": agree,
        "others": others,
        "right": 0 if others and agree == others else 1 if 2 * agree > others else 2,
        "address": f"{run.address}/group/{step}/{group}",
    }


@lru_cache(maxsize=8)
def apply_once(run: ShownRun, step: int, group: int, _stamp: object) -> tuple[GroupRecord, str, list[Applied]]:
    """The record of a group with its note, and the group under every algorithm; cached until a file of the step changes."""
    record, note = load_record(run, step, group)
    return record, note, apply_algorithms(record)


def choose_sample(found: Sequence[Applied], members: Sequence[int]) -> int:
    """The completion with the most clipped tokens; if there are none, the one with the largest range of coefficients."""

    def rank(row: int) -> tuple[int, float]:
        values = [value for one in found[:2] for value in one.coefficients.get(row, ()) if value is not None]
        return sum(len(one.cut.get(row, ())) for one in found), max(values, default=0.0) - min(values, default=0.0)

    return max(range(len(members)), key=lambda place: rank(members[place]))


def list_groups(run: ShownRun, step: int) -> dict[int, str]:
    """The groups of a step with labels: first those with recorded tokens, then those whose rewards differ, then the others."""
    index, note = load_rows(run)
    rows = index[index["step"] == step]
    if not len(rows):
        raise NotFound(note or f"The completions of step {step} are not saved in this run.")
    recorded = {int(row["group"]) for row in read_tokens_or_none(run, step)[0]}
    found = []
    for members in split_groups(rows, find_group_starts(rows)):
        number, rewards = int(members[0]["group"]), members["reward"][~np.isnan(members["reward"])]
        label = f"group {number}: {int((members['success'] == 1).sum())} of {len(members)} right"
        label += ", tokens recorded" if number in recorded else ""
        found.append((number not in recorded, len(set(rewards.tolist())) < 2, number, label))
    return {number: label for _, _, number, label in sorted(found)}


def load_record(run: ShownRun, step: int, group: int) -> tuple[GroupRecord, str]:
    """(the data of a group and its step, a note about missing data)."""
    settings = read_settings(run)
    file = find_step_file(run, step)
    rows = read_step_rows(file, 0, MOST_ROWS)
    places = [place for place, row in enumerate(rows) if int(row["group"]) == group]
    if not places:
        raise NotFound(f"Step {step} has no group {group}.")
    whole = read_step_rows(file, places[0], len(places), ("completion_ids", "sampling_logprobs", "prompt_ids"))
    ids = {
        place: (list(map(int, row["completion_ids"])), list(map(float, row["sampling_logprobs"])), list(row["prompt_ids"]))
        for place, row in zip(places, whole, strict=True)
    }
    entries, note = read_tokens_or_none(run, step)
    tokens = {int(entry["row"]): entry for entry in entries if is_whole(entry, ids)}
    if not tokens:
        note += "The tokens of this group were not recorded (monitors.tokens_every). All ratios are assumed to be 1, as in a "
        note += "step's first update: nothing is clipped, and there is no KL."
    elif len(tokens) < len(places):
        note += "The tokens of some completions of this group were not recorded; their ratios are assumed to be 1."
    return GroupRecord(step, group, rows, tokens, ids, settings), note


def read_tokens_or_none(run: ShownRun, step: int) -> tuple[list[dict[str, Any]], str]:
    """(the token record of a step, a message if it cannot be read)."""
    try:
        return read_step_tokens(run, step), ""
    except NotFound as problem:
        return [], f"{problem} "


def is_whole(entry: Mapping[str, Any], ids: Mapping[int, tuple[Sequence[int], Any, Any]]) -> bool:
    """Whether a recorded completion equals the one in the step file."""
    row = int(entry["row"])
    return row in ids and list(entry["token_ids"]) == list(ids[row][0])


def read_settings(run: ShownRun) -> Settings:
    """The settings of the run's recipe; entries that cannot be read are skipped."""
    recipe = run.read_recipe()
    sampling, train = (as_dict(recipe.get(section)) for section in ("sampling", "train"))
    longest = as_number(sampling.get("max_completion_tokens"))
    if not longest:
        raise NotFound("recipe.toml is missing or cannot be read, so completion length and reward weights are unknown.")
    weights = {}
    for entry in recipe.get("rewards") or ():
        known = {key: value for key, value in as_dict(entry).items() if key in ("function", "name", "weight")}
        try:
            reward = RewardConfig.model_validate(known)
        except ValueError:
            continue
        weights[name_reward(reward)] = reward.weight
    try:
        algorithm = AlgorithmConfig.model_validate(as_dict(recipe.get("algorithm")))
    except ValueError:
        algorithm = None

    def count(name: str) -> int:
        return max(1, int(as_number(train.get(name)) or 1))

    return Settings(
        longest=int(longest),
        weights=weights,
        minibatches=count("minibatches_per_step"),
        passes=count("passes_per_step"),
        seed=int(as_number(recipe.get("seed")) or 0),
        algorithm=algorithm if algorithm and algorithm.chosen.known else None,
    )


def show_applied(one: Applied, members: Sequence[int], row: int) -> dict[str, Any]:
    """The algorithm's values for the page: every token of one completion, and the mean of each completion."""
    means: list[float] = []
    sizes: list[float] = []
    for member in members:
        values = [value for value in one.coefficients.get(member, ()) if value is not None]
        means.append(sum(values) / len(values) if values else 0.0)
        sizes += map(abs, values)
    return {
        "name": one.name,
        "describes": one.describes,
        "missing": one.missing,
        "notes": list(one.notes),
        "coefficients": list(one.coefficients.get(row, ()))[:MOST_TOKENS],
        "weight": one.weights.get(row, 0.0),
        "cut": list(one.cut.get(row, ())),
        "means": means,
        "scale": sorted(sizes)[int(0.95 * (len(sizes) - 1))] if sizes else 0.0,
    }
