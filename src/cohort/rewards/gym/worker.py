"""Calls of the reasoning-gym package: datasets by name, their entries, their verdicts.

`score_answer` and `make_entries` run in jailed worker processes (cohort_verify.sandbox): one JSON message in, one JSON value out. The
trusted process has already checked the answers (guards.py).
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import reasoning_gym  # noqa: F401  (registers the tasks)
from reasoning_gym.factory import DATASETS

ALWAYS = {"codeio": {"input_prediction_probability": 1.0}}
"""Settings that users cannot change. Despite the name, 1.0 asks only for outputs. The verifier would accept only the stored input,
though others give the same output."""


def create_dataset(name: str, settings: Mapping[str, Any]) -> Any:
    """Raises AssertionError, TypeError or ValueError for settings that the task refuses."""
    dataset_class, config_class = DATASETS[name]
    return dataset_class(config=config_class(**{**settings, **ALWAYS.get(name, {})}))


# ---------------------------------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------------------------------


def score_answer(message: Any) -> dict[str, Any]:
    """{"score": the verifier's number} or, if it raised, {"error": the exception's name}."""
    verifier = cached_verifier(message["task"], json.dumps(message["settings"], sort_keys=True))
    entry = repair_entry(message["task"], message["entry"])
    try:
        # Some verifiers print comments on a wrong answer, and some change the precision of decimals permanently.
        with contextlib.redirect_stdout(io.StringIO()), decimal.localcontext():
            return {"score": float(verifier(message["answer"], entry))}
    except MemoryError:  # a limit of the jail, which reports it itself
        raise
    except Exception as problem:
        return {"error": type(problem).__name__}


@functools.lru_cache(maxsize=128)
def cached_verifier(name: str, settings_json: str) -> Callable[[str, Any], float]:
    return create_dataset(name, {**json.loads(settings_json), "size": 1, "seed": 0}).score_answer


def repair_entry(name: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry with the types that JSON has changed: the boards of ARC are tuples of tuples."""
    if name in ("arc_agi", "rearc"):
        board = tuple(tuple(row) for row in entry["metadata"]["output"])
        return {**entry, "metadata": {**entry["metadata"], "output": board}}
    return entry


# ---------------------------------------------------------------------------------------------------------------------
# Entries
# ---------------------------------------------------------------------------------------------------------------------


def make_entries(message: Any) -> list[dict[str, Any] | None]:
    """Entries `start` to `stop` of the dataset with these settings, as plain JSON; None for unusable ones."""
    dataset = cached_dataset(message["task"], json.dumps(message["settings"], sort_keys=True))
    return [make_plain_entry(message["task"], dataset, index) for index in range(message["start"], message["stop"])]


@functools.lru_cache(maxsize=4)
def cached_dataset(name: str, settings_json: str) -> Any:
    return create_dataset(name, json.loads(settings_json))


def make_plain_entry(name: str, dataset: Any, index: int) -> dict[str, Any] | None:
    """One entry as JSON values; None if it is unfit for training: its answer is empty, so an empty completion would be right."""
    with contextlib.redirect_stdout(io.StringIO()), seed_randomness(f"{dataset.seed}/{index}"):  # some tasks print
        if name == "codeio":
            return make_codeio_entry(dataset, index)
        entry = json.loads(json.dumps(dataset[index], default=write_number))
    return None if entry["answer"] == "" else entry


@contextlib.contextmanager
def seed_randomness(key: str) -> Iterator[None]:
    """Seed the random module's global generator, which list_functions uses, for one entry; then restore it."""
    before = random.getstate()
    random.seed(key)
    try:
        yield
    finally:
        random.setstate(before)


def write_number(value: Any) -> str:
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"an entry holds a {type(value).__name__}, which JSON cannot represent")


def make_codeio_entry(dataset: Any, index: int) -> dict[str, Any] | None:
    """One entry of codeio, whose answer is the output of a program; None if that gives no output, or two different ones."""
    try:
        first, second = (json.dumps(dataset[index], allow_nan=False) for _ in range(2))
    except (TypeError, ValueError):
        return None
    entry = json.loads(first)
    if first != second or not entry["metadata"]["input_data"] or entry["metadata"]["output_data"] is None:
        return None
    return dict(entry)
