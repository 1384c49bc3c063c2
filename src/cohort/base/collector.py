"""Python's garbage collector, kept from walking over what it never finds anything in."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def freeze_objects() -> Iterator[None]:
    """What is there by now is left alone until the end of the block.

    Libraries and models are half a million objects, and a walk over all of them, which some steps in ten would bring on, takes longer
    than a short step. It is not looked for garbage first: there is next to none, and the search is such a walk.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
