"""Checks that the inputs of a resumed run have not changed: files of models, data, reward code and recipe.

Checkpoints are verified byte by byte (checkpoint.py); weights, prompts and problems have separate digests. This module covers the
rest: the small files of models (config, tokenizer, chat template), the code of rewards, and the recipe. A change that would mix two
models or datasets is refused; a change that may be intended, of a reward or a setting, is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from cohort.base.importing import is_own
from cohort.errors import RunError
from cohort.recipe.schema import Recipe
from cohort.training.build import EncodedData
from cohort.training.checkpoint import digest_file
from cohort.training.state import TrainState

START = "start"
"""Name, among the recorded files, of the model that the cold start saved in the run folder."""
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files besides the weights that transformers and PEFT read from a model folder. No checkpoint holds them."""
MOST_SHOWN = 6


def digest_files(folder: Path) -> dict[str, str]:
    """Digests of the small files of a model folder; empty if there is no such folder."""
    found = {name: folder / name for name in SMALL_FILES}
    return {name: digest_file(file) for name, file in found.items() if file.is_file()}


def read_files(recipe: Recipe, model: Any) -> dict[str, dict[str, str]]:
    """Recipe key -> digests of the files that this run reads at every start. model: as loaded."""
    sources = {
        "model.source": recipe.model.source,
        "model.lora.adapter": recipe.model.lora.adapter,
        "teacher.source": recipe.teacher.source,
        "reward_model.source": recipe.reward_model.source,
    }
    found = {place: digest_files(Path(source)) for place, source in sources.items() if source}
    commit = getattr(model.config, "_commit_hash", None)
    if commit and not found["model.source"]:
        found["model.source"] = {"the commit on the Hub": str(commit)}
    rewards = {place: digest_reward_module(reward.function) for place, reward in recipe.list_rewards().items()}
    return {place: files for place, files in (found | rewards).items() if files}


def digest_reward_module(function: str) -> dict[str, str]:
    """Digest of the file with a user's reward function, found without importing it; empty for other rewards."""
    module, _, name = function.partition(":")
    path: list[str] | None = None
    origin: str | None = None
    for part in module.split(".") if name and not is_own(module) else []:
        spec = PathFinder.find_spec(part, path)
        origin, path = (spec.origin, list(spec.submodule_search_locations or ())) if spec else (None, [])
    file = Path(origin) if origin else None
    return {file.name: digest_file(file)} if file and file.is_file() else {}


def refuse_changed_files(saved: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse changed model files: another config or tokenizer makes another model. Files without a record are not checked."""
    for place, before in saved.items():
        changed = list_differences(before, now.get(place, {})) if before and "rewards." not in place else []
        if changed:
            raise RunError(
                f"{place}: {', '.join(changed)} has changed since the run was started. A resume would train a mixture of two models: "
                "restore the file, or start a new run."
            )


def refuse_changed_inputs(
    saved: Mapping[str, Any], now: TrainState, encoded: EncodedData, recipe: Recipe, files: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse changed prompts, base weights, model files or evaluation problems. saved: the checkpoint's document."""
    if saved["data_digest"] != now.data_digest:
        raise RunError(
            f"the prompts or demonstrations have changed since the run was started (prompts.source = {recipe.prompts.source!r}). A resume "
            "would train on a mixture: restore the data, or start a new run."
        )
    if saved["base_digest"] != now.base_digest:
        raise RunError(
            f"the base in {recipe.model.source} has changed since the run was started, or the adapter has other shapes; checkpoints "
            "hold the adapter only. Restore the base, or start a new run."
        )
    refuse_changed_files({place: record for place, record in saved["files"].items() if place != START}, files)
    before, problems = saved["evaluation_digests"], encoded.evaluation_digests()
    if changed := [repr(name) for name in before if name in problems and before[name] != problems[name]]:
        raise RunError(
            f"the problems of evaluation set {', '.join(changed)} have changed since the run was started, so later results could not be "
            "compared with earlier ones. Restore them; or resume without evaluation (evaluation.samples = 0 in the run's recipe.toml); or "
            "start a new run."
        )


def record_inputs(state: TrainState, encoded: EncodedData, recipe: Recipe, files: Mapping[str, Mapping[str, str]]) -> None:
    """Record what the next resume compares."""
    state.files |= {place: dict(record) for place, record in files.items()}
    state.evaluation_digests |= encoded.evaluation_digests()
    state.recipe = recipe.model_dump(mode="json")


def describe_edits(saved: Mapping[str, Any], recipe: Recipe, files: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Messages about changes that are allowed within a run: settings of the recipe, the code of rewards."""
    before, now = dict(flatten(saved["recipe"])), dict(flatten(recipe.model_dump(mode="json")))
    if edits := [f"{key} {before[key]!r} -> {now[key]!r}" for key in before if key in now and before[key] != now[key]]:
        more = f" and {len(edits) - MOST_SHOWN} more" if len(edits) > MOST_SHOWN else ""
        yield f"recipe.toml was edited since the run was saved; the new settings apply: {', '.join(edits[:MOST_SHOWN])}{more}"
    for place, code in saved["files"].items():
        if "rewards." in place and (changed := list_differences(code, files.get(place, {}))):
            yield f"{place}: {', '.join(changed)} has changed since the run was started; scores before and after may differ"


def list_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting; lists and free tables are single values."""
    for name, value in node.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, Mapping) and name not in ("args", "sets"):
            yield from flatten(value, place)
        else:
            yield place, value
