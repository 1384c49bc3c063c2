"""The switch for reproducible CUDA runs, as far as a CPU shows it; ops/test_gpu_determinism.py runs it."""

from __future__ import annotations

import os

import pytest
import torch

from cohort.errors import RunError
from cohort.ops.determinism import VARIABLE, deterministic


def settings() -> tuple[bool, bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that the end of the test restores what was there
    monkeypatch.delenv(VARIABLE)


def test_strict_inside_and_as_before_afterwards():
    before = settings()
    with deterministic(True):
        assert settings() == (True, False, False, False)
        assert os.environ[VARIABLE] == ":4096:8"
    assert settings() == before
    with pytest.raises(ZeroDivisionError), deterministic(True):
        raise ZeroDivisionError
    assert settings() == before


def test_off_changes_nothing():
    before = settings()
    with deterministic(False):
        assert settings() == before
    assert VARIABLE not in os.environ


def test_a_variable_that_does_not_help_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, ":4096:2:16:8")
    with pytest.raises(RunError, match=r"CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8, which is not reproducible"), deterministic(True):
        pass
    monkeypatch.setenv(VARIABLE, ":16:8")
    with deterministic(True):
        assert os.environ[VARIABLE] == ":16:8"


def test_too_late_once_cuda_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RunError, match="CUDA is already in use"), deterministic(True):
        pass
    monkeypatch.setenv(VARIABLE, ":4096:8")
    with deterministic(True):
        pass


def test_an_operation_without_a_reproducible_form_is_named():
    """put_ without accumulate has none, on a CPU either."""
    with pytest.raises(RunError, match=r"train\.deterministic: something in this run .*put_"), deterministic(True):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), deterministic(True):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
