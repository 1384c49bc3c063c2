"""A user's functions among the choices, named "package.module:function". Imports no torch of its own.

Reading a recipe imports none of them: the facts are unknown then, and rules wait. `resolve_recipe` imports them, where a run
starts, and holds them to the rules of the others. `make_document` is what algorithm.json of the run folder holds of them, and
`parse_own` gives the facts back without the functions. So reports, comparisons and whoever looks at a stranger's run know the
traits and execute nothing.

A function without a decorator compares its group, and nothing else is assumed of it (the defaults of the traits).
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
from cohort.algorithms.named import FIELDS, OWN_FUNCTION, OWN_KINDS, Own, is_word, list_own
from cohort.algorithms.registry import READABLE, TRAITS, BadChoice, Choice, Kind, find_choice, make_choice, read_signature
from cohort.base.importing import NotImportable, load_function
from cohort.errors import RecipeError
from cohort.recipe.rules import find_ahead, find_refusal, leaves_stale
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.values import AUTO, ENGINES

FOREIGN_WEIGHT = "token_truncate"
"""Of completions of the policy itself. On older ones it would be all that holds an update back, which learned less the larger the
lag (docs/results.md); without it the clip acts on the ratio to what sampled, which holds the gap between the programs as well."""


def resolve_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the user's functions that it names. Executes their code, so only what starts a run calls it."""
    words = recipe.algorithm.model_dump()
    if not list_own(words):
        return weigh_foreign_engine(recipe)
    own = resolve_own(words)
    resolved = recipe.model_copy(update={"algorithm": recipe.algorithm.resolved(own)})
    if reason := find_contradiction(words, own):
        raise RecipeError(f"algorithm: {reason}")
    if reason := find_refusal(resolved):
        raise RecipeError(reason)
    return weigh_foreign_engine(resolved)


def weigh_foreign_engine(recipe: Recipe) -> Recipe:
    """mismatch_weight "auto" as this run means it: an engine of another program is weighed for, where a weight fits."""
    algorithm, engine = recipe.algorithm, recipe.sampling.chosen_engine
    if engine == "vllm" and not recipe.sampling.servers:  # a recipe without them can be served, and not trained
        raise RecipeError(
            'sampling.engine: "vllm" samples on servers, and sampling.servers names none. Start one with `cohort serve RECIPE`, then name '
            "it: sampling.servers=http://127.0.0.1:8000"
        )
    if algorithm.mismatch_weight != "auto" or engine == AUTO or not ENGINES[engine].foreign:
        return recipe
    if find_ahead(recipe) and not leaves_stale(algorithm):
        return recipe
    weighed = algorithm.model_copy(update={"mismatch_weight": FOREIGN_WEIGHT}).resolved(algorithm.own)
    if find_contradiction(weighed.model_dump(), weighed.own):
        return recipe
    return recipe.model_copy(update={"algorithm": weighed})


def resolve_own(words: Mapping[str, Any]) -> Own:
    """Import every function that the words of [algorithm] name, and check it against them. Executes the user's code."""
    own = {kind: import_choice(kind, spec) for kind, spec in list_own(words).items()}
    refuse_unknown_args(own, words)
    refuse_missing_args(own, words)
    check_values(own, words)
    return own


def import_choice(kind: Kind, spec: str) -> Choice:
    """The function with the facts that its decorator, its signature and its source file state, under the recipe's name for it."""
    place = f"algorithm.{FIELDS[kind]}"
    try:
        function = load_function(spec)
        choice = find_choice(function) or make_choice(kind, function, spec, (), {})
        if choice.kind != kind:
            raise BadChoice(f"{spec} is decorated as @{choice.kind}; name it for algorithm.{FIELDS[choice.kind]}, or mend it")
        reads, signature = read_signature(kind, function, spec)
    except (NotImportable, BadChoice) as problem:
        raise RecipeError(f"{place}: {problem}") from problem
    except (TypeError, ValueError) as problem:
        raise RecipeError(f"{place}: {spec} has no signature that could be read ({problem}); wrap it in a def.") from problem
    defaults = {name: value for name, value in signature.items() if value is not MISSING}
    defaults |= {word.name: word.default for word in choice.words}
    # A decorator above ours that copies attributes (functools.wraps) copies the facts too: what is called is what is named.
    called = replace(choice, function=function, reads=reads, parameters=tuple(signature))
    return replace(called, name=spec, defaults=defaults, digest=digest_source(spec, function, place))


def digest_source(spec: str, function: Callable[..., Any], place: str) -> str:
    """SHA-256 of the file of the module that is named, and of the one the function was written in, where that is another.

    What these import is not in it: a helper in a third file may change unseen.
    """
    modules = dict.fromkeys([spec.partition(":")[0], str(getattr(function, "__module__", ""))])
    digest = hashlib.sha256()
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        try:
            digest.update(Path(str(file)).read_bytes())
        except OSError:
            raise RecipeError(
                f"{place}: {spec} has no source file that a resume could compare ({name}); put the function into a file."
            ) from None
    return digest.hexdigest()


# -- what they are told ------------------------------------------------------------------------------------------------


def refuse_unknown_args(own: Own, words: Mapping[str, Any]) -> None:
    taken = [name for choice in own.values() for name in choice.parameters if not is_word(name, words)]
    for name in words["args"]:
        if is_word(name, words):
            raise RecipeError(f"algorithm.args.{name}: it is a word of [algorithm]: set algorithm.{name} instead.")
        if name not in taken:
            hint = suggest_nearest(name, taken) or "."
            raise RecipeError(
                f"algorithm.args.{name}: no function of this recipe takes it{hint} Their parameters: {', '.join(taken) or 'none'}."
            )


def refuse_missing_args(own: Own, words: Mapping[str, Any]) -> None:
    for kind, choice in own.items():
        for name in choice.parameters:
            if not is_word(name, words) and name not in words["args"] and name not in choice.defaults:
                raise RecipeError(
                    f"algorithm.{FIELDS[kind]}: {choice.name} needs {name!r}, which has no default: set algorithm.args.{name}."
                )


def check_values(own: Own, words: Mapping[str, Any]) -> None:
    """Values of [algorithm.args] are of the default's type, and whatever a decorator bounds lies within."""
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    for choice in own.values():
        bounds: dict[str, Any] = {word.name: word.bounds for word in choice.words}
        for name in choice.parameters:
            told, default = is_word(name, words), choice.defaults.get(name)
            value = words[name] if told else words["args"].get(name, default)
            kind = KINDS.get(type(default), float if isinstance(value, float) else Any) if name in words["args"] else Any
            bounded: Any = Annotated[kind, Field(**bounds.get(name, {}))]
            try:
                TypeAdapter(bounded, config=strict).validate_python(value)
            except ValidationError as problem:
                place, known = f"algorithm.{'' if told else 'args.'}{name}", f", its default is {default!r}" if default else ""
                raise RecipeError(f"{place}: {problem.errors()[0]['msg']} (got {value!r}{known})") from None


KINDS: dict[type, Any] = {bool: bool, int: int, float: float, str: str, list: list, tuple: list}
"""The type of a default -> what a recipe writes for it."""

# -- what is written down ----------------------------------------------------------------------------------------------

Plain = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str | None
"""A value as JSON has it."""


class FunctionParameter(BaseModel):
    """What algorithm.json says of a parameter: its default, where it has one."""

    model_config = ConfigDict(extra="forbid", strict=True)
    default: Plain = None


class FunctionEntry(BaseModel):
    """What algorithm.json says of a function."""

    model_config = ConfigDict(extra="forbid", strict=True)
    function: Annotated[str, Field(pattern=f"^{OWN_FUNCTION.pattern}$")]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    sentence: str
    reads: list[str]
    traits: Any
    parameters: dict[Annotated[str, Field(pattern=r"^[^\W\d]\w*$")], FunctionParameter]
    args: dict[str, Any]


def make_entry(kind: Kind) -> Any:
    """The entry of a kind: it reads what that kind may read, and has its traits. One that is not there has its default: the function
    was resolved by a version that did not know it."""
    readable: Any = Literal[tuple(READABLE[kind])]
    return create_model(f"Entry_{kind}", __base__=FunctionEntry, reads=list[readable], traits=TRAITS[kind])


ENTRIES: dict[str, Any] = {kind: (make_entry(kind) | None, None) for kind in OWN_KINDS}
Document = create_model("Document", __config__=ConfigDict(extra="forbid", strict=True), version=Literal[1], **ENTRIES)
"""algorithm.json."""


def make_document(own: Own, args: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as plain data, for algorithm.json."""
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
    """A number, a text, true or false as JSON has it; anything else (a list, a date) as text."""
    plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else str(value)


def parse_own(document: Any, words: Mapping[str, Any]) -> Own:
    """The facts of those functions that the words of [algorithm] still name. Strict: whoever wrote it, it is only data."""
    try:
        read = Document.model_validate_json(json.dumps(document))
    except ValidationError as problem:
        first = problem.errors()[0]
        raise BadChoice(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    named = ((kind, spec, getattr(read, kind)) for kind, spec in list_own(words).items())
    own = {kind: read_entry(kind, entry) for kind, spec, entry in named if entry and entry.function == spec}
    try:
        refuse_missing_args(own, words)
    except RecipeError as problem:
        raise BadChoice(f"it does not fit the recipe: {problem}") from None
    return own


def read_entry(kind: Kind, entry: FunctionEntry) -> Choice:
    defaults = {name: one.default for name, one in entry.parameters.items() if one.model_fields_set}
    return Choice(
        kind,
        entry.function,
        entry.sentence,
        entry.traits,
        tuple(entry.reads),
        tuple(entry.parameters),
        digest=entry.digest,
        defaults=defaults,
    )
