"""Plain values on the pipe: results of a jailed program, as JSON with a tag for every type that JSON lacks.

The host rebuilds the values from this text, so it only compares exact built-in types; an object with its own `__eq__` never
leaves the jail. boot.py encodes values in the jail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from cohort_verify.sandbox.boot import MAX_DEPTH, MAX_NODES

MAX_COLLISIONS = 32
"""Limit on keys of a set or dict with equal hashes. Honest keys rarely collide; many collisions make building quadratic."""
BUILD_LIMIT_S = 0.3

PLAIN_TYPES = "None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset or dict of these"


class NotPlain(ValueError):
    """The value cannot be sent over the pipe; the message says why."""


def rebuild(node: Any) -> Any:
    """Build the value of parsed text. Time is limited too, because keys can be chosen to collide."""
    try:
        return Builder().build(node, 0)
    except NotPlain:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, MemoryError) as problem:
        raise NotPlain(f"not a plain value ({type(problem).__name__})") from None


def check_plain(value: Any, depth: int = 0) -> None:
    """Raise NotPlain for a value that cannot be sent. Types must match exactly: a subclass of a built-in type is not plain."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if kind is dict:
        value = [part for pair in value.items() for part in pair]
    elif kind not in COLLECTIONS.values():
        if value is not None and kind not in SCALAR_TYPES:
            raise NotPlain(f"a value of type {kind.__name__} is not plain: {PLAIN_TYPES}")
        return
    for item in value:
        check_plain(item, depth + 1)


COLLECTIONS: dict[str, type] = {"l": list, "t": tuple, "s": set, "z": frozenset}
SCALAR_TYPES = (bool, int, float, complex, str, bytes)


class Builder:
    """Builds one value within a budget of nodes and CPU time."""

    def __init__(self) -> None:
        self._nodes = MAX_NODES
        self._deadline = time.thread_time() + BUILD_LIMIT_S

    def build(self, node: Any, depth: int) -> Any:
        self._nodes -= 1
        if node is None or isinstance(node, bool | str | int):
            return node
        if self._nodes < 0 or depth > MAX_DEPTH or not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise NotPlain("malformed, too large, or nested too deep")
        tag, items = node[0], node[1:]
        if tag in ("l", "t"):
            return COLLECTIONS[tag](self.build(item, depth + 1) for item in items)
        if tag in ("s", "z"):
            return COLLECTIONS[tag](self._build_keys(items, depth))
        if tag == "d" and len(items) % 2 == 0:
            keys = self._build_keys(items[::2], depth)
            return {key: self.build(value, depth + 1) for key, value in zip(keys, items[1::2], strict=True)}
        return read_scalar(tag, items)

    def _build_keys(self, nodes: list[Any], depth: int) -> Iterator[Any]:
        hashes: dict[int, int] = {}
        for node in nodes:
            key = self.build(node, depth + 1)
            code = hash(key)
            hashes[code] = hashes.get(code, 0) + 1
            if hashes[code] > MAX_COLLISIONS:
                raise NotPlain("too many of its keys collide")
            if len(hashes) % 64 == 0 and time.thread_time() > self._deadline:
                raise NotPlain("it takes too long to rebuild")
            yield key


SCALARS: dict[str, Callable[..., Any]] = {
    "i": lambda digits: int(digits, 16),
    "f": float.fromhex,
    "c": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "b": bytes.fromhex,
}
"""Types written as text, by tag. A wrong number of parts raises TypeError."""


def read_scalar(tag: str, items: list[Any]) -> Any:
    if tag not in SCALARS or not all(isinstance(item, str) for item in items):
        raise NotPlain("malformed")
    return SCALARS[tag](*items)
