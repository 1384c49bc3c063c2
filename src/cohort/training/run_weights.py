"""The weights of a run folder: find them by name, load or export them, and start another run from them.

A run without model/ has checkpoints, which hold only float32 weights: they are loaded into the model that the run started from.
Imports no torch until weights are read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.files import write_whole
from cohort.base.interrupts import defer_interrupts
from cohort.errors import CheckpointError, RunError
from cohort.observe.run_folder import RunFolder, open_run_at
from cohort.recipe.file import dump_recipe
from cohort.recipe.schema import Recipe
from cohort.recipe.values import PYTHON_MODEL, Materials
from cohort.training.python_inputs import save_python_model

if TYPE_CHECKING:
    import torch

    from cohort.model.policy import Policy


@dataclass(frozen=True)
class Target:
    """The location of weights: a model folder or Hub id, or a checkpoint whose weights are loaded into the model of `source`."""

    label: str
    source: str
    checkpoint: Path | None
    recipe: Recipe
    """The recipe that loads or builds the model."""
    folder: RunFolder | None
    description: str = ""
    """Which weights of the run these are."""

    @property
    def starts(self) -> bool:
        """Whether the source is the starting model of the recipe, adapter included, and not a folder that the run wrote."""
        return self.source == "scratch" or (self.folder is not None and self.source == self.recipe.model.source)


def find_weights(folder: RunFolder, which: str, recipe: Recipe) -> Target:
    """Weights of a run. which: final, last, best, start, a step or a checkpoint name; "": final if it exists, else last."""
    if which == "final" or (not which and folder.has_model()):
        if not folder.has_model():
            raise RunError(
                f"{folder.root} has no model/ yet. Finish it with `cohort resume {folder.root}`, or name a --checkpoint."
            )
        return Target(str(folder.root), str(folder.model), None, recipe, folder, "its final model")
    base = str(folder.start) if folder.start.is_dir() else recipe.model.source
    where, description = find_checkpoint(folder, which)
    return Target(f"{folder.root}@{which or 'last'}", base, where, recipe, folder, description)


def find_checkpoint(folder: RunFolder, which: str) -> tuple[Path | None, str]:
    """(checkpoint, or None for the start of the run; its description)."""
    if which == "start":
        return None, "the model it started from"
    if which in ("", "last"):
        return find_last(folder)
    name, best = f"step-{which}" if which.isdecimal() else which, ""
    if which == "best":
        pointer = folder.checkpoints / "best.json"
        if not pointer.is_file():
            raise RunError(f"{folder.root} has no best checkpoint: set evaluation.every_steps to evaluate while training.")
        found = json.loads(pointer.read_text(encoding="utf-8"))
        name, best = found["checkpoint"], f", the best by {found['measure']} on {found['set']}"
    where = folder.checkpoints / name
    if Path(name).name != name or not where.is_dir():
        from cohort.training import checkpoint

        names = [one.name for one in checkpoint.list_checkpoints(folder.checkpoints)]
        known = ", ".join([one for one in names if one.startswith("step-")] or names) or "none"
        raise RunError(f"{folder.root} has no checkpoint {name!r}; it has: {known}.")
    return where, f"checkpoint {name}{best}"


def find_last(folder: RunFolder) -> tuple[Path, str]:
    """The newest complete checkpoint, and its description."""
    from cohort.training import checkpoint

    problems = []
    for where in reversed(checkpoint.list_checkpoints(folder.checkpoints)):
        try:
            checkpoint.verify(where)
        except (CheckpointError, OSError) as problem:
            problems.append(str(problem))
            continue
        missing = "" if folder.has_model() else ", since it has no model/ yet"
        damaged = f" ({len(problems)} newer damaged)" if problems else ""
        return where, f"checkpoint {where.name}, its newest{damaged}{missing}"
    if problems:
        raise RunError(f"{folder.root} has no complete checkpoint: {problems[0]}.")
    raise RunError(f"{folder.root} has neither a model/ nor a checkpoint yet. Resume it with: cohort resume {folder.root}")


def load_weights(target: Target) -> Policy:
    """The policy with these weights, in the compute dtype of its recipe."""
    from cohort.model.optim import MasterWeights
    from cohort.training import build, checkpoint

    recipe, data = target.recipe, build.Data([], {}, None)
    if target.source == "scratch":  # its alphabet depends on its rows
        data = build.load_data(recipe, target.folder.read_kept_rows(recipe) if target.folder else Materials())
    policy = build.load_policy(recipe, data, None if target.starts else target.source)
    weights = MasterWeights(policy.model, build.compute_dtype(recipe))
    if target.checkpoint is not None:
        weights.load(checkpoint.load(target.checkpoint).tensors["weights"])
    return policy


@contextmanager
def follow_products(folder: RunFolder | None, policy: Policy, dtype: torch.dtype) -> Iterator[None]:
    """Multiply with the library that the run in this folder used, or that a new run would choose, within this context."""
    from cohort.ops.products import choose_products, restore_products, use_products

    recorded = folder.read_summary().get("products") if folder else ""
    name = f"the run {folder.root}" if folder else "this"
    with restore_products():
        use_products(recorded or choose_products(policy.model, dtype), policy.model, name)
        yield


# -- export ------------------------------------------------------------------------------------------------------------


def export_weights(target: Target, out: Path, *, adapter: bool = False) -> str:
    """Write a model folder, or only the adapter, and rename it once it is complete; returns a description of the weights.

    It runs in host memory: it needs no GPU, and does not disturb a run that is still training on one.
    """
    from cohort.model import lora

    if adapter and not target.recipe.model.lora.rank:
        raise RunError(f"--adapter: {target.label} trained all weights and has no adapter; leave the option out.")
    folder = target.folder
    whole = target.checkpoint is None and Path(target.source).is_dir()
    if folder and whole and adapter and not lora.is_adapter(target.source):  # merged: the adapter is in the checkpoints
        where, description = find_last(folder)
        target, whole = replace(find_weights(folder, where.name, target.recipe), description=description), False
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    if whole and adapter == lora.is_adapter(target.source):
        shutil.copytree(target.source, temporary)
    else:
        save_weights(target, temporary, adapter)
    if adapter and lora.has_base(temporary):
        lora.name_base(temporary, str(out.resolve()))
    with defer_interrupts():
        temporary.replace(out)
    return target.description


def save_weights(target: Target, folder: Path, adapter: bool) -> None:
    """Save weights in the run's compute dtype on this machine; adapters are merged in float32."""
    import torch

    from cohort.model.optim import cast_parameters

    dtype = target.recipe.model.dtype
    on_host = target.recipe.model.model_copy(update={"device": "cpu", "dtype": "float32"})
    policy = load_weights(replace(target, recipe=target.recipe.model_copy(update={"model": on_host})))
    if not adapter and (dtype == "bfloat16" or (dtype == "auto" and torch.cuda.is_available())):
        policy.model, policy.adapter = policy.merge_model(), None
        cast_parameters(policy.model, torch.bfloat16)
    policy.save(folder, merge=not adapter)


# -- a run, or a Python object, as the start of another run ------------------------------------------------------------


def resolve_models(recipe: Recipe, folder: RunFolder, given: tuple[Any, Any] | None) -> tuple[dict[str, str], list[str]]:
    """(model folders by section, console messages) for sources that are runs, and for a (model, tokenizer) from Python.

    Weights that may change or exist only in memory are saved in the run folder, so that a resume starts from the same ones.
    """
    from cohort.model import lora

    messages, sources = [], {}
    if given is not None:
        save_python_model(*given, folder.base)
        sources["model"] = str(folder.base.resolve())
        messages.append(
            f"model: a {type(given[0]).__name__} from Python, saved in {folder.base}; the object itself is not changed"
        )
    elif recipe.model.source == PYTHON_MODEL:
        raise RunError("the model was passed from Python, and the run ended before saving it: start it again.")
    for section, place in (("model", folder.base), ("teacher", folder.root / "teacher")):
        source = sources.get(section, getattr(recipe, section).source)
        run = open_run_at(Path(source)) if source else None
        if run is None:
            continue
        target = find_weights(run, "", run.recipe())
        is_model = target.checkpoint is None and not lora.is_adapter(target.source)
        if not is_model:
            export_weights(target, place)
        sources[section] = target.source if is_model else str(place.resolve())
        merged = ", its adapter merged" if run.recipe().model.lora.rank else ""
        messages.append(f"{section}: {source} is a run; using {target.description}{merged}")
    if messages and folder.recipe_file.is_file():
        write_whole(folder.recipe_file, dump_recipe(replace_sources(recipe, sources)))
    return sources, messages


def replace_sources(recipe: Recipe, sources: Mapping[str, str]) -> Recipe:
    """The recipe with these sources, by section."""
    changed = {
        section: getattr(recipe, section).model_copy(update={"source": source, "revision": ""})
        for section, source in sources.items()
    }
    return recipe.model_copy(update=changed)
