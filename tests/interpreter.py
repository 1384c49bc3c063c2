"""Triton's interpreter, switched on: kernels then run on CPU tensors. Import this before anything of cohort.ops.fused.kernels_*.

One repair: its scalars are arrays of one element, which newer versions of numpy no longer turn into an index.
"""

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="Triton is not installed: its kernels cannot be interpreted here")

from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patched(tensor, scope):
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patched
