r"""Tasks of the reasoning-gym package by name: their rows. The reward that scores them is gym_verifier.

    prompts.source    = "gym:chain_sum"
    rewards.0.function = "cohort.rewards.gym.rows:gym_verifier"

Which tasks are served, and how each is guarded, is in docs/gym-tasks.md, made from catalogue.py and guards.py.

Splits. A question belongs to "train" or "held_out" by a hash of its text, so that the two are disjoint whatever the
seeds and the numbers of rows; each split also draws from seeds of its own.

Left out are rows whose right answer is the empty text, which would pay for silence, or is none that the guard admits.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_share
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest
from cohort.rewards.gym.catalogue import FIXED_HASH_TASKS, JAILED_TASKS, require_served
from cohort.rewards.gym.catalogue import REFUSED_TASKS as REFUSED_TASKS
from cohort.rewards.gym.catalogue import SAFE_TASKS as SAFE_TASKS
from cohort.rewards.gym.catalogue import SERVED_TASKS as SERVED_TASKS
from cohort.rewards.gym.extract import extract_answer as extract_answer
from cohort.rewards.gym.golds import find_right_answer
from cohort.rewards.gym.guards import AnswerRefused, admit
from cohort.rewards.gym.verifier import ask_workers
from cohort.rewards.gym.verifier import gym_verifier as gym_verifier
from cohort_verify.sandbox import Limits

HELD_OUT_SHARE = 0.2
DEFAULT_COUNTS = {"train": 1000, "held_out": 200}
CHUNK = 256
"""Entries generated from one derived seed. reasoning-gym seeds entry i with seed + i, so neighbouring seeds overlap."""
SLICE = 2
"""Of them, so many at a time where a worker makes them: some take seconds each."""
TRIES_PER_ROW = 20
"""Entries generated per row wanted before a split counts as exhausted."""
ENTRIES = "cohort.rewards.gym.worker:make_entries"
ENTRIES_LIMITS = Limits(cpu_s=120, wall_s=600, memory_mb=2048, files_mb=1)


def load_gym(name: str, split: str, seed: int, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a reasoning-gym task. args: `count`, and anything the task's own config takes."""
    require_served(name)
    if split not in DEFAULT_COUNTS:
        raise PromptError(
            f"prompts.split: gym tasks have no split {split!r}{suggest_nearest(split, DEFAULT_COUNTS)}; they have train and held_out"
        )
    settings = dict(args)
    count = settings.pop("count", DEFAULT_COUNTS[split])
    if not isinstance(count, int) or count < 1:
        raise PromptError(f"prompts.args.count: give the number of rows, at least 1 (got {count!r})")
    check_settings(name, settings)
    rows: dict[str, dict[str, Any]] = {}
    for tries, entry in enumerate(stream_entries(name, split, seed, settings)):
        if len(rows) == count or tries == count * TRIES_PER_ROW + CHUNK:
            break
        if entry is None or entry["question"] in rows or choose_split(name, entry["question"]) != split:
            continue
        row = make_row(name, entry, settings)
        if admits_own_answer(row):
            rows[entry["question"]] = row
    if not rows:
        raise PromptError(f"prompts.source: gym task {name} has no {split} problem with these arguments; widen prompts.args")
    if len(rows) < count:
        warnings.warn(f"gym task {name}: only {len(rows)} different {split} problems of the {count} asked for", stacklevel=2)
    return list(rows.values())


def make_row(name: str, entry: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "prompt": entry["question"],
        "answer": find_right_answer(name, entry),
        "entry": dict(entry),
        "task": name,
        # Some verifiers read their config (tolerances, for instance): the one that scores must be the one that asked.
        "gym_args": dict(settings),
    }


def admits_own_answer(row: Mapping[str, Any]) -> bool:
    """Whether the row's own answer passes the task's guard. Some do not: of an integral that the package could not solve
    it stores the integral."""
    try:
        return row["answer"] is None or bool(admit(row["task"], row["answer"], row["entry"]))
    except AnswerRefused:
        return False


def choose_split(name: str, question: str) -> str:
    return "held_out" if keyed_share("gym", name, question) < HELD_OUT_SHARE else "train"


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    fields = [field.name for field in dataclasses.fields(load_registry()[name][1]) if field.name not in ("seed", "size")]
    for given in settings:
        if given in ("seed", "size"):
            word = "count" if given == "size" else "the recipe's seed"
            raise PromptError(f"prompts.args.{given}: use {word} instead, from which it is derived")
        if given not in fields:
            raise PromptError(
                f"prompts.args: gym task {name} takes no {given!r}{suggest_nearest(given, [*fields, 'count'])}; it takes count, {', '.join(fields)}"
            )
    if name == "codeio" and "input_prediction_probability" in settings:
        raise PromptError(
            "prompts.args.input_prediction_probability: leave it out. Only outputs are asked for: of an input the verifier "
            "accepts the stored one alone, though others give the same output"
        )
    if name == "rubiks_cube" and settings.get("cube_size", 3) > 3:
        raise PromptError(
            "prompts.args.cube_size: 2 or 3. The package scrambles larger cubes with moves of inner layers, which its verifier "
            "drops from an answer"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Entries
# ---------------------------------------------------------------------------------------------------------------------


def stream_entries(name: str, split: str, seed: int, settings: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
    """An endless stream of entries, each as plain JSON values; None where one was generated that is not fit for training."""
    chunk = 0
    while True:
        derived = keyed_hash("gym", name, seed, split, chunk) % 2**31
        chosen = {**settings, "size": CHUNK, "seed": derived}
        dataset = create_dataset(name, chosen)  # here in any case: what is wrong with the settings is said in words
        if name in FIXED_HASH_TASKS:
            for start in range(0, CHUNK, SLICE):
                yield from make_entries_elsewhere({"task": name, "settings": chosen, "start": start, "stop": start + SLICE})
        else:
            from cohort.rewards.gym.worker import make_plain_entry

            for index in range(CHUNK):
                yield make_plain_entry(name, dataset, index)
        chunk += 1


def make_entries_elsewhere(message: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Entries made with PYTHONHASHSEED=0, which a running process cannot choose: in a worker."""
    task = message["task"]
    refusal = f"prompts.source: gym task {task} makes its problems in a jail"
    [answer] = ask_workers(ENTRIES, [message], ENTRIES_LIMITS, ENTRIES_LIMITS.wall_s, refusal, task in JAILED_TASKS)
    if answer.problem or not isinstance(answer.value, list):
        raise PromptError(f"prompts.source: gym task {task} could not make its problems ({answer.problem}: {answer.detail})")
    return answer.value


def load_registry() -> dict[str, Any]:
    try:
        from cohort.rewards.gym import worker as gym_worker
    except ImportError as problem:
        raise PromptError(
            'prompts.source: "gym:" needs reasoning-gym; install it with: pip install "cohort-rl[gym]"'
        ) from problem
    return dict(gym_worker.DATASETS)


def create_dataset(name: str, settings: Mapping[str, Any]) -> Any:
    load_registry()
    from cohort.rewards.gym.worker import create_dataset as create

    try:
        return create(name, settings)
    except (AssertionError, TypeError, ValueError) as problem:
        raise PromptError(
            f"prompts.args: gym task {name} refuses these arguments: {problem or 'a value is out of range'}"
        ) from problem
