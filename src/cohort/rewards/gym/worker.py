"""The reasoning-gym package at work: datasets by name, their entries, their verdicts.

`score_answer` and `make_entries` are the functions of jailed worker processes (see cohort_verify.sandbox): one JSON message in, one JSON
value out. Nothing here decides what an answer may look like; that has been done in the trusted process before.
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
"""Settings that are not the user's. The package's name is the wrong way round: with 1.0 it asks for outputs alone. Of an
input it would accept the stored one only, though others give the same output."""


def create_dataset(name: str, settings: Mapping[str, Any]) -> Any:
    """Raises AssertionError, TypeError or ValueError for settings that the task refuses."""
    dataset_class, config_class = DATASETS[name]
    return dataset_class(config=config_class(**{**settings, **ALWAYS.get(name, {})}))


# ---------------------------------------------------------------------------------------------------------------------
# Scores
# ---------------------------------------------------------------------------------------------------------------------


def score_answer(message: Any) -> dict[str, Any]:
    """{"score": the verifier's number} or, where it raised, {"error": the exception's name}."""
    verifier = cached_verifier(message["task"], json.dumps(message["settings"], sort_keys=True))
    entry = repair_entry(message["task"], message["entry"])
    try:
        # Some verifiers print what they think of a wrong answer, and some change the precision of decimals for good.
        with contextlib.redirect_stdout(io.StringIO()), decimal.localcontext():
            return {"score": float(verifier(message["answer"], entry))}
    except MemoryError:  # a limit of the jail, which reports it
        raise
    except Exception as problem:
        return {"error": type(problem).__name__}


@functools.lru_cache(maxsize=128)
def cached_verifier(name: str, settings_json: str) -> Callable[[str, Any], float]:
    return create_dataset(name, {**json.loads(settings_json), "size": 1, "seed": 0}).score_answer


def repair_entry(name: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry as the verifier expects it where JSON has changed a type: the boards of ARC are tuples of tuples."""
    if name in ("arc_agi", "rearc"):
        board = tuple(tuple(row) for row in entry["metadata"]["output"])
        return {**entry, "metadata": {**entry["metadata"], "output": board}}
    return entry


# ---------------------------------------------------------------------------------------------------------------------
# Entries
# ---------------------------------------------------------------------------------------------------------------------


def make_entries(message: Any) -> list[dict[str, Any] | None]:
    """Entries `start` to `stop` of the dataset with these settings, as plain JSON; None for those that cannot be used."""
    dataset = cached_dataset(message["task"], json.dumps(message["settings"], sort_keys=True))
    return [make_plain_entry(message["task"], dataset, index) for index in range(message["start"], message["stop"])]


@functools.lru_cache(maxsize=4)
def cached_dataset(name: str, settings_json: str) -> Any:
    return create_dataset(name, json.loads(settings_json))


def make_plain_entry(name: str, dataset: Any, index: int) -> dict[str, Any] | None:
    """One entry as JSON values, with an answer where one can be had; None if it is not fit for training."""
    with contextlib.redirect_stdout(io.StringIO()), seed_randomness(f"{dataset.seed}/{index}"):  # some print as they go
        if name == "codeio":
            return make_codeio_entry(dataset, index)
        entry = json.loads(json.dumps(dataset[index], default=write_number))
    # Silence would be right.
    return None if entry["answer"] == "" else entry


@contextlib.contextmanager
def seed_randomness(key: str) -> Iterator[None]:
    """The module's common generator, which list_functions draws from, is seeded for one entry and then as it was before."""
    before = random.getstate()
    random.seed(key)
    try:
        yield
    finally:
        random.setstate(before)


def write_number(value: Any) -> str:
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"an entry holds a {type(value).__name__}, which JSON has no word for")


def make_codeio_entry(dataset: Any, index: int) -> dict[str, Any] | None:
    """The output is what a program of the package's data gives: it must give one, and the same one twice."""
    try:
        first, second = (json.dumps(dataset[index], allow_nan=False) for _ in range(2))
    except (TypeError, ValueError):
        return None
    entry = json.loads(first)
    if first != second or not entry["metadata"]["input_data"] or entry["metadata"]["output_data"] is None:
        return None
    return dict(entry)
