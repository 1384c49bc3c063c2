"""A recipe as people write it: TOML in, `key=value` overrides, errors in words, TOML out.

The schema is recipe/schema.py; here is the grammar around it. Every refusal names the field and the nearest thing that would
have worked, also for the words of other tools.
"""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from cohort.algorithms.presets import PRESETS
from cohort.base.text import has_lone_surrogate, printable
from cohort.errors import RecipeError
from cohort.recipe.refused import why_refused
from cohort.recipe.schema import Recipe
from cohort.recipe.section import nearest
from cohort.recipe.versions import bring_up_to_date, refuse_moved_functions

PREFERRED = {
    "temperature": "sampling.temperature",
    "max_completion_tokens": "sampling.max_completion_tokens",
    "learning_rate": "optimizer.learning_rate",
    "warmup_steps": "optimizer.warmup_steps",
    "num_steps": "train.num_steps",
    "model": "model.source",
    "prompts": "prompts.source",
    "algorithm": "algorithm.name",
    "source": "model.source",
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "teacher": "teacher.source",
    "name": "name",
}
"""Undotted words that several sections share, and the one that is meant."""

OTHER_WORDS = {
    "num_generations": "train.group_size",
    "num_return_sequences": "train.group_size",
    "rollout_n": "train.group_size",
    "n": "train.group_size",
    "G": "train.group_size",
    "per_device_train_batch_size": "train.prompts_per_step",
    "train_batch_size": "train.prompts_per_step",
    "gradient_accumulation_steps": "train.micro_batch_tokens",
    "max_steps": "train.num_steps",
    "steps": "train.num_steps",
    "num_epochs": "train.num_steps",
    "num_train_epochs": "train.num_steps",
    "total_epochs": "train.num_steps",
    "num_iterations": "train.passes_per_step",
    "ppo_epochs": "train.passes_per_step",
    "steps_per_generation": "train.minibatches_per_step",
    "beta": "algorithm.kl_coef",
    "kl_beta": "algorithm.kl_coef",
    "kl_weight": "algorithm.kl_coef",
    "kl_loss_coef": "algorithm.kl_coef",
    "init_kl_coef": "algorithm.kl_coef",
    "sync_ref_model": "algorithm.reference_every",
    "ref_model_sync_steps": "algorithm.reference_every",
    "ref_model_mixup_alpha": "algorithm.reference_decay",
    "epsilon_low": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "clip_range": "algorithm.clip_low and algorithm.clip_high",
    "clip_ratio": "algorithm.clip_low and algorithm.clip_high",
    "clip_eps": "algorithm.clip_low and algorithm.clip_high",
    "clip_epsilon": "algorithm.clip_low and algorithm.clip_high",
    "eps_clip": "algorithm.clip_low and algorithm.clip_high",
    "eps": "algorithm.clip_low and algorithm.clip_high",
    "loss_type": "algorithm.aggregation",
    "scale_rewards": "algorithm.advantage",
    "normalize_std": "algorithm.advantage",
    "mask_truncated_completions": "algorithm.mask_truncated",
    "lr": "optimizer.learning_rate",
    "lr_scheduler_type": "optimizer.schedule",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.epsilon",
    "grad_clip": "optimizer.max_grad_norm",
    "max_completion_length": "sampling.max_completion_tokens",
    "max_new_tokens": "sampling.max_completion_tokens",
    "max_tokens": "sampling.max_completion_tokens",
    "max_prompt_length": "prompts.max_prompt_tokens",
    "use_vllm": "sampling.engine",
    "dataset": "prompts.source",
    "train_dataset": "prompts.source",
    "model_name_or_path": "model.source",
    "enable_thinking": "prompts.template_args.enable_thinking",
    "thinking": "prompts.template_args.enable_thinking",
    "chat_template_kwargs": "prompts.template_args",
    "template_kwargs": "prompts.template_args",
    "chat_template_path": "prompts.chat_template",
    "tokenizer_chat_template": "prompts.chat_template",
    "teacher_model_name_or_path": "teacher.source",
    "reward_funcs": "rewards",
    "reward_weights": "rewards.N.weight",
    "save_steps": "checkpoints.every_steps",
    "save_total_limit": "checkpoints.keep",
    "eval_steps": "evaluation.every_steps",
    "output_dir": "runs_folder",
}
"""What TRL, verl and others call it -> our word. Suggested, never accepted: one concept has one word."""

UNCLEAR_WORDS = {
    "epsilon": "write algorithm.clip_low and algorithm.clip_high for the clip of the ratio, optimizer.epsilon for AdamW's",
    "batch_size": "write train.prompts_per_step (with train.group_size) for training, cold_start.batch_size for demonstrations",
    "kl": "write algorithm.kl_coef for its weight, monitors.kl = true to measure it where the weight is 0",
    "clip": "write algorithm.clip_low and algorithm.clip_high for the clip of the ratio, critic.clip for PPO's value function",
    "coef": "write teacher.coef for the weight of a teacher, algorithm.kl_coef for that of the KL, algorithm.entropy_coef for entropy",
    "epochs": "write train.passes_per_step for passes over each batch, train.num_steps for the length of a run, "
    "reward_model.epochs for the fit of a reward model",
    "loss": "write algorithm.name, algorithm.region and algorithm.aggregation for the policy's, reward_model.loss for a reward model's",
}
"""Words that one section has but that mean something else to most people: refused undotted."""


def load_recipe(
    path: str | Path | None = None, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None
) -> Recipe:
    """Read a TOML recipe, apply `key=value` overrides, then already typed values (the Python API), and validate."""
    tree = {} if path is None else read_tree(path)
    for key, value in sorted(map(parse_override, overrides), key=turn):
        assign(tree, key, value)
    for key, value in sorted((values or {}).items(), key=turn):
        assign(tree, key, os.fspath(value) if isinstance(value, os.PathLike) else value)
    return build_recipe(tree)


def read_tree(path: str | Path) -> dict[str, Any]:
    """The words of a recipe file of any version, in those of today."""
    try:
        tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise RecipeError(f"recipe {path}: {problem.strerror or problem}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise RecipeError(f"recipe {path} is not valid TOML: {problem}") from problem
    try:
        return bring_up_to_date(tree)
    except RecipeError as problem:
        raise RecipeError(f"recipe {path}: {problem}") from None


def parse_override(override: str) -> tuple[str, Any]:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise RecipeError(f"override {override!r}: write key=value, for example group_size=4")
    return key.strip(), parse_value(text.strip())


def build_recipe(tree: Mapping[str, Any]) -> Recipe:
    refuse_unwritable(tree, "")
    refuse_moved_functions(tree)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as problem:
        # A union reports each of its branches; the literal one says nothing that the other does not.
        errors = [error for error in problem.errors() if not str(error["loc"][-1:]).startswith('("literal[')]
        raise RecipeError("\n".join(explain(error) for error in errors or problem.errors())) from None


def refuse_unwritable(node: Any, path: str) -> None:
    """What cannot be written into recipe.toml is refused before a run depends on it: None, and half a surrogate pair."""
    if node is None:
        raise RecipeError(f"{path}: None, but a recipe has no null; leave the key out, or give the value that switches it off")
    if isinstance(node, str) and has_lone_surrogate(node):
        raise RecipeError(
            f"{printable(path)}: {printable(node)!r} holds a character that cannot be written as UTF-8 (half of a surrogate pair, or a byte "
            "of another encoding); leave it out"
        )
    if isinstance(node, Mapping | list | tuple):
        for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            refuse_unwritable(str(key), f"{path} (a key)")
            refuse_unwritable(value, f"{path}.{key}" if path else str(key))


def parse_value(text: str) -> Any:
    """A TOML value; anything that is not one is taken as a plain string, so that paths and dates need no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed.get("value")
    return value if len(parsed) == 1 and isinstance(value, str | bool | int | float | list | dict) else text


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted or undotted key. `rewards.0.weight=2` reaches into lists. A section changes in the words that are named."""
    names = (key if "." in key or is_section_value(key, value) else resolve_undotted(key)).split(".")
    if names[0] == "rewards" and len(names) > 1 and "rewards" not in tree:
        tree["rewards"] = [reward.model_dump(exclude_defaults=True) for reward in Recipe().rewards]
    if names == ["algorithm", "name"]:
        forget_preset(tree, value)
    node: Any = tree
    for depth, name in enumerate(names[:-1]):
        try:
            node = node[int(name)] if isinstance(node, list) else node.setdefault(name, {})
        except (ValueError, IndexError):
            raise RecipeError(
                f"{key}: {'.'.join(names[: depth + 1])} is not in the recipe; {names[depth - 1]} has entries 0 to {len(node) - 1}"
            ) from None
        if not isinstance(node, dict | list):
            raise RecipeError(f"{key}: {'.'.join(names[: depth + 1])} is a value, not a section")
    if isinstance(node, list):
        raise RecipeError(f"{key}: name a field of the entry, for example rewards.0.weight=2")
    if isinstance(value, Mapping) and is_section(names):
        node.setdefault(names[-1], {})
        for word, inner in sorted(value.items(), key=lambda item: item[0] != "name"):  # as with words of their own
            assign(tree, ".".join([*names, str(word)]), inner)
    else:
        node[names[-1]] = copy.deepcopy(value)  # the next word may reach into it, and it is the caller's


def turn(word: tuple[str, Any]) -> int:
    """When a word is applied: a name of an algorithm first, for the choices beside it are meant to change the one it names."""
    key, value = word
    if key not in ("algorithm", "algorithm.name"):
        return 2
    return 1 if isinstance(value, Mapping) else 0


def forget_preset(tree: dict[str, Any], name: Any) -> None:
    """Naming another algorithm replaces every choice that some preset makes: the word then means what it means elsewhere, and
    not a mixture with what the recipe had tuned for another. Choices that no preset makes stay."""
    section = tree.get("algorithm")
    if isinstance(section, dict) and name != section.get("name", "grpo"):
        # The presets name every choice that could be a user's function, so nobody is left to take its arguments.
        for choice in {"args", *(choice for preset in PRESETS.values() for choice in preset)}:
            section.pop(choice, None)


def is_section_value(key: str, value: Any) -> bool:
    """`rewards=[...]` is the whole list; `sampling={...}` are some words of a section."""
    return key in Recipe.model_fields and isinstance(value, dict | list)


def is_section(names: Iterable[str]) -> bool:
    annotation, _ = walk(names)
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def resolve_undotted(key: str) -> str:
    if key in PREFERRED:
        return PREFERRED[key]
    if key in UNCLEAR_WORDS:
        raise RecipeError(f"{key}: {UNCLEAR_WORDS[key]}")
    paths = [path for path, _ in leaf_fields(Recipe)]
    matches = [path for path in paths if path.rsplit(".", 1)[-1] == key]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RecipeError(f"{key}: several sections have it; write one of {', '.join(matches)}")
    if key in Recipe.model_fields:
        raise RecipeError(f"{key}: it is a section; write {key}.KEY=value with one of {', '.join(section_fields((key,)))}")
    raise RecipeError(
        f"unknown recipe key {key!r}{suggestion(key, [*(path.rsplit('.', 1)[-1] for path in paths), *Recipe.model_fields])}"
    )


def leaf_fields(section: type[BaseModel], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted path, pydantic field) of every plain setting, in the order of the sections."""
    leaves: list[tuple[str, Any]] = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            leaves += leaf_fields(inner, f"{prefix}{name}.")
        else:
            leaves.append((f"{prefix}{name}", field))
    return leaves


def suggestion(word: str, siblings: Sequence[str], section: str = "") -> str:
    """The word that was probably meant: a neighbour's spelling, our word for another tool's, or the section it lives in."""
    if word in OTHER_WORDS:
        ours = OTHER_WORDS[word]
        own = ours.rpartition(".")[2]  # [cold_start] has a learning_rate of its own
        return f"; here it is called {f'{section}.{own}' if section and own in siblings and ' and ' not in ours else ours}"
    if reason := why_refused(word):
        return f": {reason}"
    homes = [path for path, _ in leaf_fields(Recipe) if path.rsplit(".", 1)[-1] == word]
    return nearest(word, siblings) or (f"; it belongs to {' or '.join(homes)}" if homes else "")


def walk(path: Iterable[Any]) -> tuple[Any, Any]:
    """(annotation, field) at a path of keys, through sections, lists, dicts and unions; the field is None inside a container."""
    annotation: Any = Recipe
    field: Any = None
    for part in path:
        options = [annotation, *get_args(annotation)]
        section = next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)
        if get_origin(annotation) in (list, dict):
            annotation, field = get_args(annotation)[-1], None
        elif section is not None and part == section.__name__:
            annotation, field = section, None  # pydantic names the branch of a union in the path
        elif section is not None and part in section.model_fields:
            field = section.model_fields[part]
            annotation = field.annotation
        else:
            return None, None
    return annotation, field


def section_fields(path: Iterable[Any]) -> list[str]:
    annotation, _ = walk(path)
    options = [annotation, *get_args(annotation)]
    return next(
        (list(option.model_fields) for option in options if isinstance(option, type) and issubclass(option, BaseModel)), []
    )


def explain(error: Mapping[str, Any]) -> str:
    """One pydantic error in words: the field, what is wrong, and the fix where it is known."""
    location, kind, given = error["loc"], error["type"], error["input"]
    shown = [str(part) for part in location if not (isinstance(part, str) and part.endswith("Config"))]
    path, parent, key = ".".join(shown), ".".join(shown[:-1]), shown[-1] if shown else ""
    if kind == "extra_forbidden":
        siblings = section_fields(location[:-1])
        return f"unknown recipe key {key!r}{f' in [{parent}]' if parent else ''}{suggestion(key, siblings, parent)}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not path:
        return message
    if kind in ("model_type", "dict_type") and key.isdigit():
        message = f'each entry is a table, for example {{ function = "{given}" }}'
    elif kind in ("model_type", "dict_type"):
        message = f"it is a section; write {path}.KEY=value with one of {', '.join(section_fields(location)) or 'its keys'}"
    elif path == "rewards" and kind == "list_type":
        message = f'it is a list of tables; write [[rewards]] in the recipe, or rewards=[{{function="{given}"}}]'
    elif path == "rewards" and kind == "too_short":
        message = 'at least 1 reward is needed, for example rewards=[{function="math_answer"}]'
    elif kind == "string_type" and not isinstance(given, Mapping | list):
        message += f""", write it in quotes: {path}='"{given}"'"""
    elif kind == "literal_error" and isinstance(given, str):
        message += nearest(given, [str(choice) for choice in get_args(walk(location)[0])])
    got = "" if isinstance(given, Mapping) else f" (got {given!r})"
    _, field = walk(location)
    about = f". {field.description}" if field is not None and field.description and kind != "value_error" else ""
    return f"{path}: {message}{got}{about}"


def dump_recipe(recipe: Recipe) -> str:
    """TOML with every default written out; reading it back gives the same recipe."""
    return tomli_w.dumps(recipe.model_dump(mode="python"), multiline_strings=False)
