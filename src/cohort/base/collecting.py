"""Python's collector of objects that refer to each other in a ring."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spare_objects() -> Iterator[None]:
    """While this is held, the collector walks only over what was made since.

    Modules, models and prompts are a million objects that stay. A step makes enough others to have all of them walked over, again and
    again, in whichever stage happens to run.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
