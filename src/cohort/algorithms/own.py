"""A user's functions among the choices, named "package.module:function". Imports no torch of its own.

Reading a recipe imports none of them: the facts are unknown then, and rules wait. `resolve_own` imports them, where a run
starts, and gives the facts with the functions. `own_document` is what algorithm.json of the run folder holds of them, and
`parse_own` gives the facts back without the functions. So reports, comparisons and whoever looks at a stranger's run know the
traits and execute nothing.

A function without a decorator compares its group, and nothing else is assumed of it (the defaults of the traits).
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from cohort.algorithms.named import FIELDS, NAMED, Own
from cohort.algorithms.registry import READABLE, TRAITS, BadChoice, Choice, Kind, find_choice, make_choice, read_signature
from cohort.base.importing import NotImportable, load_function
from cohort.errors import RecipeError

OWN_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""package.module:function"""
OWN_KINDS: tuple[Kind, ...] = ("advantage", "region", "aggregation")
"""Choices that may be a user's function."""
VERSION = 1
ENTRY = frozenset({"function", "digest", "sentence", "reads", "traits", "parameters", "args"})
"""What algorithm.json says of a function."""


def named_own(words: Mapping[str, Any]) -> dict[Kind, str]:
    """Kind -> the user's function that the words of [algorithm] name for it."""
    return {kind: words[FIELDS[kind]] for kind in OWN_KINDS if words[FIELDS[kind]] not in NAMED[kind]}


def resolve_own(words: Mapping[str, Any]) -> Own:
    """Import every function that the words of [algorithm] name, and check it against them. Executes the user's code."""
    own = {kind: import_choice(kind, spec) for kind, spec in named_own(words).items()}
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
            known = ", ".join(taken) or "none"
            raise RecipeError(
                f"algorithm.args.{name}: no function of this recipe takes it{nearest(name, taken)} Their parameters: {known}."
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
    args = words["args"]
    for choice in own.values():
        for name in choice.parameters:
            if name in args:
                check_type(f"algorithm.args.{name}", args[name], choice.defaults.get(name))
        for word in choice.words:
            told = is_word(word.name, words)
            value = words[word.name] if told else args.get(word.name, word.default)
            check_bounds(f"algorithm.{'' if told else 'args.'}{word.name}", value, word.bounds)


def is_word(name: str, words: Mapping[str, Any]) -> bool:
    """Whether a parameter is a word of [algorithm], which it is then told; anything else is one of [algorithm.args]."""
    return name in words and name != "args"


def check_type(place: str, value: Any, default: Any) -> None:
    """A value for a parameter is of the default's type; a whole number will do for a float."""
    kinds: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
    kinds |= {list: (list,), tuple: (list,)}
    allowed = kinds.get(type(default))
    if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
        raise RecipeError(
            f"{place}: {value!r}, but the parameter is of type {type(default).__name__} (its default: {default!r})."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{place}: {value!r} is not a finite number.")


def check_bounds(place: str, value: Any, bounds: Mapping[str, float]) -> None:
    holds: dict[str, tuple[str, Callable[[Any, float], bool]]] = {
        "gt": (">", lambda a, b: a > b),
        "ge": (">=", lambda a, b: a >= b),
        "lt": ("<", lambda a, b: a < b),
        "le": ("<=", lambda a, b: a <= b),
    }
    for bound, limit in bounds.items():
        sign, within = holds[bound]
        if not within(value, limit):
            raise RecipeError(f"{place}: {value!r}, but it must be {sign} {limit:g}.")


def nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else "."


# -- what is written down ----------------------------------------------------------------------------------------------


def own_document(own: Own, args: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as plain data, for algorithm.json."""
    return {"version": VERSION} | {kind: describe_entry(choice, args) for kind, choice in own.items()}


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
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise BadChoice(f"it is not of version {VERSION}")
    unknown = [key for key in document if key not in ("version", *OWN_KINDS)]
    if unknown:
        raise BadChoice(f"unknown key {unknown[0]!r}")
    specs = named_own(words)
    entries = {kind: parse_entry(kind, document[kind]) for kind in OWN_KINDS if kind in document}
    own = {kind: choice for kind, choice in entries.items() if specs.get(kind) == choice.name}
    try:
        refuse_missing_args(own, words)
    except RecipeError as problem:
        raise BadChoice(f"it does not fit the recipe: {problem}") from None
    return own


def parse_entry(kind: Kind, entry: Any) -> Choice:
    if not isinstance(entry, dict) or set(entry) != ENTRY:
        raise BadChoice(f"{kind}: an entry has {', '.join(sorted(ENTRY))}, and nothing else")
    function, digest, sentence = (entry[name] for name in ("function", "digest", "sentence"))
    if not isinstance(function, str) or not OWN_FUNCTION.fullmatch(function):
        raise BadChoice(f"{kind}.function: not of the form package.module:function")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise BadChoice(f"{kind}.digest: not a SHA-256")
    if not isinstance(sentence, str):
        raise BadChoice(f"{kind}.sentence: not a text")
    reads, parameters = entry["reads"], entry["parameters"]
    if not isinstance(reads, list) or not all(isinstance(name, str) and name in READABLE[kind] for name in reads):
        raise BadChoice(f"{kind}.reads: not a list of {', '.join(READABLE[kind])}")
    if not isinstance(parameters, dict) or not isinstance(entry["args"], dict):
        raise BadChoice(f"{kind}.parameters and {kind}.args: not tables")
    defaults = {}
    for name, about in parameters.items():
        if not name.isidentifier() or not isinstance(about, dict) or set(about) - {"default"}:
            raise BadChoice(f"{kind}.parameters.{name}: not a parameter with its default")
        if "default" in about:
            if as_plain(about["default"]) != about["default"]:
                raise BadChoice(f"{kind}.parameters.{name}.default: not a number, a text, true or false")
            defaults[name] = about["default"]
    traits = parse_traits(kind, entry["traits"])
    return Choice(kind, function, sentence, traits, tuple(reads), tuple(parameters), digest=digest, defaults=defaults)


def parse_traits(kind: Kind, traits: Any) -> Any:
    """A trait that is not there has its default: the function was resolved by a version that did not know it."""
    if not isinstance(traits, dict):
        raise BadChoice(f"{kind}.traits: not a table")
    defaults = {known.name: getattr(TRAITS[kind](), known.name) for known in fields(TRAITS[kind])}
    for name, value in traits.items():
        if name not in defaults:
            raise BadChoice(f"{kind}.traits: unknown trait {name!r}")
        several = isinstance(defaults[name], frozenset)
        if several and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise BadChoice(f"{kind}.traits.{name}: not a list of texts")
        if not several and not isinstance(value, type(defaults[name])):
            raise BadChoice(f"{kind}.traits.{name}: not true or false")
    return TRAITS[kind](**{name: frozenset(value) if isinstance(value, list) else value for name, value in traits.items()})
