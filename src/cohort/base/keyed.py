"""Randomness as a pure function of a key, the same on every platform and Python version.

Python's `random` does not guarantee the same `shuffle` in all versions, and `hash()` of a string changes with every process. Use this
module for splits and orders that must be reproducible years later.
"""

from __future__ import annotations

import hashlib


def keyed_hash(*parts: object) -> int:
    """64 uniform bits that depend only on the parts."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def keyed_share(*parts: object) -> float:
    """A uniform number in [0, 1) that depends only on the parts."""
    return (keyed_hash(*parts) >> 11) / 2**53


def keyed_permutation(size: int, *parts: object) -> list[int]:
    """A permutation of 0 to size - 1 that depends only on the parts."""
    return sorted(range(size), key=lambda index: (keyed_hash(*parts, index), index))
