"""Writes docs/recipe.md from the types of the recipe: every section, key, default and allowed value. No torch.

Settings are described only in cohort.recipe.schema; error messages and this page use those descriptions. A test compares the page.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cohort.algorithms.named import PRESETS
from cohort.recipe.file import PREFERRED, list_leaf_fields
from cohort.recipe.schema import Recipe, RewardConfig
from cohort.recipe.trl_names import UNCLEAR
from pages import format_row

BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {}"}

INTRODUCTION = """\
# The recipe

<!-- Written by `make docs` from src/cohort/recipe/schema.py; edit there. -->

A recipe is a TOML file with all settings of a run. Every key has a default, so a recipe lists only what differs. Unknown keys are
refused, with the nearest known key as a hint. There is no null: "off" is a value (0, `""` or `false`) that the description names.

```toml
[model]
source = "Qwen/Qwen2.5-0.5B-Instruct"

[prompts]
source = "problems.jsonl"          # rows with a `prompt` column; the other columns are passed to the rewards

[[rewards]]                        # double brackets: one block per reward function
function = "math_answer"

[train]
num_steps = 200
```

The same settings, three ways:

- in the file: `group_size = 8` under `[train]`;
- on the command line, after the recipe: `cohort train my_recipe.toml train.group_size=8`, or without the section:
  `group_size=8`. Values are TOML; text needs no quotes. `rewards.0.weight=2` sets a field of a list entry;
- from Python: `cohort.train(..., group_size=8)`, or some keys of a section: `evaluation={"samples": 4}`.

The run folder contains the resolved recipe, with every default, as `recipe.toml`; it is a recipe itself.
"""


# ---------------------------------------------------------------------------------------------------------------------
# Types, defaults and bounds as text
# ---------------------------------------------------------------------------------------------------------------------


def type_words(annotation: Any) -> str:
    """The name of a type for people."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        kinds = dict.fromkeys(type_words(type(choice)) for choice in arguments)
        return " or ".join(kinds)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_words(option) for option in arguments))
    if origin is list:
        return f"list of {plural(type_words(arguments[0]))}"
    if origin is dict:
        return "table" if arguments[1] is Any else f"table of {plural(type_words(arguments[1]))}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"section like `{home(annotation)}`"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[annotation]


def plural(words: str) -> str:
    return words.replace("section", "sections", 1) if "section" in words else words if words == "text" else f"{words}s"


def home(section: type[BaseModel]) -> str:
    """The heading under which the keys of a section are listed."""
    return next(heading(path, model).strip("`") for path, model in sections() if issubclass(section, model))


def allowed_words(field: FieldInfo) -> str:
    """The allowed values of a field: its choices or bounds; "" if any value of the type is allowed."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{shown(choice)}`" for choice in get_args(field.annotation))
    if isinstance(field.json_schema_extra, dict) and "choices" in field.json_schema_extra:
        return ", ".join(f"`{shown(choice)}`" for choice in cast(list[str], field.json_schema_extra["choices"]))
    limits = []
    for constraint in field.metadata:
        for name, words in BOUNDS.items():
            bound = getattr(constraint, name, None)
            if bound is not None:
                limits.append(words.format(f"2^{bound.bit_length() - 1}" if bound == 2**63 else f"{bound:g}"))
    return ", ".join(limits)


def default_words(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    return f"`{shown(field.get_default(call_default_factory=True))}`"


def shown(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, BaseModel):
        return shown(value.model_dump(exclude_defaults=True))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {shown(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return repr(value)


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------


def sections(section: type[BaseModel] = Recipe, path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """(dotted path, model) of every section, the top level first; lists of sections by the model of their entries."""
    yield path, section
    for name, field in section.model_fields.items():
        inner = field.annotation
        if get_origin(inner) is list and issubclass(get_args(inner)[0], BaseModel):
            inner = get_args(inner)[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from sections(inner, f"{path}.{name}" if path else name)


def make_page() -> str:
    """The text of docs/recipe.md."""
    parts = (section_lines(), preset_lines(), undotted_lines())
    return "\n".join([INTRODUCTION, *chain.from_iterable(parts)]) + "\n"


def section_lines() -> Iterator[str]:
    for path, section in sections():
        yield f"## {heading(path, section)}"
        yield ""
        yield (section.__doc__ or "").strip()
        yield ""
        yield "| key | type | default | allowed | meaning |"
        yield "|---|---|---|---|---|"
        for name, field in section.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                continue  # has a table of its own
            yield format_row(
                f"`{name}`",
                type_words(inner),
                default_words(field),
                allowed_words(field),
                field.description or described(path, name),
            )
        yield ""


def heading(path: str, section: type[BaseModel]) -> str:
    if not path:
        return "Top level"
    return f"`[[{path}]]`" if section is RewardConfig else f"`[{path}]`"


def described(path: str, name: str) -> str:
    """The description of a list of sections, whose entries have the descriptions."""
    return "The parts of the reward." if (path, name) == ("", "rewards") else ""


def preset_lines() -> Iterator[str]:
    yield "## Presets"
    yield ""
    yield "`algorithm.name` sets these keys of `[algorithm]`; any of them can be overridden."
    yield ""
    choices = list(dict.fromkeys(choice for preset in PRESETS.values() for choice in preset))
    yield format_row("", *(f"`{choice}`" for choice in choices))
    yield "|---" * (len(choices) + 1) + "|"
    for name, preset in PRESETS.items():
        yield format_row(f"`{name}`", *(f"`{shown(preset[choice])}`" if choice in preset else "" for choice in choices))
    yield ""


def undotted_lines() -> Iterator[str]:
    """Keys that can be written without their section."""
    paths = [path for path, _ in list_leaf_fields(Recipe)]
    words = [path.rsplit(".", 1)[-1] for path in paths]
    yield "## Keys without a section"
    yield ""
    yield "A key that only one section has can be written without the section: `group_size=4`. These short keys work too:"
    yield ""
    yield "| key | meaning |"
    yield "|---|---|"
    yield from (format_row(f"`{word}`", f"`{path}`") for word, path in PREFERRED.items() if word != path)
    yield ""
    unclear = sorted({word for word in words if words.count(word) > 1 and word not in PREFERRED})
    yield "Several sections have these keys, so they need the section: " + ", ".join(f"`{word}`" for word in unclear) + "."
    yield ""
    yield from (f"- `{key}` needs its section: {hint}." for key, hint in UNCLEAR.items())
