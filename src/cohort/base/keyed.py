"""Randomness that is a pure function of its key, the same on every platform and Python version.

Python's `random` does not promise the same `shuffle` for ever, and `hash()` of a string changes with every process.
Splits and orders that must be found again after a year go through here.
"""

from __future__ import annotations

import hashlib


def keyed_hash(*parts: object) -> int:
    """64 uniform bits that depend on nothing but the parts."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def keyed_share(*parts: object) -> float:
    """A uniform number in [0, 1) that depends on nothing but the parts."""
    return (keyed_hash(*parts) >> 11) / 2**53


def keyed_permutation(size: int, *parts: object) -> list[int]:
    """The numbers 0 .. size-1 in an order that depends on nothing but the parts."""
    return sorted(range(size), key=lambda index: (keyed_hash(*parts, index), index))
