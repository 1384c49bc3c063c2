"""What a resumed run reads beside its checkpoint, and whether that is still what it was.

A checkpoint is checked byte by byte (checkpoint.py), and weights, prompts and problems by digests of their own. The rest is here: the
small files of models (config, tokenizer, chat template), which decide as much as the weights do; the code of rewards; the recipe.
What would make a mixture is refused. What a person may mean to change in the middle, a reward or a setting, is mentioned.
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
"""The place of the model that the cold start left, in the run folder."""
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
"""What transformers and PEFT read of a model beside its weights, and what no checkpoint holds."""
MOST_SHOWN = 6


def digest_files(folder: Path) -> dict[str, str]:
    """Of the small files of a model folder; empty for what is no folder."""
    found = {name: folder / name for name in SMALL_FILES}
    return {name: digest_file(file) for name, file in found.items() if file.is_file()}


def read_files(recipe: Recipe, model: Any) -> dict[str, dict[str, str]]:
    """By place: the files that every start of this run reads. model: as loaded; one of the hub knows its commit."""
    sources = {
        "model.source": recipe.model.source,
        "model.lora.adapter": recipe.model.lora.adapter,
        "teacher.source": recipe.teacher.source,
        "reward_model.source": recipe.reward_model.source,
    }
    found = {place: digest_files(Path(source)) for place, source in sources.items() if source}
    commit = getattr(model.config, "_commit_hash", None)
    if commit and not found["model.source"]:
        found["model.source"] = {"the commit on the hub": str(commit)}
    rewards = {place: digest_reward_module(reward.function) for place, reward in recipe.list_rewards().items()}
    return {place: files for place, files in (found | rewards).items() if files}


def digest_reward_module(function: str) -> dict[str, str]:
    """The module of a user's function that is named in the recipe, found without being imported; empty for all others."""
    module, _, name = function.partition(":")
    path: list[str] | None = None
    origin: str | None = None
    for part in module.split(".") if name and not is_own(module) else []:
        spec = PathFinder.find_spec(part, path)
        origin, path = (spec.origin, list(spec.submodule_search_locations or ())) if spec else (None, [])
    file = Path(origin) if origin else None
    return {file.name: digest_file(file)} if file and file.is_file() else {}


def refuse_other_files(saved: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> None:
    """A model whose config or tokenizer has changed is another model. Places without a record are not judged."""
    for place, before in saved.items():
        changed = differing(before, now.get(place, {})) if before and "rewards." not in place else []
        if changed:
            raise RunError(
                f"{place}: {', '.join(changed)} is not what it was when the run was started. Going on would train a mixture of two "
                "models: restore it, or start a new run."
            )


def refuse_mixtures(
    saved: Mapping[str, Any], now: TrainState, encoded: EncodedData, recipe: Recipe, files: Mapping[str, Mapping[str, str]]
) -> None:
    """What a run learns from, and is measured on, must be what it was; `saved` is the document of the checkpoint."""
    if saved["data_digest"] != now.data_digest:
        raise RunError(
            f"the prompts or demonstrations are not those the run was started with (prompts.source = {recipe.prompts.source!r}). Going "
            "on would train on a mixture: restore the data, or start a new run."
        )
    if saved["base_digest"] != now.base_digest:
        raise RunError(
            f"the base in {recipe.model.source} is not the one the run was started with, or the adapter has other shapes; the "
            "checkpoints hold the adapter alone. Restore the base, or start a new run."
        )
    refuse_other_files({place: record for place, record in saved["files"].items() if place != START}, files)
    before, problems = saved["evaluation_digests"] or {}, encoded.evaluation_digests()
    if changed := [repr(name) for name in before if name in problems and before[name] != problems[name]]:
        raise RunError(
            f"the problems of evaluation set {', '.join(changed)} are not those the run was started with, so what is measured from here "
            "on could not be compared with what was measured before. Restore them; or go on without evaluation (evaluation.samples = 0 "
            "in the run's recipe.toml); or start a new run."
        )


def write_down(state: TrainState, encoded: EncodedData, recipe: Recipe, files: Mapping[str, Mapping[str, str]]) -> None:
    """What the next resume is held against."""
    state.files = {**state.files, **{place: dict(record) for place, record in files.items()}}
    state.evaluation_digests = {**(state.evaluation_digests or {}), **encoded.evaluation_digests()}
    state.recipe = recipe.model_dump(mode="json")


def mention_changes(saved: Mapping[str, Any], recipe: Recipe, files: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Sentences on what may change within a run and has: settings of the recipe, the code of rewards."""
    before, now = dict(flatten(saved["recipe"])), dict(flatten(recipe.model_dump(mode="json")))
    if before.get("version") == now["version"]:
        edits = [f"{key} {before[key]!r} -> {now[key]!r}" for key in before if key in now and before[key] != now[key]]
        if edits:
            more = f" and {len(edits) - MOST_SHOWN} more" if len(edits) > MOST_SHOWN else ""
            yield f"recipe.toml was edited since the run was saved, and goes on as it says now: {', '.join(edits[:MOST_SHOWN])}{more}"
    for place, code in saved["files"].items():
        if "rewards." in place and (changed := differing(code, files.get(place, {}))):
            yield f"{place}: {', '.join(changed)} is not what it was when the run was started; scores before and after may differ"
    if saved["evaluation_digests"] is None:
        yield (
            "the run was started by an earlier cohort, which wrote down neither its evaluation problems nor the files of its model, "
            "and of frozen weights the first values alone: a change of the rest could not be seen"
        )


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every leaf of a recipe's sections; lists and free tables are leaves."""
    for name, value in node.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, Mapping) and name not in ("args", "sets"):
            yield from flatten(value, place)
        else:
            yield place, value
