"""The built-in choices by kind and name, and where a name is looked up. Imports no torch.

A decorated function of the modules below is in the table; nothing else lists it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from cohort.algorithms import advantages, aggregation, kl, regions
from cohort.algorithms.registry import Choice, Kind, Word, assume_choice, find_choice

HOMES: dict[Kind, ModuleType] = {"advantage": advantages, "region": regions, "aggregation": aggregation, "kl": kl}
FIELDS: dict[Kind, str] = {"advantage": "advantage", "region": "region", "aggregation": "aggregation", "kl": "kl_estimator"}
"""The word of [algorithm] that holds the name of a choice."""
Own = Mapping[Kind, Choice]
"""A user's functions by kind, once they are resolved (recipe/own.py)."""
OWN_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""package.module:function"""
OWN_KINDS: tuple[Kind, ...] = ("advantage", "region", "aggregation")
"""Choices that may be a user's function."""


def collect_choices(kind: Kind) -> dict[str, Choice]:
    found = [choice for value in vars(HOMES[kind]).values() if callable(value) and (choice := find_choice(value))]
    return {choice.name: choice for choice in found if choice.kind == kind}


NAMED: dict[Kind, dict[str, Choice]] = {kind: collect_choices(kind) for kind in HOMES}


def list_declared_words() -> list[Word]:
    """Words that choices add to [algorithm], each once."""
    words = (word for choices in NAMED.values() for choice in choices.values() for word in choice.words)
    return list({word.name: word for word in words}.values())


def list_parameter_words() -> set[str]:
    """Words of [algorithm] that some built-in choice is told."""
    return {name for choices in NAMED.values() for choice in choices.values() for name in choice.parameters}


def list_own(words: Mapping[str, Any]) -> dict[Kind, str]:
    """Kind -> the user's function that the words of [algorithm] name for it."""
    return {kind: words[FIELDS[kind]] for kind in OWN_KINDS if words[FIELDS[kind]] not in NAMED[kind]}


def is_word(name: str, words: Mapping[str, Any]) -> bool:
    """Whether a parameter is a word of [algorithm], which it is then told; anything else is one of [algorithm.args]."""
    return name in words and name != "args"


def find_named(kind: Kind, name: str, own: Own | None = None) -> Choice:
    """The choice of that name: built in, a user's that is resolved, or a user's of which nothing is known yet."""
    if name in NAMED[kind]:
        return NAMED[kind][name]
    resolved = (own or {}).get(kind)
    return resolved if resolved is not None and resolved.name == name else assume_choice(kind, name)


def list_names_where(kind: Kind, holds: Callable[[Choice], bool]) -> str:
    """'gae' and 'global_normalized': the built-in choices for which something holds, in words."""
    names = [repr(name) for name, choice in NAMED[kind].items() if holds(choice)]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


@dataclass(frozen=True)
class Chosen:
    """The choices of an [algorithm] section with their facts, beside all of its words."""

    words: Mapping[str, Any]
    advantage: Choice
    region: Choice
    aggregation: Choice
    kl: Choice
    taught: bool = False
    """A teacher adds a credit of either sign to every token."""

    @classmethod
    def of(cls, words: Mapping[str, Any], own: Own | None = None, *, taught: bool = False) -> Chosen:
        return cls(words, **{kind: find_named(kind, words[field], own) for kind, field in FIELDS.items()}, taught=taught)

    @property
    def all(self) -> tuple[Choice, ...]:
        return self.advantage, self.region, self.aggregation, self.kl

    @property
    def known(self) -> bool:
        """False while a user's function is not resolved: rules then wait."""
        return all(choice.known for choice in self.all)

    @property
    def data(self) -> str:
        return str(self.words["data"])
