"""Reads recipes: a TOML file plus `key=value` overrides; writes them as TOML; and the built-in recipes.

The schema is recipe/schema.py. Every error names the field and, where there is one, the nearest key or the key for TRL's name.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from cohort.algorithms.named import PRESETS
from cohort.base.text import has_lone_surrogate, make_printable
from cohort.errors import RecipeError
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.trl_names import COUNTING, EXPLAINED, TRL_NAMES, convert_value

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
    "environment": "environment.source",
    "name": "name",
}
"""Keys without a section that several sections share, and the one that is meant."""

UNKNOWN = object()
"""A value that is not known."""
NOTHING: Mapping[str, Any] = {}

BUILT_IN_FOLDER = Path(__file__).parent / "built_in"
DEMO = "column_addition"

# -- reading -----------------------------------------------------------------------------------------------------------


def load_recipe(
    path: str | Path | None = None, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None
) -> Recipe:
    """Read a TOML recipe, apply `key=value` overrides, then typed values (from Python), and validate the result."""
    tree = {} if path is None else read_tree(path)
    parsed, values = [parse_override(override) for override in overrides], values or {}
    given = {key.rpartition(".")[2]: value for key, value in [*parsed, *values.items()]}
    problems = []
    for settings in (parsed, list(values.items())):
        setter: dict[str, str] = {}
        for key, value in sorted(settings, key=order_setting):
            try:
                for leaf in assign(tree, key, value, given):
                    if setter.setdefault(leaf, key) != key:
                        problems.append(f"{setter[leaf]} and {key} both set {leaf}: leave one of them out")
            except RecipeError as problem:
                problems.append(str(problem))
    if problems:  # all at once: users of TRL bring several of its names
        raise RecipeError("\n".join(problems))
    if path is not None and not tree:
        raise RecipeError(
            f"recipe {path} is empty: name at least model.source, prompts.source and rewards. `cohort train` without a recipe runs the demo"
        )
    return build_recipe(tree)


def read_tree(path: str | Path) -> dict[str, Any]:
    """The settings in a recipe file, not yet validated."""
    text = ""
    try:
        data = Path(path).read_bytes()
        if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:2]:
            raise RecipeError(f"recipe {path} is UTF-16; save it as UTF-8")
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        return tomllib.loads(text)
    except OSError as problem:
        raise RecipeError(f"recipe {path}: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise RecipeError(
            f"recipe {path} is not UTF-8 (byte {data[problem.start]:#x} at {problem.start}); save it as UTF-8"
        ) from problem
    except tomllib.TOMLDecodeError as problem:
        repeated = re.search(r"^Cannot (?:overwrite|declare|mutate).*line (\d+)", str(problem))
        said = (
            f"line {repeated[1]} repeats {text.splitlines()[int(repeated[1]) - 1].strip()!r}; keep one" if repeated else problem
        )
        raise RecipeError(f"recipe {path} is not valid TOML: {said}") from problem


def parse_override(override: str) -> tuple[str, Any]:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise RecipeError(f"override {override!r}: write key=value, for example group_size=4")
    return key.strip(), parse_value(text.strip())


def build_recipe(tree: Mapping[str, Any]) -> Recipe:
    """Validate a tree of settings."""
    refuse_unwritable(tree, "")
    try:
        return Recipe.model_validate(tree)
    except ValidationError as problem:
        # A union reports each of its branches; the literal branch adds nothing to the other one.
        errors = [error for error in problem.errors() if not str(error["loc"][-1:]).startswith('("literal[')]
        given = dict(list_leaves(tree))
        raise RecipeError("\n".join(explain_error(error, given) for error in errors or problem.errors())) from None


def refuse_unwritable(node: Any, path: str) -> None:
    """Refuse what recipe.toml could not hold: None, and half of a surrogate pair."""
    if node is None:
        raise RecipeError(f"{path}: a recipe has no null (got None); leave the key out, or set the value that switches it off")
    if isinstance(node, str) and has_lone_surrogate(node):
        raise RecipeError(
            f"{make_printable(path)}: {make_printable(node)!r} contains a character that cannot be written as UTF-8 (half of a surrogate "
            "pair, or a byte of another encoding); remove it"
        )
    if isinstance(node, Mapping | list | tuple):
        for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            refuse_unwritable(str(key), f"{path} (a key)")
            refuse_unwritable(value, f"{path}.{key}" if path else str(key))


def parse_value(text: str) -> Any:
    """The text as a TOML value, or as plain text if it is none, so that paths and dates need no quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed.get("value")
    return value if len(parsed) == 1 and isinstance(value, str | bool | int | float | list | dict) else text


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as TOML with every default written out; reading it gives the same recipe."""
    return tomli_w.dumps(recipe.model_dump(mode="python"), multiline_strings=False)


# -- settings ----------------------------------------------------------------------------------------------------------


def assign(tree: dict[str, Any], key: str, value: Any, given: Mapping[str, Any] = NOTHING) -> list[str]:
    """Set a key, with or without its section; returns the paths that it sets. `rewards.0.weight=2` reaches into lists. A section changes
    only in the keys that are named.

    given: all settings that were given, for the hint on one of TRL's names.
    """
    names = (key if "." in key or is_section_value(key, value) else resolve_undotted(key, value, given)).split(".")
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
    annotation = walk(names)[0]
    if isinstance(value, Mapping) and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        node.setdefault(names[-1], {})
        inner = sorted(value.items(), key=lambda item: item[0] != "name")  # as in order_setting
        return [path for name, one in inner for path in assign(tree, ".".join([*names, str(name)]), one, given)]
    node[names[-1]] = make_plain(value)
    return [".".join(names)]


def make_plain(value: Any) -> Any:
    """The value as a recipe holds it: paths, torch.device and torch.dtype as text; a copy, since a later setting may reach into it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "torch" and type(value).__name__ in ("device", "dtype"):
        return str(value).removeprefix("torch.")
    return copy.deepcopy(value)


def list_paths(values: Mapping[str, Any]) -> set[str]:
    """The paths that these settings set; unknown keys are left out."""
    paths: set[str] = set()
    for key, value in values.items():
        with contextlib.suppress(RecipeError):
            paths |= {*assign({}, key, value)}
    return paths


def order_setting(setting: tuple[str, Any]) -> int:
    """The sort key of a setting: the name of an algorithm is applied first, since other choices change the preset that it names."""
    key, value = setting
    if key not in ("algorithm", "algorithm.name"):
        return 2
    return 1 if isinstance(value, Mapping) else 0


def forget_preset(tree: dict[str, Any], name: Any) -> None:
    """Remove every choice that some preset makes when another algorithm is named.

    The name then means the same as elsewhere, not a mixture with what the recipe had tuned for another algorithm. Choices that no
    preset makes stay.
    """
    section = tree.get("algorithm")
    if isinstance(section, dict) and name != section.get("name", "grpo"):
        # Presets name every choice that could be a user's function, so no function is left to take its arguments.
        for choice in {"args", *(choice for preset in PRESETS.values() for choice in preset)}:
            section.pop(choice, None)


def is_section_value(key: str, value: Any) -> bool:
    """Whether a key names a whole section or list: `rewards=[...]`, `sampling={...}`."""
    return key in Recipe.model_fields and isinstance(value, dict | list)


def resolve_undotted(key: str, value: Any = UNKNOWN, given: Mapping[str, Any] = NOTHING) -> str:
    """The full path of a key without its section. value, given: its value and the other settings, for the hint if it is unknown."""
    if key in PREFERRED:
        return PREFERRED[key]
    if key in EXPLAINED:
        raise RecipeError(f"{key}: {EXPLAINED[key]}")
    paths = [path for path, _ in list_leaf_fields(Recipe)]
    matches = [path for path in paths if path.rsplit(".", 1)[-1] == key]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RecipeError(f"{key}: several sections have this key; write one of {', '.join(matches)}")
    section = key if key in Recipe.model_fields else f"model.{key}"  # lora={"rank": 16}
    if keys := list_keys(section.split(".")):
        if isinstance(value, Mapping):
            return section
        raise RecipeError(f"{key}: this is a section; write {section}.KEY=value with one of {', '.join(keys)}")
    known = [*(path.rsplit(".", 1)[-1] for path in paths), *Recipe.model_fields]
    raise RecipeError(f"unknown recipe key {key!r}{suggest_key(key, known, value=value, given=given)}")


def list_leaf_fields(section: type[BaseModel], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted path, pydantic field) of every plain setting, in the order of the sections."""
    leaves: list[tuple[str, Any]] = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            leaves += list_leaf_fields(inner, f"{prefix}{name}.")
        else:
            leaves.append((f"{prefix}{name}", field))
    return leaves


def list_leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """(last name, value) of everything in a tree of tables."""
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from list_leaves(inner, (*path, str(name)))
    elif path:
        yield path[-1], node


def pick_section(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation is, or that is one of its branches."""
    options = [annotation, *get_args(annotation)]
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def walk(path: Iterable[Any]) -> tuple[Any, Any]:
    """(annotation, field) at a path of keys, through sections, lists, dicts and unions; the field is None inside a container."""
    annotation: Any = Recipe
    field: Any = None
    for part in path:
        section = pick_section(annotation)
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


def list_keys(path: Iterable[Any]) -> list[str]:
    """The keys of the section at a path; empty if there is no section."""
    section = pick_section(walk(path)[0])
    return list(section.model_fields) if section else []


# -- error messages ----------------------------------------------------------------------------------------------------


def suggest_key(
    key: str,
    siblings: Sequence[str],
    section: str = "",
    value: Any = UNKNOWN,
    given: Mapping[str, Any] = NOTHING,
    dotted: bool = False,
) -> str:
    """The key that was probably meant: a similar spelling, the key for TRL's name, or the section that has this key."""
    if ours := TRL_NAMES.get(key, ""):
        own = ours.rpartition(".")[2]  # [cold_start] has its own learning_rate
        if section and own in siblings and f"{section}.{own}" != ours:
            return f"; here it is called {section}.{own}"
        return f"; here it is called {ours}{convert_to_hint(key, value, given, dotted)}"
    if key in EXPLAINED:
        return f": {EXPLAINED[key]}"
    homes = [path for path, _ in list_leaf_fields(Recipe) if path.rsplit(".", 1)[-1] == key]
    homes = [PREFERRED[key]] if key in PREFERRED else homes
    return suggest_nearest(key, siblings) or (f"; it belongs to {' or '.join(homes)}" if homes else "")


def convert_to_hint(name: str, value: Any, given: Mapping[str, Any], dotted: bool) -> str:
    """The setting that replaces one of TRL's, as it is typed, and the rule where the two count different things: ": write kl_coef=0.04"."""
    ours = {} if value is UNKNOWN else convert_value(name, value, given)
    written = " ".join(f"{path if dotted else shorten_path(path)}={format_value(inner)}" for path, inner in ours.items())
    rule = f" ({COUNTING[name]})" if name in COUNTING and value is not UNKNOWN else ""
    return (f": write {written}" if written else "") + rule


def write_override(key: str, text: str) -> str:
    """`key=text` if a recipe has the key; else the hint on it, or "" without one."""
    try:
        if "." in key and walk(key.split("."))[0] is None:
            raise RecipeError(explain_unknown(key.split("."), parse_value(text)))
        if "." not in key:
            resolve_undotted(key, parse_value(text))
        return f"{key}={text}"
    except RecipeError as problem:
        return str(problem) if key.rpartition(".")[2] in {*TRL_NAMES, *EXPLAINED} or ";" in str(problem) else ""


def shorten_path(path: str) -> str:
    """The shortest form of a path that the command line and Python accept."""
    key = path.rpartition(".")[2]
    try:
        return key if resolve_undotted(key) == path else path
    except RecipeError:
        return path


def format_value(value: Any) -> str:
    """The value as it is typed: text without quotes, floats without noise."""
    if isinstance(value, str):
        return value
    return f"{value:.12g}" if isinstance(value, float) else json.dumps(value, default=str)


def explain_error(error: Mapping[str, Any], given: Mapping[str, Any] = NOTHING) -> str:
    """One error of pydantic as a message: the field, the fault, and the fix where it is known."""
    location, kind, value = error["loc"], error["type"], error["input"]
    if kind == "extra_forbidden":
        return explain_unknown(location, value, given)
    path, message = ".".join(list_parts(location)), str(error["msg"]).removeprefix("Value error, ")
    if not path:
        return message
    got = "" if isinstance(value, Mapping) else f" (got {value!r})"
    _, field = walk(location)
    about = f". {field.description}" if field is not None and field.description and kind != "value_error" else ""
    return f"{path}: {explain_form(kind, path, location, value) or message}{add_hint(kind, path, location, value)}{got}{about}"


def explain_form(kind: str, path: str, location: Sequence[Any], value: Any) -> str:
    """What to write for a value that should be a section or a list; "" where pydantic's own message suffices."""
    if kind in ("model_type", "dict_type") and path.rpartition(".")[2].isdigit():
        return f'each entry is a table, for example {{ function = "{value}" }}'
    if kind == "model_type" and isinstance(value, list):
        return f"this is one section: write [{path}] in the recipe, with single brackets"
    if kind in ("model_type", "dict_type"):
        return f"this is a section; write {path}.KEY=value with one of {', '.join(list_keys(location)) or 'its keys'}"
    example = "" if isinstance(value, Mapping) else f', or rewards=[{{function="{value}"}}]'
    rewards = {
        "list_type": f"this is a list of tables; write [[rewards]] in the recipe, with double brackets{example}",
        "too_short": 'at least 1 reward is needed, for example rewards=[{function="math_answer"}]',
    }
    return rewards.get(kind, "") if path.rpartition(".")[2] == "rewards" else ""


def add_hint(kind: str, path: str, location: Sequence[Any], value: Any) -> str:
    """What follows pydantic's message: missing quotes, or the choice that was probably meant."""
    if kind == "string_type" and not isinstance(value, Mapping | list):
        return f""", write it in quotes: {path}='"{value}"'"""
    if kind == "literal_error" and isinstance(value, str):
        return suggest_nearest(value, [str(choice) for choice in get_args(walk(location)[0])])
    return ""


def explain_unknown(location: Sequence[Any], value: Any, given: Mapping[str, Any] = NOTHING) -> str:
    """The message for a key that no section has, with the key that was probably meant."""
    *parents, key = list_parts(location)
    siblings, parent = list_keys(location[:-1]), ".".join(parents)
    hint = suggest_key(key, siblings, parent, UNKNOWN if isinstance(value, Mapping) else value, given, dotted=True)
    return f"unknown recipe key {key!r}{f' in [{parent}]' if parent else ''}{hint}"


def list_parts(location: Sequence[Any]) -> list[str]:
    """The keys of a path as the recipe has them: without the branch of a union, which pydantic names."""
    return [str(part) for part in location if not (isinstance(part, str) and part.endswith("Config"))]


# -- built-in recipes --------------------------------------------------------------------------------------------------


def list_built_in() -> dict[str, str]:
    """Name -> first comment line of every built-in recipe."""
    files = sorted(BUILT_IN_FOLDER.glob("*/recipe.toml"))
    return {file.parent.name: file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for file in files}


def split_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """(recipe, overrides) of `[RECIPE] key=value ...`: the recipe, if there is one, comes first and has no `=`."""
    if arguments and "=" not in arguments[0]:
        return arguments[0], list(arguments[1:])
    return "", list(arguments)


def find_recipe(recipe: str, overrides: Sequence[str]) -> Recipe:
    return load_recipe(find_recipe_path(recipe), overrides)


def find_recipe_path(recipe: str | Path) -> Path:
    """The file of a recipe: a path, a folder with a recipe.toml, a built-in name, or "" for column_addition."""
    name = str(recipe) or DEMO
    for file in (Path(name) / "recipe.toml", Path(name), BUILT_IN_FOLDER / name / "recipe.toml"):
        if file.is_file():
            return file
    if (meant := write_override(name, "VALUE")).startswith(f"{name}="):
        raise RecipeError(f"{name}: write settings as key=value, without spaces: {meant}")
    if Path(name).is_dir():
        raise RecipeError(f"recipe {name!r}: the folder has no recipe.toml; name the file")
    known = list_built_in()
    raise RecipeError(
        f"recipe {name!r}: neither a file nor a built-in recipe{suggest_nearest(name, known)}. Built in: {', '.join(known)}"
    )
