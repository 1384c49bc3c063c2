"""The Triton kernel of AdamW with 8-bit moments against its PyTorch reference, in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: its kernels cannot be interpreted here")

import triton.language as tl

from cohort.ops.adam8 import BLOCK, Moments, make_rounding_key, make_rule, update_pieces
from cohort.ops.fused.kernels_adam8 import ROWS, update_fused

INTERPRETED = type(tl.max).__name__ == "InterpretedFunction"
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="run by the last test, in a process of its own")

SIZES = [ROWS * BLOCK, 2 * ROWS * BLOCK, 3 * BLOCK, BLOCK - 1, ROWS * BLOCK + 1, 3 * ROWS * BLOCK + 5 * BLOCK + 37]


def gradient_at(step: int, size: int) -> torch.Tensor:
    """Sizes that differ by twelve orders of magnitude, zeros, and a block without any gradient."""
    generator = torch.Generator().manual_seed(step)
    gradient = torch.randn(size, generator=generator) * 10.0 ** (-12 * torch.rand(size, generator=generator) ** 3)
    gradient[torch.rand(size, generator=generator) < 0.1] = 0.0
    gradient[:BLOCK] = 0.0
    return gradient


@needs_interpreter
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_gives_the_bits_of_the_reference(size):
    """Six updates with decay: codes and scales are equal bit for bit, weights to their last bit.

    The interpreter fuses no multiply-adds; PyTorch does so in a few places.
    """
    start = torch.linspace(-1.0, 1.0, size)
    fused, expected = start.clone(), start.clone()
    of_fused, of_expected = Moments.zeros(fused), Moments.zeros(expected)
    for step in range(1, 7):
        gradient = gradient_at(step, size)
        rule = make_rule(step, 1e-2, 0.1, 0.9, 0.999, 1e-8)
        key = make_rounding_key("layers.0.weight", step)
        update_fused(fused, gradient, of_fused, rule, key)
        update_pieces(expected, gradient, of_expected, rule, key)
        torch.testing.assert_close(fused, expected, rtol=1.2e-7, atol=6e-8)
        for name, tensor in of_fused.tensors().items():
            assert torch.equal(tensor, of_expected.tensors()[name]), (step, name)
    if size > BLOCK:
        assert of_expected.first_codes.unique().numel() > 50
        assert not torch.equal(fused, start)


@needs_interpreter
def test_the_kernel_runs_on_the_device_of_the_tensor(monkeypatch):
    """Triton launches on the current device: with model.device = "cuda:1" that is another one."""
    asked = []
    original = torch.cuda.device_of
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: asked.append(tensor) or original(tensor))
    master = torch.zeros(BLOCK)
    update_fused(master, torch.ones(BLOCK), Moments.zeros(master), make_rule(1, 1e-2, 0.0, 0.9, 0.999, 1e-8), (1, 2))
    assert len(asked) == 1
    assert asked[0] is master
    assert bool((master < 0).all())


@needs_interpreter
def test_a_matrix_and_a_bfloat16_gradient():
    """Any shape is read flat; a gradient in the compute dtype is widened as it is read."""
    start = torch.randn(24, 100, generator=torch.Generator().manual_seed(0))
    fused, expected = start.clone(), start.clone()
    of_fused, of_expected = Moments.zeros(fused), Moments.zeros(expected)
    for step in (1, 2):
        gradient = torch.randn(24, 100, generator=torch.Generator().manual_seed(step)).to(torch.bfloat16)
        rule, key = make_rule(step, 1e-3, 0.0, 0.9, 0.99, 1e-8), make_rounding_key("w", step)
        update_fused(fused, gradient, of_fused, rule, key)
        update_pieces(expected, gradient, of_expected, rule, key)
    torch.testing.assert_close(fused, expected, rtol=1.2e-7, atol=6e-8)
    assert torch.equal(of_fused.second_codes, of_expected.second_codes)


@needs_interpreter
def test_the_kernel_writes_nothing_beyond_the_end():
    """The tensors are the beginnings of longer ones; what follows them stays."""
    size, extra = BLOCK + 9, 3 * BLOCK
    whole = torch.full((size + extra,), 5.0)
    moments = Moments(
        torch.full((size + extra,), 7, dtype=torch.int8)[:size],
        torch.full((2 + 3,), 7.0)[:2],
        torch.full((size + extra,), 7, dtype=torch.uint8)[:size],
        torch.full((2 + 3,), 7.0)[:2],
    )
    bases = [tensor._base for tensor in moments.tensors().values()]
    update_fused(whole[:size], torch.ones(size), moments, make_rule(1, 1.0, 0.0, 0.9, 0.999, 1e-8), make_rounding_key("w", 1))
    assert (whole[:size] != 5.0).all()
    assert (whole[size:] == 5.0).all()
    for base, used in zip(bases, (size, 2, size, 2), strict=True):
        assert base is not None
        assert (base[used:] == 7).all()


@pytest.mark.skipif(INTERPRETED, reason="the tests above ran")
def test_in_a_process_with_the_interpreter():
    """Triton decides when it is imported; where something else imported it first, these tests need a separate process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "........s" in done.stdout, done.stdout  # all of them, none skipped but this one
