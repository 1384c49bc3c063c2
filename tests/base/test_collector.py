"""What was there before a block is left alone by the collector; what is made in it is not."""

from __future__ import annotations

import gc
import weakref

import pytest

from cohort.base.processes import freeze_objects


class Ring:
    def __init__(self) -> None:
        self.other = self


def test_a_cycle_made_in_the_block_is_found_and_one_made_before_only_after_it():
    gc.collect()
    before = Ring()
    old = weakref.ref(before)
    with freeze_objects():
        assert gc.get_freeze_count() > 1000
        del before
        young = weakref.ref(Ring())
        gc.collect()
        assert young() is None
        assert old() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


def test_it_ends_with_an_error_too():
    with pytest.raises(ValueError, match="on the way"), freeze_objects():
        raise ValueError("on the way")
    assert gc.get_freeze_count() == 0
