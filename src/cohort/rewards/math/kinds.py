"""The kinds of answers: a value, words, a group in brackets, a relation. What cohort.rewards.math.shapes reads, and compare compares."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.rewards.math.tree import Node


@dataclass(frozen=True)
class Value:
    """One expression, with the unit behind it. Without a node it was not understood: `refused` says whether to ask others."""

    text: str
    node: Node | None = None
    unit: str = ""
    refused: str = ""
    doubtful: bool = False
    """The unit is words that nobody can vouch for ("versus six"): they count only where the gold has them too."""


@dataclass(frozen=True)
class Words:
    """Text, case and spaces aside; or one letter that names a choice."""

    text: str
    label: bool = False


@dataclass(frozen=True)
class Group:
    r"""Several in brackets. kind: "()", "[]", "(]", "[)", "{}" for a set, "" for a bare list, ":" for a ratio, "cup" for a
    union, and for a matrix its size and sort ("2x2 matrix")."""

    kind: str
    items: tuple[Shape, ...]
    grouped: Shape | None = None
    """Of "100,200", which may also be one number: that number."""


@dataclass(frozen=True)
class Relation:
    """left (op) right (op) ...; parts are shapes."""

    parts: tuple[Shape, ...]
    ops: tuple[str, ...]


Shape = Value | Words | Group | Relation

INFINITY = Value(r"\infty", Node("constant", name="infty"))
MINUS_INFINITY = Value(r"-\infty", Node("negate", (Node("constant", name="infty"),)))
EVERY_NUMBER = Value(r"\mathbb{R}", Node("symbol", name=r"\mathbb R"))
