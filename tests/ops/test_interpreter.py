"""Collecting the tests for a GPU leaves Triton's interpreter off, as far as a machine without one shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = sorted(file for file in TESTS.rglob("test_gpu_*.py") if file != Path(__file__))
IMPORT_ALL = f"""
import contextlib, importlib, os, sys, torch
with contextlib.suppress(ImportError):
    import peft  # and bitsandbytes, which asks for the device as it is
torch.cuda.is_available = lambda: True  # modules would skip themselves before their imports
sys.path[:0] = {sorted({str(file.parent) for file in MODULES} | {str(TESTS)})}
for name in {["conftest", *(file.stem for file in MODULES)]}:
    importlib.import_module(name)
assert "TRITON_INTERPRET" not in os.environ, "Triton's interpreter is on: no kernel would be compiled"
import interpreter
assert "TRITON_INTERPRET" not in os.environ, "tests of the same process would run no compiled kernel"
print(*sorted(name for name in sys.modules if name.startswith("test_")))
"""


def test_gpu_tests_leave_the_interpreter_off_and_import_no_other_tests() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels cannot be imported")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(file.stem for file in MODULES)
