"""Triton's interpreter, which runs kernels on CPU tensors, repaired: its scalars are arrays of one element, which newer versions
of numpy no longer turn into an index. `conftest.py` switches it on where there is no GPU. Where there is one the kernels are
compiled, and the tests that need the interpreter are skipped: switched on, it would hold for every test of the process.
"""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels cannot be interpreted here")

from triton.runtime import interpreter

needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles for the GPU here: test_gpu_*.py")

_patch_tensor = interpreter._patch_lang_tensor


def _patched(tensor, scope):
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patched
