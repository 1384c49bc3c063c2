"""A user's functions in [algorithm], named "package.module:function". Imports no torch of its own.

Reading a recipe imports none of them, so their traits are unknown and no rule applies yet. `resolve_recipe` imports them when a run
starts and applies the same rules as to built-in choices. `make_document` describes them in algorithm.json of the run folder, and
`parse_own` reads that description, so that reports and comparisons know the traits of a stranger's run without executing its code.

A function without a decorator compares its group and otherwise has the default traits.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from cohort.algorithms.compatibility import find_contradiction
from cohort.algorithms.named import FIELDS, OWN_FUNCTION, OWN_KINDS, Own, is_setting, list_own
from cohort.algorithms.registry import READABLE, TRAITS, BadChoice, Choice, Kind, find_choice, make_choice, read_signature
from cohort.base.importing import NotImportable, load_function
from cohort.errors import RecipeError
from cohort.recipe.rules import find_ahead, find_refusal, leaves_stale
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.values import AUTO, ENGINES

EXTERNAL_WEIGHT = "token_truncate"
"""Mismatch weight for engines that are another program, if nothing is sampled ahead. With a lag it would replace the clip, and learning
got worse as the lag grew (docs/results.md); without it the clip uses the ratio to the sampling log-probs, which covers the mismatch."""


def resolve_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the user's functions resolved. Imports their code, so it is called only when a run starts."""
    settings = recipe.algorithm.model_dump()
    if not list_own(settings):
        return weigh_external_engine(recipe)
    own = resolve_own(settings)
    resolved = recipe.model_copy(update={"algorithm": recipe.algorithm.resolved(own)})
    if reason := find_contradiction(settings, own):
        raise RecipeError(f"algorithm: {reason}")
    if reason := find_refusal(resolved):
        raise RecipeError(reason)
    return weigh_external_engine(resolved)


def weigh_external_engine(recipe: Recipe) -> Recipe:
    """Replace mismatch_weight "auto": mismatch weights apply to external engines where they fit the other settings."""
    algorithm, engine = recipe.algorithm, recipe.sampling.chosen_engine
    if engine == "vllm" and not recipe.sampling.servers:  # `cohort serve` accepts a recipe without servers
        raise RecipeError(
            'sampling.engine: "vllm" samples on servers, and sampling.servers names none. Start one with `cohort serve RECIPE`, then set '
            "sampling.servers=http://127.0.0.1:8000"
        )
    if algorithm.mismatch_weight != "auto" or engine == AUTO or not ENGINES[engine].external:
        return recipe
    if find_ahead(recipe) and not leaves_stale(algorithm):
        return recipe
    weighed = algorithm.model_copy(update={"mismatch_weight": EXTERNAL_WEIGHT}).resolved(algorithm.own)
    if find_contradiction(weighed.model_dump(), weighed.own):
        return recipe
    return recipe.model_copy(update={"algorithm": weighed})


def resolve_own(settings: Mapping[str, Any]) -> Own:
    """Import every user function that [algorithm] names and check the settings against its signature. Executes the user's code."""
    own = {kind: import_choice(kind, spec) for kind, spec in list_own(settings).items()}
    refuse_unknown_args(own, settings)
    refuse_missing_args(own, settings)
    check_values(own, settings)
    return own


def import_choice(kind: Kind, spec: str) -> Choice:
    """The choice for a user's function, from its decorator, signature and source file, under its name in the recipe."""
    place = f"algorithm.{FIELDS[kind]}"
    try:
        function = load_function(spec)
        choice = find_choice(function) or make_choice(kind, function, spec, (), {})
        if choice.kind != kind:
            raise BadChoice(
                f"{spec} is decorated as @{choice.kind}; use it for algorithm.{FIELDS[choice.kind]}, or change the decorator"
            )
        reads, signature = read_signature(kind, function, spec)
    except (NotImportable, BadChoice) as problem:
        raise RecipeError(f"{place}: {problem}") from problem
    except (TypeError, ValueError) as problem:
        raise RecipeError(f"{place}: {spec} has no readable signature ({problem}); wrap it in a def.") from problem
    defaults = {name: value for name, value in signature.items() if value is not MISSING}
    defaults |= {setting.name: setting.default for setting in choice.settings}
    # A decorator around ours that copies attributes (functools.wraps) also copies the choice, so take the named function itself.
    called = replace(choice, function=function, reads=reads, parameters=tuple(signature))
    return replace(called, name=spec, defaults=defaults, digest=digest_source(spec, function, place))


def digest_source(spec: str, function: Callable[..., Any], place: str) -> str:
    """SHA-256 of the named module's file, and of the file that defines the function if that is another one.

    It does not cover their imports: a change in a helper module goes unnoticed.
    """
    modules = dict.fromkeys([spec.partition(":")[0], str(getattr(function, "__module__", ""))])
    digest = hashlib.sha256()
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        try:
            digest.update(Path(str(file)).read_bytes())
        except OSError:
            raise RecipeError(
                f"{place}: {spec} has no source file ({name}), which a resume needs for a comparison; put the function into a file."
            ) from None
    return digest.hexdigest()


# -- their parameters --------------------------------------------------------------------------------------------------


def refuse_unknown_args(own: Own, settings: Mapping[str, Any]) -> None:
    taken = [name for choice in own.values() for name in choice.parameters if not is_setting(name, settings)]
    for name in settings["args"]:
        if is_setting(name, settings):
            raise RecipeError(f"algorithm.args.{name}: this is a key of [algorithm]; set algorithm.{name} instead.")
        if name not in taken:
            hint = suggest_nearest(name, taken) or "."
            raise RecipeError(
                f"algorithm.args.{name}: no function in this recipe has this parameter{hint} Known parameters: {', '.join(taken) or 'none'}."
            )


def refuse_missing_args(own: Own, settings: Mapping[str, Any]) -> None:
    for kind, choice in own.items():
        for name in choice.parameters:
            if not is_setting(name, settings) and name not in settings["args"] and name not in choice.defaults:
                raise RecipeError(
                    f"algorithm.{FIELDS[kind]}: {choice.name} needs {name!r}, which has no default: set algorithm.args.{name}."
                )


def check_values(own: Own, settings: Mapping[str, Any]) -> None:
    """Check values of [algorithm.args] against the type of the default, and all values against the bounds of the decorator."""
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    for choice in own.values():
        bounds: dict[str, Any] = {setting.name: setting.bounds for setting in choice.settings}
        for name in choice.parameters:
            is_key, default = is_setting(name, settings), choice.defaults.get(name)
            value = settings[name] if is_key else settings["args"].get(name, default)
            kind = KINDS.get(type(default), float if isinstance(value, float) else Any) if name in settings["args"] else Any
            bounded: Any = Annotated[kind, Field(**bounds.get(name, {}))]
            try:
                TypeAdapter(bounded, config=strict).validate_python(value)
            except ValidationError as problem:
                place, known = (
                    f"algorithm.{'' if is_key else 'args.'}{name}",
                    f", its default is {default!r}" if default else "",
                )
                raise RecipeError(f"{place}: {problem.errors()[0]['msg']} (got {value!r}{known})") from None


KINDS: dict[type, Any] = {bool: bool, int: int, float: float, str: str, list: list, tuple: list}
"""The type of a default -> the type in a recipe."""

# -- algorithm.json ----------------------------------------------------------------------------------------------------

Plain = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str | None
"""A scalar of JSON."""


class FunctionEntry(BaseModel):
    """A function in algorithm.json."""

    model_config = ConfigDict(extra="forbid", strict=True)
    function: Annotated[str, Field(pattern=f"^{OWN_FUNCTION.pattern}$")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    sentence: str
    reads: list[str]
    traits: Any
    parameters: dict[Annotated[str, Field(pattern=r"^[^\W\d]\w*$")], dict[Literal["default"], Plain]]
    """Parameter -> {"default": ...}, or {} if it has none."""
    args: dict[str, Any]


def make_entry(kind: Kind) -> Any:
    """The model of an entry of this kind, with its inputs and traits."""
    readable: Any = Literal[tuple(READABLE[kind])]
    return create_model(f"Entry_{kind}", __base__=FunctionEntry, reads=list[readable], traits=TRAITS[kind])


ENTRIES: dict[str, Any] = {kind: (make_entry(kind) | None, None) for kind in OWN_KINDS}
Document = create_model("Document", __config__=ConfigDict(extra="forbid", strict=True), version=Literal[1], **ENTRIES)
"""algorithm.json."""


def make_document(own: Own, args: Mapping[str, Any]) -> dict[str, Any]:
    """The content of algorithm.json."""
    return {"version": 1} | {kind: describe_entry(choice, args) for kind, choice in own.items()}


def describe_entry(choice: Choice, args: Mapping[str, Any]) -> dict[str, Any]:
    traits = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(choice.traits).items()}
    return {
        "function": choice.name,
        "digest": choice.digest,
        "sentence": choice.sentence,
        "reads": list(choice.reads),
        "traits": traits,
        "parameters": {
            name: {"default": as_plain(choice.defaults[name])} if name in choice.defaults else {} for name in choice.parameters
        },
        "args": {name: as_plain(args[name]) for name in choice.parameters if name in args},
    }


def as_plain(value: Any) -> Any:
    """A scalar of JSON as it is; anything else (a list, a date) as text."""
    plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else str(value)


def parse_own(document: Any, settings: Mapping[str, Any]) -> Own:
    """The choices in algorithm.json that [algorithm] still names. Validated strictly: the file may come from a stranger."""
    try:
        read = Document.model_validate_json(json.dumps(document))
    except ValidationError as problem:
        first = problem.errors()[0]
        raise BadChoice(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    named = ((kind, spec, getattr(read, kind)) for kind, spec in list_own(settings).items())
    own = {kind: read_entry(kind, entry) for kind, spec, entry in named if entry and entry.function == spec}
    try:
        refuse_missing_args(own, settings)
    except RecipeError as problem:
        raise BadChoice(f"it does not fit the recipe: {problem}") from None
    return own


def read_entry(kind: Kind, entry: FunctionEntry) -> Choice:
    defaults = {name: one["default"] for name, one in entry.parameters.items() if one}
    reads, parameters = tuple(entry.reads), tuple(entry.parameters)
    return Choice(kind, entry.function, entry.sentence, entry.traits, reads, parameters, digest=entry.digest, defaults=defaults)
