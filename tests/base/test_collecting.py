"""Objects that stay are not walked over while steps are trained, and are again afterwards."""

from __future__ import annotations

import gc
import weakref

from cohort.base.collecting import spare_objects


class Ring:
    def __init__(self) -> None:
        self.own = self


def test_what_was_there_is_spared_what_is_new_is_collected_and_nothing_stays_frozen():
    before = Ring()
    kept = weakref.ref(before)
    with spare_objects():
        assert gc.get_freeze_count() > 0
        new = weakref.ref(Ring())
        del before
        gc.collect()
        assert new() is None
        assert kept() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert kept() is None
