"""Station 8 for an address: finds the run, its recorded steps and groups, and puts one group through every algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cohort.errors import CohortError, NotFound
from cohort.observe.monitors.jsonl import make_strict
from cohort.observe.report.data import as_dict, as_number
from cohort.observe.rollouts import list_kept_steps, list_token_steps
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.rules import name_reward
from cohort.recipe.schema import RewardConfig
from cohort.tools.dashboard.group_queries import find_group_starts, load_rows
from cohort.tools.dashboard.lab.algorithms import Applied, GroupRecord, Settings, apply_algorithms, count_agreeing
from cohort.tools.dashboard.lab.same import MOST_RUNS, find_time, read_kept_tokens
from cohort.tools.dashboard.run_settings import read_recipe
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.step_files import find_step_file, read_step_rows
from cohort.tools.dashboard.token_texts import read_pieces, show_piece
from cohort.tools.dashboard.view import View

MOST_TOKENS = 512
"""Tokens of a completion that are shown."""
MOST_ROWS = 16_384
"""Completions of a step that are read."""
MOST_STEPS = 400
"""Steps that are offered."""


def answer_run(shelf: Shelf, view: View) -> dict[str, Any]:
    """One group of a run under every named algorithm, and one of its completions token by token."""
    runs = shelf.list_runs()[:MOST_RUNS]
    if not runs:
        return {"problem": "There is no run on the shelf yet: cohort train makes one, and it appears here."}
    run = shelf.find(view.read("run")) if view.read("run") else max(runs, key=lambda one: (has_record(one), find_time(one)))
    offered = {"runs": [[one.name, one.title] for one in runs], "run": run.name}
    try:
        return offered | make_strict(take_apart(run, view))
    except CohortError as problem:
        return offered | {"problem": str(problem)}
    except Exception as problem:  # a stranger's files may hold anything
        return offered | {"problem": f"The files of this step are not as a run writes them ({type(problem).__name__})."}


def has_record(run: ShownRun) -> bool:
    return bool(list_token_steps(run.folder.rollouts))


def take_apart(run: ShownRun, view: View) -> dict[str, Any]:
    recorded, kept = list_token_steps(run.folder.rollouts), list_kept_steps(run.folder.rollouts)
    steps = [step for step in recorded if step in set(kept)] or kept
    if not steps:
        raise NotFound("This run keeps no completions (monitors.rollouts_every).")
    step = view.read_number("step", steps[-1])
    if step not in kept:
        raise NotFound(f"The completions of step {step} are not kept in this run.")
    groups = list_groups(run, step)
    group = view.read_number("group", next(iter(groups)))
    record, note = load_record(run, step, group)
    found = apply_kept(find_stamp(run, step), group, record)
    members = record.members
    sample = min(view.read_number("sample", find_telling_sample(found, members)), len(members) - 1)
    row = members[sample]
    entry = record.tokens.get(row)
    ids = record.ids[row][0]
    pieces = entry["pieces"] if entry is not None and len(entry["pieces"]) == len(ids) else read_pieces(run, ids)[0]
    agree, others = count_agreeing(found)
    return {
        "steps": steps[-MOST_STEPS:],
        "step": step,
        "groups": [[number, words] for number, words in groups.items()],
        "group": group,
        "sample": sample,
        "samples": [describe_sample(record.rows[place]) for place in members],
        "pieces": [show_piece(str(piece)).text for piece in pieces[:MOST_TOKENS]],
        "left_out": max(0, len(ids) - MOST_TOKENS),
        "note": note,
        "algorithms": [show_applied(one, members, row) for one in found],
        "agree": agree,
        "others": others,
        "right": 0 if others and agree == others else 1 if 2 * agree > others else 2,
        "address": f"{run.address}/group/{step}/{group}",
    }


def find_telling_sample(found: Sequence[Applied], members: Sequence[int]) -> int:
    """The completion in which algorithms silence most tokens; without any, the one whose tokens are pushed most unequally."""

    def tell(row: int) -> tuple[int, float]:
        values = [value for one in found[:2] for value in one.coefficients.get(row, ()) if value is not None]
        return sum(len(one.cut.get(row, ())) for one in found), max(values, default=0.0) - min(values, default=0.0)

    return max(range(len(members)), key=lambda place: tell(members[place]))


def list_groups(run: ShownRun, step: int) -> dict[int, str]:
    """The groups of a step, in words: those with single tokens first, then those whose rewards differ, then the others."""
    loaded = load_rows(run, step)
    rows = loaded.rows[loaded.rows["step"] == step]
    if not len(rows):
        raise NotFound(loaded.note or f"The completions of step {step} are not kept in this run.")
    starts = find_group_starts(rows).tolist()
    tokens = {int(row["group"]) for row in read_tokens_or_none(run, step)[0]}
    found = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        members = rows[start:end]
        number, rewards = int(members[0]["group"]), members["reward"]
        words = f"group {number}: {int((members['success'] == 1).sum())} of {len(members)} right"
        differs = bool(
            (rewards[rewards == rewards].size) and rewards[rewards == rewards].min() < rewards[rewards == rewards].max()
        )
        found.append((number not in tokens, not differs, number, words + (", tokens recorded" if number in tokens else "")))
    return {number: words for _, _, number, words in sorted(found)}


def load_record(run: ShownRun, step: int, group: int) -> tuple[GroupRecord, str]:
    """(all that the files say of the group and its step, what to say of what they do not)."""
    settings = read_settings(run)
    file = find_step_file(run, step)
    rows = read_step_rows(file, 0, MOST_ROWS)
    places = [place for place, row in enumerate(rows) if int(row["group"]) == group]
    if not places:
        raise NotFound(f"Step {step} has no group {group}.")
    first = places[0]
    columns = ("completion_ids", "sampling_logprobs", "prompt_ids")
    whole = read_step_rows(file, first, len(places), columns)
    ids = {
        place: (
            [int(one) for one in row["completion_ids"]],
            [float(one) for one in row["sampling_logprobs"]],
            list(row["prompt_ids"]),
        )
        for place, row in zip(places, whole, strict=True)
    }
    entries, note = read_tokens_or_none(run, step)
    tokens = {int(entry["row"]): entry for entry in entries if fits(entry, ids)}
    if not tokens:
        note += (
            "Single tokens of this group were not recorded (monitors.tokens_every), so every ratio is taken as 1, as in the first update of a "
            "step: nothing is clipped, and no KL is known."
        )
    elif len(tokens) < len(places):
        note += "Of some completions of this group single tokens were not recorded; they are taken as they were sampled."
    return GroupRecord(step, group, rows, tokens, ids, settings), note


def read_tokens_or_none(run: ShownRun, step: int) -> tuple[list[dict[str, Any]], str]:
    """(the token record of a step, what to say where it cannot be read)."""
    try:
        return read_kept_tokens(run, step), ""
    except NotFound as problem:
        return [], f"{problem} "


def fits(entry: Mapping[str, Any], ids: Mapping[int, tuple[Sequence[int], Any, Any]]) -> bool:
    """Whether a recorded completion is the whole of one in the step's file."""
    row = int(entry["row"])
    return row in ids and list(entry["token_ids"]) == list(ids[row][0])


def read_settings(run: ShownRun) -> Settings:
    """Of the recipe what matters here; a word of it that is not known today costs nothing."""
    recipe = read_recipe(run)
    sampling, train = (as_dict(recipe.get(section)) for section in ("sampling", "train"))
    longest = as_number(sampling.get("max_completion_tokens"))
    if not longest:
        raise NotFound(
            "The run has no recipe.toml that can be read, which says how long completions may be and how rewards are weighed."
        )
    weights = {}
    for entry in recipe.get("rewards") or ():
        known = {key: value for key, value in as_dict(entry).items() if key in ("function", "name", "weight")}
        try:
            reward = RewardConfig.model_validate(known)
        except ValueError:
            continue
        weights[name_reward(reward)] = reward.weight

    def count(name: str) -> int:
        return max(1, int(as_number(train.get(name)) or 1))

    return Settings(
        longest=int(longest),
        weights=weights,
        minibatches=count("minibatches_per_step"),
        passes=count("passes_per_step"),
        seed=int(as_number(recipe.get("seed")) or 0),
        algorithm=read_algorithm(as_dict(recipe.get("algorithm"))),
    )


def read_algorithm(words: Mapping[str, Any]) -> AlgorithmConfig | None:
    try:
        algorithm = AlgorithmConfig.model_validate(words)
    except ValueError:
        return None
    return algorithm if algorithm.chosen.known else None


def find_stamp(run: ShownRun, step: int) -> tuple[tuple[Path, int], ...]:
    """Changes when one of the files of the step does."""
    files = (run.folder.rollouts_file(step), run.folder.tokens_file(step), run.folder.recipe_file)
    return tuple((file, file.stat().st_mtime_ns if file.is_file() else 0) for file in files)


class Kept:
    """A record that is known by the files it was read from."""

    def __init__(self, key: object, record: GroupRecord) -> None:
        self.key, self.record = key, record

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and self.key == other.key


def apply_kept(stamp: object, group: int, record: GroupRecord) -> list[Applied]:
    return apply_once(Kept((stamp, group), record))


@lru_cache(maxsize=8)
def apply_once(kept: Kept) -> list[Applied]:
    """Once for all completions of a group that are looked at."""
    return apply_algorithms(kept.record)


def describe_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"reward": row["reward"], "success": row.get("success"), "length": row.get("length"), "end": row.get("end")}


def show_applied(one: Applied, members: Sequence[int], row: int) -> dict[str, Any]:
    """The algorithm's numbers for a page: every token of one completion, and of the others their means."""
    means: list[float] = []
    sizes: list[float] = []
    for member in members:
        values = [value for value in one.coefficients.get(member, ()) if value is not None]
        means.append(sum(values) / len(values) if values else 0.0)
        sizes += map(abs, values)
    return {
        "name": one.name,
        "words": one.words,
        "missing": one.missing,
        "notes": list(one.notes),
        "coefficients": list(one.coefficients.get(row, ()))[:MOST_TOKENS],
        "weight": one.weights.get(row, 0.0),
        "cut": list(one.cut.get(row, ())),
        "means": means,
        "scale": sorted(sizes)[int(0.95 * (len(sizes) - 1))] if sizes else 0.0,
    }
