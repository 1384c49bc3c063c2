"""A recipe as people write it: TOML in, `key=value` overrides, errors in words, TOML out.

The schema is recipe/schema.py; here is the grammar around it. Every refusal names the field and the nearest thing that would
have worked, also for the words of other tools.
"""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from cohort.algorithms.presets import PRESETS
from cohort.base.text import has_lone_surrogate, make_printable
from cohort.errors import RecipeError
from cohort.recipe.foreign import convert_value, explain_missing, explain_unclear, find_remark, is_foreign, list_translated
from cohort.recipe.schema import Recipe
from cohort.recipe.section import suggest_nearest
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


UNKNOWN = object()
"""A value that is not known."""
NO_WORDS: Mapping[str, Any] = {}


def load_recipe(
    path: str | Path | None = None, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None
) -> Recipe:
    """Read a TOML recipe, apply `key=value` overrides, then already typed values (the Python API), and validate."""
    tree = {} if path is None else read_tree(path)
    given = [parse_override(override) for override in overrides]
    words = {key.rpartition(".")[2]: value for key, value in [*given, *(values or {}).items()]}
    problems = []
    for key, value in [*sorted(given, key=order_word), *sorted((values or {}).items(), key=order_word)]:
        try:
            assign(tree, key, os.fspath(value) if isinstance(value, os.PathLike) else value, words)
        except RecipeError as problem:
            problems.append(str(problem))
    if problems:  # all of them at once: somebody who comes from another tool brings several of its words
        raise RecipeError("\n".join(problems))
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
        words = dict(list_leaves(tree))
        raise RecipeError("\n".join(explain_error(error, words) for error in errors or problem.errors())) from None


def refuse_unwritable(node: Any, path: str) -> None:
    """What cannot be written into recipe.toml is refused before a run depends on it: None, and half a surrogate pair."""
    if node is None:
        raise RecipeError(f"{path}: None, but a recipe has no null; leave the key out, or give the value that switches it off")
    if isinstance(node, str) and has_lone_surrogate(node):
        raise RecipeError(
            f"{make_printable(path)}: {make_printable(node)!r} holds a character that cannot be written as UTF-8 (half of a surrogate pair, or a byte "
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


def assign(tree: dict[str, Any], key: str, value: Any, words: Mapping[str, Any] = NO_WORDS) -> None:
    """Set a dotted or undotted key. `rewards.0.weight=2` reaches into lists. A section changes in the words that are named.

    words: all that were given, for a hint on one that is another tool's.
    """
    names = (key if "." in key or is_section_value(key, value) else resolve_undotted(key, value, words)).split(".")
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
            assign(tree, ".".join([*names, str(word)]), inner, words)
    else:
        node[names[-1]] = copy.deepcopy(value)  # the next word may reach into it, and it is the caller's


def order_word(word: tuple[str, Any]) -> int:
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


def resolve_undotted(key: str, value: Any = UNKNOWN, words: Mapping[str, Any] = NO_WORDS) -> str:
    """The path that an undotted word means. value, words: what it was given, and beside it, for the hint on an unknown one."""
    if key in PREFERRED:
        return PREFERRED[key]
    if said := explain_unclear(key):
        raise RecipeError(f"{key}: {said}")
    paths = [path for path, _ in list_leaf_fields(Recipe)]
    matches = [path for path in paths if path.rsplit(".", 1)[-1] == key]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RecipeError(f"{key}: several sections have it; write one of {', '.join(matches)}")
    if key in Recipe.model_fields:
        raise RecipeError(f"{key}: it is a section; write {key}.KEY=value with one of {', '.join(list_keys((key,)))}")
    known = [*(path.rsplit(".", 1)[-1] for path in paths), *Recipe.model_fields]
    raise RecipeError(f"unknown recipe key {key!r}{suggest_word(key, known, value=value, words=words)}")


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


def suggest_word(
    word: str,
    siblings: Sequence[str],
    section: str = "",
    value: Any = UNKNOWN,
    words: Mapping[str, Any] = NO_WORDS,
    dotted: bool = False,
) -> str:
    """The word that was probably meant: a neighbour's spelling, our word for another tool's, or the section it lives in."""
    if ours := list_translated().get(word, ""):
        own = ours.rpartition(".")[2]  # [cold_start] has a learning_rate of its own
        if section and own in siblings and " and " not in ours and f"{section}.{own}" != ours:
            return f"; here it is called {section}.{own}"
        return f"; here it is called {ours}{write_value(word, value, words, dotted)}"
    if said := explain_missing(word):
        return f"; there is no such word here: {said}"
    if said := explain_unclear(word):
        return f": {said}"
    homes = [path for path, _ in list_leaf_fields(Recipe) if path.rsplit(".", 1)[-1] == word]
    return suggest_nearest(word, siblings) or (f"; it belongs to {' or '.join(homes)}" if homes else "")


def write_value(word: str, value: Any, words: Mapping[str, Any], dotted: bool) -> str:
    """The value of another tool's word as it is written here, and what to know of it: ": write kl_coef=0.04"."""
    if value is UNKNOWN:
        return ""
    ours, remark = convert_value(word, value, words), find_remark(word)
    written = " ".join(f"{path if dotted else shorten_path(path)}={format_value(inner)}" for path, inner in ours.items())
    return (f": write {written}" if written else "") + (f" ({remark})" if remark else "")


def write_override(word: str, text: str) -> str:
    """`word=text`, where a recipe has the word; else what is known of it, and "" where nothing is."""
    try:
        if "." in word and walk(word.split("."))[0] is None:
            raise RecipeError(explain_unknown(word.split("."), parse_value(text)))
        if "." not in word:
            resolve_undotted(word, parse_value(text))
        return f"{word}={text}"
    except RecipeError as problem:
        return str(problem) if is_foreign(word.rpartition(".")[2]) or ";" in str(problem) else ""


def shorten_path(path: str) -> str:
    """The shortest word for a path that the command line and Python take."""
    word = path.rpartition(".")[2]
    try:
        return word if resolve_undotted(word) == path else path
    except RecipeError:
        return path


def format_value(value: Any) -> str:
    """As it is typed: text without quotes, numbers without noise."""
    if isinstance(value, str):
        return value
    return f"{value:.12g}" if isinstance(value, float) else json.dumps(value, default=str)


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
    """The keys of the section at a path; none where there is no section."""
    section = pick_section(walk(path)[0])
    return list(section.model_fields) if section else []


def explain_error(error: Mapping[str, Any], words: Mapping[str, Any] = NO_WORDS) -> str:
    """One pydantic error in words: the field, what is wrong, and the fix where it is known."""
    location, kind, given = error["loc"], error["type"], error["input"]
    if kind == "extra_forbidden":
        return explain_unknown(location, given, words)
    path, message = ".".join(list_parts(location)), str(error["msg"]).removeprefix("Value error, ")
    if not path:
        return message
    got = "" if isinstance(given, Mapping) else f" (got {given!r})"
    _, field = walk(location)
    about = f". {field.description}" if field is not None and field.description and kind != "value_error" else ""
    return f"{path}: {mend_value(kind, path, location, given) or message}{add_hint(kind, path, location, given)}{got}{about}"


def mend_value(kind: str, path: str, location: Sequence[Any], given: Any) -> str:
    """What to write in place of a value of another form; "" where pydantic's own words say it."""
    if kind in ("model_type", "dict_type") and path.rpartition(".")[2].isdigit():
        return f'each entry is a table, for example {{ function = "{given}" }}'
    if kind in ("model_type", "dict_type"):
        return f"it is a section; write {path}.KEY=value with one of {', '.join(list_keys(location)) or 'its keys'}"
    rewards = {
        "list_type": f'it is a list of tables; write [[rewards]] in the recipe, or rewards=[{{function="{given}"}}]',
        "too_short": 'at least 1 reward is needed, for example rewards=[{function="math_answer"}]',
    }
    return rewards.get(kind, "") if path.rpartition(".")[2] == "rewards" else ""


def add_hint(kind: str, path: str, location: Sequence[Any], given: Any) -> str:
    """What is said after pydantic's own words: quotes that are missing, or the choice that was meant."""
    if kind == "string_type" and not isinstance(given, Mapping | list):
        return f""", write it in quotes: {path}='"{given}"'"""
    if kind == "literal_error" and isinstance(given, str):
        return suggest_nearest(given, [str(choice) for choice in get_args(walk(location)[0])])
    return ""


def explain_unknown(location: Sequence[Any], given: Any, words: Mapping[str, Any] = NO_WORDS) -> str:
    """Of a key that no section has: what was probably meant."""
    *parents, key = list_parts(location)
    siblings, parent = list_keys(location[:-1]), ".".join(parents)
    hint = suggest_word(key, siblings, parent, UNKNOWN if isinstance(given, Mapping) else given, words, dotted=True)
    if isinstance(given, Mapping):  # perhaps a section of another tool: each word that is known
        known = [(name, value) for name, value in list_leaves(given) if is_foreign(name)]
        if said := ", ".join(f"{name!r}{suggest_word(name, siblings, parent, value, words)}" for name, value in known):
            hint = f"{suggest_nearest(key, siblings)}: {said}"
    return f"unknown recipe key {key!r}{f' in [{parent}]' if parent else ''}{hint}"


def list_parts(location: Sequence[Any]) -> list[str]:
    """The keys of a path as the recipe has them: without the branch of a union, which pydantic names."""
    return [str(part) for part in location if not (isinstance(part, str) and part.endswith("Config"))]


def dump_recipe(recipe: Recipe) -> str:
    """TOML with every default written out; reading it back gives the same recipe."""
    return tomli_w.dumps(recipe.model_dump(mode="python"), multiline_strings=False)
