"""Trees of plain data, as in TOML and JSON."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ATOMS = frozenset((str, int, float, bool, bytes, type(None)))
"""Immutable types."""


def reach(node: Any, path: Sequence[str], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything that matches a path of keys; `*` matches every entry of a list or dict."""
    if not path:
        yield place, node
        return
    entries = dict(enumerate(node)) if isinstance(node, list) else node if isinstance(node, Mapping) else {}
    for key, value in entries.items():
        if path[0] in ("*", key):
            yield from reach(value, path[1:], (*place, str(key)))


def copy_value(value: Any) -> Any:
    """A deep copy of a value; immutable values are returned as they are."""
    kind = type(value)
    if kind in ATOMS:
        return value
    return value.copy() if kind is list and ATOMS.issuperset({*map(type, value)}) else copy.deepcopy(value)
