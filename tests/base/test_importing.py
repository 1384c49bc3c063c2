"""Which modules belong to this distribution."""

from __future__ import annotations

from pathlib import Path

import pytest

import cohort
from cohort.base.importing import PACKAGES, is_own
from cohort.rewards import BUILT_IN
from cohort.rewards.contract import importable_name


def test_every_package_of_the_distribution_is_known():
    source = Path(cohort.__file__).parents[1]
    assert {file.parent.name for file in source.glob("cohort*/__init__.py")} <= {*PACKAGES}


@pytest.mark.parametrize("name", ["cohort", "cohort.rewards:f", "cohort.data.tasks", "cohort_verify", "cohort_verify.math:f"])
def test_own_modules(name):
    assert is_own(name)


@pytest.mark.parametrize("name", ["", "f", "cohort_vllm", "cohorts.rewards:f", "my.cohort:f", "mine:cohort.f", "python:f"])
def test_modules_of_others(name):
    assert not is_own(name)


def test_every_built_in_reward_is_own():
    assert [name for name, function in BUILT_IN.items() if not is_own(importable_name(function) or "")] == []
