"""Instructions as dicts and their checkers by id: the arguments of each are read and checked before a run."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Reader = Callable[[Any], Any]
"""Reads an argument; ValueError with what is expected instead."""
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


def has_word(text: str) -> bool:
    """Whether there is a letter or a digit."""
    return WORD.search(text) is not None


def list_words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def read_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 1:
        raise ValueError("a whole number of at least 1 is expected")
    return int(value)


def read_relation(value: Any) -> str:
    if value not in ("less than", "at least"):
        raise ValueError("'less than' or 'at least' is expected")
    return str(value)


def read_phrase(value: Any) -> str:
    if not isinstance(value, str) or not has_word(value):
        raise ValueError("a text with at least one letter or digit is expected")
    return " ".join(value.split())


def read_phrases(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError("a list of texts is expected")
    return [read_phrase(phrase) for phrase in value]


def read_letter(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value.isspace():
        raise ValueError("a single character is expected")
    return value.casefold()


def read_word(value: Any) -> str:
    if not isinstance(value, str) or not WORD.fullmatch(value.strip()):
        raise ValueError("a single word is expected")
    return value.strip().casefold()


@dataclass(frozen=True)
class Checker:
    """One kind of instruction."""

    follows: Callable[..., bool]
    readers: Mapping[str, Reader]
    """Its arguments, all of them required."""


CHECKERS: dict[str, Checker] = {}
"""The checkers by id: IFEval's or IFBench's where the instruction is theirs."""


def checker(name: str, **readers: Reader) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    def register(follows: Callable[..., bool]) -> Callable[..., bool]:
        CHECKERS[name] = Checker(follows, readers)
        return follows

    return register


def read_instruction(entry: Any) -> tuple[str, Callable[[str], bool]]:
    """(id, check of a text) of {"id": ..., arguments}; ValueError where the entry cannot be checked. None is no argument."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        raise ValueError(f'an instruction is a dict such as {{"id": "punctuation:no_comma"}}, not {str(entry)[:100]!r}')
    name = entry["id"]
    if name not in CHECKERS:
        close = difflib.get_close_matches(name, CHECKERS, n=1, cutoff=0.5)
        raise ValueError(f"unknown id {name[:100]!r}{f'; did you mean {close[0]!r}?' if close else ''}")
    known, given = CHECKERS[name], {key: value for key, value in entry.items() if key != "id" and value is not None}
    for argument in {**given, **known.readers}:
        if argument not in known.readers:
            expected = f"its arguments: {', '.join(known.readers)}" if known.readers else "it takes none"
            raise ValueError(f"{name} has no argument {argument!r}; {expected}")
        if argument not in given:
            raise ValueError(f"{name} needs the argument {argument!r}")
        try:
            given[argument] = known.readers[argument](given[argument])
        except ValueError as problem:
            raise ValueError(f"{name}: {argument} = {str(given[argument])[:100]!r}: {problem}") from None
    check = functools.partial(known.follows, **given)
    check("")  # arguments that contradict each other raise on any text
    return name, check


def compare_count(count: int, relation: str, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound
